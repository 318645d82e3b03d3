package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Client is one MQTT client, over as many connections as it takes. Its methods may be called from any goroutine, the
// callbacks included.
type Client struct {
	o       Options
	servers []server
	events  *events
	seldom  zerolog.Logger // for what a flood causes any number of
	slots   chan struct{}  // one taken for each publish that has no outcome yet
	reply   string         // topic on which answers to Request arrive

	mu       sync.Mutex
	link     *link         // nil while there is no connection
	up       chan struct{} // closed while there is one, or when the client has ended
	ended    bool
	lastErr  error // why there is no connection
	out      outbox
	waiting  map[uint16]chan answer // SUBSCRIBE and UNSUBSCRIBE by packet identifier
	received map[uint16]struct{}    // incoming QoS 2 messages that are handled, until their PUBREL
	requests map[string]chan Message
	asked    uint64
	replying *link // the connection on which the reply topic is subscribed
}

// New checks the options. Nothing is sent before Run.
func New(o Options) (*Client, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Client{
		o: o, events: newEvents(o.Counters), seldom: o.Log.Sample(&zerolog.BurstSampler{Burst: 1, Period: 10 * time.Second}), slots: make(chan struct{}, o.MaxPending), up: make(chan struct{}),
		waiting: map[uint16]chan answer{}, received: map[uint16]struct{}{}, requests: map[string]chan Message{},
		reply: "reply/" + o.ClientID + "/" + rand.Text()[:8],
	}
	c.out.inflight = map[uint16]*flight{}
	for _, s := range o.Servers {
		parsed, err := parseServer(s)
		if err != nil {
			return nil, err
		}
		c.servers = append(c.servers, parsed)
	}
	return c, nil
}

// Run keeps the client connected until ctx ends, then says goodbye to the broker (so that the will is not published)
// and returns nil. It returns an error only when Options.Attempts are used up. Call it once.
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
	for failed := 0; ctx.Err() == nil; {
		s := c.servers[failed%len(c.servers)]
		began := time.Now()
		err := c.connectOnce(ctx, s)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errWasUp) && time.Since(began) > 2*c.o.Backoff.Min {
			failed = 0
		} else {
			failed++
		}
		c.setError(err)
		if c.o.Attempts > 0 && failed >= c.o.Attempts {
			return fmt.Errorf("gave up after %d attempts: %w", failed, err)
		}
		wait := c.o.Backoff.wait(max(failed-1, 0) / len(c.servers))
		c.o.Log.Warn().Err(err).Str("server", s.String()).Stringer("retry_in", wait.Round(time.Millisecond)).Msg("no MQTT connection")
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return nil
}

func (c *Client) setError(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastErr = err
}

// Connected says whether there is a connection at the moment.
func (c *Client) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.link != nil
}

// Publish sends m and waits for its end: for QoS 0 that it was written, else the broker's acknowledgement. It waits
// for a connection and for room as long as ctx allows. A refusal is a *Refused.
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
		if err := c.enqueue(m, func(err error) { end <- err }); errors.Is(err, ErrNotConnected) {
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

// PublishAsync sends m after everything published before it and never blocks. done is called exactly once, perhaps
// before PublishAsync returns, with what Publish would have returned; calls for QoS 1 come in the order of the
// publishes unless the broker answers in another. done must not block; nil is allowed.
func (c *Client) PublishAsync(m Message, done func(error)) {
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
	if err := c.enqueue(m, done); err != nil {
		done(err)
	}
}

// enqueue hands m to the writer; the caller holds a slot. When it returns an error, done is not called and the slot is
// free again.
func (c *Client) enqueue(m Message, done func(error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	switch {
	case c.ended:
		err = ErrClosed
	case c.link == nil:
		err = ErrNotConnected
	default:
		err = c.link.accepts(m)
	}
	if err != nil {
		<-c.slots
		return err
	}
	c.o.Counters.Pending.Add(1)
	c.out.add(m, func(err error) {
		<-c.slots
		c.o.Counters.Pending.Add(-1)
		done(err)
	})
	c.link.wakeWriter()
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
			return fmt.Errorf("no connection to %s (%w): %w", c.servers[0], c.lastErr, ctx.Err())
		}
		return fmt.Errorf("no connection to %s yet: %w", c.servers[0], ctx.Err())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return ErrClosed
	}
	return nil
}

// end settles everything that still waits.
func (c *Client) end() {
	c.mu.Lock()
	c.ended = true
	if c.link == nil {
		closeOnce(c.up)
	}
	lost := c.out.clear()
	c.mu.Unlock()
	for _, f := range lost {
		f.done(ErrClosed)
	}
}

func closeOnce(ch chan struct{}) {
	select {
	case <-ch:
	default:
		close(ch)
	}
}
