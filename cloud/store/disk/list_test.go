// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// newPagedStore is a store with two objects, whose size is given, and a way to change one of them.
func newPagedStore(t *testing.T, size int, most uint64) (s *Store, change func()) {
	t.Helper()
	s, err := Open(Options{Path: filepath.Join(t.TempDir(), "log"), MaxPinned: most})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	for _, name := range []string{"a", "b"} {
		_, err := s.Create(t.Context(), store.Object{Key: store.Key{Kind: "Node", Name: name}, Data: []byte("{}")})
		require.NoError(t, err)
	}
	i := 0
	return s, func() {
		i++
		_, err := s.Update(t.Context(), store.Object{Key: store.Key{Kind: "Node", Name: "a"}, Data: fmt.Appendf(nil, `{"a":"%0*d"}`, size, i)}, 0)
		require.NoError(t, err)
	}
}

// beginPaging reads a first page; goesOn says whether the second can be read.
func beginPaging(t *testing.T, s *Store, reader string) (goesOn func() bool) {
	t.Helper()
	page, err := s.List(t.Context(), "Node", store.ListOptions{Limit: 1, Reader: reader})
	require.NoError(t, err)
	require.Equal(t, 1, page.More)
	return func() bool {
		next, err := s.List(t.Context(), "Node", store.ListOptions{Limit: 1, Reader: reader, Rev: page.Rev, After: page.Items[0].Key})
		if err != nil {
			require.ErrorIs(t, err, resource.Gone)
			return false
		}
		require.Equal(t, "b", next.Items[0].Name)
		return true
	}
}

// However many lists somebody begins, others' go on.
func TestAReadersPagesPushOutOnlyItsOwn(t *testing.T) {
	s, change := newPagedStore(t, 1, 0)
	bob := beginPaging(t, s, "bob")
	var vic []func() bool
	for range 3 * maxPins {
		change()
		vic = append(vic, beginPaging(t, s, "vic"))
	}
	require.True(t, bob())
	require.Len(t, s.pins, maxPinsPerReader+1)
	for i, goesOn := range vic[:len(vic)-1] { // the last one is of the newest revision
		require.Equal(t, i >= len(vic)-maxPinsPerReader, goesOn(), i)
	}
	for i := range 3 * maxPins {
		change()
		beginPaging(t, s, fmt.Sprint("reader ", i))
	}
	require.LessOrEqual(t, len(s.pins), maxPins)
}

// What lists keep in memory beside the newest versions is bounded in bytes.
func TestPagesAreBoundedInBytes(t *testing.T) {
	s, change := newPagedStore(t, 100_000, 1<<20)
	change()
	old := beginPaging(t, s, "bob")
	for range 6 {
		change()
	}
	newer := beginPaging(t, s, "ann")
	require.True(t, old())
	for range 6 {
		change()
	}
	require.False(t, old(), "twelve versions of 100 kB are more than a megabyte")
	require.True(t, newer())
	for range 6 {
		change()
	}
	require.False(t, newer())
	require.Empty(t, s.pins)
}
