// Package quota bounds what clients hold of something that there is a limited amount of:
// connections, bytes of queued messages, and so on. It counts by key, which is a user, a node
// or an address, so that nobody can use up what there is for the others, and names the setting
// in the error (docs/adr/0037). It never holds what it counts.
package quota

import (
	"sync"
	"sync/atomic"

	"github.com/edgebus/edgebus/topics/resource"
)

// Limit is a number and the setting that it comes from. 0 is no limit.
type Limit struct {
	Most    int64
	Setting string
}

// Quota counts what each key holds, and all of them. Its methods may be called from any goroutine.
type Quota struct {
	what, holder string
	each, all    Limit
	fair         bool

	mu       sync.Mutex
	accounts map[string]*Account
	held     atomic.Int64
}

// New makes a quota with a limit of what each key may hold, and of what all may. what is what is
// counted, in the plural, and holder what a key is one of: a user, an address. The empty key is
// many clients, of which nothing more is known: it has no limit of its own.
func New(what, holder string, each, all Limit) *Quota {
	return &Quota{what: what, holder: holder, each: each, all: all, accounts: make(map[string]*Account)}
}

// NewShared makes a quota of bytes that all share: no key, the empty one included, gets more
// while it holds as much as is left for all others. One key alone gets half, two get a third
// each, and somebody who holds less always finds room.
func NewShared(what, holder string, all Limit) *Quota {
	q := New(what, holder, Limit{}, all)
	q.fair = true
	return q
}

// Held is what all keys hold together.
func (q *Quota) Held() int64 { return q.held.Load() }

// Take counts n more for a key, or says why it can't have them.
func (q *Quota) Take(key string, n int64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.check(key, q.holds(key), n); err != nil {
		return err
	}
	q.account(key).Add(n)
	return nil
}

// Check says why a key can't have n more.
func (q *Quota) Check(key string, n int64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.check(key, q.holds(key), n)
}

// Add counts n more for a key, or with n below 0 less, whatever the limits.
func (q *Quota) Add(key string, n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.account(key)
	a.Add(n)
	q.forget(a)
}

func (q *Quota) holds(key string) int64 {
	if a := q.accounts[key]; a != nil {
		return a.held.Load()
	}
	return 0
}

func (q *Quota) check(key string, holds, n int64) error {
	all := q.held.Load()
	switch {
	case q.each.Most > 0 && key != "" && holds+n > q.each.Most:
		return resource.Errorf(resource.Quota, "", "%s has as many %s as one %s may have: %d (%s)", key, q.what, q.holder, q.each.Most, q.each.Setting)
	case q.all.Most > 0 && all+n > q.all.Most:
		return resource.Errorf(resource.Quota, "", "there are as many %s as there may be: %d (%s)", q.what, q.all.Most, q.all.Setting)
	case q.fair && q.all.Most > 0 && holds >= q.all.Most-all:
		if key == "" {
			key = "anonymous"
		}
		return resource.Errorf(resource.Quota, "", "%s has %d %s: no %s may have more than are left for all others, of %d (%s)",
			key, holds, q.what, q.holder, q.all.Most, q.all.Setting)
	}
	return nil
}

func (q *Quota) account(key string) *Account {
	a := q.accounts[key]
	if a == nil {
		a = &Account{q: q, key: key}
		q.accounts[key] = a
	}
	return a
}

func (q *Quota) forget(a *Account) {
	if a.users == 0 && a.held.Load() == 0 {
		delete(q.accounts, a.key)
	}
}

// Account is what one key holds, for those who count often. A nil Account counts and bounds nothing.
type Account struct {
	q     *Quota
	key   string
	held  atomic.Int64
	users int // that have it open; guarded by the quota's lock
}

// Open returns a key's account. It must be closed.
func (q *Quota) Open(key string) *Account {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.account(key)
	a.users++
	return a
}

// Close lets go of an account, of which nothing is held any more through this Open.
func (a *Account) Close() {
	if a == nil {
		return
	}
	a.q.mu.Lock()
	defer a.q.mu.Unlock()
	a.users--
	a.q.forget(a)
}

// Add counts n more, or with n below 0 less, whatever the limits.
func (a *Account) Add(n int64) {
	if a != nil {
		a.held.Add(n)
		a.q.held.Add(n)
	}
}

// Check says why the key can't have n more.
func (a *Account) Check(n int64) error {
	if a == nil {
		return nil
	}
	return a.q.Check(a.key, n)
}

// Room says whether one of the key's several holders, such as one session of a user's, may hold
// n more of a shared quota. What is left for the key is shared in the same way: none of its
// holders gets more while it holds as much as is then left for the others.
func (a *Account) Room(holds, n int64) bool {
	if a == nil || a.q.all.Most == 0 {
		return true
	}
	left := a.q.all.Most - a.q.held.Load()
	own := left - a.held.Load() // the key has its part when nothing is left of this
	return n <= left && own > 0 && (holds == 0 || 2*holds < own)
}
