// SPDX-License-Identifier: Apache-2.0

package session

import (
	"sync"

	"github.com/edgebus/edgebus/broker/quota"
)

// delivery is a message on its way to one client.
type delivery struct {
	msg    *Message // nil: evicted
	ids    []uint32
	qos    byte
	retain bool
	own    deliveryState   // of a delivery without a record
	weight uint32          // what it counts for where it is
	share  *string         // the shared subscription that it came by; nil: none
	record *deliveryRecord // nil: the session is not durable, or it is QoS 0
}

func newDelivery(m *Message, how DeliveryOptions) delivery {
	return delivery{msg: m, ids: how.IDs, qos: how.QoS, retain: how.Retain, own: stateQueued, share: how.Share}
}

// state is how far the delivery is. The record has it, if there is one: its commit needs to know, too.
func (d *delivery) state() deliveryState {
	if d.record != nil {
		return d.record.delivery
	}
	return d.own
}

// change changes the state by an event, and reports false if the event is ignored.
func (d *delivery) change(e deliveryEvent) bool {
	if d.record != nil {
		return d.record.delivery.change(e)
	}
	return d.own.change(e)
}

const queueBlockLen = 16

type queueBlock [queueBlockLen]delivery

// queueBlocks are empty ones: sessions fill and empty their queues all the time.
var queueBlocks = sync.Pool{New: func() any { return new(queueBlock) }}

// queue has the messages that wait in memory, in order. It grows by blocks: growing a slice would copy all of it, at the
// same message in all sessions that get the same messages. An item keeps its position until it leaves the queue or the
// queue is compacted. An item may be evicted from the middle, which leaves a gap.
type queue struct {
	blocks []*queueBlock
	offset int    // of the oldest item, in the first block
	length int    // items and gaps
	first  uint64 // position of the oldest item

	live      int // items that are not gaps
	bytes     int
	qos0Bytes int            // of them, in QoS 0 messages
	qos0From  uint64         // no QoS 0 message is before this position
	user      *quota.Account // to which the bytes are charged; nil: none
}

// end is the position of the next item.
func (q *queue) end() uint64 { return q.first + uint64(q.length) }

// at returns the item at a position, which must be in the queue.
func (q *queue) at(position uint64) *delivery {
	i := q.offset + int(position-q.first)
	return &q.blocks[i/queueBlockLen][i%queueBlockLen]
}

// all goes through the items.
func (q *queue) all(yield func(delivery) bool) {
	for at := q.first; at < q.end(); at++ {
		if it := *q.at(at); it.msg != nil && !yield(it) {
			return
		}
	}
}

// push appends an item, whatever the limits.
func (q *queue) push(it delivery) {
	i := q.offset + q.length
	if i == len(q.blocks)*queueBlockLen {
		q.blocks = append(q.blocks, queueBlocks.Get().(*queueBlock))
	}
	q.blocks[i/queueBlockLen][i%queueBlockLen] = it
	if it.qos == 0 {
		q.qos0From = min(q.qos0From, q.end()) // eviction may have moved the end back
	}
	q.length++
	q.live++
	q.charge(it, int(it.weight))
}

func (q *queue) charge(it delivery, bytes int) {
	q.bytes += bytes
	if it.qos == 0 {
		q.qos0Bytes += bytes
	}
	q.user.Add(int64(bytes))
}

// durableBytes are those of messages that are on disk too.
func (q *queue) durableBytes() int { return q.bytes - q.qos0Bytes }

// front returns the oldest item.
func (q *queue) front() (delivery, bool) {
	for q.length > 0 {
		it := q.blocks[0][q.offset]
		if it.msg != nil {
			return it, true
		}
		q.shift()
	}
	return delivery{}, false
}

// firstQoS is that of the oldest delivery; 0: there is none.
func (q *queue) firstQoS() byte {
	d, _ := q.front()
	return d.qos
}

// pop removes what front returned.
func (q *queue) pop() {
	it := q.blocks[0][q.offset]
	q.shift()
	q.live--
	q.charge(it, -int(it.weight))
}

// shift removes the oldest item or gap.
func (q *queue) shift() {
	q.blocks[0][q.offset] = delivery{}
	q.offset++
	q.length--
	q.first++
	switch {
	case q.offset == queueBlockLen:
		queueBlocks.Put(q.blocks[0])
		q.blocks[0] = nil
		q.blocks, q.offset = q.blocks[1:], 0
	case q.length == 0:
		q.offset = 0
	}
}

// maxGaps is how many gaps a queue may have beyond one for each item.
const maxGaps = 8

// evict removes an item from any position. A queue that is not drained for long must not fill with gaps: there are none at its end,
// and not many before.
func (q *queue) evict(position uint64) {
	it := q.at(position)
	q.live--
	q.charge(*it, -int(it.weight))
	*it = delivery{}
	for q.length > 0 && q.at(q.end()-1).msg == nil {
		q.length--
		if last := len(q.blocks) - 1; q.offset+q.length == last*queueBlockLen {
			queueBlocks.Put(q.blocks[last])
			q.blocks[last] = nil
			q.blocks = q.blocks[:last]
		}
	}
	if q.length > 2*q.live+maxGaps {
		q.compact()
	}
}

// evictQoS0 drops the oldest QoS 0 message; nil: there is none.
func (q *queue) evictQoS0() *Message {
	if q.qos0Bytes == 0 {
		return nil
	}
	q.qos0From = max(q.qos0From, q.first)
	for ; q.qos0From < q.end(); q.qos0From++ {
		if it := q.at(q.qos0From); it.msg != nil && it.qos == 0 {
			m := it.msg
			q.evict(q.qos0From)
			return m
		}
	}
	return nil
}

// compact closes the gaps.
func (q *queue) compact() {
	if q.length == q.live {
		return
	}
	old := *q
	*q = queue{first: old.first} // without the account, to which the bytes are charged already
	for it := range old.all {
		if it.record != nil {
			it.record.position = q.end()
		}
		q.push(it)
	}
	q.user = old.user
}
