// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/eclipse/paho.golang/packets"
)

// UserProperty is one MQTT 5 user property. Keys may repeat and keep their order.
type UserProperty struct{ Key, Value string }

// Message is an application message, in either direction.
type Message struct {
	Topic   string
	Payload []byte
	QoS     byte
	Retain  bool // outgoing: keep it on the broker; incoming: the same as Retained
	// Retained says that an incoming message is older than the subscription: the broker had retained it.
	Retained bool

	ContentType   string
	ResponseTopic string
	Correlation   []byte
	Text          bool          // the payload is UTF-8 text
	Expiry        time.Duration // whole seconds on the wire, rounded up; 0 never expires
	User          []UserProperty
}

// Property returns the value of the first user property called key, or "".
func (m Message) Property(key string) string {
	for _, p := range m.User {
		if p.Key == key {
			return p.Value
		}
	}
	return ""
}

// check refuses what no broker may accept: a broker would end the connection for it.
func (m Message) check() error {
	switch {
	case m.Topic == "":
		return errors.New("mqtt: publish without a topic: set Message.Topic")
	case m.QoS > 2:
		return fmt.Errorf("mqtt: publish to %s with QoS %d: use 0, 1 or 2", m.Topic, m.QoS)
	case !validText(m.Topic) || strings.ContainsAny(m.Topic, "+#"):
		return fmt.Errorf("mqtt: %q is no topic name: at most 65535 bytes of UTF-8, without +, # and NUL", m.Topic)
	case !validText(m.ResponseTopic) || strings.ContainsAny(m.ResponseTopic, "+#"):
		return fmt.Errorf("mqtt: response topic %q is no topic name", m.ResponseTopic)
	case len(m.Correlation) > 65535 || !validText(m.ContentType):
		return fmt.Errorf("mqtt: publish to %s: correlation data or content type too long", m.Topic)
	}
	for _, p := range m.User {
		if !validText(p.Key) || !validText(p.Value) {
			return fmt.Errorf("mqtt: publish to %s: user property %q is not UTF-8 of at most 65535 bytes", m.Topic, p.Key)
		}
	}
	return nil
}

func validText(s string) bool {
	return len(s) <= 65535 && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}

// Subscription asks for the messages that match Filter.
type Subscription struct {
	Filter            string
	QoS               byte
	NoLocal           bool // not what this client publishes itself
	RetainAsPublished bool
	RetainHandling    byte // 0 send retained, 1 only for a new subscription, 2 never
}

var (
	// ErrNotConnected means that nothing was sent: there is no connection at the moment.
	ErrNotConnected = errors.New("mqtt: not connected; the client goes on trying, so publish again once OnConnect was called")
	// ErrConnectionLost means that the outcome is unknown: the connection ended before the broker's answer.
	ErrConnectionLost = errors.New("mqtt: connection lost before the answer: it may or may not have been done; do it again if that is harmless")
	// ErrBusy means that Options.MaxPending publishes are waiting already, and this one was not taken.
	ErrBusy = errors.New("mqtt: too many publishes are waiting for their acknowledgement: publish slower or raise MaxPending")
	// ErrClosed means that Run has returned.
	ErrClosed = errors.New("mqtt: the client has been stopped")
)

// Refused is the broker's refusal of a CONNECT, PUBLISH, SUBSCRIBE or UNSUBSCRIBE.
type Refused struct {
	Op     string // "connect", "publish to", "subscribe to", "unsubscribe from"
	Topic  string
	Code   byte
	Reason string // the broker's reason string, when it gave one
	// User are the user properties of a refused CONNECT.
	User []UserProperty
}

// Disconnected is the broker's DISCONNECT: its own word, after the handshakes of TLS and MQTT. Ends without it are the network's.
type Disconnected struct {
	Code     byte
	Reason   string // the broker's reason string, when it gave one
	ClientID string // of this client
}

func (d *Disconnected) Error() string {
	s := "the broker disconnected us: " + describeCode(d.Code, d.Reason)
	if d.Code == packets.DisconnectSessionTakenOver {
		s += fmt.Sprintf(": another client uses the client id %q: give each its own", d.ClientID)
	}
	return s
}

// ConnectRefused returns the broker's refusal of a CONNECT, if that is why there is no connection: the broker's own word, after the
// handshake of TLS and before that of MQTT. Servers that fail the first, and errors of other packets, give nil.
func ConnectRefused(err error) *Refused {
	if r := (*Refused)(nil); errors.As(err, &r) && r.Op == opConnect {
		return r
	}
	return nil
}

const opConnect = "connect"

func (r *Refused) Error() string {
	s := "mqtt: " + r.Op
	if r.Topic != "" {
		s += " " + r.Topic
	}
	reason := r.Reason
	if what, why, ok := strings.Cut(reason, ": "); ok && strings.HasSuffix("/"+r.Topic, "/"+what) {
		reason = why
	}
	return s + " refused: " + describeCode(r.Code, reason)
}

// describeCode makes a text of a reason code and a reason string, which may begin with the code's name.
func describeCode(code byte, reason string) string {
	text := cmp.Or(codeText[code], "reason code unknown to this client")
	switch {
	case reason == "":
		return fmt.Sprintf("%s (0x%02X)", text, code)
	case strings.HasPrefix(reason, text):
		return fmt.Sprintf("%s (0x%02X)", reason, code)
	}
	return fmt.Sprintf("%s (0x%02X): %s", text, code, reason)
}

// codeText are the specification's names of reason codes, in lower case.
var codeText = map[byte]string{
	0x00: "success", 0x04: "disconnect with will", 0x10: "no matching subscribers",
	0x80: "unspecified error", 0x81: "malformed packet", 0x82: "protocol error", 0x83: "implementation specific error",
	0x84: "protocol version not supported", 0x85: "client identifier not valid", 0x86: "bad user name or password",
	0x87: "not authorised", 0x88: "server unavailable", 0x89: "server busy", 0x8A: "banned", 0x8B: "server shutting down",
	0x8C: "bad authentication method", 0x8D: "keep alive timeout", 0x8E: "session taken over", 0x8F: "topic filter invalid",
	0x90: "topic name invalid", 0x91: "packet identifier in use", 0x92: "packet identifier not found",
	0x93: "receive maximum exceeded", 0x94: "topic alias invalid", 0x95: "packet too large", 0x96: "message rate too high",
	0x97: "quota exceeded", 0x98: "administrative action", 0x99: "payload format invalid", 0x9A: "retain not supported",
	0x9B: "QoS not supported", 0x9C: "use another server", 0x9D: "server moved", 0x9E: "shared subscriptions not supported",
	0x9F: "connection rate exceeded", 0xA0: "maximum connect time", 0xA1: "subscription identifiers not supported",
	0xA2: "wildcard subscriptions not supported",
}
