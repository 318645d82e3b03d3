// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/password"
)

// accessPage is the table of who may do what. GOLDEN=write writes it, from the answers of real programs.
const accessPage = "../../docs/access.md"

const accessPassword = "password-of-all"

// accessClient is a client that the table is tried with, and what the rules of docs/running.md and docs/mappers.md say of it.
type accessClient struct {
	title    string // the column
	user, id string
	password bool
	tls      bool          // connects over TLS
	socket   string        // connects over this Unix socket; empty: over TCP
	roles    []topics.Role // that it has; none: it isn't let in
	node     string        // glob of the nodes given to it
	device   string        // of a mapper: the one device given to it; empty: all
	mapper   string        // of a mapper: the one name that it may speak for; empty: any
	link     bool          // is a node's link
	// elsewhere says that a discoverer was given other Configurations.
	elsewhere bool
}

// accessTopic is a row of the table: a topic, and who may publish to and subscribe to it.
type accessTopic struct {
	shown              string
	topic              string
	kind               topics.Kind
	publish, subscribe []topics.Role
	payload            string
}

// accessBroker is a broker, with the node and the device whose topics are tried there.
type accessBroker struct {
	name, address, tls string
	node, device       string
	clients            []accessClient
}

// accessValues are payloads that the topics' owners accept, so that a refusal can only be of the client.
var accessValues = map[topics.Kind]string{
	topics.KindDesired: "ON", topics.KindReported: "ON", topics.KindDesiredAll: `{"power":"ON"}`, topics.KindReportedAll: `{"power":"ON"}`,
	topics.KindDeviceState: "online", topics.KindMapperState: "online", topics.KindAgentState: "online", topics.KindDiscovererState: "online", topics.KindMapperProtocols: `["virtual"]`, topics.KindMapperSettings: `{"protocols":["virtual"]}`, topics.KindGet: "",
	topics.KindRefused: `{"code":"OutOfRange","value":"ON"}`, topics.KindProblem: `{"code":"Unreachable"}`, topics.KindReadProblem: `{"code":"Unreachable"}`,
	topics.KindDiscoveryHandler: `{"state":"Accepted"}`,
}

// accessTopics are all rows of the contract, and the topics outside it.
func accessTopics(b accessBroker) (rows []accessTopic) {
	names := strings.NewReplacer("{secret}", "default.wifi", "{rule}", "default.my-rule", "{device}", b.device, "{property}", "power", "{mapper}", "virtual", "{name}", "reset", "{call}", "c1",
		"{request}", "r1", "{part}", "0", "{configuration}", "usb", "{instance}", "usb-1", "#", "x")
	for _, t := range topics.Table() {
		payload, ok := accessValues[t.Kind]
		if !ok {
			payload = "{}"
		}
		rows = append(rows, accessTopic{t.Pattern, topics.Prefix + b.node + "/" + names.Replace(t.Pattern), t.Kind, t.Publish, t.Subscribe, payload})
	}
	own := []topics.Role{topics.RoleOperator, topics.RoleMapper}
	return append(rows,
		accessTopic{"(no topic of the contract)", topics.Prefix + b.node + "/other", topics.KindNone, nil, nil, "x"},
		accessTopic{"users' own topics", "plant/hall", topics.KindNone, own, append(own, topics.RoleViewer, topics.RoleDiscoverer), "x"},
		accessTopic{"`v1/refused/{client}` of another client", topics.RefusedPrefix + "somebody", topics.KindNone, nil, []topics.Role{topics.RoleOperator}, "x"},
		accessTopic{"`$SYS/…`", "$SYS/broker/uptime", topics.KindNone, nil, []topics.Role{topics.RoleOperator}, "x"},
	)
}

// linkKinds are the rows that, of a node's clients, are the link's alone.
var linkKinds = []topics.Kind{
	topics.KindSyncUp, topics.KindSyncDown, topics.KindParts, topics.KindClock, topics.KindCommand, topics.KindAnswer, topics.KindEnroll, topics.KindEnrolled,
}

// may is what the contract and the rules of ownership say:
//   - one of the client's roles is in the row;
//   - operators and viewers have the nodes given to them; topics of no node are all's, but $SYS and other clients' refusals
//     are for operators of all nodes there;
//   - a node has its own node's topics, and its link alone has the link's, commands and enrolment;
//   - an enrolling node has its own request;
//   - a mapper has the devices given to it, and speaks for itself, not for a mapper that another user is;
//   - a discoverer has the Configurations given to it, and reads users' own topics;
//   - nobody may publish $SYS topics.
func (c accessClient) may(b accessBroker, row accessTopic, allowed []topics.Role) bool {
	return slices.ContainsFunc(allowed, func(role topics.Role) bool {
		if !slices.Contains(c.roles, role) {
			return false
		}
		ofNode := strings.HasPrefix(row.topic, topics.Prefix)
		switch role {
		case topics.RoleOperator, topics.RoleViewer:
			if !ofNode {
				return !strings.Contains(row.shown, "`") || c.node == "*" || c.node == b.node && b.name == "core"
			}
			return c.node == "*" || c.node == b.node
		case topics.RoleNode:
			return c.node == b.node && (c.link || !slices.Contains(linkKinds, row.kind))
		case topics.RoleEnrollee:
			return c.node == b.node
		case topics.RoleDiscoverer: // values of Secrets are for the Unix socket
			return row.kind != topics.KindDiscoverySecret && (!c.elsewhere || !ofNode)
		}
		return true
	})
}

// mayPublish is may, and of a mapper that it speaks for its own devices and itself.
func (c accessClient) mayPublish(b accessBroker, row accessTopic) bool {
	return c.may(b, row, row.publish) && c.ownsDevice(b, row) &&
		(c.mapper == "" || c.mapper == "virtual" || !strings.HasPrefix(row.shown, "mappers/"))
}

func (c accessClient) maySubscribe(b accessBroker, row accessTopic) bool {
	return c.may(b, row, row.subscribe) && c.ownsDevice(b, row)
}

// ownsDevice says whether a mapper has the device, if the row is of one.
func (c accessClient) ownsDevice(b accessBroker, row accessTopic) bool {
	return c.device == "" || c.device == b.device || !strings.HasPrefix(row.shown, "devices/")
}

// accessConn is a client's connection to a broker.
type accessConn struct {
	net.Conn
	r *bufio.Reader
}

func (b accessBroker) dial(t *testing.T, c accessClient) net.Conn {
	t.Helper()
	var raw net.Conn
	var err error
	if c.socket != "" {
		raw, err = net.Dial("unix", c.socket)
	} else if c.tls {
		raw, err = tls.Dial("tcp", b.tls, &tls.Config{InsecureSkipVerify: true}) // the table is of what the broker lets its clients do
	} else {
		raw, err = net.Dial("tcp", b.address)
	}
	require.NoError(t, err)
	require.NoError(t, raw.SetDeadline(time.Now().Add(30*time.Second)))
	return raw
}

func (b accessBroker) connect(t *testing.T, c accessClient) (conn *accessConn, code byte) {
	t.Helper()
	raw := b.dial(t, c)
	conn = &accessConn{raw, bufio.NewReader(raw)}
	p := packets.NewControlPacket(packets.CONNECT)
	connect := p.Content.(*packets.Connect)
	connect.ProtocolName, connect.ProtocolVersion, connect.CleanStart, connect.KeepAlive = "MQTT", 5, true, 60
	connect.ClientID, connect.Username, connect.UsernameFlag = c.id, c.user, c.user != ""
	if c.password {
		connect.Password, connect.PasswordFlag = []byte(accessPassword), true
	}
	_, err := p.WriteTo(raw)
	require.NoError(t, err)
	answer, err := packets.ReadPacket(conn.r)
	require.NoError(t, err, "%s at %s", c.title, b.name)
	return conn, answer.Content.(*packets.Connack).ReasonCode
}

// try sends a packet and returns the reason code of the acknowledgement with its identifier.
func (conn *accessConn) try(t *testing.T, p *packets.ControlPacket, id uint16) (code byte, reason string) {
	t.Helper()
	_, err := p.WriteTo(conn)
	require.NoError(t, err)
	for {
		answer, err := packets.ReadPacket(conn.r)
		require.NoError(t, err, "no answer to %s", p)
		switch a := answer.Content.(type) {
		case *packets.Puback:
			if a.PacketID == id {
				return a.ReasonCode, a.Properties.ReasonString
			}
		case *packets.Suback:
			if a.PacketID == id {
				return a.Reasons[0], a.Properties.ReasonString
			}
		case *packets.Disconnect:
			return a.ReasonCode, a.Properties.ReasonString
		}
	}
}

func (conn *accessConn) publish(t *testing.T, row accessTopic) (byte, string) {
	p := packets.NewControlPacket(packets.PUBLISH)
	publish := p.Content.(*packets.Publish)
	publish.Topic, publish.Payload, publish.QoS, publish.PacketID = row.topic, []byte(row.payload), 1, 7
	if row.kind == topics.KindGet || row.kind == topics.KindCommand {
		publish.Properties.ResponseTopic = "plant/answers"
	}
	return conn.try(t, p, 7)
}

func (conn *accessConn) subscribe(t *testing.T, topic string) (byte, string) {
	p := packets.NewControlPacket(packets.SUBSCRIBE)
	subscribe := p.Content.(*packets.Subscribe)
	subscribe.PacketID, subscribe.Subscriptions = 8, []packets.SubOptions{{Topic: topic, QoS: 1}}
	return conn.try(t, p, 8)
}

// Reason codes of MQTT 5.
const (
	notAuthorized    = 0x87
	topicNameInvalid = 0x90
)

// tryRow says whether the client was let publish and subscribe, on a connection of its own: what isn't a valid message of
// the link ends it.
func (b accessBroker) tryRow(t *testing.T, c accessClient, row accessTopic) (publishes, subscribes bool) {
	t.Helper()
	conn, code := b.connect(t, c)
	defer conn.Close()
	require.Zero(t, code, "%s at %s", c.title, b.name)
	code, reason := conn.subscribe(t, row.topic)
	subscribes = code != notAuthorized
	require.True(t, code <= 2 || code == notAuthorized, "%s subscribes to %s at %s: %#x %s", c.title, row.topic, b.name, code, reason)
	code, reason = conn.publish(t, row)
	publishes = code != notAuthorized && (row.kind != topics.KindNone || code != topicNameInvalid)
	if publishes && code >= 0x80 && !slices.Contains(accessOtherwise, row.kind) {
		t.Errorf("%s publishes to %s at %s: %#x %s", c.title, row.topic, b.name, code, reason)
	}
	return publishes, subscribes
}

// accessOtherwise are the rows where a publish that is allowed is refused for what it says: the link's and enrolment's
// messages are no such, and nobody waits for the answer.
var accessOtherwise = []topics.Kind{topics.KindSyncUp, topics.KindParts, topics.KindClock, topics.KindEnroll, topics.KindBlobGet, topics.KindAnswer, topics.KindRuleAnswer, topics.KindHistory, topics.KindHistoryCopy}

// tryOldClient publishes, with MQTT 3.1.1, to every topic that the client may not publish to. Each is refused on the client's
// own topic of refusals.
func (b accessBroker) tryOldClient(t *testing.T, c accessClient) {
	t.Helper()
	conn := b.dial(t, c)
	defer conn.Close()
	text := func(s string) string { return string([]byte{byte(len(s) >> 8), byte(len(s))}) + s }
	send := func(kind byte, body string) {
		_, err := conn.Write([]byte(string(append([]byte{kind}, binary.AppendUvarint(nil, uint64(len(body)))...)) + body))
		require.NoError(t, err)
	}
	connect, flags := text(c.id), byte(0x02)
	if c.user != "" {
		connect, flags = connect+text(c.user), flags|0x80
	}
	if c.password {
		connect, flags = connect+text(accessPassword), flags|0x40
	}
	own := topics.RefusedPrefix + c.id
	send(0x10, text("MQTT")+string([]byte{4, flags, 0, 60})+connect)
	send(0x82, "\x00\x01"+text(own)+"\x00")
	missing := map[string]bool{}
	for _, row := range accessTopics(b) {
		if !c.mayPublish(b, row) {
			missing[row.topic] = true
			send(0x30, text(row.topic)+row.payload)
		}
	}
	for r := bufio.NewReader(conn); len(missing) > 0; {
		kind, err := r.ReadByte()
		require.NoError(t, err, "%s at %s: not refused: %v", c.title, b.name, missing)
		length, err := binary.ReadUvarint(r)
		require.NoError(t, err)
		body := make([]byte, length)
		_, err = io.ReadFull(r, body)
		require.NoError(t, err)
		switch {
		case kind == 0x20:
			require.Zero(t, body[1], "%s at %s: CONNACK", c.title, b.name)
		case kind == 0x90:
			require.Zero(t, body[2], "%s at %s: SUBACK of %s", c.title, b.name, own)
		case kind>>4 == 3:
			payload, ok := strings.CutPrefix(string(body), text(own))
			require.True(t, ok, "%q", body)
			var refusal struct{ Topic string }
			require.NoError(t, json.Unmarshal([]byte(payload), &refusal), "%s", payload)
			delete(missing, refusal.Topic)
		}
	}
}

func formatRights(publishes, subscribes bool) string {
	switch {
	case publishes && subscribes:
		return "P S"
	case publishes:
		return "P"
	case subscribes:
		return "S"
	}
	return "–"
}

// tryAll tries every row with every client of the broker, and returns the table. Topics with the same rights share a row.
func (b accessBroker) tryAll(t *testing.T) string {
	t.Helper()
	page := &strings.Builder{}
	page.WriteString("| topics |")
	for _, c := range b.clients {
		fmt.Fprintf(page, " %s |", c.title)
	}
	page.WriteString("\n|---|" + strings.Repeat("---|", len(b.clients)) + "\n")
	var rights []string // in the order of the first topic of each
	shown := map[string][]string{}
	for _, row := range accessTopics(b) {
		cells := &strings.Builder{}
		for _, c := range b.clients {
			if len(c.roles) == 0 {
				cells.WriteString(" refused |")
				continue
			}
			p, s := b.tryRow(t, c, row)
			wantP, wantS := c.mayPublish(b, row), c.maySubscribe(b, row)
			if p != wantP || s != wantS {
				t.Errorf("%s: %s may %s on %s (%s), and was let %s", b.name, c.title, formatRights(wantP, wantS), row.shown, row.topic, formatRights(p, s))
			}
			fmt.Fprintf(cells, " %s |", formatRights(wantP, wantS))
		}
		name := row.shown
		if row.kind != topics.KindNone {
			name = "`" + name + "`"
		}
		if shown[cells.String()] == nil {
			rights = append(rights, cells.String())
		}
		shown[cells.String()] = append(shown[cells.String()], name)
	}
	for _, cells := range rights {
		fmt.Fprintf(page, "| %s |%s\n", strings.Join(shown[cells], ", "), cells)
	}
	for _, c := range b.clients {
		if len(c.roles) > 0 {
			b.tryOldClient(t, c)
		} else {
			conn, code := b.connect(t, c)
			conn.Close()
			if code < 0x80 {
				t.Errorf("%s: %s is let in", b.name, c.title)
			}
		}
	}
	return page.String()
}

// Every role tries every topic of the contract on both brokers, and every kind of the hub's API: what the contract and the
// rules of ownership allow is allowed, and everything else is refused.
func TestAccess(t *testing.T) {
	t.Parallel()
	w, err := harness.NewWorld(t.TempDir(), 1)
	require.NoError(t, err)
	defer w.Close()
	ctx := t.Context()
	hub, core := accessWorld(ctx, t, w)
	page := &strings.Builder{}
	page.WriteString(accessHead)
	fmt.Fprintf(page, "\n## The hub's broker\n\n%s", hub.tryAll(t))
	fmt.Fprintf(page, "\n## A node's broker\n\n%s", core.tryAll(t))
	fmt.Fprintf(page, "\n## The hub's API\n\n%s", tryAPI(ctx, t, w, hub))
	fmt.Fprintf(page, "\n## A node's API\n\n%s", tryNodeAPI(ctx, t, w, core))
	if os.Getenv("GOLDEN") == "write" && !t.Failed() {
		require.NoError(t, os.WriteFile(accessPage, []byte(page.String()), 0o644))
	}
	want, err := os.ReadFile(accessPage)
	require.NoError(t, err)
	require.Equal(t, string(want), page.String(), "GOLDEN=write go test ./test/e2e -run TestAccess")
}

const accessHead = `# Who may do what

<!-- Made by GOLDEN=write go test ./test/e2e -run TestAccess, which tries every cell with real clients. -->

Every topic of the contract, below ` + "`v1/nodes/{node}/`" + `, with every role: **P** may publish, **S** may subscribe, – neither. Topics with the
same rights share a row. A publish that is not allowed is answered with the reason code 0x87 and a message on ` + "`v1/refused/{client}`" + `, and a subscription with 0x87 in the SUBACK.
[Users](running.md#users) says how users get a role; the rules for users' own topics are those of a broker without any.
`

// accessWorld starts a hub with the nodes n1, which has a core, and n9, which has none, so that the table's clients can act
// for it.
func accessWorld(ctx context.Context, t *testing.T, w *harness.World) (hub, core accessBroker) {
	t.Helper()
	hash := password.NewHash([]byte(accessPassword))
	user := func(name, role, more string) string {
		return fmt.Sprintf("    - {name: %s, role: %s, passwordHash: '%s'%s}\n", name, role, hash, more)
	}
	hubConfig := "mqtt:\n  tls:\n    listen: " + w.TLS + "\nauth:\n  anonymous: loopback\n  users:\n" +
		user("ann", "operator", `, nodes: ["*"]`) + user("otto", "operator", `, nodes: [n1]`) + user("vera", "viewer", `, nodes: [n9]`) +
		user("walt", "viewer", `, nodes: [n1]`) + user("ctl", "controller", "") +
		user("img", "enroller", "") + user("standby", "follower", "") + user("olga", "operator", `, nodes: [n9]`) + user("n8", "node", "") + user("n9", "node", "")
	require.NoError(t, os.WriteFile(filepath.Join(w.Dir, "hub.yaml"), []byte(hubConfig), 0o600))
	dir, err := os.MkdirTemp("", "eb") // the path of a socket is short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "mqtt.sock")
	coreConfig := "mqtt: {socket: " + socket + "}\nauth:\n  anonymous: loopback\n  users:\n" +
		user("ann", "operator", "") + user("otto", "operator", `, nodes: [n2]`) + user("vera", "viewer", "") +
		user("finder", "discoverer", "") + user("seeker", "discoverer", `, configurations: [other]`) +
		user("virtual", "mapper", `, devices: [lamp]`) + user("modbus", "mapper", `, devices: [pump]`) +
		fmt.Sprintf("    - {name: agent, role: agent, local: '%d'}\n", os.Getuid())
	require.NoError(t, os.WriteFile(filepath.Join(w.Dir, "core.yaml"), []byte(coreConfig), 0o600))
	require.NoError(t, w.Start(ctx, "hub"))
	require.NoError(t, w.Apply(ctx, []byte(accessObjects)))
	require.NoError(t, w.Start(ctx, "core"))
	require.NoError(t, harness.Await(ctx, w.Node("n1").MQTT, "v1/nodes/n1/devices/lamp", "/lamp/", 20*time.Second))
	require.NoError(t, harness.Await(ctx, w.Node("n1").MQTT, "v1/nodes/n1/discovery/usb", "/udev/", 20*time.Second))

	operator, viewer, node, mapper := []topics.Role{topics.RoleOperator}, []topics.Role{topics.RoleViewer}, []topics.Role{topics.RoleNode}, []topics.Role{topics.RoleMapper}
	hub = accessBroker{name: "hub", address: w.Hub.MQTT, tls: w.TLS, node: "n9", device: "lamp9", clients: []accessClient{
		{title: "operator of all nodes", user: "ann", id: "a1", password: true, roles: operator, node: "*"},
		{title: "operator of other nodes", user: "otto", id: "a2", password: true, roles: operator, node: "n1"},
		{title: "viewer", user: "vera", id: "a3", password: true, roles: viewer, node: "n9"},
		{title: "viewer of other nodes", user: "walt", id: "a4", password: true, roles: viewer, node: "n1"},
		{title: "controller", user: "ctl", id: "a5", password: true, roles: []topics.Role{topics.RoleController}},
		{title: "node: its link", user: "node/n9", password: true, id: "node/n9", roles: node, node: "n9", link: true},
		{title: "node: another client", user: "node/n9", password: true, id: "node/n9/a6", roles: node, node: "n9"},
		{title: "another node", user: "node/n8", password: true, id: "node/n8", roles: node, node: "n8", link: true},
		{title: "enrolling node", user: "enroll/n9", id: "enroll/r1", tls: true, roles: []topics.Role{topics.RoleEnrollee}, node: "n9"},
		{title: "another enrolling node", user: "enroll/n7", id: "enroll/r2", tls: true, roles: []topics.Role{topics.RoleEnrollee}, node: "n7"},
		{title: "anonymous on loopback", id: "a7", roles: operator, node: "*"},
		{title: "enroller", user: "img", id: "a9", password: true},
		{title: "follower", user: "standby", id: "a10", password: true},
		{title: "nobody", user: "eve", id: "a8", password: true},
	}}
	core = accessBroker{name: "core", address: w.Node("n1").MQTT, node: "n1", device: "lamp", clients: []accessClient{
		{title: "operator", user: "ann", id: "b1", password: true, roles: operator, node: "n1"},
		{title: "operator of other nodes", user: "otto", id: "b2", password: true, roles: operator, node: "n2"},
		{title: "viewer", user: "vera", id: "b3", password: true, roles: viewer, node: "n1"},
		{title: "mapper of the device", user: "virtual", id: "mapper-virtual", password: true, roles: mapper, device: "lamp", mapper: "virtual"},
		{title: "mapper of another device", user: "modbus", id: "mapper-modbus", password: true, roles: mapper, device: "pump", mapper: "modbus"},
		{title: "agent", id: "b6", socket: socket, roles: []topics.Role{topics.RoleAgent}},
		{title: "discoverer", user: "finder", id: "b7", password: true, roles: []topics.Role{topics.RoleDiscoverer}},
		{title: "discoverer of another Configuration", user: "seeker", id: "b8", password: true, roles: []topics.Role{topics.RoleDiscoverer}, elsewhere: true},
		{title: "node", user: "node/n1", id: "node/n1"},
		{title: "anonymous on loopback", id: "b4", roles: []topics.Role{topics.RoleOperator, topics.RoleMapper, topics.RoleDiscoverer}, node: "*", mapper: "anonymous"},
		{title: "nobody", user: "eve", id: "b5", password: true},
	}}
	return hub, core
}

const accessModel = `apiVersion: edgebus.io/v1alpha1
kind: DeviceModel
metadata: {name: switch}
spec:
  properties:
    - {name: power, type: string, enum: ["ON", "OFF"], accessMode: ReadWrite}
`

const accessObjects = accessModel + `---
{apiVersion: edgebus.io/v1alpha1, kind: Node, metadata: {name: n1}}
---
{apiVersion: edgebus.io/v1alpha1, kind: Configuration, metadata: {name: usb}, spec: {discoveryHandler: {name: udev}}}
---
{apiVersion: edgebus.io/v1alpha1, kind: Node, metadata: {name: n8}}
---
{apiVersion: edgebus.io/v1alpha1, kind: Node, metadata: {name: n9}}
---
{apiVersion: edgebus.io/v1alpha1, kind: Device, metadata: {name: lamp}, spec: {deviceModelRef: {name: switch}, nodeName: n1, protocol: {name: virtual, type: virtual}}}
---
{apiVersion: edgebus.io/v1alpha1, kind: Device, metadata: {name: lamp9}, spec: {deviceModelRef: {name: switch}, nodeName: n9, protocol: {name: virtual, type: virtual}}}
`

// apiAnswer is the status of a request to an API.
func apiAnswer(ctx context.Context, t *testing.T, c accessClient, method, url, body string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	require.NoError(t, err)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	if c.user != "" {
		r.SetBasicAuth(c.user, accessPassword)
	}
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	require.NoError(t, err)
	return answer.StatusCode
}

// apiKind is a kind of the hub's API as discovery lists it.
type apiKind struct {
	Name, Kind string
	Namespaced bool
	group      string
}

func apiKinds(ctx context.Context, t *testing.T, hub string) (kinds []apiKind) {
	t.Helper()
	for _, group := range []string{"/apis/edgebus.io/v1alpha1", "/api/v1", "/apis/coordination.k8s.io/v1"} {
		raw, err := harness.Call(ctx, http.MethodGet, hub+group, nil)
		require.NoError(t, err)
		var list struct{ Resources []apiKind }
		require.NoError(t, json.Unmarshal(raw, &list))
		for _, k := range list.Resources {
			if k.group = group; !strings.Contains(k.Name, "/") && k.Name != "namespaces" {
				kinds = append(kinds, k)
			}
		}
	}
	return kinds
}

// verbs are what is tried of a kind: status is a write of the status, which some kinds don't have.
func (k apiKind) verbs() []string {
	all := []string{"list", "get", "create", "update", "patch", "delete", "status"}
	if k.group != "/apis/edgebus.io/v1alpha1" {
		return all[:len(all)-1]
	}
	return all
}

// mayCall is what docs/running.md (Users) and docs/api.md (What is the controllers') say of an object that belongs to the
// node n9, or to no node.
func (c accessClient) mayCall(kind, verb string) bool {
	reads, ofNode := verb == "list" || verb == "get", kind == "Node" || kind == "Device" || kind == "Event"
	sealed := kind == "Secret" || kind == "Repository"
	role, all := c.roles[0], c.node == "*"
	if verb == "status" {
		return role == topics.RoleController || role == topics.RoleNode && kind == "Node" && c.node == "n9"
	}
	if role == topics.RoleFollower {
		return false
	}
	if role == topics.RoleEnroller {
		return kind == "EnrollmentRequest" && (verb == "create" || verb == "get")
	}
	if ofNode && !all && c.node != "n9" && role != topics.RoleController {
		return verb == "list" || verb == "get" && kind == "Event" // a list leaves out what is none of the client's, and there is no such Event
	}
	switch role {
	case topics.RoleController:
		return true
	case topics.RoleOperator:
		switch {
		case sealed:
			return all && c.user != ""
		case kind == "TemplateVersion":
			return reads || verb == "delete" && all
		case all:
			return true
		}
		return reads || ofNode && kind != "Event"
	case topics.RoleViewer:
		return reads && !sealed
	case topics.RoleNode:
		return reads && ofNode || kind == "EnrollmentRequest" && verb == "get" // those for the renewal of its certificate
	}
	return false
}

// tryKind says whether the client was let do that with an object of the kind. Nothing is written: dryRun=All.
func tryKind(ctx context.Context, t *testing.T, hub string, c accessClient, k apiKind, verb string) (allowed bool, status int) {
	t.Helper()
	name := map[string]string{"Node": "n9", "Device": "lamp9"}[k.Kind]
	exists := name != ""
	if !exists {
		name = "none"
	}
	url := hub + k.group + "/"
	if k.Namespaced {
		url += "namespaces/default/"
	}
	url += k.Name
	object := url + "/" + name
	body := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q}}`, strings.TrimPrefix(strings.TrimPrefix(k.group, "/apis/"), "/api/"), k.Kind, name)
	if k.Kind == "Device" {
		body = `{"apiVersion":"edgebus.io/v1alpha1","kind":"Device","metadata":{"name":"lamp9"},"spec":{"deviceModelRef":{"name":"switch"},"nodeName":"n9","protocol":{"name":"virtual","type":"virtual"}}}`
	}
	switch verb {
	case "list":
		status = apiAnswer(ctx, t, c, http.MethodGet, url, "")
	case "get":
		status = apiAnswer(ctx, t, c, http.MethodGet, object, "")
	case "create":
		status = apiAnswer(ctx, t, c, http.MethodPost, url+"?dryRun=All", body)
	case "update":
		status = apiAnswer(ctx, t, c, http.MethodPut, object+"?dryRun=All", body)
	case "patch":
		status = apiAnswer(ctx, t, c, http.MethodPatch, object+"?dryRun=All", `{"metadata":{"labels":{"tried":"yes"}}}`)
	case "delete":
		status = apiAnswer(ctx, t, c, http.MethodDelete, object+"?dryRun=All", "")
	case "status":
		status = apiAnswer(ctx, t, c, http.MethodPatch, object+"/status?dryRun=All", `{"status":{}}`)
	}
	return status != http.StatusUnauthorized && status != http.StatusForbidden && (!exists || status != http.StatusNotFound), status
}

// tryAPI tries every verb on every kind of the hub's API, and returns the table.
func tryAPI(ctx context.Context, t *testing.T, w *harness.World, hub accessBroker) string {
	t.Helper()
	url := "http://" + w.Hub.HTTP
	var clients []accessClient
	for _, c := range hub.clients {
		if !c.link && !c.tls && len(c.roles) > 0 && c.roles[0] != topics.RoleNode {
			clients = append(clients, c)
		}
	}
	olga := accessClient{title: "operator of the node", user: "olga", roles: []topics.Role{topics.RoleOperator}, node: "n9"}
	node := accessClient{title: "node", user: "n9", roles: []topics.Role{topics.RoleNode}, node: "n9"}
	another := accessClient{title: "another node", user: "n8", roles: []topics.Role{topics.RoleNode}, node: "n8"}
	img := accessClient{title: "enroller", user: "img", roles: []topics.Role{topics.RoleEnroller}}
	standby := accessClient{title: "follower", user: "standby", roles: []topics.Role{topics.RoleFollower}}
	clients = append(clients, olga, node, another, img, standby)
	page := &strings.Builder{}
	page.WriteString("| kind |")
	for _, c := range clients {
		fmt.Fprintf(page, " %s |", c.title)
	}
	page.WriteString("\n|---|" + strings.Repeat("---|", len(clients)) + "\n")
	for _, k := range apiKinds(ctx, t, url) {
		fmt.Fprintf(page, "| %s |", k.Kind)
		for _, c := range clients {
			var may []string
			all := k.verbs()
			for _, verb := range all {
				allowed, status := tryKind(ctx, t, url, c, k, verb)
				if want := c.mayCall(k.Kind, verb); allowed != want {
					t.Errorf("the hub's API: %s, %s %s: allowed %v, and the answer is %d", c.title, verb, k.Kind, want, status)
				}
				if c.mayCall(k.Kind, verb) {
					may = append(may, verb)
				}
			}
			fmt.Fprintf(page, " %s |", formatVerbs(may, all))
		}
		page.WriteString("\n")
	}
	nobody := accessClient{user: "eve"}
	require.Equal(t, http.StatusUnauthorized, apiAnswer(ctx, t, nobody, http.MethodGet, url+"/apis/edgebus.io/v1alpha1/nodes", ""))
	return page.String()
}

// formatVerbs shortens a list of them.
func formatVerbs(may, all []string) string {
	switch {
	case len(may) == 0:
		return "–"
	case len(may) == len(all):
		return "all"
	case slices.Equal(may, all[:len(all)-1]):
		return "all but " + all[len(all)-1]
	}
	return strings.Join(may, " ")
}

// tryNodeAPI tries a node's API, which is read only and gives a mapper its own Devices, and returns the table.
func tryNodeAPI(ctx context.Context, t *testing.T, w *harness.World, core accessBroker) string {
	t.Helper()
	url := "http://" + w.Node("n1").HTTP + "/apis/edgebus.io/v1alpha1/namespaces/default/devices"
	page := &strings.Builder{}
	page.WriteString("| client | reads the Device | writes |\n|---|---|---|\n")
	for _, c := range core.clients {
		if c.socket != "" { // which is MQTT's only
			continue
		}
		reads := len(c.roles) > 0 && (c.roles[0] == topics.RoleMapper && c.device == core.device || c.node == core.node || c.node == "*")
		status := apiAnswer(ctx, t, c, http.MethodGet, url+"/lamp", "")
		if reads != (status == http.StatusOK) {
			t.Errorf("a node's API: %s may read: %v, and the answer is %d", c.title, reads, status)
		}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			if status := apiAnswer(ctx, t, c, method, url+"/lamp", "{}"); status < 400 {
				t.Errorf("a node's API: %s was let %s: %d", c.title, method, status)
			}
		}
		fmt.Fprintf(page, "| %s | %s | – |\n", c.title, map[bool]string{true: "yes", false: "–"}[reads])
	}
	return page.String()
}
