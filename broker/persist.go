// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/quota"
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
	Commit(changes []journal.RecordChange, done func(error))
	// Read hands over the values of records, in order, each valid during the call.
	Read(ids []uint64, each func(i int, value []byte) error) error
}

// recordStore is a journal as sessions use it.
type recordStore struct {
	journal Journal
	last    atomic.Uint64  // the id of the newest record
	backlog *quota.Backlog // bytes whose commit has no outcome yet
}

func newRecordStore(j Journal) *recordStore {
	return &recordStore{journal: j, backlog: quota.NewBacklog(2 * backlogBytes())} // of which all together, as one, get half
}

// ID returns the id of a new record.
func (s *recordStore) ID() uint64 { return s.last.Add(1) }

// Read reads records.
func (s *recordStore) Read(ids []uint64, each func(i int, value []byte) error) error {
	return s.journal.Read(ids, each)
}

// Commit makes changes durable.
func (s *recordStore) Commit(changes []journal.RecordChange, done func(error)) {
	if done == nil {
		s.journal.Commit(changes, nil)
		return
	}
	n := 64
	for _, c := range changes {
		n += len(c.Value)
	}
	s.backlog.Add("", n)
	s.journal.Commit(changes, func(err error) {
		s.backlog.Add("", -n)
		done(unavailableError(err))
	})
}

func unavailableError(err error) error {
	if err == nil {
		return nil
	}
	return resource.Errorf(resource.Unavailable, "", "the broker can't store it now: %v", err)
}

// commitAny commits changes, if there are any, and calls done with the outcome.
func (s *recordStore) commitAny(changes []journal.RecordChange, done func(error)) {
	if len(changes) == 0 {
		done(nil)
		return
	}
	s.Commit(changes, done)
}

// Forget deletes records; nothing waits for that. Without a journal there are none.
func (s *recordStore) Forget(records ...uint64) {
	if s == nil {
		return
	}
	changes := make([]journal.RecordChange, 0, len(records))
	for _, id := range records {
		if id > 0 {
			changes = append(changes, journal.RecordChange{ID: id})
		}
	}
	if len(changes) > 0 {
		s.journal.Commit(changes, nil)
	}
}

// commitNow commits changes and waits for the outcome. Only the goroutine that reads from a client may call it.
func (s *recordStore) commitNow(changes []journal.RecordChange) error {
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
func (cl *client) recordWith(w *will) journal.RecordChange {
	e := session.Encoder{kindClient}
	e.Number(cl.number)
	encodeIdentity(&e, cl.rights())
	e.Number(uint64(cl.expiryInterval / time.Millisecond))
	e.Time(cl.disconnectedAt)
	e.Flag(w != nil)
	if w != nil {
		w.encode(&e)
	}
	return journal.RecordChange{ID: cl.record, Value: e}
}

func (w *will) encode(e *session.Encoder) {
	e.Number(uint64(w.delay / time.Second))
	e.Number(uint64(w.keepAlive / time.Second))
	e.Message(sessionMessage(w.message, time.Time{}))
}

// decodeWill decodes a client's will.
func decodeWill(d *session.Decoder, id *Identity) *will {
	w := &will{delay: time.Duration(d.Number()) * time.Second, keepAlive: time.Duration(d.Number()) * time.Second}
	m := d.Message()
	w.message = Message{Topic: m.Topic, Payload: m.Payload, QoS: m.QoS, Retain: m.Retain, Props: m.Props, Publisher: id}
	return w
}

// change stores the will of a session that is not on disk.
func (w *will) change() journal.RecordChange {
	e := session.Encoder{kindWill}
	encodeIdentity(&e, w.message.Publisher)
	w.encode(&e)
	return journal.RecordChange{ID: w.record, Value: e}
}

func encodeIdentity(e *session.Encoder, id *Identity) {
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
	roles := make([]string, len(id.Roles))
	for i, r := range id.Roles {
		roles[i] = string(r)
	}
	for _, list := range [][]string{roles, id.Nodes, id.Devices, id.Protocols, id.Configurations} {
		e.Number(uint64(len(list)))
		for _, s := range list {
			e.Text(s)
		}
	}
}

func decodeIdentity(d *session.Decoder) *Identity {
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
	for _, list := range []*[]string{&roles, &id.Nodes, &id.Devices, &id.Protocols, &id.Configurations} {
		for range d.Count() {
			*list = append(*list, d.Text())
		}
	}
	for _, r := range roles {
		id.Roles = append(id.Roles, topics.Role(r))
	}
	return &id
}

// decodeClient decodes a client's record.
func (l *journalLoad) decodeClient(record uint64, d *session.Decoder) *client {
	number := d.Number()
	id := decodeIdentity(d)
	c := l.b.clients.clientOf(id)
	c.record, c.number = record, number
	c.expiryInterval = time.Duration(d.Number()) * time.Millisecond
	c.disconnectedAt = d.Time()
	if d.Flag() {
		c.will = decodeWill(d, id)
		c.weighWill(c.will)
	}
	c.sess.MakeDurable(c.number, l.b.store)
	return c
}

// Bits of a subscription's record.
const (
	flagNoLocal = 1 << iota
	flagRetainAsPublished
)

func (s *subscription) change() journal.RecordChange {
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
	return journal.RecordChange{ID: s.record, Value: e}
}

// loadedSubscription is a subscription whose client's record may not have been read yet.
type loadedSubscription struct {
	number uint64
	sub    *subscription
}

var errFilter = errors.New("a subscription with an invalid filter or QoS")

func decodeSubscription(record uint64, d *session.Decoder) (loadedSubscription, error) {
	number, filter := d.Number(), d.Text()
	id := uint32(d.Number())
	qos, flags, handling := d.Byte(), d.Byte(), d.Byte()
	if err := d.End(); err != nil {
		return loadedSubscription{}, err
	}
	if topics.CheckFilter(filter) != nil || qos > 2 {
		return loadedSubscription{}, errFilter
	}
	s := newSubscription(nil, filter)
	s.record, s.id, s.qos, s.retainHandling = record, id, qos, handling
	s.noLocal, s.retainAsPublished = flags&flagNoLocal != 0, flags&flagRetainAsPublished != 0
	return loadedSubscription{number, s}, nil
}

func retainedChange(m *session.Message) journal.RecordChange {
	if len(m.Payload) == 0 {
		return journal.RecordChange{ID: m.Record}
	}
	e := append(make(session.Encoder, 0, m.Weight()), kindRetained)
	e.Text(m.User)
	e.Message(m)
	return journal.RecordChange{ID: m.Record, Value: e}
}

// journalLoad is the state while records are read.
type journalLoad struct {
	b        *Broker
	now      time.Time
	parts    *session.RecordLoader
	clients  map[uint64]*client // by number
	subs     []loadedSubscription
	outdated []uint64
}

// load restores sessions, subscriptions, retained messages and wills from the journal.
func (b *Broker) load() error {
	l := &journalLoad{b: b, now: b.opts.Now(), parts: session.NewRecordLoader(b.opts.Now()), clients: make(map[uint64]*client)}
	var last uint64
	err := b.opts.Journal.Load(func(id uint64, value []byte) error {
		if id < journal.FirstSequenced {
			last = max(last, id)
		}
		return l.record(id, value)
	})
	if err != nil {
		return err
	}
	b.store.last.Store(last)
	for _, c := range l.clients {
		b.clients.number.Store(max(b.clients.number.Load(), c.number))
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

func (l *journalLoad) record(id uint64, value []byte) error {
	if len(value) > 0 && value[0] < session.FirstOtherKind {
		return l.parts.Record(id, value)
	}
	d := session.NewDecoder(value)
	switch kind := d.Byte(); kind {
	case kindClient:
		c := l.decodeClient(id, d)
		l.clients[c.number] = c
	case kindSubscription:
		s, err := decodeSubscription(id, d)
		l.subs = append(l.subs, s)
		return err
	case kindRetained:
		return l.retained(id, d)
	case kindWill:
		w := decodeWill(d, decodeIdentity(d))
		w.record = id
		l.b.wills.lost = append(l.b.wills.lost, w)
	default:
		return fmt.Errorf("a record of the unknown kind %d: it is not of this version of Edgebus: take the version that wrote it, or begin with an empty data directory", kind)
	}
	return d.End()
}

func (l *journalLoad) retained(id uint64, d *session.Decoder) error {
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
func (l *journalLoad) choose(c *client) {
	if c.disconnectedAt.IsZero() {
		c.disconnectedAt = l.now // it was connected when the broker stopped
		if c.will != nil && l.b.opts.Failover {
			c.will.delay = max(c.will.delay, c.will.grace())
		}
	}
	c.disconnectedAt = session.RebaseTime(c.disconnectedAt, l.now)
	byID := l.b.clients.byID
	old := byID[c.id]
	lost := c
	switch {
	case old != nil && old.number > c.number:
	case c.will == nil && !l.parts.HasShared(c.number) && !c.disconnectedAt.Add(c.expiryInterval).After(l.now):
	default:
		byID[c.id], lost = c, old
	}
	if lost != nil {
		l.outdated = append(l.outdated, lost.record)
	}
}

func (l *journalLoad) subscribe(s loadedSubscription) {
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
func (l *journalLoad) restore(c *client) error {
	if !c.rights().isBroker() {
		l.b.clients.keep(c)
	}
	pulls, err := l.parts.Restore(c.sess)
	for _, p := range pulls {
		s := c.subs[p.Filter]
		if s == nil {
			c.sess.CancelReplay(p.Filter) // it was unsubscribed
			continue
		}
		c.sess.StartReplay(p.Filter, l.b.retainedReader(s, p.After, nil))
	}
	return err
}

// resume starts the timers of the loaded sessions, ends those that have expired, and publishes the wills of sessions that
// ended with the previous process. What there is of an identity that has ended, ends; else it has the rights of now.
func (cs *clients) resume() {
	b := cs.b
	for _, cl := range cs.chosen(func(*Identity) bool { return true }) {
		if id := b.auth.current(cl.rights()); id == nil {
			cl.endDisconnected()
		} else if id != cl.rights() {
			cs.identify(cl, id)
			b.router.index.gen.Add(1) // routes depend on rights
		}
	}
	for _, w := range b.wills.lost {
		if b.opts.Failover {
			b.wills.hold(w, func() { cs.publishLost(w) })
		} else {
			cs.publishLost(w)
		}
	}
	b.wills.lost = nil
	for _, cl := range cs.chosen(func(id *Identity) bool { return id.Token != "" }) {
		cl.endWithToken()
	}
	for c, epoch := range cs.startAllTimers() {
		c.expire(epoch)
	}
	close(cs.resumed)
}

// publishLost publishes the will of a session that ended with the previous process.
func (cs *clients) publishLost(w *will) {
	b := cs.b
	id := b.auth.current(w.message.Publisher)
	if id == nil {
		b.wills.drop(w)
		return
	}
	w.message.Publisher = id
	b.wills.publish(w)
}

// startAllTimers starts the timers of the loaded sessions, and returns those that have expired, with their epochs.
func (cs *clients) startAllTimers() (expired map[*client]int) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	now := cs.b.opts.Now()
	expired = make(map[*client]int)
	for _, c := range cs.byID {
		if c.conn != nil || c.expiryTimer != nil || cs.closed || c.rights().isBroker() {
			continue
		}
		if left := c.disconnectedAt.Add(c.expiryInterval).Sub(now); left > 0 {
			c.startTimers(left, c.will, c.disconnectedAt.Sub(now))
		} else {
			expired[c] = c.epoch
		}
	}
	return expired
}
