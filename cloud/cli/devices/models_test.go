// SPDX-License-Identifier: Apache-2.0

package devices_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/test/clitest"
)

func TestModelsAreListedAndPrintedWithoutAHub(t *testing.T) {
	t.Setenv("EDGEBUS_SERVER", "http://127.0.0.1:1")
	out, _ := clitest.Run(t, 0, "models")
	require.Regexp(t, `(?m)^NAME +PROTOCOL +TITLE$`, out)
	require.Regexp(t, `(?m)^snmp-ups +snmp +Uninterruptible power supply \(SNMP\)$`, out)
	out, _ = clitest.Run(t, 0, "models", "snmp-ups")
	require.Contains(t, out, "# An uninterruptible power supply")
	require.Contains(t, out, "metadata: {name: snmp-ups}")
	_, errs := clitest.Run(t, 3, "models", "snmp-up")
	require.Contains(t, errs, "no model snmp-up comes with edgebus: did you mean snmp-ups?")
}

// A hub takes each of the models as it is printed.
func TestAHubTakesTheModelsOfTheLibrary(t *testing.T) {
	clitest.StartHub(t)
	models, err := configs.LibraryModels()
	require.NoError(t, err)
	for _, m := range models {
		path := clitest.WriteFile(t, t.TempDir(), "model.yaml", string(m.YAML))
		out, _ := clitest.Run(t, 0, "apply", "-f", path)
		require.Contains(t, out, "devicemodel/"+m.Metadata.Name)
		out, _ = clitest.Run(t, 0, "apply", "-f", path)
		require.Contains(t, out, "unchanged", "%s: the hub has what was printed", m.Metadata.Name)
	}
}

func TestADeviceOfTheLibrarysModelsNeedsNoManifest(t *testing.T) {
	clitest.StartHub(t)
	add := []string{"device", "add", "meter", "--model", "eastron-sdm120", "--node", "n1", "tcp://10.0.0.7:502", "--set", "unit=3"}
	out, _ := clitest.Run(t, 0, append(add, "--dry-run")...)
	require.Contains(t, out, "kind: Device\n")
	clitest.Run(t, 3, "get", "devicemodel", "eastron-sdm120")
	out, _ = clitest.Run(t, 0, add...)
	require.Contains(t, out, "devicemodel/eastron-sdm120 made: it comes with edgebus\ndevice/meter made: a eastron-sdm120 on node n1, by modbus")
	out, _ = clitest.Run(t, 0, "get", "devicemodel", "eastron-sdm120", "-o", "yaml")
	require.Contains(t, out, "maxRegisters")

	// What the hub has is taken as it is.
	add[2] = "another"
	out, _ = clitest.Run(t, 0, add...)
	require.NotContains(t, out, "devicemodel/")
	add[2], add[4] = "third", "eastron-sdm"
	_, errs := clitest.Run(t, 3, add...)
	require.Contains(t, errs, "eastron-sdm")
}
