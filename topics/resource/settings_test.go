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
