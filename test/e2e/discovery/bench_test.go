// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/edge/discovery/handler"
	"github.com/edgebus/edgebus/test/stand"
)

// foundDevices is a handler that finds what it is told.
type foundDevices chan []handler.Device

func (f foundDevices) Discover(ctx context.Context, _ string, _ map[string][]byte, say func([]handler.Device)) error {
	say(nil)
	for {
		select {
		case <-ctx.Done():
			return nil
		case devices := <-f:
			say(devices)
		}
	}
}

// How long it takes from the handler's word until the hub's API shows an Instance, through all real programs: for devices that come one
// by one to others, and for a thousand at once.
func BenchmarkAnInstanceReachesTheHub(b *testing.B) {
	s := stand.New(b, 1)
	me, err := user.Current()
	require.NoError(b, err)
	users := fmt.Sprintf("auth: {users: [{name: finder, role: discoverer, local: %q}]}\n", me.Username)
	require.NoError(b, os.WriteFile(filepath.Join(s.Dir, "core.yaml"), []byte(users), 0o600))
	socket, dir := filepath.Join(s.Dir, "mqtt.sock"), filepath.Join(s.Dir, "h")
	s.Up("hub")
	require.NoError(b, s.Start(b.Context(), "core", "--mqtt-socket", socket))
	require.NoError(b, s.Run(b.Context(), "discovery", []string{"edgediscovery", "--mqtt-socket", socket, "--data-dir", filepath.Join(s.Dir, "data"), "--handlers-dir", dir}, ""))
	s.Eventually(stand.WaitTimeout, func() error { _, err := os.Stat(filepath.Join(dir, "agent-registration.sock")); return err })
	ctx, cancel := context.WithCancel(b.Context())
	f, served := make(foundDevices), make(chan error, 1)
	go func() {
		served <- handler.Serve(ctx, handler.Program{Name: "bench", New: func(handler.Env) handler.Handler { return f }}, handler.Options{Dir: dir, Env: handler.Env{Log: zerolog.Nop()}})
	}()
	b.Cleanup(func() { cancel(); require.NoError(b, <-served) })
	s.Eventually(stand.WaitTimeout, func() error {
		return s.Apply(b.Context(), []byte("apiVersion: edgebus.io/v1alpha1\nkind: Configuration\nmetadata: {name: bench}\nspec: {discoveryHandler: {name: bench}}\n"))
	})

	r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://"+s.Hub.HTTP+"/apis/edgebus.io/v1alpha1/instances?watch=true", nil)
	require.NoError(b, err)
	res, err := http.DefaultClient.Do(r)
	require.NoError(b, err)
	b.Cleanup(func() { _ = res.Body.Close() })
	lines, seen := bufio.NewReader(res.Body), map[string]bool{}
	await := func(n int) {
		for len(seen) < n {
			line, err := lines.ReadBytes('\n')
			require.NoError(b, err)
			var event struct {
				Type   string
				Object struct{ Metadata struct{ Name string } }
			}
			require.NoError(b, json.Unmarshal(line, &event))
			seen[event.Object.Metadata.Name] = true
		}
	}
	var devices []handler.Device
	find := func(n int) time.Duration {
		for range n {
			devices = append(devices, handler.Device{ID: fmt.Sprint("d", len(devices)), Properties: map[string]string{"ADDRESS": fmt.Sprint("10.0.0.", len(devices))}})
		}
		began := time.Now()
		f <- slices.Clone(devices)
		await(len(devices))
		return time.Since(began)
	}
	find(1)
	var one []time.Duration
	for b.Loop() {
		one = append(one, find(1))
	}
	slices.Sort(one)
	b.ReportMetric(float64(one[len(one)/2].Microseconds())/1000, "one-p50-ms")
	b.ReportMetric(float64(one[len(one)*99/100].Microseconds())/1000, "one-p99-ms")
	b.ReportMetric(find(1000).Seconds(), "thousand-s")
}
