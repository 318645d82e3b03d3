// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/edgebus/edgebus/broker/quota"
)

// inflightMessage is a QoS 1 or 2 message that was sent at least once and is not acknowledged. Its packet id is chosen
// here; the ids of the client's own publishes are independent of it.
type inflightMessage struct {
	delivery
	id      uint16
	counted bool   // it counts against the connection's Receive Maximum
	order   uint64 // in which the messages were first sent
}

// inflight is the inflight window.
type inflight struct {
	byID   map[uint16]*inflightMessage
	resend []*inflightMessage // sent by an earlier connection only; some may be acknowledged by now
	window int                // Receive Maximum
	sent   int                // messages that count against it
	lastID uint16
	order  uint64
	bytes  int
	user   *quota.Account
}

func newInflight(user *quota.Account) inflight {
	return inflight{byID: make(map[uint16]*inflightMessage), user: user}
}

// full reports whether no other message may be sent before one is acknowledged.
func (f *inflight) full() bool { return f.sent >= f.window || len(f.byID) >= math.MaxUint16 }

// inOrder lists the messages in the order in which they were first sent.
func (f *inflight) inOrder() []*inflightMessage {
	return slices.SortedFunc(maps.Values(f.byID), func(a, b *inflightMessage) int { return cmp.Compare(a.order, b.order) })
}

// restart has every message sent again: a new connection has sent none of them.
func (f *inflight) restart(window int) {
	f.window, f.sent, f.resend = window, 0, f.inOrder()
	for _, x := range f.resend {
		x.change(eventConnect)
		x.counted = false
	}
}

// nextResend is the next message to send again; nil: there is none.
func (f *inflight) nextResend() *inflightMessage {
	for len(f.resend) > 0 {
		if x := f.resend[0]; f.byID[x.id] == x {
			return x
		}
		f.resend = f.resend[1:]
	}
	return nil
}

// resent takes away what nextResend has returned.
func (f *inflight) resent() { f.resend = f.resend[1:] }

// add sends a delivery for the first time.
func (f *inflight) add(d delivery) *inflightMessage {
	d.weight = uint32(d.msg.Weight())
	f.order++
	x := &inflightMessage{delivery: d, id: f.freeID(&d), order: f.order}
	f.byID[x.id] = x
	f.charge(int(x.weight))
	f.send(x)
	return x
}

// send sends a message over this connection, of whose Receive Maximum it takes one.
func (f *inflight) send(x *inflightMessage) {
	x.change(eventSend)
	x.counted = true
	f.sent++
}

// hold takes back that a message was sent: it waits for its turn, and doesn't count against the Receive Maximum.
func (f *inflight) hold(x *inflightMessage) {
	x.change(eventHold)
	x.counted = false
	f.sent--
}

func (f *inflight) charge(bytes int) {
	f.bytes += bytes
	f.user.Add(int64(bytes))
}

// freeID chooses the packet id. A durable message has a fixed one, which mustWait has found free.
func (f *inflight) freeID(d *delivery) uint16 {
	if d.record != nil {
		return packetID(d.record.seq)
	}
	for {
		f.lastID++
		if _, used := f.byID[f.lastID]; f.lastID != 0 && !used {
			return f.lastID
		}
	}
}

func (f *inflight) remove(x *inflightMessage) {
	delete(f.byID, x.id)
	f.charge(-int(x.weight))
	if x.counted {
		f.sent--
	}
}
