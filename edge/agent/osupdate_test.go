// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/agent/host/osimage"
	"github.com/edgebus/edgebus/topics/resource"
)

// imageHost is a host whose OS is an image. It keeps its state as bootc does, and acts as osimage finds right. It outlives agents.
type imageHost struct {
	booted, staged, previous string
	queued                   bool // previous is booted next
	falls                    bool // its boot loader goes back to what it had instead of booting what is staged
	stuck                    bool // it never boots previous
	boots                    int
	downloads                int
	offline                  bool         // its registry can't be reached
	stored                   []string     // images that were downloaded
	fromStorage              bool         // the last switch was to a downloaded image
	point                    func(string) // called before and after each change
}

func (m *imageHost) Booted(context.Context) (resource.OSStatus, error) {
	return resource.OSStatus{Image: m.booted}, nil
}

func (m *imageHost) status() osimage.Status {
	deployment := func(image string) *osimage.Deployment {
		if image == "" {
			return nil
		}
		return &osimage.Deployment{Image: image}
	}
	return osimage.Status{Booted: *deployment(m.booted), Staged: deployment(m.staged), Previous: deployment(m.previous), RollbackQueued: m.queued}
}

// Download counts the downloads, and puts the image into the machine's storage of images.
func (m *imageHost) Download(_ context.Context, image string) (bool, error) {
	m.downloads++
	if m.offline {
		return false, errors.New("no such registry")
	}
	m.stored = append(m.stored, image)
	return true, nil
}

func (m *imageHost) Discard(_ context.Context, image string) error {
	m.stored = slices.DeleteFunc(m.stored, func(stored string) bool { return stored == image })
	return nil
}

func (m *imageHost) Switch(_ context.Context, image string, downloaded bool) error {
	m.point("before the switch")
	if m.status().SwitchAction(image, downloaded) != osimage.DoNothing {
		m.staged, m.queued, m.fromStorage = image, false, downloaded
	}
	m.point("after the switch")
	return nil
}

func (m *imageHost) Rollback(_ context.Context, before resource.OSStatus) (bool, error) {
	m.point("before the roll-back")
	do, reboot := m.status().RollbackAction(osimage.Deployment{Image: before.Image})
	switch do {
	case osimage.DoSwitch:
		m.staged, m.queued = before.Image, false
	case osimage.DoRollback:
		m.staged, m.queued = "", !m.queued
	}
	m.point("after the roll-back")
	return reboot, nil
}

// Reboot ends the agent.
func (m *imageHost) Reboot(context.Context) error {
	m.boot()
	panic(agentKilled{})
}

func (m *imageHost) boot() {
	switch {
	case m.staged != "" && m.falls:
		m.staged = ""
	case m.staged == m.booted:
		m.staged = ""
	case m.staged != "":
		m.booted, m.staged, m.previous = m.staged, "", m.booted
	case m.queued && !m.stuck:
		m.booted, m.previous = m.previous, m.booted
	}
	m.queued = false
	m.boots++
}

// next is what the machine boots next.
func (m *imageHost) next() string {
	after := *m
	after.falls = false
	after.boot()
	return after.booted
}

// An update with an OS image, ended before and after each of the agent's writes, each step, and each change of the OS: by a kill, by a
// reboot, and by a power cut, which loses the image that is staged. Files and image are of one version in the end, and nothing else is to
// be booted next.
func TestOSUpdateEndedAtEachPoint(t *testing.T) {
	if _, err := os.Stat("/dev/shm"); err == nil { // what a kill leaves is the same there, and thousands of syncs take no time
		t.Setenv("TMPDIR", "/dev/shm")
	}
	ends := map[string]func(*imageHost){
		"kill":   func(*imageHost) {},
		"reboot": func(m *imageHost) { m.boot() },
		"power cut": func(m *imageHost) {
			m.staged = ""
			m.boot()
		},
	}
	for _, tt := range []struct {
		name           string
		unwell, falls  bool
		spec           string // content of the file in the new version
		content, image string // after it
		failed         string // reason
	}{
		{name: "applied", spec: "new", content: "new", image: "os:2"},
		{name: "unhealthy", unwell: true, spec: "new", content: "old", image: "os:1", failed: resource.FailedHealth},
		{name: "boot loader goes back", falls: true, spec: "new", content: "old", image: "os:1", failed: resource.FailedOS},
		{name: "image only", spec: "old", content: "old", image: "os:2"},
		{name: "image only, boot loader goes back", falls: true, spec: "old", content: "old", image: "os:1", failed: resource.FailedOS},
	} {
		for name, end := range ends {
			t.Run(tt.name+" "+name, func(t *testing.T) {
				lost := 0
				for n, more := 1, true; more; n++ {
					more = osUpdate(t, n, end, tt.spec, tt.unwell, tt.falls, func(r *testAgent, m *imageHost, at string) {
						about := fmt.Sprintf("ended at point %d, %s", n, at)
						content, image, reason := tt.content, tt.image, tt.failed
						if f := r.reportNow(nil).Failed; f != nil && reason == "" && name == "power cut" && at != "" {
							// The reboot was ordered, and the image was lost: that can't be told from a boot loader that went back.
							content, image, reason = "old", "os:1", resource.FailedOS
							lost++
						}
						require.Equal(t, content, r.file("etc/a"), about)
						require.Equal(t, image, m.booted, about)
						require.Equal(t, image, m.next(), about)
						failed := r.reportNow(nil).Failed
						if reason == "" {
							require.Nil(t, failed, about)
							require.Equal(t, "2", r.reportNow(nil).RenderedVersion, about)
						} else {
							require.NotNil(t, failed, about)
							require.Equal(t, "2", failed.RenderedVersion, about)
							require.Contains(t, []string{reason, resource.FailedOS}, failed.Reason, about)
							require.Equal(t, "1", r.reportNow(nil).RenderedVersion, about)
						}
						require.LessOrEqual(t, m.boots, 4, about)
						requireNoLeftovers(t, r.o.Config.Root)
					})
					require.Less(t, n, 100, "the points come to an end")
					if !more {
						require.Greater(t, n, 15, "the points were enumerated")
						require.LessOrEqual(t, lost, 1)
					}
				}
			})
		}
	}
}

// A host that never boots the image that it had is not rebooted for ever: the files are rolled back, and the failure says the rest.
func TestAHostThatDoesNotBootBack(t *testing.T) {
	osUpdate(t, 1, func(m *imageHost) { m.stuck = true }, "new", true, false, func(r *testAgent, m *imageHost, _ string) {
		require.Equal(t, "old", r.file("etc/a"))
		require.Equal(t, "os:2", m.booted)
		require.Equal(t, 1+maxRollbackReboots, m.boots)
		failed := r.reportNow(nil).Failed
		require.Equal(t, resource.FailedHealth, failed.Reason)
		require.Contains(t, failed.Message, "the host was rebooted 3 times and does not boot os:1")
	})
}

// A state that is cut short or empty is said; files that were not committed are rolled back, and the spec is applied again.
func TestDamagedState(t *testing.T) {
	for _, damaged := range []string{"", `{"applied":{"renderedVer`} {
		r := newTestAgent(t, nil)
		r.send("spec", specOfVersion("1", textFile("/etc/a", "old")))
		r.settle()
		r.send("spec", specOfVersion("2", textFile("/etc/a", "new")))
		r.before = func(step string) {
			if step == stepCommit {
				panic(agentKilled{})
			}
		}
		require.Panics(t, r.settle)
		require.Equal(t, "new", r.file("etc/a"))
		r.stop()
		path := filepath.Join(r.o.Config.Data.Dir, stateName)
		require.NoError(t, os.WriteFile(path, []byte(damaged), 0o600))
		r.start()
		require.Equal(t, "old", r.file("etc/a"))
		require.Contains(t, r.condition("StateDamaged"), "True StateLost: the agent's state "+path+" is damaged")
		r.settle()
		require.Equal(t, "new", r.file("etc/a"))
		require.Equal(t, "2", r.reportNow(nil).RenderedVersion)
		kept, err := os.ReadFile(path + ".damaged")
		require.NoError(t, err)
		require.Equal(t, damaged, string(kept))
		r.stop()
		r.start()
		require.Equal(t, "none", r.condition("StateDamaged"))
	}
}

// osUpdate makes an update with an OS image that ends at the nth point, and goes on until it is done. It says whether there was such a point.
func osUpdate(t *testing.T, n int, end func(*imageHost), content string, unwell, falls bool, check func(r *testAgent, m *imageHost, at string)) bool {
	t.Helper()
	m := &imageHost{booted: "os:1", previous: "os:0", falls: falls, point: func(string) {}}
	r := newTestAgent(t, func(c *configs.Agent) {
		withCommand("well", "/bin/sh", "-c", `! grep -q new "$EDGEBUS_ROOT/etc/a"`)(c)
		if unwell {
			c.Health = configs.Health{Checks: []configs.HealthCheck{{Run: "well"}}, Timeout: time.Millisecond}
		}
	})
	restart := func() {
		r.stop()
		r.boot = fmt.Sprint("boot-", m.boots)
		r.start()
	}
	r.o.os = m
	restart()
	r.send("spec", specOfVersion("1", textFile("/etc/a", "old")))
	r.settle()

	count, at := 0, ""
	m.point = func(where string) {
		if count++; count == n {
			at = where
			panic(agentKilled{})
		}
	}
	r.o.BeforeStep = m.point
	r.before = m.point
	next := specOfVersion("2", textFile("/etc/a", content))
	next.OS = &resource.NodeOS{Image: "os:2"}
	r.send("spec", next)
	for range 10 {
		ended := at
		done := func() (done bool) {
			defer func() {
				if p := recover(); p != nil && p != (agentKilled{}) {
					panic(p)
				}
			}()
			if r.store == nil {
				restart()
			}
			for range 20 {
				if r.runOnce(t.Context()) > 0 && r.state.Update == nil {
					return true
				}
			}
			return false
		}()
		if done {
			break
		}
		if ended != at {
			end(m)
		}
		r.stop()
	}
	require.NotNil(t, r.store, "the update comes to an end (point %d, %s)", n, at)
	require.Nil(t, r.state.Update, "point %d, %s", n, at)
	check(r, m, at)
	return at != ""
}
