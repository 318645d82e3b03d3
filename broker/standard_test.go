// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"
)

// The names in brackets are the standard's statements (MQTT 5, unless 3.1.1 is said).

// [MQTT-3.1.3-6] [MQTT-3.1.3-7] [MQTT-3.2.2-16]
func testAssignedClientIDs(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	one, two := openClient(t, b, ""), openClient(t, b, "", persistentSession)
	first, second := one.connack.Properties.AssignedClientID, two.connack.Properties.AssignedClientID
	require.NotEmpty(t, first)
	require.NotEqual(t, first, second)
	two.leave(b, second)
	again := openClient(t, b, second, persistentSession)
	require.True(t, again.connack.SessionPresent)
	require.Empty(t, again.connack.Properties.AssignedClientID)
	openClient(t, b, "", version311) // 3.1.1 [MQTT-3.1.3-6]
}

// [MQTT-3.1.2-4] [MQTT-3.1.2-5] [MQTT-3.1.2-6] [MQTT-3.2.2-2] [MQTT-3.2.2-3] [MQTT-3.1.2-23]
func testSessionsBeginAndEnd(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	c := openClient(t, b, "c", resumeSession) // no session expiry: it ends with the connection
	require.False(t, c.connack.SessionPresent)
	c.sub("a", 1)
	c.leave(b, "c")
	c = openClient(t, b, "c", persistentSession)
	require.False(t, c.connack.SessionPresent)
	c.sub("b", 1)
	c.leave(b, "c")
	c = openClient(t, b, "c", resumeSession)
	require.True(t, c.connack.SessionPresent)
	openClient(t, b, "pub").publish1("a", "gone")
	openClient(t, b, "pub").publish1("b", "kept")
	require.Equal(t, []string{"kept"}, c.collect(1))
	c.leave(b, "c") // its expiry was 0 this time
	require.False(t, openClient(t, b, "c", persistentSession).connack.SessionPresent)
	c = openClient(t, b, "c", func(pk *packets.Packet) { persistentSession(pk); pk.Connect.Clean = true })
	require.False(t, c.connack.SessionPresent)

	three := openClient(t, b, "three", version311, persistentSession) // 3.1.1 [MQTT-3.1.2-4] [MQTT-3.1.2-6] [MQTT-3.2.2-1] [MQTT-3.2.2-2]
	three.sub("a", 1)
	three.disconnect()
	require.True(t, openClient(t, b, "three", version311, persistentSession).connack.SessionPresent)
	require.False(t, openClient(t, b, "three", version311).connack.SessionPresent)
	require.False(t, openClient(t, b, "three", version311, persistentSession).connack.SessionPresent)
}

// 3.1.2.11.2, 3.2.2.3.2, 3.14.2.2.2
func testSessionExpiryIsNegotiated(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	c := openClient(t, b, "c", persistentSession)
	require.False(t, c.connack.Properties.SessionExpiryIntervalFlag, "as asked")
	c = openClient(t, b, "forever", withSessionExpiry(0xFFFFFFFF))
	require.True(t, c.connack.Properties.SessionExpiryIntervalFlag)
	require.Equal(t, uint32(at.limits.Session.Expiry/time.Second), c.connack.Properties.SessionExpiryInterval)
	bye := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}}
	bye.Properties.SessionExpiryIntervalFlag = true // 0
	c.send(bye)
	c.ended()
	require.False(t, openClient(t, b, "forever", persistentSession).connack.SessionPresent)
}

// [MQTT-3.1.2-24] [MQTT-3.4.2-2] [MQTT-3.9.2-1] [MQTT-3.14.2-3]: reasons are left out where they don't fit.
func testAnswersFitTheClient(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	roomy, small := openClient(t, b, "roomy"), openClient(t, b, "small", maximumPacket(24))
	for _, c := range []*testClient{roomy, small} {
		ack := c.publish1("v1/nodes/n1/spec", "x")
		require.Equal(t, byte(0x87), ack.ReasonCode)
		require.Equal(t, c == roomy, ack.Properties.ReasonString != "")
		ack = c.subscribe("a#", 1)
		require.Equal(t, []byte{0x8F}, ack.ReasonCodes)
		require.Equal(t, c == roomy, ack.Properties.ReasonString != "")
	}
	for _, c := range []*testClient{roomy, small} {
		c.raw(malformedPackets["MQTT-3.3.2-8 topic alias 0"].raw)
		pk := c.expect(packets.Disconnect)
		require.Equal(t, byte(0x94), pk.ReasonCode)
		require.Equal(t, c == roomy, pk.Properties.ReasonString != "")
	}
	tiny, pub := openClient(t, b, "tiny", persistentSession, maximumPacket(32)), openClient(t, b, "pub")
	tiny.sub("b", 1)
	pub.publish1("a", "nobody was granted this", markRetain)
	many := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Subscribe}, PacketID: 1}
	for range 30 {
		many.Filters = append(many.Filters, packets.Subscription{Filter: "a", Qos: 1}, packets.Subscription{Filter: "b"})
	}
	tiny.send(many)
	code, _ := tiny.ended()
	require.Equal(t, byte(0x95), code, "an answer can't be left out")
	tiny = openClient(t, b, "tiny", persistentSession)
	require.True(t, tiny.connack.SessionPresent)
	pub.publish1("a", "nor this", markRetain)
	pub.publish1("b", "as before")
	pk := tiny.expect(packets.Publish)
	require.Equal(t, "as before", string(pk.Payload))
	require.Equal(t, byte(1), pk.FixedHeader.Qos)
	dwarf := dialBroker(t, b)
	dwarf.send(connectPacket("dwarf", maximumPacket(5)))
	_, err := dwarf.read(testTimeout)
	require.Error(t, err)
}

// [MQTT-3.1.2-29]
func testNoProblemInformation(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	c := openClient(t, b, "c", func(pk *packets.Packet) { pk.Properties.RequestProblemInfoFlag = true })
	require.Empty(t, c.publish1("v1/nodes/n1/spec", "x").Properties.ReasonString)
	require.Empty(t, c.subscribe("a#", 1).Properties.ReasonString)
	c.publish("v1/nodes/n1/spec", "x", 2, 3)
	rec := c.expect(packets.Pubrec)
	require.Equal(t, byte(0x87), rec.ReasonCode)
	require.Empty(t, rec.Properties.ReasonString)
	c.sub("a", 1)
	c.publish("a", "x", 0, 0, withProperties(packets.Properties{User: []packets.UserProperty{{Key: "k", Val: "v"}}}))
	require.Len(t, c.expect(packets.Publish).Properties.User, 1, "a message's own are no problem information")
}

// [MQTT-3.3.4-7] [MQTT-3.3.4-9] [MQTT-4.9.0-1]: a QoS 2 publish counts until its PUBREL.
func testReceiveMaximumCountsUnreleased(t *testing.T, at brokerSetup) {
	b := at.start(t, func(o *Options) { o.Limits.ReceiveMaximum = 5 })
	c := openClient(t, b, "c", persistentSession)
	for i := range uint16(5) {
		c.publish("a", "x", 2, i+1)
		c.expect(packets.Pubrec)
	}
	c.publish("a", "x", 2, 3, markDup)
	require.Equal(t, byte(0), c.expect(packets.Pubrec).ReasonCode, "a repetition counts once")
	c.ack(packets.Pubrel, 2)
	c.expect(packets.Pubcomp)
	c.publish("v1/nodes/n1/spec", "refused", 2, 6)
	require.Equal(t, byte(0x87), c.expect(packets.Pubrec).ReasonCode, "and so is no longer outstanding")
	c.publish("a", "x", 1, 7)
	c.expect(packets.Puback)
	c.publish("a", "x", 2, 8)
	c.expect(packets.Pubrec)
	c.publish("a", "x", 1, 9)
	code, _ := c.ended()
	require.Equal(t, byte(0x93), code)
	c = openClient(t, b, "c", persistentSession) // 3.1.2.11.3: a new connection counts anew
	for i := range uint16(5) {
		c.publish("a", "x", 2, i+20)
		c.expect(packets.Pubrec)
	}
}

// [MQTT-3.3.2-7] [MQTT-3.1.2-26] [MQTT-3.1.2-27]
func testAliasesAreOfOneConnection(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	alias := withProperties(packets.Properties{TopicAlias: 3, TopicAliasFlag: true})
	c := openClient(t, b, "c", persistentSession, func(pk *packets.Packet) { pk.Properties.TopicAliasMaximum = 10 })
	c.sub("a", 0)
	c.publish("a", "x", 1, 7, alias)
	pk := c.answered(packets.Puback)
	require.Equal(t, "a", pk.TopicName)
	require.False(t, pk.Properties.TopicAliasFlag, "the broker may send aliases, and sends none")
	c.leave(b, "c")
	c = openClient(t, b, "c", persistentSession)
	c.publish("", "x", 1, 1, alias)
	code, _ := c.ended()
	require.Equal(t, byte(0x82), code)
}

// [MQTT-3.8.4-3] [MQTT-3.8.4-4]: a subscription is replaced, and nothing is lost in between.
func testSubscriptionsAreReplaced(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub"), openClient(t, b, "pub")
	pub.publish1("a", "retained", markRetain)
	sub.sub("a", 0, subID(1))
	require.Equal(t, "retained", string(sub.expect(packets.Publish).Payload))
	sub.sub("a", 1, subID(2))
	require.Equal(t, "retained", string(sub.expect(packets.Publish).Payload), "again, at retain handling 0")
	pub.publish1("a", "x")
	pk := sub.expect(packets.Publish)
	require.Equal(t, []int{2}, pk.Properties.SubscriptionIdentifier)
	require.Equal(t, byte(1), pk.FixedHeader.Qos)
	sub.nothing()
	require.Equal(t, []string{"a"}, b.clients.connected("sub").client.filters())
}

// [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.9.3-1] [MQTT-3.8.4-2]
func testManyFiltersAreAnsweredInOrder(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	c := openClient(t, b, "c")
	pk := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Subscribe}, PacketID: 77}
	for i, f := range []string{"a", "b#", "$share/g/c", "$share//c", "$share/g", "$share/+/c", "", "d/#/e", "/"} {
		pk.Filters = append(pk.Filters, packets.Subscription{Filter: f, Qos: byte(i % 3)})
	}
	c.send(pk)
	ack := c.expect(packets.Suback)
	require.Equal(t, uint16(77), ack.PacketID)
	require.Equal(t, []byte{0, 0x8F, 2, 0x8F, 0x8F, 0x8F, 0x8F, 0x8F, 2}, ack.ReasonCodes, "[MQTT-4.8.2-1] [MQTT-4.8.2-2] [MQTT-4.7.1-1]")
	three := openClient(t, b, "three", version311)
	ack = three.subscribe("b#", 1)
	require.Equal(t, []byte{0x80}, ack.ReasonCodes, "3.1.1 [MQTT-3.9.3-2]")
}

// [MQTT-3.10.4-1] [MQTT-3.10.4-3] [MQTT-3.10.4-4] [MQTT-3.10.4-5] [MQTT-3.10.4-6] [MQTT-3.11.3-1]
func testUnsubscribingIsExact(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub", receiveMaximum(1)), openClient(t, b, "pub")
	sub.sub("a/+", 1)
	sub.sub("$share/g/a/+", 0)
	pub.publish1("a/b", "in flight")
	first := sub.expect(packets.Publish)
	if first.FixedHeader.Qos == 0 { // the shared copy
		first = sub.expect(packets.Publish)
	}
	sub.send(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Unsubscribe}, PacketID: 5,
		Filters: packets.Subscriptions{{Filter: "a/b"}, {Filter: "a/+"}, {Filter: "a/+"}, {Filter: "$share/h/a/+"}},
	})
	var ack packets.Packet
	for ack.FixedHeader.Type != packets.Unsuback {
		pk, err := sub.read(testTimeout)
		require.NoError(t, err)
		ack = pk
	}
	require.Equal(t, []byte{0x11, 0, 0x11, 0x11}, ack.ReasonCodes)
	require.Equal(t, uint16(5), ack.PacketID)
	sub.ack(packets.Puback, first.PacketID)
	pub.publish1("a/b", "shared only")
	pk := sub.expect(packets.Publish)
	require.Equal(t, "shared only", string(pk.Payload))
	require.Equal(t, byte(0), pk.FixedHeader.Qos)
	sub.nothing()
}

// [MQTT-4.8.2-3] [MQTT-4.8.2-4] [MQTT-4.8.2-6]: a shared subscription has its member's QoS, and is apart from others.
func testSharedSubscriptions(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	zero, one, pub := openClient(t, b, "zero"), openClient(t, b, "one"), openClient(t, b, "pub")
	zero.sub("$share/g/a", 0)
	one.sub("$share/h/a", 1)
	one.sub("a", 2)
	pub.publish("a", "x", 2, 1)
	require.Equal(t, byte(0), zero.expect(packets.Publish).FixedHeader.Qos)
	qos := []byte{one.expect(packets.Publish).FixedHeader.Qos, one.expect(packets.Publish).FixedHeader.Qos}
	require.ElementsMatch(t, []byte{1, 2}, qos, "once for the group, once for the client")
}

// [MQTT-3.3.2-18] [MQTT-3.3.2-16] [MQTT-1.5.4-3]
func testWhatIsCarriedUnchanged(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub"), openClient(t, b, "pub")
	const bom = "a/\uFEFFb\uFEFF"
	sub.sub(bom, 0)
	var user []packets.UserProperty
	for _, k := range []string{"b", "a", "b", "", "c"} {
		user = append(user, packets.UserProperty{Key: k, Val: strings.Repeat(k, 2)})
	}
	pub.publish1(bom, "\x00\xff", withProperties(packets.Properties{User: user, CorrelationData: []byte{0, 0xFF}}))
	pk := sub.expect(packets.Publish)
	require.Equal(t, bom, pk.TopicName)
	require.Equal(t, user, pk.Properties.User)
	require.Equal(t, "\x00\xff", string(pk.Payload))
	require.Equal(t, []byte{0, 0xFF}, pk.Properties.CorrelationData)
}

// [MQTT-3.3.1-5] … [MQTT-3.3.1-8]: the last retained message is kept with its QoS, an empty one forgets.
func testRetainedKeepsItsQoS(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	pub := openClient(t, b, "pub")
	pub.publish("r/0", "zero", 0, 0, markRetain)
	pub.publish1("r/1", "one", markRetain)
	pub.publish1("r/1", "not retained")
	pub.publish("r/2", "two", 2, 9, markRetain)
	pub.expect(packets.Pubrec)
	pub.publish1("r/3", "x", markRetain)
	sub := openClient(t, b, "sub")
	sub.sub("r/3", 0)
	sub.expect(packets.Publish)
	pub.publish1("r/3", "", markRetain)
	require.Empty(t, sub.expect(packets.Publish).Payload, "subscribers hear of it")
	late := openClient(t, b, "late")
	late.sub("r/#", 2)
	got := make(map[string]byte)
	for range 3 {
		pk := late.expect(packets.Publish)
		require.True(t, pk.FixedHeader.Retain)
		got[string(pk.Payload)] = pk.FixedHeader.Qos
	}
	require.Equal(t, map[string]byte{"zero": 0, "one": 1, "two": 2}, got)
}

// [MQTT-3.14.4-3] [MQTT-3.1.2-10], 3.14.2.1: the reason code may come without properties.
func testDisconnectWithWill(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub := openClient(t, b, "sub")
	sub.sub("will/#", 0)
	for name, bye := range map[string][]byte{
		"short": {0xE0, 1, 0x04}, "long": {0xE0, 2, 0x04, 0}, "error": {0xE0, 1, 0x80}, "none": {0xE0, 0}, "normal": {0xE0, 1, 0x00},
	} {
		c := openClient(t, b, name, withWill("will/"+name, name, 0))
		c.raw(bye)
		c.ended()
	}
	got := []string{string(sub.expect(packets.Publish).Payload), string(sub.expect(packets.Publish).Payload)}
	last := sub.expect(packets.Publish)
	require.ElementsMatch(t, []string{"short", "long", "error"}, append(got, string(last.Payload)))
	sub.nothing()
}

// [MQTT-4.7.2-1] [MQTT-4.7.1-2] [MQTT-4.7.3-4], 4.7.1
func testWildcards(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	for filter, topics := range map[string]map[string]bool{
		"#":         {"a": true, "a/b": true, "/": true, "$a/b": false},
		"+/b":       {"a/b": true, "/b": true, "$a/b": false, "a/b/c": false},
		"$a/#":      {"$a/b": true, "$a": true, "a/b": false},
		"+":         {"a": true, "/a": false},
		"/+":        {"/a": true, "/": true, "a": false},
		"+/+":       {"/a": true, "a/b": true, "a": false},
		"a/+/c":     {"a/b/c": true, "a//c": true, "a/c": false},
		"A":         {"a": false, "A": true},
		"a/b/#":     {"a/b": true, "a/b/c/d": true, "a": false},
		"caf\u00e9": {"caf\u00e9": true, "cafe\u0301": false},
	} {
		var x subscriptionIndex
		x.add(newSubscription(&client{}, filter))
		for topic, want := range topics {
			got := false
			x.match(topic, func(*subscription) { got = true })
			require.Equal(t, want, got, "%s %s", filter, topic)
		}
	}
	c := openClient(t, b, "c")
	require.Equal(t, byte(0x90), c.publish1("$a/b", "x").ReasonCode, "a client may not publish below $")
	require.Equal(t, byte(0x90), c.publish1("a/+", "x").ReasonCode, "[MQTT-3.3.2-2]")
}

// [MQTT-4.3.3-8] … [MQTT-4.3.3-13], 4.3.3: ids of a refused and of a finished publish are free.
func testQoS2IDs(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, c := openClient(t, b, "sub"), openClient(t, b, "c", persistentSession)
	sub.sub("a", 0)
	c.publish("v1/nodes/n1/spec", "x", 2, 5)
	require.Equal(t, byte(0x87), c.expect(packets.Pubrec).ReasonCode)
	c.publish("a", "1", 2, 5)
	require.Equal(t, byte(0), c.expect(packets.Pubrec).ReasonCode)
	c.ack(packets.Pubrel, 5)
	require.Equal(t, byte(0), c.expect(packets.Pubcomp).ReasonCode)
	c.publish("a", "2", 2, 5)
	c.expect(packets.Pubrec)
	c.ack(packets.Pubrel, 6)
	require.Equal(t, byte(0x92), c.expect(packets.Pubcomp).ReasonCode)
	c.ack(packets.Pubrec, 7)
	rel := c.expect(packets.Pubrel)
	require.Equal(t, byte(0x92), rel.ReasonCode)
	require.Equal(t, "1", string(sub.expect(packets.Publish).Payload))
	require.Equal(t, "2", string(sub.expect(packets.Publish).Payload))
	sub.nothing()
}

// [MQTT-4.4.0-1]: what is unacknowledged is sent again after a reconnect, and only then, in order.
func testRedeliveryOnReconnectOnly(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub", persistentSession), openClient(t, b, "pub")
	sub.sub("a", 2)
	pub.burst("a", 0, 5)
	for range 5 {
		sub.expect(packets.Publish)
	}
	sub.nothing()
	sub.leave(b, "sub")
	sub = openClient(t, b, "sub", persistentSession)
	for i := range 5 {
		pk := sub.expect(packets.Publish)
		require.Equal(t, numberedPayloads(i, 1)[0], string(pk.Payload), "[MQTT-4.6.0-1]")
		require.True(t, pk.FixedHeader.Dup, "[MQTT-3.3.1-1]")
	}
	sub.nothing()
}

// [MQTT-4.7.3-1] in a 3.1.1 PUBLISH and in a response topic, and reason codes that nobody defined: protocol errors.
func TestCornersOfTheStandard(t *testing.T) {
	b := startBroker(t, nil)
	three := openClient(t, b, "three", version311)
	three.raw([]byte{0x30, 3, 0, 0, 'x'})
	_, n := three.ended()
	require.Zero(t, n)
	for name, raw := range map[string][]byte{
		"empty response topic": {0x30, 7, 0, 1, 'a', 3, 0x08, 0, 0},
		"PUBACK 0x01":          {0x40, 3, 0, 1, 0x01},
		"PUBREC 0x92":          {0x50, 3, 0, 1, 0x92},
		"PUBREL 0x80":          {0x62, 3, 0, 1, 0x80},
		"PUBCOMP 0x10":         {0x70, 3, 0, 1, 0x10},
		"DISCONNECT 0x01":      {0xE0, 1, 0x01},
	} {
		c := openClient(t, b, "five")
		c.raw(raw)
		code, _ := c.ended()
		require.Equal(t, byte(0x82), code, name)
	}
	c := openClient(t, b, "five")
	c.raw([]byte{0x40, 3, 0, 1, 0x10, 0x62, 3, 0, 1, 0x92})
	require.Equal(t, byte(0x92), c.expect(packets.Pubcomp).ReasonCode, "defined ones")
}

// Below v1 only the tree and the refusals are the bus's own.
func TestOnlyTheTreeIsReserved(t *testing.T) {
	b := startBroker(t, withTree(newFakeTree()))
	pub, sub := openClient(t, b, "pub"), openClient(t, b, "sub")
	const own = "v1/devices/me/telemetry"
	require.Zero(t, pub.publish1(own, "kept", markRetain).ReasonCode)
	sub.sub("v1/#", 1)
	pk := sub.expect(packets.Publish)
	require.Equal(t, own, pk.TopicName)
	sub.ack(packets.Puback, pk.PacketID)
	for _, topic := range []string{"v1", "v1/node", "v1/nodesx/a", "v1/refusedx"} {
		require.Zero(t, pub.publish1(topic, "x").ReasonCode)
		pk := sub.expect(packets.Publish)
		require.Equal(t, topic, pk.TopicName)
		sub.ack(packets.Puback, pk.PacketID)
	}
	for _, topic := range []string{"v1/nodes", "v1/refused", "v1/refused/pub"} {
		require.NotZero(t, pub.publish1(topic, "x").ReasonCode, topic)
	}
}

// The broker's figures have mosquitto's names, for operators of all nodes.
func TestSYSTopicsAreAnswered(t *testing.T) {
	b := startBroker(t, func(o *Options) { withUsers(o); o.Version = "1.2" })
	pub := openClient(t, b, "pub")
	pub.publish1("a", "x", markRetain)
	pub.sub("$SYS/#", 1)
	got := make(map[string]string)
	for range len(b.sys.values()) {
		pk := pub.expect(packets.Publish)
		require.True(t, pk.FixedHeader.Retain)
		got[pk.TopicName] = string(pk.Payload)
	}
	require.Equal(t, "Edgebus 1.2", got["$SYS/broker/version"])
	require.Contains(t, got["$SYS/broker/uptime"], " seconds")
	require.Equal(t, "1", got["$SYS/broker/clients/connected"])
	require.Equal(t, "1", got["$SYS/broker/retained messages/count"])
	require.Equal(t, "1", got["$SYS/broker/publish/messages/received"])
	b.sys.publish()
	b.sys.publish()
	for seen := false; !seen; {
		pk := pub.expect(packets.Publish)
		require.False(t, pk.FixedHeader.Retain)
		seen = pk.TopicName == "$SYS/broker/load/messages/received/15min"
	}
	view := openClient(t, b, "view", credentialsOf("view", "secret"))
	view.sub("$SYS/#", 0)
	require.Equal(t, []byte{0x87}, view.subscribe("$SYS/broker/uptime", 0).ReasonCodes)
	b.sys.publish()
	view.nothing()
	require.Equal(t, byte(0x90), openClient(t, b, "liar").publish1("$SYS/broker/uptime", "1 second").ReasonCode)
}
