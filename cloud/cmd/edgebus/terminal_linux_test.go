package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

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
	startHub(t)
	screen, file := newTerminal(t)
	plants := writeFile(t, t.TempDir(), "plant.yaml", plantManifest)
	model := writeFile(t, t.TempDir(), "model.yaml", strings.Split(plantManifest, "---\n")[1])
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
	out, _ := runEdgebus(t, 0, "apply", "-f", plants)
	require.NotContains(t, out, "[1/3]")
}

// runOnTerminal is what a command shows on a terminal as its output and errors, and its exit code.
func runOnTerminal(t *testing.T, args ...string) (shown string, code int) {
	t.Helper()
	screen, file := newTerminal(t)
	done := make(chan string)
	go func() {
		text, _ := io.ReadAll(screen) // a terminal whose other side is closed ends with an error
		done <- string(text)
	}()
	code = run(args, file, file)
	require.NoError(t, file.Close())
	return <-done, code
}

func TestColoursAreForTerminals(t *testing.T) {
	startHub(t)
	runEdgebus(t, 0, "apply", "-f", writeFile(t, t.TempDir(), "plant.yaml", plantManifest))
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	shown, code := runOnTerminal(t, "get", "device", "toaster")
	require.Equal(t, notFound, code)
	require.Contains(t, shown, "\x1b[31medgebus:\x1b[0m")
	shown, _ = runOnTerminal(t, "get", "devices")
	require.Contains(t, shown, "\x1b[33munknown")

	t.Setenv("NO_COLOR", "1")
	shown, _ = runOnTerminal(t, "get", "devices")
	require.Contains(t, shown, "unknown")
	require.NotContains(t, shown, "\x1b")
	t.Setenv("NO_COLOR", "")
	out, errs := runEdgebus(t, notFound, "get", "device", "lamp", "toaster")
	require.NotContains(t, out+errs, "\x1b", "what isn't a terminal gets none")
}

// Who waits sees for what, and how long; a file is told the outcome only.
func TestWaitingIsShownAtATerminal(t *testing.T) {
	startHub(t)
	runEdgebus(t, 0, "apply", "-f", writeFile(t, t.TempDir(), "plant.yaml", plantManifest))
	shown, code := runOnTerminal(t, "twin", "set", "lamp", "brightness=30", "--wait", "--timeout", "1s")
	require.Equal(t, late, code)
	require.Contains(t, shown, "waiting for ")
	require.Contains(t, shown, "of 1s")
	require.Contains(t, shown, "has not reported brightness")
	_, errs := runEdgebus(t, late, "twin", "set", "lamp", "brightness=31", "--wait", "--timeout", "1s")
	require.NotContains(t, errs, "waiting for")
}

// A password is asked for twice, and never shown.
func TestPasswdAsksAtATerminal(t *testing.T) {
	screen, file := newTerminal(t)
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
			secret, err := newPassword(file, file)
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
	_, err := newPassword(strings.NewReader("\n"), io.Discard)
	require.Error(t, err)
}

func terminalEchoes(t *testing.T, file *os.File) bool {
	t.Helper()
	how, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	require.NoError(t, err)
	return how.Lflag&unix.ECHO != 0
}
