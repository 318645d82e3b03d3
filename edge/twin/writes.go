// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/json"
	"errors"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// localWrites are what clients of the node's broker write of devices: reported values, refusals, states and problems, which mappers
// publish, and overrides.
type localWrites struct {
	opts      *Options
	up        *upMap
	down      *downMap
	devices   *devices
	overrides *overrides
	documents *documents
	mappers   *mappers
	reader    *reader
	alarms    *alarmTracker
}

// report stores reported values: all of them or, when one breaks a rule, none.
func (w *localWrites) report(b *batch, a topics.Address, m broker.Message) error {
	d, err := w.devices.find(a.Device, m.Publisher)
	if err != nil {
		return err
	}
	s, err := b.read(a, m, &d.bundle.Model, (*resource.DeviceModel).CheckReported, (*resource.DeviceModel).CheckKnown)
	if errors.As(err, new(tree.AheadError)) {
		w.noteClock(b, a.Device, d, m)
	}
	if err != nil {
		return err
	}
	if epochOf(s.For) != epochOf(w.overrides.floor) {
		s.For = 0 // the version is of a store before this one
	}
	entries := b.entries(a.Device, topics.KindReported, s, m, link.Meta{For: s.For})
	if err := w.up.roomFor(entries...); err != nil {
		return err
	}
	for _, e := range entries {
		if err := w.mappers.mayClear(e.Key, m, e.Deleted); err != nil {
			return err
		}
	}
	for i, e := range entries {
		if s.Nearest {
			e.Meta.BasedOn = w.answeredVersion(b, a.Device, b.members[i].Property, s.For)
		}
		w.up.mayWait(b, e, s.Repeated)
		if err := w.up.write(b, e); err != nil {
			return err
		}
		if d.faults {
			w.up.clear(b, topics.DeviceKey(a.Device, topics.KindReadProblem, b.members[i].Property))
			w.clearRefusal(b, a.Device, b.members[i].Property, e)
		}
		w.alarms.followReport(b, a.Device, d, b.members[i].Property)
		w.push(b, d, e, b.members[i].Property)
		if !e.Deleted {
			w.devices.recordHistory(b, d, b.members[i].Property, e)
		}
	}
	return nil
}

// noteClock says in the properties' problem that their reports are refused for their timestamps, until one is taken. Otherwise the value
// before would pass for the device's.
func (w *localWrites) noteClock(b *batch, name string, d *device, m broker.Message) {
	why, err := json.Marshal(resource.Problem{
		Code:    resource.ClockAhead,
		Message: "its reports are refused, because their ts is more than a minute ahead of the node's clock: correct the clock of its mapper, or the node's",
	})
	for _, v := range b.members {
		if err == nil && v.Value != nil {
			d.faults = true
			err = w.up.writeWithin(b, newEntry(b, topics.DeviceKey(name, topics.KindReadProblem, v.Property), why, tree.OriginOf(m)))
		}
	}
	if err != nil {
		w.opts.Log.Error().Err(err).Str("device", name).Msg("a wrong clock can't be shown")
	}
}

// push has a reported value sent, once it is stored, to where its Device says. That it is reported again is no write, but
// sent: who asks for a report every so often wants that.
func (w *localWrites) push(b *batch, d *device, e link.Entry, property string) {
	for _, to := range d.bundle.Device.Spec.Push {
		if to.PropertyName == property && !e.Deleted && w.opts.Push != nil {
			name := d.bundle.Device.Metadata.Name
			b.pushes = append(b.pushes, func() { w.opts.Push(to, name, property, e.Value, e.TS) })
		}
	}
}

// answeredVersion is the cloud's version of the desired value that a report answers, if ver is the version in force; else 0.
func (w *localWrites) answeredVersion(b *batch, name, property string, ver uint64) uint64 {
	w.documents.derive(b) // earlier steps of the batch may have changed the value in force
	e := w.overrides.inForce(name, property)
	if e == nil || e.Override || e.Ver != ver {
		return 0
	}
	return e.SourceVer
}

// clearRefusal clears a refusal once a newer value than the refused one is applied, or the device has the value in force.
func (w *localWrites) clearRefusal(b *batch, name, property string, reported link.Entry) {
	key := topics.DeviceKey(name, topics.KindRefused, property)
	refused, ok := w.up.Get(key)
	if !ok {
		return
	}
	if reported.Meta.For > refused.Meta.For || w.hasInForce(b, name, property, reported) {
		w.up.clear(b, key)
	}
}

// hasInForce reports whether a reported value is the value in force, or the nearest value that the device can have.
func (w *localWrites) hasInForce(b *batch, name, property string, reported link.Entry) bool {
	w.documents.derive(b)
	e, d := w.overrides.inForce(name, property), w.devices.byName[name]
	if e == nil || d == nil || reported.Deleted {
		return false
	}
	p, _ := d.bundle.Model.Property(property)
	return reported.Meta.BasedOn != 0 || p.Canonical(e.Value) == p.Canonical(reported.Value)
}

// override takes a local write of a desired value: it becomes an override beside the cloud's desired value,
// which the edge never writes.
func (w *localWrites) override(b *batch, a topics.Address, m broker.Message) error {
	d, err := w.devices.find(a.Device, m.Publisher)
	if err != nil {
		return err
	}
	s, err := b.read(a, m, &d.bundle.Model, (*resource.DeviceModel).CheckDesired, (*resource.DeviceModel).CheckWritable)
	if err != nil {
		return err
	}
	entries := b.entries(a.Device, topics.KindOverride, s, m, link.Meta{Until: s.Until})
	if err := w.up.roomFor(entries...); err != nil {
		return err
	}
	for i, e := range entries {
		property := b.members[i].Property
		desired, _ := w.down.Get(topics.DeviceKey(a.Device, topics.KindDesired, property))
		e.Meta.BasedOn = desired.Ver
		if err := w.up.write(b, e); err != nil {
			return err
		}
		w.up.clear(b, topics.DeviceKey(a.Device, topics.KindConflict, property)) // a new override ends the conflict
		b.touch(a.Device, property)
	}
	return nil
}

// refuse stores why a mapper could not apply a value. A refusal of another value than the one in force is ignored.
func (w *localWrites) refuse(b *batch, name, property string, m broker.Message) error {
	d, err := w.devices.find(name, m.Publisher)
	if err != nil {
		return err
	}
	if err := d.bundle.Model.CheckKnown(property); err != nil {
		return err
	}
	key := topics.DeviceKey(name, topics.KindRefused, property)
	if len(m.Payload) == 0 {
		if err := w.mappers.mayClear(key, m, true); err != nil {
			return err
		}
		w.up.clear(b, key)
		return nil
	}
	r, err := resource.ParseRefusal(m.Payload)
	if err != nil {
		return err
	}
	w.documents.derive(b) // earlier steps of the batch may have changed the value in force
	e := w.overrides.inForce(name, property)
	if e == nil || r.For != 0 && r.For != e.Ver {
		return nil
	}
	r.Ver = 0
	if !e.Override {
		r.Ver = e.SourceVer
	}
	payload, err := json.Marshal(r)
	if err != nil {
		return err
	}
	why := newEntry(b, key, payload, tree.OriginOf(m))
	why.Meta.For = r.For
	d.faults = true
	return w.up.writeWithin(b, why)
}

// get answers with the whole twin, as JSON, on the asker's response topic.
func (w *localWrites) get(b *batch, a topics.Address, m broker.Message) error {
	d, err := w.devices.find(a.Device, m.Publisher)
	if err != nil {
		return err
	}
	reply, err := tree.ResponseTopic(m)
	if err != nil {
		return err
	}
	w.documents.derive(b)
	payload, err := json.Marshal(w.reader.twin(a.Device, d.bundle.Model))
	if err != nil {
		return err
	}
	b.publishes = append(b.publishes, tree.ResponseMessage(m, reply, payload))
	return nil
}

func (w *localWrites) deviceState(b *batch, a topics.Address, m broker.Message) error {
	if _, err := w.devices.find(a.Device, m.Publisher); err != nil {
		return err
	}
	switch s := string(m.Payload); s {
	case "", resource.Online, resource.Offline, resource.Unknown:
	default:
		return resource.Errorf(resource.Invalid, "state", "%.40q is not one of online, offline, unknown", s)
	}
	if err := w.mappers.mayClear(a.Key(), m, len(m.Payload) == 0); err != nil {
		return err
	}
	if err := w.up.writeWithin(b, newEntry(b, a.Key(), m.Payload, m.ClientID())); err != nil {
		return err
	}
	if string(m.Payload) != resource.Offline {
		w.up.clear(b, problemKey(a.Device))
	}
	if string(m.Payload) == resource.Online { // also when it was so before: after a restart the history waits for it
		w.devices.resumeHistory(b, a.Device)
	}
	return nil
}

// problem stores why a device is not online, or why a property can't be read. A mapper publishes the first before the state, and it
// is cleared by the next state that is not offline. The second is cleared by the next report of the property.
func (w *localWrites) problem(b *batch, a topics.Address, m broker.Message) error {
	d, err := w.devices.find(a.Device, m.Publisher)
	if err != nil {
		return err
	}
	if a.Kind == topics.KindReadProblem {
		if err := d.bundle.Model.CheckKnown(a.Name); err != nil {
			return err
		}
		d.faults = true
	}
	if err := w.mappers.mayClear(a.Key(), m, len(m.Payload) == 0); err != nil {
		return err
	}
	if len(m.Payload) > 0 {
		why, err := resource.ParseProblem(m.Payload)
		if err != nil {
			return err
		}
		if a.Kind == topics.KindReadProblem && why.Clears() { // readers must not take the value before for the device's
			w.up.clear(b, topics.DeviceKey(a.Device, topics.KindReported, a.Name))
		}
	}
	return w.up.writeWithin(b, newEntry(b, a.Key(), m.Payload, m.ClientID()))
}

// read decodes the properties that a message sets, and its user properties, and checks them against the model.
func (b *batch) read(
	a topics.Address, m broker.Message, model *resource.DeviceModel,
	set func(*resource.DeviceModel, string, []byte) error, clear func(*resource.DeviceModel, string) error,
) (s resource.StoredValue, err error) {
	if b.members, err = tree.PropertyValues(b.members[:0], a, m); err != nil {
		return s, err
	}
	for _, v := range b.members {
		if v.Value == nil {
			err = clear(model, v.Property)
		} else {
			err = set(model, v.Property, v.Value)
		}
		if err != nil {
			return s, err
		}
	}
	return tree.ParseStored(m, b.now.UnixMilli())
}

// entries are the properties that were read, as entries of a branch of the device. They are valid until the next call.
func (b *batch) entries(device string, branch topics.Kind, s resource.StoredValue, m broker.Message, meta link.Meta) []link.Entry {
	list := b.entryBuffer[:0]
	for _, v := range b.members {
		e := newEntry(b, topics.DeviceKey(device, branch, v.Property), v.Value, tree.OriginOf(m))
		e.TS, e.Meta = s.TS, meta
		list = append(list, e)
	}
	b.entryBuffer = list
	return list
}
