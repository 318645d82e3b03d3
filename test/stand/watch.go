// SPDX-License-Identifier: Apache-2.0

package stand

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
)

// Watcher is a subscriber that knows what a broker shows, over as many connections
// as it takes.
type Watcher struct {
	s     *Stand
	heard func(client.Message)

	mu   sync.Mutex
	up   bool
	live map[string]client.Message
}

// Watch subscribes to a filter, and returns once that is granted. heard, if there is
// one, is called with every message in the order of arrival.
func (s *Stand) Watch(broker, filter string, heard func(client.Message)) *Watcher {
	s.t.Helper()
	w := &Watcher{s: s, heard: heard, live: map[string]client.Message{}}
	granted := make(chan struct{})
	var once sync.Once
	s.Client(broker, func(o *client.Options) {
		o.Subscriptions = []client.Subscription{{Filter: filter, QoS: 1}}
		o.OnConnect = func(context.Context, bool) error {
			w.begin(true)
			once.Do(func() { close(granted) })
			return nil
		}
		o.OnDisconnect = func(error) { w.begin(false) }
		o.OnMessage = w.take
	})
	select {
	case <-granted:
	case <-time.After(WaitTimeout):
		require.Fail(s.t, "no subscription", "%s to %s", broker, filter)
	}
	return w
}

// begin forgets everything: what is cleared while we are away is not said again.
func (w *Watcher) begin(up bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.up = up
	clear(w.live)
}

// Up is whether the subscription stands.
func (w *Watcher) Up() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.up
}

func (w *Watcher) take(m client.Message) {
	if w.heard != nil {
		w.heard(m)
	}
	if strings.Contains(m.Topic, "/telemetry/") || strings.Contains(m.Topic, "/commands/") {
		return // streams and calls are not part of the tree
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(m.Payload) == 0 {
		delete(w.live, m.Topic)
	} else {
		w.live[m.Topic] = m
	}
}

// Get is the present message of a topic.
func (w *Watcher) Get(topic string) (client.Message, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m, ok := w.live[topic]
	return m, ok
}

// Tree is everything that the broker shows.
func (w *Watcher) Tree() map[string]client.Message {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.live)
}

// Await waits until a topic shows a value; "" for one that is cleared.
func (w *Watcher) Await(topic, value string) client.Message {
	w.s.t.Helper()
	return w.AwaitThat(topic, func(m client.Message) bool { return string(m.Payload) == value })
}

// AwaitThat waits until a topic's message is as wanted.
func (w *Watcher) AwaitThat(topic string, ok func(client.Message) bool) (m client.Message) {
	w.s.t.Helper()
	w.s.Eventually(WaitTimeout, func() error {
		if m, _ = w.Get(topic); !ok(m) {
			return fmt.Errorf("%s is %.100q", topic, m.Payload)
		}
		return nil
	})
	return m
}

// VersionOf is the version that travels beside a value; 0 if there is none.
func VersionOf(m client.Message) uint64 {
	v, _ := strconv.ParseUint(m.Property("ver"), 10, 64)
	return v
}
