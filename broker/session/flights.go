package session

import (
	"math"
	"time"

	"github.com/edgebus/edgebus/broker/quota"
)

// flight is a QoS 1 or 2 message that was sent at least once and is not yet
// acknowledged. Its packet id is of the broker's choosing: the client's own ids
// are another space.
type flight struct {
	item
	id         uint16
	released   bool // QoS 2: PUBREC came, PUBREL went
	releasing  bool // PUBREC came, PUBREL goes once that is on disk
	open       bool // counts against the window of this connection
	weight     int  // when it was sent
	prev, next *flight
}

// flights are kept in the order in which they were first sent.
type flights struct {
	byID        map[uint16]*flight
	first, last *flight
	resend      *flight // the next one to send again on this connection; nil: none left
	open        int
	lastID      uint16
	bytes       int
	user        *quota.Account // what they count for
}

func newFlights(user *quota.Account) flights {
	return flights{byID: make(map[uint16]*flight), user: user}
}

func (f *flights) len() int { return len(f.byID) }

// room says whether another message may be sent before one is acknowledged.
func (f *flights) room(window int) bool {
	return f.open < window && len(f.byID) < math.MaxUint16
}

// restart makes every flight due again: a new connection knows nothing of them.
func (f *flights) restart() {
	for x := f.first; x != nil; x = x.next {
		x.open = false
	}
	f.open, f.resend = 0, f.first
}

func (f *flights) add(it item) *flight {
	x := &flight{item: it, id: f.freeID(it), open: true, prev: f.last}
	if f.last != nil {
		f.last.next = x
	} else {
		f.first = x
	}
	f.last = x
	f.byID[x.id] = x
	f.open++
	x.weight = it.msg.Weight()
	f.hold(x.weight)
	return x
}

func (f *flights) hold(bytes int) {
	f.bytes += bytes
	f.user.Add(int64(bytes))
}

// freeID chooses the packet id. That of a durable session's message is fixed, and
// free, or the message would wait.
func (f *flights) freeID(it item) uint16 {
	if it.stake != nil {
		return packetID(it.stake.seq)
	}
	for {
		f.lastID++
		if _, used := f.byID[f.lastID]; f.lastID != 0 && !used {
			return f.lastID
		}
	}
}

func (f *flights) remove(x *flight) {
	delete(f.byID, x.id)
	f.hold(-x.weight)
	if f.resend == x {
		f.resend = x.next
	}
	if x.prev != nil {
		x.prev.next = x.next
	} else {
		f.first = x.next
	}
	if x.next != nil {
		x.next.prev = x.prev
	} else {
		f.last = x.prev
	}
	f.close(x)
}

func (f *flights) close(x *flight) {
	if x.open {
		x.open = false
		f.open--
	}
}

// resend encodes again what an earlier connection left unacknowledged.
func (s *Session) resend(b []byte, max int, now time.Time) []byte {
	f := &s.flights
	for f.resend != nil && len(b) < max {
		x := f.resend
		if x.releasing {
			f.resend = x.next
			continue
		}
		if x.released {
			b = Ack{Type: typePubrel >> 4, ID: x.id}.Append(b, s.version)
			f.resend = x.next
			continue
		}
		if f.open >= s.window {
			return b
		}
		p := publish{item: x.item, id: x.id, dup: true}
		if _, _, size := p.sizes(s.version); s.maxPacket > 0 && size > s.maxPacket {
			f.remove(x)
			b = s.discard(b, x.item, DropTooLarge)
			continue
		}
		x.open = true
		f.open++
		f.resend = x.next
		s.count.Sent.Add(1)
		b = p.append(b, s.version, now)
	}
	return b
}

// Puback takes the client's acknowledgement of a QoS 1 message, in a batch of what the
// client sent, or by itself.
func (s *Session) Puback(id uint16, b *Batch) (known bool) { return s.acknowledged(id, 1, b) }

func (s *Session) acknowledged(id uint16, qos byte, b *Batch) (known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.flights.byID[id]
	if x == nil || x.qos != qos {
		return false
	}
	s.land(x, b)
	return true
}

// Pubrec takes the client's receipt of a QoS 2 message and returns the answer,
// if there is one to give.
func (s *Session) Pubrec(id uint16, code byte) (answer Ack, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.flights.byID[id]
	switch {
	case x == nil || x.qos != 2:
		return Ack{Type: typePubrel >> 4, ID: id, Code: codeUnknownID}, code < 0x80
	case code >= 0x80:
		s.count.drop(DropRefused, 1)
		s.land(x, nil)
		return Ack{}, false
	}
	if s.flights.resend == x { // the receipt of an earlier connection's: no need to send it again
		s.flights.resend = x.next
	}
	if x.stake != nil && x.stake.record != 0 && !x.released {
		s.release(x)
		return Ack{}, false
	}
	x.released = true
	return Ack{Type: typePubrel >> 4, ID: id}, true
}

// Pubcomp takes the end of a QoS 2 message.
func (s *Session) Pubcomp(id uint16) (known bool) { return s.acknowledged(id, 2, nil) }

// land ends a flight and lets the writer use its place.
func (s *Session) land(x *flight, b *Batch) {
	s.flights.remove(x)
	s.done(x.item)
	s.left(1)
	if s.writer != nil && (s.queue.live > 0 || s.flights.resend != nil || len(s.pulls) > 0) {
		s.writer.wakeWith(b)
	}
}
