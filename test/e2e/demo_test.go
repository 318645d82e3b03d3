// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/edgebus/edgebus/test/harness"
)

// demoScreen is what a program shows on a terminal of 80 by 24 characters.
type demoScreen struct {
	t    *testing.T
	side *os.File // the other side of the terminal
	mu   sync.Mutex
	all  string
}

func newDemoScreen(t *testing.T, cmd *exec.Cmd) *demoScreen {
	t.Helper()
	side, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	number, err := unix.IoctlGetInt(int(side.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(int(side.Fd()), unix.TIOCSPTLCK, 0))
	require.NoError(t, unix.IoctlSetWinsize(int(side.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))
	file, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = file, file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	require.NoError(t, file.Close())
	s := &demoScreen{t: t, side: side}
	go func() {
		for buf := make([]byte, 4096); ; {
			n, err := side.Read(buf)
			s.mu.Lock()
			s.all += string(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { _ = side.Close() })
	return s
}

// resize changes the size of the terminal, and awaits a frame of it.
func (s *demoScreen) resize(rows, columns uint16) {
	s.t.Helper()
	require.NoError(s.t, unix.IoctlSetWinsize(int(s.side.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}))
	require.NoError(s.t, harness.Eventually(s.t.Context(), 30*time.Second, func(context.Context) error {
		if n := len(s.lines()); n > int(rows) {
			return fmt.Errorf("%d lines", n)
		}
		return nil
	}))
}

var colourPattern = regexp.MustCompile("\x1b\\[[0-9;]*m")

// lines are those of the last whole frame, without colours.
func (s *demoScreen) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	frames := strings.Split(s.all, "\x1b[H")
	for i := len(frames) - 1; i > 0; i-- {
		if text, _, whole := strings.Cut(frames[i], "\x1b[J"); whole {
			return strings.Split(strings.ReplaceAll(colourPattern.ReplaceAllString(text, ""), "\x1b[K", ""), "\r\n")
		}
	}
	return nil
}

func (s *demoScreen) key(key string) {
	s.t.Helper()
	_, err := s.side.WriteString(key)
	require.NoError(s.t, err)
}

func (s *demoScreen) shows(pattern string) {
	s.t.Helper()
	re := regexp.MustCompile(pattern)
	err := harness.Eventually(s.t.Context(), 30*time.Second, func(context.Context) error {
		if !re.MatchString(strings.Join(s.lines(), "\n")) {
			return errors.New("no " + pattern)
		}
		return nil
	})
	s.mu.Lock()
	tail := s.all[max(0, len(s.all)-500):]
	s.mu.Unlock()
	require.NoError(s.t, err, "%s\n%q", strings.Join(s.lines(), "\n"), tail)
}

// The demo on a terminal: both sides of the link, and keys that change and break things.
func TestTheDemoOnATerminal(t *testing.T) {
	t.Parallel()
	program, err := filepath.Abs("../../bin/edgebus")
	require.NoError(t, err)
	args := []string{"demo"}
	for _, flag := range []string{"--hub-mqtt", "--hub-mqtt-tls", "--hub-http", "--core-mqtt", "--core-http", "--modbus"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		args = append(args, flag, l.Addr().String())
		require.NoError(t, l.Close())
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir(), "TERM=xterm")
	s := newDemoScreen(t, cmd)
	ended := make(chan error, 1)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // of one that has ended nothing comes
	})

	s.shows(`lamp/state +online +online +=`)
	s.shows(`thermostat/state +online +online +=`)
	s.shows(`in step`)
	s.shows(`^Edgebus: .*\nthe page: http://127.0.0.1:\d+/`)
	s.shows(`(?s)data and logs:.*, removed[\s#]+by[\s#]+q`)
	for _, line := range s.lines() {
		require.LessOrEqual(t, utf8.RuneCountInString(line), 80, line)
	}
	require.LessOrEqual(t, len(s.lines()), 24)
	s.resize(40, 300)
	s.shows(`(?m)^edgecore --config n2.yaml .*:10551$`)
	s.shows(`joined over TLS: edgebus invite demo, edgecore join 127.0.0.1:\d+ --token`)

	// Another node joins by what the screen proposes, but for its ports, and runs.
	text := strings.Join(s.lines(), "\n")
	proposed := regexp.MustCompile(`(?m)^(export .*)\n(?s:.*)^(\$\(edgebus invite n2\) .*)\n(edgecore .*)$`).FindStringSubmatch(text)
	require.NotNil(t, proposed, text)
	script := proposed[1] + "\n" + proposed[2] + "\nexec " + regexp.MustCompile(`:(2884|10551)\b`).ReplaceAllString(proposed[3], ":0")
	shell := exec.Command("sh", "-c", script)
	shell.Dir = t.TempDir()
	require.NoError(t, shell.Start())
	t.Cleanup(func() { _, _ = shell.Process.Signal(syscall.SIGTERM), shell.Wait() })
	require.NoError(t, harness.Eventually(t.Context(), 60*time.Second, func(context.Context) error {
		out, err := exec.Command("sh", "-c", proposed[1]+"\nedgebus get nodes").CombinedOutput()
		if err == nil && !regexp.MustCompile(`n2 +online`).Match(out) {
			err = errors.New(string(out))
		}
		return err
	}), script)
	s.resize(24, 80)

	// The command lines are whole, and do what they say.
	text = strings.ReplaceAll(strings.Join(s.lines(), "\n"), " \\\n    ", " ")
	pub := regexp.MustCompile(`(?m)^mosquitto_pub .*brightness -m 75$`).FindString(text)
	require.NotEmpty(t, pub, text)
	out, err := exec.Command("sh", "-c", pub).CombinedOutput()
	require.NoError(t, err, "%s", out)
	s.shows(`lamp/reported/brightness +75 +75 +=`)

	s.shows(`until it is cleared:\nmosquitto_pub `)

	// A small window has the values first, then the keys, then as many commands as there is room for.
	s.resize(14, 50)
	s.shows(`(?s)lamp/reported/pow.*c cut the link.*q quit`)
	for _, line := range s.lines() {
		require.LessOrEqual(t, utf8.RuneCountInString(line), 50, line)
	}
	require.LessOrEqual(t, len(s.lines()), 14)
	s.resize(24, 80)

	s.key("l")
	s.shows(`lamp/reported/power +ON +ON +=`)
	s.key("c")
	s.shows(`the link is cut`)
	s.key("l")
	s.shows(`lamp/desired/power +OFF +ON +≠`)
	s.key("d")
	s.shows(`the link is cut: (4[0-9]|[5-9][0-9]|1[0-9][0-9]) changes on the node, none sent yet`)
	s.key("c")
	s.shows(`in step`)
	s.shows(`lamp/reported/power +OFF +OFF +=`)
	s.shows(`the link was cut: \d+ changes on the node, [1-9]\d* sent when it was back`)
	var changes, sent int
	told := regexp.MustCompile(`the link was cut: .*`).FindString(strings.Join(s.lines(), "\n"))
	_, err = fmt.Sscanf(told, "the link was cut: %d changes on the node, %d sent", &changes, &sent)
	require.NoError(t, err, told)
	require.Less(t, sent, changes)
	s.key("k")
	s.shows(`the node is down`)
	s.shows(`the node was killed: its broker was away for [0-9.]+m?s, and has all its values`)
	s.shows(`in step`)
	s.key("q")
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(30 * time.Second):
		require.Fail(t, "q doesn't end it")
	}
}
