// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
)

const waitTimeout = 30 * time.Second

// testRuntime is a store with a runtime.
type testRuntime struct {
	t *testing.T
	*disk.Store
	metrics *prometheus.Registry
}

func newTestRuntime(t *testing.T) *testRuntime {
	t.Helper()
	s, err := disk.Open(disk.Options{Path: filepath.Join(t.TempDir(), "log"), Tombstones: 16})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return &testRuntime{t: t, Store: s, metrics: prometheus.NewRegistry()}
}

// run runs controllers until the test ends, or stop is called.
func (r *testRuntime) run(controllers ...control.Controller) (stop func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	run := control.New(control.Options{
		Reader: r, Watcher: r, Metrics: r.metrics, Log: zerolog.Nop(), FirstRetry: time.Millisecond, LastRetry: 20 * time.Millisecond, Grace: 50 * time.Millisecond,
	})
	ended := make(chan struct{})
	go func() { defer close(ended); _ = run.Run(ctx, controllers...) }()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	r.t.Cleanup(stop)
	return stop
}

func (r *testRuntime) put(kind, name, text string) {
	r.t.Helper()
	key := store.Key{Kind: kind, Name: name}
	_, err := r.Create(r.t.Context(), store.Object{Key: key, Data: []byte(text)})
	if err != nil {
		_, err = r.Update(r.t.Context(), store.Object{Key: key, Data: []byte(text)}, 0)
	}
	require.NoError(r.t, err)
}

func (r *testRuntime) count(result string) float64 {
	n := 0.0
	families, err := r.metrics.Gather()
	require.NoError(r.t, err)
	for _, f := range families {
		if f.GetName() == "edgebus_reconciles_total" {
			for _, m := range f.GetMetric() {
				if m.GetLabel()[1].GetValue() == result {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

// copies is a controller that copies each A to the B of the same name. It is what most tests run.
func (r *testRuntime) copies() control.Controller {
	return control.Controller{
		Name: "copies", Workers: 4,
		Watches: []control.Watch{{Kind: "A"}, {Kind: "B", Keys: func(o store.Object) []store.Key { return []store.Key{{Kind: "A", Name: o.Name}} }}},
		Reconcile: func(ctx context.Context, key store.Key) (time.Duration, error) {
			a, err := r.Get(ctx, key)
			if err != nil {
				return 0, nil // it is gone
			}
			b := store.Object{Key: store.Key{Kind: "B", Name: key.Name}, Data: a.Data}
			old, err := r.Get(ctx, b.Key)
			switch {
			case err != nil:
				_, err = r.Create(ctx, b)
			case string(old.Data) != string(b.Data):
				_, err = r.Update(ctx, b, old.Rev)
			}
			return 0, err
		},
	}
}

func (r *testRuntime) same(n int) func() bool {
	return func() bool {
		for i := range n {
			a, err := r.Get(r.t.Context(), store.Key{Kind: "A", Name: strconv.Itoa(i)})
			require.NoError(r.t, err)
			b, err := r.Get(r.t.Context(), store.Key{Kind: "B", Name: strconv.Itoa(i)})
			if err != nil || string(a.Data) != string(b.Data) {
				return false
			}
		}
		return true
	}
}

// TestEveryObjectIsReconciled has objects that are there before the controller, that change while it runs, and what it wrote
// being changed by somebody else.
func TestEveryObjectIsReconciled(t *testing.T) {
	r := newTestRuntime(t)
	const n = 1200 // more than are listed at a time
	for i := range n {
		r.put("A", strconv.Itoa(i), `"before"`)
	}
	stop := r.run(r.copies())
	for i := range n {
		r.put("A", strconv.Itoa(i), fmt.Sprintf(`"%d"`, i))
	}
	require.Eventually(t, r.same(n), waitTimeout, 20*time.Millisecond)
	r.put("B", "7", `"somebody else's"`)
	require.Eventually(t, r.same(n), waitTimeout, 10*time.Millisecond)
	stop()
	r.put("A", "3", `"while nobody looks"`)
	r.metrics = prometheus.NewRegistry()
	r.run(r.copies())
	require.Eventually(t, r.same(n), waitTimeout, 20*time.Millisecond)
}

func TestAKeyIsReconciledOnceAtATime(t *testing.T) {
	r := newTestRuntime(t)
	var running, calls, together atomic.Int64
	r.run(control.Controller{
		Name: "one", Workers: 8, Watches: []control.Watch{{Kind: "A"}},
		Reconcile: func(context.Context, store.Key) (time.Duration, error) {
			if running.Add(1) > 1 {
				together.Add(1)
			}
			defer running.Add(-1)
			calls.Add(1)
			return 0, nil
		},
	})
	for i := range 500 {
		r.put("A", "x", strconv.Itoa(i))
	}
	require.Eventually(t, func() bool { return calls.Load() > 1 }, waitTimeout, time.Millisecond)
	require.Zero(t, together.Load())
}

// TestFaultsConcernNobodyElse has a controller that panics at one object and one that never returns, beside one that works.
func TestFaultsConcernNobodyElse(t *testing.T) {
	r := newTestRuntime(t)
	var healed atomic.Bool
	seen := make(chan string, 100)
	block := control.Controller{
		Name: "blocks", Watches: []control.Watch{{Kind: "A"}},
		Reconcile: func(ctx context.Context, _ store.Key) (time.Duration, error) { <-ctx.Done(); return 0, ctx.Err() },
	}
	panics := control.Controller{
		Name: "panics", Watches: []control.Watch{{Kind: "A"}},
		Reconcile: func(_ context.Context, key store.Key) (time.Duration, error) {
			if key.Name == "0" && !healed.Load() {
				panic("0 is not for me")
			}
			seen <- key.Name
			return 0, nil
		},
	}
	stop := r.run(block, panics, r.copies())
	r.put("A", "0", `"a"`)
	r.put("A", "1", `"b"`)
	require.Eventually(t, r.same(2), waitTimeout, 10*time.Millisecond)
	require.Equal(t, "1", <-seen)
	require.Eventually(t, func() bool { return r.count("panic") >= 3 }, waitTimeout, 10*time.Millisecond, "it is tried again")
	healed.Store(true)
	require.Equal(t, "0", <-seen)
	stop()
}

// TestKeysThatPanicConcernOneObjectAlone has a function Keys that panics at a version of one object: the next version is told, and
// nobody else is disturbed.
func TestKeysThatPanicConcernOneObjectAlone(t *testing.T) {
	r := newTestRuntime(t)
	seen := make(chan string, 1000)
	for i := range 5 {
		r.put("A", strconv.Itoa(i), `1`)
	}
	index := &control.Index[string]{Kind: "A", Of: func(o store.Object) (string, []store.Key, bool) {
		if o.Name == "3" && string(o.Data) == "1" {
			panic("3 has no value")
		}
		return string(o.Data), nil, true
	}}
	r.run(r.copies(), control.Controller{
		Name: "maps", Indexes: []control.Indexer{index},
		Watches: []control.Watch{{Kind: "A", Keys: func(o store.Object) []store.Key {
			if o.Name == "3" && string(o.Data) == "1" {
				panic("3 has no key")
			}
			return []store.Key{o.Key}
		}}},
		Reconcile: func(_ context.Context, key store.Key) (time.Duration, error) { seen <- key.Name; return 0, nil },
	})
	require.Eventually(t, r.same(5), waitTimeout, 10*time.Millisecond)
	missing := map[string]bool{"0": true, "1": true, "2": true, "4": true}
	for len(missing) > 0 {
		name := <-seen
		require.NotEqual(t, "3", name)
		delete(missing, name)
	}
	_, ok := index.Get(store.Key{Kind: "A", Name: "3"})
	require.False(t, ok)
	r.put("A", "3", `2`)
	require.Equal(t, "3", <-seen)
	value, _ := index.Get(store.Key{Kind: "A", Name: "3"})
	require.Equal(t, "2", value)
}

// TestAnIndexIsWholeBeforeAKeyIsReconciled has an index of objects by what they refer to, which two controllers use.
func TestAnIndexIsWholeBeforeAKeyIsReconciled(t *testing.T) {
	r := newTestRuntime(t)
	const n = 50
	owner := func(name string) store.Key { return store.Key{Kind: "A", Name: name} }
	for i := range n {
		r.put("B", strconv.Itoa(i), `"x"`)
	}
	r.put("A", "x", `1`)
	index := &control.Index[struct{}]{Kind: "B", Of: func(o store.Object) (v struct{}, refs []store.Key, ok bool) {
		return v, []store.Key{owner(string(o.Data[1 : len(o.Data)-1]))}, string(o.Data) != `"none"`
	}}
	counts := make(chan int, 10)
	watching := func(name string, reconcile func()) control.Controller {
		return control.Controller{
			Name: name, Watches: []control.Watch{{Kind: "A"}}, Indexes: []control.Indexer{index},
			Reconcile: func(context.Context, store.Key) (time.Duration, error) { reconcile(); return 0, nil },
		}
	}
	r.run(watching("one", func() { counts <- len(index.Referring(owner("x"))) }), watching("other", func() {}))
	require.Equal(t, n, <-counts)
	referring := func(name string, n int) func() bool {
		return func() bool { return len(index.Referring(owner(name))) == n }
	}
	r.put("B", "5", `"y"`)
	require.Eventually(t, func() bool { return referring("x", n-1)() && referring("y", 1)() }, waitTimeout, time.Millisecond)
	before := index.Version()
	r.put("B", "5", `"none"`)
	require.Eventually(t, func() bool { return referring("y", 0)() && len(index.Keys()) == n-1 }, waitTimeout, time.Millisecond)
	require.NotEqual(t, before, index.Version())
	_, err := r.Delete(t.Context(), store.Key{Kind: "B", Name: "6"}, 0)
	require.NoError(t, err)
	require.Eventually(t, referring("x", n-2), waitTimeout, time.Millisecond)
}

// TestACallThatNeverEndsIsLeftBehind: the hub stops although a controller doesn't.
func TestACallThatNeverEndsIsLeftBehind(t *testing.T) {
	r := newTestRuntime(t)
	called, never := make(chan struct{}), make(chan struct{})
	defer close(never)
	stop := r.run(r.copies(), control.Controller{
		Name: "stuck", Watches: []control.Watch{{Kind: "A"}},
		Reconcile: func(context.Context, store.Key) (time.Duration, error) { close(called); <-never; return 0, nil },
	})
	r.put("A", "0", `1`)
	<-called
	stop()
}

func TestFailuresBackOffAndAgainComesAgain(t *testing.T) {
	r := newTestRuntime(t)
	var calls atomic.Int64
	r.run(control.Controller{
		Name: "again", Watches: []control.Watch{{Kind: "A"}},
		Reconcile: func(context.Context, store.Key) (time.Duration, error) {
			switch n := calls.Add(1); {
			case n <= 3:
				return 0, errors.New("not yet")
			case n <= 5:
				return time.Millisecond, nil
			}
			return 0, nil
		},
	})
	r.put("A", "x", `1`)
	require.Eventually(t, func() bool { return r.count("done") == 1 }, waitTimeout, time.Millisecond)
	require.Equal(t, []float64{3, 2, 1}, []float64{r.count("error"), r.count("again"), r.count("done")})
	require.Equal(t, 4, testutil.CollectAndCount(r.metrics, "edgebus_reconciles_total"), "results that were never seen are there with 0")
}

// TestChangesOfTheStatusAloneAreLeftOut: a controller that asks for it is not called for changes of the status alone.
func TestChangesOfTheStatusAloneAreLeftOut(t *testing.T) {
	r := newTestRuntime(t)
	var data, any atomic.Int64
	count := func(n *atomic.Int64, name string, only bool) control.Controller {
		return control.Controller{
			Name: name, Watches: []control.Watch{{Kind: "A", DataOnly: only}},
			Reconcile: func(context.Context, store.Key) (time.Duration, error) { n.Add(1); return 0, nil },
		}
	}
	r.run(count(&data, "data", true), count(&any, "any", false))
	r.put("A", "x", "1")
	require.Eventually(t, func() bool { return data.Load() == 1 && any.Load() == 1 }, waitTimeout, time.Millisecond)
	_, err := r.Update(t.Context(), store.Object{Key: store.Key{Kind: "A", Name: "x"}, Status: []byte("1")}, 0)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return any.Load() == 2 }, waitTimeout, time.Millisecond)
	r.put("A", "x", "2")
	require.Eventually(t, func() bool { return any.Load() == 3 && data.Load() == 2 }, waitTimeout, time.Millisecond)
	_, err = r.Delete(t.Context(), store.Key{Kind: "A", Name: "x"}, 0)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return data.Load() == 3 }, waitTimeout, time.Millisecond)
}

// TestNoStatusIsDerivedForControllersThatLookAtNone: a hub with very many objects would derive all at its start.
func TestNoStatusIsDerivedForControllersThatLookAtNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	open := func() *testRuntime {
		s, err := disk.Open(disk.Options{Path: path})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		return &testRuntime{t: t, Store: s, metrics: prometheus.NewRegistry()}
	}
	r := open()
	r.put("A", "x", "1")
	require.NoError(t, r.Close())
	r = open() // only what was there when the store was opened is derived
	var derived, data, any atomic.Int64
	_, err := r.DeriveStatuses("A", func(store.Object) []byte { derived.Add(1); return []byte("{}") })
	require.NoError(t, err)
	count := func(n *atomic.Int64, name string, only bool) control.Controller {
		return control.Controller{
			Name: name, Watches: []control.Watch{{Kind: "A", DataOnly: only}},
			Reconcile: func(context.Context, store.Key) (time.Duration, error) { n.Add(1); return 0, nil },
		}
	}
	stop := r.run(count(&data, "data", true))
	require.Eventually(t, func() bool { return data.Load() == 1 }, waitTimeout, time.Millisecond)
	require.Zero(t, derived.Load())
	stop()
	r.metrics = prometheus.NewRegistry()
	r.run(count(&data, "data", true), count(&any, "any", false))
	require.Eventually(t, func() bool { return any.Load() == 1 }, waitTimeout, time.Millisecond)
	require.EqualValues(t, 1, derived.Load())
}

// TestChangesThatAreTheSameToAControllerAreLeftOut: a controller is not called for a change to what is the same to it.
func TestChangesThatAreTheSameToAControllerAreLeftOut(t *testing.T) {
	r := newTestRuntime(t)
	var some, all atomic.Int64
	count := func(n *atomic.Int64, name string, same func(before, now store.Object) bool) control.Controller {
		return control.Controller{
			Name: name, Watches: []control.Watch{{Kind: "A", Same: same}},
			Reconcile: func(context.Context, store.Key) (time.Duration, error) { n.Add(1); return 0, nil },
		}
	}
	r.run(count(&some, "some", func(before, now store.Object) bool { return before.Data[0] == now.Data[0] }), count(&all, "all", nil))
	for i, v := range []struct {
		data  string
		calls int64 // until then
	}{{"1", 1}, {"10", 1}, {"2", 2}, {"20", 2}} {
		r.put("A", "x", v.data)
		require.Eventually(t, func() bool { return all.Load() == int64(i)+1 && some.Load() >= v.calls }, waitTimeout, time.Millisecond, v.data)
		require.Equal(t, v.calls, some.Load(), v.data)
	}
	_, err := r.Delete(t.Context(), store.Key{Kind: "A", Name: "x"}, 0)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return some.Load() == 3 }, waitTimeout, time.Millisecond)
}

// A key with a Pause is called at most once in it, with all that changed meanwhile, and its failures are counted on.
func TestCallsForAKeyPause(t *testing.T) {
	r := newTestRuntime(t)
	const pause = 20 * time.Millisecond
	var mu sync.Mutex
	var began []time.Time
	var seen string
	r.run(control.Controller{
		Name: "paused", Workers: 4, Pause: pause, Watches: []control.Watch{{Kind: "A"}},
		Reconcile: func(ctx context.Context, key store.Key) (time.Duration, error) {
			a, err := r.Get(ctx, key)
			mu.Lock()
			defer mu.Unlock()
			began, seen = append(began, time.Now()), string(a.Data)
			return 0, errors.Join(err, errors.New("it always fails"))
		},
	})
	for i := range 200 {
		r.put("A", "one", fmt.Sprintf(`"%d"`, i))
	}
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return seen == `"199"` && len(began) > 3
	}, waitTimeout, time.Millisecond)
	mu.Lock()
	defer mu.Unlock()
	for i := range began[1:] {
		require.GreaterOrEqual(t, began[i+1].Sub(began[i]), pause)
	}
}

// TestDeletionsAreToldAfterTheStreamWasAway has a feed that is busy while objects are deleted, until the store has forgotten that they were.
func TestDeletionsAreToldAfterTheStreamWasAway(t *testing.T) {
	s, err := disk.Open(disk.Options{Path: filepath.Join(t.TempDir(), "log"), Tombstones: 16, WatchBuffer: 16})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	r := &testRuntime{t: t, Store: s, metrics: prometheus.NewRegistry()}
	const n = 100
	for i := range n {
		r.put("A", strconv.Itoa(i), fmt.Sprintf(`"of %d"`, i))
	}
	r.put("A", "moves", `"of one"`)
	var mu sync.Mutex
	told := make(map[store.Key]int) // calls for objects that are gone
	alive := make(map[store.Key]bool)
	count := func(m func() int) func() bool {
		return func() bool { mu.Lock(); defer mu.Unlock(); return m() == n+1 }
	}
	busy, goOn := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(busy); <-goOn })
	var relisted atomic.Bool
	r.run(control.Controller{
		Name: "deletions", Workers: 4,
		Watches: []control.Watch{{Kind: "A", Keys: func(o store.Object) []store.Key {
			if o.Name == "slow" && !relisted.Load() {
				once()
			}
			return []store.Key{{Kind: "owner", Name: string(o.Data)}} // only what it contains says which
		}}},
		Reconcile: func(_ context.Context, key store.Key) (time.Duration, error) {
			mu.Lock()
			defer mu.Unlock()
			alive[key] = true
			if relisted.Load() {
				told[key]++
			}
			return 0, nil
		},
	})
	require.Eventually(t, count(func() int { return len(alive) }), waitTimeout, time.Millisecond)
	r.put("A", "slow", `"slow"`)
	<-busy
	for i := range n {
		_, err := r.Delete(t.Context(), store.Key{Kind: "A", Name: strconv.Itoa(i)}, 0)
		require.NoError(t, err)
	}
	r.put("A", "moves", `"of another"`)
	relisted.Store(true)
	close(goOn)
	for i := range n {
		key := store.Key{Kind: "owner", Name: fmt.Sprintf(`"of %d"`, i)}
		require.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return told[key] > 0 }, waitTimeout, time.Millisecond, key)
	}
	for _, owner := range []string{`"of one"`, `"of another"`} {
		require.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return told[store.Key{Kind: "owner", Name: owner}] > 0 }, waitTimeout, time.Millisecond)
	}
}

// A time of the clock is waited for as it is, and looked at again within a minute, since somebody may set the clock.
func TestATimeOfTheClockIsLookedAtWithinAMinute(t *testing.T) {
	now := time.Now() // with a reading of the monotonic clock, which a clock that is set doesn't change
	require.Equal(t, time.Minute, control.UntilTime(now.Round(0).Add(24*time.Hour), now))
	require.Equal(t, 10*time.Second, control.UntilTime(now.Round(0).Add(10*time.Second), now))
	require.Equal(t, -time.Second, control.UntilTime(now.Round(0).Add(-time.Second), now))
}
