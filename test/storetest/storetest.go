// Package storetest is what every backend of the store must pass. A backend's
// own tests are for what only it has: its file, its failures.
package storetest

import (
	"context"
	"errors"
	"fmt"
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

// checker is what a backend offers that can look for damage in itself.
type checker interface{ Check() error }

// Run runs the suite.
func Run(t *testing.T, open Open) {
	tests := []struct {
		name string
		run  func(*testing.T, *env)
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
		{"replicas", testReplicas},
		{"replicas of many nodes", testManyNodes},
		{"model", testModel},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := &env{t: t, open: open, dir: t.TempDir()}
			e.start(Limits{})
			tt.run(t, e)
			e.stop()
		})
	}
}

// env is a store under test.
type env struct {
	store.Store
	t    testing.TB
	open Open
	dir  string
}

func (e *env) start(limits Limits) { e.Store = e.open(e.t, e.dir, limits) }

// stop checks the store and closes it.
func (e *env) stop() {
	e.t.Helper()
	if e.Store == nil {
		return
	}
	if c, ok := e.Store.(checker); ok {
		require.NoError(e.t, c.Check())
	}
	require.NoError(e.t, e.Close())
	e.Store = nil
}

func (e *env) restart(limits Limits) {
	e.t.Helper()
	e.stop()
	e.start(limits)
}

func ctx() context.Context { return context.Background() }

func key(name string) store.Key {
	return store.Key{Kind: "Device", Namespace: "default", Name: name}
}

func object(name, data string) store.Object {
	return store.Object{Key: key(name), Data: []byte(data)}
}

func (e *env) create(name, data string) store.Object {
	e.t.Helper()
	o, err := e.Create(ctx(), object(name, data))
	require.NoError(e.t, err)
	return o
}

func (e *env) update(name, data string) store.Object {
	e.t.Helper()
	o, err := e.Update(ctx(), object(name, data), 0)
	require.NoError(e.t, err)
	return o
}

func (e *env) remove(name string) store.Object {
	e.t.Helper()
	o, err := e.Delete(ctx(), key(name), 0)
	require.NoError(e.t, err)
	return o
}

func (e *env) list(opts store.ListOptions) store.Page {
	e.t.Helper()
	p, err := e.List(ctx(), "Device", opts)
	require.NoError(e.t, err)
	return p
}

func (e *env) watch(from uint64) *follower {
	e.t.Helper()
	s, err := e.Watch(ctx(), store.Key{Kind: "Device"}, from)
	require.NoError(e.t, err)
	e.t.Cleanup(s.Close)
	return &follower{t: e.t, Stream: s, rev: from}
}

func isKind(t testing.TB, err error, kind resource.ErrorKind) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, kind, resource.KindOf(err), "%v", err)
}

func names(objects []store.Object) []string {
	var out []string
	for _, o := range objects {
		out = append(out, o.Namespace+"/"+o.Name)
	}
	return out
}

// follower reads a stream and checks what holds for every one.
type follower struct {
	store.Stream
	t     testing.TB
	queue []store.Event
	rev   uint64 // of the last event
}

// read waits for one event.
func (f *follower) read() store.Event {
	f.t.Helper()
	for len(f.queue) == 0 {
		wait, cancel := context.WithTimeout(ctx(), 30*time.Second)
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
func (f *follower) expect(want ...string) {
	f.t.Helper()
	for _, w := range want {
		require.Equal(f.t, w, brief(f.read()))
	}
}

func brief(e store.Event) string {
	return fmt.Sprintf("%s %s %s", e.Type, e.Object.Name, e.Object.Data)
}

// quiet checks that nothing waits. A change of another kind, that the stream's
// revision waits for, would have come behind it.
func (f *follower) quiet() {
	f.t.Helper()
	require.Empty(f.t, f.queue)
	wait, cancel := context.WithTimeout(ctx(), 20*time.Millisecond)
	defer cancel()
	events, err := f.Next(wait)
	require.ErrorIs(f.t, err, context.DeadlineExceeded, "%v", events)
}

// ended reads until the stream ends, and returns why.
func (f *follower) ended() error {
	f.t.Helper()
	for {
		wait, cancel := context.WithTimeout(ctx(), 30*time.Second)
		_, err := f.Next(wait)
		cancel()
		if err != nil {
			require.False(f.t, errors.Is(err, context.DeadlineExceeded), "the stream goes on")
			return err
		}
	}
}
