// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/test/storetest"
	"github.com/edgebus/edgebus/topics/resource"
)

var ctx = context.Background()

func device(name, data string) store.Object {
	return store.Object{Key: store.Key{Kind: "Device", Namespace: "default", Name: name}, Data: []byte(data)}
}

func TestTooMuch(t *testing.T) {
	s := openStore(t, Options{Path: filepath.Join(t.TempDir(), "log"), MaxObject: 100, MaxWatchers: 1})
	_, err := s.Create(ctx, device("a", string(make([]byte, 101))))
	require.ErrorIs(t, err, resource.TooLarge)
	w, err := s.Watch(ctx, store.Key{Kind: "Device"}, 0)
	require.NoError(t, err)
	_, err = s.Watch(ctx, store.Key{Kind: "Device"}, 0)
	require.ErrorIs(t, err, resource.Quota)
	w.Close()
	w.Close()
	w, err = s.Watch(ctx, store.Key{Kind: "Device"}, 0)
	require.NoError(t, err)
	w.Close()
}

// The log of a busy object is swept: it doesn't grow with the number of writes.
func TestLogIsBounded(t *testing.T) {
	s := new(Store)
	s.snap.Store(&snapshot{tables: map[string]*table{}})
	b := s.newBatch()
	_, err := b.create(device("a", "0"))
	require.NoError(t, err)
	for i := range 20_000 {
		_, err := b.update(device("a", fmt.Sprint(i+1)), 0, true)
		require.NoError(t, err)
		if i%100 == 0 {
			b.compact(10)
			s.snap.Store(&b.next)
			b = s.newBatch()
		}
	}
	require.Less(t, len(b.next.table("Device").log), 2*staleAllowed)
	require.Len(t, b.next.table("Device").since(0, 2), 1)
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t testing.TB, dir string, limits storetest.Limits) store.Store {
		return openStore(t, Options{
			Path:       filepath.Join(dir, "log"),
			Tombstones: limits.Tombstones, WatchBuffer: limits.WatchBuffer,
		})
	})
}

func openStore(t testing.TB, opts Options) *Store {
	t.Helper()
	opts.Log = zerolog.New(zerolog.NewTestWriter(t))
	s, err := Open(opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func fork(t *testing.T, path string, by uint64) {
	t.Helper()
	s := openStore(t, Options{Path: path})
	require.NoError(t, s.Fork(func(rev uint64) uint64 { return rev + by }))
	require.NoError(t, s.Close())
}

func TestForkedRevisionsGoOnAbove(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	s := openStore(t, Options{Path: path})
	for _, name := range []string{"a", "b", "gone"} {
		_, err := s.Create(ctx, device(name, `{}`))
		require.NoError(t, err)
	}
	_, err := s.Delete(ctx, device("gone", "").Key, 0)
	require.NoError(t, err)
	_, before := s.Counts()
	require.NoError(t, s.Close())

	fork(t, path, 1<<32)
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
	path := filepath.Join(t.TempDir(), "log")
	_, err := Open(Options{Path: path, ReadOnly: true})
	require.ErrorIs(t, err, os.ErrNotExist)
	s := openStore(t, Options{Path: path})
	_, err = s.Create(ctx, device("a", `{}`))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	was := readDir(t, path)
	s, err = Open(Options{Path: path, ReadOnly: true})
	require.NoError(t, err)
	require.NoError(t, s.Check())
	_, err = s.Get(ctx, device("a", "").Key)
	require.NoError(t, err)
	_, err = s.Create(ctx, device("b", `{}`))
	require.ErrorIs(t, err, resource.Unavailable)
	require.NoError(t, s.Close())
	require.Equal(t, was, readDir(t, path))
}

// readDir reads all files of a directory.
func readDir(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		files[e.Name()] = string(text)
	}
	return files
}

func readIdentity(t *testing.T, path string, readOnly bool) (id uint32) {
	t.Helper()
	s, err := Open(Options{Path: path, ReadOnly: readOnly})
	require.NoError(t, err)
	id = s.Identity()
	require.NoError(t, s.Close())
	return id
}

func TestIdentity(t *testing.T) {
	path, other := filepath.Join(t.TempDir(), "log"), filepath.Join(t.TempDir(), "log")
	id := readIdentity(t, path, false)
	require.NotZero(t, id)
	another := readIdentity(t, other, false)
	require.NotEqual(t, id, another)

	fork(t, path, 1)
	again := readIdentity(t, path, true)
	require.Equal(t, id, again, "who restores a backup is the same")
}
