package session

import (
	"errors"

	"github.com/edgebus/edgebus/broker/journal"
)

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

// Begin takes a QoS 2 publish of the client's. It is fresh when it has to be
// handled, and Finish told the outcome. Of a repetition nothing is to be done:
// its ack is called as soon as the outcome is known.
func (s *Session) Begin(id uint16, ack func(error)) (fresh bool) {
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

// Begun is what has to be stored together with a publish that Begin found fresh,
// in a durable session.
func (s *Session) Begun(id uint16) []journal.Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in := s.inbound[id]; in != nil && s.log != nil {
		return []journal.Change{{ID: in.record, Value: s.numbers(kindInbound, uint64(id))}}
	}
	return nil
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

// Release answers the client's PUBREL, in a durable session once it is stored that
// the id is free: with the PUBCOMP the client may use it for another message.
func (s *Session) Release(id uint16, w *Writer) {
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
