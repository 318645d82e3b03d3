// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"context"
	"errors"
	"slices"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/jsonpath"
)

// maxEvents is how many events of a device wait to be told.
const maxEvents = 1000

// deviceEvent is an event of a device.
type deviceEvent struct{ event, value string }

// takeEvents takes the events in a message, which was not retained: each message is one, equal ones too. A part of the JSON that isn't there, is
// null or is empty is none: zigbee2mqtt ends each press of a button with an empty action. mu is held.
func (s *session) takeEvents(m *jsonpath.Message) {
	for _, f := range s.config.events {
		if m.Source != f.state.topic {
			continue
		}
		r, ok := f.decode(m)
		switch {
		case !ok || r.err != nil || r.value == "":
		case len(s.events) == maxEvents:
			s.driver.o.Broker.Log.Warn().Str("topic", m.Source).Str("event", f.name).Msg("more events than can be told: one is lost")
		default:
			s.events = append(s.events, deviceEvent{f.name, r.value})
		}
	}
}

// Events implements mappers.EventSource.
func (s *session) Events(ctx context.Context, emit func(event, value string)) error {
	for {
		s.driver.mu.Lock()
		events, changed := s.events, s.changed
		s.events = nil
		s.driver.mu.Unlock()
		for _, e := range events {
			emit(e.event, e.value)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// Command implements mappers.Commander: it publishes a command of the model. Nothing says whether the device has done it.
func (s *session) Command(ctx context.Context, name string, input []byte) ([]byte, error) {
	i := slices.IndexFunc(s.config.commands, func(f *mappedProperty) bool { return f.name == name })
	if i < 0 {
		return nil, mappers.Refuse(mappers.NotReachable, "the model has no mqtt visitor for the command %s", name)
	}
	if err := s.unavailableReason(); err != nil {
		return nil, err
	}
	f := s.config.commands[i]
	payload := []byte(f.payload)
	if f.typ != "" {
		var err error
		if payload, err = f.encode(string(input), lastReading{}); err != nil {
			return nil, mappers.Refuse(mappers.Invalid, "%s: %v", name, err)
		}
	}
	err := s.mqtt.Publish(ctx, client.Message{Topic: f.command, Payload: payload, QoS: f.qos, Retain: f.retain})
	if refused := new(client.Refused); errors.As(err, &refused) {
		return nil, mappers.Refuse(mappers.Rejected, "%v", err)
	}
	return nil, err
}
