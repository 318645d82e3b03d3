// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"runtime"
	"sync"
)

// listTurns lets each user have so many lists made at a time: those who send many at once wait for themselves, not the others for them.
type listTurns struct {
	most int

	mu    sync.Mutex
	users map[string]*listQueue
}

type listQueue struct {
	free  chan struct{}
	users int // requests that wait or have a turn
}

// newListTurns gives one user at most a quarter of the processors.
func newListTurns() *listTurns {
	return &listTurns{most: max(1, runtime.GOMAXPROCS(0)/4), users: make(map[string]*listQueue)}
}

// take waits for a turn of a user, and keeps it until leave is called.
func (t *listTurns) take(ctx context.Context, user string) (leave func(), err error) {
	t.mu.Lock()
	q := t.users[user]
	if q == nil {
		q = &listQueue{free: make(chan struct{}, t.most)}
		t.users[user] = q
	}
	q.users++
	t.mu.Unlock()
	done := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if q.users--; q.users == 0 {
			delete(t.users, user)
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
