package twin

import (
	"slices"
	"time"

	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

const retryDrop = time.Second // until what could not be dropped is tried again

// noteOversize says once that nothing is taken of what a node reports, and once that it is again.
func (t *Twins) noteOversize(b *batch, n *node) {
	why := n.up.Refused()
	if why == n.oversize {
		return
	}
	n.oversize = why
	t.status.node(n.name)
	if why == "" {
		b.tellNode(n.name, resource.EventNormal, "WithinQuota", "", "what the node reports is taken again")
		t.o.Log.Info().Str("node", n.name).Msg("what the node reports is taken again")
		return
	}
	b.tellNode(n.name, resource.EventWarning, resource.QuotaExceeded, "",
		"the node owns %s: nothing is taken of what it reports until it owns less", why)
	t.o.Log.Error().Str("node", n.name).Str("reason", why).
		Msg("nothing is taken of what the node reports until it owns less: see limits.node")
}

// dropNode follows the deletion of a Node: what it reported goes with it. One that
// is connected has been let in, so it exists, and is registered again.
func (t *Twins) dropNode(b *batch, name string) {
	n := t.nodes[name]
	if n == nil {
		t.o.ForgetNode(name)
		return
	}
	n.unknown = false
	if n.core != "" {
		t.status.node(name)
		return
	}
	b.dropped[n] = true
}

// showMissing has those nodes shown that reported something and have no Node: the hub
// died before it wrote one, or before it forgot what a deleted one had reported. What was
// acknowledged is not thrown away on a guess: who meant to delete it sees it again.
func (t *Twins) showMissing(have func(name string) bool) {
	for name, n := range t.nodes {
		if n.reported() && !have(name) {
			n.unknown = true
			t.status.node(name)
		}
	}
}

// reported says whether anything is kept of what the node said.
func (n *node) reported() bool { return n.up.Lineage() != (link.Lineage{}) }

// drops are the changes that forget nodes. One that came back meanwhile stays.
func (b *batch) drops() (changes []store.NodeChange) {
	for n := range b.dropped {
		if n.core != "" {
			delete(b.dropped, n)
			continue
		}
		changes = append(changes, store.NodeChange{Node: n.name, Drop: true})
	}
	return changes
}

// removeDropped forgets in memory what was dropped from the store.
func (t *Twins) removeDropped(b *batch) {
	for n := range b.dropped {
		n.up.Range("", func(e link.Entry) bool {
			if _, shown := edgeOwned(n.name, e.Key); shown {
				b.out = append(b.out, tree.Entry(n.name, link.Entry{Key: e.Key, Ver: e.Ver, TS: b.now.UnixMilli(), Deleted: true}))
			}
			return true
		})
		t.o.ForgetNode(n.name)
		n.up, n.oversize = link.NewReplica(link.Up), ""
		n.other, n.met = 0, false
		n.up.SetQuota(t.o.Quota)
		for name := range n.bound {
			t.status.device(name)
		}
		if len(n.bound) == 0 { // otherwise it is known by its devices
			delete(t.nodes, n.name)
			i, _ := slices.BinarySearch(t.names, n.name)
			t.names = slices.Delete(t.names, i, i+1)
			b.out = append(b.out, n.retained(stateKey, nil))
		}
		t.o.Log.Info().Str("node", n.name).Msg("the Node was deleted, and what it had reported with it")
	}
}

func (t *Twins) dropAgain(b *batch) {
	for n := range b.dropped {
		time.AfterFunc(retryDrop, func() { t.steps.Put(func(b *batch) { t.dropNode(b, n.name) }) })
	}
}
