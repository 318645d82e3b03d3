// SPDX-License-Identifier: Apache-2.0

package wal

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/ordered"
)

// A frame that another copy of the log has in the same place, as long and whole by itself, is not taken for this one's: each but the last is missed by the
// one that follows it, also over the end of a segment.
func TestAFrameOfAnotherCopyOfTheLogIsNotTakenForThisOnes(t *testing.T) {
	bodies := []string{"one", "two", "three", "four", "five", "six", "seven"}
	texts := func(change string) (dir string, l *Log, files map[uint64][]byte) {
		dir = t.TempDir()
		l, _ = openLog(t, dir, 0)
		l.opts.Segment = 100
		for _, b := range bodies {
			appendFrames(t, l, change+b)
		}
		require.NoError(t, l.Close())
		files = make(map[uint64][]byte)
		for _, s := range l.segments.list {
			text, err := os.ReadFile(l.Path(s.number))
			require.NoError(t, err)
			files[s.number] = text
		}
		return dir, l, files
	}
	dir, l, ours := texts("a")
	_, _, theirs := texts("b")
	require.Greater(t, len(ours), 2)
	refused := 0
	for number, text := range ours {
		other := theirs[number]
		for at := int64(HeaderSize); at+HeadSize <= int64(len(text)); {
			magic, n, mark, ok := parseHead(text[at:], int64(len(text))-at-HeadSize)
			require.True(t, ok)
			next := at + HeadSize + n + mark
			if magic == frameMagic {
				mixed := bytes.Clone(text)
				copy(mixed[at:next], other[at:next])
				before := beforeOf(text[at:])
				sealHead(mixed[at:], frameMagic, mixed[at+HeadSize:next-mark], Position{number, at}, before) // the frame itself is right
				require.NoError(t, os.WriteFile(l.Path(number), mixed, 0o600))
				found, _, err := reopenLog(t, dir, true)
				if bytes.Contains(mixed[at:next], []byte("bseven")) {
					require.NoError(t, err, "nothing follows the last")
				} else {
					require.ErrorIs(t, err, errChain, "%s at %d", l.Path(number), at)
					require.NotContains(t, found, "bseven")
					refused++
				}
			}
			at = next
		}
		require.NoError(t, os.WriteFile(l.Path(number), text, 0o600))
	}
	require.Equal(t, len(bodies)-1, refused)

	require.NoError(t, os.WriteFile(l.Path(1), slices.Concat(ours[1][:HeaderSize], theirs[1][HeaderSize:]), 0o600))
	_, _, err := reopenLog(t, dir, true)
	require.ErrorIs(t, err, errChain, "a whole file")
	require.ErrorContains(t, err, "is damaged at byte 0: it doesn't follow what was written before it")
}

// Who reads on finds a frame that was replaced under the open log, and hands over nothing of it.
func TestAReaderThatReadsOnFindsAFrameThatWasReplaced(t *testing.T) {
	dir := t.TempDir()
	l, _ := openLog(t, dir, 0)
	l.opts.Segment = 1 << 20
	appendFrames(t, l, "one", "two", "three")
	path := l.Path(1)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	at := int64(HeaderSize + HeadSize + len("one") + markSize)
	sealHead(text[at:], frameMagic, []byte("owt"), Position{1, at}, beforeOf(text[at:]))
	copy(text[at+HeadSize:], "owt")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	var found []string
	var failed error
	for f, err := range NewOrdered(l).Read(t.Context(), 0) {
		if failed = err; err != nil || len(found) == 3 {
			break
		}
		found = append(found, string(f.Body))
	}
	require.ErrorIs(t, failed, errChain)
	require.Equal(t, []string{"one", "owt"}, found)
	require.False(t, errors.Is(failed, ordered.ErrGone))
}
