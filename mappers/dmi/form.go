// SPDX-License-Identifier: Apache-2.0

package dmi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/topics/dialect"
	"github.com/edgebus/edgebus/topics/resource"
)

// form is a Device with its model, as KubeEdge's dialect shows them: numbers are told from texts that look like them where the manifest did.
type form struct {
	Device, Model map[string]any
	// Types are those of the properties, by name, as v1alpha1's mappers are told them.
	Types map[string]string
}

// formOf makes the form of a contract, as JSON, or its error.
func formOf(c contract, b resource.Bundle) (string, error) {
	d, m := b.Device, b.Model
	d.Spec.PropertyVisitors = slices.DeleteFunc(slices.Clone(m.Visitors(d.Spec.Protocol.Type)), func(v resource.Visitor) bool { return v.PropertyName == "" })
	device, err := showObject(c, resource.KindDevice, d)
	if err != nil {
		return "", err
	}
	m.Spec.PropertyVisitors = nil
	model, err := showObject(c, resource.KindDeviceModel, m)
	if err != nil {
		return "", err
	}
	f := form{device, model, map[string]string{}}
	for _, p := range m.Spec.Properties {
		f.Types[p.Name] = strings.ToLower(cmp.Or(string(p.Type), "string"))
	}
	out, err := json.Marshal(f)
	return string(out), err
}

// showObject is an object in the dialect of a contract: its name, namespace and spec.
func showObject(c contract, kind string, object any) (map[string]any, error) {
	version := map[contract]string{contractV1beta1: "v1beta1", contractV1alpha1: "v1alpha2"}[c]
	raw, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	for _, k := range dialect.AllKinds() {
		if k.Group == "devices.kubeedge.io" && k.Version == version && k.Name == kind {
			if raw, err = k.Show(raw); err != nil {
				return nil, err
			}
			all, err := readJSON(raw)
			if err != nil {
				return nil, err
			}
			meta, _ := all["metadata"].(map[string]any)
			spec, _ := all["spec"].(map[string]any)
			if spec == nil {
				spec = map[string]any{}
			}
			return map[string]any{"name": meta["name"], "namespace": cmp.Or[any](meta["namespace"], "default"), "spec": spec}, nil
		}
	}
	return nil, fmt.Errorf("no dialect has %s of %s", kind, version)
}

func readJSON(raw []byte) (out map[string]any, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return out, d.Decode(&out)
}

// modelMessage is the model of a form, and its name.
func modelMessage(c contract, text string) (name string, out []byte, err error) {
	f, err := readForm(text)
	if err != nil {
		return "", nil, err
	}
	schema := map[contract]message{contractV1beta1: modelV1beta1, contractV1alpha1: modelV1alpha1}[c]
	out, err = schema.encode("model", f.Model)
	return scalarText(f.Model["name"]), out, err
}

// deviceMessage is the Device of a form, with the desired values that its mapper is to know.
func deviceMessage(c contract, text string, desired map[string]string) ([]byte, error) {
	f, err := readForm(text)
	if err != nil {
		return nil, err
	}
	spec, _ := f.Device["spec"].(map[string]any)
	spec["deviceModelReference"] = f.Model["name"]
	if c == contractV1alpha1 {
		f.completeV1alpha1(spec, desired)
		return deviceV1alpha1.encode("device", f.Device)
	}
	f.completeV1beta1(spec, desired)
	return deviceV1beta1.encode("device", f.Device)
}

func readForm(text string) (f form, err error) {
	if text == "" {
		return f, errors.New("the Device can't be shown as KubeEdge has it")
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	return f, d.Decode(&f)
}

// completeV1beta1 adds what KubeEdge's mappers take for granted: they end when a property has no desired value or no visitor, and report only what is to
// be reported "to the cloud", which is the node here.
func (f form) completeV1beta1(spec map[string]any, desired map[string]string) {
	protocol := objectIn(spec, "protocol")
	objectIn(protocol, "configData")
	listed, _ := spec["properties"].([]any)
	var properties []any
	for _, e := range listed {
		p, ok := e.(map[string]any)
		name := scalarText(p["name"])
		if _, visited := p["visitors"]; !ok || !visited {
			continue // only a wish, or where it is pushed to
		}
		visitor := objectIn(p, "visitors")
		visitor["protocolName"] = cmp.Or(visitor["protocolName"], protocol["protocolName"])
		objectIn(visitor, "configData")
		p["desired"] = f.wanted(name, desired)
		p["reportToCloud"] = true
		for _, cycle := range []string{"collectCycle", "reportCycle"} {
			if ms, ok := cycleMillis(p[cycle]); ok {
				p[cycle] = json.Number(fmt.Sprint(ms))
			}
		}
		if push, ok := p["pushMethod"].(map[string]any); ok { // the node pushes by MQTT and HTTP itself
			delete(push, "mqtt")
			delete(push, "http")
			if len(push) == 0 {
				delete(p, "pushMethod")
			}
		}
		properties = append(properties, p)
	}
	spec["properties"] = properties
	f.Device["status"] = map[string]any{"reportToCloud": true}
}

// completeV1alpha1 adds the twins, from which mappers of v1alpha1 know the types and the desired values. Their cycles are nanoseconds.
func (f form) completeV1alpha1(spec map[string]any, desired map[string]string) {
	visitors, _ := spec["propertyVisitors"].([]any)
	var twins []any
	for _, e := range visitors {
		v, _ := e.(map[string]any)
		for _, cycle := range []string{"collectCycle", "reportCycle"} {
			if ms, ok := cycleMillis(v[cycle]); ok {
				v[cycle] = json.Number(fmt.Sprint(ms * int64(time.Millisecond)))
			}
		}
		name := scalarText(v["propertyName"])
		wanted := f.wanted(name, desired)
		twins = append(twins, map[string]any{
			"propertyName": name, "desired": wanted, "reported": map[string]any{"value": "", "metadata": wanted["metadata"]},
		})
	}
	objectIn(objectIn(spec, "protocol"), "common")
	f.Device["status"] = map[string]any{"twins": twins}
}

// wanted is the desired value of a property: an empty one if there is none.
func (f form) wanted(name string, desired map[string]string) map[string]any {
	return map[string]any{
		"value":    desired[name],
		"metadata": map[string]any{"type": f.Types[name]},
	}
}

// cycleMillis reads a cycle of the dialect, where more than an hour of milliseconds is nanoseconds.
func cycleMillis(v any) (ms int64, ok bool) {
	n, _ := v.(json.Number)
	ms, err := n.Int64()
	if err == nil && ms > time.Hour.Milliseconds() {
		ms /= int64(time.Millisecond)
	}
	return ms, err == nil && ms > 0
}

// objectIn is an object within another, made if it is missing.
func objectIn(in map[string]any, name string) map[string]any {
	object, ok := in[name].(map[string]any)
	if !ok {
		object = map[string]any{}
		in[name] = object
	}
	return object
}
