package cloud

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/edgebus/edgebus/broker/calls"
	"github.com/edgebus/edgebus/cloud/twin"
)

// metrics serves the hub's figures: each is read where it is kept when somebody asks.
func metrics(tw *twin.Twins, commands *calls.Calls) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), commands)
	gauge := func(name, help string, f func(twin.Stats) int) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "edgebus", Subsystem: "hub", Name: name, Help: help},
			func() float64 { return float64(f(tw.Stats())) }))
	}
	counter := func(name, help string, f func(twin.Stats) uint64) {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "edgebus", Subsystem: "hub", Name: name, Help: help},
			func() float64 { return float64(f(tw.Stats())) }))
	}
	gauge("nodes", "Nodes that are known.", func(s twin.Stats) int { return s.Nodes })
	gauge("nodes_online", "Nodes that are connected.", func(s twin.Stats) int { return s.Online })
	gauge("nodes_in_step", "Nodes that have said, in their present connection, that they have everything.", func(s twin.Stats) int { return s.InStep })
	gauge("devices", "Devices.", func(s twin.Stats) int { return s.Devices })
	gauge("down_keys", "Keys that the cloud owns.", func(s twin.Stats) int { return s.DownKeys })
	gauge("up_keys", "Keys that nodes own.", func(s twin.Stats) int { return s.UpKeys })
	gauge("up_bytes", "Bytes of the names and values of those keys.", func(s twin.Stats) int { return s.UpBytes })
	gauge("nodes_oversize", "Nodes of which nothing is taken because they own more than limits.node.", func(s twin.Stats) int { return s.Oversize })
	gauge("behind_keys", "Keys that connected nodes have not confirmed yet.", func(s twin.Stats) int { return s.Behind })
	gauge("desired_waiting", "Publishes of desired values that wait for their commit.", func(s twin.Stats) int { return s.Wishes })
	counter("commits_total", "Transactions with what nodes reported.", func(s twin.Stats) uint64 { return s.Commits })
	counter("commits_failed_total", "Transactions that could not be stored.", func(s twin.Stats) uint64 { return s.FailedCommits })
	counter("steps_total", "Messages and events that were handled.", func(s twin.Stats) uint64 { return s.Steps })
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}
