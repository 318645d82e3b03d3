// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"bytes"
	"encoding/json"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// devices are the Devices and their models, as the store has them, and write them into the maps of the nodes that they are bound to.
type devices struct {
	opts       *Options
	nodes      *nodes
	status     *statusQueue
	deliveries *deliveryWaits

	unlisted map[*node]bool // nodes whose membership document is to be written

	// mu is held beside the lock of the state while these two, or a device's node and model, change. Who has either of the locks may read them:
	// desired writes and checks of topics don't wait for what nodes report.
	mu     sync.RWMutex
	byName map[string]*device
	models map[modelKey]*model
}

// device is a Device as the store has it. It is kept encoded, since there may be very many, and decoded when it is needed.
type device struct {
	name       string
	model      modelKey
	data       []byte // shared with the store
	uid        string
	node       string                 // the node that its keys are on: the last projection's
	writtenRev atomic.Uint64          // revision of the last status that this process wrote
	first      atomic.Pointer[[]byte] // the status before the first alarm since the start changed; nil: none did, or it is written
	// unstoredOnline says that the condition NodeOnline was derived, and isn't what is stored.
	unstoredOnline atomic.Bool
	// accepted is the Device after an accepted desired write, until the store's watch delivers it.
	accepted atomic.Pointer[acceptedDevice]
	delivery deliveryState
}

// acceptedDevice is a Device as it was written to the store: encoded and decoded.
type acceptedDevice struct {
	data   []byte
	device resource.Device
}

func (d *device) read() (whole resource.Device) {
	_ = json.Unmarshal(d.data, &whole) // it was decoded before without an error
	return whole
}

// model is a DeviceModel. tail is the text that the bundles of all its devices end with.
type model struct {
	resource.DeviceModel
	rev  uint64
	tail string
}

// known is the DeviceModel itself, or nil.
func (m *model) known() *resource.DeviceModel {
	if m == nil {
		return nil
	}
	return &m.DeviceModel
}

// find is a device, its node and its model, for who doesn't hold the lock of the state; nil: there is none.
func (ds *devices) find(name string) (d *device, node string, m *model) {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	if d = ds.byName[name]; d != nil {
		node, m = d.node, ds.models[d.model]
	}
	return d, node, m
}

// findModel is a model, for who doesn't hold the lock of the state.
func (ds *devices) findModel(key modelKey) *model {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	return ds.models[key]
}

// change changes what is read with mu. The lock of the state is held.
func (ds *devices) change(f func()) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	f()
}

type modelKey struct{ namespace, name string }

// suggestion names the device of a node that may have been meant. Of very many devices it looks at some.
func (ds *devices) suggestion(node, name string) string {
	var names []string
	most := 2000
	ds.mu.RLock()
	for device, d := range ds.byName {
		if d.node == node {
			names = append(names, device)
		}
		if most--; most == 0 {
			break
		}
	}
	ds.mu.RUnlock()
	slices.Sort(names)
	return resource.DidYouMean(name, names)
}

// namespace is the namespace of the device of that name; the default namespace if the store's watch has not delivered the
// device yet.
func (ds *devices) namespace(name string) string {
	if d, _, _ := ds.find(name); d != nil {
		return d.model.namespace // which never changes
	}
	return resource.DefaultNamespace
}

// Has returns an error if the device is not bound to the node. It doesn't wait for a commit.
func (ds *devices) Has(node, device string) error {
	if d, on, _ := ds.find(device); d == nil || on != node {
		return ds.notOn(node, device)
	}
	return nil
}

// CheckCommand returns an error if the device is not bound to the node, or its model doesn't allow the command with that payload.
func (ds *devices) CheckCommand(node, device, command string, payload []byte) error {
	if err := ds.Has(node, device); err != nil {
		return err
	}
	if _, _, m := ds.find(device); m != nil {
		return m.CheckCommand(command, payload)
	}
	return nil
}

func (ds *devices) notOn(node, device string) error {
	return resource.Errorf(resource.NotFound, "", "device %s does not belong to node %s%s", device, node, ds.suggestion(node, device))
}

const (
	smallMembership    = 100            // so many are listed anew with every change
	membershipInterval = resendInterval // more of them at most so often
)

// changed notes a Device that changed. It is decoded once, when it is projected.
func (ds *devices) changed(b *batch, o store.Object) {
	d := ds.byName[o.Name]
	if d != nil && d.model.namespace != o.Namespace { // one of that name in another namespace: the deletion of the former has not been seen
		ds.remove(b, o.Name)
		d = nil
	}
	if d == nil {
		d = &device{name: o.Name, model: modelKey{namespace: o.Namespace}}
		ds.change(func() { ds.byName[o.Name] = d })
	}
	b.revisions[d] = o.Rev
	if b.devices[o.Name] == nil && d.data != nil && bytes.Equal(d.data, o.Data) {
		if d.writtenRev.Load() != o.Rev { // otherwise it is the status that this process wrote
			ds.status.device(o.Name)
		}
		return
	}
	b.devices[o.Name] = &o
}

func (ds *devices) remove(b *batch, name string) {
	if d := ds.byName[name]; d != nil {
		ds.change(func() { delete(ds.byName, name) })
		delete(b.devices, name)
		ds.deliveries.remove(d)
		if d.node != "" {
			ds.recordBound(b, d, d.read().Metadata, "", true)
		}
		ds.unbind(b, d)
	}
	ds.status.forget(name)
}

func (ds *devices) changedModel(b *batch, o store.Object, deleted bool) {
	key := modelKey{o.Namespace, o.Name}
	if deleted {
		ds.change(func() { delete(ds.models, key) })
	} else {
		var m resource.DeviceModel
		if err := json.Unmarshal(o.Data, &m); err != nil {
			ds.opts.Log.Error().Err(err).Str("model", o.Name).Msg("the stored DeviceModel can't be read")
			return
		}
		tail, err := bundleTail(m)
		if err != nil {
			ds.opts.Log.Error().Err(err).Str("model", o.Name).Msg("the stored DeviceModel can't be written")
			return
		}
		ds.change(func() { ds.models[key] = &model{m, o.Rev, tail} })
	}
	b.models[key] = true
}

// derive derives the nodes' maps from the objects that changed.
func (ds *devices) derive(b *batch) {
	if len(b.models) > 0 {
		for name, d := range ds.byName {
			if _, changed := b.devices[name]; !changed && b.models[d.model] {
				b.devices[name] = nil
			}
		}
	}
	prepareInOrder(ds.changedDevices(b), changedDevice.read, func(c changedDevice, r decodedDevice) {
		if ds.storeDecoded(c, r) {
			ds.project(b, ds.byName[c.name], r.device)
		}
	})
	maps.Copy(ds.unlisted, b.changedMembers)
	for n := range ds.unlisted {
		if len(n.bound) <= smallMembership || b.now.Sub(n.membershipWritten) >= membershipInterval {
			ds.putMembership(b, n)
		}
	}
}

// putMembership writes the list of a node's devices. If there are many it is not written for each device that is added or removed:
// a thousand additions would send the whole list a thousand times.
func (ds *devices) putMembership(b *batch, n *node) {
	delete(ds.unlisted, n)
	n.membershipWritten = b.now
	names := slices.Sorted(maps.Keys(n.bound))
	if names == nil {
		names = []string{}
	}
	m := resource.Membership{Devices: names}
	if len(names) > 0 { // a map without a device is the same on all hubs: see emptyMapDigests
		m.Labels = n.nodes.labels[n.name]
	}
	doc, _ := json.Marshal(m) // strings alone
	n.putDocument(b, membershipKey, doc, "")
	ds.status.node(n.name)
}

// changedDevices lists the batch's Devices in order of name, in which the maps are filled fastest.
func (ds *devices) changedDevices(b *batch) []changedDevice {
	list := make([]changedDevice, 0, len(b.devices))
	for name, o := range b.devices {
		d := ds.byName[name]
		c := changedDevice{name: name, raw: d.data}
		if o != nil {
			c.raw = o.Data
		}
		if a := d.accepted.Swap(nil); a != nil && bytes.Equal(a.data, c.raw) {
			c.accepted = a
		}
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b changedDevice) int { return strings.Compare(a.name, b.name) })
	return list
}

// storeDecoded stores a decoded Device, and reports whether it could be decoded.
func (ds *devices) storeDecoded(c changedDevice, r decodedDevice) bool {
	d := ds.byName[c.name]
	if r.err != nil {
		ds.opts.Log.Error().Err(r.err).Str("device", c.name).Msg("the stored Device can't be read")
		if d.data == nil {
			ds.change(func() { delete(ds.byName, c.name) })
		}
		return false
	}
	d.data = c.raw
	if name := r.device.Spec.DeviceModelRef.Name; name != d.model.name {
		if m := ds.models[modelKey{d.model.namespace, name}]; m != nil {
			name = m.Metadata.Name // one copy of the text
		}
		ds.change(func() { d.model.name = name })
	}
	return true
}

// target is the node whose map a Device belongs into; empty: none's.
func (ds *devices) target(d *device, whole resource.Device) string {
	if ds.models[d.model] == nil || whole.Metadata.DeletionTimestamp != nil {
		return ""
	}
	return whole.Spec.NodeName
}

// project writes a Device into its node's map. A Device without its model is not written: no mapper could use it.
func (ds *devices) project(b *batch, d *device, whole resource.Device) {
	name, m := d.name, ds.models[d.model]
	target := ds.target(d, whole)
	if d.node != target {
		ds.recordBound(b, d, whole.Metadata, target, m != nil)
		ds.unbind(b, d)
		if target != "" {
			target = ds.nodes.get(target).name // one copy of the text
		}
		ds.change(func() { d.node = target })
	}
	if !b.loading || m != nil && slices.ContainsFunc(m.Spec.Properties, func(p resource.Property) bool { return p.Adopt }) {
		ds.status.device(name) // at the start only for overrides that are to be adopted: see adoption
	}
	if target == "" {
		return
	}
	n := ds.nodes.get(target)
	if d.uid != "" && d.uid != whole.Metadata.UID { // its deletion was not seen
		n.noteFormer(d)
	}
	d.uid = whole.Metadata.UID
	if n.formerDevices[name].uid == d.uid { // the same Device is back before its node noticed
		delete(n.formerDevices, name)
	}
	if !n.bound[name] {
		n.bound[name] = true
		b.changedMembers[n] = true
		n.showReported(b, name)
	}
	if doc, err := m.bundle(whole); err == nil {
		n.putDocument(b, "devices/"+name, doc, m.tail) // all Devices of the model share its text
	} else {
		ds.opts.Log.Error().Err(err).Str("node", n.name).Str("device", name).Msg("a Device can't be written for its node")
	}
	n.projectDesired(b, d, whole, m)
}

// unbind deletes all of a device's keys from its node's map.
func (ds *devices) unbind(b *batch, d *device) {
	n, name := ds.nodes.byName[d.node], d.name
	if n == nil || !n.bound[name] {
		return
	}
	delete(n.bound, name)
	b.changedMembers[n] = true
	n.noteFormer(d)
	for _, key := range n.down.Keys(desiredKey(name, "")) {
		n.deleteDown(b, key)
	}
	n.deleteParts(b, "devices/"+name, 0)
	n.deleteDown(b, "devices/"+name)
}

// bundleTail is the text that a model's bundles end with, except those of Devices with visitors of their own.
func bundleTail(m resource.DeviceModel) (string, error) {
	text, err := json.Marshal(resource.NewBundle(resource.Device{}, m).Model)
	return `,"model":` + string(text) + "}", err
}

// bundle is the document of a Device. The model's text is made once for all whose bundles end with it.
func (m *model) bundle(d resource.Device) ([]byte, error) {
	whole := resource.NewBundle(d, m.DeviceModel)
	if len(d.Spec.PropertyVisitors)+len(d.Spec.Alarms) > 0 {
		return json.Marshal(whole)
	}
	device, err := json.Marshal(whole.Device)
	return slices.Concat([]byte(`{"device":`), device, []byte(m.tail)), err
}

// changedDevice is a Device that is going to be projected.
type changedDevice struct {
	name     string
	raw      []byte
	accepted *acceptedDevice // it needs no decoding; or nil
}

// decodedDevice is the decoded Device, or the error.
type decodedDevice struct {
	device resource.Device
	err    error
}

func (c changedDevice) read() (r decodedDevice) {
	if c.accepted != nil {
		return decodedDevice{device: c.accepted.device}
	}
	r.err = json.Unmarshal(c.raw, &r.device)
	return r
}

// chunkSize is the number of items that one goroutine prepares. Up to that many items are prepared without another goroutine.
const chunkSize = 128

// prepareInOrder calls use for each item, in order, with what prepare made of it. Many items are prepared in parallel, some
// before they are used: prepare must not read what use changes.
func prepareInOrder[T, R any](items []T, prepare func(T) R, use func(T, R)) {
	if len(items) <= chunkSize {
		for _, item := range items {
			use(item, prepare(item))
		}
		return
	}
	pieces := make(chan chan []R, runtime.GOMAXPROCS(0)) // bounds what is prepared and not used
	go func() {
		defer close(pieces)
		for some := range slices.Chunk(items, chunkSize) {
			ready := make(chan []R, 1)
			pieces <- ready
			go func() {
				made := make([]R, 0, len(some))
				for _, item := range some {
					made = append(made, prepare(item))
				}
				ready <- made
			}()
		}
	}()
	for ready := range pieces {
		for _, made := range <-ready {
			use(items[0], made)
			items = items[1:]
		}
	}
}
