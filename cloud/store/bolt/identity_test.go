package bolt

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

func whose(t *testing.T, path string, readOnly bool) (id uint32, older bool) {
	t.Helper()
	s, err := Open(Options{Path: path, ReadOnly: readOnly})
	require.NoError(t, err)
	id, older = s.Identity()
	require.NoError(t, s.Close())
	return id, older
}

func TestIdentity(t *testing.T) {
	path, other := filepath.Join(t.TempDir(), "hub.db"), filepath.Join(t.TempDir(), "hub.db")
	id, older := whose(t, path, false)
	require.NotZero(t, id)
	require.False(t, older)
	another, _ := whose(t, other, false)
	require.NotEqual(t, id, another)

	require.NoError(t, Fork(path, func(rev uint64) uint64 { return rev + 1 }))
	again, older := whose(t, path, true)
	require.Equal(t, id, again, "who restores a backup is the same")
	require.False(t, older)
}

func TestFilesOfBeforeIdentities(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hub.db")
	ofVersion1(t, path, nil, nil)
	id, older := whose(t, path, true)
	require.Zero(t, id, "who only looks changes nothing")
	require.False(t, older)
	id, older = whose(t, path, false)
	require.NotZero(t, id)
	require.True(t, older)
	again, older := whose(t, path, false)
	require.Equal(t, id, again)
	require.True(t, older)

	raw(t, path, func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyIdentity, []byte{1, 2}) })
	_, err := Open(Options{Path: path})
	require.ErrorContains(t, err, "is damaged: its identity is none")
}
