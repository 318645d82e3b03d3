package broker

import (
	"errors"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/session"
)

// acks keeps a connection's acknowledgements in the order of its publishes, though
// they are stored in any order, and bounds how many are being stored.
type acks struct {
	mu     sync.Mutex
	change sync.Cond
	slots  []*slot // publishes that are not acknowledged, oldest first
	strict int     // publishes that count against the receive maximum
	// unreleased are the QoS 2 publishes of this connection that count: a repetition
	// doesn't again, and it is the PUBREL that ends them.
	unreleased map[uint16]struct{}
	closed     bool
}

// slot is the place of one publish in the order.
type slot struct {
	conn *conn
	m    Message
	id   uint16
	done bool
	ack  []byte

	refused bool
}

func (a *acks) init() { a.change.L = &a.mu }

// reserve takes the next place. With as many publishes outstanding as an MQTT 5
// client was told it may have, another is its mistake: not ok. Those of QoS 2 are so
// until they are released. Any other client waits, and so does not read on, until one is
// stored; before is what has to be done first.
func (a *acks) reserve(s *slot, limit int, before func()) (ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, repeated := a.unreleased[s.id]
	counts := s.m.QoS > 0 && s.m.Publisher.Version == 5 && !(repeated && s.m.QoS == 2)
	if counts && a.strict >= limit {
		return false
	}
	if len(a.slots) >= 2*limit {
		before()
	}
	for len(a.slots) >= 2*limit && !a.closed {
		a.change.Wait()
	}
	if counts {
		a.strict++
		if s.m.QoS == 2 {
			if a.unreleased == nil {
				a.unreleased = make(map[uint16]struct{})
			}
			a.unreleased[s.id] = struct{}{}
		}
	}
	a.slots = append(a.slots, s)
	return true
}

// clear says whether no publish is outstanding, so that the next one that needs no place
// can be acknowledged at once.
func (a *acks) clear() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.slots) == 0 && len(a.unreleased) == 0
}

// finish acknowledges the publish once all before it are.
func (s *slot) finish(err error) {
	c := s.conn
	// Or a repetition of it is, or nobody hears it.
	answered := !errors.Is(err, session.ErrRepeated) && !errors.Is(err, errLaneEnded)
	if err != nil && answered {
		c.b.refused(s.m, err)
	}
	a := &c.acks
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.done {
		return
	}
	s.done, s.refused = true, err != nil && answered
	if s.m.QoS > 0 && answered {
		s.ack = c.encodeAck(s.m.QoS, s.id, err)
	}
	for len(a.slots) > 0 && a.slots[0].done {
		first := a.slots[0]
		a.slots[0] = nil
		a.slots = a.slots[1:]
		if first.m.QoS > 0 {
			c.w.Control(first.ack) // none, if a repetition has it
			first.settled(a)
		}
		a.change.Broadcast()
	}
}

// settled gives an acknowledged publish's place back, unless that is the PUBREL's to do.
func (s *slot) settled(a *acks) {
	switch {
	case s.m.Publisher.Version < 5:
	case s.m.QoS == 1:
		a.strict--
	case s.refused:
		a.release(s.id)
	}
}

// released ends a QoS 2 publish.
func (a *acks) released(id uint16) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.release(id)
}

func (a *acks) release(id uint16) {
	if _, ok := a.unreleased[id]; ok {
		delete(a.unreleased, id)
		a.strict--
	}
}

// settle waits until everything is acknowledged, but not for long: what waits for an
// answer of somebody else's may take its time.
func (a *acks) settle(most time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.slots) == 0 {
		return
	}
	end := time.Now().Add(most)
	wake := time.AfterFunc(most, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.change.Broadcast()
	})
	defer wake.Stop()
	for len(a.slots) > 0 && !a.closed && time.Now().Before(end) {
		a.change.Wait()
	}
}

// close lets go of a reader that waits.
func (a *acks) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.change.Broadcast()
}

// encodeAck makes a PUBACK or PUBREC. A 3.1.1 client can only be told yes.
func (c *conn) encodeAck(qos byte, id uint16, err error) []byte {
	ack := session.Ack{Type: 4, ID: id}
	if qos == 2 {
		ack.Type = 5
	}
	if err != nil {
		ack.Code = codeOf(err)
		if !c.noProblems {
			ack.Reason = reasonOf(err)
		}
	}
	packet := ack.Append(nil, c.ident.Version)
	if c.maximumPacket > 0 && len(packet) > int(c.maximumPacket) {
		ack.Reason = ""
		packet = ack.Append(packet[:0], c.ident.Version)
	}
	return packet
}
