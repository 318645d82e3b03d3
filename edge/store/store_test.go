package store

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/topics/link"
)

func seven() uint64 { return 7 }

func open(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(Options{Dir: dir, Rand: seven})
	require.NoError(t, err)
	return s
}

func load(t testing.TB, s *Store) Snapshot {
	t.Helper()
	snap, err := s.Load()
	require.NoError(t, err)
	return snap
}

func put(t testing.TB, o *link.Owner, key, value string) {
	t.Helper()
	_, _, err := o.Put(link.Entry{Key: key, Value: []byte(value)})
	require.NoError(t, err)
}

func TestWhatIsCommittedIsThereAgain(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	snap := load(t, s)
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
	require.NoError(t, s.Commit(Batch{Up: snap.Up.TakeJournal(), Effective: in, Floor: 12}))
	require.NoError(t, s.Check())
	require.NoError(t, s.Close())

	s = open(t, dir)
	defer s.Close()
	again := load(t, s)
	require.Equal(t, snap.Up.Digest(), again.Up.Digest())
	require.Equal(t, snap.Up.Seq(), again.Up.Seq())
	require.Equal(t, snap.Up.Lineage(), again.Up.Lineage())
	e, ok := again.Up.Get("a")
	require.True(t, ok)
	require.Equal(t, link.Meta{For: 3, Until: 9}, e.Meta)
	require.Equal(t, in, again.Effective)
	require.Equal(t, uint64(12), again.Floor)

	require.NoError(t, s.Commit(Batch{Effective: map[string]*Effective{"d": nil, "never was": nil}}))
	require.NotContains(t, load(t, s).Effective, "d")
}

// A store that nobody loads finds by itself which records its keys have.
func TestCommitWithoutLoading(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	require.NoError(t, s.Commit(Batch{Effective: map[string]*Effective{"d": {Ver: 1}}}))
	require.NoError(t, s.Close())
	s = open(t, dir)
	defer s.Close()
	require.NoError(t, s.Commit(Batch{Effective: map[string]*Effective{"d": {Ver: 2}}}))
	require.Equal(t, map[string]*Effective{"d": {Ver: 2}}, load(t, s).Effective)
}

func TestAMapThatBeginsAnewReplacesTheOld(t *testing.T) {
	s := open(t, t.TempDir())
	defer s.Close()
	first := load(t, s).Up
	put(t, first, "a", "1")
	put(t, first, "b", "2")
	require.NoError(t, s.Commit(Batch{Up: first.TakeJournal()}))
	second := link.NewOwner(link.Up, seven)
	put(t, second, "b", "3")
	require.NoError(t, s.Commit(Batch{Up: second.TakeJournal()}))
	again := load(t, s).Up
	require.Equal(t, []string{"b"}, again.Keys(""))
	require.Equal(t, second.Digest(), again.Digest())
}

func TestOneCoreADirectory(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	defer s.Close()
	_, err := Open(Options{Dir: dir, Rand: seven})
	require.ErrorContains(t, err, "in use by another process")
	require.ErrorContains(t, err, filepath.Join(dir, DirName))
}

func TestAnotherFormatIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	require.NoError(t, s.journal.Sync([]journal.Change{{ID: recordFormat, Value: appendRecord(nil, kindFormat, "", []byte("edgebus-core/99"))}}))
	require.NoError(t, s.Close())
	_, err := Open(Options{Dir: dir, Rand: seven})
	require.ErrorContains(t, err, "edgebus-core/99")
	require.ErrorContains(t, err, filepath.Join(dir, DirName))
}

func TestAJournalOfSomethingElseIsRefused(t *testing.T) {
	dir := t.TempDir()
	j, err := journal.Open(journal.Options{Dir: filepath.Join(dir, DirName)})
	require.NoError(t, err)
	done := make(chan error, 1)
	j.Commit([]journal.Change{{ID: 99, Value: []byte("what a broker keeps")}}, func(err error) { done <- err })
	require.NoError(t, <-done)
	require.NoError(t, j.Close())
	_, err = Open(Options{Dir: dir, Rand: seven})
	require.ErrorContains(t, err, filepath.Join(dir, DirName))
}

func TestTheOldFormatIsNamed(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, oldFormat), nil, 0o600))
	_, err := Open(Options{Dir: dir, Rand: seven})
	require.ErrorContains(t, err, filepath.Join(dir, oldFormat))
}

func TestDamageIsNamed(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	defer s.Close()
	up := load(t, s).Up
	put(t, up, "devices/lamp/reported/power", "ON")
	require.NoError(t, s.Commit(Batch{Up: up.TakeJournal()}))
	const entryOfTomorrow = 99
	require.NoError(t, s.journal.Sync([]journal.Change{{ID: firstKey, Value: appendRecord(nil, kindUp, "devices/lamp/reported/power", []byte{entryOfTomorrow})}}))
	_, err := s.Load()
	require.ErrorContains(t, err, "devices/lamp/reported/power")
	require.ErrorContains(t, err, filepath.Join(dir, DirName))
}

func FuzzRecord(f *testing.F) {
	f.Add(appendRecord(nil, kindUp, "devices/lamp/reported/power", []byte("ON")))
	f.Add([]byte{kindUp, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		kind, key, body, err := parseRecord(b)
		if err != nil {
			return
		}
		again, key2, body2, err := parseRecord(appendRecord(nil, kind, string(key), body))
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(kind, key, body), fmt.Sprint(again, key2, body2))
	})
}
