package journal

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Who only looks sees what an opening would, and leaves everything as it is: also the
// end of a torn write, and that there is no lock.
func TestReadOnlyChangesNothing(t *testing.T) {
	dir := t.TempDir()
	j := opened(t, dir, 0)
	j.now(t, put(1, "one"), put(2, "two"))
	require.NoError(t, j.Close())
	require.NoError(t, os.Remove(filepath.Join(dir, "lock")))
	segment := filepath.Join(dir, "000000000001.log")
	whole, err := os.ReadFile(segment)
	require.NoError(t, err)
	torn := append(whole, "torn"...)
	require.NoError(t, os.WriteFile(segment, torn, 0o600))

	j, err = Open(Options{Dir: dir, ReadOnly: true})
	require.NoError(t, err)
	require.Equal(t, map[uint64]string{1: "one", 2: "two"}, content(t, j))
	require.ErrorIs(t, j.try(put(3, "three")), ErrClosed)
	require.NoError(t, j.Close())
	after, err := os.ReadFile(segment)
	require.NoError(t, err)
	require.Equal(t, torn, after)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 1)

	_, err = Open(Options{Dir: filepath.Join(dir, "nowhere"), ReadOnly: true})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(segment, nil, 0o600))
	_, err = Open(Options{Dir: dir, ReadOnly: true})
	require.ErrorContains(t, err, segment+" is damaged")
}
