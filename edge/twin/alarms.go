// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// alarmTracker raises and clears the alarms of the node's devices. Those that are raised are keys of the edge, so that a restart raises none a second time.
// Which value is there for how long follows from the time of its report.
type alarmTracker struct {
	opts    *Options
	up      *upMap
	devices *devices

	started bool                                 // values are followed as they come, and not as they are stored
	pending map[alarmedProperty]map[string]int64 // alarms whose value is there, and not for long enough yet: since when
	due     map[alarmedProperty]int64            // when the next of a property's may be raised
	next    int64                                // when the first is due; 0: none
	stale   bool                                 // next is to be computed again
	wake    *time.Timer                          // for the first
}

type alarmedProperty struct{ device, property string }

// alarmed lists the properties of a device that have alarms, or had some that are raised.
func (as *alarmTracker) alarmed(name string, d *device) (list []resource.Property) {
	for _, p := range d.bundle.Model.Spec.Properties {
		if _, raised := as.up.Get(topics.DeviceKey(name, topics.KindAlarms, p.Name)); raised || len(p.Alarms) > 0 {
			list = append(list, p)
		}
	}
	return list
}

// followReport follows a value as soon as it is reported: the next one of the same batch must not hide it.
func (as *alarmTracker) followReport(b *batch, name string, d *device, property string) {
	if !d.alarmed {
		return
	}
	if p, ok := d.bundle.Model.Property(property); ok {
		as.follow(b, name, d, p)
	}
}

// derive follows all that may have changed the alarms of devices: values that are no longer known, new limits, and time.
func (as *alarmTracker) derive(b *batch) {
	for name := range b.changed {
		d := as.devices.byName[name]
		if d != nil && !d.alarmed {
			continue
		}
		maps.DeleteFunc(as.due, func(at alarmedProperty, _ int64) bool { return at.device == name })
		if d == nil {
			maps.DeleteFunc(as.pending, func(at alarmedProperty, _ map[string]int64) bool { return at.device == name })
			continue
		}
		for _, p := range as.alarmed(name, d) {
			as.follow(b, name, d, p)
		}
	}
	now := b.now.UnixMilli()
	if as.next == 0 || as.next > now {
		return
	}
	as.stale = true // the timer has run
	for at, due := range as.due {
		d := as.devices.byName[at.device]
		if due > now || d == nil {
			continue
		}
		if p, ok := d.bundle.Model.Property(at.property); ok {
			as.follow(b, at.device, d, p)
		}
	}
}

// follow raises and clears the alarms of a property.
func (as *alarmTracker) follow(b *batch, name string, d *device, p resource.Property) {
	at, key := alarmedProperty{name, p.Name}, topics.DeviceKey(name, topics.KindAlarms, p.Name)
	if as.pending[at] == nil {
		as.pending[at] = make(map[string]int64)
	}
	in := resource.AlarmInput{Now: b.now.UnixMilli(), Local: slices.Contains(d.bundle.Device.Spec.Local, p.Name), Pending: as.pending[at]}
	if value, ok := as.known(name, p.Name); ok {
		in.Value, in.Since = value.Value, value.TS
		if as.started {
			in.Since = in.Now // by this clock
		}
	}
	stored, _ := as.up.Get(key)
	raised, err := resource.ParseAlarms(stored.Value)
	if err != nil {
		as.opts.Log.Error().Err(err).Str("key", key).Msg("stored alarms can't be read: they begin anew")
	}
	next, changes, due := p.FollowAlarms(raised, in)
	if was := as.due[at]; was != due {
		as.stale = true
		delete(as.due, at)
		if due != 0 {
			as.due[at] = due
		}
	}
	if len(as.pending[at]) == 0 {
		delete(as.pending, at)
	}
	if err := as.put(b, key, next); err != nil {
		as.opts.Log.Error().Err(err).Str("device", name).Str("property", p.Name).Msg("alarms can't be stored")
		return
	}
	for _, c := range changes {
		as.tell(b, name, c)
	}
}

// put stores the raised alarms of a property.
func (as *alarmTracker) put(b *batch, key string, raised []resource.RaisedAlarm) error {
	if len(raised) == 0 {
		as.up.clear(b, key)
		return nil
	}
	payload, err := json.Marshal(raised)
	if err != nil {
		return err
	}
	return as.up.writeWithin(b, newEntry(b, key, payload, "core"))
}

// tell publishes that an alarm was raised or cleared, once that is stored.
func (as *alarmTracker) tell(b *batch, device string, c resource.AlarmChange) {
	payload, err := json.Marshal(c)
	if err != nil {
		return
	}
	at := topics.Address{Node: as.opts.Node, Kind: topics.KindEvents, Device: device, Name: resource.AlarmEvent}
	b.publishes = append(b.publishes, broker.Message{Topic: at.String(), Payload: payload, QoS: 1})
	as.opts.Log.Info().Str("device", device).Str("alarm", c.PropertyName+"/"+c.Name).Str("severity", c.Severity).Msg("alarm " + c.State + ": " + c.Message)
}

// known is the value of a property, unless nobody knows whether the device still has it.
func (as *alarmTracker) known(name, property string) (link.Entry, bool) {
	value, ok := as.up.Get(topics.DeviceKey(name, topics.KindReported, property))
	if _, unread := as.up.Get(topics.DeviceKey(name, topics.KindReadProblem, property)); !ok || unread {
		return value, false
	}
	state, said := as.up.Get(topics.Address{Kind: topics.KindDeviceState, Device: name}.Key())
	return value, !said || string(state.Value) == resource.Online
}

// retry follows the alarms again of devices for which they could not be stored.
func (as *alarmTracker) retry(b *batch) {
	for name := range b.changed {
		if d := as.devices.byName[name]; d != nil && d.alarmed {
			for _, p := range as.alarmed(name, d) {
				as.due[alarmedProperty{name, p.Name}] = b.now.UnixMilli()
			}
		}
	}
	as.stale = true
}

// arm sets the timer for the alarm that is due first, if that may be another one than before.
func (as *alarmTracker) arm(b *batch) {
	if b.refused != nil || b.failed != nil {
		as.retry(b)
		if as.next = 0; len(as.due) > 0 {
			as.next = b.now.UnixMilli()
			as.wake.Reset(retryDelay)
		}
		return
	}
	if !as.stale {
		return
	}
	as.stale, as.next = false, 0
	for _, due := range as.due {
		if as.next == 0 || due < as.next {
			as.next = due
		}
	}
	as.wake.Stop()
	if as.next != 0 { // the clock may have jumped, either way, when it is time
		as.wake.Reset(min(max(time.UnixMilli(as.next).Sub(b.now), 0), clockCheckInterval))
	}
}
