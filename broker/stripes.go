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

func (s *stripes) of(name string) *sync.Mutex {
	s.once.Do(func() { s.seed = maphash.MakeSeed() })
	return &s.locks[maphash.String(s.seed, name)%uint64(len(s.locks))]
}
