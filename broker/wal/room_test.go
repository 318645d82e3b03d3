// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// killedCopy is the directory of an open log as a kill leaves it.
func killedCopy(t *testing.T, l *Log) (dir, last string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "left")
	require.NoError(t, os.CopyFS(dir, os.DirFS(l.opts.Dir)))
	_, newest := l.Segments()
	return dir, filepath.Join(dir, filepath.Base(l.Path(newest)))
}

// A file grows once for many frames. What it has grown by is no damage to a start after a kill, is used by the frames that come, and is gone when the log is
// closed or another file begins.
func TestAFileGrowsOnceForManyFrames(t *testing.T) {
	dir := t.TempDir()
	l, err := Open(Options{Dir: dir, Segment: 1 << 20})
	require.NoError(t, err)
	require.NoError(t, l.Scan(0, nil))
	require.NoError(t, l.Begin(0))
	length := func() int64 {
		info, err := os.Stat(l.Path(1))
		require.NoError(t, err)
		return info.Size()
	}
	var want []string
	var lengths []int64
	for i := range 1000 {
		want = append(want, fmt.Sprintf("%0200d", i))
		appendFrames(t, l, want[i])
		lengths = append(lengths, length())
	}
	require.LessOrEqual(t, len(slices.Compact(lengths)), 5)
	for _, readOnly := range []bool{true, false} {
		left, _ := killedCopy(t, l)
		found, said, err := reopenLog(t, left, readOnly)
		require.NoError(t, err)
		require.Empty(t, said)
		require.Equal(t, want, found)
	}
	appendFrames(t, l, string(make([]byte, roomChunk)))
	require.Equal(t, l.Size(), length(), "a long frame makes no room for others")
	appendFrames(t, l, "short")
	require.Greater(t, length(), l.Size())
	require.NoError(t, l.Cut())
	require.Equal(t, l.Size()-HeaderSize, length())
	appendFrames(t, l, "next")
	require.NoError(t, l.Close())
	info, err := os.Stat(l.Path(2))
	require.NoError(t, err)
	require.EqualValues(t, HeaderSize+HeadSize+len("next")+markSize, info.Size())
}

// Within a file that has room, a frame that a power cut tore anywhere is dropped, one that was acknowledged and is zeros is missed, and so is an end of a file
// that another follows.
func TestAFrameThatIsTornWithinTheRoomIsDropped(t *testing.T) {
	l, err := Open(Options{Dir: t.TempDir(), Segment: 1 << 20})
	require.NoError(t, err)
	require.NoError(t, l.Scan(0, nil))
	require.NoError(t, l.Begin(0))
	appendFrames(t, l, "one")
	at := l.Size()
	appendFrames(t, l, "two")
	end := l.Size()
	for n := at; n <= end; n++ {
		dir, last := killedCopy(t, l)
		text, err := os.ReadFile(last)
		require.NoError(t, err)
		require.Greater(t, int64(len(text)), end)
		clear(text[n:])
		require.NoError(t, os.WriteFile(last, text, 0o600))
		if n < end {
			_, _, err = reopenLog(t, dir, true)
			require.ErrorContains(t, err, "has lost its end", "byte %d", n)
		}
		require.NoError(t, os.Remove(filepath.Join(dir, "confirmed"))) // the frame was not acknowledged
		found, _, err := reopenLog(t, dir, false)
		require.NoError(t, err, "byte %d", n)
		require.Equal(t, []string{"one", "two"}[:1+(n-at)/(end-at)], found, "byte %d", n)
		again, said, err := reopenLog(t, dir, false)
		require.NoError(t, err)
		require.Equal(t, found, again)
		require.Empty(t, said)
	}

	dir, last := killedCopy(t, l) // before the mark that another follows
	text, err := os.ReadFile(last)
	require.NoError(t, err)
	require.NoError(t, l.Cut())
	appendFrames(t, l, "three")
	require.NoError(t, l.Close())
	next, err := os.ReadFile(l.Path(2))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(l.Path(2))), next, 0o600))
	found, said, err := reopenLog(t, dir, true)
	require.NoError(t, err)
	require.Empty(t, said)
	require.Equal(t, []string{"one", "two", "three"}, found)
	require.NoError(t, os.Remove(filepath.Join(dir, "confirmed")))
	clear(text[at:])
	require.NoError(t, os.WriteFile(last, text, 0o600))
	_, _, err = reopenLog(t, dir, true)
	require.ErrorContains(t, err, fmt.Sprintf("the frames up to byte %d are missing", end))
}
