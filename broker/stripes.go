package broker

import (
	"hash/maphash"
	"sync"
)

// stripes are locks for many names: the same name always has the same lock.
type stripes struct {
	once  sync.Once
	seed  maphash.Seed
	locks [64]sync.Mutex
}

// pass returns when all have let go of their locks who had one.
func (s *stripes) pass() {
	for i := range s.locks {
		wait(&s.locks[i])
	}
}

func wait(l *sync.Mutex) {
	l.Lock()
	defer l.Unlock()
}

func (s *stripes) of(name string) *sync.Mutex {
	s.once.Do(func() { s.seed = maphash.MakeSeed() })
	return &s.locks[maphash.String(s.seed, name)%uint64(len(s.locks))]
}
