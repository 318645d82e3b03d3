package broker

import (
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/session"
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

// shortage is how often a session had no room, and when that was logged last.
type shortage struct {
	mu       sync.Mutex
	messages int64
	said     time.Time
}

const shortageSaid = time.Minute // how often at most of one session

// droppedFor logs that a session goes without a message, for it has no room: for each session
// now and then, and never so often for all of them that it buries the rest of the log.
func (b *Broker) droppedFor(c *client, m *session.Message) {
	now := b.opts.Now()
	s := &c.short
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages++
	if !s.said.IsZero() && now.Sub(s.said) < shortageSaid {
		return
	}
	e := b.shortages.Warn()
	if !e.Enabled() {
		return
	}
	s.said = now
	b.about(e, m.Topic).Str("client", c.id).Uint8("qos", m.QoS).Int64("messages", s.messages).
		Msg("a session has no room and goes without messages: so many so far")
}
