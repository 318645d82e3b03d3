package broker

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
)

// kept runs a broker on a journal in a directory. stop ends it in order.
func kept(t *testing.T, dir string, change func(*Options)) (b *Broker, stop func()) {
	t.Helper()
	j, err := journal.Open(journal.Options{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() }) // after the broker
	b = start(t, func(o *Options) {
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

// crashed is what a crash leaves at this moment: a copy of the files.
func crashed(t testing.TB, dir string) string {
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

// restarted runs a broker on what a crash of another leaves now.
func restarted(t *testing.T, dir string, change func(*Options)) (*Broker, string) {
	t.Helper()
	to := crashed(t, dir)
	b, _ := kept(t, to, change)
	return b, to
}

func testQueueOutlivesTheBroker(t *testing.T, at place) {
	for _, version := range []struct {
		name string
		opts []connectOption
	}{{"five", []connectOption{persistent}}, {"three", []connectOption{persistent, v3}}} {
		t.Run(version.name, func(t *testing.T) {
			dir := t.TempDir()
			b, stop := at.kept(t, dir, nil)
			sub, pub := open(t, b, "sub", version.opts...), open(t, b, "pub")
			sub.sub("a/#", 1)
			sub.sub("b", 2)
			sub.leave(b, "sub")
			pub.burst("a/b", 0, 50)
			require.Equal(t, int64(50), b.Stats().Queued)

			check := func(b *Broker) {
				require.Equal(t, int64(50), b.Stats().Queued)
				require.Equal(t, 2, b.Stats().Subscriptions)
				sub := open(t, b, "sub", version.opts...)
				require.True(t, sub.connack.SessionPresent)
				require.Equal(t, numbers(0, 50), sub.collect(50))
				open(t, b, "pub").publish1("b", "still subscribed")
				require.Equal(t, "still subscribed", string(sub.expect(packets.Publish).Payload))
			}
			killed, _ := at.restarted(t, dir)
			check(killed)
			stop()
			ended, _ := at.kept(t, dir, nil)
			check(ended)
		})
	}
}

func testWhatWasSentIsSentAgainWithItsID(t *testing.T, at place) {
	dir := t.TempDir()
	b, stop := at.kept(t, dir, nil)
	sub, pub := open(t, b, "sub", persistent, receiveMaximum(5)), open(t, b, "pub")
	sub.sub("a", 1)
	pub.burst("a", 0, 20)
	ids := make(map[string]uint16)
	for range 5 {
		pk := sub.expect(packets.Publish)
		ids[string(pk.Payload)] = pk.PacketID
	}
	stop()
	b, _ = at.kept(t, dir, nil)
	sub = open(t, b, "sub", persistent, receiveMaximum(7))
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

func testRetainedOutlivesTheBroker(t *testing.T, at place) {
	dir := t.TempDir()
	b, stop := at.kept(t, dir, nil)
	pub := open(t, b, "pub")
	for i := range 100 {
		pub.publish1("r/"+strconv.Itoa(i), "old", retain)
	}
	want := packets.Properties{
		ContentType: "t", ResponseTopic: "r", CorrelationData: []byte{1}, PayloadFormat: 1, PayloadFormatFlag: true,
		User: []packets.UserProperty{{Key: "k", Val: "v"}},
	}
	pub.publish1("r/1", "new", retain, props(want))
	pub.publish1("r/2", "", retain)
	check := func(b *Broker) {
		require.Equal(t, 99, b.Stats().Retained)
		sub := open(t, b, "sub")
		sub.sub("r/1", 1)
		pk := sub.expect(packets.Publish)
		require.Equal(t, "new", string(pk.Payload))
		require.True(t, pk.FixedHeader.Retain)
		require.Equal(t, want, pk.Properties)
		sub.sub("r/2", 1)
		sub.nothing()
	}
	killed, _ := at.restarted(t, dir)
	check(killed)
	stop()
	ended, _ := at.kept(t, dir, nil)
	check(ended)
}

// A QoS 2 publish, killed after each step: taken once.
func TestInboundQoS2AtEachStep(t *testing.T) {
	dir := t.TempDir()
	b, _ := kept(t, dir, nil)
	sub, pub := open(t, b, "sub", persistent), open(t, b, "pub", persistent)
	sub.sub("a", 1)
	sub.leave(b, "sub")
	pub.publish("a", "once", 2, 5)
	pub.expect(packets.Pubrec)

	b, dir = restarted(t, dir, nil)
	pub = open(t, b, "pub", persistent)
	require.True(t, pub.connack.SessionPresent)
	pub.publish("a", "once", 2, 5, dup)
	require.Equal(t, byte(0), pub.expect(packets.Pubrec).ReasonCode)

	b, dir = restarted(t, dir, nil)
	pub = open(t, b, "pub", persistent)
	pub.ack(packets.Pubrel, 5)
	require.Equal(t, byte(0), pub.expect(packets.Pubcomp).ReasonCode)

	b, dir = restarted(t, dir, nil)
	pub = open(t, b, "pub", persistent)
	pub.ack(packets.Pubrel, 5)
	require.Equal(t, byte(0x92), pub.expect(packets.Pubcomp).ReasonCode)
	pub.publish("a", "twice", 2, 5)
	pub.expect(packets.Pubrec)

	b, _ = restarted(t, dir, nil)
	sub = open(t, b, "sub", persistent)
	require.Equal(t, []string{"once", "twice"}, sub.collect(2))
	sub.nothing()
}

// A QoS 2 delivery, killed after each step: delivered once.
func TestOutboundQoS2AtEachStep(t *testing.T) {
	dir := t.TempDir()
	b, _ := kept(t, dir, nil)
	sub, other, pub := open(t, b, "sub", persistent), open(t, b, "other", persistent), open(t, b, "pub")
	sub.sub("a", 2)
	other.sub("a", 2) // so that the message is shared
	pub.publish("a", "x", 2, 1)
	pub.expect(packets.Pubrec)
	id := sub.expect(packets.Publish).PacketID

	b, dir = restarted(t, dir, nil)
	sub = open(t, b, "sub", persistent)
	again := sub.expect(packets.Publish)
	require.Equal(t, id, again.PacketID)
	require.Equal(t, "x", string(again.Payload))
	sub.ack(packets.Pubrec, id)
	require.Equal(t, id, sub.expect(packets.Pubrel).PacketID)

	b, dir = restarted(t, dir, nil)
	sub = open(t, b, "sub", persistent)
	require.Equal(t, id, sub.expect(packets.Pubrel).PacketID, "released: not published again")
	sub.nothing()
	sub.ack(packets.Pubcomp, id)
	sub.nothing()
	open(t, b, "pub").publish1("elsewhere", "takes the rest to disk", retain)

	b, _ = restarted(t, dir, nil)
	sub = open(t, b, "sub", persistent)
	sub.nothing()
	open(t, b, "pub").publish1("a", "next")
	require.NotEqual(t, id, sub.expect(packets.Publish).PacketID)
	other = open(t, b, "other", persistent)
	require.Equal(t, "x", string(other.expect(packets.Publish).Payload))
}

func TestCleanStartForgetsOnDisk(t *testing.T) {
	dir := t.TempDir()
	b, _ := kept(t, dir, nil)
	open(t, b, "c", persistent).sub("a", 1)
	c := open(t, b, "c", func(pk *packets.Packet) { pk.Connect.Clean = true })
	require.False(t, c.connack.SessionPresent)
	open(t, b, "pub").publish1("a", "x", retain)
	b, _ = restarted(t, dir, nil)
	require.Zero(t, b.Stats().Sessions)
	require.Zero(t, b.Stats().Subscriptions)
	require.False(t, open(t, b, "c", persistent).connack.SessionPresent)
}

func TestTakeoverOverARestart(t *testing.T) {
	dir := t.TempDir()
	b, _ := kept(t, dir, nil)
	open(t, b, "sub", persistent).sub("a", 1)
	open(t, b, "sub", persistent)
	pub := open(t, b, "pub")
	pub.burst("a", 0, 100) // nobody acknowledges
	b, _ = restarted(t, dir, nil)
	open(t, b, "sub", persistent)
	sub := open(t, b, "sub", persistent)
	require.Equal(t, numbers(0, 100), sub.collect(100))
}

func TestUnsubscribeOutlivesTheBroker(t *testing.T) {
	dir := t.TempDir()
	b, _ := kept(t, dir, nil)
	sub := open(t, b, "sub", persistent)
	sub.sub("a", 1)
	sub.sub("b", 1, subID(9))
	sub.sub("b", 2, subID(10))
	sub.send(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Unsubscribe}, PacketID: 4, Filters: packets.Subscriptions{{Filter: "a"}},
	})
	sub.expect(packets.Unsuback)
	b, _ = restarted(t, dir, nil)
	require.Equal(t, 1, b.Stats().Subscriptions)
	sub, pub := open(t, b, "sub", persistent), open(t, b, "pub")
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
