// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// subscribeRequest is a SUBSCRIBE or UNSUBSCRIBE that is being handled.
type subscribeRequest struct {
	c                 *conn
	granted, replaced []*subscription // replaced: by the granted one at the same place; nil: none was
}

// subscribe answers a SUBSCRIBE, filter by filter.
func (r *subscribeRequest) subscribe(pk *packets.Packet) error {
	c := r.c
	if reason := subscribeError(pk); reason != "" {
		return c.fail(codeProtocolError, reason)
	}
	answer := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Suback}, PacketID: pk.PacketID}
	for _, f := range pk.Filters {
		c.throttle.countPacket(0)
		s, old, err := r.subscribeTo(f)
		if err != nil {
			answer.ReasonCodes = append(answer.ReasonCodes, r.subackCode(err))
			if answer.Properties.ReasonString == "" {
				answer.Properties.ReasonString = reasonOf(err)
			}
			c.b.metrics.refusedSubscriptions.Inc()
			c.b.sampledLog.Info().Err(err).Str("client", c.ident.ClientID).Str("filter", f.Filter).Msg("subscription refused")
			continue
		}
		answer.ReasonCodes = append(answer.ReasonCodes, s.qos)
		r.granted, r.replaced = append(r.granted, s), append(r.replaced, old)
	}
	if err := c.client.stored(c.b.store); err != nil {
		r.undoAll()
		r.granted = nil
		for i := range answer.ReasonCodes {
			answer.ReasonCodes[i] = r.subackCode(err)
		}
	}
	packet, fits := c.encode(answer)
	if !fits {
		r.undoAll()
		return c.fail(codeTooLarge, "the answer is larger than the client takes")
	}
	for _, s := range r.granted { // before the client knows of it
		c.b.presence.subscribed(c, s.filter)
	}
	c.w.Control(packet, &c.batch)
	r.pullRetained()
	return nil
}

func subscribeError(pk *packets.Packet) string {
	if len(pk.Filters) == 0 {
		return "no filter"
	}
	for _, f := range pk.Filters {
		if f.NoLocal && strings.HasPrefix(f.Filter, "$share/") {
			return "no-local on a shared subscription"
		}
	}
	return ""
}

// subscribeTo adds one subscription to the index.
func (r *subscribeRequest) subscribeTo(f packets.Subscription) (s, old *subscription, err error) {
	c := r.c
	if err := topics.CheckFilter(f.Filter); err != nil {
		return nil, nil, err
	}
	if tooDeep(f.Filter) {
		return nil, nil, &topics.Error{Topic: f.Filter, Rule: "too many levels"}
	}
	s = newSubscription(c.client, strings.Clone(f.Filter))
	if err := c.b.acl.subscribe(c.ident, s.plain); err != nil {
		c.b.opts.Audit.Add(c.auditEntry(audit.Subscribe, s.plain, err))
		return nil, nil, err
	}
	s.qos, s.noLocal, s.retainAsPublished = f.Qos, f.NoLocal || c.bridge && s.group == "", f.RetainAsPublished || c.bridge
	s.retainHandling, s.id = f.RetainHandling, uint32(f.Identifier)
	cl := c.client
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.subs == nil {
		return nil, nil, resource.Errorf(resource.Unavailable, "", "the session has ended")
	}
	if old = cl.subs[s.filter]; old == nil {
		if err := cl.room(s, c.b.opts.Limits.Subscriptions); err != nil {
			return nil, nil, err
		}
	}
	s.save(c.b.store, old)
	if s.replayOf = s; old != nil && !s.wantsRetained(true) {
		s.replayOf = old.replayOf
	}
	if s.wantsRetained(old != nil) { // before the first message of the subscription
		cl.sess.OweRetained(s.filter, s.marker, s.delivery())
	}
	cl.put(s)
	c.b.router.index.add(s)
	return s, old, nil
}

// Memory that a subscription costs besides its filter. In the index it has an entry for each level; those that it shares
// with others are counted in full, since the others may end first.
const (
	subscriptionCost = 640
	levelCost        = 280
)

// weight is about what the subscription costs in memory.
func (s *subscription) weight() int {
	return subscriptionCost + len(s.filter) + levelCost*(1+strings.Count(s.filter, "/"))
}

// save stores a subscription of a durable session, with a marker that its retained messages have to be sent. The
// caller holds client.mu.
func (s *subscription) save(store *recordStore, old *subscription) {
	if s.client.record == 0 {
		return
	}
	if s.record = store.ID(); old != nil {
		s.record = old.record
	}
	changes := []journal.RecordChange{s.change()}
	if s.wantsRetained(old != nil) {
		marker := s.client.sess.ReplayRecord(s.filter, s.delivery())
		s.marker = marker.ID
		changes = append(changes, marker)
	}
	store.Commit(changes, nil)
}

// undoAll undoes the subscriptions of a SUBSCRIBE that can't be stored or answered, the last first, since it may have the
// same filter twice.
func (r *subscribeRequest) undoAll() {
	for i, s := range slices.Backward(r.granted) {
		r.withdraw(s, r.replaced[i])
	}
}

func (r *subscribeRequest) withdraw(s, old *subscription) {
	c := r.c
	cl := c.client
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.subs == nil || cl.subs[s.filter] != s {
		return
	}
	if s.marker > 0 {
		cl.sess.CancelReplay(s.filter)
	}
	if old == nil {
		cl.drop(s.filter)
		c.b.router.index.remove(s)
		c.b.store.Forget(s.record)
		return
	}
	cl.put(old)
	c.b.router.index.add(old)
	if old.record == 0 {
		return
	}
	c.b.store.Commit([]journal.RecordChange{old.change()}, nil)
}

func (r *subscribeRequest) subackCode(err error) byte {
	if r.c.ident.Version < 5 {
		return codeUnspecified
	}
	if code := codeOf(err); code != codeBadTopic {
		return code
	}
	return codeBadFilter
}

// pullRetained starts sending the retained messages of new subscriptions, as their retain handling says. It first waits for
// publishes that were routed before the subscriptions existed, so that these are retained by then.
func (r *subscribeRequest) pullRetained() {
	c := r.c
	passed := false
	for i, s := range r.granted {
		if !s.wantsRetained(r.replaced[i] != nil) {
			continue
		}
		if !passed {
			passed = true
			c.b.retained.locks.pass()
		}
		pending := c.b.retained.writes.matching(s.plain)
		later := pending
		if c.client.record > 0 {
			later = nil
		}
		s.startReplay(c.b, c.b.retainedReader(s, "", later), pending, time.Millisecond)
	}
}

// longestReplayPause is the longest time between two looks at what a replay waits for.
const longestReplayPause = 100 * time.Millisecond

// startReplay starts sending the subscription's retained messages. What was being stored when it was made is sent when that is known, for it may never be, and
// nobody may see it then: the reader has it last. A durable session waits for that before it is sent any: how far it is, is kept as a topic, and those are read
// in their order. It ends with the subscription, and when that is replaced by one that is sent all of them again.
func (s *subscription) startReplay(b *Broker, read session.RetainedReader, pending []pendingWrite, pause time.Duration) {
	pending = b.retained.writes.left(pending)
	done := len(pending) == 0
	if done {
		b.retained.locks.pass() // what failed is replaced by what is stored
	}
	cl := s.client
	cl.mu.Lock()
	defer cl.mu.Unlock()
	now := cl.subs[s.filter]
	if now == nil || now.replayOf != s {
		return
	}
	if done || cl.record == 0 {
		cl.sess.StartReplay(s.filter, read)
	}
	if done {
		now.replayOf = nil
		return
	}
	time.AfterFunc(pause, func() { s.startReplay(b, read, pending, min(2*pause, longestReplayPause)) })
}

// wantsRetained reports whether retained messages are sent for the subscription. existed says whether it replaces another.
func (s *subscription) wantsRetained(existed bool) bool {
	return s.group == "" && s.retainHandling != 2 && (s.retainHandling != 1 || !existed)
}

// delivery is how its retained messages are delivered.
func (s *subscription) delivery() session.DeliveryOptions {
	d := session.DeliveryOptions{QoS: s.qos}
	if s.id > 0 {
		d.IDs = []uint32{s.id}
	}
	return d
}

// unsubscribe answers an UNSUBSCRIBE.
func (r *subscribeRequest) unsubscribe(pk *packets.Packet) error {
	c := r.c
	if len(pk.Filters) == 0 {
		return c.fail(codeProtocolError, "no filter")
	}
	answer := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Unsuback}, PacketID: pk.PacketID}
	for _, f := range pk.Filters {
		c.throttle.countPacket(0)
		code := byte(codeNoSubscription)
		if r.unsubscribeFrom(f.Filter) {
			code = codeSuccess
		}
		answer.ReasonCodes = append(answer.ReasonCodes, code)
	}
	if err := c.client.stored(c.b.store); err != nil {
		for i := range answer.ReasonCodes {
			answer.ReasonCodes[i] = codeOf(err)
		}
	}
	if !c.send(answer, &c.batch) {
		return c.fail(codeTooLarge, "the answer is larger than the client takes")
	}
	return nil
}

func (r *subscribeRequest) unsubscribeFrom(filter string) bool {
	c := r.c
	cl := c.client
	cl.mu.Lock()
	s := cl.drop(filter)
	if s != nil && s.record > 0 {
		c.b.store.Forget(s.record)
	}
	cl.mu.Unlock()
	if s == nil {
		return false
	}
	c.b.router.index.remove(s)
	cl.sess.CancelReplay(filter)
	return true
}

// Subscriber is a client that gets the messages of a topic, and the filter that brings them.
type Subscriber struct {
	Identity *Identity
	Filter   string // without $share/{group}/
}

// Subscribers lists the connected clients that get messages of the topic, once for each filter that matches.
func (b *Broker) Subscribers(topic string) (list []Subscriber) {
	b.router.index.match(topic, func(s *subscription) {
		if id := s.client.rights(); s.client.sess.Online() && b.acl.delivers(id, s.plain, topic) {
			list = append(list, Subscriber{id, s.plain})
		}
	})
	return list
}

// subscription is one of a client's.
type subscription struct {
	client            *client
	filter            string // as the client gave it, with $share/{group}/
	group, plain      string // its parts
	id                uint32 // subscription identifier; 0: none
	qos               byte
	noLocal           bool
	retainAsPublished bool
	retainHandling    byte
	record, marker    uint64        // of a durable session
	replayOf          *subscription // whose retained messages are still to be started: its own, or those of one that it replaced without being sent them again
}

// subscriptionIndex finds the subscriptions that match a topic. Its own trie, not the protocol
// library's, which misses a/+/# for the topic a/b and merges a client's matching
// subscriptions into one.
type subscriptionIndex struct {
	mu   sync.RWMutex
	root indexLevel
	// gen is increased with every change. Routes that were made before are stale.
	gen   atomic.Uint64
	count int
}

type indexLevel struct {
	next map[string]*indexLevel
	subs map[subscriptionKey]*subscription
}

type subscriptionKey struct {
	client *client
	group  string
}

// add adds a subscription, or replaces the client's earlier one with the same filter. It reports whether there was one.
func (x *subscriptionIndex) add(s *subscription) (existed bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	at := &x.root
	for rest, more := s.plain, true; more; {
		var name string
		name, rest, more = strings.Cut(rest, "/")
		at = at.child(name)
	}
	if at.subs == nil {
		at.subs = make(map[subscriptionKey]*subscription)
	}
	key := subscriptionKey{s.client, s.group}
	if _, existed = at.subs[key]; !existed {
		x.count++
	}
	at.subs[key] = s
	x.gen.Add(1)
	return existed
}

func (l *indexLevel) child(name string) *indexLevel {
	if l.next == nil {
		l.next = make(map[string]*indexLevel)
	}
	c := l.next[name]
	if c == nil {
		c = &indexLevel{}
		l.next[name] = c
	}
	return c
}

// remove removes a subscription.
func (x *subscriptionIndex) remove(s *subscription) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.root.remove(s, s.plain) {
		x.count--
		x.gen.Add(1)
	}
}

func (l *indexLevel) remove(s *subscription, filter string) bool {
	name, rest, more := strings.Cut(filter, "/")
	c := l.next[name]
	if c == nil {
		return false
	}
	removed := false
	if more {
		removed = c.remove(s, rest)
	} else {
		key := subscriptionKey{s.client, s.group}
		_, removed = c.subs[key]
		delete(c.subs, key)
	}
	if len(c.subs) == 0 && len(c.next) == 0 {
		delete(l.next, name)
	}
	return removed
}

// match calls found for each subscription that matches the topic.
func (x *subscriptionIndex) match(topic string, found func(*subscription)) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	x.root.match(topic, topic != "" && topic[0] == '$', found)
}

// match walks one level. With reserved, wildcards don't match: the topic begins with $.
func (l *indexLevel) match(topic string, reserved bool, found func(*subscription)) {
	if many := l.next["#"]; many != nil && !reserved {
		many.each(found)
	}
	name, rest, more := strings.Cut(topic, "/")
	for _, key := range [...]string{name, "+"} {
		c := l.next[key]
		if c == nil || key == "+" && reserved {
			continue
		}
		if more {
			c.match(rest, false, found)
			continue
		}
		c.each(found)
		if many := c.next["#"]; many != nil { // a/# matches a
			many.each(found)
		}
	}
}

// matches reports whether any subscription matches the topic. It allocates nothing.
func (x *subscriptionIndex) matches(topic string) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.root.matches(topic, topic != "" && topic[0] == '$')
}

func (l *indexLevel) matches(topic string, reserved bool) bool {
	if !reserved && l.next["#"].hasSubscriptions() {
		return true
	}
	name, rest, more := strings.Cut(topic, "/")
	for _, key := range [...]string{name, "+"} {
		c := l.next[key]
		switch {
		case c == nil, key == "+" && reserved:
		case more && c.matches(rest, false), !more && (c.hasSubscriptions() || c.next["#"].hasSubscriptions()):
			return true
		}
	}
	return false
}

// hasSubscriptions reports whether there is a subscription whose filter ends here.
func (l *indexLevel) hasSubscriptions() bool { return l != nil && len(l.subs) > 0 }

func (l *indexLevel) each(found func(*subscription)) {
	for _, s := range l.subs {
		found(s)
	}
}

// len counts the subscriptions.
func (x *subscriptionIndex) len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.count
}

// newSubscription makes a subscription for a filter that CheckFilter accepts.
func newSubscription(c *client, filter string) *subscription {
	group, plain, _ := topics.SplitShare(filter)
	return &subscription{client: c, filter: filter, group: group, plain: plain}
}
