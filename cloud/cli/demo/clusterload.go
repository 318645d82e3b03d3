// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/backoff"
)

const (
	numbersTopic  = "demo/numbers"
	numbersPause  = 20 * time.Millisecond  // between two numbers
	turnPause     = 300 * time.Millisecond // between two values of the lamp's
	turnTimeout   = 5 * time.Second        // after which a value is set again
	clientBackoff = 100 * time.Millisecond
)

// clusterLoad is what goes through the hubs, and is counted: numbers at QoS 1 to a durable session, and the lamp's brightness, desired and
// then reported.
type clusterLoad struct {
	mqtt string

	mu        sync.Mutex
	acked     int // the last number that was acknowledged; all before it were
	got       int // the last that the session got
	missing   int // that it didn't get, but a later one
	twice     int // that it got once more: QoS 1 may, what is lost may not
	ackedAt   time.Time
	turns     int // values that were desired and came back as reported
	turnedAt  time.Time
	turnTook  time.Duration
	turnWorst time.Duration
	reported  string
	isPaused  bool
	changed   chan struct{} // closed when reported changes
}

// run publishes, sets and counts until ctx ends.
func (l *clusterLoad) run(ctx context.Context) error {
	connected := make(chan struct{})
	session, err := client.New(l.options("demo-session", client.Options{
		Subscriptions: []client.Subscription{{Filter: numbersTopic, QoS: 1}, {Filter: l.lamp(topics.KindReported), QoS: 1}},
		OnMessage:     l.take,
		OnConnect: func(context.Context, bool) error {
			select {
			case <-connected:
			default:
				close(connected)
			}
			return nil
		},
	}))
	if err != nil {
		return err
	}
	publisher, err := client.New(l.options("demo-publisher", client.Options{}))
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { _ = session.Run(ctx) })
	all.Go(func() { _ = publisher.Run(ctx) })
	select {
	case <-connected:
	case <-ctx.Done():
		return nil
	}
	all.Go(func() { l.count(ctx, publisher) })
	all.Go(func() { l.turn(ctx, publisher) })
	<-ctx.Done()
	return nil
}

func (l *clusterLoad) options(id string, o client.Options) client.Options {
	o.Servers, o.ClientID, o.SessionExpiry = []string{"mqtt://" + l.mqtt}, id, time.Hour
	o.ConnectTimeout, o.Backoff = time.Second, client.Backoff{Min: clientBackoff, Max: 2 * clientBackoff}
	return o
}

func (l *clusterLoad) take(m client.Message) {
	if m.Topic == numbersTopic {
		l.receive(m.Payload)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reported = string(m.Payload)
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *clusterLoad) lamp(kind topics.Kind) string {
	return topics.Address{Node: demoNode, Kind: kind, Device: "lamp", Name: "brightness"}.String()
}

// count publishes one number after the other, each until it is acknowledged.
func (l *clusterLoad) count(ctx context.Context, c *client.Client) {
	for n := 1; ctx.Err() == nil; n++ {
		m := client.Message{Topic: numbersTopic, Payload: []byte(strconv.Itoa(n)), QoS: 1}
		for l.paused() || c.Publish(ctx, m) != nil {
			if !backoff.Sleep(ctx, numbersPause) {
				return
			}
		}
		l.mu.Lock()
		l.acked, l.ackedAt = n, time.Now()
		l.mu.Unlock()
		backoff.Sleep(ctx, numbersPause)
	}
}

// receive counts a number that came to the session.
func (l *clusterLoad) receive(payload []byte) {
	n, err := strconv.Atoi(string(payload))
	if err != nil {
		return // somebody else's
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n <= l.got {
		l.twice++
		return
	}
	l.missing += n - l.got - 1
	l.got = n
}

// turn has the lamp take one brightness after the other.
func (l *clusterLoad) turn(ctx context.Context, c *client.Client) {
	for level := 1; ctx.Err() == nil; level = level%100 + 1 {
		began, text := time.Now(), strconv.Itoa(level)
		m := client.Message{Topic: l.lamp(topics.KindDesired), Payload: []byte(text), QoS: 1}
		for c.Publish(ctx, m) != nil || !l.awaitReported(ctx, text) { // no hub serves, it doesn't know the lamp yet, or somebody else has set another value
			if !backoff.Sleep(ctx, clientBackoff) {
				return
			}
		}
		l.mu.Lock()
		l.turns, l.turnedAt, l.turnTook = l.turns+1, time.Now(), time.Since(began)
		if l.turns > 1 { // the lamp was being made at the first
			l.turnWorst = max(l.turnWorst, l.turnTook)
		}
		l.mu.Unlock()
		backoff.Sleep(ctx, turnPause)
	}
}

func (l *clusterLoad) awaitReported(ctx context.Context, value string) bool {
	ctx, cancel := context.WithTimeout(ctx, turnTimeout)
	defer cancel()
	for {
		l.mu.Lock()
		is, changed := l.reported == value, l.changed
		l.mu.Unlock()
		if is {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

func (l *clusterLoad) pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isPaused = true
}

func (l *clusterLoad) paused() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isPaused
}

// isWholeSince is whether a number was acknowledged, and the lamp has taken a value, since a moment.
func (l *clusterLoad) isWholeSince(when time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ackedAt.After(when) && l.turnedAt.After(when)
}

// times are when a number was acknowledged last, and the lamp has taken a value.
func (l *clusterLoad) times() (acked, turned time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ackedAt, l.turnedAt
}

// hasAll is whether the session got all that was acknowledged.
func (l *clusterLoad) hasAll() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.got >= l.acked
}

// lost is how many numbers are missing for good.
func (l *clusterLoad) lost() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.missing + max(0, l.acked-l.got)
}

// lines are the figures.
func (l *clusterLoad) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	round := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return []string{
		fmt.Sprintf("QoS 1: %d messages acknowledged, %d came to a durable session, %d missing, %d came twice, as QoS 1 may", l.acked, l.got-l.missing, l.missing, l.twice),
		fmt.Sprintf("lamp: %d times desired and reported, last in %s, slowest %s", l.turns, round(l.turnTook), round(l.turnWorst)),
	}
}
