package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// ErrTakenOver is why a connection ended when the same client connected again.
var ErrTakenOver = errors.New("session taken over by another connection")

var (
	errIdentifierInUse = errors.New("the client identifier belongs to another user")
	errStopping        = errors.New("broker is stopping")
)

// client is one session of a client, connected or not. A clean start makes another.
type client struct {
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
	persistent        bool  // it outlives its connections, and is counted in clients.kept
	epoch             int   // counts connections, so that a timer that an earlier disconnection started has no effect
	will              *will // to be published when willDue fires
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
func (c *client) user() string { return c.ident.Load().User }

// rights is the client's identity as of its last CONNECT.
func (c *client) rights() *Identity { return c.ident.Load() }

// clients are all sessions.
type clients struct {
	mu              sync.Mutex
	byID            map[string]*client
	conns           map[*conn]struct{} // also those that have not sent a CONNECT
	persistentQuota *quota.Quota       // sessions that outlive their connections
	closed          bool
	locks           identifierLocks
}

// identifierLocks give each client identifier to one goroutine at a time: who has the turn may begin or end a connection or session
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

// lock waits for the turn, and returns the function that ends it.
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

// admit counts a new connection. It reports false at limits.connections and when the broker is closed.
func (b *Broker) admit(c *conn) bool {
	cs := &b.clients
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closed || len(cs.conns) >= b.opts.Limits.Connections {
		return false
	}
	b.connections.Add(1)
	cs.conns[c] = struct{}{}
	return true
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
	for c := range cs.conns {
		c.expel(codeShuttingDown, errStopping)
	}
}

func (c *client) stopTimers() {
	for _, t := range [...]*time.Timer{c.willTimer, c.expiryTimer} {
		if t != nil {
			t.Stop()
		}
	}
	c.willTimer, c.expiryTimer = nil, nil
}

// attach gives a connection its session: the client's, or a new one. The caller has the client's turn, and has handled what
// an earlier connection of the client sent. If that is still there, it is taken over: it ends by the rules by which any
// connection ends, and what is left of its session is this one's. Beyond the quota of sessions that outlive their
// connections it returns an error; no other session ends for a new one.
func (b *Broker) attach(h *handshake) (present bool, err error) {
	c := h.conn
	if err := b.mayAttach(c); err != nil {
		return false, err
	}
	b.takeOver(c.ident.ClientID)
	cs := &b.clients
	cs.mu.Lock()
	cl := cs.byID[c.ident.ClientID]
	cs.mu.Unlock()
	durable := b.store != nil && c.expiry > 0
	replaced := cl != nil && cl.record > 0
	if present = cl != nil && !h.clean && (cl.record > 0 || !durable); cl != nil && !present {
		b.endSession(cl, true)
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closed {
		return false, errStopping
	}
	changed := present && !cl.rights().sameRights(c.ident)
	if !present {
		cl = b.newClient(c.ident, durable)
		cs.byID[cl.id] = cl
	}
	if c.expiry > 0 {
		cs.keep(cl)
	}
	cl.stopTimers()
	b.dropWill(cl.will) // of the connection before: its delay has not ended
	cl.will = nil
	cl.mu.Lock()
	cl.weighWill(c.will.peek())
	cl.mu.Unlock()
	cl.ident.Store(c.ident)
	cl.conn, c.client = c, cl
	b.endWithTokenLocked(cl)
	cl.epoch++
	if cl.record > 0 {
		cl.expiryInterval, cl.disconnectedAt = c.expiry, time.Time{}
		b.store.Commit([]journal.RecordChange{cl.recordWith(c.will.peek())}, nil)
	} else {
		b.storeWill(c.will.peek())
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
func (b *Broker) mayAttach(c *conn) error {
	cs := &b.clients
	cs.mu.Lock()
	old, closed := cs.byID[c.ident.ClientID], cs.closed
	cs.mu.Unlock()
	switch {
	case closed:
		return errStopping
	case old == nil || old.rights().sameUser(c.ident):
	case b.acl.clientID(old.rights()) == nil:
		return errIdentifierInUse
	default:
		b.takeOver(old.id)
		if cs.session(old.id) == old {
			b.endSession(old, true)
		}
		old = nil
	}
	if c.expiry > 0 && (old == nil || !old.persistent) {
		if err := cs.persistentQuota.Check(c.ident.User, 1); err != nil {
			return err
		}
	}
	if w := c.will.peek(); w != nil {
		return b.quotas.state.Check(c.ident.User, int64(w.weight()))
	}
	return nil
}

// settleBefore handles what the client's earlier connection has sent: it may have left. The caller has the client's turn.
func (b *Broker) settleBefore(c *conn) {
	old := b.clients.connected(c.ident.ClientID)
	if old == nil {
		return
	}
	settleConns([]*conn{old}, (*conn).hasStopped)
	select {
	case <-old.end.stopped: // by its own end
		b.endConnection(old, old.cause(old.end.readErr), false)
	default:
	}
}

// takeOver ends the connection that a client identifier has. No packet of it is handled any more when it returns, so that
// what the client repeats on the new connection comes after it. The caller has the client's turn.
func (b *Broker) takeOver(id string) {
	old := b.clients.connected(id)
	if old == nil {
		return
	}
	b.metrics.takeovers.Inc()
	old.expel(codeTakenOver, ErrTakenOver)
	<-old.end.stopped
	cause := ErrTakenOver
	if errors.Is(old.end.readErr, errDisconnected) {
		cause = nil
	}
	b.endConnection(old, cause, false)
}

func (b *Broker) newClient(id *Identity, durable bool) *client {
	c := b.clientOf(id)
	c.number = b.number.Add(1)
	if durable {
		c.record = b.store.ID()
		c.sess.MakeDurable(c.number, b.store)
	}
	return c
}

// clientOf makes a client with an empty session. What it holds counts for its user.
func (b *Broker) clientOf(id *Identity) *client {
	c := &client{id: id.ClientID, subs: make(map[string]*subscription)}
	c.ident.Store(id)
	if id.isBroker() && b.opts.LinkQueue != nil {
		o := b.opts.LinkQueue
		c.sess = session.New(session.Limits{Bytes: o.Bytes, MaxAge: o.Age, DropOldest: true, Memory: linkQueueWindow}, b.opts.Now, &b.linkQueue.count)
		return c
	}
	c.queueAccount, c.stateAccount = b.quotas.queued.Open(id.User), b.quotas.state.Open(id.User)
	l := b.opts.Limits
	c.sess = session.New(session.Limits{Bytes: int(l.Session.Bytes), Inflight: l.Inflight, User: c.queueAccount, State: c.stateAccount}, b.opts.Now, &b.counters)
	return c
}

// filters lists the client's subscriptions.
func (c *client) filters() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.subs))
}

// How a connection or session ends, and what becomes of what it holds. endConnection and endSession are the only ones that
// end any, each with the client's turn, so that whoever comes next waits until all of it is done.
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
//
// A session that ends gives back its quotas, and its records are deleted once the messages are with others. Presence is
// told last.

// endConnection ends what a connection is to its session, whatever the cause, unless that has happened. No packet of the
// connection is handled any more, and the caller has the client's turn. last says that the session ends as well.
func (b *Broker) endConnection(c *conn, cause error, last bool) {
	cl, cs := c.client, &b.clients
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
	if revoked := c.revoked.Load() || c.ident.Revoked != nil && c.ident.Revoked.Err() != nil; last || revoked || c.expiry == 0 {
		cl.will = lost
		cs.mu.Unlock()
		b.endSession(cl, !revoked)
	} else {
		now, along := b.keep(cl, c.expiry, lost)
		cs.mu.Unlock()
		b.publishNow(now, along)
	}
	b.reportDisconnected(c, cause)
}

// publishNow publishes a will and stores the changes along; without a will it stores them.
func (b *Broker) publishNow(w *will, along []journal.RecordChange) {
	if w != nil {
		b.publishWill(w, along...)
	} else if len(along) > 0 {
		b.store.Commit(along, nil)
	}
}

// endSession ends a session without a connection, unless that has happened. The caller has the client's turn.
func (b *Broker) endSession(cl *client, will bool) {
	cs := &b.clients
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
	b.release(cl)
	if will {
		b.publishNow(lost, nil)
	} else {
		b.dropWill(lost)
	}
}

// release releases what a session holds, after remove: subscriptions, queue, quotas and records.
func (b *Broker) release(cl *client) {
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
	b.redistribute(cl.rights(), left, func(err error) {
		switch {
		case cl.record == 0:
		case err == nil:
			b.store.Forget(append(append(records, stored...), cl.record)...)
		default: // the next start tries again: see loading.choose
			b.clients.mu.Lock()
			cl.expiryInterval, cl.disconnectedAt = 0, b.opts.Now()
			b.store.Commit([]journal.RecordChange{cl.recordWith(nil)}, nil)
			b.clients.mu.Unlock()
			b.store.Forget(records...)
		}
	})
}

// detach is the end of a connection, on its own goroutine.
func (b *Broker) detach(c *conn, cause error) {
	if c.client != nil {
		defer b.clients.locks.lock(c.ident.ClientID)()
	}
	b.endConnection(c, cause, false)
}

// keep turns a session into one without a connection. It returns the will that has to be published now, and the changes
// that have to be stored with it. When the broker stops, a delayed will stays with a durable session.
func (b *Broker) keep(cl *client, expiry time.Duration, lost *will) (now *will, along []journal.RecordChange) {
	later := lost
	if lost == nil || lost.delay == 0 || b.clients.closed && cl.record == 0 {
		now, later = lost, nil
	}
	cl.will, cl.expiryInterval, cl.disconnectedAt = later, expiry, b.opts.Now()
	if cl.record > 0 {
		along = []journal.RecordChange{cl.recordWith(later)}
	}
	if !b.clients.closed {
		b.startTimers(cl, expiry, later, 0)
	}
	return now, along
}

// startTimers starts the timers of a session without a connection: its expiry, and its will's delay. since is the part of
// the delay that is over, as a negative number.
func (b *Broker) startTimers(cl *client, expiry time.Duration, w *will, since time.Duration) {
	epoch := cl.epoch
	cl.expiryTimer = time.AfterFunc(expiry, func() { b.expire(cl, epoch) })
	if w == nil {
		return
	}
	if left := w.delay + since; left < expiry { // else it is published when the session expires
		cl.willTimer = time.AfterFunc(left, func() { b.willDue(cl, w) })
	}
}

// expire ends a session whose expiry interval has ended, unless it has had another connection since epoch.
func (b *Broker) expire(cl *client, epoch int) {
	defer b.clients.locks.lock(cl.id)()
	cs := &b.clients
	cs.mu.Lock()
	ends := cl.conn == nil && cl.epoch == epoch && !cs.closed
	cs.mu.Unlock()
	if ends {
		b.endSession(cl, true)
	}
}

// endDisconnected ends a session if it has no connection, without its will.
func (b *Broker) endDisconnected(cl *client) {
	defer b.clients.locks.lock(cl.id)()
	if c := b.clients.connected(cl.id); c == nil || c.client != cl {
		b.endSession(cl, false)
	}
}

func (b *Broker) willDue(cl *client, w *will) {
	defer b.clients.locks.lock(cl.id)()
	cs := &b.clients
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
		b.publishWill(w, along...)
	}
}

// errEndedByOperator is the reason for disconnecting the client of a session that an operator ends.
var errEndedByOperator = errors.New("an operator has ended the session")

// Administers reports whether the identity is an operator of all nodes of the hub, or on a node's own broker of that node.
func (b *Broker) Administers(id Identity) bool { return b.acl.administers(&id) }

// MayRead reports whether the identity may receive what is published to a topic.
func (b *Broker) MayRead(id Identity, topic string) bool { return b.acl.read(&id, topic) }

// Heard returns when a connected client last sent anything, a PINGREQ included, and its keep-alive; ok is false if the client is not
// connected. at is zero if it has sent nothing since its CONNECT.
func (b *Broker) Heard(clientID string) (at time.Time, keepAlive time.Duration, ok bool) {
	c := b.clients.connected(clientID)
	if c == nil {
		return at, 0, false
	}
	if ms := c.keepAlive.lastHeard.Load(); ms != 0 {
		at = time.UnixMilli(ms)
	}
	return at, c.keepAlive.interval, true
}

// Sessions lists the clients' sessions, in order of their client identifiers.
func (b *Broker) Sessions() []resource.Session {
	type found struct {
		*client
		s resource.Session
	}
	var all []found
	b.clients.mu.Lock()
	for _, c := range b.clients.byID {
		id := c.rights()
		if id.isBroker() {
			continue
		}
		s := resource.Session{Client: c.id, User: id.User, Connected: c.conn != nil, Remote: id.Remote}
		if !s.Connected {
			s.Since, s.Expires = resource.FormatTime(c.disconnectedAt), resource.FormatTime(c.disconnectedAt.Add(c.expiryInterval))
		}
		all = append(all, found{c, s})
	}
	b.clients.mu.Unlock()
	list := make([]resource.Session, len(all))
	for i, f := range all {
		waiting, unacked, bytes := f.sess.Backlog()
		f.s.Messages, f.s.Bytes, f.s.Subscriptions = waiting+unacked, bytes, len(f.filters())
		f.s.Missed, _ = f.sess.Missed()
		list[i] = f.s
	}
	slices.SortFunc(list, func(a, b resource.Session) int { return strings.Compare(a.Client, b.Client) })
	return list
}

// EndSession ends a client's session with its connection and its queue. It returns once that is on disk.
func (b *Broker) EndSession(clientID string) error {
	done := b.clients.locks.lock(clientID)
	cl := b.clients.session(clientID)
	if cl == nil || cl.rights().isBroker() {
		done()
		return resource.Errorf(resource.NotFound, "client", "there is no session of a client %.200q", clientID)
	}
	if c := b.clients.connected(clientID); c != nil {
		c.expel(codeAdministrative, errEndedByOperator)
		<-c.end.stopped // no packet of it is handled any more
		b.endConnection(c, errEndedByOperator, true)
	}
	b.endSession(cl, true)
	done()
	if cl.record == 0 {
		return nil
	}
	return b.store.commitNow(nil)
}

// EndIdentity ends what identities hold that have lost their rights: connections, sessions with their subscriptions and
// queues, wills, which are not published, and HTTP requests, such as watches. A connection's DISCONNECT has the reason. Nothing that they sent and that was
// not handled yet is. It reports whether any was connected.
func (b *Broker) EndIdentity(ended func(*Identity) bool, reason string) (connected bool) {
	for _, cl := range b.clients.chosen(ended) {
		if cl.rights().isBroker() {
			continue
		}
		if c := b.clients.connected(cl.id); c != nil && ended(c.ident) {
			connected = true
			c.revoke(codeAdministrative, errors.New(reason)) // its session ends with it
		}
		b.endDisconnected(cl)
	}
	b.requests.Range(func(key, _ any) bool {
		if one := key.(*httpRequest); ended(one.id) {
			one.cancel()
		}
		return true
	})
	return connected
}

// endWithToken has a session end with the token that its client last signed in with. If it has a connection, that ends with the
// token, and the session with it.
func (b *Broker) endWithToken(cl *client) {
	b.clients.mu.Lock()
	defer b.clients.mu.Unlock()
	b.endWithTokenLocked(cl)
}

func (b *Broker) endWithTokenLocked(cl *client) {
	if cl.stopWatchingToken != nil {
		cl.stopWatchingToken()
		cl.stopWatchingToken = nil
	}
	id := cl.rights()
	revoked := id.Revoked
	if revoked == nil && id.Token != "" && b.auth.bearer != nil { // it was loaded
		revoked = b.auth.bearer.Revoked(id.Token)
	}
	if revoked != nil {
		cl.stopWatchingToken = context.AfterFunc(revoked, func() {
			if cl.rights() == id {
				b.endDisconnected(cl)
			}
		})
	}
}

func revokedToken(user string) string {
	return fmt.Sprintf("the token of %s has been revoked", validText(user))
}

// current is the identity of a stored session or will, with the rights that it has by the settings of now; nil: it has ended while the broker did not
// run, as nobody is let in as that user any more with the same token or certificate, or with a password. Another password is the same user's. Users of
// a provider are known to that alone.
func (a *authenticator) current(id *Identity) *Identity {
	var of Identity
	switch {
	case id.isBroker(), id.Has(topics.RoleEnrollee):
		return id
	case id.Bearer:
		if a.bearer == nil || a.bearer.Revoked(id.Token).Err() != nil {
			return nil
		}
		of = *id
	case id.Certificate != nil:
		why := ""
		if of, why = a.certificate(credentials{cert: id.Certificate}); why != "" {
			return nil
		}
	case id.User == "":
		if of = a.anonymousIdentity(); len(of.Roles) == 0 {
			return nil
		}
	default:
		u, listed := a.findUser(id.User)
		switch {
		case listed:
			of = a.identity(u)
		case id.Node != "" && a.loopbackNodes:
			of = nodeIdentity(id.Node)
		}
	}
	if !of.sameUser(id) || a.denied(Identity{User: id.User, Node: id.Node}, credentials{cert: id.Certificate}) != "" {
		return nil
	}
	if of.sameRights(id) {
		return id
	}
	now := *id
	now.Roles, now.Nodes, now.Devices, now.Protocols, now.Configurations = of.Roles, of.Nodes, of.Devices, of.Protocols, of.Configurations
	return &now
}

// httpRequest is an HTTP request under way.
type httpRequest struct {
	id     *Identity
	cancel context.CancelFunc
}

// track has an HTTP request end with its identity: id.Revoked is done then, too.
func (b *Broker) track(r context.Context, id *Identity) {
	parent := id.Revoked
	if parent == nil {
		parent = context.Background()
	}
	one := &httpRequest{id: id}
	id.Revoked, one.cancel = context.WithCancel(parent)
	b.requests.Store(one, nil)
	context.AfterFunc(r, func() {
		b.requests.Delete(one)
		one.cancel()
	})
}

// revoke closes the connection of an identity that has ended. Its session and its will end with it.
func (c *conn) revoke(code byte, why error) {
	c.revoked.Store(true)
	c.b.dropWill(c.will.take())
	c.disconnect(code, why)
}

// ServeSessions answers GET with the list of sessions, and DELETE by ending the session of the client in the parameter
// client. Only identities that Administers are permitted.
func (b *Broker) ServeSessions(w http.ResponseWriter, r *http.Request, id Identity) error {
	if !b.Administers(id) {
		return resource.Errorf(resource.Forbidden, "", "sessions are for operators of all nodes, on a node's own broker of that node (auth.users)")
	}
	w.Header().Set("Content-Type", "application/json")
	if r.Method != http.MethodDelete {
		_ = json.NewEncoder(w).Encode(resource.SessionList{Sessions: b.Sessions()}) // an error means that the client is gone
		return nil
	}
	clientID := r.URL.Query().Get("client")
	if clientID == "" {
		return resource.Errorf(resource.Invalid, "client", "is missing: DELETE /sessions?client=ID")
	}
	audit.NoteName(r, clientID)
	if err := b.EndSession(clientID); err != nil {
		return err
	}
	b.log.Info().Str("client", clientID).Str("by", roleAndUser(&id)).Str("remote", id.Remote).Msg("session ended by an operator")
	_, _ = w.Write([]byte("{}\n"))
	return nil
}

func (b *Broker) reportConnected(c *conn, resumed bool) {
	id := c.ident.ClientID
	lock := b.presenceLocks.of(id)
	lock.Lock()
	defer lock.Unlock()
	if b.clients.connected(id) != c {
		return
	}
	if before, ok := b.presentConns.Load(id); ok {
		b.reportGone(before.(*conn), ErrTakenOver)
	}
	b.presentConns.Store(id, c)
	b.metrics.connected.Add(1)
	b.metrics.connects.Add(1)
	if b.opts.Presence == nil {
		return
	}
	b.opts.Presence.Connected(c.ident)
	if resumed { // its subscriptions are in force
		for _, filter := range c.client.filters() {
			b.opts.Presence.Subscribed(c.ident, filter)
		}
	}
}

func (b *Broker) reportSubscribed(c *conn, filter string) {
	if b.opts.Presence == nil {
		return
	}
	lock := b.presenceLocks.of(c.ident.ClientID)
	lock.Lock()
	defer lock.Unlock()
	if b.isPresent(c) {
		b.opts.Presence.Subscribed(c.ident, filter)
	}
}

func (b *Broker) reportDisconnected(c *conn, cause error) {
	lock := b.presenceLocks.of(c.ident.ClientID)
	lock.Lock()
	defer lock.Unlock()
	if b.isPresent(c) {
		b.reportGone(c, cause)
	}
}

func (b *Broker) isPresent(c *conn) bool {
	is, ok := b.presentConns.Load(c.ident.ClientID)
	return ok && is.(*conn) == c
}

func (b *Broker) reportGone(c *conn, cause error) {
	b.presentConns.Delete(c.ident.ClientID)
	b.metrics.connected.Add(-1)
	if b.opts.Presence != nil {
		b.opts.Presence.Disconnected(c.ident, cause)
	}
}

// stripedLocks are locks for names: the same name always has the same lock, and names share a few locks.
type stripedLocks struct {
	once  sync.Once
	seed  maphash.Seed
	locks [64]sync.Mutex
}

// pass returns when each lock that was held has been released.
func (s *stripedLocks) pass() {
	for i := range s.locks {
		waitUnlocked(&s.locks[i])
	}
}

func waitUnlocked(l *sync.Mutex) {
	l.Lock()
	defer l.Unlock()
}

func (s *stripedLocks) of(name string) *sync.Mutex {
	s.once.Do(func() { s.seed = maphash.MakeSeed() })
	return &s.locks[maphash.String(s.seed, name)%uint64(len(s.locks))]
}
