// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/broker/wal"
	"github.com/edgebus/edgebus/topics/link"
)

func fixedRand() uint64 { return 7 }

func openStore(t testing.TB, dir string, small ...sizes) *Store {
	t.Helper()
	o := Options{Dir: dir, Rand: fixedRand}
	for _, o.sizes = range small {
	}
	s, err := Open(o)
	require.NoError(t, err)
	return s
}

func loadSnapshot(t testing.TB, s *Store) Snapshot {
	t.Helper()
	snap, err := s.Load()
	require.NoError(t, err)
	return snap
}

func putValue(t testing.TB, o *link.Owner, key, value string) {
	t.Helper()
	_, _, err := o.Put(link.Entry{Key: key, Value: []byte(value)})
	require.NoError(t, err)
}

// TestDataIsOneNodes: what is there has no node in its names, and would be published under any.
func TestDataIsOneNodes(t *testing.T) {
	dir := t.TempDir()
	as := func(node string, readOnly bool) error {
		s, err := Open(Options{Dir: dir, Rand: fixedRand, Node: node, ReadOnly: readOnly})
		if err == nil {
			err = s.Close()
		}
		return err
	}
	require.NoError(t, as("", false), "as it was before it had a name")
	require.NoError(t, as("n2", true), "who only looks takes nothing")
	require.NoError(t, as("n1", false))
	linkUp(t, dir)
	for range 2 {
		require.ErrorContains(t, as("n2", false), dir+" has the data of the node n1, and node.name is n2: set node.name to n1, or give n2 another data.dir")
		require.NoError(t, as("n1", false))
		require.NoError(t, as("", true))
	}
}

// linkUp is a hub that greets the node, and has what it reports.
func linkUp(t *testing.T, dir string) {
	t.Helper()
	s := openStore(t, dir)
	defer func() { require.NoError(t, s.Close()) }()
	hub, down := link.NewOwner(link.Down, fixedRand), loadSnapshot(t, s).Down
	putValue(t, hub, "devices/lamp", "{}")
	hub.Connect(1)
	for range 5 {
		for _, m := range hub.Messages() {
			down.Step(m)
		}
		for _, m := range down.Messages() {
			require.NoError(t, hub.Step(m))
		}
	}
	require.NotZero(t, down.Lineage().N)
	require.NoError(t, s.Commit(Batch{Down: down.TakeChanges()}))
}

// A core that was started before it was configured has the host's name. As long as no hub has seen it, it may get
// another, and keeps what it has; the name that it has then is the one that counts.
func TestANodeRenamedBeforeItsFirstHubKeepsItsStore(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(Options{Dir: dir, Rand: fixedRand, Node: "raspberrypi"})
	require.NoError(t, err)
	snap := loadSnapshot(t, s)
	putValue(t, snap.Up, "mappers/modbus/state", "online")
	require.NoError(t, s.Commit(Batch{Up: snap.Up.TakeChanges()}))
	require.NoError(t, s.Close())

	s, err = Open(Options{Dir: dir, Rand: fixedRand, Node: "n1"})
	require.NoError(t, err)
	require.Equal(t, 1, loadSnapshot(t, s).Up.Len(), "its data is kept")
	require.NoError(t, s.Close())
	linkUp(t, dir)
	_, err = Open(Options{Dir: dir, Rand: fixedRand, Node: "raspberrypi"})
	require.ErrorContains(t, err, "has the data of the node n1, and node.name is raspberrypi")
}

func TestCommittedDataIsLoadedAgain(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	snap := loadSnapshot(t, s)
	for _, e := range []link.Entry{
		{Key: "a", Value: []byte("1"), TS: 5, Origin: "x", Meta: link.Meta{For: 3, Until: 9}},
		{Key: "b", Value: []byte{}},
		{Key: "c", Value: []byte("3")},
	} {
		_, _, err := snap.Up.Put(e)
		require.NoError(t, err)
	}
	snap.Up.Delete("c", 6, "")
	in := map[string]*Effective{"d": {Value: []byte("ON"), Ver: 4, SourceVer: 2}, "e": {None: true, Ver: 2}}
	require.NoError(t, s.Commit(Batch{Up: snap.Up.TakeChanges(), Effective: in, Floor: 12}))
	require.NoError(t, s.Check())
	require.NoError(t, s.Close())

	s = openStore(t, dir)
	defer s.Close()
	again := loadSnapshot(t, s)
	require.Equal(t, snap.Up.Digest(), again.Up.Digest())
	require.Equal(t, snap.Up.Seq(), again.Up.Seq())
	require.Equal(t, snap.Up.Lineage(), again.Up.Lineage())
	e, ok := again.Up.Get("a")
	require.True(t, ok)
	require.Equal(t, link.Meta{For: 3, Until: 9}, e.Meta)
	require.Equal(t, in, again.Effective)
	require.Equal(t, uint64(12), again.Floor)

	require.NoError(t, s.Commit(Batch{Effective: map[string]*Effective{"d": nil, "never was": nil}}))
	require.NotContains(t, loadSnapshot(t, s).Effective, "d")
}

func TestCommitWithoutLoading(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	require.NoError(t, s.Commit(Batch{Effective: map[string]*Effective{"d": {Ver: 1}}}))
	require.NoError(t, s.Close())
	s = openStore(t, dir)
	defer s.Close()
	require.NoError(t, s.Commit(Batch{Effective: map[string]*Effective{"d": {Ver: 2}}}))
	require.Equal(t, map[string]*Effective{"d": {Ver: 2}}, loadSnapshot(t, s).Effective)
}

func TestAMapThatBeginsAnewReplacesTheOld(t *testing.T) {
	s := openStore(t, t.TempDir())
	defer s.Close()
	first := loadSnapshot(t, s).Up
	putValue(t, first, "a", "1")
	putValue(t, first, "b", "2")
	require.NoError(t, s.Commit(Batch{Up: first.TakeChanges()}))
	second := link.NewOwner(link.Up, fixedRand)
	putValue(t, second, "b", "3")
	require.NoError(t, s.Commit(Batch{Up: second.TakeChanges()}))
	again := loadSnapshot(t, s).Up
	require.Equal(t, []string{"b"}, again.Keys(""))
	require.Equal(t, second.Digest(), again.Digest())
}

func TestOneCoreADirectory(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	defer s.Close()
	_, err := Open(Options{Dir: dir, Rand: fixedRand})
	require.ErrorContains(t, err, "in use by another process")
	require.ErrorContains(t, err, filepath.Join(dir, DirName))
}

func TestAnotherFormatIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	require.NoError(t, s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyFormat, []byte("edgebus-core/99")) }))
	require.NoError(t, s.Close())
	_, err := Open(Options{Dir: dir, Rand: fixedRand})
	require.ErrorContains(t, err, `"edgebus-core/99"; this program reads "edgebus-core/1": move the directory away`)
	require.ErrorContains(t, err, filepath.Join(dir, DirName, fileName))
}

func TestALogOfSomethingElseIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	_, err := s.log.Append(append(make([]byte, wal.HeadSize), "what a broker keeps"...))
	require.NoError(t, err)
	s.checkpoint.failing = true // a clean end would find it
	require.NoError(t, s.Close())
	_, err = Open(Options{Dir: dir, Rand: fixedRand})
	require.ErrorContains(t, err, filepath.Join(dir, DirName))
}

// What can't be made good by the rest is refused, and named.
func TestMissingFiles(t *testing.T) {
	for name, spoil := range map[string]func(s *Store) string{
		"database": func(s *Store) string { return s.file().Path },
		"log": func(s *Store) string {
			_, newest := s.log.Segments()
			return s.log.Path(newest)
		},
	} {
		for what, checkpoint := range map[string]bool{"after a checkpoint": true, "before any": false} {
			t.Run(name+" "+what, func(t *testing.T) {
				dir := t.TempDir()
				s := openStore(t, dir)
				require.NoError(t, s.Commit(Batch{Floor: 3}))
				s.checkpoint.failing = !checkpoint
				require.NoError(t, s.Close())
				path := spoil(s)
				require.NoError(t, os.Remove(path))
				for _, ro := range []bool{true, false} {
					_, err := Open(Options{Dir: dir, Rand: fixedRand, ReadOnly: ro})
					require.ErrorContains(t, err, path+" is missing")
				}
			})
		}
	}
}

func TestDamageIsNamed(t *testing.T) {
	const key = "devices/lamp/reported/power"
	stored := func(t *testing.T) *Store {
		s := openStore(t, t.TempDir())
		t.Cleanup(func() { _ = s.Close() })
		up := loadSnapshot(t, s).Up
		putValue(t, up, key, "ON")
		require.NoError(t, s.Commit(Batch{Up: up.TakeChanges()}))
		return s
	}
	check := func(t *testing.T, s *Store) {
		_, err := s.Load()
		require.ErrorContains(t, err, key)
		require.ErrorContains(t, err, s.dir())
	}
	t.Run("log", func(t *testing.T) {
		s := stored(t)
		const entryOfTomorrow = 99
		_, err := s.log.Append(appendPut(make([]byte, wal.HeadSize), kindUp, key, []byte{entryOfTomorrow}))
		require.NoError(t, err)
		check(t, s)
	})
	t.Run("database", func(t *testing.T) {
		s := stored(t)
		require.NoError(t, s.checkpoint.finish())
		require.NoError(t, s.db.Update(func(tx *bbolt.Tx) error {
			b := tx.Bucket(buckets[kindUp])
			value := bytes.Clone(b.Get([]byte(key)))
			value[len(value)-1] ^= 4
			return b.Put([]byte(key), value)
		}))
		check(t, s)
	})
}

func FuzzRecords(f *testing.F) {
	f.Add(appendPut(nil, kindUp, "devices/lamp/reported/power", []byte("ON")))
	f.Add(appendHead(appendHead(nil, opClear, kindDown, ""), opDelete, kindEffective, "x"))
	f.Add([]byte{opPut, kindUp, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		again := []byte{}
		for rest := b; len(rest) > 0; {
			r, more, err := nextRecord(rest)
			if err != nil {
				require.Error(t, new(changes).take(b))
				return
			}
			if rest = more; r.op == opPut {
				again = appendPut(again, r.kind, string(r.key), r.body)
			} else {
				again = appendHead(again, r.op, r.kind, string(r.key))
			}
		}
		require.NoError(t, new(changes).take(b))
		require.LessOrEqual(t, len(again), len(b), "lengths may be written longer than need be")
		require.NoError(t, new(changes).take(again))
	})
}

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
