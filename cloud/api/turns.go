package api

import (
	"context"
	"runtime"
	"sync"
)

// turns lets each user have so many lists made at a time: those who send many at once wait for themselves, not the others for them.
type turns struct {
	most int

	mu sync.Mutex
	of map[string]*queue
}

type queue struct {
	free  chan struct{}
	users int // requests that wait or have a turn
}

// newTurns gives one user at most a quarter of the processors.
func newTurns() *turns {
	return &turns{most: max(1, runtime.GOMAXPROCS(0)/4), of: make(map[string]*queue)}
}

// take waits for a turn of a user, and keeps it until leave is called.
func (t *turns) take(ctx context.Context, user string) (leave func(), err error) {
	t.mu.Lock()
	q := t.of[user]
	if q == nil {
		q = &queue{free: make(chan struct{}, t.most)}
		t.of[user] = q
	}
	q.users++
	t.mu.Unlock()
	done := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if q.users--; q.users == 0 {
			delete(t.of, user)
		}
	}
	select {
	case q.free <- struct{}{}:
		runtime.Gosched() // on a single processor those who wait for the network run before the next piece
		return func() {
			<-q.free
			done()
		}, nil
	case <-ctx.Done():
		done()
		return nil, ctx.Err()
	}
}
