// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"cmp"
	"fmt"
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
	shared       bool

	mu       sync.Mutex
	accounts map[string]*Account
	held     atomic.Int64
}

// New makes a quota with a limit for each key and one for all together. what is what is counted, in the plural; holder is
// what a key names: a user, an address. The empty key stands for all clients without one, and has no limit of its own.
func New(what, holder string, each, all Limit) *Quota {
	return &Quota{what: what, holder: holder, each: each, all: all, accounts: make(map[string]*Account)}
}

// NewShared makes a quota that all keys share fairly: none, the empty one included, gets more while it holds as much as is
// left for all others. A single key gets half, two get a third each, and there is always room for one that holds less.
func NewShared(what, holder string, all Limit) *Quota {
	q := New(what, holder, Limit{}, all)
	q.shared = true
	return q
}

// Held is what all keys hold together.
func (q *Quota) Held() int64 { return q.held.Load() }

// Take counts n more for a key, or returns an error if a limit forbids that.
func (q *Quota) Take(key string, n int64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.check(key, n); err != nil {
		return err
	}
	q.account(key).Add(n)
	return nil
}

// Check returns an error if a key can't have n more.
func (q *Quota) Check(key string, n int64) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.check(key, n)
}

// Add counts n more for a key, or with n below 0 less, whatever the limits.
func (q *Quota) Add(key string, n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.account(key)
	a.Add(n)
	q.forget(a)
}

func (q *Quota) check(key string, n int64) error {
	all, holds := q.held.Load(), int64(0)
	if a := q.accounts[key]; a != nil {
		holds = a.held.Load()
	}
	switch {
	case q.each.Most > 0 && key != "" && holds+n > q.each.Most:
		return resource.Errorf(resource.Quota, "", "one %s may have %d %s at most (%s), as many as %s has", q.holder, q.each.Most, q.what, q.each.Setting, shownKey(key))
	case q.all.Most > 0 && all+n > q.all.Most:
		return resource.Errorf(resource.Quota, "", "there are as many %s as there may be: %d (%s)", q.what, q.all.Most, q.all.Setting)
	case q.shared && q.all.Most > 0 && holds >= q.all.Most-all:
		return resource.Errorf(resource.Quota, "", "no %s may have more %s than are left for all others, of %d (%s); %s has %d",
			q.holder, q.what, q.all.Most, q.all.Setting, shownKey(cmp.Or(key, "anonymous")), holds)
	}
	return nil
}

// shownKey is a key, cut: it may be a client's own text, and comes after the rule, which a reader needs more.
func shownKey(key string) string {
	if len(key) > 100 {
		return fmt.Sprintf("%.60q… (%d bytes)", key, len(key))
	}
	return key
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
	if a.opens == 0 && a.held.Load() == 0 {
		delete(q.accounts, a.key)
	}
}

// Account is what one key holds. It is for frequent use: Add takes no lock. A nil Account counts and limits nothing.
type Account struct {
	q     *Quota
	key   string
	held  atomic.Int64
	opens int // number of Opens without a Close; guarded by the quota's lock
}

// Open returns a key's account. It must be closed.
func (q *Quota) Open(key string) *Account {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.account(key)
	a.opens++
	return a
}

// Close ends an Open, through which nothing is held any more.
func (a *Account) Close() {
	if a == nil {
		return
	}
	a.q.mu.Lock()
	defer a.q.mu.Unlock()
	a.opens--
	a.q.forget(a)
}

// Add counts n more, or with n below 0 less, whatever the limits.
func (a *Account) Add(n int64) {
	if a != nil {
		a.held.Add(n)
		a.q.held.Add(n)
	}
}

// Check returns an error if the key can't have n more.
func (a *Account) Check(n int64) error {
	if a == nil {
		return nil
	}
	return a.q.Check(a.key, n)
}

// Room reports whether one of several holders of the key (a session of a user) may hold n more of a shared quota. They share
// what is left for the key in the same way: none gets more while it holds as much as is left for the others.
func (a *Account) Room(holds, n int64) bool {
	if a == nil || a.q.all.Most == 0 {
		return true
	}
	left := a.q.all.Most - a.q.held.Load()
	own := left - a.held.Load() // the key's share is used up at 0
	return n <= left && own > 0 && (holds == 0 || 2*holds < own)
}
