// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

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

// pushMethod: pushes to databases and collectors are kept for mappers of KubeEdge: see pushWarnings.
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

// pushWarnings names the push methods that only some mappers carry out.
func pushWarnings(spec jsonObject) (warnings []string) {
	list, _ := spec["properties"].([]any)
	for i, e := range list {
		property, _ := e.(jsonObject)
		method, _ := property["pushMethod"].(jsonObject)
		for _, name := range slices.Sorted(maps.Keys(method)) {
			if name == "mqtt" || name == "http" {
				continue
			}
			instead := "the node pushes by mqtt and http"
			if name == "dbMethod" {
				instead = "the node and the hub keep what values were (edgebus history), and the node pushes by mqtt and http"
			}
			warnings = append(warnings, fmt.Sprintf("spec.properties[%d].pushMethod.%s: only a mapper of KubeEdge, through mapper-dmi, carries it out; %s", i, name, instead))
		}
	}
	return warnings
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
	device, model := kubeedgeDevice("v1beta1"), kubeedgeModel("v1beta1")
	device.fieldName, model.fieldName = listFields(deviceFieldV1beta1), listFields(modelFieldV1beta1)
	return []Kind{
		device.pair(typedConversion(readV1beta1, showV1beta1)),
		model.pair(typedConversion(readModelV1beta1, showModelV1beta1)),
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
		if v.PropertyName == "" {
			continue // of an event or command, which this form doesn't have
		}
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
