// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/backoff"
)

const (
	// forwardWindow is how many messages are taken from the link queue before the first of them is done with.
	forwardWindow = 20_000
	leastShare    = 100 // of them for each Rule
	postTimeout   = 10 * time.Second
)

// messageShare is what may wait for the server of one Rule. Together all leave room for another Rule: those whose servers don't answer hold up no other.
type messageShare struct{ messages, bytes int }

func (e *Engine) shareOf(senders int) messageShare {
	return messageShare{max(leastShare, e.window/(senders+1)), e.o.Bytes / (senders + 1)}
}

// takenMessage is a message that was taken from the link queue.
type takenMessage struct {
	broker.LinkMessage
	left atomic.Int32 // Rules that are not done with it
}

// forward sends what nodes have sent to where Rules say, until ctx ends.
func (e *Engine) forward(ctx context.Context) {
	in := e.o.Take(e.window)
	defer in.Close()
	senders := make(map[store.Key]*ruleSender)
	var running sync.WaitGroup
	defer running.Wait()
	for {
		for m, ok := in.Next(); ok && ctx.Err() == nil; m, ok = in.Next() {
			list := e.rulesOf(m.Topic)
			taken := &takenMessage{LinkMessage: m}
			taken.left.Store(int32(len(list)))
			if len(list) == 0 { // of a Rule that was deleted
				acknowledgeMessage(in, m.ID)
			}
			for _, rule := range list {
				s := senders[rule.key]
				if s == nil {
					s = &ruleSender{e: e, in: in, key: rule.key, woken: make(chan struct{}, 1)}
					senders[rule.key] = s
					running.Go(func() { s.run(ctx) })
					for _, other := range senders {
						other.trim(e.shareOf(len(senders)))
					}
				}
				s.add(taken, e.shareOf(len(senders)))
			}
		}
		select {
		case <-in.Ready():
		case <-e.routed: // Rules that are gone drop what waits for them
			for key, s := range senders {
				if e.activeOf(key) == nil {
					s.ended.Store(true)
					delete(senders, key)
				}
				wakeUp(s.woken)
			}
		case <-ctx.Done():
			return
		}
	}
}

func acknowledgeMessage(in *broker.LinkConsumer, id uint16) {
	if id != 0 {
		in.Acknowledge(id)
	}
}

// ruleSender sends the messages of a Rule, in order.
type ruleSender struct {
	e     *Engine
	in    *broker.LinkConsumer
	key   store.Key
	woken chan struct{}
	ended atomic.Bool // there is no such Rule any more

	mu      sync.Mutex
	waiting []*takenMessage
	bytes   int // of their payloads
}

// add adds a message.
func (s *ruleSender) add(m *takenMessage, share messageShare) {
	s.mu.Lock()
	s.waiting = append(s.waiting, m)
	s.bytes += len(m.Payload)
	s.mu.Unlock()
	s.trim(share)
	wakeUp(s.woken)
}

// trim has the oldest messages that are not being sent give way until no more than the share wait.
func (s *ruleSender) trim(share messageShare) {
	s.mu.Lock()
	last := 1
	for bytes := s.bytes; last < len(s.waiting) && (len(s.waiting)-last+1 > share.messages || bytes > share.bytes); last++ {
		bytes -= len(s.waiting[last].Payload)
	}
	var lost []*takenMessage
	if last > 1 {
		lost = slices.Clone(s.waiting[1:last])
		s.waiting = slices.Delete(s.waiting, 1, last)
	}
	for _, m := range lost {
		s.bytes -= len(m.Payload)
	}
	s.mu.Unlock()
	for _, m := range lost {
		s.release(m)
	}
	if len(lost) > 0 {
		s.e.count(s.key, 0, int64(len(lost)), fmt.Errorf("%d messages or %d bytes wait for the server, and the oldest gave way", share.messages, share.bytes))
	}
}

// release ends a message for the Rule.
func (s *ruleSender) release(m *takenMessage) {
	if m.left.Add(-1) == 0 {
		acknowledgeMessage(s.in, m.ID)
	}
}

func (s *ruleSender) run(ctx context.Context) {
	var again backoff.Retry
	for ctx.Err() == nil {
		s.mu.Lock()
		var m *takenMessage
		if len(s.waiting) > 0 {
			m = s.waiting[0]
		}
		s.mu.Unlock()
		wait := awayPoll
		if m != nil {
			err := s.send(ctx, m)
			if err == nil {
				again.Succeeded()
				s.mu.Lock()
				s.waiting[0], s.waiting = nil, s.waiting[1:]
				s.bytes -= len(m.Payload)
				s.mu.Unlock()
				s.release(m)
				continue
			}
			if ctx.Err() != nil {
				return // it is still the link queue's
			}
			s.e.count(s.key, 0, 0, err)
			again.Failed(s.e.retry, time.Now())
			wait = time.Until(again.Due())
		}
		if !s.pause(ctx, m, wait) {
			return
		}
	}
}

// pause waits until there is something to do: another message, if m is nil; otherwise it is time to try that again, or its Rule is another one. It returns false if
// the sender has ended.
func (s *ruleSender) pause(ctx context.Context, m *takenMessage, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-s.woken:
			if m == nil || s.rule(m) == nil {
				return m != nil || !s.ended.Load() || s.hasMessages()
			}
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

func (s *ruleSender) hasMessages() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting) > 0
}

// rule is the Rule by which a message is sent; nil: it is gone, or is another one.
func (s *ruleSender) rule(m *takenMessage) *activeRule {
	if a := s.e.activeOf(s.key); a != nil && slices.Contains(a.filters, m.Topic) {
		return a
	}
	return nil
}

// send sends a message once. nil: it is done with, for good or bad; otherwise it is sent again.
func (s *ruleSender) send(ctx context.Context, m *takenMessage) error {
	rule := s.rule(m)
	if rule == nil {
		return nil
	}
	err := s.e.post(ctx, rule, m)
	switch {
	case err == nil:
		s.e.count(s.key, 1, 0, nil)
	case errors.Is(err, errRefused):
		s.e.count(s.key, 0, 1, err)
	case s.e.o.Now().Sub(m.At) > s.e.o.Age:
		s.e.count(s.key, 0, 1, fmt.Errorf("given up after %s (rules.age): %w", s.e.o.Age, err))
	default:
		return err
	}
	return nil
}

var errRefused = errors.New("the server refused the message")

// post sends a message to the Rule's server.
func (e *Engine) post(ctx context.Context, rule *activeRule, m *takenMessage) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, rule.url, bytes.NewReader(m.Payload))
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	r.Header.Set("Content-Type", cmp.Or(m.Props.ContentType, "application/octet-stream"))
	r.Header.Set("NodeName", rule.node)
	r.Header.Set("Edgebus-Topic", url.PathEscape(strings.TrimPrefix(m.Topic, topics.TopicOf(rule.node, "bridge/"))))
	r.Header.Set(HeaderRule, rule.name())
	res, err := e.client.Do(r)
	if failed := (*url.Error)(nil); errors.As(err, &failed) { // its path may be a secret
		return fmt.Errorf("%s: %w", r.URL.Host, failed.Err)
	}
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10)) // so that the connection can be used again
	switch {
	case res.StatusCode < 300:
		return nil
	case res.StatusCode == http.StatusRequestTimeout || res.StatusCode == http.StatusTooManyRequests || res.StatusCode >= 500:
		return fmt.Errorf("%s: %s", r.URL.Host, res.Status)
	}
	return fmt.Errorf("%w: %s: %s", errRefused, r.URL.Host, res.Status)
}
