// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"slices"
	"strings"

	"github.com/edgebus/edgebus/mappers"
)

func limit(v float64) *float64 { return &v }

// registerSettings are those of visitors of properties, and of commands.
var registerSettings = []mappers.ProtocolSetting{
	{Name: "register", Type: "string", Enum: []string{"coil", "discrete-input", "holding", "input"}, Help: "the table; required without sunspec"},
	{Name: "address", Type: "int", Minimum: limit(0), Maximum: limit(65535), Help: "counted from 0 as on the wire; required without sunspec"},
	{Name: "type", Type: "string", Enum: strings.Split(typeNames, ", "), Help: "how the value lies in its registers (default: by the property's type)"},
	{Name: "length", Type: "int", Minimum: limit(1), Maximum: limit(maxText), Help: "of a string: how many registers"},
	{Name: "limit", Type: "int", Minimum: limit(1), Maximum: limit(maxText), Help: "how many registers, as KubeEdge has it"},
	{Name: "bit", Type: "int", Minimum: limit(0), Maximum: limit(15), Help: "of a bool in a register"},
	{Name: "bits", Type: "string", Help: "of an unsigned number, such as 4-7"},
	{Name: "scale", Type: "number", Default: "1", Help: "what the number is multiplied by"},
	{Name: "offset", Type: "number", Default: "0", Help: "what is added then"},
	{Name: "scaleFrom", Type: "int", Minimum: limit(0), Maximum: limit(65535), Help: "address of the register that has the power of ten of the scale"},
	{Name: "wordOrder", Type: "string", Default: "high-first", Enum: []string{"high-first", "low-first", "big", "little"}, Help: "of several registers"},
	{Name: "byteOrder", Type: "string", Default: "big", Enum: []string{"big", "little"}, Help: "in a register"},
	{Name: "isRegisterSwap", Type: "boolean", Default: "false", Help: "KubeEdge's wordOrder: low-first"},
	{Name: "isSwap", Type: "boolean", Default: "false", Help: "KubeEdge's byteOrder: little"},
	{Name: "sunspec", Type: "string", Help: "a point of SunSpec in place of the others: inverter/W"},
}

// protocolSettings are the settings of Modbus devices. What isn't here is refused.
var protocolSettings = mappers.ProtocolSettings{
	Device: []mappers.ProtocolSetting{
		{Name: "address", Type: "string", Address: true, Aliases: []string{"url", "ip", "host", "serialPort"}, Help: "where the device is: tcp://10.0.0.5:502, rtuovertcp://10.0.0.5:502 or rtu:///dev/ttyUSB0; required"},
		{Name: "unit", Type: "int", Default: "1", Minimum: limit(0), Maximum: limit(255), Aliases: []string{"slaveID", "unitID"}, Help: "unit identifier"},
		{Name: "port", Type: "int", Minimum: limit(1), Maximum: limit(65535), Aliases: []string{"tcpPort"}, Help: "beside KubeEdge's ip (default: 502)"},
		{Name: "communicateMode", Type: "string", Help: "KubeEdge's: it follows from the address"},
		{Name: "baud", Type: "int", Default: "9600", Minimum: limit(50), Maximum: limit(4_000_000), Aliases: []string{"baudRate"}, Help: "of a serial line"},
		{Name: "parity", Type: "string", Default: "none", Enum: []string{"none", "even", "odd", "n", "e", "o"}, Help: "of a serial line"},
		{Name: "stopBits", Type: "int", Default: "1", Minimum: limit(1), Maximum: limit(2), Help: "of a serial line"},
		{Name: "dataBits", Type: "int", Minimum: limit(8), Maximum: limit(8), Help: "of a serial line: 8, the only value that Modbus RTU has"},
		{Name: "timeout", Type: "duration", Help: "for an answer (default: the mapper's)"},
		{Name: "gap", Type: "int", Default: "8", Minimum: limit(0), Maximum: limit(100), Help: "unused registers between two used ones that are read with them"},
		{Name: "maxRegisters", Type: "int", Minimum: limit(1), Maximum: limit(125), Help: "most registers in one request (default: 125, or what was found out)"},
		{Name: "pause", Type: "duration", Help: "between an answer and the next request"},
		{Name: "connectDelay", Type: "duration", Help: "between connecting and the first request"},
		{Name: "connect", Type: "string", Default: "keep", Enum: []string{"keep", "cycle", "request"}, Help: "how long a connection stays"},
		{Name: "write", Type: "string", Enum: []string{"single", "multiple"}, Help: "functions 5 and 6, or 15 and 16 (default: by the number of registers)"},
		{Name: "strict", Type: "boolean", Default: "false", Help: "whether an answer with another transaction or unit is none"},
	},
	Property: registerSettings,
	Command:  append(slices.Clone(registerSettings), mappers.ProtocolSetting{Name: "value", Type: "string", Help: "what is written (default: the command's input)"}),
}

// Settings implements mappers.Describer.
func (d *Driver) Settings() mappers.ProtocolSettings { return protocolSettings }
