package broker

import (
	"cmp"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics/resource"
)

// Stats is a snapshot for metrics. Counts are since the broker was made.
type Stats struct {
	Connections   int64            // clients connected now
	Sessions      int              // now, connected or not
	Kept          int              // of them, that outlive their connections
	Subscriptions int              // now
	Retained      int              // users' own topics with a retained message, now
	RetainedBytes int              // of them, as they count against the limit
	Queued        int64            // messages in sessions now, waiting or unacknowledged
	StoreWaiting  int64            // bytes that publishers wait for to be on disk
	Received      int64            // PUBLISH packets from clients
	Sent          int64            // PUBLISH packets to clients
	Dropped       map[string]int64 // messages that never reached a subscriber, by reason
	Refused       map[string]int64 // publishes of clients, by kind of error
	Connects      int64            // connections that were let in
	Takeovers     int64            // connections that ended by another of the same client
	Rejected      map[string]int64 // connections that were not let in, by reason
	Closed        map[string]int64 // connections that the broker closed, by reason
	Malformed     int64            // packets that the decoder could not cope with
	FanoutQueue   int              // connections in the fan-out queue
	Pauses        int64            // pauses of clients that send, or are sent retained messages, without a pause of their own
	Paused        time.Duration    // how long in all
	Held          int64            // connections that had to wait to be let in

	RefusedSubscriptions int64
}

// Missed is how many messages sessions had no room for, and went without.
func (s Stats) Missed() int64 { return s.Dropped[session.DropQueueFull.String()] }

// Queues is what waits in sessions.
type Queues struct {
	Waiting      int     // messages not sent yet
	WaitingBytes int     // of them
	HeldBytes    int64   // bytes of those that wait, or aren't acknowledged
	Unacked      int     // messages sent and not acknowledged
	Fullest      float64 // how full the fullest session's queue is, from 0 to 1
	FullestOf    string  // whose that is; empty: all are empty
}

type stats struct {
	connected atomic.Int64
	received  atomic.Int64
	panics    atomic.Int64
	connects  atomic.Int64
	takeovers atomic.Int64
	noAccess  atomic.Int64 // subscriptions
	held      atomic.Int64
	pauses    atomic.Int64
	paused    atomic.Int64 // nanoseconds
	publishes counts[resource.ErrorKind]
	rejects   counts[string]
	closed    counts[string]
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
		Connections: b.stats.connected.Load(), Subscriptions: b.router.index.len(),
		Queued: b.counters.Queued.Load(), Received: b.stats.received.Load(), Sent: b.counters.Sent.Load(),
		Dropped: b.counters.Dropped(), Malformed: b.stats.panics.Load(),
		Connects: b.stats.connects.Load(), Takeovers: b.stats.takeovers.Load(), RefusedSubscriptions: b.stats.noAccess.Load(),
		FanoutQueue: b.fanout.Waiting(), Pauses: b.stats.pauses.Load(), Paused: time.Duration(b.stats.paused.Load()), Held: b.stats.held.Load(),
		Refused: make(map[string]int64), Rejected: make(map[string]int64), Closed: make(map[string]int64),
	}
	s.Retained, s.RetainedBytes = b.retained.size()
	b.clients.mu.Lock()
	if s.Sessions = len(b.clients.byID); b.outlet.sess != nil {
		s.Sessions--
	}
	s.Kept = int(b.quotas.kept.Held())
	b.clients.mu.Unlock()
	if b.store != nil {
		s.StoreWaiting = int64(b.store.waiting())
	}
	for _, kind := range refusedKinds { // what never happened is known to be 0
		s.Refused[string(kind)] = 0
	}
	for kind, n := range b.stats.publishes.snapshot() {
		s.Refused[string(kind)] = n
	}
	for _, reason := range connectReasons {
		s.Rejected[reason] = 0
	}
	for _, reason := range closeReasons {
		s.Closed[reason] = 0
	}
	s.Closed[readsNothing] = 0
	for reason, n := range b.stats.closed.snapshot() {
		s.Closed[reason] = n
	}
	for _, reason := range []string{tooManyConnections, crowdedOut, noConnect, fullSeats, willRefused} {
		s.Rejected[reason] = 0
	}
	for reason, n := range b.stats.rejects.snapshot() {
		s.Rejected[reason] = n
	}
	return s
}

var refusedKinds = [...]resource.ErrorKind{
	resource.Invalid, resource.BadTopic, resource.NotFound, resource.Conflict, resource.Forbidden, resource.TooLarge,
	resource.Quota, resource.Unavailable, resource.Internal,
}

// Queues looks at every session, so that none has to keep count for who asks.
func (b *Broker) Queues() (q Queues) {
	b.clients.mu.Lock()
	all := make([]*client, 0, len(b.clients.byID))
	for _, c := range b.clients.byID {
		if !c.rights().own() {
			all = append(all, c)
		}
	}
	b.clients.mu.Unlock()
	q.HeldBytes = b.quotas.queued.Held()
	l := b.opts.Limits
	for _, c := range all {
		waiting, unacked, bytes := c.sess.Load()
		q.Waiting += waiting
		q.Unacked += unacked
		q.WaitingBytes += bytes
		if full := float64(bytes) / float64(l.Session.Bytes); full > q.Fullest {
			q.Fullest, q.FullestOf = full, c.id
		}
	}
	return q
}

// Why connections end that did not get as far as a CONNECT.
const (
	tooManyConnections = "too many connections"
	crowdedOut         = "no CONNECT while others waited"
	noConnect          = "no CONNECT in time"
)

// willRefused is why a connection is refused whose will can't be published.
const willRefused = "the will can't be published"

// fullSeats is why a connection is refused that is one too many of its user's or address's.
const fullSeats = "too many connections of one user or address"

// rejected counts and logs a connection that is not let in. Of the reason only what the
// code says is counted.
func (b *Broker) rejected(c *conn, pk *packets.Packet, refused *refusedConnect) {
	r := Rejection{
		ClientID: pk.Connect.ClientIdentifier, User: validText(string(pk.Connect.Username)),
		Remote: c.RemoteAddr().String(), Reason: cmp.Or(refused.counted, connectReasons[refused.code], "malformed packet"),
	}
	b.stats.rejects.add(r.Reason)
	line := b.floods.Info().Str("client", r.ClientID).Str("user", r.User).Str("reason", r.Reason).Str("remote", r.Remote)
	if refused.reason != "" {
		line = line.Str("detail", refused.reason)
	}
	line.Msg("connection refused")
	if b.opts.Rejected != nil {
		r.Reason = cmp.Or(refused.reason, r.Reason) // with the names, which a counter can't have
		b.opts.Rejected(r)
	}
}
