package api

import (
	"sync"

	"github.com/edgebus/edgebus/topics/resource"
)

// watches counts those that are open: all of them, and each user's.
type watches struct {
	mu  sync.Mutex
	all int
	of  map[string]int
}

// take counts one more, unless there are as many as there may be (0: any number). One user has half of them at most, so
// that others can watch, too. Who came without a name isn't counted alone: that is anybody of this host.
func (w *watches) take(a access, most int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	each := max(1, most/2)
	switch {
	case most > 0 && w.all >= most:
		return resource.Errorf(resource.Quota, "", "there are as many watches as there may be: %d (limits.watches)", most)
	case most > 0 && !a.nameless && w.of[a.user] >= each:
		return resource.Errorf(resource.Quota, "", "%s has as many watches as one user may have: %d, half of limits.watches", a.user, each)
	}
	if w.of == nil {
		w.of = make(map[string]int)
	}
	w.all++
	w.of[a.user]++
	return nil
}

func (w *watches) leave(a access) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all--
	if w.of[a.user]--; w.of[a.user] == 0 {
		delete(w.of, a.user)
	}
}
