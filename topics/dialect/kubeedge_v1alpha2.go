package dialect

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

// devices.kubeedge.io/v1alpha2: each protocol and each type has fields of its own, and
// visitors belong to the Device.

type options = map[string]json.RawMessage

type deviceV1alpha2 struct {
	Spec struct {
		DeviceModelRef   resource.Ref      `json:"deviceModelRef,omitzero"`
		NodeSelector     *nodeSelector     `json:"nodeSelector,omitempty"`
		Protocol         protocolV1alpha2  `json:"protocol,omitzero"`
		PropertyVisitors []visitorV1alpha2 `json:"propertyVisitors,omitempty"`
		Data             kept              `json:"data,omitempty"`
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
	Expressions []expression `json:"matchExpressions,omitempty"`
	Fields      kept         `json:"matchFields,omitempty"`
}

type expression struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values"`
}

type protocolV1alpha2 struct {
	Modbus     options         `json:"modbus,omitempty"`
	OPCUA      options         `json:"opcua,omitempty"`
	Bluetooth  options         `json:"bluetooth,omitempty"`
	Customized *customized     `json:"customizedProtocol,omitempty"`
	Common     *commonV1alpha2 `json:"common,omitempty"`
}

type commonV1alpha2 struct {
	TCP              options `json:"tcp,omitempty"`
	COM              options `json:"com,omitempty"`
	CommType         kept    `json:"commType,omitempty"`
	ReconnTimeout    kept    `json:"reconnTimeout,omitempty"`
	ReconnRetryTimes kept    `json:"reconnRetryTimes,omitempty"`
	CollectTimeout   kept    `json:"collectTimeout,omitempty"`
	CollectRetry     kept    `json:"collectRetryTimes,omitempty"`
	CollectType      kept    `json:"collectType,omitempty"`
	CustomizedValues kept    `json:"customizedValues,omitempty"`
}

type customized struct {
	ProtocolName string  `json:"protocolName,omitempty"`
	ConfigData   options `json:"configData,omitempty"`
}

type visitorV1alpha2 struct {
	PropertyName string      `json:"propertyName"`
	CollectCycle int64       `json:"collectCycle,omitempty"`
	ReportCycle  int64       `json:"reportCycle,omitempty"`
	Modbus       options     `json:"modbus,omitempty"`
	OPCUA        options     `json:"opcua,omitempty"`
	Bluetooth    options     `json:"bluetooth,omitempty"`
	Customized   *customized `json:"customizedProtocol,omitempty"`
	Values       kept        `json:"customizedValues,omitempty"`
}

type twinV1alpha2 struct {
	PropertyName string `json:"propertyName"`
	Desired      *value `json:"desired,omitempty"`
	Reported     *value `json:"reported,omitempty"`
}

type modelV1alpha2 struct {
	Spec struct {
		Properties []propertyV1alpha2 `json:"properties,omitempty"`
		Protocol   kept               `json:"protocol,omitempty"`
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
	Default    kept                `json:"defaultValue,omitempty"`
}

func kubeedgeV1alpha2() []Kind {
	return []Kind{
		kubeedgeDevice("v1alpha2").pair(between(readV1alpha2, showV1alpha2)),
		kubeedgeModel("v1alpha2").pair(between(readModelV1alpha2, showModelV1alpha2)),
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
		_, config := section(v.Modbus, v.OPCUA, v.Bluetooth, v.Customized)
		out := resource.Visitor{PropertyName: v.PropertyName, CollectCycle: millis(v.CollectCycle), ReportCycle: millis(v.ReportCycle)}
		if out.Config, err = tight(config); err != nil {
			return d, err
		}
		d.Spec.PropertyVisitors = append(d.Spec.PropertyVisitors, out)
	}
	for _, t := range f.Status.Twins {
		twins{&d}.add(t.PropertyName, t.Desired, t.Reported)
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
		out := visitorV1alpha2{PropertyName: v.PropertyName, CollectCycle: cycle(v.CollectCycle), ReportCycle: cycle(v.ReportCycle)}
		out.Modbus, out.OPCUA, out.Bluetooth, out.Customized = sections(d.Spec.Protocol.Type, loose(v.Config))
		f.Spec.PropertyVisitors = append(f.Spec.PropertyVisitors, out)
	}
	for _, name := range twinNames(d) {
		f.Status.Twins = append(f.Status.Twins, twinV1alpha2{name, wish(d, name), side(d.Status.Twin[name].Reported)})
	}
	return f
}

func selectNode(name string) *nodeSelector {
	return &nodeSelector{[]nodeTerm{{Expressions: []expression{{Operator: "In", Values: []string{name}}}}}}
}

// The protocols that have a section of their own.
const (
	modbus    = "modbus"
	opcua     = "opcua"
	bluetooth = "bluetooth"
)

// section finds the one that is set, and the protocol that it is for.
func section(mod, opc, blue options, own *customized) (protocol string, config options) {
	switch {
	case mod != nil:
		return modbus, mod
	case opc != nil:
		return opcua, opc
	case blue != nil:
		return bluetooth, blue
	case own != nil:
		return own.ProtocolName, own.ConfigData
	}
	return "", nil
}

// sections is the inverse of section.
func sections(protocol string, config options) (mod, opc, blue options, own *customized) {
	if config == nil {
		config = options{}
	}
	switch strings.ToLower(protocol) {
	case "":
	case modbus:
		mod = config
	case opcua:
		opc = config
	case bluetooth, "bluetoothle":
		blue = config
	default:
		own = &customized{protocol, config}
	}
	return mod, opc, blue, own
}

func (p protocolV1alpha2) canonical() (out resource.Protocol, err error) {
	name, config := section(p.Modbus, p.OPCUA, p.Bluetooth, p.Customized)
	all := options{}
	parts := []options{config}
	if p.Common != nil {
		parts = append(parts, p.Common.TCP, p.Common.COM)
	}
	for _, part := range parts {
		for key, v := range part {
			all[key] = v
		}
	}
	out.Type = name
	if len(all) > 0 {
		out.Config, err = tight(all)
	}
	return out, err
}

// What of Modbus' configuration is about the line.
var (
	tcpKeys = []string{"ip", "port"}
	comKeys = []string{"serialPort", "baudRate", "dataBits", "parity", "stopBits"}
)

func protocolForV1alpha2(p resource.Protocol) (out protocolV1alpha2) {
	config := loose(p.Config)
	if strings.EqualFold(p.Type, modbus) {
		tcp, com := part(config, tcpKeys), part(config, comKeys)
		if len(tcp) > 0 || len(com) > 0 {
			out.Common = &commonV1alpha2{TCP: tcp, COM: com}
		}
	}
	out.Modbus, out.OPCUA, out.Bluetooth, out.Customized = sections(p.Type, config)
	return out
}

// part moves some keys of a configuration out of it.
func part(config options, keys []string) options {
	out := options{}
	for key, v := range config {
		if slices.Contains(keys, key) {
			out[key] = v
			delete(config, key)
		}
	}
	return out
}

func readModelV1alpha2(f modelV1alpha2) (m resource.DeviceModel, err error) {
	for _, p := range f.Spec.Properties {
		out := resource.Property{Name: p.Name, Description: p.Description}
		if len(p.Type) > 1 {
			return m, resource.Errorf(resource.Invalid, "spec.properties", "%.80q has more than one type", p.Name)
		}
		for name, t := range p.Type {
			out.Type, out.AccessMode = dataType(name), t.AccessMode
			out.Minimum, out.Maximum, out.Unit = t.Minimum, t.Maximum, t.Unit
		}
		m.Spec.Properties = append(m.Spec.Properties, out)
	}
	return m, nil
}

func showModelV1alpha2(m resource.DeviceModel) (f modelV1alpha2) {
	for _, p := range m.Spec.Properties {
		name := string(p.Type)
		if name == "" {
			name = string(resource.TypeString)
		}
		f.Spec.Properties = append(f.Spec.Properties, propertyV1alpha2{
			Name: p.Name, Description: p.Description,
			Type: map[string]typeV1alpha2{name: {p.AccessMode, p.Minimum, p.Maximum, p.Unit, nil}},
		})
	}
	return f
}
