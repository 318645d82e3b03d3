// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/harness"
)

// position is up to where a hub has what is in the log; 0: it doesn't say so.
func (c *hubCluster) position(h clusterHub) (at int) {
	text, err := harness.Call(c.t.Context(), http.MethodGet, "http://"+h.http+"/metrics", nil)
	if _, after, is := strings.Cut(string(text), "\nedgebus_cluster_position "); err == nil && is {
		line, _, _ := strings.Cut(after, "\n")
		at, _ = strconv.Atoi(line)
	}
	return at
}

// buildNextVersion builds a hub of the next version of records into a directory.
func buildNextVersion(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	build := exec.Command("go", "build", "-trimpath", "-tags", "grpcnotrace,recordsnext", "-ldflags", "-s -w", "-o", dir+"/", "./cloud/cmd/cloudhub")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	return dir
}

// Three hubs are upgraded one after the other: those of the next version and of this one take over from each other with all data, in both directions, until all are
// upgraded and the upgrade is finished. Then a program of this version is refused.
func TestHubsAreUpgradedOneAfterTheOther(t *testing.T) {
	c := newHubCluster(t)
	nextProgram := filepath.Join(buildNextVersion(t), "cloudhub")
	startNext := func(h clusterHub) {
		require.NoError(t, c.Run(t.Context(), h.name, []string{nextProgram, "--config", h.config}, "http://"+h.http+"/livez"))
	}
	finish := func(h clusterHub, more ...string) []string {
		return append([]string{"cluster", "finish-upgrade", "--server", "http://" + h.http}, more...)
	}
	c.startDevice()
	c.set(1)

	// Hubs of the next version take over, and the one of this version takes over again.
	first := c.hubs[0]
	for _, h := range c.hubs[1:] {
		require.NoError(t, c.Term(h.name))
		startNext(h)
	}
	c.awaitSays(0, `(?s)hub-0 +owner +\S+ +1 .*hub-1 +standby +\S+ +2 .*hub-2 +standby +\S+ +2 .*records of version 1,`, "edgebus", "cluster", "status", "--server", "http://"+first.http)
	require.NoError(t, c.Crash(first.name))
	next := c.awaitServing()
	c.set(2)
	c.start(first)
	began := c.position(next)
	require.Positive(t, began)
	require.Eventually(t, func() bool { return c.position(first) > began+6 }, time.Minute, 50*time.Millisecond, "it reads all that a hub of the next version writes, also with which it is only heard")
	c.awaitSays(4, `can't be of version 2 of records yet: hub-0 \(\S+\) knows records up to version 1: upgrade it\. Nothing was changed`, "edgebus", finish(first, "--force")...)
	for _, h := range c.hubs[1:] {
		if h != next {
			c.command("cluster", "drain", "--config", h.config)
		}
	}
	require.NoError(t, c.Crash(next.name))
	require.Equal(t, first, c.awaitServing())
	c.set(3)

	// The last one is upgraded.
	for _, h := range c.hubs[1:] {
		if h == next {
			startNext(h)
		} else {
			c.command("cluster", "undrain", "--config", h.config)
		}
	}
	for _, h := range c.hubs[1:] { // one that begins anew knows those that it has heard since
		c.awaitSays(0, `(?s)hub-0 +owner +\S+ +1 .*hub-1 +standby.*hub-2 +standby`, "edgebus", "cluster", "status", "--server", "http://"+h.http)
	}
	require.NoError(t, c.Term(first.name))
	c.awaitSays(4, `hub-0 \(\S+\) knows records up to version 1.*upgrade it`, "edgebus", finish(c.awaitServing())...)
	startNext(first)
	standby := c.standby()
	c.awaitSays(0, "All hubs know records of version 2, and the log has those of version 1. Nothing was changed", "edgebus", finish(standby, "--dry-run")...)
	c.awaitSays(0, "records of version 2 from now on, and had those of version 1", "edgebus", finish(standby)...)
	c.awaitSays(0, "records of version 2 already", "edgebus", finish(standby)...)
	c.set(4)

	// Frames of the next version are in the log, and all hubs go on.
	c.awaitSays(0, `(?s)(hub-\d +(owner|standby) +\S+ +2 .*){3}records of version 2,`, "edgebus", "cluster", "status", "--server", "http://"+standby.http)
	require.NoError(t, c.Crash(c.awaitServing().name))
	require.NotEqual(t, "", c.awaitServing().name)
	c.set(5)
	for _, h := range c.hubs {
		if c.Running(h.name) {
			continue
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		said, err := exec.CommandContext(ctx, filepath.Join(c.Bin, "cloudhub"), "--config", h.config).CombinedOutput()
		stop()
		require.Error(t, err)
		require.Contains(t, string(said), "of version 2, and this program knows them up to version 1: upgrade it")
		startNext(h)
		c.awaitSays(0, h.name+" +standby", "edgebus", "cluster", "status", "--server", "http://"+h.http)
	}
}

// Data of the next version of records stays so, whichever way it goes: into a backup and back, into one hub on files, and into a cluster again. A program of this
// version takes none of it, and changes nothing.
func TestDataOfTheNextVersionGoesIntoABackupAndIntoOneHubAndBack(t *testing.T) {
	c := newHubCluster(t)
	this, next := c.Bin, buildNextVersion(t)
	for _, program := range []string{"edgebus", "edgecore", "mapper-virtual"} {
		require.NoError(t, os.Symlink(filepath.Join(this, program), filepath.Join(next, program)))
	}
	first, second := c.hubs[0], c.hubs[1]
	file := filepath.Join(c.Dir, "backup")
	refused := func(what string, args ...string) {
		t.Helper()
		c.Bin = this
		c.awaitSays(1, "of version 2, and this program knows them up to version 1: upgrade it", "cloudhub", append([]string{"cluster", what}, args...)...)
		c.Bin = next
	}
	isNext := func(h clusterHub, code int) { // 1: it is alone
		t.Helper()
		c.awaitSays(code, "records of version 2,", "edgebus", "cluster", "status", "--server", "http://"+h.http)
	}

	c.stopAll()
	c.Bin = next
	for _, h := range c.hubs {
		c.start(h)
	}
	serving := c.awaitServing()
	for _, h := range c.hubs {
		c.awaitSays(0, `(?s)hub-0 +(owner|standby).*hub-1 +(owner|standby).*hub-2 +(owner|standby)`, "edgebus", "cluster", "status", "--server", "http://"+h.http)
	}
	c.startDevice()
	c.set(1)
	c.awaitSays(0, "records of version 2 from now on", "edgebus", "cluster", "finish-upgrade", "--server", "http://"+serving.http)
	c.set(2)
	c.awaitSays(0, "data of cloudhub", "cloudhub", "cluster", "backup", "--config", c.standby().config, file)

	// Into the log, made anew with the backup.
	c.stopAll()
	refused("restore", "--config", first.config, "--force", file)
	c.command("cluster", "restore", "--config", first.config, "--force", file)
	c.start(first)
	require.Equal(t, first, c.awaitServing())
	isNext(first, 1)
	c.set(3)
	c.joinOthers(first)
	isNext(second, 0)

	// Into one hub on files.
	c.stopAll()
	refused("export", "--config", second.config)
	c.command("cluster", "export", "--config", second.config)
	text, err := os.ReadFile(second.config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(second.config, bytes.Replace(text, []byte("engine: nats"), []byte("engine: files"), 1), 0o600))
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	said, err := exec.CommandContext(ctx, filepath.Join(this, "cloudhub"), "--config", second.config).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(said), "of version 2, and this program knows them up to version 1: upgrade it")
	c.start(second)
	require.Equal(t, second, c.awaitServing())
	c.set(4)

	// And into a cluster again.
	c.stopAll()
	require.NoError(t, os.WriteFile(second.config, text, 0o600))
	c.deleteLog()
	refused("import", "--config", second.config)
	c.command("cluster", "import", "--config", second.config)
	c.start(second)
	require.Equal(t, second, c.awaitServing())
	isNext(second, 1)
	c.joinOthers(second)
	isNext(first, 0)
	require.NoError(t, c.Crash(second.name))
	require.NotEqual(t, second, c.awaitServing())
	c.set(5)
}

// deleteLog deletes the log at its servers.
func (c *hubCluster) deleteLog() {
	c.t.Helper()
	servers, err := nats.Connect(c.servers.URLs()[0])
	require.NoError(c.t, err)
	defer servers.Close()
	_, err = servers.Request("$JS.API.STREAM.DELETE.edgebus", nil, 10*time.Second)
	require.NoError(c.t, err)
}
