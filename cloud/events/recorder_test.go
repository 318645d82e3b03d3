// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics/resource"
)

// testRecorder is a Recorder on a real store, with a clock of its own.
type testRecorder struct {
	*Recorder
	t     *testing.T
	store *disk.Store
	full  atomic.Bool // nothing can be written

	mu  sync.Mutex
	now time.Time
}

type failingWriter struct {
	store.Writer
	full *atomic.Bool
}

func (w failingWriter) Create(ctx context.Context, o store.Object) (store.Object, error) {
	if w.full.Load() {
		return o, errors.New("no space left on device")
	}
	return w.Writer.Create(ctx, o)
}

func newTestRecorder(t *testing.T, change func(*Options)) *testRecorder {
	r := &testRecorder{t: t, now: time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)}
	s, err := disk.Open(disk.Options{Path: filepath.Join(t.TempDir(), "log")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	r.store = s
	o := Options{Reader: s, Writer: failingWriter{s, &r.full}, Log: zerolog.Nop(), Now: r.clock}
	if change != nil {
		change(&o)
	}
	r.Recorder = New(o)
	return r
}

func (r *testRecorder) clock() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (r *testRecorder) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(d)
}

func (r *testRecorder) flush() { r.write(context.Background(), r.due(false)) }

func (r *testRecorder) list() (all []storedEvent) {
	r.t.Helper()
	page, err := r.store.List(context.Background(), resource.KindEvent, store.ListOptions{})
	require.NoError(r.t, err)
	for _, o := range page.Items {
		var e storedEvent
		require.NoError(r.t, json.Unmarshal(o.Data, &e))
		all = append(all, e)
	}
	return all
}

func leftEvent(message string) resource.Occurrence {
	return resource.Occurrence{Kind: resource.KindNode, Name: "n1", UID: "u1", Type: resource.EventWarning, Reason: "Left", Message: message}
}

func TestWhatHappensAgainIsCounted(t *testing.T) {
	r := newTestRecorder(t, nil)
	r.Record(leftEvent("once"))
	r.Record(leftEvent("twice"))
	r.flush()
	r.pass(time.Minute)
	r.Record(leftEvent("later"))
	other := New(r.o) // as after a restart
	other.Record(leftEvent("last"))
	r.flush()
	other.write(context.Background(), other.due(false))

	all := r.list()
	require.Len(t, all, 1)
	e := all[0]
	require.Equal(t, "default", e.Metadata.Namespace)
	require.Equal(t, 4, e.Spec.Count)
	require.Equal(t, "last", e.Spec.Message)
	require.Equal(t, time.Minute, e.Spec.LastTimestamp.Sub(*e.Spec.FirstTimestamp))
	require.Equal(t, resource.ObjectReference{APIVersion: resource.APIVersion, Kind: "Node", Name: "n1", UID: "u1"}, e.Spec.InvolvedObject)
}

func TestPropertiesAndSuccessorsHaveEventsOfTheirOwn(t *testing.T) {
	r := newTestRecorder(t, nil)
	for _, uid := range []string{"u1", "u2"} {
		for _, about := range []string{"power", "brightness"} {
			r.Record(resource.Occurrence{Kind: "Device", Namespace: "hall", Name: "lamp", UID: uid, Reason: "Refused", About: about})
		}
	}
	r.flush()
	require.Len(t, r.list(), 4)
}

func TestAFlappingNodeCostsFewWritesAndLosesNoCount(t *testing.T) {
	r := newTestRecorder(t, func(o *Options) { o.Burst = 3 })
	for i := range 1000 {
		r.Record(leftEvent(fmt.Sprint(i)))
		r.flush()
	}
	require.Equal(t, uint64(3), r.Stats().Written)
	require.Equal(t, 3, r.list()[0].Spec.Count)
	r.pass(10 * time.Second)
	r.flush()
	require.Equal(t, uint64(4), r.Stats().Written)
	require.Equal(t, 1000, r.list()[0].Spec.Count)
	require.Equal(t, "999", r.list()[0].Spec.Message)
}

func TestRecoversFromAFailingStore(t *testing.T) {
	r := newTestRecorder(t, func(o *Options) { o.Waiting = 2 })
	r.full.Store(true)
	for _, about := range []string{"a", "b", "c"} {
		h := leftEvent("")
		h.About = about
		r.Record(h)
	}
	require.Equal(t, Stats{Dropped: 1, Waiting: 2}, r.Stats())
	for range 100 {
		r.flush()
	}
	require.Equal(t, Stats{Dropped: 1, Waiting: 2}, r.Stats())
	r.full.Store(false)
	r.flush()
	require.Len(t, r.list(), 2)
}

func TestOldEventsGo(t *testing.T) {
	r := newTestRecorder(t, func(o *Options) { o.Most = 3 })
	tell := func(about string) {
		h := leftEvent("")
		h.About = about
		r.Record(h)
		r.flush()
	}
	for i := range 6 {
		tell(fmt.Sprint(i))
	}
	tell("0") // again, so that it is young
	r.trim(context.Background())
	require.Len(t, r.list(), 3)
	counts := 0
	for _, e := range r.list() {
		counts += e.Spec.Count
	}
	require.Equal(t, 4, counts, "the first one happened last")

	r.pass(4 * 24 * time.Hour)
	tell("new")
	r.pass(4 * 24 * time.Hour)
	r.trim(context.Background())
	require.Len(t, r.list(), 1)
}

func TestAnObjectThatIsOnItsWayIsWaitedFor(t *testing.T) {
	r := newTestRecorder(t, nil)
	h := leftEvent("")
	h.UID = ""
	r.Record(h)
	r.flush()
	require.Empty(t, r.list())
	_, err := r.store.Create(context.Background(), store.Object{Key: store.Key{Kind: "Node", Name: "n1"}, Data: []byte(`{"metadata":{"uid":"u7"}}`)})
	require.NoError(t, err)
	r.flush()
	require.Equal(t, "u7", r.list()[0].Spec.InvolvedObject.UID)

	h.Name = "n2" // never comes
	r.Record(h)
	r.flush()
	require.Len(t, r.list(), 1)
	r.pass(uidWait)
	r.flush()
	require.Len(t, r.list(), 2)
}

func TestWhatWaitsIsWrittenAtTheEnd(t *testing.T) {
	r := newTestRecorder(t, func(o *Options) { o.Every = time.Hour })
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	r.Record(leftEvent(string(make([]byte, 5000))))
	cancel()
	require.NoError(t, <-ended)
	require.Len(t, r.list(), 1)
	require.Less(t, len(r.list()[0].Spec.Message), 2*maxMessage)
}

// TestOneNodesEventsPushOutNoOthers has a node that reports more than are kept, or may wait.
func TestOneNodesEventsPushOutNoOthers(t *testing.T) {
	r := newTestRecorder(t, func(o *Options) { o.Most, o.Waiting = 40, 60 })
	others := func() (nodes, fleets int) {
		for _, e := range r.list() {
			switch {
			case e.Spec.InvolvedObject.Kind == resource.KindFleet:
				fleets++
			case e.Spec.Source.Host != "n1":
				nodes++
			}
		}
		return nodes, fleets
	}
	device := func(node string, i int) resource.Occurrence {
		return resource.Occurrence{Kind: resource.KindDevice, Namespace: "default", Name: fmt.Sprint(node, "-", i), UID: "u", Reason: "Refused", Node: node}
	}
	for i := range 8 {
		r.Record(resource.Occurrence{Kind: resource.KindFleet, Name: fmt.Sprint("f", i), UID: "u", Reason: "RolloutHalted"})
		r.Record(device("n2", i))
	}
	r.flush()
	for round := range 4 {
		for i := range 50 {
			r.Record(device("n1", 100*round+i))
		}
		r.flush()
		r.trim(context.Background())
	}
	nodes, fleets := others()
	require.Equal(t, 8, nodes)
	require.Equal(t, 8, fleets)
	require.Len(t, r.list(), 40)

	for i := range 200 {
		r.Record(device("n1", 1000+i)) // more than may wait
	}
	for i := range 8 {
		r.Record(device("n2", 8+i))
	}
	require.Equal(t, 60, r.Stats().Waiting)
	r.flush()
	nodes, _ = others()
	require.Equal(t, 16, nodes)
}

// Whatever the numbers are, as many are left as may be, and the newest of each source.
func TestAsManyEventsAreLeftAsMayBe(t *testing.T) {
	for _, c := range []struct {
		sources, each, most int
	}{{2, 3, 1}, {3, 5, 10}, {4, 1, 2}, {1, 9, 4}, {3, 4, 0}} {
		var list []store.Object
		for i := range c.sources * c.each {
			data := fmt.Sprintf(`{"spec":{"involvedObject":{"kind":"Node","name":"n%d"}}}`, i%c.sources)
			list = append(list, store.Object{Rev: uint64(i), Data: []byte(data)})
		}
		gone := beyondShares(list, c.most)
		require.Len(t, gone, len(list)-c.most, "%+v", c)
		for _, o := range gone {
			require.Less(t, o.Rev, uint64(len(list)-c.most/c.sources), "%+v", c)
		}
	}
}
