// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/wal"
)

func openJournal(t testing.TB, dir string, segment int) *Journal {
	t.Helper()
	j, err := Open(Options{Dir: dir, Segment: segment})
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() })
	return j
}

func (j *Journal) now(t testing.TB, changes ...RecordChange) {
	t.Helper()
	require.NoError(t, j.try(changes...))
}

func (j *Journal) try(changes ...RecordChange) error {
	done := make(chan error, 1)
	j.Commit(changes, func(err error) { done <- err })
	return <-done
}

func readRecords(t testing.TB, j *Journal) map[uint64]string {
	t.Helper()
	all := make(map[uint64]string)
	require.NoError(t, j.Load(func(id uint64, value []byte) error {
		require.False(t, all[id] != "", id) // require.NotContains looks at each key
		all[id] = string(value)
		return nil
	}))
	return all
}

func putChange(id uint64, value string) RecordChange { return RecordChange{id, []byte(value)} }

func TestWhatWasCommittedIsThereAgain(t *testing.T) {
	dir := t.TempDir()
	j := openJournal(t, filepath.Join(dir, "new", "er"), 0)
	j.now(t, putChange(1, "one"), putChange(2, ""), putChange(3, "three"))
	j.now(t, putChange(1, "uno"), RecordChange{ID: 3}, RecordChange{ID: 99})
	j.Commit([]RecordChange{putChange(4, "nobody waits")}, nil)
	require.NoError(t, j.Close())
	require.NoError(t, j.Close())
	require.ErrorIs(t, j.try(putChange(5, "late")), ErrClosed)
	j = openJournal(t, filepath.Join(dir, "new", "er"), 0)
	require.Equal(t, map[uint64]string{1: "uno", 2: "", 4: "nobody waits"}, readRecords(t, j))
	require.Equal(t, int64(3), j.Stats().Records)
}

func TestNobodyWaitsForLong(t *testing.T) {
	j := openJournal(t, t.TempDir(), 0)
	j.Commit([]RecordChange{putChange(1, "x")}, nil)
	require.Eventually(t, func() bool { return j.Stats().Groups == 1 }, 30*time.Second, time.Millisecond)
}

func TestOneProcessAtATime(t *testing.T) {
	dir := t.TempDir()
	openJournal(t, dir, 0)
	_, err := Open(Options{Dir: dir})
	require.ErrorContains(t, err, dir+" is in use by another process")
}

// Whatever is put and deleted, the files stay within twice what is live and a few
// segments, and are read back right.
func TestCompactionIsBounded(t *testing.T) {
	dir := t.TempDir()
	const segment = 8 << 10
	model := make(map[uint64]string)
	rnd := rand.New(rand.NewPCG(1, 2))
	j := openJournal(t, dir, segment)
	for round := range 3000 {
		var changes []RecordChange
		for range rnd.IntN(5) + 1 {
			id := uint64(rnd.IntN(100))
			if rnd.IntN(3) == 0 {
				changes = append(changes, RecordChange{ID: id})
				delete(model, id)
				continue
			}
			value := strings.Repeat(fmt.Sprint(round, "."), rnd.IntN(30))
			changes = append(changes, putChange(id, value))
			model[id] = value
		}
		j.now(t, changes...)
		if round%500 == 0 {
			require.NoError(t, j.Close())
			j = openJournal(t, dir, segment)
			require.Equal(t, model, readRecords(t, j))
		}
	}
	require.NoError(t, j.Close())
	var onDisk int64
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	require.NoError(t, err)
	for _, path := range files {
		info, err := os.Stat(path)
		require.NoError(t, err)
		onDisk += info.Size()
	}
	s := j.Stats()
	require.Equal(t, onDisk, s.Bytes)
	require.LessOrEqual(t, onDisk, 2*s.Live+4*segment)
	require.Positive(t, s.Compacted)
}

// A copy of the files, taken at any moment after a commit was acknowledged, and cut
// off or spoilt anywhere behind it, has all that was acknowledged and nothing else
// but whole commits that follow.
func TestCrashAtAnyPoint(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			dir := t.TempDir()
			j := openJournal(t, dir, 2<<10)
			acked := make(map[uint64]string)
			next := uint64(1)
			for range 200 {
				a, b := next, next+1
				next += 2
				value := strings.Repeat("v", rnd.IntN(100))
				changes := []RecordChange{putChange(a, value), putChange(b, value)} // both or none
				old := uint64(rnd.IntN(int(next)))
				changes = append(changes, RecordChange{ID: old})
				j.now(t, changes...)
				acked[a], acked[b] = value, value
				delete(acked, old)
			}
			require.NoError(t, j.Close())
			last := j.last()
			text, err := os.ReadFile(last)
			require.NoError(t, err)
			// One more group that was being written when the power went.
			g := newCommitGroup()
			g.add(putChange(next, strings.Repeat("t", 200)))
			g.add(putChange(next+1, "t"))
			_, newest := j.log.Segments()
			g.buf = wal.SealFrame(g.buf, wal.Position{Segment: newest, At: int64(len(text))})
			torn := bytes.Clone(g.buf)
			switch rnd.IntN(4) {
			case 0:
				torn = torn[:rnd.IntN(len(torn))]
			case 1:
				clear(torn[rnd.IntN(len(torn)-1):])
			case 2:
				clear(torn[:rnd.IntN(len(torn)-1)+1])
			case 3:
				torn[rnd.IntN(len(torn))] ^= 0x40
			}
			require.NoError(t, os.WriteFile(last, append(text, torn...), 0o600))
			j = openJournal(t, dir, 2<<10)
			require.Equal(t, acked, readRecords(t, j))
			j.now(t, putChange(next, "goes on"))
			require.NoError(t, j.Close())
			acked[next] = "goes on"
			require.Equal(t, acked, readRecords(t, openJournal(t, dir, 2<<10)))
		})
	}
}

// A payload that looks like a frame is none.
func TestFrameInAPayload(t *testing.T) {
	dir := t.TempDir()
	j := openJournal(t, dir, 0)
	inner := newCommitGroup()
	inner.add(putChange(7, "forged"))
	inner.buf = wal.SealFrame(inner.buf, wal.Position{Segment: 1, At: wal.HeaderSize + wal.HeadSize + 3})
	j.now(t, putChange(1, string(inner.buf)))
	require.NoError(t, j.Close())
	path := j.log.Path(1)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	const cut = 4 + 4 + 1 // both end marks, and one byte
	require.NoError(t, os.WriteFile(path, text[:len(text)-cut], 0o600))
	require.NoError(t, os.Remove(filepath.Join(dir, "confirmed")))
	require.Empty(t, readRecords(t, openJournal(t, dir, 0)))
}

func TestDamageIsRefused(t *testing.T) {
	make3 := func(t *testing.T) (dir string, j *Journal) {
		dir = t.TempDir()
		j = openJournal(t, dir, 256)
		for i := range uint64(20) {
			j.now(t, putChange(i, strings.Repeat("x", 50)))
		}
		require.NoError(t, j.Close())
		require.Greater(t, j.log.Count(), int64(2))
		return dir, j
	}
	for name, spoil := range map[string]func(t *testing.T, j *Journal) string{
		"bit in the first segment": func(t *testing.T, j *Journal) string { return flipByte(t, j.log.Path(1), 60) },
		"header":                   func(t *testing.T, j *Journal) string { return flipByte(t, j.log.Path(2), 3) },
		"bit before the last group": func(t *testing.T, j *Journal) string {
			require.NoError(t, j.reopen(t, putChange(100, "a"), putChange(101, "b")))
			return flipByte(t, j.last(), wal.HeaderSize+wal.HeadSize+1)
		},
		"truncated in the middle": func(t *testing.T, j *Journal) string {
			require.NoError(t, os.Truncate(j.log.Path(2), 100))
			return j.log.Path(2)
		},
		"missing in the middle": func(t *testing.T, j *Journal) string {
			require.NoError(t, os.Remove(j.log.Path(2)))
			return j.log.Path(2)
		},
		"missing at the beginning": func(t *testing.T, j *Journal) string {
			require.NoError(t, os.Remove(j.log.Path(1)))
			return j.log.Path(1)
		},
		"not ours": func(t *testing.T, j *Journal) string {
			path := filepath.Join(j.opts.Dir, "notes.log")
			require.NoError(t, os.WriteFile(path, nil, 0o600))
			return path
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, j := make3(t)
			path := spoil(t, j)
			_, err := Open(Options{Dir: dir})
			require.ErrorContains(t, err, path)
		})
	}
}

// reopen commits each change in a group of its own, in a new segment.
func (j *Journal) reopen(t *testing.T, changes ...RecordChange) error {
	again := openJournal(t, j.opts.Dir, 1<<20)
	if err := again.log.Cut(); err != nil {
		return err
	}
	for _, c := range changes {
		again.now(t, c)
	}
	j.log = again.log
	return again.Close()
}

// last is the file that is written to.
func (j *Journal) last() string {
	_, newest := j.log.Segments()
	return j.log.Path(newest)
}

func flipByte(t *testing.T, path string, at int) string {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	text[at] ^= 1
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

func TestErrorOfTheReaderNamesTheFile(t *testing.T) {
	j := openJournal(t, t.TempDir(), 0)
	j.now(t, putChange(1, "x"))
	err := j.Load(func(uint64, []byte) error { return errors.New("no such kind") })
	require.ErrorContains(t, err, j.log.Path(1))
	require.ErrorContains(t, err, "record 1: no such kind")
}

// faultyFile is a file on a disk that is full, or that fails, for a while.
type faultyFile struct {
	wal.File
	disk *faultyDisk
}

type faultyDisk struct {
	mu             sync.Mutex
	full, unsynced bool
	stuck          bool // not even what was written can be taken back
}

func (d *faultyDisk) set(change func(*faultyDisk)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

func (f faultyFile) WriteAt(b []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.full {
		n, _ := f.File.WriteAt(b[:len(b)/2], at)
		return n, syscall.ENOSPC
	}
	return f.File.WriteAt(b, at)
}

func (f faultyFile) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.unsynced {
		return syscall.EIO
	}
	return f.File.Sync()
}

func (f faultyFile) Truncate(n int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.stuck {
		return syscall.EROFS
	}
	return f.File.Truncate(n)
}

func TestFailedCommitsLeaveNothingAndItRecovers(t *testing.T) {
	d := &faultyDisk{}
	dir := t.TempDir()
	j, err := open(Options{Dir: dir, Segment: 1 << 10}, func(f *os.File) wal.File { return faultyFile{wal.SyncedFile{File: f}, d} })
	require.NoError(t, err)
	model := make(map[uint64]string)
	rnd := rand.New(rand.NewPCG(3, 4))
	failures := 0
	for i := range uint64(500) {
		d.set(func(d *faultyDisk) {
			d.full, d.unsynced, d.stuck = rnd.IntN(5) == 0, rnd.IntN(9) == 0, rnd.IntN(5) == 0
		})
		id := i % 50
		if err := j.try(putChange(id, fmt.Sprint(i))); err != nil {
			failures++
			require.ErrorContains(t, err, dir)
			continue
		}
		model[id] = fmt.Sprint(i)
	}
	d.set(func(d *faultyDisk) { d.full, d.unsynced, d.stuck = false, false, false })
	j.now(t, putChange(1000, "well again"))
	model[1000] = "well again"
	require.Greater(t, failures, 50)
	require.NoError(t, j.Close())
	require.Equal(t, int64(failures), j.Stats().Failed)
	require.Equal(t, model, readRecords(t, openJournal(t, dir, 1<<10)))
}

func TestCommitsOfManyAreAnsweredInOrder(t *testing.T) {
	dir := t.TempDir()
	j := openJournal(t, dir, 4<<10)
	const writers, each = 8, 300
	var all sync.WaitGroup
	var mu sync.Mutex
	last := make(map[int]int)
	for w := range writers {
		all.Go(func() {
			var mine sync.WaitGroup
			for i := range each {
				mine.Add(1)
				j.Commit([]RecordChange{putChange(uint64(w), fmt.Sprint(i))}, func(err error) {
					defer mine.Done()
					mu.Lock()
					defer mu.Unlock()
					if err != nil || i > 0 && last[w] != i-1 {
						t.Errorf("writer %d: %d after %d: %v", w, i, last[w], err)
					}
					last[w] = i
				})
			}
			mine.Wait()
		})
	}
	all.Wait()
	require.Less(t, j.Stats().Groups, int64(writers*each/4))
	want := make(map[uint64]string)
	for w := range uint64(writers) {
		want[w] = fmt.Sprint(each - 1)
	}
	require.NoError(t, j.Close())
	require.True(t, maps.Equal(want, readRecords(t, openJournal(t, dir, 4<<10))))
}

// Those who write by themselves, and those who have it done, take turns: each finds the
// last state that it left, and nothing is lost or comes twice.
func TestSyncAndCommitTakeTurns(t *testing.T) {
	dir := t.TempDir()
	j := openJournal(t, dir, 4<<10)
	const writers, each = 4, 200
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				change := putChange(uint64(w), strings.Repeat(fmt.Sprint(i, " "), 20))
				if w%2 == 0 {
					if err := j.Sync([]RecordChange{change}); err != nil {
						t.Error(err)
					}
					continue
				}
				j.now(t, change)
			}
		})
	}
	all.Wait()
	s := j.Stats()
	require.Equal(t, int64(writers*each), s.Commits)
	require.NoError(t, j.Close())
	require.ErrorIs(t, j.Sync([]RecordChange{putChange(1, "late")}), ErrClosed)
	j = openJournal(t, dir, 4<<10)
	for _, last := range readRecords(t, j) {
		require.Equal(t, strings.Repeat(fmt.Sprint(each-1, " "), 20), last)
	}
	require.Equal(t, int64(writers), j.Stats().Records)
}

func FuzzSegment(f *testing.F) {
	g := newCommitGroup()
	g.add(putChange(1, "one"))
	g.add(RecordChange{ID: 300})
	g.addBase(1)
	g.buf = wal.SealFrame(g.buf, wal.Position{Segment: 1, At: wal.HeaderSize})
	f.Add(append(wal.AppendHeader(nil, 1, 1), g.buf...), false)
	f.Add(g.buf[wal.HeadSize:], true)
	f.Add([]byte{opPut, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, true)
	f.Fuzz(func(t *testing.T, text []byte, framed bool) {
		if framed { // a body with a right checksum
			frame := append(make([]byte, wal.HeadSize), text...)
			frame = wal.SealFrame(frame, wal.Position{Segment: 1, At: wal.HeaderSize})
			text = append(wal.AppendHeader(nil, 1, 1), frame...)
		}
		dir := t.TempDir()
		path := filepath.Join(dir, "000000000001.log")
		require.NoError(t, os.WriteFile(path, text, 0o600))
		j, err := Open(Options{Dir: dir})
		if err != nil {
			require.ErrorContains(t, err, dir)
			return
		}
		before := readRecords(t, j)
		require.NoError(t, j.try(putChange(5, "more")))
		before[5] = "more"
		require.NoError(t, j.Close())
		j, err = Open(Options{Dir: dir})
		require.NoError(t, err)
		require.Equal(t, before, readRecords(t, j))
		require.NoError(t, j.Close())
	})
}

func TestWhatNobodyWaitsForIsTriedAgain(t *testing.T) {
	d := &faultyDisk{}
	dir := t.TempDir()
	j, err := open(Options{Dir: dir}, func(f *os.File) wal.File { return faultyFile{wal.SyncedFile{File: f}, d} })
	require.NoError(t, err)
	j.now(t, putChange(1, "one"), putChange(2, "two"), putChange(3, "three"))
	d.set(func(d *faultyDisk) { d.full = true })
	j.Commit([]RecordChange{{ID: 1}, putChange(4, "old")}, nil)
	require.Error(t, j.try(putChange(2, "refused")))
	j.Commit([]RecordChange{putChange(4, "new")}, nil)
	require.Error(t, j.try(putChange(3, "refused")))
	d.set(func(d *faultyDisk) { d.full = false })
	j.now(t, putChange(5, "five")) // takes along what waited
	require.NoError(t, j.Close())
	require.Equal(t, map[uint64]string{2: "two", 3: "three", 4: "new", 5: "five"}, readRecords(t, openJournal(t, dir, 0)))
}

// On a full disk sessions come and go, and with each a record is to be deleted that was never stored.
func TestWhatWasNeverStoredDoesNotWaitToBeDeleted(t *testing.T) {
	d := &faultyDisk{}
	dir := t.TempDir()
	j, err := open(Options{Dir: dir}, func(f *os.File) wal.File { return faultyFile{wal.SyncedFile{File: f}, d} })
	require.NoError(t, err)
	j.now(t, putChange(1, "one"), putChange(2, "two"))
	d.set(func(d *faultyDisk) { d.full = true })
	j.Commit([]RecordChange{{ID: 1}}, nil)
	for id := uint64(10); id < 410; id++ {
		require.Error(t, j.try(putChange(id, "refused")))
		j.Commit([]RecordChange{putChange(id+5000, "written late")}, nil)
		j.Commit([]RecordChange{{ID: id}, {ID: id + 5000}, putChange(2, fmt.Sprint(id))}, nil)
		require.Less(t, j.Stats().Waiting, int64(1000))
	}
	require.Error(t, j.try(), "with the last of them")
	d.set(func(d *faultyDisk) { d.full = false })
	j.now(t, putChange(3, "three"))
	require.NoError(t, j.Close())
	require.Equal(t, map[uint64]string{2: "409", 3: "three"}, readRecords(t, openJournal(t, dir, 0)))
}

// Who only looks sees what an opening would, and leaves everything as it is: also the
// end of a torn write, and that there is no lock.
func TestReadOnlyChangesNothing(t *testing.T) {
	dir := t.TempDir()
	j := openJournal(t, dir, 0)
	j.now(t, putChange(1, "one"), putChange(2, "two"))
	require.NoError(t, j.Close())
	require.NoError(t, os.Remove(filepath.Join(dir, "lock")))
	require.NoError(t, os.Remove(filepath.Join(dir, "reserve")))
	require.NoError(t, os.Remove(filepath.Join(dir, "confirmed")))
	segment := filepath.Join(dir, "000000000001.log")
	whole, err := os.ReadFile(segment)
	require.NoError(t, err)
	torn := append(whole, "torn"...)
	require.NoError(t, os.WriteFile(segment, torn, 0o600))

	j, err = Open(Options{Dir: dir, ReadOnly: true})
	require.NoError(t, err)
	require.Equal(t, map[uint64]string{1: "one", 2: "two"}, readRecords(t, j))
	require.ErrorIs(t, j.try(putChange(3, "three")), ErrClosed)
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

// Records are read in spans of a file: small ones beside each other, those with gaps between them, those of several segments, and
// records larger than a span come in the order that is asked for. One that is damaged ends the reading after those before it.
func TestReadGivesWhatIsAskedForInOrder(t *testing.T) {
	dir := t.TempDir()
	j := openJournal(t, dir, 256<<10)
	want := make(map[uint64]string)
	rng := rand.New(rand.NewPCG(1, 2))
	for id := uint64(1); id <= 400; id++ {
		size := 10 + rng.IntN(300)
		switch id % 40 {
		case 7:
			size = readGap + rng.IntN(readGap)
		case 9:
			size = readSpan + rng.IntN(readSpan)
		}
		want[id] = strings.Repeat(string(rune('a'+id%26)), size)
		j.now(t, putChange(id, want[id]))
	}
	for range 20 {
		ids := rng.Perm(400)[:100]
		if rng.IntN(2) == 0 {
			slices.Sort(ids)
		}
		var list []uint64
		for _, id := range ids {
			list = append(list, uint64(id)+1)
		}
		n := 0
		require.NoError(t, j.Read(list, func(i int, value []byte) error {
			require.Equal(t, n, i)
			require.Equal(t, want[list[i]], string(value))
			n++
			return nil
		}))
		require.Equal(t, len(list), n)
	}

	p, ok := j.index.get(395)
	require.True(t, ok)
	f, err := os.OpenFile(j.log.Path(uint64(p.segment)), os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{0xff, 0xff}, int64(p.at))
	require.NoError(t, errors.Join(err, f.Close()))
	var read []int
	err = j.Read([]uint64{393, 394, 395, 396}, func(i int, value []byte) error {
		read = append(read, i)
		return nil
	})
	require.ErrorIs(t, err, ErrDamaged)
	require.Equal(t, []int{0, 1}, read)

	require.NoError(t, os.Truncate(j.log.Path(uint64(p.segment)), int64(p.at)))
	read = nil
	require.ErrorIs(t, j.Read([]uint64{393, 394, 396}, func(i int, value []byte) error {
		read = append(read, i)
		return nil
	}), ErrDamaged)
	require.Equal(t, []int{0, 1}, read)
}

func TestRecordsAreReadWhileAnAppendTakesForever(t *testing.T) {
	d := &faultyDisk{}
	j, err := open(Options{Dir: t.TempDir()}, func(f *os.File) wal.File { return faultyFile{wal.SyncedFile{File: f}, d} })
	require.NoError(t, err)
	j.now(t, putChange(1, "stored"))
	read := func() (value string) {
		read := make(chan error, 1)
		go func() {
			read <- j.Read([]uint64{1}, func(_ int, v []byte) error { value = string(v); return nil })
		}()
		select {
		case err := <-read:
			require.NoError(t, err)
		case <-time.After(5 * time.Second):
			d.mu.Unlock()
			t.Fatal("a reader waits for the append")
		}
		return value
	}
	d.mu.Lock() // the disk takes no write
	done := make(chan error, 1)
	j.Commit([]RecordChange{putChange(1, "next")}, func(err error) { done <- err })
	require.Eventually(t, func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		return j.writing > 0
	}, 5*time.Second, time.Millisecond)
	for range 100 {
		require.Equal(t, "stored", read())
		runtime.Gosched()
	}
	require.Empty(t, done, "nothing is stored, and nobody is told that it is")
	d.mu.Unlock()
	require.NoError(t, <-done)
	require.Equal(t, "next", read())
	require.NoError(t, j.Close())
}
