package edge

import (
	"github.com/edgebus/edgebus/broker/metrics"
	"github.com/edgebus/edgebus/edge/twin"
)

// figures are what the core's own metrics are read from, together.
type figures struct {
	twin.Stats
	contact
}

// expose adds the core's own figures: each is read where it is kept when somebody asks.
func expose(r metrics.Registry, tw *twin.Twin, up *uplink) {
	g := metrics.NewGroup("core", func() figures { return figures{tw.Stats(), up.now()} })
	type f = figures
	g.Gauge("link_up", "1 while the hub is connected.", func(s f) float64 { return metrics.Truth(s.Linked) })
	g.Gauge("link_in_step", "1 while the hub has said, in this connection, that it has everything.", func(s f) float64 { return metrics.Truth(s.InStep) })
	g.Gauge("link_changed_timestamp_seconds", "When the link last came up or went down.", func(s f) float64 { return metrics.Unix(s.since) })
	g.Gauge("link_behind_keys", "Keys that the hub has not confirmed yet.", func(s f) float64 { return float64(s.Behind) })
	g.Gauge("link_behind_seconds", "Age of the oldest of them.", func(s f) float64 { return s.Oldest.Seconds() })
	g.Counter("link_connections_total", "Connections to the hub that were made.", func(s f) float64 { return float64(s.connections) })
	g.Counter("link_failures_total", "Attempts to connect to the hub that came to nothing.", func(s f) float64 { return float64(s.failures) })
	g.Gauge("devices", "Devices that belong to the node.", func(s f) float64 { return float64(s.Devices) })
	g.Gauge("up_keys", "Keys that the node owns.", func(s f) float64 { return float64(s.UpKeys) })
	g.Gauge("up_bytes", "Bytes of the names and values of those keys.", func(s f) float64 { return float64(s.UpBytes) })
	g.Gauge("link_oversize", "1 while the hub takes nothing of the node because it owns too much.", func(s f) float64 { return metrics.Truth(s.Oversize != "") })
	g.Gauge("down_keys", "Keys that the cloud owns.", func(s f) float64 { return float64(s.DownKeys) })
	g.Gauge("steps_waiting", "Publishes and messages that wait to be handled; at 4096 their senders wait.", func(s f) float64 { return float64(s.StepsWaiting) })
	g.Counter("commits_total", "Transactions on disk.", func(s f) float64 { return float64(s.Commits) })
	g.Counter("commits_failed_total", "Transactions that could not be stored.", func(s f) float64 { return float64(s.FailedCommits) })
	g.Counter("steps_total", "Publishes, messages and timers that were handled.", func(s f) float64 { return float64(s.Steps) })
	g.Counter("refused_total", "Publishes into the tree that were refused.", func(s f) float64 { return float64(s.Refused) })
	r.MustRegister(g)
}
