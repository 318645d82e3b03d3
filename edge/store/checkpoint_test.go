// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/wal"
	"github.com/edgebus/edgebus/topics/link"
)

// watchedFile is a file of the log that tells of each boundary between two of its operations.
type watchedFile struct {
	*os.File
	w *crashTester
}

func (f watchedFile) WriteAt(b []byte, at int64) (int, error) {
	defer f.w.boundary()
	return f.File.WriteAt(b, at)
}

func (f watchedFile) Sync() error {
	err := f.File.Sync()
	f.w.synced(f.Name())
	f.w.boundary()
	return err
}

// crashTester tries at every boundary what would be found if the process, or the machine,
// ended there.
type crashTester struct {
	t      *testing.T
	dir    string
	disk   map[string][]byte // what was synced, by file
	opened bool
	tried  int

	acked, pending map[string]string // what was promised, and that with the commit which is under way
}

func (w *crashTester) synced(path string) {
	text, err := os.ReadFile(path)
	if err != nil { // a segment is made under another name
		path = strings.TrimSuffix(path, ".new")
		text, err = os.ReadFile(path)
	}
	require.NoError(w.t, err)
	w.disk[filepath.Base(path)] = text
}

func (w *crashTester) boundary() {
	if !w.opened {
		return
	}
	files := make(map[string][]byte)
	entries, err := os.ReadDir(w.dir)
	require.NoError(w.t, err)
	for _, e := range entries {
		if name := e.Name(); strings.HasSuffix(name, ".log") || name == fileName {
			text, err := os.ReadFile(filepath.Join(w.dir, name))
			require.NoError(w.t, err)
			files[name] = text
			if made, ok := w.disk[name+".new"]; ok {
				delete(w.disk, name+".new")
				w.disk[name] = made
			}
		}
	}
	w.try("the process is killed", files)
	w.try("power goes, what wasn't synced is lost, and what was removed is back", w.disk)
	torn := maps.Clone(w.disk)
	for name, text := range files {
		if safe := len(w.disk[name]); len(text) > safe && name != fileName {
			torn[name] = append(bytes.Clone(text[:safe+(len(text)-safe)/2]), make([]byte, 9)...)
		}
		if name == fileName {
			torn[name] = text
		}
	}
	w.try("power goes, and a part of it is there", torn)
}

func (w *crashTester) try(how string, files map[string][]byte) {
	w.tried++
	dir := filepath.Join(w.t.TempDir(), DirName)
	require.NoError(w.t, os.Mkdir(dir, 0o700))
	for name, text := range files {
		require.NoError(w.t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	s, err := Open(Options{Dir: filepath.Dir(dir), Rand: fixedRand, sizes: noCheckpoints})
	require.NoError(w.t, err, "boundary %d: %s", w.tried, how)
	require.NoError(w.t, s.Check(), "boundary %d: %s", w.tried, how)
	found := storedContent(loadSnapshot(w.t, s))
	if !maps.Equal(found, w.acked) && !maps.Equal(found, w.pending) {
		w.t.Fatalf("boundary %d: %s: found %v, promised %v, under way %v", w.tried, how, found, w.acked, w.pending)
	}
	s.checkpoint.failing = true // no last one: it has been seen
	require.NoError(w.t, s.Close())
}

// noCheckpoints are sizes with which no checkpoint begins by itself.
var noCheckpoints = sizes{segment: 1 << 10, slack: 1 << 40, chunk: 3}

func storedContent(snap Snapshot) map[string]string {
	all := make(map[string]string)
	snap.Up.Range("", func(e link.Entry) bool {
		all[e.Key] = string(e.Value)
		return true
	})
	for key, e := range snap.Effective {
		all["effective "+key] = string(e.Value)
	}
	return all
}

// At every boundary between two operations on the files, through checkpoints that are
// interrupted, or have commits between their transactions, a killed process and a power
// cut leave what was promised.
func TestCrashAtEveryBoundary(t *testing.T) {
	w := &crashTester{t: t, disk: make(map[string][]byte), acked: map[string]string{}}
	dir := t.TempDir()
	w.dir = filepath.Join(dir, DirName)
	rnd := rand.New(rand.NewPCG(1, 2))
	s, err := Open(Options{
		Dir: dir, Rand: fixedRand, sizes: noCheckpoints, wrap: func(f *os.File) wal.File { return watchedFile{f, w} },
		Checkpointed: func(_ time.Duration, _ int, err error) {
			require.NoError(t, err)
			w.synced(filepath.Join(w.dir, fileName))
			w.boundary()
		},
	})
	require.NoError(t, err)
	w.synced(filepath.Join(w.dir, fileName))
	w.opened = true
	up := loadSnapshot(t, s).Up
	round := 0
	commit := func() {
		round++
		next := maps.Clone(w.acked)
		b := Batch{Effective: make(map[string]*Effective)}
		for range rnd.IntN(3) + 1 {
			key, value := fmt.Sprintf("k%d", rnd.IntN(12)), strings.Repeat(fmt.Sprint(round, "."), rnd.IntN(20))
			switch rnd.IntN(5) {
			case 0:
				b.Effective[key] = nil
				delete(next, "effective "+key)
			case 1:
				b.Effective[key] = &Effective{Value: []byte(value)}
				next["effective "+key] = value
			default:
				putValue(t, up, key, value)
				next[key] = value
			}
		}
		if rnd.IntN(20) == 0 { // the map begins anew
			up = link.NewOwner(link.Up, fixedRand)
			putValue(t, up, "first", "again")
			maps.DeleteFunc(next, func(key, _ string) bool { return !strings.HasPrefix(key, "effective ") })
			next["first"] = "again"
		}
		b.Up = up.TakeChanges()
		w.pending = next
		require.NoError(t, s.Commit(b))
		w.acked = next
	}
	for range 40 {
		commit()
		if rnd.IntN(4) > 0 {
			continue
		}
		pause := func(time.Duration) error {
			switch rnd.IntN(6) {
			case 0:
				return errStopped
			case 1:
				commit()
			}
			return nil
		}
		if rnd.IntN(2) == 0 {
			_, err = s.checkpoint.pass(1, pause)
		} else {
			err = s.checkpoint.empty(1+rnd.IntN(2), pause)
		}
		if !errors.Is(err, errStopped) {
			require.NoError(t, err)
		}
		w.boundary()
	}
	position, err := s.position()
	require.NoError(t, err)
	require.Positive(t, position, "there were checkpoints")
	require.NoError(t, s.Close())
	s = openStore(t, dir)
	require.Equal(t, w.acked, storedContent(loadSnapshot(t, s)))
	require.NoError(t, s.Close())
	t.Log(w.tried, "crashes")
}

// However much is written, and however fast, the log is no longer than the database and
// some, and what it has said is in the database.
func TestTheLogStaysShort(t *testing.T) {
	small := sizes{segment: 64 << 10, slack: 256 << 10, chunk: 10}
	dir := t.TempDir()
	s := openStore(t, dir, small)
	up := loadSnapshot(t, s).Up
	value := make([]byte, 2<<10)
	for n := range 5000 {
		value[0], value[1] = byte(n), byte(n>>8)
		putValue(t, up, fmt.Sprintf("key-%d", n%100), string(value))
		require.NoError(t, s.Commit(Batch{Up: up.TakeChanges()}))
		require.LessOrEqual(t, s.log.Size(), 2*s.checkpoint.limit()+3*small.segment)
	}
	require.Eventually(t, func() bool { return s.log.Size() <= s.checkpoint.limit() }, 30*time.Second, time.Millisecond)
	require.Less(t, s.Stats().DatabaseBytes, int64(4<<20))
	require.NoError(t, s.Check())
	require.Equal(t, up.Digest(), loadSnapshot(t, s).Up.Digest())
	require.NoError(t, s.Close())
	s = openStore(t, dir)
	require.Equal(t, int64(wal.HeaderSize), s.Stats().LogBytes, "a store that was closed is all in the database")
	require.Equal(t, up.Digest(), loadSnapshot(t, s).Up.Digest())
	require.NoError(t, s.Close())
}

// A checkpoint that fails is said once, commits go on, and it is made up for.
func TestFailingCheckpoints(t *testing.T) {
	var said bytes.Buffer
	failed := 0
	o := Options{Dir: t.TempDir(), Rand: fixedRand, Log: zerolog.New(&said), sizes: noCheckpoints}
	o.Checkpointed = func(_ time.Duration, _ int, err error) {
		if err != nil {
			failed++
		}
	}
	s, err := Open(o)
	require.NoError(t, err)
	up := loadSnapshot(t, s).Up
	require.NoError(t, s.db.Close())
	for i := range 3 {
		putValue(t, up, "key", fmt.Sprint(i))
		require.NoError(t, s.Commit(Batch{Up: up.TakeChanges()}))
		require.Error(t, s.checkpoint.work(s.checkpoint.finish))
	}
	require.Equal(t, 3, failed)
	require.Equal(t, 1, strings.Count(said.String(), "no checkpoint of the node's tree"), said.String())
	require.NoError(t, s.openDB())
	require.NoError(t, s.checkpoint.work(s.checkpoint.finish))
	require.Contains(t, said.String(), "checkpoints of the node's tree again")
	require.Equal(t, int64(1), s.log.Count())
	require.Equal(t, up.Digest(), loadSnapshot(t, s).Up.Digest())
	require.NoError(t, s.Close())
}
