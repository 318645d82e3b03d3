// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// partialLifetime is how long a message is kept that has not arrived whole, after its newest part.
const partialLifetime = time.Hour

// partialMessageCost is what is counted for one besides its content.
const partialMessageCost = 256

// partialMessages are the large messages of nodes that have not arrived whole: at most one of each node. They outlive connections, so that a node goes
// on after a cut with the part that is missing. Their bytes count as those of packets that have not arrived whole.
type partialMessages struct {
	most   int // size of a message
	quota  *quota.Quota
	now    func() time.Time
	mu     sync.Mutex
	byNode map[string]*partialMessage
	swept  time.Time
}

type partialMessage struct {
	link.IncomingParts
	user   string
	newest time.Time // when the newest part came
}

func newPartialMessages(most int, unfinished *quota.Quota, now func() time.Time) *partialMessages {
	return &partialMessages{most: most, quota: unfinished, now: now, byNode: make(map[string]*partialMessage)}
}

// carriesPart reports whether a message is a part of another one.
func carriesPart(m *Message) bool {
	return m.Publisher.Has(topics.RoleNode) && strings.HasSuffix(m.Topic, "/sync/parts")
}

// partsParams say how a node's core takes large messages.
func (c *conn) partsParams() session.PartsParams {
	if c.partsMemory == "" || !c.ident.Has(topics.RoleNode) {
		return session.PartsParams{}
	}
	return session.PartsParams{Topic: topics.Address{Node: c.ident.Node, Kind: topics.KindParts}.String(), Memory: c.partsMemory}
}

// take takes a part. With the last one m becomes the message that arrived in parts, and published is to be called with its outcome; before
// that published is nil, and a part without an error is kept.
func (p *partialMessages) take(m *Message) (published func(error), err error) {
	at, err := topics.Parse(m.Topic)
	if err != nil {
		return nil, err
	}
	part, err := link.DecodeMessagePart(m.Payload)
	switch {
	case err != nil:
		return nil, topicError(resource.Invalid, m.Topic, "%v", err)
	case part.Size > p.most:
		return nil, topicError(resource.TooLarge, m.Topic, "a message of %d bytes in parts, the limit is %d (limits.packet)", part.Size, p.most)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	is := p.byNode[at.Node]
	if part.Offset == 0 && (is == nil || is.ID != string(part.ID)) {
		if is, err = p.begin(at.Node, m.User(), &part); err != nil {
			return nil, topicError(resource.Unavailable, m.Topic, "%v", err)
		}
	}
	if is == nil {
		is = &partialMessage{}
	}
	fresh, err := is.NewContent(&part)
	switch {
	case err != nil:
		return nil, topicError(resource.Conflict, m.Topic, "%v: send the message from its beginning", err)
	case fresh == nil:
		return nil, nil // it has come before
	}
	if part.Last() {
		m.Topic, m.Payload = part.Topic, slices.Concat(is.Content, fresh)
		return func(err error) { p.published(at.Node, is, err) }, nil
	}
	if err := p.quota.Take(is.user, int64(len(fresh))); err != nil {
		return nil, topicError(resource.Unavailable, m.Topic, "%v", err)
	}
	is.Content, is.newest = append(is.Content, fresh...), p.now()
	return nil, nil
}

// begin begins a message, in the place of an earlier one of the node. p.mu is held.
func (p *partialMessages) begin(node, user string, part *link.MessagePart) (*partialMessage, error) {
	now := p.now()
	if now.Sub(p.swept) > time.Minute {
		p.swept = now
		for node, old := range p.byNode {
			if now.Sub(old.newest) > partialLifetime {
				p.drop(node)
			}
		}
	}
	p.drop(node)
	if err := p.quota.Take(user, partialMessageCost); err != nil {
		return nil, err
	}
	is := &partialMessage{IncomingParts: link.NewIncomingParts(part), user: user, newest: now}
	p.byNode[node] = is
	return is, nil
}

// drop forgets a node's message. p.mu is held.
func (p *partialMessages) drop(node string) {
	if is := p.byNode[node]; is != nil {
		delete(p.byNode, node)
		p.release(is)
		p.quota.Add(is.user, -partialMessageCost)
	}
}

func (p *partialMessages) release(is *partialMessage) {
	p.quota.Add(is.user, -int64(len(is.Content)))
	is.Content = nil
}

// published notes the outcome of a message. While it can't be stored, its parts are kept: the node sends the last one again.
func (p *partialMessages) published(node string, is *partialMessage, err error) {
	if err != nil && resource.KindOf(err) == resource.Unavailable {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byNode[node] != is {
		return
	}
	if err != nil {
		p.drop(node)
		return
	}
	p.release(is)
	is.Whole = true
}
