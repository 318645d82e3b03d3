package broker

import (
	"slices"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
)

func TestWhoMayPublish(t *testing.T) {
	tree := newFakeTree()
	b := start(t, func(o *Options) { withUsers(o); o.Tree = tree })
	in := func(user string) *tc { return open(t, b, user, credentialsOf(user, "secret")) }
	clients := map[string]*tc{"op": in("op"), "view": in("view"), "map": in("map"), "modbus": in("modbus"), "any": in("any")}
	clients["node"] = open(t, b, "node/a1", credentialsOf("node/a1", ""))
	for _, c := range []struct {
		who, topic string
		ok         bool
	}{
		{"op", "v1/nodes/a1/devices/lamp/desired/power", true},
		{"op", "v1/nodes/b1/devices/lamp/desired/power", false},
		{"op", "v1/nodes/a1/devices/lamp/desired", true},
		{"op", "v1/nodes/a1/devices/lamp/commands/reset", true},
		{"op", "v1/nodes/a1/devices/lamp/get", true},
		{"op", "v1/nodes/a1/devices/lamp/reported/power", false},
		{"op", "v1/nodes/a1/spec", false},
		{"op", "v1/nodes/a1/sync/up", false},
		{"op", "v1/nodes/a1/sync/down", false},
		{"op", "v1/nodes/a1/state", false},
		{"op", "my/own", true},
		{"map", "v1/nodes/a1/devices/lamp-2/reported/power", true},
		{"map", "v1/nodes/a1/devices/lamp-2/telemetry/x/y", true},
		{"map", "v1/nodes/a1/devices/lamp-2/state", true},
		{"map", "v1/nodes/a1/devices/lamp-2/desired/power", false},
		{"map", "v1/nodes/a1/devices/other/reported/power", false},
		{"map", "v1/nodes/a1/mappers/m/state", true},
		{"map", "my/own", true},
		{"modbus", "v1/nodes/a1/devices/other/reported/power", true},
		{"any", "v1/nodes/a1/devices/other/reported/power", true},
		{"view", "v1/nodes/a1/devices/lamp/desired/power", false},
		{"view", "my/own", false},
		{"node", "v1/nodes/a1/sync/up", true},
		{"node", "v1/nodes/b1/sync/up", false},
		{"node", "v1/nodes/a1/sync/down", false},
		{"node", "v1/nodes/a1/bridge/x", true},
		{"node", "v1/nodes/b1/bridge/x", false},
		{"node", "v1/nodes/a1/devices/lamp/telemetry/x", true},
		{"node", "v1/nodes/a1/devices/lamp/reported/power", false},
		{"node", "v1/nodes/a1/state", false},
		{"node", "my/own", false},
		{"node", "v1/nodes/a1/devices/lamp/answers/4XQ7", true},
		{"node", "v1/nodes/b1/devices/lamp/answers/4XQ7", false},
		{"map", "v1/nodes/a1/devices/lamp-2/answers/4XQ7", true},
		{"map", "v1/nodes/a1/devices/other/answers/4XQ7", false},
		{"op", "v1/nodes/a1/devices/lamp/answers/4XQ7", false},
		{"node", "v1/nodes/a1/sync/clock", true},
		{"node", "v1/nodes/b1/sync/clock", false},
		{"op", "v1/nodes/a1/sync/clock", false},
		{"op", "v1/refused/view", false},
	} {
		before := len(tree.got)
		ack := clients[c.who].publish1(c.topic, "x")
		if c.ok {
			require.Equal(t, byte(0), ack.ReasonCode, "%s %s", c.who, c.topic)
			continue
		}
		require.Contains(t, []byte{0x87, 0x90}, ack.ReasonCode, "%s %s", c.who, c.topic)
		require.NotEmpty(t, ack.Properties.ReasonString)
		require.Len(t, tree.got, before, "the tree is not even asked")
	}
}

func TestWhoMaySubscribe(t *testing.T) {
	b := start(t, func(o *Options) { withUsers(o); o.Tree = newFakeTree() })
	in := func(user string) *tc { return open(t, b, user, credentialsOf(user, "secret")) }
	clients := map[string]*tc{"op": in("op"), "view": in("view"), "map": in("map")}
	clients["node"] = open(t, b, "node/a1", credentialsOf("node/a1", ""))
	for _, c := range []struct {
		who, filter string
		code        byte
	}{
		{"node", "v1/nodes/a1/sync/down", 1},
		{"node", "v1/nodes/a1/devices/+/commands/+", 1},
		{"node", "v1/nodes/a1/devices/lamp/commands/+", 1},
		{"node", "$share/g/v1/nodes/a1/devices/+/commands/+", 1},
		{"node", "v1/refused/node/a1", 1},
		{"node", "v1/refused/op", 0x87},
		{"node", "v1/nodes/a1/sync/up", 0x87},
		{"node", "v1/nodes/a1/sync/+", 0x87},
		{"node", "v1/nodes/a1/#", 0x87},
		{"node", "v1/nodes/b1/sync/down", 0x87},
		{"node", "v1/nodes/+/sync/down", 0x87},
		{"node", "v1/#", 0x87},
		{"node", "#", 0x87},
		{"node", "my/own", 0x87},
		{"op", "v1/nodes/a1/#", 1},
		{"op", "v1/nodes/b1/#", 0x87},
		{"op", "v1/nodes/b1/devices/lamp/desired/power", 0x87},
		{"op", "v1/nodes/+/status", 1},
		{"op", "v1/nodes/a1/sync/down", 0x87},
		{"op", "v1/refused/view", 0x87},
		{"op", "#", 1},
		{"view", "v1/nodes/a1/status", 1},
		{"view", "v1/nodes/a2/status", 0x87},
		{"view", "v1/refused/op", 0x87},
		{"view", "v1/refused/view", 1},
		{"view", "my/own", 1},
		{"map", "v1/nodes/a1/devices/lamp1/desired/+", 1},
		{"op", "a/b#", 0x8F},
		{"op", "a/#/b", 0x8F},
		{"op", "a/b+", 0x8F},
		{"op", "$share/g", 0x8F},
		{"op", "$share/+/a", 0x8F},
		{"op", "", 0x8F},
	} {
		ack := clients[c.who].subscribe(c.filter, 1)
		require.Equal(t, []byte{c.code}, ack.ReasonCodes, "%s %s", c.who, c.filter)
		require.Equal(t, c.code > 2, ack.Properties.ReasonString != "")
	}
	require.Contains(t, clients["op"].subscribe("v1/nodes/b1/#", 1).Properties.ReasonString, "node b1 is not given to operator op")
	three := open(t, b, "three", v3, credentialsOf("view", "secret"))
	require.Equal(t, []byte{0x80}, three.subscribe("v1/nodes/a2/status", 1).ReasonCodes)
	three.nothing()
}

// A filter may cover more than its owner may see; what is delivered may not.
func TestDeliveriesAreFiltered(t *testing.T) {
	tree := newFakeTree()
	for _, topic := range []string{"v1/nodes/a1/status", "v1/nodes/b1/status"} {
		tree.set(Message{Topic: topic, Payload: []byte("retained"), QoS: 1, Retain: true})
	}
	b := start(t, func(o *Options) { withUsers(o); o.Tree = tree })
	view := open(t, b, "view", credentialsOf("view", "secret"))
	view.sub("v1/#", 1)
	pk := view.expect(packets.Publish)
	require.Equal(t, "v1/nodes/a1/status", pk.TopicName)
	view.ack(packets.Puback, pk.PacketID)
	view.nothing()
	for _, topic := range []string{
		"v1/nodes/b1/status", "v1/nodes/a1/sync/up", "v1/nodes/a1/sync/down", "v1/refused/op",
		"v1/nodes/a1/devices/d/commands/c", "v1/nodes/a1/status",
	} {
		b.Publish(Message{Topic: topic, Payload: []byte(topic), QoS: 1})
	}
	require.Equal(t, []string{"v1/nodes/a1/status"}, view.collect(1))
	view.nothing()
}

func TestResponseTopicMustBeReadable(t *testing.T) {
	tree := newFakeTree()
	b := start(t, func(o *Options) { withUsers(o); o.Tree = tree })
	op := open(t, b, "op", credentialsOf("op", "secret"))
	const get = "v1/nodes/a1/devices/d/get"
	for response, code := range map[string]byte{
		"my/reply": 0, "v1/nodes/b1/status": 0x87, "v1/nodes/a1/sync/down": 0x87, "v1/refused/other": 0x87, "v1/refused/op": 0,
	} {
		ack := op.publish1(get, "", props(packets.Properties{ResponseTopic: response}))
		require.Equal(t, code, ack.ReasonCode, response)
	}
}

// Only a connected client that may read a topic is among its subscribers.
func TestSubscribers(t *testing.T) {
	b := start(t, func(o *Options) { withUsers(o); o.Tree = newFakeTree() })
	const topic = "v1/nodes/a1/devices/d/commands/reset"
	core := open(t, b, "node/a1", credentialsOf("node/a1", ""))
	core.sub("v1/nodes/a1/devices/+/commands/+", 0)
	view, op := open(t, b, "view", credentialsOf("view", "secret")), open(t, b, "op", credentialsOf("op", "secret"), persistent)
	view.sub("v1/nodes/a1/#", 1) // a viewer sees no commands
	op.sub("#", 1)
	op.sub("$share/g/"+topic, 1)
	list := func() (all []string) {
		for _, s := range b.Subscribers(topic) {
			all = append(all, s.Identity.ClientID+" "+s.Filter)
		}
		slices.Sort(all)
		return all
	}
	require.Equal(t, []string{"node/a1 v1/nodes/a1/devices/+/commands/+", "op #", "op " + topic}, list())
	op.leave(b, "op")
	require.Equal(t, []string{"node/a1 v1/nodes/a1/devices/+/commands/+"}, list())
	require.Empty(t, b.Subscribers("v1/nodes/b2/devices/d/commands/reset"))
}

func TestSubscriptionLimit(t *testing.T) {
	b := start(t, func(o *Options) { o.Limits.Subscriptions = 2 })
	c := open(t, b, "c")
	c.sub("a", 1)
	c.sub("b", 1)
	c.sub("a", 2)
	require.Equal(t, []byte{0x97}, c.subscribe("c", 1).ReasonCodes)
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		wide, filter string
		want         bool
	}{
		{"a/+", "a/b", true},
		{"a/+", "a/+", true},
		{"a/+", "a/#", false},
		{"a/+", "a", false},
		{"a/+", "a/b/c", false},
		{"a/#", "a/b/#", true},
		{"a/#", "a", true},
		{"a/b", "a/+", false},
		{"a", "#", false},
		{"+", "a", true},
	} {
		require.Equal(t, c.want, covers(c.wide, c.filter), "%s %s", c.wide, c.filter)
	}
}

func TestEveryRowOfTheContractHasItsRights(t *testing.T) {
	a := newACL(Options{})
	for _, role := range []topics.Role{topics.RoleNode, topics.RoleMapper, topics.RoleOperator, topics.RoleViewer} {
		id := Identity{ClientID: "node/n", Roles: []topics.Role{role}, Node: "n", Nodes: []string{"*"}, Devices: []string{"*"}}
		for _, row := range topics.Table() {
			topic := topics.Prefix + "n/" + example(row.Pattern)
			require.Equal(t, has(row.Publish, role), a.publish(id, topic) == nil, "%s publish %s", role, topic)
			require.Equal(t, has(row.Subscribe, role), a.read(id, topic), "%s read %s", role, topic)
		}
	}
}

func has(roles []topics.Role, role topics.Role) bool {
	return Identity{Roles: roles}.Has(role)
}

func example(pattern string) string {
	out, hole := "", false
	for _, r := range pattern {
		switch {
		case r == '{':
			hole = true
			out += "x"
		case r == '}':
			hole = false
		case r == '#':
			out += "x"
		case !hole:
			out += string(r)
		}
	}
	return out
}
