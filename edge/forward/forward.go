// SPDX-License-Identifier: Apache-2.0

// Package forward sends what waits in the link queue of the node's broker to the hub:
// telemetry, events, and users' own topics that a bridge rule names. It runs for one
// connection at a time, once the hub has caught up with the node's state there.
//
// A message stays in the link queue until the hub has acknowledged it, and is sent again
// in order on the next connection if that ends before. A message that the hub will never take is
// dropped, counted and logged. Many messages are on their way at a time: when the hub can't store one of them,
// it stores none of those after it and closes the connection, so that none overtakes it. What is too large for the line's pace goes in
// parts (see Upload), with messages of other topics between them. The package never keeps a message itself but the one that is in parts,
// and never waits for the hub with anything locked.
package forward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/link"
)

// Options are what a Forwarder needs.
type Options struct {
	// Open starts taking messages from the link queue of the node's broker.
	Open func(window int) *broker.LinkConsumer
	// Publish hands a message over and never blocks; done is called with its outcome.
	Publish func(m client.Message, done func(error))
	// Reconnect ends the connection, and so the context that Run was called with, for the given reason.
	Reconnect func(why error)
	// Topic is what a topic of the node's broker is called on the hub's.
	Topic  func(string) string
	Parts  string  // the topic for parts of large messages; "": all go whole
	Upload *Upload // the same for all connections
	Budget *Budget // nil: the link costs nothing
	Log    zerolog.Logger

	Window      int // messages on their way; 128
	WindowBytes int // and their bytes, if the hub answers quickly; 256 KiB: state waits no longer than for these
}

// Forwarder sends over one connection.
type Forwarder struct {
	o   Options
	log zerolog.Logger // sampled: a hub can cause any number of lines

	mu      sync.Mutex
	sent    int           // messages on their way
	bytes   int           // of them
	ended   bool          // the hub refused a message that it may take later: the connection is to end
	changed chan struct{} // has a value when one of the above has changed

	turns    link.PartTurns[*heldMessage]
	cutting  bool // the first of those that wait is the upload
	heldSent bool // its last part, or all of it, is on its way
	begun    int  // the byte with which this connection began
}

// New makes a Forwarder for one connection.
func New(o Options) *Forwarder {
	o.Window, o.WindowBytes = cmp.Or(o.Window, 128), cmp.Or(o.WindowBytes, 256<<10)
	if o.Upload == nil {
		o.Upload = &Upload{}
	}
	return &Forwarder{
		o: o, turns: link.PartTurns[*heldMessage]{LinePace: link.NewLinePace(o.WindowBytes)}, log: o.Log.Sample(&zerolog.BurstSampler{Burst: 10, Period: 10 * time.Second}), changed: make(chan struct{}, 1),
	}
}

// Run forwards until ctx ends, which it has to with the connection.
func (f *Forwarder) Run(ctx context.Context) {
	f.o.Upload.running.Lock() // the earlier connection's Forwarder may not have ended yet
	defer f.o.Upload.running.Unlock()
	out := f.o.Open(f.o.Window)
	defer out.Close()
	for {
		for f.free() && f.afford(ctx) && f.send(out) {
		}
		select {
		case <-ctx.Done():
			return
		case <-out.Ready():
		case <-f.changed:
		}
	}
}

// free reports whether another message may be sent.
func (f *Forwarder) free() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.ended && f.sent < f.o.Window && f.bytes < f.turns.Window()
}

// afford waits for the budget.
func (f *Forwarder) afford(ctx context.Context) bool {
	for ctx.Err() == nil {
		wait := f.o.Budget.Wait()
		if wait <= 0 {
			return true
		}
		f.o.Budget.held(wait)
		if !backoff.Sleep(ctx, wait) {
			return false
		}
	}
	return false
}

// send sends one message or part. It reports false if nothing waits.
func (f *Forwarder) send(out *broker.LinkConsumer) bool {
	f.mu.Lock()
	due, full := f.turns.PartDue(), f.turns.Full()
	f.mu.Unlock()
	if due && f.sendHeld(out) {
		return true
	}
	if full {
		return f.sendHeld(out)
	}
	p, ok := out.Next()
	if !ok {
		return f.sendHeld(out)
	}
	m := hubMessage(p, f.o.Topic(p.Topic))
	n := MessageSize(m)
	f.mu.Lock()
	waits := f.hold(&heldMessage{p, m, n})
	f.mu.Unlock()
	if !waits {
		f.publish(m, n, func(err error) { f.settle(out, p, err) })
	}
	return true
}

// publish hands over a message of n bytes. done, which must not block, is called with its outcome.
func (f *Forwarder) publish(m client.Message, n int, done func(error)) {
	f.o.Budget.stream(n)
	f.mu.Lock()
	f.sent++
	f.bytes += n
	f.mu.Unlock()
	began := time.Now()
	f.o.Publish(m, func(err error) {
		done(err)
		f.mu.Lock()
		f.sent--
		f.bytes -= n
		if err == nil && m.QoS > 0 {
			f.turns.Answered(n, began, time.Now())
		}
		f.mu.Unlock()
		select {
		case f.changed <- struct{}{}:
		default:
		}
	})
}

// settle tells the link queue the outcome of a message.
func (f *Forwarder) settle(out *broker.LinkConsumer, p broker.LinkMessage, err error) {
	switch {
	case p.ID == 0: // QoS 0: there is no outcome
	case err == nil:
		out.Acknowledge(p.ID)
	case isConnectionLost(err): // the link queue sends it again on the next connection
	case isPermanent(err):
		f.log.Error().Err(err).Str("topic", p.Topic).Int("bytes", len(p.Payload)).Msg("the hub refuses this message for good: it is dropped")
		out.Reject(p.ID)
	default:
		f.end(err)
	}
}

// end ends the connection, because the hub can't store a message now.
func (f *Forwarder) end(err error) {
	f.mu.Lock()
	first := !f.ended && !isConnectionLost(err)
	f.ended = f.ended || first
	f.mu.Unlock()
	if first {
		f.o.Reconnect(fmt.Errorf("the hub can't store a message now; it is sent again on a new connection: %w", err))
	}
}

// isConnectionLost reports whether the connection ended before the outcome of a publish was known.
func isConnectionLost(err error) bool {
	return errors.Is(err, client.ErrConnectionLost) || errors.Is(err, client.ErrNotConnected) || errors.Is(err, client.ErrClosed)
}

// permanentCodes are the refusals that don't go away by themselves: not authorised, topic name
// invalid, packet too large, no room among what is retained, payload format invalid, retain
// or QoS not supported.
var permanentCodes = map[byte]bool{0x87: true, 0x90: true, 0x95: true, 0x97: true, 0x99: true, 0x9A: true, 0x9B: true}

// isPermanent reports whether the same publish will be refused whenever it is sent. It may be a message that the client
// refuses to send, such as one that is larger than the hub takes.
func isPermanent(err error) bool {
	if r := (*client.Refused)(nil); errors.As(err, &r) {
		return permanentCodes[r.Code]
	}
	return !errors.Is(err, client.ErrBusy)
}

// propTS is the user property with the time of a value. If the publisher doesn't set it, it is the time at which the node's broker
// received the message. The hub may get the message days later.
const propTS = "ts"

// timeFormat is RFC 3339 with milliseconds.
const timeFormat = "2006-01-02T15:04:05.000Z07:00"

// hubMessage is the message for the hub. It has no response topic, which would name a topic of the node's broker.
func hubMessage(p broker.LinkMessage, topic string) client.Message {
	m := client.Message{
		Topic: topic, Payload: p.Payload, Retain: p.Retain,
		ContentType: p.Props.ContentType, Correlation: p.Props.Correlation,
		Text:   p.Props.PayloadFormat != nil && *p.Props.PayloadFormat == 1,
		Expiry: time.Duration(p.Expiry) * time.Second,
	}
	if p.ID > 0 {
		m.QoS = 1
	}
	timed := false
	for _, u := range p.Props.User {
		m.User = append(m.User, client.UserProperty(u))
		timed = timed || u.Key == propTS
	}
	if !timed && !p.At.IsZero() {
		m.User = append(m.User, client.UserProperty{Key: propTS, Value: p.At.UTC().Format(timeFormat)})
	}
	return m
}

// MessageSize is the approximate number of bytes that a message takes on the link.
func MessageSize(m client.Message) int {
	n := 16 + len(m.Topic) + len(m.Payload) + len(m.ContentType) + len(m.Correlation)
	for _, u := range m.User {
		n += 5 + len(u.Key) + len(u.Value)
	}
	return n
}

// Budget limits the bytes a second of a metered link. State is sent at once and counted; streams, and downloads of blobs, wait
// until there is budget left. A nil Budget has no limit.
type Budget struct {
	rate float64
	now  func() time.Time

	mu    sync.Mutex
	left  float64 // bytes that may be sent now; below 0 streams and downloads wait
	at    time.Time
	stats BudgetStats
}

// BudgetStats are counts since the start, for metrics.
type BudgetStats struct {
	State, Streams int64         // bytes sent
	Downloads      int64         // bytes asked for
	Held           time.Duration // that streams waited for the budget
}

// NewBudget makes a budget; with a rate of 0 it only counts.
func NewBudget(rate int64, now func() time.Time) *Budget {
	return &Budget{rate: float64(rate), left: float64(rate), at: now(), now: now}
}

// State counts bytes of state, which never wait for the budget.
func (b *Budget) State(n int) {
	if b != nil {
		b.spend(n, &b.stats.State)
	}
}

// Download counts bytes that the hub is asked for.
func (b *Budget) Download(n int) {
	if b != nil {
		b.spend(n, &b.stats.Downloads)
	}
}

func (b *Budget) stream(n int) {
	if b != nil {
		b.spend(n, &b.stats.Streams)
	}
}

func (b *Budget) spend(n int, count *int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill()
	b.left -= float64(n)
	*count += int64(n)
}

// fill adds the bytes for the time that has passed, up to the amount of one second.
func (b *Budget) fill() {
	now := b.now()
	if d := now.Sub(b.at); d > 0 {
		b.left = min(b.left+d.Seconds()*b.rate, b.rate)
	}
	b.at = now
}

// Wait is the time until streams may send, and downloads ask.
func (b *Budget) Wait() time.Duration {
	if b == nil || b.rate == 0 {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fill(); b.left > 0 {
		return 0
	}
	return time.Duration((-b.left/b.rate)*float64(time.Second)) + time.Millisecond
}

func (b *Budget) held(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Held += d
}

// Stats takes a snapshot.
func (b *Budget) Stats() BudgetStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stats
}
