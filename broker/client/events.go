package client

import "sync"

type eventKind uint8

const (
	connected eventKind = iota
	message
	disconnected
	failed
)

type event struct {
	kind    eventKind
	link    *link
	present bool
	message Message
	id      uint16
	err     error
}

// maxWaiting bounds the QoS 0 messages that wait for OnMessage. Those of QoS 1 and 2 are bounded by ReceiveMaximum.
const maxWaiting = 4096

// events is the queue between the reader and the one goroutine of the callbacks. The reader must never wait for a
// callback: a callback that publishes waits for an acknowledgement that only the reader can bring.
type events struct {
	count *Counters

	mu     sync.Mutex
	more   *sync.Cond
	queue  []event
	qos0   int
	closed bool
}

func newEvents(count *Counters) *events {
	e := &events{count: count}
	e.more = sync.NewCond(&e.mu)
	return e
}

// push reports false when a QoS 0 message found no room.
func (e *events) push(ev event) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ev.kind == message && ev.message.QoS == 0 {
		if e.qos0 >= maxWaiting {
			e.count.Dropped.Add(1)
			return false
		}
		e.qos0++
	}
	e.queue = append(e.queue, ev)
	e.count.Waiting.Add(1)
	e.more.Signal()
	return true
}

func (e *events) pop() (event, bool) {
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
	if ev.kind == message && ev.message.QoS == 0 {
		e.qos0--
	}
	return ev, true
}

func (e *events) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.more.Signal()
}

// dispatch calls the callbacks, one after the other. Messages of a connection that has ended are dropped: they were
// not acknowledged, so a session brings them again, and without one the next subscription tells what holds now.
func (c *Client) dispatch() {
	for {
		ev, ok := c.events.pop()
		if !ok {
			return
		}
		switch ev.kind {
		case connected:
			c.onConnect(ev)
		case message:
			if ev.link.alive() {
				c.o.OnMessage(ev.message)
				ev.link.acknowledge(ev.message.QoS, ev.id)
			}
		case disconnected:
			if c.o.OnDisconnect != nil {
				c.o.OnDisconnect(ev.link.err)
			}
		case failed:
			if c.o.OnConnectError != nil {
				c.o.OnConnectError(ev.err)
			}
		}
	}
}

func (c *Client) onConnect(ev event) {
	ctx := ev.link.ctx
	if len(c.o.Subscriptions) > 0 {
		if err := c.Subscribe(ctx, c.o.Subscriptions...); err != nil {
			ev.link.fail(err)
			return
		}
	}
	if c.o.OnConnect == nil {
		return
	}
	if err := c.o.OnConnect(ctx, ev.present); err != nil {
		ev.link.fail(err)
	}
}
