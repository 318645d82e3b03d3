// SPDX-License-Identifier: Apache-2.0

package clitest

import (
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/edgebus/edgebus/cloud/cli"
)

// NewTerminal is a terminal, and what is shown on it.
func NewTerminal(t *testing.T) (screen, file *os.File) {
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

// RunOnTerminal is what a command shows on a terminal as its output and errors, and its exit code.
func RunOnTerminal(t *testing.T, args ...string) (shown string, code int) {
	t.Helper()
	screen, file := NewTerminal(t)
	done := make(chan string)
	go func() {
		text, _ := io.ReadAll(screen) // a terminal whose other side is closed ends with an error
		done <- string(text)
	}()
	code = cli.Run(args, file, file)
	require.NoError(t, file.Close())
	return <-done, code
}
