package dialect

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

// devices.kubeedge.io/v1beta1: protocols are free, and what is wanted of a property stands
// beside the way to reach it.

type deviceV1beta1 struct {
	Spec struct {
		DeviceModelRef resource.Ref            `json:"deviceModelRef,omitzero"`
		NodeName       string                  `json:"nodeName,omitempty"`
		Protocol       customized              `json:"protocol,omitzero"`
		Properties     []devicePropertyV1beta1 `json:"properties,omitempty"`
		Methods        []methodV1beta1         `json:"methods,omitempty"`
		StateReport    *stateReport            `json:"stateReport,omitempty"`
	} `json:"spec"`
	Status struct {
		State          string        `json:"state,omitempty"`
		LastOnlineTime string        `json:"lastOnlineTime,omitempty"`
		Twins          []twinV1beta1 `json:"twins,omitempty"`
		ReportCycle    kept          `json:"reportCycle,omitempty"`
		ReportToCloud  kept          `json:"reportToCloud,omitempty"`
		Extensions     kept          `json:"extensions,omitempty"`
	} `json:"status,omitzero"`
}

type devicePropertyV1beta1 struct {
	Name         string      `json:"name"`
	Desired      *value      `json:"desired,omitempty"`
	Visitors     *customized `json:"visitors,omitempty"`
	CollectCycle int64       `json:"collectCycle,omitempty"`
	ReportCycle  int64       `json:"reportCycle,omitempty"`
	ToCloud      *bool       `json:"reportToCloud,omitempty"`
	PushMethod   *pushMethod `json:"pushMethod,omitempty"`
}

// pushMethod: what is pushed to databases and collectors is kept, and nothing does it.
type pushMethod struct {
	MQTT *struct {
		Address  string `json:"address,omitempty"`
		Topic    string `json:"topic,omitempty"`
		QoS      int64  `json:"qos,omitempty"`
		Retained bool   `json:"retained,omitempty"`
	} `json:"mqtt,omitempty"`
	HTTP *struct {
		HostName    string `json:"hostName,omitempty"`
		Port        int64  `json:"port,omitempty"`
		RequestPath string `json:"requestPath,omitempty"`
		Timeout     kept   `json:"timeout,omitempty"`
	} `json:"http,omitempty"`
	OTEL             kept `json:"otel,omitempty"`
	DBMethod         kept `json:"dbMethod,omitempty"`
	AnomalyDetection kept `json:"anomalyDetection,omitempty"`
}

// push is where it sends a property's values, if that is anywhere that is known here.
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
	var raw []byte
	form := tree{}
	if q := p.MQTT; q != nil {
		form["mqtt"] = tree{"address": q.Address, "topic": q.Topic, "qos": q.QoS, "retained": q.Retain}
	}
	if h := p.HTTP; h != nil {
		at := strings.Index(h.URL, "://") + len("://")
		if slash := strings.Index(h.URL[at:], "/"); slash >= 0 {
			at += slash
		} else {
			at = len(h.URL)
		}
		form["http"] = tree{"hostName": h.URL[:at], "requestPath": h.URL[at:]}
	}
	raw, _ = json.Marshal(form) // texts and numbers
	out := new(pushMethod)
	_ = json.Unmarshal(raw, out) // its own form
	return out
}

type methodV1beta1 struct {
	Name        string   `json:"name"`
	Description string   `json:"description,omitempty"`
	Properties  []string `json:"propertyNames,omitempty"`
}

// stateReport: a change of state is told at once here, so that its cycle has nothing to add.
type stateReport struct {
	ToCloud *bool `json:"reportToCloud,omitempty"`
	Cycle   kept  `json:"reportCycle,omitempty"`
}

type twinV1beta1 struct {
	PropertyName    string `json:"propertyName"`
	Reported        *value `json:"reported,omitempty"`
	ObservedDesired *value `json:"observedDesired,omitempty"`
}

type modelV1beta1 struct {
	Spec struct {
		Properties     []modelPropertyV1beta1 `json:"properties,omitempty"`
		Protocol       string                 `json:"protocol,omitempty"`
		ProtocolConfig options                `json:"protocolConfigData,omitempty"`
	} `json:"spec"`
}

type modelPropertyV1beta1 struct {
	Name        string              `json:"name"`
	Description string              `json:"description,omitempty"`
	Type        string              `json:"type,omitempty"`
	AccessMode  resource.AccessMode `json:"accessMode,omitempty"`
	Minimum     text                `json:"minimum,omitempty"`
	Maximum     text                `json:"maximum,omitempty"`
	Unit        string              `json:"unit,omitempty"`
	Visitors    *customized         `json:"visitors,omitempty"`
}

// deviceStatusV1beta1 is what is known of the Device of the same name: since KubeEdge 1.23 a kind of its own.
type deviceStatusV1beta1 struct {
	Spec   kept `json:"spec,omitempty"`
	Status struct {
		State          string        `json:"state,omitempty"`
		LastOnlineTime string        `json:"lastOnlineTime,omitempty"`
		Twins          []twinV1beta1 `json:"twins,omitempty"`
		Extensions     kept          `json:"extensions,omitempty"`
	} `json:"status,omitzero"`
}

func showDeviceStatus(d resource.Device) (f deviceStatusV1beta1) {
	device := showV1beta1(d)
	f.Status.State, f.Status.LastOnlineTime, f.Status.Twins = device.Status.State, device.Status.LastOnlineTime, device.Status.Twins
	return f
}

func kubeedgeV1beta1() []Kind {
	status := kubeedgeDevice("v1beta1")
	status.Name, status.Plural, status.Singular, status.ReadOnly = "DeviceStatus", "devicestatuses", "devicestatus", true
	return []Kind{
		kubeedgeDevice("v1beta1").pair(between(readV1beta1, showV1beta1)),
		kubeedgeModel("v1beta1").pair(between(readModelV1beta1, showModelV1beta1)),
		status.pair(between(func(deviceStatusV1beta1) (d resource.Device, err error) { return d, nil }, showDeviceStatus)),
	}
}

func readV1beta1(f deviceV1beta1) (d resource.Device, err error) {
	d.Spec.DeviceModelRef, d.Spec.NodeName = f.Spec.DeviceModelRef, f.Spec.NodeName
	d.Spec.Protocol.Type = f.Spec.Protocol.ProtocolName
	if d.Spec.Protocol.Config, err = tight(f.Spec.Protocol.ConfigData); err != nil {
		return d, err
	}
	d.Status.State, d.Status.LastSeen = f.Status.State, f.Status.LastOnlineTime
	for _, t := range f.Status.Twins {
		twins{&d}.add(t.PropertyName, nil, t.Reported)
	}
	for _, m := range f.Spec.Methods {
		d.Spec.Commands = append(d.Spec.Commands, resource.DeviceCommand{Name: m.Name, Description: m.Description, Properties: m.Properties})
	}
	d.Spec.LocalState = f.Spec.StateReport != nil && no(f.Spec.StateReport.ToCloud)
	for _, p := range f.Spec.Properties {
		if to, ok := p.PushMethod.push(p.Name); ok {
			d.Spec.Push = append(d.Spec.Push, to)
		}
		if no(p.ToCloud) {
			d.Spec.Local = append(d.Spec.Local, p.Name)
		}
		if p.Desired != nil && p.Desired.Value != "" {
			twins{&d}.want(p.Name, p.Desired)
		}
		if p.Visitors == nil {
			continue
		}
		v := resource.Visitor{PropertyName: p.Name, CollectCycle: millis(p.CollectCycle), ReportCycle: millis(p.ReportCycle)}
		if v.Config, err = tight(p.Visitors.ConfigData); err != nil {
			return d, err
		}
		d.Spec.PropertyVisitors = append(d.Spec.PropertyVisitors, v)
	}
	return d, nil
}

// no says that somebody said no: who says nothing means yes.
func no(said *bool) bool { return said != nil && !*said }

func showV1beta1(d resource.Device) (f deviceV1beta1) {
	for _, c := range d.Spec.Commands {
		f.Spec.Methods = append(f.Spec.Methods, methodV1beta1{c.Name, c.Description, c.Properties})
	}
	if d.Spec.LocalState {
		f.Spec.StateReport = &stateReport{ToCloud: new(bool)}
	}
	f.Spec.DeviceModelRef, f.Spec.NodeName = d.Spec.DeviceModelRef, d.Spec.NodeName
	f.Spec.Protocol = customized{d.Spec.Protocol.Type, loose(d.Spec.Protocol.Config)}
	f.Status.State, f.Status.LastOnlineTime = d.Status.State, d.Status.LastSeen
	wanted := make(map[string]bool)
	for name := range d.Spec.Desired {
		wanted[name] = true
	}
	for _, v := range d.Spec.PropertyVisitors {
		f.Spec.Properties = append(f.Spec.Properties, devicePropertyV1beta1{
			Name: v.PropertyName, Desired: wish(d, v.PropertyName), CollectCycle: cycle(v.CollectCycle), ReportCycle: cycle(v.ReportCycle),
			Visitors: &customized{d.Spec.Protocol.Type, loose(v.Config)},
		})
		delete(wanted, v.PropertyName)
	}
	for _, name := range sorted(wanted) {
		f.Spec.Properties = append(f.Spec.Properties, devicePropertyV1beta1{Name: name, Desired: wish(d, name)})
	}
	property := func(name string) *devicePropertyV1beta1 {
		i := slices.IndexFunc(f.Spec.Properties, func(p devicePropertyV1beta1) bool { return p.Name == name })
		if i < 0 {
			i = len(f.Spec.Properties)
			f.Spec.Properties = append(f.Spec.Properties, devicePropertyV1beta1{Name: name})
		}
		return &f.Spec.Properties[i]
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
			f.Status.Twins = append(f.Status.Twins, twinV1beta1{name, side(t.Reported), side(t.Desired)})
		}
	}
	return f
}

// stream is the one type that has no equal here: its values are bytes.
const stream = "stream"

func readModelV1beta1(f modelV1beta1) (m resource.DeviceModel, err error) {
	for i, p := range f.Spec.Properties {
		out := resource.Property{Name: p.Name, Description: p.Description, Type: dataType(p.Type), AccessMode: p.AccessMode, Unit: p.Unit}
		if out.Type == stream {
			out.Type = resource.TypeBytes
		}
		var okMin, okMax bool
		out.Minimum, okMin = limit(p.Minimum)
		out.Maximum, okMax = limit(p.Maximum)
		if !okMin || !okMax {
			return m, resource.Errorf(resource.Invalid, fmt.Sprintf("spec.properties[%d]", i), "minimum and maximum must be numbers")
		}
		m.Spec.Properties = append(m.Spec.Properties, out)
		if p.Visitors == nil {
			continue
		}
		config, err := tight(p.Visitors.ConfigData)
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
	visitorsOf(&m, protocol).Config, err = tight(f.Spec.ProtocolConfig)
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
	if len(m.Spec.PropertyVisitors) > 0 { // there is room for one protocol only
		f.Spec.Protocol, f.Spec.ProtocolConfig = m.Spec.PropertyVisitors[0].Protocol, loose(m.Spec.PropertyVisitors[0].Config)
	}
	for _, p := range m.Spec.Properties {
		out := modelPropertyV1beta1{
			Name: p.Name, Description: p.Description, Type: strings.ToUpper(string(p.Type)), AccessMode: p.AccessMode,
			Minimum: limitText(p.Minimum), Maximum: limitText(p.Maximum), Unit: p.Unit,
		}
		if len(m.Spec.PropertyVisitors) > 0 {
			pv := m.Spec.PropertyVisitors[0]
			for _, v := range pv.Visitors {
				if v.PropertyName == p.Name {
					out.Visitors = &customized{pv.Protocol, loose(v.Config)}
				}
			}
		}
		f.Spec.Properties = append(f.Spec.Properties, out)
	}
	return f
}
