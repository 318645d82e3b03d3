package broker

import (
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
	sub.send(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Unsubscribe}, PacketID: 4,
		Filters: packets.Subscriptions{{Filter: "a"}, {Filter: "b"}},
	})
	require.Equal(t, []byte{0, 0x11}, sub.expect(packets.Unsuback).ReasonCodes)
	pub.publish1("a", "x")
	sub.nothing()
	require.Zero(t, b.Stats().Subscriptions)
}
