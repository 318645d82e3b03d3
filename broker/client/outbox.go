// SPDX-License-Identifier: Apache-2.0

package client

import (
	"container/list"
	"context"
)

// publishProgress is how far a publish without an outcome is. It goes on only on one connection; the next one begins anew (see outbox.rewind).
type publishProgress uint8

const (
	progressWaiting  publishProgress = iota // not sent over this connection
	progressWriting                         // QoS 0: the writer has it
	progressSent                            // QoS 1 and 2: without PUBACK or PUBREC
	progressReleased                        // QoS 2: PUBREC has come; what is sent is PUBREL
)

// outgoingPublish is a publish without an outcome. It is in the outbox from its slot to its outcome, and nowhere else.
type outgoingPublish struct {
	message        Message
	ctx            context.Context //nolint:containedctx // it isn't sent any more once this has ended
	progress       publishProgress
	id             uint16 // 0 until sent, and for QoS 0
	dup            bool   // sent before: DUP
	pubrecReceived bool   // QoS 2: PUBREC has come on this or an earlier connection
	element        *list.Element
	done           func(error)
}

// finishAll gives publishes their outcome.
func finishAll(all []*outgoingPublish, err error) {
	for _, f := range all {
		f.done(err)
	}
}

// outbox is the table of the publishes without an outcome, in the order in which they were published. Those before next are on their
// way over this connection. Client.mu guards it.
type outbox struct {
	all    list.List     // of *outgoingPublish
	next   *list.Element // the first that waits; nil: none does
	byID   map[uint16]*outgoingPublish
	lastID uint16
}

func (o *outbox) add(over context.Context, m Message, done func(error)) {
	f := &outgoingPublish{message: m, ctx: over, done: done}
	f.element = o.all.PushBack(f)
	if o.next == nil {
		o.next = f.element
	}
}

// first is the first publish that waits; nil: none does.
func (o *outbox) first() *outgoingPublish {
	if o.next == nil {
		return nil
	}
	return o.next.Value.(*outgoingPublish)
}

// advance says that the first publish that waited is on its way.
func (o *outbox) advance(to publishProgress) {
	f := o.first()
	f.progress, o.next = to, o.next.Next()
	if f.id != 0 {
		o.byID[f.id] = f
	}
}

// remove takes publishes whose outcome is known out of the table.
func (o *outbox) remove(all ...*outgoingPublish) {
	for _, f := range all {
		if o.next == f.element {
			o.next = f.element.Next()
		}
		o.all.Remove(f.element)
		if f.id != 0 {
			delete(o.byID, f.id)
		}
	}
}

// clear empties the table and returns what was in it, oldest first.
func (o *outbox) clear() (all []*outgoingPublish) {
	for e := o.all.Front(); e != nil; e = e.Next() {
		all = append(all, e.Value.(*outgoingPublish))
	}
	o.remove(all...)
	return all
}

// rewind has all that was sent over a connection that has ended wait for the next one of the same session, in order. What can't be sent
// again is removed and returned: QoS 0 that the writer had, of which nobody knows how far it came, and what was to go over that
// connection alone.
func (o *outbox) rewind() (lost []*outgoingPublish) {
	sent := true
	for e := o.all.Front(); e != nil; e = e.Next() {
		f := e.Value.(*outgoingPublish)
		sent = sent && e != o.next
		begun := f.message.QoS == 2 && f.id != 0
		if f.progress == progressWriting || f.ctx.Err() != nil && !begun {
			lost = append(lost, f)
			continue
		}
		if sent {
			f.progress, f.dup = progressWaiting, true
		}
	}
	o.remove(lost...)
	o.next = o.all.Front()
	return lost
}

// take returns a free packet identifier, which is none that is used elsewhere; 0: there is none.
func (o *outbox) take(used func(uint16) bool) uint16 {
	for range 65535 {
		o.lastID++
		if o.lastID == 0 {
			o.lastID = 1
		}
		if _, taken := o.byID[o.lastID]; !taken && !used(o.lastID) {
			return o.lastID
		}
	}
	return 0
}
