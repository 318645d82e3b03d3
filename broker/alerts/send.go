// SPDX-License-Identifier: Apache-2.0

package alerts

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
)

const (
	maxUnsent    = 1000 // changes that wait for a receiver
	maxBatch     = 100  // alerts in a request
	sendTimeout  = 10 * time.Second
	firstRetry   = time.Second
	lastRetry    = time.Minute
	repeatFiring = time.Minute // Alertmanager is told again of what fires, and takes it for ended otherwise
)

// Receivers are who is told of alerts. Empty ones are nobody.
type Receivers struct {
	Webhook      Endpoint // gets the JSON that Alertmanager sends to its webhooks
	Alertmanager Endpoint // API version 2, without /api/v2/alerts
	Topic        string   // of the broker's own, each change as JSON
}

// Endpoint is an address that alerts are sent to.
type Endpoint struct {
	URL       string
	TokenFile string // holds a bearer token; empty: none
	CA        string // file with authorities that are trusted for it; empty: the system's
}

// ReceiverReport is how it stands with a receiver.
type ReceiverReport struct {
	Name      string `json:"name"`
	Waiting   int    `json:"waiting"`
	Sent      int64  `json:"sent"`
	Lost      int64  `json:"lost"`
	LastError string `json:"lastError,omitempty"` // why it does not take what waits
}

// errRefused is of what would be refused again.
var errRefused = errors.New("refused for good")

// outbox has what a receiver has not got yet.
type outbox struct {
	name   string
	send   func(ctx context.Context, list []Alert) error
	repeat bool // it is told of what fires time and again, and gets the newest state of an alert only
	log    zerolog.Logger
	wake   chan struct{}

	mu       sync.Mutex
	unsent   []Alert
	repeated time.Time
	again    int // how many fired then: they are no changes, and have room besides
	sent     int64
	lost     int64
	failed   error
}

// open makes the outboxes of receivers.
func (r Receivers) open(publish func(broker.Message), log zerolog.Logger) (list []*outbox, err error) {
	add := func(name string, repeat bool, send func(context.Context, []Alert) error) {
		list = append(list, &outbox{name: name, send: send, repeat: repeat, wake: make(chan struct{}, 1), log: log.With().Str("receiver", name).Logger()})
	}
	if r.Webhook.URL != "" {
		post, err := r.Webhook.poster(r.Webhook.URL)
		if err != nil {
			return nil, fmt.Errorf("alerts.webhook: %w", err)
		}
		add("webhook", false, func(ctx context.Context, list []Alert) error { return post(ctx, webhookBody(list)) })
	}
	if r.Alertmanager.URL != "" {
		post, err := r.Alertmanager.poster(strings.TrimSuffix(r.Alertmanager.URL, "/") + "/api/v2/alerts")
		if err != nil {
			return nil, fmt.Errorf("alerts.alertmanager: %w", err)
		}
		add("alertmanager", true, func(ctx context.Context, list []Alert) error { return post(ctx, list) })
	}
	if r.Topic != "" {
		add("topic", false, func(_ context.Context, list []Alert) error {
			for _, a := range list {
				text, err := json.Marshal(statusAlert{a.status(), a})
				if err != nil {
					return err
				}
				publish(broker.Message{Topic: r.Topic, Payload: text, QoS: 1})
			}
			return nil
		})
	}
	return list, nil
}

// statusAlert is an alert as webhooks get it.
type statusAlert struct {
	Status string `json:"status"`
	Alert
}

func (a *Alert) status() string {
	if a.EndsAt.IsZero() {
		return "firing"
	}
	return "resolved"
}

// webhookBody is what Alertmanager sends to its webhooks.
func webhookBody(list []Alert) any {
	body := struct {
		Version  string        `json:"version"`
		GroupKey string        `json:"groupKey"`
		Status   string        `json:"status"`
		Receiver string        `json:"receiver"`
		Alerts   []statusAlert `json:"alerts"`
	}{Version: "4", GroupKey: "{}:{}", Status: "resolved", Receiver: "edgebus"}
	for _, a := range list {
		if a.EndsAt.IsZero() {
			body.Status = "firing"
		}
		body.Alerts = append(body.Alerts, statusAlert{a.status(), a})
	}
	return body
}

// poster makes a function that sends JSON.
func (e Endpoint) poster(address string) (func(ctx context.Context, body any) error, error) {
	to, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("it is no URL") // which may have a secret in it
	}
	client := &http.Client{Timeout: sendTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if e.CA != "" {
		text, err := os.ReadFile(e.CA)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificate", e.CA)
		}
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		client.Transport = transport
	}
	return func(ctx context.Context, body any) error {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), bytes.NewReader(text))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		if e.TokenFile != "" {
			token, err := os.ReadFile(e.TokenFile)
			if err != nil {
				return err
			}
			r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
		}
		res, err := client.Do(r)
		if failed := (*url.Error)(nil); errors.As(err, &failed) { // the path of a webhook is a secret, for many services
			return fmt.Errorf("%s: %w", to.Host, failed.Err)
		}
		if err != nil {
			return err
		}
		defer func() { _ = res.Body.Close() }()
		said, _ := io.ReadAll(io.LimitReader(res.Body, 300)) // for the message only
		switch {
		case res.StatusCode < 300:
			return nil
		case res.StatusCode == http.StatusRequestTimeout || res.StatusCode == http.StatusTooManyRequests || res.StatusCode >= 500 || res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden:
			return fmt.Errorf("%s: %s", res.Status, bytes.TrimSpace(said))
		}
		return fmt.Errorf("%w: %s: %s", errRefused, res.Status, bytes.TrimSpace(said))
	}, nil
}

// give adds what has changed.
func (b *outbox) give(changes []Alert) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(changes)
}

// giveAgain adds what fires, to a receiver that is told so time and again, when it is time.
func (b *outbox) giveAgain(firing func() []Alert, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.repeat || now.Sub(b.repeated) < repeatFiring {
		return
	}
	b.repeated = now
	list := firing()
	b.again = len(list)
	b.add(list)
}

// add adds to what waits. The caller holds the lock.
func (b *outbox) add(list []Alert) {
	if len(list) == 0 {
		return
	}
	if b.repeat { // the newest state of each
		is := make(map[alertState]bool, len(list))
		for i := range list {
			is[list[i].state(false)] = true
		}
		b.unsent = slices.DeleteFunc(b.unsent, func(old Alert) bool { return is[old.state(false)] })
	}
	b.unsent = append(b.unsent, list...)
	if over := len(b.unsent) - maxUnsent - b.again; over > 0 {
		b.lose(over, errors.New("too many wait for it"))
		b.unsent = slices.Delete(b.unsent, 0, over)
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// alertState tells what was said of an alert from what is said now.
type alertState struct {
	key        string
	start, end int64
}

func (a *Alert) state(ended bool) alertState {
	s := alertState{key: a.key(), start: a.StartsAt.UnixMicro()}
	if ended {
		s.end = a.EndsAt.UnixMicro()
	}
	return s
}

// lose counts what the receiver will never get, and tells it. The caller holds the lock.
func (b *outbox) lose(n int, why error) {
	b.lost += int64(n)
	b.log.Error().Err(why).Int("alerts", n).Int64("in all", b.lost).Msg("alerts could not be sent on, and are lost")
}

// run sends what waits, and tries again what failed, until the context ends.
func (b *outbox) run(ctx context.Context) {
	retry := firstRetry
	for {
		switch err := b.sendSome(ctx); {
		case err == nil:
			retry = firstRetry
			select {
			case <-ctx.Done():
				return
			case <-b.wake:
			}
		default:
			select {
			case <-ctx.Done():
				return
			case <-time.After(retry):
			}
			retry = min(2*retry, lastRetry)
		}
	}
}

// sendSome sends what waits, until there is nothing more.
func (b *outbox) sendSome(ctx context.Context) error {
	for {
		b.mu.Lock()
		list := slices.Clone(b.unsent[:min(len(b.unsent), maxBatch)])
		b.mu.Unlock()
		if len(list) == 0 {
			return nil
		}
		err := b.send(ctx, list)
		tried := make(map[alertState]bool, len(list))
		for i := range list {
			tried[list[i].state(true)] = true
		}
		done := func(a Alert) bool { return tried[a.state(true)] } // it may have been replaced, or dropped, meanwhile
		b.mu.Lock()
		switch {
		case err == nil:
			b.sent += int64(len(list))
			b.failed = nil
			b.unsent = slices.DeleteFunc(b.unsent, done)
		case errors.Is(err, errRefused):
			b.failed = err
			b.lose(len(list), err)
			b.unsent = slices.DeleteFunc(b.unsent, done)
			err = nil
		default:
			if b.failed == nil && ctx.Err() == nil {
				b.log.Warn().Err(err).Msg("alerts can't be sent on: tried again until it works")
			}
			b.failed = err
		}
		b.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

func (b *outbox) report() ReceiverReport {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := ReceiverReport{Name: b.name, Waiting: len(b.unsent), Sent: b.sent, Lost: b.lost}
	if b.failed != nil {
		r.LastError = b.failed.Error()
	}
	return r
}

// Register exposes the metrics.
func (a *Alerts) Register(r prometheus.Registerer) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "edgebus", Subsystem: "alerts", Name: "firing", Help: "Conditions that are worth a look, as the rules for Prometheus are, by the program's own metrics.",
	}, func() float64 { return float64(len(a.Firing())) }))
	for _, b := range a.receivers {
		labels := prometheus.Labels{"receiver": b.name}
		for name, of := range map[string]func(ReceiverReport) int64{
			"sent_total": func(r ReceiverReport) int64 { return r.Sent }, "lost_total": func(r ReceiverReport) int64 { return r.Lost },
		} {
			r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
				Namespace: "edgebus", Subsystem: "alerts", Name: name, ConstLabels: labels, Help: "Alerts that a receiver of alerts has got, or that it will never get.",
			}, func() float64 { return float64(of(b.report())) }))
		}
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "edgebus", Subsystem: "alerts", Name: "waiting", ConstLabels: labels, Help: "Changes of alerts that a receiver has not taken yet.",
		}, func() float64 { return float64(b.report().Waiting) }))
	}
}
