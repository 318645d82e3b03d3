package bolt

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func readIdentity(t *testing.T, path string, readOnly bool) (id uint32) {
	t.Helper()
	s, err := Open(Options{Path: path, ReadOnly: readOnly})
	require.NoError(t, err)
	id = s.Identity()
	require.NoError(t, s.Close())
	return id
}

func TestIdentity(t *testing.T) {
	path, other := filepath.Join(t.TempDir(), "hub.db"), filepath.Join(t.TempDir(), "hub.db")
	id := readIdentity(t, path, false)
	require.NotZero(t, id)
	another := readIdentity(t, other, false)
	require.NotEqual(t, id, another)

	require.NoError(t, Fork(path, func(rev uint64) uint64 { return rev + 1 }))
	again := readIdentity(t, path, true)
	require.Equal(t, id, again, "who restores a backup is the same")
}
