// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/topics/trace"
)

const sampledParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// runCollector runs use with a Tracer until that ends, and returns the requests that the collector has got.
func runCollector(t *testing.T, answer int, use func(*Tracer)) (requests []string, tracer *Tracer) {
	t.Helper()
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path != "/v1/traces" || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
		}
		requests = append(requests, string(body))
		w.WriteHeader(answer)
	}))
	tracer, err := New(Options{Endpoint: collector.URL, Ratio: 1, Service: "edgecore", Version: "v1", Instance: "n1", Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- tracer.Run(ctx) }()
	use(tracer)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	collector.Close()
	return requests, tracer
}

func TestSpansReachTheCollectorBeforeTheProgramEnds(t *testing.T) {
	requests, _ := runCollector(t, http.StatusOK, func(tracer *Tracer) {
		span := tracer.Start(sampledParent, "write to device", Client, "edgebus.device", "lamp")
		tracer.Follow(span.Traceparent(), "store reported", Consumer).End(nil)
		span.End(errors.New("no answer\xff"))
		tracer.Follow("", "of no trace", Consumer).End(nil)
	})
	if len(requests) != 1 {
		t.Fatalf("there were the requests %v", requests)
	}
	var got exportRequest
	if err := json.Unmarshal([]byte(requests[0]), &got); err != nil {
		t.Fatal(err)
	}
	spans := got.ResourceSpans[0].ScopeSpans[0].Spans
	if len(spans) != 2 || spans[0].TraceID != "0af7651916cd43dd8448eb211c80319c" || spans[0].ParentSpanID != spans[1].SpanID || spans[1].ParentSpanID != "b7ad6b7169203331" {
		t.Errorf("the spans are %+v", spans)
	}
	if s := spans[1]; s.Kind != Client || s.Status == nil || s.Status.Code != statusError || s.Attributes[0] != newAttribute("edgebus.device", "lamp") || s.Start > s.End {
		t.Errorf("the span is %+v", s)
	}
	if !strings.Contains(requests[0], `{"key":"service.name","value":{"stringValue":"edgecore"}}`) {
		t.Errorf("the request is %s", requests[0])
	}
}

func TestATraceThatIsNotRecordedIsHandedOn(t *testing.T) {
	unsampled := strings.TrimSuffix(sampledParent, "1") + "0"
	requests, _ := runCollector(t, http.StatusOK, func(tracer *Tracer) {
		if got := tracer.Start(unsampled, "x", Server).Traceparent(); got != unsampled {
			t.Errorf("what follows is of %s", got)
		}
		tracer.opts.Ratio = 0
		span := tracer.Start("", "x", Server)
		if c, ok := trace.Parse(span.Traceparent()); !ok || c.Sampled {
			t.Errorf("a trace that begins is %s", span.Traceparent())
		}
		span.End(nil)
	})
	if len(requests) > 0 {
		t.Errorf("there were the requests %v", requests)
	}
	var none *Tracer
	if got := none.Start(sampledParent, "x", Server).Traceparent(); got != sampledParent {
		t.Errorf("without a Tracer what follows is of %q", got)
	}
	if got := none.Start("", "x", Server).Traceparent(); got != "" {
		t.Errorf("without a Tracer a trace begins: %q", got)
	}
}

func TestSpansThatNobodyTakesAreCounted(t *testing.T) {
	_, tracer := runCollector(t, http.StatusServiceUnavailable, func(tracer *Tracer) { tracer.Start("", "x", Server).End(nil) })
	if tracer.dropped.Load() != 1 {
		t.Errorf("%d spans were dropped", tracer.dropped.Load())
	}
	tracer.queue = make(chan Span) // nobody takes them any more
	tracer.Start("", "x", Server).End(nil)
	if tracer.dropped.Load() != 2 {
		t.Errorf("%d spans were dropped", tracer.dropped.Load())
	}
}

func TestAnEndpointIsAURL(t *testing.T) {
	for _, bad := range []string{"127.0.0.1:4318", "grpc://127.0.0.1", "http://"} {
		if _, err := New(Options{Endpoint: bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
