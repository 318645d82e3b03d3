// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
)

const telemetryTopic = "v1/nodes/n1/devices/meter/telemetry/t"

// flakyJournal is a hub's disk: now and then it is full, until all are told whom that concerns.
type flakyJournal struct {
	*journal.Journal

	mu       sync.Mutex
	chance   *rand.Rand // nil: the disk is well
	untold   int        // while there are some, it is full
	failures int
}

func (f *flakyJournal) Commit(changes []journal.RecordChange, done func(error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if done == nil || f.untold == 0 && (f.chance == nil || f.chance.IntN(20) > 0) {
		f.Journal.Commit(changes, done)
		return
	}
	if f.untold == 0 {
		f.failures++
	}
	f.untold++
	go func() {
		done(errors.New("no space left on device"))
		f.mu.Lock()
		defer f.mu.Unlock()
		f.untold--
	}()
}

// set makes the disk fail or not, and says how often it has.
func (f *flakyJournal) set(chance *rand.Rand) (failures int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.chance = chance
	return f.failures
}

// streamTree is a hub's tree that takes streams and nothing else.
type streamTree struct{ b *broker.Broker }

func (s *streamTree) Publish(m broker.Message, done func(error)) { s.b.Pass(m, done) }
func (s *streamTree) Retained(string) func(int) []broker.Message {
	return func(int) []broker.Message { return nil }
}

// startHub runs a hub's broker until the test ends.
func startHub(t *testing.T) (addr string, disk *flakyJournal) {
	t.Helper()
	j, err := journal.Open(journal.Options{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, j.Close()) })
	disk = &flakyJournal{Journal: j}
	tree := &streamTree{}
	tree.b, err = broker.New(broker.Options{
		Listeners: []broker.Listener{{Address: "127.0.0.1:0"}}, Tree: tree, Journal: disk, Log: zerolog.Nop(),
		Auth: broker.Auth{Anonymous: []topics.Role{topics.RoleOperator}, LoopbackNodes: true},
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- tree.b.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-served)
	})
	return tree.b.Addrs()[0].String(), disk
}

// connectClient runs a client until the test ends, and returns once it is connected. began is called with each connection's context.
func connectClient(t *testing.T, o client.Options, began func(context.Context, *client.Client)) {
	t.Helper()
	var c *client.Client
	up := make(chan struct{}, 1)
	o.Log, o.Backoff = zerolog.Nop(), client.Backoff{Min: time.Millisecond, Max: 2 * time.Millisecond}
	o.OnConnect = func(ctx context.Context, _ bool) error {
		began(ctx, c)
		select {
		case up <- struct{}{}:
		default:
		}
		return nil
	}
	c, err := client.New(o)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	select {
	case <-up:
	case <-time.After(testTimeout):
		require.Fail(t, "no connection")
	}
}

// While the hub can't store one, others of its topic are on their way already: they don't
// overtake it, however short the failure is.
func TestNoMessageOvertakesOneThatTheHubCouldNotStore(t *testing.T) {
	const messages = 600
	addr, disk := startHub(t)
	var mu sync.Mutex
	var got []int
	connectClient(t, client.Options{
		Servers: []string{"mqtt://" + addr}, ClientID: "sub", SessionExpiry: time.Hour,
		Subscriptions: []client.Subscription{{Filter: telemetryTopic, QoS: 1}},
		OnMessage: func(m client.Message) {
			n, _ := strconv.Atoi(string(m.Payload))
			mu.Lock()
			defer mu.Unlock()
			got = append(got, n)
		},
	}, func(context.Context, *client.Client) {})
	disk.set(rand.New(rand.NewPCG(1, 2)))

	r := newTestForwarder(0)
	r.sess = session.New(session.Limits{Bytes: 1 << 20, DropOldest: true}, time.Now, &r.count)
	for i := range messages {
		r.put(strconv.Itoa(i))
	}
	var running sync.WaitGroup
	var connections atomic.Int64
	core := client.Options{Servers: []string{"mqtt://" + addr}, ClientID: "node/n1", User: "node/n1", CleanStart: true}
	t.Cleanup(running.Wait)
	connectClient(t, core, func(ctx context.Context, c *client.Client) {
		connections.Add(1)
		publish := func(m client.Message, done func(error)) { c.PublishOver(ctx, m, done) } // as the link has it
		o := Options{Publish: publish, Reconnect: c.Reconnect, Topic: func(string) string { return telemetryTopic }, Log: zerolog.Nop()}
		o.Open = func(window int) *broker.LinkConsumer { return r.sess.OpenLocal(window) }
		running.Go(func() { New(o).Run(ctx) })
	})
	last := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return r.sess.Queued() == 0 && len(got) > 0 && got[len(got)-1] == messages-1
	}
	require.Eventually(t, last, 2*testTimeout, time.Millisecond)
	require.Positive(t, disk.set(nil))
	mu.Lock()
	defer mu.Unlock()
	next := 0
	for _, n := range got {
		require.LessOrEqual(t, n, next, "it came before others that were sent before it")
		next = max(next, n+1)
	}
	require.Equal(t, messages, next)
	require.Greater(t, connections.Load(), int64(1))
}
