package httpserver

import "sync"

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
