// SPDX-License-Identifier: Apache-2.0

// Package tracing records how long the steps of a desired write take, and sends that to a collector of OpenTelemetry: OTLP over HTTP, in
// its encoding as JSON.
//
// It never makes what it records wait: spans that the collector doesn't take in time are dropped, which is logged. Without a Tracer nothing is
// recorded, and a trace that others have begun is handed on.
//
// # Files, in reading order
//
//	tracing.go  Tracer, Span
//	export.go   spans as OTLP, and their way to the collector
package tracing

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/topics/trace"
)

const (
	maxQueue       = 2048            // spans that wait for the collector
	maxBatch       = 512             // spans in one request
	exportInterval = 2 * time.Second // the longest time that a span waits for others
	exportTimeout  = 5 * time.Second // of a request
	maxAttribute   = 256             // bytes of an attribute's value
)

// Options are what a Tracer needs.
type Options struct {
	Endpoint string  // of the collector, such as http://127.0.0.1:4318
	Ratio    float64 // the part of the traces that begin here which is recorded, from 0 to 1
	Service  string  // the program
	Version  string
	Instance string // the node or host
	Log      zerolog.Logger
}

// Tracer records spans. A nil one records nothing.
type Tracer struct {
	opts    Options
	url     string
	shown   string // the same without a password, for the log
	client  *http.Client
	queue   chan Span
	dropped atomic.Uint64
	failing bool // the last request failed: it was logged
}

// New makes a Tracer, or none if there is no endpoint. Its Run sends what is recorded.
func New(o Options) (*Tracer, error) {
	if o.Endpoint == "" {
		return nil, nil //nolint:nilnil // a nil Tracer is one
	}
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("tracing.endpoint: %q: must be a URL such as http://127.0.0.1:4318", o.Endpoint)
	}
	u = u.JoinPath("v1", "traces")
	return &Tracer{
		opts: o, url: u.String(), shown: u.Redacted(), client: &http.Client{Timeout: exportTimeout}, queue: make(chan Span, maxQueue),
	}, nil
}

// Kind is what a span is in OpenTelemetry.
type Kind int

// The kinds that there are here.
const (
	Internal Kind = 1
	Server   Kind = 2
	Client   Kind = 3
	Producer Kind = 4
	Consumer Kind = 5
)

// Span is a step that takes time. The zero Span is of no trace.
type Span struct {
	tracer     *Tracer
	context    trace.SpanContext
	parent     [8]byte
	name       string
	kind       Kind
	start, end time.Time
	attributes [][2]string
	failure    string
}

// Start begins a span below traceparent, or a trace, where that is empty or none. Attributes are pairs of names and values. Of a trace that
// is not recorded, or without a Tracer, it is the parent.
func (t *Tracer) Start(traceparent, name string, kind Kind, attributes ...string) Span {
	parent, known := trace.Parse(traceparent)
	switch {
	case t == nil, known && !parent.Sampled:
		return Span{context: parent}
	case !known:
		parent = trace.NewTrace(true)
		if !t.samples(parent) {
			parent.Sampled = false
			return Span{context: parent}
		}
	}
	s := Span{tracer: t, context: parent.Child(), name: name, kind: kind, start: time.Now()}
	if known {
		s.parent = parent.Span
	}
	for i := 0; i+1 < len(attributes); i += 2 {
		s.attributes = append(s.attributes, [2]string{attributes[i], attributes[i+1][:min(len(attributes[i+1]), maxAttribute)]})
	}
	return s
}

// Follow is Start where only what belongs to a trace is recorded.
func (t *Tracer) Follow(traceparent, name string, kind Kind, attributes ...string) Span {
	if traceparent == "" {
		return Span{}
	}
	return t.Start(traceparent, name, kind, attributes...)
}

// samples decides by the trace's identifier.
func (t *Tracer) samples(c trace.SpanContext) bool {
	return float64(binary.BigEndian.Uint64(c.Trace[8:])>>11)/(1<<53) < t.opts.Ratio
}

// Traceparent is what is given to what happens because of the span; empty: it is of no trace.
func (s Span) Traceparent() string { return s.context.String() }

// End ends the span: it has failed if there is an error.
func (s Span) End(err error) {
	if s.tracer == nil {
		return
	}
	if err != nil {
		s.failure = err.Error()
		s.failure = s.failure[:min(len(s.failure), maxAttribute)]
	}
	s.end = time.Now()
	select {
	case s.tracer.queue <- s:
	default:
		s.tracer.dropped.Add(1)
	}
}

// Ended is the span after its end: what happens because of it may still follow.
func (s Span) Ended() Span { return Span{context: s.context} }

// Run sends spans until ctx ends, and then those that wait.
func (t *Tracer) Run(ctx context.Context) error {
	if t == nil {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(exportInterval)
	defer tick.Stop()
	var batch []Span
	for {
		select {
		case s := <-t.queue:
			if batch = append(batch, s); len(batch) < maxBatch {
				continue
			}
		case <-tick.C:
		case <-ctx.Done():
			ended, cancel := context.WithTimeout(context.WithoutCancel(ctx), exportInterval)
			defer cancel()
			for len(t.queue) > 0 && len(batch) < maxQueue {
				batch = append(batch, <-t.queue)
			}
			t.send(ended, batch)
			return nil
		}
		t.send(ctx, batch)
		batch = batch[:0]
	}
}
