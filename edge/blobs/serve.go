// SPDX-License-Identifier: Apache-2.0

package blobs

import (
	"encoding/json"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/metrics"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// Publish takes requests for blobs that are published on the node's broker, and passes everything else on.
func (d *Downloads) Publish(m broker.Message, done func(error)) {
	if !strings.HasSuffix(m.Topic, "/blobs/get") {
		d.o.Tree.Publish(m, done)
		return
	}
	at, err := topics.Parse(m.Topic)
	if err != nil || at.Kind != topics.KindBlobGet || at.Node != d.o.Node {
		d.o.Tree.Publish(m, done)
		return
	}
	r, err := resource.ParseBlobRequest(m.Payload)
	if err != nil {
		done(err)
		return
	}
	to, err := topics.Parse(m.Props.ResponseTopic)
	if err != nil || to.Kind != topics.KindBlobAnswer || to.Node != at.Node {
		done(resource.Errorf(resource.Invalid, "response topic", "it must be %s{request}", topics.TopicOf(at.Node, "blobs/answers/")))
		return
	}
	done(nil)
	topic, correlation := m.Props.ResponseTopic, m.Props.Correlation
	d.want(r, blobWaiter{key: topic + "\x00" + string(correlation), tell: func(a resource.BlobAnswer) {
		payload, err := json.Marshal(a)
		if err != nil {
			d.o.Log.Error().Err(err).Msg("an answer about a blob can't be written")
			return
		}
		d.o.Publish(broker.Message{Topic: topic, Payload: payload, QoS: 1, Props: broker.Properties{Correlation: correlation, ContentType: "application/json"}})
	}})
}

// Retained goes through retained topics; none is about blobs.
func (d *Downloads) Retained(filter string) func(max int) []broker.Message {
	return d.o.Tree.Retained(filter)
}

// Register adds the metrics of blobs.
func (d *Downloads) Register(r prometheus.Registerer) {
	g := metrics.NewGroup("blobs", d.Stats)
	type s = Stats
	g.Gauge("stored", "Blobs on disk.", func(s s) float64 { return float64(s.Stored) })
	g.Gauge("stored_bytes", "Bytes of them and of unfinished downloads, as they will be.", func(s s) float64 { return float64(s.Bytes) })
	g.Gauge("limit_bytes", "limits.blobs.bytes.", func(s) float64 { return float64(d.o.Bytes) })
	g.Counter("removed_total", "Files that were removed to make room, or because they were damaged.", func(s s) float64 { return float64(s.Removed) })
	g.Gauge("downloads", "Blobs that are being downloaded.", func(s s) float64 { return float64(s.Active) })
	g.Gauge("missing_bytes", "Bytes that are missing of these.", func(s s) float64 { return float64(s.Missing) })
	g.Gauge("window_bytes", "Bytes that may be requested and not yet received, so that state is not delayed.", func(s s) float64 { return float64(s.WindowBytes) })
	g.Counter("received_bytes_total", "Bytes of blobs that came from the hub.", func(s s) float64 { return float64(s.Received) })
	g.Counter("repeated_bytes_total", "Of them, bytes that were thrown away: they came too late, or belonged to a content with another digest.", func(s s) float64 { return float64(s.Repeated) })
	g.Counter("downloaded_total", "Downloads that were finished.", func(s s) float64 { return float64(s.Finished) })
	g.Counter("failed_total", "Downloads that failed.", func(s s) float64 { return float64(s.Failed) })
	g.Counter("damaged_total", "Downloads whose content had another digest than was asked for.", func(s s) float64 { return float64(s.Mismatches) })
	r.MustRegister(g)
}
