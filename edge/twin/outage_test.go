// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/edge/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// While the state is read back on a full disk, the node's devices are its devices: telemetry is refused for the disk, and not because
// there is no such device.
func TestDevicesStayWhileTheStateIsReadBack(t *testing.T) {
	r := newJoinedRig(t)
	var over, missing atomic.Bool
	var looking sync.WaitGroup
	looking.Go(func() {
		for !over.Load() {
			if r.twin.Has("n1", "hall") != nil {
				missing.Store(true)
			}
		}
	})
	r.store.broken.Store(true)
	r.store.takesProbes.Store(true) // each commit is tried, fails, and is read back
	for range 200 {
		r.twin.host.Put("", 0, func(*batch) { r.twin.outage.Every = time.Nanosecond; r.twin.outage.Stored() })
		require.ErrorIs(t, r.send("devices/hall/reported/temperature", "20.5"), resource.Unavailable)
	}
	r.store.broken.Store(false)
	over.Store(true)
	looking.Wait()
	require.False(t, missing.Load())
}

// While the disk is full the state is read back once, however much is tried, and however often the store is probed: reading it back
// would hold up all readers.
func TestAnOutageOfTheStoreCostsOneReadBack(t *testing.T) {
	r := newJoinedRig(t)
	r.wantShown("devices/hall/desired/setpoint", "20", 1)
	r.inStep()
	r.probeOften()
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
	asked := r.publishAs(&broker.Identity{ClientID: "tester"}, "devices/hall/get", "", broker.Properties{ResponseTopic: "answers"})
	require.NoError(t, r.await(asked), "reading goes on")
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

// A probe of a disk that hangs holds up nobody who reads.
func TestReadersDoNotWaitForAProbeOfTheStore(t *testing.T) {
	r := newJoinedRig(t)
	r.probeOften()
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
	r.wantShown("devices/hall/desired/setpoint", "20", 1)
	require.NoError(t, r.send("devices/hall/desired/setpoint", "25", r.until(60_000)))
	r.value("devices/hall/desired/setpoint", "25")
	r.probeOften()
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
	r.probeOften()
	r.store.broken.Store(true)
	require.ErrorIs(t, r.send("devices/hall/reported/temperature", "1"), resource.Unavailable)
	r.add("attic", "u2", thermostat)
	require.ErrorIs(t, r.send("devices/attic/telemetry/pulse", "1"), resource.Unavailable)

	// While the store is probed it isn't known, either.
	begun, end := make(chan struct{}), make(chan struct{})
	probe := sync.OnceFunc(func() { close(begun); <-end })
	r.store.probed.Store(&probe)
	<-begun
	err := r.send("devices/attic/telemetry/pulse", "1")
	close(end)
	require.ErrorIs(t, err, resource.Unavailable)
	r.store.broken.Store(false)
	require.Eventually(t, func() bool { return r.twin.Stats().Storing }, testTimeout, time.Millisecond)
	require.ErrorIs(t, r.send("devices/cellar/telemetry/pulse", "1"), resource.NotFound, "it is nobody's")
}

// unreadableStore is a store that neither stores nor can be read.
type unreadableStore struct{ *flaky }

func (unreadableStore) Load() (store.Snapshot, error) {
	return store.Snapshot{}, errors.New("input/output error")
}

func TestRunFailsWhenTheStateCannotBeReadBack(t *testing.T) {
	s, err := store.Open(store.Options{Dir: t.TempDir(), Rand: rand.Uint64})
	require.NoError(t, err)
	defer s.Close()
	f := &flaky{Store: s}
	tw, err := New(Options{Node: "n1", Store: f, Options: tree.Options{Publish: func(broker.Message) {}}})
	require.NoError(t, err)
	tw.opts.Store = unreadableStore{f}
	f.broken.Store(true)
	require.ErrorContains(t, tw.Run(t.Context()), "input/output error") // its own status is its first write
	refused := make(chan error, 1)
	tw.Publish(broker.Message{Topic: "v1/nodes/n1/mappers/a/state", Payload: []byte("online")}, func(err error) { refused <- err })
	require.Equal(t, resource.Unavailable, resource.KindOf(<-refused))
}

func TestWritesAreRefusedWhileTheStoreFails(t *testing.T) {
	r := newJoinedRig(t)
	require.NoError(t, r.send("devices/hall/reported/temperature", "20"))
	r.inStep()
	r.store.broken.Store(true)
	err := r.send("devices/hall/reported/temperature", "21")
	require.Equal(t, resource.Unavailable, resource.KindOf(err))
	require.ErrorContains(t, err, "no space left")
	require.Equal(t, "20", string(r.retained()["devices/hall/reported/temperature"].Payload), "reads go on")
	require.NotContains(t, r.said("devices/hall/reported/temperature"), "21", "nobody heard of it")
	failed := r.twin.Stats().FailedCommits
	for range 1000 {
		require.ErrorContains(t, r.send("devices/hall/reported/temperature", "21"), "no space left")
	}
	require.Less(t, r.twin.Stats().FailedCommits-failed, uint64(100), "it is not tried for each: the state is read back every time")
	r.store.broken.Store(false)
	require.Eventually(t, func() bool { return r.send("devices/hall/reported/temperature", "22") == nil }, testTimeout, 10*time.Millisecond)
	r.inStep()
	require.Equal(t, "22", r.atHub("devices/hall/reported/temperature"))
}
