// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"time"

	"github.com/edgebus/edgebus/broker/journal"
)

// A session with Limits.Memory has in memory what it sends next. The rest waits on disk only: of each message there, memory
// has the weight and its place in the journal's index. The records' ids are a sequence of the journal: they follow from the messages' places in
// the session's order.

// diskQueue counts the messages that wait after the queue, on disk only.
type diskQueue struct {
	blocks   map[uint64]*diskQueueBlock // by place of the first message, divided by diskQueueBlockLen
	next     uint64                     // no message before it
	messages int
	bytes    int                 // by weight
	pending  map[uint64]delivery // not committed yet
	reading  bool
}

const diskQueueBlockLen = 256

// diskQueueBlock has the messages whose places have the same quotient by diskQueueBlockLen.
type diskQueueBlock struct {
	messages       int
	oldest, newest time.Time                 // when the broker took them
	weights        [diskQueueBlockLen]uint32 // 0: no message
}

func (q *diskQueue) add(seq uint64, weight int, came time.Time) {
	if q.blocks == nil {
		q.blocks, q.pending = make(map[uint64]*diskQueueBlock), make(map[uint64]delivery)
	}
	g := q.blocks[seq/diskQueueBlockLen]
	if g == nil {
		g = &diskQueueBlock{oldest: came, newest: came}
		q.blocks[seq/diskQueueBlockLen] = g
	}
	if came.Before(g.oldest) {
		g.oldest = came
	}
	if came.After(g.newest) {
		g.newest = came
	}
	if q.messages == 0 || seq < q.next {
		q.next = seq
	}
	g.weights[seq%diskQueueBlockLen] = uint32(weight)
	g.messages++
	q.messages++
	q.bytes += weight
}

func (q *diskQueue) has(seq uint64) bool {
	g := q.blocks[seq/diskQueueBlockLen]
	return g != nil && g.weights[seq%diskQueueBlockLen] > 0
}

// remove takes out a message that is there.
func (q *diskQueue) remove(seq uint64) {
	g := q.blocks[seq/diskQueueBlockLen]
	q.bytes -= int(g.weights[seq%diskQueueBlockLen])
	q.messages--
	g.weights[seq%diskQueueBlockLen] = 0
	if g.messages--; g.messages == 0 {
		delete(q.blocks, seq/diskQueueBlockLen)
	}
	delete(q.pending, seq)
}

// from is the first message from a place on, of which there must be one.
func (q *diskQueue) from(seq uint64) uint64 {
	for !q.has(seq) {
		if seq++; q.blocks[seq/diskQueueBlockLen] == nil {
			seq += diskQueueBlockLen - seq%diskQueueBlockLen
		}
	}
	return seq
}

// first is the oldest message; there must be one.
func (q *diskQueue) first() uint64 {
	q.next = q.from(q.next)
	return q.next
}

// records lists those of the messages that are not pending.
func (q *diskQueue) records(to []uint64) []uint64 {
	seq := q.next
	for range q.messages {
		seq = q.from(seq)
		if _, pending := q.pending[seq]; !pending {
			to = append(to, journal.FirstSequenced+seq)
		}
		seq++
	}
	return to
}

const (
	readMessages = 256         // that are read from disk at a time, at most
	readBytes    = 64 << 10    // of them, about
	readRetry    = time.Second // after an error
)

// readAhead fills the queue from disk when half of the memory is free. It unlocks the session while it reads.
func (c *LocalConsumer) readAhead() {
	s, b := c.s, &c.s.backlog
	q := &b.disk
	if q.messages == 0 || q.reading || b.queue.durableBytes() > b.limits.Memory/2 || s.inflight.full() {
		return
	}
	list := q.nextStored()
	if len(list) == 0 { // the record of the first one is not stored yet: it needn't be read
		d := q.pending[q.first()]
		q.remove(d.record.seq)
		d.change(eventRead)
		d.record.position = b.queue.end()
		s.push(d, nil)
		return
	}
	now := b.now()
	q.reading = true
	s.mu.Unlock()
	read, err := b.records.read(list, now)
	s.mu.Lock()
	q.reading = false
	for i, seq := range list {
		if s.ended || !q.has(seq) { // dropped meanwhile
			continue
		}
		if read[i].msg == nil {
			c.readFailed(err)
			return
		}
		// The wall clock may have been set since the message came: what the block says is more certain.
		g, m := q.blocks[seq/diskQueueBlockLen], read[i].msg
		if m.came.Before(g.oldest) {
			m.came = g.oldest
		} else if m.came.After(g.newest) {
			m.came = g.newest
		}
		q.remove(seq)
		read[i].change(eventRead)
		s.push(read[i], nil)
	}
}

// nextStored lists the next messages to read, up to the first whose commit is pending.
func (q *diskQueue) nextStored() (list []uint64) {
	bytes := 0
	for seq := q.first(); len(list) < min(q.messages, readMessages) && bytes < readBytes; seq++ {
		seq = q.from(seq)
		if _, pending := q.pending[seq]; pending {
			break
		}
		list = append(list, seq)
		bytes += int(q.blocks[seq/diskQueueBlockLen].weights[seq%diskQueueBlockLen])
	}
	return list
}

// read reads deliveries from disk, up to the first that can't be read.
func (r *records) read(list []uint64, now time.Time) (read []delivery, err error) {
	ids := make([]uint64, len(list))
	for i, seq := range list {
		ids[i] = journal.FirstSequenced + seq
	}
	read = make([]delivery, len(list))
	err = r.log.Read(ids, func(i int, value []byte) error {
		_, e, err := decodeSequenced(value)
		if err == nil && e.seq != list[i] {
			err = errRecord
		}
		if err == nil {
			read[i] = e.delivery
			read[i].record = &deliveryRecord{id: ids[i], seq: e.seq, delivery: stateOnDisk, state: recordStored}
			read[i].msg.Rebase(now)
		}
		return err
	})
	return read, err
}

// readFailed drops a message that is damaged; any other error may go away.
func (c *LocalConsumer) readFailed(err error) {
	b := &c.s.backlog
	if b.queue.live > 0 {
		return // the messages before it go first
	}
	if errors.Is(err, journal.ErrDamaged) {
		b.dropOldest(DropDamaged)
		c.wake(nil)
		return
	}
	time.AfterFunc(readRetry, func() { c.wake(nil) })
}
