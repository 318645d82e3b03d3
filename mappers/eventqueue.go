// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"errors"
	"slices"
	"sync"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/client"
)

// eventQueue publishes events in their order, each until the broker has it: other than the values of the outbox, a later one doesn't stand for
// it. What doesn't fit while the broker is away, or can't store anything, is dropped, the oldest first, and told.
type eventQueue struct {
	publish func(client.Message, func(error)) // never called with mu held: it may answer at once
	log     zerolog.Logger

	mu       sync.Mutex
	waiting  []*queuedEvent // in order, those under way too
	bytes    int
	inflight int
	up       bool
	refused  bool // the last outcome was that the broker can't store anything
}

type queuedEvent struct {
	m        client.Message
	inflight bool
	dropped  func() // tells users that it was; called without mu
}

// The bounds of what waits, and of what is under way at a time.
const (
	maxEvents         = 1000
	maxEventBytes     = 1 << 20
	maxEventsInflight = 64
)

func newEventQueue(publish func(client.Message, func(error)), log zerolog.Logger) *eventQueue {
	return &eventQueue{publish: publish, log: log, up: true}
}

// add publishes an event as soon as the broker takes it. dropped is called if it never can be.
func (q *eventQueue) add(m client.Message, dropped func()) {
	q.mu.Lock()
	q.waiting = append(q.waiting, &queuedEvent{m: m, dropped: dropped})
	q.bytes += len(m.Payload)
	var gone []*queuedEvent
	for len(q.waiting) > maxEvents || q.bytes > maxEventBytes {
		i := slices.IndexFunc(q.waiting, func(e *queuedEvent) bool { return !e.inflight })
		if i < 0 {
			break
		}
		gone = append(gone, q.waiting[i])
		q.remove(q.waiting[i])
	}
	q.mu.Unlock()
	for _, e := range gone {
		e.dropped()
	}
	q.pump()
}

// remove takes an event out. mu is held.
func (q *eventQueue) remove(e *queuedEvent) {
	if i := slices.Index(q.waiting, e); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
		q.bytes -= len(e.m.Payload)
	}
}

// connected says whether the broker can be reached. It may be said again and again.
func (q *eventQueue) connected(up bool) {
	q.mu.Lock()
	q.up = up
	q.mu.Unlock()
	q.pump()
}

// pump publishes what waits, in order.
func (q *eventQueue) pump() {
	for {
		q.mu.Lock()
		i := slices.IndexFunc(q.waiting, func(e *queuedEvent) bool { return !e.inflight })
		if !q.up || i < 0 || q.inflight >= maxEventsInflight {
			q.mu.Unlock()
			return
		}
		e := q.waiting[i]
		e.inflight = true
		q.inflight++
		q.mu.Unlock()
		q.publish(e.m, func(err error) { q.done(e, err) })
	}
}

// done takes the outcome of a publish. After a connection was lost the broker may have the event, and gets it again, with the same time.
func (q *eventQueue) done(e *queuedEvent, err error) {
	q.mu.Lock()
	e.inflight = false
	q.inflight--
	full := isStoreOutage(err)
	again := full || errors.Is(err, client.ErrNotConnected) || errors.Is(err, client.ErrConnectionLost) || errors.Is(err, client.ErrBusy)
	if again {
		q.up = false // until connected says otherwise, so that those behind it don't overtake it
	} else {
		q.remove(e)
	}
	news := full && !q.refused
	q.refused = full
	q.mu.Unlock()
	if news {
		q.log.Warn().Err(err).Str("topic", e.m.Topic).Msg("the broker can't store an event now: it is published again until it can")
	}
	if err != nil && !again {
		q.log.Warn().Err(err).Str("topic", e.m.Topic).Msg("the broker doesn't take an event")
	}
	if !again {
		q.pump()
	}
}

// isStoreOutage reports whether the broker refuses a message because it can't store any now, as on a full disk.
func isStoreOutage(err error) bool {
	var refused *client.Refused
	return errors.As(err, &refused) && refused.Code == 0x83
}

// lost is how many events are still to be published when the mapper ends.
func (q *eventQueue) lost() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}
