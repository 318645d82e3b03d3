package session

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/edgebus/edgebus/broker/journal"
)

// Kinds of a session's records: the first byte of each. Whoever keeps other records
// in the same journal uses kinds from KindOther on.
const (
	kindEntry     byte = iota + 1 // a queued message: session, seq, how, message
	kindShared                    // the same of a message that others have, too: session, seq, how, number of the body
	kindBody                      // such a message
	kindReleased                  // a QoS 2 message after its PUBREC: session, seq, topic if that still counts for pulls
	kindInbound                   // a QoS 2 publish of the client's: session, packet id
	kindProgress                  // how far the queue was sent: session, seq
	kindPull                      // retained messages that are still to be sent: session, filter, how, seq at the subscription, topic after which
	kindSequenced                 // a queued message in a sequence: session, seq, how, message, checksum
	kindArrived                   // a message that was delivered while retained ones are still to be sent: session, seq, topic
	KindOther     byte = 32
)

// Encoder appends values to a record.
type Encoder []byte

// Number appends a number.
func (e *Encoder) Number(n uint64) { *e = binary.AppendUvarint(*e, n) }

// Text appends a string.
func (e *Encoder) Text(s string) {
	e.Number(uint64(len(s)))
	*e = append(*e, s...)
}

// Flag appends a yes or no.
func (e *Encoder) Flag(yes bool) {
	if yes {
		*e = append(*e, 1)
	} else {
		*e = append(*e, 0)
	}
}

// Time appends a moment, to the millisecond; the zero time stays zero.
func (e *Encoder) Time(t time.Time) {
	if t.IsZero() {
		e.Number(0)
		return
	}
	e.Number(uint64(max(t.UnixMilli(), 1)))
}

// Message appends a message.
func (e *Encoder) Message(m *Message) {
	p := &m.Props
	var has byte
	if p.PayloadFormat != nil {
		has = 1 + *p.PayloadFormat
	}
	*e = append(*e, m.QoS, has)
	e.Flag(m.Retain)
	e.Text(m.Topic)
	e.Number(uint64(len(m.Payload)))
	*e = append(*e, m.Payload...)
	e.Text(m.From)
	e.Time(m.At)
	e.Time(m.expires(m.At))
	e.Number(uint64(p.Expiry))
	e.Text(p.ContentType)
	e.Text(p.ResponseTopic)
	e.Text(string(p.Correlation))
	e.Number(uint64(len(p.User)))
	for _, u := range p.User {
		e.Text(u.Key)
		e.Text(u.Value)
	}
}

// Decoder takes a record apart. After the first mistake all values are zero, and
// End says so.
type Decoder struct {
	b   []byte
	bad bool
}

var errRecord = errors.New("a record that can't be read")

// NewDecoder makes a decoder. What it returns doesn't refer to b.
func NewDecoder(b []byte) *Decoder { return &Decoder{b: b} }

// End returns an error if something was missing, or is left over.
func (d *Decoder) End() error {
	if d.bad || len(d.b) > 0 {
		return errRecord
	}
	return nil
}

// Byte takes one byte.
func (d *Decoder) Byte() byte {
	if len(d.b) == 0 {
		d.bad = true
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

// Flag takes a yes or no.
func (d *Decoder) Flag() bool { return d.Byte() != 0 }

// Number takes a number.
func (d *Decoder) Number() uint64 {
	n, used := binary.Uvarint(d.b)
	if used <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[used:]
	return n
}

func (d *Decoder) bytes() []byte {
	n := d.Number()
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return nil
	}
	s := d.b[:n]
	d.b = d.b[n:]
	return s
}

// Text takes a string.
func (d *Decoder) Text() string { return string(d.bytes()) }

// Count takes the number of things that follow, each of at least one byte.
func (d *Decoder) Count() int {
	n := d.Number()
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return 0
	}
	return int(n)
}

// Time takes a moment.
func (d *Decoder) Time() time.Time {
	n := d.Number()
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(n))
}

// Message takes a message.
func (d *Decoder) Message() *Message {
	m := &Message{QoS: d.Byte()}
	p := &m.Props
	if has := d.Byte(); has > 0 {
		format := has - 1
		p.PayloadFormat = &format
	}
	m.Retain = d.Flag()
	m.Topic = d.Text()
	m.Payload = append([]byte{}, d.bytes()...)
	m.From = d.Text()
	m.At = d.Time()
	_ = d.Time() // when it expires, which follows
	p.Expiry = uint32(d.Number())
	p.ContentType, p.ResponseTopic = d.Text(), d.Text()
	if b := d.bytes(); len(b) > 0 {
		p.Correlation = append([]byte{}, b...)
	}
	for range d.Count() {
		p.User = append(p.User, UserProperty{d.Text(), d.Text()})
	}
	if m.QoS > 2 {
		d.bad = true
	}
	return m
}

// Bits of how a message is delivered.
const (
	flagRetain = 1 << iota
	flagShare
)

// how appends what a subscription makes of a message.
func (e *Encoder) how(d Delivery) {
	var flags byte
	if d.Retain {
		flags |= flagRetain
	}
	if d.Share != nil {
		flags |= flagShare
	}
	*e = append(*e, d.QoS, flags)
	e.Number(uint64(len(d.IDs)))
	for _, id := range d.IDs {
		e.Number(uint64(id))
	}
	if d.Share != nil {
		e.Text(*d.Share)
	}
}

func (d *Decoder) how() (v Delivery) {
	v.QoS = d.Byte()
	flags := d.Byte()
	v.Retain = flags&flagRetain != 0
	for range d.Count() {
		v.IDs = append(v.IDs, uint32(d.Number()))
	}
	if flags&flagShare != 0 {
		share := d.Text()
		v.Share = &share
	}
	if v.QoS > 2 || flags > flagRetain|flagShare {
		d.bad = true
	}
	return v
}

// entry encodes an item; body is where its message is, if it isn't here.
func (s *Session) entry(it item, body uint64) []byte {
	e := make(Encoder, 0, it.msg.Weight()+64)
	kind := kindEntry
	if body > 0 {
		kind = kindShared
	}
	e = append(e, kind)
	e.Number(s.number)
	e.Number(it.stake.seq)
	e.how(Delivery{QoS: it.qos, Retain: it.retain, IDs: it.ids, Share: it.share})
	if body > 0 {
		e.Number(body)
	} else {
		e.Message(it.msg)
	}
	return e
}

// numbers encodes the records that are nothing but numbers.
func (s *Session) numbers(kind byte, n uint64) []byte {
	e := Encoder{kind}
	e.Number(s.number)
	e.Number(n)
	return e
}

func (s *Session) pullRecord(p *pull) journal.Change {
	e := Encoder{kindPull}
	e.Number(s.number)
	e.Text(p.filter)
	e.how(Delivery{QoS: p.qos, IDs: p.ids})
	e.Number(p.seq)
	e.Text(p.after)
	return journal.Change{ID: p.marker, Value: e}
}
