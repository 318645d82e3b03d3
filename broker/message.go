package broker

import (
	"slices"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
)

// Properties are the MQTT 5 properties that travel with a message.
type Properties = session.Properties

// UserProperty is one of a message's user properties.
type UserProperty = session.UserProperty

// Message is a publication. Its payload and properties are never modified after
// hand-over, in either direction.
type Message struct {
	Topic     string
	Payload   []byte
	QoS       byte
	Retain    bool
	Again     bool // its publisher may have sent it before: it saw no acknowledgement
	Props     Properties
	Publisher Identity // zero when the message is the bus's own

	lane  *lane  // nil: what is behind it doesn't wait for it
	along *along // nil: nothing is to be stored with it
}

// along are changes that are to be stored with a message that goes to the tree: in the same commit, if
// the tree has it passed on, and otherwise in one of their own.
type along struct{ changes []journal.Change }

// take gives the changes to whoever stores them.
func (a *along) take() (changes []journal.Change) {
	if a != nil {
		changes, a.changes = a.changes, nil
	}
	return changes
}

// Identity is who is behind a connection, as authentication found.
type Identity struct {
	ClientID string
	User     string // empty: anonymous
	Roles    []topics.Role
	Node     string // for the role node: its name
	// Nodes and Devices are globs of the names that the roles extend to: the nodes of an
	// operator or viewer, empty for none, and the devices of a mapper, empty for all.
	Nodes, Devices []string
	// Protocols are the device protocols that a mapper was given; empty: any. The
	// broker doesn't know which device speaks which: the tree checks it.
	Protocols []string
	Listener  string
	Remote    string
	Version   byte // MQTT protocol version: 3, 4 (3.1.1) or 5
	// CertExpires is when the client's certificate does, if it showed one.
	CertExpires time.Time
}

// Has says whether the identity has the role.
func (id Identity) Has(role topics.Role) bool { return slices.Contains(id.Roles, role) }

// Given says whether a node is one of an operator's or viewer's.
func (id Identity) Given(node string) bool { return matchAny(id.Nodes, node) }

// AllNodes says whether the identity is an operator of all nodes: an administrator of the hub.
func (id Identity) AllNodes() bool {
	return id.Has(topics.RoleOperator) && slices.Contains(id.Nodes, "*")
}

// IsLink says whether the client is a core's link to its hub. A node's user may have other clients beside it.
func (id Identity) IsLink() bool { return id.Node != "" && id.ClientID == nodeUser(id.Node) }

// same says whether a session of one may be continued by the other: the same user, who may
// have been given another role meanwhile.
func (id Identity) same(other Identity) bool {
	return id.User == other.User && id.Node == other.Node && id.own() == other.own()
}

// sameRights says whether both may read the same.
func (id Identity) sameRights(other Identity) bool {
	return id.same(other) && slices.Equal(id.Roles, other.Roles) && slices.Equal(id.Nodes, other.Nodes) && slices.Equal(id.Devices, other.Devices) &&
		slices.Equal(id.Protocols, other.Protocols)
}

// outgoing makes the message ready to be shared by sessions.
func outgoing(m Message, now time.Time) *session.Message {
	out := &session.Message{
		Topic: m.Topic, Payload: m.Payload, QoS: m.QoS, Retain: m.Retain, Props: m.Props, From: m.Publisher.ClientID, User: m.Publisher.User,
	}
	out.Stamp(now)
	return out
}

// weight is about what the message costs in memory.
func (m *Message) weight() int {
	return (&session.Message{Topic: m.Topic, Payload: m.Payload, Props: m.Props}).Weight()
}

// properties reads the properties of a PUBLISH or a will.
func properties(p *packets.Properties) Properties {
	out := Properties{
		ContentType: p.ContentType, ResponseTopic: p.ResponseTopic,
		Correlation: p.CorrelationData, Expiry: p.MessageExpiryInterval,
	}
	if p.PayloadFormatFlag {
		format := p.PayloadFormat
		out.PayloadFormat = &format
	}
	for _, u := range p.User {
		out.User = append(out.User, UserProperty{Key: u.Key, Value: u.Val})
	}
	return out
}
