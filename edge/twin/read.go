package twin

import (
	"cmp"
	"container/list"
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
func (t *Twin) message(e link.Entry) broker.Message { return tree.EntryMessage(t.opts.Node, e) }

// desiredMessage is what is in force for a property as subscribers see it.
func (t *Twin) desiredMessage(key string, e *store.Effective) broker.Message {
	s := resource.StoredValue{Value: e.Value, Ver: e.Ver, TS: e.TS, Origin: e.Origin, Until: e.Until}
	if e.None {
		s.Value = nil
	}
	return tree.ValueMessage(t.opts.Node, key, topics.KindDesired, s)
}

// Retained returns a reader of the retained messages of the node's tree that a filter matches: the cloud's documents, the values in
// force as desired values, and the edge's keys. The reader takes the lock for a bounded number of keys at a time and holds no copy
// of the tree.
func (t *Twin) Retained(filter string) func(max int) []broker.Message {
	f, ok := tree.ParseFilter(filter)
	if name, one := f.One(); !ok || one && name != t.opts.Node {
		return func(int) []broker.Message { return nil }
	}
	walk, more := tree.Walk{Filter: f}, true
	return func(most int) (out []broker.Message) {
		for len(out) == 0 && more {
			t.host.View(func() { more = walk.Step(t.shown, t.parts(), &out, most) })
		}
		return out
	}
}

// parts are the parts of the tree, Devices first, so that a subscriber to the whole node gets a device before its values.
func (t *Twin) parts() []tree.EntryRange {
	return []tree.EntryRange{
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

// shownDocument shows a document joined from its parts, and no part by itself.
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

// rangeOverridden ranges over overrides, under the keys of the desired values that they replace.
func (t *Twin) rangeOverridden(prefix, from string, fn func(link.Entry) bool) {
	override := func(key string) string { return strings.Replace(key, "/desired/", "/override/", 1) }
	t.up.RangeFrom(override(prefix), override(from), func(e link.Entry) bool {
		e.Key = strings.Replace(e.Key, "/override/", "/desired/", 1)
		return fn(e)
	})
}

// shownOverridden shows the value in force of a property without a desired value. Properties with one are shown by shownDesired.
func (t *Twin) shownOverridden(e link.Entry) (m broker.Message, ok bool) {
	if _, wanted := t.down.Get(e.Key); wanted {
		return m, false
	}
	return t.shownDesired(e)
}

// twin makes a device's twin from both maps.
func (t *Twin) twin(name string, m resource.DeviceModel) map[string]resource.TwinProperty {
	return resource.Twin(m, func(branch, property string) (resource.StoredValue, bool) {
		key := "devices/" + name + "/" + branch + "/" + property
		e, ok := t.up.Get(key)
		if branch == "desired" {
			e, ok = t.down.Get(key)
		}
		return tree.StoredValue(e), ok
	})
}

// Devices are the node's Devices with their twins, in order of name, as of a revision.
func (t *Twin) Devices() (list []resource.Device, rev uint64) {
	t.host.RLock()
	defer t.host.RUnlock()
	mappers := tree.Mappers(t.opts.Node, t.up.Range)
	for name := range t.devices {
		d, _ := t.deviceWithStatus(name, mappers)
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b resource.Device) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	return list, t.history.rev
}

// Models are the models of the node's devices, each once.
func (t *Twin) Models() (list []resource.DeviceModel) {
	t.host.RLock()
	defer t.host.RUnlock()
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
	t.host.RLock()
	defer t.host.RUnlock()
	d, ok := t.deviceWithStatus(name, tree.Mappers(t.opts.Node, t.up.Range))
	if !ok {
		return resource.Bundle{}, false
	}
	return resource.Bundle{Device: d, Model: t.devices[name].bundle.Model}, true
}

// deviceWithStatus is a Device with its status; mappers are the node's mappers.
func (t *Twin) deviceWithStatus(name string, mappers []resource.Mapper) (resource.Device, bool) {
	known, ok := t.devices[name]
	if !ok {
		return resource.Device{}, false
	}
	d := known.bundle.Device
	rev := t.history.revOf(name)
	d.Metadata.ResourceVersion = strconv.FormatUint(rev, 10)
	d.Status.State = resource.Unknown
	reach := resource.Reachability{Node: t.opts.Node, Registered: true, Protocol: d.Spec.Protocol.Type, Problem: tree.ProblemOf(name, t.up.Get), Mappers: mappers}
	if e, ok := t.up.Get(topics.Address{Kind: topics.KindDeviceState, Device: name}.Key()); ok {
		d.Status.State, reach.Heard, reach.Since = string(e.Value), true, resource.FormatMillis(e.TS)
	}
	reach.State = d.Status.State
	d.Status.Twin = t.twin(name, known.bundle.Model)
	d.Status.Conditions = reach.TwinConditions(nil, d.Status.Twin, time.Time{}) // no history is kept here: no transition times
	d.Status.Conditions = resource.SetCondition(d.Status.Conditions, reach.Condition(), time.Time{})
	d.Spec.Desired = make(map[string]resource.Value, len(d.Status.Twin))
	for property, p := range d.Status.Twin {
		if p.Desired != nil {
			d.Spec.Desired[property] = resource.Value(p.Desired.Value)
		}
	}
	return d, true
}

// maxRemovedDevices is how many removed devices are remembered for watchers.
const maxRemovedDevices = 4096

// deviceHistory knows which devices have changed since a revision. It holds one revision for each device, not for each change: a watcher
// gets the latest state and not every change. Each start of the core begins with a higher revision.
type deviceHistory struct {
	rev      uint64
	floor    uint64                   // changes up to this revision are no longer known one by one
	order    list.List                // of *resource.Change
	elements map[string]*list.Element // elements of order, the last one of each name
	removed  int                      // removed devices in order
	wake     chan struct{}            // closed after the next change
}

// begin notes the namespaces of the present devices, which watchers need when a device is removed.
func (h *deviceHistory) begin(now time.Time, devices map[string]*device) {
	h.rev = uint64(now.UnixMilli()) << 12 // fewer than 4,096 devices change in a millisecond, over the life of a core
	h.floor = h.rev
	h.elements = make(map[string]*list.Element)
	h.wake = make(chan struct{})
	for name, d := range devices {
		h.push(resource.DeviceChange{Name: name, Namespace: d.namespace(), UID: d.uid(), Rev: h.rev, Added: h.rev})
	}
}

func (d *device) namespace() string { return d.bundle.Device.Metadata.Namespace }
func (d *device) uid() string       { return d.bundle.Device.Metadata.UID }

func (h *deviceHistory) push(c resource.DeviceChange) {
	h.elements[c.Name] = h.order.PushBack(&c)
}

// add notes the devices that changed. wake wakes all watchers, and is called later because there may be many.
func (h *deviceHistory) add(changed map[string]bool, devices map[string]*device) (wake func()) {
	if len(changed) == 0 {
		return func() {}
	}
	for name := range changed {
		h.put(name, devices[name])
	}
	if h.removed > maxRemovedDevices {
		h.forgetRemoved()
	}
	waiting := h.wake
	h.wake = make(chan struct{})
	return func() { close(waiting) }
}

// put notes a device that changed, or one that was removed: now is nil. One that was removed and made again is two devices, so
// that who was away meanwhile hears of both.
func (h *deviceHistory) put(name string, now *device) {
	at := h.elements[name]
	if at != nil && now != nil {
		if was := at.Value.(*resource.DeviceChange); !was.Removed && was.Namespace == now.namespace() && was.UID == now.uid() {
			h.order.MoveToBack(at)
			was.Rev = h.next()
			return
		}
	}
	if at != nil {
		h.remove(at)
	}
	if now != nil {
		rev := h.next()
		h.push(resource.DeviceChange{Name: name, Namespace: now.namespace(), UID: now.uid(), Rev: rev, Added: rev})
	}
}

// next is a new revision. Each change has its own, so that a watcher can go on between any two of them.
func (h *deviceHistory) next() uint64 {
	h.rev++
	return h.rev
}

func (h *deviceHistory) remove(at *list.Element) {
	c := at.Value.(*resource.DeviceChange)
	if c.Removed {
		return // it was removed before
	}
	h.order.MoveToBack(at)
	h.removed++
	c.Rev, c.Removed = h.next(), true
}

func (h *deviceHistory) forgetRemoved() {
	for at := h.order.Front(); at != nil; {
		c, next := at.Value.(*resource.DeviceChange), at.Next()
		if c.Removed {
			h.order.Remove(at)
			if h.elements[c.Name] == at {
				delete(h.elements, c.Name)
			}
		}
		at = next
	}
	h.removed, h.floor = 0, h.rev
}

// revOf is the revision of a device.
func (h *deviceHistory) revOf(name string) uint64 {
	if at := h.elements[name]; at != nil {
		return max(at.Value.(*resource.DeviceChange).Rev, h.floor)
	}
	return h.floor
}

// Changes lists the devices that were changed or removed after revision since and up to rev, in order. more is closed with the next
// change. ok is false if since is too old or in the future: list again.
func (t *Twin) Changes(since uint64) (rev uint64, changes []resource.DeviceChange, more <-chan struct{}, ok bool) {
	t.host.RLock()
	defer t.host.RUnlock()
	h := &t.history
	if since < h.floor || since > h.rev {
		return h.rev, nil, h.wake, false
	}
	for at := h.order.Back(); at != nil && at.Value.(*resource.DeviceChange).Rev > since; at = at.Prev() {
		changes = append(changes, *at.Value.(*resource.DeviceChange))
	}
	slices.Reverse(changes) // in rising order, so that an interrupted watcher goes on after the last that it got
	return h.rev, changes, h.wake, true
}

// deviceOf is the device that a key belongs to; empty: none.
func deviceOf(key string) string {
	rest, ok := strings.CutPrefix(key, "devices/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

func (b *batch) mark(key string) {
	if name := deviceOf(key); name != "" {
		b.changed[name] = true
	}
}
