// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/stand"
)

// A changed spec of a Node that is written over HTTP: how long until the file is on the node's disk, through the three real
// programs, and the memory of those on the node afterwards. Beside it, in the same run, what of that is the hub's own answer, and
// one file that is written, synced and renamed.
func BenchmarkASpecReachesTheDisk(b *testing.B) {
	s := stand.New(b, 1)
	root := filepath.Join(s.Dir, "root")
	require.NoError(b, os.MkdirAll(filepath.Join(root, "etc"), 0o755))
	me, err := user.Current()
	require.NoError(b, err)
	users := fmt.Sprintf("auth: {users: [{name: agent, role: agent, local: %q}]}\n", me.Username)
	require.NoError(b, os.WriteFile(filepath.Join(s.Dir, "core.yaml"), []byte(users), 0o600))
	socket := filepath.Join(s.Dir, "mqtt.sock")
	s.Up("hub")
	require.NoError(b, s.Start(b.Context(), "core", "--mqtt-socket", socket))
	require.NoError(b, s.Run(b.Context(), "agent", []string{"edgeagent", "--mqtt-socket", socket, "--data-dir", filepath.Join(s.Dir, "agent"), "--root", root}, ""))

	file := filepath.Join(root, "etc/motd")
	patch := func(text string) {
		body := fmt.Sprintf(`{"spec":{"config":[{"name":"a","configType":"FileListProviderSpec","files":[{"path":"/etc/motd","content":%q}]}]}}`, text)
		r, err := http.NewRequestWithContext(b.Context(), http.MethodPatch, "http://"+s.Hub.HTTP+"/apis/edgebus.io/v1alpha1/nodes/n1", strings.NewReader(body))
		require.NoError(b, err)
		r.Header.Set("Content-Type", "application/merge-patch+json")
		res, err := http.DefaultClient.Do(r)
		require.NoError(b, err)
		res.Body.Close()
		require.Equal(b, http.StatusOK, res.StatusCode)
	}
	arrives := func(text string) {
		s.Eventually(stand.WaitTimeout, func() error {
			if got, err := os.ReadFile(file); err != nil || string(got) != text {
				return fmt.Errorf("%q, %w", got, err)
			}
			return nil
		})
	}
	s.Eventually(stand.WaitTimeout, func() error { // the Node is made when its core connects
		res, err := http.Get("http://" + s.Hub.HTTP + "/apis/edgebus.io/v1alpha1/nodes/n1")
		if err != nil {
			return err
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("the Node: %s", res.Status)
		}
		return nil
	})
	patch("first")
	arrives("first")

	var all, answer, raw []time.Duration
	for n := 0; b.Loop(); n++ {
		text := fmt.Sprintf("version %d", n)
		began := time.Now()
		patch(text)
		answer = append(answer, time.Since(began))
		for {
			if got, err := os.ReadFile(file); err == nil && bytes.Equal(got, []byte(text)) {
				break
			}
			time.Sleep(200 * time.Microsecond) // what is measured is somebody else's work
		}
		all = append(all, time.Since(began))
		began = time.Now()
		writeSynced(b, filepath.Join(root, "etc/raw"), text)
		raw = append(raw, time.Since(began))
	}
	report := func(name string, list []time.Duration) {
		slices.Sort(list)
		b.ReportMetric(float64(list[len(list)/2].Microseconds())/1000, name+"-p50-ms")
		b.ReportMetric(float64(list[len(list)*99/100].Microseconds())/1000, name+"-p99-ms")
	}
	report("disk", all)
	report("answer", answer)
	report("raw", raw)
	for _, program := range []string{"core", "agent"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Pid(program)))
		require.NoError(b, err)
		_, rest, _ := strings.Cut(string(text), "VmRSS:")
		kib, err := strconv.Atoi(strings.Fields(rest)[0])
		require.NoError(b, err)
		b.ReportMetric(float64(kib)*1024/1e6, program+"-resident-MB")
	}
}

// writeSynced replaces a file as a careful program does.
func writeSynced(b *testing.B, name, text string) {
	f, err := os.Create(name + ".new")
	require.NoError(b, err)
	_, err = f.WriteString(text)
	require.NoError(b, err)
	require.NoError(b, f.Sync())
	require.NoError(b, f.Close())
	require.NoError(b, os.Rename(name+".new", name))
}
