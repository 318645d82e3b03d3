// SPDX-License-Identifier: Apache-2.0

package bacnet

import "github.com/edgebus/edgebus/mappers"

func limit(v float64) *float64 { return &v }

// protocolSettings are the settings of BACnet/IP. What isn't here is refused.
var protocolSettings = mappers.ProtocolSettings{
	Device: []mappers.ProtocolSetting{
		{Name: "address", Type: "string", Address: true, Help: "the device's host, or host and port; the router's with network and mac"},
		{Name: "device", Type: "int", Minimum: limit(0), Maximum: limit(4194302), Help: "the device's number, by which it is found without an address"},
		{Name: "network", Type: "int", Minimum: limit(1), Maximum: limit(65534), Help: "number of the network behind a router"},
		{Name: "mac", Type: "string", Help: "the device's address in that network, in hexadecimal"},
		{Name: "priority", Type: "int", Default: "16", Minimum: limit(1), Maximum: limit(16), Help: "of what is written"},
		{Name: "cov", Type: "boolean", Default: "true", Help: "whether values are subscribed to"},
		{Name: "covLifetime", Type: "duration", Default: "5m", Help: "of subscriptions, 10s to 24h"},
		{Name: "maxProperties", Type: "int", Minimum: limit(1), Maximum: limit(1000), Help: "most properties in one request (default: 20, or what was found out)"},
		{Name: "timeout", Type: "duration", Help: "for an answer, 10ms to 10m (default: the mapper's)"},
	},
	Property: []mappers.ProtocolSetting{
		{Name: "object", Type: "string", Required: true, Help: "an object: analogInput:3, AI:3 or 0:3"},
		{Name: "property", Type: "string", Default: "presentValue", Help: "a property's name or number"},
		{Name: "index", Type: "int", Minimum: limit(0), Maximum: limit(2147483647), Help: "an element of an array, from 1; 0 is its length (default: all of it)"},
		{Name: "bit", Type: "int", Minimum: limit(0), Maximum: limit(255), Help: "of a bit string (default: all, as 0101)"},
		{Name: "priority", Type: "int", Minimum: limit(1), Maximum: limit(16), Help: "of what is written (default: the Device's)"},
		{Name: "type", Type: "string", Enum: []string{"real", "double", "unsigned", "signed", "enumerated", "boolean", "string"}, Help: "of what is written, where the object doesn't say"},
	},
	Command: []mappers.ProtocolSetting{
		{Name: "object", Type: "string", Required: true, Help: "an object: analogInput:3, AI:3 or 0:3"},
		{Name: "property", Type: "string", Default: "presentValue", Help: "a property's name or number"},
		{Name: "index", Type: "int", Minimum: limit(0), Maximum: limit(2147483647), Help: "an element of an array, from 1; 0 is its length (default: all of it)"},
		{Name: "bit", Type: "int", Minimum: limit(0), Maximum: limit(255), Help: "of a bit string (default: all, as 0101)"},
		{Name: "priority", Type: "int", Minimum: limit(1), Maximum: limit(16), Help: "of what is written (default: the Device's)"},
		{Name: "type", Type: "string", Enum: []string{"real", "double", "unsigned", "signed", "enumerated", "boolean", "string"}, Help: "of what is written, where the object doesn't say"},
		{Name: "value", Type: "string", Help: "what is written (default: the command's input)"},
	},
}

// Settings implements mappers.Describer.
func (d *Driver) Settings() mappers.ProtocolSettings { return protocolSettings }
