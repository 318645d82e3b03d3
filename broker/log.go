package broker

import (
	"strings"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/topics"
)

// about says which topic a line is about, and of the tree also which node and device.
func (b *Broker) about(e *zerolog.Event, topic string) *zerolog.Event {
	if !e.Enabled() {
		return e
	}
	e.Str("topic", topic)
	a, err := topics.Parse(topic)
	if err != nil {
		return e
	}
	if b.opts.Node == "" { // or every line says it
		e.Str("node", a.Node)
	}
	if a.Device != "" && strings.HasPrefix(a.Key(), "devices/") {
		e.Str("device", a.Device)
	}
	return e
}
