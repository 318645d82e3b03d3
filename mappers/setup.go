package mappers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// findNode learns the node's name, which the will's topic needs before the mapper's own connection is made: every
// retained topic of the node's broker has it. It waits for one as long as there is none; with ctx it gives up and
// returns "".
func findNode(ctx context.Context, o Options) (string, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	found := ""
	c, err := client.New(client.Options{
		Servers: o.Servers, ClientID: "mapper-" + o.Name, User: o.User, Secret: o.Secret, TLS: o.TLS,
		CleanStart: true, KeepAlive: 10 * time.Second, Backoff: o.Reconnect, Log: o.Log,
		Subscriptions: []client.Subscription{
			{Filter: topics.Prefix + "+/status", QoS: 1},
			{Filter: topics.Prefix + "+/membership", QoS: 1},
			{Filter: topics.Prefix + "+/devices/+", QoS: 1},
		},
		OnMessage: func(m client.Message) {
			if a, err := topics.Parse(m.Topic); err == nil && found == "" {
				found = a.Node
				stop()
			}
		},
	})
	if err != nil {
		return "", err
	}
	err = c.Run(ctx)
	return found, err
}

// ask queues a device for the core's answer to: is it still there, what was reported? mu is held.
func (m *mapper) ask(key string) {
	m.asked++
	m.setups[key] = m.asked
	select {
	case m.setup <- struct{}{}:
	default:
	}
}

// checkAll asks about every device, after each connect: nobody tells a mapper that was away what was removed.
func (m *mapper) checkAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.devices {
		m.ask(key)
	}
}

// runSetups is one goroutine, so that neither the message handler nor a bus waits for the core's answers.
func (m *mapper) runSetups(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.setup:
			m.setupAll(ctx)
		case <-tick.C:
			m.setupAll(ctx)
			m.out.retry(m.mqtt.Connected())
		}
	}
}

func (m *mapper) setupAll(ctx context.Context) {
	for key, ask := range m.pending() {
		if ctx.Err() != nil || !m.mqtt.Connected() {
			return // the next connect asks about all of them
		}
		m.mu.Lock()
		d := m.devices[key]
		m.mu.Unlock()
		err := m.setupOne(ctx, key, d)
		var refused *client.Refused
		switch {
		case err == nil:
			m.settle(key, ask, d, false)
		case errors.As(err, &refused) && refused.Code == 0x90:
			m.settle(key, ask, d, true)
		default:
			m.log.Warn().Err(err).Str("device", key).Msg("device not set up: trying again")
		}
	}
}

func (m *mapper) pending() map[string]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.setups {
		if d := m.devices[key]; d != nil {
			d.setups++
		}
	}
	return maps.Clone(m.setups)
}

// settle ends a device's setup; a device that the core doesn't have any more is dropped. What was asked for meanwhile
// is still to be done: another device of the name, a configuration with a property whose wish was let go by before, or
// a connection that has no subscriptions yet.
func (m *mapper) settle(key string, ask uint64, d *device, gone bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.setups[key] != ask {
		return
	}
	delete(m.setups, key)
	if d != nil && gone {
		m.drop(d) // which asks once more, to end the subscriptions
	}
}

// setupOne subscribes a device's wanted values, its commands and what others say of it, and asks what was reported
// before. A device that is gone, nil, needs no subscriptions any more.
func (m *mapper) setupOne(ctx context.Context, key string, d *device) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	base := topics.Prefix + m.node + "/devices/" + key
	subs := []client.Subscription{
		{Filter: base + "/desired/+", QoS: 1},
		{Filter: base + "/commands/+"},
		others(base + "/reported/+"), others(base + "/refused/+"), others(base + "/problem/+"), others(base + "/problem"), others(base + "/state"),
	}
	if d == nil {
		filters := make([]string, len(subs))
		for i, s := range subs {
			filters[i] = s.Filter
		}
		return m.mqtt.Unsubscribe(ctx, filters...)
	}
	if err := m.mqtt.Subscribe(ctx, subs...); err != nil {
		return err
	}
	get := topics.Address{Node: m.node, Kind: topics.KindGet, Device: key}
	answer, err := m.mqtt.Request(ctx, client.Message{Topic: get.String(), QoS: 1})
	if err != nil {
		return err
	}
	var twin map[string]resource.TwinProperty
	if err := json.Unmarshal(answer.Payload, &twin); err != nil {
		return fmt.Errorf("can't read the answer to get: %w", err)
	}
	m.remember(d, twin)
	return nil
}

func (m *mapper) remember(d *device, twin map[string]resource.TwinProperty) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, t := range twin {
		p := d.props[name]
		if p == nil {
			continue
		}
		if t.Problem != nil {
			p.rememberProblem(*t.Problem)
		}
		if t.Reported != nil {
			p.remember(*t.Reported)
		}
	}
	d.ready = true
	if w := m.workers[d.bus]; w != nil {
		w.poke()
	}
}
