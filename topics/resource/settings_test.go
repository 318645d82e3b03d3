package resource

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSettingsOfAProtocol(t *testing.T) {
	s, err := ParseProtocolSettings([]byte(`{"protocols":["modbus"],"device":[{"name":"address","type":"string","help":"where it is"}],"property":[{"name":"register","type":"string","help":"which"}]}`))
	require.NoError(t, err)
	require.Equal(t, []string{"adress is no setting of modbus: did you mean address?"}, s.Unknown("device", map[string]Value{"adress": "x", "Address": "y"}))
	require.Empty(t, s.Unknown("property", map[string]Value{"register": "coil"}))
	s.Free = true
	require.Empty(t, s.Unknown("device", map[string]Value{"topic": "x"}))
	for payload, want := range map[string]string{
		`[]`:               "must be JSON such as",
		`{"protocols":[]}`: "must be JSON such as",
		`{"protocols":["x"],"event":[{"name":"a"}]}`: "settings.event[0]: must have a name and a type",
	} {
		_, err := ParseProtocolSettings([]byte(payload))
		require.ErrorContains(t, err, want, payload)
	}
}
