package twin

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// Publish takes a local publish into the tree: a mapper's report, or an
// override. done is called with nil once it is stored, or with the rule that it breaks.
func (t *Twin) Publish(m broker.Message, done func(error)) {
	a, err := topics.Parse(m.Topic)
	if err == nil {
		err = t.checkNode(a.Node)
	}
	if err != nil {
		t.stats.refused.Add(1)
		done(badTopicError(err))
		return
	}
	if isStream(a.Kind) {
		t.stream(a, m, done)
		return
	}
	if refused := t.outage.Err(); refused != nil && a.Kind != topics.KindGet {
		t.stats.refused.Add(1)
		done(refused)
		return
	}
	from, bytes := tree.SenderOf(m)
	taken := t.host.Put(from, bytes, func(b *batch) {
		b.answers = append(b.answers, publishAnswer{done, t.applyPublish(b, a, m)})
	})
	if !taken {
		done(errStopped)
	}
}

func (t *Twin) checkNode(node string) error {
	if node == t.opts.Node {
		return nil
	}
	return resource.Errorf(resource.BadTopic, "", "this is the broker of node %s: it carries no topics of %s", t.opts.Node, node)
}

// Has returns an error if the device does not belong to the node. It doesn't wait for a commit.
func (t *Twin) Has(node, device string) error {
	if err := t.checkNode(node); err != nil {
		return err
	}
	if _, ok := t.protocols.Load(device); !ok {
		return t.noDevice(device, nil)
	}
	return nil
}

func isStream(kind topics.Kind) bool {
	return kind == topics.KindTelemetry || kind == topics.KindEvents
}

// stream passes telemetry or an event on. It is not a step, so that streams don't wait for commits of state.
func (t *Twin) stream(a topics.Address, m broker.Message, done func(error)) {
	if _, ok := t.protocols.Load(a.Device); !ok {
		t.stats.refused.Add(1)
		err := t.noDevice(a.Device, m.Publisher)
		if outage := t.outage.Err(); outage != nil { // the hub may have sent the device, and it could not be stored
			err = outage
		}
		done(err)
		return
	}
	if err := tree.CheckTimestamp(m, t.opts.Now().UnixMilli()); err != nil {
		t.stats.refused.Add(1)
		done(err)
		return
	}
	m.Retain = false
	t.opts.Pass(m, done)
}

// noDevice is the error for a device that the node doesn't have. It names one that may have been meant to who sees all devices: not to
// a mapper. by is nil for a command, which only operators send.
func (t *Twin) noDevice(name string, by *broker.Identity) error {
	near := ""
	if by == nil || by.Has(topics.RoleOperator) || by.Has(topics.RoleViewer) {
		var names []string
		t.protocols.Range(func(known, _ any) bool {
			names = append(names, known.(string))
			return len(names) < maxSuggestionNames
		})
		slices.Sort(names)
		near = resource.DidYouMean(name, names)
	}
	return resource.Errorf(resource.NotFound, "", "device %s does not belong to node %s%s", name, t.opts.Node, near)
}

// maxSuggestionNames is among how many devices one is looked for that may have been meant.
const maxSuggestionNames = 500

func badTopicError(err error) error {
	if e := (*topics.Error)(nil); errors.As(err, &e) {
		return resource.Errorf(resource.BadTopic, "", "%s", e.Error())
	}
	return err
}

func (t *Twin) applyPublish(b *batch, a topics.Address, m broker.Message) error {
	if b.refused != nil && a.Kind != topics.KindGet {
		return b.refused
	}
	b.from = m.Publisher
	defer func() { b.from = nil }()
	switch a.Kind {
	case topics.KindReported, topics.KindReportedAll:
		return t.report(b, a, m)
	case topics.KindDesired, topics.KindDesiredAll:
		return t.override(b, a, m)
	case topics.KindRefused:
		return t.refuse(b, a.Device, a.Name, m)
	case topics.KindDeviceState:
		return t.deviceState(b, a, m)
	case topics.KindProblem, topics.KindReadProblem:
		return t.problem(b, a, m)
	case topics.KindMapperState:
		return t.mapperState(b, a, m)
	case topics.KindMapperProtocols:
		return t.mapperProtocols(b, a, m)
	case topics.KindAgent, topics.KindUpgradeStatus:
		return t.agentReport(b, a, m)
	case topics.KindAgentState, topics.KindDiscovererState:
		return t.programState(b, a, m)
	case topics.KindDiscoveryHandler, topics.KindInstance:
		return t.discovered(b, a, m)
	case topics.KindGet:
		return t.get(b, a, m)
	}
	return resource.Errorf(resource.Forbidden, "", "%s is written by %s, not by clients of the node's broker", a.Key(), a.Kind.Owner())
}

func (t *Twin) device(name string, by *broker.Identity) (*device, error) {
	d, ok := t.devices[name]
	if !ok {
		return nil, t.noDevice(name, by)
	}
	return d, nil
}

// report stores reported values: all of them or, when one breaks a rule, none.
func (t *Twin) report(b *batch, a topics.Address, m broker.Message) error {
	d, err := t.device(a.Device, m.Publisher)
	if err != nil {
		return err
	}
	s, err := b.read(a, m, &d.bundle.Model, (*resource.DeviceModel).CheckReported, (*resource.DeviceModel).CheckKnown)
	if errors.As(err, new(tree.AheadError)) {
		t.noteClock(b, a.Device, d, m)
	}
	if err != nil {
		return err
	}
	if epochOf(s.For) != epochOf(t.floor) {
		s.For = 0 // the version is of a store before this one
	}
	entries := b.entries(a.Device, topics.KindReported, s, m, link.Meta{For: s.For})
	if err := t.roomFor(entries...); err != nil {
		return err
	}
	for _, e := range entries {
		if err := t.mayClear(e.Key, m, e.Deleted); err != nil {
			return err
		}
	}
	for i, e := range entries {
		if s.Nearest {
			e.Meta.BasedOn = t.answeredVersion(b, a.Device, b.members[i].Property, s.For)
		}
		if err := t.putUp(b, e); err != nil {
			return err
		}
		if d.faults {
			t.clearUp(b, topics.DeviceKey(a.Device, topics.KindReadProblem, b.members[i].Property))
			t.clearRefusal(b, a.Device, b.members[i].Property, e)
		}
		t.push(b, d, e, b.members[i].Property)
	}
	return nil
}

// noteClock says in the properties' problem that their reports are refused for their timestamps, until one is taken. Otherwise the value
// before would pass for the device's.
func (t *Twin) noteClock(b *batch, name string, d *device, m broker.Message) {
	why, err := json.Marshal(resource.Problem{
		Code:    resource.ClockAhead,
		Message: "its reports are refused, because their ts is more than a minute ahead of the node's clock: correct the clock of its mapper, or the node's",
	})
	for _, v := range b.members {
		if err == nil && v.Value != nil {
			d.faults = true
			err = t.putWithin(b, newEntry(b, topics.DeviceKey(name, topics.KindReadProblem, v.Property), why, tree.OriginOf(m)))
		}
	}
	if err != nil {
		t.opts.Log.Error().Err(err).Str("device", name).Msg("a wrong clock can't be shown")
	}
}

// push has a reported value sent, once it is stored, to where its Device says. That it is reported again is no write, but
// sent: who asks for a report every so often wants that.
func (t *Twin) push(b *batch, d *device, e link.Entry, property string) {
	for _, to := range d.bundle.Device.Spec.Push {
		if to.PropertyName == property && !e.Deleted && t.opts.Push != nil {
			name := d.bundle.Device.Metadata.Name
			b.pushes = append(b.pushes, func() { t.opts.Push(to, name, property, e.Value, e.TS) })
		}
	}
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

// answeredVersion is the cloud's version of the desired value that a report answers, if ver is the version in force; else 0.
func (t *Twin) answeredVersion(b *batch, name, property string, ver uint64) uint64 {
	t.derive(b) // earlier steps of the batch may have changed the value in force
	e := t.inForce(name, property)
	if e == nil || e.Override || e.Ver != ver {
		return 0
	}
	return e.SourceVer
}

// clearRefusal clears a refusal once a newer value than the refused one is applied, or the device has the value in force.
func (t *Twin) clearRefusal(b *batch, name, property string, reported link.Entry) {
	key := topics.DeviceKey(name, topics.KindRefused, property)
	refused, ok := t.up.Get(key)
	if !ok {
		return
	}
	if reported.Meta.For > refused.Meta.For || t.hasInForce(b, name, property, reported) {
		t.clearUp(b, key)
	}
}

// hasInForce reports whether a reported value is the value in force, or the nearest value that the device can have.
func (t *Twin) hasInForce(b *batch, name, property string, reported link.Entry) bool {
	t.derive(b)
	e, d := t.inForce(name, property), t.devices[name]
	if e == nil || d == nil || reported.Deleted {
		return false
	}
	p, _ := d.bundle.Model.Property(property)
	return reported.Meta.BasedOn != 0 || p.Canonical(e.Value) == p.Canonical(reported.Value)
}

// override takes a local write of a desired value: it becomes an override beside the cloud's desired value,
// which the edge never writes.
func (t *Twin) override(b *batch, a topics.Address, m broker.Message) error {
	d, err := t.device(a.Device, m.Publisher)
	if err != nil {
		return err
	}
	s, err := b.read(a, m, &d.bundle.Model, (*resource.DeviceModel).CheckDesired, (*resource.DeviceModel).CheckWritable)
	if err != nil {
		return err
	}
	entries := b.entries(a.Device, topics.KindOverride, s, m, link.Meta{Until: s.Until})
	if err := t.roomFor(entries...); err != nil {
		return err
	}
	for i, e := range entries {
		property := b.members[i].Property
		desired, _ := t.down.Get(topics.DeviceKey(a.Device, topics.KindDesired, property))
		e.Meta.BasedOn = desired.Ver
		if err := t.putUp(b, e); err != nil {
			return err
		}
		t.clearUp(b, topics.DeviceKey(a.Device, topics.KindConflict, property)) // a new override ends the conflict
		t.touch(b, a.Device, property)
	}
	return nil
}

// refuse stores why a mapper could not apply a value. A refusal of another value than the one in force is ignored.
func (t *Twin) refuse(b *batch, name, property string, m broker.Message) error {
	d, err := t.device(name, m.Publisher)
	if err != nil {
		return err
	}
	if err := d.bundle.Model.CheckKnown(property); err != nil {
		return err
	}
	key := topics.DeviceKey(name, topics.KindRefused, property)
	if len(m.Payload) == 0 {
		if err := t.mayClear(key, m, true); err != nil {
			return err
		}
		t.clearUp(b, key)
		return nil
	}
	r, err := resource.ParseRefusal(m.Payload)
	if err != nil {
		return err
	}
	t.derive(b) // earlier steps of the batch may have changed the value in force
	e := t.inForce(name, property)
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
	return t.putWithin(b, why)
}

// get answers with the whole twin, as JSON, on the asker's response topic.
func (t *Twin) get(b *batch, a topics.Address, m broker.Message) error {
	d, err := t.device(a.Device, m.Publisher)
	if err != nil {
		return err
	}
	reply, err := tree.ResponseTopic(m)
	if err != nil {
		return err
	}
	t.derive(b)
	payload, err := json.Marshal(t.twin(a.Device, d.bundle.Model))
	if err != nil {
		return err
	}
	b.publishes = append(b.publishes, tree.ResponseMessage(m, reply, payload))
	return nil
}

// newEntry is an entry with the batch's time; an empty value clears the key.
func newEntry(b *batch, key string, value []byte, origin string) link.Entry {
	return link.Entry{
		Key: key, Value: bytes.Clone(value), Deleted: len(value) == 0, // a copy, so that the packet's memory can be freed
		TS: b.now.UnixMilli(), Origin: origin,
	}
}

// putWithin is putUp, unless the quota refuses the entry.
func (t *Twin) putWithin(b *batch, e link.Entry) error {
	if err := t.roomFor(e); err != nil {
		return err
	}
	return t.putUp(b, e)
}

// putUp writes an edge-owned key, or clears it when the entry says Deleted, and publishes it. An
// unchanged value is no write.
func (t *Twin) putUp(b *batch, e link.Entry) error {
	if e.Deleted {
		t.clearUp(b, e.Key)
		return nil
	}
	e, changed, err := t.up.Put(e)
	if err != nil {
		return resource.Errorf(resource.TooLarge, e.Key, "%v", err)
	}
	if !changed {
		return nil
	}
	if strings.Contains(e.Key, "/override/") {
		t.schedule(e.Key, e.Meta.Until)
	}
	b.mark(e.Key)
	t.publishEntry(b, e)
	return nil
}

// publishEntry publishes an edge-owned entry once it is stored, if its topic has a subscriber. Later subscribers read it as a retained
// message, and those are not read before the commit. A subscription with No Local doesn't get changes that its own client caused.
func (t *Twin) publishEntry(b *batch, e link.Entry) {
	if t.opts.Wanted(topics.TopicOf(t.opts.Node, e.Key)) {
		m := t.message(e)
		m.Publisher = b.from
		b.publishes = append(b.publishes, m)
	}
}

func (t *Twin) clearUp(b *batch, key string) {
	if e, had := t.up.Delete(key, b.now.UnixMilli(), ""); had {
		t.schedule(key, 0)
		b.mark(key)
		t.publishEntry(b, e)
	}
}

// schedule notes when an override ends; 0 is never.
func (t *Twin) schedule(key string, until int64) {
	was, had := t.overrideEnds[key]
	if had && was == t.nextEnd || until != 0 && (t.nextEnd == 0 || until < t.nextEnd) {
		t.wakeStale = true
	}
	delete(t.overrideEnds, key)
	if until != 0 {
		t.overrideEnds[key] = until
	}
}

func (t *Twin) endOverrides(b *batch) {
	now := b.now.UnixMilli()
	for key, until := range t.overrideEnds {
		if a, err := topics.ParseKey(t.opts.Node, key); err == nil && until <= now {
			t.touch(b, a.Device, a.Name)
		}
	}
}

// SetRenewalError publishes in the node's status why its certificate could not be renewed; empty: it was.
func (t *Twin) SetRenewalError(why string) {
	t.changeReport(func(r *resource.NodeReport) { r.RenewalError = why })
}

// SetLowSpace publishes in the node's status how little of its disk is free; empty: enough.
func (t *Twin) SetLowSpace(low string) {
	t.changeReport(func(r *resource.NodeReport) { r.LowSpace = low })
}

// changeReport changes the node's status, and publishes it.
func (t *Twin) changeReport(change func(*resource.NodeReport)) {
	t.host.Put(tree.OwnSender, 0, func(b *batch) {
		change(&t.opts.Report)
		t.repeated(t.showReport)(b)
	})
}

// showReport publishes the node's status.
func (t *Twin) showReport(b *batch) {
	payload, err := json.Marshal(t.opts.Report)
	if err == nil {
		err = t.putUp(b, newEntry(b, topics.Address{Kind: topics.KindStatus}.Key(), payload, "core"))
	}
	if err != nil {
		t.opts.Log.Error().Err(err).Msg("the node's status")
	}
}

func (t *Twin) deviceState(b *batch, a topics.Address, m broker.Message) error {
	if _, err := t.device(a.Device, m.Publisher); err != nil {
		return err
	}
	switch s := string(m.Payload); s {
	case "", resource.Online, resource.Offline, resource.Unknown:
	default:
		return resource.Errorf(resource.Invalid, "state", "%.40q is not one of online, offline, unknown", s)
	}
	if err := t.mayClear(a.Key(), m, len(m.Payload) == 0); err != nil {
		return err
	}
	if err := t.putWithin(b, newEntry(b, a.Key(), m.Payload, m.ClientID())); err != nil {
		return err
	}
	if string(m.Payload) != resource.Offline {
		t.clearUp(b, problemKey(a.Device))
	}
	return nil
}

func problemKey(device string) string {
	return topics.Address{Kind: topics.KindProblem, Device: device}.Key()
}

// problem stores why a device is not online, or why a property can't be read. A mapper publishes the first before the state, and it
// is cleared by the next state that is not offline. The second is cleared by the next report of the property.
func (t *Twin) problem(b *batch, a topics.Address, m broker.Message) error {
	d, err := t.device(a.Device, m.Publisher)
	if err != nil {
		return err
	}
	if a.Kind == topics.KindReadProblem {
		if err := d.bundle.Model.CheckKnown(a.Name); err != nil {
			return err
		}
		d.faults = true
	}
	if err := t.mayClear(a.Key(), m, len(m.Payload) == 0); err != nil {
		return err
	}
	if len(m.Payload) > 0 {
		if _, err := resource.ParseProblem(m.Payload); err != nil {
			return err
		}
	}
	return t.putWithin(b, newEntry(b, a.Key(), m.Payload, m.ClientID()))
}

// mapperState stores a mapper's presence. When a mapper goes offline, the state of the devices that it reported becomes unknown.
func (t *Twin) mapperState(b *batch, a topics.Address, m broker.Message) error {
	if err := checkPresence(m.Payload); err != nil {
		return err
	}
	prev, known := t.up.Get(a.Key())
	if err := t.checkMapperOwner(a.Device, m); err != nil {
		return err
	}
	if err := t.roomForMapper(a.Device, m); err != nil {
		return err
	}
	if err := t.putWithin(b, newEntry(b, a.Key(), m.Payload, m.ClientID())); err != nil {
		return err
	}
	t.mapperUsers[a.Key()] = m.User()
	t.markAll(b)
	if len(m.Payload) == 0 {
		delete(t.mapperUsers, a.Key())
		t.clearUp(b, topics.Address{Kind: topics.KindMapperProtocols, Device: a.Device}.Key())
	}
	if known && string(m.Payload) != resource.Online {
		t.setOrphans(b, prev.Origin)
	}
	return nil
}

func checkPresence(payload []byte) error {
	switch s := string(payload); s {
	case "", resource.Online, resource.Offline:
		return nil
	default:
		return resource.Errorf(resource.Invalid, "state", "%.40q is not one of online, offline", s)
	}
}

// programState stores the presence of the node's agent, or of edgediscovery.
func (t *Twin) programState(b *batch, a topics.Address, m broker.Message) error {
	if err := checkPresence(m.Payload); err != nil {
		return err
	}
	t.programsSeen[a.Kind] = true
	return t.putWithin(b, newEntry(b, a.Key(), m.Payload, m.ClientID()))
}

// checkMapperOwner refuses a message about a mapper that is online as another user.
func (t *Twin) checkMapperOwner(mapper string, m broker.Message) error {
	key := mapperKey(mapper)
	state, _ := t.up.Get(key)
	owner, seen := t.mapperUsers[key]
	if seen && owner != m.User() && string(state.Value) == resource.Online {
		return resource.Errorf(resource.Forbidden, "", "mapper %s is online as another user", mapper)
	}
	return nil
}

// mayClear refuses to clear a key that a mapper of another user has set, while that mapper is online.
func (t *Twin) mayClear(key string, m broker.Message, clear bool) error {
	if !clear {
		return nil
	}
	e, ok := t.up.Get(key)
	if !ok {
		return nil
	}
	for mapper, user := range t.mapperUsers {
		state, _ := t.up.Get(mapper)
		if user != m.User() && string(state.Value) == resource.Online && (e.Origin == state.Origin || user != "" && e.Origin == user) {
			a, _ := topics.ParseKey(t.opts.Node, mapper)
			return resource.Errorf(resource.Forbidden, "", "%s was set by mapper %s, which is online as another user, and is cleared by that user only", key, a.Device)
		}
	}
	return nil
}

func mapperKey(mapper string) string {
	return topics.Address{Kind: topics.KindMapperState, Device: mapper}.Key()
}

// mapperProtocols stores the protocols of a mapper, which conditions of devices without a mapper show.
func (t *Twin) mapperProtocols(b *batch, a topics.Address, m broker.Message) error {
	if err := t.checkMapperOwner(a.Device, m); err != nil {
		return err
	}
	if len(m.Payload) > 0 {
		if _, err := resource.ParseProtocols(m.Payload); err != nil {
			return err
		}
	}
	if err := t.roomForMapper(a.Device, m); err != nil {
		return err
	}
	t.markAll(b)
	return t.putWithin(b, newEntry(b, a.Key(), m.Payload, m.ClientID()))
}

// agentReport stores what the node's agent reports, of the host or of an upgrade; an empty payload takes it back.
func (t *Twin) agentReport(b *batch, a topics.Address, m broker.Message) error {
	switch {
	case len(m.Payload) == 0:
	case a.Kind == topics.KindAgent:
		if _, err := resource.ParseAgentReport(m.Payload); err != nil {
			return err
		}
	case !json.Valid(m.Payload):
		return resource.Errorf(resource.Invalid, a.Key(), "the payload must be JSON")
	}
	return t.putWithin(b, newEntry(b, a.Key(), m.Payload, tree.OriginOf(m)))
}

// discovered stores what a discoverer says of a Configuration's handler, or a device that it has found; an empty payload takes it
// back. A Configuration that the node is not given, any more or yet, can't have any.
func (t *Twin) discovered(b *batch, a topics.Address, m broker.Message) error {
	if _, ok := t.down.Get(topics.Address{Kind: topics.KindDiscovery, Device: a.Device}.Key()); !ok && len(m.Payload) > 0 {
		return resource.Errorf(resource.NotFound, "", "the node %s has no Configuration %s to discover for", t.opts.Node, a.Device)
	}
	payload := m.Payload
	if len(payload) > 0 {
		var err error
		if payload, err = resource.NormalizeDiscovered(a, payload); err != nil {
			return err
		}
	}
	return t.putWithin(b, newEntry(b, a.Key(), payload, tree.OriginOf(m)))
}

// forgetDiscovered removes what was found for a Configuration that the node is given no more.
func (t *Twin) forgetDiscovered(b *batch, configuration string) {
	t.clearUp(b, topics.Address{Kind: topics.KindDiscoveryHandler, Device: configuration}.Key())
	for _, key := range t.up.Keys("discovery/" + configuration + "/instances/") {
		t.clearUp(b, key)
	}
}

// markAll marks all devices as changed, since the conditions of each depend on the node's mappers.
func (t *Twin) markAll(b *batch) {
	for name := range t.devices {
		b.changed[name] = true
	}
}

// setOrphans sets the devices whose state came from a client to unknown.
func (t *Twin) setOrphans(b *batch, origin string) {
	for name := range t.devices {
		key := topics.Address{Kind: topics.KindDeviceState, Device: name}.Key()
		if e, ok := t.up.Get(key); ok && e.Origin == origin && string(e.Value) != resource.Unknown {
			t.setUnknown(b, name, origin)
		}
	}
}

// setUnknown sets the state of a device to unknown.
func (t *Twin) setUnknown(b *batch, name, origin string) {
	key := topics.Address{Kind: topics.KindDeviceState, Device: name}.Key()
	_ = t.putUp(b, newEntry(b, key, []byte(resource.Unknown), origin)) // a fixed short value
	t.clearUp(b, problemKey(name))
}

// setOrphan sets the state of a device to unknown, because its former mapper no longer serves it.
func (t *Twin) setOrphan(b *batch, name string) {
	if e, ok := t.up.Get(topics.Address{Kind: topics.KindDeviceState, Device: name}.Key()); ok {
		t.setUnknown(b, name, e.Origin)
	}
}

// setMissingOffline runs once, mapperGrace after the start. It sets mappers, the agent and edgediscovery offline that were online before the restart and
// have not reported since: if they ended together with the core, no will was published for them.
func (t *Twin) setMissingOffline(b *batch) {
	for _, kind := range []topics.Kind{topics.KindAgentState, topics.KindDiscovererState} {
		key := topics.Address{Kind: kind}.Key()
		if e, ok := t.up.Get(key); ok && !t.programsSeen[kind] && string(e.Value) == resource.Online {
			_ = t.putUp(b, newEntry(b, key, []byte(resource.Offline), e.Origin))
		}
	}
	for _, key := range t.up.Keys("mappers/") {
		e, ok := t.up.Get(key)
		if _, seen := t.mapperUsers[key]; seen || !ok || string(e.Value) != resource.Online {
			continue
		}
		_ = t.putUp(b, newEntry(b, key, []byte(resource.Offline), e.Origin))
		t.setOrphans(b, e.Origin)
	}
}

// roomFor returns an error if the entries would exceed the node's quota. A Deleted entry frees its share.
func (t *Twin) roomFor(entries ...link.Entry) error {
	if why := t.up.Exceeds(t.opts.Quota, entries...); why != "" {
		return resource.Errorf(resource.Quota, entries[0].Key, "the node would own %s (limits.node)", why)
	}
	return nil
}

// unknownUser stands for the unknown users of mappers that have not reported since the start.
const unknownUser = "(before the restart)"

// roomForMapper returns an error if one more mapper of the user would exceed limits.mappers.
func (t *Twin) roomForMapper(name string, m broker.Message) error {
	state, protocols := mapperKey(name), topics.Address{Kind: topics.KindMapperProtocols, Device: name}.Key()
	if _, known := t.up.Get(state); known || len(m.Payload) == 0 {
		return nil
	}
	if _, known := t.up.Get(protocols); known {
		return nil
	}
	q := quota.NewShared("mappers", "user", quota.Limit{Most: int64(t.opts.Mappers), Setting: "limits.mappers"})
	for _, known := range tree.Mappers(t.opts.Node, t.up.Range) {
		user, seen := t.mapperUsers[mapperKey(known.Name)]
		if !seen {
			user = unknownUser
		}
		q.Add(user, 1)
	}
	return q.Take(m.User(), 1)
}

// noteOversize logs when the hub first refuses the node's reports for its quota, and when it first accepts them again.
func (t *Twin) noteOversize() {
	why := t.up.Refused()
	if why == t.quotaError {
		return
	}
	t.quotaError = why
	if why == "" {
		t.opts.Log.Info().Msg("the hub takes what the node reports again")
		return
	}
	t.opts.Log.Error().Str("reason", why).Msg("the hub takes nothing of what the node reports until it owns less: see limits.node of both")
}
