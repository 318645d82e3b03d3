package devices_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/test/clitest"
)

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
