package broker

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// Journal keeps records on disk. Package journal has one.
type Journal interface {
	// Load goes through all records, before the first Commit.
	Load(each func(id uint64, value []byte) error) error
	// Commit makes changes durable, all or none and in the order of the calls. It never blocks. done is called with the
	// outcome, in the order of the calls, but not before Commit returns. With a nil done, Commit is repeated until it
	// succeeds.
	Commit(changes []journal.Change, done func(error))
	// Read hands over the values of records, in order, each valid during the call.
	Read(ids []uint64, each func(i int, value []byte) error) error
}

// store is a journal as sessions use it.
type store struct {
	journal Journal
	last    atomic.Uint64 // the id of the newest record
	backlog               // bytes whose commit has no outcome yet
}

func newStore(j Journal) *store {
	s := &store{journal: j}
	s.init()
	return s
}

// ID returns the id of a new record.
func (s *store) ID() uint64 { return s.last.Add(1) }

// Read reads records.
func (s *store) Read(ids []uint64, each func(i int, value []byte) error) error {
	return s.journal.Read(ids, each)
}

// Commit makes changes durable.
func (s *store) Commit(changes []journal.Change, done func(error)) {
	if done == nil {
		s.journal.Commit(changes, nil)
		return
	}
	s.begin(changes, done).commit(s)
}

// pendingCommit is a commit whose outcome is waited for.
type pendingCommit struct {
	changes []journal.Change
	bytes   int
	done    func(error)
}

// begin counts the bytes until finish is called.
func (s *store) begin(changes []journal.Change, done func(error)) pendingCommit {
	n := 64
	for _, c := range changes {
		n += len(c.Value)
	}
	s.add(n)
	return pendingCommit{changes, n, done}
}

func (o pendingCommit) commit(s *store) {
	s.journal.Commit(o.changes, func(err error) { o.finish(s, unavailable(err)) })
}

func (o pendingCommit) finish(s *store, err error) {
	s.backlog.done(o.bytes)
	o.done(err)
}

func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return resource.Errorf(resource.Unavailable, "", "the broker can't store it now: %v", err)
}

// along commits changes, if there are any, and calls done with the outcome.
func (s *store) along(changes []journal.Change, done func(error)) {
	if len(changes) == 0 {
		done(nil)
		return
	}
	s.Commit(changes, done)
}

// Forget deletes records; nothing waits for that.
func (s *store) Forget(records ...uint64) {
	changes := make([]journal.Change, 0, len(records))
	for _, id := range records {
		if id > 0 {
			changes = append(changes, journal.Change{ID: id})
		}
	}
	if len(changes) > 0 {
		s.journal.Commit(changes, nil)
	}
}

// now commits changes and waits for the outcome. Only the goroutine that reads from a client may call it.
func (s *store) now(changes []journal.Change) error {
	done := make(chan error, 1)
	s.Commit(changes, func(err error) { done <- err })
	return <-done
}

// Kinds of the broker's own records. A session's parts are package session's.
const (
	kindClient       = session.FirstOtherKind + iota // a durable session: user, expiry, time of disconnection, will
	kindSubscription                                 // one of its subscriptions
	kindRetained                                     // a retained message of a users' own topic, and the user for whom it counts
	kindWill                                         // the will of a session that ends with its connection, with its user
)

// recordWith encodes the client's record, with its will.
func (c *client) recordWith(w *will) journal.Change {
	e := session.Encoder{kindClient}
	e.Number(c.number)
	identify(&e, c.rights())
	e.Number(uint64(c.lasting / time.Millisecond))
	e.Time(c.left)
	e.Flag(w != nil)
	if w != nil {
		w.encode(&e)
	}
	return journal.Change{ID: c.record, Value: e}
}

func (w *will) encode(e *session.Encoder) {
	e.Number(uint64(w.delay / time.Second))
	e.Message(outgoing(w.message, time.Time{}))
}

// willFrom decodes a client's will.
func willFrom(d *session.Decoder, id *Identity) *will {
	w := &will{delay: time.Duration(d.Number()) * time.Second}
	m := d.Message()
	w.message = Message{Topic: m.Topic, Payload: m.Payload, QoS: m.QoS, Retain: m.Retain, Props: m.Props, Publisher: id}
	return w
}

// change stores the will of a session that is not on disk.
func (w *will) change() journal.Change {
	e := session.Encoder{kindWill}
	identify(&e, w.message.Publisher)
	w.encode(&e)
	return journal.Change{ID: w.record, Value: e}
}

// discovererOf begins the name under which a record has the role discoverer: a glob of Configurations follows, and a role with several globs is
// there several times. So a version that knows no Configurations takes it for a role without rights. In that version's own records the role stands
// alone: which Configurations were given is unknown, and the role is left out until the client signs in again.
const discovererOf = string(topics.RoleDiscoverer) + "/"

func identify(e *session.Encoder, id *Identity) {
	roles := make([]string, 0, len(id.Roles))
	for _, r := range id.Roles {
		switch {
		case r != topics.RoleDiscoverer:
			roles = append(roles, string(r))
		case len(id.Configurations) == 0:
			roles = append(roles, discovererOf+"*")
		default:
			for _, glob := range id.Configurations {
				roles = append(roles, discovererOf+glob)
			}
		}
	}
	for _, s := range []string{id.ClientID, id.User, id.Node, id.Token, id.Listener, id.Remote} {
		e.Text(s)
	}
	*e = append(*e, id.Version)
	e.Flag(id.Bearer)
	certificate := ""
	if id.Certificate != nil {
		certificate = string(id.Certificate.Raw)
	}
	e.Text(certificate)
	for _, list := range [][]string{roles, id.Nodes, id.Devices, id.Protocols} {
		e.Number(uint64(len(list)))
		for _, s := range list {
			e.Text(s)
		}
	}
}

func identityFrom(d *session.Decoder) *Identity {
	var id Identity
	for _, s := range []*string{&id.ClientID, &id.User, &id.Node, &id.Token, &id.Listener, &id.Remote} {
		*s = d.Text()
	}
	id.Version = d.Byte()
	id.Bearer = d.Flag()
	if der := d.Text(); der != "" {
		id.Certificate, _ = x509.ParseCertificate([]byte(der)) // it was parsed before
	}
	var roles []string
	for _, list := range []*[]string{&roles, &id.Nodes, &id.Devices, &id.Protocols} {
		for range d.Count() {
			*list = append(*list, d.Text())
		}
	}
	for _, r := range roles {
		if glob, ok := strings.CutPrefix(r, discovererOf); ok {
			id.Configurations = append(id.Configurations, glob)
			r = string(topics.RoleDiscoverer)
		} else if r == string(topics.RoleDiscoverer) {
			continue
		}
		if role := topics.Role(r); !id.Has(role) {
			id.Roles = append(id.Roles, role)
		}
	}
	return &id
}

// clientFrom decodes a client's record.
func (b *Broker) clientFrom(record uint64, d *session.Decoder) *client {
	number := d.Number()
	id := identityFrom(d)
	c := b.clientOf(id)
	c.record, c.number = record, number
	c.lasting = time.Duration(d.Number()) * time.Millisecond
	c.left = d.Time()
	if d.Flag() {
		c.will = willFrom(d, id)
		c.weighWill(c.will)
	}
	c.sess.MakeDurable(c.number, b.store)
	return c
}

// Bits of a subscription's record.
const (
	flagNoLocal = 1 << iota
	flagRetainAsPublished
)

func (s *subscription) change() journal.Change {
	e := session.Encoder{kindSubscription}
	e.Number(s.client.number)
	e.Text(s.filter)
	e.Number(uint64(s.id))
	var flags byte
	if s.noLocal {
		flags |= flagNoLocal
	}
	if s.retainAsPublished {
		flags |= flagRetainAsPublished
	}
	e = append(e, s.qos, flags, s.retainHandling)
	return journal.Change{ID: s.record, Value: e}
}

// loadedSub is a subscription whose client's record may not have been read yet.
type loadedSub struct {
	number uint64
	sub    *subscription
}

var errFilter = errors.New("a subscription with an invalid filter or QoS")

func subscriptionFrom(record uint64, d *session.Decoder) (loadedSub, error) {
	number, filter := d.Number(), d.Text()
	id := uint32(d.Number())
	qos, flags, handling := d.Byte(), d.Byte(), d.Byte()
	if err := d.End(); err != nil {
		return loadedSub{}, err
	}
	if topics.CheckFilter(filter) != nil || qos > 2 {
		return loadedSub{}, errFilter
	}
	s := newSubscription(nil, filter)
	s.record, s.id, s.qos, s.retainHandling = record, id, qos, handling
	s.noLocal, s.retainAsPublished = flags&flagNoLocal != 0, flags&flagRetainAsPublished != 0
	return loadedSub{number, s}, nil
}

func retainedChange(m *session.Message) journal.Change {
	if len(m.Payload) == 0 {
		return journal.Change{ID: m.Record}
	}
	e := append(make(session.Encoder, 0, m.Weight()), kindRetained)
	e.Text(m.User)
	e.Message(m)
	return journal.Change{ID: m.Record, Value: e}
}

// loading is the state while records are read.
type loading struct {
	b        *Broker
	now      time.Time
	parts    *session.Loader
	clients  map[uint64]*client // by number
	subs     []loadedSub
	outdated []uint64
}

// load restores sessions, subscriptions, retained messages and wills from the journal.
func (b *Broker) load() error {
	l := &loading{b: b, now: b.opts.Now(), parts: session.NewLoader(b.opts.Now()), clients: make(map[uint64]*client)}
	var last uint64
	err := b.opts.Journal.Load(func(id uint64, value []byte) error {
		if id < journal.Sequence {
			last = max(last, id)
		}
		return l.record(id, value)
	})
	if err != nil {
		return err
	}
	b.store.last.Store(last)
	for _, c := range l.clients {
		b.number.Store(max(b.number.Load(), c.number))
		l.choose(c)
	}
	for _, s := range l.subs {
		l.subscribe(s)
	}
	for _, c := range b.clients.byID {
		if err := l.restore(c); err != nil {
			return fmt.Errorf("the broker's journal: the session of %q: %w", c.id, err)
		}
	}
	b.store.Forget(append(l.outdated, l.parts.Orphans()...)...)
	return nil
}

func (l *loading) record(id uint64, value []byte) error {
	if len(value) > 0 && value[0] < session.FirstOtherKind {
		return l.parts.Record(id, value)
	}
	d := session.NewDecoder(value)
	switch kind := d.Byte(); kind {
	case kindClient:
		c := l.b.clientFrom(id, d)
		l.clients[c.number] = c
	case kindSubscription:
		s, err := subscriptionFrom(id, d)
		l.subs = append(l.subs, s)
		return err
	case kindRetained:
		return l.retained(id, d)
	case kindWill:
		w := willFrom(d, identityFrom(d))
		w.record = id
		l.b.lost = append(l.b.lost, w)
	default:
		return fmt.Errorf("a record of the unknown kind %d: it may be a newer version's", kind)
	}
	return d.End()
}

func (l *loading) retained(id uint64, d *session.Decoder) error {
	user := d.Text()
	m := d.Message()
	m.Record, m.User = id, user
	if err := d.End(); err != nil {
		return err
	}
	m.Rebase(l.now)
	if m.Expired(l.now) {
		l.outdated = append(l.outdated, id)
		return nil
	}
	l.b.retained.put(m)
	return nil
}

// choose keeps a client's session, unless it has expired or was replaced by a newer one. One that has expired with a will,
// or with messages of a shared subscription, is kept until Serve ends it, which publishes the will and redistributes the
// messages.
func (l *loading) choose(c *client) {
	if c.left.IsZero() {
		c.left = l.now // it was connected when the broker stopped
	}
	c.left = session.RebaseTime(c.left, l.now)
	byID := l.b.clients.byID
	old := byID[c.id]
	lost := c
	switch {
	case old != nil && old.number > c.number:
	case c.will == nil && !l.parts.HasShared(c.number) && !c.left.Add(c.lasting).After(l.now):
	default:
		byID[c.id], lost = c, old
	}
	if lost != nil {
		l.outdated = append(l.outdated, lost.record)
	}
}

func (l *loading) subscribe(s loadedSub) {
	c := l.clients[s.number]
	if c == nil || l.b.clients.byID[c.id] != c {
		l.outdated = append(l.outdated, s.sub.record)
		return
	}
	s.sub.client = c
	c.put(s.sub)
	l.b.router.index.add(s.sub)
}

// restore fills a session with its messages, and resumes the replay of retained messages.
func (l *loading) restore(c *client) error {
	if !c.rights().own() {
		l.b.clients.keep(c)
	}
	pulls, err := l.parts.Restore(c.sess)
	for _, p := range pulls {
		s := c.subs[p.Filter]
		if s == nil {
			c.sess.CancelReplay(p.Filter) // it was unsubscribed
			continue
		}
		c.sess.StartReplay(p.Filter, l.b.puller(s, p.After))
	}
	return err
}

// resume starts the timers of the loaded sessions, ends those that have expired, and publishes the wills of sessions that
// ended with the previous process. What there is of an identity that has ended, ends; else it has the rights of now.
func (b *Broker) resume() {
	for _, cl := range b.clients.of(func(*Identity) bool { return true }) {
		if id := b.auth.renewed(cl.rights()); id == nil {
			b.endAway(cl)
		} else if id != cl.rights() {
			b.clients.identify(cl, id)
			b.router.index.gen.Add(1) // routes depend on rights
		}
	}
	for _, w := range b.lost {
		if id := b.auth.renewed(w.message.Publisher); id == nil {
			b.dropWill(w)
		} else {
			w.message.Publisher = id
			b.publishWill(w)
		}
	}
	b.lost = nil
	for _, cl := range b.clients.of(func(id *Identity) bool { return id.Token != "" }) {
		b.follow(cl)
	}
	for c, epoch := range b.startAllTimers() {
		b.expire(c, epoch)
	}
}

// startAllTimers starts the timers of the loaded sessions, and returns those that have expired, with their epochs.
func (b *Broker) startAllTimers() (expired map[*client]int) {
	cs := &b.clients
	cs.mu.Lock()
	defer cs.mu.Unlock()
	now := b.opts.Now()
	expired = make(map[*client]int)
	for _, c := range cs.byID {
		if c.conn != nil || c.expiry != nil || cs.closed || c.rights().own() {
			continue
		}
		if left := c.left.Add(c.lasting).Sub(now); left > 0 {
			b.startTimers(c, left, c.will, c.left.Sub(now))
		} else {
			expired[c] = c.epoch
		}
	}
	return expired
}
