// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/edge/agent/host"
	"github.com/edgebus/edgebus/test/hosttest"
	"github.com/edgebus/edgebus/topics/resource"
)

// runHost observes a host until the test ends. The function that it returns waits until a report is as wanted.
func runHost(t *testing.T, h *host.Host) func(what string, is func(resource.AgentReport) bool) resource.AgentReport {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended, changed := make(chan error, 1), make(chan struct{}, 1000)
	go func() { ended <- h.Run(ctx, func() { changed <- struct{}{} }) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return func(what string, is func(resource.AgentReport) bool) (r resource.AgentReport) {
		t.Helper()
		deadline := time.After(time.Minute)
		for {
			r = resource.AgentReport{}
			if h.Report(&r); is(r) {
				return r
			}
			select {
			case <-changed: // the next report is looked at only when there is said to be one
			case <-deadline:
				text, _ := json.MarshalIndent(r, "", " ")
				t.Fatalf("never %s: %s", what, text)
			}
		}
	}
}

func TestAHostIsObserved(t *testing.T) {
	root := t.TempDir()
	s, e := hosttest.StartSystemd(t, root), hosttest.StartEngine(t)
	s.Add("chronyd.service", "active", "running")
	// The interval is long: what is seen below was signalled.
	h := host.New(host.Options{Root: root, SystemBus: s.Address, Podman: e.Socket, Docker: filepath.Join(root, "none"), Interval: time.Hour, Pause: time.Millisecond})
	until := runHost(t, h)
	h.Watch(resource.RenderedSpec{
		Monitoring:   &resource.Monitoring{Systemd: &resource.Patterns{MatchPatterns: []string{"chronyd.service"}}, Containers: &resource.Patterns{MatchPatterns: []string{"w*"}}},
		Resources:    []resource.ResourceMonitor{{MonitorType: resource.MonitorMemory, SamplingInterval: "1s"}},
		Applications: []resource.RenderedApplication{{Name: "shop", AppType: resource.AppQuadlet, Files: []resource.RenderedFile{{Path: "web.container"}}}},
	})
	r := until("complete", func(r resource.AgentReport) bool {
		return len(r.SystemdUnits) == 1 && r.Resources != nil && r.Resources.Memory == "Healthy" && len(r.Applications) == 1
	})
	require.Equal(t, resource.SystemdUnit{Name: "chronyd.service", LoadState: "loaded", ActiveState: "active"}, r.SystemdUnits[0])
	require.Equal(t, "True", resource.ConditionOf(r.Conditions, "SystemdAvailable").Status)
	require.Equal(t, "True", resource.ConditionOf(r.Conditions, "ContainerEngineAvailable").Status)
	require.NotEmpty(t, resource.ConditionOf(r.Conditions, "ClockSynchronized").Status)
	require.NotEmpty(t, r.SystemInfo.BootID)

	s.Add("chronyd.service", "failed", "failed")
	until("failed", func(r resource.AgentReport) bool { return r.SystemdUnits[0].ActiveState == "failed" })
	s.Add("web.service", "active", "running")
	until("running", func(r resource.AgentReport) bool { return r.Applications[0].Status == "Running" })

	// The events of the engine may not be followed yet: what happens again is seen.
	until("with a container", func(r resource.AgentReport) bool {
		e.Run(hosttest.Container{Name: "web", Image: "nginx:1", State: "running"})
		e.Run(hosttest.Container{Name: "other", Image: "nginx:1", State: "running"})
		s.Add("x.service", "active", "running")
		return len(r.Containers) == 1
	})
}

func TestAHostWithNothingSaysSo(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	h := host.New(host.Options{SystemBus: "unix:path=" + none, Podman: none, Docker: none, Interval: time.Millisecond, Pause: time.Millisecond})
	until := runHost(t, h)
	h.Watch(resource.RenderedSpec{Monitoring: &resource.Monitoring{Systemd: &resource.Patterns{MatchPatterns: []string{"*"}}}})
	r := until("said", func(r resource.AgentReport) bool {
		return resource.ConditionOf(r.Conditions, "SystemdAvailable").Status == "False"
	})
	require.Contains(t, resource.ConditionOf(r.Conditions, "SystemdAvailable").Message, none)
	c := resource.ConditionOf(r.Conditions, "ContainerEngineAvailable")
	require.Equal(t, "False", c.Status)
	require.Contains(t, c.Message, "podman at "+none)
	require.Nil(t, r.OS)
}

// The agent upgrades the core by its service.
func TestAServiceIsRestartedAndStopped(t *testing.T) {
	s := hosttest.StartSystemd(t, t.TempDir())
	s.Add("edgecore.service", "active", "running")
	h := host.New(host.Options{SystemBus: s.Address})
	core := h.Service("edgecore.service")
	pid, err := core.MainPID(t.Context())
	require.NoError(t, err)
	require.Positive(t, pid)
	require.NoError(t, core.Restart(t.Context()))
	require.NoError(t, core.Stop(t.Context()))
	pid, err = core.MainPID(t.Context())
	require.NoError(t, err)
	require.Zero(t, pid)
	require.Contains(t, s.Log(), "restart edgecore.service")
	_, err = h.Service("none.service").MainPID(t.Context())
	require.ErrorContains(t, err, "none.service")
}
