// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestBridgedMessagesAreStoredBeforeTheyAreAcknowledged(t *testing.T) {
	full := 2
	var brought []broker.Message
	b := newBridge([]configs.Bridge{{Direction: "down", Filter: "site/#", Store: true}, {Direction: "up", Filter: "up/#"}},
		func(m broker.Message, done func(error)) {
			if full--; full >= 0 {
				done(resource.Errorf(resource.Unavailable, "", "the disk is full"))
				return
			}
			brought = append(brought, m)
			done(nil)
		}, zerolog.Nop())
	b.retryPause = time.Millisecond
	b.take(t.Context(), client.Message{Topic: "site/a", QoS: 1, Retain: true, ResponseTopic: "there"})
	b.take(t.Context(), client.Message{Topic: "up/a", QoS: 1}) // of a rule that is no more
	b.stored[0].Filter = "#"
	b.take(t.Context(), client.Message{Topic: "v1/nodes/n1/sync/down", QoS: 1}) // the tree travels by itself
	require.Len(t, brought, 1)
	require.True(t, brought[0].Retain)
	require.Empty(t, brought[0].Props.ResponseTopic)
	b.publish = func(_ broker.Message, done func(error)) { done(resource.Errorf(resource.Quota, "", "no room")) }
	b.take(t.Context(), client.Message{Topic: "site/b", QoS: 1}) // nothing to wait for
	require.EqualValues(t, 1, b.dropped.Load())
	require.EqualValues(t, 2, b.received.Load())
}

func TestLinkQueueOfAConfiguration(t *testing.T) {
	cfg := configs.Core{Bridge: []configs.Bridge{
		{Direction: "up", Filter: "a/#", Store: true}, {Direction: "up", Filter: "b"}, {Direction: "down", Filter: "c"},
	}}
	cfg.Node.Name = "n1"
	require.Nil(t, linkQueueOptions(cfg), "without a hub nothing is queued")
	cfg.Link.Server = "mqtt://hub"
	o := linkQueueOptions(cfg)
	require.Equal(t, []string{"v1/nodes/n1/devices/+/telemetry/#", "v1/nodes/n1/devices/+/events/#", "a/#"}, o.Keep)
	require.Equal(t, []string{"b"}, o.Pass)
	name := hubTopic("n1")
	require.Equal(t, "v1/nodes/n1/bridge/a/b", name("a/b"))
	require.Equal(t, "v1/nodes/n1/devices/x/events/y", name("v1/nodes/n1/devices/x/events/y"))
}

// A core that stops while its disk is full has not kept what it was given, and doesn't say so.
func TestBridgedMessagesThatCouldNotBeStoredAreRetried(t *testing.T) {
	hub, err := broker.New(broker.Options{
		Listeners: []broker.Listener{{Address: "127.0.0.1:0"}}, Auth: broker.Auth{LoopbackNodes: true}, Down: []string{"site/#"}, Log: zerolog.Nop(),
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- hub.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-served)
	})
	var cfg configs.Core
	cfg.Node.Name, cfg.Link.Server = "n1", "mqtt://"+hub.Addrs()[0].String()
	rules := []configs.Bridge{{Direction: "down", Filter: "site/#", Store: true}}
	run := func(outcome error) (tried chan string, stop func()) {
		tried = make(chan string, 100)
		h := &hubLink{cfg: cfg, status: newLinkStatus(), log: zerolog.Nop(), bridge: newBridge(rules, func(m broker.Message, done func(error)) {
			done(outcome)
			tried <- m.Topic
		}, zerolog.Nop())}
		c, err := h.newStored()
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		return tried, func() {
			cancel()
			require.NoError(t, <-ended)
			h.running.Wait()
		}
	}
	await := func(tried chan string) {
		select {
		case topic := <-tried:
			require.Equal(t, "site/a", topic)
		case <-time.After(30 * time.Second):
			require.Fail(t, "it did not come")
		}
	}
	tried, stopped := run(resource.Errorf(resource.Unavailable, "", "the disk is full"))
	require.Eventually(t, func() bool { return len(hub.Subscribers("site/a")) == 1 }, 30*time.Second, time.Millisecond)
	hub.Publish(broker.Message{Topic: "site/a", Payload: []byte("x"), QoS: 1})
	await(tried)
	stopped()
	tried, stopped = run(nil)
	await(tried)
	stopped()
}
