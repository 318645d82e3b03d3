package session

import (
	"hash/maphash"
	"slices"

	"github.com/edgebus/edgebus/broker/journal"
)

// pullChunk bounds how many retained messages a session holds before they are
// on their way, however many match a filter.
const pullChunk = 64

// RetainedReader returns up to max retained messages, with their values as of now, and
// none when it has been through all of them. It is never called concurrently.
type RetainedReader func(max int) []*Message

// pull is a subscription's retained messages, still to be sent.
type pull struct {
	filter string
	next   RetainedReader // nil: not to be fetched yet
	since  uint64         // what came live after that isn't sent again
	qos    byte
	ids    []uint32

	// Of a durable session: a record as long as not all were fetched and stored, so that after
	// a crash the rest of them is.
	marker uint64
	seq    uint64 // of the session's last message when the subscription was made
	after  string // users' own topics up to this one were fetched and stored
}

// ReplayRecord makes the record that says that a filter's retained messages are owed.
func (s *Session) ReplayRecord(filter string, d Delivery) journal.Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pullRecord(&pull{filter: filter, qos: d.QoS, ids: d.IDs, marker: s.log.ID(), seq: s.seq})
}

// OweRetained says that a filter's retained messages are to be sent, once Pull says where they
// are; of a topic that a message comes of from now on, only that. It replaces what is
// left of an earlier pull of the filter. marker is a durable session's, handed to the log; or 0.
func (s *Session) OweRetained(filter string, marker uint64, d Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		if marker > 0 {
			s.log.Forget(marker)
		}
		return
	}
	s.stopPull(filter)
	s.pulls = append(s.pulls, &pull{filter: filter, since: s.came.count, qos: d.QoS, ids: d.IDs, marker: marker, seq: s.seq})
}

// StartReplay has the session fetch what it owes of a filter, bit by bit, as the client takes it.
func (s *Session) StartReplay(filter string, next RetainedReader) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pulls {
		if p.filter == filter {
			p.next = next
		}
	}
	if s.writer != nil {
		s.writer.Wake()
	}
}

// CancelReplay forgets the retained messages of a filter that is no longer subscribed.
func (s *Session) CancelReplay(filter string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopPull(filter)
}

func (s *Session) stopPull(filter string) {
	for _, p := range s.pulls {
		if p.filter == filter {
			s.remove(p)
			return
		}
	}
}

// remove ends a pull, and deletes its marker.
func (s *Session) remove(p *pull) {
	s.pulls = slices.DeleteFunc(s.pulls, func(x *pull) bool { return x == p })
	if p.marker > 0 {
		s.log.Forget(p.marker)
		p.marker = 0
	}
	if len(s.pulls) == 0 {
		s.forgetArrivals()
	}
}

// enqueuePulled queues retained messages that were fetched. In a durable session those of QoS 1 and 2
// are stored, together with how far that went: after a crash none of them is fetched again.
func (s *Session) enqueuePulled(chunk []*Message, p *pull) {
	var offers []Pending
	var changes []journal.Change
	before := p.after
	for _, m := range chunk {
		if m.Record > 0 { // users' own, which come in the order of their topics
			p.after = m.Topic
		}
		d := Delivery{QoS: min(m.QoS, p.qos), Retain: true, IDs: p.ids}
		switch {
		case s.came.since(m.Topic, p.since):
		case s.log == nil || d.QoS == 0:
			s.enqueue(m, d)
		default:
			o := s.offer(m, d, true)
			offers, changes = append(offers, o), append(changes, o.Change(nil))
		}
	}
	if p.marker == 0 || len(changes) == 0 && p.after == before {
		return
	}
	s.log.Commit(append(changes, s.pullRecord(p)), func(err error) {
		for _, o := range offers {
			o.Committed(err)
		}
	})
}

// owes says whether retained messages are to be fetched now.
func (s *Session) owes(w *Writer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.due(w) != nil
}

// due is the pull whose turn it is; nil: none may be made now.
func (s *Session) due(w *Writer) *pull {
	if s.writer != w || s.pulling || s.queue.live > 0 || s.flights.resend != nil {
		return nil
	}
	for _, p := range s.pulls {
		if p.next != nil {
			return p
		}
	}
	return nil
}

// pull fetches the next few retained messages, once nothing else waits. It
// reports whether it did anything.
//
// The puller runs outside the lock: it may take locks of the store, whose owner
// may be enqueuing to this session under them. A live message that has come since the
// subscription was made is as new as what was pulled of its topic, or newer, or a newer
// one follows; so the pulled one is left out: nothing comes twice, or after a newer one.
func (s *Session) pull(w *Writer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.due(w)
	if p == nil {
		return false
	}
	s.pulling = true
	s.mu.Unlock()
	chunk := p.next(pullChunk)
	s.mu.Lock()
	s.pulling = false
	if s.writer != nil {
		s.writer.Wake() // it may be another's by now, and have waited for us
	}
	if !slices.Contains(s.pulls, p) {
		return true // unsubscribed, or subscribed again, meanwhile
	}
	if len(chunk) == 0 {
		s.remove(p)
		w.owing.Store(len(s.pulls) > 0)
		return true
	}
	s.enqueuePulled(chunk, p)
	return true
}

// arrivalsKept is how many topics are remembered while a slow client takes what is
// retained. Of one that is not, the value that came live may come again as retained.
const arrivalsKept = 1 << 14

// arrivals are the topics of the messages that have come since the oldest pull that is
// left. They are known by hash: a topic may be long, and they are many.
type arrivals struct {
	seed  maphash.Seed
	count uint64
	last  map[uint64]arrival // by topic
}

type arrival struct {
	count  uint64 // with the topic's last message
	record uint64 // that says so once a durable session has delivered the message; 0: none
}

func (a *arrivals) hash(topic string) uint64 {
	if a.last == nil {
		a.seed, a.last = maphash.MakeSeed(), make(map[uint64]arrival)
	}
	return maphash.String(a.seed, topic)
}

func (a *arrivals) since(topic string, count uint64) bool {
	return a.last != nil && a.last[a.hash(topic)].count > count
}

func (a *arrivals) has(topic string) bool { return a.since(topic, 0) }

// arrived takes note of a message that is queued.
func (s *Session) arrived(topic string) {
	if len(s.pulls) == 0 {
		return
	}
	a := &s.came
	h := a.hash(topic)
	// What comes during a fetch may be newer than what is fetched, and must be known.
	if x, known := a.last[h]; known || s.pulling || len(a.last) < arrivalsKept {
		a.count++
		x.count = a.count
		a.last[h] = x
	}
}

// missed takes note of a message that is not, or no longer, queued: then the retained
// one is not too many, unless it may be older than what came before.
func (s *Session) missed(topic string) {
	if !s.pulling && s.came.has(topic) {
		h := s.came.hash(topic)
		s.forget(s.came.last[h].record)
		delete(s.came.last, h)
	}
}

// forget deletes records; without a log there are none.
func (s *Session) forget(records ...uint64) {
	if s.log != nil {
		s.log.Forget(records...)
	}
}

// forgetArrivals is the end of the last pull.
func (s *Session) forgetArrivals() {
	s.forget(s.came.records(nil)...)
	s.came = arrivals{}
}

func (a *arrivals) records(to []uint64) []uint64 {
	for _, x := range a.last {
		to = append(to, x.record)
	}
	return to
}

// forgetDelivered deletes what a message that was delivered or dropped has on disk. While the topic's
// retained message could still be fetched, the record stays to say that a newer one came.
func (s *Session) forgetDelivered(it item) {
	x := it.stake
	seq, records := x.seq, x.records(nil)
	if len(records) > 0 && !x.pulled && s.came.has(it.msg.Topic) {
		h := s.came.hash(it.msg.Topic)
		a := s.came.last[h]
		a.record, records[0] = records[0], a.record
		s.came.last[h] = a
		s.log.Commit([]journal.Change{{ID: a.record, Value: s.arrivalRecord(kindArrived, seq, it.msg.Topic)}}, nil)
	}
	s.log.Forget(records...)
}

// arrivalRecord is that of a message of which nothing but its topic still counts.
func (s *Session) arrivalRecord(kind byte, seq uint64, topic string) []byte {
	e := Encoder(s.numbers(kind, seq))
	e.Text(topic)
	return e
}
