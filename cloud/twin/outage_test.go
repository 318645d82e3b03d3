package twin

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/link"
)

// storeFaults are what a test lets the store do wrong.
type storeFaults struct {
	reports, objects atomic.Bool
	reads, probes    atomic.Int64 // of replicas that were read back, and of changes that change nothing
}

var errFull = errors.New("no space left on device")

type faultyReplicas struct {
	store.Replicas
	*storeFaults
}

func (r faultyReplicas) Commit(ctx context.Context, changes []store.NodeChange) error {
	if len(changes) == 1 && changes[0].Meta == nil && !changes[0].Drop {
		r.probes.Add(1)
	}
	if r.reports.Load() {
		return errFull
	}
	return r.Replicas.Commit(ctx, changes)
}

func (r faultyReplicas) Load(ctx context.Context, node string) (store.Replica, error) {
	r.reads.Add(1)
	return r.Replicas.Load(ctx, node)
}

// storesAgain ends an outage of the store.
func (r *rig) storesAgain() {
	r.fault.reports.Store(false)
	require.Eventually(r.t, func() bool { return !r.twins.outage.Active() }, testTimeout, time.Millisecond)
}

// While the hub's disk is full, a node's map is read back once, whatever the node says meanwhile; then it is requested again.
func TestAnOutageOfTheStoreCostsOneReadBack(t *testing.T) {
	r, c := newJoinedRig(t)
	c.report("devices/lamp/reported/temperature", "4")
	r.inStep()
	r.twins.host.Put("", 0, func(*batch) { r.twins.outage.Every = time.Millisecond })
	before := r.fault.reads.Load()
	r.fault.reports.Store(true)
	require.Eventually(t, func() bool {
		r.disconnect(c)
		r.connect(c) // which says again what was not taken
		c.report("devices/lamp/reported/temperature", fmt.Sprint(r.fault.probes.Load()))
		return r.fault.probes.Load() > 50
	}, testTimeout, time.Millisecond)
	require.EqualValues(t, 1, r.fault.reads.Load()-before)
	require.EqualValues(t, 1, r.twins.Stats().FailedCommits)
	require.Len(t, r.retained("v1/nodes/n1/devices/lamp/reported/+"), 1, "reading goes on")

	r.storesAgain()
	c.report("devices/lamp/reported/temperature", "20")
	r.disconnect(c)
	r.connect(c)
	require.Eventually(t, func() bool {
		said := r.said("v1/nodes/n1/devices/lamp/reported/temperature")
		return said[len(said)-1] == "20"
	}, testTimeout, time.Millisecond)
	r.inStep()
	require.EqualValues(t, 1, r.fault.reads.Load()-before)
}

type faultyWriter struct {
	store.Writer
	*storeFaults
}

func (w faultyWriter) Update(ctx context.Context, o store.Object, expect uint64) (store.Object, error) {
	if w.objects.Load() {
		return o, errFull
	}
	return w.Writer.Update(ctx, o, expect)
}

func TestWhatDerivesFromObjectsIsPublishedWhateverNodesReport(t *testing.T) {
	r, c := newJoinedRig(t)
	r.inStep()
	gate := make(chan struct{})
	r.twins.host.Put("", 0, func(*batch) { <-gate }) // what follows is one batch
	r.fault.reports.Store(true)
	c.report("devices/lamp/reported/temperature", "4")
	r.disconnect(c)
	close(gate)
	state := func() string { s := r.said("v1/nodes/n1/state"); return s[len(s)-1] }
	require.Eventually(t, func() bool { return state() == "offline" }, testTimeout, time.Millisecond)
	require.Empty(t, r.said("v1/nodes/n1/devices/lamp/reported/temperature"), "nobody hears what is not stored")

	r.storesAgain()
	r.connect(c)
	r.inStep()
	require.Equal(t, []string{"4"}, r.said("v1/nodes/n1/devices/lamp/reported/temperature"))
}

// A node forgets what the hub says that it has, so the hub says so of what is stored only.
func TestNothingIsSeenBeforeItIsStored(t *testing.T) {
	r, c := newJoinedRig(t)
	c.report("devices/lamp/reported/temperature", "4")
	r.inStep()
	seen := func() (applied []uint64) {
		for _, text := range r.said("v1/nodes/n1/sync/down") {
			m, err := link.Decode([]byte(text))
			require.NoError(t, err)
			if m.Type == link.TypeSeen {
				applied = append(applied, m.Applied)
			}
		}
		return applied
	}
	before := seen()
	last := before[len(before)-1]
	r.fault.reports.Store(true)
	c.report("devices/lamp/reported/temperature", "5")
	require.Eventually(t, func() bool { return r.twins.Stats().FailedCommits > 0 }, testTimeout, time.Millisecond)
	next := make(chan struct{}) // the step after the one that failed
	r.twins.host.Put("", 0, func(*batch) { close(next) })
	<-next
	for _, applied := range seen()[len(before):] {
		require.Equal(t, last, applied)
	}
	r.storesAgain()
	r.disconnect(c)
	r.connect(c)
	r.inStep()
	after := seen()
	require.Greater(t, after[len(after)-1], last)
}

func (r *rig) setDeaf(deaf bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deaf = deaf
}
