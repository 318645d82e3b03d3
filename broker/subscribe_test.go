package broker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"
)

func testSharedGroupLeavesOutWhoIsAway(t *testing.T, at place) {
	b := at.start(t, nil)
	first, second, pub := open(t, b, "first", persistent), open(t, b, "second", persistent), open(t, b, "pub")
	first.sub("$share/g/a", 1)
	second.sub("$share/g/a", 1)
	pub.burst("a", 0, 10)
	all := append(first.collect(5), second.collect(5)...)
	require.ElementsMatch(t, numbers(0, 10), all)

	second.leave(b, "second")
	pub.burst("a", 10, 10)
	require.Equal(t, numbers(10, 10), first.collect(10))
	first.leave(b, "first")
	pub.burst("a", 20, 4) // nobody is there: they wait
	first, second = open(t, b, "first", persistent), open(t, b, "second", persistent)
	require.ElementsMatch(t, numbers(20, 4), append(first.collect(2), second.collect(2)...))
}

func testSharedGroupForgetsWhoExpired(t *testing.T, at place) {
	b := at.start(t, nil)
	short := func(pk *packets.Packet) { pk.Properties.SessionExpiryInterval = 1 }
	first, second, pub := open(t, b, "first", persistent), open(t, b, "second", persistent, short), open(t, b, "pub")
	first.sub("$share/g/a", 1)
	second.sub("$share/g/a", 1)
	second.leave(b, "second")
	require.Eventually(t, func() bool { return b.Stats().Sessions == 2 }, patience, 10*time.Millisecond)
	first.leave(b, "first")
	pub.burst("a", 0, 10)
	first = open(t, b, "first", persistent)
	require.Equal(t, numbers(0, 10), first.collect(10))
}

func testOverlappingSubscriptions(t *testing.T, at place) {
	b := at.start(t, nil)
	sub, pub := open(t, b, "sub"), open(t, b, "pub")
	sub.sub("a/#", 0, subID(3))
	sub.sub("a/+", 2, subID(1))
	sub.sub("a/b", 1)
	pub.publish("a/b", "x", 2, 1)
	pk := sub.expect(packets.Publish)
	require.Equal(t, byte(2), pk.FixedHeader.Qos)
	require.Equal(t, []int{1, 3}, pk.Properties.SubscriptionIdentifier)
	sub.nothing()
}

func testFilterCoversItsParent(t *testing.T, at place) {
	b := at.start(t, nil)
	sub, pub := open(t, b, "sub"), open(t, b, "pub")
	sub.sub("a/+/#", 1)
	pub.publish1("a", "no")
	pub.publish1("a/b", "yes")
	pub.publish1("a/b/c/d", "deep")
	require.Equal(t, []string{"yes", "deep"}, sub.collect(2))
}

func testNoLocal(t *testing.T, at place) {
	b := at.start(t, nil)
	c, other := open(t, b, "c"), open(t, b, "other")
	c.sub("a", 1, subFlags(func(s *packets.Subscription) { s.NoLocal = true }))
	c.publish1("a", "own")
	other.publish1("a", "other's")
	require.Equal(t, []string{"other's"}, c.collect(1))
	c.sub("+", 1)
	c.publish("a", "own", 1, 3)
	c.nextOf(packets.Puback, func(pk packets.Packet) { require.Equal(t, "own", string(pk.Payload)) })
}

func testUnsubscribe(t *testing.T, at place) {
	b := at.start(t, nil)
	sub, pub := open(t, b, "sub"), open(t, b, "pub")
	sub.sub("a", 1)
	require.Equal(t, []byte{0, 0x11}, sub.unsub("a", "b"))
	pub.publish1("a", "x")
	sub.nothing()
	require.Zero(t, b.Stats().Subscriptions)
}

// Filters are bounded by what they cost, not by their number alone, and that is known over a
// restart.
func testTrial04FiltersAreWeighed(t *testing.T, at place) {
	few := func(o *Options) { o.Limits.Session.State = 256 << 10 } // of which one user has half
	dir := t.TempDir()
	b, stop := at.kept(t, dir, few)
	sub := open(t, b, "sub", persistent)
	code := func(filter string) byte { return sub.subscribe(filter, 1).ReasonCodes[0] }
	long := func(name string) string { return name + strings.Repeat("x", 65_000) }
	sub.sub(long("a"), 1)
	sub.sub(long("b"), 1)
	refused := sub.subscribe(long("c"), 1)
	require.Equal(t, []byte{codeQuota}, refused.ReasonCodes)
	require.Contains(t, refused.Properties.ReasonString, "limits.session.state")
	sub.sub(long("a"), 2) // it has that one
	sub.unsub(long("b"))
	sub.sub(long("c"), 1)
	held := b.quotas.state.Held()
	stop()

	b, _ = at.kept(t, dir, few)
	require.Equal(t, held, b.quotas.state.Held(), "what comes from disk counts as what clients ask for")
	sub = open(t, b, "sub", persistent)
	require.Equal(t, byte(codeQuota), code(long("d")))
	sub.unsub(long("a"))
	deep := func(i int) string { return fmt.Sprint(i) + strings.Repeat("/a", 199) }
	sub.sub(deep(0), 1)
	sub.sub(deep(1), 1)
	require.Equal(t, byte(codeQuota), code(deep(2)), "levels count, too")
	other := open(t, b, "other", persistent) // the same user
	require.Equal(t, []byte{codeQuota}, other.subscribe(deep(3), 1).ReasonCodes)
}
