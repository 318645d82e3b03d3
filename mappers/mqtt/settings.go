// SPDX-License-Identifier: Apache-2.0

package mqtt

import "github.com/edgebus/edgebus/mappers"

// protocolSettings are the settings of devices that speak MQTT. The names of a Device's own are taken from here.
var protocolSettings = mappers.ProtocolSettings{
	Free: true,
	Device: []mappers.ProtocolSetting{
		{Name: "topic", Type: "string", Address: true, Help: "a parameter, as any other name is: {topic} in the settings of model and Device stands for it"},
		{Name: "availability", Type: "string", Help: "topic on which the device, or its will, says whether it is there; or a list of such in JSON"},
		{Name: "availabilityMode", Type: "string", Enum: []string{"all", "any", "latest"}, Help: "which of several availabilities count"},
		{Name: "availabilityPath", Type: "string", Help: "path in the JSON of the availability's payload"},
		{Name: "available", Type: "string", Help: "the word for a device that is there (default: online, true, 1, on and the like)"},
		{Name: "get", Type: "string", Help: "topic on which the device is asked for its state"},
		{Name: "getPayload", Type: "string", Help: "what is published there"},
		{Name: "getEvery", Type: "duration", Help: "how often the device is asked, where it falls silent otherwise"},
		{Name: "sparkplug", Type: "string", Help: "a device of Sparkplug B: group/edge node/device"},
	},
	Property: []mappers.ProtocolSetting{
		{Name: "state", Type: "string", Help: "topic on which the device publishes the value"},
		{Name: "path", Type: "string", Help: "where the value is in the JSON of the payload (default: the payload is the value)"},
		{Name: "command", Type: "string", Help: "topic to which values are published; required for a property that is ReadWrite"},
		{Name: "payload", Type: "string", Help: "what is published, with {value} or {json} (default: the value at path)"},
		{Name: "qos", Type: "int", Default: "1", Enum: []string{"0", "1", "2"}, Help: "quality of service of what is published"},
		{Name: "retain", Type: "boolean", Default: "false", Help: "whether the broker keeps what is published"},
		{Name: "metric", Type: "string", Help: "of a device of Sparkplug B, in place of the others"},
	},
	Event: []mappers.ProtocolSetting{
		{Name: "state", Type: "string", Required: true, Help: "topic on which the device publishes the event"},
		{Name: "path", Type: "string", Help: "where it is in the JSON of the payload"},
	},
	Command: []mappers.ProtocolSetting{
		{Name: "command", Type: "string", Required: true, Help: "topic to which the device listens"},
		{Name: "payload", Type: "string", Help: "what is published, with {value} or {json} for the input"},
		{Name: "path", Type: "string", Help: "where the input is in the JSON that is published, without payload"},
		{Name: "qos", Type: "int", Default: "1", Enum: []string{"0", "1", "2"}, Help: "quality of service of what is published"},
		{Name: "retain", Type: "boolean", Default: "false", Help: "whether the broker keeps what is published"},
	},
}

// Settings implements mappers.Describer.
func (d *Driver) Settings() mappers.ProtocolSettings { return protocolSettings }
