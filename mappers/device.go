// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// device is the state of one of the mapper's devices. mapper.mu guards all fields but the last group.
type device struct {
	key           string // node/name
	bus           string
	uid           string // of the Device: after a deletion another one may have its name
	info          Device
	gen           int // counts the configurations
	props         map[string]*property
	order         []string // names of props, as in the model
	isSetUp       bool     // the core has sent the values that were reported before
	setupAttempts int      // how often the core was asked
	gone          bool     // the worker closes and forgets it
	unusable      error    // why it is not opened before its configuration changes; nil: it is

	commands      []command
	online        *resource.OnlineRule // which values mean that it is online; nil: it is while it answers
	model         *resource.DeviceModel
	methods       []resource.DeviceCommand // executed by the SDK, as writes of properties
	pushed        map[string]string
	notices       map[string]string // what the driver tells users, by code
	eventsDropped int
	changed       bool // there may be something to do: the worker looks

	// used by the device's worker only
	session *Opened
	openGen int
	contact deviceContact
	deviceStreams
	schedule
}

// deviceStreams are what a session sends by itself.
type deviceStreams struct {
	stopPush   func()     // ends Push; nil: the session has none
	stopEvents func()     // ends Events; nil: it has none
	lost       chan error // from Push
}

// schedule is when a device is due, and how long it takes.
type schedule struct {
	agenda deviceAgenda
	served time.Time // when the last request was made
	// offlineAfter is how long nothing of the device has answered until it is offline, by the configuration of openGen.
	offlineAfter time.Duration
	took         time.Duration // how long an answer usually takes
	phase        float64       // at which part of its cycle it is read, from 0 to 1
	turn         int           // counts the properties that were looked at for writes
	probes       int           // counts the brief requests

	pending []readGroup // what is to be read
}

// property is the state of one property: the desired, the applied and the current value.
type property struct {
	spec resource.Property
	info Property

	desired desiredValue
	doneVer uint64 // the last version that was applied, refused or cleared
	// maybeWritten is set while an earlier write may or may not have reached the device.
	maybeWritten bool
	retry        backoff.Retry // of writing a value that the device could not take
	pause        backoff.Retry // of writing to a device that was busy, or was not reached
	// recheckDue is set when the device was opened, until its value was compared with the one reported before.
	recheckDue    bool
	compared      int    // the configuration under which it was last compared or driven
	reportedKnown bool   // reported is known: from the core, or because we have reported
	before        string // what was reported before it was opened

	relinquishes bool // the driver takes back what was written when nothing is desired any more
	valueRounder

	appliedVer      uint64 // the last version applied: the user property "for"
	current         string // the value that the device has, if known
	known           bool
	reported        string // what was last reported
	reportIsCurrent bool   // it was reported under this configuration, and is not reported again
	reportedFor     uint64

	reportAt time.Time

	awaiting  *writtenValue // a value that was written, until the device has it
	again     bool          // it had not within confirmWithin, and was written once more
	overtaken bool          // it had not, when a newer value came: what is read may be older than both
	reading   readState
}

// valueRounder is how a property's values are rounded by its device. nearest returns the value that the device has after a value was written to
// it; nil: the same value. It doesn't call the driver: round does, and rounded has its answers; see worker.learnNearest.
type valueRounder struct {
	nearest func(value string) (string, error)
	round   func(value string) (string, error)
	rounded map[string]roundedValue
}

// writtenValue is a value that was written and that the device doesn't show yet.
type writtenValue struct {
	ver   uint64
	do    stepPlan
	until time.Time // the end of confirmWithin
	next  time.Time // when it is read back
	acked bool      // the device has acknowledged the write
}

// sameEpoch reports whether two versions were given by the same store of the core.
func sameEpoch(a, b uint64) bool { return a>>32 == b>>32 }

// roundedValue is the driver's answer to which value is the nearest.
type roundedValue struct {
	value string
	err   error
}

// notRounded returns a value whose nearest value a decision about p may need, and the driver hasn't been asked for.
func (p *property) notRounded() (value string, missing bool) {
	if p == nil || p.round == nil {
		return "", false
	}
	for _, value := range []string{p.desired.value, string(p.spec.SafeValue)} {
		if _, known := p.rounded[value]; !known && value != "" {
			return value, true
		}
	}
	return "", false
}

var errNotRounded = errors.New("the driver was not asked for the nearest value")

func (p *property) roundedValue(value string) (string, error) {
	if r, known := p.rounded[value]; known {
		return r.value, r.err
	}
	return "", errNotRounded
}

// desiredValue is the desired value that is in force, as the core publishes it.
type desiredValue struct {
	value       string
	ver         uint64 // 0: there never was one
	until       time.Time
	cleared     bool   // cleared: there is no desired value
	trace       string // the traceparent of the write, until its effect is reported
	preexisting bool   // it was set before the mapper first drove the device
}

func (w desiredValue) expired(now time.Time) bool { return !w.until.IsZero() && !now.Before(w.until) }

func hasProtocol(d Driver, protocol string) bool {
	return slices.ContainsFunc(d.Protocols(), func(p string) bool { return resource.SameProtocol(p, protocol) })
}

// DeviceOf makes the driver's view of a device from the bundle, for the SDK and for tests of a driver. collect is how often properties are read of
// which the model doesn't say it.
func DeviceOf(d Driver, node string, b resource.Bundle, collect time.Duration) (Device, error) {
	dev := Device{
		Node: node, Name: b.Device.Metadata.Name,
		Bus: b.Device.Spec.Protocol.Name, Config: configTexts(b.Device.Spec.Protocol.Config),
	}
	var wrong error
	if text, given := dev.Config[offlineAfterKey]; given {
		delete(dev.Config, offlineAfterKey)
		if dev.OfflineAfter, wrong = time.ParseDuration(text); wrong != nil || dev.OfflineAfter <= 0 {
			wrong = BadConfig("spec.protocol.config."+offlineAfterKey, "%q is no duration above 0, such as 30s", text)
		}
	}
	visitors, events, commands := map[string]resource.Visitor{}, map[string]resource.Visitor{}, map[string]resource.Visitor{}
	for _, pv := range b.Model.Spec.PropertyVisitors {
		if hasProtocol(d, pv.Protocol) {
			for _, v := range pv.Visitors {
				switch {
				case v.EventName != "":
					events[v.EventName] = v
				case v.CommandName != "":
					commands[v.CommandName] = v
				default:
					visitors[v.PropertyName] = v
				}
			}
		}
	}
	for _, p := range b.Model.Spec.Properties {
		v, visited := visitors[p.Name]
		dev.Properties = append(dev.Properties, driverProperty(p, v, visited, collect))
	}
	for _, e := range b.Model.Spec.Events {
		if v, visited := events[e.Name]; visited {
			dev.Events = append(dev.Events, driverProperty(e.Property(), v, true, collect))
		}
	}
	for _, c := range b.Model.Spec.Commands {
		if v, visited := commands[c.Name]; visited {
			p := driverProperty(c.Property(), v, true, collect)
			if c.Input == nil {
				p.Type = ""
			}
			dev.Commands = append(dev.Commands, p)
		}
	}
	if f, ok := d.(DeviceFormer); ok {
		dev.Form = f.Form(b)
	}
	dev.expandWords()
	return dev, wrong
}

// offlineAfterKey is the setting of a Device's protocol that is the SDK's own.
const offlineAfterKey = "offlineAfter"

// onlineRule says which values mean that a device of the model is online; nil: it is while it answers.
func onlineRule(d Driver, m resource.DeviceModel) *resource.OnlineRule {
	for _, pv := range m.Spec.PropertyVisitors {
		if hasProtocol(d, pv.Protocol) && pv.Online != nil {
			return pv.Online
		}
	}
	return nil
}

// configTexts are the values of a configuration, as a driver reads them. nil stays nil.
func configTexts(config map[string]resource.Value) map[string]string {
	if config == nil {
		return nil
	}
	out := make(map[string]string, len(config))
	for key, v := range config {
		out[key] = string(v)
	}
	return out
}

func driverProperty(p resource.Property, v resource.Visitor, visited bool, collect time.Duration) Property {
	out := Property{
		Name: p.Name, Type: Type(p.Type), Writable: p.Writable(), Unit: p.Unit, Minimum: p.Minimum, Maximum: p.Maximum,
		Config: configTexts(v.Config), Visited: visited, Collect: collect,
		Report: time.Duration(v.ReportCycle) * time.Millisecond, Deadband: v.Deadband,
		ConfirmWithin: time.Duration(v.ConfirmWithin) * time.Millisecond, ExpireAfter: time.Duration(v.ExpireAfter) * time.Millisecond,
	}
	if out.Type == "" {
		out.Type = String
	}
	if v.CollectCycle > 0 {
		out.Collect = max(minCycle, time.Duration(v.CollectCycle)*time.Millisecond)
	}
	for _, e := range p.Enum {
		out.Enum = append(out.Enum, string(e))
	}
	for _, text := range v.NotAvailable {
		out.NotAvailable = append(out.NotAvailable, string(text))
	}
	for _, w := range v.Words {
		word := Word{Value: string(w.Value), Write: string(w.Writes())}
		for _, text := range w.Reads() {
			word.Read = append(word.Read, string(text))
		}
		out.Words = append(out.Words, word)
	}
	return out
}

// configure takes a (new) configuration. The applied value of a property that still exists is kept, but compared with the device
// once it is open again; refused values are tried again.
func (d *device) configure(info Device, m resource.DeviceModel) {
	old := d.props
	d.info, d.gen = info, d.gen+1
	d.props, d.order = map[string]*property{}, nil
	for _, p := range info.Properties {
		spec, _ := m.Property(p.Name)
		prop := old[p.Name]
		if prop == nil {
			// A property that a later configuration adds may have been written under an earlier model. The value that the core has
			// of it is from then.
			prop = &property{compared: 1, maybeWritten: d.gen > 1}
		}
		prop.spec, prop.info = spec, p
		prop.doneVer = prop.appliedVer
		prop.retry, prop.pause = backoff.Retry{}, backoff.Retry{}
		prop.reading = readState{readAt: prop.reading.readAt, freshAt: prop.reading.freshAt, problem: prop.reading.problem, problemCode: prop.reading.problemCode}
		prop.reportIsCurrent = false // a value that the old model refused may be valid under the new one
		d.props[p.Name] = prop
		d.order = append(d.order, p.Name)
	}
}

// inForce are the desired values that were written to the device and are desired still.
func (d *device) inForce() map[string]string {
	out := map[string]string{}
	for name, p := range d.props {
		if p.desired.ver != 0 && p.desired.ver == p.appliedVer && !p.desired.cleared {
			out[name] = p.desired.value
		}
	}
	return out
}

// setDesired takes a desired value from the core. A version identifies it: the upper half is the epoch of the core's store, the lower
// half counts. A lower one of the same epoch is a late copy and ignored, unless it is retained: a new subscription gets the value in
// force. What was applied of another epoch says nothing about this one. A version that the mapper knows with another value is of a
// core that has begun anew without an epoch of its own.
func (p *property) setDesired(w desiredValue, retained bool) bool {
	known := p.desired.ver
	switch {
	case w.ver == known && w.value == p.desired.value:
		return false
	case w.ver <= known && (w.ver == known || retained) || known != 0 && !sameEpoch(w.ver, known):
		p.appliedVer, p.doneVer, p.recheckDue = 0, 0, false
	case w.ver < known:
		return false
	}
	p.desired, p.retry, p.pause, p.again = w, backoff.Retry{}, backoff.Retry{}, false
	if p.awaiting != nil {
		p.awaiting, p.overtaken = nil, true
	}
	return true
}

// rememberProblem takes the problem that was published before this start of the mapper.
func (p *property) rememberProblem(why resource.Problem) {
	r := &p.reading
	if payload, err := json.Marshal(why); err == nil && r.readAt.IsZero() && r.problem == "" {
		r.problem, r.problemCode = string(payload), why.Code
		r.readAt, _ = resource.ParseTime(why.Since)
	}
}

// remember takes the value that was reported before this start of the mapper, and the version of the desired value that it
// answered.
func (p *property) remember(reported resource.TwinValue, now time.Time) {
	if p.reportedKnown {
		return // this mapper has reported a newer value since
	}
	p.reportedKnown = true
	value, applied := reported.Value, reported.For
	if p.reading.readAt.IsZero() {
		p.reading.readAt, _ = resource.ParseTime(reported.TS)
		p.reading.freshAt = now // the clock may have stepped since it was read
	}
	p.reported, p.reportIsCurrent, p.reportedFor, p.before = value, true, applied, value
	p.appliedVer, p.doneVer = cmp.Or(p.appliedVer, applied), cmp.Or(p.doneVer, applied)
	p.recheckDue = applied > 0
}

// changed reports whether value is news against what was reported.
func (p *property) changed(value string) bool {
	switch {
	case !p.reportIsCurrent, p.reportedFor != p.appliedVer:
		return true
	case p.info.Deadband > 0 && p.info.Type.Numeric():
		return !isWithin(value, p.reported, p.info.Deadband)
	}
	return !p.same(value, p.reported)
}

// satisfies reports whether the device has the desired value, or the nearest one that it can have.
func (p *property) satisfies(actual, wanted string) bool {
	if p.same(p.spec.Rounded(actual), p.spec.Rounded(wanted)) {
		return true
	}
	if p.nearest == nil {
		return false
	}
	near, err := p.nearest(wanted)
	return err == nil && p.same(p.spec.Rounded(actual), p.spec.Rounded(near))
}

func (p *property) same(a, b string) bool {
	return p.spec.Canonical([]byte(a)) == p.spec.Canonical([]byte(b))
}

// planStep is what to do next about one property's desired value.
type planStep uint8

const (
	stepNone       planStep = iota
	stepForget              // the desired value was cleared
	stepRefuse              // publish why it is not applied
	stepAccept              // the device has it already: report it
	stepCompare             // read the device, then apply unless it has it already
	stepApply               // write it
	stepRecheck             // read the device: has it lost the value that was applied before this start?
	stepConfirm             // read the device: has it the value that was written?
	stepRelinquish          // take back what was written: the desired value was cleared
)

// stepPlan is a step with the value to apply, or the refusal to publish.
type stepPlan struct {
	step    planStep
	value   string
	refusal *Refusal // with compare and apply: published too, because value is not the desired one
}

// plan decides what to do about a property. It is a pure function of the property's state; the rules are in the package's comment.
func (p *property) plan(now time.Time, canRead, canWrite bool) stepPlan {
	w := p.desired
	switch {
	case p.mustRelinquish() && now.Before(p.writeDue()):
		return stepPlan{step: stepNone}
	case p.mustRelinquish():
		return stepPlan{step: stepRelinquish}
	case w.ver == 0:
		return stepPlan{step: stepNone}
	case p.awaiting != nil:
		return stepPlan{step: stepConfirm}
	case w.ver == p.doneVer && now.Before(p.writeDue()):
		return stepPlan{step: stepNone}
	case w.ver == p.doneVer:
		return p.planRecheck(canRead, canWrite)
	case w.cleared:
		return stepPlan{step: stepForget}
	case w.expired(now):
		return stepPlan{step: stepRefuse, refusal: Refuse(Expired, "was to be applied until %s only", resource.FormatTime(w.until))}
	case now.Before(p.writeDue()):
		return stepPlan{step: stepNone}
	case !p.spec.Writable() || !canWrite:
		return stepPlan{step: stepRefuse, refusal: Refuse(ReadOnly, "%s can't be written", p.info.Name)}
	case w.preexisting && p.spec.AtBoot == resource.BootHold:
		return stepPlan{step: stepRefuse, refusal: Refuse(Held, "%s: waits for a newer value (atBoot: hold)", reasonPreexisting)}
	case w.preexisting && p.spec.AtBoot == resource.BootSafe:
		return p.planWrite(string(p.spec.SafeValue), canRead, p.safeValueNote(reasonPreexisting))
	}
	if r := checkValue(p.spec, w.value); r != nil {
		return stepPlan{step: stepRefuse, refusal: r}
	}
	return p.planWrite(w.value, canRead, nil)
}

// mustRelinquish reports whether nothing is desired any more, possibly since a time at which no mapper ran, and the device may have a value
// that was written to it and can be told so.
func (p *property) mustRelinquish() bool {
	w := p.desired
	cleared := w.ver == 0 || w.cleared && w.ver != p.doneVer
	return cleared && p.relinquishes && p.spec.Writable() && (p.appliedVer > 0 || w.ver > 0 && p.maybeWritten)
}

// Reasons why a desired value waits for a newer one. They are short, because they are part of one-line notes.
const (
	reasonPreexisting = "was wanted before this mapper first drove the device"
	reasonLost        = "the device has lost it"
)

// safeValueNote returns the note on a desired value in whose place the safe value is applied; nil if the two are equal.
func (p *property) safeValueNote(why string) *Refusal {
	if p.same(p.desired.value, string(p.spec.SafeValue)) {
		return nil
	}
	return Refuse(SafeValue, "%s: %s was applied instead (atBoot: safe)", why, p.spec.SafeValue)
}

func (p *property) planWrite(value string, canRead bool, said *Refusal) stepPlan {
	if p.overtaken {
		return stepPlan{stepApply, value, said}
	}
	has := p.known && p.satisfies(p.current, value)
	switch {
	case canRead && (p.desired.preexisting || p.maybeWritten || has):
		return stepPlan{stepCompare, value, said}
	case has && !p.maybeWritten:
		return stepPlan{stepAccept, value, said}
	}
	return stepPlan{stepApply, value, said}
}

// planRecheck decides about a version that is done. After a start the device is read once: what was applied before is
// applied again only if the device has lost it.
func (p *property) planRecheck(canRead, canWrite bool) stepPlan {
	if p.recheckDue && p.desired.ver == p.appliedVer && canRead && canWrite &&
		p.spec.Writable() && !p.desired.cleared {
		return stepPlan{step: stepRecheck}
	}
	return stepPlan{step: stepNone}
}

// writeDue is when a value may be written again.
func (p *property) writeDue() time.Time {
	if p.pause.Due().After(p.retry.Due()) {
		return p.pause.Due()
	}
	return p.retry.Due()
}

// nextDrive is when plan has something to do.
func (p *property) nextDrive(now time.Time, canRead, canWrite bool) time.Time {
	switch do := p.plan(now, canRead, canWrite); {
	case do.step == stepConfirm:
		return p.awaiting.next
	case do.step != stepNone:
		return time.Time{}
	case (p.desired.ver != p.doneVer || p.recheckDue || p.mustRelinquish()) && now.Before(p.writeDue()):
		return p.writeDue()
	}
	return noTime
}

// planLost decides what to do after recheck has read actual. If it is neither the reported nor the desired value, the
// device has lost the value. anew says that the device was configured since the value was reported: then the reported value
// doesn't count, unless atBoot is hold.
func (p *property) planLost(actual string, anew bool) stepPlan {
	has := func(value string) bool { return p.satisfies(actual, value) }
	hold := p.spec.AtBoot == resource.BootHold
	if has(p.desired.value) || (!anew || hold) && has(p.before) {
		return stepPlan{step: stepNone}
	}
	do := stepPlan{step: stepApply, value: p.desired.value}
	switch {
	case hold:
		do = stepPlan{stepRefuse, p.desired.value, Refuse(Held, "%s: waits for a newer value (atBoot: hold)", reasonLost)}
	case p.spec.AtBoot == resource.BootSafe:
		do = stepPlan{stepApply, string(p.spec.SafeValue), p.safeValueNote(reasonLost)}
	}
	if checkValue(p.spec, do.value) != nil {
		return stepPlan{step: stepNone}
	}
	if do.step == stepApply && has(do.value) {
		do.step = stepAccept
	}
	return do
}

// isWithin reports whether two numbers differ by less than the deadband. Other texts are compared as they are.
func isWithin(a, b string, deadband float64) bool {
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	if errX != nil || errY != nil {
		return a == b
	}
	return math.Abs(x-y) < deadband
}
