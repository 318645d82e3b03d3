// SPDX-License-Identifier: Apache-2.0

package session

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"time"

	"github.com/edgebus/edgebus/broker/journal"
)

// Kinds of a session's records: the first byte of each. Other records in the same journal have kinds from FirstOtherKind
// on. When any record is encoded in another way, all of them get other numbers: a journal of another format is then refused, and not misread.
const (
	kindDelivery   byte = iota + 64 // a message: session, seq, delivery, message
	kindShared                      // a message that is in a body: session, seq, delivery, id of the body
	kindBody                        // a message of several sessions
	kindReleased                    // a QoS 2 message after its PUBREC: session, seq, topic if a replay needs it
	kindInbound                     // a QoS 2 publish of the client's: session, packet id
	kindProgress                    // how far the queue was sent: session, seq, how many messages there was no room for
	kindReplay                      // retained messages that are owed: session, filter, delivery, seq at the subscription, topic after which
	kindSequenced                   // a message that may be on disk only: session, seq, delivery, message, checksum
	kindLive                        // a message that was delivered during a replay: session, seq, topic
	FirstOtherKind byte = 96
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

// Flag appends a boolean.
func (e *Encoder) Flag(b bool) {
	if b {
		*e = append(*e, 1)
	} else {
		*e = append(*e, 0)
	}
}

// Time appends a time, to the millisecond. The zero time stays zero.
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
	var format byte
	if p.PayloadFormat != nil {
		format = 1 + *p.PayloadFormat
	}
	*e = append(*e, m.QoS, format)
	e.Flag(m.Retain)
	e.Text(m.Topic)
	e.Number(uint64(len(m.Payload)))
	*e = append(*e, m.Payload...)
	e.Text(m.From)
	e.Time(m.At)
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

// Bits of a delivery.
const (
	flagRetain = 1 << iota
	flagShare
)

// delivery appends how a message is delivered.
func (e *Encoder) delivery(d *delivery) {
	var flags byte
	if d.retain {
		flags |= flagRetain
	}
	if d.share != nil {
		flags |= flagShare
	}
	*e = append(*e, d.qos, flags)
	e.Number(uint64(len(d.ids)))
	for _, id := range d.ids {
		e.Number(uint64(id))
	}
	if d.share != nil {
		e.Text(*d.share)
	}
}

// encode makes a record of numbers.
func (r *records) encode(kind byte, numbers ...uint64) []byte {
	e := Encoder{kind}
	e.Number(r.session)
	for _, n := range numbers {
		e.Number(n)
	}
	return e
}

// encodeTopic makes the record of a message of which only the topic is still needed.
func (r *records) encodeTopic(kind byte, seq uint64, topic string) []byte {
	e := Encoder(r.encode(kind, seq))
	e.Text(topic)
	return e
}

// encodeDelivery makes a delivery's record. body is the id of the record that has the message; 0: it is in this one.
func (r *records) encodeDelivery(d *delivery, body uint64) []byte {
	e := make(Encoder, 0, d.msg.Weight()+64)
	kind := kindDelivery
	if body > 0 {
		kind = kindShared
	}
	e = append(e, kind)
	e.Number(r.session)
	e.Number(d.record.seq)
	e.delivery(d)
	if body > 0 {
		e.Number(body)
	} else {
		e.Message(d.msg)
	}
	return e
}

// replayChange stores a replay: of whose messages, and how far it is.
func (r *records) replayChange(p *retainedReplay) journal.RecordChange {
	e := Encoder(r.encode(kindReplay))
	e.Text(p.filter)
	e.delivery(&delivery{qos: p.qos, ids: p.ids})
	e.Number(p.seq)
	e.Text(p.after)
	return journal.RecordChange{ID: p.record, Value: e}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encodeSequenced makes the record of a delivery in a sequence. It ends with a checksum: it is read alone, and the journal's
// checksum is that of a whole commit.
func (r *records) encodeSequenced(d *delivery) []byte {
	e := make(Encoder, 0, d.msg.diskSize()+64)
	e = append(e, kindSequenced)
	e.Number(r.session)
	e.Number(d.record.seq)
	unshared := *d
	unshared.share = nil
	e.delivery(&unshared)
	e.Message(d.msg)
	return binary.LittleEndian.AppendUint32(e, crc32.Checksum(e, castagnoli))
}

// Decoder takes a record apart. After the first error all values are zero, and End returns an error.
type Decoder struct {
	b   []byte
	bad bool
}

var (
	errRecord = errors.New("the record can't be decoded")
	errKind   = errors.New("a record of an unknown kind: it is not of this version of Edgebus: take the version that wrote it, or begin with an empty data directory")
	errBody   = errors.New("the record of a queued message is missing")
)

// NewDecoder makes a decoder. The values that it returns don't refer to b.
func NewDecoder(b []byte) *Decoder { return &Decoder{b: b} }

// End returns an error if something was missing, or is left over.
func (d *Decoder) End() error {
	if d.bad || len(d.b) > 0 {
		return errRecord
	}
	return nil
}

func (d *Decoder) fail() { d.bad, d.b = true, nil }

// Byte takes one byte.
func (d *Decoder) Byte() byte {
	if len(d.b) == 0 {
		d.fail()
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

// Flag takes a boolean.
func (d *Decoder) Flag() bool { return d.Byte() != 0 }

// Number takes a number.
func (d *Decoder) Number() uint64 {
	n, used := binary.Uvarint(d.b)
	if used <= 0 {
		d.fail()
		return 0
	}
	d.b = d.b[used:]
	return n
}

func (d *Decoder) bytes() []byte {
	n := d.Count()
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
		d.fail()
		return 0
	}
	return int(n)
}

// Time takes a time.
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
	if format := d.Byte(); format > 0 {
		format--
		p.PayloadFormat = &format
	}
	m.Retain = d.Flag()
	m.Topic = d.Text()
	m.Payload = append([]byte{}, d.bytes()...)
	m.From = d.Text()
	m.At = d.Time()
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

func (d *Decoder) delivery() (it delivery) {
	it.qos = d.Byte()
	flags := d.Byte()
	it.retain = flags&flagRetain != 0
	for range d.Count() {
		it.ids = append(it.ids, uint32(d.Number()))
	}
	if flags&flagShare != 0 {
		share := d.Text()
		it.share = &share
	}
	if it.qos > 2 || flags > flagRetain|flagShare {
		d.bad = true
	}
	return it
}
