package session

import (
	"slices"

	"github.com/edgebus/edgebus/broker/journal"
)

// pullChunk bounds how many retained messages a session holds before they are
// on their way, however many match a filter.
const pullChunk = 64

// Puller returns up to max retained messages, with their values as of now, and
// none when it has been through all of them. It is never called concurrently.
type Puller func(max int) []*Message

// pull is a subscription's retained messages, still to be sent.
type pull struct {
	filter string
	next   Puller // nil: not to be fetched yet
	since  uint64 // what came live after that isn't sent again
	qos    byte
	ids    []uint32

	// Of a durable session: a record as long as not all were delivered, so that after
	// a crash they are fetched again.
	marker   uint64
	left     int  // queued or unacknowledged
	finished bool // all were fetched
}

// Marker makes the record that says that a filter's retained messages are owed.
func (s *Session) Marker(filter string, d Delivery) journal.Change {
	return journal.Change{ID: s.log.ID(), Value: s.pullRecord(filter, d)}
}

// Owe says that a filter's retained messages are to be sent, once Pull says where they
// are; of a topic that a message comes of from now on, only that. It replaces what is
// left of an earlier pull of the filter. marker is a durable session's, handed to the log; or 0.
func (s *Session) Owe(filter string, marker uint64, d Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		if marker > 0 {
			s.log.Forget(marker)
		}
		return
	}
	s.stopPull(filter)
	s.pulls = append(s.pulls, &pull{filter: filter, since: s.came.count, qos: d.QoS, ids: d.IDs, marker: marker})
}

// Pull has the session fetch what it owes of a filter, bit by bit, as the client takes it.
func (s *Session) Pull(filter string, next Puller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pulls {
		if p.filter == filter {
			p.next = next
		}
	}
	if s.writer != nil {
		s.writer.Wake()
	}
}

// StopPull forgets the retained messages of a filter that is no longer subscribed.
func (s *Session) StopPull(filter string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopPull(filter)
}

func (s *Session) stopPull(filter string) {
	for _, p := range s.pulls {
		if p.filter == filter {
			s.remove(p)
			s.unmark(p)
			return
		}
	}
}

func (s *Session) remove(p *pull) {
	s.pulls = slices.DeleteFunc(s.pulls, func(x *pull) bool { return x == p })
	if len(s.pulls) == 0 {
		s.came = arrivals{}
	}
}

// unmark deletes a pull's marker.
func (s *Session) unmark(p *pull) {
	if p.marker > 0 {
		s.log.Forget(p.marker)
		p.marker = 0
	}
}

// landed counts a pulled message that is owed no more.
func (s *Session) landed(p *pull) {
	if p == nil {
		return
	}
	if p.left--; p.left == 0 && p.finished {
		s.unmark(p)
	}
}

// enqueuePulled queues a retained message that was fetched. In a durable session one
// of QoS 2 is stored, since its packet id must not come to mean something else.
// One of QoS 1 isn't: after a crash the pull begins again.
func (s *Session) enqueuePulled(m *Message, p *pull) {
	d := Delivery{QoS: min(m.QoS, p.qos), Retain: true, IDs: p.ids}
	if s.log == nil || d.QoS == 0 {
		s.enqueue(m, d)
		return
	}
	p.left++
	if d.QoS == 2 {
		o := s.offer(m, d, p)
		s.log.Commit([]journal.Change{o.Change(nil)}, o.Settle)
		return
	}
	s.seq++
	s.push(item{msg: m, ids: d.IDs, qos: 1, retain: true, stake: &stake{seq: s.seq, pull: p}}, nil)
}

// owes says whether retained messages are to be fetched now.
func (s *Session) owes(w *Writer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.due(w) != nil
}

// due is the pull whose turn it is; nil: none may be made now.
func (s *Session) due(w *Writer) *pull {
	if s.writer != w || s.pulling || s.queue.live > 0 || s.flights.resend != nil {
		return nil
	}
	for _, p := range s.pulls {
		if p.next != nil {
			return p
		}
	}
	return nil
}

// pull fetches the next few retained messages, once nothing else waits. It
// reports whether it did anything.
//
// The puller runs outside the lock: it may take locks of the store, whose owner
// may be enqueuing to this session under them. A live message that has come since the
// subscription was made is as new as what was pulled of its topic, or newer, or a newer
// one follows; so the pulled one is left out: nothing comes twice, or after a newer one.
func (s *Session) pull(w *Writer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.due(w)
	if p == nil {
		return false
	}
	s.pulling = true
	s.mu.Unlock()
	chunk := p.next(pullChunk)
	s.mu.Lock()
	s.pulling = false
	if s.writer != nil {
		s.writer.Wake() // it may be another's by now, and have waited for us
	}
	if !slices.Contains(s.pulls, p) {
		return true // unsubscribed, or subscribed again, meanwhile
	}
	if len(chunk) == 0 {
		s.remove(p)
		w.owing.Store(len(s.pulls) > 0)
		if p.finished = true; p.left == 0 {
			s.unmark(p)
		}
		return true
	}
	for _, m := range chunk {
		if !s.came.since(m.Topic, p.since) {
			s.enqueuePulled(m, p)
		}
	}
	return true
}
