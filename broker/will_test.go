package broker

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"
)

func testWillKeepsItsProperties(t *testing.T, at place) {
	b := at.start(t, nil)
	sub := open(t, b, "sub")
	sub.sub("will", 2)
	want := packets.Properties{
		ContentType: "text/plain", ResponseTopic: "re/me", CorrelationData: []byte("c"), PayloadFormat: 1, PayloadFormatFlag: true,
		User: []packets.UserProperty{{Key: "k", Val: "v"}}, MessageExpiryInterval: 50,
	}
	c := open(t, b, "c", withWill("will", "gone", 0, func(pk *packets.Packet) {
		pk.Connect.WillProperties, pk.Connect.WillRetain, pk.Connect.WillQos = want, true, 2
	}))
	c.leave(b, "c")
	pk := sub.expect(packets.Publish)
	require.Equal(t, "gone", string(pk.Payload))
	require.Equal(t, byte(2), pk.FixedHeader.Qos)
	require.Equal(t, want, pk.Properties)
	late := open(t, b, "late")
	late.sub("will", 0)
	require.Equal(t, "gone", string(late.expect(packets.Publish).Payload))
}

func testEmptyWillIsAllowed(t *testing.T, at place) {
	b := at.start(t, nil)
	sub, pub := open(t, b, "sub"), open(t, b, "pub")
	pub.publish1("will", "there", retain)
	open(t, b, "c", withWill("will", "", 0, func(pk *packets.Packet) { pk.Connect.WillRetain = true })).leave(b, "c")
	require.Eventually(t, func() bool { return b.Stats().Retained == 0 }, patience, time.Millisecond)
	sub.sub("will", 1)
	sub.nothing()
}

func testNoWillAfterDisconnect(t *testing.T, at place) {
	b := at.start(t, nil)
	sub := open(t, b, "sub")
	sub.sub("will", 1)
	open(t, b, "c", withWill("will", "gone", 0)).disconnect()
	c := open(t, b, "c", withWill("will", "with will", 0))
	c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, ReasonCode: 4})
	require.Equal(t, []string{"with will"}, sub.collect(1))
}

func testWillDelay(t *testing.T, at place) {
	b := at.start(t, nil)
	sub := open(t, b, "sub")
	sub.sub("will/#", 1)
	begun := time.Now()
	open(t, b, "gone", persistent, withWill("will/gone", "gone", 1)).leave(b, "gone")
	pk := sub.expect(packets.Publish)
	require.Equal(t, "will/gone", pk.TopicName)
	require.GreaterOrEqual(t, time.Since(begun), time.Second)
	sub.ack(packets.Puback, pk.PacketID)
	sub.nothing()
}

// Who is back before its will's delay is over has no will, and who isn't has it then, to the
// moment: the clock is the test's.
func TestWillDelayIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := New(Options{Auth: Auth{Anonymous: anybody}})
		require.NoError(t, err)
		connect := func(id string, opts ...connectOption) *tc {
			ours, theirs := net.Pipe()
			go b.serve(&listener{b: b, loopback: true}, pipeConn{theirs})
			c := wrap(t, ours)
			require.Equal(t, byte(0), c.connect(id, opts...))
			return c
		}
		sub := connect("sub", keepAlive(0))
		sub.sub("will", 0)
		const delay = 10 * time.Second
		dying := func() *tc { return connect("c", persistent, withWill("will", "gone", uint32(delay.Seconds()))) }
		require.NoError(t, dying().conn.Close())
		time.Sleep(delay - time.Millisecond) // the test's own clock
		back := dying()
		time.Sleep(2 * delay) // the test's own clock
		sub.nothing()

		left := time.Now()
		require.NoError(t, back.conn.Close())
		require.Equal(t, "gone", string(sub.expect(packets.Publish).Payload))
		require.Equal(t, delay, time.Since(left))
		require.NoError(t, b.Close(t.Context()))
	})
}

// The session's end is the will's latest moment.
func testWillDelayEndsWithTheSession(t *testing.T, at place) {
	b := at.start(t, nil)
	sub := open(t, b, "sub")
	sub.sub("will/#", 1)
	open(t, b, "clean", withWill("will/clean", "gone", 3600)).leave(b, "clean")
	require.Equal(t, []string{"gone"}, sub.collect(1))
	open(t, b, "short", persistent, func(pk *packets.Packet) { pk.Properties.SessionExpiryInterval = 1 },
		withWill("will/short", "expired", 3600)).leave(b, "short")
	require.Equal(t, []string{"expired"}, sub.collect(1))
	open(t, b, "restart", persistent, withWill("will/restart", "restarted", 3600)).leave(b, "restart")
	open(t, b, "restart")
	require.Equal(t, []string{"restarted"}, sub.collect(1))
}

// The will of a connection that is taken over comes before anything of the new one.
func testWillOnTakeover(t *testing.T, at place) {
	b := at.start(t, nil)
	sub := open(t, b, "sub")
	sub.sub("state", 1)
	open(t, b, "c", persistent, withWill("state", "offline", 0))
	again := open(t, b, "c", persistent, withWill("state", "offline", 60))
	again.publish1("state", "online")
	require.Equal(t, []string{"offline", "online"}, sub.collect(2))
	open(t, b, "c", persistent)
	sub.nothing()
}

func TestWillGoesThePathOfAPublish(t *testing.T) {
	tree := newFakeTree()
	b := start(t, withTree(tree))
	const state = "v1/nodes/n1/mappers/m/state"
	open(t, b, "mapper", withWill(state, "offline", 0)).leave(b, "mapper")
	require.Eventually(t, func() bool { tree.mu.Lock(); defer tree.mu.Unlock(); return len(tree.got) == 1 }, patience, time.Millisecond)
	require.Equal(t, state, tree.got[0].Topic)
	require.Equal(t, "mapper", tree.got[0].Publisher.ClientID)

	c := dial(t, b)
	require.Equal(t, byte(0x90), c.connect("bad", withWill("a/#", "x", 0)))
	_, n := c.ended()
	require.Zero(t, n)
}

// A will that can't be published is refused at CONNECT, for its place and for its payload.
func TestTrial29WillsThatCantBePublished(t *testing.T) {
	b := start(t, withTree(newFakeTree()))
	lie := func(pk *packets.Packet) {
		pk.Connect.WillProperties.PayloadFormat, pk.Connect.WillProperties.PayloadFormatFlag = 1, true
	}
	for code, will := range map[byte]connectOption{
		0x87: withWill("v1/nodes/n1/spec", "mine", 0), 0x90: withWill("v1/nodes/n1/nonsense", "x", 0), 0x99: withWill("a", "\xff", 0, lie),
	} {
		c := dial(t, b)
		require.Equal(t, code, c.connect("c", will))
		require.Contains(t, c.connack.Properties.ReasonString, "will: ")
	}
	require.Equal(t, byte(connackNotAuthorized), dial(t, b).connect("three", v3, withWill("v1/nodes/n1/spec", "mine", 0)))
	require.Equal(t, int64(4), b.Stats().Rejected[willRefused])
}

// The will of a session that ends with its connection is published when the broker comes back after a kill, once, and not
// that of a client that had disconnected.
func TestTrial29WillAfterAKill(t *testing.T) {
	dir := t.TempDir()
	b, _ := kept(t, dir, nil)
	open(t, b, "sub", persistent).sub("will/#", 1)
	open(t, b, "five", withWill("will/five", "gone", 60))
	open(t, b, "three", v3, withWill("will/three", "gone", 0))
	open(t, b, "left", withWill("will/left", "gone", 0)).disconnect()
	lost := open(t, b, "lost", withWill("will/lost", "gone", 0))
	lost.leave(b, "lost")
	open(t, b, "flush").publish1("elsewhere", "takes the rest to disk", retain)

	for _, n := range []int{3, 0} {
		b, dir = restarted(t, dir, nil)
		sub := open(t, b, "sub", persistent)
		got := make(map[string]int)
		for range n {
			pk := sub.expect(packets.Publish)
			got[pk.TopicName]++
			sub.ack(packets.Puback, pk.PacketID)
		}
		sub.nothing()
		if n > 0 {
			require.Equal(t, map[string]int{"will/five": 1, "will/three": 1, "will/lost": 1}, got)
		}
		open(t, b, "flush").publish1("elsewhere", "takes the rest to disk", retain)
	}
}
