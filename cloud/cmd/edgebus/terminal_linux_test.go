package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// newTerminal is a terminal, and what is shown on it.
func newTerminal(t *testing.T) (screen, file *os.File) {
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	number, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0))
	file, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return screen, file
}

// Who looks at a terminal sees how far an apply of many objects is; a file, or one object, has no use for it.
func TestApplyCountsOnATerminal(t *testing.T) {
	newHub(t)
	screen, file := newTerminal(t)
	plants := write(t, t.TempDir(), "plant.yaml", plant)
	model := write(t, t.TempDir(), "model.yaml", strings.Split(plant, "---\n")[1])
	var errs strings.Builder
	for _, args := range [][]string{{"apply", "-f", plants}, {"apply", "-f", model}, {"apply", "-q", "-f", plants}} {
		require.Zero(t, run(args, file, &errs), errs.String())
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
	out, _ := said(t, 0, "apply", "-f", plants)
	require.NotContains(t, out, "[1/3]")
}
