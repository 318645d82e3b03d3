// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Limits are set small where a test is about meeting them; 0 is the backend's default.
type Limits struct {
	Tombstones  int // deletes remembered for each kind
	WatchBuffer int // changes that wait for one watcher
}

// Open opens the store that lives in dir. Closing and opening again is a restart.
type Open func(t testing.TB, dir string, limits Limits) store.Store

// damageChecker is what a backend offers that can look for damage in itself.
type damageChecker interface{ Check() error }

// Run runs the suite, except for tests that are named.
func Run(t *testing.T, open Open, except ...string) {
	tests := []struct {
		name string
		run  func(*testing.T, *storeEnv)
	}{
		{"create and get", testCreate},
		{"update", testUpdate},
		{"status is a record of its own", testStatus},
		{"no-op writes", testNoop},
		{"conflict", testConflict},
		{"delete", testDelete},
		{"bad keys", testBadKeys},
		{"bytes are the store's own", testAliasing},
		{"list", testList},
		{"list by page is a snapshot", testPages},
		{"pages that are no longer known", testOldPage},
		{"racing writers", testRace},
		{"racing creators", testCreateRace},
		{"cancelled writes", testCancel},
		{"reopen", testReopen},
		{"closed", testClosed},
		{"watch", testWatch},
		{"watch one object", testWatchOne},
		{"watch from a list misses nothing", testListWatch},
		{"watch resumes", testResume},
		{"watch resumes over deletes", testResumeDeletes},
		{"watch resumes after reopen", testResumeReopen},
		{"watch is told Gone", testGone},
		{"watch from the future", testFuture},
		{"kinds don't mix", testKinds},
		{"slow watcher", testSlow},
		{"slow watcher is told Gone", testSlowGone},
		{"delete and create again", testRecreate},
		{"stream revision", testStreamRev},
		{"stream ends", testStreamEnds},
		{"derived statuses", testDerived},
		{"derived statuses after reopen", testDerivedReopen},
		{"derived data after reopen", testDerivedDataReopen},
		{"replicas", testReplicas},
		{"replicas of many nodes", testManyNodes},
		{"model", testModel},
	}
	for _, tt := range tests {
		if slices.Contains(except, tt.name) {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			e := &storeEnv{t: t, open: open, dir: t.TempDir()}
			e.start(Limits{})
			tt.run(t, e)
			e.stop()
		})
	}
}

// storeEnv is a store under test.
type storeEnv struct {
	store.Store
	t    testing.TB
	open Open
	dir  string
}

func (e *storeEnv) start(limits Limits) { e.Store = e.open(e.t, e.dir, limits) }

// stop checks the store and closes it.
func (e *storeEnv) stop() {
	e.t.Helper()
	if e.Store == nil {
		return
	}
	if c, ok := e.Store.(damageChecker); ok {
		require.NoError(e.t, c.Check())
	}
	require.NoError(e.t, e.Close())
	e.Store = nil
}

func (e *storeEnv) restart(limits Limits) {
	e.t.Helper()
	e.stop()
	e.start(limits)
}

func testContext() context.Context { return context.Background() }

func objectKey(name string) store.Key {
	return store.Key{Kind: "Device", Namespace: "default", Name: name}
}

func newObject(name, data string) store.Object {
	return store.Object{Key: objectKey(name), Data: []byte(data)}
}

func (e *storeEnv) create(name, data string) store.Object {
	e.t.Helper()
	o, err := e.Create(testContext(), newObject(name, data))
	require.NoError(e.t, err)
	return o
}

func (e *storeEnv) update(name, data string) store.Object {
	e.t.Helper()
	o, err := e.Update(testContext(), newObject(name, data), 0)
	require.NoError(e.t, err)
	return o
}

func (e *storeEnv) remove(name string) store.Object {
	e.t.Helper()
	o, err := e.Delete(testContext(), objectKey(name), 0)
	require.NoError(e.t, err)
	return o
}

func (e *storeEnv) list(opts store.ListOptions) store.Page {
	e.t.Helper()
	p, err := e.List(testContext(), "Device", opts)
	require.NoError(e.t, err)
	return p
}

func (e *storeEnv) watch(from uint64) *streamFollower {
	e.t.Helper()
	s, err := e.Watch(testContext(), store.Key{Kind: "Device"}, from)
	require.NoError(e.t, err)
	e.t.Cleanup(s.Close)
	return &streamFollower{t: e.t, Stream: s, rev: from}
}

func requireKind(t testing.TB, err error, kind resource.ErrorKind) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, kind, resource.KindOf(err), "%v", err)
}

func objectNames(objects []store.Object) []string {
	var out []string
	for _, o := range objects {
		out = append(out, o.Namespace+"/"+o.Name)
	}
	return out
}

// streamFollower reads a stream and checks what holds for every one.
type streamFollower struct {
	store.Stream
	t     testing.TB
	queue []store.Event
	rev   uint64 // of the last event
}

// read waits for one event.
func (f *streamFollower) read() store.Event {
	f.t.Helper()
	for len(f.queue) == 0 {
		wait, cancel := context.WithTimeout(testContext(), 30*time.Second)
		events, err := f.Next(wait)
		cancel()
		require.NoError(f.t, err)
		require.NotEmpty(f.t, events)
		f.queue = events
	}
	event := f.queue[0]
	f.queue = f.queue[1:]
	require.Greater(f.t, event.Object.Rev, f.rev, "revisions rise")
	f.rev = event.Object.Rev
	return event
}

// expect reads one event and compares it in short: "ADDED lamp {1}".
func (f *streamFollower) expect(want ...string) {
	f.t.Helper()
	for _, w := range want {
		require.Equal(f.t, w, formatEvent(f.read()))
	}
}

func formatEvent(e store.Event) string {
	return fmt.Sprintf("%s %s %s", e.Type, e.Object.Name, e.Object.Data)
}

// quiet checks that nothing waits. A change of another kind, that the stream's
// revision waits for, would have come behind it.
func (f *streamFollower) quiet() {
	f.t.Helper()
	require.Empty(f.t, f.queue)
	wait, cancel := context.WithTimeout(testContext(), 20*time.Millisecond)
	defer cancel()
	events, err := f.Next(wait)
	require.ErrorIs(f.t, err, context.DeadlineExceeded, "%v", events)
}

// ended reads until the stream ends, and returns why.
func (f *streamFollower) ended() error {
	f.t.Helper()
	for {
		wait, cancel := context.WithTimeout(testContext(), 30*time.Second)
		_, err := f.Next(wait)
		cancel()
		if err != nil {
			require.False(f.t, errors.Is(err, context.DeadlineExceeded), "the stream goes on")
			return err
		}
	}
}
