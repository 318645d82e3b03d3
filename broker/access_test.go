// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestWhoMayPublish(t *testing.T) {
	tree := newFakeTree()
	b := startBroker(t, func(o *Options) { withUsers(o); o.Tree = tree })
	in := func(user string) *testClient { return openClient(t, b, user, credentialsOf(user, "secret")) }
	clients := map[string]*testClient{"op": in("op"), "view": in("view"), "map": in("map"), "modbus": in("modbus"), "any": in("any")}
	clients["node"] = openClient(t, b, "node/a1", credentialsOf("node/a1", ""))
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
	b := startBroker(t, func(o *Options) { withUsers(o); o.Tree = newFakeTree() })
	in := func(user string) *testClient { return openClient(t, b, user, credentialsOf(user, "secret")) }
	clients := map[string]*testClient{"op": in("op"), "view": in("view"), "map": in("map")}
	clients["node"] = openClient(t, b, "node/a1", credentialsOf("node/a1", ""))
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
	three := openClient(t, b, "three", version311, credentialsOf("view", "secret"))
	require.Equal(t, []byte{0x80}, three.subscribe("v1/nodes/a2/status", 1).ReasonCodes)
	three.nothing()
}

// A filter may cover more than its owner may see; what is delivered may not.
func TestDeliveriesAreFiltered(t *testing.T) {
	tree := newFakeTree()
	for _, topic := range []string{"v1/nodes/a1/status", "v1/nodes/b1/status"} {
		tree.set(Message{Topic: topic, Payload: []byte("retained"), QoS: 1, Retain: true})
	}
	b := startBroker(t, func(o *Options) { withUsers(o); o.Tree = tree })
	view := openClient(t, b, "view", credentialsOf("view", "secret"))
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
	b := startBroker(t, func(o *Options) { withUsers(o); o.Tree = tree })
	op := openClient(t, b, "op", credentialsOf("op", "secret"))
	const get = "v1/nodes/a1/devices/d/get"
	for response, code := range map[string]byte{
		"my/reply": 0, "v1/nodes/b1/status": 0x87, "v1/nodes/a1/sync/down": 0x87, "v1/refused/other": 0x87, "v1/refused/op": 0,
	} {
		ack := op.publish1(get, "", withProperties(packets.Properties{ResponseTopic: response}))
		require.Equal(t, code, ack.ReasonCode, response)
	}
}

// Response topics of users' own publishes are checked as those of requests below v1/ are.
func TestResponseTopicsOfOwnPublishesAreChecked(t *testing.T) {
	b := startBroker(t, withUsers)
	op := openClient(t, b, "op", credentialsOf("op", "secret"))
	for response, code := range map[string]byte{
		"my/reply": 0, "reply/op/1": 0, "v1/nodes/b1/status": 0x87, "v1/nodes/a1/sync/down": 0x87, "v1/refused/other": 0x87, "v1/refused/op": 0,
	} {
		ack := op.publish1("plant/ask", "", withProperties(packets.Properties{ResponseTopic: response}))
		require.Equal(t, code, ack.ReasonCode, response)
	}
}

// Only a connected client that may read a topic is among its subscribers.
func TestSubscribers(t *testing.T) {
	b := startBroker(t, func(o *Options) { withUsers(o); o.Tree = newFakeTree() })
	const topic = "v1/nodes/a1/devices/d/commands/reset"
	core := openClient(t, b, "node/a1", credentialsOf("node/a1", ""))
	core.sub("v1/nodes/a1/devices/+/commands/+", 0)
	view, op := openClient(t, b, "view", credentialsOf("view", "secret")), openClient(t, b, "op", credentialsOf("op", "secret"), persistentSession)
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
	b := startBroker(t, func(o *Options) { o.Limits.Subscriptions = 2 })
	c := openClient(t, b, "c")
	c.sub("a", 1)
	c.sub("b", 1)
	c.sub("a", 2)
	require.Equal(t, []byte{0x97}, c.subscribe("c", 1).ReasonCodes)
}

func TestEveryRowOfTheContractHasItsRights(t *testing.T) {
	a := newAccessControl(Options{})
	for _, role := range []topics.Role{topics.RoleNode, topics.RoleMapper, topics.RoleOperator, topics.RoleViewer} {
		id := &Identity{ClientID: "node/n", Roles: []topics.Role{role}, Node: "n", Nodes: []string{"*"}, Devices: []string{"*"}}
		for _, row := range topics.Table() {
			topic := topics.Prefix + "n/" + exampleTopic(row.Pattern)
			require.Equal(t, hasRole(row.Publish, role), a.publish(id, topic) == nil, "%s publish %s", role, topic)
			require.Equal(t, hasRole(row.Subscribe, role), a.read(id, topic), "%s read %s", role, topic)
		}
	}
}

func hasRole(roles []topics.Role, role topics.Role) bool {
	return (&Identity{Roles: roles}).Has(role)
}

func exampleTopic(pattern string) string {
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

// node/{x} and what is below it belong to node x, whoever else asks first.
func TestClientIDsOfNodesAreReserved(t *testing.T) {
	b := startBroker(t, withUsers)
	for _, c := range []struct {
		user, password, id string
		code               byte
	}{
		{"boss", "secret", "node/n2", 0x85},
		{"", "", "node/n2", 0x85},
		{"node/n1", "", "node/n2", 0x85},
		{"node/n1", "", "node/n2/bridge", 0x85},
		{"node/n1", "", "node/", 0x85},
		{"node/n2", "", "node/n2", 0},
		{"node/n2", "", "node/n2/bridge", 0},
		{"node/n9", "secret", "node/n9", 0},
		{"node/n2", "", "a tool of the node", 0x85},
		{"node/n2", "", "node/n2/a tool of the node", 0},
		{"boss", "secret", "mapper-modbus", 0}, // on the hub there are no mappers
	} {
		as := func(*packets.Packet) {}
		if c.user != "" {
			as = credentialsOf(c.user, c.password)
		}
		tc := dialBroker(t, b)
		require.Equal(t, c.code, tc.connect(c.id, as, persistentSession), "%s as %s", c.id, c.user)
		if c.code != 0 {
			require.Regexp(t, "belong to node |node n2 has the client identifier", tc.connack.Properties.ReasonString)
			three := dialBroker(t, b)
			require.Equal(t, byte(2), three.connect(c.id, as, version311))
		}
	}
}

// mapper-{m} belongs to the user m, or, where there is none, to those with the role.
func TestClientIDsOfMappersAreReserved(t *testing.T) {
	b := startBroker(t, func(o *Options) {
		withUsers(o)
		o.Node, o.Tree = "n1", newFakeTree()
		o.Auth.Users = slices.Clone(o.Auth.Users)
		for i := range o.Auth.Users {
			if o.Auth.Users[i].Name == "map" {
				o.Auth.Users[i].Clients = []string{"lamp-*"}
			}
		}
	})
	for _, c := range []struct {
		user, id string
		code     byte
	}{
		{"op", "mapper-modbus", 0x85},
		{"view", "mapper-lab", 0x85},
		{"map", "mapper-modbus", 0x85},
		{"", "mapper-modbus", 0x85},
		{"modbus", "mapper-modbus", 0},
		{"map", "mapper-lab", 0},
		{"", "mapper-virtual", 0},
		{"any", "node/n1", 0x85},
		{"op", "devices-modbus", 0x85},
		{"map", "devices-modbus", 0x85},
		{"modbus", "devices-modbus", 0},
		{"", "devices-virtual", 0},
		{"op", "edgeagent", 0x85},
		{"map", "edgeagent", 0x85},
		{"", "edgeagent-diff-1", 0x85},
		{"op", "edgeagents", 0},
		{"op", "edgediscovery", 0x85},
		{"map", "edgediscovery", 0x85},
		{"map", "scada-1", 0x85},
		{"map", "map", 0},
		{"map", "map-2", 0},
		{"map", "mapper", 0x85},
		{"map", "", 0},
		{"map", "lamp-7", 0},
		{"any", "lamp-7", 0x85},
		{"op", "lamp-8", 0x85},
		{"", "lamp-9", 0x85},
		{"op", "anything", 0},
	} {
		as := func(*packets.Packet) {}
		if c.user != "" {
			as = credentialsOf(c.user, "secret")
		}
		tc := dialBroker(t, b)
		require.Equal(t, c.code, tc.connect(c.id, as, persistentSession), "%s as %q", c.id, c.user)
		require.Equal(t, c.code != 0, tc.connack.Properties.ReasonString != "")
	}
	// What is said of a mapper is that mapper's to say.
	other, own := openClient(t, b, "map-x", credentialsOf("map", "secret")), openClient(t, b, "modbus-y", credentialsOf("modbus", "secret"))
	for _, topic := range []string{"v1/nodes/n1/mappers/modbus/state", "v1/nodes/n1/mappers/modbus/protocols"} {
		ack := other.publish1(topic, "online")
		require.Equal(t, byte(0x87), ack.ReasonCode)
		require.Contains(t, ack.Properties.ReasonString, "the mapper modbus signs in as the user modbus")
		require.Zero(t, own.publish1(topic, "online").ReasonCode)
	}
	require.Zero(t, other.publish1("v1/nodes/n1/mappers/lab/state", "online").ReasonCode)
}

// A session that somebody had under a reserved client identifier before it was reserved keeps nobody out.
func TestAnOldSessionUnderAReservedIdentifier(t *testing.T) {
	b := startBroker(t, withUsers)
	squatter := openClient(t, b, "seemed harmless", credentialsOf("boss", "secret"), persistentSession)
	squatter.sub("a", 1)
	b.clients.mu.Lock() // as it was let in before it was reserved
	cl := b.clients.byID["seemed harmless"]
	delete(b.clients.byID, cl.id)
	id := *cl.rights()
	cl.id, id.ClientID = "node/n1", "node/n1"
	cl.ident.Store(&id)
	b.clients.byID[cl.id] = cl
	b.clients.mu.Unlock()
	core := openClient(t, b, "node/n1", credentialsOf("node/n1", ""), persistentSession)
	require.False(t, core.connack.SessionPresent)
	code, _ := squatter.ended()
	require.Equal(t, byte(codeTakenOver), code)
	require.Equal(t, []resource.Session{{Client: "node/n1", User: "node/n1", Connected: true, Remote: core.conn.LocalAddr().String()}}, b.Sessions())
}

// Only node/{name} is the link: another client of the node's neither hears the hub on it nor speaks to it.
func TestOnlyTheLinkIsTheLink(t *testing.T) {
	p := &recordedPresence{}
	b := startBroker(t, func(o *Options) { o.Tree, o.Presence = newFakeTree(), p })
	core := openClient(t, b, "node/n1", credentialsOf("node/n1", ""))
	core.sub("v1/nodes/n1/sync/down", 1)
	second := openClient(t, b, "node/n1/tool", credentialsOf("node/n1", ""))
	for _, filter := range []string{"v1/nodes/n1/sync/down", "v1/nodes/n1/devices/+/commands/+"} {
		ack := second.subscribe(filter, 1)
		require.Equal(t, []byte{0x87}, ack.ReasonCodes)
		require.Contains(t, ack.Properties.ReasonString, "for the link alone")
	}
	for _, topic := range []string{"v1/nodes/n1/sync/up", "v1/nodes/n1/sync/clock", "v1/nodes/n1/devices/d/answers/x"} {
		ack := second.publish1(topic, "x")
		require.Equal(t, byte(0x87), ack.ReasonCode)
		require.Contains(t, ack.Properties.ReasonString, "for the link alone")
	}
	require.Zero(t, second.publish1("v1/nodes/n1/bridge/x", "x").ReasonCode, "streams and bridges are any client's of the node")
	second.leave(b, "node/n1/tool")
	b.Publish(Message{Topic: "v1/nodes/n1/sync/down", Payload: []byte("on"), QoS: 1})
	require.Equal(t, []string{"on"}, core.collect(1))
	require.NotContains(t, p.entries(), "node/n1/tool v1/nodes/n1/sync/down")
}

// A session is its maker's until it ends, and who administers the broker can end it: a connected one and one that is away.
func TestAnOperatorEndsASession(t *testing.T) {
	dir := t.TempDir()
	open1 := func(t *testing.T) *Broker {
		j, err := journal.Open(journal.Options{Dir: dir})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, j.Close()) })
		return startBroker(t, func(o *Options) { withUsers(o); o.Journal = j })
	}
	t.Run("first", func(t *testing.T) {
		b := open1(t)
		away := openClient(t, b, "away", credentialsOf("view", "secret"), persistentSession)
		away.sub("a", 1)
		away.leave(b, "away")
		here := openClient(t, b, "here", credentialsOf("op", "secret"), persistentSession, withWill("will/of/here", "gone", 0))
		watcher := openClient(t, b, "watcher", credentialsOf("boss", "secret"))
		watcher.sub("will/#", 1)
		require.Zero(t, watcher.publish1("a", "waits").ReasonCode)

		list := b.Sessions()
		require.Len(t, list, 3)
		require.Equal(t, "away", list[0].Client)
		require.Equal(t, "view", list[0].User)
		require.False(t, list[0].Connected)
		require.Equal(t, 1, list[0].Messages)
		require.Equal(t, 1, list[0].Subscriptions)
		left, err := resource.ParseTime(list[0].Since)
		require.NoError(t, err)
		expires, err := resource.ParseTime(list[0].Expires)
		require.NoError(t, err)
		require.Equal(t, time.Hour, expires.Sub(left))

		other := dialBroker(t, b)
		require.Equal(t, byte(0x87), other.connect("away", credentialsOf("boss", "secret")))
		require.Contains(t, other.connack.Properties.ReasonString, "belongs to another user")
		require.Contains(t, other.connack.Properties.ReasonString, "edgebus session end")

		require.NoError(t, b.EndSession("away"))
		require.NoError(t, b.EndSession("here"))
		require.Equal(t, resource.NotFound, resource.KindOf(b.EndSession("away")))
		code, _ := here.ended()
		require.Equal(t, byte(0x98), code)
		require.Equal(t, []string{"gone"}, watcher.collect(1))
		taken := openClient(t, b, "away", credentialsOf("boss", "secret"), persistentSession)
		require.False(t, taken.connack.SessionPresent)
		require.NoError(t, b.EndSession("away"))
		require.Zero(t, b.Stats().Kept)
	})
	t.Run("and after a restart", func(t *testing.T) { require.Empty(t, open1(t).Sessions()) })
}

func TestWhoMayEndSessions(t *testing.T) {
	hub := startBroker(t, withUsers)
	node := startBroker(t, func(o *Options) { withUsers(o); o.Node = "a1" })
	boss := Identity{User: "boss", Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"*"}}
	op := Identity{User: "op", Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"a*"}}
	view := Identity{User: "view", Roles: []topics.Role{topics.RoleViewer}, Nodes: []string{"*"}}
	for _, c := range []struct {
		b   *Broker
		who Identity
		may bool
	}{{hub, boss, true}, {hub, op, false}, {hub, view, false}, {hub, nodeIdentity("a1"), false}, {node, boss, true}, {node, op, true}, {node, view, false}} {
		for _, r := range []*http.Request{httptest.NewRequest("GET", "/sessions", nil), httptest.NewRequest("DELETE", "/sessions?client=nobody", nil)} {
			err := c.b.ServeSessions(httptest.NewRecorder(), r, c.who)
			require.Equal(t, !c.may, resource.KindOf(err) == resource.Forbidden, "%s %s: %v", c.who.User, r.Method, err)
		}
	}
}

// A mapper that was given protocols reads, commands and speaks for the devices that speak them, as long as they do.
func TestAMapperHasTheDevicesOfItsProtocols(t *testing.T) {
	var protocols sync.Map
	protocols.Store("meter", "Modbus-TCP")
	protocols.Store("lamp", "virtual")
	tree := newFakeTree()
	tree.set(Message{Topic: "v1/nodes/n1/devices/lamp", Payload: []byte("lamp"), QoS: 1, Retain: true})
	tree.set(Message{Topic: "v1/nodes/n1/devices/meter", Payload: []byte("meter"), QoS: 1, Retain: true})
	b := startBroker(t, func(o *Options) {
		withUsers(o)
		o.Auth.Users[4].Protocols = []string{"modbustcp"}
		o.Node, o.Tree = "n1", tree
		o.Protocol = func(device string) (string, bool) {
			p, ok := protocols.Load(device)
			text, _ := p.(string)
			return text, ok
		}
	})
	c := openClient(t, b, "modbus", credentialsOf("modbus", "secret"))
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
func TestSharedGroupsAreByUser(t *testing.T) {
	b := startBroker(t, func(o *Options) {
		withUsers(o)
		o.Tree = newFakeTree()
		o.Auth.SharedGroups = []string{"common-*"}
	})
	const n = 20
	one, two := openClient(t, b, "one", credentialsOf("op", "secret")), openClient(t, b, "two", credentialsOf("op", "secret"))
	thief := openClient(t, b, "thief", credentialsOf("view", "secret"))
	pub := openClient(t, b, "pub", credentialsOf("boss", "secret"))
	groups := []string{"workers", "common-workers"}
	for _, c := range []*testClient{one, two, thief} {
		for _, group := range groups {
			c.sub("$share/"+group+"/"+group, 1)
		}
	}
	for _, group := range groups {
		for range n {
			require.Zero(t, pub.publish1(group, group).ReasonCode)
		}
	}
	got := map[*testClient]map[string]int{one: {}, two: {}, thief: {}}
	total := 0
	for i := 0; total < 3*n; i++ { // an answer to a ping may come before messages that wait
		c := []*testClient{one, two, thief}[i%3]
		c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
		for pk, err := c.read(testTimeout); ; pk, err = c.read(testTimeout) {
			require.NoError(t, err)
			if pk.FixedHeader.Type == packets.Pingresp {
				break
			}
			total++
			got[c][pk.TopicName]++
			c.ack(packets.Puback, pk.PacketID)
		}
	}
	require.Equal(t, n, got[one]["workers"]+got[two]["workers"], "all of them are the group's")
	require.Equal(t, n, got[thief]["workers"], "which are another's as well: a group of his own")
	require.Equal(t, n, got[one]["common-workers"]+got[two]["common-workers"]+got[thief]["common-workers"])
	require.NotZero(t, got[thief]["common-workers"])
}

// Refusals are their client's and the administrator's to read: not those of who has some of the nodes.
func TestRefusalsAreReadByTheirClient(t *testing.T) {
	b := startBroker(t, func(o *Options) { withUsers(o); o.Tree = newFakeTree() })
	some, all := openClient(t, b, "some", credentialsOf("op", "secret")), openClient(t, b, "all", credentialsOf("boss", "secret"))
	own := openClient(t, b, "a%2Bb+c", credentialsOf("view", "secret"))
	require.Equal(t, []byte{0x87}, some.subscribe("v1/refused/x", 1).ReasonCodes)
	for _, c := range []*testClient{some, all} {
		c.sub("v1/refused/#", 1)
	}
	some.sub("v1/refused/some", 1)
	own.sub("v1/refused/+", 1)
	for _, topic := range []string{"v1/refused/x", "v1/refused/some", "v1/refused/a%252Bb%2Bc", "v1/refused/a%2Bb%2Bc"} {
		b.Publish(Message{Topic: topic, Payload: []byte(topic), QoS: 1})
	}
	require.Equal(t, []string{"v1/refused/x", "v1/refused/some", "v1/refused/a%252Bb%2Bc", "v1/refused/a%2Bb%2Bc"}, all.collect(4))
	require.Equal(t, []string{"v1/refused/some"}, some.collect(1))
	require.Equal(t, []string{"v1/refused/a%252Bb%2Bc"}, own.collect(1), "a+b is another client than a%2Bb")
	some.nothing()
	own.nothing()

	node := startBroker(t, func(o *Options) { withUsers(o); o.Node, o.Tree = "a1", newFakeTree() })
	require.Equal(t, []byte{1}, openClient(t, node, "op", credentialsOf("op", "secret")).subscribe("v1/refused/x", 1).ReasonCodes, "all of a1's broker is op's")
}
