// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
)

// startKept runs a broker on a journal in a directory. stop ends it in order.
func startKept(t *testing.T, dir string, change func(*Options)) (b *Broker, stop func()) {
	t.Helper()
	j, err := journal.Open(journal.Options{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() }) // after the broker
	b = startBroker(t, func(o *Options) {
		o.Journal = j
		if change != nil {
			change(o)
		}
	})
	return b, func() {
		require.NoError(t, b.Close(t.Context()))
		require.NoError(t, j.Close())
	}
}

// copyCrashed is what a crash leaves at this moment: a copy of the files.
func copyCrashed(t testing.TB, dir string) string {
	t.Helper()
	to := t.TempDir()
	for {
		files, err := filepath.Glob(filepath.Join(dir, "*.log"))
		require.NoError(t, err)
		again := false
		for _, path := range files {
			text, err := os.ReadFile(path)
			if again = again || errors.Is(err, os.ErrNotExist); again {
				break // compacted meanwhile
			}
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(to, filepath.Base(path)), text, 0o600))
		}
		if !again {
			return to
		}
		to = t.TempDir()
	}
}

// restartCrashed runs a broker on what a crash of another leaves now.
func restartCrashed(t *testing.T, dir string, change func(*Options)) (*Broker, string) {
	t.Helper()
	to := copyCrashed(t, dir)
	b, _ := startKept(t, to, change)
	return b, to
}

func testQueueOutlivesTheBroker(t *testing.T, at brokerSetup) {
	for _, version := range []struct {
		name string
		opts []connectOption
	}{{"five", []connectOption{persistentSession}}, {"three", []connectOption{persistentSession, version311}}} {
		t.Run(version.name, func(t *testing.T) {
			dir := t.TempDir()
			b, stop := at.startOn(t, dir, nil)
			sub, pub := openClient(t, b, "sub", version.opts...), openClient(t, b, "pub")
			sub.sub("a/#", 1)
			sub.sub("b", 2)
			sub.leave(b, "sub")
			pub.burst("a/b", 0, 50)
			require.Equal(t, int64(50), b.Stats().Queued)

			check := func(b *Broker) {
				require.Equal(t, int64(50), b.Stats().Queued)
				require.Equal(t, 2, b.Stats().Subscriptions)
				sub := openClient(t, b, "sub", version.opts...)
				require.True(t, sub.connack.SessionPresent)
				require.Equal(t, numberedPayloads(0, 50), sub.collect(50))
				openClient(t, b, "pub").publish1("b", "still subscribed")
				require.Equal(t, "still subscribed", string(sub.expect(packets.Publish).Payload))
			}
			killed, _ := at.restartCrashed(t, dir)
			check(killed)
			stop()
			ended, _ := at.startOn(t, dir, nil)
			check(ended)
		})
	}
}

// What full sessions have dropped is counted over restarts, in order and by a crash, without a write for each message.
func TestWhatFullSessionsDroppedIsCountedOverRestarts(t *testing.T) {
	dir := t.TempDir()
	narrow := func(o *Options) {
		o.Limits.Session.Bytes = roomFor(numberedPayloads(0, 10)...)
		o.LinkQueue = &LinkQueueOptions{Keep: []string{"kept/#"}, Bytes: 1, Age: time.Hour}
	}
	missed := func(b *Broker) int64 {
		for _, s := range b.Sessions() {
			if s.Client == "sub" {
				return s.Missed
			}
		}
		return -1
	}
	b, stop := startKept(t, dir, narrow)
	sub := openClient(t, b, "sub", persistentSession)
	sub.sub("a", 1)
	sub.leave(b, "sub")
	records := b.store.last.Load()
	openClient(t, b, "pub").burst("a", 0, 30)
	passMessages(t, b, 0, 5)
	require.EqualValues(t, 20, missed(b))
	require.LessOrEqual(t, b.store.last.Load(), records+10, "nothing is written for what is dropped")
	stop()

	b, _ = startKept(t, dir, narrow)
	require.EqualValues(t, 20, missed(b))
	require.EqualValues(t, 20, b.Report().Missed)
	require.EqualValues(t, 4, b.LinkQueue().Stats().FullBefore)
	require.Zero(t, b.Stats().Dropped["queue_full"], "a counter begins with the process")
	openClient(t, b, "pub").burst("a", 0, 5)
	b.storeMissed()
	require.NoError(t, b.store.commitNow(nil))

	b, _ = restartCrashed(t, dir, narrow)
	require.EqualValues(t, 25, missed(b))
	sub = openClient(t, b, "sub", persistentSession)
	require.Equal(t, numberedPayloads(0, 10), sub.collect(10))
	require.EqualValues(t, 25, missed(b), "also once there is room")
	openClient(t, b, "sub").leave(b, "sub")
	require.Zero(t, b.Report().Missed, "with the session ends its count")
}

func testWhatWasSentIsSentAgainWithItsID(t *testing.T, at brokerSetup) {
	dir := t.TempDir()
	b, stop := at.startOn(t, dir, nil)
	sub, pub := openClient(t, b, "sub", persistentSession, receiveMaximum(5)), openClient(t, b, "pub")
	sub.sub("a", 1)
	pub.burst("a", 0, 20)
	ids := make(map[string]uint16)
	for range 5 {
		pk := sub.expect(packets.Publish)
		ids[string(pk.Payload)] = pk.PacketID
	}
	stop()
	b, _ = at.startOn(t, dir, nil)
	sub = openClient(t, b, "sub", persistentSession, receiveMaximum(7))
	for i := range 7 {
		pk := sub.expect(packets.Publish)
		require.Equal(t, strconv.Itoa(i), string(pk.Payload))
		require.Equal(t, i < 5, pk.FixedHeader.Dup, "message %d", i)
		if i < 5 {
			require.Equal(t, ids[string(pk.Payload)], pk.PacketID)
		}
	}
	sub.nothing()
}

func testRetainedOutlivesTheBroker(t *testing.T, at brokerSetup) {
	dir := t.TempDir()
	b, stop := at.startOn(t, dir, nil)
	pub := openClient(t, b, "pub")
	for i := range 100 {
		pub.publish1("r/"+strconv.Itoa(i), "old", markRetain)
	}
	want := packets.Properties{
		ContentType: "t", ResponseTopic: "r", CorrelationData: []byte{1}, PayloadFormat: 1, PayloadFormatFlag: true,
		User: []packets.UserProperty{{Key: "k", Val: "v"}},
	}
	pub.publish1("r/1", "new", markRetain, withProperties(want))
	pub.publish1("r/2", "", markRetain)
	check := func(b *Broker) {
		require.Equal(t, 99, b.Stats().Retained)
		sub := openClient(t, b, "sub")
		sub.sub("r/1", 1)
		pk := sub.expect(packets.Publish)
		require.Equal(t, "new", string(pk.Payload))
		require.True(t, pk.FixedHeader.Retain)
		require.Equal(t, want, pk.Properties)
		sub.sub("r/2", 1)
		sub.nothing()
	}
	killed, _ := at.restartCrashed(t, dir)
	check(killed)
	stop()
	ended, _ := at.startOn(t, dir, nil)
	check(ended)
}

// A QoS 2 publish, killed after each step: taken once.
func TestInboundQoS2AtEachStep(t *testing.T) {
	dir := t.TempDir()
	b, _ := startKept(t, dir, nil)
	sub, pub := openClient(t, b, "sub", persistentSession), openClient(t, b, "pub", persistentSession)
	sub.sub("a", 1)
	sub.leave(b, "sub")
	pub.publish("a", "once", 2, 5)
	pub.expect(packets.Pubrec)

	b, dir = restartCrashed(t, dir, nil)
	pub = openClient(t, b, "pub", persistentSession)
	require.True(t, pub.connack.SessionPresent)
	pub.publish("a", "once", 2, 5, markDup)
	require.Equal(t, byte(0), pub.expect(packets.Pubrec).ReasonCode)

	b, dir = restartCrashed(t, dir, nil)
	pub = openClient(t, b, "pub", persistentSession)
	pub.ack(packets.Pubrel, 5)
	require.Equal(t, byte(0), pub.expect(packets.Pubcomp).ReasonCode)

	b, dir = restartCrashed(t, dir, nil)
	pub = openClient(t, b, "pub", persistentSession)
	pub.ack(packets.Pubrel, 5)
	require.Equal(t, byte(0x92), pub.expect(packets.Pubcomp).ReasonCode)
	pub.publish("a", "twice", 2, 5)
	pub.expect(packets.Pubrec)

	b, _ = restartCrashed(t, dir, nil)
	sub = openClient(t, b, "sub", persistentSession)
	require.Equal(t, []string{"once", "twice"}, sub.collect(2))
	sub.nothing()
}

// A QoS 2 delivery, killed after each step: delivered once.
func TestOutboundQoS2AtEachStep(t *testing.T) {
	dir := t.TempDir()
	b, _ := startKept(t, dir, nil)
	sub, other, pub := openClient(t, b, "sub", persistentSession), openClient(t, b, "other", persistentSession), openClient(t, b, "pub")
	sub.sub("a", 2)
	other.sub("a", 2) // so that the message is shared
	pub.publish("a", "x", 2, 1)
	pub.expect(packets.Pubrec)
	id := sub.expect(packets.Publish).PacketID

	b, dir = restartCrashed(t, dir, nil)
	sub = openClient(t, b, "sub", persistentSession)
	again := sub.expect(packets.Publish)
	require.Equal(t, id, again.PacketID)
	require.Equal(t, "x", string(again.Payload))
	sub.ack(packets.Pubrec, id)
	require.Equal(t, id, sub.expect(packets.Pubrel).PacketID)

	b, dir = restartCrashed(t, dir, nil)
	sub = openClient(t, b, "sub", persistentSession)
	require.Equal(t, id, sub.expect(packets.Pubrel).PacketID, "released: not published again")
	sub.nothing()
	sub.ack(packets.Pubcomp, id)
	sub.nothing()
	openClient(t, b, "pub").publish1("elsewhere", "takes the rest to disk", markRetain)

	b, _ = restartCrashed(t, dir, nil)
	sub = openClient(t, b, "sub", persistentSession)
	sub.nothing()
	openClient(t, b, "pub").publish1("a", "next")
	require.NotEqual(t, id, sub.expect(packets.Publish).PacketID)
	other = openClient(t, b, "other", persistentSession)
	require.Equal(t, "x", string(other.expect(packets.Publish).Payload))
}

func TestCleanStartForgetsOnDisk(t *testing.T) {
	dir := t.TempDir()
	b, _ := startKept(t, dir, nil)
	openClient(t, b, "c", persistentSession).sub("a", 1)
	c := openClient(t, b, "c", func(pk *packets.Packet) { pk.Connect.Clean = true })
	require.False(t, c.connack.SessionPresent)
	openClient(t, b, "pub").publish1("a", "x", markRetain)
	b, _ = restartCrashed(t, dir, nil)
	require.Zero(t, b.Stats().Sessions)
	require.Zero(t, b.Stats().Subscriptions)
	require.False(t, openClient(t, b, "c", persistentSession).connack.SessionPresent)
}

func TestTakeoverOverARestart(t *testing.T) {
	dir := t.TempDir()
	b, _ := startKept(t, dir, nil)
	openClient(t, b, "sub", persistentSession).sub("a", 1)
	openClient(t, b, "sub", persistentSession)
	pub := openClient(t, b, "pub")
	pub.burst("a", 0, 100) // nobody acknowledges
	b, _ = restartCrashed(t, dir, nil)
	openClient(t, b, "sub", persistentSession)
	sub := openClient(t, b, "sub", persistentSession)
	require.Equal(t, numberedPayloads(0, 100), sub.collect(100))
}

func TestUnsubscribeOutlivesTheBroker(t *testing.T) {
	dir := t.TempDir()
	b, _ := startKept(t, dir, nil)
	sub := openClient(t, b, "sub", persistentSession)
	sub.sub("a", 1)
	sub.sub("b", 1, subID(9))
	sub.sub("b", 2, subID(10))
	sub.send(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Unsubscribe}, PacketID: 4, Filters: packets.Subscriptions{{Filter: "a"}},
	})
	sub.expect(packets.Unsuback)
	b, _ = restartCrashed(t, dir, nil)
	require.Equal(t, 1, b.Stats().Subscriptions)
	sub, pub := openClient(t, b, "sub", persistentSession), openClient(t, b, "pub")
	pub.publish("b", "x", 2, 1)
	pk := sub.expect(packets.Publish)
	require.Equal(t, []int{10}, pk.Properties.SubscriptionIdentifier)
	require.Equal(t, byte(2), pk.FixedHeader.Qos)
}

// recordsIn counts what a journal has.
func recordsIn(t *testing.T, dir string) int {
	t.Helper()
	j, err := journal.Open(journal.Options{Dir: dir})
	require.NoError(t, err)
	defer j.Close()
	return int(j.Stats().Records)
}

type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *testClock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestExpiryOverARestart(t *testing.T) {
	dir := t.TempDir()
	c := &testClock{now: time.Now()}
	options := func(o *Options) { o.Now = c.read }
	b, stop := startKept(t, dir, options)
	for _, id := range []string{"hour", "minute"} {
		sub := openClient(t, b, id, withSessionExpiry(map[string]uint32{"hour": 3600, "minute": 60}[id]))
		sub.sub("a", 1)
		sub.leave(b, id)
	}
	pub := openClient(t, b, "pub")
	pub.publish1("a", "short", withProperties(packets.Properties{MessageExpiryInterval: 100}))
	pub.publish1("a", "long", withProperties(packets.Properties{MessageExpiryInterval: 1000}))
	pub.publish1("r", "kept", markRetain, withProperties(packets.Properties{MessageExpiryInterval: 100}))
	pub.publish1("s", "kept", markRetain, withProperties(packets.Properties{MessageExpiryInterval: 1000}))
	stop()
	c.add(5 * time.Minute)
	b, stop = startKept(t, dir, options)
	require.Equal(t, 1, b.Stats().Sessions)
	require.Equal(t, 1, b.Stats().Retained)
	require.Equal(t, int64(1), b.Stats().Dropped["expired"])
	sub := openClient(t, b, "hour", persistentSession)
	pk := sub.expect(packets.Publish)
	require.Equal(t, "long", string(pk.Payload))
	require.InDelta(t, 700, pk.Properties.MessageExpiryInterval, 1)
	sub.ack(packets.Puback, pk.PacketID)
	sub.nothing()
	stop()
	j, err := journal.Open(journal.Options{Dir: dir})
	require.NoError(t, err)
	defer j.Close()
	require.LessOrEqual(t, j.Stats().Records, int64(4), "the session, its subscription, how far it was sent, one retained message")
}

// A clock that is set back while the broker is away makes nothing last for longer.
func TestAClockSetBackOverARestart(t *testing.T) {
	dir := t.TempDir()
	c := &testClock{now: time.Now()}
	options := func(o *Options) { o.Now = c.read }
	b, stop := startKept(t, dir, options)
	watch := openClient(t, b, "watch", persistentSession)
	watch.sub("#", 1)
	watch.leave(b, "watch")
	openClient(t, b, "pub").publish1("a", "expires", withProperties(packets.Properties{MessageExpiryInterval: 100}))
	openClient(t, b, "will", persistentSession, withWill("will", "due", 2)).leave(b, "will")
	openClient(t, b, "short", withSessionExpiry(2)).leave(b, "short")
	stop()
	c.add(-time.Hour)
	b, _ = startKept(t, dir, options)
	require.Eventually(t, func() bool { return b.Stats().Sessions == 2 }, testTimeout, 10*time.Millisecond)
	watch = openClient(t, b, "watch", persistentSession)
	pk := watch.expect(packets.Publish)
	require.LessOrEqual(t, pk.Properties.MessageExpiryInterval, uint32(100))
	watch.ack(packets.Puback, pk.PacketID)
	require.Equal(t, []string{"due"}, watch.collect(1))
}

// setBack is a time as the wall clock says it that was set back; the monotonic clock goes on. Package time has no way to make one.
func setBack(now time.Time, hours uint64) time.Time {
	(*struct{ wall uint64 })(unsafe.Pointer(&now)).wall -= hours * 3600 << 30
	return now
}

// A clock that is set back under the broker makes nothing that is stored meanwhile older.
func TestAClockSetBackUnderTheBroker(t *testing.T) {
	dir := t.TempDir()
	var wrong atomic.Bool
	options := func(o *Options) {
		o.Now = func() time.Time {
			if wrong.Load() {
				return setBack(time.Now(), 72)
			}
			return time.Now()
		}
	}
	b, stop := startKept(t, dir, options)
	wrong.Store(true)
	require.InDelta(t, 72, time.Since(b.opts.Now().Round(0)).Hours(), 1)
	require.Less(t, time.Since(b.opts.Now()), time.Hour)
	sub := openClient(t, b, "sub", withSessionExpiry(3600))
	sub.sub("a", 1)
	sub.leave(b, "sub")
	openClient(t, b, "pub").publish1("a", "a client's", withProperties(packets.Properties{MessageExpiryInterval: 3600}))
	b.Publish(Message{Topic: "a", Payload: []byte("the program's"), QoS: 1, Props: Properties{Expiry: 3600}})
	stop()
	wrong.Store(false)
	b, _ = startKept(t, dir, options)
	require.Equal(t, []string{"a client's", "the program's"}, openClient(t, b, "sub", persistentSession).collect(2))
}

// What was kept before the clock was set is as old as the broker's run.
func TestAClockSetForTheFirstTimeOverARestart(t *testing.T) {
	dir := t.TempDir()
	c := &testClock{now: time.Unix(1000, 0)}
	options := func(o *Options) {
		o.Now = c.read
		o.LinkQueue = &LinkQueueOptions{Keep: []string{"telemetry"}, Bytes: 1 << 20, Age: time.Hour}
	}
	b, stop := startKept(t, dir, options)
	sub, pub := openClient(t, b, "sub", persistentSession), openClient(t, b, "pub")
	sub.sub("a", 1)
	sub.leave(b, "sub")
	pub.publish1("telemetry", "kept")
	pub.publish1("a", "expires", withProperties(packets.Properties{MessageExpiryInterval: 60}))
	pub.publish1("r", "retained", markRetain, withProperties(packets.Properties{MessageExpiryInterval: 60}))
	stop()
	c.add(60 * 365 * 24 * time.Hour)
	b, _ = startKept(t, dir, options)
	require.Equal(t, []string{"expires"}, openClient(t, b, "sub", persistentSession).collect(1))
	require.Equal(t, 1, b.Stats().Retained)
	pub = openClient(t, b, "pub")
	pub.publish1("telemetry", "later") // and what is too old gives way
	_, got := nextLinkMessages(t, b.LinkQueue().Open(10), 2)
	require.Equal(t, []string{"kept", "later"}, got)
}

func TestWillsOverARestart(t *testing.T) {
	dir := t.TempDir()
	b, stop := startKept(t, dir, nil)
	watch := openClient(t, b, "watch", persistentSession)
	watch.sub("will/#", 1)
	watch.leave(b, "watch")
	openClient(t, b, "away", persistentSession, withWill("will/away", "1", 1)).leave(b, "away")
	openClient(t, b, "back", persistentSession, withWill("will/back", "2", 60))
	openClient(t, b, "later", persistentSession, withWill("will/later", "3", 3600))
	openClient(t, b, "done", persistentSession, withWill("will/done", "4", 1)).disconnect()
	require.Eventually(t, func() bool { return b.clients.connected("done") == nil }, testTimeout, time.Millisecond)
	openClient(t, b, "pub").publish1("x", "takes the rest to disk", markRetain)
	waits := func(b *Broker, id string) bool {
		b.clients.mu.Lock()
		defer b.clients.mu.Unlock()
		return b.clients.byID[id].willTimer != nil
	}
	check := func(b *Broker) {
		require.Eventually(t, func() bool { return waits(b, "back") }, testTimeout, time.Millisecond)
		openClient(t, b, "back", persistentSession)
		require.False(t, waits(b, "back"))
		watch := openClient(t, b, "watch", persistentSession)
		require.Equal(t, []string{"1"}, watch.collect(1))
		watch.nothing()
	}
	killed, _ := restartCrashed(t, dir, nil)
	check(killed)
	stop()
	ended, _ := startKept(t, dir, nil)
	check(ended)
}

func TestWillOfAConnectionThatTheBrokerTookAlong(t *testing.T) {
	dir := t.TempDir()
	b, _ := startKept(t, dir, nil)
	watch := openClient(t, b, "watch", persistentSession)
	watch.sub("will/#", 1)
	watch.leave(b, "watch")
	openClient(t, b, "c", persistentSession, withWill("will/c", "gone", 0))
	b, _ = restartCrashed(t, dir, nil)
	require.Equal(t, []string{"gone"}, openClient(t, b, "watch", persistentSession).collect(1))
}

// To clients the broker's end is the end of their connections.
func TestWillsOnClose(t *testing.T) {
	dir := t.TempDir()
	b, stop := startKept(t, dir, nil)
	watch := openClient(t, b, "watch", persistentSession)
	watch.sub("will/#", 1)
	watch.leave(b, "watch")
	openClient(t, b, "clean", withWill("will/clean", "1", 60))
	openClient(t, b, "kept", persistentSession, withWill("will/kept", "2", 0))
	openClient(t, b, "delayed", persistentSession, withWill("will/delayed", "3", 60))
	stop()
	b, _ = startKept(t, dir, nil)
	watch = openClient(t, b, "watch", persistentSession)
	require.ElementsMatch(t, []string{"1", "2"}, watch.collect(2))
	watch.nothing()
}

func TestPresenceOfAResumedSession(t *testing.T) {
	told := &recordedPresence{}
	b := startBroker(t, func(o *Options) { o.Presence = told })
	c := openClient(t, b, "c", persistentSession)
	c.sub("a", 1)
	c.leave(b, "c")
	openClient(t, b, "c", persistentSession)
	require.Eventually(t, func() bool { return len(told.entries()) == 5 }, testTimeout, time.Millisecond)
	require.Equal(t, []string{"+c", "c a", "-c", "+c", "c a"}, told.entries())
}

// Retained messages that were owed when the broker went are sent after it is back.
func TestPullOverARestart(t *testing.T) {
	for _, qos := range []byte{1, 2} {
		t.Run(strconv.Itoa(int(qos)), func(t *testing.T) {
			dir := t.TempDir()
			b, _ := startKept(t, dir, nil)
			pub := openClient(t, b, "pub")
			for i := range 200 {
				pub.publish("r/"+strconv.Itoa(i), "x", 2, uint16(i)+1, markRetain)
			}
			for range 200 {
				pub.expect(packets.Pubrec)
			}
			sub := openClient(t, b, "sub", persistentSession, receiveMaximum(3))
			sub.sub("r/#", qos)
			sub.expect(packets.Publish)

			b, dir = restartCrashed(t, dir, nil)
			sub = openClient(t, b, "sub", persistentSession)
			got, owed := make(map[string]bool), 0
			for len(got) < 200 || owed > 0 {
				kind := sub.takeAny(func(pk packets.Packet) {
					got[pk.TopicName] = true
					require.Equal(t, qos, pk.FixedHeader.Qos)
					owed += int(qos) - 1
				})
				if kind == packets.Pubrel {
					owed--
				}
			}
			sub.nothing()
			pub = openClient(t, b, "pub2")
			pub.publish1("x", "what is delivered before it is on disk is deleted once it is there", markRetain)
			pub.publish1("x", "which takes that to disk", markRetain)
			b, _ = restartCrashed(t, dir, nil)
			openClient(t, b, "sub", persistentSession).nothing()
		})
	}
}

// takeAny reads a packet, and acknowledges it.
func (c *testClient) takeAny(publish func(packets.Packet)) (kind byte) {
	c.t.Helper()
	pk, err := c.read(testTimeout)
	require.NoError(c.t, err)
	switch pk.FixedHeader.Type {
	case packets.Publish:
		publish(pk)
		switch pk.FixedHeader.Qos {
		case 1:
			c.ack(packets.Puback, pk.PacketID)
		case 2:
			c.ack(packets.Pubrec, pk.PacketID)
		}
	case packets.Pubrel:
		c.ack(packets.Pubcomp, pk.PacketID)
	}
	return pk.FixedHeader.Type
}

func TestSessionsThatEndWithTheConnectionCostNoDisk(t *testing.T) {
	j, err := journal.Open(journal.Options{Dir: t.TempDir()})
	require.NoError(t, err)
	b := startBroker(t, func(o *Options) { o.Journal = j })
	sub, pub := openClient(t, b, "sub"), openClient(t, b, "pub", version311)
	sub.sub("a", 2)
	pub.burst("a", 0, 100)
	require.Equal(t, numberedPayloads(0, 100), sub.collect(100))
	pub.publish("a", "two", 2, 9)
	pub.expect(packets.Pubrec)
	pub.ack(packets.Pubrel, 9)
	pub.expect(packets.Pubcomp)
	require.Equal(t, byte(2), sub.expect(packets.Publish).FixedHeader.Qos)
	sub.disconnect()
	pub.leave(b, "pub")
	require.NoError(t, b.Close(t.Context()))
	require.NoError(t, j.Close())
	require.Zero(t, j.Stats().Commits)
	require.Zero(t, j.Stats().Records)
}

// failingJournal is a journal that can be made to fail, and to wait.
type failingJournal struct {
	*journal.Journal
	broken atomic.Bool
}

func (f *failingJournal) Commit(changes []journal.RecordChange, done func(error)) {
	if f.broken.Load() && done != nil {
		go done(errors.New("no space left on device"))
		return
	}
	f.Journal.Commit(changes, done)
}

func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	j, err := journal.Open(journal.Options{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() })
	f := &failingJournal{Journal: j}
	b := startBroker(t, func(o *Options) { o.Journal = f })
	sub, away, pub := openClient(t, b, "sub", persistentSession), openClient(t, b, "away", persistentSession), openClient(t, b, "pub", persistentSession)
	sub.sub("a", 1)
	away.sub("a", 2)
	away.leave(b, "away")
	pub.publish1("r", "stored", markRetain)
	pub.publish1("a", "1")
	require.Equal(t, []string{"1"}, sub.collect(1))
	pub.publish("q", "two", 2, 50)
	pub.expect(packets.Pubrec)

	f.broken.Store(true)
	ack := pub.publish1("a", "refused")
	require.Equal(t, byte(0x83), ack.ReasonCode)
	require.Contains(t, ack.Properties.ReasonString, "no space left")
	require.Equal(t, byte(0x83), pub.publish1("r", "refused", markRetain).ReasonCode)
	require.Equal(t, byte(0x83), pub.publish1("r", "", markRetain).ReasonCode)
	require.Equal(t, byte(0x83), pub.publish1("s", "refused", markRetain).ReasonCode)
	pub.publish("a", "refused", 2, 60)
	require.Equal(t, byte(0x83), pub.expect(packets.Pubrec).ReasonCode)
	require.Equal(t, []byte{0x83}, pub.subscribe("b", 1).ReasonCodes)
	require.Equal(t, byte(0), pub.publish1("nobody", "needs the disk").ReasonCode)
	require.Equal(t, byte(0x88), dialBroker(t, b).connect("new", persistentSession))
	require.Equal(t, byte(0), dialBroker(t, b).connect("clean"), "what needs no disk goes on")
	reader := openClient(t, b, "reader")
	reader.sub("r", 0)
	require.Equal(t, "stored", string(reader.expect(packets.Publish).Payload), "what is on disk is retained")
	reader.sub("s", 0)
	reader.nothing()
	pub.ack(packets.Pubrel, 50)
	_, n := pub.ended()
	require.LessOrEqual(t, n, 1, "the answer to a PUBREL can't be no")

	f.broken.Store(false)
	pub = openClient(t, b, "pub", persistentSession)
	pub.ack(packets.Pubrel, 50)
	require.Equal(t, byte(0), pub.expect(packets.Pubcomp).ReasonCode)
	require.Equal(t, byte(0), pub.publish1("a", "2").ReasonCode)
	b, _ = restartCrashed(t, dir, nil)
	away = openClient(t, b, "away", persistentSession)
	require.Equal(t, []string{"1", "2"}, away.collect(2))
	away.nothing()
	require.Equal(t, 1, b.Stats().Retained)
}

func TestJournalOfAnotherBroker(t *testing.T) {
	for _, kind := range []byte{0, 1, 32, 200} { // 1 and 32 were those of a message and of a session, in another format
		dir := t.TempDir()
		j, err := journal.Open(journal.Options{Dir: dir})
		require.NoError(t, err)
		defer j.Close()
		j.Commit([]journal.RecordChange{{ID: 1, Value: []byte{kind}}}, nil)
		done := make(chan struct{})
		j.Commit(nil, func(error) { close(done) })
		<-done
		_, err = New(Options{Journal: j})
		require.ErrorContains(t, err, dir)
		require.ErrorContains(t, err, "unknown kind")
		require.ErrorContains(t, err, "begin with an empty data directory")
	}
}

// Nothing of a session stays behind: not on disk, and not in the journal's memory.
func TestEndedSessionsLeaveNothing(t *testing.T) {
	dir := t.TempDir()
	b, stop := startKept(t, dir, nil)
	pub := openClient(t, b, "pub")
	for _, id := range []string{"one", "two"} {
		sub := openClient(t, b, id, persistentSession)
		sub.sub("a", 2)
		sub.sub("r/#", 1)
		sub.publish("q", "x", 2, 77)
		sub.expect(packets.Pubrec)
	}
	pub.burst("a", 0, 100)
	pub.publish("a", strings.Repeat("x", 1000), 2, 900)
	pub.expect(packets.Pubrec)
	for _, id := range []string{"one", "two"} {
		openClient(t, b, id).disconnect()
	}
	stop()
	j, err := journal.Open(journal.Options{Dir: dir})
	require.NoError(t, err)
	defer j.Close()
	require.Zero(t, j.Stats().Records)
}

// slowJournal is a journal whose disk can be stopped.
type slowJournal struct {
	*journal.Journal
	mu   sync.Mutex
	held bool
	wait []func()
}

func (s *slowJournal) Commit(changes []journal.RecordChange, done func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held {
		s.wait = append(s.wait, func() { s.Journal.Commit(changes, done) })
		return
	}
	s.Journal.Commit(changes, done)
}

func (s *slowJournal) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = true
}

func (s *slowJournal) letGo() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = false
	for _, commit := range s.wait {
		commit()
	}
	s.wait = nil
}

// While the disk takes its time nothing is acknowledged, nothing is sent at QoS 2, and
// nobody else waits; then the acknowledgements come in order.
func testAcknowledgementsFollowTheDisk(t *testing.T, at brokerSetup) {
	j, err := journal.Open(journal.Options{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() })
	s := &slowJournal{Journal: j}
	b := at.start(t, func(o *Options) { o.Journal = s })
	one, two, clean := openClient(t, b, "one", persistentSession), openClient(t, b, "two", persistentSession), openClient(t, b, "clean")
	one.sub("a", 1)
	two.sub("a", 2)
	clean.sub("#", 0)
	pub := openClient(t, b, "pub")
	s.hold()
	for i := range 100 {
		pub.publish("a", strconv.Itoa(i), byte(2-i%2), uint16(i)+1)
	}
	pub.publish("elsewhere", "needs no disk, but comes after", 1, 101)
	pub.nothing()
	require.Equal(t, numberedPayloads(0, 100), one.collect(100), "a second copy after a crash is allowed")
	two.nothing()
	clean.collect(101)
	s.letGo()
	for i := range 101 {
		kind := packets.Puback
		if i%2 == 0 && i < 100 {
			kind = packets.Pubrec
		}
		require.Equal(t, uint16(i)+1, pub.expect(kind).PacketID)
	}
	var got []string
	for released := 0; len(got) < 100 || released < 50; {
		if two.takeAny(func(pk packets.Packet) { got = append(got, string(pk.Payload)) }) == packets.Pubrel {
			released++
		}
	}
	require.Equal(t, numberedPayloads(0, 100), got)
	one.disconnect()
	two.disconnect()
	const left = 3 * 2 // of each: the session, its subscription, how far it was sent
	require.Eventually(t, func() bool { return j.Stats().Records == left }, testTimeout, time.Millisecond, "%d", j.Stats().Records)
}

// Of a publish that is repeated again and again some repetitions are answered, and what
// comes behind them is, too.
func TestRepetitionsWhileTheDiskTakesItsTime(t *testing.T) {
	j, err := journal.Open(journal.Options{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() })
	s := &slowJournal{Journal: j}
	b := startBroker(t, func(o *Options) { o.Journal = s })
	for _, version := range []connectOption{version311, func(*packets.Packet) {}} {
		c := openClient(t, b, "c", version, persistentSession)
		s.hold()
		c.publish("own", "x", 2, 1)
		for range 40 {
			c.publish("own", "x", 2, 1, markDup)
		}
		c.publish("own", "y", 1, 2)
		c.nothing()
		s.letGo()
		for range 16 {
			c.expect(packets.Pubrec)
		}
		c.expect(packets.Puback)
		c.ack(packets.Pubrel, 1)
		c.expect(packets.Pubcomp)
		c.leave(b, "c")
	}
}

// fickleJournal fails a commit when the one after it is there.
type fickleJournal struct {
	*journal.Journal
	fail bool
	held func()
}

func (f *fickleJournal) Commit(changes []journal.RecordChange, done func(error)) {
	switch {
	case f.fail && done != nil && f.held == nil:
		f.held = func() { done(errors.New("no space left on device")) }
	case f.held != nil && done != nil:
		held := f.held
		f.held, f.fail = nil, false
		go held()
		f.Journal.Commit(changes, done)
	default:
		f.Journal.Commit(changes, done)
	}
}

func TestARetainedMessageIsOneRecordWhateverFails(t *testing.T) {
	dir := t.TempDir()
	j, err := journal.Open(journal.Options{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() })
	f := &fickleJournal{Journal: j}
	b := startBroker(t, func(o *Options) { o.Journal = f })
	pub := func(payload string) chan error {
		done := make(chan error, 1)
		b.Pass(Message{Topic: "a", Payload: []byte(payload), QoS: 1, Retain: true, Publisher: &Identity{Version: 5}}, func(err error) { done <- err })
		return done
	}
	require.NoError(t, <-pub("old"))
	f.fail = true
	cleared := pub("")
	set := pub("new")
	require.Error(t, <-cleared)
	require.NoError(t, <-set)
	again, _ := restartCrashed(t, dir, nil)
	require.Equal(t, "new", string(again.retained.get("a").Payload))
	require.NoError(t, <-pub("")) // or the old one would be back
	again, _ = restartCrashed(t, dir, nil)
	require.Nil(t, again.retained.get("a"))
}

// A discoverer that has not come back since a restart is sent what concerns its Configurations, and nothing of others.
func TestARestoredDiscovererHasItsConfigurationsOnly(t *testing.T) {
	withFinder := func(o *Options) {
		o.Node = "n1"
		o.Auth.Users = []User{{Name: "finder", PasswordHash: hashSHA512, Role: topics.RoleDiscoverer, Configurations: []string{"cam*", "plc"}}}
	}
	dir := t.TempDir()
	b, _ := startKept(t, dir, withFinder)
	signedIn := []connectOption{persistentSession, credentialsOf("finder", "secret")}
	finder := openClient(t, b, "finder", signedIn...)
	finder.sub("v1/nodes/n1/discovery/#", 1)
	finder.leave(b, "finder")

	b, _ = restartCrashed(t, dir, withFinder)
	for _, name := range []string{"door", "camera", "plc"} {
		b.Publish(Message{Topic: "v1/nodes/n1/discovery/" + name, Payload: []byte(name), QoS: 1, Retain: true})
	}
	finder = openClient(t, b, "finder", signedIn...)
	require.True(t, finder.connack.SessionPresent)
	require.Equal(t, []string{"camera", "plc"}, finder.collect(2))
	finder.nothing()
}

func TestRolesOfARecord(t *testing.T) {
	for _, recorded := range []Identity{
		{Roles: []topics.Role{topics.RoleOperator, topics.RoleDiscoverer}, Configurations: []string{"a*", "b"}},
		{Roles: []topics.Role{topics.RoleDiscoverer, topics.RoleMapper}, Nodes: []string{"*"}, Devices: []string{"lamp"}, Protocols: []string{"modbus"}},
	} {
		var e session.Encoder
		encodeIdentity(&e, &recorded)
		d := session.NewDecoder(e)
		require.Equal(t, &recorded, decodeIdentity(d))
		require.NoError(t, d.End())
	}
}

// A message of QoS 1 may be sent before it is on disk, and be lost with a crash. If its client acknowledges it late, that ends no
// other message: none that comes after the crash has its packet id, and after another crash neither.
func TestALateAcknowledgementAfterACrashEndsNoOtherMessage(t *testing.T) {
	for stored, crashes := range map[int]int{0: 1, 1: 12, 3: 12} {
		t.Run(strconv.Itoa(stored), func(t *testing.T) {
			dir := t.TempDir()
			b, stop := startKept(t, dir, nil)
			c := openClient(t, b, "s", persistentSession)
			c.sub("a", 1)
			pub := openClient(t, b, "p")
			lost := make(map[uint16]bool)
			for range crashes {
				for range stored {
					pub.publish1("a", "x")
					c.ack(packets.Puback, c.expect(packets.Publish).PacketID)
				}
				c.nothing()
				pub.publish1("elsewhere", "takes the rest to disk", markRetain)
				before := copyCrashed(t, dir)
				for id := range uint16(3) {
					pub.publish("a", "lost", 1, id+1)
					late := c.expect(packets.Publish).PacketID
					require.False(t, lost[late], "packet id %d of a message that was lost before", late)
					lost[late] = true
				}
				stop()
				b, stop = startKept(t, before, nil)
				dir = before
				c, pub = dialBroker(t, b), openClient(t, b, "p")
				require.Equal(t, byte(0), c.connect("s", persistentSession))
				require.True(t, c.connack.SessionPresent)
				c.nothing()
			}
			pub.publish1("a", "kept")
			kept := c.expect(packets.Publish)
			require.False(t, lost[kept.PacketID])
			for id := range lost {
				c.ack(packets.Puback, id)
			}
			require.NoError(t, c.conn.Close())
			again := openClient(t, b, "s", persistentSession)
			require.Equal(t, "kept", string(again.expect(packets.Publish).Payload))
		})
	}
}
