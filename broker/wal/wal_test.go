package wal

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func frame(body string) []byte { return append(make([]byte, HeadSize), body...) }

func opened(t *testing.T, dir string, base uint64) (l *Log, found []string) {
	t.Helper()
	l, err := Open(Options{Dir: dir, Name: "the log", Keeps: "the frames", Segment: 64})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	require.NoError(t, l.Scan(base, func(_ Place, body []byte) error {
		found = append(found, string(body))
		return nil
	}))
	require.NoError(t, l.Begin(base))
	return l, found
}

func appended(t *testing.T, l *Log, bodies ...string) {
	t.Helper()
	for _, b := range bodies {
		_, err := l.Append(frame(b))
		require.NoError(t, err)
	}
}

func TestFramesAreThereUntilTheirSegmentIsRetired(t *testing.T) {
	dir := t.TempDir()
	l, found := opened(t, dir, 0)
	require.Empty(t, found)
	appended(t, l, "one", "two")
	require.NoError(t, l.Cut())
	require.NoError(t, l.Cut(), "an empty segment is not cut")
	appended(t, l, "three")
	oldest, newest := l.Segments()
	require.Equal(t, []uint64{1, 2}, []uint64{oldest, newest})
	r, err := l.Read(1, nil)
	require.NoError(t, err)
	for _, want := range []string{"one", "two"} {
		body, _, err := r.Next()
		require.NoError(t, err)
		require.Equal(t, want, string(body))
	}
	_, _, err = r.Next()
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, l.Retire(2))
	require.NoError(t, l.Retire(99), "what is written to stays")
	require.Equal(t, int64(1), l.Count())
	info, err := os.Stat(l.Path(2))
	require.NoError(t, err)
	require.Equal(t, info.Size(), l.Size())
	require.NoError(t, l.Close())
	_, found = opened(t, dir, 2)
	require.Equal(t, []string{"three"}, found)
}

// A power cut can bring some of the removed segments back; one that is needed must be there.
func TestOnlyWhatIsNeededMustBeThere(t *testing.T) {
	dir := t.TempDir()
	l, _ := opened(t, dir, 0)
	for _, body := range []string{"1", "2", "3", "4"} {
		appended(t, l, body)
		require.NoError(t, l.Cut())
	}
	require.NoError(t, l.Close())
	require.NoError(t, os.Remove(l.Path(2)))
	for base, missing := range map[uint64]uint64{0: 2, 1: 2, 2: 2, 9: 9} {
		again, err := Open(Options{Dir: dir, ReadOnly: true})
		require.NoError(t, err)
		require.NoError(t, again.Scan(base, func(Place, []byte) error { return nil }))
		require.ErrorContains(t, again.Begin(base), l.Path(missing)+" is missing", base)
	}
	l, found := opened(t, dir, 3)
	require.Equal(t, []string{"3", "4"}, found)
	require.NoFileExists(t, l.Path(1))
}

func TestAFrameThatItsReaderRefuses(t *testing.T) {
	dir := t.TempDir()
	l, _ := opened(t, dir, 0)
	appended(t, l, "x")
	require.NoError(t, l.Close())
	l, err := Open(Options{Dir: dir})
	require.NoError(t, err)
	defer l.Close()
	err = l.Scan(0, func(Place, []byte) error { return errors.New("no such kind") })
	require.ErrorContains(t, err, l.Path(1))
	require.ErrorContains(t, err, "no such kind")
}

func TestNothingIsWrittenByWhoOnlyLooks(t *testing.T) {
	dir := t.TempDir()
	l, _ := opened(t, dir, 0)
	require.NoError(t, l.Close())
	l, err := Open(Options{Dir: dir, ReadOnly: true})
	require.NoError(t, err)
	require.NoError(t, l.Scan(0, nil))
	require.NoError(t, l.Begin(0))
	_, err = l.Append(frame("x"))
	require.ErrorIs(t, err, errReadOnly)
	require.NoError(t, l.Close())
}

// A directory that is made, and whose name is not on disk, is gone after a power cut, with all in it.
func TestEveryDirectoryThatIsMadeIsSynced(t *testing.T) {
	top := t.TempDir()
	var synced []string
	sync := func(dir string) error {
		synced = append(synced, dir)
		return syncDir(dir)
	}
	deep := filepath.Join(top, "a", "b", "c")
	require.NoError(t, makeDir(deep, sync))
	require.Equal(t, []string{top, filepath.Join(top, "a"), filepath.Join(top, "a", "b")}, synced, "from above")
	require.DirExists(t, deep)
	synced = nil
	require.NoError(t, makeDir(deep, sync))
	require.Empty(t, synced)
}
