package resource

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics"
)

// Stored is a value as a map of the tree holds it, with what is known about it.
type Stored struct {
	Value   []byte
	Ver     uint64
	TS      int64 // milliseconds since 1970
	Origin  string
	For     uint64 // reported, refused: the effective version it answers
	BasedOn uint64 // override: the desired version at that time; reported: the one that the device is as near to as it can be
	Nearest bool   // reported, when it is published: the device can have nothing nearer to the version in For
	Until   int64  // desired, override: when it ends, milliseconds since 1970; 0 never
}

// TwinValue is one side of a property.
type TwinValue struct {
	Value   string `json:"value"`             // as text in the form of the model's type
	Ver     uint64 `json:"ver"`               // rises with each change
	TS      string `json:"ts,omitempty"`      // when it was written
	Origin  string `json:"origin,omitempty"`  // who wrote it
	For     uint64 `json:"for,omitempty"`     // reported: the version that it answers
	BasedOn uint64 `json:"basedOn,omitempty"` // override: the desired version at that time; reported: the one that the device is as near to as it can be
	Until   string `json:"until,omitempty"`   // when it ends by itself
}

// TwinProperty is a property as wanted, as it is, and what stands between the two.
type TwinProperty struct {
	Desired  *TwinValue        `json:"desired,omitempty"`  // what is wanted
	Reported *TwinValue        `json:"reported,omitempty"` // what is
	Override *TwinValue        `json:"override,omitempty"` // what somebody on the node wants instead
	Refused  *Refusal          `json:"refused,omitempty"`  // why the device does not do what is wanted
	Conflict *OverrideConflict `json:"conflict,omitempty"` // an override met a newer desired value
	Problem  *Problem          `json:"problem,omitempty"`  // why it can't be read: reported is what was read last
	InSync   bool              `json:"inSync"`             // reported is as wanted
	// Local says that the reported value stays on the node: whether the property is as wanted is known there only.
	Local bool `json:"local,omitempty"`
}

// Refusal is the payload of refused/{property}.
type Refusal struct {
	For     uint64 `json:"for"`               // the effective version that was refused
	Ver     uint64 `json:"ver,omitempty"`     // the cloud's desired version behind it, added by the core
	Code    string `json:"code"`              // why, in one word
	Message string `json:"message,omitempty"` // why, for a reader
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

// OverrideConflict is the payload of conflict/{property}: an override met a newer desired value.
type OverrideConflict struct {
	Desired    string `json:"desired"`    // the value that is wanted
	DesiredVer uint64 `json:"desiredVer"` // its version
	Override   string `json:"override"`   // the value on the node
	BasedOn    uint64 `json:"basedOn"`    // the desired version that the override knew
	Policy     string `json:"policy"`     // cloud, edge, latest
	Winner     string `json:"winner"`     // desired or override
}

// Twin puts a device's properties together. get finds a key's value relative to
// the device: get("reported", "power"). Properties that nobody wanted or
// reported yet are left out.
func Twin(m DeviceModel, get func(branch, property string) (Stored, bool)) map[string]TwinProperty {
	twin := make(map[string]TwinProperty, len(m.Spec.Properties))
	for _, p := range m.Spec.Properties {
		if t, known := p.twin(get); known {
			twin[p.Name] = t
		}
	}
	return twin
}

func (p Property) twin(get func(branch, property string) (Stored, bool)) (t TwinProperty, known bool) {
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
		_ = json.Unmarshal(s.Value, t.Conflict) // our own
	}
	return t, p.compare(&t)
}

// compare reports whether a property is as it is wanted, and returns whether anything is known of it.
func (p Property) compare(t *TwinProperty) (known bool) {
	t.InSync = t.Desired == nil || t.Reported != nil &&
		(t.Reported.BasedOn != 0 && t.Reported.BasedOn == t.Desired.Ver ||
			p.Canonical([]byte(t.Desired.Value)) == p.Canonical([]byte(t.Reported.Value)))
	return t.Desired != nil || t.Reported != nil || t.Override != nil || t.Refused != nil || t.Problem != nil || t.Conflict != nil
}

func twinValue(s Stored, ok bool) *TwinValue {
	if !ok {
		return nil
	}
	return &TwinValue{
		Value: string(s.Value), Ver: s.Ver, TS: Millis(s.TS), Origin: s.Origin,
		For: s.For, BasedOn: s.BasedOn, Until: Millis(s.Until),
	}
}

// The reasons for which a device is not InSync.
const (
	ReasonWaiting = "Waiting" // the device has not reported the desired value yet
	ReasonRefused = "Refused" // all values that differ were refused
	ReasonUnread  = "Unread"  // unknown: the property can't be read
	ReasonLocal   = "Local"   // unknown to the hub: the reported value stays on the node
)

// RefusedForNow is the code of a refusal that is not final: the mapper tries again.
const RefusedForNow = "Unavailable"

// NotAllowed is the code of a refusal by the hub: the model, which has changed since, doesn't allow
// what is wanted, and it is sent to nobody.
const NotAllowed = "NotAllowed"

// FollowSpec updates the status of a Device to its spec: the desired values in its twin, and the conditions that compare
// them with the reported values, which stay. It is called with every write of the spec, in the same commit, so that
// a reader never sees a spec with the status of an older one. m is nil if the DeviceModel does not exist.
func (d *Device) FollowSpec(m *DeviceModel, now time.Time) {
	defer func() {
		SetObservedGeneration(d.Status.Conditions, d.Metadata.Generation, ConditionInSync, ConditionRefused, ConditionConflict, ConditionReadable)
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
	d.Status.Conditions = TwinConditions(d.Status.Conditions, twin, now)
}

// StatusAfter is the status to be stored with d, whose spec follows prev's: status is what is stored now. prev is nil for a
// new Device, m if there is no such DeviceModel.
func (d *Device) StatusAfter(prev *Device, status []byte, m *DeviceModel, now time.Time) ([]byte, error) {
	next := *d
	next.Status = DeviceStatus{}
	_ = json.Unmarshal(status, &next.Status) // our own: what can't be read is written anew
	if prev != nil && prev.Spec.NodeName != d.Spec.NodeName {
		next.Status.State, next.Status.LastSeen, next.Status.Twin = Unknown, "", nil // another node has said nothing yet
	}
	next.FollowSpec(m, now)
	if prev != nil && prev.Spec.NodeName == d.Spec.NodeName && prev.Spec.Protocol.Type == d.Spec.Protocol.Type && m != nil {
		SetObservedGeneration(next.Status.Conditions, d.Metadata.Generation, ConditionOnline, ConditionNodeOnline) // the rest has no part in them
	}
	return json.Marshal(next.Status)
}

// answersOlder reports whether a refusal is of an older desired version, or the hub's own, which is made anew each time.
func (r *Refusal) answersOlder(ver uint64) bool {
	return r != nil && (r.Code == NotAllowed || r.Ver != 0 && r.Ver < ver)
}

// desired is a property's desired value as the twin shows it, or nil.
func (d *Device) desired(property string) *TwinValue {
	value, ok := d.Spec.Desired[property]
	m := d.DesiredMeta[property]
	return twinValue(Stored{Value: []byte(value), Ver: m.Ver, TS: m.TS, Origin: m.Origin}, ok)
}

// addDisallowed says in a twin which of the desired values its model doesn't allow. Those of properties
// that the model has no more are in it for that alone.
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
			rule = e.Message // without the property, under whose name it stands
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
	ConditionReadable = "Readable" // whether all properties can be read that its mapper reads
)

// ModelMissing is a condition of a Device whose DeviceModel is not there.
func ModelMissing(kind, model string) Condition {
	return Condition{
		Type: kind, Status: "Unknown", Reason: "ModelMissing",
		Message: "there is no DeviceModel " + model + ": the device waits for it",
	}
}

// TwinConditions derives a device's conditions from its twin.
func TwinConditions(prev []Condition, twin map[string]TwinProperty, now time.Time) []Condition {
	var behind, unsure, local, refused, unread, disputed []string
	why := ReasonRefused // unless something can still happen
	for name, t := range twin {
		here := !t.Local || t.Reported != nil
		switch {
		case !t.InSync && t.Refused == nil && !here:
			local = append(local, name+" is reported on the node only")
		case !t.InSync:
			behind = append(behind, name)
		}
		if !t.InSync && (t.Refused == nil && here || t.Refused != nil && t.Refused.Code == RefusedForNow) {
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
			disputed = append(disputed, name+": override "+clip(c.Override)+" against desired "+clip(c.Desired)+", "+c.Winner+" won")
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
	list = SetCondition(list, inSync, now)
	list = SetCondition(list, listCondition(ConditionReadable, unread, "True", "False", "AllRead", ReadFailed), now)
	list = SetCondition(list, listCondition(ConditionRefused, refused, "False", "True", "NoneRefused", ReasonRefused), now)
	return SetCondition(list, listCondition(ConditionConflict, disputed, "False", "True", "NoConflict", "OverrideConflict"), now)
}

func listCondition(kind string, names []string, none, some, noneReason, someReason string) Condition {
	if len(names) == 0 {
		return Condition{Type: kind, Status: none, Reason: noneReason}
	}
	slices.Sort(names)
	return Condition{Type: kind, Status: some, Reason: someReason, Message: strings.Join(names, "; ")}
}

// Prop is an MQTT 5 user property: metadata that travels beside a value.
type Prop struct{ Key, Value string }

const (
	propVer     = "ver"
	propTS      = "ts"
	propOrigin  = "origin"
	propFor     = "for"
	propNearest = "nearest" // reported: the device can have nothing nearer to the version in for
	propBasedOn = "basedOn"
	propUntil   = "until"      // when an override ends
	propValid   = "validUntil" // until when a desired value may be applied
)

// Props are what stands beside a value on a topic of this kind.
func (s Stored) Props(kind topics.Kind) []Prop {
	props := make([]Prop, 0, 6)
	number := func(key string, n uint64) {
		if n != 0 {
			props = append(props, Prop{key, strconv.FormatUint(n, 10)})
		}
	}
	text := func(key, value string) {
		if value != "" {
			props = append(props, Prop{key, value})
		}
	}
	number(propVer, s.Ver)
	text(propTS, Millis(s.TS))
	text(propOrigin, s.Origin)
	number(propFor, s.For)
	number(propBasedOn, s.BasedOn)
	if kind == topics.KindDesired {
		text(propValid, Millis(s.Until))
	} else {
		text(propUntil, Millis(s.Until))
	}
	return props
}

// SetProp reads one user property that a publisher sent beside a value; one that is
// unknown changes nothing. The error names what can't be read.
func (s *Stored) SetProp(key, value string) (err error) {
	var at time.Time
	switch key {
	case propFor:
		if s.For, err = strconv.ParseUint(value, 10, 64); err != nil {
			return Errorf(Invalid, propFor, "%s is not a version number", clip(value))
		}
	case propNearest:
		if s.Nearest, err = strconv.ParseBool(value); err != nil {
			return Errorf(Invalid, propNearest, "%s is neither true nor false", clip(value))
		}
	case propTS:
		if at, err = ParseTime(value); err != nil {
			return Errorf(Invalid, key, "%v", err)
		}
		s.TS = at.UnixMilli()
	case propUntil, propValid:
		if at, err = ParseTime(value); err != nil {
			return Errorf(Invalid, key, "%v", err)
		}
		s.Until = at.UnixMilli()
	}
	return nil
}
