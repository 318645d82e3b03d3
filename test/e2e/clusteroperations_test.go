// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	c.servers.Kill(0)
	c.awaitSays(1, "(?s)✗ the log's server n0 is gone\n  → start it", "edgebus", "cluster", "status", "--server", "http://"+standby.http)
	c.servers.Kill(1)
	c.awaitSays(1, "✗ no hub serves|no quorum", "cloudhub", "cluster", "status", "--config", standby.config)
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
	next := c.awaitServing()
	require.NotEqual(t, h.name, next.name)
	c.awaitSays(0, "hub-0 +drained", "edgebus", "cluster", "status", "--server", "http://"+next.http)

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
