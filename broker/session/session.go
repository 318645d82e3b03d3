package session

import (
	"cmp"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/quota"
)

// Limits bound a session.
type Limits struct {
	Bytes    int            // of waiting messages
	Inflight int            // unacknowledged messages, even if the client accepts more
	User     *quota.Account // memory of all sessions of the user; nil: no limit
	State    *quota.Account // memory of what else the user's sessions hold; nil: no limit

	DropOldest bool          // at the limits the oldest message is dropped, not the newest
	Memory     int           // bytes of a durable session's waiting messages that are in memory too; 0: all are
	MaxAge     time.Duration // an older message is dropped; 0: none is
}

// Session is the state of one client. Its methods may be called from any goroutine.
type Session struct {
	limits Limits
	now    func() time.Time
	count  *Counters

	mu       sync.Mutex
	ended    bool
	queue    queue
	inflight inflight
	inbound  inboundPublishes

	missed       int64 // messages that there was no room for
	missedBefore int64 // of them, those before this process
	missedStored int64 // of them, those that the record of the progress has

	replays  []*retainedReplay // of retained messages
	fetching bool              // retained messages are being fetched
	live     liveTopics

	// Of a durable session.
	log      RecordLog // nil: the session ends with the process
	number   uint64    // of the session, in its records
	seq      uint64    // of the newest message in the session's order
	sent     uint64    // of the newest message that was sent
	stored   uint64    // of the newest message that this process has stored
	progress uint64    // id of the record that contains sent; 0: there is none yet
	disk     diskQueue

	consumer  messageConsumer // nil: the client is not connected
	parts     *partsSender    // nil: the client takes none
	version   byte
	window    int // Receive Maximum
	maxPacket int // 0: no limit
}

// messageConsumer takes the messages: a connection's Writer, or a LocalConsumer.
type messageConsumer interface {
	// wake says that there may be something to take. With a batch it may be done when that is flushed.
	wake(batch *WriteBatch)
}

// New makes an empty session.
func New(limits Limits, now func() time.Time, count *Counters) *Session {
	return &Session{
		limits: limits, now: now, count: count, version: 5,
		inbound: newInboundPublishes(limits.State), queue: queue{user: limits.User}, inflight: newInflight(limits.User),
	}
}

// ConnParams are what a client's CONNECT says of its connection.
type ConnParams struct {
	Version        byte
	ReceiveMaximum uint16 // 0: not given
	MaximumPacket  uint32 // 0: not given
	Parts          PartsParams
}

// Attach makes w the session's consumer. Unacknowledged messages are sent again first, in order.
func (s *Session) Attach(w *Writer, p ConnParams) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.consumer, s.version, s.maxPacket = w, p.Version, int(p.MaximumPacket)
	s.window = s.limits.Inflight
	if p.ReceiveMaximum > 0 {
		s.window = min(s.window, int(p.ReceiveMaximum))
	}
	s.attachParts(p.Parts)
	s.inflight.restart()
}

// Detach leaves the session without a consumer if that still is w. Queued QoS 0 messages are dropped.
func (s *Session) Detach(w *Writer) { s.detach(w) }

func (s *Session) detach(c messageConsumer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.consumer != c {
		return
	}
	s.consumer = nil
	for m := s.queue.evictQoS0(); m != nil; m = s.queue.evictQoS0() {
		s.forgetLive(m.Topic)
		s.count.Drop(DropDisconnected, 1)
	}
	s.queue.compact() // otherwise each connection would leave gaps
}

// SharedDelivery is a message that the session got as a member of a shared subscription and that was not acknowledged.
type SharedDelivery struct {
	*Message
	Share string
}

// End empties the session for good. The caller deletes the records once the undelivered messages have been given to
// other members.
func (s *Session) End() (records []uint64, left []SharedDelivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, nil
	}
	s.ended = true
	left = s.undelivered()
	s.count.Drop(DropSessionEnded, s.queued()-len(left))
	if s.log != nil {
		records = s.records()
	}
	user := s.limits.User
	user.Add(-int64(s.held()))
	s.queue, s.disk, s.inflight = queue{user: user}, diskQueue{}, newInflight(user)
	s.replays, s.live, s.parts = nil, liveTopics{}, nil
	s.inbound.end()
	return records, left
}

// undelivered lists the messages for other members of shared subscriptions, in order. A message that was sent at QoS 2
// must not be sent to anybody else [MQTT-4.8.2-5].
func (s *Session) undelivered() (left []SharedDelivery) {
	for _, x := range s.inflight.inOrder() {
		if x.share != nil && x.qos == 1 {
			left = append(left, SharedDelivery{x.msg, *x.share})
		}
	}
	for it := range s.queue.all {
		if it.share != nil && it.qos > 0 {
			left = append(left, SharedDelivery{it.msg, *it.share})
		}
	}
	return left
}

// Online reports whether the client is connected.
func (s *Session) Online() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.consumer != nil
}

// Queued counts the messages that wait or are unacknowledged.
func (s *Session) Queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queued()
}

func (s *Session) queued() int {
	waiting, _ := s.waiting()
	return waiting + len(s.inflight.byID)
}

// Backlog counts the waiting messages, the unacknowledged ones, and the bytes of those that wait.
func (s *Session) Backlog() (waiting, unacked, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting, bytes = s.waiting()
	return waiting, len(s.inflight.byID), bytes
}

// waiting counts the messages that were not sent yet, and their bytes.
func (s *Session) waiting() (messages, bytes int) {
	return s.queue.live + s.disk.messages, s.queue.bytes + s.disk.bytes
}

// held is how many bytes of messages the session has in memory.
func (s *Session) held() int { return s.queue.bytes + s.inflight.bytes }

// EnqueueResult is the outcome of enqueueing a message.
type EnqueueResult byte

// The results of enqueueing.
const (
	EnqueueAccepted EnqueueResult = iota // queued; or it is QoS 0, the client is away, and nothing is to be kept
	EnqueueNoRoom                        // dropped, and counted as such
	EnqueueEnded                         // the session is over and gets nothing any more
)

// Enqueue queues a message in memory. QoS 0 gives way to QoS 1 and 2; beyond the limits the newest message is dropped.
func (s *Session) Enqueue(m *Message, d DeliveryOptions) EnqueueResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return EnqueueEnded
	case d.QoS == 0 && s.consumer == nil:
		s.forgetLive(m.Topic)
		return EnqueueAccepted
	case d.QoS == 0 && (s.memoryFull(m) || !s.fits(m)):
		return s.refuse(m, DropQoS0Full)
	case d.QoS > 0 && !s.makeRoom(m):
		return s.refuse(m, DropQueueFull)
	}
	s.noteLive(m.Topic)
	s.push(newDelivery(m, d), d.Batch)
	return EnqueueAccepted
}

func (s *Session) refuse(m *Message, why DropReason) EnqueueResult {
	s.forgetLive(m.Topic)
	s.drop(why)
	return EnqueueNoRoom
}

// drop counts a message that the client does not get.
func (s *Session) drop(why DropReason) {
	s.count.Drop(why, 1)
	if why == DropQueueFull {
		s.missed++
	}
}

// Missed is how many messages the session had no room for since it began, and how many of them before this process.
func (s *Session) Missed() (all, before int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.missed, s.missedBefore
}

// HasRoom reports whether a message would be queued without dropping another.
func (s *Session) HasRoom(m *Message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fits(m)
}

// fits reports whether the limits allow another message. An empty queue takes one of any size: it could never be sent
// otherwise.
func (s *Session) fits(m *Message) bool {
	w := s.weight(m)
	messages, bytes := s.waiting()
	return (messages == 0 || bytes+w <= s.limits.Bytes) && s.limits.User.Room(int64(s.held()), int64(w))
}

// weight is what a message counts for while it waits: its memory, or its size on disk if most messages are there only.
func (s *Session) weight(m *Message) int {
	if s.diskOnly() {
		return m.diskSize()
	}
	return m.Weight()
}

// makeRoom drops QoS 0 messages, then, if the limits say so, the oldest ones, until the message fits.
func (s *Session) makeRoom(m *Message) bool {
	if s.limits.MaxAge > 0 {
		s.dropOld(s.now())
	}
	for !s.fits(m) {
		if zero := s.queue.evictQoS0(); zero != nil {
			s.forgetLive(zero.Topic)
			s.count.Drop(DropQoS0Full, 1)
		} else if !s.limits.DropOldest || !s.dropOldest(DropQueueFull) {
			return false
		}
	}
	return true
}

// dropOldest reports false if no message waits.
func (s *Session) dropOldest(why DropReason) bool {
	if it, ok := s.queue.front(); ok {
		s.queue.pop()
		s.discard(it, why)
		return true
	}
	if s.disk.messages == 0 {
		return false
	}
	s.evictFromDisk()
	s.drop(why)
	return true
}

// dropOld drops the messages that are older than the limit, which there must be.
func (s *Session) dropOld(now time.Time) {
	for it, ok := s.queue.front(); ok && s.tooOld(it, now); it, ok = s.queue.front() {
		s.dropOldest(DropTooOld)
	}
	s.dropOldOnDisk(now)
}

func (s *Session) tooOld(it delivery, now time.Time) bool {
	return s.limits.MaxAge > 0 && now.Sub(it.msg.came) > s.limits.MaxAge
}

// discard drops an item that was taken out of the queue.
func (s *Session) discard(it delivery, why DropReason) {
	s.deleteRecord(it)
	s.drop(why)
}

func (s *Session) push(it delivery, batch *WriteBatch) {
	blocked := s.blocked()
	it.weight = uint32(s.weight(it.msg))
	s.queue.push(it)
	if s.consumer != nil && !blocked {
		s.consumer.wake(batch)
	}
}

// blocked reports whether the queue waits for an acknowledgement of the client, which will wake the consumer.
func (s *Session) blocked() bool {
	if s.inflight.hasRoom(s.window) {
		return false
	}
	first, ok := s.queue.front()
	return ok && first.qos > 0
}

// drain appends packets for w to b until b has about max bytes.
func (s *Session) drain(w *Writer, b []byte, max int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.replaying.Store(len(s.replays) > 0)
	if s.consumer != w {
		return b
	}
	now, before := s.now(), s.sent
	for len(b) < max {
		p, ok := s.next(now)
		if !ok {
			break
		}
		if p.release {
			b = Ack{Type: typePubrel >> 4, ID: p.id}.Append(b, s.version)
		} else {
			b = p.append(b, s.version, now)
		}
	}
	if s.sent > before {
		s.storeProgress()
	}
	return b
}

// next takes the next packet to send, if there is one and the client has room for it.
func (s *Session) next(now time.Time) (p outboundPacket, ok bool) {
	if s.parts != nil {
		return s.nextPaced(now)
	}
	return s.nextWhole(now)
}

// nextWhole takes the next packet if the inflight window and the disk allow one: first what an earlier connection sent and
// was not acknowledged, then the queue.
func (s *Session) nextWhole(now time.Time) (p outboundPacket, ok bool) {
	f := &s.inflight
	for x := f.nextResend(); x != nil; x = f.nextResend() {
		p = outboundPacket{delivery: x.delivery, id: x.id, dup: true, release: x.released}
		switch {
		case x.releasing: // its PUBREL is sent once that is on disk
			f.resend = f.resend[1:]
			continue
		case x.released:
			f.resend = f.resend[1:]
			return p, true
		case f.open >= s.window:
			return p, false
		case s.tooLarge(&p):
			f.remove(x)
			s.discard(x.delivery, DropTooLarge)
			continue
		}
		f.reopen(x)
		f.resend = f.resend[1:]
		s.count.Sent.Add(1)
		return p, true
	}
	for !s.fetching {
		it, ok := s.queue.front()
		if !ok || s.mustWait(it) {
			break
		}
		s.queue.pop()
		p = outboundPacket{delivery: it}
		switch {
		case it.msg.Expired(now):
			s.discard(it, DropExpired)
			continue
		case s.tooLarge(&p):
			s.discard(it, DropTooLarge)
			continue
		case it.qos > 0:
			p.id = f.add(it).id
			if it.record != nil {
				s.sent = it.record.seq
			}
		}
		s.count.Sent.Add(1)
		return p, true
	}
	return p, false
}

func (s *Session) tooLarge(p *outboundPacket) bool {
	if s.maxPacket == 0 {
		return false
	}
	_, _, size := p.sizes(s.version)
	return size > s.maxPacket
}

// mustWait reports whether an item must not be sent yet: the inflight window is full, its packet id is in use, or it is
// not on disk yet. A QoS 2 message has to be there, or it could be lost although the client has answered it. One of QoS 1 may come twice
// after a crash, and waits only if a message that can't be stored must not be overtaken, or if the disk is so far behind that
// its packet id could mean another message after a crash.
func (s *Session) mustWait(it delivery) bool {
	if it.qos == 0 {
		return false
	}
	if !s.inflight.hasRoom(s.window) {
		return true
	}
	r := it.record
	return r != nil && (r.pending && (it.qos == 2 || r.waits || r.seq > s.stored+maxUnstored) || s.inflight.byID[packetID(r.seq)] != nil)
}

// Puback takes the acknowledgement of a QoS 1 message. The consumer is woken with the batch.
func (s *Session) Puback(id uint16, batch *WriteBatch) (known bool) {
	return s.acknowledge(id, 1, batch)
}

// Pubcomp takes the end of a QoS 2 message.
func (s *Session) Pubcomp(id uint16) (known bool) { return s.acknowledge(id, 2, nil) }

func (s *Session) acknowledge(id uint16, qos byte, batch *WriteBatch) (known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.inflight.byID[id]
	if x == nil || x.qos != qos {
		return false
	}
	s.completed(x, batch)
	return true
}

// Fits reports whether an acknowledgement is of the kind that a message in flight waits for. An identifier that no message has
// fits: the message may have ended.
func (s *Session) Fits(kind byte, id uint16) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.inflight.byID[id]
	switch {
	case x == nil:
		return true
	case kind == typePuback>>4:
		return x.qos == 1
	case kind == typePubcomp>>4:
		return x.qos == 2 && x.released
	}
	return x.qos == 2
}

// completed removes a message from the inflight window, and lets the consumer use the room.
func (s *Session) completed(x *inflightMessage, batch *WriteBatch) {
	s.inflight.remove(x)
	s.deleteRecord(x.delivery)
	if s.parts != nil {
		s.parts.answered(x, s.now())
	}
	if s.consumer != nil && (s.queue.live > 0 || s.parts.waiting() || len(s.inflight.resend) > 0 || len(s.replays) > 0) {
		s.consumer.wake(batch)
	}
}

// Pubrec takes the client's receipt of a QoS 2 message, and returns the answer if one is to be given now.
func (s *Session) Pubrec(id uint16, code byte) (answer Ack, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.inflight.byID[id]
	switch {
	case x == nil || x.qos != 2:
		return Ack{Type: typePubrel >> 4, ID: id, Code: codeUnknownID}, code < 0x80
	case code >= 0x80:
		s.count.Drop(DropRefused, 1)
		s.completed(x, nil)
		return Ack{}, false
	}
	if s.inflight.nextResend() == x { // the client got it over an earlier connection
		s.inflight.resend = s.inflight.resend[1:]
	}
	if x.record != nil && x.record.id != 0 && !x.released {
		s.storeRelease(x)
		return Ack{}, false
	}
	x.released = true
	return Ack{Type: typePubrel >> 4, ID: id}, true
}

// delivery is a message in a session.
type delivery struct {
	msg    *Message // nil: evicted
	ids    []uint32
	qos    byte
	retain bool
	weight uint32          // what it counts for where it is
	share  *string         // the shared subscription that it came by; nil: none
	record *deliveryRecord // nil: the session is not durable, or it is QoS 0
}

func newDelivery(m *Message, d DeliveryOptions) delivery {
	return delivery{msg: m, ids: d.IDs, qos: d.QoS, retain: d.Retain, share: d.Share}
}

const blockLen = 16

type queueBlock [blockLen]delivery

// queueBlocks are empty ones: sessions fill and empty their queues all the time.
var queueBlocks = sync.Pool{New: func() any { return new(queueBlock) }}

// queue has the messages that wait in memory, in order. It grows by blocks: growing a slice would copy all of it, at the
// same message in all sessions that get the same messages. An item keeps its position until it leaves the queue or the
// queue is compacted. An item may be evicted from the middle, which leaves a gap.
type queue struct {
	blocks []*queueBlock
	offset int    // of the oldest item, in the first block
	length int    // items and gaps
	first  uint64 // position of the oldest item

	live      int // items that are not gaps
	bytes     int
	qos0Bytes int            // of them, in QoS 0 messages
	qos0From  uint64         // no QoS 0 message is before this position
	user      *quota.Account // to which the bytes are charged; nil: none
}

// end is the position of the next item.
func (q *queue) end() uint64 { return q.first + uint64(q.length) }

// at returns the item at a position, which must be in the queue.
func (q *queue) at(position uint64) *delivery {
	i := q.offset + int(position-q.first)
	return &q.blocks[i/blockLen][i%blockLen]
}

// all goes through the items.
func (q *queue) all(yield func(delivery) bool) {
	for at := q.first; at < q.end(); at++ {
		if it := *q.at(at); it.msg != nil && !yield(it) {
			return
		}
	}
}

// push appends an item, whatever the limits.
func (q *queue) push(it delivery) {
	i := q.offset + q.length
	if i == len(q.blocks)*blockLen {
		q.blocks = append(q.blocks, queueBlocks.Get().(*queueBlock))
	}
	q.blocks[i/blockLen][i%blockLen] = it
	if it.qos == 0 {
		q.qos0From = min(q.qos0From, q.end()) // eviction may have moved the end back
	}
	q.length++
	q.live++
	q.charge(it, int(it.weight))
}

func (q *queue) charge(it delivery, bytes int) {
	q.bytes += bytes
	if it.qos == 0 {
		q.qos0Bytes += bytes
	}
	q.user.Add(int64(bytes))
}

// durableBytes are those of messages that are on disk too.
func (q *queue) durableBytes() int { return q.bytes - q.qos0Bytes }

// front returns the oldest item.
func (q *queue) front() (delivery, bool) {
	for q.length > 0 {
		it := q.blocks[0][q.offset]
		if it.msg != nil {
			return it, true
		}
		q.shift()
	}
	return delivery{}, false
}

// pop removes what front returned.
func (q *queue) pop() {
	it := q.blocks[0][q.offset]
	q.shift()
	q.live--
	q.charge(it, -int(it.weight))
}

// shift removes the oldest item or gap.
func (q *queue) shift() {
	q.blocks[0][q.offset] = delivery{}
	q.offset++
	q.length--
	q.first++
	switch {
	case q.offset == blockLen:
		queueBlocks.Put(q.blocks[0])
		q.blocks[0] = nil
		q.blocks, q.offset = q.blocks[1:], 0
	case q.length == 0:
		q.offset = 0
	}
}

// maxGaps is how many gaps a queue may have beyond one for each item.
const maxGaps = 8

// evict removes an item from any position. A queue that is not drained for long must not fill with gaps: there are none at its end,
// and not many before.
func (q *queue) evict(position uint64) {
	it := q.at(position)
	q.live--
	q.charge(*it, -int(it.weight))
	*it = delivery{}
	for q.length > 0 && q.at(q.end()-1).msg == nil {
		q.length--
		if last := len(q.blocks) - 1; q.offset+q.length == last*blockLen {
			queueBlocks.Put(q.blocks[last])
			q.blocks[last] = nil
			q.blocks = q.blocks[:last]
		}
	}
	if q.length > 2*q.live+maxGaps {
		q.compact()
	}
}

// evictQoS0 drops the oldest QoS 0 message; nil: there is none.
func (q *queue) evictQoS0() *Message {
	if q.qos0Bytes == 0 {
		return nil
	}
	q.qos0From = max(q.qos0From, q.first)
	for ; q.qos0From < q.end(); q.qos0From++ {
		if it := q.at(q.qos0From); it.msg != nil && it.qos == 0 {
			m := it.msg
			q.evict(q.qos0From)
			return m
		}
	}
	return nil
}

// compact closes the gaps.
func (q *queue) compact() {
	if q.length == q.live {
		return
	}
	old := *q
	*q = queue{first: old.first} // without the account, to which the bytes are charged already
	for it := range old.all {
		if it.record != nil {
			it.record.position = q.end()
		}
		q.push(it)
	}
	q.user = old.user
}

// inflightMessage is a QoS 1 or 2 message that was sent at least once and is not acknowledged. Its packet id is chosen
// here; the ids of the client's own publishes are independent of it.
type inflightMessage struct {
	delivery
	id        uint16
	released  bool   // QoS 2: PUBREC has come, and PUBREL was sent
	releasing bool   // PUBREC has come, and PUBREL is sent once that is on disk
	open      bool   // it counts against the connection's Receive Maximum
	order     uint64 // in which the messages were first sent
}

// inflight is the inflight window.
type inflight struct {
	byID   map[uint16]*inflightMessage
	resend []*inflightMessage // sent by an earlier connection only; some may be acknowledged by now
	open   int
	lastID uint16
	order  uint64
	bytes  int
	user   *quota.Account
}

func newInflight(user *quota.Account) inflight {
	return inflight{byID: make(map[uint16]*inflightMessage), user: user}
}

// hasRoom reports whether another message may be sent before one is acknowledged.
func (f *inflight) hasRoom(window int) bool { return f.open < window && len(f.byID) < math.MaxUint16 }

// inOrder lists the messages in the order in which they were first sent.
func (f *inflight) inOrder() []*inflightMessage {
	return slices.SortedFunc(maps.Values(f.byID), func(a, b *inflightMessage) int { return cmp.Compare(a.order, b.order) })
}

// restart has every message sent again: a new connection has sent none of them.
func (f *inflight) restart() {
	f.open, f.resend = 0, f.inOrder()
	for _, x := range f.resend {
		x.open = false
	}
}

// nextResend is the next message to send again; nil: there is none.
func (f *inflight) nextResend() *inflightMessage {
	for len(f.resend) > 0 {
		if x := f.resend[0]; f.byID[x.id] == x {
			return x
		}
		f.resend = f.resend[1:]
	}
	return nil
}

func (f *inflight) add(it delivery) *inflightMessage {
	it.weight = uint32(it.msg.Weight())
	f.order++
	x := &inflightMessage{delivery: it, id: f.freeID(it), open: true, order: f.order}
	f.byID[x.id] = x
	f.open++
	f.charge(int(x.weight))
	return x
}

// hold has a message not count against the Receive Maximum, because it isn't sent yet; reopen has it count again.
func (f *inflight) hold(x *inflightMessage) {
	x.open = false
	f.open--
}

func (f *inflight) reopen(x *inflightMessage) {
	x.open = true
	f.open++
}

func (f *inflight) charge(bytes int) {
	f.bytes += bytes
	f.user.Add(int64(bytes))
}

// freeID chooses the packet id. A durable message has a fixed one, which mustWait has found free.
func (f *inflight) freeID(it delivery) uint16 {
	if it.record != nil {
		return packetID(it.record.seq)
	}
	for {
		f.lastID++
		if _, used := f.byID[f.lastID]; f.lastID != 0 && !used {
			return f.lastID
		}
	}
}

func (f *inflight) remove(x *inflightMessage) {
	delete(f.byID, x.id)
	f.charge(-int(x.weight))
	if x.open {
		f.open--
	}
}

const codeUnknownID = 0x92

// inboundPublish is a QoS 2 publish of the client's, from its PUBLISH to its PUBREL.
type inboundPublish struct {
	record   uint64        // id, in a durable session
	received bool          // the broker has it: a repetition is acknowledged and nothing else
	acks     []func(error) // of the PUBLISH and its repetitions, until the outcome is known
}

// inboundPublishes are the QoS 2 publishes of the client's that wait for their PUBREL. Nothing but the packet identifiers limits how many a
// client leaves so, for as long as its session lives: they are charged to its user.
type inboundPublishes struct {
	byID  map[uint16]*inboundPublish
	user  *quota.Account
	ended bool // nothing is charged any more
}

const (
	inboundCost      = 144 // bytes of memory for each
	uncheckedInbound = 16  // that a session may have whatever else its user holds: a client that releases what it publishes goes on
)

func newInboundPublishes(user *quota.Account) inboundPublishes {
	return inboundPublishes{byID: make(map[uint16]*inboundPublish), user: user}
}

// room returns why there can't be one more.
func (n *inboundPublishes) room() error {
	if len(n.byID) < uncheckedInbound {
		return nil
	}
	return n.user.Check(inboundCost)
}

func (n *inboundPublishes) add(id uint16, in *inboundPublish) {
	n.byID[id] = in
	n.charge(1)
}

func (n *inboundPublishes) remove(id uint16) {
	delete(n.byID, id)
	n.charge(-1)
}

func (n *inboundPublishes) charge(publishes int) {
	if !n.ended {
		n.user.Add(int64(publishes) * inboundCost)
	}
}

// end gives back what is charged.
func (n *inboundPublishes) end() {
	n.charge(-len(n.byID))
	n.ended = true
}

// maxRepetitions bounds what a session holds for a client that repeats itself.
const maxRepetitions = 16

// ErrRepeated is the outcome of a publish that needs no answer of its own: its repetitions are answered.
var ErrRepeated = errors.New("repeated")

// BeginQoS2 takes a QoS 2 publish of the client's. If it is the first with its packet id, the broker handles it and calls
// FinishQoS2 with the outcome. A repetition is not handled, nor is one for which the user has no room: ack is called once the
// outcome is known.
func (s *Session) BeginQoS2(id uint16, ack func(error)) (first bool) {
	s.mu.Lock()
	in := s.inbound.byID[id]
	if in == nil {
		full := s.inbound.room()
		if full == nil {
			in = &inboundPublish{acks: []func(error){ack}}
			if s.log != nil {
				in.record = s.log.ID()
			}
			s.inbound.add(id, in)
		}
		s.mu.Unlock()
		if full != nil {
			ack(full)
		}
		return full == nil
	}
	var err error
	if !in.received {
		in.acks = append(in.acks, ack)
		if ack = nil; len(in.acks) > maxRepetitions {
			ack, in.acks, err = in.acks[0], in.acks[1:], ErrRepeated
		}
	}
	s.mu.Unlock()
	if ack != nil {
		ack(err)
	}
	return false
}

// QoS2Changes are to be committed together with the publish, in a durable session.
func (s *Session) QoS2Changes(id uint16) []journal.RecordChange {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in := s.inbound.byID[id]; in != nil && s.log != nil {
		return []journal.RecordChange{{ID: in.record, Value: s.encode(kindInbound, uint64(id))}}
	}
	return nil
}

// FinishQoS2 acknowledges a publish that BeginQoS2 found to be the first. After an error the packet id is free again.
func (s *Session) FinishQoS2(id uint16, err error) {
	s.mu.Lock()
	in := s.inbound.byID[id]
	if in == nil || in.received {
		s.mu.Unlock()
		return
	}
	if err == nil && !s.ended {
		in.received = true
	} else {
		s.inbound.remove(id)
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

// Pubrel answers the client's PUBREL with PUBCOMP. A durable session first stores that the packet id is free: the client
// may then use it for another message.
func (s *Session) Pubrel(id uint16, w *Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.inbound.byID[id]
	if in != nil && in.received && s.log != nil {
		s.log.Commit([]journal.RecordChange{{ID: in.record}}, func(err error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if err != nil {
				w.Close() // the client asks again on a new connection
				return
			}
			s.pubcomp(id, in, w)
		})
		return
	}
	s.pubcomp(id, in, w)
}

func (s *Session) pubcomp(id uint16, in *inboundPublish, w *Writer) {
	answer := Ack{Type: typePubcomp >> 4, ID: id}
	switch {
	case in == nil:
		answer.Code = codeUnknownID
	case in.received && s.inbound.byID[id] == in:
		s.inbound.remove(id)
	}
	w.Control(answer.Append(nil, s.version), nil)
}

// DropReason is why a message did not reach a subscriber.
type DropReason int

// The reasons for dropping.
const (
	DropQueueFull    DropReason = iota // the session's queue was at its limit
	DropQoS0Full                       // a QoS 0 message, at the same limit
	DropExpired                        // its expiry interval ran out while it waited
	DropTooLarge                       // larger than the client's maximum packet size
	DropDisconnected                   // a QoS 0 message that waited when the connection ended
	DropSessionEnded                   // the session ended with the message in it
	DropRefused                        // the client refused it
	DropTooOld                         // it waited for longer than the session keeps messages
	DropDamaged                        // its record on disk can't be read
	dropReasons
)

var dropNames = [dropReasons]string{
	"queue_full", "qos0_queue_full", "expired", "too_large", "disconnected", "session_ended", "refused_by_client", "too_old", "damaged",
}

// String is the reason's name in metrics.
func (r DropReason) String() string { return dropNames[r] }

// Counters are shared by many sessions.
type Counters struct {
	Sent         atomic.Int64 // PUBLISH packets given to consumers
	Acknowledged atomic.Int64 // messages that a LocalConsumer has acknowledged
	dropped      [dropReasons]atomic.Int64
}

// Drop counts n messages that did not reach a subscriber.
func (c *Counters) Drop(why DropReason, n int) { c.dropped[why].Add(int64(n)) }

// Dropped is how many messages did not reach a subscriber, by reason.
func (c *Counters) Dropped() map[string]int64 {
	m := make(map[string]int64, dropReasons)
	for why := range dropReasons {
		m[why.String()] = c.dropped[why].Load()
	}
	return m
}
