package objects_test

import (
	"bufio"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli"
	"github.com/edgebus/edgebus/test/clitest"
)

// Who looks at a terminal sees how far an apply of many objects is; a file, or one object, has no use for it.
func TestApplyCountsOnATerminal(t *testing.T) {
	clitest.StartHub(t)
	screen, file := clitest.NewTerminal(t)
	plants := clitest.WriteFile(t, t.TempDir(), "plant.yaml", clitest.Plant)
	model := clitest.WriteFile(t, t.TempDir(), "model.yaml", strings.Split(clitest.Plant, "---\n")[1])
	var errs strings.Builder
	for _, args := range [][]string{{"apply", "-f", plants}, {"apply", "-f", model}, {"apply", "-q", "-f", plants}} {
		require.Zero(t, cli.Run(args, file, &errs), errs.String())
	}
	_, err := file.WriteString("end\n")
	require.NoError(t, err)
	var lines []string
	for shown := bufio.NewReader(screen); ; {
		line, err := shown.ReadString('\n')
		require.NoError(t, err)
		if line = strings.TrimSpace(line); line == "end" {
			break
		}
		lines = append(lines, line)
	}
	require.Equal(t, []string{
		"[1/3] devicemodel/dimmable created", "[2/3] node/n1 created", "[3/3] device/lamp created",
		"devicemodel/dimmable unchanged",
	}, lines)
	out, _ := clitest.Run(t, 0, "apply", "-f", plants)
	require.NotContains(t, out, "[1/3]")
}
