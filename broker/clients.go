// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/broker/session"
)

// ErrTakenOver is why a connection ended when the same client connected again.
var ErrTakenOver = errors.New("session taken over by another connection")

var (
	errIdentifierInUse = errors.New("the client identifier belongs to another user")
	errStopping        = errors.New("broker is stopping")
)

// clients are all sessions.
type clients struct {
	b       *Broker
	pending pendingConns[*conn]
	running sync.WaitGroup // connections
	number  atomic.Uint64  // of the newest session
	settled settledUser
	resumed chan struct{} // closed when what the loaded sessions wait for goes on

	mu              sync.Mutex
	byID            map[string]*client
	conns           map[*conn]struct{} // also those that have not sent a CONNECT
	persistentQuota *quota.Quota       // sessions that outlive their connections
	closed          bool
	locks           identifierLocks
}

// settledUser is the last settleUser.
type settledUser struct {
	mu    sync.Mutex
	who   quotaHolder
	began time.Time
}

func (cs *clients) init(b *Broker) {
	cs.b, cs.persistentQuota = b, b.quotas.persistent
	cs.byID, cs.conns, cs.resumed = make(map[string]*client), make(map[*conn]struct{}), make(chan struct{})
	cs.pending.size, cs.pending.host = pendingSize(b.opts.Limits), func(c *conn) string { return c.quotas.host }
}

// pendingSize is how many connections without a CONNECT there may be.
func pendingSize(l Limits) int { return max(16, l.Connections/4) }

// identifierLocks give each client identifier to one goroutine at a time: who holds its lock may begin or end a connection or session
// of that identifier, and ends it completely. So nothing of the next connection comes before the last of the one before,
// which is its will.
type identifierLocks struct {
	mu   sync.Mutex
	each map[string]*identifierLock
}

type identifierLock struct {
	mu   sync.Mutex
	uses int // holders and those that wait
}

// lock waits for the lock, and returns the function that releases it.
func (t *identifierLocks) lock(id string) (done func()) {
	t.mu.Lock()
	if t.each == nil {
		t.each = make(map[string]*identifierLock)
	}
	one := t.each[id]
	if one == nil {
		one = &identifierLock{}
		t.each[id] = one
	}
	one.uses++
	t.mu.Unlock()
	one.mu.Lock()
	return func() {
		one.mu.Unlock()
		t.mu.Lock()
		defer t.mu.Unlock()
		if one.uses--; one.uses == 0 {
			delete(t.each, id)
		}
	}
}

// keep counts a session among those that outlive their connections.
func (cs *clients) keep(c *client) {
	if !c.persistent {
		c.persistent = true
		cs.persistentQuota.Add(c.user(), 1)
	}
}

// remove removes a session that has ended.
func (cs *clients) remove(c *client) {
	c.ended = true
	if c.stopWatchingToken != nil {
		c.stopWatchingToken()
	}
	if c.persistent {
		cs.persistentQuota.Add(c.user(), -1)
	}
	delete(cs.byID, c.id)
}

// session returns the session of a client identifier; nil: there is none.
func (cs *clients) session(id string) *client {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.byID[id]
}

func (cs *clients) connected(id string) *conn {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c := cs.byID[id]; c != nil {
		return c.conn
	}
	return nil
}

// chosen returns the sessions of whom the function chooses.
func (cs *clients) chosen(chosen func(*Identity) bool) (all []*client) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.byID {
		if chosen(c.rights()) {
			all = append(all, c)
		}
	}
	return all
}

// identify gives a session without a connection, and its will, an identity.
func (cs *clients) identify(cl *client, id *Identity) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cl.ident.Store(id)
	if cl.will != nil {
		cl.will.message.Publisher = id
	}
}

// chosenConns returns the connections of whom the function chooses.
func (cs *clients) chosenConns(chosen func(*Identity) bool) (all []*conn) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.byID {
		if c.conn != nil && chosen(c.rights()) {
			all = append(all, c.conn)
		}
	}
	return all
}

func (cs *clients) release(c *conn) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	delete(cs.conns, c)
}

// close disconnects all clients and stops all timers. Wills are published as for any lost connection, except delayed ones
// of durable sessions, which go on after a restart.
func (cs *clients) close() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.closed = true
	for _, c := range cs.byID {
		c.stopTimers()
	}
	cs.b.wills.close()
	for c := range cs.conns {
		c.expel(codeShuttingDown, errStopping)
	}
}

// admit counts a new connection. It reports false at limits.connections and when the broker is closed.
func (cs *clients) admit(c *conn) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closed || len(cs.conns) >= cs.b.opts.Limits.Connections {
		return false
	}
	cs.running.Add(1)
	cs.conns[c] = struct{}{}
	return true
}

// attach gives a connection its session: the client's, or a new one. The caller holds the identifier's lock, and has handled what
// an earlier connection of the client sent. If that is still there, it is taken over: it ends by the rules by which any
// connection ends, and what is left of its session is this one's. Beyond the quota of sessions that outlive their
// connections it returns an error; no other session ends for a new one.
func (cs *clients) attach(h *handshake) (present bool, err error) {
	b := cs.b
	c := h.conn
	if err := cs.mayAttach(c); err != nil {
		return false, err
	}
	cs.takeOver(c.ident.ClientID)
	cs.mu.Lock()
	cl := cs.byID[c.ident.ClientID]
	cs.mu.Unlock()
	durable := b.store != nil && c.expiry > 0
	replaced := cl != nil && cl.record > 0
	if present = cl != nil && !h.clean && (cl.record > 0 || !durable); cl != nil && !present {
		cl.end(true)
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closed {
		return false, errStopping
	}
	changed := present && !cl.rights().sameRights(c.ident)
	if !present {
		cl = cs.newClient(c.ident, durable)
		cs.byID[cl.id] = cl
	}
	if c.expiry > 0 {
		cs.keep(cl)
	}
	cl.stopTimers()
	b.wills.returned(c.ident)
	b.wills.drop(cl.will) // of the connection before: its delay has not ended
	cl.will = nil
	cl.mu.Lock()
	cl.weighWill(c.will.peek())
	cl.mu.Unlock()
	cl.ident.Store(c.ident)
	cl.conn, c.client = c, cl
	cl.endWithTokenLocked()
	cl.epoch++
	if cl.record > 0 {
		cl.expiryInterval, cl.disconnectedAt = c.expiry, time.Time{}
		b.store.Commit([]journal.RecordChange{cl.recordWith(c.will.peek())}, nil)
	} else {
		b.wills.save(c.will.peek())
	}
	h.recordPending = !present && (cl.record > 0 || replaced)
	cl.sess.Attach(c.w, session.ConnParams{Version: c.ident.Version, ReceiveMaximum: c.receiveMaximum, MaximumPacket: c.maximumPacket, Parts: c.partsParams()})
	if changed {
		b.router.index.gen.Add(1) // routes depend on rights
	}
	return present, nil
}

// mayAttach returns why a connection gets no session. A session whose user may not have that client identifier any more, or
// whose identity has ended, is in nobody's way.
func (cs *clients) mayAttach(c *conn) error {
	cs.mu.Lock()
	old, closed := cs.byID[c.ident.ClientID], cs.closed
	cs.mu.Unlock()
	switch {
	case closed:
		return errStopping
	case old == nil || old.rights().sameUser(c.ident):
	case cs.b.acl.clientID(old.rights()) == nil:
		return errIdentifierInUse
	default:
		cs.takeOver(old.id)
		if cs.session(old.id) == old {
			old.end(true)
		}
		old = nil
	}
	if c.expiry > 0 && (old == nil || !old.persistent) {
		if err := cs.persistentQuota.Check(c.ident.User, 1); err != nil {
			return err
		}
	}
	if w := c.will.peek(); w != nil {
		return cs.b.quotas.state.Check(c.ident.User, int64(w.weight()))
	}
	return nil
}

// settleBefore handles what the client's earlier connection has sent: it may have left. The caller holds the identifier's lock.
func (cs *clients) settleBefore(c *conn) {
	old := cs.connected(c.ident.ClientID)
	if old == nil {
		return
	}
	settleConns([]*conn{old}, (*conn).hasStopped)
	select {
	case <-old.end.stopped: // by its own end
		cs.endConnection(old, old.cause(old.end.readErr), false)
	default:
	}
}

// takeOver ends the connection that a client identifier has. No packet of it is handled any more when it returns, so that
// what the client repeats on the new connection comes after it. The caller holds the identifier's lock.
func (cs *clients) takeOver(id string) {
	old := cs.connected(id)
	if old == nil {
		return
	}
	cs.b.metrics.takeovers.Inc()
	old.expel(codeTakenOver, ErrTakenOver)
	<-old.end.stopped
	cause := ErrTakenOver
	if errors.Is(old.end.readErr, errDisconnected) {
		cause = nil
	}
	cs.endConnection(old, cause, false)
}

func (cs *clients) newClient(id *Identity, durable bool) *client {
	c := cs.clientOf(id)
	c.number = cs.number.Add(1)
	if durable {
		c.record = cs.b.store.ID()
		c.sess.MakeDurable(c.number, cs.b.store)
	}
	return c
}

// clientOf makes a client with an empty session. What it holds counts for its user.
func (cs *clients) clientOf(id *Identity) *client {
	b := cs.b
	c := &client{all: cs, id: id.ClientID, subs: make(map[string]*subscription)}
	c.ident.Store(id)
	if id.isBroker() && b.opts.LinkQueue != nil {
		o := b.opts.LinkQueue
		c.sess = session.New(session.Limits{Bytes: o.Bytes, MaxAge: o.Age, DropOldest: true, Memory: linkQueueWindow}, b.opts.Now, &b.linkQueue.count)
		return c
	}
	c.queueAccount, c.stateAccount = b.quotas.queued.Open(id.User), b.quotas.state.Open(id.User)
	l := b.opts.Limits
	c.sess = session.New(session.Limits{Bytes: int(l.Session.Bytes), Inflight: l.Inflight, User: c.queueAccount, State: c.stateAccount}, b.opts.Now, &b.dispatcher.counters)
	return c
}

// How a connection or session ends, and what becomes of what it holds. clients.endConnection and client.end are the only ones that
// end any, each with the identifier's lock, so that whoever comes next waits until all of it is done.
//
//	                      will                    session                     messages of shared subscriptions
//	DISCONNECT            dropped                 stays, if it has an expiry  stay with the session
//	lost, expelled        published, or delayed   stays, if it has an expiry  stay with the session
//	taken over, resumed   without a delay: published; else dropped   goes on  stay with the session
//	taken over, anew      published               ends                        other members get them
//	expired               published, if delayed   ends                        other members get them
//	ended by an operator  published               ends                        other members get them
//	identity has ended    dropped                 ends                        other members get them
//	broker stops          published; delayed: stays with a durable session    stay with the session
//	the same, failover    stored: published if the client doesn't come back   stay with the session
//	its carrier is gone   published if the client doesn't come back           stay with the session
//
// A session that ends gives back its quotas, and its records are deleted once the messages are with others. Presence is
// told last.

// endConnection ends what a connection is to its session, whatever the cause, unless that has happened. No packet of the
// connection is handled any more, and the caller holds the identifier's lock. last says that the session ends as well.
func (cs *clients) endConnection(c *conn, cause error, last bool) {
	cl := c.client
	c.quotas.release() // before anybody sees that there is room for the next
	if cl == nil {
		return
	}
	cs.mu.Lock()
	if cl.conn != c {
		cs.mu.Unlock()
		return
	}
	cl.sess.Detach(c.w)
	lost := c.will.take()
	cl.conn = nil
	revoked := c.revoked.Load() || c.ident.Revoked != nil && c.ident.Revoked.Err() != nil
	cut := !last && !revoked && c.carrierGone()
	if lost != nil && (cut || cs.closed && cs.b.opts.Failover) { // its client comes back, here or to the broker that goes on with the journal, where it is stored
		lost.delay = max(lost.delay, lost.grace())
		if c.expiry == 0 {
			if !cs.closed {
				w := lost
				cs.b.wills.hold(w, func() { cs.publishLost(w) })
			}
			lost = nil
		}
	}
	if last || revoked || c.expiry == 0 {
		cl.will = lost
		cs.mu.Unlock()
		cl.end(!revoked)
	} else {
		now, along := cl.disconnect(c.expiry, lost)
		cs.mu.Unlock()
		cs.b.wills.publishOrStore(now, along)
	}
	cs.b.presence.disconnected(c, cause)
}

// detach is the end of a connection, on its own goroutine.
func (cs *clients) detach(c *conn, cause error) {
	if c.client != nil {
		defer cs.locks.lock(c.ident.ClientID)()
	}
	cs.endConnection(c, cause, false)
}

// count counts the clients' sessions.
func (cs *clients) count() int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.b.linkQueue.sess != nil {
		return len(cs.byID) - 1
	}
	return len(cs.byID)
}

// queueTotals are the clients' queues, together.
type queueTotals struct {
	waiting, bytes int     // messages not sent yet
	unacked        int     // messages sent and not acknowledged
	fullest        float64 // how full the fullest session's queue is, from 0 to 1
	fullestOf      string  // the client whose that is; empty: all are empty
	missedBefore   int64   // messages that the sessions had no room for before this process
}

// queueTotals goes through all sessions, so that none has to keep these numbers up to date.
func (cs *clients) queueTotals() (q queueTotals) {
	cs.mu.Lock()
	all := slices.Collect(maps.Values(cs.byID))
	cs.mu.Unlock()
	for _, c := range all {
		if c.rights().isBroker() {
			continue
		}
		waiting, unacked, bytes := c.sess.Backlog()
		q.waiting += waiting
		q.unacked += unacked
		q.bytes += bytes
		_, before := c.sess.Missed()
		q.missedBefore += before
		if full := float64(bytes) / float64(cs.b.opts.Limits.Session.Bytes); full > q.fullest {
			q.fullest, q.fullestOf = full, c.id
		}
	}
	return q
}
