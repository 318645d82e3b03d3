package resource

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/edgebus/edgebus/topics"
)

const (
	maxLabelPart = 63
	maxLabels    = 256
	maxHolders   = 64        // finalizers, and owner references
	maxMetadata  = 256 << 10 // bytes of all annotations, as in Kubernetes
	maxListed    = 4096      // properties of a model, and entries of a Device's lists: each is compared with the others
)

// Validate checks an object's metadata; the error names every broken rule.
func (m Meta) Validate() error { return m.ValidateChange(Meta{}) }

// ValidateChange checks what old doesn't have: a rule that came later must not block a change of something else.
func (m Meta) ValidateChange(old Meta) error {
	var p problems
	m.checkChange(&p, old)
	return p.err()
}

func (m Meta) check(p *problems) { m.checkChange(p, Meta{}) }

func (m Meta) checkChange(p *problems, old Meta) {
	switch {
	case m.Name == "" && m.GenerateName == "":
		p.add("metadata.name", "is required")
	case m.Name != "" && !topics.ValidName(m.Name):
		p.add("metadata.name", "%s: must be %s", clip(m.Name), topics.NameRule())
	}
	if m.Namespace != "" && (!topics.ValidName(m.Namespace) || len(m.Namespace) > 63 || strings.Contains(m.Namespace, ".")) {
		p.add("metadata.namespace", "%s: must be 1–63 characters of a–z, 0–9 and '-'", clip(m.Namespace))
	}
	if len(m.Labels) > max(maxLabels, len(old.Labels)) {
		p.add("metadata.labels", "more than %d labels", maxLabels)
	}
	for key, value := range m.Labels {
		if was, had := old.Labels[key]; !had || was != value {
			checkLabel(p, "metadata.labels", key, value)
		}
	}
	m.checkAnnotations(p, old)
	if len(m.Finalizers) > max(maxHolders, len(old.Finalizers)) {
		p.add("metadata.finalizers", "more than %d finalizers", maxHolders)
		return
	}
	if len(m.OwnerReferences) > max(maxHolders, len(old.OwnerReferences)) {
		p.add("metadata.ownerReferences", "more than %d owner references", maxHolders)
		return
	}
	for i, f := range m.Finalizers {
		if !slices.Contains(old.Finalizers, f) && !validKey(f) {
			p.add(fmt.Sprintf("metadata.finalizers[%d]", i), "%s: a finalizer's name is %s", clip(f), keyRule)
		}
	}
	for i, o := range m.OwnerReferences {
		if slices.ContainsFunc(old.OwnerReferences, func(was OwnerReference) bool { return reflect.DeepEqual(was, o) }) {
			continue
		}
		at := fmt.Sprintf("metadata.ownerReferences[%d].", i)
		required(p, at+"apiVersion", o.APIVersion)
		required(p, at+"kind", o.Kind)
		required(p, at+"name", o.Name)
		required(p, at+"uid", o.UID)
	}
}

func (m Meta) checkAnnotations(p *problems, old Meta) {
	for k := range m.Annotations {
		if _, had := old.Annotations[k]; !had && !validKey(k) {
			p.add("metadata.annotations", "%s: an annotation's name is %s", clip(k), keyRule)
		}
	}
	if size := m.annotated(); size > max(maxMetadata, old.annotated()) {
		p.add("metadata.annotations", "%d bytes in all; at most %d are kept", size, maxMetadata)
	}
}

// annotated is how many bytes all annotations have.
func (m Meta) annotated() (size int) {
	for k, v := range m.Annotations {
		size += len(k) + len(v)
	}
	return size
}

const keyRule = "1–63 letters, digits, '-', '_' and '.', after a domain and '/' if there is one"

// validKey is whether a text may name a label, an annotation or a finalizer.
func validKey(key string) bool {
	prefix, name, prefixed := strings.Cut(key, "/")
	if !prefixed {
		name = key
	}
	bad := strings.ContainsFunc(name, func(c rune) bool { return !isKeyLetter(c) })
	return !bad && name != "" && len(name) <= maxLabelPart && (!prefixed || topics.ValidName(prefix))
}

// checkLabel checks a label. Values may have characters that no selector can name, as the
// manifests of many do: blanks, colons.
func checkLabel(p *problems, field, key, value string) {
	if !validKey(key) {
		p.add(field, "%s: a label's name is %s", clip(key), keyRule)
	}
	if len(value) > maxLabelPart || strings.ContainsFunc(value, unicode.IsControl) {
		p.add(field+"["+key+"]", "%s: a label's value has at most %d bytes, and no control characters", clip(value), maxLabelPart)
	}
}

// Validate checks a Device by itself; see CheckModel for what its model asks.
func (d Device) Validate() error {
	var p problems
	d.Metadata.check(&p)
	if d.Spec.DeviceModelRef.Name == "" {
		p.add("spec.deviceModelRef.name", "is required: the DeviceModel that describes the device's properties")
	} else if !topics.ValidName(d.Spec.DeviceModelRef.Name) {
		p.add("spec.deviceModelRef.name", "%s: must be %s", clip(d.Spec.DeviceModelRef.Name), topics.NameRule())
	}
	if d.Spec.NodeName != "" && !topics.ValidName(d.Spec.NodeName) {
		p.add("spec.nodeName", "%s: must be %s", clip(d.Spec.NodeName), topics.NameRule())
	}
	if d.Spec.Protocol.Type == "" {
		p.add("spec.protocol.type", "is required: the protocol that a mapper speaks with the device, such as modbus")
	}
	p.tooMany("spec.propertyVisitors", len(d.Spec.PropertyVisitors))
	p.tooMany("spec.push", len(d.Spec.Push))
	p.tooMany("spec.local", len(d.Spec.Local))
	properties := len(d.Spec.Commands)
	for _, c := range d.Spec.Commands {
		properties += len(c.Properties)
	}
	if p.tooMany("spec.commands", properties); len(p) > 0 {
		return p.err()
	}
	for name := range d.Spec.Desired {
		if !topics.ValidProperty(name) {
			p.add("spec.desired["+name+"]", "bad property name: must be %s", topics.PropertyRule())
		}
	}
	for name, until := range d.Spec.DesiredUntil {
		if _, ok := d.Spec.Desired[name]; !ok {
			p.add("spec.desiredUntil["+name+"]", "has no desired value to end")
		}
		if _, err := ParseTime(until); err != nil {
			p.addErr("spec.desiredUntil["+name+"]", err)
		}
	}
	for i, x := range d.Spec.Push {
		x.check(&p, fmt.Sprintf("spec.push[%d]", i))
	}
	for i, c := range d.Spec.Commands {
		at := fmt.Sprintf("spec.commands[%d]", i)
		if !topics.ValidProperty(c.Name) {
			p.add(at+".name", "%s: must be %s", clip(c.Name), topics.PropertyRule())
		}
		if slices.ContainsFunc(d.Spec.Commands[:i], func(o DeviceCommand) bool { return o.Name == c.Name }) {
			p.add(at+".name", "%s stands twice", clip(c.Name))
		}
	}
	for i, v := range d.Spec.PropertyVisitors {
		at := fmt.Sprintf("spec.propertyVisitors[%d]", i)
		required(&p, at+".propertyName", v.PropertyName)
		if slices.ContainsFunc(d.Spec.PropertyVisitors[:i], func(o Visitor) bool { return o.PropertyName == v.PropertyName }) {
			p.add(at+".propertyName", "%s stands twice", clip(v.PropertyName))
		}
		v.checkCycles(&p, at)
	}
	sortProblems(p)
	return p.err()
}

// Mean reads a Device's wanted values by its model; see Property.Meant.
func (d *Device) Mean(m DeviceModel) {
	for name, value := range d.Spec.Desired {
		if p, ok := m.Property(name); ok {
			d.Spec.Desired[name] = p.Meant(value)
		}
	}
}

// CheckModel checks a Device's wanted values against its model.
func (d Device) CheckModel(m DeviceModel) error {
	var p problems
	for name, value := range d.Spec.Desired {
		p.addErr("spec.desired["+name+"]", m.CheckDesired(name, []byte(value)))
	}
	for i, v := range d.Spec.PropertyVisitors {
		p.addErr(fmt.Sprintf("spec.propertyVisitors[%d].propertyName", i), m.CheckKnown(v.PropertyName))
	}
	for i, x := range d.Spec.Push {
		p.addErr(fmt.Sprintf("spec.push[%d].propertyName", i), m.CheckKnown(x.PropertyName))
	}
	for i, name := range d.Spec.Local {
		p.addErr(fmt.Sprintf("spec.local[%d]", i), m.CheckKnown(name))
	}
	for i, c := range d.Spec.Commands {
		for j, name := range c.Properties {
			p.addErr(fmt.Sprintf("spec.commands[%d].properties[%d]", i, j), m.CheckWritable(name))
		}
	}
	sortProblems(p)
	return p.err()
}

func sortProblems(p problems) {
	slices.SortFunc(p, func(a, b Cause) int { return strings.Compare(a.Field, b.Field) })
}

// CheckDesired says whether value may be wanted of a property.
func (m *DeviceModel) CheckDesired(property string, value []byte) error {
	if err := m.CheckWritable(property); err != nil {
		return err
	}
	p, _ := m.Property(property)
	return p.Check(value)
}

// CheckWritable says whether a property may be wanted at all, or cleared.
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

// CheckKnown says whether the model has the property.
func (m *DeviceModel) CheckKnown(property string) error {
	if _, ok := m.Property(property); !ok {
		return m.unknown(property)
	}
	return nil
}

func (m *DeviceModel) unknown(property string) error {
	return Errorf(NotFound, property, "the model %s has no such property; it has %s", m.Metadata.Name, m.propertyNames())
}

// CheckReported says whether a mapper may report value for a property.
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

// Validate checks a model: names, types, ranges, and that visitors name properties.
func (m DeviceModel) Validate() error {
	var p problems
	m.Metadata.check(&p)
	p.tooMany("spec.properties", len(m.Spec.Properties))
	if p.tooMany("spec.propertyVisitors", len(m.Spec.PropertyVisitors)); len(p) > 0 {
		return p.err()
	}
	seen := make(map[string]bool)
	for i, prop := range m.Spec.Properties {
		at := fmt.Sprintf("spec.properties[%d]", i)
		if seen[prop.Name] {
			p.add(at+".name", "%s stands twice", clip(prop.Name))
		}
		seen[prop.Name] = true
		prop.check(&p, at)
	}
	for i, pv := range m.Spec.PropertyVisitors {
		at := fmt.Sprintf("spec.propertyVisitors[%d]", i)
		if pv.Protocol == "" {
			p.add(at+".protocol", "is required")
		}
		if slices.ContainsFunc(m.Spec.PropertyVisitors[:i], func(o ProtocolVisitors) bool { return strings.EqualFold(o.Protocol, pv.Protocol) }) {
			p.add(at+".protocol", "%s stands twice", clip(pv.Protocol))
		}
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

func oneOf[T ~string](p *problems, field, value string, allowed []T) {
	if slices.Contains(allowed, T(value)) {
		return
	}
	var names []string
	for _, a := range allowed {
		if a != "" {
			names = append(names, string(a))
		}
	}
	p.add(field, "%s is not one of %s", clip(value), strings.Join(names, ", "))
}
