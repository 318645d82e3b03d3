// SPDX-License-Identifier: Apache-2.0

package virtual

import "github.com/edgebus/edgebus/mappers"

// protocolSettings are the settings of virtual devices. Their checks take the names from here.
var protocolSettings = mappers.ProtocolSettings{
	Property: []mappers.ProtocolSetting{
		{Name: "generator", Type: "string", Enum: []string{"sine", "sawtooth", "random-walk", "constant"}, Help: "how a read-only number moves (default: random-walk)"},
		{Name: "min", Type: "number", Help: "the least value (default: the model's minimum, or 0)"},
		{Name: "max", Type: "number", Help: "the greatest value (default: the model's maximum, or 100)"},
		{Name: "period", Type: "duration", Default: "60s", Help: "how long a period of sine and sawtooth takes"},
		{Name: "value", Type: "string", Help: "the first value, and that of constant"},
	},
	Event: []mappers.ProtocolSetting{
		{Name: "every", Type: "duration", Help: "how often it happens by itself (default: never)"},
		{Name: "command", Type: "string", Help: "the command of the model that makes it happen, with its input"},
	},
}

// Settings implements mappers.Describer.
func (d *Driver) Settings() mappers.ProtocolSettings { return protocolSettings }

// settingNames are the names of settings.
func settingNames(list []mappers.ProtocolSetting) (names []string) {
	for _, s := range list {
		names = append(names, s.Name)
	}
	return names
}
