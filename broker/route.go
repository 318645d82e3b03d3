// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
)

const (
	maxRouteBytes = 16 << 20 // of all routes that are remembered
	maxRouteTopic = 1 << 10  // routes of longer topics are not remembered: a few of them would evict all others
)

// router finds the subscribers of a topic, and queues messages in their sessions.
type router struct {
	index subscriptionIndex
	acl   *accessControl
	// dropped is called when a session's queue is full and a message is dropped for it.
	dropped func(c *client, m *session.Message)

	most int // bytes of all routes below; those of one are a 32nd at most, and those of the groups' names an eighth

	mu     sync.RWMutex
	gen    uint64                      // of all routes below; older routes are removed, as they would keep sessions that have ended in memory
	routes map[string]*route           // by topic
	bytes  int                         // of them
	groups map[groupKey]*atomic.Uint64 // counts the turns of each shared subscription
	named  int                         // bytes of the groups' names
}

// groupKey identifies a shared subscription. Its owner is the members' user, unless auth.sharedGroups lets users share the group.
type groupKey struct{ owner, group, filter string }

// route is the list of those who get the messages of a topic. It is immutable.
type route struct {
	topic     string
	gen       uint64
	targets   []routeTarget
	groups    []sharedGroup
	durable   bool // one of them has a durable session
	keepsQoS0 bool // one of them is the link queue, which stores messages of QoS 0, too
	open      bool // outside v1/: a client that may publish there needs no further check
	secret    bool // its messages may contain the values of Secrets, and are never stored
}

// routeTarget is a client with one or more matching subscriptions: it gets a message
// once, with the best QoS and all identifiers.
type routeTarget struct {
	client *client
	all    mergedSubscriptions
	own    mergedSubscriptions // for the client's own messages: without its no-local subscriptions
}

type mergedSubscriptions struct {
	matched, retain bool
	linkQueue       bool // the link queue: its messages have its own QoS, whatever the publisher's
	qos             byte
	identifiers     []uint32
}

func (m *mergedSubscriptions) delivery(msg *session.Message, batch *session.WriteBatch) session.DeliveryOptions {
	d := session.DeliveryOptions{QoS: min(msg.QoS, m.qos), Retain: msg.Retain && m.retain, IDs: m.identifiers, Batch: batch}
	if m.linkQueue {
		d.QoS = m.qos
	}
	return d
}

func (m *mergedSubscriptions) add(s *subscription) {
	m.matched, m.linkQueue = true, s.client.rights().isBroker()
	m.qos = max(m.qos, s.qos)
	m.retain = m.retain || s.retainAsPublished
	if s.id > 0 {
		m.identifiers = append(m.identifiers, s.id)
	}
}

// sharedGroup is a shared subscription: each message goes to one member.
type sharedGroup struct {
	key     groupKey
	turn    *atomic.Uint64
	members []*subscription
}

func newRouter(a *accessControl) *router {
	return &router{acl: a, most: maxRouteBytes, routes: make(map[string]*route), groups: make(map[groupKey]*atomic.Uint64)}
}

// deliver queues the message in the session of every subscriber.
func (r *router) deliver(rt *route, m *session.Message, batch *session.WriteBatch) {
	rt.each(m, batch, func(c *client, how session.DeliveryOptions) bool { return r.give(c, m, how) })
}

// give queues the message in a session that is not durable, or at QoS 0. It reports false
// when the session has ended, and the message is for any member of a shared subscription.
func (r *router) give(c *client, m *session.Message, how session.DeliveryOptions) bool {
	result := c.sess.Enqueue(m, how)
	if result == session.EnqueueNoRoom {
		r.dropped(c, m)
	}
	return result != session.EnqueueEnded || how.Share == nil
}

// each calls give for each session that gets the message. give reports false if another member of a shared subscription
// has to get it instead.
func (rt *route) each(m *session.Message, batch *session.WriteBatch, give func(*client, session.DeliveryOptions) bool) {
	for i := range rt.targets {
		t := &rt.targets[i]
		how := &t.all
		if m.From != "" && m.From == t.client.id {
			if how = &t.own; !how.matched {
				continue
			}
		}
		give(t.client, how.delivery(m, batch))
	}
	for i := range rt.groups {
		rt.groups[i].each(m, batch, give)
	}
}

// each calls give for one member after the other until one gets the message.
func (g *sharedGroup) each(m *session.Message, batch *session.WriteBatch, give func(*client, session.DeliveryOptions) bool) {
	s, d := g.choose(m)
	d.Batch = batch
	if give(s.client, d) || len(g.members) == 1 {
		return
	}
	others := slices.DeleteFunc(slices.Clone(g.members), func(x *subscription) bool { return x == s })
	(&sharedGroup{key: g.key, turn: g.turn, members: others}).each(m, batch, give)
}

// choose picks the next member in turn among those with the best rank.
func (g *sharedGroup) choose(m *session.Message) (*subscription, session.DeliveryOptions) {
	n := uint64(len(g.members))
	first := g.turn.Add(1)
	chosen := g.members[first%n]
	best := 0
	for i := uint64(0); i < n && best < rankOnline; i++ {
		s := g.members[(first+i)%n]
		if rank := s.rank(m); rank > best {
			chosen, best = s, rank
		}
	}
	d := session.DeliveryOptions{QoS: min(m.QoS, chosen.qos), Retain: m.Retain && chosen.retainAsPublished, Share: &chosen.filter}
	if chosen.id > 0 {
		d.IDs = []uint32{chosen.id}
	}
	return chosen, d
}

// Ranks of a shared subscription's member for a message, the best last.
const (
	rankLost   = iota // not connected, and the message would not wait for it
	rankFull          // connected, with a full queue
	rankQueued        // not connected: the message waits for it
	rankOnline
)

func (s *subscription) rank(m *session.Message) int {
	online, room := s.client.sess.Online(), s.client.sess.HasRoom(m)
	switch {
	case online && room:
		return rankOnline
	case online:
		return rankFull
	case room && min(m.QoS, s.qos) > 0:
		return rankQueued
	}
	return rankLost
}

// route returns the topic's route, from memory if no subscription has changed since.
func (r *router) route(topic string) *route {
	gen := r.index.gen.Load()
	r.mu.RLock()
	rt := r.routes[topic]
	r.mu.RUnlock()
	if rt != nil && rt.gen == gen {
		return rt
	}
	rt = r.build(strings.Clone(topic), gen) // or the route would keep the packet
	r.remember(rt)
	return rt
}

// remember keeps a route until a subscription changes, or there are too many.
func (r *router) remember(rt *route) {
	n := rt.bytes()
	if n > r.most/8 || len(rt.topic) > maxRouteTopic {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case rt.gen > r.gen:
		r.gen, r.routes, r.bytes = rt.gen, make(map[string]*route), 0
	case r.bytes+n > r.most:
		clear(r.routes)
		r.bytes = 0
	}
	if rt.gen == r.gen && r.routes[rt.topic] == nil {
		r.routes[rt.topic] = rt
		r.bytes += n
	}
}

// bytes is about what the route costs in memory.
func (rt *route) bytes() int {
	n := 256 + len(rt.topic) + len(rt.targets)*int(unsafe.Sizeof(routeTarget{}))
	for i := range rt.targets {
		n += 8 * len(rt.targets[i].all.identifiers) // and own's
	}
	for _, g := range rt.groups {
		n += 64 + 8*len(g.members)
	}
	return n
}

// known is the route of a topic to which somebody has published since a subscription
// has changed, or nil.
func (r *router) known(topic []byte) *route {
	r.mu.RLock()
	rt := r.routes[string(topic)]
	r.mu.RUnlock()
	if rt == nil || !r.current(rt) {
		return nil
	}
	return rt
}

// current reports whether the route was made after the last change of a subscription.
func (r *router) current(rt *route) bool { return rt.gen == r.index.gen.Load() }

func (r *router) build(topic string, gen uint64) *route {
	byClient := make(map[*client]*routeTarget)
	byGroup := make(map[groupKey][]*subscription)
	r.index.match(topic, func(s *subscription) {
		if !r.acl.delivers(s.client.rights(), s.plain, topic) {
			return
		}
		if s.group != "" {
			key := groupKey{r.acl.groupOwner(s.client.rights(), s.group), s.group, s.plain}
			byGroup[key] = append(byGroup[key], s)
			return
		}
		t := byClient[s.client]
		if t == nil {
			t = &routeTarget{client: s.client}
			byClient[s.client] = t
		}
		t.all.add(s)
		if !s.noLocal {
			t.own.add(s)
		}
	})
	rt := &route{
		topic: topic, gen: gen, open: !topics.IsTree(topic) && !tooDeep(topic) && topics.CheckTopic(topic) == nil, secret: isSecret(topic),
		targets: make([]routeTarget, 0, len(byClient)),
	}
	for _, t := range byClient {
		rt.durable = rt.durable || t.client.sess.Durable()
		rt.keepsQoS0 = rt.keepsQoS0 || t.all.linkQueue && t.all.qos > 0 && t.client.sess.Durable()
		slices.Sort(t.all.identifiers)
		slices.Sort(t.own.identifiers)
		rt.targets = append(rt.targets, *t)
	}
	for key, members := range byGroup {
		for _, s := range members {
			rt.durable = rt.durable || s.client.sess.Durable()
		}
		slices.SortFunc(members, func(a, b *subscription) int { return int(a.client.number) - int(b.client.number) })
		rt.groups = append(rt.groups, sharedGroup{key, r.turn(key), members})
	}
	return rt
}

// isSecret reports whether messages of a topic may contain the values of Secrets: those of a node's Secrets, and of its link, which
// carries them. A durable session gets them at QoS 0, since what waits in it is on disk as it is. Nothing is lost for good: the
// topic is retained, and the link repeats what is not answered.
func isSecret(topic string) bool {
	a, err := topics.Parse(topic)
	if err != nil {
		return false
	}
	switch a.Kind {
	case topics.KindSecret, topics.KindSecretPart, topics.KindDiscoverySecret, topics.KindSyncDown:
		return true
	}
	return false
}

// turn returns the counter of a group, which goes on when its members change.
func (r *router) turn(key groupKey) *atomic.Uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.groups[key]
	if t == nil {
		n := 128 + len(key.owner) + len(key.group) + len(key.filter)
		if r.named+n > r.most/8 {
			r.groups, r.named = make(map[groupKey]*atomic.Uint64), 0
		}
		r.named += n
		t = new(atomic.Uint64)
		r.groups[key] = t
	}
	return t
}
