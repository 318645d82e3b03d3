package session

import (
	"time"
)

// UserProperty is one of a message's free-form name and value pairs. Order and
// repetition count.
type UserProperty struct{ Key, Value string }

// Properties travel with a message to MQTT 5 subscribers, unchanged.
type Properties struct {
	ContentType   string
	ResponseTopic string
	Correlation   []byte
	PayloadFormat *byte  // nil: the publisher didn't say
	Expiry        uint32 // seconds that the message is worth delivering; 0: for ever
	User          []UserProperty
}

// Message is a publication on its way to subscribers. It is shared by every
// session that it is queued in, so nothing in it may change after hand-over.
type Message struct {
	Topic   string
	Payload []byte
	QoS     byte
	Retain  bool
	Props   Properties
	From    string // client id of the publisher, for no-local; empty: the broker itself
	User    string // of the publisher, for whom it counts while it is retained
	Record  uint64 // where it is on disk as the topic's retained message; 0: nowhere

	At   time.Time // when the broker took it, as the clock said then
	came time.Time // the same by the clock that runs now, for what is left of its time
}

// Stamp says when the message came, from which its expiry interval counts. It is called
// once, before the message is shared.
func (m *Message) Stamp(now time.Time) { m.At, m.came = now, now }

// Rebase has the time of a message that was read from disk go on.
func (m *Message) Rebase(now time.Time) { m.came = RebaseTime(m.At, now) }

// sane is the beginning of 2026. Nothing of ours ran before it: a clock that says less was
// not set yet.
const sane = 1_767_225_600

// RebaseTime is a time that was read from disk by the clock that runs now, whose jumps change
// nothing any more. What can't be so, because the clock was set in between, was now: a
// time that is to come, or one long before there was such a program.
func RebaseTime(t, now time.Time) time.Time {
	if t.After(now) || t.Unix() < sane && now.Unix() >= sane {
		return now
	}
	return now.Add(t.Sub(now))
}

// expires says when nobody wants the message any more, if it came at a time.
func (m *Message) expires(came time.Time) time.Time {
	if m.Props.Expiry == 0 || came.IsZero() {
		return time.Time{}
	}
	return came.Add(time.Duration(m.Props.Expiry) * time.Second)
}

// Deadline is when nobody wants the message any more; zero: never.
func (m *Message) Deadline() time.Time { return m.expires(m.came) }

// Expired says whether nobody wants the message any more.
func (m *Message) Expired(now time.Time) bool {
	return m.Props.Expiry > 0 && !now.Before(m.expires(m.came))
}

// remaining is the expiry interval to send: what is left of the publisher's,
// rounded up, and never 0, which would mean none.
func (m *Message) remaining(now time.Time) uint32 {
	if m.Props.Expiry == 0 {
		return 0
	}
	left := m.expires(m.came).Sub(now)
	if left <= time.Second {
		return 1
	}
	return uint32((left + time.Second - 1) / time.Second)
}

// What a message costs in memory besides its topic, payload and properties: its own parts and
// its place where it waits, rounded up as memory is given out; and a user property the same.
const (
	messageCost  = 400
	propertyCost = 48
	recordCost   = 64 // on disk
)

// Weight is about what the message costs in memory.
func (m *Message) Weight() int {
	return m.stored() + messageCost - recordCost + propertyCost*len(m.Props.User)
}

// stored is about what the message takes on disk.
func (m *Message) stored() int {
	p := &m.Props
	n := recordCost + len(m.Topic) + len(m.Payload) + len(p.Correlation) + len(p.ResponseTopic) + len(p.ContentType) + len(m.From)
	for _, u := range p.User {
		n += len(u.Key) + len(u.Value)
	}
	return n
}

// Delivery is how one session gets a message: the outcome of its matching
// subscriptions.
type Delivery struct {
	QoS    byte
	Retain bool
	IDs    []uint32    // subscription identifiers; shared, never changed
	Batch  *WriteBatch // that the message is part of; nil: it is sent at once
	Stored bool        // it is sent once it is on disk, where it has to be
	Share  *string     // the shared subscription as whose member the session gets it; nil: none
}

// Types of packet, in the upper four bits of the first byte.
const (
	typePublish = 0x30
	typePuback  = 0x40
	typePubrec  = 0x50
	typePubrel  = 0x62 // with the flags that the standard fixes
	typePubcomp = 0x70
)

// Identifiers of the properties that a PUBLISH may carry.
const (
	propFormat         = 0x01
	propExpiry         = 0x02
	propContentType    = 0x03
	propResponseTopic  = 0x08
	propCorrelation    = 0x09
	propSubscriptionID = 0x0B
	propReason         = 0x1F
	propUser           = 0x26
)

// publish is one PUBLISH packet to encode.
type publish struct {
	item
	id  uint16
	dup bool
}

// sizes returns the length of the packet's properties, of what follows the
// fixed header, and of the whole packet.
func (p *publish) sizes(version byte) (props, body, whole int) {
	body = 2 + len(p.msg.Topic) + len(p.msg.Payload)
	if p.qos > 0 {
		body += 2
	}
	if version == 5 {
		props = p.propsSize()
		body += props + varintSize(props)
	}
	return props, body, 1 + varintSize(body) + body
}

func (p *publish) propsSize() int {
	m := &p.msg.Props
	n := 0
	if m.PayloadFormat != nil {
		n += 2
	}
	if p.msg.Props.Expiry > 0 {
		n += 5
	}
	for _, l := range [...]int{len(m.ContentType), len(m.ResponseTopic), len(m.Correlation)} {
		if l > 0 {
			n += 3 + l
		}
	}
	for _, id := range p.ids {
		n += 1 + varintSize(int(id))
	}
	for _, u := range m.User {
		n += 5 + len(u.Key) + len(u.Value)
	}
	return n
}

// append encodes the packet behind b.
func (p *publish) append(b []byte, version byte, now time.Time) []byte {
	props, body, _ := p.sizes(version)
	first := byte(typePublish) | p.qos<<1
	if p.dup {
		first |= 0x08
	}
	if p.retain {
		first |= 0x01
	}
	b = append(b, first)
	b = appendVarint(b, body)
	b = appendString(b, p.msg.Topic)
	if p.qos > 0 {
		b = append(b, byte(p.id>>8), byte(p.id))
	}
	if version == 5 {
		b = appendVarint(b, props)
		b = p.appendProps(b, now)
	}
	return append(b, p.msg.Payload...)
}

func (p *publish) appendProps(b []byte, now time.Time) []byte {
	m := &p.msg.Props
	if m.PayloadFormat != nil {
		b = append(b, propFormat, *m.PayloadFormat)
	}
	if left := p.msg.remaining(now); left > 0 {
		b = append(b, propExpiry, byte(left>>24), byte(left>>16), byte(left>>8), byte(left))
	}
	if m.ContentType != "" {
		b = appendString(append(b, propContentType), m.ContentType)
	}
	if m.ResponseTopic != "" {
		b = appendString(append(b, propResponseTopic), m.ResponseTopic)
	}
	if len(m.Correlation) > 0 {
		b = appendString(append(b, propCorrelation), m.Correlation)
	}
	for _, id := range p.ids {
		b = appendVarint(append(b, propSubscriptionID), int(id))
	}
	for _, u := range m.User {
		b = appendString(append(b, propUser), u.Key)
		b = appendString(b, u.Value)
	}
	return b
}

// Ack is an acknowledgement to a client's packet.
type Ack struct {
	Type   byte // packet type, 4 to 7
	ID     uint16
	Code   byte
	Reason string // left out where the client asked for none, or can't take it
}

// Append encodes the acknowledgement behind b, for a client of the version.
func (a Ack) Append(b []byte, version byte) []byte {
	first := a.Type << 4
	if first == typePubrel&0xF0 {
		first = typePubrel
	}
	if version < 5 || a.Code == 0 && a.Reason == "" {
		return append(b, first, 2, byte(a.ID>>8), byte(a.ID))
	}
	if a.Reason == "" {
		return append(b, first, 3, byte(a.ID>>8), byte(a.ID), a.Code)
	}
	props := 3 + len(a.Reason)
	b = append(b, first)
	b = appendVarint(b, 3+varintSize(props)+props)
	b = append(b, byte(a.ID>>8), byte(a.ID), a.Code)
	b = appendVarint(b, props)
	return appendString(append(b, propReason), a.Reason)
}

func appendString[T ~string | ~[]byte](b []byte, s T) []byte {
	b = append(b, byte(len(s)>>8), byte(len(s)))
	return append(b, s...)
}

func appendVarint(b []byte, n int) []byte {
	for n >= 0x80 {
		b = append(b, byte(n)|0x80)
		n >>= 7
	}
	return append(b, byte(n))
}

func varintSize(n int) int {
	size := 1
	for ; n >= 0x80; n >>= 7 {
		size++
	}
	return size
}
