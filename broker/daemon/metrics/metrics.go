// SPDX-License-Identifier: Apache-2.0

// Package metrics is what hub and core have in common in exposing Prometheus metrics: the registry, the metrics of
// the process, of commits and of HTTP, and groups of metrics that are read from one snapshot. What counts something
// else registers it by itself.
//
// It never counts anything on the way of a message.
package metrics

import (
	"maps"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
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

// Handler answers /metrics, in OpenMetrics to who asks for that.
func (r Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

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

// Group is a set of metrics that are read together, once for each collection.
type Group[S any] struct {
	subsystem string
	take      func() S
	metrics   []groupMetric[S]
}

type groupMetric[S any] struct {
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
	g.add(name, help, groupMetric[S]{kind: prometheus.GaugeValue, one: f})
}

// Counter adds what only rises.
func (g *Group[S]) Counter(name, help string, f func(S) float64) {
	g.add(name, help, groupMetric[S]{kind: prometheus.CounterValue, one: f})
}

// GaugeBy adds a gauge for each value of a label, of which there are few.
func (g *Group[S]) GaugeBy(label, name, help string, f func(S) map[string]int64) {
	g.add(name, help, groupMetric[S]{kind: prometheus.GaugeValue, many: f}, label)
}

// CounterBy adds a counter for each value of a label, of which there are few.
func (g *Group[S]) CounterBy(label, name, help string, f func(S) map[string]int64) {
	g.add(name, help, groupMetric[S]{kind: prometheus.CounterValue, many: f}, label)
}

func (g *Group[S]) add(name, help string, f groupMetric[S], labels ...string) {
	f.desc = prometheus.NewDesc(prometheus.BuildFQName(namespace, g.subsystem, name), help, labels, nil)
	g.metrics = append(g.metrics, f)
}

// Describe is for Prometheus.
func (g *Group[S]) Describe(out chan<- *prometheus.Desc) {
	for _, f := range g.metrics {
		out <- f.desc
	}
}

// Collect is for Prometheus.
func (g *Group[S]) Collect(out chan<- prometheus.Metric) {
	s := g.take()
	for _, f := range g.metrics {
		if f.one != nil {
			out <- prometheus.MustNewConstMetric(f.desc, f.kind, f.one(s))
			continue
		}
		for value, n := range f.many(s) {
			out <- prometheus.MustNewConstMetric(f.desc, f.kind, float64(n), value)
		}
	}
}

// BoolValue is a yes or no as a gauge has it.
func BoolValue(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// TimeValue is a time as a gauge has it; 0 for none.
func TimeValue(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

// Commits are a program's commits to disk, by store.
type Commits struct {
	seconds  *prometheus.HistogramVec
	writes   *prometheus.HistogramVec
	failures *prometheus.CounterVec

	mu      sync.Mutex
	failing map[string]string
	damage  map[string]func() error
	gone    func() error
}

// Commits adds the figures of stores.
func (r Registry) Commits() *Commits {
	c := &Commits{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "commit_seconds", Help: "How long commits to disk took, by store.",
			Buckets: prometheus.ExponentialBuckets(0.00025, 2, 15),
		}, []string{"store"}),
		writes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "commit_writes", Help: "How many writes shared a commit, by store.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 7),
		}, []string{"store"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "commit_failures_total", Help: "Commits that failed, by store.",
		}, []string{"store"}),
		failing: make(map[string]string), damage: make(map[string]func() error),
	}
	r.MustRegister(c.seconds, c.writes, c.failures)
	return c
}

// ForStore is what a store tells of each of its commits.
func (c *Commits) ForStore(store string) func(took time.Duration, writes int, err error) {
	seconds, writes, failures := c.seconds.WithLabelValues(store), c.writes.WithLabelValues(store), c.failures.WithLabelValues(store)
	return func(took time.Duration, n int, err error) {
		seconds.Observe(took.Seconds())
		writes.Observe(float64(n))
		if err != nil {
			failures.Inc()
		}
		c.note(store, err)
	}
}

func (c *Commits) note(store string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.failing[store] = err.Error()
		return
	}
	delete(c.failing, store)
}

// Watch has Damaged say what is wrong with a store's files, whatever becomes of commits.
func (c *Commits) Watch(store string, damage func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.damage[store] = damage
}

// Guard has Gone say what of the data directory was removed while it was in use.
func (c *Commits) Guard(gone func() error) { c.gone = gone }

// Gone says what of the data directory was removed while it was in use; empty: nothing.
func (c *Commits) Gone() string {
	if c.gone != nil {
		if err := c.gone(); err != nil {
			return err.Error()
		}
	}
	return ""
}

// Failing says why the last commit failed, for each store whose last commit did.
func (c *Commits) Failing() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.failing)
}

// Damaged says what is wrong with each store that goes on, and won't open again.
func (c *Commits) Damaged() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[string]string)
	for store, damage := range c.damage {
		if err := damage(); err != nil {
			all[store] = err.Error()
		}
	}
	return all
}
