// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"slices"
	"strings"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/tracing"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/trace"
)

// Spans are those of a batch's steps, by the topics of what they change. A nil one has none.
type Spans map[string]tracing.Span

// Add adds a span, if it belongs to a trace. It returns the map, which it makes if there is none.
func (s Spans) Add(topic string, span tracing.Span) Spans {
	if span.Traceparent() == "" {
		return s
	}
	if s == nil {
		s = make(Spans)
	}
	s[topic] = span
	return s
}

// Mark is a message with the trace that it belongs to.
func (s Spans) Mark(m broker.Message) broker.Message {
	if span, ok := s[m.Topic]; ok {
		m.Props.User = append(slices.Clip(m.Props.User), broker.UserProperty{Key: trace.Property, Value: span.Traceparent()})
	}
	return m
}

// End ends all of them.
func (s Spans) End(err error) {
	for _, span := range s {
		span.End(err)
	}
}

const (
	maxLinkTraces    = 1024 // keys of a node's map whose trace waits for the link
	maxMessageTraces = 16   // in one message of the link
)

// LinkTraces are the spans of the keys that the link has not sent yet. They are kept in memory alone: after a restart a value has no trace.
type LinkTraces map[string]tracing.Span

// Put notes that a key was changed by what the span is of. The map is not nil.
func (l LinkTraces) Put(key string, span tracing.Span) {
	old, waits := l[key]
	old.End(nil) // a later value takes its place
	switch {
	case span.Traceparent() != "" && (waits || len(l) < maxLinkTraces):
		l[key] = span
	default:
		delete(l, key)
		span.End(nil)
	}
}

// Take ends the spans of what a message of the link sends, and returns them in the form that they have in its user properties: the name is
// that of trace.Property, and the value is the traceparent and the key.
func (l LinkTraces) Take(entries []link.Entry) (traces []string) {
	if len(l) == 0 {
		return nil
	}
	for i := range entries {
		key := entries[i].Key
		span, ok := l[key]
		if !ok {
			continue
		}
		span.End(nil)
		delete(l, key)
		if len(traces) < maxMessageTraces {
			traces = append(traces, span.Traceparent()+" "+key)
		}
	}
	return traces
}

// ParseTraces reads such values, by key. What is none is ignored.
func ParseTraces(values []string) map[string]string {
	var traces map[string]string
	for _, v := range values[:min(len(values), maxMessageTraces)] {
		traceparent, key, _ := strings.Cut(v, " ")
		if traceparent = trace.ValidTraceparent(traceparent); traceparent == "" || key == "" {
			continue
		}
		if traces == nil {
			traces = make(map[string]string)
		}
		traces[key] = traceparent
	}
	return traces
}
