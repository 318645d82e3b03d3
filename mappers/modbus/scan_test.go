// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// runMain runs mapper-modbus.
func runMain(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Main(args, &out, &errs)
	return code, out.String(), errs.String()
}

func newSimulator(t *testing.T, o SimulatorOptions) *Simulator {
	t.Helper()
	s, err := NewSimulator(o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestReadPrintsRegisters(t *testing.T) {
	s := newSimulator(t, SimulatorOptions{})
	code, out, errs := runMain(t, "read", s.Addr(), "holding", "218-220", "--type", "uint32")
	require.Zero(t, code, errs)
	require.Regexp(t, `218 +0x00DA +218 +218 +14287067`, out)
	require.Regexp(t, `219 +0x00DB +219 +219\n`, out)
	require.Regexp(t, `220 +Rejected: .*illegal data address`, out)
	for _, args := range [][]string{{"holding", "9-1"}, {"drum", "1"}, {"holding", "1", "--type", "int3"}, {"holding", "0-2000"}} {
		code, _, errs := runMain(t, append([]string{"read", s.Addr()}, args...)...)
		require.Equal(t, 2, code, errs)
	}
	require.NoError(t, s.Close())
	code, _, errs = runMain(t, "read", s.Addr(), "coil", "0")
	require.Equal(t, 1, code, errs)
	require.Contains(t, errs, "connection refused")
}

func TestScanWritesADeviceAndAModelOfEachUnit(t *testing.T) {
	s := newSimulator(t, SimulatorOptions{Units: 2})
	code, out, errs := runMain(t, "scan", s.Addr(), "--units", "1-3", "--registers", "0-110", "--node", "plant1")
	require.Zero(t, code, errs)
	require.Contains(t, errs, "unit 1 answers\nunit 2 answers\n")
	require.Equal(t, 2, strings.Count(out, "kind: DeviceModel"))
	for _, want := range []string{"name: modbus-2", "nodeName: plant1", "propertyName: holding-110", "propertyName: input-4", "propertyName: coil-0", "propertyName: discrete-input-0", `unit: "2"`} {
		require.Contains(t, out, want)
	}
	for _, never := range []string{"holding-1\n", "input-5", "coil-1\n"} {
		require.NotContains(t, out, never)
	}
	code, _, errs = runMain(t, "scan", s.Addr(), "--units", "7-9")
	require.Equal(t, 1, code)
	require.Contains(t, errs, "no unit from 7 to 9 answers")
}

func TestScanOfAnInverter(t *testing.T) {
	s := newSimulator(t, SimulatorOptions{Sunspec: true})
	code, out, errs := runMain(t, "scan", s.Addr(), "--sunspec", "--units", "1")
	require.Zero(t, code, errs)
	for _, want := range []string{"name: edgebus-simulated-inverter", "sunspec: inverter/W", "sunspec: mppt/2/DCW", "sunspec: common/SN", "unit: Wh", "value: shutting-down"} {
		require.Contains(t, out, want)
	}
	require.NotContains(t, out, "inverter/VAr", "it has no value")
}
