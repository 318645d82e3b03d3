package broker

import (
	"slices"
	"sync"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
)

// parcel is a message on its way into the journal.
type parcel struct {
	b        *Broker
	changes  []journal.Change
	offers   []session.Offer
	retained *session.Message // to be settled
	inLane   bool
}

// terms are how a message is sent.
type terms struct {
	batch *session.Batch
	along []journal.Change // to be stored with it
	lane  *lane
}

// send queues a message in the session of every subscriber. done is called when all
// that has to outlive the process does so: what durable sessions are owed, the
// retained message, and the changes that come along; or with the reason why nothing
// was kept. Nobody is kept waiting for the disk, or refused because one of those who
// receive has no room: that one goes without, which is counted and logged.
func (b *Broker) send(out *session.Message, how terms, done func(error)) {
	pending, err := b.enqueue(out, how, done)
	if err != nil && b.forgetExpired() > 0 { // there was no room among what is retained
		pending, err = b.enqueue(out, how, done)
	}
	if !pending {
		done(err)
	}
}

func (b *Broker) enqueue(out *session.Message, how terms, done func(error)) (pending bool, err error) {
	retained := keptAsRetained(out.Topic, out.Retain)
	if retained { // what is retained, what is stored and what is sent keep one order
		lock := b.order.of(out.Topic)
		lock.Lock()
		defer lock.Unlock()
	}
	rt := b.router.route(out.Topic)
	if how.batch == nil && len(rt.targets) > session.Few {
		how.batch = &session.Batch{Fanout: b.fanout}
		defer how.batch.Wake()
	}
	p := &parcel{b: b, changes: how.along, inLane: how.lane != nil}
	if retained {
		if err := b.retained.room(out); err != nil {
			return false, err
		}
		p.keep(out)
	}
	if rt.durable {
		p.deliver(rt, out, how.batch)
	} else {
		b.router.deliver(rt, out, how.batch)
	}
	if retained { // after delivery: whoever finds it has got it, or subscribed too late for that
		b.retained.put(out)
	}
	if len(p.changes) == 0 || b.store == nil {
		return false, nil
	}
	commit := b.store.Commit
	if how.lane != nil {
		commit = how.lane.commit
	}
	commit(p.changes, func(err error) {
		p.settle(err)
		done(err)
	})
	return true, nil
}

// keptAsRetained says whether a message is kept here for later subscribers: those of the tree are the tree's.
func keptAsRetained(topic string, retain bool) bool {
	return retain && (!topics.IsTree(topic) || topics.IsBridged(topic))
}

// deliver queues the message in the session of every subscriber, and what it takes to have
// it on disk for those whose sessions are durable.
func (p *parcel) deliver(rt *route, out *session.Message, batch *session.Batch) {
	rt.each(out, batch, func(c *client, how session.Delivery) bool { return p.give(c, out, how) })
	p.store(out)
}

// give queues the message in a session, and notes what there is to be stored. It reports false
// when the session has ended, and the message is for any member of a shared subscription.
func (p *parcel) give(c *client, out *session.Message, how session.Delivery) bool {
	if how.QoS == 0 || !c.sess.Durable() {
		return p.b.router.give(c, out, how)
	}
	how.Stored = p.inLane
	switch o, ok := c.sess.Offer(out, how); {
	case !ok:
		p.b.router.dropped(c, out)
	case !o.None():
		p.offers = append(p.offers, o)
	default:
		return how.Share == nil
	}
	return true
}

// store adds the changes that store what was offered.
func (p *parcel) store(out *session.Message) {
	var body *session.Body
	sharing := 0
	for _, o := range p.offers {
		if o.Shares() {
			sharing++
		}
	}
	if sharing > 1 {
		var change journal.Change
		body, change = session.NewBody(out, p.b.store, sharing)
		p.changes = append(p.changes, change)
	}
	for _, o := range p.offers {
		p.changes = append(p.changes, o.Change(body))
	}
}

// handOver gives what a user's session left that has ended to other members of its shared subscriptions.
func (b *Broker) handOver(of Identity, left []session.Undelivered) {
	for _, m := range left {
		group, filter, _ := topics.SplitShare(m.Share)
		rt := b.router.route(m.Topic)
		i := slices.IndexFunc(rt.groups, func(g sharedGroup) bool { return g.key == groupKey{b.acl.groupOwner(of, group), group, filter} })
		if i < 0 {
			b.counters.Ended(1)
			continue
		}
		p := &parcel{b: b}
		rt.groups[i].each(m.Message, nil, func(c *client, how session.Delivery) bool { return p.give(c, m.Message, how) })
		p.store(m.Message)
		if len(p.changes) > 0 {
			b.store.Commit(p.changes, p.settle)
		}
	}
}

// keep has the message stored as its topic's retained one.
func (p *parcel) keep(out *session.Message) {
	b := p.b
	old := b.retained.get(out.Topic)
	switch {
	case old != nil:
		out.Record = old.Record
	case b.store != nil:
		if out.Record = b.doubts.record(out.Topic); out.Record == 0 {
			out.Record = b.store.ID()
		}
	}
	if b.store != nil {
		b.doubts.begin(out, old)
		p.changes = append(p.changes, retainedChange(out))
		p.retained = out
	}
}

// settle tells the outcome to all concerned.
func (p *parcel) settle(err error) {
	for _, o := range p.offers {
		o.Settle(err)
	}
	if p.retained != nil {
		p.b.settleRetained(p.retained, err)
	}
}

// doubts are the retained messages that are not on disk yet, by topic: when one
// can't be stored, that which is on disk is the topic's again.
type doubts struct {
	mu      sync.Mutex
	byTopic map[string]*doubt
}

type doubt struct {
	stored *session.Message // nil: none
	last   *session.Message // that was tried
	open   int
}

func (d *doubts) begin(m, old *session.Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byTopic == nil {
		d.byTopic = make(map[string]*doubt)
	}
	x := d.byTopic[m.Topic]
	if x == nil {
		x = &doubt{stored: old}
		d.byTopic[m.Topic] = x
	}
	x.last = m
	x.open++
}

// record is that of a topic whose last message is not settled, and may have cleared it;
// 0: there is none. Should clearing fail, the next message still takes the old one's place.
func (d *doubts) record(topic string) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if x := d.byTopic[topic]; x != nil {
		return x.last.Record
	}
	return 0
}

// end says what is stored, and whether that has to be retained again.
func (d *doubts) end(m *session.Message, err error) (stored *session.Message, again bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.byTopic[m.Topic]
	if x.open--; x.open == 0 {
		delete(d.byTopic, m.Topic)
	}
	if err == nil {
		x.stored = m
		return m, false
	}
	return x.stored, x.last == m
}

func (b *Broker) settleRetained(m *session.Message, err error) {
	lock := b.order.of(m.Topic)
	lock.Lock()
	defer lock.Unlock()
	stored, again := b.doubts.end(m, err)
	if !again {
		return
	}
	if stored == nil || len(stored.Payload) == 0 {
		stored = &session.Message{Topic: m.Topic}
	}
	b.retained.put(stored)
}
