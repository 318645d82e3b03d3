// SPDX-License-Identifier: Apache-2.0

package terminal_test

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/test/clitest"
)

// A password is asked for twice, and never shown.
func TestPasswdAsksAtATerminal(t *testing.T) {
	screen, file := clitest.NewTerminal(t)
	type result struct {
		secret []byte
		err    error
	}
	for _, tt := range []struct {
		typed  []string
		secret string
	}{{[]string{"one two", "one two"}, "one two"}, {[]string{"one two", "one too"}, ""}} {
		got := make(chan result, 1)
		go func() {
			secret, err := terminal.ReadPassword(file, file)
			got <- result{secret, err}
		}()
		all := ""
		for i, prompt := range []string{"Password: ", "Once more: "} {
			for !strings.Contains(all, prompt) {
				buf := make([]byte, 100)
				require.NoError(t, screen.SetReadDeadline(time.Now().Add(20*time.Second)))
				n, err := screen.Read(buf)
				require.NoError(t, err)
				all += string(buf[:n])
			}
			for terminalEchoes(t, file) {
				time.Sleep(time.Millisecond) // the prompt comes before the terminal is quiet
			}
			_, err := screen.WriteString(tt.typed[i] + "\n")
			require.NoError(t, err)
		}
		r := <-got
		require.Equal(t, tt.secret, string(r.secret))
		require.Equal(t, tt.secret == "", r.err != nil)
		require.NotContains(t, all, "one")
	}
	_, err := terminal.ReadPassword(strings.NewReader("\n"), io.Discard)
	require.Error(t, err)
}

func terminalEchoes(t *testing.T, file *os.File) bool {
	t.Helper()
	how, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	require.NoError(t, err)
	return how.Lflag&unix.ECHO != 0
}
