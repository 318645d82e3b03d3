// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheSecondIsToldWhoIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b")
	d, err := Open(path, "edgecore")
	require.NoError(t, err)
	_, err = Open(path, "cloudhub")
	require.ErrorContains(t, err, path+" is in use by edgecore, process ")
	_, err = OpenReadOnly(path)
	require.ErrorContains(t, err, "stop it first")
	require.NoError(t, d.Close())
	seen, err := OpenReadOnly(path)
	require.NoError(t, err)
	require.NoError(t, seen.Close())
	d, err = Open(path, "x")
	require.NoError(t, err)
	require.NoError(t, d.Close())
}

func TestWhatIsNoDirectoryIsNamed(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := Open(file, "x")
	require.ErrorContains(t, err, file)
	_, err = OpenReadOnly(file)
	require.ErrorContains(t, err, "not a directory")
	_, err = OpenReadOnly(filepath.Join(dir, "nothing"))
	require.ErrorContains(t, err, "no such file")
	d, err := OpenReadOnly(dir) // without a lock file: nobody has run there yet
	require.NoError(t, err)
	require.NoError(t, d.Close())
}

func TestDataOfAnotherProgramIsRefused(t *testing.T) {
	for owner, name := range markerFiles() {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		d, err := Open(dir, owner)
		require.NoError(t, err)
		require.NoError(t, d.Close())
		for other := range markerFiles() {
			if other != owner {
				_, err := Open(dir, other)
				require.ErrorContains(t, err, "holds data of "+owner+" ("+filepath.Join(dir, name)+")")
				_, err = Open(dir, other)
				require.NotContains(t, err.Error(), "in use", "and it holds nothing")
			}
		}
	}
}

// A directory that is made, and whose name is not on disk, is gone after a power cut, with all in it.
func TestEveryDirectoryThatIsMadeIsSynced(t *testing.T) {
	top := t.TempDir()
	var synced []string
	sync := func(dir string) error {
		synced = append(synced, dir)
		return SyncDir(dir)
	}
	deep := filepath.Join(top, "a", "b", "c")
	require.NoError(t, makeDir(deep, sync))
	require.Equal(t, []string{top, filepath.Join(top, "a"), filepath.Join(top, "a", "b")}, synced, "from above")
	require.DirExists(t, deep)
	synced = nil
	require.NoError(t, makeDir(deep, sync))
	require.Empty(t, synced)
}
