// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
)

// readLimit is how long what only reads may take, whatever the disk does.
const readLimit = 100 * time.Millisecond

// A hub whose disk answers late, or not at all, acknowledges nothing meanwhile; everything that only reads goes on at its pace, and shows
// what was stored before.
func TestReadersNeverWaitForAFrozenDisk(t *testing.T) {
	m := newMachine(t, "hub")
	topic := func(kind, property string) string { return "v1/nodes/n1/devices/tank/" + kind + "/" + property }
	core, hub, other := m.Client(m.Core(), nil), m.Client(m.broker, nil), m.Client(m.broker, nil)
	shown := m.Watch(m.broker, topic("reported", "+"), nil)
	heard := make(chan struct{}, 1000)
	m.Watch(m.broker, "echo", func(client.Message) { heard <- struct{}{} })
	var delivered []time.Duration // how long after a connection what was queued arrived
	for i, hold := range []time.Duration{200 * time.Millisecond, 2 * time.Second, 5 * time.Second} {
		before, after := fmt.Sprint("before ", i), fmt.Sprint("after ", i)
		require.NoError(t, m.Publish(core, topic("reported", "p1"), before))
		shown.Await(topic("reported", "p1"), before)
		require.NoError(t, m.value(2, before))
		for n := range 3 {
			require.NoError(t, m.message(fmt.Sprint("queued ", n)))
		}

		thaw := sync.OnceFunc(func() { require.NoError(t, m.disk.Thaw()) })
		t.Cleanup(thaw)
		require.NoError(t, m.disk.Freeze())
		writes := map[string]func() error{
			"a desired value":          func() error { return m.Publish(hub, topic("desired", "p2"), after) },
			"a retained message":       func() error { return publishRetained(m, hub, "own/topic", after) },
			"a message to a session":   func() error { return m.Publish(hub, "post", fmt.Sprint(m.sent, " ", after)) },
			"an object by the API":     func() error { return m.Apply(t.Context(), []byte(annotatedModel(after))) },
			"what a node has reported": func() error { return m.Publish(core, topic("reported", "p1"), after) },
		}
		acknowledged := make(chan string, len(writes))
		var writing sync.WaitGroup
		for what, write := range writes {
			writing.Go(func() {
				err := write()
				acknowledged <- fmt.Sprint(what, ": ", err)
			})
		}
		m.Eventually(stand.WaitTimeout, func() error { // the core stores it, the hub doesn't
			if len(acknowledged) == 0 {
				return errors.New("the core has not stored what was reported")
			}
			return nil
		})
		require.Equal(t, "what a node has reported: <nil>", <-acknowledged)

		end := time.Now().Add(hold)
		for rounds := 0; rounds == 0 || time.Now().Before(end); rounds++ {
			m.readInTime("a subscription", func(ctx context.Context) error {
				got := m.subscribe(ctx, topic("reported", "p1"), topic("desired", "p2"))
				if got[topic("reported", "p1")] != before || got[topic("desired", "p2")] != before {
					return fmt.Errorf("got %q", got)
				}
				return nil
			})
			for _, path := range []string{m.DeviceURL("tank"), m.DeviceURL(""), "http://" + m.Hub.HTTP + "/readyz", "http://" + m.Hub.HTTP + "/links"} {
				m.readInTime("GET "+path, func(ctx context.Context) error {
					_, err := harness.Call(ctx, http.MethodGet, path, nil)
					return err
				})
			}
			m.readInTime("QoS 0", func(ctx context.Context) error { return publishAndHear(ctx, other, heard) })
			if rounds == 0 {
				delivered = append(delivered, m.fetchQueued())
			}
		}
		require.Empty(t, acknowledged, "nothing is acknowledged")
		thaw()
		writing.Wait()
		for range len(writes) - 1 {
			require.Contains(t, <-acknowledged, ": <nil>")
		}
		m.sent++
		m.values[2] = after
		shown.Await(topic("reported", "p1"), after)
	}
	t.Log("what was queued was delivered after", delivered)
	require.Less(t, slices.Min(delivered), readLimit)
	m.whole()
}

func annotatedModel(text string) string {
	return fmt.Sprintf("apiVersion: edgebus.io/v1alpha1\nkind: DeviceModel\nmetadata: {name: noted, annotations: {note: %q}}\nspec: {properties: [{name: a}]}\n", text)
}

func publishRetained(m *smallMachine, c *client.Client, topic, text string) error {
	return c.Publish(m.t.Context(), client.Message{Topic: topic, Payload: []byte(text), QoS: 1, Retain: true})
}

// readInTime reads at most ten times, until it takes no longer than readLimit: a busy machine makes one slow, a reader that waits for the
// disk makes all so.
func (m *smallMachine) readInTime(what string, read func(context.Context) error) {
	m.t.Helper()
	var err error
	for range 10 {
		ctx, cancel := context.WithTimeout(m.t.Context(), readLimit)
		err = read(ctx)
		cancel()
		if err == nil {
			return
		}
	}
	require.NoError(m.t, err, "%s takes longer than %v", what, readLimit)
}

// subscribe has the retained messages of topics as a new client gets them.
func (m *smallMachine) subscribe(ctx context.Context, topics ...string) map[string]string {
	got, messages := map[string]string{}, make(chan client.Message, 100)
	o := client.Options{Servers: []string{"mqtt://" + m.broker}, CleanStart: true, Attempts: 1, Log: zerolog.Nop()}
	for _, t := range topics {
		o.Subscriptions = append(o.Subscriptions, client.Subscription{Filter: t, QoS: 1})
	}
	o.OnMessage = func(message client.Message) { messages <- message }
	c, err := client.New(o)
	require.NoError(m.t, err)
	running, stop := context.WithCancel(m.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(running) }()
	defer func() {
		stop()
		<-ended
	}()
	for len(got) < len(topics) {
		select {
		case message := <-messages:
			got[message.Topic] = string(message.Payload)
		case <-ctx.Done():
			return got
		}
	}
	return got
}

// fetchQueued connects the durable session, without subscribing again, and is how long it takes until it has all its messages.
func (m *smallMachine) fetchQueued() time.Duration {
	o := client.Options{Servers: []string{"mqtt://" + m.broker}, Attempts: 1, Log: zerolog.Nop()}
	m.box.options(&o)
	o.Subscriptions = nil
	c, err := client.New(o)
	require.NoError(m.t, err)
	running, stop := context.WithCancel(m.t.Context())
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- c.Run(running) }()
	m.Eventually(stand.WaitTimeout, func() error { return m.box.has(m.sent) })
	took := time.Since(began)
	stop()
	<-ended
	return took
}

// publishAndHear publishes at QoS 0, and waits for what a subscriber hears.
func publishAndHear(ctx context.Context, c *client.Client, heard <-chan struct{}) error {
	if err := c.Publish(ctx, client.Message{Topic: "echo", Payload: []byte("x")}); err != nil {
		return err
	}
	select {
	case <-heard:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
