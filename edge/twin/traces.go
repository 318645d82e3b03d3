// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/tracing"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/trace"
)

// traceReceived begins the span of a desired value that has come from the hub. It ends when the value is in force, and published.
func (t *Twin) traceReceived(b *batch, key, traceparent string) {
	b.spans = b.spans.Add(topics.TopicOf(t.opts.Node, key), t.opts.Traces.Follow(traceparent, "receive desired", tracing.Consumer, "edgebus.node", t.opts.Node, "edgebus.key", key))
}

// tracePublish begins the spans of what a client has published: an override, which may begin a trace, or what a mapper says because of a
// desired value. They end when it is stored, and published.
func (t *Twin) tracePublish(b *batch, a topics.Address, m broker.Message) {
	start, kind, name := t.opts.Traces.Follow, a.Kind, ""
	switch a.Kind {
	case topics.KindDesired, topics.KindDesiredAll:
		start, kind, name = t.opts.Traces.Start, topics.KindDesired, "publish override"
	case topics.KindReported, topics.KindReportedAll:
		kind, name = topics.KindReported, "store reported"
	case topics.KindRefused:
		name = "store refused"
	default:
		return
	}
	traceparent := ""
	for _, p := range m.Props.User {
		if p.Key == trace.Property {
			traceparent = trace.ValidTraceparent(p.Value)
		}
	}
	if traceparent == "" && (t.opts.Traces == nil || kind != topics.KindDesired) {
		return
	}
	properties := []string{a.Name}
	if a.Name == "" {
		properties = properties[:0]
		for _, v := range b.members {
			properties = append(properties, v.Property)
		}
	}
	for _, property := range properties {
		key := topics.DeviceKey(a.Device, kind, property)
		b.spans = b.spans.Add(topics.TopicOf(t.opts.Node, key), start(traceparent, name, tracing.Consumer,
			"messaging.system", "mqtt", "edgebus.node", t.opts.Node, "edgebus.device", a.Device, "edgebus.property", property))
	}
}

// endSpans ends the spans of a batch. What the hub gets of it is in the same traces.
func (t *Twin) endSpans(b *batch) {
	b.spans.End(b.failed)
	if b.failed != nil {
		return
	}
	for topic, span := range b.spans {
		if a, err := topics.Parse(topic); err == nil && a.Kind.Row().Owner == topics.OwnerEdge {
			t.link.traces.Put(a.Key(), span.Ended())
		}
	}
}
