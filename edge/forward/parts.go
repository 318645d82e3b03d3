// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bytes"
	"sync"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics/link"
)

// Upload is the message that goes to the hub in parts. It outlives connections: the next one goes on with the first byte that the hub has
// not acknowledged.
type Upload struct {
	running sync.Mutex // held while a Forwarder runs

	link.OutgoingParts
	whole bool // the hub has no room for parts: send it as one packet
}

// of makes u the upload of a message. It goes on if the message is the one that was under way.
func (u *Upload) of(m client.Message) {
	if u.ID == nil || u.Topic != m.Topic || !bytes.Equal(u.Payload, m.Payload) {
		u.OutgoingParts, u.whole = link.OutgoingParts{ID: link.NewPartID(), Topic: m.Topic, Payload: m.Payload}, false
	}
	u.Sent = u.Acked
}

// heldMessage was taken from the queue and waits: it is large, or of the topic of one before it that waits.
type heldMessage struct {
	p broker.LinkMessage
	m client.Message
	n int // size
}

// hold reports whether a message waits for its turn among the held ones, and adds it. f.mu is held.
func (f *Forwarder) hold(h *heldMessage) bool {
	return f.turns.Hold(h, h.m.Topic, h.n, f.o.Parts != "" && f.large(h))
}

// large reports whether a message is to go in parts. Only its payload is cut, so only that counts. f.mu is held.
func (f *Forwarder) large(h *heldMessage) bool { return f.turns.Large(len(h.m.Payload)) }

// sendHeld sends the next part of the first held message, or all of it if it is small. It reports false if there is nothing to send.
func (f *Forwarder) sendHeld(out *broker.LinkConsumer) bool {
	f.mu.Lock()
	h, ok := f.turns.First()
	if !ok || f.heldSent {
		f.mu.Unlock()
		return false
	}
	f.turns.PartSent()
	u := f.o.Upload
	if !f.cutting { // it is this message's turn
		u.of(h.m)
		f.begun, f.cutting = u.Acked, true
	}
	if u.whole || u.Sent == 0 && !f.large(h) {
		f.heldSent = true
		f.mu.Unlock()
		f.publish(h.m, h.n, func(err error) {
			f.dropHeld(h, err)
			f.settle(out, h.p, err)
		})
		return true
	}
	part := u.Next(f.turns.PartSize())
	m := client.Message{QoS: 1}
	last := part.Last()
	if last {
		m, f.heldSent = h.m, true
	}
	m.Topic = f.o.Parts
	end := u.Sent
	f.mu.Unlock()
	var err error
	if m.Payload, err = link.EncodeMessagePart(part); err != nil {
		f.log.Error().Err(err).Str("topic", h.p.Topic).Msg("a part can't be encoded: the message is dropped")
		f.dropHeld(h, err)
		out.Reject(h.p.ID)
		return true
	}
	anew := f.begun > 0 // or else the hub has no room for parts
	f.publish(m, MessageSize(m), func(err error) {
		f.mu.Lock()
		switch {
		case err == nil:
			u.Acked = max(u.Acked, end)
		case !isConnectionLost(err):
			u.Acked, u.whole = 0, !anew
		}
		f.mu.Unlock()
		switch {
		case last || err != nil && !isConnectionLost(err) && isPermanent(err):
			if f.dropHeld(h, err) {
				f.settle(out, h.p, err)
			}
		case err != nil:
			f.end(err)
		}
	})
	return true
}

// dropHeld ends the wait of the first held message, whose outcome is known. It reports false if that was known before: the parts behind one
// that is refused are refused as well.
func (f *Forwarder) dropHeld(h *heldMessage, err error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if first, ok := f.turns.First(); !ok || first != h {
		return false
	}
	f.turns.Done()
	f.cutting, f.heldSent = false, false
	if u := f.o.Upload; err == nil || !isConnectionLost(err) && isPermanent(err) {
		u.ID, u.Payload = nil, nil
	}
	return true
}
