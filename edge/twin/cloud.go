package twin

import (
	"encoding/json"
	"strings"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/edge/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// Connected begins a connection to the hub. n is new for every connection; send
// hands a message over and does not wait. ready is called once the hub has said that
// it has what the node had to report when the connection began, or that it takes none of it: streams come after.
func (t *Twin) Connected(n uint64, send func([]byte), ready func()) {
	t.host.Put(func(*batch) {
		t.send, t.nonce, t.ready, t.hub = send, n, ready, 0
		t.up.Connect(n)
		t.o.Log.Info().Uint64("seq", t.up.Seq()).Int("behind", t.up.Dirty()).Msg("link to the hub is up")
	})
}

// Disconnected ends it.
func (t *Twin) Disconnected() {
	t.host.Put(func(*batch) {
		if t.send != nil {
			t.o.Log.Warn().Msg("link to the hub is down: the node goes on by itself")
		}
		t.send, t.ready, t.hub = nil, nil, 0
		t.up.Disconnect()
	})
}

// caughtUp is who is to be told that the hub has caught up in this connection.
func (t *Twin) caughtUp() (ready func()) {
	if t.ready == nil || !t.up.CaughtUp() && t.oversize == "" {
		return func() {}
	}
	ready, t.ready = t.ready, nil
	return ready
}

// Receive takes a message from the hub. A malformed one is dropped: whatever it
// should have said, the link says again.
func (t *Twin) Receive(payload []byte) {
	m, err := link.Decode(payload)
	if err != nil {
		t.sampledLog.Warn().Err(err).Msg("malformed message from the hub")
		return
	}
	t.host.Put(func(b *batch) {
		if m.Map == link.Up {
			b.linkActive = true
			if err := t.up.Step(m); err != nil {
				t.sampledLog.Warn().Err(err).Msg("message from the hub")
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

// noteHub says once in a connection that the hub isn't the one that gave the node its devices.
func (t *Twin) noteHub(m link.Message) {
	if m.Type != link.Hello || t.hub != 0 {
		return
	}
	t.hub = resource.HubID(m.Lineage.OwnerID())
	if other := t.otherHub(); other != 0 {
		t.o.Log.Warn().Stringer("hub", t.hub).Stringer("other", other).
			Msg("what the node has is another hub's: it keeps that, unless this one is said to replace the other")
	}
}

// otherHub is the one that gave the node its devices, if another one is connected; else 0.
func (t *Twin) otherHub() resource.HubID {
	whose := resource.HubID(t.down.Lineage().OwnerID())
	if t.hub == 0 || t.hub == whose || len(t.devices) == 0 {
		return 0
	}
	return whose
}

// follow takes note of a change that the cloud made. What it means is settled
// at the end of the batch, when all of them are known.
func (t *Twin) follow(b *batch, c link.Entry) {
	a, err := topics.ParseKey(t.o.Node, c.Key)
	if err != nil {
		return // of a newer hub: kept, and of no meaning to us
	}
	switch a.Kind {
	case topics.KindDesired:
		b.mark(c.Key)
		t.touch(b, a.Device, a.Name)
	case topics.KindDevice, topics.KindDevicePart:
		b.mark(c.Key)
		b.docs["devices/"+a.Device] = true
	default:
		key, _, _ := strings.Cut(c.Key, "/parts/")
		b.docs[key] = true
	}
}

func (t *Twin) touch(b *batch, device, property string) {
	b.touched[[2]string{device, property}] = true
}

// derive derives what follows from the batch's changes: devices that came,
// changed or went, and the values in force. It may be called in between, by a step that needs to know.
func (t *Twin) derive(b *batch) {
	for key := range b.docs {
		delete(b.docs, key)
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

// document is a cloud-owned document, put together; ok is false while parts are missing.
func (t *Twin) document(key string) (doc []byte, exists, ok bool) {
	e, exists := t.down.Get(key)
	if !exists {
		return nil, false, true
	}
	doc, ok = topics.Join(e.Value, func(n int) ([]byte, bool) {
		p, ok := t.down.Get(topics.PartKey(key, n))
		return p.Value, ok
	})
	return doc, true, ok
}

func (t *Twin) deriveDocument(b *batch, key string) {
	if doc, _, ok := t.document(key); ok {
		b.out = append(b.out, t.retained(key, doc))
	}
}

func (t *Twin) joinDevice(name string) (*device, bool) {
	doc, exists, ok := t.document("devices/" + name)
	if !exists || !ok {
		return nil, false
	}
	d := &device{payload: doc}
	if err := json.Unmarshal(doc, &d.bundle); err != nil {
		t.o.Log.Error().Err(err).Str("device", name).Msg("the hub sent a Device that can't be read")
		return nil, false
	}
	return d, true
}

func (t *Twin) deriveDevice(b *batch, name string) {
	key := "devices/" + name
	if _, exists, whole := t.document(key); !exists {
		t.removeDevice(b, name)
		return
	} else if !whole {
		return // the rest is on its way
	}
	d, ok := t.joinDevice(name)
	if !ok {
		return
	}
	old := t.devices[name]
	t.devices[name] = d
	another := old != nil && old.bundle.Device.Metadata.UID != d.bundle.Device.Metadata.UID // of the same name
	if another {
		for _, p := range old.bundle.Model.Spec.Properties { // what was applied to the other one was not applied to this
			key := topics.DeviceKey(name, topics.KindDesired, p.Name)
			t.putEffective(b, key, verdict{})
			t.forgetEffective(b, key)
		}
	}
	protocol := d.bundle.Device.Spec.Protocol.Type
	if old == nil || !resource.SameProtocol(old.bundle.Device.Spec.Protocol.Type, protocol) {
		if old != nil { // to the mapper that had it it is gone
			b.out = append(b.out, t.retained(key, nil))
		}
		b.deviceChanges = append(b.deviceChanges, deviceChange{at: len(b.out), device: name, protocol: protocol})
	}
	b.out = append(b.out, t.retained(key, d.payload)) // before what is cleared: a mapper that it is no concern of lets it be
	if old == nil {
		t.o.Log.Info().Str("device", name).Str("model", d.bundle.Model.Metadata.Name).Msg("device joined the node")
	} else {
		t.forget(b, name, old, func(property string) bool {
			_, kept := d.bundle.Model.Property(property)
			return another || !kept
		})
		if was, is := old.bundle.Device.Spec.Protocol.Type, protocol; another || !resource.SameProtocol(was, is) {
			t.disown(b, name)
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
	b.out = append(b.out, t.retained("devices/"+name, nil))
	b.deviceChanges = append(b.deviceChanges, deviceChange{at: len(b.out), device: name, gone: true})
	t.forget(b, name, d, func(string) bool { return true })
	t.clearUp(b, topics.Address{Kind: topics.KindDeviceState, Device: name}.Key())
	t.clearUp(b, problemKey(name))
	t.o.Log.Info().Str("device", name).Msg("device left the node")
}

// ofDevice are the branches of a device that the edge owns.
var ofDevice = [...]topics.Kind{topics.KindReported, topics.KindRefused, topics.KindReadProblem, topics.KindOverride, topics.KindConflict}

// forget drops the edge's keys of those properties of a device. Only a model's
// properties have keys, so that none need be searched for.
func (t *Twin) forget(b *batch, name string, d *device, gone func(property string) bool) {
	for _, p := range d.bundle.Model.Spec.Properties {
		if !gone(p.Name) {
			continue
		}
		for _, kind := range ofDevice {
			t.clearUp(b, topics.DeviceKey(name, kind, p.Name))
		}
		t.touch(b, name, p.Name)
	}
}

// touchDevice looks at every property of a device's model.
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
	v := decide(p, desired, wanted, override, overridden, b.now.UnixMilli())
	if v.endOverride {
		t.clearUp(b, overrideKey)
	}
	t.deriveConflict(b, name, property, desired, v)
	if !v.any {
		t.clearUp(b, topics.DeviceKey(name, topics.KindRefused, property)) // nothing is wanted: nothing is refused
	}
	if t.putEffective(b, desiredKey, v) {
		e := t.effective[desiredKey]
		t.o.Log.Debug().Str("device", name).Str("property", property).Uint64("ver", e.Ver).Str("origin", e.Origin).
			Bool("override", e.Override).Bool("cleared", e.None).Msg("in force")
	}
	if d == nil && !wanted {
		t.forgetEffective(b, desiredKey)
	}
}

// putEffective puts another value in force, or none, and publishes it; false if it is what was.
func (t *Twin) putEffective(b *batch, key string, v verdict) bool {
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
	b.out = append(b.out, t.desiredMessage(key, e))
	return true
}

// forgetEffective drops what a removed device leaves; versions still never fall,
// should one of its name come back.
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

// deriveConflict shows a conflict until the cloud or somebody on the node wants
// something else, or the override that won is over.
func (t *Twin) deriveConflict(b *batch, name, property string, desired link.Entry, v verdict) {
	key := topics.DeviceKey(name, topics.KindConflict, property)
	old, known := t.up.Get(key)
	if v.dispute == nil {
		var shown resource.OverrideConflict
		if known && (json.Unmarshal(old.Value, &shown) != nil || shown.DesiredVer != desired.Ver || shown.Winner == "override") {
			t.clearUp(b, key)
		}
		return
	}
	payload, err := json.Marshal(v.dispute)
	if err != nil || known && string(old.Value) == string(payload) {
		return
	}
	if err := t.putWithin(b, entry(b, key, payload, "core")); err != nil {
		t.o.Log.Error().Err(err).Str("device", name).Str("property", property).Msg("a conflict can't be shown")
	}
	if !known {
		t.o.Log.Warn().Str("device", name).Str("property", property).Uint64("ver", v.dispute.DesiredVer).Str("winner", v.dispute.Winner).
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
	return tree.Document(t.o.Node, key, payload)
}

// verdict is what decide finds for one property.
type verdict struct {
	inForce     link.Entry // the value to apply; its key says whose it is
	any         bool       // false: nothing is wanted
	override    bool       // inForce is the override
	endOverride bool       // the override is over and goes
	dispute     *resource.OverrideConflict
}

// decide says which of the two wanted values of a property is in force, and
// whether they are in conflict. It is a pure function: conflicts are seen by
// cause (the desired version that the override was set against), never by clock,
// but for the policy latest, which asks for it.
func decide(p resource.Property, desired link.Entry, wanted bool, override link.Entry, overridden bool, now int64) verdict {
	v := verdict{inForce: desired, any: wanted}
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
		return verdict{inForce: override, any: true, override: true}
	case same: // the cloud has come to want it too
		v.endOverride = true
		return v
	}
	// A desired value that was cleared left no time: clearing is the cloud's latest word.
	wins := p.Conflict == resource.ConflictEdge || p.Conflict == resource.ConflictLatest && wanted && override.TS > desired.TS
	v.dispute = &resource.OverrideConflict{
		Desired: string(desired.Value), DesiredVer: desired.Ver,
		Override: string(override.Value), BasedOn: override.Meta.BasedOn,
		Policy: policy(p), Winner: "desired",
	}
	v.endOverride = !wins
	if wins {
		v.inForce, v.any, v.override, v.dispute.Winner = override, true, true, "override"
	}
	return v
}

func policy(p resource.Property) string {
	if p.Conflict == "" {
		return resource.ConflictCloud
	}
	return p.Conflict
}

// effective turns the value in force into what is kept and published. ver is
// the version it has if it is a change.
func (v verdict) effective(ver uint64) *store.Effective {
	if !v.any {
		return &store.Effective{Ver: ver, None: true}
	}
	return &store.Effective{
		Value: v.inForce.Value, Ver: ver, Override: v.override, SourceVer: v.inForce.Ver,
		TS: v.inForce.TS, Origin: v.inForce.Origin, Until: v.inForce.Meta.Until,
	}
}

// changed says whether the value in force is another than e: another value, or
// the same asked for anew.
func (v verdict) changed(e *store.Effective) bool {
	if e == nil || e.None {
		return v.any
	}
	return !v.any || e.Override != v.override || e.SourceVer != v.inForce.Ver ||
		e.Until != v.inForce.Meta.Until || string(e.Value) != string(v.inForce.Value)
}
