// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// sightingIndex is what reports have told: who sees what, and which handlers there are. Everything in it comes again after a restart.
type sightingIndex struct {
	mu              sync.Mutex
	completeKinds   map[topics.Kind]bool                                               // all that nodes had reported when the hub started is in it
	instanceAt      map[topics.Address]string                                          // the Instance that a report is about
	sightings       map[string]map[topics.Address]resource.DiscoveredDevice            // by Instance
	instances       map[string]map[string]bool                                         // by Configuration: the names of Instances that are seen
	deviceCounts    map[string]map[string]int                                          // by Configuration and node: how many devices it sees, maxSightings at most
	excess          map[string]map[string]map[topics.Address]resource.DiscoveredDevice // by Configuration and node: those that are more
	sharedCounts    map[string]map[string]int                                          // by node and Instance: at how many topics it reports a shared device
	handlerReports  map[string]map[string]resource.HandlerReport                       // by Configuration and node
	discovererSigns map[string]map[string]bool                                         // by node: by what it is known that it runs edgediscovery: a handler that it reports, or its presence
}

func newSightingIndex() *sightingIndex {
	return &sightingIndex{
		completeKinds: make(map[topics.Kind]bool), instanceAt: make(map[topics.Address]string),
		sightings: make(map[string]map[topics.Address]resource.DiscoveredDevice), instances: make(map[string]map[string]bool),
		deviceCounts: make(map[string]map[string]int), excess: make(map[string]map[string]map[topics.Address]resource.DiscoveredDevice),
		sharedCounts: make(map[string]map[string]int), handlerReports: make(map[string]map[string]resource.HandlerReport), discovererSigns: make(map[string]map[string]bool),
	}
}

// putNested, addNested and dropNested change a map of maps, of which none is empty.
func putNested[A, B comparable, V any](m map[A]map[B]V, a A, b B, value V) {
	if m[a] == nil {
		m[a] = make(map[B]V)
	}
	m[a][b] = value
}

func addNested[A, B comparable](m map[A]map[B]int, a A, b B, n int) {
	if n += m[a][b]; n == 0 {
		dropNested(m, a, b)
		return
	}
	putNested(m, a, b, n)
}

func dropNested[A, B comparable, V any](m map[A]map[B]V, a A, b B) {
	if delete(m[a], b); len(m[a]) == 0 {
		delete(m, a)
	}
}

// markComplete notes that all is there that nodes had reported of a kind when the hub started; it reports whether that is news.
func (x *sightingIndex) markComplete(kind topics.Kind) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	news := !x.completeKinds[kind]
	x.completeKinds[kind] = true
	return news
}

func (x *sightingIndex) isComplete(kinds ...topics.Kind) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !slices.ContainsFunc(kinds, func(k topics.Kind) bool { return !x.completeKinds[k] })
}

// maxSightings bounds the devices of a node and Configuration of which Instances and Devices are made: what a node reports is not the hub's to
// choose. It is the most that limits.devices of edgediscovery may be.
const maxSightings = resource.MaxDiscoveredDevices

// setDevice notes what a node has at a topic; nil: nothing. It returns the names of the Instances that this concerns, and whether the node
// sees its first device of the Configuration now, or none any more, or has come to or below the bound.
func (x *sightingIndex) setDevice(a topics.Address, d *resource.DiscoveredDevice) (names []string, turned bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	before, excess := x.deviceCounts[a.Device][a.Node], len(x.excess[a.Device][a.Node])
	if was, ok := x.instanceAt[a]; ok {
		names = append(names, was)
		x.removeSighting(a, was)
	}
	x.dropExcess(a)
	switch {
	case d != nil && x.deviceCounts[a.Device][a.Node] >= maxSightings:
		if x.excess[a.Device][a.Node] == nil {
			putNested(x.excess, a.Device, a.Node, make(map[topics.Address]resource.DiscoveredDevice))
		}
		x.excess[a.Device][a.Node][a] = *d
	case d != nil:
		names = x.addSighting(a, *d, names)
	default:
		for next, device := range x.excess[a.Device][a.Node] { // one of those that are left takes the place
			if x.deviceCounts[a.Device][a.Node] < maxSightings {
				x.dropExcess(next)
				names = x.addSighting(next, device, names)
			}
			break
		}
	}
	return names, (before == 0) != (x.deviceCounts[a.Device][a.Node] == 0) || (excess == 0) != (len(x.excess[a.Device][a.Node]) == 0)
}

func (x *sightingIndex) addSighting(a topics.Address, d resource.DiscoveredDevice, names []string) []string {
	name := InstanceName(a.Device, d.ID, a.Node, d.Shared)
	if !slices.Contains(names, name) {
		names = append(names, name)
	}
	x.instanceAt[a] = name
	putNested(x.sightings, name, a, d)
	putNested(x.instances, a.Device, name, true)
	addNested(x.deviceCounts, a.Device, a.Node, 1)
	if d.Shared {
		addNested(x.sharedCounts, a.Node, name, 1)
	}
	return names
}

func (x *sightingIndex) dropExcess(a topics.Address) {
	delete(x.excess[a.Device][a.Node], a)
	if len(x.excess[a.Device][a.Node]) == 0 {
		dropNested(x.excess, a.Device, a.Node)
	}
}

func (x *sightingIndex) removeSighting(a topics.Address, name string) {
	delete(x.instanceAt, a)
	addNested(x.deviceCounts, a.Device, a.Node, -1)
	if x.sightings[name][a].Shared {
		addNested(x.sharedCounts, a.Node, name, -1)
	}
	dropNested(x.sightings, name, a)
	if len(x.sightings[name]) == 0 {
		dropNested(x.instances, a.Device, name)
	}
}

// sightingsOf is what those of some nodes, which are sorted, say of a device that they see, in their order. Of a node that has it at several
// topics the first one counts.
func (x *sightingIndex) sightingsOf(name string, nodes []string) (list []Sighting) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, a := range slices.SortedFunc(maps.Keys(x.sightings[name]), func(a, b topics.Address) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name))
	}) {
		if _, chosen := slices.BinarySearch(nodes, a.Node); chosen && (len(list) == 0 || list[len(list)-1].Node != a.Node) {
			list = append(list, Sighting{a.Node, x.sightings[name][a]})
		}
	}
	return list
}

// setHandler notes what a node says of a handler; not there: nothing any more. It reports whether the node says its first thing of any handler
// now, or nothing any more: whether it runs edgediscovery concerns all Configurations.
func (x *sightingIndex) setHandler(a topics.Address, r resource.HandlerReport, there bool) (turned bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if there {
		putNested(x.handlerReports, a.Device, a.Node, r)
	} else {
		dropNested(x.handlerReports, a.Device, a.Node)
	}
	return x.setSign(a.Node, "handler/"+a.Device, there)
}

// setDiscoverer notes the presence of a node's edgediscovery, online or offline; not there: it never ran. It reports as setHandler does.
func (x *sightingIndex) setDiscoverer(node string, there bool) (turned bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.setSign(node, "state", there)
}

// setSign notes one sign that a node runs edgediscovery, and reports whether it is the first or was the last. x.mu is held.
func (x *sightingIndex) setSign(node, kind string, there bool) (turned bool) {
	before := len(x.discovererSigns[node])
	if there {
		putNested(x.discovererSigns, node, kind, true)
	} else {
		dropNested(x.discovererSigns, node, kind)
	}
	return (before == 0) != (len(x.discovererSigns[node]) == 0)
}

func (x *sightingIndex) handlers(configuration string) HandlerReports {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := HandlerReports{
		Reports: maps.Clone(x.handlerReports[configuration]), DeviceCounts: maps.Clone(x.deviceCounts[configuration]),
		ExcessCounts: make(map[string]int), Discovers: make(map[string]bool),
	}
	for node, left := range x.excess[configuration] {
		s.ExcessCounts[node] = len(left)
	}
	for node := range x.discovererSigns {
		s.Discovers[node] = true
	}
	return s
}

// configurationOf is the Configuration of an Instance that is seen; empty: it isn't.
func (x *sightingIndex) configurationOf(name string) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	for a := range x.sightings[name] {
		return a.Device
	}
	return ""
}

func (x *sightingIndex) instancesOf(configuration string) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.instances[configuration]))
}

func (x *sightingIndex) allInstances() (names []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, of := range x.instances {
		names = slices.AppendSeq(names, maps.Keys(of))
	}
	return names
}

// sharedBy are the Instances of shared devices that a node sees.
func (x *sightingIndex) sharedBy(node string) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.sharedCounts[node]))
}

// keyQueue are keys that wait to be queued by a controller.
type keyQueue struct {
	mu      sync.Mutex
	waiting map[store.Key]bool
	wake    chan struct{} // holds a value while some has keys
}

func newKeyQueue() *keyQueue {
	return &keyQueue{waiting: make(map[store.Key]bool), wake: make(chan struct{}, 1)}
}

func (k *keyQueue) add(list ...store.Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range list {
		k.waiting[key] = true
	}
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// feed is a source of a controller.
func (k *keyQueue) feed(ctx context.Context, add func(...store.Key)) {
	for {
		select {
		case <-k.wake:
			k.mu.Lock()
			list := slices.Collect(maps.Keys(k.waiting))
			clear(k.waiting)
			k.mu.Unlock()
			add(list...)
		case <-ctx.Done():
			return
		}
	}
}
