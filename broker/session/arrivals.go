package session

import (
	"hash/maphash"

	"github.com/edgebus/edgebus/broker/journal"
)

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
