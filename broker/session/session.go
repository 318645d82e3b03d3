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
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/broker/journal"
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
	wakeWith(b *WriteBatch)
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

// ConnParams is what a connection says of itself.
type ConnParams struct {
	Version        byte
	ReceiveMaximum uint16 // 0: not given
	MaximumPacket  uint32 // 0: not given
}

// Attach makes w the writer of the session. Whatever was sent before and not
// acknowledged will be sent again, first and in order.
func (s *Session) Attach(w *Writer, p ConnParams) {
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

// Backlog is how many messages wait, how many are unacknowledged, and the bytes of those
// that wait.
func (s *Session) Backlog() (waiting, unacked, bytes int) {
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
	if d.QoS == 0 && s.crowded(m) || s.isFull(m) && (d.QoS == 0 || !s.makeRoom(m)) {
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
	for s.isFull(m) {
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

// HasRoom says whether a message would find a place without anything being dropped.
func (s *Session) HasRoom(m *Message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.isFull(m)
}

func fullReason(qos byte) DropReason {
	if qos == 0 {
		return DropZeroFull
	}
	return DropQueueFull
}

// isFull: an empty queue takes a message of any size, or one could never be sent.
func (s *Session) isFull(m *Message) bool {
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

func (s *Session) push(it item, b *WriteBatch) {
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

func (s *Session) discard(b []byte, it item, why DropReason) []byte {
	s.done(it)
	s.left(1)
	s.count.drop(why, 1)
	return b
}

// ring is a first-in first-out buffer whose entries keep their sequence number
// for as long as they are in it. It grows block by block: were it copied to grow, all the
// sessions that get the same messages would do so at the same moment.
type ring[T any] struct {
	blocks     []*block[T]
	head, tail *block[T]  // the first and the last of them
	pool       *sync.Pool // of empty blocks; nil: none
	off        int        // of the oldest entry, in the first block
	n          int
	first      uint64 // sequence number of the oldest entry
}

type block[T any] [blockLen]T

const blockLen = 16

func (r *ring[T]) len() int { return r.n }

// end is the sequence number that the next entry gets.
func (r *ring[T]) end() uint64 { return r.first + uint64(r.n) }

// at returns the entry with the sequence number, which must be in the ring.
func (r *ring[T]) at(seq uint64) *T {
	i := r.off + int(seq-r.first)
	return &r.blocks[i/blockLen][i%blockLen]
}

// oldest returns the first entry, which there must be.
func (r *ring[T]) oldest() *T { return &r.head[r.off] }

func (r *ring[T]) push(v T) {
	i := r.off + r.n
	if i == len(r.blocks)*blockLen {
		r.blocks = append(r.blocks, r.more())
		r.ends()
	}
	r.tail[i%blockLen] = v
	r.n++
}

func (r *ring[T]) more() *block[T] {
	if r.pool != nil {
		if b, ok := r.pool.Get().(*block[T]); ok {
			return b
		}
	}
	return new(block[T])
}

func (r *ring[T]) free(b *block[T]) {
	if r.pool != nil {
		r.pool.Put(b)
	}
}

// ends finds the first and the last block.
func (r *ring[T]) ends() {
	if r.head, r.tail = nil, nil; len(r.blocks) > 0 {
		r.head, r.tail = r.blocks[0], r.blocks[len(r.blocks)-1]
	}
}

// pop takes the oldest entry off.
func (r *ring[T]) pop() T {
	var none T
	at := r.oldest()
	v := *at
	*at = none
	r.off++
	r.n--
	r.first++
	switch {
	case r.off == blockLen:
		r.free(r.head)
		r.blocks[0] = nil
		r.blocks, r.off = r.blocks[1:], 0
		r.ends()
	case r.n == 0:
		r.off = 0
	}
	return v
}

// dropLast takes the newest entry off.
func (r *ring[T]) dropLast() {
	var none T
	*r.at(r.end() - 1) = none
	r.n--
	if last := len(r.blocks) - 1; r.off+r.n == last*blockLen {
		r.free(r.tail)
		r.blocks[last] = nil
		r.blocks = r.blocks[:last]
		r.ends()
	}
}

// item is a message waiting in a queue.
type item struct {
	msg    *Message // nil: evicted
	ids    []uint32
	qos    byte
	retain bool
	weight uint32  // what it counts for in the queue
	share  *string // the shared subscription that it came by; nil: none
	stake  *stake  // nil: of a session that doesn't outlive the process, or QoS 0
}

// queue keeps a session's messages in order and within bounds. QoS 0 gives way first.
type queue struct {
	items ring[item]
	zero  ring[uint64] // sequence numbers of QoS 0 items, oldest first; some may have left
	live  int          // items not evicted
	bytes int
	zeros int            // of the bytes, those of QoS 0
	user  *quota.Account // what it counts for
}

var itemBlocks sync.Pool // sessions fill and empty their queues all the time

func newQueue(user *quota.Account) queue {
	return queue{items: ring[item]{pool: &itemBlocks}, user: user}
}

// push appends without looking at bounds.
func (q *queue) push(it item) {
	if it.qos == 0 {
		q.zero.push(q.items.end())
	}
	q.items.push(it)
	q.live++
	q.hold(it, int(it.weight))
}

func (q *queue) hold(it item, bytes int) {
	q.bytes += bytes
	if it.qos == 0 {
		q.zeros += bytes
	}
	q.user.Add(int64(bytes))
}

// stored is the bytes of what is on disk, too.
func (q *queue) stored() int { return q.bytes - q.zeros }

// front returns the oldest item that was not evicted.
func (q *queue) front() (item, bool) {
	for q.items.len() > 0 {
		it := *q.items.oldest()
		if it.msg != nil {
			return it, true
		}
		q.items.pop()
	}
	return item{}, false
}

// pop takes off what front returned.
func (q *queue) pop() {
	it := q.items.pop()
	q.live--
	q.hold(it, -int(it.weight))
	for q.zero.len() > 0 && *q.zero.oldest() < q.items.first {
		q.zero.pop()
	}
}

// evictZero makes room by dropping the oldest QoS 0 item; nil: there is none.
func (q *queue) evictZero() *Message {
	for q.zero.len() > 0 {
		seq := q.zero.pop()
		if seq < q.items.first {
			continue
		}
		m := q.items.at(seq).msg
		q.evict(seq)
		return m
	}
	return nil
}

// compact closes the gaps that evicted items have left.
func (q *queue) compact() {
	if q.items.len() == q.live {
		return
	}
	old := q.items
	q.items, q.zero = ring[item]{first: old.first, pool: old.pool}, ring[uint64]{}
	for seq := old.first; seq < old.end(); seq++ {
		it := *old.at(seq)
		if it.msg == nil {
			continue
		}
		if it.stake != nil {
			it.stake.pos = q.items.end()
		}
		if it.qos == 0 {
			q.zero.push(q.items.end())
		}
		q.items.push(it)
	}
}

// gaps is how many evicted items a queue may have besides as many as are left.
const gaps = 8

// evict drops an item from wherever it is. Nobody may come for long to take off what is
// before it, so it leaves no gap at the end, and not many before.
func (q *queue) evict(seq uint64) {
	it := q.items.at(seq)
	q.live--
	q.hold(*it, -int(it.weight))
	*it = item{}
	for q.items.len() > 0 && q.items.at(q.items.end()-1).msg == nil {
		q.items.dropLast()
	}
	if q.items.len() > 2*q.live+gaps {
		q.compact()
	}
}

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
func (s *Session) Puback(id uint16, b *WriteBatch) (known bool) { return s.acknowledged(id, 1, b) }

func (s *Session) acknowledged(id uint16, qos byte, b *WriteBatch) (known bool) {
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
func (s *Session) land(x *flight, b *WriteBatch) {
	s.flights.remove(x)
	s.done(x.item)
	s.left(1)
	if s.writer != nil && (s.queue.live > 0 || s.flights.resend != nil || len(s.pulls) > 0) {
		s.writer.wakeWith(b)
	}
}

const codeUnknownID = 0x92

// inbound is a QoS 2 publish of the client's, from its PUBLISH to its PUBREL.
type inbound struct {
	record   uint64        // of a durable session
	received bool          // the broker took it: a repetition is only acknowledged
	acks     []func(error) // of the PUBLISH and its repetitions, until the outcome is known
}

// maxRepeats bounds what a client that repeats itself can make a session hold.
const maxRepeats = 16

// ErrRepeated is told of a publish that needs no answer of its own any more: it was
// repeated, and the repetitions are answered.
var ErrRepeated = errors.New("repeated")

// BeginQoS2 takes a QoS 2 publish of the client's. It is fresh when it has to be
// handled, and Finish told the outcome. Of a repetition nothing is to be done:
// its ack is called as soon as the outcome is known.
func (s *Session) BeginQoS2(id uint16, ack func(error)) (fresh bool) {
	s.mu.Lock()
	in := s.inbound[id]
	if in == nil {
		in = &inbound{acks: []func(error){ack}}
		if s.log != nil {
			in.record = s.log.ID()
		}
		s.inbound[id] = in
		s.mu.Unlock()
		return true
	}
	if in.received {
		s.mu.Unlock()
		ack(nil)
		return false
	}
	var needless func(error)
	if in.acks = append(in.acks, ack); len(in.acks) > maxRepeats {
		needless, in.acks = in.acks[0], in.acks[1:]
	}
	s.mu.Unlock()
	if needless != nil {
		needless(ErrRepeated)
	}
	return false
}

// QoS2Changes is what has to be stored together with a publish that Begin found fresh,
// in a durable session.
func (s *Session) QoS2Changes(id uint16) []journal.Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in := s.inbound[id]; in != nil && s.log != nil {
		return []journal.Change{{ID: in.record, Value: s.numbers(kindInbound, uint64(id))}}
	}
	return nil
}

// FinishQoS2 acknowledges a publish that Begin found fresh. After an error the id is
// free again, as the standard has it.
func (s *Session) FinishQoS2(id uint16, err error) {
	s.mu.Lock()
	in := s.inbound[id]
	if in == nil || in.received {
		s.mu.Unlock()
		return
	}
	if err == nil && !s.ended {
		in.received = true
	} else {
		delete(s.inbound, id)
	}
	if err == nil && s.ended && s.log != nil {
		s.log.Forget(in.record)
	}
	acks := in.acks
	in.acks = nil
	s.mu.Unlock()
	for _, ack := range acks {
		ack(err)
	}
}

// Pubrel answers the client's PUBREL, in a durable session once it is stored that
// the id is free: with the PUBCOMP the client may use it for another message.
func (s *Session) Pubrel(id uint16, w *Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.inbound[id]
	done := Ack{Type: typePubcomp >> 4, ID: id}
	switch {
	case in == nil:
		done.Code = codeUnknownID
	case in.received && s.log != nil:
		drop := []journal.Change{{ID: in.record}}
		s.log.Commit(drop, func(err error) { s.releasedInbound(id, in, w, err) })
		return
	case in.received:
		delete(s.inbound, id)
	}
	w.Control(done.Append(nil, s.version))
}

func (s *Session) releasedInbound(id uint16, in *inbound, w *Writer, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		w.Close() // only with a new connection will the client ask again
		return
	}
	if s.inbound[id] == in {
		delete(s.inbound, id)
	}
	w.Control(Ack{Type: typePubcomp >> 4, ID: id}.Append(nil, s.version))
}

// DropReason is why a message never reached a subscriber.
type DropReason int

// The reasons for dropping.
const (
	DropQueueFull    DropReason = iota // the session's queue was at its limit
	DropZeroFull                       // QoS 0 that made room, or found none
	DropExpired                        // its expiry interval ran out while it waited
	DropTooLarge                       // over the client's maximum packet size
	DropDisconnected                   // QoS 0 that waited when the connection was lost
	DropSessionEnded                   // the session ended with it in the queue
	DropRefused                        // the client refused it
	DropTooOld                         // it waited for longer than the session keeps messages
	DropDamaged                        // it can't be read from disk any more
	drops
)

var dropNames = [drops]string{
	"queue_full", "qos0_queue_full", "expired", "too_large", "disconnected", "session_ended", "refused_by_client", "too_old", "damaged",
}

// String is the reason's name in metrics.
func (d DropReason) String() string { return dropNames[d] }

// Counters are shared by all sessions of a broker.
type Counters struct {
	Sent    atomic.Int64 // PUBLISH packets handed to connections
	Queued  atomic.Int64 // messages waiting or unacknowledged now
	Done    atomic.Int64 // messages that an outlet has brought where they were to go
	dropped [drops]atomic.Int64
}

func (c *Counters) drop(d DropReason, n int) { c.dropped[d].Add(int64(n)) }

// Ended counts messages that nobody gets because the session has ended that they were for.
func (c *Counters) Ended(n int) { c.drop(DropSessionEnded, n) }

// Dropped counts what never reached a subscriber, by reason.
func (c *Counters) Dropped() map[string]int64 {
	m := make(map[string]int64, drops)
	for d := range drops {
		m[d.String()] = c.dropped[d].Load()
	}
	return m
}
