// SPDX-License-Identifier: Apache-2.0

package session

// LocalConsumer takes a session's messages inside the process, as a Writer takes them to a connection: in order, within a
// window, and each stays the session's until Acknowledge or Reject. The session's subscriptions must be of QoS 0 or 1.
type LocalConsumer struct {
	s     *Session
	ready chan struct{}
}

// LocalMessage is a message for a LocalConsumer.
type LocalMessage struct {
	*Message
	ID     uint16 // for Acknowledge and Reject; 0: it is QoS 0 and has no outcome
	Again  bool   // an earlier consumer got it, too
	Expiry uint32 // seconds until it expires; 0: it never does
	Retain bool
}

// OpenLocal makes a consumer with a window of unacknowledged messages, in the place of an earlier one. What that has not
// acknowledged comes again first, in order.
func (s *Session) OpenLocal(window int) *LocalConsumer {
	c := &LocalConsumer{s: s, ready: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.consumer = c
	s.inflight.restart(window)
	c.wake(nil)
	return c
}

// Close ends the consumer: the session queues no QoS 0 any more. Acknowledge and Reject still count.
func (c *LocalConsumer) Close() { c.s.Detach(c) }

// Ready has a value when Next may have another message.
func (c *LocalConsumer) Ready() <-chan struct{} { return c.ready }

func (c *LocalConsumer) wake(*WriteBatch) {
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

// Next takes the next message, if there is one and the window allows it.
func (c *LocalConsumer) Next() (m LocalMessage, ok bool) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.backlog.now()
	for s.consumer == messageConsumer(c) {
		if s.backlog.limits.MaxAge > 0 {
			s.backlog.dropOld(now)
		}
		if c.readAhead(); s.consumer != messageConsumer(c) {
			break
		}
		p, ok := s.next(now)
		if !ok {
			break
		}
		if why, late := s.backlog.tooLate(&p, now); late {
			s.backlog.count.Drop(why, 1)
			s.completed(s.inflight.byID[p.id], nil)
			continue
		}
		return LocalMessage{Message: p.msg, ID: p.id, Again: p.dup, Expiry: p.msg.remaining(now), Retain: p.retain}, true
	}
	return m, false
}

// Acknowledge ends a message that has reached its destination.
func (c *LocalConsumer) Acknowledge(id uint16) {
	c.s.backlog.count.Acknowledged.Add(1)
	c.s.Puback(id, nil)
}

// Reject drops a message that will never reach its destination.
func (c *LocalConsumer) Reject(id uint16) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.inflight.byID[id]; x != nil {
		s.backlog.count.Drop(DropRefused, 1)
		s.completed(x, nil)
	}
}
