// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// ProtocolVisitors say how a mapper reaches the properties, events and commands through one protocol.
type ProtocolVisitors struct {
	// Protocol is the protocol, as in spec.protocol.type of a Device.
	Protocol string `json:"protocol"`
	// Config has defaults for the spec.protocol.config of the model's devices. Numbers and booleans are taken for their text.
	Config map[string]Value `json:"config,omitempty"`
	// Online says which values mean that the device is online. Without it a device is online while it answers.
	Online *OnlineRule `json:"online,omitempty"`
	// Visitors say how to reach each property, event and command.
	Visitors []Visitor `json:"visitors"`
}

// Visitor says how a mapper reaches one property, event or command: it has exactly one of propertyName, eventName and commandName.
type Visitor struct {
	// Name is the name of the visitor itself.
	Name string `json:"name,omitempty"`
	// PropertyName is the property, one of the model's.
	// +default=
	PropertyName string `json:"propertyName,omitempty"`
	// EventName is the event, one of the model's.
	// +default=
	EventName string `json:"eventName,omitempty"`
	// CommandName is the command, one of the model's.
	// +default=
	CommandName string `json:"commandName,omitempty"`
	// Config is the configuration for the protocol, such as a register or a UUID. Numbers and booleans are taken for their text.
	Config map[string]Value `json:"config,omitempty"`
	// CollectCycle is the time between two reads of the property, in milliseconds; 0: the mapper's default.
	// +kubebuilder:validation:Minimum=0
	CollectCycle int64 `json:"collectCycle,omitempty"`
	// ReportCycle is the time after which the value is reported although it has not changed, in milliseconds; 0: only changes
	// are reported.
	// +kubebuilder:validation:Minimum=0
	ReportCycle int64 `json:"reportCycle,omitempty"`
	// ExpireAfter is the time after which a value that was neither read again nor sent by the device is no value any more, in
	// milliseconds: the property has the problem Stale, and what was reported is cleared. 0: the last value stays.
	// +kubebuilder:validation:Minimum=0
	ExpireAfter int64 `json:"expireAfter,omitempty"`
	// ConfirmWithin is how long the device may take until it has a value that was written, in milliseconds; before that the value is
	// not written again. 0: the mapper's default.
	// +kubebuilder:validation:Minimum=0
	ConfirmWithin int64 `json:"confirmWithin,omitempty"`
	// Deadband is the smallest change of a number that is reported, in the property's unit; 0: every change.
	// +kubebuilder:validation:Minimum=0
	Deadband float64 `json:"deadband,omitempty"`
	// NotAvailable are values by which the device says that it has none, such as 0xFFFF: the property then has no value. They are
	// compared with what the device sends, before any scale. At most 64.
	NotAvailable []Value `json:"notAvailable,omitempty"`
	// Words are the values of the property, and what the device says and takes for them. A device that says anything else has no
	// value. At most 4,096.
	// +listType=map
	// +listMapKey=value
	Words []Word `json:"words,omitempty"`
}

// Word is a value of a property, and what a device says and takes for it.
type Word struct {
	// Value is the value of the property.
	// +required
	Value Value `json:"value"`
	// Read is what the device may say for the value, before any scale; what is written, or else the value itself, when empty.
	Read []Value `json:"read,omitempty"`
	// Write is what is written to the device for the value; the first of read, or else the value itself, when empty.
	Write Value `json:"write,omitempty"`
}

// Reads is what the device may say for the value.
func (w Word) Reads() []Value {
	if len(w.Read) > 0 {
		return w.Read
	}
	return []Value{w.Writes()}
}

// Writes is what is written to the device for the value.
func (w Word) Writes() Value {
	if w.Write == "" && len(w.Read) > 0 {
		return w.Read[0]
	}
	return cmp.Or(w.Write, w.Value)
}

// Visitors returns the visitors for a protocol. Upper and lower case of its name are the same.
func (m DeviceModel) Visitors(protocol string) []Visitor {
	for _, v := range m.Spec.PropertyVisitors {
		if strings.EqualFold(v.Protocol, protocol) {
			return v.Visitors
		}
	}
	return nil
}

// config returns a device's configuration for its protocol. Keys that the device does not set are the model's.
func (m DeviceModel) config(p Protocol) map[string]Value {
	for _, pv := range m.Spec.PropertyVisitors {
		if strings.EqualFold(pv.Protocol, p.Type) && len(pv.Config) > 0 {
			all := maps.Clone(pv.Config)
			maps.Copy(all, p.Config)
			return all
		}
	}
	return p.Config
}

// withVisitors returns a copy of the model in which visitors of a protocol replace its visitors of the same properties, events and
// commands.
func (m DeviceModel) withVisitors(protocol string, own []Visitor) DeviceModel {
	if len(own) == 0 {
		return m
	}
	var rest []ProtocolVisitors
	all := ProtocolVisitors{Protocol: protocol, Visitors: slices.Clone(own)}
	for _, pv := range m.Spec.PropertyVisitors {
		if !strings.EqualFold(pv.Protocol, protocol) {
			rest = append(rest, pv)
			continue
		}
		all.Config, all.Online = pv.Config, pv.Online
		for _, v := range pv.Visitors {
			if !slices.ContainsFunc(own, func(o Visitor) bool { return o.reaches() == v.reaches() }) {
				all.Visitors = append(all.Visitors, v)
			}
		}
	}
	m.Spec.PropertyVisitors = append(rest, all) // last: a later entry counts if a driver has several names
	return m
}

// visitorTarget is what a visitor reaches.
type visitorTarget struct{ kind, name string }

// reaches is what the visitor reaches: a property, unless it says otherwise.
func (v Visitor) reaches() visitorTarget {
	switch {
	case v.EventName != "":
		return visitorTarget{"eventName", v.EventName}
	case v.CommandName != "":
		return visitorTarget{"commandName", v.CommandName}
	}
	return visitorTarget{"propertyName", v.PropertyName}
}

// check checks what can be said of a visitor without the model.
func (v Visitor) check(p *causeList, at string) {
	var given []string
	for kind, name := range map[string]string{"propertyName": v.PropertyName, "eventName": v.EventName, "commandName": v.CommandName} {
		if name != "" {
			given = append(given, kind)
		}
	}
	slices.Sort(given)
	switch len(given) {
	case 0:
		p.add(at+".propertyName", "is required, unless there is eventName or commandName: a visitor reaches one of them")
	case 1:
	default:
		p.add(at+"."+given[1], "is there beside %s: a visitor reaches exactly one of propertyName, eventName and commandName", given[0])
	}
	for _, ms := range []struct {
		field string
		n     int64
	}{{"collectCycle", v.CollectCycle}, {"reportCycle", v.ReportCycle}, {"confirmWithin", v.ConfirmWithin}, {"expireAfter", v.ExpireAfter}} {
		switch {
		case ms.n < 0:
			p.add(at+"."+ms.field, "%d: milliseconds can't be negative", ms.n)
		case ms.n > maxMillis:
			p.add(at+"."+ms.field, "%d: at most %d milliseconds, ten years, are taken", ms.n, int64(maxMillis))
		case ms.n > 0 && v.PropertyName == "":
			p.add(at+"."+ms.field, "is for properties: an event or a command has no value that stays")
		}
	}
	if v.ExpireAfter > 0 && v.ExpireAfter < v.CollectCycle {
		p.add(at+".expireAfter", "%d is shorter than collectCycle, %d: every value would expire before the next is read", v.ExpireAfter, v.CollectCycle)
	}
	if v.Deadband < 0 || math.IsNaN(v.Deadband) {
		p.add(at+".deadband", "%v: must be 0 or more", v.Deadband)
	}
	v.checkTexts(p, at)
}

// checkModel checks that the model has what the visitor reaches, with the values of its words.
func (v Visitor) checkModel(p *causeList, at string, m DeviceModel) {
	r := v.reaches()
	if r.name == "" {
		return // check says so
	}
	prop, known := m.reached(r)
	if !known {
		p.add(at+"."+r.kind, "%s is not %s of the model%s", clipText(r.name), map[string]string{"propertyName": "a property", "eventName": "an event", "commandName": "a command"}[r.kind], DidYouMean(r.name, m.names(r.kind)))
		return
	}
	v.checkWords(p, at, prop)
}

// reached returns the property, or one that has the values of the event or the input of the command.
func (m *DeviceModel) reached(r visitorTarget) (Property, bool) {
	switch r.kind {
	case "eventName":
		e, ok := m.Event(r.name)
		return e.Property(), ok
	case "commandName":
		c, ok := m.Command(r.name)
		return c.Property(), ok
	}
	return m.Property(r.name)
}

// names are what visitors of a kind can reach.
func (m *DeviceModel) names(kind string) (names []string) {
	switch kind {
	case "eventName":
		for _, e := range m.Spec.Events {
			names = append(names, e.Name)
		}
	case "commandName":
		for _, c := range m.Spec.Commands {
			names = append(names, c.Name)
		}
	default:
		for _, p := range m.Spec.Properties {
			names = append(names, p.Name)
		}
	}
	return names
}

const (
	maxNotAvailable = 64
	maxMillis       = 10 * 365 * 24 * 60 * 60 * 1000 // nobody counts beyond it, and sums of it are numbers
)

// checkTexts checks what can be said of the device's words without the model.
func (v Visitor) checkTexts(p *causeList, at string) {
	if len(v.NotAvailable) > maxNotAvailable {
		p.add(at+".notAvailable", "has %d entries; at most %d are taken", len(v.NotAvailable), maxNotAvailable)
		return
	}
	for i, text := range v.NotAvailable {
		if text == "" {
			p.add(fmt.Sprintf("%s.notAvailable[%d]", at, i), "is empty: say what the device sends when it has no value, such as 0xFFFF")
		}
	}
	p.tooMany(at+".words", len(v.Words))
	said, values := map[Value]Value{}, map[Value]bool{}
	for i, w := range v.Words {
		at := fmt.Sprintf("%s.words[%d]", at, i)
		switch {
		case w.Value == "":
			p.add(at+".value", "is required: the value of the property")
		case values[w.Value]:
			p.add(at+".value", "%s is there twice: give all that the device says for it in one read", clipText(string(w.Value)))
		}
		values[w.Value] = true
		for j, text := range w.Reads() {
			if other, ok := said[text]; ok {
				p.add(fmt.Sprintf("%s.read[%d]", at, j), "%s is what the device says for %s, too", clipText(string(text)), clipText(string(other)))
			}
			said[text] = w.Value
		}
	}
}

// checkWords checks the values of the words against what is reached.
func (v Visitor) checkWords(p *causeList, at string, prop Property) {
	for i, w := range v.Words {
		if w.Value != "" {
			p.addErr(fmt.Sprintf("%s.words[%d].value", at, i), prop.Check([]byte(w.Value)))
		}
	}
}

// OnlineRule says which values mean that a device is online.
type OnlineRule struct {
	// Mode says whether all of when must be so, or any of them.
	// +kubebuilder:validation:Enum=all;any
	// +default=all
	Mode string `json:"mode,omitempty"`
	// When are properties and their values. At most 64.
	// +listType=atomic
	When []OnlineValue `json:"when"`
}

// OnlineValue is a property that has one of some values.
type OnlineValue struct {
	// PropertyName is the property, one of the model's.
	PropertyName string `json:"propertyName"`
	// Values are the values that mean that the device is online. At most 64.
	// +listType=atomic
	Values []Value `json:"values"`
}

// The values of OnlineRule.Mode.
const (
	OnlineAll = "all"
	OnlineAny = "any"
)

const maxOnline = 64

func (o *OnlineRule) check(p *causeList, at string, m DeviceModel) {
	if o == nil {
		return
	}
	checkOneOf(p, at+".mode", o.Mode, []string{"", OnlineAll, OnlineAny})
	switch n := len(o.When); {
	case n == 0:
		p.add(at+".when", "is required: properties, and the values that mean that the device is online")
	case n > maxOnline:
		p.add(at+".when", "has %d entries; at most %d are taken", n, maxOnline)
		return
	}
	for i, w := range o.When {
		at := fmt.Sprintf("%s.when[%d]", at, i)
		prop, known := m.Property(w.PropertyName)
		switch n := len(w.Values); {
		case !known:
			p.add(at+".propertyName", "%s is not a property of the model%s", clipText(w.PropertyName), DidYouMean(w.PropertyName, m.names("propertyName")))
		case n == 0:
			p.add(at+".values", "is required: the values that mean that the device is online")
		case n > maxOnline:
			p.add(at+".values", "has %d entries; at most %d are taken", n, maxOnline)
		default:
			prop.Minimum, prop.Maximum = nil, nil
			for j, v := range w.Values {
				p.addErr(fmt.Sprintf("%s.values[%d]", at, j), prop.Check([]byte(v)))
			}
		}
	}
}

// Online reports whether reported values mean that the device is online; get returns the value of a property, if it has one.
func (o *OnlineRule) Online(m *DeviceModel, get func(property string) (value string, known bool)) bool {
	for _, w := range o.When {
		prop, _ := m.Property(w.PropertyName)
		value, known := get(w.PropertyName)
		fits := known && slices.ContainsFunc(w.Values, func(v Value) bool { return prop.Canonical([]byte(v)) == prop.Canonical([]byte(value)) })
		if fits != (o.Mode != OnlineAny) {
			return fits
		}
	}
	return o.Mode != OnlineAny
}
