// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	agenthost "github.com/edgebus/edgebus/edge/agent/host"
	"github.com/edgebus/edgebus/test/hosttest"
	"github.com/edgebus/edgebus/topics/resource"
)

const coreSettings = `# this node
node: {name: n1}
log:
  level: info # as usual
link:
  server: mqtt://hub
`

// checkerScript is a core that finds something wrong with settings that have the word bad. It only checks them.
const checkerScript = `#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in --config) file=$2;; --check-config) check=yes;; esac
  shift
done
[ "$check" = yes ] || exit 9
if grep -q bad "$file"; then echo "log.level: bad is no level" >&2; exit 2; fi
`

// settingsHost is a host whose core has a file of settings. It does not start with the word broken in it, and has no link with the word dead.
type settingsHost struct {
	*testHost
	file  string
	order *resource.UpgradeOrder
}

func newSettingsHost(t *testing.T) *settingsHost {
	t.Helper()
	var running atomic.Value // the settings with which the core was started
	h := &settingsHost{testHost: newTestHostWith(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		link := `{"state":"alone"}`
		if strings.Contains(running.Load().(string), "dead") {
			link = `{"state":"offline","lastError":"connection refused"}`
		}
		fmt.Fprintf(w, `{"version":"v1.0.0","links":[%s]}`, link)
	}))}
	h.file = filepath.Join(filepath.Dir(h.o.Dir), "core.yaml")
	require.NoError(t, os.WriteFile(h.file, []byte(coreSettings), 0o600))
	require.NoError(t, os.Chmod(h.file, 0o604))
	require.NoError(t, os.WriteFile(filepath.Join(versionDir{h.o.Config.Dir}.path("v1.0.0"), programCore), []byte(checkerScript), 0o755))
	h.o.Config.Trial.Timeout = time.Minute
	h.o.Config.Core.Config, h.o.Config.Settings = h.file, []string{"log.*", "link.rate", "link.server"}
	h.o.Order = func() (*resource.UpgradeOrder, error) { return h.order, nil }
	h.s.onStart = func() error {
		text := h.text()
		running.Store(text)
		if strings.Contains(text, "broken") {
			return os.ErrInvalid
		}
		return nil
	}
	require.NoError(t, h.s.Restart(t.Context()))
	return h
}

func (h *settingsHost) text() string {
	text, err := os.ReadFile(h.file)
	require.NoError(h.t, err)
	return string(text)
}

// gives has an order carried out.
func (h *settingsHost) gives(u *Upgrader, id string, settings map[string]string) resource.UpgradeReport {
	h.t.Helper()
	h.order = &resource.UpgradeOrder{ID: id, Settings: settings, Timeout: 600}
	for begun := false; !begun; { // on a busy host the core may not answer at once
		_, err := u.do(h.t.Context())
		require.NoError(h.t, err)
		begun = u.state.Upgrade != nil || u.state.LastOutcome != nil && u.state.LastOutcome.Order == id
	}
	return u.Report()
}

// Settings are taken with one start of the core, and the file stays what people have made of it otherwise.
func TestSettingsAreTaken(t *testing.T) {
	h := newSettingsHost(t)
	u, began := h.open(), h.s.starts
	for range 2 { // it is carried out once
		r := h.gives(u, "1", map[string]string{"log.level": "debug", "link.rate": "1000", "log.format": `"json" # text`})
		require.Equal(t, resource.UpgradeSuccess, r.Result, "%+v", r)
		require.Equal(t, "the core runs with the new values of link.rate, log.format, log.level", r.Message)
		require.Equal(t, "v1.0.0", r.Version)
		require.Empty(t, r.From+r.To)
	}
	require.Equal(t, began+1, h.s.starts)
	require.Equal(t, `# this node
node: {name: n1}
log:
  level: debug # as usual
  format: "json"
link:
  server: mqtt://hub
  rate: 1000
`, h.text())
	before, err := os.ReadFile(h.file + beforeSuffix)
	require.NoError(t, err)
	require.Equal(t, coreSettings, string(before))
	for _, name := range []string{h.file, h.file + beforeSuffix} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o604), info.Mode(), name)
	}
	require.NoFileExists(t, h.file+checkedSuffix)
	r := h.gives(u, "2", map[string]string{"log.level": "warn"})
	require.Equal(t, resource.UpgradeSuccess, r.Result, "%+v", r)
	require.Contains(t, h.text(), "level: warn")
}

// What the node does not allow, or the core refuses, changes nothing: the core is not even started again.
func TestSettingsThatAreRefused(t *testing.T) {
	h := newSettingsHost(t)
	u, began := h.open(), h.s.starts
	for i, c := range []struct {
		settings        map[string]string
		reason, message string
	}{
		{map[string]string{"log.level": "debug", "auth.anonymous": "loopback"}, resource.UpgradeFailedRefused, "does not let the hub change auth.anonymous: upgrade.settings of its agent.yaml is [log.*, link.rate, link.server]"},
		{map[string]string{"LOG.level": "debug"}, resource.UpgradeFailedRefused, "LOG.level"},
		{map[string]string{"log": "{level: debug}"}, resource.UpgradeFailedRefused, "change log:"},
		{map[string]string{"log.level": "bad"}, resource.UpgradeFailedSettings, "edgecore --data-dir: exit status 2: log.level: bad is no level"},
		{map[string]string{"log.level": ""}, resource.UpgradeFailedSettings, "log.level: must be a value in YAML"},
		{map[string]string{"log.level": "{"}, resource.UpgradeFailedSettings, "log.level: yaml:"},
		{map[string]string{"log.level": "&a debug"}, resource.UpgradeFailedSettings, "without anchors and aliases"},
		{map[string]string{"link.server.host": "x"}, resource.UpgradeFailedRefused, "link.server.host"},
		{map[string]string{"log.level.x": "x"}, resource.UpgradeFailedSettings, "log.level.x: there is a value where keys should be"},
	} {
		r := h.gives(u, fmt.Sprint(i), c.settings)
		require.Equal(t, resource.UpgradeRolledBack+" "+c.reason, r.Result+" "+r.Reason, "%+v", r)
		require.Contains(t, r.Message, c.message)
		require.Empty(t, r.From+r.To)
	}
	require.Equal(t, coreSettings, h.text())
	require.NoError(t, os.WriteFile(h.file, []byte("log: &x {level: info}\nnode: *x\n"), 0o600))
	require.Contains(t, h.gives(u, "aliases", map[string]string{"log.level": "debug"}).Message, "it has anchors or aliases of YAML")
	require.NoError(t, os.Remove(h.file))
	require.Contains(t, h.gives(u, "none", map[string]string{"log.level": "debug"}).Message, "see upgrade.core.config")
	require.NoFileExists(t, h.file+beforeSuffix)
	require.NoFileExists(t, h.file+checkedSuffix)
	require.Equal(t, began, h.s.starts)
}

// Settings with which the core does not start, or does not reach the hub, are taken back.
func TestSettingsThatDoNotWorkAreTakenBack(t *testing.T) {
	for value, want := range map[string]string{
		"mqtt://broken": "DoesNotStart: the core with the new settings can't be started: invalid argument",
		"mqtt://dead":   "NoConnection: the core with the new settings, after 100ms: it has no connection to the hub: connection refused",
	} {
		h := newSettingsHost(t)
		h.o.Config.Trial.Timeout = 100 * time.Millisecond
		u, began := h.open(), h.s.starts
		r := h.gives(u, "1", map[string]string{"link.server": value})
		require.Equal(t, resource.UpgradeRolledBack, r.Result, "%+v", r)
		require.Equal(t, want, r.Reason+": "+r.Message)
		require.Equal(t, coreSettings, h.text())
		require.Greater(t, h.s.starts, began)
		u.o.Config.Trial.Timeout = time.Minute
		require.Equal(t, resource.UpgradeSuccess, h.gives(u, "2", map[string]string{"log.level": "debug"}).Result)
	}
}

// An agent that ends before any step, or before or after anything is on disk, goes on or goes back, also if the core was started meanwhile.
func TestAnAgentThatEndsWhileSettingsAreChanged(t *testing.T) {
	end := errors.New("the agent ends")
	for server, want := range map[string]string{"mqtt://other": resource.UpgradeSuccess, "mqtt://broken": resource.UpgradeRolledBack} {
		points := 0
		for at := 1; ; at++ {
			h := newSettingsHost(t)
			n, ended := 0, false
			h.o.BeforeStep = func(string) {
				if n++; n == at {
					ended = true
					panic(end)
				}
			}
			func() {
				defer func() {
					if p := recover(); p != nil {
						require.Equal(t, end, p)
					}
				}()
				h.gives(h.open(), "1", map[string]string{"link.server": server})
			}()
			if !ended {
				break
			}
			points++
			if at%2 == 0 { // of a host that lost its power
				_ = h.s.Restart(t.Context()) // it fails with what is broken
			}
			h.o.BeforeStep = nil
			r := h.gives(h.open(), "1", map[string]string{"link.server": server})
			require.Equal(t, want, r.Result, "after %d: %+v", at, r)
			require.Equal(t, want == resource.UpgradeSuccess, strings.Contains(h.text(), server))
			require.NotNil(t, h.s.cmd, "the core runs")
			if want == resource.UpgradeRolledBack {
				require.Equal(t, coreSettings, h.text())
			}
		}
		require.Greater(t, points, 8)
	}
}

// While the state can't be written, a core that is well with its new settings is not started again and again.
func TestSettingsThatCannotBeCommitted(t *testing.T) {
	h := newSettingsHost(t)
	room := func() {}
	h.o.BeforeStep = func(step string) {
		if step == stepTrial && h.s.starts == 1 {
			room = h.full()
		}
	}
	u := h.open()
	for range 3 {
		require.Empty(t, h.gives(u, "1", map[string]string{"link.rate": "1000"}).Result)
		require.Equal(t, 2, h.s.starts)
	}
	room()
	require.Equal(t, resource.UpgradeSuccess, h.gives(u, "1", map[string]string{"link.rate": "1000"}).Result)
	require.Equal(t, 2, h.s.starts)
}

// Images are pulled by podman, one after another. The core may be down.
func TestImagesArePulled(t *testing.T) {
	h := newTestHost(t)
	engine := hosttest.StartEngine(t)
	var order *resource.UpgradeOrder
	h.o.Order = func() (*resource.UpgradeOrder, error) { return order, nil }
	h.o.Pull = agenthost.New(agenthost.Options{Root: t.TempDir(), Podman: engine.Socket}).Pull
	var steps []string
	var u *Upgrader
	h.o.BeforeStep = func(step string) {
		if step == stepPull {
			steps = append(steps, u.Report().Step+": "+u.Report().Message)
		}
	}
	u = h.open()
	give := func(id string, images ...string) resource.UpgradeReport {
		order = &resource.UpgradeOrder{ID: id, Images: images, Timeout: 600}
		_, err := u.do(t.Context())
		require.NoError(t, err)
		return u.Report()
	}
	r := give("1", "quay.io/acme/web:1", "quay.io/acme/db:2")
	require.Equal(t, resource.UpgradeSuccess+" pulled quay.io/acme/web:1, quay.io/acme/db:2", r.Result+" "+r.Message)
	require.Empty(t, r.From+r.To+r.Reason)
	require.Equal(t, []string{"Pulling: image 1 of 2, quay.io/acme/web:1", "Pulling: image 2 of 2, quay.io/acme/db:2"}, steps)
	r = give("2", "quay.io/acme/web:2", "none.example/web:1", "quay.io/acme/web:3")
	require.Equal(t, resource.UpgradeRolledBack+" "+resource.UpgradeFailedPull, r.Result+" "+r.Reason)
	require.Equal(t, "image 2 of 3, none.example/web:1: podman: pull none.example/web:1: no such host", r.Message)
	require.Equal(t, []string{"quay.io/acme/web:1", "quay.io/acme/db:2", "quay.io/acme/web:2"}, engine.Images())
	require.Zero(t, h.s.starts)

	u.o.Pull = agenthost.New(agenthost.Options{Root: t.TempDir()}).Pull
	r = give("3", "quay.io/acme/web:1")
	require.Equal(t, resource.UpgradeRolledBack+" "+resource.UpgradeFailedPull, r.Result+" "+r.Reason)
	require.Contains(t, r.Message, "systemctl enable --now podman.socket")
	u.o.Pull = nil
	require.Equal(t, resource.UpgradeFailedPull, give("4", "quay.io/acme/web:1").Reason)
}

// A pull ends when its order is withdrawn, and when it takes longer than the order allows.
func TestAPullThatIsGivenUp(t *testing.T) {
	h := newTestHost(t)
	var order *resource.UpgradeOrder
	h.o.Order = func() (*resource.UpgradeOrder, error) { return order, nil }
	u := h.open()
	u.o.Pull = func(ctx context.Context, _ string) error {
		order = nil
		u.OrderChanged()
		<-ctx.Done()
		return ctx.Err()
	}
	order = &resource.UpgradeOrder{ID: "1", Images: []string{"quay.io/acme/web:1"}, Timeout: 600}
	_, err := u.do(t.Context())
	require.NoError(t, err)
	require.Nil(t, u.state.LastOutcome)

	u.o.Pull = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
	order = &resource.UpgradeOrder{ID: "2", Images: []string{"quay.io/acme/web:1"}, Timeout: 1}
	for u.state.LastOutcome == nil {
		_, err := u.do(t.Context())
		require.NoError(t, err)
	}
	r := u.Report()
	require.Equal(t, resource.UpgradeRolledBack+" "+resource.UpgradeFailedTimeout, r.Result+" "+r.Reason)
	require.Contains(t, r.Message, "at last Pulling: image 1 of 1, quay.io/acme/web:1")
}

// An order of the version that the core runs already has the agent replaced, if that is still another one.
func TestOnlyTheAgentIsReplaced(t *testing.T) {
	h := newTestHost(t)
	require.NoError(t, h.s.Restart(t.Context()))
	var order *resource.UpgradeOrder
	h.o.Order = func() (*resource.UpgradeOrder, error) { return order, nil }
	agent := filepath.Join(versionDir{h.o.Config.Dir}.path("v1.0.0"), programAgent)
	require.NoError(t, os.WriteFile(agent, []byte("another"), 0o755))
	require.NoError(t, versionDir{h.o.Config.Dir}.link(linkAgent, "v0.9.0"))
	u := h.open()
	order = &resource.UpgradeOrder{ID: "1", Version: "v1.0.0", Manifest: signedText, Signature: signatureOfHash, Timeout: 600}
	var err error
	for err == nil { // on a busy host the core may not answer at once
		_, err = u.do(t.Context())
	}
	require.ErrorAs(t, err, new(*AgentReplacement))
	require.Equal(t, stepAgent, u.state.Upgrade.Step)
	require.Equal(t, 1, h.s.starts, "the core is left alone")

	own, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Remove(agent))
	require.NoError(t, os.Symlink(own, agent)) // the new agent runs
	u = h.open()
	_, err = u.do(t.Context())
	require.NoError(t, err)
	require.Equal(t, resource.UpgradeSuccess, u.Report().Result, "%+v", u.Report())
	require.Equal(t, "v1.0.0", u.versions.linked(linkAgent))
	order = &resource.UpgradeOrder{ID: "2", Version: "v1.0.0", Manifest: signedText, Signature: signatureOfHash, Timeout: 600}
	_, err = u.do(t.Context())
	require.NoError(t, err)
	require.Equal(t, "the node runs this version already", u.Report().Message)
	require.Equal(t, 1, h.s.starts)
}
