package cli_test

import (
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
