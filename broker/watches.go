package broker

import (
	"sync"

	"github.com/edgebus/edgebus/topics/resource"
)

// Watches counts those of an HTTP API that are open: all of them, and each user's. The zero value is ready.
type Watches struct {
	mu  sync.Mutex
	all int
	of  map[string]int
}

// Take counts one more, unless there are as many as there may be (0: any number). One user has half of them at most, so
// that others can watch, too. Who came without a name isn't counted alone: that is anybody of this host.
func (w *Watches) Take(user string, most int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	each := max(1, most/2)
	switch {
	case most > 0 && w.all >= most:
		return resource.Errorf(resource.Quota, "", "there are as many watches as there may be: %d (limits.watches)", most)
	case most > 0 && user != "" && w.of[user] >= each:
		return resource.Errorf(resource.Quota, "", "%s has as many watches as one user may have: %d, half of limits.watches", validText(user), each)
	}
	if w.of == nil {
		w.of = make(map[string]int)
	}
	w.all++
	w.of[user]++
	return nil
}

// Leave gives one back that was taken.
func (w *Watches) Leave(user string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all--
	if w.of[user]--; w.of[user] == 0 {
		delete(w.of, user)
	}
}
