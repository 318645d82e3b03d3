// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/stand"
)

// versionRecorder sees to it that no topic's version ever goes back, and that none has two values;
// on the hub only for what the hub owns: until a node is back, a restored hub shows what it
// knew of it.
type versionRecorder struct {
	owned  string // what topics have in them that count
	mu     sync.Mutex
	last   map[string]client.Message
	faults []string
}

func (v *versionRecorder) hear(m client.Message) {
	v.mu.Lock()
	defer v.mu.Unlock()
	last, known := v.last[m.Topic]
	is, was := stand.VersionOf(m), stand.VersionOf(last)
	if is == 0 || !strings.Contains(m.Topic, v.owned) {
		return
	}
	if known && (is < was || is == was && string(m.Payload) != string(last.Payload)) {
		v.faults = append(v.faults, fmt.Sprintf("%s: version %d (%q) after %d (%q)", m.Topic, is, m.Payload, was, last.Payload))
	}
	v.last[m.Topic] = m
}

// A restored node and a restored hub come back in step. What the other side owns is as new as
// it was; what the restored side owns is as old as the backup, under versions that rise.
func TestRestored(t *testing.T) {
	t.Parallel()
	s := stand.New(t, 1)
	s.Up("hub", "core")
	s.Create(stand.ModelManifest("meter", "{name: level}", "{name: wish, accessMode: ReadWrite}") + stand.DeviceManifests("meter", "by-hand", "meter"))
	s.Eventually(stand.WaitTimeout, func() error { return wantGauge(s, s.Node("n1").HTTP, "edgebus_core_devices", 1) })
	const level, wish = "v1/nodes/n1/devices/meter/reported/level", "v1/nodes/n1/devices/meter/desired/wish"
	seen := [2]versionRecorder{{owned: "/desired/", last: map[string]client.Message{}}, {last: map[string]client.Message{}}}
	cloud, local := s.Watch(s.Hub.MQTT, "v1/nodes/n1/#", seen[0].hear), s.Watch(s.Core(), "v1/nodes/n1/#", seen[1].hear)
	hub, core := s.Client(s.Hub.MQTT, nil), s.Client(s.Core(), nil)
	shows := func(topic, value string) {
		t.Helper()
		s.InStep()
		cloud.Await(topic, value)
		local.Await(topic, value)
	}
	set := func(c *client.Client, topic, value string) {
		t.Helper()
		s.Eventually(stand.WaitTimeout, func() error { return s.Publish(c, topic, value) })
		shows(topic, value)
	}
	tool := func(args ...string) {
		t.Helper()
		out, err := exec.Command(filepath.Join(s.Bin, "edgebus"), args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	stopped := func(name string, args ...string) {
		t.Helper()
		require.NoError(t, s.Term(name))
		tool(args...)
		s.Up(name)
	}
	data := func(name string) string { return filepath.Join(s.Dir, name) }
	backup := filepath.Join(s.Dir, "a.backup")

	set(core, level, "1")
	set(hub, wish, "a")
	stopped("core", "backup", data("core"), backup)
	set(core, level, "2")
	set(core, level, "3")
	set(hub, wish, "b")
	set(hub, wish, "c")
	stopped("core", "restore", "--force", backup, data("core"))
	shows(level, "1")
	shows(wish, "c")
	set(core, level, "4")
	set(hub, wish, "d")

	stopped("hub", "backup", "--force", data("hub"), backup)
	set(core, level, "5")
	set(hub, wish, "e")
	set(hub, wish, "f")
	stopped("hub", "restore", "--force", backup, data("hub"))
	shows(level, "5")
	shows(wish, "d")
	set(hub, wish, "g")
	set(core, level, "6")

	stopped("hub", "restore", "--force", backup, data("hub")) // the same backup once more
	shows(level, "6")
	shows(wish, "d")
	for i := range seen {
		seen[i].mu.Lock()
		require.Empty(t, seen[i].faults)
		seen[i].mu.Unlock()
	}
}
