// SPDX-License-Identifier: Apache-2.0

package session

import (
	"sync"
	"time"

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
	mu    sync.Mutex
	ended bool

	backlog  backlog  // what waits
	inflight inflight // what was sent and is not acknowledged
	replays  replays  // retained messages that are owed
	records  records  // of a durable session
	inbound  Inbound  // the client's own QoS 2 publishes

	// Of the connection.
	consumer  messageConsumer // nil: the client is not connected
	parts     *partsSender    // nil: the client takes none
	version   byte
	maxPacket int // 0: no limit
}

// messageConsumer takes the messages: a connection's Writer, or a LocalConsumer.
type messageConsumer interface {
	// wake says that there may be something to take. With a batch it may be done when that is flushed.
	wake(batch *WriteBatch)
}

// New makes an empty session.
func New(limits Limits, now func() time.Time, count *Counters) *Session {
	s := &Session{version: 5}
	s.inflight = newInflight(limits.User)
	s.replays.records = &s.records
	s.backlog = backlog{
		limits: limits, now: now, count: count, queue: queue{user: limits.User},
		inflight: &s.inflight, replays: &s.replays, records: &s.records,
	}
	s.inbound.init(limits.State, &s.records)
	return s
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
	window := s.backlog.limits.Inflight
	if p.ReceiveMaximum > 0 {
		window = min(window, int(p.ReceiveMaximum))
	}
	s.parts = s.parts.next(p.Parts, p.Version, &s.inflight)
	s.inflight.restart(window)
}

// Detach leaves the session without a consumer if that still is c. Queued QoS 0 messages are dropped.
func (s *Session) Detach(c messageConsumer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.consumer == c {
		s.consumer = nil
		s.backlog.dropQoS0()
	}
}

// SharedDelivery is a message that the session got as a member of a shared subscription and that was not acknowledged.
type SharedDelivery struct {
	*Message
	Share string
}

// End empties the session for good. The caller deletes the records once the shared messages have been given to
// other members.
func (s *Session) End() (records []uint64, left []SharedDelivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, nil
	}
	s.ended = true
	left = s.backlog.shared()
	s.backlog.count.Drop(DropSessionEnded, s.backlog.total()-len(left))
	inbound := s.inbound.end()
	if s.records.durable() {
		records = append(s.backlog.takeRecords(), inbound...)
		records = append(s.replays.appendRecords(records), s.records.progress)
	}
	user := s.backlog.limits.User
	user.Add(-int64(s.backlog.held()))
	s.backlog.queue, s.backlog.disk, s.inflight = queue{user: user}, diskQueue{}, newInflight(user)
	s.replays.list, s.replays.topics, s.parts = nil, liveTopics{}, nil
	return records, left
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
	return s.backlog.total()
}

// Backlog counts the waiting messages, the unacknowledged ones, and the bytes of those that wait.
func (s *Session) Backlog() (waiting, unacked, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting, bytes = s.backlog.waiting()
	return waiting, len(s.inflight.byID), bytes
}

// InMemory counts the waiting messages that are in memory.
func (s *Session) InMemory() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.backlog.queue.live
}

// Oldest is when the broker took the session's oldest message; zero: there is none.
func (s *Session) Oldest() (came time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.inflight.inOrder() {
		return x.msg.came
	}
	return s.backlog.oldest()
}

// Missed is how many messages the session had no room for since it began, and how many of them before this process.
func (s *Session) Missed() (all, before int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.backlog.missed, s.backlog.missedBefore
}

// HasRoom reports whether a message would be queued without dropping another.
func (s *Session) HasRoom(m *Message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.backlog.fits(m)
}

// Inbound has the client's own QoS 2 publishes.
func (s *Session) Inbound() *Inbound { return &s.inbound }

// EnqueueResult is the outcome of enqueueing a message.
type EnqueueResult byte

// The results of enqueueing.
const (
	EnqueueAccepted EnqueueResult = iota // queued; or it is QoS 0, the client is away, and nothing is to be kept
	EnqueueNoRoom                        // dropped, and counted as such
	EnqueueEnded                         // the session is over and gets nothing any more
)

// Enqueue queues a message in memory. QoS 0 gives way to QoS 1 and 2; beyond the limits the newest message is dropped.
func (s *Session) Enqueue(m *Message, how DeliveryOptions) EnqueueResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended:
		return EnqueueEnded
	case how.QoS == 0 && s.consumer == nil:
		s.replays.forgetTopic(m.Topic)
		return EnqueueAccepted
	case how.QoS == 0 && (s.backlog.memoryFull(m) || !s.backlog.fits(m)):
		return s.backlog.refuse(m, DropQoS0Full)
	case how.QoS > 0 && !s.backlog.makeRoom(m):
		return s.backlog.refuse(m, DropQueueFull)
	}
	s.replays.noteTopic(m.Topic)
	s.push(newDelivery(m, how), how.Batch)
	return EnqueueAccepted
}

// push queues a delivery, and wakes the consumer, unless the queue waits for an acknowledgement of the client, which will wake it.
func (s *Session) push(d delivery, batch *WriteBatch) {
	blocked := s.inflight.full() && s.backlog.queue.firstQoS() > 0
	s.backlog.push(d)
	if s.consumer != nil && !blocked {
		s.consumer.wake(batch)
	}
}

// drain appends packets for w to b until b has about max bytes.
func (s *Session) drain(w *Writer, b []byte, max int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.replaying.Store(len(s.replays.list) > 0)
	if s.consumer != w {
		return b
	}
	now, before := s.backlog.now(), s.backlog.sent
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
	if s.backlog.sent > before {
		s.backlog.storeProgress()
	}
	return b
}

// next takes the next packet to send, if there is one and the client has room for it.
func (s *Session) next(now time.Time) (p outboundPacket, ok bool) {
	t := s.parts
	if t == nil {
		return s.nextWhole(now)
	}
	for t.bytes < t.turns.Window() {
		if t.turns.PartDue() || t.turns.Full() {
			if p, ok = t.nextPart(now); ok || t.turns.Full() {
				return p, ok
			}
		}
		if p, ok = s.nextWhole(now); !ok {
			return t.nextPart(now)
		}
		if p.release || !t.holdBack(p) {
			t.sendWhole(p, now)
			return p, true
		}
	}
	return p, false
}

// nextWhole takes the next packet if the inflight window and the disk allow one: first what an earlier connection sent and
// was not acknowledged, then the queue.
func (s *Session) nextWhole(now time.Time) (p outboundPacket, ok bool) {
	for x := s.inflight.nextResend(); x != nil; x = s.inflight.nextResend() {
		p = outboundPacket{delivery: x.delivery, id: x.id, dup: true}
		switch state := x.state(); {
		case state == stateReleasing: // its PUBREL is sent once that is on disk
			s.inflight.resent()
			continue
		case state == stateReleased:
			s.inflight.resent()
			p.release = true
			return p, true
		case s.inflight.sent >= s.inflight.window:
			return p, false
		case p.exceeds(s.maxPacket, s.version):
			s.inflight.remove(x)
			s.backlog.discard(&x.delivery, DropTooLarge)
			continue
		}
		s.inflight.send(x)
		s.inflight.resent()
		s.backlog.count.Sent.Add(1)
		return p, true
	}
	for !s.replays.fetching {
		d, ok := s.backlog.queue.front()
		if !ok || s.backlog.mustWait(&d) {
			break
		}
		s.backlog.queue.pop()
		p = outboundPacket{delivery: d}
		switch {
		case d.msg.Expired(now):
			s.backlog.discard(&d, DropExpired)
			continue
		case p.exceeds(s.maxPacket, s.version):
			s.backlog.discard(&d, DropTooLarge)
			continue
		case d.qos > 0:
			p.id = s.inflight.add(d).id
			if d.record != nil {
				s.backlog.sent = d.record.seq
			}
		}
		s.backlog.count.Sent.Add(1)
		return p, true
	}
	return p, false
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
		return x.qos == 2 && x.state() == stateReleased
	}
	return x.qos == 2
}

// completed removes a message from the inflight window, and lets the consumer use the room.
func (s *Session) completed(x *inflightMessage, batch *WriteBatch) {
	s.inflight.remove(x)
	s.backlog.end(&x.delivery)
	if s.parts != nil {
		s.parts.answered(x, s.backlog.now())
	}
	if s.consumer != nil && (s.backlog.queue.live > 0 || s.parts.waiting() || len(s.inflight.resend) > 0 || len(s.replays.list) > 0) {
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
		s.backlog.count.Drop(DropRefused, 1)
		s.completed(x, nil)
		return Ack{}, false
	}
	if s.inflight.nextResend() == x { // the client got it over an earlier connection
		s.inflight.resent()
	}
	if x.record.stored() && x.state() != stateReleased {
		if x.change(eventReceive) {
			s.storeRelease(x)
		}
		return Ack{}, false
	}
	x.change(eventRelease)
	return Ack{Type: typePubrel >> 4, ID: id}, true
}

const codeUnknownID = 0x92
