// SPDX-License-Identifier: Apache-2.0

package session

import (
	"time"

	"github.com/edgebus/edgebus/topics/link"
)

// A client may take large messages in parts, as a node's core does over its link (package topics/link). It then gets no more at a time than its
// line takes, and what is small doesn't wait for what is large. An unfinished message goes on over the client's next connection.

// maxUnacknowledgedBytes bounds the bytes that were sent to such a client and are not acknowledged.
const maxUnacknowledgedBytes = 256 << 10

// PartsParams say how a client takes parts.
type PartsParams struct {
	Topic  string // of the parts; "": it takes none
	Memory string // names what the client keeps of an unfinished message; with another name it has nothing
}

// partsSender is the state of a connection whose client takes parts.
type partsSender struct {
	PartsParams
	version  byte
	inflight *inflight
	turns    link.PartTurns[*heldDelivery]
	resumed  *heldDelivery // unfinished on an earlier connection; nil: none
	sent     map[*inflightMessage]sentPacket
	bytes    int // of them
}

// heldDelivery is a message that waits for its turn, and goes in parts if it is large.
type heldDelivery struct {
	*inflightMessage
	link.OutgoingParts
	size int
	dup  bool
	done bool // its last part, or all of it, was sent
}

// sentPacket is a packet that was sent over the connection and is not acknowledged.
type sentPacket struct {
	size int
	at   time.Time
	of   *heldDelivery // whose part it is; nil: it is a message
	end  int           // of the part
}

// next is the state of the next connection; nil: its client takes no parts. Parts of this one are not sent again as they were: their
// message is cut anew from where the client has it.
func (t *partsSender) next(p PartsParams, version byte, f *inflight) *partsSender {
	if t != nil {
		for x, packet := range t.sent {
			if packet.of != nil {
				f.remove(x)
			}
		}
	}
	if p.Topic == "" {
		return nil
	}
	next := &partsSender{
		PartsParams: p, version: version, inflight: f,
		turns: link.PartTurns[*heldDelivery]{LinePace: link.NewLinePace(maxUnacknowledgedBytes)}, sent: make(map[*inflightMessage]sentPacket),
	}
	if t != nil && t.Memory == p.Memory {
		if next.resumed = t.resumed; t.resumed == nil {
			next.resumed, _ = t.turns.First()
		}
	}
	return next
}

// sendWhole notes that a message is sent that doesn't wait for its turn.
func (t *partsSender) sendWhole(p outboundPacket, now time.Time) {
	if x := t.inflight.byID[p.id]; x != nil && p.qos > 0 && !p.release {
		_, _, size := p.sizes(t.version)
		t.note(x, sentPacket{size: size, at: now})
	}
}

// holdBack reports whether a message waits for its turn. One of QoS 0 that does has an acknowledgement from then on.
func (t *partsSender) holdBack(p outboundPacket) bool {
	_, _, size := p.sizes(t.version)
	x := t.inflight.byID[p.id]
	if p.qos == 0 {
		x = nil
	}
	m := &heldDelivery{inflightMessage: x, size: size, dup: p.dup}
	if p.qos == 0 && t.inflight.full() || !t.turns.Hold(m, p.msg.Topic, size, p.qos < 2 && t.large(p.msg)) {
		return false
	}
	if x == nil {
		p.delivery.qos = 1
		m.inflightMessage = t.inflight.add(p.delivery)
	}
	t.inflight.hold(m.inflightMessage)
	m.OutgoingParts = link.OutgoingParts{ID: link.NewPartID(), Topic: p.msg.Topic, Payload: p.msg.Payload}
	if r := t.resumed; r != nil && r.inflightMessage == x {
		m.OutgoingParts, t.resumed = r.OutgoingParts, nil
		m.Sent = m.Acked
	}
	return true
}

// firstHeld is the message whose turn it is. One that the client has answered although it was not sent has no turn.
func (t *partsSender) firstHeld() (m *heldDelivery, ok bool) {
	for m, ok = t.turns.First(); ok && !m.done && m.state() != stateDue; m, ok = t.turns.First() {
		t.turns.Done()
	}
	return m, ok
}

// large reports whether a message is to go in parts. Only its payload is cut, so only that counts.
func (t *partsSender) large(m *Message) bool { return t.turns.Large(len(m.Payload)) }

// nextPart is the next part of the first message that waits, or all of it if it is small.
func (t *partsSender) nextPart(now time.Time) (p outboundPacket, ok bool) {
	m, ok := t.firstHeld()
	if !ok || m.done || t.inflight.full() {
		return p, false
	}
	t.turns.PartSent()
	if m.qos == 2 || m.Sent == 0 && !t.large(m.msg) {
		return t.finish(m, m.msg, m.size, now), true
	}
	part := m.Next(t.turns.PartSize())
	payload, err := link.EncodeMessagePart(part)
	if err != nil {
		return p, false // it can't happen: the message was encoded in the same way when it came
	}
	if !part.Last() {
		x := t.inflight.add(newDelivery(&Message{Topic: t.Topic, Payload: payload}, DeliveryOptions{QoS: 1}))
		p = outboundPacket{delivery: x.delivery, id: x.id}
		_, _, size := p.sizes(t.version)
		t.note(x, sentPacket{size: size, at: now, of: m, end: m.Sent})
		return p, true
	}
	last := *m.msg
	last.Topic, last.Payload = t.Topic, payload
	return t.finish(m, &last, 0, now), true
}

// finish sends the last packet of a message that had to wait. A size of 0 is not known yet.
func (t *partsSender) finish(m *heldDelivery, content *Message, size int, now time.Time) outboundPacket {
	m.done = true
	t.inflight.send(m.inflightMessage)
	p := outboundPacket{delivery: m.delivery, id: m.id, dup: m.dup}
	p.msg = content
	if size == 0 {
		_, _, size = p.sizes(t.version)
	}
	t.note(m.inflightMessage, sentPacket{size: size, at: now})
	return p
}

func (t *partsSender) note(x *inflightMessage, p sentPacket) {
	t.sent[x] = p
	t.bytes += p.size
}

// answered notes that the client has acknowledged a packet, or that its message is dropped.
func (t *partsSender) answered(x *inflightMessage, now time.Time) {
	if p, ok := t.sent[x]; ok {
		delete(t.sent, x)
		t.bytes -= p.size
		t.turns.Answered(p.size, p.at, now)
		if p.of != nil {
			p.of.Acked = max(p.of.Acked, p.end)
		}
	}
	if first, ok := t.turns.First(); ok && first.inflightMessage == x {
		t.turns.Done()
	}
}

// waiting reports whether messages wait for their turn.
func (t *partsSender) waiting() bool {
	if t == nil {
		return false
	}
	_, ok := t.turns.First()
	return ok
}
