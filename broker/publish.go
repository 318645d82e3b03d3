// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/limits"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	maxLevels         = 200 // of a topic or filter
	maxUserProperties = 64  // of a packet
	linkProperties    = 8   // that a node may add to a message that it passes on
)

func tooDeep(topic string) bool { return strings.Count(topic, "/") >= maxLevels }

// publisher handles what a connection's client publishes. The reading goroutine uses it.
type publisher struct {
	c           *conn
	acks        pendingAcks
	aliases     map[uint16]string
	lastRoute   *route // of the topic that it published to last
	ownTopics   bool   // it may publish outside v1/
	scratch     [4]byte
	storeFailed atomic.Bool // a node's message could not be stored: none that it sent later on this connection counts as stored
}

// publish handles a PUBLISH. One that breaks the protocol closes the connection; one that breaks a rule of the broker is
// refused, and changes nothing.
func (p *publisher) publish(pk *packets.Packet) error {
	c := p.c
	c.b.metrics.received.Add(1)
	c.b.activePublisher.note(c.ident.ClientID, &c.throttle.quantum)
	if reason := publishError(pk); reason != "" {
		return c.fail(codeProtocolError, reason)
	}
	topic, err := p.topic(pk)
	if err != nil {
		return err
	}
	s := &unackedPublish{conn: c, m: Message{
		Topic: topic, Payload: pk.Payload, QoS: pk.FixedHeader.Qos, Retain: pk.FixedHeader.Retain,
		Dup: pk.FixedHeader.Dup, PacketID: pk.PacketID, Props: propertiesOf(&pk.Properties), Publisher: c.ident,
	}}
	if c.ident.Has(topics.RoleNode) {
		s.m.linkConn = c
	}
	if !p.acks.reserve(s, c.b.opts.Limits.ReceiveMaximum, c.batch.Flush) {
		return c.fail(codeReceiveMaximum, "more publishes unacknowledged than the receive maximum allows")
	}
	done := s.finish
	if carriesPart(&s.m) {
		if done = p.takePart(s); done == nil {
			return nil
		}
	}
	if !p.room(s.m) {
		return errClosed
	}
	var along []journal.RecordChange
	if s.m.QoS == 2 {
		sess := c.client.sess
		if !sess.Inbound().Begin(s.m.PacketID, s.finish) {
			return nil
		}
		along = sess.Inbound().Changes(s.m.PacketID)
		done = func(err error) { sess.Inbound().Finish(s.m.PacketID, err) }
	}
	if topics.IsTree(s.m.Topic) {
		done = c.b.admission.counted(s.m, done)
		c.batch.Flush() // the tree may make the publisher wait
	}
	c.b.admission.accept(s.m, &c.batch, along, done)
	return nil
}

// takePart takes a part of a message. With the last one the publish is of the whole message, and goes on with the function that is returned;
// nil: it is finished.
func (p *publisher) takePart(s *unackedPublish) (done func(error)) {
	part := s.m
	part.Props.PayloadFormat = nil // it is that of the whole
	err := p.c.b.admission.check(part)
	if s.m.QoS == 2 {
		err = topicError(resource.Invalid, s.m.Topic, "parts of a message have QoS 1 or 0")
	}
	var published func(error)
	if err == nil {
		published, err = p.c.b.partials.take(&s.m)
	}
	if published == nil {
		s.finish(err)
		return nil
	}
	return func(err error) {
		published(err)
		s.finish(err)
	}
}

// refuseUnread refuses a PUBLISH without decoding it: it has so many user properties that decoding would cost many times
// its size. Its topic alias is good for those that follow.
func (p *publisher) refuseUnread(first byte, body []byte) error {
	c := p.c
	r := packetReader{b: body}
	pk := packets.Packet{TopicName: string(r.bytes())}
	s := &unackedPublish{conn: c, m: Message{QoS: first >> 1 & 3, Publisher: c.ident}}
	if s.m.QoS > 0 {
		s.m.PacketID = r.uint16()
	}
	pk.Properties.TopicAlias, pk.Properties.TopicAliasFlag = r.alias()
	if reason := publishError(&pk); reason != "" {
		return c.fail(codeProtocolError, reason)
	}
	var err error
	if s.m.Topic, err = p.topic(&pk); err != nil {
		return err
	}
	c.b.metrics.received.Add(1)
	if !p.acks.reserve(s, c.b.opts.Limits.ReceiveMaximum, c.batch.Flush) {
		return c.fail(codeReceiveMaximum, "more publishes unacknowledged than the receive maximum allows")
	}
	s.finish(topicError(resource.Quota, s.m.Topic, "more than %d user properties", maxUserProperties))
	return nil
}

// room waits while what a message needs, the disk or the tree, is behind. It reports false if the connection is over.
func (p *publisher) room(m Message) bool {
	c := p.c
	if b := c.b; b.store != nil && b.store.backlog.Full("") && p.stores(m) && !b.store.backlog.Wait("", c.batch.Flush, c.closing.Load) {
		return false
	}
	return m.weight() < largeMessage || !topics.IsTree(m.Topic) || c.b.admission.treeBacklog.Wait(c.ident.User, c.batch.Flush, c.closing.Load)
}

// stores reports whether the broker has to store anything for a message. Others need not wait while the disk is behind.
func (p *publisher) stores(m Message) bool {
	c := p.c
	switch {
	case c.b.admission.check(m) != nil:
		return false
	case isRetained(m.Topic, m.Retain), m.QoS == 2 && c.client.sess.Durable():
		return true
	}
	rt := c.b.router.route(m.Topic)
	return rt.durable && m.QoS > 0 || rt.keepsQoS0
}

// fastPublish handles a PUBLISH for which neither the tree is called nor anything stored, and whose form leaves nothing to
// check: it goes straight from the read buffer to the sessions. Most are like that. For any other it does nothing and
// reports false; publish has all the rules.
func (p *publisher) fastPublish(first byte, body []byte) bool {
	c := p.c
	qos, id, topic, payload, ok := parsePlainPublish(first, body, c.ident.Version)
	if !ok {
		return false
	}
	rt := p.lastRoute
	if rt == nil || rt.topic != string(topic) || !c.b.router.current(rt) {
		if rt = c.b.router.known(topic); rt == nil {
			return false
		}
		p.lastRoute, p.ownTopics = rt, c.b.acl.unlimited(c.ident) // which holds as long as the route: RightsChanged ends it
	}
	if !p.ownTopics || !rt.open || rt.durable || qos > 0 && !p.acks.empty() {
		return false
	}
	c.b.metrics.received.Add(1)
	c.b.activePublisher.note(c.ident.ClientID, &c.throttle.quantum)
	m := &session.Message{Topic: rt.topic, Payload: bytes.Clone(payload), QoS: qos, From: c.ident.ClientID}
	c.b.router.deliver(rt, m, &c.batch)
	if qos > 0 {
		c.w.Control(session.Ack{Type: packets.Puback, ID: id}.Append(p.scratch[:0], c.ident.Version), &c.batch)
	}
	return true
}

// parsePlainPublish parses a PUBLISH of QoS 0 or 1 that is not retained and has no properties; others are not ok. The topic's form is
// not checked.
func parsePlainPublish(first byte, body []byte, version byte) (qos byte, id uint16, topic, payload []byte, ok bool) {
	switch first &^ 0x08 { // DUP has no meaning here at QoS 1, and is an error at QoS 0
	case packets.Publish << 4:
		ok = first&0x08 == 0
	case packets.Publish<<4 | 2:
		qos, ok = 1, true
	}
	r := packetReader{b: body}
	if ok {
		topic = r.bytes()
	}
	if qos > 0 {
		id = r.uint16()
	}
	if version == 5 {
		ok = ok && r.uint8() == 0
	}
	return qos, id, topic, r.b, ok && r.err == nil && (qos == 0 || id > 0)
}

// publishError returns what the standard calls a protocol error; empty: none.
func publishError(pk *packets.Packet) string {
	switch {
	case len(pk.Properties.SubscriptionIdentifier) > 0:
		return "a client's PUBLISH has no subscription identifier"
	case pk.TopicName == "" && !pk.Properties.TopicAliasFlag:
		return "neither topic nor topic alias"
	}
	return propertyError(&pk.Properties)
}

// propertyError returns what is wrong with the properties that a PUBLISH shares with a will; empty: nothing.
func propertyError(p *packets.Properties) string {
	if strings.ContainsAny(p.ResponseTopic, "+#") {
		return "wildcard in the response topic"
	}
	return ""
}

// aliasCost is what a topic alias costs in memory besides its topic.
const aliasCost = 64

// topic returns the packet's topic. It resolves the topic alias, or remembers a new one.
func (p *publisher) topic(pk *packets.Packet) (topic string, err error) {
	c := p.c
	alias := pk.Properties.TopicAlias
	if !pk.Properties.TopicAliasFlag {
		return pk.TopicName, nil
	}
	old, known := p.aliases[alias]
	switch {
	case alias == 0 || int(alias) > c.b.opts.Limits.TopicAliases:
		return "", c.fail(codeBadAlias, "a topic alias beyond the topic alias maximum")
	case pk.TopicName == "" && !known:
		return "", c.fail(codeProtocolError, "a topic alias that has not been set on this connection")
	}
	if pk.TopicName == "" || pk.TopicName == old {
		return old, nil
	}
	more := len(pk.TopicName) - len(old)
	if !known {
		more += aliasCost
	}
	if err := c.b.quotas.state.Take(c.ident.User, int64(more)); err != nil {
		return "", c.fail(codeQuota, reasonOf(err))
	}
	c.quotas.aliasBytes += more
	if p.aliases == nil {
		p.aliases = make(map[uint16]string)
	}
	p.aliases[alias] = strings.Clone(pk.TopicName) // or the alias would keep the packet
	return pk.TopicName, nil
}

// pendingAcks sends a connection's acknowledgements in the order of its publishes, whatever the order in which they are stored, and
// bounds how many are unacknowledged.
type pendingAcks struct {
	mu        sync.Mutex
	changed   sync.Cond
	publishes []*unackedPublish // publishes that are not acknowledged, oldest first
	counted   int               // publishes that count against the receive maximum
	// unreleased are the QoS 2 publishes of this connection that count: a repetition
	// doesn't again, and it is the PUBREL that ends them.
	unreleased map[uint16]struct{}
	closed     bool
}

// unackedPublish is a publish that is not acknowledged yet.
type unackedPublish struct {
	conn *conn
	m    Message
	done bool
	ack  []byte

	refused bool
}

func (a *pendingAcks) init() { a.changed.L = &a.mu }

// reserve adds a publish. It is not ok if an MQTT 5 client exceeds the receive maximum that CONNACK said; publishes of QoS 2
// count until their PUBREL. Otherwise it waits while there are too many, after calling before, so that the client is not
// read meanwhile.
func (a *pendingAcks) reserve(s *unackedPublish, limit int, before func()) (ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, repeated := a.unreleased[s.m.PacketID]
	strict := s.m.Publisher.Version == 5 && !s.conn.bridge // mosquitto's bridges send all that waits, whatever CONNACK says
	counts := s.m.QoS > 0 && strict && !(repeated && s.m.QoS == 2)
	if counts && a.counted >= limit {
		return false
	}
	if len(a.publishes) >= 2*limit {
		before()
	}
	for len(a.publishes) >= 2*limit && !a.closed {
		a.changed.Wait()
	}
	if counts {
		a.counted++
		if s.m.QoS == 2 {
			if a.unreleased == nil {
				a.unreleased = make(map[uint16]struct{})
			}
			a.unreleased[s.m.PacketID] = struct{}{}
		}
	}
	a.publishes = append(a.publishes, s)
	return true
}

// empty reports whether every publish is acknowledged, so that the next one may be acknowledged at once.
func (a *pendingAcks) empty() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.publishes) == 0 && len(a.unreleased) == 0
}

// finish acknowledges the publish once all before it are.
func (s *unackedPublish) finish(err error) {
	c, p := s.conn, &s.conn.publisher
	// A repetition is answered instead, or nothing is: the connection was closed as the message could not be stored.
	answered := !errors.Is(err, session.ErrRepeated) && !(err != nil && p.storeFailed.Load())
	if err != nil && answered {
		c.b.admission.refused(s.m, err)
	}
	if answered {
		p.auditPublish(s.m, err)
	}
	a := &p.acks
	a.mu.Lock()
	defer a.mu.Unlock()
	if s.done {
		return
	}
	s.done, s.refused = true, err != nil && answered
	if s.m.QoS > 0 && answered {
		s.ack = p.encodeAck(s.m.QoS, s.m.PacketID, err)
	}
	for len(a.publishes) > 0 && a.publishes[0].done {
		first := a.publishes[0]
		a.publishes[0] = nil
		a.publishes = a.publishes[1:]
		if first.m.QoS > 0 {
			c.w.Control(first.ack, nil) // none, if a repetition has it
			first.freeSlot(a)
		}
		a.changed.Broadcast()
	}
}

// freeSlot ends counting an acknowledged publish against the receive maximum, unless its PUBREL does that.
func (s *unackedPublish) freeSlot(a *pendingAcks) {
	switch {
	case s.m.Publisher.Version < 5:
	case s.m.QoS == 1:
		a.counted--
	case s.refused:
		a.release(s.m.PacketID)
	}
}

// released ends counting a QoS 2 publish, after its PUBREL.
func (a *pendingAcks) released(id uint16) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.release(id)
}

func (a *pendingAcks) release(id uint16) {
	if _, ok := a.unreleased[id]; ok {
		delete(a.unreleased, id)
		a.counted--
	}
}

// waitAll waits until every publish is acknowledged, but no longer than most: the tree may take its time.
func (a *pendingAcks) waitAll(most time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.publishes) == 0 {
		return
	}
	end := time.Now().Add(most)
	wake := time.AfterFunc(most, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.changed.Broadcast()
	})
	defer wake.Stop()
	for len(a.publishes) > 0 && !a.closed && time.Now().Before(end) {
		a.changed.Wait()
	}
}

// close wakes a reader that waits, for good.
func (a *pendingAcks) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.changed.Broadcast()
}

// encodeAck encodes a PUBACK or PUBREC. In MQTT 3.1.1 it has no reason code.
func (p *publisher) encodeAck(qos byte, id uint16, err error) []byte {
	c := p.c
	ack := session.Ack{Type: 4, ID: id}
	if qos == 2 {
		ack.Type = 5
	}
	if err != nil {
		ack.Code = codeOf(err)
		if !c.noProblemInfo {
			ack.Reason = reasonOf(err)
		}
	}
	packet := ack.Append(nil, c.ident.Version)
	if c.maximumPacket > 0 && len(packet) > int(c.maximumPacket) {
		ack.Reason = ""
		packet = ack.Append(packet[:0], c.ident.Version)
	}
	return packet
}

// errResent is why a node's message is not stored although its commit succeeded: one that the node sent before it on
// the same connection was not. The node sends both again.
var errResent = resource.Errorf(resource.Unavailable, "", "a message that the node sent before it could not be stored")

// storedInOrder makes the outcome of storing a node's message follow those of the messages that the node sent before
// it on the same connection. Outcomes come in the order of the messages. After the first that is an error the
// connection is closed without an acknowledgement, and no later message counts as stored: the node sends all of them
// again, in order, on its next connection.
func (p *publisher) storedInOrder(err error) error {
	c := p.c
	switch {
	case p.storeFailed.Load():
		return errResent
	case err == nil:
		return nil
	}
	p.storeFailed.Store(true)
	c.b.sampledLog.Warn().Err(err).Str("client", c.ident.ClientID).
		Msg("a node is disconnected: its message can't be stored now, and it sends again what was not acknowledged")
	c.disconnect(codeImplementation, err)
	return err
}

// backlogBytes is the most that may wait for its outcome before publishers that would add to it are made to wait.
func backlogBytes() int { return int(limits.MemoryShare(1.0/16, 4<<20, 64<<20)) }

// auditPublish logs a publish that was refused, and one that writes: retained messages, commands, and values that somebody
// wants. What devices report and nodes send is no write of a user's, and too much for a log.
func (p *publisher) auditPublish(m Message, err error) {
	c := p.c
	if c.b.opts.Audit == nil || err == nil && !p.writes(m) {
		return
	}
	e := c.auditEntry(audit.Publish, m.Topic, err)
	if kind := kindOf(err); err != nil && kind != resource.Forbidden && kind != resource.Quota && kind != resource.BadTopic {
		e.Reason = "" // it may quote the value
	}
	c.b.opts.Audit.Add(e)
}

func (p *publisher) writes(m Message) bool {
	switch {
	case p.c.ident.Has(topics.RoleNode):
		return false
	case !topics.IsTree(m.Topic):
		return m.Retain
	}
	a, err := topics.Parse(m.Topic)
	if err != nil {
		return false
	}
	switch a.Kind {
	case topics.KindDesired, topics.KindDesiredAll, topics.KindCommand, topics.KindEnroll:
		return true
	}
	return len(m.Payload) == 0 && !p.c.ident.Has(topics.RoleMapper) // a user clears a reported value
}
