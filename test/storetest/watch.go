// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

func testWatch(t *testing.T, e *storeEnv) {
	f := e.watch(0)
	f.quiet()
	made := e.create("lamp", "{1}")
	event := f.read()
	require.Equal(t, store.Event{Type: store.Added, Object: made}, event)

	changed := e.update("lamp", "{2}")
	require.Equal(t, store.Event{Type: store.Modified, Object: changed, Old: &made}, f.read())

	status, err := e.Update(testContext(), store.Object{Key: objectKey("lamp"), Status: []byte("{on}")}, 0)
	require.NoError(t, err)
	require.Equal(t, store.Event{Type: store.Modified, Object: status, Old: &changed}, f.read())

	gone := e.remove("lamp")
	require.Equal(t, store.Event{Type: store.Deleted, Object: gone, Old: &status}, f.read())
	require.Equal(t, "{2}", string(gone.Data))
	require.Equal(t, "{on}", string(gone.Status))
	f.quiet()
}

// A watcher of one object, also one that is not there yet, hears of no other.
func testWatchOne(t *testing.T, e *storeEnv) {
	begin := e.create("fan", "{1}").Rev
	s, err := e.Watch(testContext(), objectKey("lamp"), begin)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	f := &streamFollower{t: t, Stream: s, rev: begin}
	made := e.create("lamp", "{1}")
	require.Equal(t, store.Event{Type: store.Added, Object: made}, f.read())
	e.update("fan", "{2}")
	e.remove("fan")
	f.quiet()
	gone := e.remove("lamp")
	require.Equal(t, store.Event{Type: store.Deleted, Object: gone, Old: &made}, f.read())
	again := e.create("lamp", "{3}")
	require.Equal(t, store.Event{Type: store.Added, Object: again}, f.read())
	f.quiet()

	late, err := e.Watch(testContext(), objectKey("lamp"), begin) // catches up
	require.NoError(t, err)
	t.Cleanup(late.Close)
	f = &streamFollower{t: t, Stream: late, rev: begin}
	require.Equal(t, store.Deleted, f.read().Type)
	require.Equal(t, store.Event{Type: store.Added, Object: again}, f.read())
	f.quiet()

	require.Equal(t, []string{"default/lamp"}, objectNames(e.list(store.ListOptions{Namespace: "default", Name: "lamp"}).Items))
	require.Empty(t, e.list(store.ListOptions{Namespace: "default", Name: "fan"}).Items)
}

func testListWatch(t *testing.T, e *storeEnv) {
	const writers, rounds = 4, 100
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			name := fmt.Sprint("d", w)
			if _, err := e.Create(testContext(), newObject(name, "0")); err != nil {
				t.Error(err)
			}
			for i := range rounds {
				if _, err := e.Update(testContext(), newObject(name, strconv.Itoa(i+1)), 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	// Lists begun at any moment, with what follows, arrive at the same end.
	for range 20 {
		page := e.list(store.ListOptions{})
		state := map[string]string{}
		for _, o := range page.Items {
			require.LessOrEqual(t, o.Rev, page.Rev)
			state[o.Name] = string(o.Data)
		}
		f := e.watch(page.Rev)
		for !allFinished(state, writers, rounds) {
			o := f.read().Object
			state[o.Name] = string(o.Data)
		}
		f.Close()
	}
	wg.Wait()
}

func allFinished(state map[string]string, writers, rounds int) bool {
	for w := range writers {
		if state[fmt.Sprint("d", w)] != strconv.Itoa(rounds) {
			return false
		}
	}
	return true
}

func testResume(t *testing.T, e *storeEnv) {
	a := e.create("a", "{1}")
	e.create("b", "{1}")
	e.update("a", "{2}")
	e.update("a", "{3}")
	f := e.watch(a.Rev)
	f.expect("ADDED b {1}", "MODIFIED a {3}")
	f.quiet()
	all := e.watch(0)
	all.expect("ADDED b {1}", "ADDED a {3}")
	e.update("b", "{2}")
	f.expect("MODIFIED b {2}")
	all.expect("MODIFIED b {2}")
}

func testResumeDeletes(t *testing.T, e *storeEnv) {
	a := e.create("a", "{1}")
	e.create("b", "{1}")
	e.remove("a")
	e.create("c", "{1}")
	e.remove("b")
	e.create("a", "{2}") // again: its delete arrives all the same
	f := e.watch(a.Rev)
	f.expect("DELETED a {1}", "ADDED c {1}", "DELETED b {1}", "ADDED a {2}") // b came and went meanwhile: its delete arrives, though nobody there has it
	f.quiet()
}

func testResumeReopen(t *testing.T, e *storeEnv) {
	a := e.create("a", "{1}")
	e.create("b", "{1}")
	_, err := e.Update(testContext(), store.Object{Key: objectKey("b"), Status: []byte("{on}")}, 0)
	require.NoError(t, err)
	f := e.watch(a.Rev)
	e.remove("b")
	for {
		if event := f.read(); event.Type == store.Deleted {
			require.Equal(t, "DELETED b {1}", formatEvent(event))
			require.Equal(t, "{on}", string(event.Object.Status))
			break
		}
	}
	since := f.Rev()
	f.Close()
	e.update("a", "{2}")
	e.restart(Limits{})
	f = e.watch(since)
	f.expect("MODIFIED a {2}")
	f.quiet()
	f.Close()
	if f, err := e.Watch(testContext(), store.Key{Kind: "Device"}, a.Rev); err == nil { // a store may remember deletions
		f.Close()
	} else {
		requireKind(t, err, resource.Gone)
	}
}

func testGone(t *testing.T, e *storeEnv) {
	e.restart(Limits{Tombstones: 8})
	first := e.create("keep", "{1}")
	for i := range 40 {
		e.create(fmt.Sprint("d", i), "{1}")
		e.remove(fmt.Sprint("d", i))
	}
	for range 2 { // the floor outlives a restart
		_, err := e.Watch(testContext(), store.Key{Kind: "Device"}, first.Rev)
		requireKind(t, err, resource.Gone)
		_, err = e.Watch(testContext(), store.Key{Kind: "Device"}, 0)
		requireKind(t, err, resource.Gone)
		f := e.watch(e.list(store.ListOptions{}).Rev)
		f.quiet()
		f.Close()
		e.restart(Limits{Tombstones: 8})
	}
	// Another kind has a floor of its own.
	s, err := e.Watch(testContext(), store.Key{Kind: "Node"}, 0)
	require.NoError(t, err)
	s.Close()
}

func testFuture(t *testing.T, e *storeEnv) {
	made := e.create("a", "{1}")
	_, err := e.Watch(testContext(), store.Key{Kind: "Device"}, made.Rev+100)
	requireKind(t, err, resource.Gone) // a restored backup: what happened since is not known here
}

func testKinds(t *testing.T, e *storeEnv) {
	f := e.watch(0)
	_, err := e.Create(testContext(), store.Object{Key: store.Key{Kind: "Node", Name: "n1"}, Data: []byte("{}")})
	require.NoError(t, err)
	e.create("a", "{1}")
	f.expect("ADDED a {1}")
	require.Len(t, e.list(store.ListOptions{}).Items, 1)
}

func testSlow(t *testing.T, e *storeEnv) {
	e.restart(Limits{WatchBuffer: 16})
	from := e.create("first", "0").Rev
	slow := e.watch(from)
	const n = 100
	for i := range n { // far more objects than the buffer holds; nobody reads
		e.create(fmt.Sprintf("d%03d", i), "0")
	}
	for i := range 50 { // and many versions of one
		e.update("first", strconv.Itoa(i+1))
	}
	e.remove("d000")
	e.update("first", "last")

	state := map[string]string{"first": "0"}
	events := 0
	for state["first"] != "last" {
		event := slow.read()
		events++
		if event.Type == store.Deleted {
			require.Equal(t, "d000", event.Object.Name)
			delete(state, event.Object.Name)
			continue
		}
		state[event.Object.Name] = string(event.Object.Data)
	}
	require.Len(t, state, n)
	require.NotContains(t, state, "d000")
	require.LessOrEqual(t, events, n+16+2, "versions coalesced")
	e.update("first", "more")
	slow.expect("MODIFIED first more")
}

func testSlowGone(t *testing.T, e *storeEnv) {
	e.restart(Limits{WatchBuffer: 4, Tombstones: 8})
	f := e.watch(e.create("first", "0").Rev)
	for i := range 60 {
		e.create(fmt.Sprint("d", i), "{}")
		e.remove(fmt.Sprint("d", i))
	}
	requireKind(t, f.ended(), resource.Gone)
	requireKind(t, f.ended(), resource.Gone) // and stays so
}

func testRecreate(t *testing.T, e *storeEnv) {
	made := e.create("lamp", "{1}")
	f := e.watch(made.Rev)
	e.remove("lamp")
	e.create("lamp", "{2}")
	e.update("lamp", "{3}")
	f.expect("DELETED lamp {1}", "ADDED lamp {3}")
	f.quiet()
	e.remove("lamp")
	e.create("lamp", "{4}")
	e.remove("lamp")
	for event := f.read(); ; event = f.read() {
		require.NotEqual(t, store.Modified, event.Type)
		if formatEvent(event) == "DELETED lamp {4}" {
			break
		}
	}
	f.quiet()
}

func testStreamRev(t *testing.T, e *storeEnv) {
	made := e.create("a", "{1}")
	f := e.watch(made.Rev)
	require.Equal(t, made.Rev, f.Rev())
	second := e.update("a", "{2}")
	require.Less(t, f.Rev(), second.Rev, "not returned yet")
	f.expect("MODIFIED a {2}")
	require.Equal(t, second.Rev, f.Rev())

	node, err := e.Create(testContext(), store.Object{Key: store.Key{Kind: "Node", Name: "n1"}, Data: []byte("{}")})
	require.NoError(t, err)
	resume := f.Rev()
	require.GreaterOrEqual(t, resume, second.Rev)
	require.LessOrEqual(t, resume, node.Rev)
	e.update("a", "{3}")
	e.watch(resume).expect("MODIFIED a {3}")
}

func testStreamEnds(t *testing.T, e *storeEnv) {
	f := e.watch(0)
	done := make(chan error, 1)
	go func() {
		_, err := f.Next(testContext())
		done <- err
	}()
	f.Close()
	select {
	case err := <-done:
		requireKind(t, err, resource.Unavailable)
	case <-time.After(30 * time.Second):
		t.Fatal("Close did not wake Next")
	}
	g := e.watch(0)
	cancelled, cancel := context.WithCancel(testContext())
	cancel()
	_, err := g.Next(cancelled)
	require.ErrorIs(t, err, context.Canceled)
	e.create("a", "{1}")
	g.expect("ADDED a {1}") // a Next that gave up loses nothing
}
