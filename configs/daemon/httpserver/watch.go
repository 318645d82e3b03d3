package httpserver

import (
	"net/http"
	"runtime"
	"slices"
	"sync"
	"time"
)

// piece is about how much is put together before it is written. What there is to tell at one time is mostly less.
const piece = 64 << 10

// Lines are the events of one watcher, as JSON lines. All that are added before a Flush are one write.
type Lines struct {
	w     http.ResponseWriter
	c     *http.ResponseController
	buf   []byte
	begun bool // something was written since the last flush

	allowed time.Duration // see Allow
	read    int           // bytes that were written since the client was given time
}

// BeginWatch answers that the watch has begun, which the client is told by the first Flush.
func BeginWatch(w http.ResponseWriter) *Lines {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	return &Lines{w: w, c: http.NewResponseController(w), begun: true}
}

// Add adds an event about an object, which is JSON.
func (l *Lines) Add(kind string, object []byte) error {
	l.buf = slices.Grow(l.buf, len(object)+len(kind)+len(`{"type":"","object":}`)+1)
	l.buf = append(append(append(l.buf, `{"type":"`...), kind...), `","object":`...)
	l.buf = append(append(l.buf, object...), "}\n"...)
	if len(l.buf) < piece {
		return nil
	}
	return l.write()
}

func (l *Lines) write() error {
	if l.read += len(l.buf); l.read >= piece && l.allowed > 0 {
		l.Allow(l.allowed)
	}
	_, err := l.w.Write(l.buf)
	l.buf, l.begun = l.buf[:0], true
	return err
}

// Flush sends what was added, if anything was.
func (l *Lines) Flush() error {
	if len(l.buf) > 0 {
		if err := l.write(); err != nil {
			return err
		}
	}
	l.buf = nil // watchers mostly wait
	if !l.begun {
		return nil
	}
	l.begun = false
	return l.c.Flush()
}

// Allow gives the client so long to read what is written until the next Allow, and as long again for every piece of
// what is much: who reads slowly gets it all, who reads nothing doesn't. It costs more than it looks, and a deadline
// that is over ends some connections also when nothing is written: call it now and then, not for each event, and allow
// for longer than until the next call.
func (l *Lines) Allow(d time.Duration) {
	l.allowed, l.read = d, 0
	_ = l.c.SetWriteDeadline(time.Now().Add(d)) // where it can't be set, the server's own holds
}

// Shared makes what many are given once: the first who asks makes it, the others wait for that and get the same. Of
// each thing it keeps the version that was asked for last, and of many things those of the last time, in two halves of
// which the older goes when the newer is full. The version has to say all that the value depends on.
type Shared[K, V comparable, T any] struct {
	most int // bytes

	mu            sync.Mutex
	size          int // of recent
	recent, older map[K]*made[V, T]
}

type made[V comparable, T any] struct {
	version V
	value   func() T // made by the first who calls it
	size    int      // once it is made
}

// entrySize is about what an entry takes beside its value.
const entrySize = 256

// NewShared makes one that keeps about so many bytes.
func NewShared[K, V comparable, T any](most int) *Shared[K, V, T] {
	return &Shared[K, V, T]{most: most, recent: make(map[K]*made[V, T])}
}

// Get is what the first who asked made, who also said of how many bytes it is. Nobody may change it.
func (s *Shared[K, V, T]) Get(key K, version V, first func() (t T, size int)) T {
	return s.entry(key, version, first).value() // without the lock: others make something else meanwhile
}

func (s *Shared[K, V, T]) entry(key K, version V, first func() (T, int)) *made[V, T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, known := s.recent[key]
	if known && before.version == version {
		return before
	}
	if old, ok := s.older[key]; ok && !known && old.version == version {
		return old
	}
	if known {
		s.size -= before.size
	}
	m := &made[V, T]{version: version}
	m.value = sync.OnceValue(func() T {
		t, size := first()
		s.count(key, m, size+entrySize)
		return t
	})
	s.recent[key] = m
	return m
}

// count takes note of what something takes that was made, and makes room when it is too much.
func (s *Shared[K, V, T]) count(key K, m *made[V, T], size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recent[key] != m {
		return // it isn't kept any more
	}
	m.size = size
	if s.size += size; s.size > s.most/2 {
		s.older, s.recent, s.size = s.recent, make(map[K]*made[V, T]), 0
	}
}

// turnMost is how long a watcher keeps its turn. One that takes longer waits for its client, and lets the next one go.
const turnMost = time.Millisecond

// Turns lets as many watchers write at a time as there are processors. One change wakes all watchers, and hundreds of
// goroutines that run at once delay every other message of the process.
type Turns struct {
	taken chan struct{}
}

// NewTurns makes turns of which none is taken.
func NewTurns() *Turns { return &Turns{make(chan struct{}, runtime.GOMAXPROCS(0))} }

// Take waits for a turn, and has it until leave is called.
func (t *Turns) Take() (leave func()) {
	t.taken <- struct{}{}
	late := time.AfterFunc(turnMost, t.leave)
	return func() {
		if late.Stop() {
			t.leave()
		}
	}
}

func (t *Turns) leave() { <-t.taken }
