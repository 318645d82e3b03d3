// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

func nameSet(list ...string) map[string]bool {
	set := make(map[string]bool)
	for _, name := range list {
		set[name] = true
	}
	return set
}

func TestHistoryListsChangesSinceARevision(t *testing.T) {
	h := new(deviceHistory)
	h.begin(time.UnixMilli(1), nil)
	begin := h.rev
	there := map[string]*device{"a": {}, "b": {}, "c": {}}
	h.add(nameSet("a", "b"), there)
	first := h.rev
	h.add(nameSet("c"), there)
	h.add(nil, there)
	delete(there, "b")
	more := h.wake
	tell := h.add(nameSet("a"), there)
	h.add(nameSet("b"), there)
	tell()
	<-more // who waits is told

	rev := h.rev
	changes, ok := h.since(begin)
	require.True(t, ok)
	c, a := resource.DeviceChange{Name: "c", Rev: first + 1, Added: first + 1}, resource.DeviceChange{Name: "a", Rev: first + 2}
	b := resource.DeviceChange{Name: "b", Rev: first + 3, Removed: true}
	a.Added, b.Added = changes[1].Added, changes[2].Added
	require.ElementsMatch(t, []uint64{begin + 1, begin + 2}, []uint64{a.Added, b.Added})
	require.Equal(t, []resource.DeviceChange{c, a, b}, changes, "in the order in which they changed")
	changes, ok = h.since(c.Rev)
	require.True(t, ok)
	require.Equal(t, []resource.DeviceChange{a, b}, changes)
	changes, ok = h.since(rev)
	require.True(t, ok)
	require.Empty(t, changes)
	for _, since := range []uint64{begin - 1, rev + 1} {
		_, ok = h.since(since)
		require.False(t, ok)
	}
}

// Who heard of some that one commit changed, and is cut off there, hears of the others when it comes back.
func TestHistoryTellsApartWhatChangedAtOnce(t *testing.T) {
	h := new(deviceHistory)
	h.begin(time.UnixMilli(1), nil)
	there := map[string]*device{"a": {}, "b": {}, "c": {}}
	begin := h.rev
	h.add(nameSet("a", "b", "c"), there)
	all, ok := h.since(begin)
	require.True(t, ok)
	require.Len(t, all, 3)
	for i, c := range all {
		rest, ok := h.since(c.Rev)
		require.True(t, ok)
		require.ElementsMatch(t, all[i+1:], rest)
	}
}

func TestHistoryForgetsTheGone(t *testing.T) {
	h := new(deviceHistory)
	h.begin(time.UnixMilli(1), nil)
	there := map[string]*device{"a": {}}
	h.add(nameSet("a", "never"), there)
	require.Len(t, h.elements, 1, "what never was leaves nothing")
	before := h.rev
	comeAndGo := func(name string) {
		there[name] = &device{}
		h.add(nameSet(name), there)
		delete(there, name)
		h.add(nameSet(name), there)
		h.add(nameSet(name), there)
	}
	for i := range maxRemovedDevices {
		comeAndGo(fmt.Sprintf("d%d", i))
	}
	there["d0"] = &device{} // back again, and the one before is gone all the same
	h.add(nameSet("d0"), there)
	require.Equal(t, maxRemovedDevices, h.removed)
	_, ok := h.since(before)
	require.True(t, ok)
	there["d0"] = deviceInNamespace("other") // so the one that was is gone
	h.add(nameSet("d0"), there)
	_, ok = h.since(before)
	require.False(t, ok)
	require.Len(t, h.elements, 2)
	require.Equal(t, 2, h.order.Len())
	require.Zero(t, h.removed)
	require.Equal(t, h.floor, h.revOf("a"))
}

func deviceInNamespace(namespace string) *device {
	d := &device{}
	d.bundle.Device.Metadata.Namespace = namespace
	return d
}

// One that is made again in another namespace is another one: who has the first in a cache hears that it left.
func TestHistoryKnowsWhichDeviceLeft(t *testing.T) {
	h := new(deviceHistory)
	there := map[string]*device{"moved": deviceInNamespace("a"), "left": deviceInNamespace("a"), "back": deviceInNamespace("a")}
	h.begin(time.UnixMilli(1), there)
	begin := h.rev
	is := func(since uint64, want ...resource.DeviceChange) {
		t.Helper()
		changes, ok := h.since(since)
		require.True(t, ok)
		require.Equal(t, want, changes)
	}
	is(begin)
	change := func(name string, now *device) {
		there[name] = now
		h.add(nameSet(name), there)
	}
	change("left", nil)
	left := resource.DeviceChange{Name: "left", Namespace: "a", Rev: begin + 1, Removed: true, Added: begin}
	is(begin, left)
	change("moved", deviceInNamespace("b"))
	was := resource.DeviceChange{Name: "moved", Namespace: "a", Rev: begin + 2, Removed: true, Added: begin}
	moved := resource.DeviceChange{Name: "moved", Namespace: "b", Rev: begin + 3, Added: begin + 3}
	is(begin, left, was, moved)
	is(was.Rev, moved)
	require.Equal(t, moved.Rev, h.revOf("moved"))

	change("back", nil)
	change("back", deviceInNamespace("b"))
	change("back", nil)
	change("back", deviceInNamespace("a"))
	is(moved.Rev,
		resource.DeviceChange{Name: "back", Namespace: "a", Rev: begin + 4, Removed: true, Added: begin},
		resource.DeviceChange{Name: "back", Namespace: "b", Rev: begin + 6, Removed: true, Added: begin + 5},
		resource.DeviceChange{Name: "back", Namespace: "a", Rev: begin + 7, Added: begin + 7})
	require.Equal(t, 4, h.removed)
	change("back", deviceInNamespace("a"))
	is(begin+7, resource.DeviceChange{Name: "back", Namespace: "a", Rev: begin + 8, Added: begin + 7})

	// So is one that was removed and made again at once.
	again := deviceInNamespace("a")
	again.bundle.Device.Metadata.UID = "another"
	change("back", again)
	is(begin+8,
		resource.DeviceChange{Name: "back", Namespace: "a", Rev: begin + 9, Removed: true, Added: begin + 7},
		resource.DeviceChange{Name: "back", Namespace: "a", Rev: begin + 10, Added: begin + 10, UID: "another"})
}

// Those who watch may be many, and each has something to do when it is told: who waits for a message comes first.
func TestWatchersAreWokenAfterPublishing(t *testing.T) {
	r := newJoinedRig(t)
	_, rev := r.twin.Devices()
	_, _, more, ok := r.twin.Changes(rev)
	require.True(t, ok)
	r.mu.Lock()
	r.during = func(_ broker.Message) {
		now, changes, _, _ := r.twin.Changes(rev)
		if len(changes) == 0 || now != rev+1 { // something else, or not the only change
			return
		}
		select {
		case <-more:
			t.Error("told before it was published")
		default:
		}
	}
	r.mu.Unlock()
	require.NoError(t, r.send("devices/hall/reported/temperature", "20.5"))
	<-more
}
