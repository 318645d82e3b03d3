// Package session keeps what a broker owes to one client: messages in order,
// what was sent and is not yet acknowledged, and which of the client's own
// QoS 2 publishes were taken. A session outlives the connection; a connection's
// Writer drains it.
//
// The package knows bytes and packet ids, and never topics' meaning, rights, or
// which subscription matched: the broker decides that. It never blocks whoever
// enqueues, and never writes to a socket outside a Writer's own goroutine.
//
// A durable session outlives the process, too (durable.go): each queued message is
// a record in a journal, from before it is acknowledged to its publisher until its
// receiver acknowledged it, and so are the states of QoS 2 that an answer depends on.
package session

import (
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/quota"
)

// Limits bound a session.
type Limits struct {
	Bytes    int            // of messages that wait
	Inflight int            // unacknowledged messages, whatever more the client would take
	User     *quota.Account // what the user's sessions hold; nil: as much as they like

	Oldest bool          // beyond the limits the oldest message loses, not the newest
	Window int           // bytes of a durable session's messages that are in memory, too; 0: all
	Age    time.Duration // after which a message is dropped; 0: never
}

// Session is one client's. Its methods may be called from any goroutine.
type Session struct {
	limits Limits
	now    func() time.Time
	count  *Counters

	mu     sync.Mutex
	ended  bool
	log    Log    // nil: the session ends with the process
	number uint64 // in records
	seq    uint64 // of the last message in the order of a durable session
	sent   uint64 // of the last one that was sent
	// progress is the record that says so; 0: none yet.
	progress uint64
	queue    queue
	behind   behind
	flights  flights
	inbound  map[uint16]*inbound
	pulls    []*pull
	pulling  bool
	came     arrivals

	writer    taker // nil while the client is away
	version   byte
	window    int
	maxPacket int // 0: no limit
}

// taker is who takes the messages: a connection's Writer, or an Outlet.
type taker interface {
	Wake()
	wakeWith(b *Batch)
	Control(packet []byte)
	Close()
	serves() bool
}

// New makes an empty session.
func New(limits Limits, now func() time.Time, count *Counters) *Session {
	return &Session{
		limits: limits, now: now, count: count, version: 5,
		inbound: make(map[uint16]*inbound), queue: newQueue(limits.User), flights: newFlights(limits.User),
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
func (s *Session) Detach(w *Writer) { s.detach(w) }

func (s *Session) detach(w taker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writer != w {
		return
	}
	s.writer = nil
	n := 0
	for m := s.queue.evictZero(); m != nil; m = s.queue.evictZero() {
		s.missed(m.Topic)
		n++
	}
	s.queue.compact() // or gaps would add up with each connection
	s.left(n)
	s.count.drop(DropDisconnected, n)
}

// Undelivered is a message that was a session's as a member of a shared subscription, and
// that its client never acknowledged.
type Undelivered struct {
	*Message
	Share string
}

// End empties the session for good. What it has on disk the caller has to delete, after
// the undelivered messages are another's.
func (s *Session) End() (records []uint64, left []Undelivered) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, nil
	}
	s.ended = true
	left = s.undelivered()
	n := s.queue.live + s.behind.live + s.flights.len()
	s.left(n)
	s.count.drop(DropSessionEnded, n-len(left))
	if s.log != nil {
		records = s.records()
	}
	user := s.limits.User
	user.Add(-int64(s.queue.bytes + s.flights.bytes))
	s.queue, s.behind, s.flights, s.pulls, s.came = newQueue(user), behind{}, newFlights(user), nil, arrivals{}
	return records, left
}

// undelivered lists what another member of its shared subscription is to get, in order: all but what was
// sent at QoS 2, which must not be sent to anybody else [MQTT-4.8.2-5].
func (s *Session) undelivered() (left []Undelivered) {
	for x := s.flights.first; x != nil; x = x.next {
		if x.share != nil && x.qos == 1 {
			left = append(left, Undelivered{x.msg, *x.share})
		}
	}
	for i := s.queue.items.first; i < s.queue.items.end(); i++ {
		if it := s.queue.items.at(i); it.msg != nil && it.share != nil && it.qos > 0 {
			left = append(left, Undelivered{it.msg, *it.share})
		}
	}
	return left
}

// Ended says whether the session is over.
func (s *Session) Ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// records lists all that the session has on disk, less what is still to be settled.
func (s *Session) records() (all []uint64) {
	for i := s.queue.items.first; i < s.queue.items.end(); i++ {
		all = s.queue.items.at(i).stake.all(all)
	}
	all = s.behind.all(all)
	for x := s.flights.first; x != nil; x = x.next {
		all = x.stake.all(all)
	}
	for id, in := range s.inbound {
		if in.received {
			all = append(all, in.record)
			delete(s.inbound, id)
		}
	}
	for _, p := range s.pulls {
		all = append(all, p.marker)
	}
	return append(s.came.records(all), s.progress)
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
	waiting, _ := s.waiting()
	return waiting + s.flights.len()
}

// Load is how many messages wait, how many are unacknowledged, and the bytes of those
// that wait.
func (s *Session) Load() (waiting, unacked, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting, bytes = s.waiting()
	return waiting, s.flights.len(), bytes
}

// Enqueue queues a message. It reports false when the message was dropped, which
// is counted: QoS 0 gives way to anything, and beyond the limits the newest loses. False
// is, too, that the session has ended and the message is for any member of a shared subscription.
func (s *Session) Enqueue(m *Message, d Delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended && d.Share != nil {
		return false // it is another member's
	}
	if s.ended || d.QoS == 0 && s.writer == nil {
		s.missed(m.Topic)
		return true // nothing is owed
	}
	if d.QoS == 0 && s.crowded(m) || s.full(m) && (d.QoS == 0 || !s.makeRoom(m)) {
		s.missed(m.Topic)
		s.count.drop(fullReason(d.QoS), 1)
		return false
	}
	s.arrived(m.Topic)
	s.enqueue(m, d)
	return true
}

// makeRoom drops QoS 0, or the oldest where that is the policy, until the message would fit.
func (s *Session) makeRoom(m *Message) bool {
	if s.limits.Age > 0 {
		s.dropOld(s.now())
	}
	for s.full(m) {
		why := DropZeroFull
		if m := s.queue.evictZero(); m != nil {
			s.missed(m.Topic)
		} else {
			if why = DropQueueFull; !s.limits.Oldest || !s.evictFirst() {
				return false
			}
		}
		s.left(1)
		s.count.drop(why, 1)
	}
	return true
}

func (s *Session) evictFirst() bool {
	it, ok := s.queue.front()
	if ok {
		s.queue.pop()
		s.done(it)
	} else if ok = s.behind.live > 0; ok {
		s.evictBehind()
	}
	return ok
}

// dropOld drops what has waited for too long.
func (s *Session) dropOld(now time.Time) {
	if s.limits.Age == 0 {
		return
	}
	for it, ok := s.queue.front(); ok && s.old(it, now); it, ok = s.queue.front() {
		s.evictFirst()
		s.left(1)
		s.count.drop(DropTooOld, 1)
	}
	s.dropOldBehind(now)
}

func (s *Session) old(it item, now time.Time) bool {
	return s.limits.Age > 0 && now.Sub(it.msg.came) > s.limits.Age
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
	w := s.weigh(m)
	messages, bytes := s.waiting()
	return messages > 0 && bytes+w > s.limits.Bytes || !s.limits.User.Room(int64(s.queue.bytes+s.flights.bytes), int64(w))
}

// weigh is what a message counts: its memory or, where that is on disk for most of them, its record.
func (s *Session) weigh(m *Message) int {
	if s.windowed() {
		return m.stored()
	}
	return m.Weight()
}

func (s *Session) enqueue(m *Message, d Delivery) {
	s.push(item{msg: m, ids: d.IDs, qos: d.QoS, retain: d.Retain, share: d.Share}, d.Batch)
}

func (s *Session) push(it item, b *Batch) {
	held := s.held()
	it.weight = uint32(s.weigh(it.msg))
	s.queue.push(it)
	s.count.Queued.Add(1)
	if s.writer != nil && !held {
		s.writer.wakeWith(b)
	}
}

// held says whether what is in the queue waits for the client. Its acknowledgement wakes the writer.
func (s *Session) held() bool {
	if s.flights.room(s.window) {
		return false
	}
	first, ok := s.queue.front()
	return ok && first.qos > 0
}

func (s *Session) left(n int) { s.count.Queued.Add(-int64(n)) }

// drain encodes what w may send now behind b, about max bytes of it.
func (s *Session) drain(w *Writer, b []byte, max int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.owing.Store(len(s.pulls) > 0)
	if s.writer != w || s.ended {
		return b
	}
	now := s.now()
	before := s.sent
	b = s.resend(b, max, now)
	for s.flights.resend == nil && !s.pulling && len(b) < max {
		it, ok := s.queue.front()
		if !ok || s.waits(it) {
			break
		}
		s.queue.pop()
		b = s.send(b, it, now)
	}
	if s.sent > before {
		s.sentTo(s.sent)
	}
	return b
}

// send encodes a message for the first time, unless it is not worth it or too large.
func (s *Session) send(b []byte, it item, now time.Time) []byte {
	p := publish{item: it}
	if it.msg.Expired(now) {
		return s.discard(b, it, DropExpired)
	}
	if _, _, size := p.sizes(s.version); s.maxPacket > 0 && size > s.maxPacket {
		return s.discard(b, it, DropTooLarge)
	}
	if it.qos > 0 {
		p.id = s.flights.add(it).id
		if it.stake != nil {
			s.sent = it.stake.seq
		}
	} else {
		s.left(1)
	}
	s.count.Sent.Add(1)
	return p.append(b, s.version, now)
}

func (s *Session) discard(b []byte, it item, why Drop) []byte {
	s.done(it)
	s.left(1)
	s.count.drop(why, 1)
	return b
}
