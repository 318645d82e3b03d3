package twin

import (
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

// Retained gives the node's tree as its broker shows it: the edge's keys, the
// cloud's documents put together, and for desired values what is in force.
func (t *Twin) Retained(filter string) func(max int) []broker.Message {
	keys := t.keys(filter)
	return func(most int) []broker.Message {
		out := make([]broker.Message, 0, min(most, len(keys)))
		t.mu.RLock()
		defer t.mu.RUnlock()
		for len(keys) > 0 && len(out) < most {
			if m, ok := t.shown(keys[0]); ok && !t.backlog.Hides(m.Topic) {
				out = append(out, m)
			}
			keys = keys[1:]
		}
		return out
	}
}

// keys are those that the filter covers, the Devices first: who subscribes to a
// whole node then knows a device before its values.
func (t *Twin) keys(filter string) []string {
	prefix := topics.TopicOf(t.o.Node, "")
	if !strings.ContainsAny(filter, "+#") {
		key, ok := strings.CutPrefix(filter, prefix)
		if !ok || strings.Contains(key, "/parts/") {
			return nil
		}
		return []string{key}
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	var out []string
	add := func(key string) {
		if topics.Match(filter, prefix+key) {
			out = append(out, key)
		}
	}
	for _, key := range t.down.Keys("") {
		if !strings.Contains(key, "/parts/") && !strings.Contains(key, "/desired/") {
			add(key)
		}
	}
	documents := len(out)
	for key, e := range t.effective {
		if !e.None {
			add(key)
		}
	}
	t.up.Range("", func(e link.Entry) bool {
		add(e.Key)
		return true
	})
	slices.Sort(out[documents:])
	return out
}

// shown is the message of a key as it is now.
func (t *Twin) shown(key string) (broker.Message, bool) {
	if e := t.effective[key]; e != nil && !e.None {
		return t.desiredMessage(key, e), true
	}
	if e, ok := t.up.Get(key); ok {
		return t.message(e), true
	}
	doc, exists, whole := t.document(key)
	return t.retained(key, doc), exists && whole && !strings.Contains(key, "/desired/")
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
	for name := range t.devices {
		d, _ := t.read(name)
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b resource.Device) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	return list, t.history.rev
}

// Device is one Device with its twin, and its model.
func (t *Twin) Device(name string) (resource.Bundle, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	d, ok := t.read(name)
	if !ok {
		return resource.Bundle{}, false
	}
	return resource.Bundle{Device: d, Model: t.devices[name].bundle.Model}, true
}

func (t *Twin) read(name string) (resource.Device, bool) {
	known, ok := t.devices[name]
	if !ok {
		return resource.Device{}, false
	}
	d := known.bundle.Device
	rev := max(t.history.changed[name], t.history.floor)
	d.Metadata.ResourceVersion = strconv.FormatUint(rev, 10)
	d.Status.State = resource.Unknown
	if e, ok := t.up.Get(topics.Address{Kind: topics.KindDeviceState, Device: name}.Key()); ok {
		d.Status.State = string(e.Value)
	}
	d.Status.Twin = t.twin(name, known.bundle.Model)
	d.Status.Conditions = resource.TwinConditions(nil, d.Status.Twin, time.Time{}) // no history is kept here: no transition times
	d.Spec.Desired = make(map[string]resource.Value, len(d.Status.Twin))
	for property, p := range d.Status.Twin {
		if p.Desired != nil {
			d.Spec.Desired[property] = resource.Value(p.Desired.Value)
		}
	}
	return d, true
}
