// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"encoding/json"
	"slices"
	"unicode/utf8"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// admission decides which messages of clients are accepted, and hands on those that are: to the tree, or to the dispatcher.
type admission struct {
	opts        *Options
	acl         *accessControl
	dispatcher  *messageDispatcher
	store       *recordStore   // nil: nothing outlives the process
	treeBacklog *quota.Backlog // bytes of large messages that the tree has not answered yet, by user
	metrics     *metrics
	log         zerolog.Logger // sampled
}

// accept accepts or refuses a client's message, and calls done once with the outcome. The changes along are stored with
// a message that is accepted.
func (a *admission) accept(m Message, batch *session.WriteBatch, along []journal.RecordChange, done func(error)) {
	if isBridgeNotice(m.Topic) {
		a.store.commitAny(along, done)
		return
	}
	if err := a.check(m); err != nil {
		done(err)
		return
	}
	if topics.IsTree(m.Topic) && !(topics.IsBridged(m.Topic) && a.mayClear(m)) {
		a.passToTree(m, along, done)
		return
	}
	a.dispatcher.send(sessionMessage(m, a.opts.storedTime()), sendOptions{batch: batch, along: along, link: m.linkConn}, done)
}

// passToTree hands a message to the tree. The changes along are stored in the same commit if the tree calls Pass, and
// otherwise after it: the tree has another store, and after a crash between the two a client's repetition reaches the tree
// a second time.
func (a *admission) passToTree(m Message, changes []journal.RecordChange, done func(error)) {
	if len(changes) == 0 {
		a.opts.Tree.Publish(m, done)
		return
	}
	along := &extraChanges{changes}
	m.extraChanges = along
	a.opts.Tree.Publish(m, func(err error) {
		if err != nil {
			done(err)
			return
		}
		a.store.commitAny(along.take(), done)
	})
}

// check returns why a client's message is refused: an invalid topic, a limit, or a missing right. It is called before the
// tree or the journal sees the message.
func (a *admission) check(m Message) error {
	if err := topics.CheckTopic(m.Topic); err != nil {
		return err
	}
	if tooDeep(m.Topic) {
		return topicError(resource.BadTopic, m.Topic, "more than %d levels", maxLevels)
	}
	if len(m.Props.User) > maxUserProperties && !m.Publisher.Has(topics.RoleNode) {
		return topicError(resource.Quota, m.Topic, "more than %d user properties", maxUserProperties)
	}
	if f := m.Props.PayloadFormat; f != nil && *f == 1 && !utf8.Valid(m.Payload) {
		return topicError(resource.Invalid, m.Topic, "the payload is said to be UTF-8, and is not")
	}
	if name := unreadableProperty(&m.Props); name != "" {
		return topicError(resource.Invalid, m.Topic, "control characters or non-characters of Unicode in the %s, at which some clients end their connection", name)
	}
	id := m.Publisher
	if err := a.acl.publish(id, m.Topic); err != nil && !a.mayClear(m) {
		return err
	}
	if topics.IsTree(m.Topic) && a.opts.Tree == nil {
		return topicError(resource.BadTopic, m.Topic, "this broker has no tree")
	}
	switch r := m.Props.ResponseTopic; {
	case r == "":
	case !a.acl.read(id, r):
		return forbiddenError(m.Topic, "the response topic %q is not one that the asker may read", r)
	case !a.acl.answered(id, r):
		return forbiddenError(m.Topic, "the response topic %q is not one that the asker may publish to (auth.topics, auth.users)", r)
	}
	return nil
}

// mayClear reports whether a message clears a retained message in place of its publisher: an operator of all nodes may clear
// a node's bridged messages, and on a node's own broker the state of mappers. Values of devices can't be cleared so.
func (a *admission) mayClear(m Message) bool {
	id := m.Publisher
	here := a.opts.Node != "" && id.Has(topics.RoleOperator) && id.GivenNode(a.opts.Node) // there is no other node
	if len(m.Payload) > 0 || !m.Retain || !id.AllNodes() && !here {
		return false
	}
	if topics.IsBridged(m.Topic) {
		return true
	}
	at, err := topics.Parse(m.Topic)
	return err == nil && at.Node == a.opts.Node && (at.Kind == topics.KindMapperState || at.Kind == topics.KindMapperProtocols || at.Kind == topics.KindMapperSettings)
}

// refused counts and logs a refusal, and publishes it: with MQTT 3.1.1 and at QoS 0 there is no other way to learn of it, many
// libraries show no reason string, and who sent a request waits for the answer on its response topic.
func (a *admission) refused(m Message, err error) {
	kind := kindOf(err)
	a.metrics.refused[kind].Add(1)
	id := m.Publisher
	withTopic(a.log.Info(), m.Topic, a.opts.Node).Str("client", id.ClientID).Str("user", id.User).
		Str("kind", string(kind)).Msg("publish refused")
	a.log.Debug().Err(err).Str("topic", m.Topic).Msg("publish refused: why") // a reason may quote the value
	text, failed := json.Marshal(refusedPublish{Topic: m.Topic, Reason: reasonOf(err), Kind: kind, Code: codeOf(err)})
	if failed != nil {
		return
	}
	a.dispatcher.publish(Message{Topic: topics.RefusedPrefix + topicID(id.ClientID), Payload: text, QoS: 1})
	if id.Version == 5 && a.awaitsAnswer(m) {
		a.dispatcher.publish(Message{Topic: m.Props.ResponseTopic, Payload: text, QoS: m.QoS, Props: Properties{
			Correlation: m.Props.Correlation, ContentType: "application/json",
			User: []UserProperty{{Key: topics.PropCode, Value: string(topics.CodeRefused)}, {Key: topics.PropError, Value: reasonOf(err)}},
		}})
	}
}

// awaitsAnswer reports whether a refused message was a request below v1/, whose sender waits for the answer on a response
// topic that it may publish to itself. Commands are answered by package calls.
func (a *admission) awaitsAnswer(m Message) bool {
	reply := m.Props.ResponseTopic
	if reply == "" || !topics.IsTree(m.Topic) || topics.IsTree(reply) || topics.CheckTopic(reply) != nil {
		return false
	}
	if at, err := topics.Parse(m.Topic); err == nil && at.Kind == topics.KindCommand {
		return false
	}
	return a.acl.read(m.Publisher, reply) && a.acl.publish(m.Publisher, reply) == nil
}

// counted counts a message for the tree until done is called.
func (a *admission) counted(m Message, done func(error)) func(error) {
	n := m.weight()
	if n < largeMessage {
		return done
	}
	a.treeBacklog.Add(m.User(), n)
	return func(err error) {
		a.treeBacklog.Add(m.User(), -n)
		done(err)
	}
}

// refusedPublish is the JSON that a client gets on its v1/refused topic, and the sender of a request on its response
// topic.
type refusedPublish struct {
	Topic  string             `json:"topic"`
	Reason string             `json:"reason"`
	Kind   resource.ErrorKind `json:"kind"`
	Code   byte               `json:"code"`
}

// unreadableProperty names a property with characters that make some clients end their connection; empty: there is none.
func unreadableProperty(p *Properties) string {
	switch {
	case !topics.IsReadable(p.ContentType):
		return "content type"
	case !topics.IsReadable(p.ResponseTopic):
		return "response topic"
	case slices.ContainsFunc(p.User, func(u UserProperty) bool { return !topics.IsReadable(u.Key) || !topics.IsReadable(u.Value) }):
		return "user properties"
	}
	return ""
}

// largeMessage is the size from which publishes into the tree are counted. Smaller ones are bounded by the number of unacknowledged
// publishes.
const largeMessage = 4 << 10
