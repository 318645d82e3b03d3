// SPDX-License-Identifier: Apache-2.0

package objects_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/test/clitest"
)

func TestKindsAndFieldsAreExplained(t *testing.T) {
	clitest.StartHub(t)
	out, _ := clitest.Run(t, 0, "explain", "device.spec.alarms.severity")
	require.Regexp(t, `^GROUP:      edgebus.io\nKIND:       Device\nVERSION:    v1alpha1\n\nFIELD: severity <string>\n\nDESCRIPTION:\n    Severity says `, out)
	require.Contains(t, out, `ENUM: "low", "medium", "high", "critical"`)
	out, _ = clitest.Run(t, 0, "explain", "dev.spec")
	require.Contains(t, out, "  alarms\t<[]Object>\n    Alarms are alarms of this device.")
	require.Contains(t, out, "  deviceModelRef\t<Object> -required-\n")
	require.Contains(t, out, "  desired\t<map[string]scalar>\n")
	require.NotContains(t, out, "severity")
	for line := range strings.SplitSeq(out, "\n") {
		require.LessOrEqual(t, len([]rune(line)), 80, line)
	}
	out, _ = clitest.Run(t, 0, "explain", "device", "--recursive")
	require.Contains(t, out, "    alarms\t<[]Object>\n")
	require.Contains(t, out, "      severity\t<string>\n")
	out, _ = clitest.Run(t, 0, "explain", "devices.edgebus.io.metadata.labels")
	require.Contains(t, out, "FIELD: labels <map[string]string>")
	out, _ = clitest.Run(t, 0, "explain", "device.spec", "--api-version", "devices.kubeedge.io/v1beta1")
	require.Contains(t, out, "GROUP:      devices.kubeedge.io")
	out, _ = clitest.Run(t, 0, "explain", "secret.stringData")
	require.Contains(t, out, "KIND:       Secret\nVERSION:    v1\n")

	_, errs := clitest.Run(t, exitcode.NotFound, "explain", "device.spec.alrms")
	require.Contains(t, errs, "Device.spec has no field alrms: did you mean alarms?")
	_, errs = clitest.Run(t, exitcode.NotFound, "explain", "devise")
	require.Contains(t, errs, "did you mean device")

	completed, _ := clitest.Run(t, 0, "__complete", "explain", "device.spec.alarms.sev")
	require.Contains(t, completed, "device.spec.alarms.severity\n")
	completed, _ = clitest.Run(t, 0, "__complete", "explain", "")
	require.Contains(t, completed, "devicemodel\n")
}
