// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/metrics"
	"github.com/edgebus/edgebus/broker/daemon/sysinfo"
	"github.com/edgebus/edgebus/edge/forward"
	"github.com/edgebus/edgebus/edge/store"
	"github.com/edgebus/edgebus/edge/twin"
	"github.com/edgebus/edgebus/topics/resource"
)

// nodeReport is what the node says of itself. It changes with the machine and the
// program, not with every start: an unchanged status is not sent again.
func nodeReport(version string) resource.NodeReport {
	return resource.NodeReport{Version: version, SystemInfo: sysinfo.Read("/")}
}

// coreMetrics are what the core's own metrics are read from, together.
type coreMetrics struct {
	twin.Stats
	linkState
}

// registerCoreMetrics registers the core's own metrics: each is read where it is kept when metrics are collected.
func registerCoreMetrics(r metrics.Registry, tw *twin.Twin, up *linkStatus) {
	g := metrics.NewGroup("core", func() coreMetrics { return coreMetrics{tw.Stats(), up.now()} })
	type f = coreMetrics
	g.Gauge("link_up", "1 while the hub is connected.", func(s f) float64 { return metrics.BoolValue(s.Linked) })
	g.Gauge("link_in_step", "1 while the hub has said, in this connection, that it has everything.", func(s f) float64 { return metrics.BoolValue(s.InStep) })
	g.Gauge("link_changed_timestamp_seconds", "When the link last came up or went down.", func(s f) float64 { return metrics.TimeValue(s.since) })
	g.Gauge("link_behind_keys", "Keys that the hub has not confirmed yet.", func(s f) float64 { return float64(s.Behind) })
	g.Gauge("link_behind_seconds", "Age of the oldest of them.", func(s f) float64 { return s.Oldest.Seconds() })
	g.Counter("link_connections_total", "Connections to the hub that were made.", func(s f) float64 { return float64(s.connections) })
	g.Gauge("link_pending_messages", "Messages to the hub that it has not acknowledged; at 4096 no more are taken.", func(coreMetrics) float64 { return float64(up.queues.Pending.Load()) })
	g.Gauge("link_waiting_messages", "Messages from the hub that wait to be handled; at 4096 those of QoS 0 are dropped.", func(coreMetrics) float64 { return float64(up.queues.Waiting.Load()) })
	g.Counter("link_dropped_messages_total", "Messages from the hub, bridged or commands, that were dropped: more came than were handled.", func(coreMetrics) float64 { return float64(up.queues.Dropped.Load()) })
	g.Counter("link_failures_total", "Attempts to connect to the hub that came to nothing.", func(s f) float64 { return float64(s.failures) })
	g.Gauge("devices", "Devices that belong to the node.", func(s f) float64 { return float64(s.Devices) })
	g.Gauge("up_keys", "Keys that the node owns.", func(s f) float64 { return float64(s.UpKeys) })
	g.Gauge("up_bytes", "Bytes of the names and values of those keys.", func(s f) float64 { return float64(s.UpBytes) })
	g.Gauge("link_oversize", "1 while the hub takes nothing of the node because it owns too much.", func(s f) float64 { return metrics.BoolValue(s.Oversize != "") })
	g.Gauge("down_keys", "Keys that the cloud owns.", func(s f) float64 { return float64(s.DownKeys) })
	g.Gauge("steps_waiting", "Publishes and messages that wait to be handled; at 4096 their senders wait.", func(s f) float64 { return float64(s.StepsWaiting) })
	g.Counter("commits_total", "Transactions on disk.", func(s f) float64 { return float64(s.Commits) })
	g.Counter("commits_failed_total", "Transactions that could not be stored.", func(s f) float64 { return float64(s.FailedCommits) })
	g.Counter("steps_total", "Publishes, messages and timers that were handled.", func(s f) float64 { return float64(s.Steps) })
	g.Counter("refused_total", "Publishes into the tree that were refused.", func(s f) float64 { return float64(s.Refused) })
	r.MustRegister(g)
}

// streamMetrics are what the figures of streams and bridge are read from, together.
type streamMetrics struct {
	broker.LinkQueueStats
	forward.BudgetStats
	received, lost, refusals int64
}

// registerStreamMetrics adds the figures of what waits for the hub.
func registerStreamMetrics(r metrics.Registry, h *hubLink) {
	g := metrics.NewGroup("streams", func() streamMetrics {
		return streamMetrics{h.streams.broker.LinkQueue().Stats(), h.streams.budget.Stats(), h.bridge.received.Load(), h.bridge.dropped.Load(), int64(h.bridge.refusals())}
	})
	type f = streamMetrics
	g.Gauge("waiting_messages", "Telemetry, events and bridged messages that the hub has not confirmed.", func(s f) float64 { return float64(s.Messages) })
	g.Gauge("waiting_bytes", "Bytes of those that were not sent yet.", func(s f) float64 { return float64(s.Bytes) })
	g.Gauge("waiting_seconds", "Age of the oldest of them.", func(s f) float64 { return s.Oldest.Seconds() })
	g.Gauge("unacknowledged_messages", "Of them, those that were sent.", func(s f) float64 { return float64(s.Unacknowledged) })
	g.Counter("sent_messages_total", "Messages sent to the hub, also again.", func(s f) float64 { return float64(s.Taken) })
	g.Counter("forwarded_messages_total", "Stored messages that the hub has confirmed.", func(s f) float64 { return float64(s.Done) })
	g.CounterBy("reason", "dropped_messages_total", "Messages that the hub never got.", func(s f) map[string]int64 { return s.Dropped })
	g.Counter("state_bytes_total", "Bytes of state sent to the hub.", func(s f) float64 { return float64(s.State) })
	g.Counter("bytes_total", "Bytes of streams and bridged messages sent to the hub.", func(s f) float64 { return float64(s.Streams) })
	g.Counter("held_seconds_total", "Time for which they waited for link.rate.", func(s f) float64 { return s.Held.Seconds() })
	g.Counter("bridged_down_messages_total", "Messages that bridge rules brought down.", func(s f) float64 { return float64(s.received) })
	g.Counter("dropped_down_messages_total", "Of them, stored ones that the node's broker refused for good.", func(s f) float64 { return float64(s.lost) })
	g.Gauge("refused_rules", "Bridge rules that the hub doesn't permit.", func(s f) float64 { return float64(s.refusals) })
	r.MustRegister(g)
}

// registerStoreMetrics adds the figures of what the node's tree is kept in.
func registerStoreMetrics(r metrics.Registry, st *store.Store) {
	g := metrics.NewGroup("core_store", st.Stats)
	type s = store.Stats
	g.Gauge("log_bytes", "Bytes of the log of the node's tree. A checkpoint shortens it when it is 16 MiB longer than the database.", func(s s) float64 { return float64(s.LogBytes) })
	g.Gauge("log_segments", "Files of that log.", func(s s) float64 { return float64(s.LogSegments) })
	g.Gauge("database_bytes", "Bytes of the database that checkpoints write.", func(s s) float64 { return float64(s.DatabaseBytes) })
	r.MustRegister(g)
}
