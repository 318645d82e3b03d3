// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/topics/resource"
)

func testDeliversEachQoS(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub"), openClient(t, b, "pub", version311)
	sub.sub("a/+", 2)

	pub.publish("a/0", "zero", 0, 0)
	pk := sub.expect(packets.Publish)
	require.Equal(t, "zero", string(pk.Payload))
	require.Equal(t, byte(0), pk.FixedHeader.Qos)

	require.Equal(t, byte(0), pub.publish1("a/1", "one").ReasonCode)
	pk = sub.expect(packets.Publish)
	require.Equal(t, "a/1", pk.TopicName)
	sub.ack(packets.Puback, pk.PacketID)

	pub.publish("a/2", "two", 2, 11)
	require.Equal(t, uint16(11), pub.expect(packets.Pubrec).PacketID)
	pub.ack(packets.Pubrel, 11)
	require.Equal(t, uint16(11), pub.expect(packets.Pubcomp).PacketID)
	pk = sub.expect(packets.Publish)
	require.Equal(t, byte(2), pk.FixedHeader.Qos)
	sub.ack(packets.Pubrec, pk.PacketID)
	require.Equal(t, pk.PacketID, sub.expect(packets.Pubrel).PacketID)
	sub.ack(packets.Pubcomp, pk.PacketID)
	sub.nothing()
	require.Zero(t, b.Stats().Queued)
}

// A client's packet ids and the broker's are two spaces: an id that the client uses
// is no acknowledgement of what was sent to it under the same number.
func testClientIDsAndOursAreSeparate(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub", persistentSession), openClient(t, b, "pub")
	sub.sub("a", 1)
	pub.publish1("a", "owed")
	owed := sub.expect(packets.Publish)

	sub.publish("b", "mine", 1, owed.PacketID)
	require.Equal(t, owed.PacketID, sub.expect(packets.Puback).PacketID)
	sub.leave(b, "sub")

	sub = openClient(t, b, "sub", persistentSession)
	require.True(t, sub.connack.SessionPresent)
	again := sub.expect(packets.Publish)
	require.Equal(t, "owed", string(again.Payload))
	require.True(t, again.FixedHeader.Dup)
	require.Equal(t, owed.PacketID, again.PacketID)
}

func testReceiveMaximumWithTheSameIDsInBetween(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub", receiveMaximum(5)), openClient(t, b, "pub")
	sub.sub("a", 1)
	pub.burst("a", 0, 20)
	var got []string
	for len(got) < 20 {
		pk := sub.expect(packets.Publish)
		got = append(got, string(pk.Payload))
		sub.publish("b", "x", 1, pk.PacketID)
		require.Equal(t, pk.PacketID, sub.nextOf(packets.Puback, func(p packets.Packet) { got = append(got, string(p.Payload)) }))
		sub.ack(packets.Puback, pk.PacketID)
		sub.ackAll(&got)
	}
	require.ElementsMatch(t, numberedPayloads(0, 20), got)
}

// nextOf reads up to a packet of the kind, and gives publishes before it to seen.
func (c *testClient) nextOf(kind byte, seen func(packets.Packet)) uint16 {
	c.t.Helper()
	for {
		pk, err := c.read(testTimeout)
		require.NoError(c.t, err)
		if pk.FixedHeader.Type == kind {
			return pk.PacketID
		}
		require.Equal(c.t, packets.Publish, pk.FixedHeader.Type)
		seen(pk)
		if pk.FixedHeader.Qos == 1 {
			c.ack(packets.Puback, pk.PacketID)
		}
	}
}

// ackAll acknowledges what has arrived.
func (c *testClient) ackAll(got *[]string) {
	c.t.Helper()
	c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	c.nextOf(packets.Pingresp, func(pk packets.Packet) { *got = append(*got, string(pk.Payload)) })
}

func testReceiveMaximumIsKept(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub", receiveMaximum(5)), openClient(t, b, "pub")
	sub.sub("a", 1)
	pub.burst("a", 0, 20)
	for range 5 {
		sub.expect(packets.Publish)
	}
	sub.nothing()
	sub.ack(packets.Puback, 2)
	require.Equal(t, "5", string(sub.expect(packets.Publish).Payload))
	sub.nothing()
}

func testBurstArrivesInOrder(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub", receiveMaximum(10)), openClient(t, b, "pub")
	sub.sub("a", 1)
	pub.meanwhile("a", 0, 500)
	require.Equal(t, numberedPayloads(0, 500), sub.collect(500))
	sub.nothing()
}

// testCrowdInOrder: many get the same from two who publish at the same time, and each of them gets
// all of it and in each publisher's order; so does somebody who gets nothing else.
func testCrowdInOrder(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	const many, n = 40, 50
	var crowd []*testClient
	for i := range many {
		c := openClient(t, b, "crowd-"+strconv.Itoa(i), receiveMaximum(20))
		c.sub("#", byte(i%2))
		crowd = append(crowd, c)
	}
	x, y := openClient(t, b, "x"), openClient(t, b, "y")
	x.meanwhile("x", 0, n)
	y.meanwhile("y", 1000, n)
	for _, c := range crowd {
		byTopic := map[bool][]string{}
		for _, text := range c.collect(2 * n) {
			byTopic[len(text) < 4] = append(byTopic[len(text) < 4], text)
		}
		require.Equal(t, numberedPayloads(0, n), byTopic[true])
		require.Equal(t, numberedPayloads(1000, n), byTopic[false])
	}
}

func testResumeSendsNoMoreThanReceiveMaximum(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub", persistentSession), openClient(t, b, "pub")
	sub.sub("a", 1)
	sub.leave(b, "sub")
	pub.burst("a", 0, 50)

	sub = openClient(t, b, "sub", persistentSession, receiveMaximum(5))
	for i := range 5 {
		pk := sub.expect(packets.Publish)
		require.Equal(t, strconv.Itoa(i), string(pk.Payload))
		require.False(t, pk.FixedHeader.Dup, "never sent before")
	}
	sub.nothing()
	sub.leave(b, "sub")

	sub = openClient(t, b, "sub", persistentSession, receiveMaximum(7))
	for i := range 7 {
		pk := sub.expect(packets.Publish)
		require.Equal(t, strconv.Itoa(i), string(pk.Payload))
		require.Equal(t, i < 5, pk.FixedHeader.Dup, "message %d", i)
	}
	sub.nothing()
}

func testQueuedOfflineInOrder(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	for _, version := range []struct {
		id   string
		opts []connectOption
	}{{"five", []connectOption{persistentSession}}, {"three", []connectOption{persistentSession, version311}}} {
		t.Run(version.id, func(t *testing.T) {
			sub, pub := openClient(t, b, version.id, version.opts...), openClient(t, b, "pub-"+version.id)
			topic := "a/" + version.id
			sub.sub(topic, 1)
			sub.leave(b, version.id)
			pub.burst(topic, 0, 200)
			sub = openClient(t, b, version.id, version.opts...)
			require.True(t, sub.connack.SessionPresent)
			require.Equal(t, numberedPayloads(0, 200), sub.collect(200))
		})
	}
}

func testOffline20000(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub", persistentSession), openClient(t, b, "pub")
	sub.sub("a", 1)
	sub.leave(b, "sub")
	pub.burst("a", 0, 20_000)
	require.Equal(t, int64(20_000), b.Stats().Queued)
	sub = openClient(t, b, "sub", persistentSession)
	require.Equal(t, numberedPayloads(0, 20_000), sub.collect(20_000))
	sub.nothing()
	for reason, n := range b.Stats().Dropped {
		require.Zero(t, n, reason)
	}
}

func TestBeyondTheQueueLimitEveryLossIsCounted(t *testing.T) {
	b := startBroker(t, func(o *Options) { o.Limits.Session.Bytes = roomFor(numberedPayloads(0, 100)...) })
	sub, pub := openClient(t, b, "sub", persistentSession), openClient(t, b, "pub")
	sub.sub("a", 1)
	sub.leave(b, "sub")
	pub.burst("a", 0, 150)
	require.Equal(t, int64(50), b.Stats().Dropped["queue_full"])
	sub = openClient(t, b, "sub", persistentSession)
	require.Equal(t, numberedPayloads(0, 100), sub.collect(100), "the oldest are kept")
	sub.nothing()
}

func testPausedSubscriber30000(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub"), openClient(t, b, "pub")
	sub.sub("a", 1)
	const n = 30_000 // of which the subscriber reads nothing meanwhile
	sent := at.limits.Inflight
	pub.burst("a", 0, sent)
	require.Eventually(t, func() bool { return b.Stats().Unacked == sent }, testTimeout, time.Millisecond)
	pub.burst("a", sent, n-sent)
	require.Equal(t, numberedPayloads(0, n), sub.collect(n))
	sub.nothing()
	require.Zero(t, b.Stats().Dropped["queue_full"])
}

func testQoS2RepetitionIsDeliveredOnce(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub"), openClient(t, b, "pub", persistentSession)
	sub.sub("a", 0)
	pub.publish("a", "once", 2, 5)
	require.Equal(t, byte(0), pub.expect(packets.Pubrec).ReasonCode)
	pub.publish("a", "once", 2, 5, markDup)
	require.Equal(t, byte(0), pub.expect(packets.Pubrec).ReasonCode)
	pub.leave(b, "pub")
	pub = openClient(t, b, "pub", persistentSession)
	pub.publish("a", "once", 2, 5, markDup)
	require.Equal(t, byte(0), pub.expect(packets.Pubrec).ReasonCode)
	pub.ack(packets.Pubrel, 5)
	require.Equal(t, byte(0), pub.expect(packets.Pubcomp).ReasonCode)
	pub.ack(packets.Pubrel, 5)
	require.Equal(t, byte(0x92), pub.expect(packets.Pubcomp).ReasonCode)
	require.Equal(t, "once", string(sub.expect(packets.Publish).Payload))
	sub.nothing()

	pub.publish("a", "twice", 2, 5)
	pub.expect(packets.Pubrec)
	require.Equal(t, "twice", string(sub.expect(packets.Publish).Payload), "the id is free again")
}

func testQoS2ToASubscriberOverReconnects(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub", persistentSession), openClient(t, b, "pub")
	sub.sub("a", 2)
	pub.publish("a", "x", 2, 1)
	pk := sub.expect(packets.Publish)
	sub.leave(b, "sub")

	sub = openClient(t, b, "sub", persistentSession)
	again := sub.expect(packets.Publish)
	require.Equal(t, pk.PacketID, again.PacketID)
	require.True(t, again.FixedHeader.Dup)
	sub.ack(packets.Pubrec, pk.PacketID)
	sub.expect(packets.Pubrel)
	sub.leave(b, "sub")

	sub = openClient(t, b, "sub", persistentSession)
	require.Equal(t, pk.PacketID, sub.expect(packets.Pubrel).PacketID, "released already: not published again")
	sub.ack(packets.Pubcomp, pk.PacketID)
	sub.nothing()
	sub.leave(b, "sub")
	sub = openClient(t, b, "sub", persistentSession)
	sub.nothing()
}

func testSubscribeWithTheIDOfADelivery(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub"), openClient(t, b, "pub")
	sub.sub("a", 1)
	pub.publish1("a", "x")
	owed := sub.expect(packets.Publish)
	ack := sub.subscribe("b", 1, func(pk *packets.Packet) { pk.PacketID = owed.PacketID })
	require.Equal(t, []byte{1}, ack.ReasonCodes)
}

func testOversizeIsDroppedAndTheRestDelivered(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub", maximumPacket(200), receiveMaximum(10)), openClient(t, b, "pub")
	sub.sub("a", 1)
	for range 20 {
		pub.publish1("a", strings.Repeat("x", 300))
	}
	pub.burst("a", 0, 50)
	require.Equal(t, numberedPayloads(0, 50), sub.collect(50))
	require.Equal(t, int64(20), b.Stats().Dropped["too_large"])

	const fits = 200 - 1 - 2 - (2 + 1) - 2 - 1 // header, length, topic, id, no properties
	pub.publish1("a", strings.Repeat("y", fits+1))
	pub.publish1("a", strings.Repeat("y", fits))
	require.Len(t, sub.expect(packets.Publish).Payload, fits)
}

// What is sent again has to fit the connection on which it is.
func testOversizeIsNotSentAgain(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub", persistentSession), openClient(t, b, "pub")
	sub.sub("a", 1)
	for _, payload := range []string{"first", strings.Repeat("x", 300), "last"} {
		pub.publish1("a", payload)
		require.Equal(t, payload, string(sub.expect(packets.Publish).Payload)) // and not acknowledged
	}
	sub.leave(b, "sub")
	sub = openClient(t, b, "sub", persistentSession, maximumPacket(200))
	require.Equal(t, []string{"first", "last"}, sub.collect(2))
	sub.nothing()
	require.Equal(t, int64(1), b.Stats().Dropped["too_large"])
	require.Zero(t, b.Stats().Queued)
}

func testNoExpiryIsInvented(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub"), openClient(t, b, "pub")
	sub.sub("a", 1)
	pub.publish1("a", "x")
	require.Zero(t, sub.expect(packets.Publish).Properties.MessageExpiryInterval)
}

func testExpiryCountsDownAndDrops(t *testing.T, at brokerSetup) {
	var mu sync.Mutex
	now := time.Now()
	b := at.start(t, func(o *Options) {
		o.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	})
	sub, pub := openClient(t, b, "sub", persistentSession), openClient(t, b, "pub")
	sub.sub("a", 1)
	sub.leave(b, "sub")
	pub.publish1("a", "short", withProperties(packets.Properties{MessageExpiryInterval: 10}))
	pub.publish1("a", "long", withProperties(packets.Properties{MessageExpiryInterval: 100}))
	pub.publish1("r", "kept", markRetain, withProperties(packets.Properties{MessageExpiryInterval: 10}))
	mu.Lock()
	now = now.Add(30 * time.Second)
	mu.Unlock()
	sub = openClient(t, b, "sub", persistentSession)
	pk := sub.expect(packets.Publish)
	require.Equal(t, "long", string(pk.Payload))
	require.Equal(t, uint32(70), pk.Properties.MessageExpiryInterval)
	require.Equal(t, int64(1), b.Stats().Dropped["expired"])
	sub.sub("r", 1)
	sub.nothing()
}

func testPropertiesAreCarried(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub"), openClient(t, b, "pub")
	sub.sub("a", 2, subID(77))
	want := packets.Properties{
		ContentType: "text/plain", ResponseTopic: "re/me", CorrelationData: []byte{0, 1, 2}, PayloadFormat: 1, PayloadFormatFlag: true,
		User: []packets.UserProperty{{Key: "k", Val: "1"}, {Key: "k", Val: "2"}}, MessageExpiryInterval: 500,
	}
	pub.publish1("a", "x", withProperties(want))
	want.SubscriptionIdentifier = []int{77}
	require.Equal(t, want, sub.expect(packets.Publish).Properties)
}

func testTopicAlias(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub"), openClient(t, b, "pub")
	sub.sub("#", 1)
	require.Equal(t, uint16(64), pub.connack.Properties.TopicAliasMaximum)
	alias := func(n uint16) pubOption {
		return withProperties(packets.Properties{TopicAlias: n, TopicAliasFlag: true})
	}
	pub.publish1("some/topic", "1", alias(9))
	pub.publish1("", "2", alias(9))
	pub.publish1("another/topic", "3", alias(9))
	pub.publish1("", "4", alias(9))
	var topics []string
	for range 4 {
		pk := sub.expect(packets.Publish)
		require.False(t, pk.Properties.TopicAliasFlag)
		topics = append(topics, pk.TopicName)
	}
	require.Equal(t, []string{"some/topic", "some/topic", "another/topic", "another/topic"}, topics)
	pub.publish("", "x", 1, 1, alias(8))
	code, _ := pub.ended()
	require.Equal(t, byte(0x82), code)
}

func testQoS0IsDroppedFirst(t *testing.T, at brokerSetup) {
	b := at.start(t, func(o *Options) { o.Limits.Session.Bytes = roomFor(append(numberedPayloads(0, 99), "first")...) })
	sub, pub := openClient(t, b, "sub", receiveMaximum(1)), openClient(t, b, "pub")
	sub.sub("a", 1)
	pub.publish1("a", "in flight")
	sub.expect(packets.Publish) // and never acknowledged, so that the rest waits
	pub.publish1("a", "first")
	for i := range 120 {
		pub.publish("a", "zero "+strconv.Itoa(i), 0, 0)
	}
	pub.burst("a", 0, 99)
	dropped := b.Stats().Dropped
	require.Equal(t, int64(120), dropped["qos0_queue_full"])
	require.Zero(t, dropped["queue_full"])
	pub.burst("a", 99, 1)
	require.Equal(t, int64(1), b.Stats().Dropped["queue_full"])
	sub.ack(packets.Puback, 1)
	require.Equal(t, append([]string{"first"}, numberedPayloads(0, 99)...), sub.collect(100))
}

func testReceiveMaximumOfTheBroker(t *testing.T, at brokerSetup) {
	tree := newFakeTree()
	b := at.start(t, func(o *Options) { o.Tree, o.Limits.ReceiveMaximum = tree, 10 })
	pub := openClient(t, b, "pub")
	require.Equal(t, uint16(10), pub.connack.Properties.ReceiveMaximum)
	tree.hold()
	for i := range 11 {
		pub.publish("v1/nodes/n/devices/d/desired/p", "x", 1, uint16(i)+1)
	}
	code, _ := pub.ended()
	require.Equal(t, byte(0x93), code)

	three := openClient(t, b, "three", version311) // can't be told: it is not read from until there is room
	var buf []byte
	for i := range 100 {
		buf = append(buf, encodePacket(t, publishPacket("v1/nodes/n/devices/d/desired/p", fmt.Sprint(i), 1, uint16(i)+1), 4)...)
	}
	three.raw(buf)
	require.Eventually(t, func() bool { return tree.held() >= 20 }, testTimeout, time.Millisecond)
	require.LessOrEqual(t, tree.held(), 31)
	tree.letGo()
	for i := range 100 {
		require.Equal(t, uint16(i)+1, three.expect(packets.Puback).PacketID)
	}
}

// Who receives can't stop who sends, whatever the topic and the version of either.
func testFullSessionGoesWithout(t *testing.T, at brokerSetup) {
	b := at.start(t, func(o *Options) { o.Limits.Session.Bytes = roomFor(numberedPayloads(0, 10)...) })
	gone, live := openClient(t, b, "gone", persistentSession), openClient(t, b, "live", persistentSession)
	gone.sub("#", 1)
	live.sub("#", 1)
	gone.leave(b, "gone")
	pub, three := openClient(t, b, "pub"), openClient(t, b, "three", version311)
	three.sub("v1/refused/three", 0)
	pub.burst("a", 0, 10)
	require.Equal(t, numberedPayloads(0, 10), live.collect(10))
	for i := range 5 {
		require.Equal(t, byte(0), pub.publish1("a", "five "+strconv.Itoa(i)).ReasonCode)
		three.publish1("a", "three "+strconv.Itoa(i))
		pub.publish("a", "two "+strconv.Itoa(i), 2, 9)
		require.Equal(t, byte(0), pub.expect(packets.Pubrec).ReasonCode)
		pub.ack(packets.Pubrel, 9)
		require.Equal(t, byte(0), pub.expect(packets.Pubcomp).ReasonCode)
		require.Equal(t, []string{"five " + strconv.Itoa(i), "three " + strconv.Itoa(i), "two " + strconv.Itoa(i)}, live.collect(3))
	}
	three.nothing() // it was refused nothing
	require.Equal(t, int64(15), b.Stats().Dropped["queue_full"])
	require.Zero(t, b.Stats().Refused[daemon.Label("Quota")])
	require.Equal(t, "gone", b.Report().FullestOf)

	gone = openClient(t, b, "gone", persistentSession)
	require.Equal(t, numberedPayloads(0, 10), gone.collect(10), "the oldest are kept")
	gone.nothing()
	require.Equal(t, byte(0), pub.publish1("a", "room again").ReasonCode)
	require.Equal(t, []string{"room again"}, gone.collect(1))
}

// A stream has many listeners, and so has what a node sends over the link.
func TestAListenerThatNeverComesBackStopsNothing(t *testing.T) {
	b, _ := startKept(t, t.TempDir(), func(o *Options) { o.Limits.Session.Bytes = 1000 })
	gone, live := openClient(t, b, "gone", persistentSession), openClient(t, b, "live")
	gone.sub("#", 1)
	live.sub("#", 1)
	gone.leave(b, "gone")
	for range 3 {
		for _, topic := range []string{"v1/nodes/n1/devices/lamp/telemetry/t", "own"} {
			done := make(chan error, 1)
			b.Pass(Message{Topic: topic, Payload: []byte("x"), QoS: 1, Publisher: &Identity{Version: 5}}, func(err error) { done <- err })
			require.NoError(t, <-done)
			live.ack(packets.Puback, live.expect(packets.Publish).PacketID)
		}
	}
	require.Equal(t, int64(4), b.Stats().Dropped["queue_full"])
	require.Zero(t, b.Stats().Refused[daemon.Label(string(resource.Quota))])
}

// A member that is away and full is passed over for one that has room, there or not.
func testSharedGroupLeavesOutWhoIsFull(t *testing.T, at brokerSetup) {
	b := at.start(t, func(o *Options) { o.Limits.Session.Bytes = roomFor(numberedPayloads(0, 10)...) })
	first, second, pub := openClient(t, b, "first", persistentSession), openClient(t, b, "second", persistentSession), openClient(t, b, "pub")
	for _, c := range []*testClient{first, second} {
		c.sub("$share/g/a", 1)
	}
	first.sub("b", 1)
	first.leave(b, "first")
	second.leave(b, "second")
	pub.burst("b", 0, 10)
	pub.burst("a", 0, 10)
	require.Zero(t, b.Stats().Dropped["queue_full"])
	pub.burst("a", 10, 1)
	require.Equal(t, int64(1), b.Stats().Dropped["queue_full"], "now nobody has room")
	require.Equal(t, numberedPayloads(0, 10), openClient(t, b, "second", persistentSession).collect(10))
}

// logLines is a log that can be read while it is written.
type logLines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// about lists the lines that say how many messages a client goes without.
func (l *logLines) about(t *testing.T, client string) (all []map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.buf.Bytes()) {
		var fields map[string]any
		require.NoError(t, json.Unmarshal(line, &fields))
		if fields["client"] == client && fields["messages"] != nil {
			all = append(all, fields)
		}
	}
	return all
}

// Each session without room is named, once a minute, and no other flood hides it.
func TestSessionsWithoutRoomAreNamed(t *testing.T) {
	log, now := &logLines{}, &testClock{now: time.Now()}
	b, _ := startKept(t, t.TempDir(), func(o *Options) {
		o.Limits.Session.Bytes, o.Log, o.Now = 1, zerolog.New(log), now.read
	})
	for _, id := range []string{"one", "two"} {
		c := openClient(t, b, id, persistentSession)
		c.sub("a", 1)
		c.leave(b, id)
	}
	pub := openClient(t, b, "pub")
	for range 100 {
		require.NotZero(t, pub.publish1("v1/nodes/n1/spec", "refused, which is logged as well").ReasonCode)
	}
	pub.burst("a", 0, 101)
	now.add(2 * time.Minute)
	pub.burst("a", 0, 50)
	for _, id := range []string{"one", "two"} {
		said := log.about(t, id)
		require.Len(t, said, 2)
		for i, soFar := range []float64{1, 101} {
			require.Equal(t, "warn", said[i]["level"])
			require.Equal(t, "a", said[i]["topic"])
			require.Equal(t, soFar, said[i]["messages"])
		}
	}
}
