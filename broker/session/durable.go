package session

import (
	"math"
	"sync/atomic"

	"github.com/edgebus/edgebus/broker/journal"
)

// Log is where a durable session's changes go.
type Log interface {
	// ID names a new record.
	ID() uint64
	// Commit makes changes durable, all or none. It never blocks. done is called once
	// they are, or can't be, and not by Commit itself; nil: nobody waits.
	Commit(changes []journal.Change, done func(error))
	// Forget deletes records some time soon; 0 is none.
	Forget(records ...uint64)
	// Read hands over the values of records, in order, each valid during the call.
	Read(records []uint64, each func(i int, value []byte) error) error
}

// stake is what a durable session has in an item besides the message.
type stake struct {
	seq     uint64 // place in the session's order, which the packet id follows from
	record  uint64 // 0: not on disk
	body    *Body  // nil: the record holds the message itself
	pending bool   // not yet on disk
	after   bool   // to be sent only when it is
	pos     uint64 // in the queue, while pending
	over    bool   // delivered or dropped already
	behind  bool   // on disk only, once it is there
	pulled  bool   // a retained message, fetched for a subscription
}

// Body is a message on disk that several sessions share. The last to let go of it
// deletes it.
type Body struct {
	record uint64
	users  atomic.Int32
}

// NewBody makes the body that as many offers share, and the change that stores it.
func NewBody(m *Message, log Log, offers int) (*Body, journal.Change) {
	b := &Body{record: log.ID()}
	b.users.Store(int32(offers))
	e := append(make(Encoder, 0, m.Weight()+32), kindBody)
	e.Message(m)
	return b, journal.Change{ID: b.record, Value: e}
}

// Endure makes a session that is still empty outlive the process. number is its
// name in records, and never another's.
func (s *Session) Endure(number uint64, log Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number, s.log = number, log
}

// Durable says whether the session outlives the process.
func (s *Session) Durable() bool { return s.log != nil }

// packetID is the same whenever a message is sent, also by another process: a
// client that got it can't take another message for it.
func packetID(seq uint64) uint16 { return uint16((seq-1)%math.MaxUint16) + 1 }

// Offer is a message in the queue of a durable session that is not yet stored. It
// must be settled.
type Offer struct {
	s  *Session
	it item
}

// Offer queues a QoS 1 or 2 message in a durable session. It reports false when there was
// no room, which is counted. An offer of a session that has ended is none: it needn't
// be stored.
func (s *Session) Offer(m *Message, d Delivery) (o Offer, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return Offer{}, true
	}
	if !s.makeRoom(m) {
		s.missed(m.Topic)
		s.count.drop(DropQueueFull, 1)
		return Offer{}, false
	}
	s.arrived(m.Topic)
	return s.offer(m, d, false), true
}

func (s *Session) offer(m *Message, d Delivery, pulled bool) Offer {
	s.seq++
	it := item{msg: m, ids: d.IDs, qos: d.QoS, retain: d.Retain, share: d.Share, stake: &stake{
		seq: s.seq, pending: true, after: d.Stored, pos: s.queue.items.end(), pulled: pulled,
	}}
	if it.stake.record = journal.Sequence + s.seq; !s.windowed() {
		it.stake.record = s.log.ID()
	}
	if s.fits(s.weigh(m)) {
		s.push(it, d.Batch)
	} else {
		s.putBehind(it)
	}
	return Offer{s: s, it: it}
}

// None says whether there is nothing to store and to settle.
func (o Offer) None() bool { return o.s == nil }

// Shares says whether the offer's message may be in a body that other offers share.
func (o Offer) Shares() bool { return !o.s.windowed() }

// Change stores the offer. body is nil when the message is in no other record.
func (o Offer) Change(body *Body) journal.Change {
	if !o.Shares() {
		return journal.Change{ID: o.it.stake.record, Value: o.s.sequenced(o.it)}
	}
	var where uint64
	if body != nil {
		where = body.record
		o.share(body)
	}
	return journal.Change{ID: o.it.stake.record, Value: o.s.entry(o.it, where)}
}

func (o Offer) share(body *Body) {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	o.it.stake.body = body
}

// Settle tells the outcome: a message that could not be stored is not kept.
func (o Offer) Settle(err error) {
	s := o.s
	s.mu.Lock()
	defer s.mu.Unlock()
	x := o.it.stake
	x.pending = false
	delete(s.behind.pending, x.seq)
	if err == nil {
		if s.ended || x.over {
			s.forgetDelivered(o.it) // its end came before it was on disk
		} else if s.writer != nil {
			s.writer.Wake()
		}
		return
	}
	x.record, x.body = 0, nil
	if s.ended || x.over || !x.behind && x.pos < s.queue.items.first {
		return // sent already, as QoS 1 may be: it is now like what a session without a journal has
	}
	if x.pulled && o.it.qos == 1 {
		return // after a crash it is fetched again
	}
	s.missed(o.it.msg.Topic)
	if x.behind {
		s.behind.remove(x.seq)
	} else {
		s.queue.evict(x.pos)
	}
	s.left(1)
	if s.writer != nil {
		s.writer.Wake() // what was behind it
	}
}

// waits says whether an item must not be sent yet. What is sent at QoS 2 has to be
// on disk, or its packet id could come to mean something else. At QoS 1 a second
// copy after a crash is allowed, and waiting would only cost time, unless one that can't
// be stored would let it pass.
func (s *Session) waits(it item) bool {
	if it.qos == 0 {
		return false
	}
	if !s.flights.room(s.window) {
		return true
	}
	return it.stake != nil && (it.stake.pending && (it.qos == 2 || it.stake.after) || s.flights.byID[packetID(it.stake.seq)] != nil)
}

// done lets go of an item that was delivered or dropped. What is still being stored
// is deleted when that is settled.
func (s *Session) done(it item) {
	x := it.stake
	if x == nil {
		return
	}
	x.over = true
	if !x.pending {
		s.forgetDelivered(it)
	}
}

// records lists what can be deleted now.
func (x *stake) records(to []uint64) []uint64 {
	if x.record == 0 {
		return to
	}
	to = append(to, x.record)
	x.record = 0
	if x.body != nil && x.body.users.Add(-1) == 0 {
		to = append(to, x.body.record)
	}
	x.body = nil
	return to
}

// all lists what can be deleted when the session ends.
func (x *stake) all(to []uint64) []uint64 {
	if x == nil || x.pending {
		return to
	}
	return x.records(to)
}

// sentTo notes how far the queue was sent, so that what is sent again after a
// restart is known to be a repetition.
func (s *Session) sentTo(seq uint64) {
	if s.progress == 0 {
		s.progress = s.log.ID()
	}
	s.log.Commit([]journal.Change{{ID: s.progress, Value: s.numbers(kindProgress, seq)}}, nil)
}

// release takes a PUBREC to disk before it is answered: the client forgets the
// packet id with the PUBREL, and must never get the message again.
func (s *Session) release(x *flight) {
	if x.releasing {
		return
	}
	x.releasing = true
	topic := "" // unless it still counts that its message came
	if !x.stake.pulled && s.came.has(x.msg.Topic) {
		topic = x.msg.Topic
	}
	put := journal.Change{ID: x.stake.record, Value: s.arrivalRecord(kindReleased, x.stake.seq, topic)}
	s.log.Commit([]journal.Change{put}, func(err error) { s.releasedOnDisk(x, err) })
}

func (s *Session) releasedOnDisk(x *flight, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.releasing = false
	if s.flights.byID[x.id] != x {
		return
	}
	if err != nil {
		s.giveUp()
		return
	}
	x.released = true
	if b := x.stake.body; b != nil {
		x.stake.body = nil
		if b.users.Add(-1) == 0 {
			s.log.Forget(b.record)
		}
	}
	// A connection that is still being answered comes to it when it begins: nothing
	// may be sent before its CONNACK.
	if s.writer != nil && s.writer.serves() {
		s.writer.Control(Ack{Type: typePubrel >> 4, ID: x.id}.Append(nil, s.version))
	}
}

// giveUp closes the connection when an answer can't be stored: only with a new one
// will the client ask again.
func (s *Session) giveUp() {
	if s.writer != nil {
		s.writer.Close()
	}
}
