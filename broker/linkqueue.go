// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"maps"
	"math"
	"time"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// linkQueueWindow is how many bytes of the stored messages are in memory as well.
const linkQueueWindow = 256 << 10

// linkQueueID is the client id of the link queue's session. No client can have it.
const linkQueueID = "$link"

// LinkQueueOptions describe the link queue: a durable session of the broker's own, from which the program takes messages with
// LinkQueue.Open to send them over its link. When it is full the oldest message is dropped; publishers are never
// refused.
type LinkQueueOptions struct {
	// Keep are filters whose messages are stored until they were sent over the link, whatever their QoS. Messages that
	// match only Pass are sent while the queue is being consumed, and else dropped.
	Keep, Pass []string
	Bytes      int           // of stored messages
	Age        time.Duration // of the oldest
}

// LinkConsumer takes messages from the link queue.
type LinkConsumer = session.LocalConsumer

// LinkMessage is a message that was taken from the link queue.
type LinkMessage = session.LocalMessage

// LinkQueueStats is a snapshot of the link queue.
type LinkQueueStats struct {
	Messages, Bytes, Unacknowledged int
	Oldest                          time.Duration
	Taken                           int64 // also again
	Done                            int64
	Dropped                         map[string]int64 // since New, by reason
	FullBefore                      int64            // that were dropped before New, because the queue was full
}

func (o *LinkQueueOptions) validate() (err error) {
	if o == nil {
		return nil
	}
	if o.Bytes < 1 || o.Age <= 0 {
		err = errors.New("the link queue needs limits of bytes and age")
	}
	for filter := range o.filters() {
		err = errors.Join(err, topics.CheckFilter(filter))
	}
	return err
}

// filters are the QoS by filter.
func (o *LinkQueueOptions) filters() map[string]byte {
	all := make(map[string]byte)
	for _, f := range o.Pass {
		all[f] = 0
	}
	for _, f := range o.Keep {
		all[f] = 1
	}
	return all
}

// isBroker reports whether the client is the broker itself: its session is the link queue.
func (id *Identity) isBroker() bool { return id.Has(topics.RoleHub) }

// linkQueueDrops are the reasons, in metrics, for which the link queue drops messages.
var linkQueueDrops = map[string]session.DropReason{
	"full": session.DropQueueFull, "full_unstored": session.DropQoS0Full, "too_old": session.DropTooOld, "expired": session.DropExpired,
	"not_linked": session.DropDisconnected, "refused": session.DropRefused, "damaged": session.DropDamaged, "no_link": session.DropSessionEnded,
}

// LinkQueue returns the link queue.
func (b *Broker) LinkQueue() *LinkQueue { return &b.linkQueue }

// Open starts taking messages, at most window of them without Acknowledge or Reject. It ends an earlier consumer.
func (q *LinkQueue) Open(window int) *LinkConsumer { return q.sess.OpenLocal(window) }

// Stats takes a snapshot.
func (q *LinkQueue) Stats() (s LinkQueueStats) {
	s.Dropped = make(map[string]int64)
	all := q.count.Dropped()
	for name, why := range linkQueueDrops {
		s.Dropped[name] = all[why.String()]
	}
	if q.sess == nil {
		return s
	}
	waiting, unacked, bytes := q.sess.Backlog()
	s.Messages, s.Bytes, s.Unacknowledged, s.Taken = waiting+unacked, bytes, unacked, q.count.Sent.Load()
	_, s.FullBefore = q.sess.Missed()
	s.Done = q.count.Acknowledged.Load()
	if at := q.sess.Oldest(); !at.IsZero() {
		s.Oldest = max(q.b.opts.Now().Sub(at), 0)
	}
	return s
}

// Pass is Publish for a client's message, with an outcome: done is called once the message is on disk for every durable
// session that matches, or with the reason why it is stored for none.
func (b *Broker) Pass(m Message, done func(error)) {
	if err := topics.CheckTopic(m.Topic); err != nil {
		done(topicError(resource.BadTopic, m.Topic, "%v", err))
		return
	}
	b.dispatcher.send(sessionMessage(m, b.opts.storedTime()), sendOptions{link: m.linkConn, along: m.extraChanges.take()}, done)
}

// PublishFromLink is Pass for a message that came over the link. The link queue doesn't get it.
func (b *Broker) PublishFromLink(m Message, done func(error)) {
	if topics.IsTree(m.Topic) {
		done(topicError(resource.Forbidden, m.Topic, "a bridge carries nothing below %s and %s", topics.Prefix, topics.RefusedPrefix))
		return
	}
	m.Publisher = &Identity{ClientID: linkQueueID}
	b.Pass(m, done)
}

// LinkQueue is the session from which the link takes its messages.
type LinkQueue struct {
	b      *Broker
	sess   *session.Session // nil: there is none
	client *client
	count  session.Counters
}

// makeLinkQueue finds the link queue among the loaded sessions, or makes it, and brings its subscriptions in line with the
// options. Without options it ends a session that was loaded.
func (cs *clients) makeLinkQueue() {
	b := cs.b
	byID := cs.byID
	c := byID[linkQueueID]
	if c != nil && (b.opts.LinkQueue == nil || !c.rights().isBroker()) {
		if n := c.sess.Queued(); n > 0 {
			b.log.Warn().Int("messages", n).Msg("there is no link any more: what waited for it is dropped")
		}
		cs.remove(c)
		c.release()
		c = nil
	}
	if b.opts.LinkQueue == nil {
		return
	}
	if c == nil {
		c = cs.newLinkQueue()
		byID[linkQueueID] = c
	}
	b.linkQueue.sess = c.sess
	b.linkQueue.client = c
	b.linkQueue.subscribe(b.opts.LinkQueue.filters())
}

// Keep has messages of these filters stored for the link, beside those of LinkQueueOptions and in the place of those that an earlier call named. Once
// it has returned no message of them is missed. It is to be called again after a start, before Serve.
func (q *LinkQueue) Keep(filters []string) error {
	for _, f := range filters {
		if err := topics.CheckFilter(f); err != nil {
			return err
		}
	}
	if q.client == nil {
		return errors.New("the broker has no link queue")
	}
	wanted := q.b.opts.LinkQueue.filters()
	for _, f := range filters {
		wanted[f] = 1
	}
	q.subscribe(wanted)
	return nil
}

// subscribe brings the link queue's subscriptions in line with what is wanted: QoS by filter.
func (q *LinkQueue) subscribe(wanted map[string]byte) {
	b, c := q.b, q.client
	c.mu.Lock()
	defer c.mu.Unlock()
	wanted = maps.Clone(wanted)
	for filter, s := range maps.Clone(c.subs) {
		if qos, ok := wanted[filter]; ok && qos == s.qos {
			delete(wanted, filter)
		} else if !ok {
			c.drop(filter)
			b.router.index.remove(s)
			b.store.Forget(s.record)
		}
	}
	for filter, qos := range wanted {
		old := c.subs[filter]
		s := newSubscription(c, filter)
		s.qos, s.noLocal, s.retainAsPublished, s.retainHandling = qos, true, true, 2
		s.save(b.store, old)
		c.put(s)
		b.router.index.add(s) // in the place of an older one of the filter
	}
}

func (cs *clients) newLinkQueue() *client {
	b := cs.b
	id := Identity{ClientID: linkQueueID, Roles: []topics.Role{topics.RoleHub}, Version: 5}
	c := cs.newClient(&id, b.store != nil)
	c.expiryInterval = math.MaxInt64
	if b.store != nil {
		b.store.Commit([]journal.RecordChange{c.recordWith(nil)}, nil)
	}
	return c
}
