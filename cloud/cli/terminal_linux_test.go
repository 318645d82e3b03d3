// SPDX-License-Identifier: Apache-2.0

package cli_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/test/clitest"
)

func TestColoursAreForTerminals(t *testing.T) {
	clitest.StartHub(t)
	clitest.Run(t, 0, "apply", "-f", clitest.WriteFile(t, t.TempDir(), "plant.yaml", clitest.Plant))
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	shown, code := clitest.RunOnTerminal(t, "get", "device", "toaster")
	require.Equal(t, exitcode.NotFound, code)
	require.Contains(t, shown, "\x1b[31medgebus:\x1b[0m")
	shown, _ = clitest.RunOnTerminal(t, "get", "devices")
	require.Contains(t, shown, "\x1b[33munknown")

	t.Setenv("NO_COLOR", "1")
	shown, _ = clitest.RunOnTerminal(t, "get", "devices")
	require.Contains(t, shown, "unknown")
	require.NotContains(t, shown, "\x1b")
	t.Setenv("NO_COLOR", "")
	out, errs := clitest.Run(t, exitcode.NotFound, "get", "device", "lamp", "toaster")
	require.NotContains(t, out+errs, "\x1b", "what isn't a terminal gets none")
}

// Who waits sees for what, and how long; a file is told the outcome only.
func TestWaitingIsShownAtATerminal(t *testing.T) {
	clitest.StartHub(t)
	clitest.Run(t, 0, "apply", "-f", clitest.WriteFile(t, t.TempDir(), "plant.yaml", clitest.Plant))
	shown, code := clitest.RunOnTerminal(t, "twin", "set", "lamp", "brightness=30", "--wait", "--timeout", "1s")
	require.Equal(t, exitcode.TimedOut, code)
	require.Contains(t, shown, "waiting for ")
	require.Contains(t, shown, "of 1s")
	require.Contains(t, shown, "has not reported brightness")
	_, errs := clitest.Run(t, exitcode.TimedOut, "twin", "set", "lamp", "brightness=31", "--wait", "--timeout", "1s")
	require.NotContains(t, errs, "waiting for")
}

// Who looks at a terminal sees how far an apply of many objects is; a file, or one object, has no use for it.
func TestApplyCountsOnATerminal(t *testing.T) {
	clitest.StartHub(t)
	plants := clitest.WriteFile(t, t.TempDir(), "plant.yaml", clitest.Plant)
	model := clitest.WriteFile(t, t.TempDir(), "model.yaml", strings.Split(clitest.Plant, "---\n")[1])
	shown, _ := clitest.RunOnTerminal(t, "apply", "-f", plants)
	require.Contains(t, shown, "[1/3] devicemodel/dimmable created\r\n[2/3] node/n1 created\r\n[3/3] device/lamp created\r\n")
	shown, _ = clitest.RunOnTerminal(t, "apply", "-f", model)
	require.Equal(t, "devicemodel/dimmable unchanged\r\n", shown)
	shown, _ = clitest.RunOnTerminal(t, "apply", "-q", "-f", plants)
	require.Empty(t, shown)
	out, _ := clitest.Run(t, 0, "apply", "-f", plants)
	require.NotContains(t, out, "[1/3]")
}
