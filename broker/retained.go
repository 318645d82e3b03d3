// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
)

const scanChunk = 4096 // topics looked at under one lock

// retainedMessages keeps the retained messages of users' own topics, sorted by topic, so that a reader can go on where it
// was, whatever was added or removed since, without a copy of them. The journal has a copy of each message.
type retainedMessages struct {
	quota *quota.Quota // of bytes, by the user who retained a message
	now   func() time.Time
	store *recordStore // nil: they end with the process
	locks stripedLocks // by topic: messages are stored, routed and kept in one order

	mu       sync.RWMutex
	messages btree.Map[string, *session.Message] // by topic
	next     time.Time                           // before which no message expires; zero: none does
	writes   retainedWrites
}

func newRetainedMessages(q *quota.Quota, now func() time.Time, store *recordStore) *retainedMessages {
	return &retainedMessages{quota: q, now: now, store: store}
}

// get is the topic's message, or nil.
func (r *retainedMessages) get(topic string) *session.Message {
	r.mu.RLock()
	defer r.mu.RUnlock()
	m, _ := r.messages.Get(topic)
	return m
}

// room returns an error if the message can't be retained, as its user has no quota left. Clearing a topic needs none.
func (r *retainedMessages) room(m *session.Message) error {
	if len(m.Payload) == 0 {
		return nil
	}
	more := m.Weight()
	if old := r.get(m.Topic); old != nil && old.User == m.User {
		if more -= old.Weight(); more <= 0 {
			return nil
		}
	}
	return r.quota.Check(m.User, int64(more))
}

// put retains the message, or with an empty payload forgets its topic.
func (r *retainedMessages) put(m *session.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(m.Payload) == 0 {
		if old, ok := r.messages.Delete(m.Topic); ok {
			r.quota.Add(old.User, -int64(old.Weight()))
		}
		return
	}
	r.quota.Add(m.User, int64(m.Weight()))
	if old, ok := r.messages.Set(m.Topic, m); ok {
		r.quota.Add(old.User, -int64(old.Weight()))
	}
	r.noteExpiry(m.Deadline())
}

func (r *retainedMessages) noteExpiry(deadline time.Time) {
	if !deadline.IsZero() && (r.next.IsZero() || deadline.Before(r.next)) {
		r.next = deadline
	}
}

// expired lists the messages whose expiry interval has ended. It goes through all messages, but no more often than once
// a second, and not before the first can have expired.
func (r *retainedMessages) expired() (gone []*session.Message) {
	now := r.now()
	r.mu.Lock()
	due := !r.next.IsZero() && !now.Before(r.next)
	if due {
		r.next = time.Time{}
	}
	r.mu.Unlock()
	if !due {
		return nil
	}
	next := time.Time{}
	for from, done := "", false; !done; {
		from, done = r.walk(from, func(m *session.Message) bool {
			switch d := m.Deadline(); {
			case m.Expired(now):
				gone = append(gone, m)
			case !d.IsZero() && (next.IsZero() || d.Before(next)):
				next = d
			}
			return true
		})
	}
	if len(gone) > 0 { // one of them may have to stay until a write is done
		next = now
	}
	if soonest := now.Add(time.Second); !next.IsZero() && next.Before(soonest) {
		next = soonest
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noteExpiry(next)
	return gone
}

// walk calls each for the messages in the order of their topics, starting at the topic from, until each returns false or
// scanChunk messages were looked at, so that the lock is not held for long. It returns the topic to go on with.
func (r *retainedMessages) walk(from string, each func(*session.Message) bool) (next string, done bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	looked, done := 0, true
	r.messages.Ascend(from, func(topic string, m *session.Message) bool {
		if looked == scanChunk || !each(m) {
			next, done = topic, false
		}
		looked++
		return done
	})
	return next, done
}

// ForgetNode deletes what a deleted node has left: the messages that it bridged, and its sessions without a connection.
func (b *Broker) ForgetNode(node string) {
	for _, cl := range b.clients.chosen(func(id *Identity) bool { return id.User == nodeUser(node) }) {
		cl.endDisconnected()
	}
	next := b.retained.reader(topics.Prefix+node+"/bridge/#", "")
	for chunk := next(scanChunk); len(chunk) > 0; chunk = next(scanChunk) {
		for _, m := range chunk {
			b.Publish(Message{Topic: m.Topic, QoS: 1, Retain: true})
		}
	}
}

// len counts the messages.
func (r *retainedMessages) len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.messages.Len()
}

// reader goes through the topics that match, in their order, after one of them; empty: from the first.
func (r *retainedMessages) reader(filter, after string) session.RetainedReader {
	p := retainedScan{store: r, filter: filter, prefix: literalPrefix(filter)}
	if p.from = p.prefix; after != "" {
		p.from = after + "\x00" // which no topic has
	}
	return p.pull
}

// literalPrefix is the part of a filter before its first wildcard. What matches begins
// with it, less the slash: a/# matches a.
func literalPrefix(filter string) string {
	if i := strings.IndexAny(filter, "+#"); i >= 0 {
		return strings.TrimSuffix(filter[:i], "/")
	}
	return filter
}

type retainedScan struct {
	store        *retainedMessages
	filter       string
	prefix, from string // from: the least topic not yet looked at
	done         bool
}

func (p *retainedScan) pull(max int) (out []*session.Message) {
	for len(out) == 0 && !p.done {
		out = p.scan(max)
	}
	return out
}

// scan looks at some topics.
func (p *retainedScan) scan(max int) (out []*session.Message) {
	now, beyond := p.store.now(), false
	p.from, p.done = p.store.walk(p.from, func(m *session.Message) bool {
		beyond = !strings.HasPrefix(m.Topic, p.prefix)
		if beyond || len(out) == max {
			return false
		}
		if topics.Match(p.filter, m.Topic) && !m.Expired(now) {
			out = append(out, m)
		}
		return true
	})
	p.done = p.done || beyond
	return out
}

// retainedReader goes through everything retained that a subscription matches and its client may
// read: users' own topics, after one of them, then the tree's; at last, when it is known what is stored, those of pending writes.
func (b *Broker) retainedReader(s *subscription, after string, pending []pendingWrite) session.RetainedReader {
	c, filter := s.client, s.plain
	parts := []session.RetainedReader{b.retained.reader(filter, after)}
	first, _, _ := strings.Cut(filter, "/")
	if b.opts.Tree != nil && (first == "#" || first == "+" || first == topics.Version) {
		parts = append(parts, readTree(b.opts.Tree, b.opts.Now, filter))
	}
	if first == "$SYS" {
		parts = append(parts, b.sys.reader(filter))
	}
	doubted := make(map[string]bool, len(pending))
	for _, p := range pending {
		doubted[p.topic] = true
	}
	return func(max int) []*session.Message {
		for len(parts) > 0 || len(doubted) > 0 {
			var chunk []*session.Message
			if len(parts) > 0 {
				if chunk = parts[0](max); len(chunk) == 0 {
					parts = parts[1:]
					continue
				}
				chunk = slices.DeleteFunc(chunk, func(m *session.Message) bool { return doubted[m.Topic] })
			} else {
				if pending = b.retained.writes.left(pending); len(pending) > 0 {
					return []*session.Message{}
				}
				chunk = b.retained.take(doubted, max)
			}
			id := c.rights()
			chunk = slices.DeleteFunc(chunk, func(m *session.Message) bool {
				return s.noLocal && m.From == c.id || !b.acl.delivers(id, filter, m.Topic)
			})
			if len(chunk) > 0 {
				return c.unstored(chunk)
			}
		}
		return nil
	}
}

// take returns up to max messages of topics whose writes are done, and removes their topics.
func (r *retainedMessages) take(topics map[string]bool, max int) (out []*session.Message) {
	now := r.now()
	for topic := range topics {
		if len(out) == max {
			break
		}
		delete(topics, topic)
		waitUnlocked(r.locks.of(topic)) // what failed is replaced by what is stored
		if m := r.get(topic); m != nil && !m.Expired(now) {
			out = append(out, m)
		}
	}
	return out
}

// unstored has the values of Secrets among retained messages sent at QoS 0 to a durable session: see isSecret.
func (cl *client) unstored(chunk []*session.Message) []*session.Message {
	if !cl.sess.Durable() {
		return chunk
	}
	for _, m := range chunk {
		if m.QoS > 0 && strings.Contains(m.Topic, "/secrets/") && isSecret(m.Topic) {
			m.QoS = 0 // it is a copy for this client: the tree's values are
		}
	}
	return chunk
}

// readTree reads what a tree retains.
func readTree(t Tree, clock func() time.Time, filter string) session.RetainedReader {
	next := t.Retained(filter)
	return func(max int) []*session.Message {
		values := next(max)
		now := clock()
		chunk := make([]*session.Message, len(values))
		for i, m := range values {
			chunk[i] = sessionMessage(m, now)
		}
		return chunk
	}
}

// retainedWrites are the writes of retained messages that are not on disk yet, by topic. If one fails, the message that is
// on disk is retained again.
type retainedWrites struct {
	mu      sync.Mutex
	byTopic map[string]*retainedWrite
}

type retainedWrite struct {
	stored *session.Message // nil: none
	last   *session.Message // written last
	begun  int
	ended  int
}

func (d *retainedWrites) begin(m, old *session.Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byTopic == nil {
		d.byTopic = make(map[string]*retainedWrite)
	}
	x := d.byTopic[m.Topic]
	if x == nil {
		x = &retainedWrite{stored: old}
		d.byTopic[m.Topic] = x
	}
	x.last = m
	x.begun++
}

// record is the record of a topic with a pending write, which may have cleared the topic; 0: there is none. The next message
// uses the same record, so that a topic never has two.
func (d *retainedWrites) record(topic string) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if x := d.byTopic[topic]; x != nil {
		return x.last.Record
	}
	return 0
}

// end removes a write. It returns the message that is on disk, and whether that has to be retained again.
func (d *retainedWrites) end(m *session.Message, err error) (stored *session.Message, again bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.byTopic[m.Topic]
	if x.ended++; x.ended == x.begun {
		delete(d.byTopic, m.Topic)
	}
	if err == nil {
		x.stored = m
		return m, false
	}
	return x.stored, x.last == m
}

// pendingWrite is a write that wasn't done when somebody asked: the latest of its topic.
type pendingWrite struct {
	topic  string
	of     *retainedWrite
	number int
}

// matching are the writes that are not done, of topics that the filter matches.
func (d *retainedWrites) matching(filter string) (pending []pendingWrite) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for topic, x := range d.byTopic {
		if topics.Match(filter, topic) {
			pending = append(pending, pendingWrite{topic, x, x.begun})
		}
	}
	return pending
}

// left are those writes that still aren't done.
func (d *retainedWrites) left(pending []pendingWrite) []pendingWrite {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(pending), func(p pendingWrite) bool { return p.of.ended >= p.number })
}

func (r *retainedMessages) committed(m *session.Message, err error) {
	lock := r.locks.of(m.Topic)
	lock.Lock()
	defer lock.Unlock()
	stored, again := r.writes.end(m, err)
	if !again {
		return
	}
	if stored == nil || len(stored.Payload) == 0 {
		stored = &session.Message{Topic: m.Topic}
	}
	r.put(stored)
}

// removeExpired deletes the retained messages that have expired, in memory and on disk, and counts them.
func (r *retainedMessages) removeExpired() (n int) {
	for _, m := range r.expired() {
		if r.remove(m) {
			n++
		}
	}
	return n
}

// remove deletes a message, unless another has replaced it, or a write that would replace it is pending.
func (r *retainedMessages) remove(m *session.Message) bool {
	lock := r.locks.of(m.Topic)
	lock.Lock()
	defer lock.Unlock()
	if r.get(m.Topic) != m || r.writes.record(m.Topic) != 0 {
		return false
	}
	r.put(&session.Message{Topic: m.Topic})
	r.store.Forget(m.Record)
	return true
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
