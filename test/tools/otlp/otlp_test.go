// SPDX-License-Identifier: Apache-2.0

// Package otlp reads what Edgebus sends of traces with the decoder that OpenTelemetry's collector has.
package otlp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"

	"github.com/edgebus/edgebus/broker/daemon/tracing"
)

func TestTheCollectorReadsSpansAsTheyAreMeant(t *testing.T) {
	var body []byte
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { body, _ = io.ReadAll(r.Body) }))
	tracer, err := tracing.New(tracing.Options{Endpoint: collector.URL, Ratio: 1, Service: "edgecore", Version: "v0.9.0", Instance: "n1", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	tracer.Start("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "write to device", tracing.Client, "edgebus.device", "lamp").End(errors.New("no answer"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tracer.Run(ctx); err != nil { // it sends what waits, and ends
		t.Fatal(err)
	}
	collector.Close()

	request := ptraceotlp.NewExportRequest()
	if err := request.UnmarshalJSON(body); err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	resource := request.Traces().ResourceSpans().At(0)
	if name, _ := resource.Resource().Attributes().Get("service.name"); name.Str() != "edgecore" {
		t.Errorf("the resource is %v", resource.Resource().Attributes().AsRaw())
	}
	span := resource.ScopeSpans().At(0).Spans().At(0)
	if span.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" || span.ParentSpanID().String() != "b7ad6b7169203331" || span.SpanID().IsEmpty() {
		t.Errorf("the span is %s in %s below %s", span.SpanID(), span.TraceID(), span.ParentSpanID())
	}
	if span.Name() != "write to device" || span.Kind() != ptrace.SpanKindClient || span.Status().Code() != ptrace.StatusCodeError || span.Status().Message() != "no answer" {
		t.Errorf("the span is %q, %s, %s: %s", span.Name(), span.Kind(), span.Status().Code(), span.Status().Message())
	}
	if took := span.EndTimestamp().AsTime().Sub(span.StartTimestamp().AsTime()); took < 0 || span.StartTimestamp() == 0 {
		t.Errorf("the span took %s from %s", took, span.StartTimestamp())
	}
	if device, _ := span.Attributes().Get("edgebus.device"); device.Str() != "lamp" {
		t.Errorf("the attributes are %v", span.Attributes().AsRaw())
	}
}
