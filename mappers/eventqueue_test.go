// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// eventBroker answers publishes when it is told to.
type eventBroker struct {
	mu   sync.Mutex
	got  []string
	open []func(error)
}

func (b *eventBroker) publish(m client.Message, done func(error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.got, b.open = append(b.got, string(m.Payload)), append(b.open, done)
}

// answer answers the publishes that are under way.
func (b *eventBroker) answer(err error) {
	b.mu.Lock()
	open := b.open
	b.open = nil
	b.mu.Unlock()
	for _, done := range open {
		done(err)
	}
}

func TestEventsWaitForTheBrokerInTheirOrder(t *testing.T) {
	b := &eventBroker{}
	q := newEventQueue(b.publish, zerolog.Nop())
	dropped := 0
	add := func(payload string) { q.add(client.Message{Payload: []byte(payload)}, func() { dropped++ }) }
	add("1")
	add("2")
	b.answer(client.ErrConnectionLost)
	add("3")
	require.Equal(t, []string{"1", "2"}, b.got, "the connection is lost")
	b.got = nil
	q.connected(true)
	require.Equal(t, []string{"1", "2", "3"}, b.got)
	b.answer(nil)
	require.Zero(t, q.lost())
	add("4")
	b.answer(errors.New("refused"))
	q.connected(true)
	require.Equal(t, []string{"1", "2", "3", "4"}, b.got, "what the broker refuses isn't published again")
	require.Zero(t, dropped)
}

// A disk that is full for a while loses no event that was told meanwhile.
func TestAnEventThatTheBrokerCantStoreNowIsPublishedAgain(t *testing.T) {
	b := &eventBroker{}
	q := newEventQueue(b.publish, zerolog.Nop())
	for _, payload := range []string{"1", "2"} {
		q.add(client.Message{Payload: []byte(payload)}, nil)
	}
	b.answer(&client.Refused{Op: "publish to", Code: 0x83})
	q.connected(true)
	require.Equal(t, []string{"1", "2", "1", "2"}, b.got)
	b.answer(nil)
	require.Zero(t, q.lost())
}

func TestOfTooManyEventsTheOldestAreDropped(t *testing.T) {
	b := &eventBroker{}
	q := newEventQueue(b.publish, zerolog.Nop())
	q.connected(false)
	var dropped []string
	add := func(payload string) {
		q.add(client.Message{Payload: []byte(payload)}, func() { dropped = append(dropped, payload) })
	}
	for i := range maxEvents + 2 {
		add(strconv.Itoa(i))
	}
	require.Equal(t, []string{"0", "1"}, dropped)
	q.connected(true)
	for len(b.open) > 0 {
		b.answer(nil)
	}
	require.Len(t, b.got, maxEvents)
	require.True(t, slices.IsSortedFunc(b.got, func(a, b string) int {
		x, _ := strconv.Atoi(a)
		y, _ := strconv.Atoi(b)
		return x - y
	}))
	q.connected(false)
	dropped = nil
	for range 3 {
		add(string(make([]byte, maxEventBytes/2)))
	}
	require.Len(t, dropped, 1, "their size is bounded, too")
}

func TestAnEventWithoutTheBrokerIsPublishedWhenItIsBack(t *testing.T) {
	n := newNode(t)
	m := &resource.DeviceModel{Spec: resource.DeviceModelSpec{
		Events:           []resource.ModelEvent{{Name: "pressed"}},
		Commands:         []resource.ModelCommand{{Name: "press", Input: &resource.CommandInput{}}},
		PropertyVisitors: []resource.ProtocolVisitors{{Protocol: "bell", Visitors: []resource.Visitor{{EventName: "pressed"}, {CommandName: "press"}}}},
	}}
	bell := &bellSession{rings: make(chan string, 100)}
	n.attach("lamp", "bell", nil, m)
	n.run(oneBell{bell}, nil)
	n.eventually("devices/lamp/state", "online")
	n.stop()
	bell.rings <- "first"
	bell.rings <- "second"
	require.Eventually(t, func() bool { return len(bell.rings) == 0 }, testTimeout, pollInterval)
	n.start()
	require.Eventually(t, func() bool { return len(n.published("devices/lamp/events/pressed")) == 2 }, testTimeout, pollInterval)
	require.Equal(t, []string{"first", "second"}, n.published("devices/lamp/events/pressed"))
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, msg := range n.history {
		if a, err := topics.Parse(msg.Topic); err == nil && a.Kind == topics.KindEvents {
			require.Equal(t, "ts", msg.Props.User[0].Key, "when it happened")
		}
	}
}

// oneBell has a device in the test's hand.
type oneBell struct{ s *bellSession }

func (oneBell) Protocols() []string { return []string{"bell"} }

func (b oneBell) Open(_ context.Context, d Device) (Session, error) {
	b.s.device = d
	return b.s, nil
}
