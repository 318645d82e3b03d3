// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"sync"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/quota"
)

// Inbound are the QoS 2 publishes of the client's that wait for their PUBREL. Nothing but the packet identifiers limits how many a
// client leaves so, for as long as its session lives: they are charged to its user.
type Inbound struct {
	mu      sync.Mutex
	byID    map[uint16]*inboundPublish
	user    *quota.Account
	records *records
	ended   bool // nothing is charged any more
}

// inboundPublish is a QoS 2 publish of the client's, from its PUBLISH to its PUBREL.
type inboundPublish struct {
	record   uint64        // id, in a durable session
	received bool          // the broker has it: a repetition is acknowledged and nothing else
	acks     []func(error) // of the PUBLISH and its repetitions, until the outcome is known
}

const (
	inboundCost      = 144 // bytes of memory for each
	uncheckedInbound = 16  // that a session may have whatever else its user holds: a client that releases what it publishes goes on
	maxRepetitions   = 16  // that a session holds for a client that repeats itself
)

// ErrRepeated is the outcome of a publish that needs no answer of its own: its repetitions are answered.
var ErrRepeated = errors.New("repeated")

func (n *Inbound) init(user *quota.Account, records *records) {
	n.byID, n.user, n.records = make(map[uint16]*inboundPublish), user, records
}

// room returns why there can't be one more.
func (n *Inbound) room() error {
	if len(n.byID) < uncheckedInbound {
		return nil
	}
	return n.user.Check(inboundCost)
}

func (n *Inbound) add(id uint16, in *inboundPublish) {
	n.byID[id] = in
	n.charge(1)
}

func (n *Inbound) remove(id uint16) {
	delete(n.byID, id)
	n.charge(-1)
}

func (n *Inbound) charge(publishes int) {
	if !n.ended {
		n.user.Add(int64(publishes) * inboundCost)
	}
}

// end gives back what is charged, and takes the records.
func (n *Inbound) end() (records []uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, in := range n.byID {
		if in.received && n.records.durable() {
			records = append(records, in.record)
			n.remove(id)
		}
	}
	n.charge(-len(n.byID))
	n.ended = true
	return records
}

// Begin takes a QoS 2 publish of the client's. If it is the first with its packet id, the broker handles it and calls
// Finish with the outcome. A repetition is not handled, nor is one for which the user has no room: ack is called once the
// outcome is known.
func (n *Inbound) Begin(id uint16, ack func(error)) (first bool) {
	n.mu.Lock()
	in := n.byID[id]
	if in == nil {
		full := n.room()
		if full == nil {
			in = &inboundPublish{acks: []func(error){ack}}
			if n.records.durable() {
				in.record = n.records.log.ID()
			}
			n.add(id, in)
		}
		n.mu.Unlock()
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
	n.mu.Unlock()
	if ack != nil {
		ack(err)
	}
	return false
}

// Changes are to be committed together with the publish, in a durable session.
func (n *Inbound) Changes(id uint16) []journal.RecordChange {
	n.mu.Lock()
	defer n.mu.Unlock()
	if in := n.byID[id]; in != nil && n.records.durable() {
		return []journal.RecordChange{{ID: in.record, Value: n.records.encode(kindInbound, uint64(id))}}
	}
	return nil
}

// Finish acknowledges a publish that Begin found to be the first. After an error the packet id is free again.
func (n *Inbound) Finish(id uint16, err error) {
	n.mu.Lock()
	in := n.byID[id]
	if in == nil || in.received {
		n.mu.Unlock()
		return
	}
	if err == nil && !n.ended {
		in.received = true
	} else {
		n.remove(id)
	}
	if err == nil && n.ended {
		n.records.forget(in.record)
	}
	acks := in.acks
	in.acks = nil
	n.mu.Unlock()
	for _, ack := range acks {
		ack(err)
	}
}

// Release answers the client's PUBREL with PUBCOMP, over a connection of the given version. A durable session first stores that the
// packet id is free: the client may then use it for another message.
func (n *Inbound) Release(id uint16, w *Writer, version byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	in := n.byID[id]
	if in == nil || !in.received || !n.records.durable() {
		n.complete(id, in, w, version)
		return
	}
	n.records.log.Commit([]journal.RecordChange{{ID: in.record}}, func(err error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		if err != nil {
			w.Close() // the client asks again on a new connection
			return
		}
		n.complete(id, in, w, version)
	})
}

func (n *Inbound) complete(id uint16, in *inboundPublish, w *Writer, version byte) {
	answer := Ack{Type: typePubcomp >> 4, ID: id}
	switch {
	case in == nil:
		answer.Code = codeUnknownID
	case in.received && n.byID[id] == in:
		n.remove(id)
	}
	w.Control(answer.Append(nil, version), nil)
}
