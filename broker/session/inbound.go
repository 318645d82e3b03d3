package session

const codeUnknownID = 0x92

// inbound is a QoS 2 publish of the client's, from its PUBLISH to its PUBREL.
type inbound struct {
	received bool          // the broker took it: a repetition is only acknowledged
	acks     []func(error) // of the PUBLISH and its repetitions, until the outcome is known
}

// maxRepeats bounds what a client that repeats itself can make a session hold.
const maxRepeats = 16

// Begin takes a QoS 2 publish of the client's. It is fresh when it has to be
// handled, and Finish told the outcome. Of a repetition nothing is to be done:
// its ack is called as soon as the outcome is known.
func (s *Session) Begin(id uint16, ack func(error)) (fresh bool) {
	s.mu.Lock()
	in := s.inbound[id]
	if in == nil {
		s.inbound[id] = &inbound{acks: []func(error){ack}}
		s.mu.Unlock()
		return true
	}
	received := in.received
	if !received {
		in.acks = append(in.acks[max(0, len(in.acks)-maxRepeats):], ack)
	}
	s.mu.Unlock()
	if received {
		ack(nil)
	}
	return false
}

// Finish acknowledges a publish that Begin found fresh. After an error the id is
// free again, as the standard has it.
func (s *Session) Finish(id uint16, err error) {
	s.mu.Lock()
	in := s.inbound[id]
	if in == nil || in.received {
		s.mu.Unlock()
		return
	}
	if err == nil {
		in.received = true
	} else {
		delete(s.inbound, id)
	}
	acks := in.acks
	in.acks = nil
	s.mu.Unlock()
	for _, ack := range acks {
		ack(err)
	}
}

// Release answers the client's PUBREL.
func (s *Session) Release(id uint16) Ack {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.inbound[id]
	if in == nil {
		return Ack{Type: typePubcomp >> 4, ID: id, Code: codeUnknownID}
	}
	if in.received {
		delete(s.inbound, id)
	}
	return Ack{Type: typePubcomp >> 4, ID: id}
}
