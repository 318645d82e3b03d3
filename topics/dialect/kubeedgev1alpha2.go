// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

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
	device, model := kubeedgeDevice("v1alpha2"), kubeedgeModel("v1alpha2")
	device.fieldName, model.fieldName = listFields(deviceFieldV1alpha2), listFields(modelFieldV1alpha2)
	return []Kind{
		device.pair(typedConversion(readV1alpha2, showV1alpha2)),
		model.pair(typedConversion(readModelV1alpha2, showModelV1alpha2)),
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
		if v.PropertyName == "" {
			continue // of an event or command, which this form doesn't have
		}
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
