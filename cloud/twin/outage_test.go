// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// storeFaults are what a test lets the store do wrong.
type storeFaults struct {
	reports, objects atomic.Bool
	reads, probes    atomic.Int64 // of replicas that were read back, and of changes that change nothing
	held             sync.RWMutex // locked: no commit is answered
	waiting          atomic.Int64 // commits that wait for that
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
	r.waiting.Add(1)
	r.held.RLock()
	defer r.held.RUnlock()
	r.waiting.Add(-1)
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
	store.DerivedStatuses
	*storeFaults
}

func (w faultyWriter) UpdateDerived(ctx context.Context, o store.Object, expect uint64) (store.Object, error) {
	if w.objects.Load() {
		return o, errFull
	}
	return w.DerivedStatuses.UpdateDerived(ctx, o, expect)
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

// While what a node reports is being stored, and that may never end, readers have what was stored before; with the answer they have what
// is stored then, whether it was stored or not.
func TestReadersNeverWaitForACommitOfReports(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprint("fails: ", fails), func(t *testing.T) {
			r, c := newJoinedRig(t)
			reports := r.twins.Reports(topics.KindReported)
			defer reports.Close()
			for i := range 40 { // many blocks of a node's map
				c.report(fmt.Sprintf("devices/lamp/reported/extra%02d", i), strings.Repeat("x", 100))
			}
			c.report("devices/lamp/reported/temperature", "4")
			r.inStep()
			r.status(func(s resource.DeviceStatus) bool {
				v := s.Twin["temperature"].Reported
				return v != nil && v.Value == "4"
			})
			require.Eventually(t, func() bool { there, _ := r.twins.Registered("n1"); return there }, testTimeout, time.Millisecond)
			const temperature = "v1/nodes/n1/devices/lamp/reported/temperature"
			r.fault.held.Lock()
			release := sync.OnceFunc(r.fault.held.Unlock)
			defer release()
			c.report("devices/lamp/reported/temperature", "20")
			c.report("devices/lamp/reported/extra17", "other")
			c.report("devices/lamp/reported/extra40", "new")
			require.Eventually(t, func() bool { return r.fault.waiting.Load() > 0 }, testTimeout, time.Millisecond)

			read := make(chan struct{})
			go func() {
				defer close(read)
				assert.Len(t, r.retained("v1/nodes/n1/devices/lamp/reported/+"), 41)
				assert.Equal(t, "4", string(r.retained(temperature)[temperature].Payload))
				assert.Equal(t, "4", string(r.twins.Report(topics.Address{Node: "n1", Kind: topics.KindReported, Device: "lamp", Name: "temperature"}).Value))
				links, _ := r.twins.Links("n1", 1)
				assert.Len(t, links, 1)
				there, _ := r.twins.Registered("n1")
				assert.True(t, there)
				assert.Equal(t, 1, r.twins.Stats().Online)
				for len(reports.take()) > 0 { // what was stored before
				}
			}()
			select {
			case <-read:
			case <-time.After(testTimeout):
				t.Fatal("a reader waits for the commit")
			}
			d, _ := r.device("lamp")
			require.Equal(t, "4", d.Status.Twin["temperature"].Reported.Value)
			require.NotContains(t, r.said(temperature), "20", "nothing is published before it is stored")
			require.Equal(t, 3, c.behind(), "and nothing is acknowledged")

			r.fault.reports.Store(fails)
			release()
			if fails {
				require.Eventually(t, func() bool { return r.twins.Stats().FailedCommits > 0 }, testTimeout, time.Millisecond)
				require.Equal(t, "4", string(r.retained(temperature)[temperature].Payload))
				r.storesAgain()
				r.disconnect(c)
				r.connect(c)
			}
			r.inStep()
			require.Equal(t, "20", string(r.retained(temperature)[temperature].Payload))
			require.Len(t, r.retained("v1/nodes/n1/devices/lamp/reported/+"), 42)
			require.Eventually(t, func() bool {
				d, _ := r.device("lamp")
				return d.Status.Twin["temperature"].Reported.Value == "20"
			}, testTimeout, time.Millisecond)
			found := false
			require.Eventually(t, func() bool {
				for _, one := range reports.take() {
					found = found || one.Name == "temperature" && string(one.Value) == "20"
				}
				return found
			}, testTimeout, time.Millisecond, "who watches reports is told after the commit")
		})
	}
}

// behind is how many keys the hub has not confirmed.
func (c *core) behind() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up.Dirty()
}

// Who subscribes while a report is being stored reads what was there before, and gets the report once it is stored.
func TestWhoSubscribesWhileAReportIsStoredGetsIt(t *testing.T) {
	const temperature = "v1/nodes/n1/devices/lamp/reported/temperature"
	r := newRig(t)
	r.stop()
	var subscribed atomic.Bool
	r.wanted = func(topic string) bool { return topic != temperature || subscribed.Load() }
	r.start()
	r.create(resource.KindDeviceModel, "lamp", lampModel(false))
	r.create(resource.KindDevice, "lamp", lampOn("n1"))
	c := r.connect(newCore("n1"))
	c.gets("membership", `{"devices":["lamp"]}`)
	c.report("devices/lamp/reported/temperature", "4")
	r.inStep()
	r.fault.held.Lock()
	release := sync.OnceFunc(r.fault.held.Unlock)
	defer release()
	c.report("devices/lamp/reported/temperature", "20")
	require.Eventually(t, func() bool { return r.fault.waiting.Load() > 0 }, testTimeout, time.Millisecond)
	subscribed.Store(true)
	require.Equal(t, "4", string(r.retained(temperature)[temperature].Payload))
	release()
	r.inStep()
	require.Equal(t, []string{"20"}, r.said(temperature))
}
