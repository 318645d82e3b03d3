// SPDX-License-Identifier: Apache-2.0

package snmp

import "github.com/edgebus/edgebus/mappers"

func limit(v float64) *float64 { return &v }

// protocolSettings are the settings of SNMP agents. What isn't here is refused.
var protocolSettings = mappers.ProtocolSettings{
	Device: []mappers.ProtocolSetting{
		{Name: "address", Type: "string", Required: true, Address: true, Help: "host, or host and port"},
		{Name: "version", Type: "string", Default: "2c", Enum: []string{"2c", "3"}, Help: "of SNMP"},
		{Name: "community", Type: "string", Default: "public", Help: "of version 2c"},
		{Name: "credentials", Type: "string", Help: "name of a file in the mapper's directory of credentials: the community, or the user of version 3"},
		{Name: "maxOids", Type: "int", Minimum: limit(1), Maximum: limit(1000), Help: "most objects in one request (default: 20, or what was found out)"},
		{Name: "trapSources", Type: "string", Help: "addresses that traps come from besides, with commas between them"},
		{Name: "row", Type: "string", Help: "of a table: what the column where says, for visitors without is"},
		{Name: "timeout", Type: "duration", Help: "for an answer, 10ms to 10m (default: the mapper's)"},
	},
	Property: []mappers.ProtocolSetting{
		{Name: "oid", Type: "string", Required: true, Help: "an object, 1.3.6.1.2.1.1.3.0; of a table the column"},
		{Name: "where", Type: "string", Help: "of a table: the column that says which row"},
		{Name: "is", Type: "string", Help: "and what it says there (default: the Device's row)"},
		{Name: "scale", Type: "number", Default: "1", Help: "what a number is multiplied by"},
		{Name: "hex", Type: "boolean", Default: "false", Help: "octets as 00:1a:2b"},
		{Name: "type", Type: "string", Enum: setTypes, Help: "as what it is set (default: as it was read)"},
	},
	Event: []mappers.ProtocolSetting{
		{Name: "trap", Type: "string", Required: true, Help: "which trap: 1.3.6.1.6.3.1.1.5.3"},
		{Name: "value", Type: "string", Help: "the object in it whose value is the event's (default: all, as JSON)"},
	},
	Command: []mappers.ProtocolSetting{
		{Name: "oid", Type: "string", Required: true, Help: "an object, 1.3.6.1.2.1.1.3.0; of a table the column"},
		{Name: "where", Type: "string", Help: "of a table: the column that says which row"},
		{Name: "is", Type: "string", Help: "and what it says there (default: the Device's row)"},
		{Name: "scale", Type: "number", Default: "1", Help: "what a number is multiplied by"},
		{Name: "hex", Type: "boolean", Default: "false", Help: "octets as 00:1a:2b"},
		{Name: "type", Type: "string", Enum: setTypes, Help: "as what it is set (default: as it was read)"},
		{Name: "value", Type: "string", Help: "what is set (default: the command's input)"},
	},
}

// Settings implements mappers.Describer.
func (d *Driver) Settings() mappers.ProtocolSettings { return protocolSettings }
