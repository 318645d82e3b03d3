package edge

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/calls"
	"github.com/edgebus/edgebus/edge/twin"
)

// metrics serves the core's figures: each is read where it is kept when somebody asks.
func metrics(tw *twin.Twin, br *broker.Broker, commands *calls.Calls) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), commands)
	gauge := func(name, help string, f func(twin.Stats) float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "edgebus", Subsystem: "core", Name: name, Help: help},
			func() float64 { return f(tw.Stats()) }))
	}
	counter := func(name, help string, f func(twin.Stats) float64) {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "edgebus", Subsystem: "core", Name: name, Help: help},
			func() float64 { return f(tw.Stats()) }))
	}
	gauge("link_up", "1 while the hub is connected.", func(s twin.Stats) float64 { return truth(s.Linked) })
	gauge("link_in_step", "1 while the hub has said, in this connection, that it has everything.", func(s twin.Stats) float64 { return truth(s.InStep) })
	gauge("link_behind_keys", "Keys that the hub has not confirmed yet.", func(s twin.Stats) float64 { return float64(s.Behind) })
	gauge("devices", "Devices that belong to the node.", func(s twin.Stats) float64 { return float64(s.Devices) })
	gauge("up_keys", "Keys that the node owns.", func(s twin.Stats) float64 { return float64(s.UpKeys) })
	gauge("up_bytes", "Bytes of the names and values of those keys.", func(s twin.Stats) float64 { return float64(s.UpBytes) })
	gauge("link_oversize", "1 while the hub takes nothing of the node because it owns too much.", func(s twin.Stats) float64 { return truth(s.Oversize != "") })
	gauge("down_keys", "Keys that the cloud owns.", func(s twin.Stats) float64 { return float64(s.DownKeys) })
	counter("commits_total", "Transactions on disk.", func(s twin.Stats) float64 { return float64(s.Commits) })
	counter("commits_failed_total", "Transactions that could not be stored.", func(s twin.Stats) float64 { return float64(s.FailedCommits) })
	counter("steps_total", "Publishes, messages and timers that were handled.", func(s twin.Stats) float64 { return float64(s.Steps) })
	counter("refused_total", "Publishes into the tree that were refused.", func(s twin.Stats) float64 { return float64(s.Refused) })
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
