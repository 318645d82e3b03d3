package broker

import (
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"
)

func clean(pk *packets.Packet) { pk.Connect.Clean = true }

// Who would have one session too many is refused; whoever has one keeps it, with what is
// in it: when he goes, when the broker goes, and when it comes back with a lower limit.
func testNoSessionEndsForAnother(t *testing.T, at place) {
	dir := t.TempDir()
	limited := func(o *Options) { o.Limits.Sessions = 3 }
	b, stop := at.kept(t, dir, limited)
	first, second, third := open(t, b, "first", persistent), open(t, b, "second", persistent, v3), open(t, b, "third", persistent)
	for _, c := range []*tc{first, second, third} {
		c.sub("a", 1)
	}
	first.leave(b, "first")

	fourth := dial(t, b)
	require.Equal(t, byte(0x97), fourth.connect("fourth", persistent))
	require.Contains(t, fourth.connack.Properties.ReasonString, "3 (limits.sessions)")
	require.Equal(t, byte(3), dial(t, b).connect("fourth", persistent, v3), "server unavailable")
	require.Equal(t, int64(2), b.Stats().Rejected[connectReasons[codeQuota]])
	require.Equal(t, 3, b.Stats().Kept)
	pub := open(t, b, "pub") // whose session ends with its connection
	require.Equal(t, byte(0x97), dial(t, b).connect("pub", persistent), "in place of one that isn't kept")
	pub.publish1("a", "owed")

	second.leave(b, "second")
	again := open(t, b, "second", persistent, v3)
	require.True(t, again.connack.SessionPresent)
	require.Equal(t, []string{"owed"}, again.collect(1))
	again.nothing()
	third.leave(b, "third")
	require.False(t, open(t, b, "third", persistent, clean).connack.SessionPresent, "anew, in the place of his own")
	stop() // with two of them connected

	b, _ = at.kept(t, dir, func(o *Options) { o.Limits.Sessions = 1 })
	require.Equal(t, 3, b.Stats().Kept)
	first = open(t, b, "first", persistent)
	require.True(t, first.connack.SessionPresent)
	require.Equal(t, []string{"owed"}, first.collect(1))
	for _, id := range []string{"second", "third"} {
		require.Equal(t, byte(0x97), dial(t, b).connect("fourth", persistent))
		open(t, b, id, clean).leave(b, id) // gives it up
	}
	require.Equal(t, 1, b.Stats().Kept)
	bye := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}}
	bye.Properties.SessionExpiryIntervalFlag = true // 0
	first.send(bye)
	first.ended()
	require.Eventually(t, func() bool { return b.Stats().Kept == 0 }, patience, time.Millisecond)
	open(t, b, "fourth", persistent)
}

func TestASessionThatExpiresMakesRoom(t *testing.T) {
	b := start(t, func(o *Options) { o.Limits.Sessions = 1 })
	c := open(t, b, "first", persistent, expires(1))
	require.Equal(t, byte(0x97), dial(t, b).connect("second", persistent))
	c.leave(b, "first")
	require.Eventually(t, func() bool { return b.Stats().Kept == 0 }, patience, time.Millisecond)
	open(t, b, "second", persistent)
}

// Who leaves session after session behind takes the room of no other user.
func TestSessionsOfOneUser(t *testing.T) {
	dir := t.TempDir()
	few := func(o *Options) { withUsers(o); o.Limits.PerUser = 2 }
	b, stop := kept(t, dir, few)
	op := credentialsOf("op", "secret")
	for _, id := range []string{"one", "two"} {
		open(t, b, id, persistent, op).leave(b, id)
	}
	more := dial(t, b)
	require.Equal(t, byte(0x97), more.connect("three", persistent, op))
	require.Equal(t, "op has as many sessions that outlive their connections as one user may have: 2 (limits.perUser)", more.connack.Properties.ReasonString)
	open(t, b, "three", op).leave(b, "three") // one that ends with its connection
	open(t, b, "boss", persistent, credentialsOf("boss", "secret"))
	stop()

	b, _ = kept(t, dir, few)
	require.Equal(t, byte(0x97), dial(t, b).connect("three", persistent, op), "they are counted when they come back, too")
	again := open(t, b, "one", persistent, op)
	require.True(t, again.connack.SessionPresent)
	again.leave(b, "one")
	open(t, b, "two", clean, op).leave(b, "two") // gives it up
	open(t, b, "three", persistent, op)
}
