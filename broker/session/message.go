// SPDX-License-Identifier: Apache-2.0

package session

import "time"

// UserProperty is a user property of MQTT 5. Their order and repetitions are kept.
type UserProperty struct{ Key, Value string }

// Properties are passed on to MQTT 5 subscribers unchanged.
type Properties struct {
	ContentType   string
	ResponseTopic string
	Correlation   []byte
	PayloadFormat *byte  // nil: not given
	Expiry        uint32 // message expiry interval in seconds; 0: none
	User          []UserProperty
}

// Message is a publication. All sessions that it is queued in share it, so it must not change once it has been enqueued.
type Message struct {
	Topic   string
	Payload []byte
	QoS     byte
	Retain  bool
	Props   Properties
	From    string // client id of the publisher, for no-local; empty: the broker itself
	User    string // of the publisher, to whom it is charged while it is retained
	Record  uint64 // id of the record that has it as the topic's retained message; 0: none

	At   time.Time // when the broker took it, as the wall clock said then
	came time.Time // the same by the monotonic clock, for its expiry and age
}

// Stamp sets the time at which the broker took the message. It is called once, before the message is shared.
func (m *Message) Stamp(now time.Time) { m.At, m.came = now, now }

// Rebase makes the age of a message that was read from disk independent of later changes of the wall clock.
func (m *Message) Rebase(now time.Time) { m.came = RebaseTime(m.At, now) }

// earliestClock is the beginning of 2026, before which there was no Edgebus: a clock that says less was not set.
const earliestClock = 1_767_225_600

// RebaseTime expresses a time that was read from disk by the monotonic clock. An impossible time (in the future, or from
// before the clock was set) is taken for now.
func RebaseTime(t, now time.Time) time.Time {
	if t.After(now) || t.Unix() < earliestClock && now.Unix() >= earliestClock {
		return now
	}
	return now.Add(t.Sub(now))
}

// SteadyTime is now, but by the wall clock that there was at the start if that was set back since: who reads it from disk later, by a clock
// that is right, must not take it for older than it is.
func SteadyTime(start, now time.Time) time.Time {
	if steady := start.Add(now.Sub(start)); steady.UnixNano() > now.UnixNano() {
		return steady
	}
	return now
}

// Deadline is when the message expires; zero: never.
func (m *Message) Deadline() time.Time {
	if m.Props.Expiry == 0 || m.came.IsZero() {
		return time.Time{}
	}
	return m.came.Add(time.Duration(m.Props.Expiry) * time.Second)
}

// Expired reports whether the message expiry interval is over.
func (m *Message) Expired(now time.Time) bool {
	return m.Props.Expiry > 0 && !now.Before(m.Deadline())
}

// remaining is the message expiry interval to send: the rest of the publisher's, rounded up, and never 0, which would
// mean none.
func (m *Message) remaining(now time.Time) uint32 {
	if m.Props.Expiry == 0 {
		return 0
	}
	left := m.Deadline().Sub(now)
	if left <= time.Second {
		return 1
	}
	return uint32((left + time.Second - 1) / time.Second)
}

// What a message costs besides its topic, payload and properties.
const (
	messageCost  = 400 // in memory, as the allocator rounds up, with its item in a queue
	propertyCost = 48  // of each user property, in memory
	recordCost   = 64  // on disk
)

// Weight is about how many bytes of memory the message takes.
func (m *Message) Weight() int {
	return m.diskSize() + messageCost - recordCost + propertyCost*len(m.Props.User)
}

// diskSize is about how many bytes the message takes on disk.
func (m *Message) diskSize() int {
	p := &m.Props
	n := recordCost + len(m.Topic) + len(m.Payload) + len(p.Correlation) + len(p.ResponseTopic) + len(p.ContentType) + len(m.From)
	for _, u := range p.User {
		n += len(u.Key) + len(u.Value)
	}
	return n
}

// DeliveryOptions is how a session gets a message, which follows from its matching subscriptions.
type DeliveryOptions struct {
	QoS    byte
	Retain bool
	IDs    []uint32    // subscription identifiers; shared, never changed
	Batch  *WriteBatch // with which it is sent; nil: at once
	Stored bool        // a durable session sends it only once it is on disk
	Share  *string     // the shared subscription as whose member the session gets it; nil: none
}

// Types of packets, in the upper four bits of the first byte.
const (
	typePublish = 0x30
	typePubrel  = 0x62 // with the flags that the standard fixes
	typePubcomp = 0x70
	typePuback  = 0x40
)

// Identifiers of properties.
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

// outboundPacket is a packet to encode: a PUBLISH, or the PUBREL that takes its place.
type outboundPacket struct {
	delivery
	id      uint16
	dup     bool
	release bool // it is the PUBREL
}

// exceeds reports whether the packet is larger than the client takes; a limit of 0 is none.
func (p *outboundPacket) exceeds(limit int, version byte) bool {
	if limit == 0 {
		return false
	}
	_, _, size := p.sizes(version)
	return size > limit
}

// sizes returns the length of the packet's properties, of what follows the fixed header, and of the whole packet.
func (p *outboundPacket) sizes(version byte) (props, body, whole int) {
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

func (p *outboundPacket) propsSize() int {
	m := &p.msg.Props
	n := 0
	if m.PayloadFormat != nil {
		n += 2
	}
	if m.Expiry > 0 {
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
func (p *outboundPacket) append(b []byte, version byte, now time.Time) []byte {
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

func (p *outboundPacket) appendProps(b []byte, now time.Time) []byte {
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

// Ack is an acknowledgement: PUBACK, PUBREC, PUBREL or PUBCOMP.
type Ack struct {
	Type   byte // packet type, 4 to 7
	ID     uint16
	Code   byte
	Reason string // reason string; empty: none
}

// Append encodes the acknowledgement behind b. A client of MQTT 3.1.1 gets the packet id alone.
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
