// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/harness"
)

// run runs a program, and returns what it said and its exit code.
func (c *hubCluster) run(program string, args ...string) (said string, code int) {
	cmd := exec.Command(filepath.Join(c.Bin, program), args...)
	cmd.Env = append(cmd.Environ(), "HOME="+c.Dir, "KUBECONFIG=", "NO_COLOR=1")
	out, _ := cmd.CombinedOutput()
	return string(out), cmd.ProcessState.ExitCode()
}

func (c *hubCluster) standby() clusterHub {
	serving := c.awaitServing()
	return c.hubs[(slices.Index(c.hubs, serving)+1)%len(c.hubs)]
}

// awaitSays runs a program until it ends with a code and says something.
func (c *hubCluster) awaitSays(code int, what, program string, args ...string) (said string) {
	c.t.Helper()
	got := 0
	if !eventually(func() bool {
		said, got = c.run(program, args...)
		return got == code && regexp.MustCompile(what).MatchString(said)
	}) {
		c.t.Fatalf("%s %v says with exit code %d, and %q in it with %d is waited for:\n%s", program, args, got, what, code, said)
	}
	return said
}

func eventually(is func() bool) bool {
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		if is() {
			return true
		}
	}
	return false
}

// Each hub says how all of them are, and their log's servers.
func TestEachHubSaysHowAllOfThemAre(t *testing.T) {
	c := newHubCluster(t)
	standby := c.standby()
	well := "(?s)hub-0 +owner .*hub-1 +standby .*hub-2 +standby .*n[0-2] +leader +current.*✓ hub-0 serves"
	for _, h := range []clusterHub{c.awaitServing(), standby} {
		c.awaitSays(0, well, "edgebus", "cluster", "status", "--server", "http://"+h.http)
		c.awaitSays(0, well, "cloudhub", "cluster", "status", "--config", h.config)
	}
	c.awaitSays(0, `(?m)^owner: hub-0$`, "edgebus", "cluster", "status", "--server", "http://"+standby.http, "-o", "yaml")
	c.awaitSays(0, "✓ hub-0 serves", "edgebus", "doctor", "--hub", "http://"+c.Hub.HTTP)
	for _, h := range c.hubs {
		require.NoError(t, harness.Eventually(t.Context(), time.Minute, func(ctx context.Context) error {
			text, err := harness.Call(ctx, http.MethodGet, "http://"+h.http+"/metrics", nil)
			for _, line := range []string{"hubs 3", "standbys 2", "hubs_away 0", "quorum 1", "epoch 1"} {
				if err == nil && !strings.Contains(string(text), "\nedgebus_cluster_"+line+"\n") {
					err = fmt.Errorf("%s doesn't say %s", h.name, line)
				}
			}
			return err
		}))
	}
	figures := make(chan string, 100)
	c.connect(t.Context(), client.Options{ClientID: "reader", CleanStart: true, Subscriptions: []client.Subscription{{Filter: "$SYS/cluster/#"}}, OnMessage: func(m client.Message) {
		select {
		case figures <- m.Topic + " " + string(m.Payload):
		default:
		}
	}})
	for wanted := []string{"$SYS/cluster/owner hub-0", "$SYS/cluster/standbys 2", "$SYS/cluster/quorum true"}; len(wanted) > 0; {
		select {
		case got := <-figures:
			wanted = slices.DeleteFunc(wanted, func(w string) bool { return w == got })
		case <-time.After(time.Minute):
			t.Fatal("not told: ", wanted)
		}
	}
	c.servers.Kill(0)
	c.awaitSays(1, "(?s)✗ the log's server n0 is gone\n  → start it", "edgebus", "cluster", "status", "--server", "http://"+standby.http)
	c.servers.Kill(1)
	c.awaitSays(1, "✗ no hub serves|no quorum", "cloudhub", "cluster", "status", "--config", standby.config)
}

// What waits for a log that doesn't answer was acknowledged to nobody, and doesn't keep the hub that serves from stopping in time.
func TestAHubThatServesStopsInTimeWithoutItsLog(t *testing.T) {
	c := newHubCluster(t)
	serving := c.awaitServing()
	p := c.publisher(t.Context(), "publisher")
	publish := func(payload string) error {
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
		defer stop()
		return p.publish(ctx, client.Message{Topic: "own/register", Payload: []byte(payload), QoS: 1, Retain: true})
	}
	require.NoError(t, harness.Eventually(t.Context(), time.Minute, func(context.Context) error { return publish("1") }))
	c.servers.Kill(0)
	c.servers.Kill(1)
	require.Error(t, publish("2"), "it waits")
	require.NoError(t, c.Term(serving.name))
}

// A hub that is drained hands over, stands by, and takes over no more until it may.
func TestADrainedHubHandsOverAndStandsBy(t *testing.T) {
	c := newHubCluster(t)
	h := c.awaitServing()
	drain := []string{"cluster", "drain", "--config", h.config}
	c.awaitSays(0, "(?s)Hub hub-0 serves.*hub-1 or hub-2 can take over.*Nothing was changed", "cloudhub", append(drain, "--dry-run")...)
	require.True(t, c.ready(h))
	said, code := c.run("cloudhub", append(drain, "--for", "20m")...)
	require.Zero(t, code, said)
	require.Regexp(t, "(?m)^hub-[12] serves. `cloudhub cluster undrain` lets hub-0", said)
	said, code = c.run("cloudhub", "cluster", "status", "--config", h.config)
	require.Zero(t, code, "it has heard the others before it says how they are: %s", said)
	next := c.awaitServing()
	require.NotEqual(t, h.name, next.name)
	c.awaitSays(0, "hub-0 +drained", "edgebus", "cluster", "status", "--server", "http://"+next.http)

	c.awaitSays(1, "is of a cluster already: start the hub", "cloudhub", "cluster", "import", "--dry-run", "--config", h.config)
	c.command("cluster", "undrain", "--config", h.config)
	said, code = c.run("cloudhub", "cluster", "status", "--config", h.config)
	require.Zero(t, code, "it can take over at once: %s", said)
	c.command(append(drain, "--for", "20m")...)

	// It doesn't take over, also after a start, as long as it may not.
	require.NoError(t, c.Term(h.name))
	c.start(h)
	for _, other := range c.hubs[1:] {
		if other != next {
			c.awaitSays(0, "Hub hub-[12] stands by, hub-[12] serves", "cloudhub", "cluster", "drain", "--config", other.config)
		}
	}
	c.awaitSays(1, "no other hub could serve then: hub-0 is drained; hub-[12] is drained. Nothing was changed", "cloudhub", "cluster", "drain", "--config", next.config)
	require.NoError(t, c.Crash(next.name))
	c.awaitSays(1, "no hub serves", "cloudhub", "cluster", "status", "--config", h.config)
	require.Never(t, func() bool { return c.serving() >= 0 }, 2*clusterSilence, 100*time.Millisecond)
	c.command("cluster", "undrain", "--config", h.config)
	require.Equal(t, h, c.awaitServing())
}

// set has the device report a level.
func (c *hubCluster) set(level int) {
	c.t.Helper()
	require.NoError(c.t, harness.Eventually(c.t.Context(), time.Minute, func(ctx context.Context) error {
		_, err := harness.Call(ctx, http.MethodPatch, "http://"+c.Hub.HTTP+devicePath, fmt.Appendf(nil, `{"spec":{"desired":{"level":"%d"}}}`, level))
		return err
	}))
	require.NoError(c.t, harness.Eventually(c.t.Context(), time.Minute, func(ctx context.Context) error {
		text, err := harness.Call(ctx, http.MethodGet, "http://"+c.Hub.HTTP+devicePath, nil)
		if reported := fmt.Sprintf(`"reported":{"value":"%d"`, level); err == nil && !strings.Contains(strings.ReplaceAll(string(text), " ", ""), reported) {
			err = fmt.Errorf("no %s in %s", reported, text)
		}
		return err
	}))
}

func (c *hubCluster) stopAll() {
	c.t.Helper()
	for _, h := range c.hubs {
		if c.Running(h.name) {
			require.NoError(c.t, c.Term(h.name))
		}
	}
}

// joinOthers has the other hubs join with a backup of one that serves.
func (c *hubCluster) joinOthers(than clusterHub) {
	c.t.Helper()
	file := filepath.Join(c.Dir, fmt.Sprint("join-", time.Now().UnixNano()))
	c.command("cluster", "backup", "--force", "--config", than.config, file) // others may have been heard a moment ago
	for _, h := range c.hubs {
		if h != than {
			require.Contains(c.t, c.command("cluster", "join", "--force", "--config", h.config, file), "Start cloudhub: it stands by, with what came after in the log")
			c.start(h)
		}
	}
}

// The data goes from a cluster into a backup and back, into a hub on files and into a cluster again: objects, sessions, what is retained, and nodes, which never join
// again. Who was revoked after the backup stays revoked.
func TestTheDataOfAClusterGoesIntoABackupAndIntoOneHubAndBack(t *testing.T) {
	c := newHubCluster(t)
	c.startDevice()
	c.set(1)
	p := c.publisher(t.Context(), "publisher")
	publish := func(topic, payload string) {
		require.NoError(t, harness.Eventually(t.Context(), time.Minute, func(ctx context.Context) error {
			ctx, stop := context.WithTimeout(ctx, 2*time.Second)
			defer stop()
			return p.publish(ctx, client.Message{Topic: topic, Payload: []byte(payload), QoS: 1, Retain: topic == "own/register"})
		}))
	}
	away, leave := context.WithCancel(t.Context())
	left := c.session(away, "reader-1", c.waited)
	leave()
	<-left
	publish("work/waits", "before the backup")
	publish("own/register", "1")
	c.register = 1

	// A backup of one that stands by; what comes after it is lost with the restore, but for a revocation.
	serving, file := c.awaitServing(), filepath.Join(c.Dir, "monday.backup")
	c.awaitSays(1, "make the backup at hub-", "cloudhub", "cluster", "backup", "--config", serving.config, file)
	c.awaitSays(0, "data of cloudhub", "cloudhub", "cluster", "backup", "--config", c.standby().config, file)
	_, err := harness.Call(t.Context(), http.MethodPost, "http://"+c.Hub.HTTP+"/enroll/nodes/gone/revoke", nil)
	require.NoError(t, err)
	publish("work/waits", "after the backup")
	first := c.hubs[0]
	restore := []string{"cluster", "restore", "--config", first.config, "--force", file}
	c.awaitSays(1, "in use|runs", "cloudhub", restore...)
	require.NoError(t, c.Crash(first.name))
	c.awaitServing()
	c.awaitSays(1, "hubs run: hub-1, hub-2. Stop all of them first", "cloudhub", "cluster", "export", "--config", first.config)
	c.awaitSays(1, "hubs run: hub-1, hub-2. Stop all of them first", "cloudhub", restore...)
	c.awaitServing()
	c.stopAll()
	c.awaitSays(0, "would be made anew", "cloudhub", append(restore, "--dry-run")...)
	require.NoError(t, os.RemoveAll(filepath.Join(c.Dir, first.name, "log")), "that machine's disk is lost: what was revoked is in the log alone")
	c.command(restore...)
	c.start(first)
	require.Equal(t, first, c.awaitServing())
	revoked, err := os.ReadFile(filepath.Join(c.Dir, first.name, "authority", "revoked.json"))
	require.NoError(t, err)
	require.Contains(t, string(revoked), `"gone"`)
	c.set(2)
	c.start(c.hubs[1])
	require.Eventually(t, func() bool { return !c.Running(c.hubs[1].name) }, time.Minute, 50*time.Millisecond, "it has a part of another log")
	c.joinOthers(first)
	c.awaitSays(0, "✓ hub-0 serves", "edgebus", "cluster", "status", "--server", "http://"+first.http)
	c.readRegister()

	// One hub on files, with the data of one that stood by.
	second := c.hubs[1]
	c.stopAll()
	c.awaitSays(0, "(?s)1 Device.*Nothing was changed", "cloudhub", "cluster", "export", "--dry-run", "--config", second.config)
	c.command("cluster", "export", "--config", second.config)
	text, err := os.ReadFile(second.config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(second.config, bytes.Replace(text, []byte("engine: nats"), []byte("engine: files"), 1), 0o600))
	c.start(second)
	require.Equal(t, second, c.awaitServing())
	c.set(3)
	publish("work/waits", "to one hub")
	c.start(first)
	require.Eventually(t, func() bool { return !c.Running(first.name) }, time.Minute, 50*time.Millisecond, "the log is another one")

	// And a cluster again.
	c.stopAll()
	require.NoError(t, os.WriteFile(second.config, text, 0o600))
	c.awaitSays(1, "has data: `cloudhub cluster import`", "cloudhub", "cluster", "init", "--config", second.config)
	c.deleteLog()
	c.awaitSays(0, "(?s)1 Device.*Nothing was changed", "cloudhub", "cluster", "import", "--dry-run", "--config", second.config)
	c.command("cluster", "import", "--config", second.config)
	c.start(second)
	require.Equal(t, second, c.awaitServing())
	c.joinOthers(second)
	c.set(4)
	c.readRegister()
	c.session(t.Context(), "reader-1", c.waited)
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.waited["to one hub"] > 0
	}, time.Minute, 20*time.Millisecond)
	require.Equal(t, map[string]int{"before the backup": 1, "to one hub": 1}, c.waited)
}
