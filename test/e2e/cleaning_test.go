// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
	"github.com/edgebus/edgebus/topics/resource"
)

// TestWhatMappersLeftIsCleanedUp: who clears all retained messages, as mosquitto_sub --remove-retained does, breaks no device. On the
// node the mapper says again at once what it said; on the hub Events say who cleared what was desired.
func TestWhatMappersLeftIsCleanedUp(t *testing.T) {
	t.Parallel()
	s := stand.New(t, 1)
	s.Up("hub", "core", "virtual")
	s.Create(stand.ModelManifest("lamp", `{name: power, accessMode: ReadWrite, enum: ["ON", "OFF"]}`, "{name: level, type: int, accessMode: ReadWrite}") +
		stand.DeviceManifests("lamp", "virtual", "lamp") + stand.DeviceManifests("lamp", "plain", "by-hand"))
	require.Contains(t, runEdgebus(s, "twin", "set", "lamp", "power=ON", "level=5", "--wait"), "applied")

	var mu sync.Mutex
	heard := map[string][]string{}
	w := s.Watch(s.Core(), "v1/nodes/n1/#", func(m client.Message) {
		mu.Lock()
		defer mu.Unlock()
		heard[m.Topic] = append(heard[m.Topic], string(m.Payload))
	})
	plain := s.Client(s.Core(), nil) // a mapper that says everything once
	require.NoError(t, s.Publish(plain, "v1/nodes/n1/mappers/plain/state", "online"))
	require.NoError(t, s.Publish(plain, "v1/nodes/n1/mappers/plain/protocols", `["plain"]`))
	require.NoError(t, s.Publish(plain, "v1/nodes/n1/devices/by-hand/state", "online"))
	said := map[string]string{
		"devices/lamp/reported/power": "ON", "devices/lamp/reported/level": "5", "devices/lamp/state": "online",
		"mappers/virtual/state": "online", "mappers/virtual/protocols": `["virtual","simulated","mock"]`,
	}
	for key, value := range said {
		w.Await("v1/nodes/n1/"+key, value)
	}
	cleaner := s.Client(s.Core(), func(o *client.Options) { o.ClientID = "cleaner" })
	for key := range said {
		require.NoError(t, s.Publish(cleaner, "v1/nodes/n1/"+key, ""))
	}
	for key, value := range said {
		s.Eventually(stand.WaitTimeout, func() error {
			mu.Lock()
			defer mu.Unlock()
			list := heard["v1/nodes/n1/"+key]
			if i := slices.Index(list, ""); i < 0 || list[len(list)-1] != value {
				return fmt.Errorf("%s: %q", key, list)
			}
			return nil
		})
	}
	s.Eventually(stand.WaitTimeout, func() error { return wantCondition(s, "lamp", "InSync", "True") })
	s.Eventually(stand.WaitTimeout, func() error { return wantCondition(s, "lamp", resource.ConditionOnline, "True") })
	require.NoError(t, s.Publish(cleaner, "v1/nodes/n1/devices/lamp/reported/level", "99"))
	w.Await("v1/nodes/n1/devices/lamp/reported/level", "5")

	// A mapper that doesn't listen: the doctor tells it from its device.
	require.NoError(t, s.Publish(cleaner, "v1/nodes/n1/devices/by-hand/state", ""))
	// The hub hears of it, and of what was published again, a little later.
	s.Eventually(stand.WaitTimeout, func() error {
		told := runDoctor(s)
		for _, line := range []string{"mappers that are running: plain, virtual", "by-hand (mapper plain is connected and has not reported the device's state)"} {
			if !strings.Contains(told, line) {
				return fmt.Errorf("%q is not in %s", line, told)
			}
		}
		if strings.Contains(told, "no mapper") {
			return errors.New(told)
		}
		return nil
	})

	// On the hub.
	hub := s.Client(s.Hub.MQTT, func(o *client.Options) { o.ClientID = "cleaner" })
	require.NoError(t, s.Publish(hub, "v1/nodes/n1/devices/lamp/desired/power", ""))
	require.NoError(t, s.Publish(hub, "v1/nodes/n1/devices/lamp/desired/level", ""))
	s.Eventually(stand.WaitTimeout, func() error {
		text, err := harness.Call(context.Background(), http.MethodGet, "http://"+s.Hub.HTTP+"/api/v1/namespaces/default/events", nil)
		if err != nil {
			return err
		}
		for _, message := range []string{"power: ON is no longer desired: cleared by cleaner", "level: 5 is no longer desired: cleared by cleaner"} {
			if !strings.Contains(string(text), message) {
				return fmt.Errorf("no Event says %q: %s", message, text)
			}
		}
		return nil
	})
}
