// SPDX-License-Identifier: Apache-2.0

package quota

import "sync"

// Backlog counts bytes that wait for an outcome, by who handed them over, and makes those wait who would add to them. It is
// shared as a quota of NewShared is: who has as much waiting as is left for all others waits, so that one who fills its part
// delays itself. Its methods may be called from any goroutine.
type Backlog struct {
	mu   sync.Mutex
	less sync.Cond
	most int
	held int
	by   map[string]int
}

// NewBacklog makes a backlog of at most so many bytes, but for what each key adds last.
func NewBacklog(most int) *Backlog {
	l := &Backlog{most: most, by: make(map[string]int)}
	l.less.L = &l.mu
	return l
}

// Add counts n more bytes of a key, or with n below 0 less, whatever the limit.
func (l *Backlog) Add(key string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held += n
	if l.by[key] += n; l.by[key] == 0 {
		delete(l.by, key)
	}
	if n < 0 {
		l.less.Broadcast()
	}
}

// Held is how many bytes wait.
func (l *Backlog) Held() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// Wait returns once a key may add to the backlog. If it has to wait, it calls before first. It reports false if over
// returns true by then.
func (l *Backlog) Wait(key string, before func(), over func() bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.full(key) {
		return true
	}
	l.mu.Unlock()
	before()
	l.mu.Lock()
	for l.full(key) && !over() {
		l.less.Wait()
	}
	return !over()
}

// Full reports whether a key that would add to the backlog has to wait.
func (l *Backlog) Full(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.full(key)
}

func (l *Backlog) full(key string) bool {
	left := l.most - l.held
	return l.held > 0 && (left <= 0 || l.by[key] >= left)
}

// Wake makes those who wait look at over.
func (l *Backlog) Wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.less.Broadcast()
}
