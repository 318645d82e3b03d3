package broker

import (
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics/resource"
)

// Stats is a snapshot for metrics. Counts are since the broker was made.
type Stats struct {
	Connections   int64            // clients connected now
	Sessions      int              // now, connected or not
	Subscriptions int              // now
	Retained      int              // users' own topics with a retained message, now
	Queued        int64            // messages in sessions now, waiting or unacknowledged
	Received      int64            // PUBLISH packets from clients
	Sent          int64            // PUBLISH packets to clients
	Dropped       map[string]int64 // messages that never reached a subscriber, by reason
	Refused       map[string]int64 // publishes of clients, by kind of error
	Rejected      map[string]int64 // connections, by reason code
	Malformed     int64            // packets that the decoder could not cope with
}

type stats struct {
	connected atomic.Int64
	received  atomic.Int64
	panics    atomic.Int64
	publishes counts[resource.ErrorKind]
	connects  counts[byte]
}

// counts is a small map of counters.
type counts[K comparable] struct {
	mu sync.Mutex
	n  map[K]int64
}

func (c *counts[K]) add(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = make(map[K]int64)
	}
	c.n[key]++
}

func (c *counts[K]) snapshot() map[K]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.n)
}

// Stats takes a snapshot.
func (b *Broker) Stats() Stats {
	s := Stats{
		Connections: b.stats.connected.Load(), Subscriptions: b.router.index.len(), Retained: b.retained.Len(),
		Queued: b.counters.Queued.Load(), Received: b.stats.received.Load(), Sent: b.counters.Sent.Load(),
		Dropped: b.counters.Dropped(), Malformed: b.stats.panics.Load(),
		Refused: make(map[string]int64), Rejected: make(map[string]int64),
	}
	b.clients.mu.Lock()
	s.Sessions = len(b.clients.byID)
	b.clients.mu.Unlock()
	for kind, n := range b.stats.publishes.snapshot() {
		s.Refused[string(kind)] = n
	}
	for code, n := range b.stats.connects.snapshot() {
		s.Rejected[fmt.Sprintf("0x%02x", code)] = n
	}
	return s
}

// droppedFor logs that a session has no room.
func (b *Broker) droppedFor(c *client, m *session.Message) {
	b.floods.Warn().Str("client", c.id).Str("topic", m.Topic).Uint8("qos", m.QoS).Msg("queue full: message dropped")
}
