package wal

import (
	"bytes"
	"os"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// written makes a log with frames in its last segment, and one segment before that.
func written(t *testing.T) (string, *Log) {
	t.Helper()
	dir := t.TempDir()
	l, err := Open(Options{Dir: dir, Segment: 1 << 20})
	require.NoError(t, err)
	require.NoError(t, l.Scan(0, nil))
	require.NoError(t, l.Begin(0))
	appended(t, l, "one", "two")
	require.NoError(t, l.Cut())
	appended(t, l, "three", "four")
	require.NoError(t, l.Close())
	return dir, l
}

// again opens what is left, and returns what the log says of it.
func again(t *testing.T, dir string, readOnly bool) (found []string, said string, err error) {
	t.Helper()
	var log bytes.Buffer
	l, err := Open(Options{Dir: dir, Name: "the log", Keeps: "the frames", Segment: 64, Log: zerolog.New(&log), ReadOnly: readOnly})
	require.NoError(t, err)
	defer l.Close()
	err = l.Scan(0, func(_ Place, body []byte) error {
		found = append(found, string(body))
		return nil
	})
	if err == nil {
		err = l.Begin(0)
	}
	return found, log.String(), err
}

// Whatever byte of the last frame is flipped, it is said at error level that it was whole; who only looks
// refuses it. Cut short anywhere, it is called what a crash leaves.
func TestTrial36LastFrame(t *testing.T) {
	dir, l := written(t)
	path := l.Path(2)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	last := len(text) - HeadSize - len("four") - markSize
	for at := last; at < len(text)-markSize; at++ {
		bad := bytes.Clone(text)
		bad[at] ^= 4
		require.NoError(t, os.WriteFile(path, bad, 0o600))
		_, _, err = again(t, dir, true)
		require.ErrorContains(t, err, path+" is damaged")
		require.ErrorIs(t, err, errEnd)
		found, said, err := again(t, dir, false)
		require.NoError(t, err)
		require.Equal(t, []string{"one", "two", "three"}, found)
		require.Contains(t, said, `"level":"error"`)
		require.Contains(t, said, path)
		require.Contains(t, said, "unless power was cut")
	}
	for size := last + 1; size < len(text); size++ {
		require.NoError(t, os.WriteFile(path, text[:size], 0o600))
		_, _, err = again(t, dir, true)
		require.NoError(t, err)
		found, said, err := again(t, dir, false)
		require.NoError(t, err)
		require.Equal(t, []string{"one", "two", "three"}, found)
		require.NotContains(t, said, `"level":"error"`)
		require.Contains(t, said, "as a crash leaves it")
	}
}

// Whichever file is missing is missed, the last one too.
func TestTrial36MissingFile(t *testing.T) {
	for number := range uint64(2) {
		dir, l := written(t)
		require.NoError(t, os.Remove(l.Path(number+1)))
		for _, readOnly := range []bool{true, false} {
			_, _, err := again(t, dir, readOnly)
			require.ErrorContains(t, err, l.Path(number+1)+" is missing")
		}
	}
	dir, l := written(t)
	require.NoError(t, os.Remove(l.Path(1)))
	require.NoError(t, os.Remove(l.Path(2)))
	_, _, err := again(t, dir, true)
	require.ErrorContains(t, err, "no file of the log is in "+dir)
	_, said, err := again(t, dir, false)
	require.NoError(t, err)
	require.Contains(t, said, `"level":"error"`)
	require.Contains(t, said, "its first start was ended by a crash")
	_, said, err = again(t, t.TempDir(), false)
	require.NoError(t, err)
	require.Empty(t, said, "of a new directory there is nothing to say")
}

// A crash while the mark is written that another segment follows is none of the log's damages.
func TestTrial36MarkBegun(t *testing.T) {
	dir, l := written(t)
	path := l.Path(1)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	frames := len(text) - HeadSize
	for size := frames; size <= len(text); size++ {
		for _, zero := range []bool{false, true} {
			left := bytes.Clone(text[:size])
			if zero {
				clear(left[frames:])
			}
			require.NoError(t, os.WriteFile(path, left, 0o600))
			found, said, err := again(t, dir, false)
			require.NoError(t, err, size)
			require.Equal(t, []string{"one", "two", "three", "four"}, found)
			require.Empty(t, said)
		}
	}
	require.NoError(t, os.WriteFile(path, text[:frames-1], 0o600))
	_, _, err = again(t, dir, false)
	require.ErrorContains(t, err, path+" is damaged")
}

// Frames without an end mark, as they were written before, are read.
func TestTrial36OldFrames(t *testing.T) {
	dir, l := written(t)
	var text []byte
	text = AppendHeader(text, 2, 0)
	for _, body := range []string{"old", "older"} {
		at := Place{2, int64(len(text))}
		f := frame(body)
		sealHead(f, oldMagic, f[HeadSize:], at)
		text = append(text, f...)
	}
	require.NoError(t, os.WriteFile(l.Path(2), text, 0o600))
	found, said, err := again(t, dir, false)
	require.NoError(t, err)
	require.Equal(t, []string{"one", "two", "old", "older"}, found)
	require.Empty(t, said)
}
