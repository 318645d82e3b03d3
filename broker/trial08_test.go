package broker

import (
	"sync"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"
)

// A mapper that was given protocols reads, commands and speaks for the devices that speak them, as long as they do.
func TestTrial08AMapperHasTheDevicesOfItsProtocols(t *testing.T) {
	var protocols sync.Map
	protocols.Store("meter", "Modbus-TCP")
	protocols.Store("lamp", "virtual")
	tree := newFakeTree()
	tree.set(Message{Topic: "v1/nodes/n1/devices/lamp", Payload: []byte("lamp"), QoS: 1, Retain: true})
	tree.set(Message{Topic: "v1/nodes/n1/devices/meter", Payload: []byte("meter"), QoS: 1, Retain: true})
	b := start(t, func(o *Options) {
		withUsers(o)
		o.Auth.Users[4].Protocols = []string{"modbustcp"}
		o.Node, o.Tree = "n1", tree
		o.Protocol = func(device string) (string, bool) {
			p, ok := protocols.Load(device)
			text, _ := p.(string)
			return text, ok
		}
	})
	c := open(t, b, "m", credentialsOf("modbus", "secret"))
	c.sub("v1/nodes/n1/devices/#", 0)
	require.Equal(t, []string{"meter"}, c.collect(1), "of what is retained")
	for _, topic := range []string{"desired/power", "commands/beep", "reported/power", "telemetry/x", "events/x", "state"} {
		for _, device := range []string{"lamp", "meter"} {
			b.Publish(Message{Topic: "v1/nodes/n1/devices/" + device + "/" + topic, Payload: []byte(device)})
		}
		require.Equal(t, []string{"meter"}, c.collect(1), topic)
	}
	require.Equal(t, []byte{0x87}, c.subscribe("v1/nodes/n1/devices/lamp/desired/power", 0).ReasonCodes)
	for _, topic := range []string{"reported/power", "reported", "refused/power", "state", "problem", "telemetry/x", "events/x", "answers/x", "get"} {
		ack := c.publish1("v1/nodes/n1/devices/lamp/"+topic, "{}")
		require.Equal(t, byte(0x87), ack.ReasonCode, topic)
		require.Contains(t, ack.Properties.ReasonString, "protocol")
		require.Zero(t, c.publish1("v1/nodes/n1/devices/meter/"+topic, "{}").ReasonCode, topic)
	}
	require.Len(t, b.Subscribers("v1/nodes/n1/devices/meter/commands/beep"), 1)
	require.Empty(t, b.Subscribers("v1/nodes/n1/devices/lamp/commands/beep"), "who can't hear a command isn't asked")

	protocols.Store("lamp", "modbustcp")
	b.RightsChanged()
	b.Publish(Message{Topic: "v1/nodes/n1/devices/lamp/desired/power", Payload: []byte("lamp")})
	require.Equal(t, []string{"lamp"}, c.collect(1), "the device is the mapper's now")
	protocols.Delete("lamp")
	b.RightsChanged()
	b.Publish(Message{Topic: "v1/nodes/n1/devices/lamp", QoS: 0})
	require.Equal(t, []string{""}, c.collect(1), "that it is gone is for all")
}

// A group of a shared subscription is its members' user's: nobody takes another's messages.
func TestTrial08SharedGroupsAreByUser(t *testing.T) {
	b := start(t, func(o *Options) {
		withUsers(o)
		o.Tree = newFakeTree()
		o.Auth.SharedGroups = []string{"common-*"}
	})
	const n = 20
	one, two := open(t, b, "one", credentialsOf("op", "secret")), open(t, b, "two", credentialsOf("op", "secret"))
	thief := open(t, b, "thief", credentialsOf("view", "secret"))
	pub := open(t, b, "pub", credentialsOf("boss", "secret"))
	groups := []string{"workers", "common-workers"}
	for _, c := range []*tc{one, two, thief} {
		for _, group := range groups {
			c.sub("$share/"+group+"/"+group, 1)
		}
	}
	for _, group := range groups {
		for range n {
			require.Zero(t, pub.publish1(group, group).ReasonCode)
		}
	}
	got := map[*tc]map[string]int{}
	for _, c := range []*tc{one, two, thief} {
		got[c] = map[string]int{}
		c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
		for pk, err := c.read(patience); ; pk, err = c.read(patience) {
			require.NoError(t, err)
			if pk.FixedHeader.Type == packets.Pingresp {
				break
			}
			got[c][pk.TopicName]++
			c.ack(packets.Puback, pk.PacketID)
		}
	}
	require.Equal(t, n, got[one]["workers"]+got[two]["workers"], "all of them are the group's")
	require.Equal(t, n, got[thief]["workers"], "which are another's as well: a group of his own")
	require.Equal(t, n, got[one]["common-workers"]+got[two]["common-workers"]+got[thief]["common-workers"])
	require.NotZero(t, got[thief]["common-workers"])
}
