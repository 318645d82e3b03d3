// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// reassertInterval is the shortest time between two publishes of a topic's value because others have changed it.
const reassertInterval = time.Second

// refusedRetry is the wait before a refused value is published again: the clock that was wrong, the model or the rights may have been corrected
// meanwhile.
var refusedRetry = backoff.Backoff{Min: time.Second, Max: 30 * time.Second}

// maxInflight is how many publishes may wait for their acknowledgement.
const maxInflight = 256

// outbox publishes the latest value of each topic. A topic has one entry, however often its value changes while the broker
// is away or slow, and at most one publish in flight, so that values of a topic stay in order.
type outbox struct {
	publish func(client.Message, func(error)) // never called with mu held: it may answer at once
	// tooLarge, if it is set, is told of a value that no broker will take, which is forgotten.
	tooLarge func(m client.Message, err error)
	log      zerolog.Logger
	now      func() time.Time

	mu       sync.Mutex
	entries  map[string]*outboxEntry
	queue    []*outboxEntry        // dirty and not under way
	deferred []*outboxEntry        // the same, but the broker can't take them now
	refused  map[*outboxEntry]bool // those whose value was refused
	inflight int
	up       bool
	idle     chan struct{} // closed when everything is stored, then nil
}

type outboxEntry struct {
	m            client.Message
	dirty        bool // m has not been acknowledged
	inflight     bool
	removed      bool
	refused      bool // m was refused: it waits for the time of retry, another value, another connection, or the device to exist
	retryRefused bool // the device has appeared since the publish in flight was sent: a refusal of it doesn't count

	retry backoff.Retry // of publishing m, if it is refused; begun anew when a value of the topic is taken

	reasserted time.Time // when it was last published again because another client had changed it
	deferNext  bool      // it is in flight, and is published again with the next retry
}

func newOutbox(publish func(client.Message, func(error)), log zerolog.Logger) *outbox {
	return &outbox{publish: publish, log: log, now: time.Now, entries: map[string]*outboxEntry{}, refused: map[*outboxEntry]bool{}}
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
		s.refused = false
		o.enqueue(s)
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
		if s.retry.Failures() > 0 {
			s.m.User = withTimestamp(s.m.User, o.now())
		}
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
		s.retry.Succeeded()
	case refusedValue(err) && s.retryRefused:
		s.dirty = true
	case isTooLarge(err):
		if !s.dirty && !s.removed {
			s.removed = true
			delete(o.entries, s.m.Topic)
			o.log.Warn().Err(err).Str("topic", s.m.Topic).Msg("report refused; it is not sent again")
			if o.tooLarge != nil {
				defer o.tooLarge(s.m, err)
			}
		}
	case refusedValue(err):
		o.refuse(s, err)
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

// refuse notes that the broker refused the value of s. mu is held.
func (o *outbox) refuse(s *outboxEntry, err error) {
	level := zerolog.DebugLevel
	if s.retry.Failures() == 0 {
		level = zerolog.WarnLevel
	}
	o.log.WithLevel(level).Err(err).Str("topic", s.m.Topic).Msg("report refused; it is sent again from time to time, and when its value changes")
	s.retry.Failed(refusedRetry, o.now())
	if s.refused = !s.dirty; s.refused {
		o.refused[s] = true
	}
}

// isTooLarge reports whether the broker refused a message for its size.
func isTooLarge(err error) bool {
	var refused *client.Refused
	return errors.As(err, &refused) && refused.Code == 0x95
}

// refusedValue reports whether the broker would probably refuse the same message again now.
func refusedValue(err error) bool {
	var refused *client.Refused
	return errors.As(err, &refused) && slices.Contains([]byte{0x87, 0x90, 0x97, 0x99}, refused.Code)
}

// withTimestamp are the user properties of a value that is still the device's, with the time of now: the clock by which it was stamped may
// have been wrong, and the value was refused for that.
func withTimestamp(user []client.UserProperty, now time.Time) []client.UserProperty {
	user = slices.Clone(user)
	for i := range user {
		if user[i].Key == "ts" {
			user[i].Value = resource.FormatTime(now)
		}
	}
	return user
}

// retry queues the deferred entries again, and those refused ones that are due. It is called every second.
func (o *outbox) retry(connected bool) {
	o.mu.Lock()
	o.up = connected
	o.queue = append(o.queue, o.deferred...)
	o.deferred = nil
	for s := range o.refused {
		switch {
		case s.removed, !s.refused:
			delete(o.refused, s)
		case !o.now().Before(s.retry.Due()):
			delete(o.refused, s)
			s.refused = false
			o.enqueue(s)
		}
	}
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
