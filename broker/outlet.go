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

// outletWindow is how much of what waits in the outlet is in memory, too.
const outletWindow = 256 << 10

// OutletID is the client id of the session behind the outlet. Nobody can have it.
const OutletID = "$link"

// OutletOptions are what the broker's outlet takes: a session of the broker's own, whose
// messages leave by Broker.OpenOutlet and not by a connection. It outlives the process
// like any durable session, and never refuses a publisher: the oldest message gives way.
type OutletOptions struct {
	// Keep are the filters whose messages are stored until they are where they are to
	// go, whatever their QoS. What matches Pass only is taken while the outlet is open.
	Keep, Pass []string
	Bytes      int           // of stored messages
	Age        time.Duration // of the oldest
}

// Outlet takes messages out of the process's own session.
type Outlet = session.LocalConsumer

// Parcel is a message that was taken out.
type Parcel = session.LocalMessage

// OutletStats is a snapshot for metrics.
type OutletStats struct {
	Messages, Bytes, Unacknowledged int
	Oldest                          time.Duration
	Taken                           int64 // also again
	Done                            int64
	Dropped                         map[string]int64
}

func (o *OutletOptions) validate() (err error) {
	if o == nil {
		return nil
	}
	if o.Bytes < 1 || o.Age <= 0 {
		err = errors.New("the outlet needs limits of bytes and age")
	}
	for filter := range o.filters() {
		err = errors.Join(err, topics.CheckFilter(filter))
	}
	return err
}

// filters are the QoS by filter.
func (o *OutletOptions) filters() map[string]byte {
	all := make(map[string]byte)
	for _, f := range o.Pass {
		all[f] = 0
	}
	for _, f := range o.Keep {
		all[f] = 1
	}
	return all
}

// own says whether the client is the broker itself.
func (id Identity) own() bool { return id.Has(topics.RoleHub) }

// makeOutlet finds the outlet's session among what was loaded, or makes it, and gives it
// the subscriptions that it is to have.
func (b *Broker) makeOutlet() {
	byID := b.clients.byID
	c := byID[OutletID]
	if c != nil && (b.opts.Outlet == nil || !c.rights().own()) {
		if n := c.sess.Queued(); n > 0 {
			b.log.Warn().Int("messages", n).Msg("there is no link any more: what waited for it is dropped")
		}
		b.clients.remove(c)
		b.end(c)
		c = nil
	}
	if b.opts.Outlet == nil {
		return
	}
	if c == nil {
		c = b.newOutlet()
		byID[OutletID] = c
	}
	b.outlet.sess = c.sess
	wanted := b.opts.Outlet.filters()
	for filter, s := range maps.Clone(c.subs) {
		if qos, ok := wanted[filter]; !ok || qos != s.qos {
			c.drop(filter)
			b.router.index.remove(s)
			b.forget(s.record)
		} else {
			delete(wanted, filter)
		}
	}
	for filter, qos := range wanted {
		s := newSubscription(c, filter)
		s.qos, s.noLocal, s.retainAsPublished, s.retainHandling = qos, true, true, 2
		b.keepSubscription(s, nil)
		c.put(s)
		b.router.index.add(s)
	}
}

func (b *Broker) newOutlet() *client {
	id := Identity{ClientID: OutletID, Roles: []topics.Role{topics.RoleHub}, Version: 5}
	c := b.newClient(id, b.store != nil)
	c.lasting = math.MaxInt64
	if b.store != nil {
		b.store.Commit([]journal.Change{c.recordWith(nil)}, nil)
	}
	return c
}

func (b *Broker) forget(record uint64) {
	if b.store != nil {
		b.store.Forget(record)
	}
}

// outletDrops are the reasons for which the outlet's session drops.
var outletDrops = map[string]session.DropReason{
	"full": session.DropQueueFull, "full_unstored": session.DropQoS0Full, "too_old": session.DropTooOld, "expired": session.DropExpired,
	"not_linked": session.DropDisconnected, "refused": session.DropRefused, "damaged": session.DropDamaged, "no_link": session.DropSessionEnded,
}

// OpenOutlet takes messages out, at most window of them without Done or Drop. An outlet
// that was opened before is shut.
func (b *Broker) OpenOutlet(window int) *Outlet { return b.outlet.sess.OpenLocal(window) }

// OutletStats takes a snapshot.
func (b *Broker) OutletStats() (s OutletStats) {
	s.Dropped = make(map[string]int64)
	all := b.outlet.count.Dropped()
	for name, why := range outletDrops {
		s.Dropped[name] = all[why.String()]
	}
	if b.outlet.sess == nil {
		return s
	}
	waiting, unacked, bytes := b.outlet.sess.Backlog()
	s.Messages, s.Bytes, s.Unacknowledged, s.Taken = waiting+unacked, bytes, unacked, b.outlet.count.Sent.Load()
	s.Done = b.outlet.count.Acknowledged.Load()
	if at := b.outlet.sess.Oldest(); !at.IsZero() {
		s.Oldest = max(b.opts.Now().Sub(at), 0)
	}
	return s
}

// Pass is Publish for a message that somebody else published, and waits for its answer:
// done is told when every durable session that matches has it, or why it is kept nowhere.
func (b *Broker) Pass(m Message, done func(error)) {
	if err := topics.CheckTopic(m.Topic); err != nil {
		done(resource.Errorf(resource.BadTopic, m.Topic, "%v", err))
		return
	}
	b.send(outgoing(m, b.opts.Now()), sendOptions{link: m.link, along: m.along.take()}, done)
}

// Brought is Pass for what came over the link, to where it came from it never goes back.
func (b *Broker) Brought(m Message, done func(error)) {
	if topics.IsTree(m.Topic) {
		done(resource.Errorf(resource.Forbidden, m.Topic, "a bridge carries nothing below %s and %s", topics.Prefix, topics.RefusedPrefix))
		return
	}
	m.Publisher = Identity{ClientID: OutletID}
	b.Pass(m, done)
}
