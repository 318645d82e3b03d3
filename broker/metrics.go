package broker

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
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
		waiting, unacked, bytes := c.sess.Backlog()
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

// sysPrefix stands before the broker's figures, which have mosquitto's names: dashboards know them. Who may
// read them is for acl.read to say. They are no retained messages, but made for whoever subscribes.
const (
	sysPrefix = "$SYS/broker/"
	sysEvery  = 10 * time.Second
)

// sysLoads are how many of something there were in a minute, averaged over 1, 5 and 15.
type sysLoads struct {
	mu      sync.Mutex
	last    map[string]int64 // counters
	average map[string][3]float64
	at      time.Time
}

var sysSpans = [3]float64{1, 5, 15} // minutes

// count brings the averages up to date.
func (l *sysLoads) count(now time.Time, counters map[string]int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.average == nil {
		l.average = make(map[string][3]float64)
	}
	if minutes := now.Sub(l.at).Minutes(); l.last != nil && minutes > 0 {
		for name, n := range counters {
			average := l.average[name]
			for i, span := range sysSpans {
				average[i] += (float64(n-l.last[name])/minutes - average[i]) * (1 - math.Exp(-minutes/span))
			}
			l.average[name] = average
		}
	}
	l.last, l.at = counters, now
}

// sysValues are all figures by topic.
func (b *Broker) sysValues() map[string]string {
	s := b.Stats()
	dropped := int64(0)
	for _, n := range s.Dropped {
		dropped += n
	}
	connected, all := s.Connections, int64(s.Sessions)
	values := map[string]string{
		"version": strings.TrimSpace("Edgebus " + b.opts.Version),
		"uptime":  fmt.Sprintf("%d seconds", int64(b.opts.Now().Sub(b.began).Seconds())),
	}
	for name, n := range map[string]int64{
		"clients/total": all, "clients/connected": connected, "clients/disconnected": max(0, all-connected),
		"clients/active": connected, "clients/inactive": max(0, all-connected), "subscriptions/count": int64(s.Subscriptions),
		"messages/received": s.Received, "messages/sent": s.Sent, "messages/stored": s.Queued, "store/messages/count": s.Queued,
		"publish/messages/received": s.Received, "publish/messages/sent": s.Sent, "publish/messages/dropped": dropped,
		"retained messages/count": int64(s.Retained),
	} {
		values[name] = strconv.FormatInt(n, 10)
	}
	b.loads.mu.Lock()
	defer b.loads.mu.Unlock()
	for name, average := range b.loads.average {
		for i, span := range sysSpans {
			values[fmt.Sprintf("load/%s/%.0fmin", name, span)] = fmt.Sprintf("%.2f", average[i])
		}
	}
	return values
}

// sysMessages are the figures that a filter matches.
func (b *Broker) sysMessages(filter string) (list []*session.Message) {
	for name, value := range b.sysValues() {
		if topic := sysPrefix + name; topics.Match(filter, topic) {
			list = append(list, outgoing(Message{Topic: topic, Payload: []byte(value), Retain: true}, b.opts.Now()))
		}
	}
	slices.SortFunc(list, func(a, b *session.Message) int { return strings.Compare(a.Topic, b.Topic) })
	return list
}

// sysPuller gives a subscriber the figures as of now.
func (b *Broker) sysPuller(filter string) session.RetainedReader {
	var all []*session.Message
	made := false
	return func(most int) []*session.Message {
		if !made {
			all, made = b.sysMessages(filter), true
		}
		n := min(most, len(all))
		chunk := all[:n]
		all = all[n:]
		return chunk
	}
}

// publishSys tells all who subscribed.
func (b *Broker) publishSys() {
	s := b.Stats()
	b.loads.count(b.opts.Now(), map[string]int64{
		"messages/received": s.Received, "messages/sent": s.Sent, "publish/received": s.Received, "publish/sent": s.Sent, "connections": s.Connects,
	})
	for _, m := range b.sysMessages("$SYS/#") {
		if b.Wanted(m.Topic) {
			b.router.deliver(b.router.route(m.Topic), m, nil)
		}
	}
}

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
