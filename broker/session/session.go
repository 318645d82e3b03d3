// Package session keeps what a broker owes to one client: messages in order,
// what was sent and is not yet acknowledged, and which of the client's own
// QoS 2 publishes were taken. A session outlives the connection; a connection's
// Writer drains it.
//
// The package knows bytes and packet ids, and never topics' meaning, rights, or
// which subscription matched: the broker decides that. It never blocks whoever
// enqueues, and never writes to a socket outside a Writer's own goroutine.
//
// Everything that has to outlive the process changes in three places only:
// enqueue (queue.push), the way of a flight (flights.go) and the client's own
// ids (inbound.go). That is where a journal of changes belongs.
package session

import (
	"sync"
	"time"
)

// Limits bound a session.
type Limits struct {
	Messages int // queued messages
	Bytes    int // and their size
	Inflight int // unacknowledged messages, whatever more the client would take
}

// Session is one client's. Its methods may be called from any goroutine.
type Session struct {
	limits Limits
	now    func() time.Time
	count  *Counters

	mu      sync.Mutex
	ended   bool
	queue   queue
	flights flights
	inbound map[uint16]*inbound
	pulls   []*pull
	pulling bool

	writer    *Writer // nil while the client is away
	version   byte
	window    int
	maxPacket int // 0: no limit
}

// New makes an empty session.
func New(limits Limits, now func() time.Time, count *Counters) *Session {
	return &Session{
		limits: limits, now: now, count: count, version: 5,
		inbound: make(map[uint16]*inbound), flights: newFlights(),
	}
}

// Params is what a connection says of itself.
type Params struct {
	Version        byte
	ReceiveMaximum uint16 // 0: not given
	MaximumPacket  uint32 // 0: not given
}

// Attach makes w the writer of the session. Whatever was sent before and not
// acknowledged will be sent again, first and in order.
func (s *Session) Attach(w *Writer, p Params) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writer, s.version, s.maxPacket = w, p.Version, int(p.MaximumPacket)
	s.window = s.limits.Inflight
	if p.ReceiveMaximum > 0 {
		s.window = min(s.window, int(p.ReceiveMaximum))
	}
	s.flights.restart()
}

// Detach leaves the session without a writer, if w still is its writer. What
// was queued at QoS 0 is not kept for later.
func (s *Session) Detach(w *Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writer != w {
		return
	}
	s.writer = nil
	n := 0
	for s.queue.evictZero() {
		n++
	}
	s.left(n)
	s.count.drop(DropDisconnected, n)
}

// End empties the session for good.
func (s *Session) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended = true
	n := s.queue.live + s.flights.len()
	s.left(n)
	s.count.drop(DropSessionEnded, n)
	s.queue, s.flights, s.inbound, s.pulls = queue{}, newFlights(), map[uint16]*inbound{}, nil
}

// Online says whether the client is connected.
func (s *Session) Online() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writer != nil
}

// Queued counts the messages that wait or are unacknowledged.
func (s *Session) Queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queue.live + s.flights.len()
}

// Enqueue queues a message. It reports false when the message was dropped, which
// is counted: QoS 0 gives way to anything, and beyond the limits the newest loses.
func (s *Session) Enqueue(m *Message, d Delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || d.QoS == 0 && s.writer == nil {
		return true // nothing is owed
	}
	for s.full(m) {
		if d.QoS == 0 || !s.queue.evictZero() {
			s.count.drop(fullReason(d.QoS), 1)
			return false
		}
		s.left(1)
		s.count.drop(DropZeroFull, 1)
	}
	s.enqueue(m, d)
	return true
}

// Room says whether a message would find a place without anything being dropped.
func (s *Session) Room(m *Message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.full(m)
}

func fullReason(qos byte) Drop {
	if qos == 0 {
		return DropZeroFull
	}
	return DropQueueFull
}

// full: an empty queue takes a message of any size, or one could never be sent.
func (s *Session) full(m *Message) bool {
	return s.queue.live > 0 &&
		(s.queue.live >= s.limits.Messages || s.queue.bytes+m.weight() > s.limits.Bytes)
}

func (s *Session) enqueue(m *Message, d Delivery) {
	s.queue.push(item{msg: m, ids: d.IDs, qos: d.QoS, retain: d.Retain})
	s.count.Queued.Add(1)
	if s.writer != nil {
		s.writer.Wake()
	}
}

func (s *Session) left(n int) { s.count.Queued.Add(-int64(n)) }

// drain encodes what w may send now behind b, about max bytes of it.
func (s *Session) drain(w *Writer, b []byte, max int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writer != w || s.ended {
		return b
	}
	now := s.now()
	b = s.resend(b, max, now)
	for s.flights.resend == nil && !s.pulling && len(b) < max {
		it, ok := s.queue.front()
		if !ok || it.qos > 0 && !s.flights.room(s.window) {
			return b
		}
		s.queue.pop()
		b = s.send(b, it, now)
	}
	return b
}

// send encodes a message for the first time, unless it is not worth it or too large.
func (s *Session) send(b []byte, it item, now time.Time) []byte {
	p := publish{item: it}
	if it.msg.Expired(now) {
		return s.discard(b, DropExpired)
	}
	if _, _, size := p.sizes(s.version); s.maxPacket > 0 && size > s.maxPacket {
		return s.discard(b, DropTooLarge)
	}
	if it.qos > 0 {
		p.id = s.flights.add(it).id
	} else {
		s.left(1)
	}
	s.count.Sent.Add(1)
	return p.append(b, s.version, now)
}

func (s *Session) discard(b []byte, why Drop) []byte {
	s.left(1)
	s.count.drop(why, 1)
	return b
}
