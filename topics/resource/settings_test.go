// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSettingsOfAProtocol(t *testing.T) {
	s, err := ParseProtocolSettings([]byte(`{"protocols":["modbus"],"device":[{"name":"address","type":"string","help":"where it is"}],"property":[{"name":"register","type":"string","help":"which"}]}`))
	require.NoError(t, err)
	require.Equal(t, "address", s.SettingsFor("device")[0].Name)
	require.Equal(t, "register", s.SettingsFor("property")[0].Name)
	require.Empty(t, s.SettingsFor("event"))
	for payload, want := range map[string]string{
		`[]`:               "must be JSON such as",
		`{"protocols":[]}`: "must be JSON such as",
		`{"protocols":["x"],"event":[{"name":"a"}]}`: "settings.event[0]: must have a name and a type",
	} {
		_, err := ParseProtocolSettings([]byte(payload))
		require.ErrorContains(t, err, want, payload)
	}
}

func TestWhatAMapperDoesNotTakeOfADeviceIsNamed(t *testing.T) {
	low, high := 0.0, 255.0
	s := ProtocolSettings{Protocols: []string{"modbus"}, Device: []ProtocolSetting{
		{Name: "address", Type: "string", Required: true, Aliases: []string{"ip"}},
		{Name: "unit", Type: "int", Minimum: &low, Maximum: &high},
		{Name: "scale", Type: "number"},
		{Name: "timeout", Type: "duration"},
		{Name: "strict", Type: "boolean"},
		{Name: "write", Type: "string", Enum: []string{"single", "multiple"}},
	}}
	require.Empty(t, s.CheckDevice("spec.protocol.config", map[string]Value{
		"IP": "10.0.0.9", "unit": "0x10", "scale": "0.1", "timeout": "2s", "strict": "TRUE", "write": "Single", "offlineAfter": "1m",
	}))
	require.Empty(t, s.CheckDevice("spec.protocol.config", map[string]Value{"unit": ""}), "empty is none, and the address may be the model's")
	require.Equal(t, []string{
		"spec.protocol.config.adress: is no setting of modbus: did you mean address?; its settings are address, unit, scale, timeout, strict, write",
		`spec.protocol.config.scale: "much" is no number`,
		`spec.protocol.config.strict: "maybe" is neither true nor false`,
		`spec.protocol.config.timeout: "2" is no duration, such as 500ms or 2m`,
		"spec.protocol.config.unit: 300 is not from 0 to 255",
		`spec.protocol.config.write: "twice" is none of single, multiple`,
	}, s.CheckDevice("spec.protocol.config", map[string]Value{"adress": "x", "unit": "300", "scale": "much", "timeout": "2", "strict": "maybe", "write": "twice"}))
	s.Free = true
	require.Empty(t, s.CheckDevice("spec.protocol.config", map[string]Value{"base": "x"}), "names of the Device's own")
}

func TestWhatAMapperDoesNotTakeOfAVisitorIsNamed(t *testing.T) {
	s := ProtocolSettings{
		Protocols: []string{"mqtt"}, Free: true, Device: []ProtocolSetting{{Name: "topic", Type: "string"}},
		Property: []ProtocolSetting{{Name: "state", Type: "string"}, {Name: "qos", Type: "int"}},
		Command:  []ProtocolSetting{{Name: "command", Type: "string"}},
	}
	require.Empty(t, s.CheckVisitor("at", Visitor{PropertyName: "p", Config: map[string]Value{"state": "{topic}", "qos": "{qos}"}}), "values are the mapper's to check")
	require.Empty(t, s.CheckVisitor("at", Visitor{EventName: "e", Config: map[string]Value{"x": "1"}}), "the mapper has no table of events")
	s.Property[1].Enum, s.Property[1].Aliases = []string{"1"}, []string{"quality"}
	require.Empty(t, s.CheckVisitor("at", Visitor{PropertyName: "p", Config: map[string]Value{"Quality": "one"}}), "another name and word")
	require.Equal(t, []string{`at.on: is no setting of mqtt; its settings are state, qos`},
		s.CheckVisitor("at", Visitor{PropertyName: "p", Config: map[string]Value{"on": "ON", "qos": "x"}}))
	require.Equal(t, []string{`at.state: is no setting of mqtt; its settings are command`},
		s.CheckVisitor("at", Visitor{CommandName: "c", Config: map[string]Value{"command": "t", "state": "x"}}))
}
