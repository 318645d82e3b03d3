// SPDX-License-Identifier: Apache-2.0

package e2e

// The cases in which busses of this kind are known to fail, each against the real
// programs. Those that take more than a page are in files of their own.

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/stand"
)

// deviceTree is where n1's devices are.
const deviceTree = "v1/nodes/n1/devices/"

// hallManifest is a device whose mapper is the test.
var hallManifest = stand.ModelManifest("hall",
	"{name: count, type: int}",
	"{name: temperature, type: float, minimum: -40, maximum: 90}",
	"{name: setpoint, type: float, accessMode: ReadWrite, minimum: 5, maximum: 35}",
	"{name: valve, type: float, accessMode: ReadWrite, conflict: edge}",
	"{name: fan, type: float, accessMode: ReadWrite, conflict: latest}",
	"{name: plan, type: object, accessMode: ReadWrite}",
) + stand.DeviceManifests("hall", "by-hand", "hall")

// newHallStand is a stand with a hub and a core that knows the hall.
func newHallStand(t *testing.T, coreArgs ...string) *stand.Stand {
	t.Helper()
	s := stand.New(t, 1)
	s.Up("hub")
	s.Create(hallManifest)
	require.NoError(t, s.Start(t.Context(), "core", coreArgs...))
	s.Watch(s.Core(), deviceTree+"hall", nil).AwaitThat(deviceTree+"hall", func(m client.Message) bool { return len(m.Payload) > 0 })
	s.InStep()
	return s
}

// receivedValues gathers a topic's values in the order of arrival.
type receivedValues struct {
	mu   sync.Mutex
	list []string
}

func (h *receivedValues) take(m client.Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = append(h.list, string(m.Payload))
}

func (h *receivedValues) values() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.list)
}

func (h *receivedValues) last() string {
	if list := h.values(); len(list) > 0 {
		return list[len(list)-1]
	}
	return ""
}

// publishAll publishes without waiting between the messages, and returns the
// verdicts that were no success.
func publishAll(c *client.Client, topic string, n int, value func(i int) string) []error {
	var mu sync.Mutex
	var bad []error
	var wait sync.WaitGroup
	for i := range n {
		wait.Add(1)
		c.PublishAsync(client.Message{Topic: topic, Payload: []byte(value(i)), QoS: 1}, func(err error) {
			defer wait.Done()
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				bad = append(bad, err)
			}
		})
	}
	wait.Wait()
	return bad
}

func numberTexts(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = strconv.Itoa(i)
	}
	return list
}

func TestOrderOfOnePublishersReports(t *testing.T) {
	t.Parallel()
	const n, topic = 1000, deviceTree + "hall/reported/count"
	s := newHallStand(t)
	var local, cloud receivedValues
	s.Watch(s.Core(), topic, local.take)
	s.Watch(s.Hub.MQTT, topic, cloud.take)
	c := s.Client(s.Core(), nil)
	require.NoError(t, s.Publish(c, topic, "0"))
	require.Empty(t, publishAll(c, topic, n-1, func(i int) string { return strconv.Itoa(i + 1) }))

	s.Eventually(stand.WaitTimeout, func() error { return wantEqual(n, len(local.values())) })
	require.Equal(t, numberTexts(n), local.values(), "on the node each one, in order")
	s.Eventually(stand.WaitTimeout, func() error { return wantEqual(strconv.Itoa(n-1), cloud.last()) })
	s.InStep()
	requireRising(t, cloud.values())
	require.Equal(t, strconv.Itoa(n-1), cloud.last())
	t.Logf("the hub heard of %d of %d", len(cloud.values()), n)
}

func TestOrderOfOnePublishersWishes(t *testing.T) {
	t.Parallel()
	const n, topic = 1000, deviceTree + "hall/desired/valve"
	s := newHallStand(t)
	var local, cloud receivedValues
	s.Watch(s.Core(), topic, local.take)
	s.Watch(s.Hub.MQTT, topic, cloud.take)
	c := s.Client(s.Hub.MQTT, nil)
	require.NoError(t, s.Publish(c, topic, "0"))
	require.Empty(t, publishAll(c, topic, n-1, func(i int) string { return strconv.Itoa(i + 1) }))
	for _, h := range []*receivedValues{&local, &cloud} {
		s.Eventually(stand.WaitTimeout, func() error { return wantEqual(strconv.Itoa(n-1), h.last()) })
	}
	s.InStep()
	requireRising(t, cloud.values())
	requireRising(t, local.values())
	require.Equal(t, strconv.Itoa(n-1), local.last())
}

func wantEqual[T comparable](want, got T) error {
	if want != got {
		return fmt.Errorf("%v, not yet %v", got, want)
	}
	return nil
}

func requireRising(t *testing.T, values []string) {
	t.Helper()
	last := -1
	for i, v := range values {
		n, err := strconv.Atoi(v)
		require.NoError(t, err)
		require.Greater(t, n, last, "value %d of %v", i, values)
		last = n
	}
}

// Wishes and reports arrive while their device comes and goes: each is stored or
// refused, never anything else, and what is stored holds.
func TestUpdatesWhileTheDeviceIsBeingCreated(t *testing.T) {
	t.Parallel()
	s := newHallStand(t)
	hub, core := s.Client(s.Hub.MQTT, nil), s.Client(s.Core(), nil)
	stop := make(chan struct{})
	var writers sync.WaitGroup
	write := func(c *client.Client, topic string) {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := s.Publish(c, topic, strconv.Itoa(5+i%30)); err != nil {
				require.ErrorContains(t, err, "refused", topic)
			}
		}
	}
	for range 3 {
		writers.Go(func() { write(hub, deviceTree+"attic/desired/setpoint") })
		writers.Go(func() { write(core, deviceTree+"attic/reported/count") })
		writers.Go(func() { write(core, deviceTree+"attic/desired/fan") })
	}
	attic := stand.DeviceManifests("hall", "by-hand", "attic")
	url := s.DeviceURL("attic")
	local := s.Watch(s.Core(), deviceTree+"attic/#", nil)
	for i := range 10 {
		s.Create(attic)
		local.AwaitThat(deviceTree+"attic/reported/count", func(m client.Message) bool { return len(m.Payload) > 0 })
		local.AwaitThat(deviceTree+"attic/desired/setpoint", func(m client.Message) bool { return len(m.Payload) > 0 })
		if i < 9 {
			_, err := callAPI(t, "DELETE", url)
			require.NoError(t, err)
			s.Eventually(stand.WaitTimeout, func() error { return wantEqual(0, len(local.Tree())) })
		}
	}
	close(stop)
	writers.Wait()
	require.NoError(t, s.Publish(hub, deviceTree+"attic/desired/setpoint", "19.5"))
	require.NoError(t, s.Publish(core, deviceTree+"attic/reported/count", "77"))
	cloud := s.Watch(s.Hub.MQTT, deviceTree+"attic/#", nil)
	local.Await(deviceTree+"attic/desired/setpoint", "19.5")
	cloud.Await(deviceTree+"attic/reported/count", "77")
	s.InStep()
}

func TestLargeValuesBothWays(t *testing.T) {
	t.Parallel()
	s := newHallStand(t)
	value := func(seed string) string {
		return `{"text":"` + strings.Repeat(seed+` "quoted" \ äöü€😀 <&>`+"\n", 1) + strings.Repeat("0123456789", 10_000) + `"}`
	}
	escape := strings.NewReplacer("\n", `\n`, `\ `, `\\ `, ` "quoted"`, ` \"quoted\"`)
	down, up := escape.Replace(value("down")), escape.Replace(value("up"))
	require.Greater(t, len(down), 100_000)
	require.NoError(t, s.Publish(s.Client(s.Hub.MQTT, nil), deviceTree+"hall/desired/plan", down))
	require.NoError(t, s.Publish(s.Client(s.Core(), nil), deviceTree+"hall/reported/plan", up))
	s.Watch(s.Core(), deviceTree+"hall/#", nil).Await(deviceTree+"hall/desired/plan", down)
	s.Watch(s.Hub.MQTT, deviceTree+"hall/#", nil).Await(deviceTree+"hall/reported/plan", up)

	// The limit is named, and what breaks it harms nobody.
	huge := `"` + strings.Repeat("x", 128<<10) + `"`
	for _, c := range []struct{ broker, topic string }{{s.Hub.MQTT, "hall/desired/plan"}, {s.Core(), "hall/reported/plan"}} {
		err := s.Publish(s.Client(c.broker, nil), deviceTree+c.topic, `{"text":`+huge+`}`)
		require.ErrorContains(t, err, "131072", c.topic)
	}
	s.InStep()
}

func TestUnchangedValuesAreNoWork(t *testing.T) {
	t.Parallel()
	s := newHallStand(t)
	hub, core := s.Client(s.Hub.MQTT, nil), s.Client(s.Core(), nil)
	same := func(int) string { return "20.5" }
	publish := func(n int) {
		require.Empty(t, publishAll(core, deviceTree+"hall/reported/temperature", n, same))
		require.Empty(t, publishAll(hub, deviceTree+"hall/desired/setpoint", n, same))
	}
	publish(1)
	s.InStep()
	figures := func() (list []float64) {
		for _, from := range []struct{ http, name string }{
			{s.Node("n1").HTTP, "edgebus_core_commits_total"}, {s.Hub.HTTP, "edgebus_hub_commits_total"},
		} {
			all, err := s.Metrics(from.http)
			require.NoError(t, err)
			require.Contains(t, all, from.name)
			list = append(list, all[from.name])
		}
		return list
	}
	var local, cloud receivedValues
	s.Watch(s.Core(), deviceTree+"hall/+/+", local.take)
	s.Watch(s.Hub.MQTT, deviceTree+"hall/+/+", cloud.take)
	before := figures()
	publish(500)
	require.Equal(t, before, figures())
	require.NoError(t, s.Publish(core, deviceTree+"hall/reported/temperature", "21"))
	for _, h := range []*receivedValues{&local, &cloud} {
		s.Eventually(stand.WaitTimeout, func() error { return wantEqual(3, len(h.values())) })
		require.Equal(t, []string{"20.5", "20.5", "21"}, h.values(), "what was kept, and the one change")
	}
}

// The keep-alive is 4 s here, so the node must be seen to be gone within 6 s of the last
// that was heard of it, which is when it is stopped. A second is allowed for a busy machine:
// noticing after two keep-alives, as MQTT's usual rounding up does, would still fail.
func TestNodeOfflineWithinOneAndAHalfKeepAlives(t *testing.T) {
	t.Parallel()
	const keepalive = 4 * time.Second
	s := newHallStand(t, "--link-keepalive", keepalive.String())
	state := s.Watch(s.Hub.MQTT, "v1/nodes/n1/state", nil)
	state.Await("v1/nodes/n1/state", "online")
	core := s.Client(s.Core(), nil)
	const most = keepalive*3/2 + time.Second
	var took []time.Duration
	for len(took) == 0 || len(took) < 3 && slices.Min(took) > most { // a busy machine is late, but not each time
		require.NoError(t, s.Publish(core, deviceTree+"hall/reported/count", strconv.Itoa(len(took))))
		s.InStep()
		start := time.Now()
		require.NoError(t, s.Signal("core", syscall.SIGSTOP))
		state.Await("v1/nodes/n1/state", "offline")
		took = append(took, time.Since(start))
		require.NoError(t, s.Signal("core", syscall.SIGCONT))
		state.Await("v1/nodes/n1/state", "online")
		s.InStep()
	}
	t.Logf("seen after %s", took)
	require.LessOrEqual(t, slices.Min(took), most)
}

func TestOverrideEndsAtItsTime(t *testing.T) {
	t.Parallel()
	s := newHallStand(t)
	hub, core := s.Client(s.Hub.MQTT, nil), s.Client(s.Core(), nil)
	local, cloud := s.Watch(s.Core(), deviceTree+"hall/#", nil), s.Watch(s.Hub.MQTT, deviceTree+"hall/#", nil)
	require.NoError(t, s.Publish(hub, deviceTree+"hall/desired/setpoint", "20"))
	before := local.Await(deviceTree+"hall/desired/setpoint", "20")

	until := time.Now().Add(2 * time.Second)
	require.NoError(t, s.Publish(core, deviceTree+"hall/desired/setpoint", "25",
		client.UserProperty{Key: "until", Value: until.UTC().Format(time.RFC3339Nano)}))
	during := local.Await(deviceTree+"hall/desired/setpoint", "25")
	cloud.Await(deviceTree+"hall/override/setpoint", "25")
	require.Greater(t, stand.VersionOf(during), stand.VersionOf(before))

	after := local.Await(deviceTree+"hall/desired/setpoint", "20")
	require.False(t, time.Now().Before(until), "not before its time")
	require.Greater(t, stand.VersionOf(after), stand.VersionOf(during))
	local.Await(deviceTree+"hall/override/setpoint", "")
	cloud.Await(deviceTree+"hall/override/setpoint", "")
	s.InStep()
}
