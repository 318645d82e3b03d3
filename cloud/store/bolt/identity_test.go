package bolt

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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
	whose(t, path, false)
	asVersion(t, path, formatBare)
	id, older := whose(t, path, true)
	require.Zero(t, id, "who only looks changes nothing")
	require.False(t, older)
	id, older = whose(t, path, false)
	require.NotZero(t, id)
	require.True(t, older)
	again, older := whose(t, path, false)
	require.Equal(t, id, again)
	require.True(t, older)
}
