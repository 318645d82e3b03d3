// SPDX-License-Identifier: Apache-2.0

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

// requestSetup queues a request to the core: does the device still exist, and what was reported of it? mu is held.
func (m *mapper) requestSetup(key string) {
	m.setupSeq++
	m.setups[key] = m.setupSeq
	select {
	case m.setupWake <- struct{}{}:
	default:
	}
}

// requestSetupAll queues such a request for every device after each connect, because the broker doesn't send what was removed
// meanwhile.
func (m *mapper) requestSetupAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.devices {
		m.requestSetup(key)
	}
}

// runSetups handles these requests in a goroutine of its own, so that neither the message handler nor a bus waits for the core.
func (m *mapper) runSetups(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.setupWake:
			m.setupAll(ctx)
		case <-tick.C:
			m.setupAll(ctx)
			m.out.retry(m.mqtt.Connected())
			m.events.connected(m.mqtt.Connected())
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
			m.finishSetup(key, ask, d, false)
		case errors.As(err, &refused) && refused.Code == 0x90:
			m.finishSetup(key, ask, d, true)
		default:
			m.log.Warn().Err(err).Str("device", key).Msg("device not set up; trying again")
		}
	}
}

func (m *mapper) pending() map[string]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.setups {
		if d := m.devices[key]; d != nil {
			d.setupAttempts++
		}
	}
	return maps.Clone(m.setups)
}

// finishSetup ends a device's setup, and drops a device that the core no longer has. A request that was queued meanwhile is still
// to be handled: for another device of the name, for a new property whose desired value was ignored before, or for a connection
// without subscriptions.
func (m *mapper) finishSetup(key string, ask uint64, d *device, gone bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.setups[key] != ask {
		return
	}
	delete(m.setups, key)
	if d != nil && gone {
		m.drop(d) // which queues one more request, to end the subscriptions
	}
}

// setupOne subscribes to a device's desired values and commands and to what others publish about it, and reads the twin for
// what was reported before. For a device that is gone (nil) it ends the subscriptions.
func (m *mapper) setupOne(ctx context.Context, key string, d *device) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	base := topics.Prefix + m.node + "/devices/" + key
	subs := []client.Subscription{
		{Filter: base + "/desired/+", QoS: 1},
		{Filter: base + "/commands/+"},
		othersOnly(base + "/reported/+"), othersOnly(base + "/refused/+"), othersOnly(base + "/problem/+"), othersOnly(base + "/problem"), othersOnly(base + "/state"),
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
			p.remember(*t.Reported, m.o.Now())
		}
	}
	d.isSetUp, d.changed = true, true
	if w := m.workers[d.bus]; w != nil {
		w.wakeUp()
	}
}
