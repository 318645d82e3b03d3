package bolt

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestForkedRevisionsGoOnAbove(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hub.db")
	s := openStore(t, Options{Path: path})
	for _, name := range []string{"a", "b", "gone"} {
		_, err := s.Create(ctx, device(name, `{}`))
		require.NoError(t, err)
	}
	_, err := s.Delete(ctx, device("gone", "").Key, 0)
	require.NoError(t, err)
	_, before := s.Counts()
	require.NoError(t, s.Close())

	require.NoError(t, Fork(path, func(rev uint64) uint64 { return rev + 1<<32 }))
	s = openStore(t, Options{Path: path})
	objects, rev := s.Counts()
	require.Equal(t, map[string]int{"Device": 2}, objects)
	require.Equal(t, before+1<<32, rev)
	_, err = s.Watch(ctx, store.Key{Kind: "Device"}, before)
	require.ErrorIs(t, err, resource.Gone, "who watched must list again")
	page, err := s.List(ctx, "Device", store.ListOptions{})
	require.NoError(t, err)
	w, err := s.Watch(ctx, store.Key{Kind: "Device"}, page.Rev)
	require.NoError(t, err)
	w.Close()
	made, err := s.Create(ctx, device("new", `{}`))
	require.NoError(t, err)
	require.Greater(t, made.Rev, rev)
	require.NoError(t, s.Check())
}

func TestReadOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hub.db")
	_, err := Open(Options{Path: path, ReadOnly: true})
	require.ErrorIs(t, err, os.ErrNotExist)
	s := openStore(t, Options{Path: path})
	_, err = s.Create(ctx, device("a", `{}`))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	was, err := os.ReadFile(path)
	require.NoError(t, err)
	s, err = Open(Options{Path: path, ReadOnly: true})
	require.NoError(t, err)
	require.NoError(t, s.Check())
	_, err = s.Get(ctx, device("a", "").Key)
	require.NoError(t, err)
	_, err = s.Create(ctx, device("b", `{}`))
	require.ErrorIs(t, err, resource.Unavailable)
	require.NoError(t, s.Close())
	is, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, was, is)
}
