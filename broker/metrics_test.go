// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon"
)

// metricsSnapshot are a broker's metrics, as a test reads them.
type metricsSnapshot struct {
	Connections, Queued, Held, Malformed, Pauses, Takeovers int64
	Sessions, Kept, Subscriptions, Retained, RetainedBytes  int
	Dropped, Refused, Rejected, Closed                      map[string]int64
	Paused                                                  time.Duration
	FanoutQueue, Unacked                                    int
	HeldBytes                                               int64
}

// gather reads all metrics, by name and, where there is a label, its value.
func (b *Broker) gather() map[string]map[string]float64 {
	r := prometheus.NewRegistry()
	b.register(r)
	m := b.metrics
	r.MustRegister(m.rejected, m.closed, m.takeovers, m.held, m.malformed, m.refusedSubscriptions, m.pauses, m.pausedSeconds)
	families, err := r.Gather()
	if err != nil {
		panic(err)
	}
	all := make(map[string]map[string]float64)
	for _, f := range families {
		values := make(map[string]float64)
		for _, m := range f.Metric {
			label := ""
			for _, l := range m.Label {
				label = l.GetValue()
			}
			values[label] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
		all[f.GetName()] = values
	}
	return all
}

func (b *Broker) Stats() metricsSnapshot {
	all := b.gather()
	one := func(name string) int64 { return int64(all["edgebus_broker_"+name][""]) }
	by := func(name string) map[string]int64 {
		values := make(map[string]int64)
		for label, v := range all["edgebus_broker_"+name] {
			values[label] = int64(v)
		}
		return values
	}
	return metricsSnapshot{
		Connections: one("connections"), Queued: b.Report().Queued, Held: one("held_connections_total"), Malformed: one("malformed_packets_total"),
		Pauses: one("read_pauses_total"), Takeovers: one("takeovers_total"), Sessions: int(one("sessions")), Kept: int(one("kept_sessions")),
		Subscriptions: int(one("subscriptions")), Retained: int(one("retained_messages")), RetainedBytes: int(one("retained_bytes")),
		Dropped: by("dropped_messages_total"), Refused: by("refused_messages_total"), Rejected: by("rejected_connections_total"), Closed: by("closed_connections_total"),
		Paused:      time.Duration(all["edgebus_broker_read_pauses_seconds_total"][""] * float64(time.Second)),
		FanoutQueue: int(one("fanout_queue_connections")), Unacked: int(one("unacknowledged_messages")), HeldBytes: one("held_bytes"),
	}
}

// What a broker was made with is what it registers with: each metric once, and those with labels from the start.
func TestMetricsAreRegistered(t *testing.T) {
	r := prometheus.NewRegistry()
	b := startBroker(t, func(o *Options) { o.Metrics = r })
	families, err := r.Gather()
	require.NoError(t, err)
	require.Len(t, families, len(b.gather()))
	require.Contains(t, b.Stats().Closed, daemon.Label(readsNothing))
	require.Contains(t, b.Stats().Rejected, daemon.Label(noConnect))
}
