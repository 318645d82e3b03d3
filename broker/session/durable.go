// SPDX-License-Identifier: Apache-2.0

package session

import (
	"math"

	"github.com/edgebus/edgebus/broker/journal"
)

// A durable session outlives the process. It has a record for each waiting or unacknowledged message of QoS 1 and 2,
// from before the publisher's acknowledgement until the subscriber's, and one for each state of QoS 2 that an answer
// depends on.

// MakeDurable makes an empty session outlive the process. Its number is never used for another one.
func (s *Session) MakeDurable(number uint64, log RecordLog) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records.session, s.records.log = number, log
}

// Durable reports whether the session outlives the process.
func (s *Session) Durable() bool { return s.records.durable() }

// packetID is the same each time that a message is sent, also after a restart, so that the client can't confuse it with another.
func packetID(seq uint64) uint16 { return uint16((seq-1)%math.MaxUint16) + 1 }

// A message of QoS 1 may be sent before it is on disk. After a crash nothing is known of it, and the client may acknowledge it
// late, so no later message may have its packet id. After each restart the order leaps beyond what may have been sent, so far that
// the ids of a dozen crashes are different, and no message is sent that would not be known to be one after the leap.
const (
	restartLeap = 40503 // of math.MaxUint16 packet ids: the golden section, whose multiples keep apart
	maxUnstored = 2048  // messages that may be sent before one of them is on disk
)

// UncommittedDelivery is a message in the queue of a durable session whose record is not committed yet. The caller commits Change,
// and then calls Committed.
type UncommittedDelivery struct {
	s *Session
	d delivery
}

// EnqueueDurable queues a QoS 1 or 2 message in a durable session. Only one that is accepted is uncommitted.
func (s *Session) EnqueueDurable(m *Message, how DeliveryOptions) (UncommittedDelivery, EnqueueResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return UncommittedDelivery{}, EnqueueEnded
	}
	if !s.backlog.makeRoom(m) {
		return UncommittedDelivery{}, s.backlog.refuse(m, DropQueueFull)
	}
	s.replays.noteTopic(m.Topic)
	return s.pushDurable(m, how, false), EnqueueAccepted
}

func (s *Session) pushDurable(m *Message, how DeliveryOptions, retained bool) UncommittedDelivery {
	b := &s.backlog
	b.last++
	d := newDelivery(m, how)
	d.record = &deliveryRecord{seq: b.last, delivery: stateQueued, beforeSending: how.Stored, position: b.queue.end(), retained: retained}
	if d.record.id = journal.FirstSequenced + b.last; !b.diskOnly() {
		d.record.id = s.records.log.ID()
	}
	if b.fitsMemory(m) {
		s.push(d, how.Batch)
	} else {
		d.record.delivery = stateOnDisk
		b.disk.add(b.last, b.weight(m), m.came)
		b.disk.pending[b.last] = d
	}
	return UncommittedDelivery{s: s, d: d}
}

// SharesBody reports whether the message may be in a body.
func (u UncommittedDelivery) SharesBody() bool { return !u.s.backlog.diskOnly() }

// Change stores the delivery record. body is nil if the record is to contain the message.
func (u UncommittedDelivery) Change(body *SharedBody) journal.RecordChange {
	s, r := u.s, u.d.record
	if s.backlog.diskOnly() {
		return journal.RecordChange{ID: r.id, Value: s.records.encodeSequenced(&u.d)}
	}
	var bodyID uint64
	if body != nil {
		bodyID = body.record
		s.mu.Lock()
		r.body = body
		s.mu.Unlock()
	}
	return journal.RecordChange{ID: r.id, Value: s.records.encodeDelivery(&u.d, bodyID)}
}

// Committed takes the outcome of the commit. After an error the message is dropped, if it wasn't sent yet.
func (u UncommittedDelivery) Committed(err error) {
	s, r := u.s, u.d.record
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.backlog.disk.pending, r.seq)
	if err != nil {
		r.state.change(eventCommitFailed)
		r.body = nil
		if s.ended || !s.backlog.takeBack(&u.d) {
			return
		}
	} else {
		r.state.change(eventCommitted)
		s.backlog.stored = max(s.backlog.stored, r.seq)
		if s.ended || r.delivery == stateEnded {
			s.backlog.deleteRecord(&u.d)
			return
		}
	}
	if s.consumer != nil {
		s.consumer.wake(nil) // for the message, or for what comes after it
	}
}

// StoreMissed stores how many messages a durable session had no room for, if more are to count over a restart. It is called now and then: a
// session that is full drops as fast as others publish, and costs no writes by that.
func (s *Session) StoreMissed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := &s.backlog; s.records.durable() && !s.ended && b.missed > b.missedStored {
		b.storeProgress()
	}
}

// storeRelease stores a PUBREC before it is answered: with the PUBREL the client forgets the packet id, and must never get
// the message again.
func (s *Session) storeRelease(x *inflightMessage) {
	topic := "" // unless a replay needs to know that a message of the topic came
	if !x.record.retained && s.replays.topics.has(x.msg.Topic, 0) {
		topic = x.msg.Topic
	}
	put := journal.RecordChange{ID: x.record.id, Value: s.records.encodeTopic(kindReleased, x.record.seq, topic)}
	s.records.log.Commit([]journal.RecordChange{put}, func(err error) { s.releaseStored(x, err) })
}

func (s *Session) releaseStored(x *inflightMessage, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, _ := s.consumer.(*Writer)
	switch {
	case s.inflight.byID[x.id] != x:
		return
	case err != nil:
		x.change(eventReleaseFailed)
		if w != nil {
			w.Close() // the client sends its PUBREC again on a new connection
		}
		return
	}
	x.change(eventRelease)
	s.records.log.Forget(x.record.leaveBody(nil)...)
	if w != nil && w.started() { // nothing may be sent before the CONNACK; next sends it after that
		w.Control(Ack{Type: typePubrel >> 4, ID: x.id}.Append(nil, s.version), nil)
	}
}
