// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// installProgram puts a real program into a version.
func (h *testHost) installProgram(version, name string) {
	h.t.Helper()
	h.install(version)
	sleep, err := exec.LookPath("sleep")
	require.NoError(h.t, err)
	text, err := os.ReadFile(sleep)
	require.NoError(h.t, err)
	require.NoError(h.t, os.WriteFile(filepath.Join(versionDir{h.o.Config.Dir}.path(version), name), text, 0o755))
}

// Services that run a program of the version before are started again with the new one. Others are left alone.
func TestServicesFollowTheCore(t *testing.T) {
	h := newTestHost(t)
	h.installProgram("v1.0.0", "mapper-x")
	h.installProgram("v1.1.0", "mapper-x")
	services := map[string]*testService{
		"mapper-x.service":  {t: t, program: filepath.Join(h.o.Config.Dir, linkCurrent, "mapper-x")},
		"stopped.service":   {t: t, program: filepath.Join(h.o.Config.Dir, linkCurrent, "mapper-x")},
		"elsewhere.service": {t: t, program: h.s.program},
	}
	h.o.Service = func(name string) Unit { return services[name] }
	for name, s := range services {
		h.o.Config.Services = append(h.o.Config.Services, name)
		t.Cleanup(func() { _ = s.Stop(t.Context()) })
		if name != "stopped.service" {
			require.NoError(t, s.Restart(t.Context()))
		}
	}
	starts := func() string {
		out := ""
		for _, name := range []string{"mapper-x.service", "stopped.service", "elsewhere.service"} {
			out += string(rune('0' + services[name].starts))
		}
		return out
	}
	u := h.open()
	core, mapper := resource.ArtifactProgram{Name: programCore}, resource.ArtifactProgram{Name: "mapper-x"}
	require.EqualError(t, u.services.checkPrograms(t.Context(), []resource.ArtifactProgram{core}),
		"the version has no mapper-x for this host, which mapper-x.service runs: add it to the Artifact, or have the unit start a program elsewhere")
	require.NoError(t, u.services.checkPrograms(t.Context(), []resource.ArtifactProgram{core, mapper}))
	require.NoError(t, u.services.follow(t.Context()))
	require.Equal(t, "101", starts(), "nothing has changed")

	// One that can't be started is said, and doesn't undo the upgrade.
	ends := func(id, version string) orderOutcome {
		require.NoError(t, u.versions.link(linkCurrent, version))
		up := upgradeRecord{Order: resource.UpgradeOrder{ID: id, Version: version, Timeout: 60}, From: "v1.0.0", Step: stepFollow, Started: time.Now()}
		require.NoError(t, u.save(func(s *upgradeState) { s.Version, s.Previous, s.Upgrade = version, "v1.0.0", &up }))
		_, err := u.do(t.Context())
		require.NoError(t, err)
		return *u.state.LastOutcome
	}
	services["mapper-x.service"].onStart = func() error { return errors.New("no such port") }
	done := ends("1", "v1.1.0")
	require.Equal(t, resource.UpgradeSuccess, done.Result)
	require.Equal(t, "with the new version mapper-x.service can't be started again: no such port", done.Message)
	require.Equal(t, "101", starts())
	settings := upgradeRecord{Order: resource.UpgradeOrder{ID: "s", Settings: map[string]string{"log.level": "debug"}}, Step: stepSucceeded}
	require.NoError(t, u.save(func(s *upgradeState) { s.Upgrade = &settings }))
	_, err := u.do(t.Context())
	require.NoError(t, err)
	require.Equal(t, "the core runs with the new values of log.level", u.state.LastOutcome.Message, "what was said of the order before is not said again")

	unit := services["mapper-x.service"]
	unit.onStart, unit.fails, unit.program = nil, nil, filepath.Join(u.versions.path("v1.0.0"), "mapper-x")
	require.NoError(t, unit.Restart(t.Context()))
	unit.program = filepath.Join(h.o.Config.Dir, linkCurrent, "mapper-x")
	require.Empty(t, ends("2", "v1.1.0").Message)
	require.Equal(t, "301", starts())
	require.NoError(t, u.services.follow(t.Context()))
	require.Equal(t, "301", starts(), "it runs it already")
	require.Equal(t, "v1.1.0", u.services.running(t.Context())[0].version)
}

// What is said of a service that can't be started outlives the agent that has tried it.
func TestTheNewAgentReportsServices(t *testing.T) {
	h := newTestHost(t)
	h.installProgram("v1.0.0", "mapper-x")
	h.installProgram("v1.1.0", "mapper-x")
	agent := filepath.Join(versionDir{h.o.Config.Dir}.path("v1.1.0"), programAgent)
	require.NoError(t, os.WriteFile(agent, []byte("another"), 0o755))
	require.NoError(t, versionDir{h.o.Config.Dir}.link(linkAgent, "v1.0.0"))
	mapper := &testService{t: t, program: filepath.Join(h.o.Config.Dir, linkCurrent, "mapper-x")}
	t.Cleanup(func() { _ = mapper.Stop(t.Context()) })
	require.NoError(t, mapper.Restart(t.Context()))
	h.o.Config.Services, h.o.Service = []string{"mapper-x.service"}, func(string) Unit { return mapper }
	u := h.open()
	require.NoError(t, u.versions.link(linkCurrent, "v1.1.0"))
	up := upgradeRecord{Order: resource.UpgradeOrder{ID: "1", Version: "v1.1.0", Timeout: 60}, From: "v1.0.0", Step: stepFollow, Started: time.Now()}
	require.NoError(t, u.save(func(s *upgradeState) { s.Version, s.Previous, s.Upgrade = "v1.1.0", "v1.0.0", &up }))
	mapper.onStart = func() error { return errors.Join(mapper.Stop(t.Context()), errors.New("no such port")) }
	_, err := u.do(t.Context())
	require.ErrorAs(t, err, new(*AgentReplacement))

	own, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Remove(agent))
	require.NoError(t, os.Symlink(own, agent)) // the new agent runs
	u = h.open()
	_, err = u.do(t.Context())
	require.NoError(t, err)
	r := u.Report()
	require.Equal(t, resource.UpgradeSuccess+" with the new version mapper-x.service can't be started again: no such port", r.Result+" "+r.Message)
}
