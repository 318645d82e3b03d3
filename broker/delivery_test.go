package broker

import (
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"
)

func TestDeliversEachQoS(t *testing.T) {
	b := start(t, nil)
	sub, pub := open(t, b, "sub"), open(t, b, "pub", v3)
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
