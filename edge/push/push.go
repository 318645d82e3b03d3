// SPDX-License-Identifier: Apache-2.0

// Package push sends reported values from the node to the MQTT brokers and HTTP endpoints that Devices name (spec.push).
//
// It never delays reports, and never writes to disk: values wait in bounded queues in memory. A value is lost if its queue is full,
// if an HTTP endpoint fails three times in a row or refuses it, if a broker does not acknowledge it in time, or when the core stops.
package push

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	maxTargets = 64        // brokers and endpoints
	maxWaiting = 1000      // values that wait for one of them
	maxBytes   = 8 << 20   // of all that wait
	maxTries   = 3         // of one value at an HTTP endpoint
	idleTime   = time.Hour // after which an unused target is removed
)

// Value is a reported value, as it is sent in JSON.
type Value struct {
	Node     string `json:"node"`
	Device   string `json:"device"`
	Property string `json:"property"`
	Value    string `json:"value"`
	TS       string `json:"ts"`
}

// Pusher sends values to their targets. Its zero value is not usable.
type Pusher struct {
	log     zerolog.Logger
	timeout time.Duration // of one request, or of one publish
	retry   backoff.Backoff

	mu      sync.Mutex
	targets map[string]*pushTarget
	size    atomic.Int64 // bytes that wait
	lost    atomic.Int64
	ctx     context.Context //nolint:containedctx // Run's: a target's goroutine begins with its first value
	running sync.WaitGroup
}

type pushTarget struct {
	address string
	queue   chan pushJob
}

type pushJob struct {
	to      resource.Push
	payload []byte
}

// New makes a Pusher; Run works for it.
func New(log zerolog.Logger) *Pusher {
	return &Pusher{log: log, timeout: 5 * time.Second, retry: backoff.Backoff{Min: time.Second, Max: 2 * time.Second}, targets: make(map[string]*pushTarget)}
}

// Run sends what is pushed until ctx ends.
func (p *Pusher) Run(ctx context.Context) error {
	p.mu.Lock()
	p.ctx = ctx
	p.mu.Unlock()
	<-ctx.Done()
	p.mu.Lock()
	p.ctx = nil // no goroutine begins from here on
	p.mu.Unlock()
	p.running.Wait()
	return nil
}

// Push queues a value for its targets. It never blocks.
func (p *Pusher) Push(to resource.Push, v Value) {
	payload, err := json.Marshal(v)
	if err != nil {
		return // never: all fields are strings
	}
	if m := to.MQTT; m != nil {
		p.put("mqtt "+m.Address, m.Address, pushJob{to, payload})
	}
	if h := to.HTTP; h != nil {
		p.put("http "+h.URL, h.URL, pushJob{to, payload})
	}
}

func (p *Pusher) put(key, address string, j pushJob) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx == nil || p.ctx.Err() != nil {
		p.drop(address, "the core is starting or stopping")
		return
	}
	t := p.targets[key]
	if t == nil && len(p.targets) >= maxTargets {
		p.drop(address, fmt.Sprintf("%d brokers and endpoints are in use, and no more are possible", maxTargets))
		return
	}
	if t == nil {
		t = &pushTarget{address: address, queue: make(chan pushJob, maxWaiting)}
		p.targets[key] = t
		ctx := p.ctx
		p.running.Go(func() { p.serve(ctx, key, t, j.to.MQTT != nil && strings.HasPrefix(key, "mqtt ")) })
	}
	if p.size.Load()+int64(len(j.payload)) > maxBytes {
		p.drop(address, fmt.Sprintf("values of %d MiB wait, and no more are possible", maxBytes>>20))
		return
	}
	select {
	case t.queue <- j:
		p.size.Add(int64(len(j.payload)))
	default:
		p.drop(address, fmt.Sprintf("%d values wait for it, and no more are possible", maxWaiting))
	}
}

// drop counts a lost value, and logs the first, the second, the fourth, the eighth and so on.
func (p *Pusher) drop(address, why string) {
	if n := p.lost.Add(1); n&(n-1) == 0 {
		p.log.Warn().Str("to", hostOf(address)).Str("why", why).Int64("lost", n).Msg("a reported value was not pushed")
	}
}

// hostOf is what a log says of a target: its path or query may have a token.
func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return "a target that is no URL"
	}
	return u.Scheme + "://" + u.Host
}

// serve sends the values for one target, one after the other.
func (p *Pusher) serve(ctx context.Context, key string, t *pushTarget, mqtt bool) {
	send, done := p.post, func() {}
	if mqtt {
		send, done = p.publisher(ctx, t.address)
	}
	defer done()
	unused := time.NewTimer(idleTime)
	defer unused.Stop()
	for {
		select {
		case j := <-t.queue:
			if err := send(ctx, j); err != nil {
				if u := (*url.Error)(nil); errors.As(err, &u) {
					err = u.Err // without the URL
				}
				p.drop(t.address, err.Error())
			}
			p.size.Add(-int64(len(j.payload)))
			unused.Reset(idleTime)
		case <-unused.C:
			p.mu.Lock()
			if len(t.queue) == 0 {
				delete(p.targets, key)
				p.mu.Unlock()
				return
			}
			p.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

// httpClient doesn't follow redirects: a value goes only to the endpoint that the Device names.
var httpClient = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// post sends a value over HTTP, up to three times.
func (p *Pusher) post(ctx context.Context, j pushJob) (err error) {
	for try := range maxTries {
		if try > 0 {
			if !backoff.Sleep(ctx, p.retry.Wait(try-1)) {
				return err
			}
		}
		var final bool
		if final, err = p.postOnce(ctx, j); err == nil || final {
			return err
		}
	}
	return err
}

func (p *Pusher) postOnce(ctx context.Context, j pushJob) (final bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, j.to.HTTP.URL, bytes.NewReader(j.payload))
	if err != nil {
		return true, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := httpClient.Do(req)
	if err != nil {
		return false, err
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // so that the connection can be used again
	if resp.StatusCode/100 == 2 {
		return false, nil
	}
	again := resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests
	return !again, fmt.Errorf("it answered %s", resp.Status)
}

// publisher sends values to a broker, over a connection that lasts as long as its target.
func (p *Pusher) publisher(ctx context.Context, address string) (send func(context.Context, pushJob) error, done func()) {
	c, err := client.New(client.Options{Servers: []string{resource.PushServer(address)}, CleanStart: true, MaxPending: maxWaiting, Log: p.log})
	if err != nil {
		return func(context.Context, pushJob) error { return err }, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		_ = c.Run(ctx) // it ends with ctx
		close(ended)
	}()
	send = func(ctx context.Context, j pushJob) error {
		m := j.to.MQTT
		ctx, cancel := context.WithTimeout(ctx, p.timeout)
		defer cancel()
		return c.Publish(ctx, client.Message{Topic: m.Topic, Payload: j.payload, QoS: byte(m.QoS), Retain: m.Retain}) // QoS is 0 to 2: it was checked
	}
	return send, func() { cancel(); <-ended }
}
