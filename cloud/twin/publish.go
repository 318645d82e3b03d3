package twin

import (
	"context"
	"encoding/json"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
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
		t.receive(a.Node, m)
		done(nil)
	case topics.KindDesired, topics.KindDesiredAll:
		t.wanted(a, m, done)
	case topics.KindGet:
		done(t.get(a, m))
	case topics.KindBridge:
		t.o.Pass(m, done)
	case topics.KindTelemetry, topics.KindEvents:
		if err := t.Has(a.Node, a.Device); err != nil {
			done(err)
			return
		}
		m.Retain = false
		t.o.Pass(m, done)
	default:
		done(resource.Errorf(resource.Forbidden, "", "%s is written by %s, not by clients of the hub's broker", a.Key(), a.Kind.Owner()))
	}
}

func (t *Twins) wanted(a topics.Address, m broker.Message, done func(error)) {
	members, err := tree.Members(nil, a, m)
	if err != nil {
		done(err)
		return
	}
	values := make(map[string]*resource.Value, len(members))
	for _, v := range members {
		values[v.Property] = tree.Bare(v.Value)
	}
	s, err := tree.Beside(m, t.o.Now().UnixMilli())
	if err != nil {
		done(err)
		return
	}
	t.want(a.Device, wish{node: a.Node, origin: tree.Origin(m), values: values, ts: s.TS, until: s.Until, done: done})
}

// Has says why a node doesn't have a device; nil: it does. It waits for no commit.
func (t *Twins) Has(node, device string) error {
	if at, _ := t.where.Load(device); at != node {
		return notOn(node, device)
	}
	return nil
}

func notOn(node, device string) error {
	return resource.Errorf(resource.NotFound, "", "device %s does not belong to node %s", device, node)
}

// get answers with the whole twin, as JSON, on the asker's response topic. Its desired values are those of the stored
// object: who was told that a write is done, reads it.
func (t *Twins) get(a topics.Address, m broker.Message) error {
	if err := t.Has(a.Node, a.Device); err != nil {
		return err
	}
	key := store.Key{Kind: resource.KindDevice, Namespace: t.namespace(a.Device), Name: a.Device}
	obj, err := t.o.Reader.Get(context.Background(), key)
	if err != nil {
		return err
	}
	var whole resource.Device
	if err := json.Unmarshal(obj.Data, &whole); err != nil {
		return err
	}
	t.mu.RLock()
	d := t.devices[a.Device]
	if d == nil || d.node != a.Node {
		t.mu.RUnlock()
		return notOn(a.Node, a.Device)
	}
	whole.Status = t.reportedStatus(d)
	model := t.models[d.of]
	t.mu.RUnlock()
	whole.FollowSpec(model.known(), t.o.Now())
	reply, err := tree.ReplyTopic(m)
	if err != nil {
		return err
	}
	payload, err := json.Marshal(whole.Status.Twin)
	if err != nil {
		return err
	}
	t.o.Publish(tree.Reply(m, reply, payload))
	return nil
}
