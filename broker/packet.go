// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
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
	Dup       bool   // DUP: its publisher may have sent it before without an acknowledgement
	PacketID  uint16 // of its PUBLISH, and of each repetition; 0: QoS 0, or not from a client
	Props     Properties
	Publisher *Identity // nil when the message is the bus's own

	linkConn     *conn         // the node's connection that it came on, which is closed if the message can't be stored; nil: none
	extraChanges *extraChanges // nil: nothing is to be stored with it
}

// ClientID is that of its publisher; empty when the message is the bus's own.
func (m *Message) ClientID() string {
	if m.Publisher == nil {
		return ""
	}
	return m.Publisher.ClientID
}

// User is its publisher's; empty when the publisher is anonymous, or the message is the bus's own.
func (m *Message) User() string {
	if m.Publisher == nil {
		return ""
	}
	return m.Publisher.User
}

// extraChanges are changes that are to be stored with a message that goes to the tree: in the same commit, if
// the tree has it passed on, and otherwise in one of their own.
type extraChanges struct{ changes []journal.RecordChange }

// take removes and returns the changes, for the caller to store.
func (a *extraChanges) take() (changes []journal.RecordChange) {
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
	// Configurations are globs of those that a discoverer was given; empty: all.
	Configurations []string
	// Local says that the client is a program of this host, which signed in as its user at a Unix socket.
	Local    bool
	Listener string
	Remote   string
	Version  byte // MQTT protocol version: 3, 4 (3.1.1) or 5
	// CertExpires is when the client's certificate does, if it showed one.
	CertExpires time.Time
	// Certificate is the one that the client signed in with; nil: it signed in with something else.
	Certificate *x509.Certificate
	// Expires is when the certificate or token ends that the client signed in with, and its connection with it; zero: never.
	Expires time.Time
	Bearer  bool   // the client signed in with a bearer token, of the hub or of a provider
	Token   string // the ID of that token; empty: it is a provider's
	// Revoked is done when that token is revoked, and the connection ends with it; nil: it can't be revoked.
	Revoked context.Context
}

// unknownIdentity is who has not signed in yet.
var unknownIdentity Identity

// Has reports whether the identity has the role. Nil, the bus itself, has none.
func (id *Identity) Has(role topics.Role) bool { return id != nil && slices.Contains(id.Roles, role) }

// GivenNode reports whether a node is one of an operator's or viewer's.
func (id *Identity) GivenNode(node string) bool { return matchAny(id.Nodes, node) }

// AllNodes reports whether the identity is an operator of all nodes: an administrator of the hub.
func (id *Identity) AllNodes() bool {
	return id.Has(topics.RoleOperator) && slices.Contains(id.Nodes, "*")
}

// IsLink reports whether the client is a core's link to its hub. A node's user may have other clients beside it.
func (id *Identity) IsLink() bool { return id.Node != "" && id.ClientID == nodeUser(id.Node) }

// sameUser reports whether a session of one may be continued by the other: the same user, who may
// have been given another role meanwhile.
func (id *Identity) sameUser(other *Identity) bool {
	return id.User == other.User && id.Node == other.Node && id.isBroker() == other.isBroker()
}

// sameRights reports whether both may read the same.
func (id *Identity) sameRights(other *Identity) bool {
	return id.sameUser(other) && slices.Equal(id.Roles, other.Roles) && slices.Equal(id.Nodes, other.Nodes) && slices.Equal(id.Devices, other.Devices) &&
		slices.Equal(id.Protocols, other.Protocols) && slices.Equal(id.Configurations, other.Configurations) && id.Local == other.Local
}

// sessionMessage makes the message ready to be shared by sessions.
func sessionMessage(m Message, now time.Time) *session.Message {
	out := &session.Message{
		Topic: m.Topic, Payload: m.Payload, QoS: m.QoS, Retain: m.Retain, Props: m.Props, From: m.ClientID(), User: m.User(),
	}
	out.Stamp(now)
	return out
}

// weight is about what the message costs in memory.
func (m *Message) weight() int {
	return (&session.Message{Topic: m.Topic, Payload: m.Payload, Props: m.Props}).Weight()
}

// propertiesOf reads the properties of a PUBLISH or a will.
func propertiesOf(p *packets.Properties) Properties {
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

// The library's decoder accepts much that the standard calls malformed: properties
// that come twice or reach beyond their end, reserved bits, bytes left over. So a
// packet's form is checked before it is decoded.

const willProperties = packets.WillProperties // counts as a type of packet

var (
	errMalformed          = packets.Code{Code: codeMalformed, Reason: "malformed packet"}
	errPropertyTwice      = packets.Code{Code: codeProtocolError, Reason: "a property comes twice"}
	errPropertyNotAllowed = packets.Code{Code: codeMalformed, Reason: "a property that this packet can't have"}
	errPropertyValue      = packets.Code{Code: codeProtocolError, Reason: "a value that the standard doesn't allow"}
	errUserProperties     = packets.Code{Code: codeQuota, Reason: fmt.Sprintf("more than %d user properties", maxUserProperties)}
	errReasonCode         = packets.Code{Code: codeProtocolError, Reason: "a reason code that the standard doesn't define for this packet"}
	errUnexpectedPacket   = packets.Code{Code: codeProtocolError, Reason: "a packet that a client doesn't send here"}
)

// valueForm is what a property's value is made of.
type valueForm byte

const (
	formByte valueForm = iota + 1
	formUint16
	formUint32
	formVarint
	formText
	formBytes
	formPair
)

// propertyRule says what a client may send as a property. In packets of other types
// it is a mistake.
type propertyRule struct {
	form     valueForm
	in       []byte // types of packet
	repeated bool
	least    uint32 // value; of a text, bytes
	most     uint32 // value; 0: any
}

var propertyRules = map[byte]propertyRule{
	packets.PropPayloadFormat:          {form: formByte, in: []byte{packets.Publish, willProperties}, most: 1},
	packets.PropMessageExpiryInterval:  {form: formUint32, in: []byte{packets.Publish, willProperties}},
	packets.PropContentType:            {form: formText, in: []byte{packets.Publish, willProperties}},
	packets.PropResponseTopic:          {form: formText, in: []byte{packets.Publish, willProperties}, least: 1},
	packets.PropCorrelationData:        {form: formBytes, in: []byte{packets.Publish, willProperties}},
	packets.PropTopicAlias:             {form: formUint16, in: []byte{packets.Publish}},
	packets.PropSubscriptionIdentifier: {form: formVarint, in: []byte{packets.Subscribe, packets.Publish}, least: 1},
	packets.PropWillDelayInterval:      {form: formUint32, in: []byte{willProperties}},
	packets.PropSessionExpiryInterval:  {form: formUint32, in: []byte{packets.Connect, packets.Disconnect}},
	packets.PropAuthenticationMethod:   {form: formText, in: []byte{packets.Connect}},
	packets.PropAuthenticationData:     {form: formBytes, in: []byte{packets.Connect}},
	packets.PropRequestProblemInfo:     {form: formByte, in: []byte{packets.Connect}, most: 1},
	packets.PropRequestResponseInfo:    {form: formByte, in: []byte{packets.Connect}, most: 1},
	packets.PropReceiveMaximum:         {form: formUint16, in: []byte{packets.Connect}, least: 1},
	packets.PropTopicAliasMaximum:      {form: formUint16, in: []byte{packets.Connect}},
	packets.PropMaximumPacketSize:      {form: formUint32, in: []byte{packets.Connect}, least: 1},
	packets.PropReasonString: {form: formText, in: []byte{
		packets.Puback, packets.Pubrec, packets.Pubrel, packets.Pubcomp, packets.Disconnect,
	}},
	packets.PropUser: {form: formPair, repeated: true, in: []byte{
		packets.Connect, willProperties, packets.Publish, packets.Puback, packets.Pubrec, packets.Pubrel, packets.Pubcomp,
		packets.Subscribe, packets.Unsubscribe, packets.Disconnect,
	}},
}

// packetReader reads a packet's bytes. After the first error it reads zero values.
type packetReader struct {
	b   []byte
	err error
}

func (r *packetReader) fail(err error) {
	if r.err == nil {
		r.err, r.b = err, nil
	}
}

func (r *packetReader) take(n int) []byte {
	if n > len(r.b) {
		r.fail(errMalformed)
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *packetReader) uint8() (v byte) {
	if b := r.take(1); b != nil {
		v = b[0]
	}
	return v
}

func (r *packetReader) uint16() (v uint16) {
	if b := r.take(2); b != nil {
		v = binary.BigEndian.Uint16(b)
	}
	return v
}

func (r *packetReader) uint32() (v uint32) {
	if b := r.take(4); b != nil {
		v = binary.BigEndian.Uint32(b)
	}
	return v
}

func (r *packetReader) bytes() []byte { return r.take(int(r.uint16())) }

func (r *packetReader) text() []byte {
	b := r.bytes()
	if !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0 {
		r.fail(errMalformed)
	}
	return b
}

func (r *packetReader) varint() (v uint32) {
	for shift := 0; shift < 28; shift += 7 {
		b := r.uint8()
		v |= uint32(b&0x7F) << shift
		if b == 0 && shift > 0 { // fewer bytes say the same
			break
		}
		if b < 0x80 {
			return v
		}
	}
	r.fail(errMalformed)
	return 0
}

// id is a packet identifier.
func (r *packetReader) id() {
	if r.uint16() == 0 {
		r.fail(packets.Code{Code: codeProtocolError, Reason: "packet identifier 0"})
	}
}

// properties checks the properties of a type of packet.
func (r *packetReader) properties(kind byte) {
	n := int(r.varint())
	p := packetReader{b: r.take(n), err: r.err}
	var seen uint64
	pairs := 0
	for len(p.b) > 0 {
		name := p.uint8()
		rule := propertyRules[name]
		switch {
		case !bytes.Contains(rule.in, []byte{kind}):
			p.fail(errPropertyNotAllowed)
		case seen&(1<<name) != 0 && !rule.repeated:
			p.fail(errPropertyTwice)
		}
		seen |= 1 << name
		if rule.form == formPair {
			if pairs++; pairs > maxUserProperties && (kind != packets.Publish || pairs > maxUserProperties+linkProperties) {
				p.fail(errUserProperties)
			}
		}
		p.value(rule)
	}
	if p.err != nil {
		r.fail(p.err)
	}
}

func (r *packetReader) value(rule propertyRule) {
	var v uint32
	switch rule.form {
	case formByte:
		v = uint32(r.uint8())
	case formUint16:
		v = uint32(r.uint16())
	case formUint32:
		v = r.uint32()
	case formVarint:
		v = r.varint()
	case formText:
		v = uint32(len(r.text()))
	case formBytes:
		r.bytes()
	case formPair:
		r.text()
		r.text()
	}
	if v < rule.least || rule.most > 0 && v > rule.most {
		r.fail(errPropertyValue)
	}
}

// alias reads the properties of a well-formed PUBLISH and returns its topic alias.
func (r *packetReader) alias() (alias uint16, given bool) {
	p := packetReader{b: r.take(int(r.varint()))}
	for len(p.b) > 0 {
		name := p.uint8()
		if name == packets.PropTopicAlias {
			return p.uint16(), true
		}
		p.value(propertyRules[name])
	}
	return 0, false
}

// end expects that nothing is left.
func (r *packetReader) end() error {
	if len(r.b) > 0 {
		r.fail(errMalformed)
	}
	return r.err
}

// wellFormed checks the form of a packet of an established connection.
func wellFormed(version, first byte, body []byte) error {
	r := packetReader{b: body}
	kind, five := first>>4, version == 5
	if flags := first & 0x0F; kind != packets.Publish && flags != fixedFlags[kind] && (version != 3 || flags&qosBits != fixedFlags[kind]&qosBits) {
		return errMalformed
	}
	switch kind {
	case packets.Publish:
		return r.publish(first, version)
	case packets.Puback, packets.Pubrec, packets.Pubrel, packets.Pubcomp:
		r.id()
		r.reason(kind, five)
	case packets.Subscribe:
		r.subscribe(version)
	case packets.Unsubscribe:
		r.id()
		if five {
			r.properties(kind)
		}
		for len(r.b) > 0 {
			r.text()
		}
	case packets.Disconnect:
		r.reason(kind, five)
	case packets.Pingreq:
	default: // AUTH without an authentication method, a second CONNECT, or a packet that only servers send
		return errUnexpectedPacket
	}
	return r.end()
}

// fixedFlags are the lower four bits of the first byte, where the standard fixes them.
var fixedFlags = [16]byte{packets.Pubrel: 2, packets.Subscribe: 2, packets.Unsubscribe: 2}

// qosBits and dupBit are those of the first byte of a packet.
const (
	qosBits = 0x06
	dupBit  = 0x08
)

// asLater is a packet of MQTT 3.1 as later versions have it: DUP may be set in packets that are sent again, and bits that are not
// used may have any value.
func asLater(first byte, body []byte) (later byte, changed []byte) {
	kind := first >> 4
	switch {
	case kind == packets.Publish && first&qosBits == 0:
		return first &^ dupBit, body
	case kind == packets.Publish:
		return first, body
	case kind == packets.Subscribe:
		body = bytes.Clone(body)
		for r := (packetReader{b: body[2:]}); len(r.b) > 0; { // it is well-formed
			r.bytes()
			r.b[0] &= 3
			r.uint8()
		}
	}
	return kind<<4 | fixedFlags[kind], body
}

func (r *packetReader) publish(first, version byte) error {
	qos, five := first>>1&3, version == 5
	if qos == 3 || qos == 0 && first&dupBit != 0 && version > 3 {
		return errMalformed
	}
	r.text()
	if qos > 0 {
		r.id()
	}
	if five {
		r.properties(packets.Publish)
	}
	return r.err
}

// reason is a reason code with properties. Both may be left out at the end.
func (r *packetReader) reason(kind byte, five bool) {
	if !five || len(r.b) == 0 {
		return
	}
	if code := r.uint8(); !bytes.Contains(reasonCodes[kind], []byte{code}) {
		r.fail(errReasonCode)
	}
	if len(r.b) > 0 {
		r.properties(kind)
	}
}

// reasonCodes are those that the standard defines for each type of packet that a client sends.
var reasonCodes = map[byte][]byte{
	packets.Puback:  {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
	packets.Pubrec:  {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
	packets.Pubrel:  {0x00, 0x92},
	packets.Pubcomp: {0x00, 0x92},
	packets.Disconnect: {
		0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98,
		0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
	},
}

func (r *packetReader) subscribe(version byte) {
	r.id()
	reserved := byte(0xFC)
	switch version {
	case 5:
		r.properties(packets.Subscribe)
		reserved = 0xC0
	case 3:
		reserved = 0
	}
	for len(r.b) > 0 {
		r.text()
		options := r.uint8()
		switch {
		case options&reserved != 0:
			r.fail(errMalformed)
		case options&3 == 3, version == 5 && options&0x30 == 0x30: // QoS and retain handling
			r.fail(errPropertyValue)
		}
	}
}

// connectWellFormed checks the form of a CONNECT whose protocol is known.
func connectWellFormed(version byte, body []byte) error {
	r := packetReader{b: body}
	r.bytes() // protocol
	r.uint8()
	flags := r.uint8()
	r.uint16()
	will, user, password := flags&0x04 != 0, flags&0x80 != 0, flags&0x40 != 0
	switch {
	case flags&1 != 0 && version > 3, flags>>3&3 == 3, !will && flags&0x38 != 0, password && !user && version < 5:
		return errMalformed
	}
	if version == 5 {
		r.properties(packets.Connect)
	}
	r.text()
	if will {
		if version == 5 {
			r.properties(willProperties)
		}
		r.text()
		r.bytes()
	}
	if user {
		r.text()
	}
	if password {
		r.bytes()
	}
	return r.end()
}

// MQTT 5 reason codes that this package gives.
const (
	codeSuccess          = 0x00
	codeWill             = 0x04
	codeNoSubscription   = 0x11
	codeUnspecified      = 0x80
	codeMalformed        = 0x81
	codeProtocolError    = 0x82
	codeImplementation   = 0x83
	codeBadVersion       = 0x84
	codeBadClientID      = 0x85
	codeBadCredentials   = 0x86
	codeNotAuthorized    = 0x87
	codeUnavailable      = 0x88
	codeServerBusy       = 0x89
	codeShuttingDown     = 0x8B
	codeKeepAlive        = 0x8D
	codeBadAuthMethod    = 0x8C
	codeTakenOver        = 0x8E
	codeBadFilter        = 0x8F
	codeBadTopic         = 0x90
	codeReceiveMaximum   = 0x93
	codeBadAlias         = 0x94
	codeTooLarge         = 0x95
	codeQuota            = 0x97
	codeAdministrative   = 0x98
	codeBadPayload       = 0x99
	codeConnectRate      = 0x9F
	maxReason            = 1024 // bytes of a reason string
	connackUnavailable   = 0x03 // MQTT 3.1.1 return codes
	connackNotAuthorized = 0x05
	connackBadIdentifier = 0x02
	connackBadVersion    = 0x01
)

// closeReasons name in counters why the broker closed a connection.
var closeReasons = map[byte]string{
	codeMalformed: "malformed packet", codeProtocolError: "protocol error", codeReceiveMaximum: "receive maximum exceeded",
	codeBadAlias: "topic alias", codeTooLarge: "packet too large", codeKeepAlive: "keep-alive", codeTakenOver: "taken over",
	codeShuttingDown: "server shutting down", codeAdministrative: "administrative", codeQuota: "quota exceeded",
	codeNotAuthorized: "certificate or token ended", codeImplementation: "message not stored",
}

const readsNothing = "client reads nothing"

// codeOf is the reason code of a refused publish: the one place where an error's
// kind becomes MQTT. Only codes that the standard allows in a PUBACK and a PUBREC
// are used, for some clients take any other for a broken packet: what is too
// large is told by 0x97 and its reason string.
func codeOf(err error) byte {
	var topicErr *topics.Error
	if errors.As(err, &topicErr) {
		return codeBadTopic
	}
	switch resource.KindOf(err) {
	case resource.Invalid:
		return codeBadPayload
	case resource.BadTopic, resource.NotFound:
		return codeBadTopic
	case resource.Unauthorized, resource.Forbidden:
		return codeNotAuthorized
	case resource.TooLarge, resource.Quota:
		return codeQuota
	case resource.Conflict, resource.AlreadyExists, resource.Gone, resource.Unavailable:
		return codeImplementation
	}
	return codeUnspecified
}

// kindOf names the refusal in counters and logs.
func kindOf(err error) resource.ErrorKind {
	var topicErr *topics.Error
	if errors.As(err, &topicErr) {
		return resource.BadTopic
	}
	return resource.KindOf(err)
}

// topicError is an error about a topic, with the rule before it: a reader may see the beginning only.
func topicError(kind resource.ErrorKind, topic, rule string, args ...any) *resource.Error {
	return resource.Errorf(kind, "", "%s: topic %s", fmt.Sprintf(rule, args...), topics.QuoteTopic(topic))
}

// reasonOf is the reason string of a refusal: the rule, and then the topic or name that breaks it, cut. A field, such as a property of a
// device, stands before its rule, as everywhere, unless it is longer than names are. What is the broker's own fault is not told to clients.
func reasonOf(err error) string {
	if kindOf(err) == resource.Internal {
		return "internal error"
	}
	reason := err.Error()
	var topicErr *topics.Error
	if errors.As(err, &topicErr) {
		reason = topicErr.Reason()
	} else if e := (*resource.Error)(nil); errors.As(err, &e) && reason == e.Error() {
		switch {
		case strings.Contains(e.Field, "/"):
			reason = e.Message + ": topic " + topics.QuoteTopic(e.Field)
		case len(e.Field) > longestField:
			reason = e.Message + ": " + topics.QuoteTopic(e.Field)
		}
	}
	return shortReason(reason)
}

// longestField is the longest name that stands before its rule in a reason string.
const longestField = 64

// shortReason makes a reason string that fits a packet.
func shortReason(reason string) string {
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	return validText(reason)
}
