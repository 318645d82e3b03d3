// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"cmp"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// DocumentMessage is a retained message without metadata; a nil payload clears the topic.
func DocumentMessage(node, key string, payload []byte) broker.Message {
	return broker.Message{Topic: topics.TopicOf(node, key), Payload: payload, QoS: 1, Retain: true}
}

// ValueMessage is a value with its metadata beside it. kind is KindDesired for wanted
// values, whose end has a name of its own.
func ValueMessage(node, key string, kind topics.Kind, s resource.StoredValue) broker.Message {
	m := DocumentMessage(node, key, s.Value)
	props := s.Props(kind)
	m.Props.User = make([]broker.UserProperty, len(props))
	for i, p := range props {
		m.Props.User[i] = broker.UserProperty(p)
	}
	return m
}

// EntryMessage is the message of an edge-owned entry; a tombstone clears the topic.
func EntryMessage(node string, e link.Entry) broker.Message {
	s := StoredValue(e)
	if e.Deleted {
		s.Value = nil
	}
	return ValueMessage(node, e.Key, topics.KindReported, s)
}

// StoredValue is an entry as the twin's rules see it.
func StoredValue(e link.Entry) resource.StoredValue {
	return resource.StoredValue{
		Value: e.Value, Ver: e.Ver, TS: e.TS, Origin: e.Origin,
		For: e.Meta.For, BasedOn: e.Meta.BasedOn, Until: e.Meta.Until,
	}
}

// maxAhead is how far in the future a value's timestamp may be, in ms: the newest wins where the policy is latest.
const maxAhead = 60_000

// ParseStored reads what a publisher sent beside its value. A message expiry is the
// value's end.
func ParseStored(m broker.Message, now int64) (resource.StoredValue, error) {
	s := resource.StoredValue{TS: now}
	if m.Props.Expiry != 0 {
		s.Until = now + int64(m.Props.Expiry)*1000
	}
	for _, p := range m.Props.User {
		if err := s.SetProp(p.Key, p.Value); err != nil {
			return s, err
		}
	}
	return s, checkTime(s.TS, now)
}

// CheckTimestamp checks the time that a publisher sent with an item of a stream.
func CheckTimestamp(m broker.Message, now int64) error {
	for _, p := range m.Props.User {
		s := resource.StoredValue{TS: now}
		if p.Key != propTS {
			continue
		}
		if err := s.SetProp(p.Key, p.Value); err != nil {
			return err
		}
		if err := checkTime(s.TS, now); err != nil {
			return err
		}
	}
	return nil
}

const propTS = "ts"

// AheadError is the error of a timestamp that is too far in the future: the sender's clock is wrong, or the one here.
type AheadError struct{ error }

// Unwrap is the rule that the timestamp breaks.
func (e AheadError) Unwrap() error { return e.error }

func checkTime(ts, now int64) error {
	if ts <= now+maxAhead {
		return nil
	}
	return AheadError{resource.Errorf(resource.Invalid, propTS, "%s is more than a minute ahead of the clock here, %s: mend the sender's clock, or leave ts out",
		resource.FormatMillis(ts), resource.FormatMillis(now))}
}

// PropertyValue is a property that a message sets, or clears: then its value is nil.
type PropertyValue struct {
	Property string
	Value    []byte
}

// PropertyValues appends what a message sets: one property, or several at once.
func PropertyValues(to []PropertyValue, a topics.Address, m broker.Message) ([]PropertyValue, error) {
	if a.Kind != topics.KindDesiredAll && a.Kind != topics.KindReportedAll {
		v := PropertyValue{a.Name, m.Payload}
		if len(v.Value) == 0 {
			v.Value = nil
		}
		return append(to, v), v.check()
	}
	values, err := resource.ParseMembers(m.Payload)
	if err != nil {
		return to, err
	}
	for property, value := range values {
		v := PropertyValue{Property: property}
		if value != nil {
			v.Value = []byte(*value)
		}
		if err := v.check(); err != nil {
			return to, err
		}
		to = append(to, v)
	}
	return to, nil
}

func (v PropertyValue) check() error {
	if len(v.Value) > link.MaxValue {
		return resource.Errorf(resource.TooLarge, v.Property, "%d bytes; a value is at most %d", len(v.Value), link.MaxValue)
	}
	return nil
}

// PayloadValue is a payload as a value: nil, for clear, when it is empty.
func PayloadValue(payload []byte) *resource.Value {
	if len(payload) == 0 {
		return nil
	}
	v := resource.Value(payload)
	return &v
}

// SenderOf is who a message's step counts for, and the bytes that the step keeps.
func SenderOf(m broker.Message) (from string, bytes int) {
	return OriginOf(m), len(m.Topic) + len(m.Payload)
}

// OriginOf is who wrote a value: the user, or the client id of one without a name.
func OriginOf(m broker.Message) string {
	return cmp.Or(m.User(), m.ClientID())
}

// ResponseTopic is where the answer to a request goes.
func ResponseTopic(m broker.Message) (string, error) {
	reply := m.Props.ResponseTopic
	if topics.CheckTopic(reply) != nil || topics.IsTree(reply) {
		return "", resource.Errorf(resource.Invalid, "response topic", "is needed: a topic of your own, outside v1/, for the answer")
	}
	return reply, nil
}

// ResponseMessage is the answer to a request, as JSON.
func ResponseMessage(request broker.Message, topic string, payload []byte) broker.Message {
	return broker.Message{
		Topic: topic, Payload: payload, QoS: request.QoS,
		Props: broker.Properties{Correlation: request.Props.Correlation, ContentType: "application/json"},
	}
}
