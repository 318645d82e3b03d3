// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/stand"
)

// absentClient is a subscriber that is mostly away: its session is kept by the broker.
type absentClient struct {
	broker string
	filter string // subscribed to with the first connection alone
}

// visit connects to the session, and returns the messages that come until enough says so.
func (a *absentClient) visit(ctx context.Context, enough func(topic, value string) bool) error {
	ctx, cancel := context.WithTimeout(ctx, stand.WaitTimeout)
	defer cancel()
	o := client.Options{
		Servers: []string{"mqtt://" + a.broker}, ClientID: "absent", SessionExpiry: time.Hour,
		Backoff: client.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond},
	}
	found := make(chan struct{})
	first := a.filter != ""
	if first {
		o.Subscriptions = []client.Subscription{{Filter: a.filter, QoS: 1}}
	}
	o.OnConnect = func(_ context.Context, present bool) error {
		if !first && !present {
			cancel()
		}
		if first || enough == nil {
			a.filter = ""
			close(found)
		}
		return nil
	}
	o.OnMessage = func(m client.Message) {
		if enough != nil && ctx.Err() == nil && enough(m.Topic, string(m.Payload)) {
			close(found)
			enough = nil
		}
	}
	c, err := client.New(o)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	run, stop := context.WithCancel(ctx)
	go func() { ended <- c.Run(run) }()
	defer func() { stop(); <-ended }()
	select {
	case <-found:
		return nil
	case <-ctx.Done():
		return errors.New("the session is not there any more, or its messages are not")
	}
}

// A value of the tree that was acknowledged is in the sessions that were to get it, although the broker's program is killed at once.
// Sessions that are resumed get no retained values, so nothing else would tell them.
func TestAnAcknowledgedValueIsInResumedSessionsAfterAKill(t *testing.T) {
	t.Parallel()
	s := stand.New(t, 1)
	s.Up("hub", "core")
	s.Create(stand.ModelManifest("meter", "{name: level}", "{name: wish, accessMode: ReadWrite}") + stand.DeviceManifests("meter", "by-hand", "meter"))
	s.Eventually(stand.WaitTimeout, func() error { return wantGauge(s, s.Node("n1").HTTP, "edgebus_core_devices", 1) })
	for _, c := range []struct{ program, broker, topic string }{
		{"hub", s.Hub.MQTT, "v1/nodes/n1/devices/meter/desired/wish"},
		{"core", s.Core(), "v1/nodes/n1/devices/meter/reported/level"},
		{"core", s.Core(), "v1/nodes/n1/devices/meter/desired/wish"},
	} {
		t.Run(c.program+" "+c.topic, func(t *testing.T) {
			sub := &absentClient{broker: c.broker, filter: c.topic}
			require.NoError(t, sub.visit(t.Context(), nil))
			for round := range 10 {
				publisher := s.Client(c.broker, nil)
				value := fmt.Sprint(100 + round)
				require.NoError(t, s.Publish(publisher, c.topic, value))
				require.NoError(t, s.Crash(c.program))
				s.Up(c.program)
				require.NoError(t, sub.visit(t.Context(), func(topic, got string) bool { return topic == c.topic && got == value }), value)
			}
		})
	}
}
