// SPDX-License-Identifier: Apache-2.0

package session

import (
	"sync/atomic"

	"github.com/edgebus/edgebus/broker/journal"
)

// RecordLog keeps a durable session's records.
type RecordLog interface {
	// ID names a new record.
	ID() uint64
	// Commit makes changes durable, all or none. It never blocks. done is called with the outcome, but not by Commit itself; it may
	// be nil.
	Commit(changes []journal.RecordChange, done func(error))
	// Forget deletes records some time soon; 0 is none.
	Forget(records ...uint64)
	// Read hands over the values of records, in order, each valid during the call.
	Read(records []uint64, each func(i int, value []byte) error) error
}

// records are where a durable session has its records.
type records struct {
	log      RecordLog // nil: the session ends with the process
	session  uint64    // number of the session, in its records
	progress uint64    // id of the record that says how far the backlog was sent; 0: there is none yet
}

func (r *records) durable() bool { return r.log != nil }

// forget deletes records. A session that is not durable has none.
func (r *records) forget(ids ...uint64) {
	if r.log != nil {
		r.log.Forget(ids...)
	}
}

// deliveryRecord is the record of a delivery.
type deliveryRecord struct {
	id            uint64
	seq           uint64        // place in the session's order
	body          *SharedBody   // nil: the record contains the message
	position      uint64        // in the queue, while the record isn't stored
	delivery      deliveryState // of the delivery, to which its commit refers as well
	state         recordState
	beforeSending bool // the record has to be stored before the message is sent
	retained      bool // the message comes from a replay
}

func (r *deliveryRecord) stored() bool { return r != nil && r.state == recordStored }

// take appends the records to delete for a message, unless they are not stored.
func (r *deliveryRecord) take(to []uint64) []uint64 {
	if r == nil || !r.state.change(eventDelete) {
		return to
	}
	return r.leaveBody(append(to, r.id))
}

func (r *deliveryRecord) leaveBody(to []uint64) []uint64 {
	if r.body != nil && r.body.users.Add(-1) == 0 {
		to = append(to, r.body.record)
	}
	r.body = nil
	return to
}

// SharedBody is the record of a message that several sessions share. It is deleted with the last of their delivery records.
type SharedBody struct {
	record uint64
	users  atomic.Int32
}

// NewSharedBody makes a body for a number of delivery records, and the change that stores it.
func NewSharedBody(m *Message, log RecordLog, users int) (*SharedBody, journal.RecordChange) {
	b := &SharedBody{record: log.ID()}
	b.users.Store(int32(users))
	e := append(make(Encoder, 0, m.Weight()+32), kindBody)
	e.Message(m)
	return b, journal.RecordChange{ID: b.record, Value: e}
}

// end ends a delivery and deletes its record, or has Committed do so if that is not stored yet.
func (b *backlog) end(d *delivery) {
	d.change(eventEnd)
	b.deleteRecord(d)
}

// deleteRecord deletes the record of a delivery that has ended. While a retained message of the topic could still be fetched, the
// record stays to say that a newer one came.
func (b *backlog) deleteRecord(d *delivery) {
	ids := d.record.take(nil)
	if len(ids) == 0 {
		return
	}
	if !d.record.retained && b.replays.topics.has(d.msg.Topic, 0) {
		ids[0] = b.replays.keepTopic(d.msg.Topic, d.record.seq, ids[0])
	}
	b.records.forget(ids...)
}

// takeBack removes a message that could not be stored. It reports false if the message stays: it was sent at QoS 1, or
// it is a retained one, which is fetched again after a crash.
func (b *backlog) takeBack(d *delivery) bool {
	state := d.state()
	if state != stateQueued && state != stateOnDisk || d.record.retained && d.qos == 1 {
		return false
	}
	b.replays.forgetTopic(d.msg.Topic)
	if state == stateOnDisk {
		b.disk.remove(d.record.seq)
	} else {
		b.queue.evict(d.record.position)
	}
	d.change(eventEnd)
	return true
}

// storeProgress stores which messages were sent: only those are sent with DUP after a restart. It stores what was missed with it.
func (b *backlog) storeProgress() {
	r := b.records
	if r.progress == 0 {
		r.progress = r.log.ID()
	}
	r.log.Commit([]journal.RecordChange{{ID: r.progress, Value: r.encode(kindProgress, b.sent, uint64(b.missed))}}, nil)
	b.missedStored = b.missed
}
