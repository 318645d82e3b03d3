// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
	"github.com/edgebus/edgebus/topics/resource"
)

// otherHub is the hub for whose sake n1 is left alone.
func otherHub(s *stand.Stand) (id string) {
	s.Eventually(stand.WaitTimeout, func() error {
		text, err := harness.Call(context.Background(), http.MethodGet, "http://"+s.Hub.HTTP+"/links/n1", nil)
		var r resource.LinkReport
		if err = errors.Join(err, json.Unmarshal(text, &r)); err != nil || len(r.Links) == 0 || r.Links[0].OtherHub == "" {
			return fmt.Errorf("n1 is not left alone: %s %w", text, err)
		}
		id = r.Links[0].OtherHub
		return nil
	})
	return id
}

// A program whose damaged data was moved away begins anew, and both sides agree on what
// that means: what the other side owns comes back by itself, what it owned itself is gone.
func TestBeginAnew(t *testing.T) {
	t.Parallel()
	s := stand.New(t, 1)
	s.Up("hub", "core")
	things := stand.ModelManifest("meter", "{name: level}", "{name: wish, accessMode: ReadWrite}") + stand.DeviceManifests("meter", "by-hand", "meter")
	s.Create(things)
	s.Eventually(stand.WaitTimeout, func() error { return wantGauge(s, s.Node("n1").HTTP, "edgebus_core_devices", 1) })
	const level, wish = "v1/nodes/n1/devices/meter/reported/level", "v1/nodes/n1/devices/meter/desired/wish"
	cloud, local := s.Watch(s.Hub.MQTT, "v1/nodes/n1/#", nil), s.Watch(s.Core(), "v1/nodes/n1/#", nil)
	hub, core := s.Client(s.Hub.MQTT, nil), s.Client(s.Core(), nil)
	shows := func(topic, value string) {
		t.Helper()
		s.InStep()
		cloud.Await(topic, value)
		local.Await(topic, value)
	}
	for _, value := range []string{"1", "2", "3"} {
		require.NoError(t, s.Publish(hub, wish, value))
		require.NoError(t, s.Publish(core, level, value))
	}
	shows(level, "3")
	moveAway := func(program, name string) {
		t.Helper()
		require.NoError(t, s.Term(program))
		path := filepath.Join(s.Dir, program, name)
		require.NoError(t, os.Rename(path, path+".damaged"))
		s.Up(program)
	}

	moveAway("core", "tree")
	shows(wish, "3")
	shows(level, "") // it was the node's
	s.Eventually(stand.WaitTimeout, func() error { return s.Publish(core, level, "4") })
	shows(level, "4")

	moveAway("hub", "log")
	s.Eventually(stand.WaitTimeout, func() error { return wantGauge(s, s.Hub.HTTP, "edgebus_hub_nodes_of_another_hub", 1) })
	s.Create(things)
	require.NoError(t, s.Publish(core, level, "5"))
	cloud.Await(level, "5")
	local.Await(wish, "3") // it is another hub's, until this one is said to replace it
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "hub.yaml"), []byte("replaces: ["+otherHub(s)+"]\n"), 0o600))
	require.NoError(t, s.Term("hub"))
	s.Up("hub")
	shows(level, "") // with its Device, which was the other's
	s.Eventually(stand.WaitTimeout, func() error { return s.Publish(hub, wish, "5") })
	s.Eventually(stand.WaitTimeout, func() error { return s.Publish(core, level, "6") })
	shows(wish, "5")
	shows(level, "6")
}
