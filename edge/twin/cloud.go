package twin

import (
	"encoding/json"
	"math/rand/v2"
	"strings"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/edge/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// hubSender is the hub as the sender of steps. No client has this name.
const hubSender = "$hub"

// Connected begins a connection to the hub. n is new for every connection; send
// hands a message over and does not block. ready is called once the hub has confirmed all that the node had to report when the
// connection began, or has refused it for its quota. Streams are sent after that.
func (t *Twin) Connected(n uint64, send func([]byte), ready func()) {
	t.host.Put(hubSender, 0, func(*batch) {
		t.send, t.nonce, t.ready, t.hub = send, n, ready, 0
		t.up.Connect(n)
		t.opts.Log.Info().Uint64("seq", t.up.Seq()).Int("behind", t.up.Dirty()).Msg("link to the hub is up")
	})
}

// Disconnected ends it.
func (t *Twin) Disconnected() {
	t.host.Put(hubSender, 0, func(*batch) {
		if t.send != nil {
			t.opts.Log.Warn().Msg("link to the hub is down: the node goes on by itself")
		}
		t.send, t.ready, t.hub = nil, nil, 0
		t.up.Disconnect()
	})
}

// caughtUp returns the function to be called if the hub has caught up in this connection. It is called once.
func (t *Twin) caughtUp() (ready func()) {
	if t.ready == nil || !t.up.CaughtUp() && t.quotaError == "" {
		return func() {}
	}
	ready, t.ready = t.ready, nil
	return ready
}

// Receive takes a message from the hub. A malformed one is dropped: the link protocol sends its contents again.
func (t *Twin) Receive(payload []byte) {
	m, err := link.Decode(payload)
	if err != nil {
		t.sampledLog.Warn().Err(err).Msg("malformed message from the hub")
		return
	}
	t.host.Put(hubSender, len(payload), func(b *batch) {
		if b.refused != nil && (t.ignoresHub || m.Type != link.TypeHello && m.Type != link.TypeSeen) {
			return // the hub sends it again
		}
		if m.Map == link.Up {
			b.linkActive = true
			known := t.up.Lost()
			if err := t.up.Step(m); err != nil {
				t.sampledLog.Warn().Err(err).Msg("message from the hub")
			}
			if lost := t.up.Lost(); known == "" && lost != "" {
				t.opts.Log.Error().Str("lost", lost).Msg("this node's data is older than what the hub has acknowledged: an older copy of the data directory was put back, " +
					"or its disk lost what was written; the hub takes over the values that are here")
			}
			t.noteOversize()
			return
		}
		t.noteHub(m)
		for _, c := range t.down.Step(m) {
			t.follow(b, c)
		}
	})
}

// noteHub logs once in a connection that the node's map came from another hub.
func (t *Twin) noteHub(m link.Message) {
	if m.Type != link.TypeHello || t.hub != 0 {
		return
	}
	t.hub = resource.HubID(m.Lineage.OwnerID())
	if other := t.otherHub(); other != 0 {
		t.opts.Log.Warn().Stringer("hub", t.hub).Stringer("other", other).
			Msg("what the node has is another hub's: it keeps that, unless this one is said to replace the other")
	}
}

// otherHub is the hub that the node's map came from, if a different one is connected; else 0.
func (t *Twin) otherHub() resource.HubID {
	whose := resource.HubID(t.down.Lineage().OwnerID())
	if t.hub == 0 || t.hub == whose || len(t.devices) == 0 {
		return 0
	}
	return whose
}

// follow notes a change that the cloud made. Its effects are derived at the end of the batch, when all changes are known.
func (t *Twin) follow(b *batch, c link.Entry) {
	a, err := topics.ParseKey(t.opts.Node, c.Key)
	if err != nil {
		return // a key of a newer hub: it is stored and ignored
	}
	switch a.Kind {
	case topics.KindDesired:
		b.mark(c.Key)
		t.touch(b, a.Device, a.Name)
	case topics.KindDevice, topics.KindDevicePart:
		b.mark(c.Key)
		b.changedDocuments["devices/"+a.Device] = true
	default:
		key, _, _ := strings.Cut(c.Key, "/parts/")
		b.changedDocuments[key] = true
	}
}

func (t *Twin) touch(b *batch, device, property string) {
	b.touched[[2]string{device, property}] = true
}

// derive derives the effects of the batch's changes: devices that were added, changed or removed, and the values in force. A step
// that needs them may call it before the end of the batch.
func (t *Twin) derive(b *batch) {
	for key := range b.changedDocuments {
		delete(b.changedDocuments, key)
		if name, ok := strings.CutPrefix(key, "devices/"); ok {
			t.deriveDevice(b, name)
		} else {
			t.deriveDocument(b, key)
		}
	}
	for dp := range b.touched {
		delete(b.touched, dp)
		t.deriveProperty(b, dp[0], dp[1])
	}
}

// document is a cloud-owned document, joined from its parts; ok is false while parts are missing.
func (t *Twin) document(key string) (doc []byte, exists, ok bool) {
	e, exists := t.down.Get(key)
	if !exists {
		return nil, false, true
	}
	doc, ok = topics.JoinDocument(e.Value, func(n int) ([]byte, bool) {
		p, ok := t.down.Get(topics.PartKey(key, n))
		return p.Value, ok
	})
	return doc, true, ok
}

func (t *Twin) deriveDocument(b *batch, key string) {
	doc, exists, ok := t.document(key)
	if name, of := strings.CutPrefix(key, "discovery/"); of && !exists {
		t.forgetDiscovered(b, name)
	}
	if ok {
		b.publishes = append(b.publishes, t.retained(key, doc))
	}
}

func (t *Twin) joinDevice(name string) (*device, bool) {
	doc, exists, ok := t.document("devices/" + name)
	if !exists || !ok {
		return nil, false
	}
	d := &device{payload: doc}
	if err := json.Unmarshal(doc, &d.bundle); err != nil {
		t.opts.Log.Error().Err(err).Str("device", name).Msg("the hub sent a Device that can't be read")
		return nil, false
	}
	for _, branch := range []topics.Kind{topics.KindRefused, topics.KindReadProblem} {
		t.up.Range(topics.DeviceKey(name, branch, ""), func(link.Entry) bool { d.faults = true; return false })
	}
	t.anyLocal = t.anyLocal || len(d.bundle.Device.Spec.Local) > 0 || d.bundle.Device.Spec.LocalState
	return d, true
}

func (t *Twin) deriveDevice(b *batch, name string) {
	key := "devices/" + name
	if _, exists, whole := t.document(key); !exists {
		t.removeDevice(b, name)
		return
	} else if !whole {
		return // more parts will arrive
	}
	d, ok := t.joinDevice(name)
	if !ok {
		return
	}
	old := t.devices[name]
	t.devices[name] = d
	another := old != nil && old.bundle.Device.Metadata.UID != d.bundle.Device.Metadata.UID // a new Device of the same name
	if another {
		for _, p := range old.bundle.Model.Spec.Properties { // values applied to the former Device were not applied to this one
			key := topics.DeviceKey(name, topics.KindDesired, p.Name)
			t.putEffective(b, key, inForceDecision{})
			t.forgetEffective(b, key)
		}
	}
	protocol := d.bundle.Device.Spec.Protocol.Type
	if old == nil || !resource.SameProtocol(old.bundle.Device.Spec.Protocol.Type, protocol) {
		if old != nil { // the mapper of the former protocol sees it removed
			b.publishes = append(b.publishes, t.retained(key, nil))
		}
		b.deviceChanges = append(b.deviceChanges, deviceChange{at: len(b.publishes), device: name, protocol: protocol})
	}
	b.publishes = append(b.publishes, t.retained(key, d.payload)) // before the keys that are cleared, so that only the mapper concerned reacts to them
	if old == nil {
		t.opts.Log.Info().Str("device", name).Str("model", d.bundle.Model.Metadata.Name).Msg("device joined the node")
	} else {
		t.forget(b, name, old, func(property string) bool {
			_, kept := d.bundle.Model.Property(property)
			return another || !kept
		})
		if was, is := old.bundle.Device.Spec.Protocol.Type, protocol; another || !resource.SameProtocol(was, is) {
			t.setOrphan(b, name)
		}
	}
	t.relocate(b, name, d)
	t.touchDevice(b, name, d)
}

func (t *Twin) removeDevice(b *batch, name string) {
	d := t.devices[name]
	if d == nil {
		return
	}
	delete(t.devices, name)
	b.publishes = append(b.publishes, t.retained("devices/"+name, nil))
	b.deviceChanges = append(b.deviceChanges, deviceChange{at: len(b.publishes), device: name, removed: true})
	t.forget(b, name, d, func(string) bool { return true })
	t.clearUp(b, topics.Address{Kind: topics.KindDeviceState, Device: name}.Key())
	t.clearUp(b, problemKey(name))
	t.opts.Log.Info().Str("device", name).Msg("device left the node")
}

// edgeBranches are the branches of a device's properties that the edge owns.
var edgeBranches = [...]topics.Kind{topics.KindReported, topics.KindRefused, topics.KindReadProblem, topics.KindOverride, topics.KindConflict}

// forget deletes the edge's keys of the properties for which gone returns true. Only properties of the model have keys, so no
// search is needed.
func (t *Twin) forget(b *batch, name string, d *device, gone func(property string) bool) {
	for _, p := range d.bundle.Model.Spec.Properties {
		if !gone(p.Name) {
			continue
		}
		for _, kind := range edgeBranches {
			t.clearUp(b, topics.DeviceKey(name, kind, p.Name))
		}
		t.touch(b, name, p.Name)
	}
}

// touchDevice marks every property of a device's model as touched.
func (t *Twin) touchDevice(b *batch, name string, d *device) {
	for _, p := range d.bundle.Model.Spec.Properties {
		t.touch(b, name, p.Name)
	}
}

// deriveProperty finds what is in force for a property, and publishes it when that changed.
func (t *Twin) deriveProperty(b *batch, name, property string) {
	p := resource.Property{Name: property}
	d := t.devices[name]
	if d != nil {
		if known, ok := d.bundle.Model.Property(property); ok {
			p = known
		}
	}
	desiredKey := topics.DeviceKey(name, topics.KindDesired, property)
	overrideKey := topics.DeviceKey(name, topics.KindOverride, property)
	desired, wanted := t.down.Get(desiredKey)
	override, overridden := t.up.Get(overrideKey)
	v := decideInForce(p, desired, wanted, override, overridden, b.now.UnixMilli())
	if v.endOverride {
		t.clearUp(b, overrideKey)
	}
	t.deriveConflict(b, name, property, desired, v)
	if !v.present {
		t.clearUp(b, topics.DeviceKey(name, topics.KindRefused, property)) // without a desired value there is no refusal
	}
	if t.putEffective(b, desiredKey, v) {
		e := t.effective[desiredKey]
		t.opts.Log.Debug().Str("device", name).Str("property", property).Uint64("ver", e.Ver).Str("origin", e.Origin).
			Bool("override", e.Override).Bool("cleared", e.None).Msg("in force")
	}
	if d == nil && !wanted {
		t.forgetEffective(b, desiredKey)
	}
}

// maxEpoch is the highest epoch of a new store: a version is below 2^53, so that every reader of JSON keeps all its digits.
const maxEpoch = 1<<21 - 1

func newEpoch() uint32 { return 1 + rand.Uint32N(maxEpoch) } //nolint:gosec // G404: it tells stores apart, and is no secret

// epochOf is the epoch of a version in force, its upper half. Each store has its own: a store that begins anew counts from 1 again, and
// its first version must not be taken for the one that a mapper applied before. A restored store has a new epoch, too; see store.Fork.
func epochOf(ver uint64) uint32 { return uint32(ver >> 32) }

// putEffective puts a value in force, or none, and publishes it. It returns false if nothing changes.
func (t *Twin) putEffective(b *batch, key string, v inForceDecision) bool {
	old := t.effective[key]
	if !v.changed(old) {
		return false
	}
	last := t.floor
	if old != nil {
		last = old.Ver
	}
	e := v.effective(last + 1)
	t.effective[key], b.effective[key] = e, e
	b.publishes = append(b.publishes, t.desiredMessage(key, e))
	return true
}

// forgetEffective deletes the value in force of a removed device. The floor keeps versions rising if a device of that name is
// added again.
func (t *Twin) forgetEffective(b *batch, key string) {
	e := t.effective[key]
	if e == nil {
		return
	}
	if e.Ver > t.floor {
		t.floor, b.floor = e.Ver, e.Ver
	}
	delete(t.effective, key)
	b.effective[key] = nil
}

// deriveConflict sets the conflict of a property. It stays until there is a new desired value or override, or the override that won
// has ended.
func (t *Twin) deriveConflict(b *batch, name, property string, desired link.Entry, v inForceDecision) {
	key := topics.DeviceKey(name, topics.KindConflict, property)
	old, known := t.up.Get(key)
	if v.conflict == nil {
		var shown resource.OverrideConflict
		if known && (json.Unmarshal(old.Value, &shown) != nil || shown.DesiredVer != desired.Ver || shown.Winner == "override") {
			t.clearUp(b, key)
		}
		return
	}
	payload, err := json.Marshal(v.conflict)
	if err != nil || known && string(old.Value) == string(payload) {
		return
	}
	if err := t.putWithin(b, newEntry(b, key, payload, "core")); err != nil {
		t.opts.Log.Error().Err(err).Str("device", name).Str("property", property).Msg("a conflict can't be shown")
	}
	if !known {
		t.opts.Log.Warn().Str("device", name).Str("property", property).Uint64("ver", v.conflict.DesiredVer).Str("winner", v.conflict.Winner).
			Msg("a local override and a newer desired value are in conflict")
	}
}

// inForce is what is in force for a property, nil when nothing is.
func (t *Twin) inForce(name, property string) *store.Effective {
	e := t.effective[topics.DeviceKey(name, topics.KindDesired, property)]
	if e == nil || e.None {
		return nil
	}
	return e
}

func (t *Twin) retained(key string, payload []byte) broker.Message {
	return tree.DocumentMessage(t.opts.Node, key, payload)
}

// inForceDecision is what decide finds for one property.
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

// effective turns a verdict into the value in force as it is stored and published, with version ver.
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
