package edge

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// storedFor is how long the hub keeps what comes down for a node that is away: as long as it lets us.
const storedFor = 30 * 24 * time.Hour

// outlet says what the node's broker keeps for the hub. Without a hub nothing.
func outlet(cfg configs.Core) *broker.OutletOptions {
	if cfg.Link.Server == "" {
		return nil
	}
	devices := topics.Prefix + cfg.Node.Name + "/devices/+/"
	o := &broker.OutletOptions{
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

// cloudName is what a topic of the node's broker is called on the hub's.
func cloudName(node string) func(string) string {
	return func(topic string) string {
		if topics.IsTree(topic) {
			return topic
		}
		return topics.Prefix + node + "/bridge/" + topic
	}
}

// bridge brings down what the hub's users publish. Each of its rules is asked for when
// a connection begins; what the hub refuses is said, and the rest goes on.
type bridge struct {
	live, stored []client.Subscription
	bring        func(m broker.Message, done func(error))
	again        time.Duration // until what could not be kept is tried again
	log          zerolog.Logger

	brought atomic.Int64
	dropped atomic.Int64 // of them, those that nobody here has
	mu      sync.Mutex
	refused map[string]bool // rules, by filter
}

func newBridge(rules []configs.Bridge, bring func(broker.Message, func(error)), log zerolog.Logger) *bridge {
	b := &bridge{bring: bring, again: bringAgain, log: log, refused: make(map[string]bool)}
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

// ask subscribes to rules on a connection that has just begun.
func (b *bridge) ask(ctx context.Context, c *client.Client, rules []client.Subscription) {
	for _, s := range rules {
		err := c.Subscribe(ctx, s)
		refusal := (*client.Refused)(nil)
		no := errors.As(err, &refusal)
		b.mu.Lock()
		delete(b.refused, s.Filter)
		if no {
			b.refused[s.Filter] = true
		}
		b.mu.Unlock()
		if no {
			b.log.Error().Err(err).Str("filter", s.Filter).Msg("the hub does not let this node have what a bridge rule asks for")
		}
	}
}

const bringAgain = time.Second

// take publishes what came down on the node's broker. It returns, and a stored message is
// acknowledged, when all who are owed it here have it on disk: with a full disk, later.
func (b *bridge) take(ctx context.Context, m client.Message) {
	if topics.IsTree(m.Topic) || !matches(b.live, m.Topic) && !matches(b.stored, m.Topic) {
		return // of a rule that is no more, or no rule's
	}
	b.brought.Add(1)
	brought := asked(m)
	brought.Retain = m.Retain
	brought.Props.ResponseTopic = "" // it means nothing here
	for {
		done := make(chan error, 1)
		b.bring(brought, func(err error) { done <- err })
		if m.QoS == 0 {
			return
		}
		err := <-done
		if err == nil {
			return
		}
		if !errors.Is(err, resource.Unavailable) { // waiting would not help, and hold up what comes behind it
			b.dropped.Add(1)
			b.log.Error().Err(err).Str("topic", m.Topic).Msg("what came down the bridge will never be kept: it is dropped")
			return
		}
		b.log.Error().Err(err).Str("topic", m.Topic).Stringer("retry_in", b.again.Round(time.Millisecond)).Msg("what came down the bridge can't be kept now")
		select {
		case <-time.After(b.again):
		case <-ctx.Done():
			return
		}
	}
}

func matches(rules []client.Subscription, topic string) bool {
	for _, s := range rules {
		if topics.Match(s.Filter, topic) {
			return true
		}
	}
	return false
}

// refusals counts the rules that the hub doesn't grant.
func (b *bridge) refusals() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.refused)
}
