// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// reader reads the tree: for subscribers, and for the local API.
type reader struct {
	opts      *Options
	host      *tree.Host[*batch]
	up        *upMap
	down      *downMap
	devices   *devices
	overrides *overrides
	history   *deviceHistory
}

// Retained returns a reader of the retained messages of the node's tree that a filter matches: the cloud's documents, the values in
// force as desired values, and the edge's keys. The reader takes the lock for a bounded number of keys at a time and holds no copy
// of the tree.
func (r *reader) Retained(filter string) func(max int) []broker.Message {
	f, ok := tree.ParseFilter(filter)
	if name, one := f.One(); !ok || one && name != r.opts.Node {
		return func(int) []broker.Message { return nil }
	}
	walk, more := tree.Walk{Filter: f}, true
	return func(most int) (out []broker.Message) {
		for len(out) == 0 && more {
			r.host.View(func() { more = walk.Step(r.shown, r.parts(), &out, most) })
		}
		return out
	}
}

// parts are the parts of the tree, Devices first, so that a subscriber to the whole node gets a device before its values.
func (r *reader) parts() []tree.EntryRange {
	return []tree.EntryRange{
		{Range: r.down.RangeFrom, Show: r.shownDocument},
		{Range: r.down.RangeFrom, Show: r.shownDesired},
		{Range: r.rangeOverridden, Show: r.shownOverridden},
		{Range: r.up.RangeFrom, Show: func(e link.Entry) (broker.Message, bool) { return r.up.message(e), true }},
	}
}

// shown is the message of a key as it is now.
func (r *reader) shown(key string) (broker.Message, bool) {
	if m, ok := r.shownDesired(link.Entry{Key: key}); ok {
		return m, true
	}
	if e, ok := r.up.Get(key); ok {
		return r.up.message(e), true
	}
	return r.shownDocument(link.Entry{Key: key})
}

// shownDocument shows a document joined from its parts, and no part by itself.
func (r *reader) shownDocument(e link.Entry) (m broker.Message, ok bool) {
	if strings.Contains(e.Key, "/parts/") || strings.Contains(e.Key, "/desired/") {
		return m, false
	}
	doc, exists, whole := r.down.document(e.Key)
	return r.opts.retained(e.Key, doc), exists && whole
}

func (r *reader) shownDesired(e link.Entry) (m broker.Message, ok bool) {
	in := r.overrides.byKey[e.Key]
	if in == nil || in.None {
		return m, false
	}
	return r.overrides.message(e.Key, in), true
}

// rangeOverridden ranges over overrides, under the keys of the desired values that they replace.
func (r *reader) rangeOverridden(prefix, from string, fn func(link.Entry) bool) {
	override := func(key string) string { return strings.Replace(key, "/desired/", "/override/", 1) }
	r.up.RangeFrom(override(prefix), override(from), func(e link.Entry) bool {
		e.Key = strings.Replace(e.Key, "/override/", "/desired/", 1)
		return fn(e)
	})
}

// shownOverridden shows the value in force of a property without a desired value. Properties with one are shown by shownDesired.
func (r *reader) shownOverridden(e link.Entry) (m broker.Message, ok bool) {
	if _, wanted := r.down.Get(e.Key); wanted {
		return m, false
	}
	return r.shownDesired(e)
}

// twin makes a device's twin from both maps.
func (r *reader) twin(name string, m resource.DeviceModel) map[string]resource.TwinProperty {
	return resource.Twin(m, func(branch, property string) (resource.StoredValue, bool) {
		key := "devices/" + name + "/" + branch + "/" + property
		e, ok := r.up.Get(key)
		if branch == "desired" {
			e, ok = r.down.Get(key)
		}
		return tree.StoredValue(e), ok
	})
}

// Devices are the node's Devices with their twins, in order of name, as of a revision.
func (r *reader) Devices() (list []resource.Device, rev uint64) {
	r.host.RLock()
	defer r.host.RUnlock()
	mappers := tree.Mappers(r.opts.Node, r.up.Range)
	for name := range r.devices.byName {
		d, _ := r.deviceWithStatus(name, mappers)
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b resource.Device) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	return list, r.history.rev
}

// Models are the models of the node's devices, each once.
func (r *reader) Models() (list []resource.DeviceModel) {
	r.host.RLock()
	defer r.host.RUnlock()
	seen := make(map[[2]string]bool)
	for _, d := range r.devices.byName {
		m := d.bundle.Model
		key := [2]string{m.Metadata.Namespace, m.Metadata.Name}
		if !seen[key] {
			seen[key] = true
			list = append(list, m)
		}
	}
	slices.SortFunc(list, func(a, b resource.DeviceModel) int {
		return cmp.Or(strings.Compare(a.Metadata.Namespace, b.Metadata.Namespace), strings.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	return list
}

// Device is one Device with its twin, and its model.
func (r *reader) Device(name string) (resource.Bundle, bool) {
	r.host.RLock()
	defer r.host.RUnlock()
	d, ok := r.deviceWithStatus(name, tree.Mappers(r.opts.Node, r.up.Range))
	if !ok {
		return resource.Bundle{}, false
	}
	return resource.Bundle{Device: d, Model: r.devices.byName[name].bundle.Model}, true
}

// deviceWithStatus is a Device with its status; mappers are the node's mappers.
func (r *reader) deviceWithStatus(name string, mappers []resource.Mapper) (resource.Device, bool) {
	known, ok := r.devices.byName[name]
	if !ok {
		return resource.Device{}, false
	}
	d := known.bundle.Device
	rev := r.history.revOf(name)
	d.Metadata.ResourceVersion = strconv.FormatUint(rev, 10)
	d.Status.State = resource.Unknown
	reach := resource.Reachability{Node: r.opts.Node, Registered: true, Protocol: d.Spec.Protocol.Type, Problem: tree.ProblemOf(name, r.up.Get), Mappers: mappers}
	if e, ok := r.up.Get(topics.Address{Kind: topics.KindDeviceState, Device: name}.Key()); ok {
		d.Status.State, reach.Heard, reach.Since = string(e.Value), true, resource.FormatMillis(e.TS)
	}
	reach.State = d.Status.State
	d.Status.Twin = r.twin(name, known.bundle.Model)
	d.Status.Conditions = reach.TwinConditions(nil, d.Status.Twin, time.Time{}) // no history is kept here: no transition times
	d.Status.Conditions = resource.SetCondition(d.Status.Conditions, reach.Condition(), time.Time{})
	d.Status.Conditions = reach.SetDegraded(d.Status.Conditions, time.Time{})
	d.FollowAlarms(known.bundle.Model, func(property string) []byte {
		e, _ := r.up.Get(topics.DeviceKey(name, topics.KindAlarms, property))
		return e.Value
	}, time.Time{})
	d.Spec.Desired = make(map[string]resource.Value, len(d.Status.Twin))
	for property, p := range d.Status.Twin {
		if p.Desired != nil {
			d.Spec.Desired[property] = resource.Value(p.Desired.Value)
		}
	}
	return d, true
}

// NodeLabels are the node's labels, as the hub knows them; nil: none, or there is no device.
func (r *reader) NodeLabels() map[string]string {
	r.host.RLock()
	defer r.host.RUnlock()
	var m resource.Membership
	if text, exists, ok := r.down.document("membership"); exists && ok {
		_ = json.Unmarshal(text, &m) // what can't be read has no labels
	}
	return m.Labels
}

// Changes lists the devices that were changed or removed after revision since and up to rev, in order. more is closed with the next
// change. ok is false if since is too old or in the future: list again.
func (r *reader) Changes(since uint64) (rev uint64, changes []resource.DeviceChange, more <-chan struct{}, ok bool) {
	r.host.RLock()
	defer r.host.RUnlock()
	changes, ok = r.history.since(since)
	return r.history.rev, changes, r.history.wake, ok
}
