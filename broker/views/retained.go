// SPDX-License-Identifier: Apache-2.0

package views

import (
	"hash/maphash"
	"maps"
	"slices"
)

// RetainedMessages is which retained messages a view has at its peer, in one connection, so that nothing is left over: not of a Device that is
// gone or shown otherwise now, and not of an earlier connection, whatever ended that.
type RetainedMessages struct {
	owns    func(Message) bool
	seed    maphash.Seed
	said    map[string]saidMessage     // what was published, by topic
	of      map[string]map[string]bool // topics by whom they speak of
	found   map[string]bool            // the view's own that were there before, and have not been published again
	settled bool
}

// saidMessage is a retained message that was published: the hash of its payload, and of whom it speaks.
type saidMessage struct {
	sum     uint64
	subject string
}

// NewRetainedMessages begins a connection.
func NewRetainedMessages(owns func(Message) bool) *RetainedMessages {
	if owns == nil {
		owns = func(Message) bool { return false }
	}
	return &RetainedMessages{
		owns: owns, seed: maphash.MakeSeed(), said: make(map[string]saidMessage), of: make(map[string]map[string]bool), found: make(map[string]bool),
	}
}

// Len is how many retained messages of the view the peer has.
func (r *RetainedMessages) Len() int { return len(r.said) }

// Say takes what a view publishes because of subject, such as a Device, and returns what is to be sent: a retained message that the peer has
// already isn't, unless again is set. whole says that it is all that there is to say of it: the topics of subject that are not among it are
// cleared.
func (r *RetainedMessages) Say(subject string, whole, again bool, messages []Message) (send []Message) {
	before := r.of[subject]
	now := before
	if whole || now == nil {
		now = make(map[string]bool)
	}
	for _, m := range messages {
		if !m.Retain {
			send = append(send, m)
			continue
		}
		delete(r.found, m.Topic)
		if len(m.Payload) == 0 {
			if _, there := r.said[m.Topic]; there {
				delete(r.said, m.Topic)
				delete(now, m.Topic)
				delete(before, m.Topic)
				send = append(send, m)
			}
			continue
		}
		now[m.Topic] = true
		next := saidMessage{maphash.Bytes(r.seed, m.Payload), subject}
		is, there := r.said[m.Topic]
		if r.said[m.Topic] = next; !there || is.sum != next.sum || again {
			send = append(send, m)
		}
	}
	if whole {
		for _, topic := range slices.Sorted(maps.Keys(before)) {
			if !now[topic] && r.said[topic].subject == subject { // or it speaks of another subject by now
				delete(r.said, topic)
				send = append(send, clearingMessage(topic))
			}
		}
	}
	if r.of[subject] = now; len(now) == 0 {
		delete(r.of, subject)
	}
	return send
}

func clearingMessage(topic string) Message { return Message{Topic: topic, QoS: 1, Retain: true} }

// Find takes a retained message that the peer has, and returns whether it is to be cleared now: it is the view's own, and all has been said
// without it.
func (r *RetainedMessages) Find(m Message) (clear bool) {
	if len(m.Payload) == 0 || !r.owns(m) {
		return false
	}
	if _, there := r.said[m.Topic]; there {
		return false
	}
	if !r.settled {
		r.found[m.Topic] = true
	}
	return r.settled
}

// Settle says that all was said once, and returns what clears the messages that were found and not published again.
func (r *RetainedMessages) Settle() (send []Message) {
	r.settled = true
	for _, topic := range slices.Sorted(maps.Keys(r.found)) {
		send = append(send, clearingMessage(topic))
	}
	clear(r.found)
	return send
}
