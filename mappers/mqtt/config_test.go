package mqtt

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
)

// TestKeysThatYAMLMakesBooleansOfAreTaken has on and off as YAML reads them without quotes.
func TestKeysThatYAMLMakesBooleansOfAreTaken(t *testing.T) {
	field := func(on, off string) (*mappedProperty, error) {
		return parseField(mappers.Property{
			Name: "output", Type: mappers.Boolean, Config: map[string]string{"state": "s", on: "open", off: "closed"},
		}, &deviceParams{values: map[string]string{}, used: map[string]bool{}})
	}
	for _, keys := range [][2]string{{"on", "off"}, {"true", "false"}, {"on", "false"}} {
		f, err := field(keys[0], keys[1])
		require.NoError(t, err)
		require.Equal(t, "open", f.on)
		require.Equal(t, "closed", f.off)
	}
	_, err := field("yes", "no")
	require.ErrorContains(t, err, "is no setting of mqtt")
}
