// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// confirmedUpTo has the record of a closed log name a place.
func confirmedUpTo(t *testing.T, l *Log, at Position) {
	t.Helper()
	b := &Log{opts: l.opts, segments: segmentList{list: []segmentFile{{number: at.Segment, size: at.At}}}}
	require.NoError(t, b.openConfirmed())
	require.NoError(t, b.confirmed.Close())
}

// Cut anywhere, between its frames too, a log is refused, and the error names the file and what can be done: to go on with what is
// left is one of these, and works.
func TestALogThatLostWhatWasAcknowledgedIsRefused(t *testing.T) {
	dir, l := writtenLog(t)
	path := l.Path(2)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for size := HeaderSize; size < len(text); size++ {
		require.NoError(t, os.WriteFile(path, text[:size], 0o600))
		for _, readOnly := range []bool{true, false} {
			_, _, err := reopenLog(t, dir, readOnly)
			require.ErrorContains(t, err, path+" has lost its end", size)
			require.ErrorContains(t, err, "or remove "+l.confirmedPath()+" to go on with what is left")
		}
	}
	require.NoError(t, os.WriteFile(path, text, 0o600))
	found, said, err := reopenLog(t, dir, false)
	require.NoError(t, err)
	require.Empty(t, said)
	require.Equal(t, []string{"one", "two", "three", "four"}, found)

	require.NoError(t, os.Truncate(path, int64(len(text)-1)))
	require.NoError(t, os.Remove(l.confirmedPath()))
	for range 2 {
		found, _, err = reopenLog(t, dir, false)
		require.NoError(t, err)
		require.Equal(t, []string{"one", "two", "three"}, found)
	}
}

// An older copy of the last file has fewer frames, and is whole.
func TestAnOlderCopyOfTheLastFileIsRefused(t *testing.T) {
	dir, l := writtenLog(t)
	older, err := os.ReadFile(l.Path(2))
	require.NoError(t, err)
	l, err = Open(Options{Dir: dir, Segment: 1 << 20})
	require.NoError(t, err)
	require.NoError(t, l.Scan(0, func(Position, []byte) error { return nil }))
	require.NoError(t, l.Begin(0))
	appendFrames(t, l, "five")
	require.NoError(t, l.Close())
	require.NoError(t, os.WriteFile(l.Path(2), older, 0o600))
	_, _, err = reopenLog(t, dir, false)
	require.ErrorContains(t, err, l.Path(2)+" has lost its end")
}

// A segment that another follows is cut between its frames: the header of the one that follows says how long it was.
func TestASegmentThatIsFollowedIsMissedToItsEnd(t *testing.T) {
	dir, l := writtenLog(t)
	text, err := os.ReadFile(l.Path(1))
	require.NoError(t, err)
	one := HeaderSize + HeadSize + len("one") + markSize
	require.Equal(t, len(text), one+HeadSize+len("two")+markSize+HeadSize)
	for _, size := range []int{HeaderSize, one} {
		require.NoError(t, os.WriteFile(l.Path(1), text[:size], 0o600))
		_, _, err = reopenLog(t, dir, false)
		require.ErrorContains(t, err, l.Path(1)+" is damaged at byte")
	}
}

// A record that is missing, torn or an older one loses nothing. A damaged one is said.
func TestARecordOfTheEndThatIsNoneOrOlderLosesNothing(t *testing.T) {
	dir, l := writtenLog(t)
	now, err := os.ReadFile(l.confirmedPath())
	require.NoError(t, err)
	confirmedUpTo(t, l, Position{1, HeaderSize})
	older, err := os.ReadFile(l.confirmedPath())
	require.NoError(t, err)
	flipped := bytes.Clone(now)
	flipped[10] ^= 1
	for name, c := range map[string]struct {
		text []byte
		told bool
	}{"missing": {}, "empty": {[]byte{}, true}, "half": {now[:10], true}, "a bit": {flipped, true}, "older": {older, false}} {
		require.NoError(t, os.Remove(l.confirmedPath()))
		if c.text != nil {
			require.NoError(t, os.WriteFile(l.confirmedPath(), c.text, 0o600))
		}
		found, said, err := reopenLog(t, dir, false)
		require.NoError(t, err, name)
		require.Equal(t, []string{"one", "two", "three", "four"}, found, name)
		require.Equal(t, c.told, said != "", name)
		again, err := os.ReadFile(l.confirmedPath())
		require.NoError(t, err)
		require.Equal(t, now, again, name)
	}
}

// BenchmarkConfirm is what the record adds to each commit.
func BenchmarkConfirm(b *testing.B) {
	l, err := Open(Options{Dir: b.TempDir(), Segment: 1 << 30})
	require.NoError(b, err)
	require.NoError(b, l.Begin(0))
	defer l.Close()
	for b.Loop() {
		l.confirm()
	}
}

// Whichever byte of a log is not what it was, the marks of its frames included, the log is refused, and the error names the file. A byte
// that is zero in the mark of a segment that is followed is what a crash leaves, and nothing is missing.
func TestAByteThatIsNotWhatItWasIsMissedWhereverItStands(t *testing.T) {
	dir, l := writtenLog(t)
	for _, number := range []uint64{1, 2} {
		path := l.Path(number)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for at := range text {
			bad := bytes.Clone(text)
			bad[at] ^= 1 << (at % 8)
			require.NoError(t, os.WriteFile(path, bad, 0o600))
			found, _, err := reopenLog(t, dir, true)
			if number == 1 && at >= len(text)-HeadSize && bad[at] == 0 {
				require.NoError(t, err)
				require.Len(t, found, 4)
				continue
			}
			require.ErrorContains(t, err, path, "byte %d", at)
		}
		require.NoError(t, os.WriteFile(path, text, 0o600))
	}
	found, _, err := reopenLog(t, dir, true)
	require.NoError(t, err)
	require.Equal(t, []string{"one", "two", "three", "four"}, found)
}
