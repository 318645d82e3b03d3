// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"os"
	"os/user"
	"path/filepath"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/acl"
)

const (
	testSecret = "v1/nodes/n1/secrets/default.wifi"
	testPSK    = "psk-in-plain"
)

// secretFilters match the topics of Secrets in one way or another.
var secretFilters = []string{
	"#", "+/#", "v1/#", "v1/+/#", "v1/nodes/#", "v1/nodes/+/#", "v1/nodes/n1/#", "v1/nodes/n1/secrets/#", "+/+/+/secrets/+", "+/+/+/+/+",
	"v1/nodes/n1/secrets/+", "v1/nodes/n1/secrets/default.wifi/#", "v1/nodes/+/secrets/default.wifi", testSecret,
}

// onSocket runs a node's broker where the user of this process has a role, and a socket to sign in at.
func onSocket(t *testing.T, dir string, tree *fakeTree, u User) (b *Broker, path string, stop func()) {
	t.Helper()
	path = socketPath(t)
	me, err := user.Current()
	require.NoError(t, err)
	u.Local = me.Uid
	b, stop = startKept(t, dir, func(o *Options) {
		o.Node, o.Tree = "n1", tree
		o.Listeners = append(o.Listeners, Listener{Name: "unix", Address: "unix:" + path})
		o.Auth.Users = append(testUsers(), u, User{Name: "viewer", PasswordHash: hashSHA512, Role: topics.RoleViewer, Nodes: []string{"*"}})
		o.Auth.SharedGroups = []string{"g*"}
		all := new(acl.Rules) // what a file of rules says of all topics
		require.NoError(t, all.Limit("boss", acl.Read, []string{"#"}))
		o.Auth.Topics = func() *acl.Rules { return all }
	})
	tree.publish = b.Publish
	return b, path, stop
}

// Whatever somebody subscribes to, and whenever, the values of Secrets come to the agent alone.
func TestOnlyTheAgentReceivesSecrets(t *testing.T) {
	tree := newFakeTree()
	tell := func(b *Broker, topic, text string) {
		tree.tell(Message{Topic: topic, Payload: []byte(text), QoS: 1, Retain: true}, b.Publish)
	}
	b, path, _ := onSocket(t, t.TempDir(), tree, User{Name: "agent", Role: topics.RoleAgent})
	tell(b, testSecret, testPSK+" retained")
	agent := dialUnix(t, path)
	require.Zero(t, agent.connect("agent"))
	agent.sub("v1/nodes/n1/secrets/#", 1)
	require.Equal(t, []string{testPSK + " retained"}, agent.collect(1))

	as := map[string][]connectOption{
		"anonymous": nil, "operator": {credentialsOf("boss", "secret")}, "viewer": {credentialsOf("viewer", "secret")},
		"mapper": {credentialsOf("any", "secret")},
	}
	var others []*testClient
	for _, how := range as {
		for _, share := range []string{"", "$share/g/", "$share/own/"} {
			for _, filter := range secretFilters {
				c := openClient(t, b, "", how...)
				c.subscribe(share+filter, 1) // granted or not
				others = append(others, c)
			}
		}
	}
	agent.sub("$share/g/v1/nodes/n1/secrets/#", 1) // with the others in one group
	tell(b, testSecret, testPSK+" live")
	tell(b, testSecret+"/parts/0", testPSK+" part")
	tell(b, "v1/nodes/n1/sync/down", testPSK+" on the link")
	for range 4 { // each twice, of which it acknowledges none
		require.Contains(t, string(agent.expect(packets.Publish).Payload), testPSK)
	}
	agent.leave(b, "agent") // what it was sent is for nobody else of the group
	for _, c := range others {
		c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
		for ended := false; !ended; {
			pk, err := c.read(testTimeout)
			require.NoError(t, err)
			require.NotContains(t, string(pk.Payload), testPSK, "%s", pk.TopicName)
			ended = pk.FixedHeader.Type == packets.Pingresp
		}
	}
}

// What waits for the agent of a durable session would be in the journal as it is. So nothing waits: a session gets what is retained
// when it subscribes again.
func TestSecretsAreNotInTheJournal(t *testing.T) {
	tree, dir := newFakeTree(), t.TempDir()
	b, path, stop := onSocket(t, dir, tree, User{Name: "agent", Role: topics.RoleAgent})
	tell := func(topic, text string) {
		tree.tell(Message{Topic: topic, Payload: []byte(text), QoS: 1, Retain: true}, b.Publish)
	}
	tell(testSecret, testPSK+" 1")
	agent := dialUnix(t, path)
	require.Zero(t, agent.connect("agent", persistentSession))
	agent.sub("v1/nodes/n1/#", 1)
	retained := agent.expect(packets.Publish)
	require.Equal(t, testPSK+" 1", string(retained.Payload))
	require.Zero(t, retained.FixedHeader.Qos)
	tell(testSecret, testPSK+" 2")
	tell("v1/nodes/n1/spec", "not secret 1")
	require.Equal(t, testPSK+" 2", string(agent.expect(packets.Publish).Payload))
	other := agent.expect(packets.Publish)
	require.Equal(t, "not secret 1", string(other.Payload))
	require.EqualValues(t, 1, other.FixedHeader.Qos, "everything else is as it was asked for")
	agent.leave(b, "agent")
	tell(testSecret, testPSK+" 3")
	tell("v1/nodes/n1/spec", "not secret 2")

	again := dialUnix(t, path)
	require.Zero(t, again.connect("agent", persistentSession))
	require.True(t, again.connack.SessionPresent)
	require.Equal(t, "not secret 1", string(again.expect(packets.Publish).Payload))
	require.Equal(t, "not secret 2", string(again.expect(packets.Publish).Payload))
	again.sub("v1/nodes/n1/secrets/#", 1)
	require.Equal(t, testPSK+" 3", string(again.expect(packets.Publish).Payload))
	again.leave(b, "agent")
	stop()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	seen := ""
	for _, path := range files {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		seen += string(text)
	}
	require.Contains(t, seen, "not secret")
	require.NotContains(t, seen, testPSK)
}

// A node's own session on the hub may be durable: what the link says to it has the values of Secrets, and is not stored either.
func TestTheLinkIsNotInTheJournal(t *testing.T) {
	dir := t.TempDir()
	b, stop := startKept(t, dir, func(o *Options) { o.Tree = newFakeTree() })
	core := openClient(t, b, "node/n1", credentialsOf("node/n1", ""), persistentSession)
	core.sub("v1/nodes/n1/sync/down", 1)
	b.Publish(Message{Topic: "v1/nodes/n1/sync/down", Payload: []byte(testPSK), QoS: 1})
	require.Equal(t, testPSK, string(core.expect(packets.Publish).Payload))
	core.leave(b, "node/n1")
	b.Publish(Message{Topic: "v1/nodes/n1/sync/down", Payload: []byte(testPSK), QoS: 1})
	stop()
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, path := range files {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NotContains(t, string(text), testPSK)
	}
}

// The role agent is for programs of the host, whatever the settings say of the user: over a network its password would be worth
// every Secret of the node.
func TestTheRoleAgentIsForTheSocketAlone(t *testing.T) {
	b, path, _ := onSocket(t, t.TempDir(), newFakeTree(), User{Name: "agent", Role: topics.RoleAgent, PasswordHash: hashSHA512})
	c := dialBroker(t, b)
	require.Equal(t, byte(0x86), c.connect("x", credentialsOf("agent", "secret")))
	require.Contains(t, c.connack.Properties.ReasonString, "the role agent, which only programs of this host have")
	local := dialUnix(t, path)
	require.Zero(t, local.connect("x", credentialsOf("agent", "secret")))
}
