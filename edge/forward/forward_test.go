// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/broker/session"
)

const testTimeout = 30 * time.Second // a busy machine must not fail a test

// fakeHub answers publishes as a test wants it.
type fakeHub struct {
	mu      sync.Mutex
	got     []string
	meanest int // most publishes without an answer
	open    int
	answer  func(m client.Message) (err error, now bool)
	held    []func(error)
}

func (h *fakeHub) publish(m client.Message, done func(error)) {
	h.mu.Lock()
	h.open++
	h.meanest = max(h.meanest, h.open)
	err, now := h.answer(m)
	end := func(err error) {
		h.mu.Lock()
		h.open--
		if err == nil && !now {
			h.got = append(h.got, string(m.Payload))
		}
		h.mu.Unlock()
		done(err)
	}
	if !now {
		h.held = append(h.held, end)
		h.mu.Unlock()
		return
	}
	if err == nil {
		h.got = append(h.got, string(m.Payload))
	}
	h.mu.Unlock()
	go end(err)
}

func (h *fakeHub) letGo(err error) {
	h.mu.Lock()
	held := h.held
	h.held = nil
	h.mu.Unlock()
	for _, end := range held {
		end(err)
	}
}

func (h *fakeHub) has() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.got...)
}

type testForwarder struct {
	hub   *fakeHub
	sess  *session.Session
	count session.Counters
	ended chan error // why a connection was ended
}

func newTestForwarder(messages int) *testForwarder {
	r := &testForwarder{hub: &fakeHub{answer: func(client.Message) (error, bool) { return nil, true }}, ended: make(chan error, 10)}
	r.sess = session.New(session.Limits{Bytes: 1 << 20, DropOldest: true}, time.Now, &r.count)
	for i := range messages {
		r.put(strconv.Itoa(i))
	}
	return r
}

func (r *testForwarder) put(payload string) {
	m := &session.Message{Topic: "t", Payload: []byte(payload), QoS: 1}
	m.Stamp(time.Now())
	r.sess.Enqueue(m, session.DeliveryOptions{QoS: 1})
}

// run forwards until the test ends, or stop is called.
func (r *testForwarder) run(t *testing.T, o Options) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	o.Open = func(window int) *broker.LinkConsumer { return r.sess.OpenLocal(window) }
	o.Publish, o.Topic, o.Log = r.hub.publish, strings.ToUpper, zerolog.Nop()
	o.Reconnect = func(why error) { r.ended <- why }
	var running sync.WaitGroup
	running.Go(func() { New(o).Run(ctx) })
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return stop
}

func (r *testForwarder) arrives(t *testing.T, want ...string) {
	t.Helper()
	require.Eventually(t, func() bool { return len(r.hub.has()) >= len(want) && r.sess.Queued() == 0 }, testTimeout, time.Millisecond)
	require.Equal(t, want, r.hub.has())
}

func numberTexts(n int) (all []string) {
	for i := range n {
		all = append(all, strconv.Itoa(i))
	}
	return all
}

func TestAllArrivesInOrderWithinAWindow(t *testing.T) {
	r := newTestForwarder(50)
	r.hub.answer = func(client.Message) (error, bool) { return nil, false }
	r.run(t, Options{Window: 4})
	for range 13 {
		require.Eventually(t, func() bool { r.hub.mu.Lock(); defer r.hub.mu.Unlock(); return len(r.hub.held) > 0 }, testTimeout, time.Millisecond)
		r.hub.letGo(nil)
	}
	require.Eventually(t, func() bool { r.hub.letGo(nil); return r.sess.Queued() == 0 }, testTimeout, time.Millisecond)
	require.Equal(t, numberTexts(50), r.hub.has())
	require.LessOrEqual(t, r.hub.meanest, 4)
}

func TestTimestampsAreForwarded(t *testing.T) {
	r := newTestForwarder(0)
	var mu sync.Mutex
	var seen []client.Message
	r.hub.answer = func(m client.Message) (error, bool) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, m)
		return nil, true
	}
	r.put("plain")
	said := &session.Message{Topic: "t", QoS: 1, Payload: []byte("said"), Props: session.Properties{
		ResponseTopic: "mine", User: []session.UserProperty{{Key: "ts", Value: "2020-01-01T00:00:00Z"}, {Key: "unit", Value: "K"}},
	}}
	said.Stamp(time.Now())
	r.sess.Enqueue(said, session.DeliveryOptions{QoS: 1})
	r.run(t, Options{})
	r.arrives(t, "plain", "said")
	mu.Lock()
	defer mu.Unlock()
	at, err := time.Parse(time.RFC3339, seen[0].Property("ts"))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), at, testTimeout)
	require.Equal(t, []client.UserProperty{{Key: "ts", Value: "2020-01-01T00:00:00Z"}, {Key: "unit", Value: "K"}}, seen[1].User)
	require.Empty(t, seen[1].ResponseTopic)
	require.Equal(t, "T", seen[1].Topic)
}

// A refusal that may pass ends the connection, and nothing more is sent over it: the next one begins with what was refused.
func TestATemporaryRefusalEndsTheConnection(t *testing.T) {
	r := newTestForwarder(20)
	r.hub.answer = func(m client.Message) (error, bool) {
		if string(m.Payload) >= "10" {
			return &client.Refused{Code: 0x83}, true
		}
		return nil, true
	}
	stop := r.run(t, Options{Window: 1})
	for range 3 {
		require.ErrorAs(t, <-r.ended, new(*client.Refused))
		stop()
		require.Equal(t, []string{"0", "1"}, r.hub.has())
		stop = r.run(t, Options{Window: 1})
	}
	require.ErrorAs(t, <-r.ended, new(*client.Refused))
	stop()
	r.hub.answer = func(client.Message) (error, bool) { return nil, true }
	r.run(t, Options{})
	r.arrives(t, numberTexts(20)...)
	require.Empty(t, r.ended)
	require.Zero(t, r.count.Dropped()["refused_by_client"])
}

func TestPermanentlyRefusedMessagesAreDroppedAndCounted(t *testing.T) {
	r := newTestForwarder(4)
	r.hub.answer = func(m client.Message) (error, bool) {
		switch string(m.Payload) {
		case "1":
			return &client.Refused{Code: 0x95}, true
		case "2":
			return &client.Refused{Code: 0x87}, true
		}
		return nil, true
	}
	r.run(t, Options{})
	r.arrives(t, "0", "3")
	require.EqualValues(t, 2, r.count.Dropped()["refused_by_client"])
}

func TestUnacknowledgedMessagesAreSentAgain(t *testing.T) {
	r := newTestForwarder(6)
	r.hub.answer = func(client.Message) (error, bool) { return nil, false }
	stop := r.run(t, Options{Window: 4})
	require.Eventually(t, func() bool { r.hub.mu.Lock(); defer r.hub.mu.Unlock(); return len(r.hub.held) == 4 }, testTimeout, time.Millisecond)
	stop()
	r.hub.letGo(client.ErrConnectionLost)
	require.Equal(t, 6, r.sess.Queued())
	r.hub.answer = func(client.Message) (error, bool) { return nil, true }
	r.run(t, Options{Window: 1})
	r.arrives(t, numberTexts(6)...)
}

func TestTheBudgetHoldsStreamsAndNeverState(t *testing.T) {
	now := time.Now()
	b := NewBudget(1000, func() time.Time { return now })
	require.Zero(t, b.Wait())
	b.stream(1500) // a message may be larger than what is left
	require.Positive(t, b.Wait())
	b.State(1000)
	require.InDelta(t, 1.5, b.Wait().Seconds(), 0.01)
	now = now.Add(1600 * time.Millisecond)
	require.Zero(t, b.Wait())
	now = now.Add(time.Hour)
	b.stream(1000)
	require.Positive(t, b.Wait(), "a quiet hour saves up one second")
	now = now.Add(-time.Hour) // the clock has jumped
	b.State(1)
	require.Less(t, b.Wait(), time.Second)
	require.Equal(t, BudgetStats{State: 1001, Streams: 2500}, b.Stats())

	free := NewBudget(0, time.Now)
	free.stream(1 << 30)
	require.Zero(t, free.Wait())
}

func TestAForwarderKeepsToItsBudget(t *testing.T) {
	r := newTestForwarder(5)
	b := NewBudget(100, time.Now) // each message is some 60 bytes with its time
	began := time.Now()
	r.run(t, Options{Budget: b, Window: 1})
	r.arrives(t, numberTexts(5)...)
	require.GreaterOrEqual(t, time.Since(began), 100*time.Millisecond)
	require.Positive(t, b.Stats().Held)
}
