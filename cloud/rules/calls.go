// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	maxAsked     = 256 // requests to all nodes' services at one time
	maxAskedNode = 16  // and to those of one node, which takes no more
)

// pendingAnswers are the requests that nodes have not answered yet.
type pendingAnswers struct {
	mu   sync.Mutex
	byID map[string]*pendingAnswer
}

type pendingAnswer struct {
	node   string
	client string // of the node: the one that was asked
	done   chan nodeAnswer
}

type nodeAnswer struct {
	resource.RuleAnswer
	body []byte
	err  error
}

// add makes a pending answer; nil: too many are under way, of those that are limited.
func (p *pendingAnswers) add(id string, a *pendingAnswer, limited bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	ofNode := 0
	for _, other := range p.byID {
		if other.node == a.node {
			ofNode++
		}
	}
	if limited && (len(p.byID) >= maxAsked || ofNode >= maxAskedNode) {
		return false
	}
	p.byID[id] = a
	return true
}

func (p *pendingAnswers) remove(id string) *pendingAnswer {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.byID[id]
	delete(p.byID, id)
	return a
}

// left ends the requests to a client that has gone.
func (p *pendingAnswers) left(client string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, a := range p.byID {
		if a.client == client {
			delete(p.byID, id)
			a.done <- nodeAnswer{err: errLost}
		}
	}
}

var (
	errAway = errors.New("the node is not connected, or its edgecore is older than Rules")
	errLost = errors.New("the connection to the node was lost: it may or may not have been done")
	errBusy = errors.New("too many requests are under way")
	errLong = fmt.Errorf("the path, the query and the headers are more than a Rule carries: at most %d bytes, written as JSON", resource.MaxRuleText)
)

// textOf is a request as it is sent to a node.
func textOf(r resource.RuleRequest) (string, error) {
	text, err := json.Marshal(r)
	if err == nil && len(text) > resource.MaxRuleText {
		err = errLong
	}
	return string(text), err
}

// requestTopic is where a node takes requests.
func requestTopic(node string) string {
	return topics.Address{Node: node, Kind: topics.KindRuleRequest}.String()
}

// coreOf is the client identifier of a node's core, if it takes requests now.
func (e *Engine) coreOf(node string) string {
	for _, s := range e.o.Subscribers(requestTopic(node)) {
		if s.Identity.Has(topics.RoleNode) && s.Identity.Node == node {
			return s.Identity.ClientID
		}
	}
	return ""
}

// ask has a node do something, and waits for its answer until ctx ends.
func (e *Engine) ask(ctx context.Context, node string, r resource.RuleRequest, body []byte) (nodeAnswer, error) {
	request, err := textOf(r)
	if err != nil {
		return nodeAnswer{}, err
	}
	a := &pendingAnswer{node: node, client: e.coreOf(node), done: make(chan nodeAnswer, 1)}
	if a.client == "" {
		return nodeAnswer{}, errAway
	}
	id := strings.ToLower(rand.Text())
	if !e.asked.add(id, a, r.Topic == "") {
		return nodeAnswer{}, errBusy
	}
	defer e.asked.remove(id)
	m := broker.Message{Topic: requestTopic(node), Payload: body, QoS: 1, Props: broker.Properties{
		ResponseTopic: topics.Address{Node: node, Kind: topics.KindRuleAnswer, Device: id}.String(),
		User:          []broker.UserProperty{{Key: resource.PropRequest, Value: request}},
	}}
	if until, ok := ctx.Deadline(); ok {
		m.Props.Expiry = uint32(max(1, (time.Until(until)+time.Second-1)/time.Second))
	}
	e.o.Publish(m)
	if e.coreOf(node) != a.client { // Disconnected may not have seen it
		e.asked.left(a.client)
	}
	select {
	case answer := <-a.done:
		return answer, answer.err
	case <-ctx.Done():
		return nodeAnswer{}, ctx.Err()
	}
}

// Publish implements broker.Tree: it takes answers.
func (e *Engine) Publish(m broker.Message, done func(error)) {
	if !strings.Contains(m.Topic, "/rules/answers/") {
		e.Tree.Publish(m, done)
		return
	}
	at, err := topics.Parse(m.Topic)
	if err != nil || at.Kind != topics.KindRuleAnswer {
		e.Tree.Publish(m, done)
		return
	}
	done(e.answer(at, m))
}

func (e *Engine) answer(at topics.Address, m broker.Message) error {
	e.asked.mu.Lock()
	a := e.asked.byID[at.Device]
	if a == nil || a.node != at.Node {
		e.asked.mu.Unlock()
		return resource.Errorf(resource.NotFound, "", "nobody waits for this answer: its time is over")
	}
	delete(e.asked.byID, at.Device)
	e.asked.mu.Unlock()
	answer := nodeAnswer{body: slices.Clone(m.Payload)}
	i := slices.IndexFunc(m.Props.User, func(p broker.UserProperty) bool { return p.Key == resource.PropAnswer })
	if i < 0 {
		answer.err = errors.New("the node's answer does not say how it went")
	} else if err := json.Unmarshal([]byte(m.Props.User[i].Value), &answer.RuleAnswer); err != nil {
		answer.err = fmt.Errorf("the node's answer can't be read: %w", err)
	}
	a.done <- answer
	return nil
}

// Subscribed implements broker.Presence: a node that takes requests gets what waits for it.
func (e *Engine) Subscribed(id *broker.Identity, filter string) {
	if id.Has(topics.RoleNode) && filter == requestTopic(id.Node) {
		e.messages.wake(id.Node)
	}
	e.Presence.Subscribed(id, filter)
}

// Disconnected implements broker.Presence.
func (e *Engine) Disconnected(id *broker.Identity, cause error) {
	if id.Has(topics.RoleNode) {
		e.asked.left(id.ClientID)
	}
	e.Presence.Disconnected(id, cause)
}
