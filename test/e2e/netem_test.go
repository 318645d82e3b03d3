// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/root"
	"github.com/edgebus/edgebus/test/stand"
)

// insideEnv says that the test runs in a network namespace of its own already.
const insideEnv = "TEST_IN_BAD_NETWORK"

// The kernel's own bad network: packets that are late, lost, doubled and out of order,
// between everything and everybody. Other faults of networks are package faults'.
func TestBadNetwork(t *testing.T) {
	if os.Getenv(insideEnv) != "" {
		badNetwork(t)
		return
	}
	root.Require(t)
	stand.RequirePrograms(t, "unshare", "ip", "tc")
	const bad = "ip link set lo up && tc qdisc add dev lo root netem delay 10ms 5ms 25% loss 2% duplicate 1% reorder 5%"
	if out, err := exec.Command("unshare", "--net", "sh", "-c", bad).CombinedOutput(); err != nil {
		t.Skipf("this kernel has no netem, or gives no namespace: %s", out)
	}
	insideNetwork(t, bad)
}

// The same story in a network that only has no neighbours, where there is no netem.
func TestNetworkNamespace(t *testing.T) {
	if os.Getenv(insideEnv) != "" {
		t.Skip("this is the inside of it")
	}
	root.Require(t)
	stand.RequirePrograms(t, "unshare", "ip")
	insideNetwork(t, "ip link set lo up")
}

// insideNetwork runs the story in a new namespace, once its network is set up.
func insideNetwork(t *testing.T, setUp string) {
	t.Helper()
	cmd := exec.Command("unshare", "--net", "sh", "-c", setUp+` && exec "$0" -test.run '^TestBadNetwork$' -test.count 1`, os.Args[0])
	cmd.Env = append(os.Environ(), insideEnv+"=yes")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// badNetwork is the story: values in both directions and messages at QoS 1 and 2, all of
// which arrive.
func badNetwork(t *testing.T) {
	const count = 200
	s := stand.New(t, 1)
	s.Up("hub", "core")
	s.Create(stand.ModelManifest("meter", "{name: level}", "{name: wish, accessMode: ReadWrite}") + stand.DeviceManifests("meter", "by-hand", "meter"))
	s.Eventually(stand.WaitTimeout, func() error { return wantGauge(s, s.Node("n1").HTTP, "edgebus_core_devices", 1) })
	const level, wish = "v1/nodes/n1/devices/meter/reported/level", "v1/nodes/n1/devices/meter/desired/wish"
	hub, core := s.Client(s.Hub.MQTT, nil), s.Client(s.Core(), nil)
	got := make(chan string, 4*count)
	s.Client(s.Hub.MQTT, func(o *client.Options) {
		o.CleanStart, o.SessionExpiry = false, time.Hour
		o.Subscriptions = []client.Subscription{{Filter: "post", QoS: 2}}
		o.OnMessage = func(m client.Message) { got <- string(m.Payload) }
	})
	for i := range count {
		number := strconv.Itoa(i)
		done := make(chan error, 3)
		hub.PublishAsync(client.Message{Topic: "post", Payload: []byte(number), QoS: 2}, func(err error) { done <- err })
		hub.PublishAsync(client.Message{Topic: wish, Payload: []byte(number), QoS: 1}, func(err error) { done <- err })
		core.PublishAsync(client.Message{Topic: level, Payload: []byte(number), QoS: 1}, func(err error) { done <- err })
		if i%20 > 0 {
			continue // many on their way at once
		}
		for range cap(done) {
			require.NoError(t, <-done)
		}
	}
	for i := range count {
		select {
		case number := <-got:
			require.Equal(t, strconv.Itoa(i), number, "once each, and in order")
		case <-time.After(stand.WaitTimeout):
			require.Fail(t, "a message is missing", "%d", i)
		}
	}
	s.InStep()
	cloud, local := s.Watch(s.Hub.MQTT, "v1/nodes/n1/#", nil), s.Watch(s.Core(), "v1/nodes/n1/#", nil)
	for _, topic := range []string{level, wish} {
		cloud.Await(topic, strconv.Itoa(count-1))
		local.Await(topic, strconv.Itoa(count-1))
	}
}
