package fleet

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"

	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// members are the names of the nodes, or versions, that fleets have had since the start, so that a fleet can be looked at without
// listing all of them. It has no less than those that a fleet has; reading one shows whether it is still the fleet's.
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

// once reads what there was before the start, the first time that it is called: a fleet that is looked at before would seem to
// have fewer.
func (m *members) once(load func() error) error {
	m.loading.Lock()
	defer m.loading.Unlock()
	if m.loaded {
		return nil
	}
	err := load()
	m.loaded = err == nil
	return err
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
	if len(m.of[fleet]) == 0 {
		delete(m.of, fleet)
	}
}

func nodeKey(name string) store.Key  { return store.Key{Kind: resource.KindNode, Name: name} }
func fleetKey(name string) store.Key { return store.Key{Kind: resource.KindFleet, Name: name} }

// ofNode is the fleet of a Node, as key.
func (m *members) ofNode(o store.Object) []store.Key {
	var owner string
	_ = json.Unmarshal(rawjson.Field(rawjson.Field(o.Data, "metadata"), "owner"), &owner) // most have none
	fleet, owned := OwnedBy(owner)
	if !owned {
		return nil
	}
	m.add(fleet, o.Name)
	return []store.Key{fleetKey(fleet)}
}

// selectorOverlaps count the nodes that several fleets match, so that a node which changes costs no more than the fleets that match it.
type selectorOverlaps struct {
	mu       sync.Mutex
	matching map[string][]string       // by node: the fleets that match, where they are several
	pairs    map[string]map[string]int // fleet → another → the nodes that both match
	changed  map[string]bool           // fleets whose condition has not been written since their others changed
}

func newSelectorOverlaps() *selectorOverlaps {
	return &selectorOverlaps{matching: make(map[string][]string), pairs: make(map[string]map[string]int), changed: make(map[string]bool)}
}

// set notes which fleets match a node, if they are several.
func (x *selectorOverlaps) set(node string, matching []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if slices.Equal(x.matching[node], matching) {
		return
	}
	x.count(x.matching[node], -1)
	x.count(matching, 1)
	if len(matching) == 0 {
		delete(x.matching, node)
	} else {
		x.matching[node] = matching
	}
}

func (x *selectorOverlaps) count(fleets []string, by int) {
	for _, a := range fleets {
		for _, b := range fleets {
			if a == b {
				continue
			}
			if x.pairs[a] == nil {
				x.pairs[a] = make(map[string]int)
			}
			before := x.pairs[a][b]
			x.pairs[a][b] += by
			if before+by == 0 {
				delete(x.pairs[a], b)
			}
			if before == 0 || before+by == 0 {
				x.changed[a] = true
			}
		}
		if len(x.pairs[a]) == 0 {
			delete(x.pairs, a)
		}
	}
}

// overlapping are the fleets that match nodes which a fleet matches, too.
func (x *selectorOverlaps) overlapping(fleet string) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Sorted(maps.Keys(x.pairs[fleet]))
}

// takeChanged are the fleets to say so; change notes one again.
func (x *selectorOverlaps) takeChanged() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	names := slices.Sorted(maps.Keys(x.changed))
	clear(x.changed)
	return names
}

func (x *selectorOverlaps) markChanged(fleet string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.changed[fleet] = true
}
