package fleet

import (
	"context"
	"encoding/json"
	"maps"
	"sync"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// members are the names of the nodes that fleets have had since the start, so that a fleet can be looked at without listing
// all nodes. It has no less than those that a fleet has; who reads a node sees whether it is still the fleet's.
type members struct {
	loading sync.Mutex
	loaded  bool

	mu   sync.Mutex
	seen uint64
	of   map[string]map[string]uint64 // fleet → node → when it was seen last
}

func newMembers() *members {
	return &members{of: make(map[string]map[string]uint64)}
}

// load reads all Nodes, the first time that it is called: a fleet that is looked at before would seem to have fewer.
func (m *members) load(ctx context.Context, as *objects.Controller) error {
	m.loading.Lock()
	defer m.loading.Unlock()
	if m.loaded {
		return nil
	}
	for n, err := range objects.List[resource.Node](ctx, as, "") {
		if err != nil {
			return err
		}
		if fleet, owned := OwnedBy(n.Metadata.Owner); owned {
			m.add(fleet, n.Metadata.Name)
		}
	}
	m.loaded = true
	return nil
}

// add notes that a node is a fleet's.
func (m *members) add(fleet, node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of[fleet] == nil {
		m.of[fleet] = make(map[string]uint64)
	}
	m.seen++
	m.of[fleet][node] = m.seen
}

// list are the nodes that may be a fleet's, and when each was seen last.
func (m *members) list(fleet string) map[string]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.of[fleet])
}

// drop forgets a node that is not the fleet's, unless it was seen again since.
func (m *members) drop(fleet, node string, seen uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.of[fleet][node] == seen {
		delete(m.of[fleet], node)
	}
}

func nodeKey(name string) store.Key  { return store.Key{Kind: resource.KindNode, Name: name} }
func fleetKey(name string) store.Key { return store.Key{Kind: resource.KindFleet, Name: name} }

// ofNode is the fleet of a Node, as key.
func (m *members) ofNode(o store.Object) []store.Key {
	var node struct {
		Metadata struct {
			Owner string `json:"owner"`
		} `json:"metadata"`
	}
	if json.Unmarshal(o.Data, &node) != nil {
		return nil
	}
	fleet, owned := OwnedBy(node.Metadata.Owner)
	if !owned {
		return nil
	}
	m.add(fleet, o.Name)
	return []store.Key{fleetKey(fleet)}
}
