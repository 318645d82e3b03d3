// SPDX-License-Identifier: Apache-2.0

package session

import (
	"time"

	"github.com/edgebus/edgebus/broker/journal"
)

// backlog has the messages that wait to be sent: those in memory, and after them those that are on disk only. It keeps to the limits.
type backlog struct {
	limits   Limits
	now      func() time.Time
	count    *Counters
	inflight *inflight
	replays  *replays
	records  *records

	queue queue
	disk  diskQueue

	last   uint64 // newest delivery in the session's order
	sent   uint64 // newest delivery that was sent
	stored uint64 // newest delivery that this process has stored

	missed       int64 // messages that there was no room for
	missedBefore int64 // of them, those before this process
	missedStored int64 // of them, those that the record of the progress has
}

// waiting counts the messages that were not sent yet, and their bytes.
func (b *backlog) waiting() (messages, bytes int) {
	return b.queue.live + b.disk.messages, b.queue.bytes + b.disk.bytes
}

// total counts the messages that wait or are unacknowledged.
func (b *backlog) total() int {
	waiting, _ := b.waiting()
	return waiting + len(b.inflight.byID)
}

// held is how many bytes of messages the session has in memory.
func (b *backlog) held() int { return b.queue.bytes + b.inflight.bytes }

// oldest is when the broker took the oldest message that waits; zero: none does.
func (b *backlog) oldest() (came time.Time) {
	if d, ok := b.queue.front(); ok {
		return d.msg.came
	}
	if b.disk.messages > 0 {
		came = b.disk.blocks[b.disk.first()/diskQueueBlockLen].oldest
	}
	return came
}

// fits reports whether the limits allow another message. An empty backlog takes one of any size: it could never be sent
// otherwise.
func (b *backlog) fits(m *Message) bool {
	w := b.weight(m)
	messages, bytes := b.waiting()
	return (messages == 0 || bytes+w <= b.limits.Bytes) && b.limits.User.Room(int64(b.held()), int64(w))
}

// weight is what a message counts for while it waits: its memory, or its size on disk if most messages are there only.
func (b *backlog) weight(m *Message) int {
	if b.diskOnly() {
		return m.diskSize()
	}
	return m.Weight()
}

// diskOnly reports whether the session keeps messages on disk only.
func (b *backlog) diskOnly() bool { return b.records.durable() && b.limits.Memory > 0 }

// fitsMemory reports whether a durable message may wait in memory.
func (b *backlog) fitsMemory(m *Message) bool {
	return !b.diskOnly() || b.disk.messages == 0 && b.queue.durableBytes()+b.weight(m) <= b.limits.Memory
}

// memoryFull reports whether there is no room in memory for a QoS 0 message.
func (b *backlog) memoryFull(m *Message) bool {
	return b.diskOnly() && b.queue.live > 0 && b.queue.bytes+b.weight(m) > 2*b.limits.Memory
}

// makeRoom drops QoS 0 messages, then, if the limits say so, the oldest ones, until the message fits.
func (b *backlog) makeRoom(m *Message) bool {
	if b.limits.MaxAge > 0 {
		b.dropOld(b.now())
	}
	for !b.fits(m) {
		if zero := b.queue.evictQoS0(); zero != nil {
			b.replays.forgetTopic(zero.Topic)
			b.countDropped(DropQoS0Full)
		} else if !b.limits.DropOldest || !b.dropOldest(DropQueueFull) {
			return false
		}
	}
	return true
}

// dropQoS0 drops the messages of QoS 0 when the client goes.
func (b *backlog) dropQoS0() {
	for m := b.queue.evictQoS0(); m != nil; m = b.queue.evictQoS0() {
		b.replays.forgetTopic(m.Topic)
		b.countDropped(DropDisconnected)
	}
	b.queue.compact() // otherwise each connection would leave gaps
}

// dropOldest reports false if no message waits.
func (b *backlog) dropOldest(why DropReason) bool {
	if d, ok := b.queue.front(); ok {
		b.queue.pop()
		b.discard(&d, why)
		return true
	}
	if b.disk.messages == 0 {
		return false
	}
	seq := b.disk.first()
	if d, pending := b.disk.pending[seq]; pending {
		d.change(eventEnd) // its record is deleted once it is stored
	} else {
		b.records.forget(journal.FirstSequenced + seq)
	}
	b.disk.remove(seq)
	b.countDropped(why)
	return true
}

// dropOld drops the messages that are older than the limit, which there must be. Of those on disk a block is dropped as a whole
// when its newest message is too old.
func (b *backlog) dropOld(now time.Time) {
	for d, ok := b.queue.front(); ok && b.tooOld(&d, now); d, ok = b.queue.front() {
		b.dropOldest(DropTooOld)
	}
	for b.queue.live == 0 && b.disk.messages > 0 {
		g := b.disk.blocks[b.disk.first()/diskQueueBlockLen]
		if now.Sub(g.newest) <= b.limits.MaxAge {
			return
		}
		for range g.messages {
			b.dropOldest(DropTooOld)
		}
	}
}

func (b *backlog) tooOld(d *delivery, now time.Time) bool {
	return b.limits.MaxAge > 0 && now.Sub(d.msg.came) > b.limits.MaxAge
}

// tooLate reports whether a message that an earlier consumer got is too old to be given again.
func (b *backlog) tooLate(p *outboundPacket, now time.Time) (why DropReason, late bool) {
	switch {
	case !p.dup:
		return 0, false
	case b.tooOld(&p.delivery, now):
		return DropTooOld, true
	}
	return DropExpired, p.msg.Expired(now)
}

// refuse drops a message that is not queued.
func (b *backlog) refuse(m *Message, why DropReason) EnqueueResult {
	b.replays.forgetTopic(m.Topic)
	b.countDropped(why)
	return EnqueueNoRoom
}

// discard drops a delivery that was taken out of the queue or of the inflight window.
func (b *backlog) discard(d *delivery, why DropReason) {
	b.end(d)
	b.countDropped(why)
}

// countDropped counts a message that the client does not get.
func (b *backlog) countDropped(why DropReason) {
	b.count.Drop(why, 1)
	if why == DropQueueFull {
		b.missed++
	}
}

// push adds a delivery to those in memory, whatever the limits.
func (b *backlog) push(d delivery) {
	d.weight = uint32(b.weight(d.msg))
	b.queue.push(d)
}

// mustWait reports whether a delivery must not be sent yet: the inflight window is full, its packet id is in use, or it is
// not on disk yet. A QoS 2 message has to be there, or it could be lost although the client has answered it. One of QoS 1 may come
// twice after a crash, and waits only if a message that can't be stored must not be overtaken, or if the disk is so far behind that
// its packet id could mean another message after a crash.
func (b *backlog) mustWait(d *delivery) bool {
	if d.qos == 0 {
		return false
	}
	if b.inflight.full() {
		return true
	}
	r := d.record
	if r == nil {
		return false
	}
	tooEarly := r.state == recordCommitting && (d.qos == 2 || r.beforeSending || r.seq > b.stored+maxUnstored)
	return tooEarly || b.inflight.byID[packetID(r.seq)] != nil
}

// shared lists the messages for other members of shared subscriptions, in order. A message that was sent at QoS 2
// must not be sent to anybody else [MQTT-4.8.2-5].
func (b *backlog) shared() (left []SharedDelivery) {
	for _, x := range b.inflight.inOrder() {
		if x.share != nil && x.qos == 1 {
			left = append(left, SharedDelivery{x.msg, *x.share})
		}
	}
	for d := range b.queue.all {
		if d.share != nil && d.qos > 0 {
			left = append(left, SharedDelivery{d.msg, *d.share})
		}
	}
	return left
}

// takeRecords takes the records of all messages, those that were sent included.
func (b *backlog) takeRecords() (ids []uint64) {
	for d := range b.queue.all {
		ids = d.record.take(ids)
	}
	ids = b.disk.records(ids)
	for _, x := range b.inflight.byID {
		ids = x.record.take(ids)
	}
	return ids
}
