package broker

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
)

func expires(seconds uint32) connectOption {
	return func(pk *packets.Packet) { pk.Properties.SessionExpiryInterval = seconds }
}

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestExpiryOverARestart(t *testing.T) {
	dir := t.TempDir()
	c := &clock{now: time.Now()}
	options := func(o *Options) { o.Now = c.read }
	b, stop := kept(t, dir, options)
	for _, id := range []string{"hour", "minute"} {
		sub := open(t, b, id, persistent, expires(map[string]uint32{"hour": 3600, "minute": 60}[id]))
		sub.sub("a", 1)
		sub.leave(b, id)
	}
	pub := open(t, b, "pub")
	pub.publish1("a", "short", props(packets.Properties{MessageExpiryInterval: 100}))
	pub.publish1("a", "long", props(packets.Properties{MessageExpiryInterval: 1000}))
	pub.publish1("r", "kept", retain, props(packets.Properties{MessageExpiryInterval: 100}))
	pub.publish1("s", "kept", retain, props(packets.Properties{MessageExpiryInterval: 1000}))
	stop()
	c.add(5 * time.Minute)
	b, stop = kept(t, dir, options)
	require.Equal(t, 1, b.Stats().Sessions)
	require.Equal(t, 1, b.Stats().Retained)
	require.Equal(t, int64(1), b.Stats().Dropped["expired"])
	sub := open(t, b, "hour", persistent)
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
	c := &clock{now: time.Now()}
	options := func(o *Options) { o.Now = c.read }
	b, stop := kept(t, dir, options)
	watch := open(t, b, "watch", persistent)
	watch.sub("#", 1)
	watch.leave(b, "watch")
	open(t, b, "pub").publish1("a", "expires", props(packets.Properties{MessageExpiryInterval: 100}))
	open(t, b, "will", persistent, withWill("will", "due", 2)).leave(b, "will")
	open(t, b, "short", persistent, expires(2)).leave(b, "short")
	stop()
	c.add(-time.Hour)
	b, _ = kept(t, dir, options)
	require.Eventually(t, func() bool { return b.Stats().Sessions == 2 }, patience, 10*time.Millisecond)
	watch = open(t, b, "watch", persistent)
	pk := watch.expect(packets.Publish)
	require.LessOrEqual(t, pk.Properties.MessageExpiryInterval, uint32(100))
	watch.ack(packets.Puback, pk.PacketID)
	require.Equal(t, []string{"due"}, watch.collect(1))
}

// What was kept before the clock was set is as old as the broker's run.
func TestAClockSetForTheFirstTimeOverARestart(t *testing.T) {
	dir := t.TempDir()
	c := &clock{now: time.Unix(1000, 0)}
	options := func(o *Options) {
		o.Now = c.read
		o.Outlet = &OutletOptions{Keep: []string{"telemetry"}, Bytes: 1 << 20, Age: time.Hour}
	}
	b, stop := kept(t, dir, options)
	sub, pub := open(t, b, "sub", persistent), open(t, b, "pub")
	sub.sub("a", 1)
	sub.leave(b, "sub")
	pub.publish1("telemetry", "kept")
	pub.publish1("a", "expires", props(packets.Properties{MessageExpiryInterval: 60}))
	pub.publish1("r", "retained", retain, props(packets.Properties{MessageExpiryInterval: 60}))
	stop()
	c.add(60 * 365 * 24 * time.Hour)
	b, _ = kept(t, dir, options)
	require.Equal(t, []string{"expires"}, open(t, b, "sub", persistent).collect(1))
	require.Equal(t, 1, b.Stats().Retained)
	pub = open(t, b, "pub")
	pub.publish1("telemetry", "later") // and what is too old gives way
	_, got := next(t, b.OpenOutlet(10), 2)
	require.Equal(t, []string{"kept", "later"}, got)
}

func TestWillsOverARestart(t *testing.T) {
	dir := t.TempDir()
	b, stop := kept(t, dir, nil)
	watch := open(t, b, "watch", persistent)
	watch.sub("will/#", 1)
	watch.leave(b, "watch")
	open(t, b, "away", persistent, withWill("will/away", "1", 1)).leave(b, "away")
	open(t, b, "back", persistent, withWill("will/back", "2", 60))
	open(t, b, "later", persistent, withWill("will/later", "3", 3600))
	open(t, b, "done", persistent, withWill("will/done", "4", 1)).disconnect()
	require.Eventually(t, func() bool { return b.clients.connected("done") == nil }, patience, time.Millisecond)
	open(t, b, "pub").publish1("x", "takes the rest to disk", retain)
	waits := func(b *Broker, id string) bool {
		b.clients.mu.Lock()
		defer b.clients.mu.Unlock()
		return b.clients.byID[id].due != nil
	}
	check := func(b *Broker) {
		require.Eventually(t, func() bool { return waits(b, "back") }, patience, time.Millisecond)
		open(t, b, "back", persistent)
		require.False(t, waits(b, "back"))
		watch := open(t, b, "watch", persistent)
		require.Equal(t, []string{"1"}, watch.collect(1))
		watch.nothing()
	}
	killed, _ := restarted(t, dir, nil)
	check(killed)
	stop()
	ended, _ := kept(t, dir, nil)
	check(ended)
}

func TestWillOfAConnectionThatTheBrokerTookAlong(t *testing.T) {
	dir := t.TempDir()
	b, _ := kept(t, dir, nil)
	watch := open(t, b, "watch", persistent)
	watch.sub("will/#", 1)
	watch.leave(b, "watch")
	open(t, b, "c", persistent, withWill("will/c", "gone", 0))
	b, _ = restarted(t, dir, nil)
	require.Equal(t, []string{"gone"}, open(t, b, "watch", persistent).collect(1))
}

// To clients the broker's end is the end of their connections.
func TestWillsOnClose(t *testing.T) {
	dir := t.TempDir()
	b, stop := kept(t, dir, nil)
	watch := open(t, b, "watch", persistent)
	watch.sub("will/#", 1)
	watch.leave(b, "watch")
	open(t, b, "clean", withWill("will/clean", "1", 60))
	open(t, b, "kept", persistent, withWill("will/kept", "2", 0))
	open(t, b, "delayed", persistent, withWill("will/delayed", "3", 60))
	stop()
	b, _ = kept(t, dir, nil)
	watch = open(t, b, "watch", persistent)
	require.ElementsMatch(t, []string{"1", "2"}, watch.collect(2))
	watch.nothing()
}

func TestPresenceOfAResumedSession(t *testing.T) {
	told := &presence{}
	b := start(t, func(o *Options) { o.Presence = told })
	c := open(t, b, "c", persistent)
	c.sub("a", 1)
	c.leave(b, "c")
	open(t, b, "c", persistent)
	require.Eventually(t, func() bool { return len(told.entries()) == 5 }, patience, time.Millisecond)
	require.Equal(t, []string{"+c", "c a", "-c", "+c", "c a"}, told.entries())
}

// Retained messages that were owed when the broker went are sent after it is back.
func TestPullOverARestart(t *testing.T) {
	for _, qos := range []byte{1, 2} {
		t.Run(strconv.Itoa(int(qos)), func(t *testing.T) {
			dir := t.TempDir()
			b, _ := kept(t, dir, nil)
			pub := open(t, b, "pub")
			for i := range 200 {
				pub.publish("r/"+strconv.Itoa(i), "x", 2, uint16(i)+1, retain)
			}
			for range 200 {
				pub.expect(packets.Pubrec)
			}
			sub := open(t, b, "sub", persistent, receiveMaximum(3))
			sub.sub("r/#", qos)
			sub.expect(packets.Publish)

			b, dir = restarted(t, dir, nil)
			sub = open(t, b, "sub", persistent)
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
			open(t, b, "pub2").publish1("x", "takes the rest to disk", retain)
			b, _ = restarted(t, dir, nil)
			open(t, b, "sub", persistent).nothing()
		})
	}
}

// takeAny reads a packet, and acknowledges it.
func (c *tc) takeAny(publish func(packets.Packet)) (kind byte) {
	c.t.Helper()
	pk, err := c.read(patience)
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
