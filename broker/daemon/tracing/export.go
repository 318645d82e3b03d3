// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// What follows is ExportTraceServiceRequest of OTLP 1, as its mapping to JSON has it: identifiers in hexadecimal, 64-bit numbers as text.

type exportRequest struct {
	ResourceSpans []resourceSpans `json:"resourceSpans"`
}

type resourceSpans struct {
	Resource   otlpResource `json:"resource"`
	ScopeSpans []scopeSpans `json:"scopeSpans"`
}

type otlpResource struct {
	Attributes []attribute `json:"attributes"`
}

type scopeSpans struct {
	Scope spanScope  `json:"scope"`
	Spans []otlpSpan `json:"spans"`
}

type spanScope struct {
	Name string `json:"name"`
}

type otlpSpan struct {
	TraceID      string      `json:"traceId"`
	SpanID       string      `json:"spanId"`
	ParentSpanID string      `json:"parentSpanId,omitempty"`
	Name         string      `json:"name"`
	Kind         Kind        `json:"kind"`
	Start        string      `json:"startTimeUnixNano"`
	End          string      `json:"endTimeUnixNano"`
	Attributes   []attribute `json:"attributes,omitempty"`
	Status       *status     `json:"status,omitempty"`
}

type status struct {
	Code    int    `json:"code"`
	Message string `json:"message,omitempty"`
}

const statusError = 2

type attribute struct {
	Key   string         `json:"key"`
	Value attributeValue `json:"value"`
}

type attributeValue struct {
	String string `json:"stringValue"`
}

func newAttribute(key, value string) attribute {
	return attribute{key, attributeValue{strings.ToValidUTF8(value, "\uFFFD")}}
}

// encode is a request with spans.
func (t *Tracer) encode(spans []Span) ([]byte, error) {
	r := resourceSpans{Resource: otlpResource{[]attribute{
		newAttribute("service.name", t.opts.Service), newAttribute("service.version", t.opts.Version), newAttribute("service.instance.id", t.opts.Instance),
	}}}
	list := make([]otlpSpan, 0, len(spans))
	for _, s := range spans {
		out := otlpSpan{
			TraceID: hex.EncodeToString(s.context.Trace[:]), SpanID: hex.EncodeToString(s.context.Span[:]), Name: s.name, Kind: s.kind,
			Start: strconv.FormatInt(s.start.UnixNano(), 10), End: strconv.FormatInt(s.end.UnixNano(), 10),
		}
		if s.end.Before(s.start) { // the clock was set
			out.End = out.Start
		}
		if s.parent != [8]byte{} {
			out.ParentSpanID = hex.EncodeToString(s.parent[:])
		}
		for _, a := range s.attributes {
			out.Attributes = append(out.Attributes, newAttribute(a[0], a[1]))
		}
		if s.failure != "" {
			out.Status = &status{statusError, strings.ToValidUTF8(s.failure, "\uFFFD")}
		}
		list = append(list, out)
	}
	r.ScopeSpans = []scopeSpans{{Scope: spanScope{"github.com/edgebus/edgebus"}, Spans: list}}
	return json.Marshal(exportRequest{[]resourceSpans{r}})
}

// send sends spans in one request; those that the collector doesn't take are dropped.
func (t *Tracer) send(ctx context.Context, spans []Span) {
	if len(spans) == 0 {
		return
	}
	body, err := t.encode(spans)
	if err == nil {
		err = t.post(ctx, body)
	}
	if err != nil {
		t.dropped.Add(uint64(len(spans)))
		if !t.failing {
			t.opts.Log.Warn().Err(err).Str("endpoint", t.shown).Msg("traces are dropped until the collector takes them")
		}
	} else if t.failing {
		t.opts.Log.Info().Msg("the collector takes traces again")
	}
	t.failing = err != nil
}

func (t *Tracer) post(ctx context.Context, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, exportTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := t.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(io.LimitReader(answer.Body, 512))
	if answer.StatusCode/100 == 2 {
		return nil
	}
	return errors.Join(fmt.Errorf("it answered %s: %s", answer.Status, bytes.TrimSpace(said)), err)
}
