// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/test/faults"
)

// slowLine is a node's queue, forwarded to a hub over a line of so many bytes a second.
type slowLine struct {
	*testForwarder
	line *faults.Proxy

	mu   sync.Mutex
	came []string // topics, in order
	all  map[string][]byte
}

func newSlowLine(t *testing.T, rate int) *slowLine {
	t.Helper()
	addr, _ := startHub(t)
	l := &slowLine{testForwarder: newTestForwarder(0), all: make(map[string][]byte)}
	l.sess = session.New(session.Limits{Bytes: 8 << 20, DropOldest: true}, time.Now, &l.count)
	var err error
	l.line, err = faults.New(faults.Options{Target: addr})
	require.NoError(t, err)
	t.Cleanup(l.line.Close)
	l.line.Set(faults.Conditions{Bandwidth: rate})
	connectClient(t, client.Options{
		Servers: []string{"mqtt://" + addr}, ClientID: "sub", CleanStart: true,
		Subscriptions: []client.Subscription{{Filter: "v1/nodes/n1/#", QoS: 1}},
		OnMessage: func(m client.Message) {
			l.mu.Lock()
			defer l.mu.Unlock()
			name := strings.TrimPrefix(m.Topic, "v1/nodes/n1/bridge/")
			l.came = append(l.came, name)
			l.all[name] = append(l.all[name], m.Payload...)
		},
	}, func(context.Context, *client.Client) {})
	return l
}

func (l *slowLine) add(topic string, payload []byte) {
	m := &session.Message{Topic: topic, Payload: payload, QoS: 1, Props: session.Properties{ContentType: "x/" + topic}}
	m.Stamp(time.Now())
	l.sess.Enqueue(m, session.DeliveryOptions{QoS: 1})
}

func (l *slowLine) forward(t *testing.T) {
	t.Helper()
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	upload := &Upload{}
	core := client.Options{Servers: []string{"mqtt://" + l.line.Addr()}, ClientID: "node/n1", User: "node/n1", CleanStart: true}
	connectClient(t, core, func(ctx context.Context, c *client.Client) {
		o := Options{
			Publish:   func(m client.Message, done func(error)) { c.PublishOver(ctx, m, done) },
			Reconnect: c.Reconnect, Log: zerolog.Nop(), Parts: "v1/nodes/n1/sync/parts", Upload: upload,
			Topic: func(topic string) string { return "v1/nodes/n1/bridge/" + topic },
			Open:  func(window int) *broker.LinkConsumer { return l.sess.OpenLocal(window) },
		}
		running.Go(func() { New(o).Run(ctx) })
	})
}

func (l *slowLine) has(topic string) func() bool {
	return func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.all[topic]) > 0
	}
}

func patternBytes(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*i>>3) ^ byte(i>>10) ^ seed
	}
	return b
}

// Properties can't be cut: a message that has no payload goes whole, however large it is.
func TestAMessageIsCutByItsPayload(t *testing.T) {
	l := newSlowLine(t, 0)
	m := &session.Message{Topic: "empty", QoS: 1, Props: session.Properties{User: []session.UserProperty{{Key: "k", Value: strings.Repeat("v", 20_000)}}}}
	m.Stamp(time.Now())
	l.sess.Enqueue(m, session.DeliveryOptions{QoS: 1})
	l.add("after", []byte("x"))
	l.forward(t)
	require.Eventually(t, l.has("after"), testTimeout, time.Millisecond)
	require.Eventually(t, func() bool { return l.sess.Queued() == 0 }, testTimeout, time.Millisecond)
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Contains(t, l.came, "empty")
}

// A large message goes in parts: after a cut it goes on where it was, and the small one behind it doesn't wait for it.
func TestALargeMessageGoesOnAfterACutAndNothingSmallWaitsForIt(t *testing.T) {
	const size, rate = 400_000, 60_000
	l := newSlowLine(t, rate)
	large := patternBytes(size, 1)
	l.add("large", large)
	l.add("small", []byte("small"))
	l.add("large", []byte("after")) // of the same topic: in order
	l.forward(t)
	require.Eventually(t, l.has("small"), testTimeout, time.Millisecond)
	require.False(t, l.has("large")())
	passed := func(n uint64) func() bool {
		return func() bool { up, _ := l.line.Passed(); return up > n }
	}
	require.Eventually(t, passed(size/2), testTimeout, time.Millisecond)
	l.line.Drop()
	l.add("second", []byte("small"))
	require.Eventually(t, l.has("second"), testTimeout, time.Millisecond)
	require.False(t, l.has("large")())
	require.Eventually(t, func() bool { return l.sess.Queued() == 0 && l.has("large")() }, testTimeout, time.Millisecond)
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return bytes.Equal(l.all["large"], append(bytes.Clone(large), "after"...))
	}, testTimeout, time.Millisecond)
	require.Equal(t, []string{"small", "second", "large", "large"}, l.came)
	up, _ := l.line.Passed()
	require.Less(t, float64(up), 1.1*size)
}

// Two messages that are the same are two messages, and one that the hub refuses doesn't keep the others.
func TestEachLargeMessageIsOneOfItsOwn(t *testing.T) {
	l := newSlowLine(t, 0)
	same := patternBytes(50_000, 2)
	l.add("same", same)
	l.add("same", same)
	l.add(strings.Repeat("a/", 250)+"deep", same) // more levels than a topic may have
	l.add("other", same)
	l.forward(t)
	require.Eventually(t, func() bool { return l.sess.Queued() == 0 }, testTimeout, time.Millisecond)
	require.Eventually(t, l.has("other"), testTimeout, time.Millisecond)
	require.Equal(t, []string{"same", "same", "other"}, l.came)
	require.Equal(t, append(bytes.Clone(same), same...), l.all["same"])
	require.EqualValues(t, 1, l.count.Dropped()["refused_by_client"])
}
