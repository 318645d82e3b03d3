// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/agent/files"
	"github.com/edgebus/edgebus/test/disk"
	"github.com/edgebus/edgebus/topics/resource"
)

// testAgent is a host with an agent, whose broker is the test.
type testAgent struct {
	t    *testing.T
	o    Options
	boot string
	*agent
	store *files.Store
	sent  map[string][]byte // what the broker has
}

func newTestAgent(t *testing.T, change func(*configs.Agent)) *testAgent {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"root/etc", "data"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	cfg := configs.Agent{
		MQTT: configs.AgentMQTT{Socket: filepath.Join(dir, "mqtt.sock")}, Data: configs.Data{Dir: filepath.Join(dir, "data")},
		Root: filepath.Join(dir, "root"), Files: configs.AgentFiles{Roots: []string{"/etc"}, Check: time.Minute},
		Health: configs.Health{Timeout: time.Minute},
	}
	if change != nil {
		change(&cfg)
	}
	r := &testAgent{t: t, boot: "boot-1", sent: map[string][]byte{}}
	r.o = Options{Config: cfg, Version: "v1", Log: zerolog.Nop(), HealthPause: time.Millisecond, BootID: func() string { return r.boot }}
	t.Cleanup(r.stop)
	r.start()
	return r
}

// start starts the agent on what is on disk. The broker says again what it has.
func (r *testAgent) start() {
	r.t.Helper()
	o := r.o.withDefaults()
	var err error
	r.store, err = files.Open(files.Options{Dir: filepath.Join(o.Config.Data.Dir, "files"), Root: o.Config.Root, Allowed: o.Config.Files.Roots, Forbidden: o.Protected})
	require.NoError(r.t, err)
	r.agent, err = newAgent(o, r.store)
	require.NoError(r.t, err)
	for key, value := range r.sent {
		r.bus.message(client.Message{Topic: "v1/nodes/n1/" + key, Payload: value})
	}
}

// stop ends the agent as SIGKILL does: nothing is put in order.
func (r *testAgent) stop() {
	if r.store != nil {
		_ = r.store.Close()
		r.store = nil
	}
}

func (r *testAgent) send(key string, v any) {
	r.t.Helper()
	text, err := json.Marshal(v)
	require.NoError(r.t, err)
	r.sent[key] = text
	r.bus.message(client.Message{Topic: "v1/nodes/n1/" + key, Payload: text})
}

// settle has the agent do all that there is to do.
func (r *testAgent) settle() {
	r.t.Helper()
	for range 20 {
		if r.runOnce(r.t.Context()) > 0 {
			return
		}
	}
	r.t.Fatal("the agent doesn't come to rest")
}

func (r *testAgent) file(name string) string {
	text, err := os.ReadFile(filepath.Join(r.o.Config.Root, name))
	if err != nil {
		return "none"
	}
	return string(text)
}

func (r *testAgent) condition(kind string) string {
	for _, c := range r.reportNow(nil).Conditions {
		if c.Type == kind {
			return fmt.Sprint(c.Status, " ", c.Reason, ": ", c.Message)
		}
	}
	return "none"
}

func textFile(path, content string) resource.RenderedFile {
	return resource.RenderedFile{Path: path, Type: resource.FileRegular, Mode: "0640", Content: resource.Content{Text: content}}
}

func specOfVersion(v string, list ...resource.RenderedFile) resource.RenderedSpec {
	for i := range list {
		list[i].User, list[i].Group = fmt.Sprint(os.Getuid()), fmt.Sprint(os.Getgid())
	}
	return resource.RenderedSpec{RenderedVersion: v, Files: list}
}

func TestSpecIsApplied(t *testing.T) {
	r := newTestAgent(t, nil)
	require.Contains(t, r.condition("SpecApplied"), "Unknown NoSpec")
	r.send("spec", specOfVersion("1", textFile("/etc/a", "one"), textFile("/etc/b", "two")))
	r.settle()
	require.Equal(t, "one two", r.file("etc/a")+" "+r.file("etc/b"))
	info, err := os.Stat(filepath.Join(r.o.Config.Root, "etc/a"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode().Perm())
	require.Equal(t, "1", r.reportNow(nil).RenderedVersion)
	require.Contains(t, r.condition("SpecApplied"), "True Applied")
	require.Contains(t, r.condition("Updating"), "False Idle")

	r.send("spec", specOfVersion("2", textFile("/etc/b", "three")))
	r.settle()
	require.Equal(t, "none three", r.file("etc/a")+" "+r.file("etc/b"))

	// A hub that was restored from a backup gives a number again, to another content.
	r.send("spec", specOfVersion("2", textFile("/etc/b", "four")))
	r.settle()
	require.Equal(t, "four", r.file("etc/b"))

	// Without a broker the agent has what it had, and no spec is no order to remove anything.
	r.stop()
	r.sent = map[string][]byte{}
	r.start()
	r.settle()
	require.Equal(t, "four", r.file("etc/b"))
	require.Equal(t, "2", r.reportNow(nil).RenderedVersion)
}

func TestSecret(t *testing.T) {
	r := newTestAgent(t, nil)
	f := textFile("/etc/wifi", "")
	f.Content = resource.Content{Secret: &resource.SecretKey{Name: "default.wifi", Key: "psk", Version: "7"}}
	r.send("spec", specOfVersion("1", f))
	require.Equal(t, retryAfter, r.runOnce(t.Context()))
	require.Equal(t, "none", r.file("etc/wifi"))
	require.Contains(t, r.condition("Updating"), "True Staging: version 1: /etc/wifi: waiting: the Secret default/wifi is not on this node yet")

	r.send("secrets/default.wifi", resource.SecretValues{Version: "6", Data: map[string][]byte{"psk": []byte("old")}})
	require.Equal(t, retryAfter, r.runOnce(t.Context()))
	require.Contains(t, r.condition("Updating"), "another version")

	r.send("secrets/default.wifi", resource.SecretValues{Version: "7", Data: map[string][]byte{"psk": []byte("s3cret")}})
	r.settle()
	require.Equal(t, "s3cret", r.file("etc/wifi"))
	state, err := os.ReadFile(filepath.Join(r.o.Config.Data.Dir, stateName))
	require.NoError(t, err)
	require.NotContains(t, string(state), "s3cret")

	f.Secret = &resource.SecretKey{Name: "default.wifi", Key: "none", Version: "7"}
	r.send("spec", specOfVersion("2", f))
	r.settle()
	require.Contains(t, r.condition("SpecApplied"), "False ContentMissing: version 2: /etc/wifi: the Secret default/wifi has no key none")
	require.Equal(t, "s3cret", r.file("etc/wifi"))
}

func withCommand(name string, argv ...string) func(*configs.Agent) {
	return func(c *configs.Agent) { c.Commands = append(c.Commands, configs.Command{Name: name, Run: argv}) }
}

func TestHookThatIsNotAllowed(t *testing.T) {
	r := newTestAgent(t, withCommand("reload", "/bin/true"))
	s := specOfVersion("1", textFile("/etc/a", "one"))
	s.Hooks = &resource.Hooks{AfterUpdating: []resource.Hook{{Run: "reload"}, {Run: "rm"}}}
	r.send("spec", s)
	r.settle()
	require.Equal(t, "none", r.file("etc/a"))
	require.Contains(t, r.condition("SpecApplied"), `False InvalidSpec: version 1: hooks.afterUpdating[1].run: this node allows no command "rm": list it in commands of its agent.yaml`)
}

func TestFailingHookRollsBack(t *testing.T) {
	runs := filepath.Join(t.TempDir(), "runs")
	r := newTestAgent(t, withCommand("fail", "/bin/sh", "-c", "echo run >>"+runs+"; echo it broke; exit 3"))
	r.send("spec", specOfVersion("1", textFile("/etc/a", "one")))
	r.settle()
	s := specOfVersion("2", textFile("/etc/a", "two"), textFile("/etc/b", "new"))
	s.Hooks = &resource.Hooks{AfterUpdating: []resource.Hook{{Run: "fail"}}}
	r.send("spec", s)
	r.settle()
	require.Equal(t, "one none", r.file("etc/a")+" "+r.file("etc/b"))
	report := r.reportNow(nil)
	require.Equal(t, "1", report.RenderedVersion)
	require.Equal(t, "2", report.Failed.RenderedVersion)
	require.Equal(t, resource.FailedHook, report.Failed.Reason)
	require.Equal(t, `hooks.afterUpdating[0]: command "fail": exit status 3: it broke`, report.Failed.Message)

	// It is not tried again, not even by an agent that was started again, until it changes.
	r.settle()
	r.stop()
	r.start()
	r.settle()
	text, err := os.ReadFile(runs)
	require.NoError(t, err)
	require.Equal(t, "run\n", string(text))
	s.RenderedVersion = "3"
	r.send("spec", s)
	r.settle()
	require.Equal(t, "3", r.reportNow(nil).Failed.RenderedVersion)
	s.Hooks = nil // under the same number, as of a hub that has lost its store
	r.send("spec", s)
	r.settle()
	require.Equal(t, "two new", r.file("etc/a")+" "+r.file("etc/b"))
	require.Nil(t, r.reportNow(nil).Failed)
}

func TestUnhealthyIsRolledBack(t *testing.T) {
	r := newTestAgent(t, func(c *configs.Agent) {
		withCommand("well", "/bin/sh", "-c", `grep -q good "$EDGEBUS_ROOT/etc/a"`)(c)
		c.Health = configs.Health{Checks: []configs.HealthCheck{{Run: "well"}}, Timeout: 50 * time.Millisecond}
	})
	r.send("spec", specOfVersion("1", textFile("/etc/a", "good")))
	r.settle()
	r.send("spec", specOfVersion("2", textFile("/etc/a", "bad")))
	r.settle()
	require.Equal(t, "good", r.file("etc/a"))
	require.Contains(t, r.condition("SpecApplied"), `False Unhealthy: version 2: after 50ms: health.checks[0]: command "well": exit status 1`)
}

func TestDriftIsPutBackOrReported(t *testing.T) {
	r := newTestAgent(t, func(c *configs.Agent) { c.Files.Check = time.Minute })
	now := time.Now()
	r.now = func() time.Time { return now }
	s := specOfVersion("1", textFile("/etc/a", "one"))
	r.send("spec", s)
	r.settle()
	change := func() {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(r.o.Config.Root, "etc/a"), []byte("by hand"), 0o640))
		now = now.Add(2 * time.Minute)
		r.settle()
	}
	change()
	require.Equal(t, "one", r.file("etc/a"))
	require.Equal(t, "False Restored: changed by hand, and put back: /etc/a", r.condition("Drifted"))
	require.Empty(t, r.reportNow(nil).Drifted)

	s.RenderedVersion, s.Drift = "2", resource.DriftReport
	r.send("spec", s)
	r.settle()
	require.Contains(t, r.condition("Drifted"), "False AsSpecified")
	change()
	require.Equal(t, "by hand", r.file("etc/a"))
	require.Equal(t, "True LeftAlone: changed by hand, and left alone: /etc/a", r.condition("Drifted"))
	require.Equal(t, []string{"/etc/a"}, r.reportNow(nil).Drifted)
}

// agentKilled ends the agent in the midst of a step.
type agentKilled struct{}

// A kill at every step, and before and after each of the agent's writes: whole old or whole new at the next start, and then new.
// TestAFileThatCannotBePutBackKeepsNoOtherFromIt: what stands in one file's place is told, and all others are put back.
func TestAFileThatCannotBePutBackKeepsNoOtherFromIt(t *testing.T) {
	for what, block := range map[string]func(root string) error{
		"a directory in its place": func(root string) error {
			return errors.Join(os.Remove(root+"/etc/app/x"), os.Mkdir(root+"/etc/app/x", 0o755))
		},
		"a pipe in its place": func(root string) error {
			return errors.Join(os.Remove(root+"/etc/app/x"), syscall.Mkfifo(root+"/etc/app/x", 0o600))
		},
		"a link above it": func(root string) error {
			return errors.Join(os.MkdirAll(root+"/etc/elsewhere", 0o755), os.RemoveAll(root+"/etc/app/deep"), os.Symlink("../elsewhere", root+"/etc/app/deep"))
		},
	} {
		t.Run(what, func(t *testing.T) {
			now := time.Now()
			r := newTestAgent(t, nil)
			r.stop()
			r.o.Now = func() time.Time { return now }
			r.start()
			r.send("spec", specOfVersion("1", textFile("/etc/app/a", "one"), textFile("/etc/app/x", "x"), textFile("/etc/app/deep/x", "x"), textFile("/etc/zz/last", "last")))
			r.settle()
			require.NoError(t, block(r.o.Config.Root))
			for _, name := range []string{"etc/app/a", "etc/zz/last"} {
				require.NoError(t, os.WriteFile(filepath.Join(r.o.Config.Root, name), []byte("by hand"), 0o640))
			}
			now = now.Add(2 * time.Minute)
			r.settle()
			require.Equal(t, "one last", r.file("etc/app/a")+" "+r.file("etc/zz/last"))
			require.Contains(t, r.condition("Drifted"), "True NotRestored: changed by hand, and can't be put back: /etc/app/")
			require.Len(t, r.reportNow(nil).Drifted, 1)

			require.NoError(t, os.WriteFile(filepath.Join(r.o.Config.Root, "etc/app/a"), []byte("again"), 0o640))
			require.NoError(t, errors.Join(os.RemoveAll(filepath.Join(r.o.Config.Root, "etc/app/x")), os.RemoveAll(filepath.Join(r.o.Config.Root, "etc/app/deep"))))
			now = now.Add(2 * time.Minute)
			r.settle()
			require.Equal(t, "one x x", r.file("etc/app/a")+" "+r.file("etc/app/x")+" "+r.file("etc/app/deep/x"))
			require.Contains(t, r.condition("Drifted"), "False Restored")
			require.Empty(t, r.reportNow(nil).Drifted)
		})
	}
}

// TestAVersionThatFailedForTheHostIsTriedAgain: by itself after a time, and when the agent is started.
func TestAVersionThatFailedForTheHostIsTriedAgain(t *testing.T) {
	now := time.Now()
	r := newTestAgent(t, nil)
	r.stop()
	r.o.Now = func() time.Time { return now }
	r.start()
	in := filepath.Join(r.o.Config.Root, "etc/a")
	require.NoError(t, os.Mkdir(in, 0o755))
	r.send("spec", specOfVersion("1", textFile("/etc/a", "one")))
	r.settle()
	require.Contains(t, r.condition("SpecApplied"), "False WriteFailed")
	require.NoError(t, os.Remove(in))
	r.settle()
	require.Equal(t, "none", r.file("etc/a"), "not before its time")
	now = now.Add(hostRetryBackoff.Min)
	r.settle()
	require.Equal(t, "one", r.file("etc/a"))
	require.Contains(t, r.condition("SpecApplied"), "True Applied")

	require.NoError(t, os.Mkdir(filepath.Join(r.o.Config.Root, "etc/b"), 0o755))
	r.send("spec", specOfVersion("2", textFile("/etc/b", "two")))
	r.settle()
	require.Contains(t, r.condition("SpecApplied"), "False WriteFailed")
	require.NoError(t, os.Remove(filepath.Join(r.o.Config.Root, "etc/b")))
	r.stop()
	r.start()
	r.settle()
	require.Equal(t, "two", r.file("etc/b"))
}

// TestAFailedVersionIsTriedAgainWhenItIsAskedFor: also one whose cause is not the host's files.
func TestAFailedVersionIsTriedAgainWhenItIsAskedFor(t *testing.T) {
	mended := filepath.Join(t.TempDir(), "mended")
	r := newTestAgent(t, func(c *configs.Agent) {
		c.Commands = []configs.Command{{Name: "try", Run: []string{"/usr/bin/test", "-e", mended}}}
	})
	spec := specOfVersion("1", textFile("/etc/a", "one"))
	spec.Hooks = &resource.Hooks{AfterUpdating: []resource.Hook{{Run: "try"}}}
	r.send("spec", spec)
	r.settle()
	require.Contains(t, r.condition("SpecApplied"), "False HookFailed")
	require.NoError(t, os.WriteFile(mended, nil, 0o600))
	r.stop()
	r.start()
	r.settle()
	require.Equal(t, "none", r.file("etc/a"), "nobody asked for it")
	require.NoError(t, requestRetry(r.o, io.Discard))
	r.settle()
	require.Equal(t, "one", r.file("etc/a"))
	require.Contains(t, r.condition("SpecApplied"), "True Applied")
}

// TestAVersionThatCannotBeNotedIsReportedAsFailed: the hub learns why it doesn't go on.
func TestAVersionThatCannotBeNotedIsReportedAsFailed(t *testing.T) {
	for what, name := range map[string]string{"the state": stateName, "the journal": "files/journal.json"} {
		t.Run(what, func(t *testing.T) {
			r := newTestAgent(t, nil)
			at := filepath.Join(r.o.Config.Data.Dir, name)
			require.NoError(t, os.RemoveAll(at))
			require.NoError(t, os.MkdirAll(filepath.Join(at, "in the way"), 0o755))
			r.send("spec", specOfVersion("1", textFile("/etc/a", "one")))
			r.settle()
			require.Contains(t, r.condition("SpecApplied"), "False WriteFailed")
			report := r.reportNow(nil)
			require.Equal(t, "1", report.Failed.RenderedVersion)
			require.Equal(t, "none", r.file("etc/a"))
			require.NoError(t, os.RemoveAll(at))
			*r.retry = specRetry{journal: r.journal}
			r.settle()
			require.Equal(t, "one", r.file("etc/a"))
			require.Contains(t, r.condition("SpecApplied"), "True Applied")
		})
	}
}

// TestASpecThatCameMeanwhileSupersedesTheOlderOne: it is not noticed only with the next change.
func TestASpecThatCameMeanwhileSupersedesTheOlderOne(t *testing.T) {
	r := newTestAgent(t, nil)
	old := specOfVersion("1", textFile("/etc/a", "one"))
	r.send("spec", specOfVersion("2", textFile("/etc/a", "two")))
	ctx, cancel := r.untilSuperseded(t.Context(), old)
	defer cancel()
	require.ErrorIs(t, context.Cause(ctx), errSuperseded)
	same, cancel := r.untilSuperseded(t.Context(), specOfVersion("2", textFile("/etc/a", "two")))
	defer cancel()
	require.NoError(t, same.Err())
}

func TestKilledAtEachStep(t *testing.T) {
	hooked := func(v string, list ...resource.RenderedFile) resource.RenderedSpec {
		s := specOfVersion(v, list...)
		s.Hooks = &resource.Hooks{BeforeUpdating: []resource.Hook{{Run: "ok"}}, AfterUpdating: []resource.Hook{{Run: "ok"}}}
		return s
	}
	for _, failing := range []bool{false, true} {
		for n := 1; ; n++ {
			r := newTestAgent(t, func(c *configs.Agent) {
				withCommand("ok", "/bin/true")(c)
				withCommand("well", "/bin/sh", "-c", `! grep -q bad "$EDGEBUS_ROOT/etc/a"`)(c)
				c.Health = configs.Health{Checks: []configs.HealthCheck{{Run: "well"}}, Timeout: 10 * time.Millisecond}
			})
			r.send("spec", hooked("1", textFile("/etc/a", "old"), textFile("/etc/b", "old")))
			r.settle()
			was, is := "old old none", "new none new"
			next := hooked("2", textFile("/etc/a", "new"), textFile("/etc/c", "new"))
			if failing {
				next.Files[0].Text, is = "bad", "bad none new"
			}
			r.send("spec", next)

			count, at := 0, ""
			r.before = func(step string) {
				if count++; count == n {
					at = step
					panic(agentKilled{})
				}
			}
			ended := func() (ended bool) {
				defer func() { ended = recover() != nil }()
				r.settle()
				return false
			}()
			files := func() string { return r.file("etc/a") + " " + r.file("etc/b") + " " + r.file("etc/c") }
			r.stop()
			r.boot = "boot-2" // the power was cut
			r.start()
			require.Contains(t, []string{was, is}, files(), "killed at %s (%d)", at, n)
			r.settle()
			if failing {
				require.Equal(t, was, files(), "killed at %s (%d)", at, n)
				require.Equal(t, "2", r.reportNow(nil).Failed.RenderedVersion)
				require.Equal(t, "1", r.reportNow(nil).RenderedVersion)
			} else {
				require.Equal(t, is, files(), "killed at %s (%d)", at, n)
				require.Equal(t, "2", r.reportNow(nil).RenderedVersion)
				require.Nil(t, r.state.Update)
			}
			require.Contains(t, r.condition("Rebooted"), "boot-2")
			requireNoLeftovers(t, r.o.Config.Root)
			if !ended {
				require.Greater(t, n, 12, "the steps were enumerated")
				break
			}
		}
	}
}

// requireNoLeftovers wants no files of the agent's own to be left.
func requireNoLeftovers(t *testing.T, root string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		require.NotContains(t, path, ".edgebus", "left by an update")
		return err
	}))
}

// An update in the midst of which the agent ends each time is given up.
func TestInterruptedAgainAndAgain(t *testing.T) {
	r := newTestAgent(t, withCommand("ok", "/bin/true"))
	r.send("spec", specOfVersion("1", textFile("/etc/a", "old")))
	r.settle()
	s := specOfVersion("2", textFile("/etc/a", "new"))
	s.Hooks = &resource.Hooks{AfterUpdating: []resource.Hook{{Run: "ok"}}}
	r.send("spec", s)
	r.o.BeforeStep = func(step string) {
		if step == stepAfterHooks {
			panic(agentKilled{})
		}
	}
	r.before = r.o.BeforeStep
	for range maxResumed + 1 {
		require.Panics(t, r.settle)
		require.Equal(t, "new", r.file("etc/a"))
		r.stop()
		r.start()
	}
	r.settle()
	require.Equal(t, "old", r.file("etc/a"))
	require.Contains(t, r.condition("SpecApplied"), "False Interrupted: version 2")
}

// A version that is only prepared gives way to a newer one; one that changes the host already is ended first.
func TestNewerVersion(t *testing.T) {
	r := newTestAgent(t, withCommand("slow", "/bin/sleep", "60"))
	s := specOfVersion("1", textFile("/etc/a", "one"))
	s.Hooks = &resource.Hooks{BeforeUpdating: []resource.Hook{{Run: "slow", Timeout: "60s"}}}
	r.send("spec", s)
	r.before = func(step string) {
		if step == stepBeforeHooks {
			r.before = nil
			time.AfterFunc(10*time.Millisecond, func() { r.send("spec", specOfVersion("2", textFile("/etc/a", "two"))) })
		}
	}
	r.settle()
	require.Equal(t, "two", r.file("etc/a"))
	require.Equal(t, "2", r.reportNow(nil).RenderedVersion)
}

func TestCommands(t *testing.T) {
	c := allowedCommands{
		"env": {"/usr/bin/env"}, "slow": {"/bin/sh", "-c", "sleep 1000 & echo begun; sleep 1000"},
		"long": {"/bin/sh", "-c", "seq 1000; exit 1"}, "none": {"/nonexistent/program"}, "leaves": {"/bin/sh", "-c", "sleep 5 </dev/null & exit 0"},
	}
	t.Setenv("EDGEBUS_TEST", "not for commands")
	require.NoError(t, c.run(t.Context(), "leaves", time.Minute, nil))
	err := c.run(t.Context(), "slow", 200*time.Millisecond, nil)
	require.EqualError(t, err, `command "slow": it took longer than 200ms and was ended: begun`)
	err = c.run(t.Context(), "long", time.Minute, commandEnvironment("/", "afterUpdating", specUpdate{}))
	require.ErrorContains(t, err, `exit status 1: …991`)
	require.True(t, strings.HasSuffix(err.Error(), "\n1000"), err.Error())
	require.ErrorContains(t, c.run(t.Context(), "none", time.Minute, nil), "no such file")
	require.ErrorContains(t, c.run(t.Context(), "other", time.Minute, nil), "allows no command")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, c.run(ctx, "slow", time.Minute, nil), context.Canceled)
}

func TestHookConditions(t *testing.T) {
	changes := []files.Change{{Path: "/etc/nginx/nginx.conf", Op: files.Updated}, {Path: "/etc/old", Op: files.Removed}}
	for _, tt := range []struct {
		path string
		op   []string
		want bool
	}{
		{"/etc/nginx", nil, true},
		{"/etc/nginx/", nil, true},
		{"/etc/nginx/nginx.conf", []string{"updated"}, true},
		{"/", nil, true},
		{"/etc/ngin", nil, false},
		{"/etc/nginx", []string{"created", "removed"}, false},
		{"/etc/old", []string{"removed"}, true},
	} {
		h := resource.Hook{If: []resource.HookCondition{{Path: tt.path, Op: tt.op}}}
		require.Equal(t, tt.want, isDue(h, changes), "%s %v", tt.path, tt.op)
	}
	require.True(t, isDue(resource.Hook{}, nil))
}

func TestReportFits(t *testing.T) {
	r := resource.AgentReport{RenderedVersion: "1"}
	for i := range 2000 {
		r.Containers = append(r.Containers, resource.ContainerStatus{ID: fmt.Sprintf("%064d", i), Name: "c"})
		r.SystemdUnits = append(r.SystemdUnits, resource.SystemdUnit{Name: "u.service"})
	}
	r.Failed = &resource.FailedVersion{Message: strings.Repeat("ä", 100_000)}
	now := time.Now()
	fitted := limitReport(r, now)
	require.LessOrEqual(t, jsonSize(fitted), resource.MaxAgentReport)
	require.Greater(t, jsonSize(fitted), resource.MaxAgentReport/4)
	require.Equal(t, "cut, so that the report is not larger than allowed: containers, systemdUnits", fitted.Conditions[0].Message)
	require.Len(t, r.Containers, 2000)
	small := limitReport(resource.AgentReport{RenderedVersion: "1"}, now)
	require.Empty(t, small.Conditions)
}

// The agent's own state is not for a spec to change, however data.dir is written.
func TestProtected(t *testing.T) {
	for dir, want := range map[string]string{"/opt/agent": "/opt/agent", "relative": "", "/elsewhere": ""} {
		o := Options{Config: configs.Agent{Root: "/", Data: configs.Data{Dir: dir}}}
		if want == "" {
			o.Config.Root = "/scratch"
		}
		protected := o.withDefaults().Protected
		require.Equal(t, want != "", len(protected) == 4, "%v", protected)
		require.Contains(t, protected, configs.ProgramsDir, "what runs was signed")
	}
	o := Options{Config: configs.Agent{Root: "/", Upgrade: configs.AgentUpgrade{Dir: "/opt/programs"}}}
	require.Contains(t, o.withDefaults().Protected, "/opt/programs")
}

// TestAHookThatHasSucceededIsRunOnce: wherever the agent is killed. One that was running is run again, and knows that.
func TestAHookThatHasSucceededIsRunOnce(t *testing.T) {
	type killed struct{}
	for step := range 100 {
		runs := filepath.Join(t.TempDir(), "runs")
		log := func(name string) func(*configs.Agent) {
			return withCommand(name, "/bin/sh", "-c", `echo "$EDGEBUS_HOOK `+name+`$EDGEBUS_HOOK_AGAIN" >>`+runs)
		}
		r := newTestAgent(t, func(c *configs.Agent) {
			for _, name := range []string{"own", "one", "two", "three"} {
				log(name)(c)
			}
			c.Hooks.AfterUpdating = []configs.Hook{{Run: "own"}}
		})
		at := 0
		r.before = func(string) {
			if at++; at == step+1 {
				panic(killed{})
			}
		}
		s := specOfVersion("1", textFile("/etc/a", "one"))
		s.Hooks = &resource.Hooks{BeforeUpdating: []resource.Hook{{Run: "one"}}, AfterUpdating: []resource.Hook{{Run: "two"}, {Run: "three"}}}
		r.send("spec", s)
		ended := func() (ended bool) {
			defer func() {
				if p := recover(); p != nil {
					require.Equal(t, killed{}, p)
					ended = true
				}
			}()
			r.settle()
			return false
		}()
		if ended {
			r.stop()
			r.start()
			r.settle()
		}
		require.Equal(t, "one", r.file("etc/a"))
		text, err := os.ReadFile(runs)
		require.NoError(t, err)
		var once []string
		for _, line := range strings.Fields(strings.ReplaceAll(string(text), "Updating ", "Updating:")) {
			if name, again := strings.CutSuffix(line, "true"); !again || !slices.Contains(once, name) {
				once = append(once, name)
			}
		}
		require.Equal(t, []string{"beforeUpdating:one", "afterUpdating:own", "afterUpdating:two", "afterUpdating:three"}, once, "killed at %d: %s", step, text)
		require.Zero(t, r.state.Hooks, "the next time all are run")
		r.stop()
		if !ended {
			require.Greater(t, step, 10)
			return
		}
	}
	t.Fatal("the agent takes more than 100 steps")
}

// An agent starts on a full disk: what it applied stays, a new version fails for want of room, and both that and what the start found are stored when there
// is some.
func TestAnAgentStartsOnAFullDisk(t *testing.T) {
	small := disk.New(t, 8)
	r := newTestAgent(t, func(c *configs.Agent) { c.Data.Dir = filepath.Join(small.Dir, "data") })
	r.send("spec", specOfVersion("1", textFile("/etc/a", "one")))
	r.settle()
	require.Equal(t, "one", r.file("etc/a"))
	r.stop()
	r.boot = "boot-2"
	require.NoError(t, small.Fill())
	r.start()
	require.Contains(t, r.condition("Rebooted"), "boot-2")
	require.Equal(t, "1", r.reportNow(nil).RenderedVersion)
	r.send("spec", specOfVersion("2", textFile("/etc/a", "two")))
	r.runOnce(t.Context())
	require.Equal(t, "one", r.file("etc/a"))
	require.Contains(t, r.reportNow(nil).Failed.Message, "no space left on device")
	require.NoError(t, small.Free())
	require.Eventually(t, func() bool { r.runOnce(t.Context()); return r.file("etc/a") == "two" }, time.Minute, 10*time.Millisecond)
	r.stop()
	r.start()
	require.Contains(t, r.condition("Rebooted"), "boot-2")
	require.Equal(t, "2", r.reportNow(nil).RenderedVersion)
}
