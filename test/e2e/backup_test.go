// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/stand"
)

// countingWriters publish rising numbers to topics until the test ends, and know what was acknowledged.
type countingWriters struct {
	mu    sync.Mutex
	acked map[string]int
}

func (w *countingWriters) write(s *stand.Stand, t *testing.T, c *client.Client, topic string, retain bool) {
	ctx, stop := context.WithCancel(context.Background())
	var group sync.WaitGroup
	t.Cleanup(func() {
		stop()
		group.Wait()
	})
	group.Go(func() {
		for n := 1; ctx.Err() == nil; n++ {
			m := client.Message{Topic: topic, Payload: []byte(strconv.Itoa(n)), QoS: 1, Retain: retain}
			if c.Publish(ctx, m) == nil {
				w.mu.Lock()
				w.acked[topic] = n
				w.mu.Unlock()
			}
		}
	})
	s.Eventually(stand.WaitTimeout, func() error { return wantAtLeast(w.seen()[topic], 1, topic) })
}

func (w *countingWriters) seen() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.acked)
}

func wantAtLeast(is, want int, topic string) error {
	if is < want {
		return fmt.Errorf("%s is %d, and %d was acknowledged", topic, is, want)
	}
	return nil
}

// requireAcked waits until a broker shows all that was acknowledged below a prefix, or newer.
func requireAcked(w *stand.Watcher, acked map[string]int, has string) {
	for topic, n := range acked {
		if strings.Contains(topic, has) {
			w.AwaitThat(topic, func(m client.Message) bool {
				is, _ := strconv.Atoi(string(m.Payload))
				return is >= n
			})
		}
	}
}

// A backup of what runs, under load: all that was acknowledged before it began is in it, whoever is
// killed meanwhile. Restored elsewhere, hub and core come back in step under a new lineage.
func TestBackupOfWhatRuns(t *testing.T) {
	t.Parallel()
	s := stand.New(t, 1)
	s.Up("hub", "core")
	s.Create(stand.ModelManifest("meter", "{name: level}", "{name: wish, accessMode: ReadWrite}") + stand.DeviceManifests("meter", "by-hand", "m1", "m2"))
	s.Eventually(stand.WaitTimeout, func() error { return wantGauge(s, s.Node("n1").HTTP, "edgebus_core_devices", 2) })
	hub, core := s.Client(s.Hub.MQTT, nil), s.Client(s.Core(), nil)
	large := client.Message{Topic: "large", Payload: []byte(strings.Repeat("incompressible? no", 30_000)), QoS: 1, Retain: true}
	for i := range 20 { // so that a backup takes a while
		large.Topic = fmt.Sprintf("large/%d", i)
		require.NoError(t, hub.Publish(t.Context(), large))
		require.NoError(t, core.Publish(t.Context(), large))
	}
	w := &countingWriters{acked: make(map[string]int)}
	for _, device := range []string{"m1", "m2"} {
		w.write(s, t, hub, "v1/nodes/n1/devices/"+device+"/desired/wish", false)
		w.write(s, t, core, "v1/nodes/n1/devices/"+device+"/reported/level", false)
		w.write(s, t, hub, "hub/"+device, true)
		w.write(s, t, core, "core/"+device, true)
	}
	programs := map[string]string{"hub": "cloudhub", "core": "edgecore"}
	for _, name := range []string{"hub", "core"} {
		backup := backupOf(t, s, name)
		requireWhole(t, s, backup, killBackups(t, s, programs[name], name)...)
		before := w.seen()
		runHubTool(t, s, "backup", filepath.Join(s.Dir, name), backup)
		dir := filepath.Join(s.Dir, name+"-restored")
		runHubTool(t, s, "restore", backup, dir)
		runHubTool(t, s, "check", dir)
		require.NoError(t, s.Term(name))
		require.NoError(t, s.Start(t.Context(), name, "--data-dir", dir))
		cloud, local := s.Watch(s.Hub.MQTT, "#", nil), s.Watch(s.Core(), "#", nil)
		restored := map[string]*stand.Watcher{"hub": cloud, "core": local}[name]
		requireAcked(restored, before, name+"/")
		requireAcked(cloud, before, "v1/")
		requireAcked(local, before, "v1/")
		restored.AwaitThat("large/19", func(m client.Message) bool { return string(m.Payload) == string(large.Payload) })
		// And it goes on: what is acknowledged now is shown on both sides.
		now := w.seen()
		for topic := range now {
			s.Eventually(stand.WaitTimeout, func() error { return wantAtLeast(w.seen()[topic], now[topic]+1, topic) })
		}
		now = w.seen()
		requireAcked(cloud, now, "v1/")
		requireAcked(local, now, "v1/")
	}
}

func backupOf(t *testing.T, s *stand.Stand, name string) string {
	t.Helper()
	dir := filepath.Join(s.Dir, "backups-of-"+name)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	return filepath.Join(dir, "it.backup")
}

func runHubTool(t *testing.T, s *stand.Stand, args ...string) {
	t.Helper()
	out, err := exec.Command(filepath.Join(s.Bin, "edgebus"), args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// killBackups makes backups of a running program and kills who makes them, and then the program
// itself, which starts again. It returns the names under which there may be a backup.
func killBackups(t *testing.T, s *stand.Stand, program, name string) (paths []string) {
	t.Helper()
	begin := func() *exec.Cmd {
		paths = append(paths, backupOf(t, s, name)+strconv.Itoa(len(paths)))
		cmd := exec.Command(filepath.Join(s.Bin, program), "backup", "--data-dir", filepath.Join(s.Dir, name), paths[len(paths)-1])
		require.NoError(t, cmd.Start())
		return cmd
	}
	for _, after := range []time.Duration{0, 20, 40, 80} {
		cmd := begin()
		time.Sleep(after * time.Millisecond) // anywhere in it
		_ = cmd.Process.Kill()               // it may have ended
		_ = cmd.Wait()
	}
	cmd := begin()
	s.Eventually(stand.WaitTimeout, func() error { // it is being written
		parts, err := filepath.Glob(paths[len(paths)-1] + "*")
		if err == nil && len(parts) == 0 {
			err = os.ErrNotExist
		}
		return err
	})
	require.NoError(t, s.Crash(name))
	_ = cmd.Wait()
	s.Up(name)
	return paths
}

// requireWhole says that what has a backup's name is one, and that what was not finished has not.
func requireWhole(t *testing.T, s *stand.Stand, path string, paths ...string) {
	t.Helper()
	require.NoFileExists(t, path)
	for _, path := range paths {
		if _, err := os.Stat(path); err == nil {
			runHubTool(t, s, "check", path)
		}
	}
}
