// SPDX-License-Identifier: Apache-2.0

package viewtest

import (
	"encoding/json"
	"fmt"

	"github.com/edgebus/edgebus/topics/resource"
)

// Node is the node of the Devices.
const Node = "n1"

// Devices are ten Devices as the tree has them, the same for all views: a lamp, a plug with a meter, a climate sensor, a contact, a button, a
// shutter, a heat pump, a lock, a controller of a machine, and one whose names are as odd as names can be.
func Devices() []resource.Bundle {
	var list []resource.Bundle
	for _, text := range devices {
		var b resource.Bundle
		if err := json.Unmarshal([]byte(text), &b); err != nil {
			panic(fmt.Sprintf("%v: %s", err, text))
		}
		for _, meta := range []*resource.TypeMeta{&b.Device.TypeMeta, &b.Model.TypeMeta} {
			meta.APIVersion = resource.APIVersion
		}
		b.Device.Kind, b.Model.Kind = resource.KindDevice, resource.KindDeviceModel
		b.Device.Spec.NodeName = Node
		if err := b.Device.Validate(); err != nil {
			panic(err)
		}
		if err := b.Model.Validate(); err != nil {
			panic(err)
		}
		list = append(list, b)
	}
	return list
}

var devices = []string{
	`{"device": {"metadata": {"name": "lamp", "uid": "u-lamp", "labels": {"area": "hall", "line": "l1", "cell": "c1"}},
		"spec": {"title": "Lamp at the door", "deviceModelRef": {"name": "lamp"}, "protocol": {"type": "virtual"}}},
	"model": {"metadata": {"name": "lamp"}, "spec": {"title": "Dimmable lamp", "properties": [
		{"name": "power", "accessMode": "ReadWrite", "enum": ["ON", "OFF"]},
		{"name": "brightness", "type": "int", "accessMode": "ReadWrite", "minimum": 0, "maximum": 100, "unit": "%"}]}}}`,
	`{"device": {"metadata": {"name": "plug", "uid": "u-plug", "labels": {"area": "hall", "line": "l1", "cell": "c2"}},
		"spec": {"deviceModelRef": {"name": "plug"}, "protocol": {"type": "mqtt"}}},
	"model": {"metadata": {"name": "plug"}, "spec": {"properties": [
		{"name": "relay", "title": "Relay", "type": "boolean", "accessMode": "ReadWrite"},
		{"name": "power", "type": "float", "unit": "W", "quantity": "power", "step": 0.1},
		{"name": "energy", "type": "double", "unit": "kWh", "quantity": "energy", "counter": true, "step": 0.01}]}}}`,
	`{"device": {"metadata": {"name": "climate", "uid": "u-climate", "labels": {"area": "hall", "line": "l2"}},
		"spec": {"deviceModelRef": {"name": "climate"}, "protocol": {"type": "bluetoothle"}}},
	"model": {"metadata": {"name": "climate"}, "spec": {"title": "Climate sensor", "properties": [
		{"name": "temperature", "title": "Temperature", "type": "float", "unit": "°C", "quantity": "temperature", "step": 0.1,
			"alarms": [{"name": "hot", "title": "Too hot", "above": 30, "clear": 28, "severity": "high"}]},
		{"name": "humidity", "type": "int", "unit": "%", "quantity": "humidity"},
		{"name": "battery", "type": "int", "unit": "%", "quantity": "battery"},
		{"name": "co2", "type": "int", "unit": "ppm", "quantity": "carbon_dioxide"}]}}}`,
	`{"device": {"metadata": {"name": "contact", "uid": "u-contact", "labels": {"area": "yard"}},
		"spec": {"title": "Gate", "deviceModelRef": {"name": "contact"}, "protocol": {"type": "mqtt"}}},
	"model": {"metadata": {"name": "contact"}, "spec": {"properties": [
		{"name": "open", "type": "boolean", "quantity": "door"},
		{"name": "tamper", "enum": ["clear", "tampered"]}]}}}`,
	`{"device": {"metadata": {"name": "button", "uid": "u-button"},
		"spec": {"deviceModelRef": {"name": "button"}, "protocol": {"type": "mqtt"}}},
	"model": {"metadata": {"name": "button"}, "spec": {"events": [
		{"name": "action", "title": "Action", "enum": ["single", "double", "hold"]},
		{"name": "code"}],
		"properties": [{"name": "battery", "type": "int", "unit": "%", "quantity": "battery"}]}}}`,
	`{"device": {"metadata": {"name": "shutter", "uid": "u-shutter"},
		"spec": {"deviceModelRef": {"name": "shutter"}, "protocol": {"type": "modbus"}}},
	"model": {"metadata": {"name": "shutter"}, "spec": {"properties": [
		{"name": "position", "type": "int", "accessMode": "ReadWrite", "minimum": 0, "maximum": 100, "unit": "%", "quantity": "shutter"}],
		"commands": [{"name": "open"}, {"name": "close"}, {"name": "stop"}]}}}`,
	`{"device": {"metadata": {"name": "heatpump", "uid": "u-heatpump", "labels": {"area": "cellar"}},
		"spec": {"title": "Heat pump in the cellar", "deviceModelRef": {"name": "heatpump"}, "protocol": {"type": "modbus"},
			"commands": [{"name": "boost", "properties": ["setpoint"]}]}},
	"model": {"metadata": {"name": "heatpump"}, "spec": {"title": "Heat pump", "properties": [
		{"name": "mode", "accessMode": "ReadWrite", "enum": ["off", "heat", "cool", "auto"]},
		{"name": "setpoint", "type": "float", "accessMode": "ReadWrite", "minimum": 15, "maximum": 28, "step": 0.5, "unit": "°C", "quantity": "temperature"},
		{"name": "phase", "enum": ["idle", "running"], "quantity": "enum"},
		{"name": "flow", "type": "float", "unit": "l/min", "quantity": "volume_flow_rate"},
		{"name": "cop", "type": "float", "title": "Coefficient of performance"}],
		"commands": [{"name": "reset", "title": "Begin anew"}, {"name": "beep", "input": {"type": "int", "minimum": 1, "maximum": 9}}]}}}`,
	`{"device": {"metadata": {"name": "lock", "uid": "u-lock"},
		"spec": {"deviceModelRef": {"name": "lock"}, "protocol": {"type": "mqtt"}}},
	"model": {"metadata": {"name": "lock"}, "spec": {"properties": [
		{"name": "state", "accessMode": "ReadWrite", "enum": ["locked", "unlocked"]},
		{"name": "label", "accessMode": "ReadWrite"}]}}}`,
	`{"device": {"metadata": {"name": "plc-7", "uid": "u-plc-7", "namespace": "plant", "labels": {"area": "hall", "line": "l1", "cell": "c1"}},
		"spec": {"deviceModelRef": {"name": "plc"}, "protocol": {"type": "opcua"}}},
	"model": {"metadata": {"name": "plc", "namespace": "plant"}, "spec": {"properties": [
		{"name": "cycles", "type": "int", "counter": true},
		{"name": "speed", "type": "int", "accessMode": "ReadWrite", "minimum": -1500, "maximum": 1500, "unit": "1/min"},
		{"name": "recipe", "type": "object", "accessMode": "ReadWrite"},
		{"name": "faults", "type": "array"},
		{"name": "image", "type": "bytes"},
		{"name": "serial"},
		{"name": "ready", "type": "boolean"}]}}}`,
	`{"device": {"metadata": {"name": "odd.name-1", "uid": "u-odd"},
		"spec": {"title": "Größe \"m²\"", "deviceModelRef": {"name": "odd"}, "protocol": {"type": "virtual"}}},
	"model": {"metadata": {"name": "odd"}, "spec": {"properties": [
		{"name": "a.b_c", "type": "double", "unit": "furlong", "quantity": "distance"},
		{"name": "A-b_c", "type": "double", "quantity": "happiness"},
		{"name": "ON", "type": "boolean", "accessMode": "ReadWrite"}]}}}`,
}
