package broker

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// node/{x} and what is below it belong to node x, whoever else asks first.
func TestTrial02ClientIDsOfNodes(t *testing.T) {
	b := start(t, withUsers)
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
		{"node/n2", "", "a tool of the node", 0},
		{"boss", "secret", "mapper-modbus", 0}, // on the hub there are no mappers
	} {
		as := func(*packets.Packet) {}
		if c.user != "" {
			as = credentialsOf(c.user, c.password)
		}
		tc := dial(t, b)
		require.Equal(t, c.code, tc.connect(c.id, as, persistent), "%s as %s", c.id, c.user)
		if c.code != 0 {
			require.Contains(t, tc.connack.Properties.ReasonString, "belong to node ")
			three := dial(t, b)
			require.Equal(t, byte(2), three.connect(c.id, as, v3))
		}
	}
}

// mapper-{m} belongs to the user m, or, where there is none, to those with the role.
func TestTrial02ClientIDsOfMappers(t *testing.T) {
	b := start(t, func(o *Options) { withUsers(o); o.Node, o.Tree = "n1", newFakeTree() })
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
	} {
		as := func(*packets.Packet) {}
		if c.user != "" {
			as = credentialsOf(c.user, "secret")
		}
		tc := dial(t, b)
		require.Equal(t, c.code, tc.connect(c.id, as, persistent), "%s as %q", c.id, c.user)
		require.Equal(t, c.code != 0, tc.connack.Properties.ReasonString != "")
	}
	// What is said of a mapper is that mapper's to say.
	other, own := open(t, b, "x", credentialsOf("map", "secret")), open(t, b, "y", credentialsOf("modbus", "secret"))
	for _, topic := range []string{"v1/nodes/n1/mappers/modbus/state", "v1/nodes/n1/mappers/modbus/protocols"} {
		ack := other.publish1(topic, "online")
		require.Equal(t, byte(0x87), ack.ReasonCode)
		require.Contains(t, ack.Properties.ReasonString, "the mapper modbus signs in as the user modbus")
		require.Zero(t, own.publish1(topic, "online").ReasonCode)
	}
	require.Zero(t, other.publish1("v1/nodes/n1/mappers/lab/state", "online").ReasonCode)
}

// A session that somebody had under a reserved client identifier before it was reserved keeps nobody out.
func TestTrial02AnOldSessionUnderAReservedIdentifier(t *testing.T) {
	b := start(t, withUsers)
	squatter := open(t, b, "seemed harmless", credentialsOf("boss", "secret"), persistent)
	squatter.sub("a", 1)
	b.clients.mu.Lock() // as a version before this one would have let it in
	cl := b.clients.byID["seemed harmless"]
	delete(b.clients.byID, cl.id)
	id := cl.rights()
	cl.id, id.ClientID = "node/n1", "node/n1"
	cl.ident.Store(&id)
	b.clients.byID[cl.id] = cl
	b.clients.mu.Unlock()
	core := open(t, b, "node/n1", credentialsOf("node/n1", ""), persistent)
	require.False(t, core.connack.SessionPresent)
	code, _ := squatter.ended()
	require.Equal(t, byte(codeTakenOver), code)
	require.Equal(t, []resource.Session{{Client: "node/n1", User: "node/n1", Connected: true, Remote: core.conn.LocalAddr().String()}}, b.Sessions())
}

// Only node/{name} is the link: another client of the node's neither hears the hub on it nor speaks to it.
func TestTrial02OnlyTheLinkIsTheLink(t *testing.T) {
	p := &presence{}
	b := start(t, func(o *Options) { o.Tree, o.Presence = newFakeTree(), p })
	core := open(t, b, "node/n1", credentialsOf("node/n1", ""))
	core.sub("v1/nodes/n1/sync/down", 1)
	second := open(t, b, "node/n1/tool", credentialsOf("node/n1", ""))
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
func TestTrial02AnOperatorEndsASession(t *testing.T) {
	dir := t.TempDir()
	open1 := func(t *testing.T) *Broker {
		j, err := journal.Open(journal.Options{Dir: dir})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, j.Close()) })
		return start(t, func(o *Options) { withUsers(o); o.Journal = j })
	}
	t.Run("first", func(t *testing.T) {
		b := open1(t)
		away := open(t, b, "away", credentialsOf("view", "secret"), persistent)
		away.sub("a", 1)
		away.leave(b, "away")
		here := open(t, b, "here", credentialsOf("op", "secret"), persistent, withWill("will/of/here", "gone", 0))
		watcher := open(t, b, "watcher", credentialsOf("boss", "secret"))
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

		other := dial(t, b)
		require.Equal(t, byte(0x87), other.connect("away", credentialsOf("boss", "secret")))
		require.Contains(t, other.connack.Properties.ReasonString, "belongs to another user")
		require.Contains(t, other.connack.Properties.ReasonString, "edgebus session end")

		require.NoError(t, b.EndSession("away"))
		require.NoError(t, b.EndSession("here"))
		require.Equal(t, resource.NotFound, resource.KindOf(b.EndSession("away")))
		code, _ := here.ended()
		require.Equal(t, byte(0x98), code)
		require.Equal(t, []string{"gone"}, watcher.collect(1))
		taken := open(t, b, "away", credentialsOf("boss", "secret"), persistent)
		require.False(t, taken.connack.SessionPresent)
		require.NoError(t, b.EndSession("away"))
		require.Zero(t, b.Stats().Kept)
	})
	t.Run("and after a restart", func(t *testing.T) { require.Empty(t, open1(t).Sessions()) })
}

func TestTrial02WhoMayEndSessions(t *testing.T) {
	hub := start(t, withUsers)
	node := start(t, func(o *Options) { withUsers(o); o.Node = "a1" })
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
