package journal

import (
	"bytes"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/wal"
)

// told is a log that a test reads.
type told struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *told) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *told) times(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

// wasting opens a journal with one record in its first segment that is needed, and writes
// another again and again until it is to be compacted.
func wasting(t *testing.T, log *told) *Journal {
	t.Helper()
	j, err := Open(Options{Dir: t.TempDir(), Segment: 1 << 10, Log: zerolog.New(log)})
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() })
	j.now(t, put(1, "needed"))
	return j
}

func (j *Journal) waste(t *testing.T, commits int) {
	t.Helper()
	for range commits {
		j.now(t, put(2, strings.Repeat("x", 200)))
	}
}

func TestDamageThatCompactionFindsIsToldOnceAndRemembered(t *testing.T) {
	var log told
	j := wasting(t, &log)
	require.NoError(t, j.Damage())
	flip(t, j.log.Path(1), wal.HeaderSize+wal.HeadSize+1)
	j.waste(t, 100)
	require.Eventually(t, func() bool { return j.Damage() != nil }, 30*time.Second, time.Millisecond)
	require.ErrorContains(t, j.Damage(), j.log.Path(1)+" is damaged")
	require.NoError(t, os.Remove(j.log.Path(1)), "it is not read again")
	j.waste(t, 100)
	require.ErrorContains(t, j.Damage(), j.log.Path(1)+" is damaged")
	require.True(t, j.Stats().Damaged)
	require.NoError(t, j.Close())
	require.Equal(t, 1, log.times(`"level":"error"`), log.text.String())
	require.Zero(t, log.times(`"level":"warn"`))
	require.Zero(t, j.Stats().Failed)
}

// The file of a segment that isn't needed can't be removed: here a directory is in its place.
func TestASegmentThatCanNotBeRemovedIsTriedAgain(t *testing.T) {
	var log told
	j := wasting(t, &log)
	first := j.log.Path(1)
	j.now(t, Change{ID: 1})
	j.now(t, put(2, strings.Repeat("y", 1<<10))) // the first segment ends
	require.NoError(t, os.Rename(first, first+".aside"))
	require.NoError(t, os.MkdirAll(first+"/in the way", 0o700))
	j.now(t, put(2, ""), put(3, "")) // and has nothing that is needed
	j.waste(t, 100)
	require.Eventually(t, func() bool { return log.times("can't be removed") > 0 }, 30*time.Second, time.Millisecond)
	grown := j.log.Size()
	j.waste(t, 20)
	require.Less(t, j.log.Size()-grown, int64(20*300), "trying again writes nothing")
	require.NoError(t, os.RemoveAll(first))
	require.NoError(t, os.Rename(first+".aside", first))
	require.Eventually(t, func() bool {
		j.waste(t, 1)
		oldest, _ := j.log.Segments()
		return oldest > 2
	}, 30*time.Second, time.Millisecond)
	require.Equal(t, 1, log.times("can't be removed"))
	require.NoError(t, j.Close())
	again := opened(t, j.opts.Dir, 1<<10)
	require.Len(t, content(t, again), 2)
}
