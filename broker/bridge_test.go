package broker

import (
	"bytes"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"
)

const bridgeState = "$SYS/broker/connection/site.hub/state"

// openBridge connects as mosquitto's bridges do: with the bridge bit in the protocol level, and
// a retained will below $SYS.
func openBridge(t *testing.T, b *Broker, id string, opts ...connectOption) *tc {
	t.Helper()
	c := dial(t, b)
	pk := connectPacket(id, append(opts, withWill(bridgeState, "0", 0, func(pk *packets.Packet) { pk.Connect.WillRetain = true }))...)
	c.version = pk.ProtocolVersion
	raw := encode(t, pk, c.version)
	at := bytes.Index(raw, pk.Connect.ProtocolName) + len(pk.Connect.ProtocolName)
	raw[at] |= bridgeBit
	c.raw(raw)
	require.Zero(t, c.expect(packets.Connack).ReasonCode)
	return c
}

// A mosquitto bridge gets in with each version, is answered in that version, and may say on its
// own topic below $SYS that it is connected; nobody hears it.
func TestTrial19BridgeBit(t *testing.T) {
	for name, version := range map[string]connectOption{"3.1": v31, "3.1.1": v3, "5": func(*packets.Packet) {}} {
		t.Run(name, func(t *testing.T) {
			b := start(t, nil)
			sub, other := open(t, b, "sub"), open(t, b, "other")
			sub.sub("#", 1)
			sub.sub(bridgeState, 1)
			c := openBridge(t, b, "site", version)
			for qos, answer := range map[byte]byte{1: packets.Puback, 2: packets.Pubrec} {
				c.publish(bridgeState, "1", qos, 5, retain)
				require.Zero(t, c.expect(answer).ReasonCode)
			}
			c.leave(b, "site")
			require.Zero(t, b.Stats().Retained)
			require.Zero(t, b.Stats().Refused["BadTopic"])
			other.publish1("end", "")
			require.Equal(t, "end", sub.expect(packets.Publish).TopicName)
		})
	}
}

// What a bridge sent doesn't come back to it, live or retained, and the retain flag comes as it was published.
func TestTrial19BridgeHearsNoEcho(t *testing.T) {
	b := start(t, nil)
	pub, c := open(t, b, "pub"), openBridge(t, b, "site", v3, persistent)
	c.publish1("mine", "retained", retain)
	c.sub("#", 1)
	c.publish1("mine", "live", retain)
	pub.publish1("yours", "kept", retain)
	pub.publish1("yours/too", "not kept")
	for _, kept := range []bool{true, false} {
		pk := c.expect(packets.Publish)
		require.Equal(t, kept, pk.FixedHeader.Retain, pk.TopicName)
		require.Contains(t, pk.TopicName, "yours")
		c.ack(packets.Puback, pk.PacketID)
	}
	c.nothing()
	c.sub("$share/g/shared", 1) // to which no-local can't be applied
	c.publish("shared", "x", 1, 7)
	require.Equal(t, "shared", c.answered(packets.Puback).TopicName)
}

// A level that nobody has is answered in the nearest version that there is.
func TestTrial22BridgeLevelIsAnsweredInItsVersion(t *testing.T) {
	b := start(t, nil)
	for level, want := range map[byte]struct{ version, code byte }{
		0x82: {4, connackBadVersion}, 0x83: {4, connackBadVersion}, 0x86: {5, codeBadVersion}, 0x84: {4, 0},
	} {
		c := dial(t, b)
		c.version = want.version
		raw := connectRaw("MQTT", level&^bridgeBit, 2, nil, "x")
		raw[8] = level
		c.raw(raw)
		ack := c.expect(packets.Connack)
		require.Equal(t, want.code, ack.ReasonCode, "level %#x", level)
	}
}
