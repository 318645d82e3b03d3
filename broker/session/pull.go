package session

import "github.com/edgebus/edgebus/broker/journal"

// pullChunk bounds how many retained messages a session holds before they are
// on their way, however many match a filter.
const pullChunk = 64

// Puller returns up to max retained messages, with their values as of now, and
// none when it has been through all of them. It is never called concurrently.
type Puller func(max int) []*Message

// pull is a subscription's retained messages, still to be sent.
type pull struct {
	filter string
	next   Puller
	qos    byte
	ids    []uint32

	// Of a durable session: a record as long as not all were delivered, so that after
	// a crash they are fetched again.
	marker   uint64
	left     int  // queued or unacknowledged
	finished bool // all were fetched
}

// Pull has the session fetch a filter's retained messages, bit by bit, as the
// client takes them. It replaces what is left of an earlier pull of the filter.
func (s *Session) Pull(filter string, next Puller, d Delivery) { s.PullMarked(filter, 0, next, d) }

// Marker makes the record that says that a filter's retained messages are owed.
func (s *Session) Marker(filter string, d Delivery) journal.Change {
	return journal.Change{ID: s.log.ID(), Value: s.pullRecord(filter, d)}
}

// PullMarked is Pull in a durable session, with a marker that is on disk.
func (s *Session) PullMarked(filter string, marker uint64, next Puller, d Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		if marker > 0 {
			s.log.Forget(marker)
		}
		return
	}
	s.stopPull(filter)
	s.pulls = append(s.pulls, &pull{filter: filter, next: next, qos: d.QoS, ids: d.IDs, marker: marker})
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
	for i, p := range s.pulls {
		if p.filter == filter {
			s.pulls = append(s.pulls[:i:i], s.pulls[i+1:]...)
			s.unmark(p)
			return
		}
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
	return s.mayPull(w)
}

func (s *Session) mayPull(w *Writer) bool {
	return s.writer == w && !s.pulling && len(s.pulls) > 0 && s.queue.live == 0 && s.flights.resend == nil
}

// pull fetches the next few retained messages, once nothing else waits. It
// reports whether it did anything.
//
// The puller runs outside the lock: it may take locks of the store, whose owner
// may be enqueuing to this session under them. A live message that was enqueued
// meanwhile is as new as what was pulled of its topic, or newer, or a newer one
// follows; so the pulled one is left out, and no value can come after a newer one.
func (s *Session) pull(w *Writer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mayPull(w) {
		return false
	}
	p, mark := s.pulls[0], s.queue.items.end()
	s.pulling = true
	s.mu.Unlock()
	chunk := p.next(pullChunk)
	s.mu.Lock()
	s.pulling = false
	if s.writer != nil {
		s.writer.Wake() // it may be another's by now, and have waited for us
	}
	if s.ended || len(s.pulls) == 0 || s.pulls[0] != p {
		return true // unsubscribed, or subscribed again, meanwhile
	}
	if len(chunk) == 0 {
		s.pulls = s.pulls[1:]
		if p.finished = true; p.left == 0 {
			s.unmark(p)
		}
		return true
	}
	newer := s.queue.topicsSince(mark)
	for _, m := range chunk {
		if !newer[m.Topic] {
			s.enqueuePulled(m, p)
		}
	}
	return true
}
