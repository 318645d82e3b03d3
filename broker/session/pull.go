package session

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
}

// Pull has the session fetch a filter's retained messages, bit by bit, as the
// client takes them. It replaces what is left of an earlier pull of the filter.
func (s *Session) Pull(filter string, next Puller, d Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.stopPull(filter)
	s.pulls = append(s.pulls, &pull{filter: filter, next: next, qos: d.QoS, ids: d.IDs})
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
			return
		}
	}
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
	if s.writer != w || s.pulling || len(s.pulls) == 0 || s.queue.live > 0 || s.flights.resend != nil {
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
		return true
	}
	newer := s.queue.topicsSince(mark)
	for _, m := range chunk {
		if !newer[m.Topic] {
			s.enqueue(m, Delivery{QoS: min(m.QoS, p.qos), Retain: true, IDs: p.ids})
		}
	}
	return true
}
