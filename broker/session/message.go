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
	User    string // of the publisher, for whom it counts while it is retained
	Record  uint64 // where it is on disk as the topic's retained message; 0: nowhere

	At   time.Time // when the broker took it, as the clock said then
	came time.Time // the same by the clock that runs now, for what is left of its time
}

// Stamp says when the message came, from which its expiry interval counts. It is called
// once, before the message is shared.
func (m *Message) Stamp(now time.Time) { m.At, m.came = now, now }

// Anchor has the time of a message that was read from disk go on.
func (m *Message) Anchor(now time.Time) { m.came = Then(m.At, now) }

// sane is the beginning of 2026. Nothing of ours ran before it: a clock that says less was
// not set yet.
const sane = 1_767_225_600

// Then is a time that was read from disk by the clock that runs now, whose jumps change
// nothing any more. What can't be so, because the clock was set in between, was now: a
// time that is to come, or one long before there was such a program.
func Then(t, now time.Time) time.Time {
	if t.After(now) || t.Unix() < sane && now.Unix() >= sane {
		return now
	}
	return now.Add(t.Sub(now))
}

// expires says when nobody wants the message any more, if it came at a time.
func (m *Message) expires(came time.Time) time.Time {
	if m.Props.Expiry == 0 || came.IsZero() {
		return time.Time{}
	}
	return came.Add(time.Duration(m.Props.Expiry) * time.Second)
}

// Deadline is when nobody wants the message any more; zero: never.
func (m *Message) Deadline() time.Time { return m.expires(m.came) }

// Expired says whether nobody wants the message any more.
func (m *Message) Expired(now time.Time) bool {
	return m.Props.Expiry > 0 && !now.Before(m.expires(m.came))
}

// remaining is the expiry interval to send: what is left of the publisher's,
// rounded up, and never 0, which would mean none.
func (m *Message) remaining(now time.Time) uint32 {
	if m.Props.Expiry == 0 {
		return 0
	}
	left := m.expires(m.came).Sub(now)
	if left <= time.Second {
		return 1
	}
	return uint32((left + time.Second - 1) / time.Second)
}

// What a message costs in memory besides its topic, payload and properties: its own parts and
// its place where it waits, rounded up as memory is given out; and a user property the same.
const (
	messageCost  = 400
	propertyCost = 48
	recordCost   = 64 // on disk
)

// Weight is about what the message costs in memory.
func (m *Message) Weight() int {
	return m.stored() + messageCost - recordCost + propertyCost*len(m.Props.User)
}

// stored is about what the message takes on disk.
func (m *Message) stored() int {
	p := &m.Props
	n := recordCost + len(m.Topic) + len(m.Payload) + len(p.Correlation) + len(p.ResponseTopic) + len(p.ContentType) + len(m.From)
	for _, u := range p.User {
		n += len(u.Key) + len(u.Value)
	}
	return n
}

// Delivery is how one session gets a message: the outcome of its matching
// subscriptions.
type Delivery struct {
	QoS    byte
	Retain bool
	IDs    []uint32 // subscription identifiers; shared, never changed
	Batch  *Batch   // that the message is part of; nil: it is sent at once
	Stored bool     // it is sent once it is on disk, where it has to be
	Share  *string  // the shared subscription as whose member the session gets it; nil: none
}
