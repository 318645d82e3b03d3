// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/wal"
)

// watchedFile is a file that tells of each boundary between two of its operations.
type watchedFile struct {
	*os.File
	w *crashWitness
}

func (f watchedFile) WriteAt(b []byte, at int64) (int, error) {
	f.w.boundary()
	defer f.w.boundary()
	return f.File.WriteAt(b, at)
}

func (f watchedFile) Sync() error {
	f.w.boundary()
	err := f.File.Sync()
	f.w.synced(f.Name())
	f.w.boundary()
	return err
}

func (f watchedFile) Truncate(n int64) error {
	f.w.boundary()
	defer f.w.boundary()
	return f.File.Truncate(n)
}

// crashWitness tries at every boundary what would be found if the process, or the machine,
// ended there.
type crashWitness struct {
	t    *testing.T
	dir  string
	disk map[string][]byte // what was synced, by file

	mu             sync.Mutex
	acked, pending map[uint64]string // what was promised, and that with the commit which is under way
	tried          int
	rnd            *rand.Rand
}

// synced notes what is on disk under which name: a segment is made under another, and
// the directory is synced once it has its own.
func (w *crashWitness) synced(path string) {
	text, err := os.ReadFile(path)
	if err != nil {
		path = strings.TrimSuffix(path, ".new")
		text, err = os.ReadFile(path)
	}
	if err == nil {
		w.disk[filepath.Base(path)] = text
	}
}

func (w *crashWitness) boundary() {
	files := make(map[string][]byte)
	list, _ := filepath.Glob(filepath.Join(w.dir, "*.log"))
	for _, path := range list {
		text, err := os.ReadFile(path)
		if err != nil {
			w.t.Error(err)
		}
		name := filepath.Base(path)
		files[name] = text
		if made, ok := w.disk[name+".new"]; ok {
			delete(w.disk, name+".new")
			w.disk[name] = made
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.try("the process is killed", files)
	w.try("power goes, and nothing that wasn't synced is there", w.disk)
	torn := maps.Clone(w.disk)
	for name, text := range files {
		if safe := len(w.disk[name]); len(text) > safe {
			cut := safe + w.rnd.IntN(len(text)-safe+1)
			torn[name] = append(text[:cut:cut], make([]byte, w.rnd.IntN(64))...)
		}
	}
	w.try("power goes, and a part of it is there", torn)
}

// try opens what is left: all that was promised is there, and of the commit that was
// under way all or nothing.
func (w *crashWitness) try(how string, files map[string][]byte) {
	w.tried++
	dir := filepath.Join(w.t.TempDir(), "left")
	if err := os.Mkdir(dir, 0o700); err != nil {
		w.t.Error(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			w.t.Error(err)
		}
	}
	// The record of the log's end isn't synced: after a power cut it may be there as it is, with whatever of the segments.
	if text, err := os.ReadFile(filepath.Join(w.dir, "confirmed")); err == nil {
		if err := os.WriteFile(filepath.Join(dir, "confirmed"), text, 0o600); err != nil {
			w.t.Error(err)
		}
	}
	j, err := Open(Options{Dir: dir, Segment: smallSegment})
	if err != nil {
		w.t.Errorf("boundary %d: %s: %v", w.tried, how, err)
		return
	}
	found := make(map[uint64]string)
	err = j.Load(func(id uint64, value []byte) error { found[id] = string(value); return nil })
	if err != nil || !maps.Equal(found, w.acked) && !maps.Equal(found, w.pending) {
		w.t.Errorf("boundary %d: %s: found %v (%v), promised %v, under way %v", w.tried, how, found, err, w.acked, w.pending)
	}
	if err := j.Close(); err != nil {
		w.t.Error(err)
	}
}

const smallSegment = 512

// At every boundary between two operations on the files, through new segments and
// compaction, a killed process and a power cut leave what was promised.
func TestCrashAtEveryBoundary(t *testing.T) {
	dir := t.TempDir()
	w := &crashWitness{t: t, dir: dir, disk: make(map[string][]byte), rnd: rand.New(rand.NewPCG(5, 6))}
	j, err := open(Options{Dir: dir, Segment: smallSegment}, func(f *os.File) wal.File { return watchedFile{f, w} })
	require.NoError(t, err)
	w.mu.Lock()
	w.acked = make(map[uint64]string)
	w.mu.Unlock()
	rnd := rand.New(rand.NewPCG(7, 8))
	for round := range 60 {
		next := maps.Clone(w.acked)
		var changes []RecordChange
		for range rnd.IntN(3) + 1 {
			id := uint64(rnd.IntN(12))
			if rnd.IntN(4) == 0 {
				changes = append(changes, RecordChange{ID: id})
				delete(next, id)
				continue
			}
			next[id] = strings.Repeat(fmt.Sprint(round, "."), rnd.IntN(20))
			changes = append(changes, putChange(id, next[id]))
		}
		w.mu.Lock()
		w.pending = next
		w.mu.Unlock()
		if round%2 == 0 {
			j.now(t, changes...)
		} else {
			require.NoError(t, j.Sync(changes))
		}
		w.mu.Lock()
		w.acked = next
		w.mu.Unlock()
	}
	require.NoError(t, j.Close())
	require.Positive(t, j.Stats().Compacted, "it was compacted on the way")
	require.Equal(t, w.acked, readRecords(t, openJournal(t, dir, smallSegment)))
}

// logCounter is a log that a test reads.
type logCounter struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logCounter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logCounter) times(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

// openWithLog opens a journal with one record in its first segment that is needed, and writes
// another again and again until it is to be compacted.
func openWithLog(t *testing.T, log *logCounter) *Journal {
	t.Helper()
	j, err := Open(Options{Dir: t.TempDir(), Segment: 1 << 10, Log: zerolog.New(log)})
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() })
	j.now(t, putChange(1, "needed"))
	return j
}

func (j *Journal) waste(t *testing.T, commits int) {
	t.Helper()
	for range commits {
		j.now(t, putChange(2, strings.Repeat("x", 200)))
	}
}

func TestDamageThatCompactionFindsIsToldOnceAndRemembered(t *testing.T) {
	var log logCounter
	j := openWithLog(t, &log)
	require.NoError(t, j.Damage())
	flipByte(t, j.log.Path(1), wal.HeaderSize+wal.HeadSize+1)
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
	var log logCounter
	j := openWithLog(t, &log)
	first := j.log.Path(1)
	j.now(t, RecordChange{ID: 1})
	j.now(t, putChange(2, strings.Repeat("y", 1<<10))) // the first segment ends
	require.NoError(t, os.Rename(first, first+".aside"))
	require.NoError(t, os.MkdirAll(first+"/in the way", 0o700))
	j.now(t, putChange(2, ""), putChange(3, "")) // and has nothing that is needed
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
	again := openJournal(t, j.opts.Dir, 1<<10)
	require.Len(t, readRecords(t, again), 2)
}
