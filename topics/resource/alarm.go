package resource

import (
	"cmp"
	"fmt"
	"math"
	"slices"
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
