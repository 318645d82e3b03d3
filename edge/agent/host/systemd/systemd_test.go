// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/edge/agent/host/systemd"
	"github.com/edgebus/edgebus/test/hosttest"
)

// startSystemd is a client of the stand-in for systemd. A change is in changed.
func startSystemd(t *testing.T) (*hosttest.Systemd, *systemd.Systemd, chan struct{}) {
	t.Helper()
	standIn := hosttest.StartSystemd(t, t.TempDir())
	changed := make(chan struct{}, 1)
	s := systemd.New(standIn.Address, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	t.Cleanup(func() { _ = s.Close() })
	return standIn, s, changed
}

func TestUnitsByPattern(t *testing.T) {
	standIn, s, _ := startSystemd(t)
	for _, name := range []string{"crio.service", "crio-wipe.service", "sshd.service", "a[1].service"} {
		standIn.Add(name, "active", "running")
	}
	standIn.Add("chronyd.service", "failed", "failed")
	names := func(patterns ...string) (names []string) {
		units, err := s.Match(t.Context(), patterns)
		require.NoError(t, err)
		for _, u := range units {
			names = append(names, u.Name+" "+u.LoadState+" "+u.ActiveState)
		}
		return names
	}
	require.Equal(t, []string{"crio-wipe.service loaded active", "crio.service loaded active"}, names("crio*", "*wipe.service"))
	require.Equal(t, []string{"chronyd.service loaded failed", "none.service not-found inactive"}, names("chronyd.service", "none.service"))
	require.Equal(t, []string{"a[1].service loaded active"}, names("a[1]*"), "only * is special")
	require.Empty(t, names("?rio*", "nothing*"))
	require.Empty(t, names())
}

func TestJobsEnd(t *testing.T) {
	standIn, s, changed := startSystemd(t)
	standIn.Add("web.service", "inactive", "dead")
	require.NoError(t, s.Job(t.Context(), systemd.JobStart, "web.service"))
	require.Equal(t, "active", standIn.Active("web.service"))
	<-changed
	require.NoError(t, s.Job(t.Context(), systemd.JobRestart, "web.service"))
	require.NoError(t, s.Job(t.Context(), systemd.JobStop, "web.service"))
	require.Equal(t, "inactive", standIn.Active("web.service"))
	standIn.Fail("web.service", true)
	require.ErrorContains(t, s.Job(t.Context(), systemd.JobStart, "web.service"), `start web.service: the job ended with "failed"`)
	require.ErrorContains(t, s.Job(t.Context(), systemd.JobStart, "none.service"), "Unit none.service not found.")
	require.NoError(t, s.Reload(t.Context()))
	require.Equal(t, []string{"start web.service", "restart web.service", "stop web.service", "start web.service", "start none.service", "reload"}, standIn.Log())
	units, err := s.Services(t.Context(), []string{"none.service", "web.service"})
	require.NoError(t, err)
	require.False(t, units[0].Found())
	require.Equal(t, systemd.Unit{Name: "web.service", LoadState: "loaded", ActiveState: "failed", SubState: "failed", Result: "exit-code", Ran: true}, units[1])
}

func TestAChangeIsASignal(t *testing.T) {
	standIn, s, changed := startSystemd(t)
	require.NoError(t, s.Ping(t.Context()))
	for _, state := range []string{"active", "failed", "active"} {
		standIn.Add("web.service", state, "x")
		<-changed
	}
}

func TestWhereThereIsNoSystemd(t *testing.T) {
	s := systemd.New("unix:path="+t.TempDir()+"/bus", func() {})
	require.ErrorContains(t, s.Ping(t.Context()), "no D-Bus at unix:path=")
	require.Error(t, s.Reload(t.Context()))
	require.Error(t, s.Job(t.Context(), systemd.JobStart, "a.service"))
	_, err := s.Match(t.Context(), []string{"*"})
	require.Error(t, err)
	require.NoError(t, s.Close())
}

// The systemd of this machine, if it has one.
func TestRealSystemd(t *testing.T) {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		t.Skip("systemd doesn't run on this machine")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := systemd.New("unix:path="+systemd.SystemBus, func() {})
	t.Cleanup(func() { _ = s.Close() })
	units, err := s.Match(ctx, []string{"dbus*", "no-such-unit.service"})
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(units), 2)
	found, err := s.Services(ctx, []string{"dbus.service"})
	require.NoError(t, err)
	require.True(t, found[0].Found())
}

func FuzzMatches(f *testing.F) {
	f.Add("crio*", "crio.service")
	f.Add("a[*", "a[1]")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		systemd.MatchesPattern(pattern, name)
		require.True(t, systemd.MatchesPattern("*", name))
	})
}
