package journal

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/wal"
)

// watched is a file that tells of each boundary between two of its operations.
type watched struct {
	*os.File
	w *witness
}

func (f watched) WriteAt(b []byte, at int64) (int, error) {
	f.w.boundary()
	defer f.w.boundary()
	return f.File.WriteAt(b, at)
}

func (f watched) Sync() error {
	f.w.boundary()
	err := f.File.Sync()
	f.w.synced(f.Name())
	f.w.boundary()
	return err
}

func (f watched) Truncate(n int64) error {
	f.w.boundary()
	defer f.w.boundary()
	return f.File.Truncate(n)
}

// witness tries at every boundary what would be found if the process, or the machine,
// ended there.
type witness struct {
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
func (w *witness) synced(path string) {
	text, err := os.ReadFile(path)
	if err != nil {
		path = strings.TrimSuffix(path, ".new")
		text, err = os.ReadFile(path)
	}
	if err == nil {
		w.disk[filepath.Base(path)] = text
	}
}

func (w *witness) boundary() {
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
func (w *witness) try(how string, files map[string][]byte) {
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
	w := &witness{t: t, dir: dir, disk: make(map[string][]byte), rnd: rand.New(rand.NewPCG(5, 6))}
	j, err := open(Options{Dir: dir, Segment: smallSegment}, func(f *os.File) wal.File { return watched{f, w} })
	require.NoError(t, err)
	w.mu.Lock()
	w.acked = make(map[uint64]string)
	w.mu.Unlock()
	rnd := rand.New(rand.NewPCG(7, 8))
	for round := range 60 {
		next := maps.Clone(w.acked)
		var changes []Change
		for range rnd.IntN(3) + 1 {
			id := uint64(rnd.IntN(12))
			if rnd.IntN(4) == 0 {
				changes = append(changes, Change{ID: id})
				delete(next, id)
				continue
			}
			next[id] = strings.Repeat(fmt.Sprint(round, "."), rnd.IntN(20))
			changes = append(changes, put(id, next[id]))
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
	require.Equal(t, w.acked, content(t, opened(t, dir, smallSegment)))
}
