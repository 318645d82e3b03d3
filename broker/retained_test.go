// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/limits"
)

func testRetained20000(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	pub := openClient(t, b, "pub")
	const n = 20_000
	pub.pipeline(n, func(i int) packets.Packet {
		return publishPacket("ret/"+strconv.Itoa(i), "x", 1, uint16(i%pipelineLength)+1, markRetain)
	})
	sub := openClient(t, b, "sub")
	sub.sub("ret/#", 1)
	seen := make(map[string]bool)
	for range n {
		pk := sub.expect(packets.Publish)
		require.True(t, pk.FixedHeader.Retain)
		seen[pk.TopicName] = true
		sub.ack(packets.Puback, pk.PacketID)
	}
	require.Len(t, seen, n)
	sub.nothing()
	require.Zero(t, openClient(t, b, "other").publish1("one more", "x", markRetain).ReasonCode)
}

func testRetainedIsReplacedAndForgotten(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	pub := openClient(t, b, "pub")
	pub.publish1("a", "1", markRetain)
	pub.publish1("a", "2", markRetain)
	one := b.Stats()
	require.Equal(t, 1, one.Retained)
	require.NotZero(t, one.RetainedBytes)
	pub.publish1("b", "x", markRetain)
	require.Equal(t, 2*one.RetainedBytes, b.Stats().RetainedBytes)
	pub.publish1("b", "", markRetain)
	require.Equal(t, one.RetainedBytes, b.Stats().RetainedBytes)
	pub.publish1("c", "not retained")
	sub := openClient(t, b, "sub")
	sub.sub("+", 1, subID(5))
	pk := sub.expect(packets.Publish)
	require.Equal(t, "2", string(pk.Payload))
	require.Equal(t, []int{5}, pk.Properties.SubscriptionIdentifier)
	sub.ack(packets.Puback, pk.PacketID)
	sub.nothing()
}

func testRetainFlagAndHandling(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	pub := openClient(t, b, "pub")
	pub.publish1("a", "old", markRetain)
	handling := func(n byte) subOption {
		return subFlags(func(s *packets.Subscription) { s.RetainHandling = n })
	}
	sub := openClient(t, b, "sub")
	sub.sub("a", 0, handling(2))
	sub.nothing()
	sub.sub("a", 0, handling(1)) // not new
	sub.nothing()
	sub.sub("a", 0, handling(0))
	require.Equal(t, "old", string(sub.expect(packets.Publish).Payload))
	sub.sub("+", 0, handling(1)) // new
	require.Equal(t, "old", string(sub.expect(packets.Publish).Payload))
	sub.sub("$share/g/a", 0)
	sub.nothing()

	plain, asPublished := openClient(t, b, "plain"), openClient(t, b, "asPublished")
	plain.sub("b", 0)
	asPublished.sub("b", 0, subFlags(func(s *packets.Subscription) { s.RetainAsPublished = true }))
	pub.publish1("b", "x", markRetain)
	pub.publish1("b", "y")
	require.False(t, plain.expect(packets.Publish).FixedHeader.Retain)
	require.True(t, asPublished.expect(packets.Publish).FixedHeader.Retain)
	require.False(t, asPublished.expect(packets.Publish).FixedHeader.Retain)
}

// A pull that is made late, here because messages wait for the client, finds what was
// published since the SUBACK: that has come live.
func testWhatCameLiveIsNotSentAsRetained(t *testing.T, at brokerSetup) {
	tree := newFakeTree()
	b := at.start(t, withTree(tree))
	pub, sub := openClient(t, b, "pub"), openClient(t, b, "sub", receiveMaximum(1))
	pub.publish1("a/kept", "kept", markRetain)
	sub.sub("wait", 1)
	pub.publish1("wait", "1")
	pub.publish1("wait", "2")
	first := sub.expect(packets.Publish)
	sub.sub("a/+", 1)
	sub.sub(reportedTopic, 1)
	pub.publish1("a/new", "new", markRetain)
	tree.tell(Message{Topic: reportedTopic, Payload: []byte("value"), QoS: 1, Retain: true}, b.Publish)
	sub.ack(packets.Puback, first.PacketID)
	require.Equal(t, []string{"2", "new", "value", "kept"}, sub.collect(4))
	sub.nothing()
	require.Eventually(t, func() bool { return b.Stats().Queued == 0 }, testTimeout, time.Millisecond)
	sub.nothing()
}

// A message that was routed before the subscription was made, and isn't retained yet,
// is waited for.
func testSubscribingWhileAMessageIsPublished(t *testing.T, at brokerSetup) {
	b := at.start(t, func(o *Options) { o.Limits.Session.Bytes = 1 })
	full, pub, sub := openClient(t, b, "full", receiveMaximum(1)), openClient(t, b, "pub"), openClient(t, b, "sub")
	full.sub("a", 1)
	pub.publish1("a", "1")
	full.expect(packets.Publish)
	pub.publish1("a", "2")
	routed, goOn := make(chan struct{}), make(chan struct{})
	dropped := b.router.dropped
	b.router.dropped = func(c *client, m *session.Message) {
		close(routed)
		<-goOn
		dropped(c, m)
	}
	pub.publish("a", "3", 1, 7, markRetain)
	<-routed
	sub.send(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Subscribe}, PacketID: 1, Filters: packets.Subscriptions{{Filter: "a", Qos: 1}},
	})
	require.Eventually(t, func() bool { return len(b.clients.connected("sub").client.filters()) == 1 }, testTimeout, time.Millisecond)
	close(goOn)
	sub.expect(packets.Suback)
	pk := sub.expect(packets.Publish)
	require.Equal(t, "3", string(pk.Payload))
	require.True(t, pk.FixedHeader.Retain)
	sub.ack(packets.Puback, pk.PacketID)
	require.Eventually(t, func() bool { return b.Stats().Queued == 2 }, testTimeout, time.Millisecond)
	sub.nothing()
}

func TestRetainedLimitIsARefusal(t *testing.T) {
	b := startBroker(t, func(o *Options) { o.Limits.Retained.Bytes = 1500 })
	pub := openClient(t, b, "pub")
	pub.publish1("a", "1", markRetain)
	pub.publish1("b", "1", markRetain)
	ack := pub.publish1("c", "1", markRetain)
	require.Equal(t, byte(0x97), ack.ReasonCode)
	require.Contains(t, ack.Properties.ReasonString, "limits.retained.bytes")
	require.Equal(t, byte(0), pub.publish1("a", "2", markRetain).ReasonCode)
	pub.publish1("b", "", markRetain)
	require.Equal(t, byte(0), pub.publish1("c", "1", markRetain).ReasonCode)
}

// A reader in the middle of the store misses nothing that stays, whatever else
// comes and goes.
func TestRetainedPullerOverChanges(t *testing.T) {
	r := newRetainedMessages(newQuotas(Limits{}).retained, time.Now, nil)
	set := func(topic, payload string) {
		r.put(&session.Message{Topic: topic, Payload: []byte(payload)})
	}
	stay := make(map[string]bool)
	for i := range 5000 {
		topic := fmt.Sprintf("x/%d/y", i)
		stay[topic] = true
		set(topic, "1")
		set(fmt.Sprintf("x/%d/z", i), "1")
	}
	pull := r.reader("x/+/y", "")
	rng := rand.New(rand.NewPCG(1, 2))
	seen := make(map[string]int)
	for chunk := pull(64); len(chunk) > 0; chunk = pull(64) {
		require.LessOrEqual(t, len(chunk), 64)
		for _, m := range chunk {
			seen[m.Topic]++
		}
		for range 100 {
			i := rng.IntN(5000)
			set(fmt.Sprintf("x/%d/z", i), []string{"", "2"}[rng.IntN(2)])
		}
	}
	for topic := range stay {
		require.Equal(t, 1, seen[topic], topic)
	}
	require.Len(t, seen, len(stay))
	for i := range 5000 {
		set(fmt.Sprintf("x/%d/y", i), "")
		set(fmt.Sprintf("x/%d/z", i), "")
	}
	require.Zero(t, r.len())
	require.Zero(t, r.quota.Held())
}

func TestRetainedPullerMatchesLikeTheContract(t *testing.T) {
	r := newRetainedMessages(newQuotas(Limits{}).retained, time.Now, nil)
	all := []string{"a", "a/b", "a/b/c", "a/bb", "a-b", "b", "/a", "a/"}
	for _, topic := range all {
		r.put(&session.Message{Topic: topic, Payload: []byte("x")})
	}
	for _, filter := range []string{"#", "+", "a/#", "a/+", "a/b", "a/b/#", "+/b/#", "+/+", "/#", "nothing", "a"} {
		var want, got []string
		for _, topic := range all {
			if topics.Match(filter, topic) {
				want = append(want, topic)
			}
		}
		slices.Sort(want)
		pull := r.reader(filter, "")
		for chunk := pull(2); len(chunk) > 0; chunk = pull(2) {
			for _, m := range chunk {
				got = append(got, m.Topic)
			}
		}
		require.Equal(t, want, got, filter)
	}
}

// exactlyOnce is a client's end of QoS 2: what it has taken, and the packet ids that the broker has not released.
type exactlyOnce struct {
	times map[string]int
	open  map[uint16]bool
}

func newExactlyOnce() *exactlyOnce { return &exactlyOnce{make(map[string]int), make(map[uint16]bool)} }

// take answers what comes until so many topics were taken, and each message at QoS 2 is through.
func (e *exactlyOnce) take(c *testClient, n int) {
	c.t.Helper()
	for len(e.times) < n || len(e.open) > 0 {
		pk, err := c.read(testTimeout)
		require.NoError(c.t, err, "%d of %d, open %v", len(e.times), n, e.open)
		switch pk.FixedHeader.Type {
		case packets.Publish:
			if !e.open[pk.PacketID] {
				e.times[pk.TopicName]++
			}
			if pk.FixedHeader.Qos == 1 {
				c.ack(packets.Puback, pk.PacketID)
				continue
			}
			e.open[pk.PacketID] = true
			c.ack(packets.Pubrec, pk.PacketID)
		case packets.Pubrel:
			delete(e.open, pk.PacketID)
			c.ack(packets.Pubcomp, pk.PacketID)
		}
	}
}

// killedAfter kills the broker once it has dealt with all that the client has sent, and all that is on disk.
func (e *exactlyOnce) killedAfter(t *testing.T, dir string, b *Broker, c *testClient) (*Broker, string) {
	t.Helper()
	c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	c.nextOf(packets.Pingresp, func(pk packets.Packet) {
		if pk.FixedHeader.Qos == 1 { // which is acknowledged with that
			e.times[pk.TopicName]++
		}
	})
	openClient(t, b, "flush").publish1("elsewhere", "takes the rest to disk", markRetain)
	return restartCrashed(t, dir, nil)
}

func (e *exactlyOnce) once(t *testing.T, n int) {
	t.Helper()
	require.Len(t, e.times, n)
	for topic, times := range e.times {
		require.Equal(t, 1, times, topic)
	}
}

// What is retained comes once at QoS 2 though the broker is killed in the middle of it, again and again [4.3.3].
func TestRetainedComesOnceOverKills(t *testing.T) {
	dir := t.TempDir()
	b, _ := startKept(t, dir, nil)
	const all = 400
	pub := openClient(t, b, "pub")
	for i := range all {
		pub.publish(fmt.Sprintf("r/%03d", i), "x", 2, 1, markRetain)
		pub.expect(packets.Pubrec)
		pub.ack(packets.Pubrel, 1)
		pub.expect(packets.Pubcomp)
	}
	e := newExactlyOnce()
	sub := openClient(t, b, "sub", persistentSession, receiveMaximum(20))
	sub.sub("r/#", 2)
	for _, n := range []int{130, 131, 200, 270} {
		e.take(sub, n)
		b, dir = restartCrashed(t, dir, nil) // at any moment: some are on their way
		sub = openClient(t, b, "sub", persistentSession, receiveMaximum(20))
		require.True(t, sub.connack.SessionPresent)
	}
	e.take(sub, all)
	// When all had come before the last kill, PUBRELs whose PUBCOMP the broker had not read come again, and nothing else.
	sub.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	for pk, err := sub.read(testTimeout); pk.FixedHeader.Type != packets.Pingresp; pk, err = sub.read(testTimeout) {
		require.NoError(t, err)
		require.Equal(t, packets.PacketNames[packets.Pubrel], packets.PacketNames[pk.FixedHeader.Type])
	}
	e.once(t, all)
}

// A client that leaves right after its SUBACK, and a broker that is killed: what is retained later comes from the queue,
// and not again as retained; also once it was acknowledged, while the rest is still to come.
func TestWhatCameLiveIsKnownAfterAKill(t *testing.T) {
	for _, qos := range []byte{1, 2} {
		t.Run(fmt.Sprint(qos), func(t *testing.T) {
			dir := t.TempDir()
			b, _ := startKept(t, dir, nil)
			pub := openClient(t, b, "pub")
			set := func(topic string) {
				pub.publish(topic, "x", qos, 9, markRetain)
				pub.expect(map[byte]byte{1: packets.Puback, 2: packets.Pubrec}[qos])
				if qos == 2 {
					pub.ack(packets.Pubrel, 9)
					pub.expect(packets.Pubcomp)
				}
			}
			const old = 200
			for i := range old {
				set(fmt.Sprintf("r/%03d", i))
			}
			sub := openClient(t, b, "sub", persistentSession, receiveMaximum(1))
			sub.sub("r/#", qos)
			e := newExactlyOnce()
			e.take(sub, 1) // the others aren't fetched before there is room for them
			sub.leave(b, "sub")
			set("r/new")
			set("r/newer")
			for n := 40; n < old; n += 40 {
				b, dir = restartCrashed(t, dir, nil)
				sub = openClient(t, b, "sub", persistentSession, receiveMaximum(1))
				e.take(sub, n)
				b, dir = e.killedAfter(t, dir, b, sub)
				sub = openClient(t, b, "sub", persistentSession, receiveMaximum(1))
			}
			e.take(sub, old+2)
			sub.nothing()
			require.Equal(t, 1, e.times["r/new"])
			require.Equal(t, 1, e.times["r/newer"])
			require.Len(t, e.times, old+2)
			if qos == 2 {
				e.once(t, old+2)
			}
		})
	}
}

// Nothing of a replay is left on disk once it is over.
func TestAReplayLeavesNothingOnDisk(t *testing.T) {
	dir := t.TempDir()
	b, stop := startKept(t, dir, nil)
	pub, sub := openClient(t, b, "pub"), openClient(t, b, "sub", persistentSession, receiveMaximum(1))
	for i := range 70 {
		pub.publish1(fmt.Sprintf("r/%03d", i), "x", markRetain)
	}
	sub.sub("r/#", 1)
	pub.publish1("r/new", "x", markRetain)
	newExactlyOnce().take(sub, 71)
	sub.nothing()
	require.Eventually(t, func() bool { return b.Stats().Queued == 0 }, testTimeout, time.Millisecond)
	stop()
	require.Equal(t, 71+3, recordsIn(t, dir), "the retained ones, the session, its subscription, how far it was sent")
}

func expiringIn(n uint32) pubOption {
	return withProperties(packets.Properties{MessageExpiryInterval: n})
}

// What nobody gets any more takes nobody's place, in memory or on disk.
func TestExpiredRetainedMessagesMakeRoom(t *testing.T) {
	dir, now := t.TempDir(), &testClock{now: time.Now()}
	var all limits.Size // one user has half of it
	for i := range 50 {
		for _, topic := range []string{"short", "long"} {
			all += 2 * limits.Size((&session.Message{Topic: fmt.Sprintf("%s/%d", topic, i), Payload: []byte("x"), From: "pub"}).Weight())
		}
	}
	b, stop := startKept(t, dir, func(o *Options) { o.Limits.Retained.Bytes, o.Now = all, now.read })
	pub := openClient(t, b, "pub")
	for i := range 50 {
		pub.publish1(fmt.Sprintf("short/%d", i), "x", markRetain, expiringIn(10))
		pub.publish1(fmt.Sprintf("long/%d", i), "x", markRetain, expiringIn(uint32(i%2*100)))
	}
	require.Equal(t, byte(0x97), pub.publish1("one more", "x", markRetain).ReasonCode)
	require.Equal(t, byte(0), pub.publish1("short/7", "s", markRetain).ReasonCode)
	now.add(11 * time.Second)
	require.Equal(t, byte(0), pub.publish1("one more", "x", markRetain).ReasonCode)
	require.Equal(t, 52, b.Stats().Retained)
	require.Equal(t, byte(0), pub.publish1("short/8", "again", markRetain, expiringIn(10)).ReasonCode)
	sub := openClient(t, b, "sub")
	sub.sub("short/+", 1)
	require.Equal(t, []string{"s", "again"}, sub.collect(2))
	sub.nothing()
	now.add(100 * time.Second)
	require.Equal(t, 26, b.retained.removeExpired(), "25 long ones, and short/8")
	require.Zero(t, b.retained.removeExpired())
	require.True(t, b.retained.next.Before(now.read().Add(2*time.Second)), "and soon it is known that no more expire")
	stop()
	j, err := journal.Open(journal.Options{Dir: dir})
	require.NoError(t, err)
	defer j.Close()
	require.Equal(t, int64(27), j.Stats().Records)
}

// One whose place another may not come to take stays until that is known.
func TestAnExpiredMessageInDoubtStays(t *testing.T) {
	j, err := journal.Open(journal.Options{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() })
	f, now := &fickleJournal{Journal: j}, &testClock{now: time.Now()}
	b := startBroker(t, func(o *Options) { o.Journal, o.Now = f, now.read })
	set := func(payload string) chan error {
		done := make(chan error, 1)
		m := Message{Topic: "a", Payload: []byte(payload), QoS: 1, Retain: true, Props: Properties{Expiry: 10}}
		b.Pass(m, func(err error) { done <- err })
		return done
	}
	require.NoError(t, <-set("first"))
	f.fail = true
	second := set("second") // fails with the next commit
	now.add(11 * time.Second)
	require.Zero(t, b.retained.removeExpired())
	elsewhere := make(chan error, 1)
	b.Pass(Message{Topic: "b", Payload: []byte("x"), QoS: 1, Retain: true}, func(err error) { elsewhere <- err })
	require.Error(t, <-second)
	require.NoError(t, <-elsewhere)
	require.Equal(t, "first", string(b.retained.get("a").Payload))
	now.add(2 * time.Second)
	require.Equal(t, 1, b.retained.removeExpired())
	require.Nil(t, b.retained.get("a"))
}

// What is being stored may never be: who subscribes meanwhile is sent what is stored, when that is known. Other topics don't wait.
func TestARetainedMessageIsShownWhenItIsStored(t *testing.T) {
	j, err := journal.Open(journal.Options{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() })
	f := &fickleJournal{Journal: j}
	b := startBroker(t, func(o *Options) { o.Journal = f })
	set := func(topic, payload string) chan error {
		done := make(chan error, 1)
		b.Pass(Message{Topic: topic, Payload: []byte(payload), QoS: 1, Retain: true}, func(err error) { done <- err })
		return done
	}
	require.NoError(t, <-set("a/1", "first"))
	require.NoError(t, <-set("b", "there"))
	f.fail = true
	second := set("a/1", "second") // fails with the next commit
	sub := openClient(t, b, "sub")
	sub.sub("a/+", 0)
	sub.nothing()
	sub.sub("a/+", 0, subFlags(func(s *packets.Subscription) { s.RetainHandling = 1 })) // as after a lost connection: it has none of them yet
	sub.sub("b", 0)
	require.Equal(t, "there", string(sub.expect(packets.Publish).Payload))
	all := openClient(t, b, "all")
	all.sub("#", 0)
	require.Equal(t, "there", string(all.expect(packets.Publish).Payload), "what isn't in doubt comes first")
	all.sub("b", 0)
	require.Equal(t, "there", string(all.expect(packets.Publish).Payload), "and keeps no other subscription")
	all.sub("#", 0, subFlags(func(s *packets.Subscription) { s.RetainHandling = 1 }))
	again := openClient(t, b, "again")
	for range 2 {
		again.sub("#", 0)
		require.Equal(t, "there", string(again.expect(packets.Publish).Payload))
	}
	gone := openClient(t, b, "gone")
	gone.sub("#", 0)
	require.Equal(t, "there", string(gone.expect(packets.Publish).Payload))
	gone.unsub("#")
	require.NoError(t, <-set("c", "x"))
	require.Error(t, <-second)
	require.Equal(t, "first", string(sub.expect(packets.Publish).Payload))
	for _, c := range []*testClient{all, again} {
		require.Equal(t, []string{"first", "x"}, slices.Sorted(slices.Values(c.collect(2))), "each once")
		c.nothing()
	}
	sub.nothing()
	gone.nothing()
}

func TestExpiredMessagesAreForgottenNowAndThen(t *testing.T) {
	now := &testClock{now: time.Now()}
	b, err := New(Options{Now: now.read, Log: zerolog.Nop()})
	require.NoError(t, err)
	b.sweepInterval = time.Millisecond
	b.Publish(Message{Topic: "a", Payload: []byte("x"), Retain: true, Props: Properties{Expiry: 10}})
	b.Publish(Message{Topic: "b", Payload: []byte("x"), Retain: true})
	now.add(11 * time.Second)
	served := make(chan error, 1)
	go func() { served <- b.Serve(context.Background()) }()
	require.Eventually(t, func() bool { return b.Stats().Retained == 1 }, testTimeout, time.Millisecond)
	require.NoError(t, errors.Join(b.Close(t.Context()), <-served))
}
