// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"context"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/cloud/store"
)

// A watch that goes on from long ago holds a part of what has changed, and is told of all: also of what changes and goes while it catches up.
func TestAWatchThatCatchesUpHoldsAPartOfIt(t *testing.T) {
	s, err := Open(Options{Path: filepath.Join(t.TempDir(), "log")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	const objects = 2*maxBacklog + 100
	key := func(i int) store.Key { return store.Key{Kind: "Node", Name: "n" + strconv.Itoa(i)} }
	var creating errgroup.Group
	creating.SetLimit(512)
	for i := range objects {
		creating.Go(func() error {
			_, err := s.Create(t.Context(), store.Object{Key: key(i), Data: []byte("{}")})
			return err
		})
	}
	require.NoError(t, creating.Wait())
	watch, err := s.Watch(t.Context(), store.Key{Kind: "Node"}, 0)
	require.NoError(t, err)
	defer watch.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	told := make(map[store.Key]store.Event)
	last := uint64(0)
	next := func() {
		events, err := watch.Next(ctx)
		require.NoError(t, err)
		for _, e := range events {
			require.Greater(t, e.Object.Rev, last)
			last = e.Object.Rev
			told[e.Object.Key] = e
		}
		require.LessOrEqual(t, cap(watch.(*stream).backlog), 2*maxBacklog)
	}
	next()
	require.Equal(t, last, watch.Rev(), "who goes on from there misses nothing")
	var first store.Key
	for first = range told {
		break
	}
	changed, err := s.Update(t.Context(), store.Object{Key: first, Data: []byte(`{"a":1}`)}, 0)
	require.NoError(t, err)
	for i := range objects { // one that it hasn't been told of
		if _, is := told[key(i)]; !is {
			_, err = s.Delete(t.Context(), key(i), 0)
			require.NoError(t, err)
			break
		}
	}
	fresh, err := s.Create(t.Context(), store.Object{Key: key(objects), Data: []byte("{}")})
	require.NoError(t, err)
	for last < fresh.Rev {
		next()
	}
	require.Equal(t, changed, told[first].Object)
	require.Equal(t, store.Modified, told[first].Type)
	require.Equal(t, store.Added, told[fresh.Key].Type)
	left := 0
	for _, e := range told {
		if e.Type != store.Deleted {
			left++
		}
	}
	require.Equal(t, objects, left, "all but one, and the one that was made")
	require.Equal(t, fresh.Rev, watch.Rev())
	_, err = s.Update(t.Context(), store.Object{Key: first, Data: []byte(`{"a":2}`)}, 0)
	require.NoError(t, err)
	next()
	require.JSONEq(t, `{"a":2}`, string(told[first].Object.Data))
}
