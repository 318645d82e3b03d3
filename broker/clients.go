package broker

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/broker/session"
)

var (
	errTakenOver  = errors.New("session taken over by another connection")
	errInUse      = errors.New("the client identifier belongs to another user")
	errServerGone = errors.New("broker is stopping")
	errTooMany    = errors.New("too many sessions")
)

// client is one session of a client, connected or not. A clean start makes another.
type client struct {
	id     string
	number uint64
	sess   *session.Session
	ident  atomic.Pointer[Identity]

	// Guarded by clients.mu.
	conn   *conn
	ended  bool
	epoch  int   // counts connections, so that a timer of an earlier absence is known
	will   *will // to be published when willDue fires
	due    *time.Timer
	expiry *time.Timer

	mu   sync.Mutex
	subs map[string]*subscription // nil once ended
}

// rights is who the client is, or was when last connected.
func (c *client) rights() Identity { return *c.ident.Load() }

// clients are all sessions.
type clients struct {
	mu     sync.Mutex
	byID   map[string]*client
	conns  map[*conn]struct{} // also those that have not sent a CONNECT
	away   int                // sessions without a connection
	closed bool
}

func (cs *clients) connected(id string) *conn {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if c := cs.byID[id]; c != nil {
		return c.conn
	}
	return nil
}

// admit counts a new connection and its two goroutines, if there is room for it.
func (b *Broker) admit(c *conn) bool {
	cs := &b.clients
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closed || len(cs.conns) >= b.opts.Limits.Connections {
		return false
	}
	b.connections.Add(2)
	cs.conns[c] = struct{}{}
	return true
}

func (cs *clients) release(c *conn) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	delete(cs.conns, c)
}

// close disconnects everybody and stops all timers. Wills are not published: the
// clients are not gone, the broker is.
func (cs *clients) close() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.closed = true
	for _, c := range cs.byID {
		c.stopTimers()
	}
	for c := range cs.conns {
		c.takeWill()
		c.disconnect(codeShuttingDown, errServerGone.Error())
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
// connection of the client's is closed.
func (b *Broker) attach(c *conn) (present bool, err error) {
	cs := &b.clients
	cs.mu.Lock()
	old := cs.byID[c.ident.ClientID]
	switch {
	case cs.closed:
		cs.mu.Unlock()
		return false, errServerGone
	case old != nil && !old.rights().same(c.ident):
		cs.mu.Unlock()
		return false, errInUse
	}
	var replaced *conn
	var lost *will
	if old != nil {
		replaced, lost = old.conn, old.will
		old.will = nil
		old.stopTimers()
		if replaced == nil {
			cs.away--
		}
	}
	present = old != nil && !c.clean
	cl := old
	if !present {
		cl = b.newClient(c.ident.ClientID)
		cs.byID[cl.id] = cl
		if old != nil {
			old.ended, old.conn = true, nil
		}
	}
	changed := !present || !cl.rights().sameRights(c.ident)
	ident := c.ident
	cl.ident.Store(&ident)
	cl.conn, c.client = c, cl
	cl.epoch++
	cl.sess.Attach(c.w, session.Params{Version: c.ident.Version, ReceiveMaximum: c.receiveMaximum, MaximumPacket: c.maximumPacket})
	cs.mu.Unlock()

	if changed {
		b.router.index.gen.Add(1) // routes depend on rights
	}
	b.supersede(old, replaced, lost, present)
	return present, nil
}

func (b *Broker) newClient(id string) *client {
	l := b.opts.Limits
	return &client{
		id: id, number: b.number.Add(1), subs: make(map[string]*subscription),
		sess: session.New(session.Limits{Messages: l.QueuedMessages, Bytes: l.QueuedBytes, Inflight: l.Inflight}, b.opts.Now, &b.counters),
	}
}

// supersede ends what a new connection takes the place of. A will with a delay is
// cancelled when the session goes on, and due when it doesn't; one without is due
// in any case, and comes before anything that the new connection does.
func (b *Broker) supersede(old *client, replaced *conn, lost *will, resumed bool) {
	if replaced != nil {
		replaced.disconnect(codeTakenOver, errTakenOver.Error())
		if lost = replaced.takeWill(); lost != nil && lost.delay == 0 {
			b.publishWill(lost)
			lost = nil
		}
		b.tellDisconnected(replaced, errTakenOver)
	}
	if old == nil || resumed {
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
	cl.mu.Unlock()
	for _, s := range subs {
		b.router.index.remove(s)
	}
	cl.sess.End()
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
	if !current && lost != nil && lost.delay > 0 {
		lost = nil // somebody has taken the session over meanwhile
	}
	if current {
		cl.conn = nil
		if ends = c.expiry == 0 || cs.away >= b.opts.Limits.Sessions; ends {
			cl.ended = true
			delete(cs.byID, cl.id)
		} else if cs.away++; !cs.closed {
			b.keep(cl, c.expiry, lost)
			if lost != nil && lost.delay > 0 {
				lost = nil // later
			}
		}
	}
	cs.mu.Unlock()
	if ends {
		if c.expiry > 0 {
			b.floods.Warn().Str("client", cl.id).Err(errTooMany).Msg("session not kept")
		}
		b.end(cl)
	}
	if lost != nil {
		b.publishWill(lost)
	}
	b.tellDisconnected(c, cause)
}

// keep starts the clocks of a session without a connection.
func (b *Broker) keep(cl *client, expiry time.Duration, lost *will) {
	epoch := cl.epoch
	cl.expiry = time.AfterFunc(expiry, func() { b.expire(cl, epoch) })
	if lost == nil || lost.delay == 0 {
		return
	}
	cl.will = lost
	if lost.delay < expiry { // or it is due when the session expires
		cl.due = time.AfterFunc(lost.delay, func() { b.willDue(cl, lost) })
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
	cl.ended = true
	delete(cs.byID, cl.id)
	cs.away--
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
	if due {
		cl.will = nil
	}
	cs.mu.Unlock()
	if due {
		b.publishWill(w)
	}
}
