package watch

import "sync"

// Shared makes what many are given once: the first who asks makes it, the others wait for that and get the same. It
// keeps what was made last, in two halves of which the older goes when the newer is full. The key has to say all
// that the value depends on, for nothing is made anew for a key that is still there.
type Shared[K comparable, V any] struct {
	most int // bytes

	mu            sync.Mutex
	size          int // of recent
	recent, older map[K]func() V
}

// entrySize is about what an entry takes beside its value.
const entrySize = 256

// NewShared makes one that keeps about so many bytes.
func NewShared[K comparable, V any](most int) *Shared[K, V] {
	return &Shared[K, V]{most: most, recent: make(map[K]func() V)}
}

// Get is what the first who asked made, who also said of how many bytes it is. Nobody may change it.
func (s *Shared[K, V]) Get(key K, first func() (v V, size int)) V {
	return s.entry(key, first)() // without the lock: others make something else meanwhile
}

func (s *Shared[K, V]) entry(key K, first func() (V, int)) func() V {
	s.mu.Lock()
	defer s.mu.Unlock()
	made, ok := s.recent[key]
	if !ok {
		made, ok = s.older[key]
	}
	if ok {
		return made
	}
	made = sync.OnceValue(func() V {
		v, size := first()
		s.grow(size)
		return v
	})
	s.recent[key] = made
	return made
}

// grow counts what was made, and makes room when it is too much.
func (s *Shared[K, V]) grow(size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size += size + entrySize; s.size > s.most/2 {
		s.older, s.recent, s.size = s.recent, make(map[K]func() V), 0
	}
}
