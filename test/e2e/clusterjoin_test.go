// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/natsservers"
)

// waitingJoin is a command that waits until its hub has joined.
type waitingJoin struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}

	mu   sync.Mutex
	said bytes.Buffer
}

func (j *waitingJoin) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.said.Write(b)
}

func (j *waitingJoin) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.said.String()
}

func (j *waitingJoin) awaitSays(what string) {
	j.t.Helper()
	require.True(j.t, eventually(func() bool { return strings.Contains(j.String(), what) }), "%q is waited for:\n%s", what, j)
}

// awaitEnd waits until the command has ended well.
func (j *waitingJoin) awaitEnd() {
	j.t.Helper()
	select {
	case <-j.done:
		require.Zero(j.t, j.cmd.ProcessState.ExitCode(), j.String())
	case <-time.After(time.Minute):
		j.t.Fatalf("it didn't end:\n%s", j)
	}
}

// keyCluster is three hubs that have nothing but cluster.key, on servers with the settings that were made with it.
type keyCluster struct {
	*hubCluster
	key  string
	from string // their addresses
}

func newKeyCluster(t *testing.T) *keyCluster {
	w, err := harness.NewWorld(t.TempDir(), 1)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.Logs(40))
		}
		w.Close()
	})
	c := &keyCluster{hubCluster: &hubCluster{World: w, t: t}, key: filepath.Join(w.Dir, "first", "cluster.key")}
	c.client.Timeout = time.Second
	out := filepath.Join(w.Dir, "nats")
	var peers []string
	for i := range 3 { // all servers of the test have the same address
		c.command("cluster", "certificates", "--data-dir", filepath.Dir(c.key), "--out", out, fmt.Sprintf("n%d,127.0.0.1", i))
		peers = append(peers, harness.FreeAddress(t))
	}
	c.servers = natsservers.StartSecured(t, 3, out)
	c.from = strings.Join(peers, ",")
	for i, address := range peers {
		h := clusterHub{name: fmt.Sprint("hub-", i), config: filepath.Join(w.Dir, fmt.Sprint("hub-", i, ".yaml")), http: harness.FreeAddress(t)}
		text := fmt.Sprintf("data: {dir: %q}\nmqtt: {listen: '', websocket: {listen: ''}}\nhttp: {listen: %q}\nstore: {engine: nats, peer: {listen: %q}, nats: {servers: [%s], monitor: [%s], name: %s, silence: %s}}\n",
			filepath.Join(w.Dir, h.name), h.http, address, strings.Join(c.servers.URLs(), ","), strings.Join(c.servers.Monitors(), ","), h.name, clusterSilence)
		require.NoError(t, os.WriteFile(h.config, []byte(text), 0o600))
		c.hubs = append(c.hubs, h)
	}
	return c
}

func (c *keyCluster) join(h clusterHub, key string) *waitingJoin {
	c.t.Helper()
	j := &waitingJoin{t: c.t, done: make(chan struct{})}
	j.cmd = exec.Command(filepath.Join(c.Bin, "cloudhub"), "cluster", "join", "--config", h.config, "--from", c.from, "--key", key)
	j.cmd.Stdout, j.cmd.Stderr = j, j
	require.NoError(c.t, j.cmd.Start())
	go func() {
		defer close(j.done)
		_ = j.cmd.Wait() // its exit code is looked at
	}()
	c.t.Cleanup(func() {
		_ = j.cmd.Process.Kill() // it may have ended
		<-j.done
	})
	return j
}

// Hubs that have nothing but cluster.key wait until the log was made at one of them, whichever that is, and join it. One whose disk is new joins likewise,
// the first among them; one that has its data only starts. Who has another key gets nothing.
func TestHubsWithTheKeyAloneJoinByThemselves(t *testing.T) {
	c := newKeyCluster(t)
	var joins []*waitingJoin
	for _, h := range c.hubs {
		joins = append(joins, c.join(h, c.key))
	}
	for _, j := range joins {
		j.awaitSays("no hub gives a backup")
	}
	first := c.hubs[1]
	c.command("cluster", "init", "--config", first.config)
	joins[1].awaitEnd()
	c.start(first)
	for _, i := range []int{2, 0} {
		joins[i].awaitEnd()
		c.start(c.hubs[i])
	}
	require.Equal(t, first, c.awaitServing())
	for _, h := range c.hubs {
		c.awaitSays(0, `(?s)hub-0 .*hub-1 .*hub-2 `, "cloudhub", "cluster", "status", "--config", h.config)
	}

	c.join(c.hubs[0], c.key).awaitEnd() // at each start
	stranger := filepath.Join(c.Dir, "stranger.key")
	require.NoError(t, sealed.NewKey().Write(stranger))
	outside := clusterHub{config: filepath.Join(c.Dir, "outside.yaml")}
	text, err := os.ReadFile(c.hubs[0].config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(outside.config, bytes.ReplaceAll(text, []byte("hub-0"), []byte("outside")), 0o600))
	c.join(outside, stranger).awaitSays("tls: ")
	require.NoDirExists(t, filepath.Join(c.Dir, "outside", "log"))

	require.NoError(t, c.Crash(first.name)) // and its disk is gone
	require.NoError(t, os.RemoveAll(filepath.Join(c.Dir, first.name)))
	half := filepath.Join(c.Dir, first.name, "join-1.part")
	require.NoError(t, os.Mkdir(filepath.Dir(half), 0o700))
	require.NoError(t, os.WriteFile(half, nil, 0o600))
	c.join(first, c.key).awaitEnd()
	require.NoFileExists(t, half) // of an attempt that was killed
	c.start(first)
	require.NotEqual(t, first, c.awaitServing())
	c.awaitSays(0, `hub-1 .*standby`, "cloudhub", "cluster", "status", "--config", first.config)

	// A file of its log is damaged. The command that it names, with any other hub, mends that.
	require.NoError(t, c.Crash(first.name))
	logs, err := filepath.Glob(filepath.Join(c.Dir, first.name, "log", "*.log"))
	require.NoError(t, err)
	text, err = os.ReadFile(logs[0])
	require.NoError(t, err)
	for i := range 300 {
		text[i] ^= 0x10
	}
	require.NoError(t, os.WriteFile(logs[0], text, 0o600))
	out, err := exec.Command(filepath.Join(c.Bin, "cloudhub"), "--config", first.config).CombinedOutput()
	require.Error(t, err)
	require.Regexp(t, "damaged.*`cloudhub cluster join --force --from HUB`", string(out))
	c.command("cluster", "join", "--config", first.config, "--force", "--from", c.from)
	c.start(first)
	c.awaitSays(0, `hub-1 .*standby`, "cloudhub", "cluster", "status", "--config", first.config)
}
