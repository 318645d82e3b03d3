// SPDX-License-Identifier: Apache-2.0

package virtual

import (
	"slices"

	"github.com/edgebus/edgebus/mappers"
)

// protocolSettings are the settings of virtual devices. Their checks take the names from here.
var protocolSettings = mappers.ProtocolSettings{
	Property: []mappers.ProtocolSetting{
		{Name: "generator", Type: "string", Enum: []string{"sine", "sawtooth", "random-walk", "constant"}, Help: "how a read-only number moves (default: random-walk)"},
		{Name: "min", Type: "number", Aliases: []string{"minimum"}, Help: "the least value (default: the model's minimum, or 0)"},
		{Name: "max", Type: "number", Aliases: []string{"maximum"}, Help: "the greatest value (default: the model's maximum, or 100)"},
		{Name: "period", Type: "duration", Default: "60s", Help: "how long a period of sine and sawtooth takes"},
		{Name: "value", Type: "string", Aliases: []string{"initial"}, Help: "the first value, and that of constant"},
	},
	Event: []mappers.ProtocolSetting{
		{Name: "every", Type: "duration", Help: "how often it happens by itself (default: never)"},
		{Name: "command", Type: "string", Help: "the command of the model that makes it happen, with its input"},
	},
}

// Settings implements mappers.Describer.
func (d *Driver) Settings() mappers.ProtocolSettings { return protocolSettings }

// settingName is the usual name of a setting in a list, of which key may be another; empty: there is no such setting.
func settingName(list []mappers.ProtocolSetting, key string) string {
	for _, s := range list {
		if s.Name == key || slices.Contains(s.Aliases, key) {
			return s.Name
		}
	}
	return ""
}
