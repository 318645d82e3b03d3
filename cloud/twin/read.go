// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"slices"
	"strings"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// Retained returns a reader of the retained messages of the nodes' trees that a filter matches, node by node. The reader takes the
// lock for a bounded number of keys at a time and holds no copy of the tree, so a subscription to a million keys doesn't
// block others.
func (t *Twins) Retained(filter string) func(max int) []broker.Message {
	f, ok := tree.ParseFilter(filter)
	r := retainedCursor{host: t.host, nodes: t.nodes, filter: f, done: !ok}
	r.begin("")
	if name, one := f.One(); one {
		r.begin(name)
	}
	return r.next
}

// Namespace is that of a Device; the default one if there is no such Device.
func (t *Twins) Namespace(device string) string { return t.devices.namespace(device) }

// retainedCursor is the position of a reader.
type retainedCursor struct {
	host   *tree.Host[*batch]
	nodes  *nodes
	filter tree.Filter
	node   string // nodes with lesser names are done
	walk   tree.Walk
	done   bool
}

func (r *retainedCursor) begin(node string) {
	r.node, r.walk = node, tree.Walk{Filter: r.filter}
}

func (r *retainedCursor) next(most int) (out []broker.Message) {
	for len(out) == 0 && !r.done {
		r.host.View(func() { out = r.readSome(most) })
	}
	return out
}

// readSome reads what may be read in one View.
func (r *retainedCursor) readSome(most int) (out []broker.Message) {
	one, single := r.filter.One()
	i, _ := slices.BinarySearch(r.nodes.names, r.node)
	if i == len(r.nodes.names) || single && r.nodes.names[i] != one {
		r.done = true
		return nil
	}
	if name := r.nodes.names[i]; name != r.node {
		r.begin(name)
	}
	n := r.nodes.byName[r.node]
	if !r.walk.Step(n.shown, n.parts(), &out, most) {
		r.begin(r.node + "\x00") // the next name that there could be
		r.done = single
	}
	return out
}

const stateKey = "state"

// parts are what the node's tree is made of: its presence, what the cloud wants, what the node reports.
func (n *node) parts() []tree.EntryRange {
	return []tree.EntryRange{
		{Range: rangePresence, Show: func(e link.Entry) (broker.Message, bool) { return n.shown(e.Key) }},
		{Range: n.down.RangeFrom, Show: n.shownDown},
		{Range: n.up.Stored().RangeFrom, Show: n.shownUp},
	}
}

func rangePresence(prefix, from string, fn func(link.Entry) bool) {
	if strings.HasPrefix(stateKey, prefix) && from <= stateKey {
		fn(link.Entry{Key: stateKey})
	}
}

// shown is the message of a key as it is now.
func (n *node) shown(key string) (m broker.Message, ok bool) {
	if key == stateKey {
		return n.retained(key, []byte(n.state())), true
	}
	if e, ok := n.down.Get(key); ok { // first, so that a node can't replace a key that the cloud owns
		return n.shownDown(e)
	}
	if e, ok := n.up.Stored().Get(key); ok {
		return n.shownUp(e)
	}
	return m, false
}

func (n *node) shownUp(e link.Entry) (m broker.Message, ok bool) {
	if a, ok := edgeOwned(n.name, e.Key); !ok || !n.shows(a) || n.isFormer(a.Device, e) {
		return m, false
	}
	return tree.EntryMessage(n.name, e), true
}

// shownDown shows documents joined from their parts, and no part by itself.
func (n *node) shownDown(e link.Entry) (m broker.Message, ok bool) {
	if strings.Contains(e.Key, "/parts/") || !readableByClients(e.Key) {
		return m, false
	}
	if strings.Contains(e.Key, "/desired/") {
		return tree.ValueMessage(n.name, e.Key, topics.KindDesired, tree.StoredValue(e)), true
	}
	doc, whole := topics.JoinDocument(e.Value, func(i int) ([]byte, bool) {
		p, ok := n.down.Get(topics.PartKey(e.Key, i))
		return p.Value, ok
	})
	return n.retained(e.Key, doc), whole
}

// readableByClients reports whether any client of the hub's broker may read a key of a map down. Other keys, such as Secrets, are for
// programs on the node alone: they are never published on the hub, whatever a subscriber's filter covers.
func readableByClients(key string) bool {
	if strings.HasPrefix(key, "devices/") {
		return true
	}
	a, err := topics.ParseKey("n", key) // the node's name has no part in it
	if err != nil {
		return false
	}
	readers := a.Kind.Row().Subscribe
	return slices.Contains(readers, topics.RoleOperator) || slices.Contains(readers, topics.RoleViewer)
}

// Mappers are the states of the mappers that a node has reported, by name.
func (t *Twins) Mappers(node string) map[string]string {
	t.host.RLock()
	defer t.host.RUnlock()
	states := make(map[string]string)
	if n := t.nodes.byName[node]; n != nil {
		for _, m := range tree.Mappers(n.name, n.up.Range) {
			states[m.Name] = resource.Offline
			if m.Online {
				states[m.Name] = resource.Online
			}
		}
	}
	return states
}
