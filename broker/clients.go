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
	errInUse      = errors.New("the client identifier belongs to another user")
	errServerGone = errors.New("broker is stopping")
)

// client is one session of a client, connected or not. A clean start makes another.
type client struct {
	id     string
	number uint64
	record uint64 // of a durable session; 0: it ends with the process
	sess   *session.Session
	short  shortage
	ident  atomic.Pointer[Identity]

	// Guarded by clients.mu.
	conn   *conn
	ended  bool
	kept   bool  // it outlives its connections, and counts against the limit of those
	epoch  int   // counts connections, so that a timer of an earlier absence is known
	will   *will // to be published when willDue fires
	due    *time.Timer
	expiry *time.Timer
	// Of a durable session: how long it outlives its connection, and since when it
	// has none.
	lasting time.Duration
	left    time.Time

	// What it holds counts here, for its user. nil: the broker's own session, which has limits of its own.
	queued, state *quota.Account

	mu     sync.Mutex
	subs   map[string]*subscription // nil once ended
	weight int                      // of their filters, and of the will
	willed int                      // of the will
}

// user is whose session it is, which never changes.
func (c *client) user() string { return c.ident.Load().User }

// rights is who the client is, or was when last connected.
func (c *client) rights() Identity { return *c.ident.Load() }

// clients are all sessions.
type clients struct {
	mu     sync.Mutex
	byID   map[string]*client
	conns  map[*conn]struct{} // also those that have not sent a CONNECT
	kept   *quota.Quota       // sessions that outlive their connections
	closed bool
}

// keep counts a session among those that outlive their connections.
func (cs *clients) keep(c *client) {
	if !c.kept {
		c.kept = true
		cs.kept.Add(c.user(), 1)
	}
}

// remove takes a session out that is over.
func (cs *clients) remove(c *client) {
	c.ended = true
	if c.kept {
		cs.kept.Add(c.user(), -1)
	}
	delete(cs.byID, c.id)
}

func (cs *clients) connected(id string) *conn {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c := cs.byID[id]; c != nil {
		return c.conn
	}
	return nil
}

// away are a user's sessions without a connection, and how many connections each has had.
func (cs *clients) away(user string) map[*client]int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	all := make(map[*client]int)
	for _, c := range cs.byID {
		if c.conn == nil && c.user() == user {
			all[c] = c.epoch
		}
	}
	return all
}

// admit counts a new connection, if there is room for it.
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

// close disconnects everybody and stops all timers. To clients that is the loss of
// their connection: wills are published, but for those with a delay in sessions that
// go on after a restart.
func (cs *clients) close() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.closed = true
	for _, c := range cs.byID {
		c.stopTimers()
	}
	for c := range cs.conns {
		c.disconnect(codeShuttingDown, errServerGone)
	}
}

func (c *client) stopTimers() {
	for _, t := range [...]*time.Timer{c.due, c.expiry} {
		if t != nil {
			t.Stop()
		}
	}
	c.due, c.expiry = nil, nil
}

// attach gives a connection its session: the client's, or a new one. An earlier
// connection of the client's is closed. There is no room for more than so many sessions
// that outlive their connections, away or not: who would have one more hears so now, and
// nobody's session ends for it.
func (b *Broker) attach(c *conn) (present bool, err error) {
	cs := &b.clients
	cs.mu.Lock()
	old := cs.byID[c.ident.ClientID]
	others := old != nil && !old.rights().same(c.ident)
	switch {
	case cs.closed:
		cs.mu.Unlock()
		return false, errServerGone
	case others && b.acl.clientID(old.rights()) == nil:
		cs.mu.Unlock()
		return false, errInUse
	case c.expiry > 0 && (old == nil || !old.kept):
		if err := cs.kept.Check(c.ident.User, 1); err != nil {
			cs.mu.Unlock()
			return false, err
		}
	}
	if w := c.hasWill(); w != nil {
		if err := b.quotas.state.Check(c.ident.User, int64(w.weight())); err != nil {
			cs.mu.Unlock()
			return false, err
		}
	}
	var replaced *conn
	var lost *will
	if old != nil {
		replaced, lost = old.conn, old.will
		old.will = nil
		old.stopTimers()
	}
	durable := b.store != nil && c.expiry > 0
	present = old != nil && !others && !c.clean && (old.record > 0 || !durable) // what was to end with the connection has ended
	cl := old
	if !present {
		if old != nil {
			old.conn = nil
			cs.remove(old)
		}
		cl = b.newClient(c.ident, durable)
		cs.byID[cl.id] = cl
	}
	if c.expiry > 0 {
		cs.keep(cl)
	}
	cl.mu.Lock()
	cl.weighWill(c.hasWill())
	cl.mu.Unlock()
	changed := !present || !cl.rights().sameRights(c.ident)
	ident := c.ident
	cl.ident.Store(&ident)
	cl.conn, c.client = c, cl
	cl.epoch++
	if cl.record > 0 {
		cl.lasting, cl.left = c.expiry, time.Time{}
		b.store.Commit([]journal.Change{cl.recordWith(c.hasWill())}, nil)
	} else {
		b.keepWill(c.hasWill())
	}
	c.unstored = !present && (cl.record > 0 || old != nil && old.record > 0)
	cl.sess.Attach(c.w, session.Params{Version: c.ident.Version, ReceiveMaximum: c.receiveMaximum, MaximumPacket: c.maximumPacket})
	cs.mu.Unlock()

	if changed {
		b.router.index.gen.Add(1) // routes depend on rights
	}
	b.supersede(old, replaced, lost, present)
	return present, nil
}

func (b *Broker) newClient(id Identity, durable bool) *client {
	c := b.clientOf(id)
	c.number = b.number.Add(1)
	if durable {
		c.record = b.store.ID()
		c.sess.Endure(c.number, b.store)
	}
	return c
}

// clientOf makes a client with an empty session. What it holds counts for its user.
func (b *Broker) clientOf(id Identity) *client {
	c := &client{id: id.ClientID, subs: make(map[string]*subscription)}
	c.ident.Store(&id)
	if id.own() && b.opts.Outlet != nil {
		o := b.opts.Outlet
		c.sess = session.New(session.Limits{Bytes: o.Bytes, Age: o.Age, Oldest: true, Window: outletWindow}, b.opts.Now, &b.outlet.count)
		return c
	}
	c.queued, c.state = b.quotas.queued.Open(id.User), b.quotas.state.Open(id.User)
	l := b.opts.Limits
	c.sess = session.New(session.Limits{Bytes: int(l.Session.Bytes), Inflight: l.Inflight, User: c.queued}, b.opts.Now, &b.counters)
	return c
}

// filters lists the client's subscriptions.
func (c *client) filters() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.subs))
}

// supersede ends what a new connection takes the place of, and returns when no packet of
// the old one is applied any more: the client may repeat on the new connection what was
// not acknowledged on the old one, and go on from there. A will with a delay is
// cancelled when the session goes on, and due when it doesn't; one without is due
// in any case, and comes before anything that the new connection does.
func (b *Broker) supersede(old *client, replaced *conn, lost *will, resumed bool) {
	if replaced != nil {
		b.stats.takeovers.Add(1)
		replaced.disconnect(codeTakenOver, ErrTakenOver)
		lost = replaced.takeWill()
		<-replaced.stopped
		if lost != nil && lost.delay == 0 {
			b.publishWill(lost)
			lost = nil
		}
		b.tellDisconnected(replaced, ErrTakenOver)
	}
	if old == nil || resumed {
		b.dropWill(lost)
		return
	}
	b.end(old)
	if lost != nil {
		b.publishWill(lost)
	}
}

// end lets go of a session that is no longer in the map.
func (b *Broker) end(cl *client) {
	cl.mu.Lock()
	subs := cl.subs
	cl.subs = nil
	cl.weigh(-cl.weight)
	cl.mu.Unlock()
	records := []uint64{cl.record}
	for _, s := range subs {
		b.router.index.remove(s)
		records = append(records, s.record)
	}
	stored, left := cl.sess.End()
	cl.queued.Close()
	cl.state.Close()
	b.handOver(cl.rights(), left)
	if cl.record > 0 {
		b.store.Forget(append(records, stored...)...)
	}
}

// detach is the end of a connection, whatever the cause.
func (b *Broker) detach(c *conn, cause error) {
	cl := c.client
	if cl == nil {
		return
	}
	cl.sess.Detach(c.w)
	lost := c.takeWill()
	cs := &b.clients
	cs.mu.Lock()
	current := cl.conn == c
	ends := false
	var along []journal.Change
	if !current && lost != nil && lost.delay > 0 {
		b.dropWill(lost)
		lost = nil // somebody has taken the session over meanwhile
	}
	if current {
		cl.conn = nil
		if ends = c.expiry == 0; ends {
			cs.remove(cl)
		} else {
			lost, along = b.keep(cl, c.expiry, lost)
		}
	}
	cs.mu.Unlock()
	if ends {
		b.end(cl)
	}
	if lost != nil {
		b.publishWill(lost, along...)
	} else if len(along) > 0 {
		b.store.Commit(along, nil)
	}
	b.tellDisconnected(c, cause)
}

// keep keeps a session without a connection, and says which will is to be published
// now, and what is to be stored with it. When the broker stops, a session that goes
// on after that takes a will that is due later with it.
func (b *Broker) keep(cl *client, expiry time.Duration, lost *will) (now *will, along []journal.Change) {
	later := lost
	if lost == nil || lost.delay == 0 || b.clients.closed && cl.record == 0 {
		now, later = lost, nil
	}
	cl.will, cl.lasting, cl.left = later, expiry, b.opts.Now()
	if cl.record > 0 {
		along = []journal.Change{cl.recordWith(later)}
	}
	if !b.clients.closed {
		b.clock(cl, expiry, later, 0)
	}
	return now, along
}

// clock starts the clocks of a session without a connection. since is how much of
// the will's delay is over, as a negative number.
func (b *Broker) clock(cl *client, expiry time.Duration, w *will, since time.Duration) {
	epoch := cl.epoch
	cl.expiry = time.AfterFunc(expiry, func() { b.expire(cl, epoch) })
	if w == nil {
		return
	}
	if left := w.delay + since; left < expiry { // or it is due when the session expires
		cl.due = time.AfterFunc(left, func() { b.willDue(cl, w) })
	}
}

// expire ends a session that nobody came back to.
func (b *Broker) expire(cl *client, epoch int) {
	cs := &b.clients
	cs.mu.Lock()
	if cl.conn != nil || cl.epoch != epoch || cl.ended || cs.closed {
		cs.mu.Unlock()
		return
	}
	cs.remove(cl)
	lost := cl.will
	cl.will = nil
	cl.stopTimers()
	cs.mu.Unlock()
	b.end(cl)
	if lost != nil {
		b.publishWill(lost)
	}
}

func (b *Broker) willDue(cl *client, w *will) {
	cs := &b.clients
	cs.mu.Lock()
	due := cl.will == w && cl.conn == nil && !cs.closed
	var along []journal.Change
	if due {
		cl.will = nil
		if cl.record > 0 {
			along = []journal.Change{cl.recordWith(nil)}
		}
	}
	cs.mu.Unlock()
	if due {
		b.publishWill(w, along...)
	}
}
