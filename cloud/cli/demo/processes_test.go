// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// isProcessGone is whether a process has ended.
func isProcessGone(pid string) bool {
	n, err := strconv.Atoi(strings.TrimSpace(pid))
	if err != nil {
		return false
	}
	text, err := os.ReadFile("/proc/" + strconv.Itoa(n) + "/stat")
	return syscall.Kill(n, 0) != nil || err == nil && strings.Contains(string(text), ") Z ")
}

func TestNothingIsLeftRunning(t *testing.T) {
	dir := t.TempDir()
	g := newProcesses(filepath.Join(dir, "logs"))
	g.onExit = func(err error) { t.Errorf("unexpected: %v", err) }
	read := func(name string) string { text, _ := os.ReadFile(filepath.Join(dir, name)); return string(text) }
	require.NoError(t, g.start("first", []string{"sh", "-c", "trap 'echo first >>order; exit' TERM; touch up1; while :; do sleep 0.02; done"}, dir))
	require.NoError(t, g.start("last", []string{"sh", "-c", "trap 'echo last >>order; exit' TERM; sleep 300 & echo $! >child; while :; do sleep 0.02; done"}, dir))
	require.Eventually(t, func() bool { return read("child") != "" && fileExists(filepath.Join(dir, "up1")) }, 30*time.Second, time.Millisecond)
	require.NoError(t, g.stop())
	require.Equal(t, "last\nfirst\n", read("order"), "who was started last goes first")
	require.Eventually(t, func() bool { return isProcessGone(read("child")) }, 30*time.Second, time.Millisecond)
}

func fileExists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func TestAProgramThatDoesNotStopIsKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	g := newProcesses(filepath.Join(dir, "logs"))
	require.NoError(t, g.start("deaf", []string{"sh", "-c", "trap '' TERM; touch up; while :; do sleep 0.05; done"}, dir))
	require.Eventually(t, func() bool { return fileExists(filepath.Join(dir, "up")) }, 30*time.Second, time.Millisecond)
	began := time.Now()
	require.ErrorContains(t, g.stop(), "deaf")
	require.Less(t, time.Since(began), 10*time.Second)
	require.True(t, isProcessGone(strconv.Itoa(g.all[0].cmd.Process.Pid)))
}

func TestAKilledProgramIsStartedAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	g := newProcesses(filepath.Join(dir, "logs"))
	g.pause = time.Millisecond
	g.onExit = func(err error) { t.Errorf("given up: %v", err) }
	said := make(chan string, 100)
	g.say = func(text string) { said <- text }
	pids := func() []string {
		text, _ := os.ReadFile(filepath.Join(dir, "pids"))
		return strings.Fields(string(text))
	}
	require.NoError(t, g.start("phoenix", []string{"sh", "-c", "sleep 300 & echo $$ $! >>pids; wait"}, dir))
	for round := range mostRestarts - 1 {
		require.Eventually(t, func() bool { return len(pids()) == 2*round+2 }, 30*time.Second, time.Millisecond)
		pid, err := strconv.Atoi(pids()[2*round])
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	require.Eventually(t, func() bool { return len(pids()) == 2*mostRestarts }, 30*time.Second, time.Millisecond)
	require.NoError(t, g.stop())
	close(said)
	var texts []string
	for text := range said {
		texts = append(texts, text)
	}
	require.Contains(t, texts, "phoenix ended unexpectedly (signal: killed), and is started again in 8ms", "the pause doubles")
	for _, pid := range pids() {
		require.Eventually(t, func() bool { return isProcessGone(pid) }, 30*time.Second, time.Millisecond, "no child is left either")
	}
}

func TestNoProgramIsStartedAfterStop(t *testing.T) {
	dir := t.TempDir()
	g := newProcesses(filepath.Join(dir, "logs"))
	g.pause = time.Hour
	paused := make(chan string, 1)
	g.say = func(text string) { paused <- text }
	require.NoError(t, g.start("weak", []string{"sh", "-c", "echo >>runs"}, dir))
	require.Contains(t, <-paused, "started again in 1h0m0s")
	require.NoError(t, g.stop())
	text, err := os.ReadFile(filepath.Join(dir, "runs"))
	require.NoError(t, err)
	require.Equal(t, "\n", string(text))
	require.ErrorIs(t, g.start("late", []string{"true"}, dir), errStopping)
}

func TestAProgramThatEndsAgainAndAgainIsGivenUpWithTheEndOfItsLog(t *testing.T) {
	dir := t.TempDir()
	g := newProcesses(filepath.Join(dir, "logs"))
	g.pause = time.Millisecond
	gaveUp := make(chan error, 1)
	g.onExit = func(err error) { gaveUp <- err }
	t.Setenv("CLOUDHUB_DATA_DIR", "/elsewhere")
	require.NoError(t, g.start("weak", []string{"sh", "-c", `echo "dir=$CLOUDHUB_DATA_DIR"; echo alas >&2; exit 3`}, dir))
	err := <-gaveUp
	require.ErrorContains(t, err, "weak ended unexpectedly (exit status 3), 5 times within 30s")
	require.ErrorContains(t, err, "alas")
	require.ErrorContains(t, err, "dir=\n", "settings of this host must not change the demo")

	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(err)
	require.Equal(t, err, exitReason(ctx, errors.New("connection refused")), "the cause, not what followed from it")
	plain, stop := context.WithCancel(context.Background())
	require.ErrorContains(t, exitReason(plain, errors.New("x")), "x")
	stop()
	require.NoError(t, exitReason(plain, errors.New("interrupted")))
	require.NoError(t, g.stop())
}
