// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"fmt"
	"maps"

	"github.com/edgebus/edgebus/topics/resource"
)

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
	device.fieldName, model.fieldName = listFields(deviceFieldV1alpha1), listFields(modelFieldV1alpha1)
	return []Kind{device, model}
}

func readV1alpha1(f deviceV1alpha1) (d resource.Device, err error) {
	p := f.Spec.Protocol
	d.Spec = resource.DeviceSpec{
		DeviceModelRef: f.Spec.DeviceModelRef, NodeName: f.Spec.NodeName,
		Protocol: resource.Protocol{Name: p.Name, Type: protocolOf(p.Type), Config: p.Config},
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
	f.Spec.Protocol = protocolV1alpha1{p.Name, protocolName(p.Type), p.Config}
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
			out.Visitors = append(out.Visitors, resource.Visitor{Name: v.Name, PropertyName: v.PropertyName, Config: v.Config})
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
			if v.PropertyName == "" {
				continue // of an event or command, which this form doesn't have
			}
			out.Visitors = append(out.Visitors, visitorV1alpha1{v.Name, v.PropertyName, v.Config})
		}
		f.Spec.PropertyVisitors = append(f.Spec.PropertyVisitors, out)
	}
	return f
}
