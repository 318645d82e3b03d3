// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/stand"
)

// traceCollector takes OTLP over HTTP.
type traceCollector struct {
	*httptest.Server
	mu    sync.Mutex
	spans map[string][]recordedSpan // by trace
}

type recordedSpan struct {
	TraceID      string `json:"traceId"`
	SpanID       string `json:"spanId"`
	ParentSpanID string `json:"parentSpanId"`
	Name         string `json:"name"`
}

func newTraceCollector(t *testing.T) *traceCollector {
	c := &traceCollector{spans: map[string][]recordedSpan{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var request struct {
			ResourceSpans []struct {
				ScopeSpans []struct{ Spans []recordedSpan }
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			t.Error(err)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, s := range request.ResourceSpans[0].ScopeSpans[0].Spans {
			c.spans[s.TraceID] = append(c.spans[s.TraceID], s)
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// path is the way of a trace: its spans from the first to the last, each below the one before.
func (c *traceCollector) path(trace, parent string) (names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		at := slices.IndexFunc(c.spans[trace], func(s recordedSpan) bool { return s.ParentSpanID == parent })
		if at < 0 {
			return names
		}
		names, parent = append(names, c.spans[trace][at].Name), c.spans[trace][at].SpanID
	}
}

const (
	clientSpan = "b7ad6b7169203331"
	httpTrace  = "0af7651916cd43dd8448eb211c80319c"
	mqttTrace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	quietTrace = "5bf92f3577b34da6a3ce929d0e0e4736"
)

func TestADesiredWriteIsTracedToTheDeviceAndBack(t *testing.T) {
	t.Parallel()
	s := stand.New(t, 1)
	collector := newTraceCollector(t)
	flags := []string{"--tracing-endpoint", collector.URL}
	require.NoError(t, s.Start(t.Context(), "hub", flags...))
	for _, sample := range []string{"1-dimmable-lamp.yaml", "2-lamp.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "configs", "samples", sample))
		require.NoError(t, err)
		s.Create(strings.ReplaceAll(string(text), "nodeName: demo", "nodeName: n1"))
	}
	require.NoError(t, s.Start(t.Context(), "core", flags...))
	require.NoError(t, s.Start(t.Context(), "virtual", flags...))
	watch := s.Watch(s.Hub.MQTT, deviceTree+"lamp/#", nil)
	watch.Await(deviceTree+"lamp/state", "online")

	request, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, s.DeviceURL("lamp"), strings.NewReader(`{"spec":{"desired":{"power":"ON"}}}`))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/merge-patch+json")
	request.Header.Set("traceparent", "00-"+httpTrace+"-"+clientSpan+"-01")
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)

	way := []string{"send desired", "receive desired", "write to device", "store reported", "update status"}
	arrives := func(trace string, want ...string) {
		t.Helper()
		s.Eventually(stand.WaitTimeout, func() error {
			if got := collector.path(trace, clientSpan); !slices.Equal(got, want) {
				return fmt.Errorf("the trace is %q", got)
			}
			return nil
		})
	}
	arrives(httpTrace, append([]string{"write device"}, way...)...)

	c := s.Client(s.Hub.MQTT, nil)
	traced := func(trace, flag string) client.UserProperty {
		return client.UserProperty{Key: "traceparent", Value: "00-" + trace + "-" + clientSpan + "-" + flag}
	}
	require.NoError(t, s.Publish(c, deviceTree+"lamp/desired/power", "OFF", traced(mqttTrace, "01")))
	arrives(mqttTrace, append([]string{"publish desired"}, way...)...)

	// Who has begun a trace says whether it is recorded; it is handed on all the same.
	require.NoError(t, s.Publish(c, deviceTree+"lamp/desired/brightness", "40", traced(quietTrace, "00")))
	watch.Await(deviceTree+"lamp/reported/brightness", "40")
	require.Empty(t, collector.path(quietTrace, clientSpan))

	for _, program := range []string{"hub", "core", "virtual"} {
		log, err := os.ReadFile(s.LogFile(program))
		require.NoError(t, err)
		require.Contains(t, string(log), `"trace_id":"`+httpTrace+`"`, "the log of %s", program)
	}
}
