// Package devices tries the mappers with devices that others have made: each script of testdata has one of node/ or of Debian's
// packages, a hub, a node and the mapper.
package devices

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/harness"
)

func TestDevices(t *testing.T) {
	if _, err := os.Stat("node/node_modules"); err != nil {
		require.Empty(t, os.Getenv("CI"), "the devices' libraries are missing: `make needs-clients` installs them")
		t.Skip("the devices' libraries are missing: `make needs-clients` installs them")
	}
	harness.Scripts(t, "testdata")
}
