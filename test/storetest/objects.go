// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

func testCreate(t *testing.T, e *storeEnv) {
	_, err := e.Get(testContext(), objectKey("lamp"))
	requireKind(t, err, resource.NotFound)

	made, err := e.Create(testContext(), store.Object{Key: objectKey("lamp"), Data: []byte(`{"a":1}`), Status: []byte(`{"s":1}`)})
	require.NoError(t, err)
	require.NotZero(t, made.Rev)
	got, err := e.Get(testContext(), objectKey("lamp"))
	require.NoError(t, err)
	require.Equal(t, made, got)
	require.JSONEq(t, `{"a":1}`, string(got.Data))
	require.JSONEq(t, `{"s":1}`, string(got.Status))

	_, err = e.Create(testContext(), newObject("lamp", "{2}"))
	requireKind(t, err, resource.AlreadyExists)
	other := newObject("lamp", "{2}")
	other.Namespace = "hall"
	_, err = e.Create(testContext(), other)
	require.NoError(t, err, "another namespace is another key")
	cluster := newObject("lamp", "{3}")
	cluster.Namespace = ""
	_, err = e.Create(testContext(), cluster)
	require.NoError(t, err)
}

func testUpdate(t *testing.T, e *storeEnv) {
	_, err := e.Update(testContext(), newObject("lamp", "{1}"), 0)
	requireKind(t, err, resource.NotFound)
	made := e.create("lamp", "{1}")

	second, err := e.Update(testContext(), newObject("lamp", "{2}"), made.Rev)
	require.NoError(t, err)
	require.Greater(t, second.Rev, made.Rev)
	third, err := e.Update(testContext(), newObject("lamp", "{3}"), 0)
	require.NoError(t, err, "0 expects nothing")
	got, err := e.Get(testContext(), objectKey("lamp"))
	require.NoError(t, err)
	require.Equal(t, third, got)
	require.Equal(t, "{3}", string(got.Data))
}

func testStatus(t *testing.T, e *storeEnv) {
	made := e.create("lamp", "{1}")
	require.Nil(t, made.Status)
	withStatus, err := e.Update(testContext(), store.Object{Key: objectKey("lamp"), Status: []byte("{on}")}, made.Rev)
	require.NoError(t, err)
	require.Greater(t, withStatus.Rev, made.Rev, "a status changes the revision")
	require.Equal(t, "{1}", string(withStatus.Data), "data stays")

	changed, err := e.Update(testContext(), newObject("lamp", "{2}"), withStatus.Rev)
	require.NoError(t, err)
	require.Equal(t, "{on}", string(changed.Status), "the status stays")

	cleared, err := e.Update(testContext(), store.Object{Key: objectKey("lamp"), Status: []byte{}}, 0)
	require.NoError(t, err)
	require.Empty(t, cleared.Status)
	require.Greater(t, cleared.Rev, changed.Rev)
	e.restart(Limits{})
	got, err := e.Get(testContext(), objectKey("lamp"))
	require.NoError(t, err)
	require.Equal(t, cleared, got)
}

func testNoop(t *testing.T, e *storeEnv) {
	made, err := e.Create(testContext(), store.Object{Key: objectKey("lamp"), Data: []byte("{1}"), Status: []byte("{on}")})
	require.NoError(t, err)
	f := e.watch(made.Rev)
	for _, o := range []store.Object{
		newObject("lamp", "{1}"),
		{Key: objectKey("lamp"), Status: []byte("{on}")},
		{Key: objectKey("lamp"), Data: []byte("{1}"), Status: []byte("{on}")},
		{Key: objectKey("lamp")},
	} {
		got, err := e.Update(testContext(), o, made.Rev)
		require.NoError(t, err)
		require.Equal(t, made, got)
	}
	f.quiet()
	require.Equal(t, made.Rev, e.list(store.ListOptions{}).Rev)
}

func testConflict(t *testing.T, e *storeEnv) {
	first := e.create("lamp", "{1}")
	second := e.update("lamp", "{2}")
	_, err := e.Update(testContext(), newObject("lamp", "{3}"), first.Rev)
	requireKind(t, err, resource.Conflict)
	require.Contains(t, err.Error(), strconv.FormatUint(first.Rev, 10), "it names what was expected")
	require.Contains(t, err.Error(), strconv.FormatUint(second.Rev, 10), "and what there is")
	_, err = e.Update(testContext(), newObject("lamp", "{2}"), first.Rev)
	requireKind(t, err, resource.Conflict) // also a write that would change nothing
	_, err = e.Delete(testContext(), objectKey("lamp"), first.Rev)
	requireKind(t, err, resource.Conflict)
	got, err := e.Get(testContext(), objectKey("lamp"))
	require.NoError(t, err)
	require.Equal(t, second, got, "nothing changed")
}

func testDelete(t *testing.T, e *storeEnv) {
	_, err := e.Delete(testContext(), objectKey("lamp"), 0)
	requireKind(t, err, resource.NotFound)
	made := e.create("lamp", "{1}")
	gone, err := e.Delete(testContext(), objectKey("lamp"), made.Rev)
	require.NoError(t, err)
	require.Greater(t, gone.Rev, made.Rev)
	require.Equal(t, "{1}", string(gone.Data), "as it last was")
	_, err = e.Get(testContext(), objectKey("lamp"))
	requireKind(t, err, resource.NotFound)
	again := e.create("lamp", "{2}")
	require.Greater(t, again.Rev, gone.Rev)
	_, err = e.Update(testContext(), newObject("lamp", "{3}"), made.Rev)
	requireKind(t, err, resource.Conflict) // a revision of its former life
}

func testBadKeys(t *testing.T, e *storeEnv) {
	for _, k := range []store.Key{
		{},
		{Kind: "Device"},
		{Name: "lamp"},
		{Kind: "Device", Name: "a\x00b"},
		{Kind: "Device", Namespace: "a\x00b", Name: "lamp"},
	} {
		_, err := e.Create(testContext(), store.Object{Key: k, Data: []byte("{}")})
		requireKind(t, err, resource.Invalid)
	}
	_, err := e.Create(testContext(), newObject("lamp", ""))
	requireKind(t, err, resource.Invalid)
}

func testAliasing(t *testing.T, e *storeEnv) {
	data := []byte("{1}")
	_, err := e.Create(testContext(), store.Object{Key: objectKey("lamp"), Data: data})
	require.NoError(t, err)
	data[1] = '9'
	got, err := e.Get(testContext(), objectKey("lamp"))
	require.NoError(t, err)
	require.Equal(t, "{1}", string(got.Data))
}

func testList(t *testing.T, e *storeEnv) {
	require.Empty(t, e.list(store.ListOptions{}).Items)
	for _, k := range [][2]string{{"b", "x"}, {"a", "z"}, {"a", "y"}, {"a-b", "w"}, {"c", "v"}} {
		_, err := e.Create(testContext(), store.Object{Key: store.Key{Kind: "Device", Namespace: k[0], Name: k[1]}, Data: []byte("{}")})
		require.NoError(t, err)
	}
	all := e.list(store.ListOptions{})
	require.Equal(t, []string{"a/y", "a/z", "a-b/w", "b/x", "c/v"}, objectNames(all.Items))
	require.Zero(t, all.More)
	require.Equal(t, []string{"a/y", "a/z"}, objectNames(e.list(store.ListOptions{Namespace: "a"}).Items))
	require.Empty(t, e.list(store.ListOptions{Namespace: "d"}).Items)
	page := e.list(store.ListOptions{Namespace: "a", Limit: 1})
	require.Equal(t, []string{"a/y"}, objectNames(page.Items))
	require.Equal(t, 1, page.More)
	page = e.list(store.ListOptions{Namespace: "a", Limit: 2})
	require.Zero(t, page.More)
}

func testPages(t *testing.T, e *storeEnv) {
	const n = 600 // more than any block of an index
	for i := range n {
		e.create(fmt.Sprintf("d%03d", i), "{1}")
	}
	opts := store.ListOptions{Limit: 100}
	var got []store.Object
	var first uint64
	for {
		page := e.list(opts)
		if first == 0 {
			first = page.Rev
		}
		require.Equal(t, first, page.Rev, "all pages are of one revision")
		got = append(got, page.Items...)
		require.Equal(t, n-len(got), page.More)
		if page.More == 0 {
			break
		}
		// The world moves on between the pages.
		at := len(got)
		e.remove(fmt.Sprintf("d%03d", at))
		e.update(fmt.Sprintf("d%03d", at+1), "{2}")
		e.create(fmt.Sprintf("d%03d-new", at+2), "{3}")
		opts.After, opts.Rev = page.Items[len(page.Items)-1].Key, page.Rev
	}
	require.Len(t, got, n)
	for i, o := range got {
		require.Equal(t, fmt.Sprintf("d%03d", i), o.Name)
		require.Equal(t, "{1}", string(o.Data))
	}
}

func testOldPage(t *testing.T, e *storeEnv) {
	e.create("a", "{1}")
	e.create("b", "{1}")
	page := e.list(store.ListOptions{Limit: 1})
	e.update("b", "{2}")
	opts := store.ListOptions{Limit: 1, After: page.Items[0].Key, Rev: page.Rev + 1000}
	_, err := e.List(testContext(), "Device", opts)
	requireKind(t, err, resource.Gone)
	e.restart(Limits{})
	opts.Rev = page.Rev
	_, err = e.List(testContext(), "Device", opts)
	requireKind(t, err, resource.Gone)
}

func testRace(t *testing.T, e *storeEnv) {
	const writers, objects, rounds = 200, 10, 5
	for i := range objects {
		e.create(fmt.Sprint("d", i), "0")
	}
	f := e.watch(e.list(store.ListOptions{}).Rev)
	var wg sync.WaitGroup
	var conflicts atomic.Int64
	for w := range writers {
		wg.Go(func() {
			for range rounds {
				conflicts.Add(e.increment(t, fmt.Sprint("d", w%objects)))
			}
		})
	}
	wg.Wait()
	for i := range objects {
		o, err := e.Get(testContext(), objectKey(fmt.Sprint("d", i)))
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(writers/objects*rounds), string(o.Data), "no update was lost")
	}
	t.Logf("%d writes, %d conflicts", writers*rounds, conflicts.Load())
	last := map[string]int{}
	done := func() bool {
		for i := range objects {
			if last[fmt.Sprint("d", i)] != writers/objects*rounds {
				return false
			}
		}
		return true
	}
	for !done() {
		o := f.read().Object
		n, err := strconv.Atoi(string(o.Data))
		require.NoError(t, err)
		require.Greater(t, n, last[o.Name], "never back")
		last[o.Name] = n
	}
}

// increment adds one to the number in an object, as many tries as it takes.
func (e *storeEnv) increment(t testing.TB, name string) (conflicts int64) {
	for {
		o, err := e.Get(testContext(), objectKey(name))
		if err != nil {
			t.Error(err)
			return conflicts
		}
		n, _ := strconv.Atoi(string(o.Data))
		_, err = e.Update(testContext(), newObject(name, strconv.Itoa(n+1)), o.Rev)
		if !errors.Is(err, resource.Conflict) {
			if err != nil {
				t.Error(err)
			}
			return conflicts
		}
		conflicts++
	}
}

func testCreateRace(t *testing.T, e *storeEnv) {
	var wg sync.WaitGroup
	var won atomic.Int64
	for range 50 {
		wg.Go(func() {
			_, err := e.Create(testContext(), newObject("lamp", "{1}"))
			switch {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, resource.AlreadyExists):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, won.Load())
}

func testCancel(t *testing.T, e *storeEnv) {
	e.create("lamp", "0")
	cancelled, cancel := context.WithCancel(testContext())
	cancel()
	_, err := e.Update(cancelled, newObject("lamp", "1"), 0)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, store.ErrUnknown, "it was never begun")

	// Cancelled in mid-flight: done, not done, or unknown, and never done when it said not.
	for i := range 200 {
		midway, cancel := context.WithCancel(testContext())
		go cancel()
		want := strconv.Itoa(i + 1)
		before, err := e.Get(testContext(), objectKey("lamp"))
		require.NoError(t, err)
		_, err = e.Update(midway, newObject("lamp", want), before.Rev)
		cancel()
		unknown := errors.Is(err, store.ErrUnknown)
		e.create(fmt.Sprint("barrier", i), "{}") // comes after whatever was in flight
		after, getErr := e.Get(testContext(), objectKey("lamp"))
		require.NoError(t, getErr)
		if err == nil {
			require.Equal(t, want, string(after.Data))
		} else if !unknown {
			require.ErrorIs(t, err, context.Canceled)
			require.Equal(t, before, after)
		}
	}
}

func testReopen(t *testing.T, e *storeEnv) {
	for i := range 300 {
		e.create(fmt.Sprint("d", i), "{1}")
	}
	for i := range 50 {
		e.update(fmt.Sprint("d", i), "{2}")
		_, err := e.Update(testContext(), store.Object{Key: objectKey(fmt.Sprint("d", i)), Status: []byte("{on}")}, 0)
		require.NoError(t, err)
	}
	for i := 250; i < 300; i++ {
		e.remove(fmt.Sprint("d", i))
	}
	before := e.list(store.ListOptions{})
	e.restart(Limits{})
	require.Equal(t, before, e.list(store.ListOptions{}))
	made := e.create("new", "{}")
	require.Greater(t, made.Rev, before.Rev, "revisions go on")
}

func testClosed(t *testing.T, e *storeEnv) {
	e.create("lamp", "{1}")
	f := e.watch(0)
	e.stop()
	s := e.open(t, e.dir, Limits{})
	require.NoError(t, s.Close())
	require.NoError(t, s.Close(), "twice is once")
	_, err := s.Create(testContext(), newObject("x", "{}"))
	requireKind(t, err, resource.Unavailable)
	_, err = s.Watch(testContext(), store.Key{Kind: "Device"}, 0)
	requireKind(t, err, resource.Unavailable)
	requireKind(t, s.Commit(testContext(), []store.NodeChange{{Node: "n1"}}), resource.Unavailable)
	requireKind(t, f.ended(), resource.Unavailable)
}
