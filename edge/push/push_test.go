// SPDX-License-Identifier: Apache-2.0

package push

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

func startPusher(t *testing.T) *Pusher {
	p := New(zerolog.Nop())
	p.retry = backoff.Backoff{Min: time.Millisecond, Max: time.Millisecond}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	require.Eventually(t, func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.ctx != nil }, 30*time.Second, time.Millisecond)
	return p
}

func pushTo(url string) resource.Push {
	return resource.Push{PropertyName: "power", HTTP: &resource.PushHTTP{URL: url}}
}

// An endpoint gets each value, in order; one that fails is asked three times, one that refuses once, and what it leads to never.
func TestReportsArePushedOverHTTP(t *testing.T) {
	p := startPusher(t)
	bodies := make(chan string, 100)
	var asked atomic.Int64
	answer := atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if code := answer.Load(); code != 0 {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(int(code))
			return
		}
		raw, _ := io.ReadAll(r.Body)
		bodies <- r.Header.Get("Content-Type") + " " + string(raw)
	}))
	t.Cleanup(s.Close)
	for _, v := range []string{"ON", "OFF"} {
		p.Push(pushTo(s.URL), Value{Node: "n1", Device: "lamp", Property: "power", Value: v, TS: "2026-11-21T10:00:00.000Z"})
		require.Equal(t, `application/json {"node":"n1","device":"lamp","property":"power","value":"`+v+`","ts":"2026-11-21T10:00:00.000Z"}`, <-bodies)
	}
	for code, want := range map[int64]int64{500: maxTries, 404: 1, 302: 1} {
		answer.Store(code)
		before, lost := asked.Load(), p.Lost()
		p.Push(pushTo(s.URL), Value{Value: "x"})
		require.Eventually(t, func() bool { return p.Lost() == lost+1 }, 30*time.Second, time.Millisecond)
		require.Equal(t, want, asked.Load()-before, code)
	}
}

// An endpoint that never answers holds up nobody else, and what waits for it is bounded.
func TestPushesAreBounded(t *testing.T) {
	p := startPusher(t)
	stuck := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-stuck:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() { close(stuck); s.Close() })
	for range maxWaiting + 50 {
		p.Push(pushTo(s.URL), Value{Value: "x"})
	}
	require.GreaterOrEqual(t, p.Lost(), int64(49), "one may be on its way")
	got := make(chan struct{}, 1)
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got <- struct{}{} }))
	t.Cleanup(other.Close)
	p.Push(pushTo(other.URL), Value{Value: "x"})
	<-got
	lost := p.Lost()
	for range 20 {
		p.Push(pushTo(s.URL+"/big"), Value{Value: strings.Repeat("x", 1<<20)})
	}
	require.GreaterOrEqual(t, p.Lost()-lost, int64(12), "bytes are bounded as well")
	for i := range 2 * maxTargets {
		p.Push(pushTo(s.URL+"/"+string(rune('a'+i%26))+string(rune('a'+i/26))), Value{Value: "x"})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	require.LessOrEqual(t, len(p.targets), maxTargets)
}

// Lost is the number of values that were not pushed.
func (p *Pusher) Lost() int64 { return p.lost.Load() }
