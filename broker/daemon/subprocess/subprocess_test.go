// SPDX-License-Identifier: Apache-2.0

package subprocess

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

func shellCommand(text string) []string { return []string{"/bin/sh", "-c", text} }

// What a program has started ends with it: it would go on beside whatever undoes its work.
func TestTheWholeGroupIsKilledWhenTheTimeIsOver(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	_, err := Command{Argv: shellCommand("sleep 1000 & echo $! >" + file + "; echo begun; wait"), Time: 300 * time.Millisecond}.Run(t.Context())
	require.ErrorContains(t, err, "it took longer than 300ms and was ended: begun")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.Eventually(t, func() bool { // one that was killed stays until its new parent has asked for it
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ") || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	}, 10*time.Second, 5*time.Millisecond)
}

func TestTheContextEndsAProgramWithItsCause(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the order was withdrawn"))
	_, err := Command{Argv: shellCommand("sleep 1000")}.Run(ctx)
	require.ErrorContains(t, err, "the order was withdrawn")
}

// A program that leaves a service behind has succeeded, and its output is not awaited for ever.
func TestWhatAProgramLeavesRunningIsNotAwaited(t *testing.T) {
	out, err := Command{Argv: shellCommand("setsid sleep 20 & echo done")}.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, "done\n", string(out))
}

func TestTheErrorHasTheEndOfTheOutput(t *testing.T) {
	_, err := Command{Argv: shellCommand("echo why >&2; seq 1 1000; exit 3")}.Run(t.Context())
	require.ErrorContains(t, err, "exit status 3: …")
	require.ErrorContains(t, err, "999\n1000\nwhy")
	require.NotContains(t, err.Error(), "\n900\n")
	_, err = Command{}.Run(t.Context())
	require.ErrorContains(t, err, "there is no command")
	_, err = Command{Argv: shellCommand("head -c 5000000 /dev/zero")}.Run(t.Context())
	require.ErrorContains(t, err, "more than 4194304 bytes")
}

func TestOwnSettingsAreNoProgramsBusiness(t *testing.T) {
	for _, name := range []string{"EDGEBUS_TEST", "EDGEAGENT_TEST", "NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY", "KEPT"} {
		t.Setenv(name, "x")
	}
	out, err := Command{Argv: shellCommand("env; pwd")}.Run(t.Context())
	require.NoError(t, err)
	require.Contains(t, string(out), "KEPT=x\n")
	require.Contains(t, string(out), "\n/\n")
	for _, name := range []string{"EDGEBUS_TEST", "EDGEAGENT_TEST", "NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY"} {
		require.NotContains(t, string(out), name+"=")
	}
	out, err = Command{Argv: shellCommand("env"), Env: []string{"A=b"}}.Run(t.Context())
	require.NoError(t, err)
	require.NotContains(t, string(out), "KEPT")
}
