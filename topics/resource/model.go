// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
// generated tables in docs follow from the field, its comment and its markers. Dialects keep it in their annotations. A field
// that a mapper's driver needs is copied in mappers/device.go (driverProperty).

// DeviceModel is a reusable template for devices of one type: their properties, and how a mapper reaches them.
type DeviceModel struct {
	TypeMeta
	Metadata Meta            `json:"metadata"`
	Spec     DeviceModelSpec `json:"spec"`
	Status   ModelStatus     `json:"status,omitzero"`
}

// ModelStatus is the observed state of a model.
type ModelStatus struct {
	// Conditions: InUse names the devices that prevent the model's deletion.
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
}

// DeviceModelSpec has a model's properties, events, commands and visitors.
type DeviceModelSpec struct {
	// Title is the name of this type of device for people, such as Heat pump. At most 128 characters.
	Title string `json:"title,omitempty"`
	// Properties are the properties of devices of this model. At most 4,096.
	// +listType=map
	// +listMapKey=name
	Properties []Property `json:"properties,omitempty"`
	// Events are what devices of this model tell once and then forget, such as the press of a button. At most 4,096.
	// +listType=map
	// +listMapKey=name
	Events []ModelEvent `json:"events,omitempty"`
	// Commands are what devices of this model can be told to do once, such as to begin anew. At most 4,096.
	// +listType=map
	// +listMapKey=name
	Commands []ModelCommand `json:"commands,omitempty"`
	// PropertyVisitors say how a mapper reaches the properties, events and commands, for each protocol. At most 4,096.
	// +listType=map
	// +listMapKey=protocol
	PropertyVisitors []ProtocolVisitors `json:"propertyVisitors,omitempty"`
}

// Property is one property of a device.
type Property struct {
	// Name is the name of the property, as in topics: 1 to 253 characters of a–z, A–Z, 0–9, '-', '.' and '_'.
	Name string `json:"name"`
	// Title is the name of the property for people, such as Flow temperature. At most 128 characters.
	Title string `json:"title,omitempty"`
	// Description is for people.
	Description string `json:"description,omitempty"`
	// Type is the type of the values; string when empty.
	// +default=string
	Type DataType `json:"type,omitempty"`
	// AccessMode says whether the property may have a desired value; ReadOnly when empty.
	// +default=ReadOnly
	AccessMode AccessMode `json:"accessMode,omitempty"`
	// Minimum is the least desired value, for int, float and double; no limit when missing.
	Minimum *float64 `json:"minimum,omitempty"`
	// Maximum is the greatest desired value, for int, float and double; no limit when missing.
	Maximum *float64 `json:"maximum,omitempty"`
	// Enum are the only desired values that are allowed; any value when empty.
	Enum []Value `json:"enum,omitempty"`
	// Unit is the unit of measurement, such as °C.
	Unit string `json:"unit,omitempty"`
	// Quantity says what is measured: one of Home Assistant's device classes, such as temperature, energy or battery.
	Quantity string `json:"quantity,omitempty"`
	// Step is the precision of the values of an int, float or double: mappers report the nearest multiple of it. 0: as the device
	// says it.
	// +kubebuilder:validation:Minimum=0
	Step float64 `json:"step,omitempty"`
	// Counter says that a number only grows, except when it begins anew, as the reading of a meter does.
	Counter bool `json:"counter,omitempty"`
	// History says how the values that the property had are kept.
	History *PropertyHistory `json:"history,omitempty"`
	// Conflict says which value is in force when an override meets a newer desired value: the desired value (cloud), the
	// override (edge), or the later one of both (latest).
	// +kubebuilder:validation:Enum=cloud;edge;latest
	// +default=cloud
	Conflict string `json:"conflict,omitempty"`
	// Adopt lets the hub make an override the desired value, unless the hub's own value is newer or the override has an end
	// time.
	Adopt bool `json:"adopt,omitempty"`
	// AtBoot says what the mapper writes to a device that may have lost its values, for example in a power failure: the desired
	// value (last), nothing until a newer value is desired (hold), or safeValue (safe).
	// +kubebuilder:validation:Enum=last;hold;safe
	// +default=last
	AtBoot string `json:"atBoot,omitempty"`
	// SafeValue is the value that is written if atBoot is safe.
	SafeValue Value `json:"safeValue,omitempty"`
	// Alarms are values that somebody must know of. At most 64.
	// +listType=map
	// +listMapKey=name
	Alarms []PropertyAlarm `json:"alarms,omitempty"`
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

// AccessMode says whether a property can be written.
// +kubebuilder:validation:Enum=ReadOnly;ReadWrite
type AccessMode string

// The access modes.
const (
	ReadOnly  AccessMode = "ReadOnly"
	ReadWrite AccessMode = "ReadWrite"
)

// The values of Property.Conflict and Property.AtBoot.
const (
	ConflictCloud  = "cloud"
	ConflictEdge   = "edge"
	ConflictLatest = "latest"

	BootLast = "last"
	BootHold = "hold"
	BootSafe = "safe"
)

// Property returns the property of that name.
func (m *DeviceModel) Property(name string) (Property, bool) {
	for i := range m.Spec.Properties {
		if m.Spec.Properties[i].Name == name {
			return m.Spec.Properties[i], true
		}
	}
	return Property{}, false
}

// Writable reports whether the property may have a desired value.
func (p Property) Writable() bool { return p.AccessMode == ReadWrite }

func (p Property) dataType() DataType { return cmp.Or(p.Type, TypeString) }

// Check reports whether value has the property's type, and is in its range and enumeration. The error names the property and
// the rule.
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
		return p.invalid("%s is not one of %s", clipText(text), p.enumText())
	}
	if p.Minimum != nil && number < *p.Minimum {
		return p.invalid("%s is below the minimum of %s", clipText(text), p.limit(*p.Minimum))
	}
	if p.Maximum != nil && number > *p.Maximum {
		return p.invalid("%s is above the maximum of %s", clipText(text), p.limit(*p.Maximum))
	}
	return nil
}

// parse checks text against the type. number is NaN for types that have no range.
func (p Property) parse(text string) (number float64, err error) {
	number = math.NaN()
	switch t := p.dataType(); t {
	case TypeInt:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, p.invalid("%s is not an integer of 64 bits", clipText(text))
		}
		number = float64(n)
	case TypeFloat, TypeDouble:
		number, err = strconv.ParseFloat(text, bitSize(t))
		if err != nil || math.IsNaN(number) || math.IsInf(number, 0) || strings.ContainsAny(text, "_xXpP") {
			return 0, p.invalid("%s is not a %s: a decimal number such as 21.5", clipText(text), t)
		}
	case TypeBoolean:
		if text != "true" && text != "false" {
			return 0, p.invalid("%s is not a boolean: true or false", clipText(text))
		}
	case TypeBytes:
		if _, err := base64.StdEncoding.DecodeString(text); err != nil {
			return 0, p.invalid("%s is not base64", clipText(text))
		}
	case TypeObject, TypeArray:
		if !isJSON(text, map[DataType]byte{TypeObject: '{', TypeArray: '['}[t]) {
			return 0, p.invalid("%s is not a JSON %s", clipText(text), t)
		}
	case TypeString:
	default:
		return 0, p.invalid("its model gives it the unknown type %s", clipText(string(t)))
	}
	return number, nil
}

func bitSize(t DataType) int {
	if t == TypeFloat {
		return 32
	}
	return 64
}

func isJSON(text string, open byte) bool {
	b := bytes.TrimLeft([]byte(text), " \t\r\n")
	return len(b) > 0 && b[0] == open && json.Valid(b)
}

// Words that YAML 1.1 parsers, such as kubectl's, read as booleans.
var (
	yamlTrue  = []string{"true", "on", "yes", "y"}
	yamlFalse = []string{"false", "off", "no", "n"}
)

// ResolveBoolean returns the value of the property's enumeration from which a YAML 1.1 parser may have made true or false,
// such as ON or yes. If there is none, or more than one, it returns the value unchanged.
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

// Canonical returns the canonical text of a value for comparisons: it is the same for 21.50 and 21.5. A text that is not of
// the property's type is returned unchanged.
func (p Property) Canonical(value []byte) string {
	text := string(value)
	switch p.dataType() {
	case TypeInt:
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return strconv.FormatInt(n, 10)
		}
	case TypeFloat, TypeDouble:
		if f, err := strconv.ParseFloat(text, bitSize(p.dataType())); err == nil {
			return strconv.FormatFloat(f+0, 'g', -1, bitSize(p.dataType())) // +0: no negative zero
		}
	case TypeObject, TypeArray:
		return canonicalJSON(value)
	}
	return text
}

// canonicalJSON sorts keys and removes white space. Numbers keep their digits.
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

// ParseMembers reads the JSON object that sets several properties at once. A member that is null or empty is nil: it clears the
// property.
func ParseMembers(payload []byte) (map[string]*Value, error) {
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

// Validate checks a model: names, types and ranges, and that visitors refer to what it has.
func (m DeviceModel) Validate() error {
	var p causeList
	m.Metadata.check(&p)
	checkTitle(&p, "spec.title", m.Spec.Title)
	p.tooMany("spec.properties", len(m.Spec.Properties))
	p.tooMany("spec.events", len(m.Spec.Events))
	p.tooMany("spec.commands", len(m.Spec.Commands))
	if p.tooMany("spec.propertyVisitors", len(m.Spec.PropertyVisitors)); len(p) > 0 {
		return p.err()
	}
	seen, protocols := uniqueNames{}, uniqueNames{}
	for i, prop := range m.Spec.Properties {
		at := fmt.Sprintf("spec.properties[%d]", i)
		seen.check(&p, at+".name", prop.Name)
		prop.check(&p, at)
	}
	m.checkEvents(&p)
	m.checkCommands(&p)
	for i, pv := range m.Spec.PropertyVisitors {
		at := fmt.Sprintf("spec.propertyVisitors[%d]", i)
		if pv.Protocol == "" {
			p.add(at+".protocol", "is required")
		}
		protocols.check(&p, at+".protocol", strings.ToLower(pv.Protocol))
		pv.Online.check(&p, at+".online", m)
		for j, v := range pv.Visitors {
			at := fmt.Sprintf("%s.visitors[%d]", at, j)
			v.check(&p, at)
			v.checkModel(&p, at, m)
		}
	}
	return p.err()
}

func (p Property) check(found *causeList, at string) {
	if !topics.ValidProperty(p.Name) {
		found.add(at+".name", "%s: must be %s", clipText(p.Name), topics.PropertyRule())
	}
	p.checkValues(found, at)
	checkOneOf(found, at+".accessMode", string(p.AccessMode), []AccessMode{"", ReadOnly, ReadWrite})
	checkOneOf(found, at+".conflict", p.Conflict, []string{"", ConflictCloud, ConflictEdge, ConflictLatest})
	checkOneOf(found, at+".atBoot", p.AtBoot, []string{"", BootLast, BootHold, BootSafe})
	checkTitle(found, at+".title", p.Title)
	p.checkShown(found, at)
	p.checkHistory(found, at+".history")
	if p.AtBoot == BootSafe {
		found.addErr(at+".safeValue", p.Check([]byte(p.SafeValue)))
	}
	checkAlarms(found, at+".alarms", p.Alarms, p)
}

// checkValues checks the type, the range and the enumeration.
func (p Property) checkValues(found *causeList, at string) {
	checkOneOf(found, at+".type", string(p.dataType()), dataTypes)
	if p.Minimum != nil && p.Maximum != nil && *p.Minimum > *p.Maximum {
		found.add(at+".minimum", "%v is above the maximum of %v", *p.Minimum, *p.Maximum)
	}
	if (p.Minimum != nil || p.Maximum != nil) && !p.numeric() {
		found.add(at+".minimum", "a range is for int, float and double, not for %s", p.dataType())
	}
	for i, v := range p.Enum {
		if err := (Property{Name: p.Name, Type: p.Type}).Check([]byte(v)); err != nil {
			found.addErr(fmt.Sprintf("%s.enum[%d]", at, i), err)
		}
	}
}

func (p Property) numeric() bool {
	return slices.Contains([]DataType{TypeInt, TypeFloat, TypeDouble}, p.dataType())
}

const maxQuantity = 63

// checkShown checks how values are shown.
func (p Property) checkShown(found *causeList, at string) {
	number := p.numeric()
	if len(p.Quantity) > maxQuantity || strings.Trim(p.Quantity, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		found.add(at+".quantity", "%s: must be a device class of Home Assistant, such as temperature or carbon_dioxide: at most %d characters of a–z, 0–9 and '_'", clipText(p.Quantity), maxQuantity)
	}
	switch {
	case p.Step == 0:
	case !number:
		found.add(at+".step", "is for int, float and double, not for %s", p.dataType())
	case p.Step < 0 || math.IsNaN(p.Step) || math.IsInf(p.Step, 0):
		found.add(at+".step", "%v: must be above 0, such as 0.1", p.Step)
	case p.dataType() == TypeInt && (p.Step != math.Trunc(p.Step) || p.Step >= 1<<53):
		found.add(at+".step", "%v: must be a whole number for an int", p.Step)
	}
	if p.Counter && !number {
		found.add(at+".counter", "is for int, float and double, not for %s", p.dataType())
	}
}

// Rounded returns the multiple of the property's step that is nearest to a value, with as many digits as the step has. A text that is
// no number, and any value without a step, is returned unchanged.
func (p Property) Rounded(value string) string {
	if p.Step <= 0 {
		return value
	}
	switch p.dataType() {
	case TypeInt:
		n, err := strconv.ParseInt(value, 10, 64)
		step := int64(p.Step)
		if err != nil || step <= 1 {
			return value
		}
		rest := n % step
		down := n - rest
		switch {
		case rest >= step-rest && down <= math.MaxInt64-step:
			down += step
		case -rest >= step+rest && down >= math.MinInt64+step:
			down -= step
		}
		return strconv.FormatInt(down, 10)
	case TypeFloat, TypeDouble:
		x, err := strconv.ParseFloat(value, 64)
		n := math.Round(x / p.Step)
		if err != nil || math.IsNaN(n) || math.Abs(n) >= 1<<53 {
			return value // finer than a float can be
		}
		_, digits, _ := strings.Cut(strconv.FormatFloat(p.Step, 'f', -1, 64), ".")
		text := strconv.FormatFloat(n*p.Step+0, 'f', len(digits), 64)
		if len(digits) > 0 {
			text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
		}
		if text == "-0" {
			return "0"
		}
		return text
	}
	return value
}

// CheckDesired reports whether value may be a property's desired value.
func (m *DeviceModel) CheckDesired(property string, value []byte) error {
	if err := m.CheckWritable(property); err != nil {
		return err
	}
	p, _ := m.Property(property)
	return p.Check(value)
}

// CheckWritable reports whether a property's desired value may be set or cleared.
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
	names := make([]string, len(m.Spec.Properties))
	for i, p := range m.Spec.Properties {
		names[i] = p.Name
	}
	return Errorf(NotFound, property, "the model %s has no such property; it has %s%s", m.Metadata.Name, m.propertyNames(), DidYouMean(property, names))
}

// CheckReported reports whether value may be a property's reported value.
func (m *DeviceModel) CheckReported(property string, value []byte) error {
	p, ok := m.Property(property)
	if !ok {
		return m.unknown(property)
	}
	// Ranges and enumerations limit desired values only: a device may have any value.
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
