package wal

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// restored writes a snapshot into another directory, and reads what is there.
func restored(t *testing.T, base uint64, pieces []Piece) (found []string) {
	t.Helper()
	dir := t.TempDir()
	for _, p := range pieces {
		var b bytes.Buffer
		require.NoError(t, p.Copy(&b))
		require.EqualValues(t, p.Size(), b.Len())
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(p.Path())), b.Bytes(), 0o600))
	}
	_, found = opened(t, dir, base)
	return found
}

func nothing() error { return nil }

// A snapshot has what was appended before it, whatever happens to the log until it is copied.
func TestASnapshotStaysAsItIs(t *testing.T) {
	l, _ := opened(t, t.TempDir(), 0)
	appended(t, l, "one")
	require.NoError(t, l.Cut())
	appended(t, l, "two")
	pieces, release, err := l.Snapshot(nothing)
	require.NoError(t, err)
	appended(t, l, "three")
	require.NoError(t, l.Cut())
	require.NoError(t, l.Retire(3))
	require.Equal(t, int64(1), l.Count())
	later, releaseLater, err := l.Snapshot(nothing)
	require.NoError(t, err)
	require.Equal(t, []string{"one", "two"}, restored(t, 0, pieces))
	release()
	require.FileExists(t, l.Path(1), "somebody else may need it")
	require.Empty(t, restored(t, 3, later), "what was retired is not in it")
	releaseLater()
	require.NoFileExists(t, l.Path(1))
	require.NoFileExists(t, l.Path(2))
	appended(t, l, "four")
}

// Stores are cut at one moment: what is done at it sees none of what is appended after it.
func TestNothingIsAppendedAtTheMomentOfASnapshot(t *testing.T) {
	l, _ := opened(t, t.TempDir(), 0)
	done := make(chan error)
	pieces, release, err := l.Snapshot(func() error {
		go func() {
			_, err := l.Append(frame("later"))
			done <- err
		}()
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, <-done)
	require.Empty(t, restored(t, 0, pieces))
	release()
	_, _, err = l.Snapshot(func() error { return errors.New("not now") })
	require.ErrorContains(t, err, "not now")
	appended(t, l, "more")
}

// What a snapshot has kept when the program is killed, the next start removes.
func TestSegmentsThatASnapshotKeptAreRemovedAtTheNextStart(t *testing.T) {
	dir := t.TempDir()
	l, _ := opened(t, dir, 0)
	appended(t, l, "one")
	require.NoError(t, l.Cut())
	appended(t, l, "two")
	_, _, err := l.Snapshot(nothing)
	require.NoError(t, err)
	require.NoError(t, l.Retire(2))
	require.FileExists(t, l.Path(1))
	require.NoError(t, l.Close())
	l, found := opened(t, dir, 2)
	require.Equal(t, []string{"two"}, found)
	require.NoFileExists(t, l.Path(1))
}
