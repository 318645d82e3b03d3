// Package metrics gives a program's figures to Prometheus: those that hub and core
// have in common, and the form in which both add their own.
//
// It never counts anything on the way of a message: figures are read where they are
// kept when somebody asks, and only commits to disk are observed one by one.
package metrics

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/journal"
)

// namespace begins all names.
const namespace = "edgebus"

// Registry is what a program exposes.
type Registry struct{ *prometheus.Registry }

// New makes a registry with the figures of the process itself.
func New(version string) Registry {
	r := Registry{prometheus.NewRegistry()}
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "1, with the program's version and that of Go.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	})
	build.Set(1)
	r.MustRegister(build)
	return r
}

// Handler answers /metrics.
func (r Registry) Handler() http.Handler { return promhttp.HandlerFor(r, promhttp.HandlerOpts{}) }

// Count wraps a handler whose requests are counted, by method and status code.
func (r Registry) Count(h http.Handler) http.Handler {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: "http", Name: "requests_total",
		Help: "Requests to the HTTP API that were answered, by method and status code; a watch counts when it ends.",
	}, []string{"method", "code"})
	r.MustRegister(requests)
	requests.WithLabelValues("get", "200")
	return promhttp.InstrumentHandlerCounter(requests, h)
}

// HTTP adds the figures of the connections to the HTTP API: how many there are, and how
// often there was no room for another.
func (r Registry) HTTP(take func() (open, full int64)) {
	type stats struct{ open, full int64 }
	g := NewGroup("http", func() (s stats) {
		s.open, s.full = take()
		return s
	})
	g.Gauge("connections", "Connections to the HTTP API; at limits.requests others wait outside.", func(s stats) float64 { return float64(s.open) })
	g.Counter("full_total", "Times that there was no room for another connection, so that it had to wait, or was closed since its address had its share.", func(s stats) float64 { return float64(s.full) })
	r.MustRegister(g)
}

// Group is a set of figures that are taken together, once each time somebody asks.
type Group[S any] struct {
	subsystem string
	labels    prometheus.Labels // of all of them
	take      func() S
	figures   []figure[S]
}

type figure[S any] struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	one  func(S) float64
	many func(S) map[string]int64 // by the value of the label
}

// NewGroup makes a group. take gives what the figures are read from; it may cost
// something, for it is called once an answer.
func NewGroup[S any](subsystem string, take func() S) *Group[S] {
	return &Group[S]{subsystem: subsystem, take: take}
}

// Gauge adds what goes up and down.
func (g *Group[S]) Gauge(name, help string, f func(S) float64) {
	g.add(name, help, figure[S]{kind: prometheus.GaugeValue, one: f})
}

// Counter adds what only rises.
func (g *Group[S]) Counter(name, help string, f func(S) float64) {
	g.add(name, help, figure[S]{kind: prometheus.CounterValue, one: f})
}

// CounterBy adds a counter for each value of a label, of which there are few.
func (g *Group[S]) CounterBy(label, name, help string, f func(S) map[string]int64) {
	g.add(name, help, figure[S]{kind: prometheus.CounterValue, many: f}, label)
}

func (g *Group[S]) add(name, help string, f figure[S], labels ...string) {
	f.desc = prometheus.NewDesc(prometheus.BuildFQName(namespace, g.subsystem, name), help, labels, g.labels)
	g.figures = append(g.figures, f)
}

// Describe is for Prometheus.
func (g *Group[S]) Describe(out chan<- *prometheus.Desc) {
	for _, f := range g.figures {
		out <- f.desc
	}
}

// Collect is for Prometheus.
func (g *Group[S]) Collect(out chan<- prometheus.Metric) {
	s := g.take()
	for _, f := range g.figures {
		if f.one != nil {
			out <- prometheus.MustNewConstMetric(f.desc, f.kind, f.one(s))
			continue
		}
		for value, n := range f.many(s) {
			out <- prometheus.MustNewConstMetric(f.desc, f.kind, float64(n), value)
		}
	}
}

// Broker adds the figures of a broker.
func (r Registry) Broker(b *broker.Broker) {
	type stats struct {
		broker.Stats
		broker.Queues
	}
	g := NewGroup("broker", func() stats { return stats{b.Stats(), b.Queues()} })
	g.Gauge("connections", "Clients that are connected.", func(s stats) float64 { return float64(s.Connections) })
	g.Gauge("sessions", "Sessions, connected or not.", func(s stats) float64 { return float64(s.Sessions) })
	g.Gauge("kept_sessions", "Sessions that outlive their connections; limits.sessions is the most.", func(s stats) float64 { return float64(s.Kept) })
	g.Gauge("subscriptions", "Subscriptions.", func(s stats) float64 { return float64(s.Subscriptions) })
	g.Gauge("retained_messages", "Retained messages outside the nodes' trees.", func(s stats) float64 { return float64(s.Retained) })
	g.Gauge("retained_bytes", "Bytes of them; at limits.retained.bytes more are refused.", func(s stats) float64 { return float64(s.RetainedBytes) })
	g.Gauge("waiting_messages", "Messages in sessions that were not sent yet.", func(s stats) float64 { return float64(s.Waiting) })
	g.Gauge("waiting_bytes", "Bytes of them.", func(s stats) float64 { return float64(s.WaitingBytes) })
	g.Gauge("held_bytes", "Bytes of messages that wait, or were sent and aren't acknowledged. Of limits.session.all no user gets more than is left for all others.", func(s stats) float64 { return float64(s.HeldBytes) })
	g.Gauge("unacknowledged_messages", "Messages that were sent and that clients have not acknowledged.", func(s stats) float64 { return float64(s.Unacked) })
	g.Gauge("fullest_queue_ratio", "How full the fullest session's queue is, from 0 to 1; a full one goes without messages.", func(s stats) float64 { return s.Fullest })
	g.Gauge("store_waiting_bytes", "Bytes that publishers wait for to be on disk; at 64 MiB they are read no further.", func(s stats) float64 { return float64(s.StoreWaiting) })
	g.Counter("connects_total", "Connections that were let in.", func(s stats) float64 { return float64(s.Connects) })
	g.CounterBy("reason", "rejected_connections_total", "Connections that were not let in.", func(s stats) map[string]int64 { return s.Rejected })
	g.CounterBy("reason", "closed_connections_total", "Connections that the broker closed.", func(s stats) map[string]int64 { return s.Closed })
	g.Counter("takeovers_total", "Connections that ended because the same client connected again. Many of them: two programs with one name.", func(s stats) float64 { return float64(s.Takeovers) })
	g.Counter("received_messages_total", "PUBLISH packets from clients.", func(s stats) float64 { return float64(s.Received) })
	g.Counter("sent_messages_total", "PUBLISH packets to clients.", func(s stats) float64 { return float64(s.Sent) })
	g.CounterBy("reason", "dropped_messages_total", "Messages that never reached a subscriber.", func(s stats) map[string]int64 { return s.Dropped })
	g.CounterBy("kind", "refused_messages_total", "Publishes that were refused, by kind of error.", func(s stats) map[string]int64 { return s.Refused })
	g.Counter("refused_subscriptions_total", "Subscriptions that were refused.", func(s stats) float64 { return float64(s.RefusedSubscriptions) })
	g.Gauge("fanout_queue_connections", "Connections in the fan-out queue: they have messages to be written, as many others have at the same time.", func(s stats) float64 { return float64(s.FanoutQueue) })
	g.Counter("read_pauses_total", "Pauses of clients that send, or are sent retained messages, without a pause of their own while others publish.", func(s stats) float64 { return float64(s.Pauses) })
	g.Counter("read_pauses_seconds_total", "How long those pauses were in all.", func(s stats) float64 { return s.Paused.Seconds() })
	g.Counter("held_connections_total", "Connections that waited to be let in: more came than limits.connectRate.", func(s stats) float64 { return float64(s.Held) })
	g.Counter("malformed_packets_total", "Packets that could not be decoded.", func(s stats) float64 { return float64(s.Malformed) })
	r.MustRegister(g)
}

// Journal adds the figures of the journal that a store is.
func (r Registry) Journal(store string, take func() journal.Stats) {
	g := NewGroup("journal", take)
	g.labels = prometheus.Labels{"store": store}
	type stats = journal.Stats
	g.Gauge("waiting_bytes", "Bytes handed to a journal that are not on disk yet.", func(s stats) float64 { return float64(s.Waiting) })
	g.Gauge("size_bytes", "Bytes of its files.", func(s stats) float64 { return float64(s.Bytes) })
	g.Gauge("live_bytes", "Bytes of its files in live records.", func(s stats) float64 { return float64(s.Live) })
	g.Gauge("records", "Its live records.", func(s stats) float64 { return float64(s.Records) })
	g.Gauge("segments", "Its files.", func(s stats) float64 { return float64(s.Segments) })
	g.Gauge("damaged", "1 when a file that is needed can't be read.", func(s stats) float64 { return Truth(s.Damaged) })
	g.Counter("compacted_bytes_total", "Bytes that compaction copied.", func(s stats) float64 { return float64(s.Compacted) })
	r.MustRegister(g)
}

// Truth is a yes or no as a gauge has it.
func Truth(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// Unix is a time as a gauge has it; 0 for none.
func Unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}
