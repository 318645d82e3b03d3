package store

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/topics/link"
)

func seven() uint64 { return 7 }

func open(t *testing.T, dir string) *Store {
	s, err := Open(dir, seven)
	require.NoError(t, err)
	return s
}

func TestWhatIsCommittedIsThereAgain(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	snap, err := s.Load()
	require.NoError(t, err)
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
	again, err := s.Load()
	require.NoError(t, err)
	require.Equal(t, snap.Up.Digest(), again.Up.Digest())
	require.Equal(t, snap.Up.Seq(), again.Up.Seq())
	require.Equal(t, snap.Up.Lineage(), again.Up.Lineage())
	e, ok := again.Up.Get("a")
	require.True(t, ok)
	require.Equal(t, link.Meta{For: 3, Until: 9}, e.Meta)
	require.Equal(t, in, again.Effective)
	require.Equal(t, uint64(12), again.Floor)

	require.NoError(t, s.Commit(Batch{Effective: map[string]*Effective{"d": nil}}))
	again, err = s.Load()
	require.NoError(t, err)
	require.NotContains(t, again.Effective, "d")
}

func TestOneCoreADirectory(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	defer s.Close()
	_, err := Open(dir, seven)
	require.ErrorContains(t, err, "in use by another process")
	require.ErrorContains(t, err, filepath.Join(dir, FileName))
}

func TestAnotherFormatIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	require.NoError(t, s.db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketMeta).Put(keyFormat, []byte("edgebus-core/99"))
	}))
	require.NoError(t, s.Close())
	_, err := Open(dir, seven)
	require.ErrorContains(t, err, "edgebus-core/99")
}

func TestDamageIsNamed(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	defer s.Close()
	snap, err := s.Load()
	require.NoError(t, err)
	_, _, err = snap.Up.Put(link.Entry{Key: "devices/lamp/reported/power", Value: []byte("ON")})
	require.NoError(t, err)
	require.NoError(t, s.Commit(Batch{Up: snap.Up.TakeJournal()}))
	require.NoError(t, s.db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketUp).Put([]byte("devices/lamp/reported/power"), []byte{entryOfTomorrow})
	}))
	_, err = s.Load()
	require.ErrorContains(t, err, "devices/lamp/reported/power")
	require.ErrorContains(t, err, FileName)
}

// entryOfTomorrow is a format that this program doesn't know.
const entryOfTomorrow = 99

func TestAFileThatIsNoDatabase(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, FileName), []byte("not a database, but long enough to be looked at"), 0o600))
	_, err := Open(dir, seven)
	require.ErrorContains(t, err, FileName)
}
