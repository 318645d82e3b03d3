// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// bridgeSessionExpiry is the session expiry that the node requests; the hub may grant less.
const bridgeSessionExpiry = 30 * 24 * time.Hour

// linkQueueOptions is which messages the node's broker queues for the hub; nil: there is no hub.
func linkQueueOptions(cfg configs.Core) *broker.LinkQueueOptions {
	if cfg.Link.Server == "" {
		return nil
	}
	devices := topics.Prefix + cfg.Node.Name + "/devices/+/"
	o := &broker.LinkQueueOptions{
		Keep:  []string{devices + "telemetry/#", devices + "events/#"},
		Bytes: int(cfg.Limits.Streams.Bytes), Age: cfg.Limits.Streams.Age,
	}
	for _, rule := range cfg.Bridge {
		switch {
		case rule.Direction != "up":
		case rule.Store:
			o.Keep = append(o.Keep, rule.Filter)
		default:
			o.Pass = append(o.Pass, rule.Filter)
		}
	}
	return o
}

// hubTopic maps a topic of the node's broker to its name on the hub's.
func hubTopic(node string) func(string) string {
	return func(topic string) string {
		if topics.IsTree(topic) {
			return topic
		}
		return topics.Prefix + node + "/bridge/" + topic
	}
}

// bridge publishes messages of the hub's users on the node's broker. It subscribes to each rule when a connection begins;
// a rule that the hub refuses is logged, and the others work.
type bridge struct {
	live, stored []client.Subscription
	publish      func(m broker.Message, done func(error))
	retryPause   time.Duration // before a message that could not be stored is published again
	log          zerolog.Logger

	received atomic.Int64
	dropped  atomic.Int64 // received messages that the broker refused for good
	mu       sync.Mutex
	refused  map[string]bool // rules, by filter
}

func newBridge(rules []configs.Bridge, publish func(broker.Message, func(error)), log zerolog.Logger) *bridge {
	b := &bridge{publish: publish, retryPause: bridgeRetry, log: log, refused: make(map[string]bool)}
	for _, rule := range rules {
		switch s := (client.Subscription{Filter: rule.Filter, RetainAsPublished: true}); {
		case rule.Direction != "down":
		case rule.Store:
			s.QoS, s.RetainHandling = 1, 1
			b.stored = append(b.stored, s)
		default:
			b.live = append(b.live, s)
		}
	}
	return b
}

// subscribe subscribes to rules on a new connection.
func (b *bridge) subscribe(ctx context.Context, c *client.Client, rules []client.Subscription) {
	for _, s := range rules {
		err := c.Subscribe(ctx, s)
		refusal := (*client.Refused)(nil)
		denied := errors.As(err, &refusal)
		b.mu.Lock()
		delete(b.refused, s.Filter)
		if denied {
			b.refused[s.Filter] = true
		}
		b.mu.Unlock()
		if denied {
			b.log.Error().Err(err).Str("filter", s.Filter).Msg("the hub refused the subscription of a bridge rule")
		}
	}
}

const bridgeRetry = time.Second

// take publishes a message from the hub on the node's broker. It returns when the message is stored for all its
// subscribers, and then a QoS 1 message is acknowledged to the hub. While the disk is full it waits, until ctx ends: then the message wasn't
// taken.
func (b *bridge) take(ctx context.Context, m client.Message) (taken bool) {
	if topics.IsTree(m.Topic) || !matchesRule(b.live, m.Topic) && !matchesRule(b.stored, m.Topic) {
		return true // of a rule that was removed
	}
	b.received.Add(1)
	out := toBrokerMessage(m)
	out.Retain = m.Retain
	out.Props.ResponseTopic = "" // the topic is the hub's
	for {
		done := make(chan error, 1)
		b.publish(out, func(err error) { done <- err })
		if m.QoS == 0 {
			return true
		}
		err := <-done
		if err == nil {
			return true
		}
		if !errors.Is(err, resource.Unavailable) { // waiting would not help, and would block the messages behind it
			b.dropped.Add(1)
			b.log.Error().Err(err).Str("topic", m.Topic).Msg("a bridged message was refused for good: it is dropped")
			return true
		}
		b.log.Error().Err(err).Str("topic", m.Topic).Stringer("retry_in", b.retryPause.Round(time.Millisecond)).Msg("a bridged message can't be stored now: trying again")
		if !backoff.Sleep(ctx, b.retryPause) {
			return false
		}
	}
}

func matchesRule(rules []client.Subscription, topic string) bool {
	return slices.ContainsFunc(rules, func(s client.Subscription) bool { return topics.Match(s.Filter, topic) })
}

// refusals is the number of rules that the hub refuses.
func (b *bridge) refusals() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.refused)
}
