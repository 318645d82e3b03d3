// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/trace"
)

// StoredValue is a value in one of the tree's maps, with its metadata.
type StoredValue struct {
	Value   []byte
	Ver     uint64
	TS      int64 // milliseconds since 1970
	Origin  string
	For     uint64 // reported, refused: the version of the value in force that it answers
	BasedOn uint64 // override: the desired version when it was set; reported: the desired version to which it is the nearest possible value
	Nearest bool   // reported, while it is published: the device has no value nearer to the version in For
	Trace   string // the traceparent of the write, while it is published
	// Repeated is of a reported value, while it is published: its publisher publishes it again when it connects, and reads it from the device
	// again when it starts.
	Repeated bool
	Until    int64 // desired, override: when it ends, in milliseconds since 1970; 0: never
}

// TwinValue is one value of a property, with its metadata.
type TwinValue struct {
	Value   string `json:"value"`             // as text, in the form of its type in the model
	Ver     uint64 `json:"ver"`               // incremented with each change
	TS      string `json:"ts,omitempty"`      // time of the write
	Origin  string `json:"origin,omitempty"`  // the writer: a user or client
	For     uint64 `json:"for,omitempty"`     // reported: the version of the value in force that it answers
	BasedOn uint64 `json:"basedOn,omitempty"` // override: the desired version when it was set; reported: the desired version to which it is the nearest possible value
	Until   string `json:"until,omitempty"`   // time after which it no longer counts
}

// TwinProperty is the desired and the reported value of a property, and why they differ.
type TwinProperty struct {
	Desired  *TwinValue        `json:"desired,omitempty"`  // the desired value
	Reported *TwinValue        `json:"reported,omitempty"` // the value that was last read
	Override *TwinValue        `json:"override,omitempty"` // the desired value that was set on the node
	Refused  *Refusal          `json:"refused,omitempty"`  // why the desired value was not applied
	Conflict *OverrideConflict `json:"conflict,omitempty"` // the override and a newer desired value
	Problem  *Problem          `json:"problem,omitempty"`  // why the property can't be read; reported is the value before
	InSync   bool              `json:"inSync"`             // the reported value is the desired one
	// Local says that the reported value stays on the node. Only the node then knows whether the property is in sync.
	Local bool `json:"local,omitempty"`
}

// Refusal is the payload of refused/{property}: why a desired value was not applied.
type Refusal struct {
	For     uint64 `json:"for"`               // the version of the value in force that was refused
	Ver     uint64 `json:"ver,omitempty"`     // the version of the cloud's desired value, added by the core
	Code    string `json:"code"`              // the reason, in one word
	Message string `json:"message,omitempty"` // the reason, for people
}

// ParseRefusal reads the payload of refused/{property}.
func ParseRefusal(payload []byte) (Refusal, error) {
	var r Refusal
	if err := json.Unmarshal(payload, &r); err != nil {
		return r, Errorf(Invalid, "refused", "the payload must be JSON such as {\"for\":42,\"code\":\"OutOfRange\",\"message\":\"…\"}")
	}
	if r.Code == "" {
		return r, Errorf(Invalid, "refused.code", "must say why in one word, such as OutOfRange")
	}
	return r, nil
}

// OverrideConflict is the payload of conflict/{property}: an override and a newer desired value.
type OverrideConflict struct {
	Desired    string `json:"desired"`    // the desired value of the cloud
	DesiredVer uint64 `json:"desiredVer"` // its version
	Override   string `json:"override"`   // the value of the override
	BasedOn    uint64 `json:"basedOn"`    // the desired version when the override was set
	Policy     string `json:"policy"`     // cloud, edge, latest
	Winner     string `json:"winner"`     // desired or override
}

// Twin collects the values of a device's properties. get returns the value of a key relative to the device: get("reported",
// "power"). Properties without any value are left out.
func Twin(m DeviceModel, get func(branch, property string) (StoredValue, bool)) map[string]TwinProperty {
	twin := make(map[string]TwinProperty, len(m.Spec.Properties))
	for _, p := range m.Spec.Properties {
		if t, known := p.twin(get); known {
			twin[p.Name] = t
		}
	}
	return twin
}

func (p Property) twin(get func(branch, property string) (StoredValue, bool)) (t TwinProperty, known bool) {
	t.Desired = twinValue(get("desired", p.Name))
	t.Reported = twinValue(get("reported", p.Name))
	t.Override = twinValue(get("override", p.Name))
	if s, ok := get("refused", p.Name); ok {
		t.Refused = new(Refusal)
		_ = json.Unmarshal(s.Value, t.Refused) // was checked when it was written
	}
	if s, ok := get("problem", p.Name); ok {
		t.Problem = new(Problem)
		_ = json.Unmarshal(s.Value, t.Problem) // was checked when it was written
	}
	if s, ok := get("conflict", p.Name); ok {
		t.Conflict = new(OverrideConflict)
		_ = json.Unmarshal(s.Value, t.Conflict) // written by the core
	}
	return t, p.compare(&t)
}

// compare sets InSync, and returns whether anything is known of the property.
func (p Property) compare(t *TwinProperty) (known bool) {
	t.InSync = t.Desired == nil || t.Reported != nil &&
		(t.Reported.BasedOn != 0 && t.Reported.BasedOn == t.Desired.Ver ||
			p.Canonical([]byte(t.Desired.Value)) == p.Canonical([]byte(t.Reported.Value)))
	return t.Desired != nil || t.Reported != nil || t.Override != nil || t.Refused != nil || t.Problem != nil || t.Conflict != nil
}

// isUnknown reports whether nobody knows if the property is in sync, because its value can't be understood.
func (t TwinProperty) isUnknown() bool {
	return !t.InSync && t.Reported == nil && t.Refused == nil && t.Problem != nil && t.Problem.Clears()
}

func twinValue(s StoredValue, ok bool) *TwinValue {
	if !ok {
		return nil
	}
	return &TwinValue{
		Value: string(s.Value), Ver: s.Ver, TS: FormatMillis(s.TS), Origin: s.Origin,
		For: s.For, BasedOn: s.BasedOn, Until: FormatMillis(s.Until),
	}
}

// The reasons of the condition InSync, if it is not True.
const (
	ReasonWaiting = "Waiting" // the device has not reported a desired value yet
	ReasonRefused = "Refused" // all values that differ were refused
	ReasonUnread  = "Unread"  // unknown: the property can't be read
	ReasonLocal   = "Local"   // unknown to the hub: the reported value stays on the node
)

// ReasonNotOnline is the reason of InSync and Readable that were True when the device was last online, and are Unknown now.
const ReasonNotOnline = "NotOnline"

// RefusedForNow is the code of a refusal that is not final: the mapper tries again.
const RefusedForNow = "Unavailable"

// NotAllowed is the code of a refusal by the hub: the model has changed and does not allow the desired value, which is
// therefore not sent to the node.
const NotAllowed = "NotAllowed"

// FollowSpec updates the status of a Device to its spec: the desired values in the twin, and the conditions that compare them
// with the reported values. Reported values stay. It is called with every write of the spec, in the same commit, so that no
// reader sees a spec with the status of an older one. m is nil if the DeviceModel does not exist.
func (d *Device) FollowSpec(m *DeviceModel, now time.Time) {
	d.follow(m, outdatedReason(d.Status.Conditions), now)
}

// FollowReports is FollowSpec after the node has reported; reach says whether what it reported is still known to be so.
func (d *Device) FollowReports(m *DeviceModel, reach Reachability, now time.Time) {
	d.follow(m, reach.Outdated(), now)
}

// follow has the text of Reachability.Outdated as outdated.
func (d *Device) follow(m *DeviceModel, outdated string, now time.Time) {
	defer func() {
		SetObservedGeneration(d.Status.Conditions, d.Metadata.Generation, ConditionInSync, ConditionRefused, ConditionConflict, ConditionReadable, ConditionAlarm)
	}()
	if m == nil {
		d.Status.Twin = nil
		d.Status.Conditions = SetCondition(slices.Clone(d.Status.Conditions), ModelMissing(ConditionInSync, d.Spec.DeviceModelRef.Name), now)
		return
	}
	twin := make(map[string]TwinProperty, len(m.Spec.Properties))
	for _, p := range m.Spec.Properties {
		t := d.Status.Twin[p.Name]
		t.Desired, t.Local = d.desired(p.Name), slices.Contains(d.Spec.Local, p.Name)
		if t.Refused.answersOlder(d.DesiredMeta[p.Name].Ver) && t.Override == nil {
			t.Refused = nil
		}
		if p.compare(&t) {
			twin[p.Name] = t
		}
	}
	d.addDisallowed(*m, twin)
	d.Status.Twin = twin
	d.Status.Conditions = twinConditions(d.Status.Conditions, twin, outdated, now)
	d.followAlarms(now)
}

// StatusAfter returns the status to be stored with d, whose spec replaces prev's. status is the stored one. prev is nil for a
// new Device, and m is nil if the DeviceModel does not exist.
func (d *Device) StatusAfter(prev *Device, status []byte, m *DeviceModel, now time.Time) ([]byte, error) {
	next := *d
	next.Status = DeviceStatus{}
	_ = json.Unmarshal(status, &next.Status) // written by the hub; what can't be read is replaced
	if prev != nil && prev.Spec.NodeName != d.Spec.NodeName {
		next.Status.State, next.Status.LastSeen, next.Status.Twin, next.Status.Alarms = Unknown, "", nil, nil // the new node has not reported anything yet
	}
	next.FollowSpec(m, now)
	if prev != nil && prev.Spec.NodeName == d.Spec.NodeName && prev.Spec.Protocol.Type == d.Spec.Protocol.Type && m != nil {
		SetObservedGeneration(next.Status.Conditions, d.Metadata.Generation, ConditionOnline, ConditionNodeOnline, ConditionDegraded) // nothing else in the spec affects these conditions
	}
	return json.Marshal(next.Status)
}

// answersOlder reports whether a refusal concerns an older desired version, or is the hub's own, which is derived again each
// time.
func (r *Refusal) answersOlder(ver uint64) bool {
	return r != nil && (r.Code == NotAllowed || r.Ver != 0 && r.Ver < ver)
}

// desired is a property's desired value in the form of the twin, or nil.
func (d *Device) desired(property string) *TwinValue {
	value, ok := d.Spec.Desired[property]
	m := d.DesiredMeta[property]
	return twinValue(StoredValue{Value: []byte(value), Ver: m.Ver, TS: m.TS, Origin: m.Origin}, ok)
}

// addDisallowed adds a refusal to the twin for each desired value that the model does not allow. Properties that the model no
// longer has are in the twin only because of that.
func (d *Device) addDisallowed(m DeviceModel, twin map[string]TwinProperty) {
	for property, value := range d.Spec.Desired {
		err := m.CheckDesired(property, []byte(value))
		if err == nil {
			continue
		}
		t := twin[property]
		t.Desired = d.desired(property)
		rule := err.Error()
		if e := (*Error)(nil); errors.As(err, &e) {
			rule = e.Message // without the property's name, which the twin has
		}
		t.Refused = &Refusal{Ver: t.Desired.Ver, Code: NotAllowed, Message: rule + ": the model has changed and doesn't allow the desired value, so it is not sent to the node"}
		twin[property] = t
	}
}

// The conditions of a Device that follow from its twin.
const (
	ConditionInSync   = "InSync"
	ConditionRefused  = "Refused"
	ConditionConflict = "TwinConflict"
	ConditionReadable = "Readable" // whether the mapper can read all properties that it reads
)

// ModelMissing returns a condition of a Device whose DeviceModel does not exist.
func ModelMissing(kind, model string) Condition {
	return Condition{
		Type: kind, Status: "Unknown", Reason: "ModelMissing",
		Message: "there is no DeviceModel " + model + ": the device waits for it",
	}
}

// TwinConditions derives the conditions of a device's twin of which this is the reachability.
func (r Reachability) TwinConditions(prev []Condition, twin map[string]TwinProperty, now time.Time) []Condition {
	return twinConditions(prev, twin, r.Outdated(), now)
}

// outdatedReason is why the conditions of a device's twin are not known, as they say; empty: they are.
func outdatedReason(list []Condition) string {
	for _, kind := range []string{ConditionReadable, ConditionInSync} {
		if c := findCondition(list, kind); c != nil && c.Reason == ReasonNotOnline {
			return c.Message
		}
	}
	return ""
}

func twinConditions(prev []Condition, twin map[string]TwinProperty, outdated string, now time.Time) []Condition {
	var behind, unsure, local, refused, unread, disputed []string // texts for the messages
	why := ReasonRefused                                          // if all that differ were refused for good
	for name, t := range twin {
		here := !t.Local || t.Reported != nil
		switch {
		case !t.InSync && t.Refused == nil && !here:
			local = append(local, name+" is reported on the node only")
		case t.isUnknown():
			unsure = append(unsure, name)
		case !t.InSync:
			behind = append(behind, name)
		}
		if !t.InSync && !t.isUnknown() && (t.Refused == nil && here || t.Refused != nil && t.Refused.Code == RefusedForNow) {
			why = ReasonWaiting
		}
		if p := t.Problem; p != nil {
			text := name + ": " + p.Code + ": " + p.Message
			if p.Since != "" {
				text += " (last read " + p.Since + ")"
			}
			unread = append(unread, text)
			if t.InSync && t.Desired != nil {
				unsure = append(unsure, name)
			}
		}
		if t.Refused != nil {
			refused = append(refused, name+": "+t.Refused.Code+": "+t.Refused.Message)
		}
		if c := t.Conflict; c != nil {
			disputed = append(disputed, name+": override "+clipText(c.Override)+" against desired "+clipText(c.Desired)+", "+c.Winner+" won")
		}
	}
	list := slices.Clone(prev)
	inSync := listCondition(ConditionInSync, behind, "True", "False", "AsDesired", why)
	if len(behind) == 0 {
		inSync = listCondition(ConditionInSync, unsure, "True", "Unknown", "AsDesired", ReasonUnread)
	}
	if len(behind)+len(unsure) == 0 {
		inSync = listCondition(ConditionInSync, local, "True", "Unknown", "AsDesired", ReasonLocal)
	}
	list = SetCondition(list, inSync.unless(outdated), now)
	list = SetCondition(list, listCondition(ConditionReadable, unread, "True", "False", "AllRead", ReadFailed).unless(outdated), now)
	list = SetCondition(list, listCondition(ConditionRefused, refused, "False", "True", "NoneRefused", ReasonRefused), now)
	return SetCondition(list, listCondition(ConditionConflict, disputed, "False", "True", "NoConflict", "OverrideConflict"), now)
}

// unless returns the condition, or one that is Unknown in the place of one that is True and outdated.
func (c Condition) unless(outdated string) Condition {
	if outdated != "" && c.Status == "True" {
		c.Status, c.Reason, c.Message = "Unknown", ReasonNotOnline, outdated
	}
	return c
}

func listCondition(kind string, names []string, none, some, noneReason, someReason string) Condition {
	if len(names) == 0 {
		return Condition{Type: kind, Status: none, Reason: noneReason}
	}
	slices.Sort(names)
	return Condition{Type: kind, Status: some, Reason: someReason, Message: strings.Join(names, "; ")}
}

// MetaProperty is an MQTT 5 user property. Those here are metadata of the message's value.
type MetaProperty struct{ Key, Value string }

const (
	metaVer        = "ver"
	metaTS         = "ts"
	metaOrigin     = "origin"
	metaFor        = "for"
	metaNearest    = "nearest"  // reported: the device has no value nearer to the version in for
	metaRepeated   = "repeated" // reported: it is published again after a crash, so the acknowledgement need not wait for the disk
	metaBasedOn    = "basedOn"
	metaUntil      = "until"      // time when an override ends
	metaValidUntil = "validUntil" // time until which a desired value may be applied
)

// Props returns the user properties for a value on a topic of the kind.
func (s StoredValue) Props(kind topics.Kind) []MetaProperty {
	props := make([]MetaProperty, 0, 6)
	number := func(key string, n uint64) {
		if n != 0 {
			props = append(props, MetaProperty{key, strconv.FormatUint(n, 10)})
		}
	}
	text := func(key, value string) {
		if value != "" {
			props = append(props, MetaProperty{key, value})
		}
	}
	number(metaVer, s.Ver)
	text(metaTS, FormatMillis(s.TS))
	text(metaOrigin, s.Origin)
	number(metaFor, s.For)
	number(metaBasedOn, s.BasedOn)
	text(trace.Property, s.Trace)
	if kind == topics.KindDesired {
		text(metaValidUntil, FormatMillis(s.Until))
	} else {
		text(metaUntil, FormatMillis(s.Until))
	}
	return props
}

// SetProp sets the metadata that a publisher sent as a user property. Unknown properties are ignored. The error says what
// can't be read.
func (s *StoredValue) SetProp(key, value string) (err error) {
	var at time.Time
	switch key {
	case metaFor:
		if s.For, err = strconv.ParseUint(value, 10, 64); err != nil {
			return Errorf(Invalid, metaFor, "%s is not a version number", clipText(value))
		}
	case metaNearest:
		if s.Nearest, err = strconv.ParseBool(value); err != nil {
			return Errorf(Invalid, metaNearest, "%s is neither true nor false", clipText(value))
		}
	case trace.Property:
		s.Trace = trace.ValidTraceparent(value)
	case metaRepeated:
		if s.Repeated, err = strconv.ParseBool(value); err != nil {
			return Errorf(Invalid, metaRepeated, "%s is neither true nor false", clipText(value))
		}
	case metaTS:
		if at, err = ParseTime(value); err != nil {
			return Errorf(Invalid, key, "%v", err)
		}
		s.TS = at.UnixMilli()
	case metaUntil, metaValidUntil:
		if at, err = ParseTime(value); err != nil {
			return Errorf(Invalid, key, "%v", err)
		}
		s.Until = at.UnixMilli()
	}
	return nil
}
