// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// devices are the node's Devices, as the cloud's documents have them, and what follows from their coming and going.
type devices struct {
	opts      *Options
	up        *upMap
	down      *downMap
	overrides *overrides

	byName    map[string]*device
	anyLocal  bool     // a Device has had values that stay on the node
	protocols sync.Map // device → protocol, as published to subscribers; read without the lock of the state
	models    sync.Map // device → its model; read without that lock, too
}

// device is one device of the node.
type device struct {
	bundle  resource.Bundle
	payload []byte // the encoded bundle
	alarmed bool   // a property has alarms, or one of them is raised
	faults  bool   // a refusal or a read problem of a property may be stored, which its next report clears
}

func (d *device) namespace() string { return d.bundle.Device.Metadata.Namespace }
func (d *device) uid() string       { return d.bundle.Device.Metadata.UID }

// deviceChange is a device that joins or leaves the node. Which mappers may read its topics depends on its protocol, so it
// takes effect between two messages: those before index at are for the mapper that had the device, those from at on for the
// mapper that has it.
type deviceChange struct {
	at       int
	device   string
	protocol string
	removed  bool
}

// load takes what is stored.
func (ds *devices) load() {
	ds.byName = make(map[string]*device)
	for _, key := range ds.down.Keys("devices/") {
		if a, err := topics.ParseKey(ds.opts.Node, key); err == nil && a.Kind == topics.KindDevice {
			if d, ok := ds.join(a.Device); ok {
				ds.byName[a.Device] = d
				ds.protocols.Store(a.Device, d.bundle.Device.Spec.Protocol.Type)
			}
		}
	}
	ds.protocols.Range(func(name, _ any) bool { // telemetry is passed on meanwhile: what stays is never missing
		if ds.byName[name.(string)] == nil {
			ds.protocols.Delete(name)
		}
		return true
	})
}

func (ds *devices) join(name string) (*device, bool) {
	doc, exists, ok := ds.down.document("devices/" + name)
	if !exists || !ok {
		return nil, false
	}
	d := &device{payload: doc}
	if err := json.Unmarshal(doc, &d.bundle); err != nil {
		ds.opts.Log.Error().Err(err).Str("device", name).Msg("the hub sent a Device that can't be read")
		return nil, false
	}
	for _, branch := range []topics.Kind{topics.KindRefused, topics.KindReadProblem} {
		ds.up.Range(topics.DeviceKey(name, branch, ""), func(link.Entry) bool { d.faults = true; return false })
	}
	d.alarmed = slices.ContainsFunc(d.bundle.Model.Spec.Properties, func(p resource.Property) bool { return len(p.Alarms) > 0 })
	ds.up.Range(topics.DeviceKey(name, topics.KindAlarms, ""), func(link.Entry) bool { d.alarmed = true; return false })
	ds.models.Store(name, &d.bundle.Model)
	ds.anyLocal = ds.anyLocal || len(d.bundle.Device.Spec.Local) > 0 || d.bundle.Device.Spec.LocalState
	return d, true
}

func (ds *devices) derive(b *batch, name string) {
	key := "devices/" + name
	if _, exists, whole := ds.down.document(key); !exists {
		ds.remove(b, name)
		return
	} else if !whole {
		return // more parts will arrive
	}
	d, ok := ds.join(name)
	if !ok {
		return
	}
	old := ds.byName[name]
	ds.byName[name] = d
	another := old != nil && old.bundle.Device.Metadata.UID != d.bundle.Device.Metadata.UID // a new Device of the same name
	if another {
		ds.endHistory(b, old)
		for _, p := range old.bundle.Model.Spec.Properties { // values applied to the former Device were not applied to this one
			key := topics.DeviceKey(name, topics.KindDesired, p.Name)
			ds.overrides.put(b, key, inForceDecision{})
			ds.overrides.forget(b, key)
		}
	}
	protocol := d.bundle.Device.Spec.Protocol.Type
	if old == nil || !resource.SameProtocol(old.bundle.Device.Spec.Protocol.Type, protocol) {
		if old != nil { // the mapper of the former protocol sees it removed
			b.publishes = append(b.publishes, ds.opts.retained(key, nil))
		}
		b.deviceChanges = append(b.deviceChanges, deviceChange{at: len(b.publishes), device: name, protocol: protocol})
	}
	b.publishes = append(b.publishes, ds.opts.retained(key, d.payload)) // before the keys that are cleared, so that only the mapper concerned reacts to them
	if old == nil {
		ds.opts.Log.Info().Str("device", name).Str("model", d.bundle.Model.Metadata.Name).Msg("device joined the node")
	} else {
		ds.forget(b, name, old, func(property string) bool {
			_, kept := d.bundle.Model.Property(property)
			return another || !kept
		})
		if was, is := old.bundle.Device.Spec.Protocol.Type, protocol; another || !resource.SameProtocol(was, is) {
			ds.setOrphan(b, name)
		}
	}
	ds.relocate(b, name, d)
	ds.touchAll(b, name, d)
}

func (ds *devices) remove(b *batch, name string) {
	d := ds.byName[name]
	if d == nil {
		return
	}
	ds.endHistory(b, d)
	delete(ds.byName, name)
	ds.models.Delete(name)
	b.publishes = append(b.publishes, ds.opts.retained("devices/"+name, nil))
	b.deviceChanges = append(b.deviceChanges, deviceChange{at: len(b.publishes), device: name, removed: true})
	ds.forget(b, name, d, func(string) bool { return true })
	ds.up.clear(b, topics.Address{Kind: topics.KindDeviceState, Device: name}.Key())
	ds.up.clear(b, problemKey(name))
	ds.opts.Log.Info().Str("device", name).Msg("device left the node")
}

// edgeBranches are the branches of a device's properties that the edge owns.
var edgeBranches = [...]topics.Kind{topics.KindReported, topics.KindRefused, topics.KindReadProblem, topics.KindOverride, topics.KindConflict, topics.KindAlarms}

// forget deletes the edge's keys of the properties for which gone returns true. Only properties of the model have keys, so no
// search is needed.
func (ds *devices) forget(b *batch, name string, d *device, gone func(property string) bool) {
	for _, p := range d.bundle.Model.Spec.Properties {
		if !gone(p.Name) {
			continue
		}
		for _, kind := range edgeBranches {
			ds.up.clear(b, topics.DeviceKey(name, kind, p.Name))
		}
		b.touch(name, p.Name)
	}
}

// touchAll marks every property of a device's model as touched.
func (ds *devices) touchAll(b *batch, name string, d *device) {
	for _, p := range d.bundle.Model.Spec.Properties {
		b.touch(name, p.Name)
	}
}

func (ds *devices) checkNode(node string) error {
	if node == ds.opts.Node {
		return nil
	}
	return resource.Errorf(resource.BadTopic, "", "this is the broker of node %s: it carries no topics of %s", ds.opts.Node, node)
}

// Has returns an error if the device does not belong to the node. It doesn't wait for a commit.
func (ds *devices) Has(node, device string) error {
	if err := ds.checkNode(node); err != nil {
		return err
	}
	if _, ok := ds.protocols.Load(device); !ok {
		return ds.notFound(device, nil)
	}
	return nil
}

// CheckCommand returns an error if the device does not belong to the node, or its model doesn't allow the command with that payload. It
// doesn't wait for a commit.
func (ds *devices) CheckCommand(node, device, command string, payload []byte) error {
	if err := ds.Has(node, device); err != nil {
		return err
	}
	return ds.model(device).CheckCommand(command, payload)
}

// model is the model of a device; an empty one if the device isn't there. It doesn't wait for a commit, and is never changed.
func (ds *devices) model(device string) *resource.DeviceModel {
	if m, ok := ds.models.Load(device); ok {
		return m.(*resource.DeviceModel)
	}
	return new(resource.DeviceModel)
}

// maxSuggestionNames is among how many devices one is looked for that may have been meant.
const maxSuggestionNames = 500

// notFound is the error for a device that the node doesn't have. It names one that may have been meant to who sees all devices: not to
// a mapper. by is nil for a command, which only operators send.
func (ds *devices) notFound(name string, by *broker.Identity) error {
	near := ""
	if by == nil || by.Has(topics.RoleOperator) || by.Has(topics.RoleViewer) {
		var names []string
		ds.protocols.Range(func(known, _ any) bool {
			names = append(names, known.(string))
			return len(names) < maxSuggestionNames
		})
		slices.Sort(names)
		near = resource.DidYouMean(name, names)
	}
	return resource.Errorf(resource.NotFound, "", "device %s does not belong to node %s%s", name, ds.opts.Node, near)
}

func (ds *devices) find(name string, by *broker.Identity) (*device, error) {
	d, ok := ds.byName[name]
	if !ok {
		return nil, ds.notFound(name, by)
	}
	return d, nil
}

// markAll marks all devices as changed, since the conditions of each depend on the node's mappers.
func (ds *devices) markAll(b *batch) {
	for name := range ds.byName {
		b.changed[name] = true
	}
}

// setOrphans sets the devices whose state came from a client to unknown.
func (ds *devices) setOrphans(b *batch, origin string) {
	for name := range ds.byName {
		key := topics.Address{Kind: topics.KindDeviceState, Device: name}.Key()
		if e, ok := ds.up.Get(key); ok && e.Origin == origin && string(e.Value) != resource.Unknown {
			ds.setUnknown(b, name, origin)
		}
	}
}

// setUnknown sets the state of a device to unknown.
func (ds *devices) setUnknown(b *batch, name, origin string) {
	key := topics.Address{Kind: topics.KindDeviceState, Device: name}.Key()
	_ = ds.up.write(b, newEntry(b, key, []byte(resource.Unknown), origin)) // a fixed short value
	ds.up.clear(b, problemKey(name))
}

// setOrphan sets the state of a device to unknown, because its former mapper no longer serves it.
func (ds *devices) setOrphan(b *batch, name string) {
	if e, ok := ds.up.Get(topics.Address{Kind: topics.KindDeviceState, Device: name}.Key()); ok {
		ds.setUnknown(b, name, e.Origin)
	}
}

// applyChanges applies the device changes that come before the message with index at.
func (ds *devices) applyChanges(b *batch, at int) {
	for len(b.deviceChanges) > 0 && b.deviceChanges[0].at <= at {
		if b.deviceChanges[0].removed {
			ds.protocols.Delete(b.deviceChanges[0].device)
		} else {
			ds.protocols.Store(b.deviceChanges[0].device, b.deviceChanges[0].protocol)
		}
		b.deviceChanges = b.deviceChanges[1:]
		ds.opts.RightsChanged()
	}
}

// Protocol is the protocol of a device of the node; false: there is no such device. It doesn't wait for a commit.
func (ds *devices) Protocol(device string) (string, bool) {
	protocol, ok := ds.protocols.Load(device)
	text, _ := protocol.(string)
	return text, ok
}

// isLocal reports whether a key of the edge is local.
func (ds *devices) isLocal(key string) bool {
	if !ds.anyLocal || !strings.HasSuffix(key, "/state") && !strings.Contains(key, "/reported/") {
		return false
	}
	a, err := topics.ParseKey(ds.opts.Node, key)
	d := ds.byName[a.Device]
	switch {
	case err != nil || d == nil:
		return false
	case a.Kind == topics.KindDeviceState:
		return d.bundle.Device.Spec.LocalState
	}
	return a.Kind == topics.KindReported && slices.Contains(d.bundle.Device.Spec.Local, a.Name)
}

// relocate moves a device's keys between the local values and the map that the hub follows, after its spec has changed.
func (ds *devices) relocate(b *batch, name string, d *device) {
	keys := []string{topics.Address{Kind: topics.KindDeviceState, Device: name}.Key()}
	for _, p := range d.bundle.Model.Spec.Properties {
		keys = append(keys, topics.DeviceKey(name, topics.KindReported, p.Name))
	}
	for _, key := range keys {
		e, ok := ds.up.Get(key)
		_, kept := ds.up.local[key]
		if !ok || kept == ds.isLocal(key) {
			continue
		}
		ds.up.Delete(key, b.now.UnixMilli(), "")
		if kept {
			e.Ver = 0 // the map assigns versions
		}
		if err := ds.up.write(b, e); err != nil { // it was stored before
			ds.opts.Log.Error().Err(err).Str("key", key).Msg("a value can't be moved")
		}
	}
}

func problemKey(device string) string {
	return topics.Address{Kind: topics.KindProblem, Device: device}.Key()
}
