package twin

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// node finds a node's state, or makes it: a node is known from its first
// connection, or from the first Device that is bound to it.
func (t *Twins) node(name string) *node {
	n := t.nodes[name]
	if n == nil {
		n = &node{
			name: name, bound: make(map[string]bool),
			down: link.NewProjection(link.Down, t.nonce), up: link.NewReplica(link.Up),
		}
		n.up.SetQuota(t.o.Quota)
		t.nodes[name] = n
		i, _ := slices.BinarySearch(t.names, name)
		t.names = slices.Insert(t.names, i, name)
	}
	return n
}

// sync is a message of the link to the node.
func (n *node) sync(payload []byte) broker.Message {
	_, down := topics.Sync(n.name)
	return broker.Message{Topic: down, Payload: payload, QoS: 1}
}

func (n *node) retained(key string, payload []byte) broker.Message {
	return tree.Document(n.name, key, payload)
}

func (n *node) state() string {
	if n.core != "" {
		return resource.Online
	}
	return resource.Offline
}

// Connected is told by the hub's broker of every client. A node counts when its link
// listens: others of its clients may have its certificate.
func (t *Twins) Connected(broker.Identity) {}

// Subscribed begins the link when a core listens on its sync/down.
func (t *Twins) Subscribed(id broker.Identity, filter string) {
	if _, down := topics.Sync(id.Node); !id.IsLink() || filter != down {
		return
	}
	t.steps.Put(func(b *batch) {
		n := t.node(id.Node)
		n.core = id.ClientID
		t.noteJoined(b, n, id)
		n.contact.began(b.now, id)
		t.stats.links.Add(1)
		t.setAway(n, false)
		n.down.Connect(t.o.Rand())
		b.spoke[n] = true
		t.presence(b, n)
		t.o.Log.Info().Str("node", n.name).Str("remote", id.Remote).Msg("node is online")
	})
}

// Disconnected ends the link with the connection that it was on.
func (t *Twins) Disconnected(id broker.Identity, cause error) {
	if !id.Has(topics.RoleNode) {
		return
	}
	t.steps.Put(func(b *batch) {
		n := t.nodes[id.Node]
		if n == nil || n.core != id.ClientID {
			return
		}
		n.core = ""
		takenOver := n.contact.over(b.now, cause)
		if takenOver {
			t.stats.takeovers.Add(1)
		}
		t.noteLeft(b, n, takenOver)
		n.down.Disconnect()
		t.presence(b, n)
		t.o.Log.Warn().AnErr("cause", cause).Str("node", n.name).Str("remote", id.Remote).Msg("node is offline")
	})
}

func (t *Twins) presence(b *batch, n *node) {
	b.out = append(b.out, n.retained(stateKey, []byte(n.state())))
	t.status.node(n.name)
}

// receive takes a message of a node's link. A malformed one is dropped: whatever
// it should have said, the link says again.
func (t *Twins) receive(name string, said broker.Message) {
	m, err := link.Decode(said.Payload)
	if err != nil {
		t.floods.Warn().Err(err).Str("node", name).Msg("malformed message from the node")
		return
	}
	clock := clockOf(said)
	t.steps.Put(func(b *batch) {
		n := t.node(name)
		b.spoke[n] = true
		n.contact.heard(b.now, clock)
		if m.Map == link.Down {
			n.sentAt = b.now
			if t.meet(b, n, m) {
				n.down.Disconnect()
				return
			}
			if err := n.down.Step(m); err != nil {
				t.floods.Warn().Err(err).Str("node", name).Msg("message from the node")
			}
			t.noteInStep(b, n)
			return
		}
		t.noteAnomaly(b, n, m)
		changes := n.up.Step(m)
		b.changes += len(changes)
		for i := range changes {
			t.reported(b, n, &changes[i])
		}
		t.noteOversize(b, n)
	})
}

// reported is a change that a node made. Only what the edge owns is shown: a
// node that forges another owner's key fools nobody but its own replica. It is published,
// once it is stored, if anybody wants to know: who subscribes from now on reads what is
// retained, and waits with that for the commit.
func (t *Twins) reported(b *batch, n *node, c *link.Entry) {
	a, ok := edgeOwned(n.name, c.Key)
	if !ok {
		return
	}
	if (c.Deleted || n.shows(a)) && t.o.Wanted(topics.TopicOf(n.name, c.Key)) {
		b.reports = append(b.reports, tree.Entry(n.name, *c))
	}
	t.noteReported(b, n, a, c)
	switch {
	case a.Kind == topics.KindStatus:
		t.status.node(n.name)
	case a.Kind == topics.KindMapperState, a.Kind == topics.KindMapperProtocols:
		for name := range n.bound { // which mappers there are concerns each
			t.status.device(name)
		}
	case a.Device != "" && n.bound[a.Device]:
		t.status.device(a.Device)
	}
}

func edgeOwned(node, key string) (topics.Address, bool) {
	a, err := topics.ParseKey(node, key)
	if err != nil {
		return a, false
	}
	row := a.Kind.Row()
	return a, row.Owner == topics.OwnerEdge && row.Retain
}

// shows says whether what a node reports on an address is shown: of devices only what is said of the node's own.
func (n *node) shows(a topics.Address) bool {
	return !strings.HasPrefix(a.Key(), "devices/") || n.bound[a.Device]
}

// showReported publishes what a node had reported of a device before that was bound to it.
func (t *Twins) showReported(b *batch, n *node, device string) {
	if b.loading {
		return
	}
	n.up.Range("devices/"+device+"/", func(e link.Entry) bool {
		if _, ok := edgeOwned(n.name, e.Key); ok && t.o.Wanted(topics.TopicOf(n.name, e.Key)) {
			b.reports = append(b.reports, tree.Entry(n.name, e))
		}
		return true
	})
}

// loadReplicas reads what the nodes reported before the hub was restarted.
func (t *Twins) loadReplicas(ctx context.Context) error {
	for r, err := range t.o.Replicas.All(ctx) {
		if err != nil {
			return err
		}
		if err := t.node(r.Node).restore(r, t.o.Quota); err != nil {
			return err
		}
	}
	return nil
}

func (t *Twins) reloadReplica(ctx context.Context, n *node) error {
	r, err := t.o.Replicas.Load(ctx, n.name)
	if err != nil {
		return err
	}
	return n.restore(r, t.o.Quota)
}

func (n *node) restore(r store.Replica, q link.Quota) error {
	if r.Meta == nil {
		n.up = link.NewReplica(link.Up)
		n.up.SetQuota(q)
		return nil
	}
	var state link.State
	if err := state.UnmarshalBinary(r.Meta); err != nil {
		return fmt.Errorf("the stored map of node %s: %w", n.name, err)
	}
	var damaged error
	up, err := link.RestoreReplica(link.Up, state, parse(r.Items, &damaged))
	if err = errors.Join(err, damaged); err != nil {
		return fmt.Errorf("the stored map of node %s: %w", n.name, err)
	}
	n.up = up
	n.up.SetQuota(q)
	return nil
}

func parse(items []store.Item, bad *error) iter.Seq[link.Entry] {
	return func(yield func(link.Entry) bool) {
		for _, item := range items {
			e, err := link.ParseEntry(item.Key, item.Value)
			if err != nil {
				*bad = fmt.Errorf("key %q: %w", item.Key, err)
				return
			}
			if !yield(e) {
				return
			}
		}
	}
}

func nodeChange(name string, j link.Journal) (store.NodeChange, error) {
	meta, err := j.State.MarshalBinary()
	c := store.NodeChange{Node: name, Reset: j.Reset, Meta: meta, Delete: j.Dropped, Put: make([]store.Item, 0, len(j.Entries))}
	for _, e := range j.Entries {
		c.Put = append(c.Put, store.Item{Key: e.Key, Value: link.StoredEntry(e)})
	}
	return c, err
}

// Nodes are the names of all nodes that are known, in order.
func (t *Twins) Nodes() []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Clone(t.names)
}
