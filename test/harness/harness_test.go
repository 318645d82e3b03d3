// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/faults"
)

// emptyWorld has no programs of ours: enough for those of the system.
func emptyWorld(t *testing.T) *World {
	t.Helper()
	w := &World{Dir: t.TempDir(), Bin: "/nonexistent", nodes: map[string]*Node{}, procs: map[string]*process{}, last: map[string][]string{}, wraps: map[string][]string{}}
	require.NoError(t, os.Mkdir(filepath.Join(w.Dir, "logs"), 0o755))
	t.Cleanup(w.Close)
	return w
}

func TestTermWantsACleanEnd(t *testing.T) {
	w, ctx := emptyWorld(t), context.Background()
	require.NoError(t, w.Run(ctx, "good", []string{"sh", "-c", "trap 'exit 0' TERM; echo up; touch good; while :; do sleep 0.05; done"}, ""))
	require.Eventually(t, func() bool { return fileExists(filepath.Join(w.Dir, "good")) }, 30*time.Second, time.Millisecond)
	require.NoError(t, w.Term("good"))
	require.NoError(t, w.Run(ctx, "bad", []string{"sh", "-c", "trap 'exit 3' TERM; touch bad; while :; do sleep 0.05; done"}, ""))
	require.Eventually(t, func() bool { return fileExists(filepath.Join(w.Dir, "bad")) }, 30*time.Second, time.Millisecond)
	require.ErrorContains(t, w.Term("bad"), "exit code 3")
	require.ErrorContains(t, w.Term("nobody"), "never started")
	require.Contains(t, w.Logs(10), "up")
	require.Empty(t, w.Died(), "they were asked to")
}

func TestCrashTakesTheChildrenToo(t *testing.T) {
	w := emptyWorld(t)
	require.NoError(t, w.Run(context.Background(), "parent", []string{"sh", "-c", "sleep 300 & echo $! >child; wait"}, ""))
	var child string
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(filepath.Join(w.Dir, "child"))
		child = strings.TrimSpace(string(text))
		return err == nil && child != ""
	}, 30*time.Second, time.Millisecond)
	require.NoError(t, w.Crash("parent"))
	require.Eventually(t, func() bool {
		text, err := os.ReadFile("/proc/" + child + "/stat")
		return err != nil || strings.Contains(string(text), ") Z ")
	}, 30*time.Second, time.Millisecond)
	require.Empty(t, w.Died())
}

func TestWhoEndsUnaskedIsNamed(t *testing.T) {
	w := emptyWorld(t)
	require.NoError(t, w.Run(context.Background(), "weak", []string{"sh", "-c", "exit 2"}, ""))
	require.Eventually(t, func() bool { return len(w.Died()) == 1 }, 30*time.Second, time.Millisecond)
	require.Equal(t, []string{"weak (exit status 2)"}, w.Died())
	err := w.Run(context.Background(), "early", []string{"sh", "-c", "exit 1"}, "127.0.0.1:1")
	require.ErrorContains(t, err, "early ended before it was ready")
}

func TestEventually(t *testing.T) {
	n := 0
	require.NoError(t, Eventually(context.Background(), time.Second, func(context.Context) error {
		if n++; n < 3 {
			return errors.New("not yet")
		}
		return nil
	}))
	err := Eventually(context.Background(), 50*time.Millisecond, func(context.Context) error { return errors.New("never") })
	require.ErrorContains(t, err, "never")
}

func TestNetworksAreToldInWords(t *testing.T) {
	p, err := faults.New(faults.Options{Target: "127.0.0.1:1"})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	for _, good := range [][]string{{"cut", "reset"}, {"heal"}, {"drop"}, {"delay", "1ms"}, {"delay", "1ms", "2ms"}, {"bandwidth", "1000"}, {"split"}} {
		require.NoError(t, changeNetwork(p, good[0], append(good[1:], "", "")), "%v", good)
	}
	for _, bad := range [][]string{{"cut", "gently"}, {"delay", "long"}, {"bandwidth", "wide"}, {"explode"}} {
		require.Error(t, changeNetwork(p, bad[0], append(bad[1:], "", "")), "%v", bad)
	}
}
