package resource

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/edgebus/edgebus/topics"
)

// To add a property to DeviceModel: add a field with its JSON name, a comment and its markers (+required, +default,
// +kubebuilder:validation:…) to DeviceModelSpec, Property or Visitor below, and its rule to the check method of that type.
// Then run `make golden`. The OpenAPI schema, the CRDs (docs/crds.yaml), `edgebus explain`, the API's validation and the
// generated tables in docs follow from the field, its comment and its markers. Annotations of the dialects keep it. A field
// that a mapper's driver needs is copied in mappers/device.go (driverProperty).

// DeviceModel is a reusable template: the properties of a kind of device, and how a mapper reaches them.
type DeviceModel struct {
	TypeMeta
	Metadata Meta            `json:"metadata"`
	Spec     DeviceModelSpec `json:"spec"`
	Status   ModelStatus     `json:"status,omitzero"`
}

// ModelStatus is what is known of a model.
type ModelStatus struct {
	// Conditions: InUse says which devices a deletion waits for.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// DeviceModelSpec are a model's properties and visitors.
type DeviceModelSpec struct {
	// Properties are what a device of this model has.
	// +listType=map
	// +listMapKey=name
	Properties []Property `json:"properties,omitempty"`
	// PropertyVisitors say how to reach the properties, for each protocol.
	// +listType=map
	// +listMapKey=protocol
	PropertyVisitors []ProtocolVisitors `json:"propertyVisitors,omitempty"`
}

// Property is one property of a device.
type Property struct {
	// Name is the property's name, as in topics.
	Name string `json:"name"`
	// Description is for readers.
	Description string `json:"description,omitempty"`
	// Type is the type of its values; string when empty.
	// +default=string
	Type DataType `json:"type,omitempty"`
	// AccessMode says whether it can be wanted; ReadOnly when empty.
	// +default=ReadOnly
	AccessMode AccessMode `json:"accessMode,omitempty"`
	// Minimum is the least value that may be wanted; for int, float and double.
	Minimum *float64 `json:"minimum,omitempty"`
	// Maximum is the greatest value that may be wanted; for int, float and double.
	Maximum *float64 `json:"maximum,omitempty"`
	// Enum are the only values that may be wanted, if there are any.
	Enum []Value `json:"enum,omitempty"`
	// Unit is what numbers are measured in.
	Unit string `json:"unit,omitempty"`
	// Conflict decides between a local override and a newer desired value: cloud (default), edge, latest.
	// +kubebuilder:validation:Enum=cloud;edge;latest
	// +default=cloud
	Conflict string `json:"conflict,omitempty"`
	// Adopt lets the hub take an uncontested local override over as the desired value.
	Adopt bool `json:"adopt,omitempty"`
	// AtBoot is what a mapper does with an old value after power comes back: last (default), hold, safe.
	// +kubebuilder:validation:Enum=last;hold;safe
	// +default=last
	AtBoot string `json:"atBoot,omitempty"`
	// SafeValue is what atBoot safe writes.
	SafeValue Value `json:"safeValue,omitempty"`
}

// DataType is the type of a property's values.
// +kubebuilder:validation:Enum=int;float;double;boolean;string;bytes;object;array
type DataType string

// The data types.
const (
	TypeInt     DataType = "int"
	TypeFloat   DataType = "float"
	TypeDouble  DataType = "double"
	TypeBoolean DataType = "boolean"
	TypeString  DataType = "string"
	TypeBytes   DataType = "bytes"
	TypeObject  DataType = "object"
	TypeArray   DataType = "array"
)

var dataTypes = []DataType{TypeInt, TypeFloat, TypeDouble, TypeBoolean, TypeString, TypeBytes, TypeObject, TypeArray}

// AccessMode reports whether a property can be written.
// +kubebuilder:validation:Enum=ReadOnly;ReadWrite
type AccessMode string

// The access modes.
const (
	ReadOnly  AccessMode = "ReadOnly"
	ReadWrite AccessMode = "ReadWrite"
)

// The conflict policies, and what a mapper does at boot.
const (
	ConflictCloud  = "cloud"
	ConflictEdge   = "edge"
	ConflictLatest = "latest"

	BootLast = "last"
	BootHold = "hold"
	BootSafe = "safe"
)

// ProtocolVisitors say how one protocol reaches the properties.
type ProtocolVisitors struct {
	// Protocol is as in the Device's spec.protocol.type.
	Protocol string `json:"protocol"`
	// Config is what devices of the model have in their spec.protocol.config, where they don't say otherwise.
	Config map[string]string `json:"config,omitempty"`
	// Visitors say how to reach each property.
	Visitors []Visitor `json:"visitors"`
}

// Visitor says how to reach one property.
type Visitor struct {
	// Name is the visitor's own name.
	Name string `json:"name,omitempty"`
	// PropertyName is the property that it reaches, one of the model's.
	PropertyName string `json:"propertyName"`
	// Config is the protocol's own: a register, a UUID.
	Config map[string]string `json:"config,omitempty"`
	// CollectCycle is how often to read the property, in milliseconds; 0: the mapper's default.
	// +kubebuilder:validation:Minimum=0
	CollectCycle int64 `json:"collectCycle,omitempty"`
	// ReportCycle is how often to report it even when it has not changed, in milliseconds; 0: on change only.
	// +kubebuilder:validation:Minimum=0
	ReportCycle int64 `json:"reportCycle,omitempty"`
	// Deadband is the smallest change of a number that is reported, in the property's unit.
	// +kubebuilder:validation:Minimum=0
	Deadband float64 `json:"deadband,omitempty"`
}

// Property finds a property by name.
func (m *DeviceModel) Property(name string) (Property, bool) {
	for i := range m.Spec.Properties {
		if m.Spec.Properties[i].Name == name {
			return m.Spec.Properties[i], true
		}
	}
	return Property{}, false
}

// Visitors finds the visitors of a protocol, whatever the case of its name.
func (m DeviceModel) Visitors(protocol string) []Visitor {
	for _, v := range m.Spec.PropertyVisitors {
		if strings.EqualFold(v.Protocol, protocol) {
			return v.Visitors
		}
	}
	return nil
}

// config is a device's configuration of a protocol, with the model's configuration for the keys that the device doesn't set.
func (m DeviceModel) config(p Protocol) map[string]string {
	for _, pv := range m.Spec.PropertyVisitors {
		if strings.EqualFold(pv.Protocol, p.Type) && len(pv.Config) > 0 {
			all := maps.Clone(pv.Config)
			maps.Copy(all, p.Config)
			return all
		}
	}
	return p.Config
}

// with is a copy of the model in which the given visitors of a protocol replace its visitors of the same properties.
func (m DeviceModel) with(protocol string, own []Visitor) DeviceModel {
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
		all.Config = pv.Config
		for _, v := range pv.Visitors {
			if !slices.ContainsFunc(own, func(o Visitor) bool { return o.PropertyName == v.PropertyName }) {
				all.Visitors = append(all.Visitors, v)
			}
		}
	}
	m.Spec.PropertyVisitors = append(rest, all) // last: what comes later counts where a driver has several names
	return m
}

// Writable reports whether the property can be wanted.
func (p Property) Writable() bool { return p.AccessMode == ReadWrite }

func (p Property) dataType() DataType { return cmp.Or(p.Type, TypeString) }

// Check reports whether value is one of the property's: its type, range and enumeration.
// Its error names the property and the rule.
func (p Property) Check(value []byte) error {
	if len(value) == 0 {
		return p.invalid("is empty; an empty value clears, and can't be one")
	}
	if !utf8.Valid(value) {
		return p.invalid("is not valid UTF-8; send bytes as base64")
	}
	text := string(value)
	number, err := p.parse(text)
	if err != nil {
		return err
	}
	if len(p.Enum) > 0 && !p.enumerates(text) {
		return p.invalid("%s is not one of %s", clip(text), p.enumText())
	}
	if p.Minimum != nil && number < *p.Minimum {
		return p.invalid("%s is below the minimum of %s", clip(text), p.limit(*p.Minimum))
	}
	if p.Maximum != nil && number > *p.Maximum {
		return p.invalid("%s is above the maximum of %s", clip(text), p.limit(*p.Maximum))
	}
	return nil
}

// parse checks text against the type; number is NaN where the type is none, so
// that no range applies.
func (p Property) parse(text string) (number float64, err error) {
	number = math.NaN()
	switch t := p.dataType(); t {
	case TypeInt:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, p.invalid("%s is not an integer of 64 bits", clip(text))
		}
		number = float64(n)
	case TypeFloat, TypeDouble:
		number, err = strconv.ParseFloat(text, bits(t))
		if err != nil || math.IsNaN(number) || math.IsInf(number, 0) || strings.ContainsAny(text, "_xXpP") {
			return 0, p.invalid("%s is not a %s: a decimal number such as 21.5", clip(text), t)
		}
	case TypeBoolean:
		if text != "true" && text != "false" {
			return 0, p.invalid("%s is not a boolean: true or false", clip(text))
		}
	case TypeBytes:
		if _, err := base64.StdEncoding.DecodeString(text); err != nil {
			return 0, p.invalid("%s is not base64", clip(text))
		}
	case TypeObject, TypeArray:
		if !isJSON(text, map[DataType]byte{TypeObject: '{', TypeArray: '['}[t]) {
			return 0, p.invalid("%s is not a JSON %s", clip(text), t)
		}
	case TypeString:
	default:
		return 0, p.invalid("its model gives it the unknown type %s", clip(string(t)))
	}
	return number, nil
}

func bits(t DataType) int {
	if t == TypeFloat {
		return 32
	}
	return 64
}

func isJSON(text string, open byte) bool {
	b := bytes.TrimLeft([]byte(text), " \t\r\n")
	return len(b) > 0 && b[0] == open && json.Valid(b)
}

// Words that YAML 1.1 parsers, such as kubectl's, turn into booleans.
var (
	yamlTrue  = []string{"true", "on", "yes", "y"}
	yamlFalse = []string{"false", "off", "no", "n"}
)

// ResolveBoolean maps true and false to the value of the property's enumeration from which a YAML 1.1 parser made that
// boolean: ON, yes and the like. If the enumeration has none or several such values, the result is the value itself.
func (p Property) ResolveBoolean(value Value) Value {
	words := map[Value][]string{"true": yamlTrue, "false": yamlFalse}[value]
	if words == nil || p.dataType() != TypeString || p.enumerates(string(value)) {
		return value
	}
	meant := value
	for _, v := range p.Enum {
		if !slices.Contains(words, strings.ToLower(string(v))) {
			continue
		}
		if meant != value {
			return value // ambiguous, for example ON and YES
		}
		meant = v
	}
	return meant
}

func (p Property) enumerates(text string) bool {
	return slices.ContainsFunc(p.Enum, func(v Value) bool { return p.Canonical([]byte(v)) == p.Canonical([]byte(text)) })
}

func (p Property) enumText() string {
	names := make([]string, len(p.Enum))
	for i, v := range p.Enum {
		names[i] = string(v)
	}
	return strings.Join(names, ", ")
}

func (p Property) limit(n float64) string {
	s := strconv.FormatFloat(n, 'g', -1, 64)
	if p.Unit != "" {
		s += " " + p.Unit
	}
	return s
}

func (p Property) invalid(format string, args ...any) error {
	return Errorf(Invalid, p.Name, format, args...)
}

// Canonical is the canonical text of a value, for comparing: 21.50 and 21.5 have the same. A text that is not of the
// property's type is returned unchanged.
func (p Property) Canonical(value []byte) string {
	text := string(value)
	switch p.dataType() {
	case TypeInt:
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return strconv.FormatInt(n, 10)
		}
	case TypeFloat, TypeDouble:
		if f, err := strconv.ParseFloat(text, bits(p.dataType())); err == nil {
			return strconv.FormatFloat(f+0, 'g', -1, bits(p.dataType())) // +0: no negative zero
		}
	case TypeObject, TypeArray:
		return canonicalJSON(value)
	}
	return text
}

// canonicalJSON sorts keys and drops white space; numbers keep their digits.
func canonicalJSON(value []byte) string {
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return string(value)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return string(value)
	}
	out, err := json.Marshal(v)
	if err != nil {
		return string(value)
	}
	return string(out)
}

// Members reads the JSON object that sets several properties at once. A member
// that is null or empty is nil: clear it.
func Members(payload []byte) (map[string]*Value, error) {
	var members map[string]*json.RawMessage
	if err := json.Unmarshal(payload, &members); err != nil || members == nil {
		return nil, Errorf(Invalid, "", "the payload must be a JSON object of property names and values, such as {\"power\":\"ON\"}")
	}
	out := make(map[string]*Value, len(members))
	for name, raw := range members {
		if raw == nil {
			out[name] = nil
			continue
		}
		var v Value
		if err := v.UnmarshalJSON(*raw); err != nil {
			return nil, Errorf(Invalid, name, "%s", fmt.Sprint(err))
		}
		if v == "" {
			out[name] = nil
			continue
		}
		out[name] = &v
	}
	return out, nil
}

// Validate checks a model: names, types, ranges, and that visitors name properties.
func (m DeviceModel) Validate() error {
	var p problems
	m.Metadata.check(&p)
	p.tooMany("spec.properties", len(m.Spec.Properties))
	if p.tooMany("spec.propertyVisitors", len(m.Spec.PropertyVisitors)); len(p) > 0 {
		return p.err()
	}
	seen, protocols := names{}, names{}
	for i, prop := range m.Spec.Properties {
		at := fmt.Sprintf("spec.properties[%d]", i)
		seen.check(&p, at+".name", prop.Name)
		prop.check(&p, at)
	}
	for i, pv := range m.Spec.PropertyVisitors {
		at := fmt.Sprintf("spec.propertyVisitors[%d]", i)
		if pv.Protocol == "" {
			p.add(at+".protocol", "is required")
		}
		protocols.check(&p, at+".protocol", strings.ToLower(pv.Protocol))
		for j, v := range pv.Visitors {
			v.check(&p, fmt.Sprintf("%s.visitors[%d]", at, j), seen)
		}
	}
	return p.err()
}

func (v Visitor) check(p *problems, at string, known map[string]bool) {
	if !known[v.PropertyName] {
		p.add(at+".propertyName", "%s is not a property of the model", clip(v.PropertyName))
	}
	v.checkCycles(p, at)
}

func (v Visitor) checkCycles(p *problems, at string) {
	if v.CollectCycle < 0 {
		p.add(at+".collectCycle", "%d: milliseconds can't be negative", v.CollectCycle)
	}
	if v.ReportCycle < 0 {
		p.add(at+".reportCycle", "%d: milliseconds can't be negative", v.ReportCycle)
	}
	if v.Deadband < 0 || math.IsNaN(v.Deadband) {
		p.add(at+".deadband", "%v: must be 0 or more", v.Deadband)
	}
}

func (p Property) check(found *problems, at string) {
	if !topics.ValidProperty(p.Name) {
		found.add(at+".name", "%s: must be %s", clip(p.Name), topics.PropertyRule())
	}
	oneOf(found, at+".type", string(p.dataType()), dataTypes)
	oneOf(found, at+".accessMode", string(p.AccessMode), []AccessMode{"", ReadOnly, ReadWrite})
	oneOf(found, at+".conflict", p.Conflict, []string{"", ConflictCloud, ConflictEdge, ConflictLatest})
	oneOf(found, at+".atBoot", p.AtBoot, []string{"", BootLast, BootHold, BootSafe})
	if p.Minimum != nil && p.Maximum != nil && *p.Minimum > *p.Maximum {
		found.add(at+".minimum", "%v is above the maximum of %v", *p.Minimum, *p.Maximum)
	}
	if (p.Minimum != nil || p.Maximum != nil) && !slices.Contains([]DataType{TypeInt, TypeFloat, TypeDouble}, p.dataType()) {
		found.add(at+".minimum", "a range is for int, float and double, not for %s", p.dataType())
	}
	for i, v := range p.Enum {
		if err := (Property{Name: p.Name, Type: p.Type}).Check([]byte(v)); err != nil {
			found.addErr(fmt.Sprintf("%s.enum[%d]", at, i), err)
		}
	}
	if p.AtBoot == BootSafe {
		found.addErr(at+".safeValue", p.Check([]byte(p.SafeValue)))
	}
}

// CheckDesired reports whether value may be wanted of a property.
func (m *DeviceModel) CheckDesired(property string, value []byte) error {
	if err := m.CheckWritable(property); err != nil {
		return err
	}
	p, _ := m.Property(property)
	return p.Check(value)
}

// CheckWritable reports whether a property may be wanted at all, or cleared.
func (m *DeviceModel) CheckWritable(property string) error {
	p, ok := m.Property(property)
	if !ok {
		return m.unknown(property)
	}
	if !p.Writable() {
		return Errorf(Forbidden, property, "is read-only in the model %s", m.Metadata.Name)
	}
	return nil
}

// CheckKnown reports whether the model has the property.
func (m *DeviceModel) CheckKnown(property string) error {
	if _, ok := m.Property(property); !ok {
		return m.unknown(property)
	}
	return nil
}

func (m *DeviceModel) unknown(property string) error {
	return Errorf(NotFound, property, "the model %s has no such property; it has %s", m.Metadata.Name, m.propertyNames())
}

// CheckReported reports whether a mapper may report value for a property.
func (m *DeviceModel) CheckReported(property string, value []byte) error {
	p, ok := m.Property(property)
	if !ok {
		return m.unknown(property)
	}
	// What is, is: a device may be out of the range that may be wanted of it.
	p.Minimum, p.Maximum, p.Enum = nil, nil, nil
	return p.Check(value)
}

func (m *DeviceModel) propertyNames() string {
	const most = 12
	var names []string
	for i, p := range m.Spec.Properties {
		if i == most {
			names = append(names, "…")
			break
		}
		names = append(names, p.Name)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
