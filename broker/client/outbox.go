package client

import (
	"slices"
)

// flight is one outgoing publish on its way.
type flight struct {
	m        Message
	id       uint16 // 0 until sent, and for QoS 0
	order    uint64
	again    bool // sent before: DUP
	released bool // QoS 2: PUBREC came, PUBREL went
	done     func(error)
}

// outbox holds the publishes without outcome. Client.mu guards it.
type outbox struct {
	queue    []*flight // not yet sent on this connection
	inflight map[uint16]*flight
	lastID   uint16
	order    uint64
}

func (o *outbox) add(m Message, done func(error)) {
	o.order++
	o.queue = append(o.queue, &flight{m: m, order: o.order, done: done})
}

func (o *outbox) pop() *flight {
	f := o.queue[0]
	o.queue[0] = nil
	o.queue = o.queue[1:]
	return f
}

// clear empties the outbox and returns what was in it, oldest first.
func (o *outbox) clear() []*flight {
	o.rewind()
	all := o.queue
	o.queue = nil
	clear(o.inflight)
	return all
}

func (o *outbox) sent() []*flight {
	all := make([]*flight, 0, len(o.inflight))
	for _, f := range o.inflight {
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b *flight) int { return int(a.order) - int(b.order) })
	return all
}

// rewind puts what was sent on an earlier connection of the same session back to the front of the queue, in order.
// What an earlier rewind put there and nobody sent since is in both places, and stays once.
func (o *outbox) rewind() {
	again := o.sent()
	for _, f := range again {
		f.again = true
	}
	for _, f := range o.queue {
		if f.id == 0 || o.inflight[f.id] != f {
			again = append(again, f)
		}
	}
	o.queue = again
}

// take returns a free packet identifier; used says which others are taken. It returns 0 when all are.
func (o *outbox) take(used func(uint16) bool) uint16 {
	for range 65535 {
		o.lastID++
		if o.lastID == 0 {
			o.lastID = 1
		}
		if _, taken := o.inflight[o.lastID]; !taken && !used(o.lastID) {
			return o.lastID
		}
	}
	return 0
}
