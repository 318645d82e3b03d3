package twin

import (
	"encoding/json"
	"errors"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// Publish takes a publish into a node's tree: somebody's wish, or the node's end
// of the link. done is called once it is stored, or with the rule that it breaks.
func (t *Twins) Publish(m broker.Message, done func(error)) {
	a, err := topics.Parse(m.Topic)
	if err != nil {
		done(resource.Errorf(resource.BadTopic, "", "%v", err))
		return
	}
	switch a.Kind {
	case topics.KindSyncUp:
		t.receive(a.Node, m.Payload)
		done(nil)
	case topics.KindDesired, topics.KindDesiredAll:
		t.wanted(a, m, done)
	case topics.KindGet:
		done(t.get(a, m))
	case topics.KindTelemetry, topics.KindEvents, topics.KindBridge, topics.KindCommand:
		m.Retain = false
		t.o.Publish(m)
		done(nil)
	default:
		done(resource.Errorf(resource.Forbidden, "", "%s is written by %s, not by clients of the hub's broker", a.Key(), a.Kind.Owner()))
	}
}

func (t *Twins) wanted(a topics.Address, m broker.Message, done func(error)) {
	values := map[string]*resource.Value{a.Name: nil}
	if len(m.Payload) > 0 {
		v := resource.Value(m.Payload)
		values[a.Name] = &v
	}
	if a.Kind == topics.KindDesiredAll {
		var err error
		if values, err = resource.Members(m.Payload); err != nil {
			done(err)
			return
		}
	}
	for property, v := range values {
		if v != nil && len(*v) > link.MaxValue {
			done(resource.Errorf(resource.TooLarge, property, "%d bytes; a value is at most %d", len(*v), link.MaxValue))
			return
		}
	}
	s, err := beside(m, t.o.Now().UnixMilli())
	if err != nil {
		done(err)
		return
	}
	origin := m.Publisher.User
	if origin == "" {
		origin = m.Publisher.ClientID
	}
	t.want(a.Device, wish{node: a.Node, origin: origin, values: values, ts: s.TS, until: s.Until, done: done})
}

// get answers with the whole twin, as JSON, on the asker's response topic.
func (t *Twins) get(a topics.Address, m broker.Message) error {
	t.mu.RLock()
	d := t.devices[a.Device]
	if d == nil || d.node != a.Node {
		t.mu.RUnlock()
		return resource.Errorf(resource.NotFound, "", "device %s does not belong to node %s", a.Device, a.Node)
	}
	twin := t.twin(d)
	t.mu.RUnlock()
	reply := m.Props.ResponseTopic
	if topics.CheckTopic(reply) != nil || topics.IsTree(reply) {
		return resource.Errorf(resource.Invalid, "response topic", "is needed: a topic of your own, outside v1/, for the answer")
	}
	payload, err := json.Marshal(twin)
	if err != nil {
		return err
	}
	t.o.Publish(broker.Message{
		Topic: reply, Payload: payload, QoS: m.QoS,
		Props: broker.Properties{Correlation: m.Props.Correlation, ContentType: "application/json"},
	})
	return nil
}

func stored(e link.Entry) resource.Stored {
	return resource.Stored{
		Value: e.Value, Ver: e.Ver, TS: e.TS, Origin: e.Origin,
		For: e.Meta.For, BasedOn: e.Meta.BasedOn, Until: e.Meta.Until,
	}
}

func userProps(kind topics.Kind, s resource.Stored) []broker.UserProperty {
	props := s.Props(kind)
	out := make([]broker.UserProperty, len(props))
	for i, p := range props {
		out[i] = broker.UserProperty(p)
	}
	return out
}

// beside reads what a publisher sent beside its value.
func beside(m broker.Message, now int64) (resource.Stored, error) {
	s := resource.Stored{TS: now}
	if m.Props.Expiry != 0 {
		s.Until = now + int64(m.Props.Expiry)*1000
	}
	var errs []error
	for _, p := range m.Props.User {
		errs = append(errs, s.SetProp(p.Key, p.Value))
	}
	return s, errors.Join(errs...)
}
