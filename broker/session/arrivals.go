package session

import "hash/maphash"

// arrivalsKept is how many topics are remembered while a slow client takes what is
// retained. Of one that is not, the value that came live may come again as retained.
const arrivalsKept = 1 << 14

// arrivals are the topics of the messages that have come since the oldest pull that is
// left. They are known by hash: a topic may be long, and they are many.
type arrivals struct {
	seed  maphash.Seed
	count uint64
	last  map[uint64]uint64 // by topic: the count with its last message
}

func (a *arrivals) since(topic string, count uint64) bool {
	return a.last != nil && a.last[maphash.String(a.seed, topic)] > count
}

// arrived takes note of a message that is queued.
func (s *Session) arrived(topic string) {
	if len(s.pulls) == 0 {
		return
	}
	a := &s.came
	if a.last == nil {
		a.seed, a.last = maphash.MakeSeed(), make(map[uint64]uint64)
	}
	h := maphash.String(a.seed, topic)
	// What comes during a fetch may be newer than what is fetched, and must be known.
	if _, known := a.last[h]; known || s.pulling || len(a.last) < arrivalsKept {
		a.count++
		a.last[h] = a.count
	}
}

// missed takes note of a message that is not, or no longer, queued: then the retained
// one is not too many, unless it may be older than what came before.
func (s *Session) missed(topic string) {
	if s.came.last != nil && !s.pulling {
		delete(s.came.last, maphash.String(s.came.seed, topic))
	}
}
