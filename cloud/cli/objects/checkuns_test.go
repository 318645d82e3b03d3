// SPDX-License-Identifier: Apache-2.0

package objects_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/clitest"
)

const namespacePlant = `
{apiVersion: edgebus.io/v1alpha1, kind: DeviceModel, metadata: {name: switch}, spec: {properties: [{name: power}]}}
---
{apiVersion: edgebus.io/v1alpha1, kind: Node, metadata: {name: n1, labels: {site: north}}}
---
{apiVersion: edgebus.io/v1alpha1, kind: Device, metadata: {name: lamp, labels: {area: hall}}, spec: {nodeName: n1, deviceModelRef: {name: switch}, protocol: {type: virtual}}}
---
{apiVersion: edgebus.io/v1alpha1, kind: Device, metadata: {name: fan}, spec: {nodeName: n1, deviceModelRef: {name: switch}, protocol: {type: virtual}}}
---
{apiVersion: edgebus.io/v1alpha1, kind: Device, metadata: {name: pump, labels: {area: hall, device: lamp}}, spec: {nodeName: n1, deviceModelRef: {name: switch}, protocol: {type: virtual}}}
`

func TestCheckUNSNamesDevicesWithoutALabelAndThoseOfOnePath(t *testing.T) {
	clitest.StartHub(t)
	file := clitest.WriteFile(t, t.TempDir(), "plant.yaml", namespacePlant)
	found := `(?s)^DEVICE +PATH +PROBLEM\n.*default/fan +uns/north/fan +neither the Device nor its node has the label area\n.*`
	out, _ := clitest.Run(t, 1, "check", "uns", "--levels", "site,area", "-f", file)
	require.Regexp(t, found, out)
	require.Regexp(t, `default/pump +uns/north/hall/lamp +the path is that of the Device default/lamp`, out)

	clitest.Run(t, 0, "apply", "-f", file)
	out, _ = clitest.Run(t, 1, "check", "uns", "--levels", "site,area")
	require.Regexp(t, found, out)
	require.Regexp(t, `default/(pump|lamp) +uns/north/hall/lamp +the path is that of`, out)
	out, _ = clitest.Run(t, 1, "check", "uns", "--levels", "site", "-o", "json")
	require.Contains(t, out, `"path": "uns/north/lamp"`)
	clitest.Run(t, 0, "delete", "device", "pump")
	out, _ = clitest.Run(t, 0, "check", "uns", "--levels", "site")
	require.Equal(t, "2 Devices: each has a path of its own, with all levels\n", out)
	out, _ = clitest.Run(t, 0, "check", "uns", "--levels", "site", "-o", "json")
	require.Equal(t, "[]\n", out)

	clitest.Run(t, 3, "check", "uns", "-f", "none.yaml")
	require.NoError(t, os.WriteFile(file, []byte("kind: [\n"), 0o600))
	clitest.Run(t, 3, "check", "uns", "-f", file)
}
