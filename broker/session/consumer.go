package session

import "time"

// LocalConsumer takes the messages of a session inside the process, as a Writer takes them to
// a connection: in order, with a window, and each is the session's until Done or Drop.
// It is for sessions whose subscriptions have QoS 0 and 1.
type LocalConsumer struct {
	s     *Session
	ready chan struct{}
}

// LocalMessage is a message that was taken out. With ID 0, for QoS 0, it is not waited for.
type LocalMessage struct {
	*Message
	ID     uint16
	Again  bool   // it was taken before, by another outlet
	Expiry uint32 // seconds that are left of it; 0: for ever
	Retain bool
}

// OpenLocal makes an outlet, in the place of an earlier one: what that has taken and not
// settled is given again, first and in order. Until then QoS 0 is not queued.
func (s *Session) OpenLocal(window int) *LocalConsumer {
	o := &LocalConsumer{s: s, ready: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writer, s.window = o, window
	s.flights.restart()
	o.Wake()
	return o
}

// Shut ends the outlet. Done and Drop still count.
func (o *LocalConsumer) Shut() { o.s.detach(o) }

// Ready has a value when there may be something to take.
func (o *LocalConsumer) Ready() <-chan struct{} { return o.ready }

// Next takes the oldest message that was not taken yet, if the window lets it.
func (o *LocalConsumer) Next() (LocalMessage, bool) {
	s := o.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writer != taker(o) || s.ended {
		return LocalMessage{}, false
	}
	now := s.now()
	if x, ok := s.again(now); ok {
		return parcel(x.item, x.id, true, now), true
	} else if s.flights.resend != nil {
		return LocalMessage{}, false
	}
	for {
		s.dropOld(now)
		if s.readAhead(o); s.writer != taker(o) || s.ended {
			return LocalMessage{}, false
		}
		it, ok := s.queue.front()
		if !ok || s.waits(it) {
			return LocalMessage{}, false
		}
		s.queue.pop()
		if it.msg.Expired(now) {
			s.discard(nil, it, DropExpired)
			continue
		}
		s.count.Sent.Add(1)
		if it.qos == 0 {
			s.left(1)
			return parcel(it, 0, false, now), true
		}
		return parcel(it, s.flights.add(it).id, false, now), true
	}
}

func parcel(it item, id uint16, again bool, now time.Time) LocalMessage {
	return LocalMessage{Message: it.msg, ID: id, Again: again, Expiry: it.msg.remaining(now), Retain: it.retain}
}

// again finds the next message that an earlier outlet has left.
func (s *Session) again(now time.Time) (*flight, bool) {
	f := &s.flights
	for f.resend != nil && f.open < s.window {
		x := f.resend
		if old := s.old(x.item, now); old || x.msg.Expired(now) {
			why := DropExpired
			if old {
				why = DropTooOld
			}
			s.count.drop(why, 1)
			s.land(x, nil)
			continue
		}
		x.open = true
		f.open++
		f.resend = x.next
		return x, true
	}
	return nil, false
}

// Acknowledge says that a message is where it was to go.
func (o *LocalConsumer) Acknowledge(id uint16) {
	o.s.count.Done.Add(1)
	o.s.Puback(id, nil)
}

// Reject says that it will never be taken there.
func (o *LocalConsumer) Reject(id uint16) {
	s := o.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.flights.byID[id]; x != nil {
		s.count.drop(DropRefused, 1)
		s.land(x, nil)
	}
}

// Oldest is when the oldest message came that the session still has; zero: it has none.
func (s *Session) Oldest() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.flights.first; x != nil {
		return x.msg.came
	}
	if it, ok := s.queue.front(); ok {
		return it.msg.came
	}
	if s.behind.live > 0 {
		return s.behind.parts[s.behind.first()/partLen].oldest
	}
	return time.Time{}
}

// Wake tells that there may be something to take.
func (o *LocalConsumer) Wake() {
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

func (o *LocalConsumer) wakeWith(*WriteBatch) { o.Wake() }

// Control is nothing: QoS 2 has answers, and doesn't come here.
func (o *LocalConsumer) Control([]byte) {}

// Close is nothing: the session never gives up on its own process.
func (o *LocalConsumer) Close() {}

func (o *LocalConsumer) serves() bool { return false }
