// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWhyADeviceIsNotOnline(t *testing.T) {
	virtual := Mapper{"virtual", true, []string{"virtual"}}
	modbus := Mapper{"modbus", true, []string{"modbus", "modbus-tcp"}}
	gone, mute := modbus, virtual
	gone.Online, mute.Protocols = false, nil
	for name, tt := range map[string]struct {
		reach                   Reachability
		status, reason, message string
	}{
		"online":       {Reachability{Node: "n1", Registered: true, State: Online}, "True", "Online", ""},
		"unreachable":  {Reachability{Node: "n1", Registered: true, State: Offline, Problem: &Problem{Code: Unreachable, Message: "connection refused"}}, "False", "Unreachable", "connection refused"},
		"not said why": {Reachability{Node: "n1", Registered: true, State: Offline}, "False", "Offline", "its mapper does not reach it, and has not said why"},
		"no such node": {
			Reachability{Node: "n7", Protocol: "opcua"},
			"Unknown", "NoSuchNode",
			"no Node n7 is registered: one is when its core first connects; is spec.nodeName right?",
		},
		"not bound": {Reachability{State: Online}, "Unknown", "NoNode", "it belongs to no node: spec.nodeName is empty"},
		"node away": {Reachability{Node: "n1", Registered: true, Away: true, State: Online}, "Unknown", "NodeOffline", "node n1 is offline"},
		"no mapper": {Reachability{Node: "n1", Registered: true, Protocol: "opcua"}, "Unknown", "NoMapper", "no mapper is connected to node n1"},
		"only others": {
			Reachability{Node: "n1", Registered: true, Protocol: "opcua", Mappers: []Mapper{virtual, modbus}},
			"Unknown", "NoMapper",
			`no mapper on n1 speaks "opcua"; connected mappers: virtual (virtual), modbus (modbus, modbus-tcp)`,
		},
		"one that has not said": {
			Reachability{Node: "n1", Registered: true, Protocol: "opcua", Mappers: []Mapper{mute}},
			"Unknown", "NoMapper",
			`no mapper on n1 has said that it speaks "opcua"; connected mappers: virtual (has not said what it speaks)`,
		},
		"gone": {
			Reachability{Node: "n1", Registered: true, Protocol: "Modbus_TCP", State: Unknown, Mappers: []Mapper{virtual, gone}},
			"Unknown", "NoMapper",
			`mapper modbus, which speaks "Modbus_TCP", is not connected to node n1`,
		},
		"not heard yet": {
			Reachability{Node: "n1", Registered: true, Protocol: "modbus", Mappers: []Mapper{virtual, modbus}},
			"Unknown", "NotHeard",
			"mapper modbus is connected and has not reported the device's state",
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, Condition{Type: "Online", Status: tt.status, Reason: tt.reason, Message: tt.message}, tt.reach.Condition())
		})
	}
}

func TestPayloadsOfMappersThatCannotBeRead(t *testing.T) {
	for _, payload := range []string{"", "broken", `{"message":"x"}`, `[]`} {
		_, err := ParseProblem([]byte(payload))
		require.ErrorIs(t, err, Invalid, payload)
	}
	for _, payload := range []string{"", "modbus", `{}`, `[]`, `[""]`, `[1]`} {
		_, err := ParseProtocols([]byte(payload))
		require.ErrorIs(t, err, Invalid, payload)
	}
}

func TestWhatIsWantedAndNoLongerAllowed(t *testing.T) {
	m := DeviceModel{Metadata: Meta{Name: "lamp"}, Spec: DeviceModelSpec{Properties: []Property{
		{Name: "power", AccessMode: ReadWrite}, {Name: "level", Type: TypeInt, AccessMode: ReadWrite}, {Name: "temp"},
	}}}
	wanted := map[string]Value{"power": "ON", "level": "bright", "temp": "20", "gone": "1"}
	d := Device{Spec: DeviceSpec{Desired: wanted}}
	d.FollowSpec(&m, time.Now())
	twin := d.Status.Twin
	require.Nil(t, twin["power"].Refused)
	for property, rule := range map[string]string{
		"level": "is not an integer", "temp": "read-only in the model lamp", "gone": "the model lamp has no such property; it has power",
	} {
		require.Equal(t, NotAllowed, twin[property].Refused.Code)
		require.Contains(t, twin[property].Refused.Message, rule)
		require.Equal(t, string(wanted[property]), twin[property].Desired.Value)
		require.False(t, twin[property].InSync)
	}
	reason := func() string { return twinConditions(nil, twin, "", time.Now())[0].Reason }
	require.Equal(t, ReasonWaiting, reason(), "power may still be applied")
	delete(twin, "power")
	require.Equal(t, ReasonRefused, reason())
}
