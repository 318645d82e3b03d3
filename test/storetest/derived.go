// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// derive has the statuses of Devices derived: each is as many bytes as it was derived before, so that a second one differs.
func (e *storeEnv) derive() (count *atomic.Int64) {
	e.t.Helper()
	count = new(atomic.Int64)
	_, err := e.DeriveStatuses("Device", func(o store.Object) []byte {
		return fmt.Appendf(nil, "{derived %d of %s %s}", count.Add(1), o.Data, o.Status)
	})
	require.NoError(e.t, err)
	return count
}

func (e *storeEnv) show(name, status string) store.Object {
	e.t.Helper()
	o, err := e.UpdateDerived(testContext(), store.Object{Key: objectKey(name), Status: []byte(status)}, 0)
	require.NoError(e.t, err)
	return o
}

// note writes data that needn't be stored.
func (e *storeEnv) note(name, data string) store.Object {
	e.t.Helper()
	o, err := e.UpdateDerived(testContext(), store.Object{Key: objectKey(name), Data: []byte(data)}, 0)
	require.NoError(e.t, err)
	return o
}

// A derived status is seen as any other: by its revision, as an event, and in a list; and by a conflict.
func testDerived(t *testing.T, e *storeEnv) {
	e.derive()
	made := e.create("lamp", "{1}")
	f := e.watch(made.Rev)
	shown := e.show("lamp", "{on}")
	require.Greater(t, shown.Rev, made.Rev)
	require.Equal(t, "{1}", string(shown.Data))
	require.Equal(t, store.Event{Type: store.Modified, Object: shown, Old: &made}, f.read())
	require.Equal(t, []store.Object{shown}, e.list(store.ListOptions{}).Items)
	require.Equal(t, shown, e.show("lamp", "{on}"), "nothing has changed")
	f.quiet()
	_, err := e.UpdateDerived(testContext(), store.Object{Key: objectKey("lamp"), Status: []byte("{off}")}, made.Rev)
	require.ErrorIs(t, err, resource.Conflict)
	_, err = e.UpdateDerived(testContext(), store.Object{Key: objectKey("fan"), Status: []byte("{off}")}, 0)
	require.ErrorIs(t, err, resource.NotFound)
	changed := e.update("lamp", "{2}")
	require.Equal(t, "{on}", string(changed.Status))
	require.Equal(t, store.Event{Type: store.Modified, Object: changed, Old: &shown}, f.read())
	noted := e.note("lamp", "{3}")
	require.Greater(t, noted.Rev, changed.Rev)
	require.Equal(t, "{3}{on}", string(noted.Data)+string(noted.Status))
	require.Equal(t, store.Event{Type: store.Modified, Object: noted, Old: &changed}, f.read())
	require.Equal(t, noted, e.note("lamp", "{3}"), "nothing has changed")
	_, err = e.UpdateDerived(testContext(), store.Object{Key: objectKey("lamp"), Data: []byte{}}, 0)
	require.ErrorIs(t, err, resource.Invalid)
	f.quiet()
	changed = noted
	gone := e.remove("lamp")
	require.Equal(t, store.Event{Type: store.Deleted, Object: gone, Old: &changed}, f.read())
}

// After a restart a status is derived once it is read, of what was stored; it is the same until the object has another revision. No revision
// is given twice, and a watch from before is told of every object.
func testDerivedReopen(t *testing.T, e *storeEnv) {
	e.derive()
	e.create("lamp", "{1}")
	_, err := e.Update(testContext(), store.Object{Key: objectKey("lamp"), Status: []byte("{stored}")}, 0)
	require.NoError(t, err)
	e.create("fan", "{1}")
	var last uint64
	for round := range 3 { // in the later ones nothing is stored
		for i := range 100 {
			o := e.show("lamp", fmt.Sprintf("{shown %d %d}", round, i))
			require.Greater(t, o.Rev, last)
			last = o.Rev
		}
		e.restart(Limits{})
		count := e.derive()
		for _, o := range e.list(store.ListOptions{DataOnly: true}).Items {
			require.NotEmpty(t, o.Data)
			require.Nil(t, o.Status)
		}
		for _, o := range e.list(store.ListOptions{StatusOf: func(o store.Object) bool { return o.Status != nil }}).Items {
			require.Nil(t, o.Status)
		}
		behind := e.watch(last)
		require.Zero(t, count.Load(), "nobody has read a status")
		behind.Close()
		page := e.list(store.ListOptions{})
		require.GreaterOrEqual(t, page.Rev, last)
		lamp := page.Items[1]
		require.GreaterOrEqual(t, lamp.Rev, last)
		require.Equal(t, "{derived 2 of {1} {stored}}", string(lamp.Status))
		require.Equal(t, lamp, e.list(store.ListOptions{StatusOf: func(o store.Object) bool { return o.Name == "lamp" }}).Items[1])
		got, err := e.Get(testContext(), lamp.Key)
		require.NoError(t, err)
		require.Equal(t, lamp, got, "one revision has one content")
		before := e.watch(last)
		require.ElementsMatch(t, page.Items, []store.Object{before.read().Object, before.read().Object}, "any may have changed")
		before.quiet()
		f := e.watch(page.Rev)
		same, err := e.Update(testContext(), lamp, lamp.Rev)
		require.NoError(t, err)
		require.Equal(t, lamp, same, "who writes what he has read changes nothing")
		first := e.show("lamp", string(lamp.Status))
		require.Greater(t, first.Rev, lamp.Rev, "nobody may have read it")
		require.Equal(t, store.Event{Type: store.Modified, Object: first, Old: &lamp}, f.read())
		require.Equal(t, first, e.show("lamp", string(lamp.Status)))
		f.quiet()
		shown := e.show("lamp", "{shown}")
		require.Equal(t, store.Event{Type: store.Modified, Object: shown, Old: &first}, f.read())
		changed := e.update("fan", fmt.Sprintf("{%d}", round+2))
		require.Contains(t, string(changed.Status), fmt.Sprintf("of {%d} ", round+2), "of what is stored now")
		require.Equal(t, changed, f.read().Object)
		last = changed.Rev
	}
}

// After a restart an object has the data that was stored last, with another revision, of which a watch from before is told. A status that is
// stored meanwhile stores no data; data that is stored has what was noted before.
func testDerivedDataReopen(t *testing.T, e *storeEnv) {
	e.derive()
	e.create("lamp", "{1}")
	noted := e.note("lamp", "{2}")
	reopened := func(want string) {
		t.Helper()
		e.restart(Limits{})
		e.derive()
		got, err := e.Get(testContext(), noted.Key)
		require.NoError(t, err)
		require.Equal(t, want, string(got.Data))
		require.Greater(t, got.Rev, noted.Rev)
		f := e.watch(noted.Rev)
		require.Equal(t, got, f.read().Object)
		f.quiet()
	}
	reopened("{1}")
	e.note("lamp", "{3}")
	noted, err := e.Update(testContext(), store.Object{Key: noted.Key, Status: []byte("{stored}")}, 0)
	require.NoError(t, err)
	require.Equal(t, "{3}", string(noted.Data))
	reopened("{1}")
	e.note("lamp", "{4}")
	noted = e.update("lamp", "{5}")
	reopened("{5}")
	e.note("lamp", "{6}")
	noted, err = e.Update(testContext(), store.Object{Key: noted.Key, Status: []byte{}}, 0) // has the record of the data written
	require.NoError(t, err)
	reopened("{6}")
}
