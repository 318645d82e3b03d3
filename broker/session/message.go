package session

import "time"

// UserProperty is one of a message's free-form name and value pairs. Order and
// repetition count.
type UserProperty struct{ Key, Value string }

// Properties travel with a message to MQTT 5 subscribers, unchanged.
type Properties struct {
	ContentType   string
	ResponseTopic string
	Correlation   []byte
	PayloadFormat *byte  // nil: the publisher didn't say
	Expiry        uint32 // seconds that the message is worth delivering; 0: for ever
	User          []UserProperty
}

// Message is a publication on its way to subscribers. It is shared by every
// session that it is queued in, so nothing in it may change after hand-over.
type Message struct {
	Topic   string
	Payload []byte
	QoS     byte
	Retain  bool
	Props   Properties
	From    string // client id of the publisher, for no-local; empty: the broker itself
	Record  uint64 // where it is on disk as the topic's retained message; 0: nowhere

	At       time.Time // when the broker took it
	deadline time.Time // zero: none
}

// Stamp says when the message came, and turns the expiry interval into the moment at
// which it is no longer worth delivering. It is called once, before the message is shared.
func (m *Message) Stamp(now time.Time) {
	m.At = now
	if m.Props.Expiry > 0 {
		m.deadline = now.Add(time.Duration(m.Props.Expiry) * time.Second)
	}
}

// Anchor makes what is left until a message that was read from disk expires a duration,
// which jumps of the clock don't change any more.
func (m *Message) Anchor(now time.Time) {
	if !m.deadline.IsZero() {
		m.deadline = now.Add(m.deadline.Sub(now))
	}
}

// Expired says whether nobody wants the message any more.
func (m *Message) Expired(now time.Time) bool {
	return !m.deadline.IsZero() && !now.Before(m.deadline)
}

// remaining is the expiry interval to send: what is left of the publisher's,
// rounded up, and never 0, which would mean none.
func (m *Message) remaining(now time.Time) uint32 {
	if m.deadline.IsZero() {
		return 0
	}
	left := m.deadline.Sub(now)
	if left <= time.Second {
		return 1
	}
	return uint32((left + time.Second - 1) / time.Second)
}

// weight is about what the message costs in memory.
func (m *Message) weight() int {
	n := len(m.Topic) + len(m.Payload) + len(m.Props.Correlation) + len(m.Props.ResponseTopic) + len(m.Props.ContentType)
	for _, u := range m.Props.User {
		n += len(u.Key) + len(u.Value)
	}
	return n + 64
}

// Delivery is how one session gets a message: the outcome of its matching
// subscriptions.
type Delivery struct {
	QoS    byte
	Retain bool
	IDs    []uint32 // subscription identifiers; shared, never changed
	Batch  *Batch   // that the message is part of; nil: it is sent at once
	Stored bool     // it is sent once it is on disk, where it has to be
}
