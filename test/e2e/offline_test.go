// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/faults"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
)

// meterFleet is many devices of a kind, whose mapper is the test.
type meterFleet struct{ meters, readings int }

func (f meterFleet) keys() int { return f.meters * f.readings }

func meterName(i int) string { return fmt.Sprintf("meter-%05d", i) }

// report is what a meter says of all its properties for the n-th time.
func (f meterFleet) report(n int) []byte {
	var b strings.Builder
	for p := range f.readings {
		fmt.Fprintf(&b, `,"p%d":%d`, p, n*f.readings+p)
	}
	return []byte("{" + b.String()[1:] + "}")
}

// A million changes while the link is down cost ten thousand entries when it is
// back: state is brought in step, not replayed.
func TestAMillionChangesOffline(t *testing.T) {
	const changes = 100 // of each property, while the link is down
	f := meterFleet{meters: 1000, readings: 10}
	s := stand.New(t, 1)
	s.Up("hub")
	tap := s.TapLink()
	require.NoError(t, s.Start(t.Context(), "core", "--log-level", "info", "--link-server", "mqtt://"+tap.Addr(),
		"--link-retry-timeout", "1m")) // however slow the machine is, nothing is asked for twice
	start := time.Now()
	f.create(t, s)
	s.Eventually(2*stand.WaitTimeout, func() error { return wantGauge(s, s.Node("n1").HTTP, "edgebus_core_devices", float64(f.meters)) })
	s.InStep()
	logPhase(t, "create", &start)

	core := f.mapper(s)
	f.reportAll(t, core, 0) // every key is known before
	s.InStep()
	logPhase(t, "first reports", &start)

	s.Node("n1").Net.Cut(faults.Reset) // nothing of the old connection is left to come through later
	s.Eventually(stand.WaitTimeout, func() error { return wantGauge(s, s.Hub.HTTP, "edgebus_hub_nodes_online", 0) })
	s.Eventually(stand.WaitTimeout, func() error { return wantGauge(s, s.Node("n1").HTTP, "edgebus_core_link_up", 0) })
	tap.Reset()
	start = time.Now()
	for n := 1; n <= changes; n++ {
		f.reportAll(t, core, n)
	}
	logPhase(t, fmt.Sprintf("%d changes offline", f.keys()*changes), &start)
	all, err := s.Metrics(s.Node("n1").HTTP)
	require.NoError(t, err)
	require.LessOrEqual(t, all["edgebus_core_link_behind_keys"], float64(f.keys()+1), "one entry a key waits")

	s.Node("n1").Net.Heal()
	s.InStep()
	logPhase(t, "in step", &start)
	entries, key, most, err := tap.Sent()
	require.NoError(t, err)
	t.Logf("%d entries were sent, at most %d of one key", entries, most)
	require.Equal(t, 1, most, key)
	require.LessOrEqual(t, entries, f.keys()+1) // the node's status may be among them
	require.GreaterOrEqual(t, entries, f.keys(), "the tap sees what is sent")

	cloud := s.Watch(s.Hub.MQTT, deviceTree+"+/reported/+", nil)
	s.Eventually(stand.WaitTimeout, func() error { return wantEqual(f.keys(), len(cloud.Tree())) })
	shown := cloud.Tree()
	for i := range f.meters {
		for p := range f.readings {
			topic := fmt.Sprintf("%s%s/reported/p%d", deviceTree, meterName(i), p)
			require.Equal(t, fmt.Sprint(changes*f.readings+p), string(shown[topic].Payload), topic)
		}
	}
	logPhase(t, "compared", &start)
}

func logPhase(t *testing.T, name string, start *time.Time) {
	t.Logf("%s: %.1f s", name, time.Since(*start).Seconds())
	*start = time.Now()
}

func wantGauge(s *stand.Stand, from, name string, value float64) error {
	all, err := s.Metrics(from)
	if err != nil {
		return err
	}
	return wantEqual(value, all[name])
}

// create creates the devices side by side: waiting writes share a commit.
func (f meterFleet) create(t *testing.T, s *stand.Stand) {
	t.Helper()
	var properties []string
	for p := range f.readings {
		properties = append(properties, fmt.Sprintf("{name: p%d, type: int}", p))
	}
	s.Create(stand.ModelManifest("meter", properties...))
	url := s.DeviceURL("")
	ids := make(chan int)
	errs := make(chan error, f.meters)
	var workers sync.WaitGroup
	for range 32 {
		workers.Go(func() {
			for i := range ids {
				body := `{"apiVersion":"edgebus.io/v1alpha1","kind":"Device","metadata":{"name":"` + meterName(i) +
					`"},"spec":{"deviceModelRef":{"name":"meter"},"nodeName":"n1","protocol":{"type":"by-hand"}}}`
				_, err := harness.Call(context.Background(), http.MethodPost, url, []byte(body))
				errs <- err
			}
		})
	}
	for i := range f.meters {
		ids <- i
	}
	close(ids)
	workers.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
}

func (f meterFleet) mapper(s *stand.Stand) *client.Client {
	return s.Client(s.Core(), func(o *client.Options) { o.MaxPending = f.meters })
}

// reportAll lets every meter report once, and waits until all of it is stored.
func (f meterFleet) reportAll(t *testing.T, core *client.Client, n int) {
	t.Helper()
	var stored sync.WaitGroup
	var bad atomic.Pointer[error]
	for i := range f.meters {
		stored.Add(1)
		core.PublishAsync(client.Message{Topic: deviceTree + meterName(i) + "/reported", Payload: f.report(n), QoS: 1}, func(err error) {
			defer stored.Done()
			if err != nil {
				bad.Store(&err)
			}
		})
	}
	stored.Wait()
	if err := bad.Load(); err != nil {
		require.NoError(t, errors.Join(*err))
	}
}
