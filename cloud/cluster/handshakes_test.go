// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/test/orderedtest"
	"github.com/edgebus/edgebus/topics"
)

// partedLog is a log that its hub is cut from, with an append whose answer is lost, or whose request is.
type partedLog struct {
	ordered.Log
	answerOnly bool
	next, cut  atomic.Bool // that append is the next one, or was
}

func (l *partedLog) Append(ctx context.Context, after ordered.Position, frames ...[]byte) (ordered.Position, error) {
	if l.next.CompareAndSwap(true, false) {
		l.cut.Store(true)
		if l.answerOnly {
			_, _ = l.Log.Append(ctx, after, frames...)
		}
	}
	if l.cut.Load() {
		return 0, ordered.ErrUnknown
	}
	return l.Log.Append(ctx, after, frames...)
}

func (l *partedLog) Read(ctx context.Context, after ordered.Position) iter.Seq2[ordered.Frame, error] {
	return func(yield func(ordered.Frame, error) bool) {
		for f, err := range l.Log.Read(ctx, after) {
			if l.cut.Load() {
				<-ctx.Done()
				f, err = ordered.Frame{}, ctx.Err()
			}
			if !yield(f, err) {
				return
			}
		}
	}
}

// brokerHub is a hub that serves MQTT while it owns the log.
type brokerHub struct {
	t       *testing.T
	log     *partedLog
	member  *Member
	journal *journal.Journal
	owns    chan error
	commits atomic.Int32
	cutAt   atomic.Int32 // which of the next commits nobody answers; 0: none
	stop    func()
}

func newBrokerHub(t *testing.T, log ordered.Log, key sealed.Key, name string) *brokerHub {
	h := &brokerHub{t: t, log: &partedLog{Log: log}, owns: make(chan error, 1), stop: func() {}}
	h.member = New(Options{Log: h.log, Key: key, Name: name, Silence: testSilence, Logger: zerolog.Nop(), Lost: func(error) {}})
	commit := func(ctx context.Context, body []byte) (journal.Origin, error) {
		if at := h.cutAt.Load(); at > 0 && h.commits.Add(1) == at {
			h.log.next.Store(true)
		}
		return h.member.Commit(ctx, body)
	}
	j, err := journal.Open(journal.Options{Dir: newHub(t, log, key, name).dir, Log: zerolog.Nop(), Shared: commit})
	require.NoError(t, err)
	h.journal = j
	stood := make(chan struct{})
	go func() {
		defer close(stood)
		h.owns <- h.member.Stand(context.Background(), j)
	}()
	t.Cleanup(func() {
		_ = h.member.Close()
		<-stood
		h.stop()
		_ = j.Close()
	})
	return h
}

// serve waits until the log is this hub's, and has it serve.
func (h *brokerHub) serve() (address string) {
	h.t.Helper()
	require.NoError(h.t, <-h.owns)
	b, err := broker.New(broker.Options{
		Listeners: []broker.Listener{{Name: "mqtt", Address: "127.0.0.1:0"}}, Auth: broker.Auth{Anonymous: []topics.Role{topics.RoleOperator}},
		Journal: h.journal.Table(0), Owned: h.member.AwaitOwned, Failover: true, Log: zerolog.Nop(),
	})
	require.NoError(h.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = b.Serve(ctx)
	}()
	h.stop = func() {
		cancel()
		closing, stop := context.WithTimeout(context.Background(), time.Millisecond) // it can't store anything
		defer stop()
		_ = b.Close(closing)
		<-served
	}
	return b.Addrs()[0].String()
}

// clients are of the hub that serves.
type clients struct {
	t       *testing.T
	address atomic.Pointer[string]

	mu  sync.Mutex
	got map[string]int // by who got it, and what
}

func (c *clients) serve(h *brokerHub) {
	c.t.Helper()
	address := h.serve()
	c.address.Store(&address)
}

// session runs a client of a session that is kept, until the function that it returns.
func (c *clients) session(id string, filters ...string) (cl *client.Client, leave func()) {
	c.t.Helper()
	up := make(chan struct{}, 100)
	o := client.Options{
		ClientID: id, SessionExpiry: time.Hour, Servers: []string{"mqtt://hub"}, Backoff: client.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond},
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, *c.address.Load())
		},
		OnConnect: func(context.Context, bool) error { up <- struct{}{}; return nil },
		OnMessage: func(m client.Message) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.got[fmt.Sprint(id, " ", string(m.Payload))]++
		},
	}
	for _, filter := range filters {
		o.Subscriptions = append(o.Subscriptions, client.Subscription{Filter: filter, QoS: 2})
	}
	cl, err := client.New(o)
	require.NoError(c.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cl.Run(ctx)
	}()
	leave = sync.OnceFunc(func() { cancel(); <-done })
	c.t.Cleanup(leave)
	<-up
	return cl, leave
}

func (c *clients) await(what string) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.got[what] > 0
	}, 30*time.Second, time.Millisecond, what)
}

// A QoS 2 message is stored once, and delivered once to who is there and to who was away, whichever commit of the handshakes has no answer when another hub takes the
// log, and whether that commit is in the log or not.
func TestHandshakesThatATakeoverCutsGoOn(t *testing.T) {
	for commit := range int32(12) {
		for _, answerOnly := range []bool{false, true} {
			t.Run(fmt.Sprintf("commit %d, in the log %t", commit+1, answerOnly), func(t *testing.T) {
				t.Parallel()
				cutHandshakes(t, commit+1, answerOnly)
			})
		}
	}
}

func cutHandshakes(t *testing.T, commit int32, answerOnly bool) {
	memory, key := orderedtest.NewMemory(), sealed.NewKey()
	first := newBrokerHub(t, memory, key, "first")
	first.log.answerOnly = answerOnly
	c := &clients{t: t, got: map[string]int{}}
	c.serve(first)
	second := newBrokerHub(t, memory, key, "second")
	_, leave := c.session("away", "a")
	leave()
	there, _ := c.session("there", "a")
	publisher, _ := c.session("publisher")

	first.cutAt.Store(commit)
	published := make(chan int, 1)
	go func() {
		n := 0
		for cut := false; !cut; n++ {
			cut = first.log.cut.Load()
			if err := publisher.Publish(context.Background(), client.Message{Topic: "a", Payload: fmt.Append(nil, n), QoS: 2}); err != nil {
				t.Error(err)
			}
		}
		published <- n
	}()
	c.serve(second)
	for _, cl := range []*client.Client{publisher, there} {
		cl.Reconnect(errors.New("another hub serves"))
	}
	n := <-published
	c.session("away", "a")
	for _, who := range []string{"there", "away"} {
		c.await(fmt.Sprint(who, " ", n-1))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Len(t, c.got, 2*n)
	for what, times := range c.got {
		require.Equal(t, 1, times, what)
	}
}
