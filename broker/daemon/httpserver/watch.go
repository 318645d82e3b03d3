// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"net/http"
	"runtime"
	"slices"
	"sync"
	"time"
)

// flushSize is how many bytes are collected before they are written.
const flushSize = 64 << 10

// EventWriter writes the events of one watch as JSON lines. Events that are added before a Flush are one write, as long as they
// are fewer than 64 KiB.
type EventWriter struct {
	w     http.ResponseWriter
	c     *http.ResponseController
	buf   []byte
	begun bool // something was written since the last flush

	allowed time.Duration // see Allow
	read    int           // bytes that were written since the client was given time
}

// BeginWatch answers 200; the first Flush sends it.
func BeginWatch(w http.ResponseWriter) *EventWriter {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	return &EventWriter{w: w, c: http.NewResponseController(w), begun: true}
}

// Add adds an event about an object, which is JSON.
func (l *EventWriter) Add(kind string, object []byte) error {
	l.buf = slices.Grow(l.buf, len(object)+len(kind)+len(`{"type":"","object":}`)+1)
	l.buf = append(append(append(l.buf, `{"type":"`...), kind...), `","object":`...)
	l.buf = append(append(l.buf, object...), "}\n"...)
	if len(l.buf) < flushSize {
		return nil
	}
	return l.write()
}

func (l *EventWriter) write() error {
	if l.read += len(l.buf); l.read >= flushSize && l.allowed > 0 {
		l.Allow(l.allowed)
	}
	_, err := l.w.Write(l.buf)
	l.buf, l.begun = l.buf[:0], true
	return err
}

// Flush sends what was added, if anything was.
func (l *EventWriter) Flush() error {
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

// Allow gives the client d to read what is written until the next Allow, and d again for every 64 KiB: a slow client
// receives everything, a client that does not read is disconnected. Setting a deadline is expensive, and an expired
// deadline can end a connection on which nothing is written. So call it now and then, not for each event, with a d longer
// than the time until the next call.
func (l *EventWriter) Allow(d time.Duration) {
	l.allowed, l.read = d, 0
	_ = l.c.SetWriteDeadline(time.Now().Add(d)) // where it can't be set, the server's own holds
}

// VersionCache is a cache of values that many readers get: the first reader of a key and version makes the value, others wait
// for it. It keeps one version of each key, the one that was asked for last, in two generations: when the newer one has
// half of the permitted bytes, the older one is dropped. A value must depend on nothing but its key and version.
type VersionCache[K, V comparable, T any] struct {
	most int // bytes

	mu            sync.Mutex
	size          int // of recent
	recent, older map[K]*cacheEntry[V, T]
}

type cacheEntry[V comparable, T any] struct {
	version V
	value   func() T // the first call makes it
	size    int      // once it is made
}

// entrySize is about what an entry takes besides its value.
const entrySize = 256

// NewVersionCache makes a cache of about so many bytes.
func NewVersionCache[K, V comparable, T any](most int) *VersionCache[K, V, T] {
	return &VersionCache[K, V, T]{most: most, recent: make(map[K]*cacheEntry[V, T])}
}

// Get returns the value of a key and version, which first makes with its size in bytes unless it is cached. It must not be
// changed.
func (s *VersionCache[K, V, T]) Get(key K, version V, first func() (t T, size int)) T {
	return s.entry(key, version, first).value() // without the lock: others make something else meanwhile
}

func (s *VersionCache[K, V, T]) entry(key K, version V, first func() (T, int)) *cacheEntry[V, T] {
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
	m := &cacheEntry[V, T]{version: version}
	m.value = sync.OnceValue(func() T {
		t, size := first()
		s.count(key, m, size+entrySize)
		return t
	})
	s.recent[key] = m
	return m
}

// count adds the size of a value that was made, and starts a new generation when this one is full.
func (s *VersionCache[K, V, T]) count(key K, m *cacheEntry[V, T], size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recent[key] != m {
		return // it was replaced meanwhile
	}
	m.size = size
	if s.size += size; s.size > s.most/2 {
		s.older, s.recent, s.size = s.recent, make(map[K]*cacheEntry[V, T]), 0
	}
}

// longestTurn is how long a watch keeps its turn. One that takes longer waits for its client, and the next one runs.
const longestTurn = time.Millisecond

// WatchTurns lets as many watches write at a time as there are processors. A change wakes all watches, and hundreds of
// goroutines that run at once delay every other message of the process.
type WatchTurns struct {
	taken chan struct{}
}

// NewWatchTurns makes WatchTurns, none of which are taken.
func NewWatchTurns() *WatchTurns { return &WatchTurns{make(chan struct{}, runtime.GOMAXPROCS(0))} }

// Take waits for a turn, and keeps it until leave is called, or for 1 ms.
func (t *WatchTurns) Take() (leave func()) {
	t.taken <- struct{}{}
	late := time.AfterFunc(longestTurn, t.leave)
	return func() {
		if late.Stop() {
			t.leave()
		}
	}
}

func (t *WatchTurns) leave() { <-t.taken }
