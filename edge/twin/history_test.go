package twin

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	_, _, _, more, _ := tw.Changes(h.rev)
	h.add(names("a", "b"), there)
	<-more // who waits is told

	rev, changed, gone, _, ok := tw.Changes(begin)
	require.True(t, ok)
	require.Equal(t, h.rev, rev)
	require.Equal(t, []string{"a", "c"}, changed)
	require.Equal(t, []string{"b"}, gone)
	_, changed, gone, _, ok = tw.Changes(first + 1)
	require.True(t, ok)
	require.Equal(t, []string{"a"}, changed)
	require.Equal(t, []string{"b"}, gone)
	_, changed, gone, _, ok = tw.Changes(rev)
	require.True(t, ok)
	require.Empty(t, changed)
	require.Empty(t, gone)
	for _, since := range []uint64{begin - 1, rev + 1} {
		_, _, _, _, ok = tw.Changes(since)
		require.False(t, ok)
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
	_, _, _, _, ok := tw.Changes(before)
	require.True(t, ok)
	h.add(names("another"), there)
	_, _, _, _, ok = tw.Changes(before)
	require.False(t, ok)
	require.Len(t, h.places, 2)
	require.Equal(t, h.floor, h.of("a"))
}
