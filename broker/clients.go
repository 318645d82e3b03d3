package broker

import (
	"encoding/json"
	"errors"
	"hash/maphash"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics/resource"
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
	short  queueFull
	ident  atomic.Pointer[Identity]

	// Guarded by clients.mu.
	conn   *conn
	ended  bool
	kept   bool  // it outlives its connections, and is counted in clients.kept
	epoch  int   // counts connections, so that a timer that an earlier disconnection started has no effect
	will   *will // to be published when willDue fires
	due    *time.Timer
	expiry *time.Timer
	// Of a durable session: its expiry interval, and since when it has no connection.
	lasting time.Duration
	left    time.Time

	// The user's quotas, which count what the session holds. nil: the link queue, which has limits of its own.
	queued, state *quota.Account

	mu     sync.Mutex
	subs   map[string]*subscription // nil once ended
	weight int                      // of their filters, and of the will
	willed int                      // of the will alone
}

// user is the session's user, which never changes.
func (c *client) user() string { return c.ident.Load().User }

// rights is the client's identity as of its last CONNECT.
func (c *client) rights() *Identity { return c.ident.Load() }

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

// remove removes a session that has ended.
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

// away returns a user's sessions without a connection, and the epoch of each.
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

// connsOf returns a user's connections.
func (cs *clients) connsOf(user string) (all []*conn) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.byID {
		if c.conn != nil && c.user() == user {
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
// connection of the client is closed. Beyond the quota of sessions that outlive their connections it returns an error; no
// other session ends for a new one.
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
	if w := c.peekWill(); w != nil {
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
	present = old != nil && !others && !c.clean && (old.record > 0 || !durable) // a session that was to end with its connection has ended
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
	cl.weighWill(c.peekWill())
	cl.mu.Unlock()
	changed := !present || !cl.rights().sameRights(c.ident)
	cl.ident.Store(c.ident)
	cl.conn, c.client = c, cl
	cl.epoch++
	if cl.record > 0 {
		cl.lasting, cl.left = c.expiry, time.Time{}
		b.store.Commit([]journal.Change{cl.recordWith(c.peekWill())}, nil)
	} else {
		b.storeWill(c.peekWill())
	}
	c.unstored = !present && (cl.record > 0 || old != nil && old.record > 0)
	cl.sess.Attach(c.w, session.ConnParams{Version: c.ident.Version, ReceiveMaximum: c.receiveMaximum, MaximumPacket: c.maximumPacket})
	cs.mu.Unlock()

	if changed {
		b.router.index.gen.Add(1) // routes depend on rights
	}
	b.supersede(old, replaced, lost, present)
	return present, nil
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
	if id.own() && b.opts.LinkQueue != nil {
		o := b.opts.LinkQueue
		c.sess = session.New(session.Limits{Bytes: o.Bytes, MaxAge: o.Age, DropOldest: true, Memory: linkQueueWindow}, b.opts.Now, &b.linkQueue.count)
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

// supersede ends the connection, and the session, that a new connection replaces. It returns once no packet of the old
// connection will be handled any more, so that what the client repeats on the new one comes after it. The old connection's
// will without a delay is published before anything that the new connection does; one with a delay is dropped if the
// session is resumed, and else published.
func (b *Broker) supersede(old *client, replaced *conn, lost *will, resumed bool) {
	if replaced != nil {
		b.metrics.takeovers.Inc()
		replaced.disconnect(codeTakenOver, ErrTakenOver)
		lost = replaced.takeWill()
		<-replaced.stopped
		if lost != nil && lost.delay == 0 {
			b.publishWill(lost)
			lost = nil
		}
		b.reportDisconnected(replaced, ErrTakenOver)
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

// end releases what a session holds, after remove: subscriptions, queue, quotas and records.
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
	b.redistribute(cl.rights(), left)
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
		lost = nil // another connection has taken the session over meanwhile
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
	b.reportDisconnected(c, cause)
}

// keep turns a session into one without a connection. It returns the will that has to be published now, and the changes
// that have to be stored with it. When the broker stops, a delayed will stays with a durable session.
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
		b.startTimers(cl, expiry, later, 0)
	}
	return now, along
}

// startTimers starts the timers of a session without a connection: its expiry, and its will's delay. since is the part of
// the delay that is over, as a negative number.
func (b *Broker) startTimers(cl *client, expiry time.Duration, w *will, since time.Duration) {
	epoch := cl.epoch
	cl.expiry = time.AfterFunc(expiry, func() { b.expire(cl, epoch) })
	if w == nil {
		return
	}
	if left := w.delay + since; left < expiry { // else it is published when the session expires
		cl.due = time.AfterFunc(left, func() { b.willDue(cl, w) })
	}
}

// expire ends a session whose expiry interval has ended, unless it has had another connection since epoch.
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

// errEnded is the reason for disconnecting the client of a session that an operator ends.
var errEnded = errors.New("an operator has ended the session")

// Administers reports whether the identity is an operator of all nodes of the hub, or on a node's own broker of that node.
func (b *Broker) Administers(id Identity) bool { return b.acl.administers(&id) }

// MayRead reports whether the identity may receive what is published to a topic.
func (b *Broker) MayRead(id Identity, topic string) bool { return b.acl.read(&id, topic) }

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
		if id.own() {
			continue
		}
		s := resource.Session{Client: c.id, User: id.User, Connected: c.conn != nil, Remote: id.Remote}
		if !s.Connected {
			s.Since, s.Expires = resource.Time(c.left), resource.Time(c.left.Add(c.lasting))
		}
		all = append(all, found{c, s})
	}
	b.clients.mu.Unlock()
	list := make([]resource.Session, len(all))
	for i, f := range all {
		waiting, unacked, bytes := f.sess.Backlog()
		f.s.Messages, f.s.Bytes, f.s.Subscriptions = waiting+unacked, bytes, len(f.filters())
		list[i] = f.s
	}
	slices.SortFunc(list, func(a, b resource.Session) int { return strings.Compare(a.Client, b.Client) })
	return list
}

// EndSession ends a client's session with its connection and its queue. It returns once that is on disk.
func (b *Broker) EndSession(clientID string) error {
	cs := &b.clients
	cs.mu.Lock()
	cl := cs.byID[clientID]
	if cl == nil || cl.rights().own() || cs.closed {
		cs.mu.Unlock()
		return resource.Errorf(resource.NotFound, "client", "there is no session of a client %.200q", clientID)
	}
	conn, lost := cl.conn, cl.will
	cl.conn, cl.will = nil, nil
	cl.stopTimers()
	cs.remove(cl)
	cs.mu.Unlock()
	if conn != nil {
		conn.disconnect(codeAdministrative, errEnded)
		if w := conn.takeWill(); w != nil {
			lost = w
		}
		<-conn.stopped // no packet of it is handled any more
		b.reportDisconnected(conn, errEnded)
	}
	b.end(cl)
	if lost != nil {
		b.publishWill(lost)
	}
	if cl.record == 0 {
		return nil
	}
	return b.store.now(nil)
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
	audit.Name(r, clientID)
	if err := b.EndSession(clientID); err != nil {
		return err
	}
	b.log.Info().Str("client", clientID).Str("by", who(&id)).Str("remote", id.Remote).Msg("session ended by an operator")
	_, _ = w.Write([]byte("{}\n"))
	return nil
}

// will is the message to be published when a client's connection is lost.
type will struct {
	message Message
	delay   time.Duration
	packet  int    // bytes of the CONNECT that it came in, and keeps in memory
	record  uint64 // its own record, if its session is not durable; 0: none
}

// willOf is the will in a CONNECT; nil: none.
func willOf(pk *packets.Packet) *will {
	p := &pk.Connect
	if !p.WillFlag {
		return nil
	}
	return &will{
		message: Message{
			Topic: p.WillTopic, Payload: p.WillPayload, QoS: p.WillQos, Retain: p.WillRetain,
			Props: properties(&p.WillProperties),
		},
		delay:  time.Duration(p.WillProperties.WillDelayInterval) * time.Second,
		packet: pk.FixedHeader.Remaining,
	}
}

// weight is about what the will costs in memory.
func (w *will) weight() int { return w.message.weight() + w.packet }

// storeWill stores the will of a session that is not durable, so that it is published after a crash. Nothing waits for
// that: clients can connect while the disk is full.
func (b *Broker) storeWill(w *will) {
	if w == nil || b.store == nil {
		return
	}
	w.record = b.store.ID()
	b.store.Commit([]journal.Change{w.change()}, func(error) {})
}

// dropWill deletes a will that will not be published.
func (b *Broker) dropWill(w *will) {
	if w != nil && w.record > 0 {
		b.store.Forget(w.record)
	}
}

// publishWill publishes a will as its client's message, with the client's rights. The changes along are stored with it.
func (b *Broker) publishWill(w *will, along ...journal.Change) {
	if w.record > 0 {
		along = append(along, journal.Change{ID: w.record})
	}
	b.accept(w.message, nil, along, func(err error) {
		if err != nil {
			b.refused(w.message, err)
			if len(along) > 0 { // it is not tried again
				b.store.journal.Commit(along, nil)
			}
		}
	})
}

// The calls of Presence for one client are made under its lock, so that they come in order. A connection that was taken
// over before it was reported is not reported at all.

func (b *Broker) reportConnected(c *conn) {
	id := c.ident.ClientID
	lock := b.presence.of(id)
	lock.Lock()
	defer lock.Unlock()
	if b.clients.connected(id) != c {
		return
	}
	if before, ok := b.present.Load(id); ok {
		b.gone(before.(*conn), ErrTakenOver)
	}
	b.present.Store(id, c)
	b.metrics.connected.Add(1)
	b.metrics.connects.Add(1)
	if b.opts.Presence == nil {
		return
	}
	b.opts.Presence.Connected(c.ident)
	if c.resumed { // its subscriptions are in force
		for _, filter := range c.client.filters() {
			b.opts.Presence.Subscribed(c.ident, filter)
		}
	}
}

func (b *Broker) reportSubscribed(c *conn, filter string) {
	if b.opts.Presence == nil {
		return
	}
	lock := b.presence.of(c.ident.ClientID)
	lock.Lock()
	defer lock.Unlock()
	if b.isPresent(c) {
		b.opts.Presence.Subscribed(c.ident, filter)
	}
}

func (b *Broker) reportDisconnected(c *conn, cause error) {
	lock := b.presence.of(c.ident.ClientID)
	lock.Lock()
	defer lock.Unlock()
	if b.isPresent(c) {
		b.gone(c, cause)
	}
}

func (b *Broker) isPresent(c *conn) bool {
	is, ok := b.present.Load(c.ident.ClientID)
	return ok && is.(*conn) == c
}

func (b *Broker) gone(c *conn, cause error) {
	b.present.Delete(c.ident.ClientID)
	b.metrics.connected.Add(-1)
	if b.opts.Presence != nil {
		b.opts.Presence.Disconnected(c.ident, cause)
	}
}

// stripes are locks for names: the same name always has the same lock, and names share a few locks.
type stripes struct {
	once  sync.Once
	seed  maphash.Seed
	locks [64]sync.Mutex
}

// pass returns when each lock that was held has been released.
func (s *stripes) pass() {
	for i := range s.locks {
		wait(&s.locks[i])
	}
}

func wait(l *sync.Mutex) {
	l.Lock()
	defer l.Unlock()
}

func (s *stripes) of(name string) *sync.Mutex {
	s.once.Do(func() { s.seed = maphash.MakeSeed() })
	return &s.locks[maphash.String(s.seed, name)%uint64(len(s.locks))]
}
