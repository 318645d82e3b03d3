package session

import "time"

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
