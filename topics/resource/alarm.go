// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// PropertyAlarm is a value of a property that somebody must know of. It has exactly one of above, below and equals.
type PropertyAlarm struct {
	// Name is the name of the alarm, unique among those of the property: 1 to 253 characters of a–z, A–Z, 0–9, '-', '.' and '_'.
	Name string `json:"name"`
	// Title is the name of the alarm for people, such as Too hot. At most 128 characters.
	Title string `json:"title,omitempty"`
	// Above raises the alarm when the value is above it, for int, float and double.
	Above *float64 `json:"above,omitempty"`
	// Below raises the alarm when the value is below it, for int, float and double.
	Below *float64 `json:"below,omitempty"`
	// Equals raises the alarm when the property has this value.
	Equals Value `json:"equals,omitempty"`
	// Clear is the value down to which an alarm with above stays, or up to which one with below does, so that a value that wavers
	// raises one alarm; above or below itself when missing.
	Clear *float64 `json:"clear,omitempty"`
	// After is for how long the value must be so before the alarm is raised, in milliseconds.
	// +kubebuilder:validation:Minimum=0
	After int64 `json:"after,omitempty"`
	// Severity says how urgent it is: low, medium, high or critical; medium when empty.
	// +kubebuilder:validation:Enum=low;medium;high;critical
	// +default=medium
	Severity string `json:"severity,omitempty"`
}

// DeviceAlarm is an alarm of one device.
type DeviceAlarm struct {
	// PropertyName is the property, one of the model's.
	PropertyName string `json:"propertyName"`
	PropertyAlarm
}

// The values of PropertyAlarm.Severity, the least first.
const (
	AlarmLow      = "low"
	AlarmMedium   = "medium"
	AlarmHigh     = "high"
	AlarmCritical = "critical"
)

var severities = []string{AlarmLow, AlarmMedium, AlarmHigh, AlarmCritical}

// SeverityRank orders severities: a greater one is more urgent.
func SeverityRank(severity string) int { return slices.Index(severities, severity) }

const maxAlarms = 64

// checkAlarms checks the alarms of a property.
func checkAlarms(p *causeList, at string, alarms []PropertyAlarm, of Property) {
	if len(alarms) > maxAlarms {
		p.add(at, "has %d entries; at most %d are taken", len(alarms), maxAlarms)
		return
	}
	seen := uniqueNames{}
	for i, a := range alarms {
		at := fmt.Sprintf("%s[%d]", at, i)
		seen.check(p, at+".name", a.Name)
		a.check(p, at)
		a.checkProperty(p, at, of)
	}
}

// check checks what can be said of an alarm without its property.
func (a PropertyAlarm) check(p *causeList, at string) {
	checkPropertyName(p, at+".name", a.Name)
	checkTitle(p, at+".title", a.Title)
	checkOneOf(p, at+".severity", a.severity(), severities)
	if a.After < 0 {
		p.add(at+".after", "%d: milliseconds can't be negative", a.After)
	} else if a.After > maxMillis {
		p.add(at+".after", "%d: at most %d milliseconds, ten years, are taken", a.After, int64(maxMillis))
	}
	given := 0
	for _, is := range []bool{a.Above != nil, a.Below != nil, a.Equals != ""} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		p.add(at, "must have exactly one of above, below and equals")
	case a.Clear == nil:
	case a.Equals != "":
		p.add(at+".clear", "is for above and below: an alarm with equals is cleared by any other value")
	case a.Above != nil && *a.Clear > *a.Above:
		p.add(at+".clear", "%v is above %v: the alarm would be cleared before it is raised", *a.Clear, *a.Above)
	case a.Below != nil && *a.Clear < *a.Below:
		p.add(at+".clear", "%v is below %v: the alarm would be cleared before it is raised", *a.Clear, *a.Below)
	}
}

// checkProperty checks an alarm against its property.
func (a PropertyAlarm) checkProperty(p *causeList, at string, of Property) {
	for field, limit := range map[string]*float64{"above": a.Above, "below": a.Below, "clear": a.Clear} {
		switch {
		case limit == nil:
		case !of.numeric():
			p.add(at+"."+field, "is for int, float and double, not for %s: say equals", of.dataType())
		case math.IsNaN(*limit) || math.IsInf(*limit, 0):
			p.add(at+"."+field, "%v: must be a number", *limit)
		}
	}
	if a.Equals != "" {
		of.Minimum, of.Maximum = nil, nil
		p.addErr(at+".equals", of.Check([]byte(a.Equals)))
	}
}

func (a PropertyAlarm) severity() string { return cmp.Or(a.Severity, AlarmMedium) }

// checkDeviceAlarms checks what can be said of the alarms of a device without its model.
func checkDeviceAlarms(p *causeList, alarms []DeviceAlarm) {
	seen := map[[2]string]bool{}
	for i, a := range alarms {
		at := fmt.Sprintf("spec.alarms[%d]", i)
		checkRequired(p, at+".propertyName", a.PropertyName)
		a.check(p, at)
		key := [2]string{a.PropertyName, a.Name}
		if seen[key] {
			p.add(at+".name", "%s occurs twice for %s", clipText(a.Name), a.PropertyName)
		}
		seen[key] = true
	}
}

// checkAlarms checks the device's own alarms against the model.
func (d Device) checkAlarms(p *causeList, m DeviceModel) {
	for i, a := range d.Spec.Alarms {
		at := fmt.Sprintf("spec.alarms[%d]", i)
		p.addErr(at+".propertyName", m.CheckKnown(a.PropertyName))
		if prop, known := m.Property(a.PropertyName); known {
			a.checkProperty(p, at, prop)
		}
	}
}

// withAlarms returns a copy of the model in which alarms of a device replace the model's of the same property and name.
func (m DeviceModel) withAlarms(own []DeviceAlarm) DeviceModel {
	if len(own) == 0 {
		return m
	}
	m.Spec.Properties = slices.Clone(m.Spec.Properties)
	for i := range m.Spec.Properties {
		p := &m.Spec.Properties[i]
		p.Alarms = slices.Clone(p.Alarms)
		for _, a := range own {
			if a.PropertyName != p.Name {
				continue
			}
			p.Alarms = slices.DeleteFunc(p.Alarms, func(o PropertyAlarm) bool { return o.Name == a.Name })
			p.Alarms = append(p.Alarms, a.PropertyAlarm)
		}
	}
	return m
}

// RaisedAlarm is an alarm that is raised. alarms/{property} of a device has a list of those of the property.
type RaisedAlarm struct {
	Name     string `json:"name"`
	Severity string `json:"severity"`
	Since    string `json:"since"`           // when it was raised
	Value    string `json:"value,omitempty"` // that raised it; empty: it stays on the node
	Message  string `json:"message"`         // what is so, for people
}

// The states in AlarmChange.
const (
	AlarmRaised  = "raised"
	AlarmCleared = "cleared"
)

// AlarmChange is the payload of events/alarm of a device: an alarm that was raised or cleared.
type AlarmChange struct {
	PropertyName string `json:"propertyName"`
	Name         string `json:"name"`
	State        string `json:"state"` // raised or cleared
	Severity     string `json:"severity"`
	Value        string `json:"value,omitempty"` // that raised or cleared it; empty: it stays on the node
	Message      string `json:"message"`
	TS           string `json:"ts"`
}

// ParseAlarms reads the payload of alarms/{property}.
func ParseAlarms(payload []byte) (list []RaisedAlarm, err error) {
	if len(payload) == 0 {
		return nil, nil
	}
	return list, json.Unmarshal(payload, &list)
}

// AlarmInput is what a property's alarms follow from.
type AlarmInput struct {
	Value []byte // nil: not known, so that no alarm is raised or cleared
	Since int64  // since when the value is so, in ms since 1970
	Now   int64
	Local bool // the value stays on the node
	// Pending are the alarms whose value is there, and not for long enough: since when. FollowAlarms changes it.
	Pending map[string]int64
}

// FollowAlarms returns the property's alarms that are raised now, and what has changed; raised are those that were before. due is when it
// is to be called again, in ms since 1970, unless something changes before; 0: never.
func (p Property) FollowAlarms(raised []RaisedAlarm, in AlarmInput) (next []RaisedAlarm, changes []AlarmChange, due int64) {
	before := make(map[string]RaisedAlarm, len(raised))
	for _, r := range raised {
		before[r.Name] = r
	}
	change := func(state string, r RaisedAlarm) {
		changes = append(changes, AlarmChange{
			PropertyName: p.Name, Name: r.Name, State: state, Severity: r.Severity, Value: in.shown(), Message: r.Message, TS: FormatMillis(in.Now),
		})
	}
	for _, a := range p.Alarms {
		was, is := before[a.Name]
		delete(before, a.Name)
		holds := in.Value != nil && a.holds(p, string(in.Value), is)
		if !holds || is {
			delete(in.Pending, a.Name)
		}
		switch {
		case is && (in.Value == nil || holds):
			was.Severity = a.severity()
			next = append(next, was)
		case is:
			was.Message = p.Name + " is " + p.amount(in.shown()) + " again"
			change(AlarmCleared, was)
		case holds:
			since, pending := in.Pending[a.Name]
			if !pending {
				since = min(in.Since, in.Now)
				in.Pending[a.Name] = since
			}
			if at := since + a.After; at > in.Now {
				if due == 0 || at < due {
					due = at
				}
				continue
			}
			delete(in.Pending, a.Name)
			r := RaisedAlarm{Name: a.Name, Severity: a.severity(), Since: FormatMillis(in.Now), Value: in.shown(), Message: a.message(p, in.shown())}
			next = append(next, r)
			change(AlarmRaised, r)
		}
	}
	for _, was := range raised {
		if _, gone := before[was.Name]; gone {
			was.Message = "the alarm is no more"
			change(AlarmCleared, was)
		}
	}
	return next, changes, due
}

func (in AlarmInput) shown() string {
	if in.Local {
		return ""
	}
	return string(in.Value)
}

// holds reports whether an alarm is to be raised by a value, or to stay.
func (a PropertyAlarm) holds(p Property, value string, raised bool) bool {
	if a.Equals != "" {
		return p.Canonical([]byte(value)) == p.Canonical([]byte(a.Equals))
	}
	x, err := strconv.ParseFloat(value, 64)
	switch {
	case err != nil:
		return false
	case a.Above != nil && raised && a.Clear != nil:
		return x > *a.Clear
	case a.Above != nil:
		return x > *a.Above
	case a.Below != nil && raised && a.Clear != nil:
		return x < *a.Clear
	case a.Below != nil:
		return x < *a.Below
	}
	return false
}

// amount is a value with its unit; empty: one that isn't shown.
func (p Property) amount(value string) string {
	switch {
	case value == "":
		return "as it should be"
	case p.Unit == "":
		return value
	}
	return value + " " + p.Unit
}

// message says for people what raised an alarm.
func (a PropertyAlarm) message(p Property, value string) string {
	is := cmp.Or(p.Title, p.Name) + " is "
	if value != "" {
		is += p.amount(clipValue(value))
	}
	switch {
	case a.Equals != "" && value == "":
		return is + clipValue(string(a.Equals))
	case a.Equals != "":
		return is
	case value != "":
		is += ", "
	}
	if a.Above != nil {
		return is + "above " + p.limit(*a.Above)
	}
	return is + "below " + p.limit(*a.Below)
}

func clipValue(s string) string {
	if len(s) > 80 {
		return clipText(s)
	}
	return s
}

// AlarmStatus is an alarm of a device that is raised.
type AlarmStatus struct {
	// PropertyName is the property.
	PropertyName string `json:"propertyName,omitempty"`
	// Name is the name of the alarm.
	Name string `json:"name,omitempty"`
	// Severity says how urgent it is: low, medium, high or critical.
	Severity string `json:"severity,omitempty"`
	// Since is when it was raised.
	Since string `json:"since,omitempty"`
	// Value is the value that raised it, unless it stays on the node.
	Value string `json:"value,omitempty"`
	// Message says what is so, for people.
	Message string `json:"message,omitempty"`
	// Acknowledged says that somebody knows of it.
	Acknowledged bool `json:"acknowledged,omitempty"`
}

// Key names the alarm among those of a device, as in acknowledgedAlarms.
func (a AlarmStatus) Key() string { return a.PropertyName + "/" + a.Name }

// RaisedAlarms are the alarms of a device that are raised; get returns the payload of alarms/{property}.
func RaisedAlarms(m DeviceModel, get func(property string) []byte) (list []AlarmStatus) {
	for _, p := range m.Spec.Properties {
		raised, err := ParseAlarms(get(p.Name))
		if err != nil {
			continue // of a newer node
		}
		for _, r := range raised {
			list = append(list, AlarmStatus{PropertyName: p.Name, Name: r.Name, Severity: r.Severity, Since: r.Since, Value: r.Value, Message: r.Message})
		}
	}
	return list
}

// Compare orders alarms: first those that nobody has acknowledged, and of these the most urgent.
func (a AlarmStatus) Compare(b AlarmStatus) int {
	known := func(s AlarmStatus) int {
		if s.Acknowledged {
			return 1
		}
		return 0
	}
	return cmp.Or(known(a)-known(b), SeverityRank(b.Severity)-SeverityRank(a.Severity), strings.Compare(a.Since, b.Since))
}

// ConditionAlarm says whether an alarm of a device is raised. It is not added before there was one.
const ConditionAlarm = "Alarm"

// The reasons of the condition Alarm, besides the severity of the worst alarm of which nobody knows.
const (
	ReasonNoAlarm      = "NoAlarm"
	ReasonAcknowledged = "Acknowledged" // somebody knows of each
)

// FollowAlarms updates the status of a Device to the alarms that are raised; get returns the payload of alarms/{property}.
func (d *Device) FollowAlarms(m DeviceModel, get func(property string) []byte, now time.Time) {
	d.Status.Alarms = RaisedAlarms(m, get)
	d.followAlarms(now)
}

// followAlarms updates the alarms and their condition to what is acknowledged.
func (d *Device) followAlarms(now time.Time) {
	var texts []string
	worst := -1
	for i := range d.Status.Alarms {
		a := &d.Status.Alarms[i]
		since, _ := ParseTime(a.Since)
		known, err := ParseTime(d.Spec.AcknowledgedAlarms[a.Key()])
		a.Acknowledged = err == nil && !known.Before(since)
		text := a.Name + ": " + a.Message + " (" + a.Severity + ", since " + a.Since
		if a.Acknowledged {
			text += ", acknowledged"
		} else {
			worst = max(worst, slices.Index(severities, a.Severity))
		}
		texts = append(texts, text+")")
	}
	if texts == nil && findCondition(d.Status.Conditions, ConditionAlarm) == nil {
		return
	}
	reason := ReasonAcknowledged
	if worst >= 0 {
		reason = strings.ToUpper(severities[worst][:1]) + severities[worst][1:]
	}
	d.Status.Conditions = SetCondition(d.Status.Conditions, listCondition(ConditionAlarm, texts, "False", "True", ReasonNoAlarm, reason), now)
}
