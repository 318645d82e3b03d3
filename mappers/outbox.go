package mappers

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/client"
)

// reassertInterval is the shortest time between two publishes of a topic's value because others have changed it.
const reassertInterval = time.Second

// maxInflight is how many publishes may wait for their acknowledgement.
const maxInflight = 256

// outbox publishes the latest value of each topic. A topic has one entry, however often its value changes while the broker
// is away or slow, and at most one publish in flight, so that values of a topic stay in order.
type outbox struct {
	publish func(client.Message, func(error)) // never called with mu held: it may answer at once
	log     zerolog.Logger

	mu       sync.Mutex
	entries  map[string]*outboxEntry
	queue    []*outboxEntry // dirty and not under way
	deferred []*outboxEntry // the same, but the broker can't take them now
	inflight int
	up       bool
	idle     chan struct{} // closed when everything is stored, then nil
}

type outboxEntry struct {
	m            client.Message
	dirty        bool // m has not been acknowledged
	inflight     bool
	removed      bool
	refused      bool // m was refused for good: it waits for another value, or for the device to exist
	retryRefused bool // the device has appeared since the publish in flight was sent: a refusal of it doesn't count

	reasserted time.Time // when it was last published again because another client had changed it
	deferNext  bool      // it is in flight, and is published again with the next retry
}

func newOutbox(publish func(client.Message, func(error)), log zerolog.Logger) *outbox {
	return &outbox{publish: publish, log: log, entries: map[string]*outboxEntry{}}
}

// set makes m the value of its topic.
func (o *outbox) set(m client.Message) {
	o.mu.Lock()
	s := o.entries[m.Topic]
	if s == nil {
		s = &outboxEntry{}
		o.entries[m.Topic] = s
	}
	s.m, s.refused = m, false
	o.enqueue(s)
	o.mu.Unlock()
	o.publishQueued()
}

// enqueue queues s unless it is queued or under way. mu is held.
func (o *outbox) enqueue(s *outboxEntry) {
	if !s.dirty && !s.inflight {
		o.queue = append(o.queue, s)
	}
	s.dirty = true
}

// remove forgets a topic: it is not published again.
func (o *outbox) remove(topic string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.entries[topic]; s != nil {
		s.removed = true
		delete(o.entries, topic)
	}
}

// connected publishes every value again, because the broker may have lost or changed some: the state of a mapper's devices
// becomes unknown when its connection breaks. The broker does not store a value that it has already.
func (o *outbox) connected() {
	o.mu.Lock()
	o.up = true
	for _, s := range o.entries {
		if !s.refused {
			o.enqueue(s)
		}
	}
	o.mu.Unlock()
	o.publishQueued()
}

// resendRefused publishes the refused values of these topics again, because their device exists now. A refusal that is still under
// way doesn't count.
func (o *outbox) resendRefused(topics []string) {
	o.mu.Lock()
	for _, topic := range topics {
		switch s := o.entries[topic]; {
		case s == nil:
		case s.refused:
			s.refused = false
			o.enqueue(s)
		case s.inflight:
			s.retryRefused = true
		}
	}
	o.mu.Unlock()
	o.publishQueued()
}

// reassert publishes the value of a topic again that another client has cleared or overwritten: at once, but at most once a second,
// in case two clients disagree.
func (o *outbox) reassert(m client.Message, now time.Time) {
	o.mu.Lock()
	s := o.entries[m.Topic]
	if s == nil || s.dirty || s.refused || string(s.m.Payload) == string(m.Payload) && s.m.Property("for") == m.Property("for") {
		o.mu.Unlock()
		return
	}
	o.log.Info().Str("topic", m.Topic).Msg("another client changed a value of this mapper; publishing it again")
	switch soon := now.Sub(s.reasserted) < reassertInterval; {
	case soon && s.inflight:
		s.dirty, s.deferNext = true, true
	case soon:
		s.dirty = true
		o.deferred = append(o.deferred, s)
	default:
		s.reasserted = now
		o.enqueue(s)
	}
	o.mu.Unlock()
	o.publishQueued()
}

func (o *outbox) disconnected() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.up = false
}

func (o *outbox) publishQueued() {
	for {
		o.mu.Lock()
		s := o.next()
		if s == nil {
			if o.idle != nil && o.inflight == 0 {
				close(o.idle)
				o.idle = nil
			}
			o.mu.Unlock()
			return
		}
		m := s.m
		o.mu.Unlock()
		o.publish(m, func(err error) { o.done(s, err) })
	}
}

// next takes a slot to publish. mu is held.
func (o *outbox) next() *outboxEntry {
	for o.up && o.inflight < maxInflight && len(o.queue) > 0 {
		s := o.queue[0]
		o.queue[0] = nil
		o.queue = o.queue[1:]
		if s.removed {
			continue
		}
		s.dirty, s.inflight, s.retryRefused = false, true, false
		o.inflight++
		return s
	}
	return nil
}

func (o *outbox) done(s *outboxEntry, err error) {
	o.mu.Lock()
	o.inflight--
	park := s.deferNext
	s.inflight, s.deferNext = false, false
	switch {
	case err == nil:
	case final(err) && s.retryRefused:
		s.dirty = true
	case final(err):
		o.log.Warn().Err(err).Msg("report refused; it is sent again when its value changes")
		s.refused = !s.dirty
	case errors.Is(err, client.ErrNotConnected), errors.Is(err, client.ErrConnectionLost):
		s.dirty, o.up = true, false // the next connection brings it
	default:
		o.log.Warn().Err(err).Msg("report not stored; it is sent again")
		s.dirty, park = true, true
	}
	switch {
	case !s.dirty || s.removed:
	case park:
		o.deferred = append(o.deferred, s)
	default:
		o.queue = append(o.queue, s)
	}
	o.mu.Unlock()
	o.publishQueued()
}

// final reports whether the broker would refuse the same message again.
func final(err error) bool {
	var refused *client.Refused
	return errors.As(err, &refused) && slices.Contains([]byte{0x87, 0x90, 0x95, 0x99}, refused.Code)
}

// retry queues the deferred entries again. It is called every second.
func (o *outbox) retry(connected bool) {
	o.mu.Lock()
	o.up = connected
	o.queue = append(o.queue, o.deferred...)
	o.deferred = nil
	o.mu.Unlock()
	o.publishQueued()
}

// drained returns a channel that is closed once everything is stored.
func (o *outbox) drained() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	ch := make(chan struct{})
	if len(o.queue) == 0 && o.inflight == 0 {
		close(ch)
		return ch
	}
	if o.idle == nil {
		o.idle = ch
	}
	return o.idle
}
