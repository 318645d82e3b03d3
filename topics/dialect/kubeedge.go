package dialect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

const kubeedgeGroup = "devices.kubeedge.io"

// scalarText is a string that a manifest may also have as a number, a boolean or an object. An object is kept as its JSON.
type scalarText = resource.Value

func kubeedgeDevice(version string) Kind {
	return Kind{
		Group: kubeedgeGroup, Version: version, Name: "Device", Plural: "devices", Singular: "device",
		Canonical: resource.KindDevice,
	}
}

func kubeedgeModel(version string) Kind {
	return Kind{
		Group: kubeedgeGroup, Version: version, Name: "DeviceModel", Plural: "devicemodels", Singular: "devicemodel",
		Canonical: resource.KindDeviceModel,
	}
}

// maxMillis is the longest cycle that is read as milliseconds: an hour. Some versions of KubeEdge, and its published
// samples, have cycles in nanoseconds; larger numbers are read as these.
const maxMillis = int64(time.Hour / time.Millisecond)

// toMillis reads a cycle.
func toMillis(n int64) int64 {
	if n > maxMillis {
		return max(n/int64(time.Millisecond), 1)
	}
	return n
}

// fromMillis writes one so that toMillis reads it as it was.
func fromMillis(ms int64) int64 {
	if ms > maxMillis && ms <= math.MaxInt64/int64(time.Millisecond) {
		return ms * int64(time.Millisecond)
	}
	return ms
}

// cycleWarnings returns a warning for each cycle of a form that is so long that it is read as nanoseconds.
func cycleWarnings(at string, v any) (doubts []string) {
	switch v := v.(type) {
	case jsonObject:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			n, ok := v[name].(json.Number)
			if ns, err := n.Int64(); ok && err == nil && ns > maxMillis && (name == "collectCycle" || name == "reportCycle") {
				doubts = append(doubts, fmt.Sprintf("%s.%s: %d is more than an hour of milliseconds, and read as nanoseconds: %s",
					at, name, ns, time.Duration(toMillis(ns))*time.Millisecond))
			}
			doubts = append(doubts, cycleWarnings(at+"."+name, v[name])...)
		}
	case []any:
		for i, e := range v {
			doubts = append(doubts, cycleWarnings(fmt.Sprintf("%s[%d]", at, i), e)...)
		}
	}
	return doubts
}

// protocolOf is the canonical type of a protocol. A Device of these forms may have none: KubeEdge takes it, and gives it to no mapper.
func protocolOf(name string) string { return cmp.Or(name, resource.NoProtocol) }

// protocolName is the inverse of protocolOf.
func protocolName(of string) string {
	if of == resource.NoProtocol {
		return ""
	}
	return of
}

// mapValues applies f to each value of m. The result of a nil map is nil.
func mapValues[A, B any](m map[string]A, f func(A) B) map[string]B {
	if m == nil {
		return nil
	}
	out := make(map[string]B, len(m))
	for name, v := range m {
		out[name] = f(v)
	}
	return out
}

// plainConfig converts the values of a configuration to plain strings.
func plainConfig(config map[string]scalarText) map[string]string {
	return mapValues(config, func(v scalarText) string { return string(v) })
}

func textConfig(config map[string]string) map[string]scalarText {
	return mapValues(config, func(v string) scalarText { return scalarText(v) })
}

// configToJSON converts the values of a configuration to JSON: a text that looks like a number or boolean becomes one.
func configToJSON(config map[string]string) map[string]json.RawMessage {
	return mapValues(config, valueToJSON)
}

func valueToJSON(v string) json.RawMessage {
	if raw := []byte(v); v != "null" && !strings.HasPrefix(v, `"`) && json.Valid(raw) {
		return raw
	}
	raw, _ := json.Marshal(v) // a string
	return raw
}

func configFromJSON(config map[string]json.RawMessage) (map[string]string, error) {
	if config == nil {
		return nil, nil
	}
	out := make(map[string]string, len(config))
	for name, raw := range config {
		var v scalarText
		if err := v.UnmarshalJSON(raw); err != nil {
			return nil, wrongType(err)
		}
		out[name] = string(v)
	}
	return out, nil
}

// twinValueForm is one side of a twin.
type twinValueForm struct {
	Value    scalarText            `json:"value"`
	Optional keptField[bool]       `json:"optional,omitempty"` // the first documents have it
	Metadata map[string]scalarText `json:"metadata,omitempty"`
}

// timestampKey is the name of a value's time among its metadata: milliseconds since 1970, as text.
const timestampKey = "timestamp"

// shownValue is what is known of one side of a twin, nil if that is nothing.
func shownValue(v *resource.TwinValue) *twinValueForm {
	if v == nil {
		return nil
	}
	out := &twinValueForm{Value: scalarText(v.Value)}
	if at, err := resource.ParseTime(v.TS); err == nil {
		out.Metadata = map[string]scalarText{timestampKey: scalarText(strconv.FormatInt(at.UnixMilli(), 10))}
	}
	return out
}

func (v *twinValueForm) twin() *resource.TwinValue {
	if v == nil || v.Value == "" {
		return nil
	}
	out := &resource.TwinValue{Value: string(v.Value)}
	if ms, err := strconv.ParseInt(string(v.Metadata[timestampKey]), 10, 64); err == nil {
		out.TS = resource.FormatTime(time.UnixMilli(ms))
	}
	return out
}

// desiredOf returns the desired value of a property: the value from the spec, its time from the status.
func desiredOf(d resource.Device, name string) *twinValueForm {
	v, wanted := d.Spec.Desired[name]
	if !wanted {
		return nil
	}
	out := &twinValueForm{Value: v}
	if known := shownValue(d.Status.Twin[name].Desired); known != nil && known.Value == v {
		out.Metadata = known.Metadata
	}
	return out
}

// twinBuilder puts the two sides of each property together, as the canonical form has them.
type twinBuilder struct{ d *resource.Device }

func (t twinBuilder) add(name string, desired, reported *twinValueForm) {
	if name == "" {
		return
	}
	want, is := desired.twin(), reported.twin()
	if want != nil {
		t.want(name, desired)
	}
	if want == nil && is == nil {
		return
	}
	if t.d.Status.Twin == nil {
		t.d.Status.Twin = map[string]resource.TwinProperty{}
	}
	t.d.Status.Twin[name] = resource.TwinProperty{
		Desired: want, Reported: is, InSync: want == nil || is != nil && want.Value == is.Value,
	}
}

func (t twinBuilder) want(name string, v *twinValueForm) {
	if t.d.Spec.Desired == nil {
		t.d.Spec.Desired = map[string]resource.Value{}
	}
	t.d.Spec.Desired[name] = v.Value
}

// twinNames are the properties that have a desired or a reported value, sorted.
func twinNames(d resource.Device) []string {
	all := make(map[string]bool)
	for name := range d.Spec.Desired {
		all[name] = true
	}
	for name, t := range d.Status.Twin {
		if t.Reported != nil {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

var accessModes = map[string]resource.AccessMode{"r": resource.ReadOnly, "rw": resource.ReadWrite, "w": resource.ReadWrite}

var typeNames = map[string]resource.DataType{
	"integer": resource.TypeInt, "int64": resource.TypeInt, "int32": resource.TypeInt, "bool": resource.TypeBoolean,
}

// dataType reads the name of a type, whatever its case.
func dataType(name string) resource.DataType {
	name = strings.ToLower(name)
	if t, ok := typeNames[name]; ok {
		return t
	}
	return resource.DataType(name)
}

// setLimits reads a range; false if one of its ends is not a number.
func setLimits(p *resource.Property, low, high scalarText) bool {
	var okLow, okHigh bool
	p.Minimum, okLow = parseLimit(low)
	p.Maximum, okHigh = parseLimit(high)
	return okLow && okHigh
}

// parseLimit reads one end of a range; ok is false when the text is no number.
func parseLimit(v scalarText) (n *float64, ok bool) {
	if v == "" {
		return nil, true
	}
	f, err := strconv.ParseFloat(string(v), 64)
	return &f, err == nil && !math.IsNaN(f) && !math.IsInf(f, 0)
}

func limitText(n *float64) scalarText {
	if n == nil {
		return ""
	}
	return scalarText(strconv.FormatFloat(*n, 'f', -1, 64))
}

// devices.kubeedge.io/v1alpha1: wanted values stand in the status, as expected.

type deviceV1alpha1 struct {
	Spec struct {
		DeviceModelRef resource.ObjectRef `json:"deviceModelRef,omitzero"`
		NodeName       string             `json:"nodeName,omitempty"`
		Node           *nodeRef           `json:"node,omitempty"`
		Protocol       protocolV1alpha1   `json:"protocol,omitzero"`
	} `json:"spec"`
	Status struct {
		State string         `json:"state,omitempty"`
		Twins []twinV1alpha1 `json:"twins,omitempty"`
	} `json:"status,omitzero"`
}

// nodeRef is the alternative to nodeName.
type nodeRef struct {
	ID       string            `json:"id,omitempty"`
	Relation keptField[string] `json:"relation,omitempty"`
	Comment  keptField[string] `json:"comment,omitempty"`
}

type protocolV1alpha1 struct {
	Name   string                `json:"name,omitempty"`
	Type   string                `json:"type,omitempty"`
	Config map[string]scalarText `json:"config,omitempty"`
}

type twinV1alpha1 struct {
	Name     string         `json:"name"`
	Expected *twinValueForm `json:"expected,omitempty"`
	Actual   *twinValueForm `json:"actual,omitempty"`
}

type modelV1alpha1 struct {
	Spec struct {
		Properties       []propertyV1alpha1 `json:"properties,omitempty"`
		PropertyVisitors []visitorsV1alpha1 `json:"propertyVisitors,omitempty"`
	} `json:"spec"`
}

type propertyV1alpha1 struct {
	Name        string                `json:"name"`
	Description string                `json:"description,omitempty"`
	Config      map[string]scalarText `json:"config,omitempty"`
}

type visitorsV1alpha1 struct {
	Protocol string            `json:"protocol"`
	Visitors []visitorV1alpha1 `json:"visitors"`
}

type visitorV1alpha1 struct {
	Name         string                `json:"name,omitempty"`
	PropertyName string                `json:"propertyName"`
	Config       map[string]scalarText `json:"config,omitempty"`
}

func kubeedgeV1alpha1() []Kind {
	device := kubeedgeDevice("v1alpha1").pair(typedConversion(readV1alpha1, showV1alpha1))
	device.reconcile = reconcileNode
	model := kubeedgeModel("v1alpha1").pair(typedConversion(readModelV1alpha1, showModelV1alpha1))
	device.freeLabels, model.freeLabels = true, true // those of the design document
	return []Kind{device, model}
}

func readV1alpha1(f deviceV1alpha1) (d resource.Device, err error) {
	p := f.Spec.Protocol
	d.Spec = resource.DeviceSpec{
		DeviceModelRef: f.Spec.DeviceModelRef, NodeName: f.Spec.NodeName,
		Protocol: resource.Protocol{Name: p.Name, Type: protocolOf(p.Type), Config: plainConfig(p.Config)},
	}
	if n := f.Spec.Node; n != nil && n.ID != "" {
		if d.Spec.NodeName != "" && d.Spec.NodeName != n.ID {
			return d, resource.Errorf(resource.Invalid, "spec.node.id",
				"%.80q is not the node of spec.nodeName, %.80q: give one, or the same twice", n.ID, d.Spec.NodeName)
		}
		d.Spec.NodeName = n.ID
	}
	d.Status.State = f.Status.State
	for _, t := range f.Status.Twins {
		twinBuilder{&d}.add(t.Name, t.Expected, t.Actual)
	}
	return d, nil
}

func showV1alpha1(d resource.Device) (f deviceV1alpha1) {
	p := d.Spec.Protocol
	f.Spec.DeviceModelRef, f.Spec.NodeName = d.Spec.DeviceModelRef, d.Spec.NodeName
	f.Spec.Protocol = protocolV1alpha1{p.Name, protocolName(p.Type), textConfig(p.Config)}
	f.Status.State = d.Status.State
	for _, name := range twinNames(d) {
		f.Status.Twins = append(f.Status.Twins, twinV1alpha1{name, desiredOf(d, name), shownValue(d.Status.Twin[name].Reported)})
	}
	return f
}

// reconcileNode makes node.id, where it is used, the one place that names the node.
func reconcileNode(form, canonical jsonObject) {
	spec, _ := form["spec"].(jsonObject)
	node, _ := spec["node"].(jsonObject)
	if id, _ := node["id"].(string); id == "" {
		return
	}
	c, _ := canonical["spec"].(jsonObject)
	setField(node, "id", c["nodeName"])
	if spec["nodeName"] != node["id"] {
		delete(spec, "nodeName")
	}
}

// The keys of a property's config that have a meaning.
const (
	keyType   = "dataType"
	keyAccess = "accessMode"
	keyUnit   = "unit"
	keyMin    = "min"
	keyMax    = "max"
)

func readModelV1alpha1(f modelV1alpha1) (m resource.DeviceModel, err error) {
	for i, p := range f.Spec.Properties {
		out := resource.Property{
			Name: p.Name, Description: p.Description, Unit: string(p.Config[keyUnit]),
			Type: dataType(string(p.Config[keyType])), AccessMode: resource.AccessMode(p.Config[keyAccess]),
		}
		if mode, ok := accessModes[string(out.AccessMode)]; ok {
			out.AccessMode = mode
		}
		if !setLimits(&out, p.Config[keyMin], p.Config[keyMax]) {
			return m, resource.Errorf(resource.Invalid, fmt.Sprintf("spec.properties[%d].config", i), "min and max must be numbers")
		}
		m.Spec.Properties = append(m.Spec.Properties, out)
	}
	for _, pv := range f.Spec.PropertyVisitors {
		out := resource.ProtocolVisitors{Protocol: pv.Protocol}
		for _, v := range pv.Visitors {
			out.Visitors = append(out.Visitors, resource.Visitor{Name: v.Name, PropertyName: v.PropertyName, Config: plainConfig(v.Config)})
		}
		m.Spec.PropertyVisitors = append(m.Spec.PropertyVisitors, out)
	}
	return m, nil
}

func showModelV1alpha1(m resource.DeviceModel) (f modelV1alpha1) {
	for _, p := range m.Spec.Properties {
		access := scalarText(p.AccessMode)
		switch p.AccessMode {
		case resource.ReadOnly:
			access = "r"
		case resource.ReadWrite:
			access = "rw"
		}
		config := map[string]scalarText{
			keyType: scalarText(p.Type), keyAccess: access, keyUnit: scalarText(p.Unit),
			keyMin: limitText(p.Minimum), keyMax: limitText(p.Maximum),
		}
		maps.DeleteFunc(config, func(_ string, v scalarText) bool { return v == "" })
		f.Spec.Properties = append(f.Spec.Properties, propertyV1alpha1{p.Name, p.Description, config})
	}
	for _, pv := range m.Spec.PropertyVisitors {
		out := visitorsV1alpha1{Protocol: pv.Protocol}
		for _, v := range pv.Visitors {
			out.Visitors = append(out.Visitors, visitorV1alpha1{v.Name, v.PropertyName, textConfig(v.Config)})
		}
		f.Spec.PropertyVisitors = append(f.Spec.PropertyVisitors, out)
	}
	return f
}

// devices.kubeedge.io/v1alpha2: each protocol and each type has fields of its own, and
// visitors belong to the Device.

type protocolOptions = map[string]json.RawMessage

type deviceV1alpha2 struct {
	Spec struct {
		DeviceModelRef   resource.ObjectRef    `json:"deviceModelRef,omitzero"`
		NodeSelector     *nodeSelector         `json:"nodeSelector,omitempty"`
		Protocol         protocolV1alpha2      `json:"protocol,omitzero"`
		PropertyVisitors []visitorV1alpha2     `json:"propertyVisitors,omitempty"`
		Data             keptField[jsonObject] `json:"data,omitempty"`
	} `json:"spec"`
	Status struct {
		Twins []twinV1alpha2 `json:"twins,omitempty"`
	} `json:"status,omitzero"`
}

// nodeSelector binds to the first value of its first expression, whatever the key is called.
type nodeSelector struct {
	Terms []nodeTerm `json:"nodeSelectorTerms,omitempty"`
}

type nodeTerm struct {
	Expressions []matchExpression       `json:"matchExpressions,omitempty"`
	Fields      keptField[[]jsonObject] `json:"matchFields,omitempty"`
}

type matchExpression struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values"`
}

type protocolV1alpha2 struct {
	protocolSections
	Common *commonV1alpha2 `json:"common,omitempty"`
}

// protocolSections are the configurations of a protocol, of which one is set.
type protocolSections struct {
	Modbus     protocolOptions    `json:"modbus,omitempty"`
	OPCUA      protocolOptions    `json:"opcua,omitempty"`
	Bluetooth  protocolOptions    `json:"bluetooth,omitempty"`
	Customized *customizedSection `json:"customizedProtocol,omitempty"`
}

type commonV1alpha2 struct {
	TCP              protocolOptions       `json:"tcp,omitempty"`
	COM              protocolOptions       `json:"com,omitempty"`
	CommType         keptField[string]     `json:"commType,omitempty"`
	ReconnTimeout    keptField[int64]      `json:"reconnTimeout,omitempty"`
	ReconnRetryTimes keptField[int64]      `json:"reconnRetryTimes,omitempty"`
	CollectTimeout   keptField[int64]      `json:"collectTimeout,omitempty"`
	CollectRetry     keptField[int64]      `json:"collectRetryTimes,omitempty"`
	CollectType      keptField[string]     `json:"collectType,omitempty"`
	CustomizedValues keptField[jsonObject] `json:"customizedValues,omitempty"`
}

type customizedSection struct {
	ProtocolName string          `json:"protocolName,omitempty"`
	ConfigData   protocolOptions `json:"configData,omitempty"`
}

type visitorV1alpha2 struct {
	PropertyName string `json:"propertyName"`
	CollectCycle int64  `json:"collectCycle,omitempty"`
	ReportCycle  int64  `json:"reportCycle,omitempty"`
	protocolSections
	Values keptField[jsonObject] `json:"customizedValues,omitempty"`
}

type twinV1alpha2 struct {
	PropertyName string         `json:"propertyName"`
	Desired      *twinValueForm `json:"desired,omitempty"`
	Reported     *twinValueForm `json:"reported,omitempty"`
}

type modelV1alpha2 struct {
	Spec struct {
		Properties []propertyV1alpha2 `json:"properties,omitempty"`
		Protocol   keptField[string]  `json:"protocol,omitempty"`
	} `json:"spec"`
}

type propertyV1alpha2 struct {
	Name        string                  `json:"name"`
	Description string                  `json:"description,omitempty"`
	Type        map[string]typeV1alpha2 `json:"type,omitempty"`
}

// typeV1alpha2 is what stands under the name of a type.
type typeV1alpha2 struct {
	AccessMode resource.AccessMode `json:"accessMode,omitempty"`
	Minimum    *float64            `json:"minimum,omitempty"`
	Maximum    *float64            `json:"maximum,omitempty"`
	Unit       string              `json:"unit,omitempty"`
	Default    keptField[any]      `json:"defaultValue,omitempty"`
}

func kubeedgeV1alpha2() []Kind {
	return []Kind{
		kubeedgeDevice("v1alpha2").pair(typedConversion(readV1alpha2, showV1alpha2)),
		kubeedgeModel("v1alpha2").pair(typedConversion(readModelV1alpha2, showModelV1alpha2)),
	}
}

func readV1alpha2(f deviceV1alpha2) (d resource.Device, err error) {
	d.Spec.DeviceModelRef = f.Spec.DeviceModelRef
	if s := f.Spec.NodeSelector; s != nil && len(s.Terms) > 0 && len(s.Terms[0].Expressions) > 0 && len(s.Terms[0].Expressions[0].Values) > 0 {
		d.Spec.NodeName = s.Terms[0].Expressions[0].Values[0]
	}
	if d.Spec.Protocol, err = f.Spec.Protocol.canonical(); err != nil {
		return d, err
	}
	for _, v := range f.Spec.PropertyVisitors {
		_, config := v.section()
		out := resource.Visitor{PropertyName: v.PropertyName, CollectCycle: toMillis(v.CollectCycle), ReportCycle: toMillis(v.ReportCycle)}
		if out.Config, err = configFromJSON(config); err != nil {
			return d, err
		}
		d.Spec.PropertyVisitors = append(d.Spec.PropertyVisitors, out)
	}
	for _, t := range f.Status.Twins {
		twinBuilder{&d}.add(t.PropertyName, t.Desired, t.Reported)
	}
	return d, nil
}

func showV1alpha2(d resource.Device) (f deviceV1alpha2) {
	f.Spec.DeviceModelRef = d.Spec.DeviceModelRef
	if d.Spec.NodeName != "" {
		f.Spec.NodeSelector = selectNode(d.Spec.NodeName)
	}
	f.Spec.Protocol = protocolForV1alpha2(d.Spec.Protocol)
	for _, v := range d.Spec.PropertyVisitors {
		f.Spec.PropertyVisitors = append(f.Spec.PropertyVisitors, visitorV1alpha2{
			PropertyName: v.PropertyName, CollectCycle: fromMillis(v.CollectCycle), ReportCycle: fromMillis(v.ReportCycle),
			protocolSections: configInSection(protocolName(d.Spec.Protocol.Type), configToJSON(v.Config)),
		})
	}
	for _, name := range twinNames(d) {
		f.Status.Twins = append(f.Status.Twins, twinV1alpha2{name, desiredOf(d, name), shownValue(d.Status.Twin[name].Reported)})
	}
	return f
}

func selectNode(name string) *nodeSelector {
	return &nodeSelector{[]nodeTerm{{Expressions: []matchExpression{{Operator: "In", Values: []string{name}}}}}}
}

// The protocols that have a section of their own.
const (
	sectionModbus    = "modbus"
	sectionOPCUA     = "opcua"
	sectionBluetooth = "bluetooth"
)

// section returns the one that is set, and the protocol that it is for.
func (s protocolSections) section() (protocol string, config protocolOptions) {
	switch {
	case s.Modbus != nil:
		return sectionModbus, s.Modbus
	case s.OPCUA != nil:
		return sectionOPCUA, s.OPCUA
	case s.Bluetooth != nil:
		return sectionBluetooth, s.Bluetooth
	case s.Customized != nil:
		return s.Customized.ProtocolName, s.Customized.ConfigData
	}
	return "", nil
}

// configInSection is the inverse of section.
func configInSection(protocol string, config protocolOptions) (s protocolSections) {
	if config == nil {
		config = protocolOptions{}
	}
	switch strings.ToLower(protocol) {
	case "":
	case sectionModbus:
		s.Modbus = config
	case sectionOPCUA:
		s.OPCUA = config
	case sectionBluetooth, "bluetoothle":
		s.Bluetooth = config
	default:
		s.Customized = &customizedSection{protocol, config}
	}
	return s
}

func (p protocolV1alpha2) canonical() (out resource.Protocol, err error) {
	name, config := p.section()
	all := protocolOptions{}
	maps.Copy(all, config)
	if p.Common != nil {
		maps.Copy(all, p.Common.TCP)
		maps.Copy(all, p.Common.COM)
	}
	out.Type = protocolOf(name)
	if len(all) > 0 {
		out.Config, err = configFromJSON(all)
	}
	return out, err
}

// The keys of Modbus' configuration that concern the connection.
var (
	tcpKeys = []string{"ip", "port"}
	comKeys = []string{"serialPort", "baudRate", "dataBits", "parity", "stopBits"}
)

func protocolForV1alpha2(p resource.Protocol) (out protocolV1alpha2) {
	config := configToJSON(p.Config)
	if strings.EqualFold(p.Type, sectionModbus) {
		tcp, com := takeKeys(config, tcpKeys), takeKeys(config, comKeys)
		if len(tcp) > 0 || len(com) > 0 {
			out.Common = &commonV1alpha2{TCP: tcp, COM: com}
		}
	}
	out.protocolSections = configInSection(protocolName(p.Type), config)
	return out
}

// takeKeys moves some keys of a configuration out of it.
func takeKeys(config protocolOptions, keys []string) protocolOptions {
	out := protocolOptions{}
	for key, v := range config {
		if slices.Contains(keys, key) {
			out[key] = v
			delete(config, key)
		}
	}
	return out
}

// typesV1alpha2 are the types of a property in v1alpha2, as its schema has them.
var typesV1alpha2 = []string{"int", "string", "double", "float", "boolean", "bytes"}

func readModelV1alpha2(f modelV1alpha2) (m resource.DeviceModel, err error) {
	for i, p := range f.Spec.Properties {
		out := resource.Property{Name: p.Name, Description: p.Description}
		if len(p.Type) > 1 {
			return m, resource.Errorf(resource.Invalid, "spec.properties", "%.80q has more than one type", p.Name)
		}
		for name, t := range p.Type {
			out.Type, out.AccessMode = resource.DataType(name), t.AccessMode
			if !slices.Contains(typesV1alpha2, name) {
				return m, resource.Errorf(resource.Invalid, fmt.Sprintf("spec.properties[%d].type", i), "%.80q: must be %s", name, strings.Join(typesV1alpha2, ", "))
			}
			out.Minimum, out.Maximum, out.Unit = t.Minimum, t.Maximum, t.Unit
		}
		m.Spec.Properties = append(m.Spec.Properties, out)
	}
	return m, nil
}

func showModelV1alpha2(m resource.DeviceModel) (f modelV1alpha2) {
	for _, p := range m.Spec.Properties {
		name := string(typeName(cmp.Or(p.Type, resource.TypeString)))
		f.Spec.Properties = append(f.Spec.Properties, propertyV1alpha2{
			Name: p.Name, Description: p.Description,
			Type: map[string]typeV1alpha2{name: {p.AccessMode, p.Minimum, p.Maximum, p.Unit, nil}},
		})
	}
	return f
}

// devices.kubeedge.io/v1beta1: protocols are free, and what is wanted of a property stands
// beside the way to reach it.

type deviceV1beta1 struct {
	Spec struct {
		DeviceModelRef resource.ObjectRef      `json:"deviceModelRef,omitzero"`
		NodeName       string                  `json:"nodeName,omitempty"`
		Protocol       customizedSection       `json:"protocol,omitzero"`
		Properties     []devicePropertyV1beta1 `json:"properties,omitempty"`
		Methods        []methodV1beta1         `json:"methods,omitempty"`
		StateReport    *stateReport            `json:"stateReport,omitempty"`
	} `json:"spec"`
	Status struct {
		statusV1beta1
		ReportCycle   keptField[int64] `json:"reportCycle,omitempty"`
		ReportToCloud keptField[bool]  `json:"reportToCloud,omitempty"`
	} `json:"status,omitzero"`
}

type statusV1beta1 struct {
	State          string                `json:"state,omitempty"`
	LastOnlineTime string                `json:"lastOnlineTime,omitempty"`
	Twins          []twinV1beta1         `json:"twins,omitempty"`
	Extensions     keptField[jsonObject] `json:"extensions,omitempty"`
}

type devicePropertyV1beta1 struct {
	Name         string             `json:"name"`
	Desired      *twinValueForm     `json:"desired,omitempty"`
	Visitors     *customizedSection `json:"visitors,omitempty"`
	CollectCycle int64              `json:"collectCycle,omitempty"`
	ReportCycle  int64              `json:"reportCycle,omitempty"`
	ToCloud      *bool              `json:"reportToCloud,omitempty"`
	PushMethod   *pushMethod        `json:"pushMethod,omitempty"`
}

// pushMethod: pushes to databases and collectors are kept, and nothing acts on them.
type pushMethod struct {
	MQTT             *pushMQTT             `json:"mqtt,omitempty"`
	HTTP             *pushHTTP             `json:"http,omitempty"`
	OTEL             keptField[jsonObject] `json:"otel,omitempty"`
	DBMethod         keptField[jsonObject] `json:"dbMethod,omitempty"`
	AnomalyDetection keptField[jsonObject] `json:"anomalyDetection,omitempty"`
}

type pushMQTT struct {
	Address  string `json:"address,omitempty"`
	Topic    string `json:"topic,omitempty"`
	QoS      int64  `json:"qos,omitempty"`
	Retained bool   `json:"retained,omitempty"`
}

type pushHTTP struct {
	HostName    string           `json:"hostName,omitempty"`
	Port        int64            `json:"port,omitempty"`
	RequestPath string           `json:"requestPath,omitempty"`
	Timeout     keptField[int64] `json:"timeout,omitempty"`
}

// push returns the target of a property's values, if it is of a supported type.
func (m *pushMethod) push(property string) (out resource.Push, ok bool) {
	if m == nil || m.MQTT == nil && m.HTTP == nil {
		return out, false
	}
	out.PropertyName = property
	if q := m.MQTT; q != nil {
		out.MQTT = &resource.PushMQTT{Address: q.Address, Topic: q.Topic, QoS: q.QoS, Retain: q.Retained}
	}
	if h := m.HTTP; h != nil {
		address := h.HostName
		if !strings.Contains(address, "://") {
			address = "http://" + address
		}
		if h.Port != 0 {
			address += fmt.Sprintf(":%d", h.Port)
		}
		out.HTTP = &resource.PushHTTP{URL: address + "/" + strings.TrimPrefix(h.RequestPath, "/")}
	}
	return out, true
}

func showPush(p resource.Push) *pushMethod {
	out := new(pushMethod)
	if q := p.MQTT; q != nil {
		out.MQTT = &pushMQTT{q.Address, q.Topic, q.QoS, q.Retain}
	}
	if h := p.HTTP; h != nil {
		scheme, rest, _ := strings.Cut(h.URL, "://")
		host, _, _ := strings.Cut(rest, "/")
		at := min(len(scheme+"://"+host), len(h.URL))
		out.HTTP = &pushHTTP{HostName: h.URL[:at], RequestPath: h.URL[at:]}
	}
	return out
}

type methodV1beta1 struct {
	Name        string   `json:"name"`
	Description string   `json:"description,omitempty"`
	Properties  []string `json:"propertyNames,omitempty"`
}

// stateReport: a change of state is reported at once here, so its cycle has no effect.
type stateReport struct {
	ToCloud *bool            `json:"reportToCloud,omitempty"`
	Cycle   keptField[int64] `json:"reportCycle,omitempty"`
}

type twinV1beta1 struct {
	PropertyName    string         `json:"propertyName"`
	Reported        *twinValueForm `json:"reported,omitempty"`
	ObservedDesired *twinValueForm `json:"observedDesired,omitempty"`
}

type modelV1beta1 struct {
	Spec struct {
		Properties     []modelPropertyV1beta1 `json:"properties,omitempty"`
		Protocol       string                 `json:"protocol,omitempty"`
		ProtocolConfig protocolOptions        `json:"protocolConfigData,omitempty"`
	} `json:"spec"`
}

type modelPropertyV1beta1 struct {
	Name        string              `json:"name"`
	Description string              `json:"description,omitempty"`
	Type        string              `json:"type,omitempty"`
	AccessMode  resource.AccessMode `json:"accessMode,omitempty"`
	Minimum     scalarText          `json:"minimum,omitempty"`
	Maximum     scalarText          `json:"maximum,omitempty"`
	Unit        string              `json:"unit,omitempty"`
	Visitors    *customizedSection  `json:"visitors,omitempty"`
}

// deviceStatusV1beta1 is the status of the Device of the same name, a kind of its own since KubeEdge 1.23.
type deviceStatusV1beta1 struct {
	Spec   opaqueJSON    `json:"spec,omitempty"`
	Status statusV1beta1 `json:"status,omitzero"`
}

func showDeviceStatus(d resource.Device) deviceStatusV1beta1 {
	return deviceStatusV1beta1{Status: showV1beta1(d).Status.statusV1beta1}
}

func kubeedgeV1beta1() []Kind {
	status := kubeedgeDevice("v1beta1")
	status.Name, status.Plural, status.Singular, status.ReadOnly = "DeviceStatus", "devicestatuses", "devicestatus", true
	return []Kind{
		kubeedgeDevice("v1beta1").pair(typedConversion(readV1beta1, showV1beta1)),
		kubeedgeModel("v1beta1").pair(typedConversion(readModelV1beta1, showModelV1beta1)),
		status.pair(typedConversion(func(deviceStatusV1beta1) (d resource.Device, err error) { return d, nil }, showDeviceStatus)),
	}
}

func readV1beta1(f deviceV1beta1) (d resource.Device, err error) {
	d.Spec.DeviceModelRef, d.Spec.NodeName = f.Spec.DeviceModelRef, f.Spec.NodeName
	d.Spec.Protocol.Type = protocolOf(f.Spec.Protocol.ProtocolName)
	if d.Spec.Protocol.Config, err = configFromJSON(f.Spec.Protocol.ConfigData); err != nil {
		return d, err
	}
	d.Status.State, d.Status.LastSeen = f.Status.State, f.Status.LastOnlineTime
	for _, t := range f.Status.Twins {
		twinBuilder{&d}.add(t.PropertyName, nil, t.Reported)
	}
	for _, m := range f.Spec.Methods {
		d.Spec.Commands = append(d.Spec.Commands, resource.DeviceCommand{Name: m.Name, Description: m.Description, Properties: m.Properties})
	}
	d.Spec.LocalState = f.Spec.StateReport != nil && isFalse(f.Spec.StateReport.ToCloud)
	for _, p := range f.Spec.Properties {
		if to, ok := p.PushMethod.push(p.Name); ok {
			d.Spec.Push = append(d.Spec.Push, to)
		}
		if isFalse(p.ToCloud) {
			d.Spec.Local = append(d.Spec.Local, p.Name)
		}
		if p.Desired != nil && p.Desired.Value != "" {
			twinBuilder{&d}.want(p.Name, p.Desired)
		}
		if p.Visitors == nil {
			continue
		}
		v := resource.Visitor{PropertyName: p.Name, CollectCycle: toMillis(p.CollectCycle), ReportCycle: toMillis(p.ReportCycle)}
		if v.Config, err = configFromJSON(p.Visitors.ConfigData); err != nil {
			return d, err
		}
		d.Spec.PropertyVisitors = append(d.Spec.PropertyVisitors, v)
	}
	return d, nil
}

// isFalse reports whether an optional field, whose default is true, is false.
func isFalse(said *bool) bool { return said != nil && !*said }

func showV1beta1(d resource.Device) (f deviceV1beta1) {
	for _, c := range d.Spec.Commands {
		f.Spec.Methods = append(f.Spec.Methods, methodV1beta1{c.Name, c.Description, c.Properties})
	}
	if d.Spec.LocalState {
		f.Spec.StateReport = &stateReport{ToCloud: new(bool)}
	}
	f.Spec.DeviceModelRef, f.Spec.NodeName = d.Spec.DeviceModelRef, d.Spec.NodeName
	protocol := protocolName(d.Spec.Protocol.Type)
	f.Spec.Protocol = customizedSection{protocol, configToJSON(d.Spec.Protocol.Config)}
	f.Status.State, f.Status.LastOnlineTime = d.Status.State, d.Status.LastSeen
	property := func(name string) *devicePropertyV1beta1 {
		i := slices.IndexFunc(f.Spec.Properties, func(p devicePropertyV1beta1) bool { return p.Name == name })
		if i < 0 {
			i = len(f.Spec.Properties)
			f.Spec.Properties = append(f.Spec.Properties, devicePropertyV1beta1{Name: name})
		}
		return &f.Spec.Properties[i]
	}
	for _, v := range d.Spec.PropertyVisitors {
		p := property(v.PropertyName)
		p.CollectCycle, p.ReportCycle = fromMillis(v.CollectCycle), fromMillis(v.ReportCycle)
		p.Visitors = &customizedSection{protocol, configToJSON(v.Config)}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Spec.Desired)) {
		property(name).Desired = &twinValueForm{Value: d.Spec.Desired[name]} // in a spec stands what was written, and nothing that the hub knows
	}
	for _, name := range d.Spec.Local {
		property(name).ToCloud = new(bool)
	}
	for _, p := range d.Spec.Push {
		property(p.PropertyName).PushMethod = showPush(p)
	}
	for _, name := range twinNames(d) {
		t := d.Status.Twin[name]
		if t.Reported != nil {
			f.Status.Twins = append(f.Status.Twins, twinV1beta1{name, shownValue(t.Reported), shownValue(t.Desired)})
		}
	}
	return f
}

// modelTypes are the types of a property in v1beta1, as its schema has them. STREAM has no equivalent here, and is read as bytes.
var modelTypes = map[string]resource.DataType{
	"": "", "INT": resource.TypeInt, "FLOAT": resource.TypeFloat, "DOUBLE": resource.TypeDouble, "STRING": resource.TypeString,
	"BOOLEAN": resource.TypeBoolean, "BYTES": resource.TypeBytes, "STREAM": resource.TypeBytes,
}

// typeName is the name of a type in a form that has simple types only: a list or an object is text there.
func typeName(t resource.DataType) resource.DataType {
	switch t {
	case resource.TypeObject, resource.TypeArray:
		return resource.TypeString
	}
	return t
}

func readModelV1beta1(f modelV1beta1) (m resource.DeviceModel, err error) {
	for i, p := range f.Spec.Properties {
		kind, known := modelTypes[p.Type]
		if !known {
			return m, resource.Errorf(resource.Invalid, fmt.Sprintf("spec.properties[%d].type", i), "%.80q: must be INT, FLOAT, DOUBLE, STRING, BOOLEAN, BYTES or STREAM", p.Type)
		}
		out := resource.Property{Name: p.Name, Description: p.Description, Type: kind, AccessMode: p.AccessMode, Unit: p.Unit}
		if !setLimits(&out, p.Minimum, p.Maximum) {
			return m, resource.Errorf(resource.Invalid, fmt.Sprintf("spec.properties[%d]", i), "minimum and maximum must be numbers")
		}
		m.Spec.Properties = append(m.Spec.Properties, out)
		if p.Visitors == nil {
			continue
		}
		config, err := configFromJSON(p.Visitors.ConfigData)
		if err != nil {
			return m, err
		}
		pv := visitorsOf(&m, p.Visitors.ProtocolName)
		pv.Visitors = append(pv.Visitors, resource.Visitor{PropertyName: p.Name, Config: config})
	}
	if len(f.Spec.ProtocolConfig) == 0 {
		return m, nil
	}
	protocol := f.Spec.Protocol
	if protocol == "" && len(m.Spec.PropertyVisitors) > 0 {
		protocol = m.Spec.PropertyVisitors[0].Protocol
	}
	if protocol == "" {
		return m, resource.Errorf(resource.Invalid, "spec.protocol", "is required: protocolConfigData is of that protocol")
	}
	visitorsOf(&m, protocol).Config, err = configFromJSON(f.Spec.ProtocolConfig)
	return m, err
}

// visitorsOf are the visitors of a protocol in a model, which gets some if it has none.
func visitorsOf(m *resource.DeviceModel, protocol string) *resource.ProtocolVisitors {
	i := slices.IndexFunc(m.Spec.PropertyVisitors, func(pv resource.ProtocolVisitors) bool { return strings.EqualFold(pv.Protocol, protocol) })
	if i < 0 {
		i = len(m.Spec.PropertyVisitors)
		m.Spec.PropertyVisitors = append(m.Spec.PropertyVisitors, resource.ProtocolVisitors{Protocol: protocol, Visitors: []resource.Visitor{}})
	}
	return &m.Spec.PropertyVisitors[i]
}

func showModelV1beta1(m resource.DeviceModel) (f modelV1beta1) {
	if len(m.Spec.PropertyVisitors) > 0 { // the form has one protocol only
		f.Spec.Protocol, f.Spec.ProtocolConfig = m.Spec.PropertyVisitors[0].Protocol, configToJSON(m.Spec.PropertyVisitors[0].Config)
	}
	for _, p := range m.Spec.Properties {
		out := modelPropertyV1beta1{
			Name: p.Name, Description: p.Description, Type: strings.ToUpper(string(typeName(p.Type))), AccessMode: p.AccessMode,
			Minimum: limitText(p.Minimum), Maximum: limitText(p.Maximum), Unit: p.Unit,
		}
		if len(m.Spec.PropertyVisitors) > 0 {
			pv := m.Spec.PropertyVisitors[0]
			for _, v := range pv.Visitors {
				if v.PropertyName == p.Name {
					out.Visitors = &customizedSection{pv.Protocol, configToJSON(v.Config)}
				}
			}
		}
		f.Spec.Properties = append(f.Spec.Properties, out)
	}
	return f
}

// upgrade.kubeedge.io/v1alpha2: the status is a list, an entry a node.

type upgradeV1alpha2 struct {
	Spec   resource.UpgradeSpec   `json:"spec"`
	Status []resource.UpgradeNode `json:"status,omitempty"`
}

func upgradeV1alpha2Kinds() []Kind {
	k := Kind{
		Group: "upgrade.kubeedge.io", Version: "v1alpha2", Name: "Upgrade", Plural: "upgrades", Singular: "upgrade",
		Canonical: resource.KindUpgrade,
	}
	return []Kind{k.pair(typedConversion(
		func(f upgradeV1alpha2) (u resource.Upgrade, err error) {
			u.Spec, u.Status.Nodes = f.Spec, f.Status
			return u, nil
		},
		func(u resource.Upgrade) upgradeV1alpha2 { return upgradeV1alpha2{u.Spec, u.Status.Nodes} },
	))}
}
