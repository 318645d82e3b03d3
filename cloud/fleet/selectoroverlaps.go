// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	"maps"
	"slices"
	"sync"

	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

func nodeKey(name string) store.Key  { return store.Key{Kind: resource.KindNode, Name: name} }
func fleetKey(name string) store.Key { return store.Key{Kind: resource.KindFleet, Name: name} }

// fleetOfNode is the fleet of a Node, as key.
func fleetOfNode(o store.Object) []store.Key {
	owner := bytes.Trim(rawjson.Field(rawjson.Field(o.Data, "metadata"), "owner"), `"`) // most have none; in a fleet's name nothing is escaped
	if fleet, owned := OwnedBy(string(owner)); owned {
		return []store.Key{fleetKey(fleet)}
	}
	return nil
}

// indexNode has a Node found by its fleet.
func indexNode(o store.Object) (v struct{}, refs []store.Key, ok bool) {
	return v, fleetOfNode(o), true
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
