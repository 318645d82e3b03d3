package twin

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

// While the disk is full the state is read back once, however much is tried, and however often the store is probed: reading it back
// would hold up all readers.
func TestAnOutageOfTheStoreCostsOneReadBack(t *testing.T) {
	r := newJoinedRig(t)
	r.want("devices/hall/desired/setpoint", "20", 1)
	r.value("devices/hall/desired/setpoint", "20")
	r.inStep()
	r.twin.host.Put("", 0, func(*batch) { r.twin.outage.Every = time.Millisecond })
	before := r.store.loads.Load()
	r.store.broken.Store(true)
	r.want("devices/hall/desired/setpoint", "21", 2) // the hub goes on
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for i := 0; r.store.probes.Load() < 50; i++ {
				if err := r.send("devices/hall/reported/temperature", fmt.Sprint(i)); resource.KindOf(err) != resource.Unavailable {
					t.Errorf("a write on a full disk: %v", err)
					return
				}
			}
		})
	}
	writers.Wait()
	require.EqualValues(t, 1, r.store.loads.Load()-before)
	require.EqualValues(t, 1, r.twin.Stats().FailedCommits)
	require.False(t, r.twin.Stats().Storing)
	require.NoError(t, r.ask("hall"), "reading goes on")
	require.Equal(t, "20", string(r.retained()["devices/hall/desired/setpoint"].Payload))

	r.store.broken.Store(false)
	require.Eventually(t, func() bool { return r.twin.Stats().Storing }, testTimeout, time.Millisecond, "without anybody who writes")
	r.hub.Lock()
	r.down.Resend() // as a hub's timer has it
	r.hub.Unlock()
	require.NoError(t, r.send("devices/hall/reported/temperature", "22"))
	r.value("devices/hall/desired/setpoint", "21")
	r.inStep()
	require.Equal(t, "22", r.atHub("devices/hall/reported/temperature"))
	require.EqualValues(t, 1, r.store.loads.Load()-before)
}

// ask gets a device's twin over its topic.
func (r *rig) ask(device string) error {
	done := make(chan error, 1)
	r.twin.Publish(broker.Message{
		Topic: "v1/nodes/n1/devices/" + device + "/get", QoS: 1, Publisher: &broker.Identity{ClientID: "tester"},
		Props: broker.Properties{ResponseTopic: "answers"},
	}, func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-time.After(testTimeout):
		return fmt.Errorf("no answer in %v", testTimeout)
	}
}

// A probe of a disk that hangs holds up nobody who reads.
func TestReadersDoNotWaitForAProbeOfTheStore(t *testing.T) {
	r := newJoinedRig(t)
	r.twin.host.Put("", 0, func(*batch) { r.twin.outage.Every = time.Millisecond })
	held, gate := make(chan struct{}), make(chan struct{})
	hang := sync.OnceFunc(func() { close(held); <-gate })
	r.store.probed.Store(&hang)
	r.store.broken.Store(true)
	require.ErrorIs(t, r.send("devices/hall/reported/temperature", "20"), resource.Unavailable)
	<-held
	require.NotEmpty(t, r.retained())
	require.Equal(t, 1, r.twin.Stats().Devices)
	close(gate)
	r.store.broken.Store(false)
	require.Eventually(t, func() bool { return r.send("devices/hall/reported/temperature", "20") == nil }, testTimeout, time.Millisecond)
}

// An override that ends in an outage ends once the store is well again, also if nothing else happens.
func TestAnOverrideThatEndsInAnOutageEndsAfterIt(t *testing.T) {
	r := newJoinedRig(t)
	r.want("devices/hall/desired/setpoint", "20", 1)
	r.value("devices/hall/desired/setpoint", "20")
	until := time.UnixMilli(r.clock.Load()).Add(time.Minute)
	require.NoError(t, r.send("devices/hall/desired/setpoint", "25", broker.UserProperty{Key: "until", Value: resource.FormatTime(until)}))
	r.value("devices/hall/desired/setpoint", "25")
	r.twin.host.Put("", 0, func(*batch) { r.twin.outage.Every = time.Millisecond })
	r.store.broken.Store(true)
	require.Error(t, r.send("devices/hall/reported/temperature", "1"))
	r.clock.Add(2 * time.Minute.Milliseconds())
	probes := r.store.probes.Load()
	require.Eventually(t, func() bool { return r.store.probes.Load() > probes+3 }, testTimeout, time.Millisecond)
	require.Equal(t, "25", string(r.retained()["devices/hall/desired/setpoint"].Payload))
	r.store.broken.Store(false)
	r.value("devices/hall/desired/setpoint", "20")
}

// A device that the hub sent while nothing could be stored is not known yet: telemetry of it is refused for the disk, and not as one of a device of
// another node.
func TestTelemetryInAnOutageIsRefusedForTheDisk(t *testing.T) {
	r := newJoinedRig(t)
	passed := make(chan func(error), 9)
	r.kept.Store(&passed)
	r.twin.host.Put("", 0, func(*batch) { r.twin.outage.Every = time.Millisecond })
	r.store.broken.Store(true)
	require.ErrorIs(t, r.send("devices/hall/reported/temperature", "1"), resource.Unavailable)
	r.add("attic", "u2", thermostat)
	require.ErrorIs(t, r.send("devices/attic/telemetry/pulse", "1"), resource.Unavailable)
	r.store.broken.Store(false)
	require.Eventually(t, func() bool { return r.twin.Stats().Storing }, testTimeout, time.Millisecond)
	require.ErrorIs(t, r.send("devices/cellar/telemetry/pulse", "1"), resource.NotFound, "it is nobody's")
}
