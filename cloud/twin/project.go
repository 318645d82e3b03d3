package twin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// documentVer is the version of every document: documents are compared by content, not by version.
const documentVer = 1

const membershipKey = "membership"

const (
	smallMembership    = 100            // so many are listed anew with every change
	membershipInterval = resendInterval // more of them at most so often
)

// watchedKinds are the kinds that the nodes' maps derive from; a kind that others refer to comes before them.
var watchedKinds = [...]string{resource.KindDeviceModel, resource.KindDevice, resource.KindNode}

// loadObjects reads all objects before any node can connect. A node that connected earlier would get a part of its map as the
// whole map, and delete all other devices with their state.
func (t *Twins) loadObjects(ctx context.Context) error {
	b := t.batch()
	b.loading = true
	t.loadedRev = make(map[string]uint64)
	var devices []store.Object
	for _, kind := range watchedKinds {
		page, err := t.opts.Reader.List(ctx, kind, store.ListOptions{})
		if err != nil {
			return err
		}
		t.replaceAll(b, kind, page.Items)
		t.loadedRev[kind] = page.Rev
		switch kind {
		case resource.KindDevice:
			devices = page.Items
		case resource.KindNode:
			for _, o := range page.Items {
				t.recallHTTP(o)
			}
		}
	}
	t.derive(b)
	for _, o := range devices {
		t.recallAway(o)
	}
	return t.loadProjections(ctx, b)
}

// watch follows one kind in the store: every change since New. If the store no longer knows that revision, it lists all objects and
// goes on from there.
func (t *Twins) watch(ctx context.Context, kind string) {
	for from := t.loadedRev[kind]; ctx.Err() == nil; from = 0 {
		err := t.follow(ctx, kind, from)
		if ctx.Err() == nil && !errors.Is(err, resource.Gone) {
			t.opts.Log.Error().Err(err).Str("kind", kind).Msg("the store can't be watched: trying again")
			sleepContext(ctx, time.Second)
		}
	}
}

func sleepContext(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// follow applies the changes after a revision until the watch ends. With revision 0 it lists first.
func (t *Twins) follow(ctx context.Context, kind string, from uint64) error {
	if from == 0 {
		page, err := t.opts.Reader.List(ctx, kind, store.ListOptions{})
		if err != nil {
			return err
		}
		t.host.Put(tree.OwnSender, 0, func(b *batch) { t.replaceAll(b, kind, page.Items) })
		from = page.Rev
	}
	stream, err := t.opts.Watcher.Watch(ctx, store.Key{Kind: kind}, from)
	if err != nil {
		return err
	}
	defer stream.Close()
	for {
		events, err := stream.Next(ctx)
		if err != nil {
			return err
		}
		t.host.Put(tree.OwnSender, eventBytes(events), func(b *batch) {
			for _, e := range events {
				t.changed(b, kind, e.Object, e.Type == store.Deleted)
			}
		})
	}
}

func eventBytes(events []store.Event) (n int) {
	for _, e := range events {
		n += len(e.Object.Data)
	}
	return n
}

// replaceAll applies a complete list of a kind: objects that are not in it were deleted.
func (t *Twins) replaceAll(b *batch, kind string, objs []store.Object) {
	have := make(map[string]bool, len(objs))
	for _, o := range objs {
		have[o.Namespace+"/"+o.Name] = true
		t.changed(b, kind, o, false)
	}
	switch kind {
	case resource.KindDevice:
		for name, d := range t.devices {
			if !have[d.model.namespace+"/"+name] {
				t.removeDevice(b, name)
			}
		}
	case resource.KindNode:
		for name := range t.registered {
			if !have["/"+name] {
				t.setRegistered(name, false)
			}
		}
		t.showMissing(func(name string) bool { return have["/"+name] })
	case resource.KindDeviceModel:
		for key := range t.models {
			if !have[key.namespace+"/"+key.name] {
				t.changedModel(b, store.Object{Key: store.Key{Namespace: key.namespace, Name: key.name}}, true)
			}
		}
	}
}

func (t *Twins) changed(b *batch, kind string, o store.Object, deleted bool) {
	switch kind {
	case resource.KindDevice:
		if deleted {
			t.removeDevice(b, o.Name)
			return
		}
		t.changedDevice(b, o)
	case resource.KindDeviceModel:
		t.changedModel(b, o, deleted)
	case resource.KindNode:
		t.setRegistered(o.Name, !deleted)
		if deleted {
			t.httpPresence.forget(o.Name)
			t.forgetNode(b, o.Name)
			return
		}
		if n := t.nodes[o.Name]; n != nil {
			n.lacksNode = false
		}
		t.status.node(o.Name)
	}
}

// changedDevice notes a Device that changed. It is decoded once, when it is projected.
func (t *Twins) changedDevice(b *batch, o store.Object) {
	d := t.devices[o.Name]
	if d != nil && d.model.namespace != o.Namespace { // one of that name in another namespace: the deletion of the former has not been seen
		t.removeDevice(b, o.Name)
		d = nil
	}
	if d == nil {
		d = &device{name: o.Name, model: modelKey{namespace: o.Namespace}}
		t.devices[o.Name] = d
		t.objects.devices.Store(o.Name, d)
	}
	b.revisions[d] = o.Rev
	if b.devices[o.Name] == nil && d.data != nil && bytes.Equal(d.data, o.Data) {
		if d.writtenRev.Load() != o.Rev { // otherwise it is the status that this process wrote
			t.status.device(o.Name)
		}
		return
	}
	b.devices[o.Name] = &o
}

func (t *Twins) removeDevice(b *batch, name string) {
	if d := t.devices[name]; d != nil {
		delete(t.devices, name)
		t.objects.devices.Delete(name)
		delete(b.devices, name)
		t.deliveries.remove(d)
		if d.node != "" {
			t.recordBound(b, d, d.read().Metadata, "", true)
		}
		t.unbind(b, d)
	}
	t.nodeOfDevice.Delete(name)
	t.status.forget(name)
}

func (t *Twins) changedModel(b *batch, o store.Object, deleted bool) {
	key := modelKey{o.Namespace, o.Name}
	if deleted {
		delete(t.models, key)
		t.objects.models.Delete(key)
	} else {
		var m resource.DeviceModel
		if err := json.Unmarshal(o.Data, &m); err != nil {
			t.opts.Log.Error().Err(err).Str("model", o.Name).Msg("the stored DeviceModel can't be read")
			return
		}
		tail, err := bundleTail(m)
		if err != nil {
			t.opts.Log.Error().Err(err).Str("model", o.Name).Msg("the stored DeviceModel can't be written")
			return
		}
		t.models[key] = &model{m, o.Rev, tail}
		t.objects.models.Store(key, t.models[key])
	}
	b.models[key] = true
}

// derive derives the nodes' maps from the objects that changed.
func (t *Twins) derive(b *batch) {
	if len(b.models) > 0 {
		for name, d := range t.devices {
			if _, changed := b.devices[name]; !changed && b.models[d.model] {
				b.devices[name] = nil
			}
		}
	}
	prepareInOrder(t.changedDevices(b), changedDevice.read, func(c changedDevice, r decodedDevice) {
		if t.storeDecoded(c, r) {
			t.project(b, t.devices[c.name], r.device)
		}
	})
	maps.Copy(t.unlisted, b.changedMembers)
	for n := range t.unlisted {
		if len(n.bound) <= smallMembership || b.now.Sub(n.membershipWritten) >= membershipInterval {
			t.putMembership(b, n)
		}
	}
}

// putMembership writes the list of a node's devices. If there are many it is not written for each device that is added or removed:
// a thousand additions would send the whole list a thousand times.
func (t *Twins) putMembership(b *batch, n *node) {
	delete(t.unlisted, n)
	n.membershipWritten = b.now
	names := slices.Sorted(maps.Keys(n.bound))
	if names == nil {
		names = []string{}
	}
	t.putShared(b, n, membershipKey, resource.Membership{Devices: names}, "")
	t.status.node(n.name)
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

// changedDevices lists the batch's Devices in order of name, in which the maps are filled fastest.
func (t *Twins) changedDevices(b *batch) []changedDevice {
	list := make([]changedDevice, 0, len(b.devices))
	for name, o := range b.devices {
		d := t.devices[name]
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

func (c changedDevice) read() (r decodedDevice) {
	if c.accepted != nil {
		return decodedDevice{device: c.accepted.device}
	}
	r.err = json.Unmarshal(c.raw, &r.device)
	return r
}

// storeDecoded stores a decoded Device, and reports whether it could be decoded.
func (t *Twins) storeDecoded(c changedDevice, r decodedDevice) bool {
	d := t.devices[c.name]
	if r.err != nil {
		t.opts.Log.Error().Err(r.err).Str("device", c.name).Msg("the stored Device can't be read")
		if d.data == nil {
			delete(t.devices, c.name)
			t.objects.devices.Delete(c.name)
		}
		return false
	}
	d.data, d.model.name = c.raw, r.device.Spec.DeviceModelRef.Name
	return true
}

// target is the node whose map a Device belongs into; empty: none's. d.of is its model.
func (t *Twins) target(d *device, whole resource.Device) string {
	if t.models[d.model] == nil || whole.Metadata.DeletionTimestamp != nil {
		return ""
	}
	return whole.Spec.NodeName
}

// project writes a Device into its node's map. A Device without its model is not written: no mapper could use it.
func (t *Twins) project(b *batch, d *device, whole resource.Device) {
	name, m := d.name, t.models[d.model]
	target := t.target(d, whole)
	if d.node != target {
		t.recordBound(b, d, whole.Metadata, target, m != nil)
		t.unbind(b, d)
		d.node = target
		t.nodeOfDevice.Store(name, target)
	}
	t.status.device(name)
	if target == "" {
		return
	}
	n := t.node(target)
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
		t.showReported(b, n, name)
	}
	t.putBundle(b, n, d, whole, m)
	d.node = n.name // one copy of the text
	t.projectDesired(b, n, d, whole, m)
}

func desiredKey(device, property string) string {
	return topics.DeviceKey(device, topics.KindDesired, property)
}

// projectDesired writes the desired values. A value that the model does not allow, because the model has changed since, stays in the
// spec and is not sent to the node.
func (t *Twins) projectDesired(b *batch, n *node, d *device, whole resource.Device, m *model) {
	for _, key := range n.down.Keys(desiredKey(d.name, "")) {
		property := strings.TrimPrefix(key, desiredKey(d.name, ""))
		value, wanted := whole.Spec.Desired[property]
		err := m.CheckDesired(property, []byte(value))
		if wanted && err != nil {
			b.addDeviceEvent(whole.Metadata, resource.EventWarning, "NotAllowed", property, "%s is desired and is not sent, because the model has changed: %v",
				clipText(string(value)), err)
		}
		if meta := whole.DesiredMeta[property]; !wanted && meta.Cleared {
			was, _ := n.down.Get(key)
			b.addDeviceEvent(whole.Metadata, resource.EventNormal, "Cleared", property, "%s is no longer desired: cleared by %s", clipText(string(was.Value)), meta.Origin)
		}
		if !wanted || err != nil {
			t.deleteDown(b, n, key)
		}
	}
	for property, value := range whole.Spec.Desired {
		if m.CheckDesired(property, []byte(value)) == nil {
			t.putDesired(b, n, d, whole, property)
		}
	}
}

func (t *Twins) putDesired(b *batch, n *node, d *device, whole resource.Device, property string) {
	m := whole.DesiredMeta[property]
	e := link.Entry{
		Key:   desiredKey(d.name, property),
		Value: []byte(whole.Spec.Desired[property]), Ver: max(m.Ver, 1), TS: m.TS, Origin: m.Origin,
	}
	if until, err := resource.ParseTime(whole.Spec.DesiredUntil[property]); err == nil {
		e.Meta.Until = until.UnixMilli()
	}
	e, changed, err := n.down.Put(e)
	if err != nil {
		t.opts.Log.Error().Err(err).Str("node", n.name).Str("device", d.name).Str("property", property).Uint64("ver", m.Ver).
			Msg("a desired value can't be sent")
		b.addDeviceEvent(whole.Metadata, resource.EventWarning, "NotSent", property, "the desired value can't be sent: %v", err)
		return
	}
	if changed {
		b.publish(func() broker.Message {
			return tree.ValueMessage(n.name, e.Key, topics.KindDesired, tree.StoredValue(e))
		})
		b.activeLinks[n] = true
	}
}

func (t *Twins) deleteDown(b *batch, n *node, key string) {
	if _, had := n.down.Delete(key, b.now.UnixMilli(), ""); !had {
		return
	}
	b.activeLinks[n] = true
	if readableByClients(key) {
		b.publish(func() broker.Message { return n.retained(key, nil) })
	}
}

// unbind deletes all of a device's keys from its node's map.
func (t *Twins) unbind(b *batch, d *device) {
	n, name := t.nodes[d.node], d.name
	if n == nil || !n.bound[name] {
		return
	}
	delete(n.bound, name)
	b.changedMembers[n] = true
	n.noteFormer(d)
	for _, key := range n.down.Keys(desiredKey(name, "")) {
		t.deleteDown(b, n, key)
	}
	t.deleteParts(b, n, "devices/"+name, 0)
	t.deleteDown(b, n, "devices/"+name)
}

func (t *Twins) deleteParts(b *batch, n *node, key string, from int) {
	for i := from; ; i++ {
		if _, had := n.down.Delete(topics.PartKey(key, i), b.now.UnixMilli(), ""); !had {
			return
		}
		b.activeLinks[n] = true
	}
}

// putBundle writes a Device with its model. The text of the model is shared by all Devices of the model.
func (t *Twins) putBundle(b *batch, n *node, d *device, whole resource.Device, m *model) {
	t.putShared(b, n, "devices/"+d.name, resource.NewBundle(whole, m.DeviceModel), m.tail)
}

// bundleTail is the text that a model's bundles end with, except those of Devices with visitors of their own.
func bundleTail(m resource.DeviceModel) (string, error) {
	text, err := json.Marshal(resource.NewBundle(resource.Device{}, m).Model)
	return `,"model":` + string(text) + "}", err
}

// putShared writes a document as JSON that may end with a text which many documents end with.
func (t *Twins) putShared(b *batch, n *node, key string, v any, tail string) {
	doc, err := json.Marshal(v)
	if err != nil {
		t.opts.Log.Error().Err(err).Str("node", n.name).Str("key", key).Msg("a document can't be written")
		return
	}
	t.putDocument(b, n, key, doc, tail)
}

// putDocument writes a document, in parts if it is large, and publishes it whole.
func (t *Twins) putDocument(b *batch, n *node, key string, doc []byte, tail string) {
	value, parts := topics.SplitDocument(doc)
	ts := b.now.UnixMilli()
	put := func(key string, value []byte) bool {
		if old, ok := n.down.Get(key); ok && string(old.Value) == string(value) {
			return false
		}
		_, changed, err := n.down.PutShared(link.Entry{Key: key, Value: value, Ver: documentVer, TS: ts}, tail)
		if err != nil {
			t.opts.Log.Error().Err(err).Str("node", n.name).Str("key", key).Msg("a document can't be sent")
		}
		return changed
	}
	// Parts first: the replica then has them when the document's own key arrives.
	for i, part := range parts {
		put(topics.PartKey(key, i), part)
	}
	t.deleteParts(b, n, key, len(parts))
	if put(key, value) && readableByClients(key) {
		b.publish(func() broker.Message { return n.retained(key, doc) })
	}
	b.activeLinks[n] = true
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
