package store

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/link"
)

func TestForkedStoreGoesOnAboveAllThatWasGiven(t *testing.T) {
	dir := t.TempDir()
	open := func() (*Store, Snapshot) {
		s, err := Open(Options{Dir: dir, Rand: rand.Uint64})
		require.NoError(t, err)
		snap, err := s.Load()
		require.NoError(t, err)
		return s, snap
	}
	s, snap := open()
	put := func(o *link.Owner, key, value string) link.Entry {
		e, _, err := o.Put(link.Entry{Key: key, Value: []byte(value)})
		require.NoError(t, err)
		return e
	}
	put(snap.Up, "devices/d/override/p", "1")
	before := put(snap.Up, "devices/d/override/p", "2")
	require.NoError(t, s.Commit(Batch{Up: snap.Up.TakeChanges(), Floor: 7, Effective: map[string]*Effective{
		"devices/d/desired/p": {Value: []byte("2"), Ver: 5, Override: true, SourceVer: before.Ver},
		"devices/d/desired/q": {Value: []byte("x"), Ver: 6, SourceVer: 3},
	}}))
	lineage := snap.Up.Lineage()
	require.NoError(t, s.Fork(1000))
	require.NoError(t, s.Close())

	s, snap = open()
	require.Equal(t, lineage.N+1, snap.Up.Lineage().N)
	require.NotEqual(t, lineage.Nonce, snap.Up.Lineage().Nonce)
	e, ok := snap.Up.Get("devices/d/override/p")
	require.True(t, ok)
	require.Equal(t, "2", string(e.Value))
	require.Equal(t, uint64(1000)<<32|before.Ver, e.Ver)
	p, q := snap.Effective["devices/d/desired/p"], snap.Effective["devices/d/desired/q"]
	require.Equal(t, uint64(1000)<<32|5, p.Ver)
	require.Equal(t, e.Ver, p.SourceVer)
	require.Equal(t, uint64(1000)<<32|6, q.Ver)
	require.Equal(t, uint64(3), q.SourceVer, "the cloud's own version")
	require.Equal(t, uint64(1000)<<32|7, snap.Floor)
	require.Greater(t, put(snap.Up, "devices/d/reported/new", "1").Ver, uint64(1000)<<32)
	require.NoError(t, s.Close())
}

func TestReadOnlyStore(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(Options{Dir: dir, Rand: rand.Uint64, ReadOnly: true})
	require.Error(t, err)
	s, err := Open(Options{Dir: dir, Rand: rand.Uint64})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	s, err = Open(Options{Dir: dir, Rand: rand.Uint64, ReadOnly: true})
	require.NoError(t, err)
	_, err = s.Load()
	require.NoError(t, err)
	require.Error(t, s.Commit(Batch{Floor: 1}))
	require.NoError(t, s.Close())
}
