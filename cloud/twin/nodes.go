// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/link"
)

// nodes are the nodes that are known: each from its first connection, or from the first object that is for it.
type nodes struct {
	opts    *Options
	host    *tree.Host[*batch]
	status  *statusQueue
	reports *reportWatches
	started time.Time

	byName     map[string]*node
	names      []string        // in order
	registered map[string]bool // the names of the Nodes that there are
	labels     map[string]map[string]string
}

// get finds a node's state, or makes it.
func (ns *nodes) get(name string) *node {
	n := ns.byName[name]
	if n == nil {
		n = &node{
			nodes: ns, name: name, bound: make(map[string]bool),
			down: link.NewProjection(link.Down, ns.nonce), up: link.NewReplica(link.Up),
		}
		n.up.SetQuota(ns.opts.Quota)
		ns.byName[name] = n
		i, _ := slices.BinarySearch(ns.names, name)
		ns.names = slices.Insert(ns.names, i, name)
	}
	return n
}

// load reads what the nodes had reported when the hub stopped.
func (ns *nodes) load(ctx context.Context) error {
	for r, err := range ns.opts.Replicas.All(ctx) {
		if err != nil {
			return err
		}
		up, err := restoreReplica(r, ns.opts.Quota)
		if err != nil {
			return err
		}
		ns.get(r.Node).up = up
	}
	return nil
}

func (ns *nodes) reload(ctx context.Context, name string) (*link.Replica, error) {
	r, err := ns.opts.Replicas.Load(ctx, name)
	if err != nil {
		return nil, err
	}
	return restoreReplica(r, ns.opts.Quota)
}

// Nodes are the names of all nodes that are known, in order.
func (ns *nodes) Nodes() []string {
	ns.host.RLock()
	defer ns.host.RUnlock()
	return slices.Clone(ns.names)
}

// Registered reports whether there is a Node of that name, and whether there is any Node.
func (ns *nodes) Registered(name string) (there, any bool) {
	ns.host.RLock()
	defer ns.host.RUnlock()
	return ns.registered[name], len(ns.registered) > 0
}

// setRegistered notes whether there is a Node of that name, which the statuses of its devices depend on.
func (ns *nodes) setRegistered(name string, there bool) {
	if ns.registered[name] == there {
		return
	}
	if delete(ns.registered, name); there {
		ns.registered[name] = true
	}
	if n := ns.byName[name]; n != nil {
		for device := range n.bound {
			ns.status.device(device)
		}
	}
}

// setLabels notes the labels of a Node, which the node is told with its devices.
func (ns *nodes) setLabels(b *batch, name string, labels map[string]string) {
	if maps.Equal(ns.labels[name], labels) {
		return
	}
	if delete(ns.labels, name); len(labels) > 0 {
		ns.labels[name] = labels
	}
	if n := ns.byName[name]; n != nil && len(n.bound) > 0 {
		b.changedMembers[n] = true
	}
}

// forget handles the deletion of a Node: what the node reported is deleted, too. A node that is connected was accepted, so
// its Node is made again.
func (ns *nodes) forget(b *batch, name string) {
	n := ns.byName[name]
	if n == nil {
		ns.opts.ForgetNode(name)
		return
	}
	n.lacksNode = false
	if n.linkClient != "" {
		ns.status.node(name)
		return
	}
	b.deletedNodes[n] = true
}

// showMissing makes Nodes for nodes that reported something and have no Node: the hub was killed before it wrote one, or before it
// deleted the reports of a deleted one. These can't be told apart, and acknowledged data is not deleted on a guess: a deleted Node
// may appear again.
func (ns *nodes) showMissing(have func(name string) bool) {
	for name, n := range ns.byName {
		if reported(n.up) && !have(name) {
			n.lacksNode = true
			ns.status.node(name)
		}
	}
}

// removeDeleted forgets in memory what was dropped from the store.
func (ns *nodes) removeDeleted(b *batch) {
	for n := range b.deletedNodes {
		n.up.Range("", func(e link.Entry) bool {
			if a, shown := edgeOwned(n.name, e.Key); shown {
				ns.reports.note(n.name, a.Kind, e.Key)
				b.reports = append(b.reports, tree.EntryMessage(n.name, link.Entry{Key: e.Key, Ver: e.Ver, TS: b.now.UnixMilli(), Deleted: true}))
			}
			return true
		})
		ns.opts.ForgetNode(n.name)
		n.up, n.quotaError = link.NewReplica(link.Up), ""
		n.mapHub, n.mapHubKnown = 0, false
		n.up.SetQuota(ns.opts.Quota)
		for name := range n.bound {
			ns.status.device(name)
		}
		ns.dropUnused(b, n)
		ns.opts.Log.Info().Str("node", n.name).Msg("the Node was deleted, and what it had reported with it")
	}
}

// dropUnused forgets a node that has reported nothing and that no object is for.
func (ns *nodes) dropUnused(b *batch, n *node) {
	if n.linkClient != "" || reported(n.up) || len(n.bound) > 0 || n.documentCount > 0 || ns.registered[n.name] {
		return
	}
	delete(ns.byName, n.name)
	i, _ := slices.BinarySearch(ns.names, n.name)
	ns.names = slices.Delete(ns.names, i, i+1)
	b.publishes = append(b.publishes, n.retained(stateKey, nil))
}

const forgetRetry = time.Second // until a deletion that failed is tried again

// deletions are the changes that delete what nodes whose Node was deleted reported. A node that has connected meanwhile stays.
func (b *batch) deletions() (changes []store.NodeChange) {
	for n := range b.deletedNodes {
		if n.linkClient != "" {
			delete(b.deletedNodes, n)
			continue
		}
		changes = append(changes, store.NodeChange{Node: n.name, Drop: true})
	}
	return changes
}

func (t *Twins) retryForget(b *batch) {
	for n := range b.deletedNodes {
		time.AfterFunc(forgetRetry, func() { t.host.Put(tree.OwnSender, 0, func(b *batch) { t.nodes.forget(b, n.name) }) })
	}
}
