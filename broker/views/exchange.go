// SPDX-License-Identifier: Apache-2.0

package views

import (
	"slices"
	"time"

	"github.com/edgebus/edgebus/topics"
)

// Exchange is one connection of a view: what it is told, and what is left to do of its actions.
type Exchange struct {
	Connection Connection
	view       View
	retained   *RetainedMessages
	again      bool // all is told anew, and sent whether the peer has it or not
}

// NewExchange begins the connection n of a view.
func NewExchange(v View, n uint64) *Exchange {
	c := v.Connect(n)
	return &Exchange{Connection: c, view: v, retained: NewRetainedMessages(c.Owns)}
}

// Retained is how many retained messages of the view the peer has.
func (x *Exchange) Retained() int { return x.retained.Len() }

// Tell tells the view, and returns what is to be done: what it publishes, and what clears what it doesn't publish any more, before all else.
func (x *Exchange) Tell(at time.Time, e Event) (do []Action) {
	subject, whole, settled := "", false, false
	switch e := e.(type) {
	case *DeviceChanged:
		subject, whole = e.Device.Node+"/"+e.Device.Name(), e.Whole || e.Gone
	case *Happened:
		subject = e.Device.Node + "/" + e.Device.Name()
	case *NodeChanged:
		subject, whole = e.Node.Name, true
	case *Settled:
		settled = true
	case *Received:
		if e.Message.Retain && x.retained.Find(e.Message) {
			return []Action{&Publish{Message{Topic: e.Message.Topic, QoS: 1, Retain: true}}}
		}
		if !x.Listens(e.Message.Topic) {
			return nil
		}
	}
	var messages []Message
	for _, a := range x.view.Next(at, e) {
		switch a := a.(type) {
		case *Publish:
			messages = append(messages, a.Message)
		case *Repeat:
			x.again = true
			do = append(do, a)
		default:
			do = append(do, a)
		}
	}
	messages = x.retained.Say(subject, whole, x.again, messages)
	if settled {
		messages = append(messages, x.retained.Settle()...)
		x.again = false
	}
	send := make([]Action, 0, len(messages)+len(do))
	for _, m := range messages {
		send = append(send, &Publish{m})
	}
	return append(send, do...)
}

// Listens reports whether the view listens to a topic.
func (x *Exchange) Listens(topic string) bool {
	return slices.ContainsFunc(x.Connection.Filters, func(f string) bool { return topics.Match(f, topic) })
}
