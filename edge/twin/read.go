package twin

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/edge/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// message is an edge-owned entry as subscribers see it.
func (t *Twin) message(e link.Entry) broker.Message { return tree.Entry(t.o.Node, e) }

// desiredMessage is what is in force for a property as subscribers see it.
func (t *Twin) desiredMessage(key string, e *store.Effective) broker.Message {
	s := resource.Stored{Value: e.Value, Ver: e.Ver, TS: e.TS, Origin: e.Origin, Until: e.Until}
	if e.None {
		s.Value = nil
	}
	return tree.Value(t.o.Node, key, topics.KindDesired, s)
}

// Retained gives the node's tree as its broker shows it: the cloud's documents put
// together, for desired values what is in force, the edge's keys. A reader takes
// the lock for some keys at a time and holds a copy of none.
func (t *Twin) Retained(filter string) func(max int) []broker.Message {
	f, ok := tree.ParseFilter(filter)
	if name, one := f.One(); !ok || one && name != t.o.Node {
		return func(int) []broker.Message { return nil }
	}
	walk, more := tree.Walk{Filter: f}, true
	some := func(most int) (out []broker.Message) {
		t.publishing.RLock()
		defer t.publishing.RUnlock()
		t.mu.RLock()
		defer t.mu.RUnlock()
		more = walk.Step(t.shown, t.parts(), &out, most)
		return out
	}
	return func(most int) (out []broker.Message) {
		for len(out) == 0 && more {
			out = some(most)
		}
		return out
	}
}

// parts are what the tree is made of, the Devices first: who subscribes to a
// whole node then knows a device before its values.
func (t *Twin) parts() []tree.Part {
	return []tree.Part{
		{Range: t.down.RangeFrom, Show: t.shownDocument},
		{Range: t.down.RangeFrom, Show: t.shownDesired},
		{Range: t.rangeOverridden, Show: t.shownOverridden},
		{Range: t.up.RangeFrom, Show: func(e link.Entry) (broker.Message, bool) { return t.message(e), true }},
	}
}

// shown is the message of a key as it is now.
func (t *Twin) shown(key string) (broker.Message, bool) {
	if m, ok := t.shownDesired(link.Entry{Key: key}); ok {
		return m, true
	}
	if e, ok := t.up.Get(key); ok {
		return t.message(e), true
	}
	return t.shownDocument(link.Entry{Key: key})
}

// shownDocument shows no parts by themselves.
func (t *Twin) shownDocument(e link.Entry) (m broker.Message, ok bool) {
	if strings.Contains(e.Key, "/parts/") || strings.Contains(e.Key, "/desired/") {
		return m, false
	}
	doc, exists, whole := t.document(e.Key)
	return t.retained(e.Key, doc), exists && whole
}

func (t *Twin) shownDesired(e link.Entry) (m broker.Message, ok bool) {
	in := t.effective[e.Key]
	if in == nil || in.None {
		return m, false
	}
	return t.desiredMessage(e.Key, in), true
}

// rangeOverridden gives overrides under the keys of the desired values that they stand for.
func (t *Twin) rangeOverridden(prefix, from string, fn func(link.Entry) bool) {
	override := func(key string) string { return strings.Replace(key, "/desired/", "/override/", 1) }
	t.up.RangeFrom(override(prefix), override(from), func(e link.Entry) bool {
		e.Key = strings.Replace(e.Key, "/override/", "/desired/", 1)
		return fn(e)
	})
}

// shownOverridden shows what is in force where the cloud wants nothing: a value in
// force comes from either side, and one that has a desired value is shown with it.
func (t *Twin) shownOverridden(e link.Entry) (m broker.Message, ok bool) {
	if _, wanted := t.down.Get(e.Key); wanted {
		return m, false
	}
	return t.shownDesired(e)
}

// twin puts a device's twin together from both maps.
func (t *Twin) twin(name string, m resource.DeviceModel) map[string]resource.TwinProperty {
	return resource.Twin(m, func(branch, property string) (resource.Stored, bool) {
		key := "devices/" + name + "/" + branch + "/" + property
		e, ok := t.up.Get(key)
		if branch == "desired" {
			e, ok = t.down.Get(key)
		}
		return tree.Stored(e), ok
	})
}

// Devices are the node's Devices with their twins, in order of name, as of a revision.
func (t *Twin) Devices() (list []resource.Device, rev uint64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	mappers := tree.Mappers(t.o.Node, t.up.Range)
	for name := range t.devices {
		d, _ := t.read(name, mappers)
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b resource.Device) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	return list, t.history.rev
}

// Models are the models of the node's devices, each once.
func (t *Twin) Models() (list []resource.DeviceModel) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	seen := make(map[[2]string]bool)
	for _, d := range t.devices {
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
func (t *Twin) Device(name string) (resource.Bundle, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	d, ok := t.read(name, tree.Mappers(t.o.Node, t.up.Range))
	if !ok {
		return resource.Bundle{}, false
	}
	return resource.Bundle{Device: d, Model: t.devices[name].bundle.Model}, true
}

// read is a Device with all that is known of it; mappers are the node's.
func (t *Twin) read(name string, mappers []resource.Mapper) (resource.Device, bool) {
	known, ok := t.devices[name]
	if !ok {
		return resource.Device{}, false
	}
	d := known.bundle.Device
	rev := t.history.of(name)
	d.Metadata.ResourceVersion = strconv.FormatUint(rev, 10)
	d.Status.State = resource.Unknown
	if e, ok := t.up.Get(topics.Address{Kind: topics.KindDeviceState, Device: name}.Key()); ok {
		d.Status.State = string(e.Value)
	}
	d.Status.Twin = t.twin(name, known.bundle.Model)
	d.Status.Conditions = resource.TwinConditions(nil, d.Status.Twin, time.Time{}) // no history is kept here: no transition times
	d.Status.Conditions = resource.SetCondition(d.Status.Conditions, resource.Reachability{
		Node: t.o.Node, Registered: true, Protocol: d.Spec.Protocol.Type, State: d.Status.State,
		Problem: tree.Problem(name, t.up.Get), Mappers: mappers,
	}.Condition(), time.Time{})
	d.Spec.Desired = make(map[string]resource.Value, len(d.Status.Twin))
	for property, p := range d.Status.Twin {
		if p.Desired != nil {
			d.Spec.Desired[property] = resource.Value(p.Desired.Value)
		}
	}
	return d, true
}
