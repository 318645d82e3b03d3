// Package devices tries the mappers with devices that others have made: each script of testdata has one of node/ or of Debian's
// packages, a hub, a node and the mapper.
package devices

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/topics/resource"
)

func requireLibraries(t *testing.T) {
	if _, err := os.Stat("node/node_modules"); err != nil {
		require.Empty(t, os.Getenv("CI"), "the devices' libraries are missing: `make needs-clients` installs them")
		t.Skip("the devices' libraries are missing: `make needs-clients` installs them")
	}
}

func TestDevices(t *testing.T) {
	requireLibraries(t)
	harness.Scripts(t, "testdata")
}

// Each of the thousands of definitions that zigbee2mqtt is made with becomes a DeviceModel that the API takes.
func TestAModelOfEachZigbeeDefinition(t *testing.T) {
	requireLibraries(t)
	programs, err := harness.Programs()
	require.NoError(t, err)
	list, err := exec.CommandContext(t.Context(), "node", "node/zigbee.mjs").Output()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "list.json")
	require.NoError(t, os.WriteFile(file, list, 0o600))
	out, err := exec.CommandContext(t.Context(), filepath.Join(programs, "mapper-mqtt"), "browse", "--list", file).Output()
	require.NoError(t, err)
	devices := 0
	for _, text := range bytes.Split(out, []byte("\n---\n")) {
		if bytes.Contains(text, []byte("kind: DeviceModel\n")) {
			var model resource.DeviceModel
			require.NoError(t, yaml.UnmarshalStrict(text, &model), "%s", text)
			require.NoError(t, model.Validate(), "%s", text)
			continue
		}
		var device resource.Device
		require.NoError(t, yaml.UnmarshalStrict(text, &device), "%s", text)
		require.NoError(t, device.Validate(), "%s", text)
		devices++
	}
	require.Greater(t, devices, 4000)
}
