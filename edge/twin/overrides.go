// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/edge/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
	"github.com/edgebus/edgebus/topics/trace"
)

// overrides are the values in force: of each property the cloud's desired value, or the override that was set on the node.
type overrides struct {
	opts *Options
	up   *upMap
	down *downMap

	byKey       map[string]*store.Effective
	floor       uint64 // versions in force of forgotten properties are at or below it; its epoch is the store's
	newFloor    uint64 // of a store that has none
	floorStored bool   // the floor is in the store
}

// load takes what is stored.
func (o *overrides) load(values map[string]*store.Effective, floor uint64) {
	o.byKey, o.floor = values, floor
	if o.floorStored = floor != 0; !o.floorStored {
		o.floor = o.newFloor
	}
}

// derive finds what is in force for a property, and publishes it when that changed. d is the device; nil: it has left.
func (o *overrides) derive(b *batch, d *device, name, property string) {
	p := resource.Property{Name: property}
	if d != nil {
		if known, ok := d.bundle.Model.Property(property); ok {
			p = known
		}
	}
	desiredKey := topics.DeviceKey(name, topics.KindDesired, property)
	overrideKey := topics.DeviceKey(name, topics.KindOverride, property)
	desired, wanted := o.down.Get(desiredKey)
	override, overridden := o.up.Get(overrideKey)
	v := decideInForce(p, desired, wanted, override, overridden, b.now.UnixMilli())
	if v.endOverride {
		o.up.clear(b, overrideKey)
	}
	o.deriveConflict(b, name, property, desired, v)
	if !v.present {
		o.up.clear(b, topics.DeviceKey(name, topics.KindRefused, property)) // without a desired value there is no refusal
	}
	if o.put(b, desiredKey, v) {
		e := o.byKey[desiredKey]
		o.opts.Log.Debug().Str("device", name).Str("property", property).Uint64("ver", e.Ver).Str("origin", e.Origin).
			Bool("override", e.Override).Bool("cleared", e.None).Str("trace_id", trace.IDOf(b.spans[topics.TopicOf(o.opts.Node, desiredKey)].Traceparent())).Msg("in force")
	}
	if d == nil && !wanted {
		o.forget(b, desiredKey)
	}
}

// put puts a value in force, or none, and publishes it. It returns false if nothing changes.
func (o *overrides) put(b *batch, key string, v inForceDecision) bool {
	old := o.byKey[key]
	if !v.changed(old) {
		return false
	}
	last := o.floor
	if old != nil {
		last = old.Ver
	}
	e := v.effective(last + 1)
	o.byKey[key], b.effective[key] = e, e
	b.publishes = append(b.publishes, o.message(key, e))
	return true
}

// forget deletes the value in force of a removed device. The floor keeps versions rising if a device of that name is
// added again.
func (o *overrides) forget(b *batch, key string) {
	e := o.byKey[key]
	if e == nil {
		return
	}
	if e.Ver > o.floor {
		o.floor, b.floor = e.Ver, e.Ver
	}
	delete(o.byKey, key)
	b.effective[key] = nil
}

// deriveConflict sets the conflict of a property. It stays until there is a new desired value or override, or the override that won
// has ended.
func (o *overrides) deriveConflict(b *batch, name, property string, desired link.Entry, v inForceDecision) {
	key := topics.DeviceKey(name, topics.KindConflict, property)
	old, known := o.up.Get(key)
	if v.conflict == nil {
		var shown resource.OverrideConflict
		if known && (json.Unmarshal(old.Value, &shown) != nil || shown.DesiredVer != desired.Ver || shown.Winner == "override") {
			o.up.clear(b, key)
		}
		return
	}
	payload, err := json.Marshal(v.conflict)
	if err != nil || known && string(old.Value) == string(payload) {
		return
	}
	if err := o.up.writeWithin(b, newEntry(b, key, payload, "core")); err != nil {
		o.opts.Log.Error().Err(err).Str("device", name).Str("property", property).Msg("a conflict can't be shown")
	}
	if !known {
		o.opts.Log.Warn().Str("device", name).Str("property", property).Uint64("ver", v.conflict.DesiredVer).Str("winner", v.conflict.Winner).
			Msg("a local override and a newer desired value are in conflict")
	}
}

// inForce is what is in force for a property, nil when nothing is.
func (o *overrides) inForce(name, property string) *store.Effective {
	e := o.byKey[topics.DeviceKey(name, topics.KindDesired, property)]
	if e == nil || e.None {
		return nil
	}
	return e
}

// message is what is in force for a property as subscribers see it.
func (o *overrides) message(key string, e *store.Effective) broker.Message {
	s := resource.StoredValue{Value: e.Value, Ver: e.Ver, TS: e.TS, Origin: e.Origin, Until: e.Until}
	if e.None {
		s.Value = nil
	}
	return tree.ValueMessage(o.opts.Node, key, topics.KindDesired, s)
}

// maxEpoch is the highest epoch of a new store: a version is below 2^53, so that every reader of JSON keeps all its digits.
const maxEpoch = 1<<21 - 1

func newEpoch() uint32 { return 1 + rand.Uint32N(maxEpoch) } //nolint:gosec // G404: it tells stores apart, and is no secret

// epochOf is the epoch of a version in force, its upper half. Each store has its own: a store that begins anew counts from 1 again, and
// its first version must not be taken for the one that a mapper applied before. A restored store has a new epoch, too; see store.Fork.
func epochOf(ver uint64) uint32 { return uint32(ver >> 32) }

// inForceDecision is what decideInForce finds for one property.
type inForceDecision struct {
	inForce     link.Entry // the value to apply: an entry of either map
	present     bool       // false: there is no value to apply
	override    bool       // inForce is the override
	endOverride bool       // the override has ended and is to be deleted
	conflict    *resource.OverrideConflict
}

// decideInForce returns which of a property's desired value and override is in force, and whether they are in conflict. It is a pure
// function. Conflicts are detected by cause, which is the desired version that the override was set against. Clocks are compared
// only for the policy latest.
func decideInForce(p resource.Property, desired link.Entry, wanted bool, override link.Entry, overridden bool, now int64) inForceDecision {
	v := inForceDecision{inForce: desired, present: wanted}
	if !overridden {
		return v
	}
	stays := p.Conflict == resource.ConflictEdge && !p.Adopt
	same := wanted && p.Canonical(desired.Value) == p.Canonical(override.Value)
	switch based := override.Meta.BasedOn; {
	case override.Meta.Until != 0 && now >= override.Meta.Until:
		v.endOverride = true
		return v
	case desired.Ver == based, same && stays:
		return inForceDecision{inForce: override, present: true, override: true}
	case same: // the cloud now desires the same value
		v.endOverride = true
		return v
	}
	// A cleared desired value has no timestamp: with the policy latest clearing counts as newer than the override.
	wins := p.Conflict == resource.ConflictEdge || p.Conflict == resource.ConflictLatest && wanted && override.TS > desired.TS
	v.conflict = &resource.OverrideConflict{
		Desired: string(desired.Value), DesiredVer: desired.Ver,
		Override: string(override.Value), BasedOn: override.Meta.BasedOn,
		Policy: conflictPolicy(p), Winner: "desired",
	}
	v.endOverride = !wins
	if wins {
		v.inForce, v.present, v.override, v.conflict.Winner = override, true, true, "override"
	}
	return v
}

func conflictPolicy(p resource.Property) string {
	if p.Conflict == "" {
		return resource.ConflictCloud
	}
	return p.Conflict
}

// effective turns a decision into the value in force as it is stored and published, with version ver.
func (v inForceDecision) effective(ver uint64) *store.Effective {
	if !v.present {
		return &store.Effective{Ver: ver, None: true}
	}
	return &store.Effective{
		Value: v.inForce.Value, Ver: ver, Override: v.override, SourceVer: v.inForce.Ver,
		TS: v.inForce.TS, Origin: v.inForce.Origin, Until: v.inForce.Meta.Until,
	}
}

// changed reports whether the value in force differs from e, in its value or in the write that it came from.
func (v inForceDecision) changed(e *store.Effective) bool {
	if e == nil || e.None {
		return v.present
	}
	return !v.present || e.Override != v.override || e.SourceVer != v.inForce.Ver ||
		e.Until != v.inForce.Meta.Until || string(e.Value) != string(v.inForce.Value)
}

// overrideEnds knows when overrides end, and wakes the loop for the next one.
type overrideEnds struct {
	opts   *Options
	outage *tree.StoreOutage

	byKey    map[string]int64 // when each ends
	next     int64            // when the next one does; 0: never
	stale    bool             // next is to be computed again
	wake     *time.Timer      // for the next one
	maxSleep time.Duration    // longest time that wake is set to; clockCheckInterval
}

// load takes the ends of what is stored.
func (o *overrideEnds) load(up *upMap) {
	clear(o.byKey)
	o.stale = true
	up.Range("devices/", func(e link.Entry) bool {
		if e.Meta.Until != 0 && strings.Contains(e.Key, "/override/") {
			o.byKey[e.Key] = e.Meta.Until
		}
		return true
	})
}

// schedule notes when an override ends; 0 is never.
func (o *overrideEnds) schedule(key string, until int64) {
	was, had := o.byKey[key]
	if had && was == o.next || until != 0 && (o.next == 0 || until < o.next) {
		o.stale = true
	}
	delete(o.byKey, key)
	if until != 0 {
		o.byKey[key] = until
	}
}

// touchDue touches the properties whose overrides have ended, once it is time for the next one.
func (o *overrideEnds) touchDue(b *batch) {
	now := b.now.UnixMilli()
	if o.next == 0 || o.next > now {
		return
	}
	o.stale = true // the timer has run
	for key, until := range o.byKey {
		if a, err := topics.ParseKey(o.opts.Node, key); err == nil && until <= now {
			b.touch(a.Device, a.Name)
		}
	}
}

// arm sets the timer for the next override to end, if that may be another one than before. A timer that runs is left alone: the steps
// of a busy node must not put it off.
func (o *overrideEnds) arm(now time.Time) {
	if !o.stale {
		return
	}
	o.stale, o.next = false, 0
	for _, until := range o.byKey {
		if o.next == 0 || until < o.next {
			o.next = until
		}
	}
	o.wake.Stop()
	if o.outage.Active() { // the store is probed also if nobody wants anything stored
		o.wake.Reset(o.outage.UntilProbe())
		return
	}
	if o.next != 0 { // the clock may have jumped, either way, when it is time
		o.wake.Reset(min(max(time.UnixMilli(o.next).Sub(now), 0)+expiryGrain, o.maxSleep))
	}
}
