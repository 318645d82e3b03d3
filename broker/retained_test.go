package broker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
)

func testRetained20000(t *testing.T, at place) {
	b := at.start(t, nil)
	pub := open(t, b, "pub")
	const n = 20_000
	pub.pipeline(n, func(i int) packets.Packet {
		return publishPacket("ret/"+strconv.Itoa(i), "x", 1, uint16(i%pipelined)+1, retain)
	})
	sub := open(t, b, "sub")
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
	require.Zero(t, open(t, b, "other").publish1("one more", "x", retain).ReasonCode)
}

func testRetainedIsReplacedAndForgotten(t *testing.T, at place) {
	b := at.start(t, nil)
	pub := open(t, b, "pub")
	pub.publish1("a", "1", retain)
	pub.publish1("a", "2", retain)
	one := b.Stats()
	require.Equal(t, 1, one.Retained)
	require.NotZero(t, one.RetainedBytes)
	pub.publish1("b", "x", retain)
	require.Equal(t, 2*one.RetainedBytes, b.Stats().RetainedBytes)
	pub.publish1("b", "", retain)
	require.Equal(t, one.RetainedBytes, b.Stats().RetainedBytes)
	pub.publish1("c", "not retained")
	sub := open(t, b, "sub")
	sub.sub("+", 1, subID(5))
	pk := sub.expect(packets.Publish)
	require.Equal(t, "2", string(pk.Payload))
	require.Equal(t, []int{5}, pk.Properties.SubscriptionIdentifier)
	sub.ack(packets.Puback, pk.PacketID)
	sub.nothing()
}

func testRetainFlagAndHandling(t *testing.T, at place) {
	b := at.start(t, nil)
	pub := open(t, b, "pub")
	pub.publish1("a", "old", retain)
	handling := func(n byte) subOption {
		return subFlags(func(s *packets.Subscription) { s.RetainHandling = n })
	}
	sub := open(t, b, "sub")
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

	plain, asPublished := open(t, b, "plain"), open(t, b, "asPublished")
	plain.sub("b", 0)
	asPublished.sub("b", 0, subFlags(func(s *packets.Subscription) { s.RetainAsPublished = true }))
	pub.publish1("b", "x", retain)
	pub.publish1("b", "y")
	require.False(t, plain.expect(packets.Publish).FixedHeader.Retain)
	require.True(t, asPublished.expect(packets.Publish).FixedHeader.Retain)
	require.False(t, asPublished.expect(packets.Publish).FixedHeader.Retain)
}

// A pull that is made late, here because messages wait for the client, finds what was
// published since the SUBACK: that has come live.
func testWhatCameLiveIsNotSentAsRetained(t *testing.T, at place) {
	tree := newFakeTree()
	b := at.start(t, withTree(tree))
	pub, sub := open(t, b, "pub"), open(t, b, "sub", receiveMaximum(1))
	pub.publish1("a/kept", "kept", retain)
	sub.sub("wait", 1)
	pub.publish1("wait", "1")
	pub.publish1("wait", "2")
	first := sub.expect(packets.Publish)
	sub.sub("a/+", 1)
	sub.sub(reported, 1)
	pub.publish1("a/new", "new", retain)
	tree.tell(Message{Topic: reported, Payload: []byte("value"), QoS: 1, Retain: true}, b.Publish)
	sub.ack(packets.Puback, first.PacketID)
	require.Equal(t, []string{"2", "new", "value", "kept"}, sub.collect(4))
	sub.nothing()
	require.Eventually(t, func() bool { return b.Stats().Queued == 0 }, patience, time.Millisecond)
	sub.nothing()
}

// A message that was routed before the subscription was made, and isn't retained yet,
// is waited for.
func testSubscribingWhileAMessageIsPublished(t *testing.T, at place) {
	b := at.start(t, func(o *Options) { o.Limits.Session.Bytes = 1 })
	full, pub, sub := open(t, b, "full", receiveMaximum(1)), open(t, b, "pub"), open(t, b, "sub")
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
	pub.publish("a", "3", 1, 7, retain)
	<-routed
	sub.send(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Subscribe}, PacketID: 1, Filters: packets.Subscriptions{{Filter: "a", Qos: 1}},
	})
	require.Eventually(t, func() bool { return len(b.clients.connected("sub").client.filters()) == 1 }, patience, time.Millisecond)
	close(goOn)
	sub.expect(packets.Suback)
	pk := sub.expect(packets.Publish)
	require.Equal(t, "3", string(pk.Payload))
	require.True(t, pk.FixedHeader.Retain)
	sub.ack(packets.Puback, pk.PacketID)
	require.Eventually(t, func() bool { return b.Stats().Queued == 2 }, patience, time.Millisecond)
	sub.nothing()
}

func TestRetainedLimitIsARefusal(t *testing.T) {
	b := start(t, func(o *Options) { o.Limits.Retained.Bytes = 1500 })
	pub := open(t, b, "pub")
	pub.publish1("a", "1", retain)
	pub.publish1("b", "1", retain)
	ack := pub.publish1("c", "1", retain)
	require.Equal(t, byte(0x97), ack.ReasonCode)
	require.Contains(t, ack.Properties.ReasonString, "limits.retained.bytes")
	require.Equal(t, byte(0), pub.publish1("a", "2", retain).ReasonCode)
	pub.publish1("b", "", retain)
	require.Equal(t, byte(0), pub.publish1("c", "1", retain).ReasonCode)
}

// A reader in the middle of the store misses nothing that stays, whatever else
// comes and goes.
func TestRetainedPullerOverChanges(t *testing.T) {
	r := newRetained(newQuotas(Limits{}).retained, time.Now)
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
	pull := r.Puller("x/+/y", "")
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
	messages, bytes := r.size()
	require.Zero(t, messages)
	require.Zero(t, bytes)
	require.Empty(t, r.blocks)
}

func TestRetainedPullerMatchesLikeTheContract(t *testing.T) {
	r := newRetained(newQuotas(Limits{}).retained, time.Now)
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
		pull := r.Puller(filter, "")
		for chunk := pull(2); len(chunk) > 0; chunk = pull(2) {
			for _, m := range chunk {
				got = append(got, m.Topic)
			}
		}
		require.Equal(t, want, got, filter)
	}
}
