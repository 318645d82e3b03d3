// SPDX-License-Identifier: Apache-2.0

package client

import (
	"sync"

	"github.com/eclipse/paho.golang/packets"
)

type eventKind uint8

const (
	eventConnected eventKind = iota
	eventMessage
	eventDisconnected
	eventFailed
)

type event struct {
	kind    eventKind
	conn    *connection
	present bool
	message Message
	id      uint16
	receipt *incomingQoS2 // of QoS 2
	err     error
}

// maxWaiting bounds the QoS 0 messages that wait for OnMessage, which have no more bytes than those of QoS 1 and 2 could: ReceiveMaximum bounds these.
const maxWaiting = 4096

// eventQueue is the queue between the reader and the goroutine that calls the callbacks. The reader must not wait for a
// callback: one that publishes waits for an acknowledgement, which the reader has to read.
type eventQueue struct {
	count *Counters

	mu     sync.Mutex
	more   *sync.Cond
	queue  []event
	qos0   int
	bytes  int // of them
	owed   int // bytes of those of QoS 1 and 2
	most   int // bytes
	closed bool
}

func newEventQueue(count *Counters, mostBytes int) *eventQueue {
	e := &eventQueue{count: count, most: mostBytes}
	e.more = sync.NewCond(&e.mu)
	return e
}

// push reports false if it has dropped a QoS 0 message for want of room.
func (e *eventQueue) push(ev event) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ev.kind == eventMessage && ev.message.QoS == 0 {
		size := sizeOf(ev.message)
		if e.qos0 >= maxWaiting || e.bytes+size > e.most {
			e.count.Dropped.Add(1)
			return false
		}
		e.qos0++
		e.bytes += size
	} else if ev.kind == eventMessage {
		e.owed += sizeOf(ev.message)
	}
	e.queue = append(e.queue, ev)
	e.count.Waiting.Add(1)
	e.more.Signal()
	return true
}

func sizeOf(m Message) int { return len(m.Topic) + len(m.Payload) }

// holds reports whether a message of QoS 1 or 2 has room among those that wait.
func (e *eventQueue) holds(m Message) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.owed+sizeOf(m) <= e.most
}

func (e *eventQueue) pop() (event, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.queue) == 0 && !e.closed {
		e.more.Wait()
	}
	if len(e.queue) == 0 {
		return event{}, false
	}
	ev := e.queue[0]
	e.queue[0] = event{}
	e.queue = e.queue[1:]
	e.count.Waiting.Add(-1)
	if ev.kind == eventMessage && ev.message.QoS == 0 {
		e.qos0--
		e.bytes -= sizeOf(ev.message)
	} else if ev.kind == eventMessage {
		e.owed -= sizeOf(ev.message)
	}
	return ev, true
}

func (e *eventQueue) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.more.Signal()
}

// dispatch calls the callbacks, one after the other. Messages of a connection that has ended are dropped; see event.due.
func (c *Client) dispatch() {
	for {
		ev, ok := c.events.pop()
		if !ok {
			return
		}
		switch ev.kind {
		case eventConnected:
			c.onConnect(ev)
		case eventMessage:
			if ev.due() {
				c.opts.OnMessage(ev.message)
				ev.acknowledge()
			}
		case eventDisconnected:
			if c.opts.OnDisconnect != nil {
				c.opts.OnDisconnect(ev.conn.err)
			}
		case eventFailed:
			if c.opts.OnConnectError != nil {
				c.opts.OnConnectError(ev.err)
			}
		}
	}
}

func (c *Client) onConnect(ev event) {
	ctx := ev.conn.ctx
	if len(c.opts.Subscriptions) > 0 {
		if err := c.Subscribe(ctx, c.opts.Subscriptions...); err != nil {
			ev.conn.fail(err)
			return
		}
	}
	if c.opts.OnConnect == nil {
		return
	}
	if err := c.opts.OnConnect(ctx, ev.present); err != nil {
		ev.conn.fail(err)
	}
}

// incomingQoS2 is an incoming QoS 2 message, from its arrival to its PUBREL. One that comes again meanwhile, over another connection, is the same.
type incomingQoS2 struct {
	conn    *connection // over which it came last
	handled bool
}

// due reports whether a message is to be handled: it is not acknowledged, so after a cut a session delivers it again, and without one the
// next subscription gets what is retained by then. One of QoS 2 is not queued twice, and outlives its connection if the session does.
func (ev event) due() bool {
	if ev.conn.alive() {
		return true
	}
	c := ev.conn.client
	c.mu.Lock()
	defer c.mu.Unlock()
	return ev.receipt != nil && c.incoming[ev.id] == ev.receipt
}

// acknowledge sends PUBACK or PUBREC for a message that was handled.
func (ev event) acknowledge() {
	l := ev.conn
	l.client.mu.Lock()
	defer l.client.mu.Unlock()
	switch ev.message.QoS {
	case 1:
		l.unacked--
		l.send(&packets.Puback{PacketID: ev.id, Properties: &packets.Properties{}})
	case 2:
		ev.receipt.handled = true
		l = ev.receipt.conn
		l.unacked--
		l.send(&packets.Pubrec{PacketID: ev.id, Properties: &packets.Properties{}})
	}
}
