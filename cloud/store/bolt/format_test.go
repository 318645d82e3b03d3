package bolt

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/cloud/store"
)

func TestNotAStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hub.db")
	require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("not a store "), 4096), 0o600))
	_, err := Open(Options{Path: path})
	require.ErrorContains(t, err, path)

	other := filepath.Join(t.TempDir(), "other.db")
	db, err := bbolt.Open(other, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket(bucketMeta)
		if err != nil {
			return err
		}
		return b.Put([]byte("x"), []byte("y"))
	}))
	require.NoError(t, db.Close())
	_, err = Open(Options{Path: other})
	require.ErrorContains(t, err, other)
}

func FuzzDecode(f *testing.F) {
	f.Add(encodeRecord(1, 2, []byte("{}"))[4:])
	f.Fuzz(func(t *testing.T, body []byte) {
		if created, rev, value, err := decodeRecord(body); err == nil {
			require.Equal(t, body, encodeRecord(created, rev, value)[4:])
		}
	})
}

// changeFile changes a file that nobody has open.
func changeFile(t *testing.T, path string, change func(tx *bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true})
	require.NoError(t, err)
	require.NoError(t, db.Update(change))
	require.NoError(t, db.Close())
}

// A file of another format says so, and is left as it is.
func TestFilesOfAnotherFormat(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hub.db")
	require.NoError(t, openStore(t, Options{Path: path}).Close())
	changeFile(t, path, func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyVersion, encodeNumber(formatVersion+1)) })
	_, err := Open(Options{Path: path})
	require.ErrorContains(t, err, path+" is of another version of this program")
	require.ErrorContains(t, err, "cloudhub take-authority "+filepath.Dir(path))
	require.NotContains(t, err.Error(), "damaged")
	require.ErrorContains(t, err, fmt.Sprintf("its format is %d, this program reads %d", formatVersion+1, formatVersion))
	changeFile(t, path, func(tx *bbolt.Tx) error {
		require.Equal(t, uint64(formatVersion+1), formatOf(tx))
		return nil
	})
}

// Damage of what a node reported is found when the file is opened.
func TestDamagedReports(t *testing.T) {
	for bucket, key := range map[string]string{"reported": "n1\x00level", "replicas": "n1"} {
		path := filepath.Join(t.TempDir(), "hub.db")
		s, err := Open(Options{Path: path})
		require.NoError(t, err)
		change := store.NodeChange{Node: "n1", Meta: []byte("meta"), Put: []store.ReplicaItem{{Key: "level", Value: []byte("12")}}}
		require.NoError(t, s.Commit(t.Context(), []store.NodeChange{change}))
		require.NoError(t, s.Close())
		changeFile(t, path, func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte(bucket))
			bad := append([]byte(nil), b.Get([]byte(key))...)
			bad[len(bad)-1] ^= 4
			return b.Put([]byte(key), bad)
		})
		for _, look := range []bool{true, false} {
			_, err = Open(Options{Path: path, ReadOnly: look})
			require.ErrorContains(t, err, path+" is damaged: what node n1 reported: ")
			require.ErrorContains(t, err, "restore it from a backup")
			require.ErrorIs(t, err, errRecord)
		}
	}
}
