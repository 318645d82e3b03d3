// SPDX-License-Identifier: Apache-2.0

package virtual

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/edgebus/edgebus/mappers"
)

// maxCaused is how many events that commands have caused wait to be told.
const maxCaused = 100

// simulatedEvent is an event of a simulated device.
type simulatedEvent struct {
	name   string
	values []string
	every  time.Duration // 0: it doesn't happen by itself
	by     string        // the command that causes it; empty: none
	told   int           // how often it has happened by itself
}

func newEvent(p mappers.Property, dev mappers.Device) (*simulatedEvent, error) {
	at := "visitors[" + p.Name + "].config."
	e := &simulatedEvent{name: p.Name, values: p.Enum, by: p.Config["command"]}
	for _, key := range slices.Sorted(maps.Keys(p.Config)) {
		if settingName(protocolSettings.Event, key) == "" {
			return nil, mappers.BadConfig(at+key, "is no setting of an event of a virtual device: it has every and command")
		}
	}
	if text := p.Config["every"]; text != "" {
		var err error
		if e.every, err = time.ParseDuration(text); err != nil || e.every < 10*time.Millisecond {
			return nil, mappers.BadConfig(at+"every", "%q is no duration of 10ms or more, such as 10s", text)
		}
	}
	if _, known := dev.Command(e.by); e.by != "" && !known {
		return nil, mappers.BadConfig(at+"command", "%q is no command of the model with a visitor", e.by)
	}
	if len(e.values) == 0 {
		e.values = []string{map[mappers.Type]string{mappers.Int: "1", mappers.Float: "1", mappers.Double: "1", mappers.Boolean: "true", mappers.Object: "{}", mappers.Array: "[]"}[p.Type]}
	}
	return e, nil
}

// cause makes the events happen that a command causes.
func (s *session) cause(command, input string) error {
	for _, e := range s.events {
		if e.by != command {
			continue
		}
		select {
		case s.caused <- [2]string{e.name, cmp.Or(input, e.values[0], command)}:
		default:
			return mappers.Refuse(mappers.Unavailable, "more than %d events wait to be told", maxCaused)
		}
	}
	return nil
}

// Events implements mappers.EventSource.
func (s *session) Events(ctx context.Context, emit func(event, value string)) error {
	due := make(chan *simulatedEvent)
	for _, e := range s.events {
		if e.every == 0 {
			continue
		}
		ticker := time.NewTicker(e.every)
		defer ticker.Stop()
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-ticker.C:
				}
				select {
				case due <- e:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-due:
			emit(e.name, cmp.Or(e.values[e.told%len(e.values)], e.name))
			e.told++
		case c := <-s.caused:
			emit(c[0], c[1])
		}
	}
}
