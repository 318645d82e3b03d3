package bolt

import (
	"fmt"
	"maps"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/cloud/store"
)

// raw changes a file that nobody has open.
func raw(t *testing.T, path string, change func(tx *bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(change))
	require.NoError(t, db.Close())
}

// ofVersion1 makes a file as it was before what nodes reported had checksums.
func ofVersion1(t *testing.T, path string, nodes, up map[string]string) {
	t.Helper()
	s, err := Open(Options{Path: path})
	require.NoError(t, err)
	_, err = s.Create(t.Context(), store.Object{Key: store.Key{Kind: "Device", Name: "lamp"}, Data: []byte("{}")})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	raw(t, path, func(tx *bbolt.Tx) error {
		for from, to := range map[string][]byte{"replicas": bucketNodes1, "reported": bucketUp1} {
			require.NoError(t, tx.DeleteBucket([]byte(from)))
			b, err := tx.CreateBucket(to)
			require.NoError(t, err)
			for k, v := range map[string]map[string]string{"replicas": nodes, "reported": up}[from] {
				require.NoError(t, b.Put([]byte(k), []byte(v)))
			}
		}
		require.NoError(t, tx.Bucket(bucketMeta).Delete(keyIdentity))
		return tx.Bucket(bucketMeta).Put(keyVersion, number(formatFirst))
	})
}

func reports(t *testing.T, s *Store) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for r, err := range s.All(t.Context()) {
		require.NoError(t, err)
		found[r.Node] = string(r.Meta)
		for _, item := range r.Items {
			found[r.Node+"\x00"+item.Key] = string(item.Value)
		}
	}
	return found
}

// A file of version 1 is read as it is by who only looks, and brought up to date by who
// opens it, also when that was interrupted before.
func TestFilesOfVersion1(t *testing.T) {
	nodes, up := map[string]string{"n1": "meta", "n2": ""}, map[string]string{"n2\x00empty": ""}
	for i := range 20 {
		up[fmt.Sprintf("n1\x00key/%d", i)] = fmt.Sprint(i)
	}
	all := maps.Clone(nodes)
	maps.Copy(all, up)
	for _, step := range []int{1, 30, upgradeStep} {
		path := filepath.Join(t.TempDir(), "hub.db")
		ofVersion1(t, path, nodes, up)
		raw(t, path, func(tx *bbolt.Tx) error { // as an upgrade that was interrupted leaves it
			b, err := tx.CreateBucket(bucketReported)
			require.NoError(t, err)
			return b.Put([]byte("n9\x00left"), []byte("over"))
		})
		s, err := Open(Options{Path: path, ReadOnly: true})
		require.NoError(t, err)
		require.NoError(t, s.Check())
		require.Equal(t, all, reports(t, s))
		require.NoError(t, s.Close())
		db, err := openFile(Options{Path: path})
		require.NoError(t, err)
		require.NoError(t, upgrade(db, Options{Path: path}, step))
		require.NoError(t, db.Close())
		upToDate(t, path, all)
	}
}

func upToDate(t *testing.T, path string, all map[string]string) {
	t.Helper()
	s, err := Open(Options{Path: path})
	require.NoError(t, err)
	require.NoError(t, s.Check())
	require.Equal(t, all, reports(t, s))
	_, err = s.Get(t.Context(), store.Key{Kind: "Device", Name: "lamp"})
	require.NoError(t, err)
	change := store.NodeChange{Node: "n2", Put: []store.Item{{Key: "more", Value: []byte("1")}}, Delete: []string{"empty"}}
	require.NoError(t, s.Commit(t.Context(), []store.NodeChange{change}))
	require.NoError(t, s.Check())
	require.NoError(t, s.Close())
	raw(t, path, func(tx *bbolt.Tx) error {
		require.Nil(t, tx.Bucket(bucketUp1))
		require.Nil(t, tx.Bucket(bucketNodes1))
		require.Equal(t, uint64(formatVersion), version(tx))
		return nil
	})
}

// A file of a later version says so, and is left as it is.
func TestFilesOfALaterVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hub.db")
	ofVersion1(t, path, nil, nil)
	raw(t, path, func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyVersion, number(formatVersion+1)) })
	_, err := Open(Options{Path: path})
	require.ErrorContains(t, err, fmt.Sprintf("its format is %d, this program reads up to %d", formatVersion+1, formatVersion))
	raw(t, path, func(tx *bbolt.Tx) error {
		require.NotNil(t, tx.Bucket(bucketUp1))
		return nil
	})
}

// Damage of what a node reported is found when it is read, and the file is named.
func TestDamagedReports(t *testing.T) {
	for bucket, key := range map[string]string{"reported": "n1\x00level", "replicas": "n1"} {
		path := filepath.Join(t.TempDir(), "hub.db")
		s, err := Open(Options{Path: path})
		require.NoError(t, err)
		change := store.NodeChange{Node: "n1", Meta: []byte("meta"), Put: []store.Item{{Key: "level", Value: []byte("12")}}}
		require.NoError(t, s.Commit(t.Context(), []store.NodeChange{change}))
		require.NoError(t, s.Close())
		raw(t, path, func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte(bucket))
			bad := append([]byte(nil), b.Get([]byte(key))...)
			bad[len(bad)-1] ^= 4
			return b.Put([]byte(key), bad)
		})
		s, err = Open(Options{Path: path})
		require.NoError(t, err)
		_, err = s.Load(t.Context(), "n1")
		require.ErrorContains(t, err, path+" is damaged: what node n1 reported: ")
		for _, err = range s.All(t.Context()) {
			require.ErrorContains(t, err, "restore it from a backup")
		}
		require.ErrorIs(t, s.Check(), errRecord)
		require.NoError(t, s.Close())
	}
}
