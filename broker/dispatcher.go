// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
)

// messageDispatcher brings messages to their subscribers: into the sessions, and into the journal what durable sessions and retained messages need.
type messageDispatcher struct {
	router   *router
	retained *retainedMessages
	store    *recordStore // nil: nothing outlives the process
	fanout   *session.Fanout
	counters session.Counters // of the sessions
	now      func() time.Time
	node     string         // whose broker this is; empty on the hub
	log      zerolog.Logger // sampled, of what a client can cause any number of
	dropLog  zerolog.Logger // for full session queues, sampled apart so that no other flood hides them
}

// sendOptions are what accompanies a message that is sent.
type sendOptions struct {
	batch *session.WriteBatch
	along []journal.RecordChange // to be stored with it
	link  *conn                  // the node's connection that the message came on; nil: none
}

// messageCommit collects what has to be committed for one message.
type messageCommit struct {
	d        *messageDispatcher
	changes  []journal.RecordChange
	offers   []session.UncommittedDelivery
	retained *session.Message // the topic's new retained message; nil: it isn't retained
	link     *conn            // the node's connection that the message came on; nil: none
	secret   bool             // nothing of it is stored for subscribers; see isSecret
}

// publish routes a message of the program's own: see Broker.Publish.
func (d *messageDispatcher) publish(m Message) {
	if err := topics.CheckTopic(m.Topic); err != nil {
		d.log.Error().Err(err).Msg("the program published to an invalid topic")
		return
	}
	d.send(sessionMessage(m, d.now()), sendOptions{}, func(err error) {
		if err != nil {
			withTopic(d.log.Warn(), m.Topic, d.node).Err(err).Msg("a message could not be stored")
		}
	})
}

// send queues a message in the session of every subscriber. It doesn't wait for the disk. done is called with nil once
// everything that has to outlive the process is on disk (the queues of durable sessions, the retained message, and the
// changes along), or with the reason why nothing was stored. A full queue drops the message for that subscriber, counted
// and logged: it is no reason to refuse the publisher.
func (d *messageDispatcher) send(out *session.Message, how sendOptions, done func(error)) {
	pending, err := d.enqueue(out, how, done)
	if err != nil && d.retained.removeExpired() > 0 { // the quota of retained messages was full
		pending, err = d.enqueue(out, how, done)
	}
	if !pending {
		done(err)
	}
}

func (d *messageDispatcher) enqueue(out *session.Message, how sendOptions, done func(error)) (pending bool, err error) {
	retained := isRetained(out.Topic, out.Retain)
	if retained { // in memory, on disk and to subscribers in one order
		lock := d.retained.locks.of(out.Topic)
		lock.Lock()
		defer lock.Unlock()
	}
	rt := d.router.route(out.Topic)
	if how.batch == nil && len(rt.targets) > session.DirectWrites {
		how.batch = &session.WriteBatch{Fanout: d.fanout}
		defer how.batch.FlushAsync()
	}
	p := &messageCommit{d: d, changes: how.along, link: how.link}
	if retained {
		if err := d.retained.room(out); err != nil {
			return false, err
		}
		p.keep(out)
	}
	if rt.durable {
		p.deliver(rt, out, how.batch)
	} else {
		d.router.deliver(rt, out, how.batch)
	}
	if retained { // after delivery: a new subscriber that finds it was not on the route
		d.retained.put(out)
	}
	if len(p.changes) == 0 || d.store == nil {
		return false, nil
	}
	d.store.Commit(p.changes, func(err error) { done(p.committed(err)) })
	return true, nil
}

// isRetained reports whether the broker keeps a message as retained. What is retained below v1/ is kept by the tree, except bridged messages.
func isRetained(topic string, retain bool) bool {
	return retain && (!topics.IsTree(topic) || topics.IsBridged(topic))
}

// deliver queues the message in the session of every subscriber, and adds the changes that store it for those whose sessions
// are durable.
func (p *messageCommit) deliver(rt *route, out *session.Message, batch *session.WriteBatch) {
	p.secret = rt.secret
	rt.each(out, batch, func(c *client, how session.DeliveryOptions) bool { return p.give(c, out, how) })
	p.store(out)
}

// give queues the message in a session, and notes what there is to be stored. It reports false
// when the session has ended, and the message is for any member of a shared subscription.
func (p *messageCommit) give(c *client, out *session.Message, how session.DeliveryOptions) bool {
	if p.secret && c.sess.Durable() {
		how.QoS = 0
	}
	if how.QoS == 0 || !c.sess.Durable() {
		return p.d.router.give(c, out, how)
	}
	how.Stored = p.link != nil
	pending, result := c.sess.EnqueueDurable(out, how)
	switch result {
	case session.EnqueueNoRoom:
		p.d.router.dropped(c, out)
	case session.EnqueueAccepted:
		p.offers = append(p.offers, pending)
	}
	return result != session.EnqueueEnded || how.Share == nil
}

// store adds the changes that store what was offered.
func (p *messageCommit) store(out *session.Message) {
	var body *session.SharedBody
	sharing := 0
	for _, o := range p.offers {
		if o.SharesBody() {
			sharing++
		}
	}
	if sharing > 1 {
		var change journal.RecordChange
		body, change = session.NewSharedBody(out, p.d.store, sharing)
		p.changes = append(p.changes, change)
	}
	for _, o := range p.offers {
		p.changes = append(p.changes, o.Change(body))
	}
}

// keep adds the change that stores the message as its topic's retained one.
func (p *messageCommit) keep(out *session.Message) {
	d := p.d
	old := d.retained.get(out.Topic)
	switch {
	case old != nil:
		out.Record = old.Record
	case d.store != nil:
		if out.Record = d.retained.writes.record(out.Topic); out.Record == 0 {
			out.Record = d.store.ID()
		}
	}
	if d.store != nil {
		d.retained.writes.begin(out, old)
		p.changes = append(p.changes, retainedChange(out))
		p.retained = out
	}
}

// committed handles the outcome of the commit, and returns the outcome for the publisher.
func (p *messageCommit) committed(err error) error {
	if p.retained != nil {
		p.d.retained.committed(p.retained, err)
	}
	if p.link != nil {
		stored := err == nil
		if err = p.link.publisher.storedInOrder(err); stored && err != nil {
			p.withdraw()
		}
	}
	for _, o := range p.offers {
		o.Committed(err)
	}
	return err
}

// withdraw deletes the records of a message that is stored, and doesn't count as stored. A retained message stays:
// the next of its topic takes its record.
func (p *messageCommit) withdraw() {
	for _, c := range p.changes {
		if p.retained == nil || c.ID != p.retained.Record {
			p.d.store.Forget(c.ID)
		}
	}
}

// redistribute gives the undelivered messages of an ended session to other members of its shared subscriptions. It calls
// done once they are stored there, or with the first error.
func (d *messageDispatcher) redistribute(of *Identity, left []session.SharedDelivery, done func(error)) {
	all := outcomeGroup{left: 1, done: done}
	for _, m := range left {
		group, filter, _ := topics.SplitShare(m.Share)
		rt := d.router.route(m.Topic)
		i := slices.IndexFunc(rt.groups, func(g sharedGroup) bool { return g.key == groupKey{d.router.acl.groupOwner(of, group), group, filter} })
		if i < 0 {
			d.counters.Drop(session.DropSessionEnded, 1)
			continue
		}
		p := &messageCommit{d: d, secret: rt.secret}
		rt.groups[i].each(m.Message, nil, func(c *client, how session.DeliveryOptions) bool { return p.give(c, m.Message, how) })
		p.store(m.Message)
		if len(p.changes) > 0 {
			all.more()
			d.store.Commit(p.changes, func(err error) { all.one(p.committed(err)) }) // no client waits for the outcome
		}
	}
	all.one(nil)
}

// outcomeGroup call done once all of them are known, with the first error.
type outcomeGroup struct {
	mu   sync.Mutex
	left int
	err  error
	done func(error)
}

func (o *outcomeGroup) more() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.left++
}

func (o *outcomeGroup) one(err error) {
	o.mu.Lock()
	if o.err == nil {
		o.err = err
	}
	o.left--
	last := o.left == 0
	o.mu.Unlock()
	if last {
		o.done(o.err)
	}
}

// droppedCount counts the messages that a session's full queue has dropped, and when that was logged last.
type droppedCount struct {
	mu       sync.Mutex
	messages int64
	loggedAt time.Time
}

const queueFullLogEvery = time.Minute // at most, for one session

// dropped logs that a session's full queue has dropped a message: once a minute for each session, and sampled for all.
func (d *messageDispatcher) dropped(c *client, m *session.Message) {
	now := d.now()
	s := &c.drops
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages++
	if !s.loggedAt.IsZero() && now.Sub(s.loggedAt) < queueFullLogEvery {
		return
	}
	e := d.dropLog.Warn()
	if !e.Enabled() {
		return
	}
	s.loggedAt = now
	withTopic(e, m.Topic, d.node).Str("client", c.id).Uint8("qos", m.QoS).Int64("messages", s.messages).
		Msg("a session has no room and goes without messages: so many so far")
}

// withTopic adds the topic to a log line, and node and device of a topic of the tree.
func withTopic(e *zerolog.Event, topic, broker string) *zerolog.Event {
	if !e.Enabled() {
		return e
	}
	e.Str("topic", topic)
	a, err := topics.Parse(topic)
	if err != nil {
		return e
	}
	if broker == "" { // or every line says it
		e.Str("node", a.Node)
	}
	if a.Device != "" && strings.HasPrefix(a.Key(), "devices/") {
		e.Str("device", a.Device)
	}
	return e
}
