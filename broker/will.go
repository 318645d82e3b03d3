// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"sync"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/edgebus/edgebus/broker/journal"
)

// will is the message to be published when a client's connection is lost.
type will struct {
	message     Message
	delay       time.Duration
	keepAlive   time.Duration // of its connection; 0: none
	packetBytes int           // bytes of the CONNECT that it came in, and keeps in memory
	record      uint64        // its own record, if its session is not durable; 0: none
}

// willOf is the will in a CONNECT; nil: none.
func willOf(pk *packets.Packet) *will {
	p := &pk.Connect
	if !p.WillFlag {
		return nil
	}
	return &will{
		message: Message{
			Topic: p.WillTopic, Payload: p.WillPayload, QoS: p.WillQos, Retain: p.WillRetain,
			Props: propertiesOf(&p.WillProperties),
		},
		delay:       time.Duration(p.WillProperties.WillDelayInterval) * time.Second,
		keepAlive:   time.Duration(pk.Connect.Keepalive) * time.Second,
		packetBytes: pk.FixedHeader.Remaining,
	}
}

// weight is about what the will costs in memory.
func (w *will) weight() int { return w.message.weight() + w.packetBytes }

// connWill is the will of a connection, until it is published or dropped.
type connWill struct {
	mu      sync.Mutex
	will    *will
	dropped bool // by the client's DISCONNECT
}

// take returns the will and removes it.
func (c *connWill) take() *will {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.will
	c.will = nil
	return w
}

// peek returns the will without removing it.
func (c *connWill) peek() *will {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.will
}

func (c *connWill) set(w *will) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.will = w
}

// willStore stores, drops and publishes the wills of all clients.
type willStore struct {
	store     *recordStore // nil: nothing outlives the process
	admission *admission
	lost      []*will // of sessions that ended with the previous process; to be published by Serve

	mu   sync.Mutex
	held map[string]*heldWill // of them, those whose clients may come back, by client identifier
}

// heldWill is the will of a connection that a failover cut, or the end of the broker that carried it.
type heldWill struct {
	will  *will
	timer *time.Timer
}

// returnTime is how long the client of a connection without keep-alive has to come back after a failover.
const returnTime = time.Minute

// grace is how long a connection's client has to come back after a failover, before the will is published: for so long it may not have noticed.
func (w *will) grace() time.Duration {
	if w.keepAlive == 0 {
		return returnTime
	}
	return w.keepAlive * 3 / 2
}

// hold publishes a will when its client hasn't come back in time.
func (ws *willStore) hold(w *will, publish func()) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	id := w.message.Publisher.ClientID
	h := &heldWill{will: w}
	h.timer = time.AfterFunc(w.grace(), func() {
		if ws.release(id, h) {
			publish()
		}
	})
	if ws.held == nil {
		ws.held = make(map[string]*heldWill)
	}
	if old := ws.held[id]; old != nil { // of an earlier connection, which this one replaced
		old.timer.Stop()
		ws.drop(old.will)
	}
	ws.held[id] = h
}

func (ws *willStore) release(id string, h *heldWill) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.held[id] != h {
		return false
	}
	delete(ws.held, id)
	return true
}

// returned drops the will of a client that has come back.
func (ws *willStore) returned(id *Identity) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if h := ws.held[id.ClientID]; h != nil && h.will.message.Publisher.sameUser(id) {
		h.timer.Stop()
		delete(ws.held, id.ClientID)
		ws.drop(h.will)
	}
}

// close leaves what is held to whoever opens the journal next.
func (ws *willStore) close() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, h := range ws.held {
		h.timer.Stop()
	}
	ws.held = nil
}

// save stores the will of a session that is not durable, so that it is published after a crash. Nothing waits for
// that: clients can connect while the disk is full.
func (ws *willStore) save(w *will) {
	if w == nil || ws.store == nil {
		return
	}
	w.record = ws.store.ID()
	ws.store.Commit([]journal.RecordChange{w.change()}, func(error) {})
}

// drop deletes a will that will not be published.
func (ws *willStore) drop(w *will) {
	if w != nil && w.record > 0 {
		ws.store.Forget(w.record)
	}
}

// publish publishes a will as its client's message, with the client's rights. The changes along are stored with it.
func (ws *willStore) publish(w *will, along ...journal.RecordChange) {
	if w.record > 0 {
		along = append(along, journal.RecordChange{ID: w.record})
	}
	ws.admission.accept(w.message, nil, along, func(err error) {
		if err != nil {
			ws.admission.refused(w.message, err)
			if len(along) > 0 { // it is not tried again
				ws.store.journal.Commit(along, nil)
			}
		}
	})
}

// awaitDrop waits until it is on disk that a client has left without its will: who sees its connection closed knows that
// the will isn't published, even if the broker is killed now.
func (ws *willStore) awaitDrop(c *conn) {
	if c.will.dropped && ws.store != nil {
		_ = ws.store.commitNow(nil) // what can't be stored now is tried again
	}
}

// publishOrStore publishes a will and stores the changes along; without a will it stores them.
func (ws *willStore) publishOrStore(w *will, along []journal.RecordChange) {
	if w != nil {
		ws.publish(w, along...)
	} else if len(along) > 0 {
		ws.store.Commit(along, nil)
	}
}
