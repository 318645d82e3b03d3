// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"
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
