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
	"unicode"
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

// DeviceModelSpec has a model's properties and visitors.
type DeviceModelSpec struct {
	// Properties are the properties of devices of this model. At most 4,096.
	// +listType=map
	// +listMapKey=name
	Properties []Property `json:"properties,omitempty"`
	// PropertyVisitors say how a mapper reaches the properties, for each protocol. At most 4,096.
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

// ProtocolVisitors say how a mapper reaches the properties through one protocol.
type ProtocolVisitors struct {
	// Protocol is the protocol, as in spec.protocol.type of a Device.
	Protocol string `json:"protocol"`
	// Config has defaults for the spec.protocol.config of the model's devices. Numbers and booleans are taken for their text.
	Config map[string]Value `json:"config,omitempty"`
	// Visitors say how to reach each property.
	Visitors []Visitor `json:"visitors"`
}

// Visitor says how a mapper reaches one property.
type Visitor struct {
	// Name is the name of the visitor itself.
	Name string `json:"name,omitempty"`
	// PropertyName is the property, one of the model's.
	PropertyName string `json:"propertyName"`
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

// Property returns the property of that name.
func (m *DeviceModel) Property(name string) (Property, bool) {
	for i := range m.Spec.Properties {
		if m.Spec.Properties[i].Name == name {
			return m.Spec.Properties[i], true
		}
	}
	return Property{}, false
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

// withVisitors returns a copy of the model in which visitors of a protocol replace its visitors of the same properties.
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
		all.Config = pv.Config
		for _, v := range pv.Visitors {
			if !slices.ContainsFunc(own, func(o Visitor) bool { return o.PropertyName == v.PropertyName }) {
				all.Visitors = append(all.Visitors, v)
			}
		}
	}
	m.Spec.PropertyVisitors = append(rest, all) // last: a later entry counts if a driver has several names
	return m
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

// Validate checks a model: names, types and ranges, and that visitors refer to properties.
func (m DeviceModel) Validate() error {
	var p causeList
	m.Metadata.check(&p)
	p.tooMany("spec.properties", len(m.Spec.Properties))
	if p.tooMany("spec.propertyVisitors", len(m.Spec.PropertyVisitors)); len(p) > 0 {
		return p.err()
	}
	seen, protocols := uniqueNames{}, uniqueNames{}
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
			if prop, ok := m.Property(v.PropertyName); ok {
				v.checkWords(&p, fmt.Sprintf("%s.visitors[%d]", at, j), prop)
			}
		}
	}
	return p.err()
}

func (v Visitor) check(p *causeList, at string, known map[string]bool) {
	if !known[v.PropertyName] {
		p.add(at+".propertyName", "%s is not a property of the model", clipText(v.PropertyName))
	}
	v.checkCycles(p, at)
}

func (v Visitor) checkCycles(p *causeList, at string) {
	for _, x := range []struct {
		field string
		ms    int64
	}{{"collectCycle", v.CollectCycle}, {"reportCycle", v.ReportCycle}, {"expireAfter", v.ExpireAfter}, {"confirmWithin", v.ConfirmWithin}} {
		if x.ms < 0 {
			p.add(at+"."+x.field, "%d: milliseconds can't be negative", x.ms)
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

const maxNotAvailable = 64

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

// checkWords checks the values of the words against the property.
func (v Visitor) checkWords(p *causeList, at string, prop Property) {
	for i, w := range v.Words {
		if w.Value != "" {
			p.addErr(fmt.Sprintf("%s.words[%d].value", at, i), prop.Check([]byte(w.Value)))
		}
	}
}

func (p Property) check(found *causeList, at string) {
	if !topics.ValidProperty(p.Name) {
		found.add(at+".name", "%s: must be %s", clipText(p.Name), topics.PropertyRule())
	}
	checkOneOf(found, at+".type", string(p.dataType()), dataTypes)
	checkOneOf(found, at+".accessMode", string(p.AccessMode), []AccessMode{"", ReadOnly, ReadWrite})
	checkOneOf(found, at+".conflict", p.Conflict, []string{"", ConflictCloud, ConflictEdge, ConflictLatest})
	checkOneOf(found, at+".atBoot", p.AtBoot, []string{"", BootLast, BootHold, BootSafe})
	if p.Minimum != nil && p.Maximum != nil && *p.Minimum > *p.Maximum {
		found.add(at+".minimum", "%v is above the maximum of %v", *p.Minimum, *p.Maximum)
	}
	if (p.Minimum != nil || p.Maximum != nil) && !slices.Contains([]DataType{TypeInt, TypeFloat, TypeDouble}, p.dataType()) {
		found.add(at+".minimum", "a range is for int, float and double, not for %s", p.dataType())
	}
	p.checkShown(found, at)
	p.checkHistory(found, at+".history")
	for i, v := range p.Enum {
		if err := (Property{Name: p.Name, Type: p.Type}).Check([]byte(v)); err != nil {
			found.addErr(fmt.Sprintf("%s.enum[%d]", at, i), err)
		}
	}
	if p.AtBoot == BootSafe {
		found.addErr(at+".safeValue", p.Check([]byte(p.SafeValue)))
	}
}

const (
	maxTitle    = 128
	maxQuantity = 63
)

// checkShown checks how values are shown.
func (p Property) checkShown(found *causeList, at string) {
	number := slices.Contains([]DataType{TypeInt, TypeFloat, TypeDouble}, p.dataType())
	if utf8.RuneCountInString(p.Title) > maxTitle || strings.ContainsFunc(p.Title, unicode.IsControl) {
		found.add(at+".title", "%s: must be at most %d characters, in one line", clipText(p.Title), maxTitle)
	}
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
