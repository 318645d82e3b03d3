package twin

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

func names(list ...string) map[string]bool {
	set := make(map[string]bool)
	for _, name := range list {
		set[name] = true
	}
	return set
}

func TestHistoryTellsWhatChangedSince(t *testing.T) {
	tw := &Twin{}
	h := &tw.history
	h.begin(time.UnixMilli(1))
	begin := h.rev
	there := map[string]*device{"a": {}, "b": {}, "c": {}}
	h.add(names("a", "b"), there)
	first := h.rev
	h.add(names("c"), there)
	h.add(nil, there)
	delete(there, "b")
	_, _, more, _ := tw.Changes(h.rev)
	tell := h.add(names("a"), there)
	h.add(names("b"), there)
	tell()
	<-more // who waits is told

	rev, changes, _, ok := tw.Changes(begin)
	require.True(t, ok)
	require.Equal(t, h.rev, rev)
	c, a, b := resource.Change{Name: "c", Rev: first + 1}, resource.Change{Name: "a", Rev: first + 2}, resource.Change{Name: "b", Rev: first + 3, Gone: true}
	require.Equal(t, []resource.Change{c, a, b}, changes, "in the order in which they changed")
	_, changes, _, ok = tw.Changes(c.Rev)
	require.True(t, ok)
	require.Equal(t, []resource.Change{a, b}, changes)
	_, changes, _, ok = tw.Changes(rev)
	require.True(t, ok)
	require.Empty(t, changes)
	for _, since := range []uint64{begin - 1, rev + 1} {
		_, _, _, ok = tw.Changes(since)
		require.False(t, ok)
	}
}

// Who heard of some that one commit changed, and is cut off there, hears of the others when it comes back.
func TestHistoryTellsApartWhatChangedAtOnce(t *testing.T) {
	tw := &Twin{}
	h := &tw.history
	h.begin(time.UnixMilli(1))
	there := map[string]*device{"a": {}, "b": {}, "c": {}}
	begin := h.rev
	h.add(names("a", "b", "c"), there)
	_, all, _, ok := tw.Changes(begin)
	require.True(t, ok)
	require.Len(t, all, 3)
	for i, c := range all {
		_, rest, _, ok := tw.Changes(c.Rev)
		require.True(t, ok)
		require.ElementsMatch(t, all[i+1:], rest)
	}
}

func TestHistoryForgetsTheGone(t *testing.T) {
	tw := &Twin{}
	h := &tw.history
	h.begin(time.UnixMilli(1))
	there := map[string]*device{"a": {}}
	h.add(names("a", "d0"), there)
	before := h.rev
	there["d0"] = &device{} // back again: not gone
	for i := range maxGone + 1 {
		h.add(names(fmt.Sprintf("d%d", i)), there)
	}
	require.Equal(t, maxGone, h.gone)
	_, _, _, ok := tw.Changes(before)
	require.True(t, ok)
	h.add(names("another"), there)
	_, _, _, ok = tw.Changes(before)
	require.False(t, ok)
	require.Len(t, h.places, 2)
	require.Equal(t, h.floor, h.of("a"))
}

// Those who watch may be many, and each has something to do when it is told: who waits for a message comes first.
func TestWhoWatchesIsToldLast(t *testing.T) {
	r := joined(t)
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
