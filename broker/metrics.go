// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics/resource"
)

// metrics are the broker's counters. Those that $SYS and Report show as well are atomic numbers, which can be read.
type metrics struct {
	connected, connects, received atomic.Int64
	refused                       map[resource.ErrorKind]*atomic.Int64 // publishes
	rejected, closed              *prometheus.CounterVec               // connections
	takeovers, held, malformed    prometheus.Counter
	refusedSubscriptions          prometheus.Counter
	pauses, pausedSeconds         prometheus.Counter
}

var refusedKinds = [...]resource.ErrorKind{
	resource.Invalid, resource.BadTopic, resource.NotFound, resource.AlreadyExists, resource.Conflict, resource.Unauthorized, resource.Forbidden,
	resource.TooLarge, resource.Quota, resource.Gone, resource.Unavailable, resource.Internal,
}

const namespace, subsystem = "edgebus", "broker" // of all names

func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help})
	}
	byReason := func(name, help string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, []string{"reason"})
	}
	m := &metrics{
		refused:              make(map[resource.ErrorKind]*atomic.Int64),
		rejected:             byReason("rejected_connections_total", "Connections that were not let in."),
		closed:               byReason("closed_connections_total", "Connections that the broker closed."),
		takeovers:            counter("takeovers_total", "Connections that ended because the same client connected again. Many of them: two programs with one name."),
		held:                 counter("held_connections_total", "Connections that waited to be let in: more came than limits.connectRate."),
		malformed:            counter("malformed_packets_total", "Packets that could not be decoded."),
		refusedSubscriptions: counter("refused_subscriptions_total", "Subscriptions that were refused."),
		pauses:               counter("read_pauses_total", "Pauses of clients that send, or are sent retained messages, without a pause of their own while others publish."),
		pausedSeconds:        counter("read_pauses_seconds_total", "How long those pauses were in all."),
	}
	for _, kind := range refusedKinds {
		m.refused[kind] = new(atomic.Int64)
	}
	for _, reason := range connectReasons { // what never happened is known to be 0
		m.rejected.WithLabelValues(daemon.Label(reason))
	}
	for _, reason := range []string{tooManyConnections, evictedPending, noConnect, tooManyOfOne, willRefused} {
		m.rejected.WithLabelValues(daemon.Label(reason))
	}
	for _, reason := range closeReasons {
		m.closed.WithLabelValues(daemon.Label(reason))
	}
	m.closed.WithLabelValues(daemon.Label(readsNothing))
	return m
}

// register adds what is looked up when Prometheus asks.
func (b *Broker) register(r prometheus.Registerer) {
	f := promauto.With(r)
	gauge := func(name, help string, value func() float64) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, value)
	}
	counter := func(name, help string, labels prometheus.Labels, value func() int64) {
		o := prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, ConstLabels: labels}
		f.NewCounterFunc(o, func() float64 { return float64(value()) })
	}
	gauge("connections", "Clients that are connected.", func() float64 { return float64(b.metrics.connected.Load()) })
	gauge("sessions", "Sessions, connected or not.", func() float64 { return float64(b.clients.count()) })
	gauge("kept_sessions", "Sessions that outlive their connections; limits.sessions is the most.", func() float64 { return float64(b.quotas.persistent.Held()) })
	gauge("subscriptions", "Subscriptions.", func() float64 { return float64(b.router.index.len()) })
	gauge("retained_messages", "Retained messages outside the nodes' trees.", func() float64 { return float64(b.retained.len()) })
	gauge("retained_bytes", "Bytes of them; at limits.retained.bytes more are refused.", func() float64 { return float64(b.quotas.retained.Held()) })
	gauge("waiting_messages", "Messages in sessions that were not sent yet.", func() float64 { return float64(b.clients.queueTotals().waiting) })
	gauge("waiting_bytes", "Bytes of them.", func() float64 { return float64(b.clients.queueTotals().bytes) })
	gauge("held_bytes", "Bytes of messages that wait, or were sent and aren't acknowledged. Of limits.session.all no user gets more than is left for all others.",
		func() float64 { return float64(b.quotas.queued.Held()) })
	gauge("unacknowledged_messages", "Messages that were sent and that clients have not acknowledged.", func() float64 { return float64(b.clients.queueTotals().unacked) })
	gauge("fullest_queue_ratio", "How full the fullest session's queue is, from 0 to 1; a full one goes without messages.", func() float64 { return b.clients.queueTotals().fullest })
	gauge("fanout_queue_connections", "Connections in the fan-out queue: they have messages to be written, as many others have at the same time.",
		func() float64 { return float64(b.dispatcher.fanout.Waiting()) })
	gauge("store_waiting_bytes", "Bytes that publishers wait for to be on disk; at 64 MiB they are read no further.", func() float64 {
		if b.store == nil {
			return 0
		}
		return float64(b.store.backlog.Held())
	})
	counter("connects_total", "Connections that were let in.", nil, b.metrics.connects.Load)
	counter("received_messages_total", "PUBLISH packets from clients.", nil, b.metrics.received.Load)
	counter("sent_messages_total", "PUBLISH packets to clients.", nil, b.dispatcher.counters.Sent.Load)
	for reason := range b.dispatcher.counters.Dropped() {
		counter("dropped_messages_total", "Messages that never reached a subscriber.", prometheus.Labels{"reason": reason},
			func() int64 { return b.dispatcher.counters.Dropped()[reason] })
	}
	for kind, n := range b.metrics.refused {
		counter("refused_messages_total", "Publishes that were refused, by kind of error.", prometheus.Labels{"kind": daemon.Label(string(kind))}, n.Load)
	}
}

// Report is the state of a broker, as the link report and the survey of a backup show it. Counts are since New.
type Report struct {
	Sessions, Subscriptions int
	Queued                  int64            // messages in sessions, waiting or unacknowledged
	Retained                int              // messages on users' own topics
	FullestQueue            float64          // how full the fullest session's queue is, from 0 to 1
	FullestOf               string           // the client whose that is; empty: all are empty
	Missed                  int64            // messages that sessions had no room for; of those that outlived restarts, also before New
	Refused                 map[string]int64 // publishes of clients, by kind of error
	RefusedOrigin           *RefusedOrigin   // the last web page that was refused; nil: none was
}

// RefusedOrigin is a web page that a WebSocket listener refused, as its origin is not allowed there. Its browser tells it nothing.
type RefusedOrigin struct {
	Origin, Listener string
	At               time.Time
}

// Report takes a snapshot.
func (b *Broker) Report() Report {
	q := b.clients.queueTotals()
	r := Report{
		Sessions: b.clients.count(), Subscriptions: b.router.index.len(), Queued: int64(q.waiting + q.unacked), Retained: b.retained.len(),
		FullestQueue: q.fullest, FullestOf: q.fullestOf, Missed: b.dispatcher.counters.Dropped()[session.DropQueueFull.String()] + q.missedBefore, Refused: make(map[string]int64),
	}
	for kind, n := range b.metrics.refused {
		r.Refused[string(kind)] = n.Load()
	}
	r.RefusedOrigin = b.refusedOrigin.Load()
	return r
}
