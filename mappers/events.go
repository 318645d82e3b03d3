// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// startEvents runs the session's Events, when it has them, until the session is closed. Events wait in a queue of
// their own for the broker: the outbox has the latest of each topic only.
func (w *worker) startEvents(ctx context.Context, d *device) {
	s, ok := d.session.Session.(EventSource)
	if !ok || len(d.session.device.Events) == 0 {
		return
	}
	device := d.session.device
	emit := func(event, value string) { w.m.publishEvent(d, device, event, value) }
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	d.stopEvents = func() { cancel(); <-done }
	go func() {
		defer close(done)
		err := recoverPanic(func() error { return s.Events(ctx, emit) })
		if err == nil && ctx.Err() == nil {
			err = errors.New("the driver stopped listening for events")
		}
		if err != nil && ctx.Err() == nil {
			w.m.log.Warn().Err(err).Str("device", d.key).Msg("no events any more, until the device is opened again")
		}
	}()
}

// publishEvent publishes an event that the device's model has. One that says anything else than the model allows is no event.
func (m *mapper) publishEvent(d *device, device Device, event, value string) {
	p, ok := device.Event(event)
	if !ok {
		return
	}
	r := p.translate(Reading{Value: value})
	if r.Err == nil {
		if refused := p.Check(r.Value); refused != nil {
			r.Err = refused
		}
	}
	if r.Err != nil {
		m.log.Warn().Err(r.Err).Str("device", d.key).Str("event", event).Msg("an event that the model doesn't allow is not published")
		return
	}
	now := m.o.Now()
	m.events.add(client.Message{
		Topic: m.topic(d, topics.KindEvents, event), Payload: []byte(r.Value), QoS: 1,
		User: []client.UserProperty{{Key: "ts", Value: resource.FormatTime(now)}},
	}, func() { m.tellDropped(d, event, now) })
}

// tellDropped tells users of a device that an event was not published, because too many waited for the broker.
func (m *mapper) tellDropped(d *device, event string, at time.Time) {
	m.mu.Lock()
	d.eventsDropped++
	n := d.eventsDropped
	m.mu.Unlock()
	m.log.Warn().Str("device", d.key).Str("event", event).Time("at", at).Int("dropped", n).Msg("an event is dropped: too many wait for the broker")
	m.tell(d, "Events", strconv.Itoa(n)+" events were dropped while the node's broker was away, the last of "+resource.FormatTime(at))
}
