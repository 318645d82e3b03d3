// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/topics/backoff"
)

// Client is one MQTT client, over as many connections as it takes. Its methods may be called from any goroutine, the
// callbacks included.
type Client struct {
	opts      Options
	servers   []server
	choose    func() string // see Choose
	at        int           // of servers: the one that is connected or tried
	elsewhere bool          // another one is to be tried next
	events    *eventQueue
	sampled   zerolog.Logger // for what a flood of messages causes
	slots     chan struct{}  // has a value for each publish without an outcome
	reply     string         // topic on which answers to Request arrive

	mu           sync.Mutex
	conn         *connection   // nil while there is no connection
	up           chan struct{} // closed while there is one, or when the client has ended
	ended        bool
	will         *Message
	willAtEnd    bool
	lastErr      error // why there is no connection
	outbox       outbox
	awaited      map[uint16]chan subscribeAnswer // SUBSCRIBE and UNSUBSCRIBE by packet identifier
	incoming     map[uint16]*incomingQoS2        // incoming QoS 2 messages, until their PUBREL
	requests     map[string]chan Message
	requestCount uint64
	replyConn    *connection // the connection on which the reply topic is subscribed
}

// New checks the options. Nothing is sent before Run.
func New(o Options) (*Client, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Client{
		opts: o, events: newEventQueue(o.Counters, int(o.ReceiveMaximum)*maxPacket), sampled: o.Log.Sample(&zerolog.BurstSampler{Burst: 1, Period: 10 * time.Second}), slots: make(chan struct{}, o.MaxPending), up: make(chan struct{}),
		awaited: map[uint16]chan subscribeAnswer{}, incoming: map[uint16]*incomingQoS2{}, requests: map[string]chan Message{},
		will: o.Will, reply: "reply/" + o.ClientID + "/" + rand.Text()[:8],
	}
	c.outbox.byID = map[uint16]*outgoingPublish{}
	for _, s := range o.Servers {
		parsed, err := parseServer(s)
		if err != nil {
			return nil, err
		}
		c.servers = append(c.servers, parsed)
	}
	return c, nil
}

// Choose has a function say which of Options.Servers is tried next, as Options have it; what is none of them leaves it to their turn. It is called before Run.
func (c *Client) Choose(server func() string) { c.choose = server }

// Run keeps the client connected until ctx ends. Then it sends DISCONNECT, so that the will is not published (but see PublishWillAtEnd), and returns
// nil. It returns an error only after Options.Attempts failures. It is called once.
func (c *Client) Run(ctx context.Context) error {
	dispatched := make(chan struct{})
	go func() {
		defer close(dispatched)
		c.dispatch()
	}()
	err := c.keepConnected(ctx)
	c.end()
	c.events.close()
	<-dispatched
	return err
}

func (c *Client) keepConnected(ctx context.Context) error {
	for first, failed := 0, 0; ctx.Err() == nil; {
		at := (first + failed) % len(c.servers)
		if c.choose != nil {
			if chosen := slices.Index(c.opts.Servers, c.choose()); chosen >= 0 {
				at = chosen
			}
		}
		s := c.servers[at]
		c.mu.Lock()
		c.at, c.elsewhere = at, false
		c.mu.Unlock()
		began := time.Now()
		err := c.connectOnce(ctx, s)
		if ctx.Err() != nil {
			return nil
		}
		c.mu.Lock()
		good := errors.Is(err, errWasUp) && time.Since(began) > 2*c.opts.Backoff.Min && !c.elsewhere
		c.lastErr = err
		c.mu.Unlock()
		if failed++; good {
			first, failed = at, 0
		}
		if c.opts.Attempts > 0 && failed >= c.opts.Attempts {
			return fmt.Errorf("gave up after %d attempts: %w", failed, err)
		}
		rounds := 0 // in which no server was good
		if failed%len(c.servers) == 0 {
			rounds = max(failed/len(c.servers)-1, 0)
		}
		wait := c.opts.Backoff.Spread(rounds)
		c.opts.Log.Warn().Err(err).Str("server", s.String()).Stringer("retry_in", wait.Round(time.Millisecond)).Msg("no MQTT connection")
		backoff.Sleep(ctx, wait)
	}
	return nil
}

// Reconnect ends the connection, if there is one, for the given reason. Run makes another.
func (c *Client) Reconnect(why error) {
	c.mu.Lock()
	l := c.conn
	c.mu.Unlock()
	if l != nil {
		l.fail(why)
	}
}

// Elsewhere is Reconnect, and if there are several servers the next connection is made to another one.
func (c *Client) Elsewhere(why error) {
	c.mu.Lock()
	c.elsewhere = true
	c.mu.Unlock()
	c.Reconnect(why)
}

// Server is the server of the connection, or the one that is tried, as Options have it.
func (c *Client) Server() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.opts.Servers[c.at]
}

// SetWill gives the connections that begin from now on another will than Options.Will.
func (c *Client) SetWill(m Message) error {
	if err := m.check(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.will = &m
	return nil
}

// PublishWillAtEnd has the broker publish the will also when Run's context ends.
func (c *Client) PublishWillAtEnd() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.willAtEnd = true
}

// Connected reports whether there is a connection.
func (c *Client) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn != nil
}

// Publish sends m and waits for the outcome: that it was written, at QoS 0, or the broker's acknowledgement. Until ctx ends
// it waits for a connection, and for room among the publishes without an outcome. A refusal is a *Refused.
func (c *Client) Publish(ctx context.Context, m Message) error {
	if err := m.check(); err != nil {
		return err
	}
	end := make(chan error, 1)
	for {
		if err := c.waitUp(ctx); err != nil {
			return fmt.Errorf("publish to %s: %w", m.Topic, err)
		}
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("publish to %s: %w: %w", m.Topic, ErrBusy, ctx.Err())
		}
		if err := c.enqueue(context.Background(), m, func(err error) { end <- err }); errors.Is(err, ErrNotConnected) {
			continue
		} else if err != nil {
			return err
		}
		select {
		case err := <-end:
			return err
		case <-ctx.Done():
			return fmt.Errorf("publish to %s: no acknowledgement from the broker: %w", m.Topic, ctx.Err())
		}
	}
}

// PublishAsync sends m after everything published before it. It never blocks. done is called once, perhaps before
// PublishAsync returns, with what Publish would return; for QoS 1 in the order of the publishes if the broker
// acknowledges them in that order. done must not block; nil is allowed.
func (c *Client) PublishAsync(m Message, done func(error)) {
	c.PublishOver(context.Background(), m, done)
}

// PublishOver is PublishAsync while ctx lasts, and the error is ErrNotConnected after that. With the context that OnConnect was given a
// message goes over that connection or over none, also if a session goes on over the next one: what has no outcome when the connection
// ends has ErrConnectionLost, and the broker may have it. Only a QoS 2 publish that was sent is completed over the next connection, for
// the broker knows its packet identifier.
func (c *Client) PublishOver(ctx context.Context, m Message, done func(error)) {
	if done == nil {
		done = func(error) {}
	}
	if err := m.check(); err != nil {
		done(err)
		return
	}
	select {
	case c.slots <- struct{}{}:
	default:
		done(ErrBusy)
		return
	}
	if err := c.enqueue(ctx, m, done); err != nil {
		done(err)
	}
}

// enqueue gives m to the writer. The caller has taken a slot. After an error the slot is free, and done is not called.
func (c *Client) enqueue(ctx context.Context, m Message, done func(error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	switch {
	case c.ended:
		err = ErrClosed
	case c.conn == nil || ctx.Err() != nil:
		err = ErrNotConnected
	default:
		err = c.conn.accepts(m)
	}
	if err != nil {
		<-c.slots
		return err
	}
	c.opts.Counters.Pending.Add(1)
	c.outbox.add(ctx, m, func(err error) {
		<-c.slots
		c.opts.Counters.Pending.Add(-1)
		done(err)
	})
	c.conn.wakeWriter()
	return nil
}

// waitUp returns when there is a connection.
func (c *Client) waitUp(ctx context.Context) error {
	c.mu.Lock()
	up := c.up
	c.mu.Unlock()
	select {
	case <-up:
	case <-ctx.Done():
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.lastErr != nil {
			return fmt.Errorf("no connection to %s (%w): %w", c.servers[c.at], c.lastErr, ctx.Err())
		}
		return fmt.Errorf("no connection to %s yet: %w", c.servers[c.at], ctx.Err())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return ErrClosed
	}
	return nil
}

// end fails every publish that has no outcome.
func (c *Client) end() {
	c.mu.Lock()
	c.ended = true
	if c.conn == nil {
		closeOnce(c.up)
	}
	lost := c.outbox.clear()
	clear(c.incoming)
	c.mu.Unlock()
	finishAll(lost, ErrClosed)
}

func closeOnce(ch chan struct{}) {
	select {
	case <-ch:
	default:
		close(ch)
	}
}

// subscribeAnswer is a SUBACK or UNSUBACK.
type subscribeAnswer struct {
	codes  []byte
	reason string
	err    error
}

// Subscribe waits until the broker has granted all subscriptions. If it refuses some, the first of these is returned as a
// *Refused. Subscriptions end with the broker's session: without one, subscribe in OnConnect or use Options.Subscriptions.
func (c *Client) Subscribe(ctx context.Context, subs ...Subscription) error {
	if len(subs) == 0 {
		return nil
	}
	p := &packets.Subscribe{Properties: &packets.Properties{}}
	filters := make([]string, len(subs))
	for i, s := range subs {
		if err := s.check(); err != nil {
			return err
		}
		filters[i] = s.Filter
		p.Subscriptions = append(p.Subscriptions, packets.SubOptions{
			Topic: s.Filter, QoS: s.QoS, NoLocal: s.NoLocal, RetainAsPublished: s.RetainAsPublished, RetainHandling: s.RetainHandling,
		})
	}
	return c.ask(ctx, "subscribe to", filters, p, func(id uint16) { p.PacketID = id })
}

// Unsubscribe waits until the broker has removed the subscriptions.
func (c *Client) Unsubscribe(ctx context.Context, filters ...string) error {
	if len(filters) == 0 {
		return nil
	}
	p := &packets.Unsubscribe{Topics: filters, Properties: &packets.Properties{}}
	return c.ask(ctx, "unsubscribe from", filters, p, func(id uint16) { p.PacketID = id })
}

// ask sends a request with a packet identifier and waits for its answer.
func (c *Client) ask(ctx context.Context, op string, filters []string, p packet, setID func(uint16)) error {
	if err := c.waitUp(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", op, filters[0], err)
	}
	ch := make(chan subscribeAnswer, 1)
	c.mu.Lock()
	if c.conn == nil {
		c.mu.Unlock()
		return ErrNotConnected
	}
	id := c.outbox.take(c.idUsed)
	if id == 0 {
		c.mu.Unlock()
		return ErrBusy
	}
	setID(id)
	c.awaited[id] = ch
	c.conn.send(p)
	c.mu.Unlock()
	select {
	case a := <-ch:
		return a.check(op, filters)
	case <-ctx.Done(): // the identifier stays taken until the answer comes or the connection ends
		return fmt.Errorf("%s %s: no answer from the broker: %w", op, filters[0], ctx.Err())
	}
}

func (a subscribeAnswer) check(op string, filters []string) error {
	if a.err != nil {
		return a.err
	}
	if len(a.codes) != len(filters) {
		return fmt.Errorf("mqtt: %s: the broker answered %d of %d filters", op, len(a.codes), len(filters))
	}
	for i, code := range a.codes {
		if code >= 0x80 {
			return &Refused{Op: op, Topic: filters[i], Code: code, Reason: a.reason}
		}
	}
	return nil
}

// Request publishes m and waits for the answer to it: the first message with the same correlation data on a response topic of this
// client's own. Request sets m.ResponseTopic and m.Correlation. Without an answer it waits until ctx ends.
func (c *Client) Request(ctx context.Context, m Message) (Message, error) {
	if err := c.subscribeReply(ctx); err != nil {
		return Message{}, err
	}
	ch := make(chan Message, 1)
	c.mu.Lock()
	c.requestCount++
	key := strconv.FormatUint(c.requestCount, 36)
	c.requests[key] = ch
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.requests, key)
		c.mu.Unlock()
	}()
	m.ResponseTopic, m.Correlation = c.reply, []byte(key)
	if err := c.Publish(ctx, m); err != nil {
		return Message{}, err
	}
	select {
	case r := <-ch:
		return r, nil
	case <-ctx.Done():
		return Message{}, fmt.Errorf("request to %s: no answer: %w", m.Topic, ctx.Err())
	}
}

// subscribeReply subscribes the reply topic once for each connection.
func (c *Client) subscribeReply(ctx context.Context) error {
	if err := c.waitUp(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	l := c.conn
	subscribed := l != nil && c.replyConn == l
	c.mu.Unlock()
	if subscribed {
		return nil
	}
	if err := c.Subscribe(ctx, Subscription{Filter: c.reply, QoS: 1}); err != nil {
		return fmt.Errorf("cannot listen for answers: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == l {
		c.replyConn = l
	}
	return nil
}

// takeAnswer reports whether a message was sent to the reply topic, and gives it to the Request that it answers.
func (c *Client) takeAnswer(m Message) bool {
	if m.Topic != c.reply {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := string(m.Correlation)
	if ch, ok := c.requests[key]; ok {
		delete(c.requests, key)
		ch <- m
	}
	return true
}
