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

// Reconnect ends the connection, if there is one, for the given reason. Run makes another.
func (c *Client) Reconnect(why error) {
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	if l != nil {
		l.fail(why)
	}
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

// flight is one outgoing publish on its way.
type flight struct {
	m        Message
	id       uint16 // 0 until sent, and for QoS 0
	order    uint64
	again    bool // sent before: DUP
	released bool // QoS 2: PUBREC came, PUBREL went
	done     func(error)
}

// outbox holds the publishes without outcome. Client.mu guards it.
type outbox struct {
	queue    []*flight // not yet sent on this connection
	inflight map[uint16]*flight
	lastID   uint16
	order    uint64
}

func (o *outbox) add(m Message, done func(error)) {
	o.order++
	o.queue = append(o.queue, &flight{m: m, order: o.order, done: done})
}

func (o *outbox) pop() *flight {
	f := o.queue[0]
	o.queue[0] = nil
	o.queue = o.queue[1:]
	return f
}

// clear empties the outbox and returns what was in it, oldest first.
func (o *outbox) clear() []*flight {
	o.rewind()
	all := o.queue
	o.queue = nil
	clear(o.inflight)
	return all
}

func (o *outbox) sent() []*flight {
	all := make([]*flight, 0, len(o.inflight))
	for _, f := range o.inflight {
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b *flight) int { return int(a.order) - int(b.order) })
	return all
}

// rewind puts what was sent on an earlier connection of the same session back to the front of the queue, in order.
// What an earlier rewind put there and nobody sent since is in both places, and stays once.
func (o *outbox) rewind() {
	again := o.sent()
	for _, f := range again {
		f.again = true
	}
	for _, f := range o.queue {
		if f.id == 0 || o.inflight[f.id] != f {
			again = append(again, f)
		}
	}
	o.queue = again
}

// take returns a free packet identifier; used says which others are taken. It returns 0 when all are.
func (o *outbox) take(used func(uint16) bool) uint16 {
	for range 65535 {
		o.lastID++
		if o.lastID == 0 {
			o.lastID = 1
		}
		if _, taken := o.inflight[o.lastID]; !taken && !used(o.lastID) {
			return o.lastID
		}
	}
	return 0
}

type eventKind uint8

const (
	connected eventKind = iota
	message
	disconnected
	failed
)

type event struct {
	kind    eventKind
	link    *link
	present bool
	message Message
	id      uint16
	err     error
}

// maxWaiting bounds the QoS 0 messages that wait for OnMessage. Those of QoS 1 and 2 are bounded by ReceiveMaximum.
const maxWaiting = 4096

// events is the queue between the reader and the one goroutine of the callbacks. The reader must never wait for a
// callback: a callback that publishes waits for an acknowledgement that only the reader can bring.
type events struct {
	count *Counters

	mu     sync.Mutex
	more   *sync.Cond
	queue  []event
	qos0   int
	closed bool
}

func newEvents(count *Counters) *events {
	e := &events{count: count}
	e.more = sync.NewCond(&e.mu)
	return e
}

// push reports false when a QoS 0 message found no room.
func (e *events) push(ev event) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ev.kind == message && ev.message.QoS == 0 {
		if e.qos0 >= maxWaiting {
			e.count.Dropped.Add(1)
			return false
		}
		e.qos0++
	}
	e.queue = append(e.queue, ev)
	e.count.Waiting.Add(1)
	e.more.Signal()
	return true
}

func (e *events) pop() (event, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.queue) == 0 && !e.closed {
		e.more.Wait()
	}
	if len(e.queue) == 0 {
		return event{}, false
	}
	ev := e.queue[0]
	e.queue[0] = event{}
	e.queue = e.queue[1:]
	e.count.Waiting.Add(-1)
	if ev.kind == message && ev.message.QoS == 0 {
		e.qos0--
	}
	return ev, true
}

func (e *events) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.more.Signal()
}

// dispatch calls the callbacks, one after the other. Messages of a connection that has ended are dropped: they were
// not acknowledged, so a session brings them again, and without one the next subscription tells what holds now.
func (c *Client) dispatch() {
	for {
		ev, ok := c.events.pop()
		if !ok {
			return
		}
		switch ev.kind {
		case connected:
			c.onConnect(ev)
		case message:
			if ev.link.alive() {
				c.o.OnMessage(ev.message)
				ev.link.acknowledge(ev.message.QoS, ev.id)
			}
		case disconnected:
			if c.o.OnDisconnect != nil {
				c.o.OnDisconnect(ev.link.err)
			}
		case failed:
			if c.o.OnConnectError != nil {
				c.o.OnConnectError(ev.err)
			}
		}
	}
}

func (c *Client) onConnect(ev event) {
	ctx := ev.link.ctx
	if len(c.o.Subscriptions) > 0 {
		if err := c.Subscribe(ctx, c.o.Subscriptions...); err != nil {
			ev.link.fail(err)
			return
		}
	}
	if c.o.OnConnect == nil {
		return
	}
	if err := c.o.OnConnect(ctx, ev.present); err != nil {
		ev.link.fail(err)
	}
}

// answer is what SUBACK or UNSUBACK said.
type answer struct {
	codes  []byte
	reason string
	err    error
}

// Subscribe waits until the broker has granted all subscriptions. The first that it didn't is returned as *Refused. A
// subscription lives as long as the broker's session: without one, subscribe in OnConnect or use
// Options.Subscriptions. Subscriptions with different IDs go in requests of their own.
func (c *Client) Subscribe(ctx context.Context, subs ...Subscription) error {
	for _, s := range subs {
		if err := s.check(); err != nil {
			return err
		}
	}
	for len(subs) > 0 {
		n := 1
		for n < len(subs) && subs[n].ID == subs[0].ID {
			n++
		}
		if err := c.subscribe(ctx, subs[:n]); err != nil {
			return err
		}
		subs = subs[n:]
	}
	return nil
}

func (c *Client) subscribe(ctx context.Context, subs []Subscription) error {
	p := &packets.Subscribe{Properties: &packets.Properties{}}
	if id := subs[0].ID; id > 0 {
		p.Properties.SubscriptionIdentifier = &id
	}
	filters := make([]string, len(subs))
	for i, s := range subs {
		filters[i] = s.Filter
		p.Subscriptions = append(p.Subscriptions, packets.SubOptions{
			Topic: s.Filter, QoS: s.QoS, NoLocal: s.NoLocal, RetainAsPublished: s.RetainAsPublished, RetainHandling: s.RetainHandling,
		})
	}
	return c.ask(ctx, "subscribe to", filters, p, func(id uint16) { p.PacketID = id })
}

// Unsubscribe waits until the broker has taken the subscriptions away.
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
	ch := make(chan answer, 1)
	c.mu.Lock()
	if c.link == nil {
		c.mu.Unlock()
		return ErrNotConnected
	}
	id := c.out.take(c.idUsed)
	if id == 0 {
		c.mu.Unlock()
		return ErrBusy
	}
	setID(id)
	c.waiting[id] = ch
	c.link.control = append(c.link.control, p)
	c.link.wakeWriter()
	c.mu.Unlock()
	select {
	case a := <-ch:
		return a.check(op, filters)
	case <-ctx.Done(): // the identifier stays taken until the answer comes or the connection ends
		return fmt.Errorf("%s %s: no answer from the broker: %w", op, filters[0], ctx.Err())
	}
}

func (a answer) check(op string, filters []string) error {
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

// Request publishes m and waits for the answer to it: the first message with the same correlation data on a response
// topic of this client's own. m.ResponseTopic and m.Correlation are set by Request. Without a deadline in ctx it waits
// for ever when nobody answers.
func (c *Client) Request(ctx context.Context, m Message) (Message, error) {
	if err := c.subscribeReply(ctx); err != nil {
		return Message{}, err
	}
	ch := make(chan Message, 1)
	c.mu.Lock()
	c.asked++
	key := strconv.FormatUint(c.asked, 36)
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
		return Message{}, fmt.Errorf("request to %s: nobody answered: %w", m.Topic, ctx.Err())
	}
}

// subscribeReply subscribes the reply topic once for each connection.
func (c *Client) subscribeReply(ctx context.Context) error {
	if err := c.waitUp(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	l := c.link
	subscribed := l != nil && c.replying == l
	c.mu.Unlock()
	if subscribed {
		return nil
	}
	if err := c.Subscribe(ctx, Subscription{Filter: c.reply, QoS: 1}); err != nil {
		return fmt.Errorf("cannot listen for answers: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == l {
		c.replying = l
	}
	return nil
}

// answered takes a message that answers a Request.
func (c *Client) answered(m Message) bool {
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
