// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics/resource"
)

// client is one session of a client, connected or not. A clean start makes another.
type client struct {
	all    *clients
	id     string
	number uint64
	record uint64 // of a durable session; 0: it ends with the process
	sess   *session.Session
	drops  droppedCount
	ident  atomic.Pointer[Identity]

	// Guarded by clients.mu.
	conn  *conn
	ended bool
	// stopWatchingToken ends waiting for the revocation of the token that the client last signed in with; nil: it can't be revoked.
	stopWatchingToken func() bool
	persistent        bool  // it outlives its connections, and is counted in clients.persistentQuota
	epoch             int   // counts connections, so that a timer that an earlier disconnection started has no effect
	will              *will // to be published when publishDue is called
	willTimer         *time.Timer
	expiryTimer       *time.Timer
	// Of a durable session: its expiry interval, and since when it has no connection.
	expiryInterval time.Duration
	disconnectedAt time.Time

	// The user's quotas, which count what the session holds. nil: the link queue, which has limits of its own.
	queueAccount, stateAccount *quota.Account

	mu          sync.Mutex
	subs        map[string]*subscription // nil once ended
	stateWeight int                      // of their filters, and of the will
	willWeight  int                      // of the will alone
}

// user is the session's user, which never changes.
func (cl *client) user() string { return cl.ident.Load().User }

// rights is the client's identity as of its last CONNECT.
func (cl *client) rights() *Identity { return cl.ident.Load() }

// filters lists the client's subscriptions.
func (cl *client) filters() []string {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return slices.Collect(maps.Keys(cl.subs))
}

func (cl *client) stopTimers() {
	for _, t := range [...]*time.Timer{cl.willTimer, cl.expiryTimer} {
		if t != nil {
			t.Stop()
		}
	}
	cl.willTimer, cl.expiryTimer = nil, nil
}

// startTimers starts the timers of a session without a connection: its expiry, and its will's delay. since is the part of
// the delay that is over, as a negative number.
func (cl *client) startTimers(expiry time.Duration, w *will, since time.Duration) {
	epoch := cl.epoch
	cl.expiryTimer = time.AfterFunc(expiry, func() { cl.expire(epoch) })
	if w == nil {
		return
	}
	if left := w.delay + since; left < expiry { // else it is published when the session expires
		cl.willTimer = time.AfterFunc(left, func() { cl.publishDue(w) })
	}
}

// disconnect turns a session into one without a connection. It returns the will that has to be published now, and the changes
// that have to be stored with it. When the broker stops, a delayed will stays with a durable session.
func (cl *client) disconnect(expiry time.Duration, lost *will) (now *will, along []journal.RecordChange) {
	cs, b := cl.all, cl.all.b
	later := lost
	if lost == nil || lost.delay == 0 || cs.closed && cl.record == 0 {
		now, later = lost, nil
	}
	cl.will, cl.expiryInterval, cl.disconnectedAt = later, expiry, b.opts.storedTime()
	if cl.record > 0 {
		along = []journal.RecordChange{cl.recordWith(later)}
	}
	if !cs.closed {
		cl.startTimers(expiry, later, 0)
	}
	return now, along
}

// end ends a session without a connection, unless that has happened. The caller holds the identifier's lock.
func (cl *client) end(will bool) {
	cs, b := cl.all, cl.all.b
	cs.mu.Lock()
	if cl.ended {
		cs.mu.Unlock()
		return
	}
	cl.stopTimers()
	lost := cl.will
	cl.will = nil
	cs.remove(cl)
	cs.mu.Unlock()
	cl.release()
	if will {
		b.wills.publishOrStore(lost, nil)
	} else {
		b.wills.drop(lost)
	}
}

// release releases what a session holds, after remove: subscriptions, queue, quotas and records.
func (cl *client) release() {
	cs, b := cl.all, cl.all.b
	cl.mu.Lock()
	subs := cl.subs
	cl.subs = nil
	cl.weigh(-cl.stateWeight)
	cl.mu.Unlock()
	var records []uint64
	for _, s := range subs {
		b.router.index.remove(s)
		records = append(records, s.record)
	}
	stored, left := cl.sess.End()
	cl.queueAccount.Close()
	cl.stateAccount.Close()
	b.dispatcher.redistribute(cl.rights(), left, func(err error) {
		switch {
		case cl.record == 0:
		case err == nil:
			b.store.Forget(append(append(records, stored...), cl.record)...)
		default: // the next start tries again: see journalLoad.choose
			cs.mu.Lock()
			cl.expiryInterval, cl.disconnectedAt = 0, b.opts.storedTime()
			b.store.Commit([]journal.RecordChange{cl.recordWith(nil)}, nil)
			cs.mu.Unlock()
			b.store.Forget(records...)
		}
	})
}

// expire ends a session whose expiry interval has ended, unless it has had another connection since epoch.
func (cl *client) expire(epoch int) {
	cs := cl.all
	defer cs.locks.lock(cl.id)()
	cs.mu.Lock()
	ends := cl.conn == nil && cl.epoch == epoch && !cs.closed
	cs.mu.Unlock()
	if ends {
		cl.end(true)
	}
}

// endDisconnected ends a session if it has no connection, without its will.
func (cl *client) endDisconnected() {
	defer cl.all.locks.lock(cl.id)()
	if c := cl.all.connected(cl.id); c == nil || c.client != cl {
		cl.end(false)
	}
}

func (cl *client) publishDue(w *will) {
	cs, b := cl.all, cl.all.b
	defer cs.locks.lock(cl.id)()
	cs.mu.Lock()
	due := cl.will == w && cl.conn == nil && !cs.closed
	var along []journal.RecordChange
	if due {
		cl.will = nil
		if cl.record > 0 {
			along = []journal.RecordChange{cl.recordWith(nil)}
		}
	}
	cs.mu.Unlock()
	if due {
		b.wills.publish(w, along...)
	}
}

// endWithToken has a session end with the token that its client last signed in with. If it has a connection, that ends with the
// token, and the session with it.
func (cl *client) endWithToken() {
	cl.all.mu.Lock()
	defer cl.all.mu.Unlock()
	cl.endWithTokenLocked()
}

func (cl *client) endWithTokenLocked() {
	if cl.stopWatchingToken != nil {
		cl.stopWatchingToken()
		cl.stopWatchingToken = nil
	}
	id := cl.rights()
	revoked := id.Revoked
	if revoked == nil && id.Token != "" && cl.all.b.auth.bearer != nil { // it was loaded
		revoked = cl.all.b.auth.bearer.Revoked(id.Token)
	}
	if revoked != nil {
		cl.stopWatchingToken = context.AfterFunc(revoked, func() {
			if cl.rights() == id {
				cl.endDisconnected()
			}
		})
	}
}

// room returns why a client can't have one more subscription. The caller holds client.mu, as for weigh, weighWill, put and drop.
func (cl *client) room(s *subscription, limit int) error {
	if len(cl.subs) >= limit {
		return resource.Errorf(resource.Quota, "", "no more than %d subscriptions (limits.subscriptions)", limit)
	}
	return cl.stateAccount.Check(int64(s.weight()))
}

// weigh counts n bytes more for the client's user.
func (cl *client) weigh(n int) {
	cl.stateWeight += n
	cl.stateAccount.Add(int64(n))
}

// weighWill counts the client's new will, in place of the one before; nil: none.
func (cl *client) weighWill(w *will) {
	n := 0
	if w != nil {
		n = w.weight()
	}
	cl.weigh(n - cl.willWeight)
	cl.willWeight = n
}

// put adds a subscription, or replaces the one with the same filter.
func (cl *client) put(s *subscription) {
	if cl.subs[s.filter] == nil {
		cl.weigh(s.weight())
	}
	cl.subs[s.filter] = s
}

// drop removes and returns a filter's subscription; nil: there is none.
func (cl *client) drop(filter string) *subscription {
	s := cl.subs[filter]
	if s != nil {
		delete(cl.subs, filter)
		cl.weigh(-s.weight())
	}
	return s
}

// stored waits until the changes of a durable session's subscriptions are on disk.
func (cl *client) stored(s *recordStore) error {
	if cl.record == 0 {
		return nil
	}
	return s.commitNow(nil)
}
