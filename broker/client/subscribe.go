package client

import (
	"context"
	"fmt"
	"strconv"

	"github.com/eclipse/paho.golang/packets"
)

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
