// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// startClient runs a client against b and stops it at the end of the test.
func startClient(t *testing.T, b *fakeBroker, change func(*Options)) *Client {
	t.Helper()
	o := Options{
		Servers: []string{b.url()}, ClientID: "c1", CleanStart: true,
		Backoff: Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond},
	}
	if change != nil {
		change(&o)
	}
	c, err := New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(testTimeout):
			t.Error("Run did not end")
		}
	})
	return c
}

func shortContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

func TestConnectCarriesTheOptions(t *testing.T) {
	t.Parallel()
	b := newFakeBroker(t)
	startClient(t, b, func(o *Options) {
		o.Servers = []string{"mqtt://ann:secret@" + b.l.Addr().String()}
		o.CleanStart, o.SessionExpiry, o.KeepAlive, o.ReceiveMaximum = false, 90*time.Second, 7*time.Second, 11
		o.Will = &Message{Topic: "will", Payload: []byte("gone"), QoS: 1, Retain: true}
	})
	p := b.accept(packets.Connack{}).connect
	require.Equal(t, "c1", p.ClientID)
	require.Equal(t, "ann", p.Username)
	require.Equal(t, "secret", string(p.Password))
	require.False(t, p.CleanStart)
	require.EqualValues(t, 7, p.KeepAlive)
	require.EqualValues(t, 90, *p.Properties.SessionExpiryInterval)
	require.EqualValues(t, 11, *p.Properties.ReceiveMaximum)
	require.Equal(t, "will", p.WillTopic)
	require.Equal(t, "gone", string(p.WillMessage))
	require.True(t, p.WillRetain)
}

func TestPublishWaitsForTheAcknowledgement(t *testing.T) {
	b := newFakeBroker(t)
	c := startClient(t, b, nil)
	conn := b.accept(packets.Connack{})
	end := make(chan error, 1)
	go func() {
		end <- c.Publish(shortContext(t), Message{
			Topic: "a", Payload: []byte("x"), QoS: 1, Retain: true, Text: true, Expiry: 1500 * time.Millisecond,
			User: []UserProperty{{"for", "7"}, {"for", "8"}}, ResponseTopic: "r", Correlation: []byte{1},
		})
	}()
	p := conn.readPublish()
	require.Equal(t, "a", p.Topic)
	require.True(t, p.Retain)
	require.EqualValues(t, 2, *p.Properties.MessageExpiry)
	require.Equal(t, []packets.User{{Key: "for", Value: "7"}, {Key: "for", Value: "8"}}, p.Properties.User)
	require.Equal(t, "r", p.Properties.ResponseTopic)
	require.Empty(t, end)
	conn.puback(p.PacketID, 0x10, "")
	require.NoError(t, <-end)
}

func TestRefusalSaysWhy(t *testing.T) {
	b := newFakeBroker(t)
	c := startClient(t, b, nil)
	conn := b.accept(packets.Connack{})
	require.NoError(t, c.waitUp(shortContext(t)))
	end := make(chan error, 1)
	c.PublishAsync(Message{Topic: "a", QoS: 1}, func(err error) { end <- err })
	conn.puback(conn.readPublish().PacketID, 0x99, "brightness: 120 is above the maximum 100")
	err := <-end
	var refused *Refused
	require.ErrorAs(t, err, &refused)
	require.EqualValues(t, 0x99, refused.Code)
	require.EqualError(t, err, "mqtt: publish to a refused: payload format invalid (0x99): brightness: 120 is above the maximum 100")
}

func TestManyInFlightInOrder(t *testing.T) {
	b := newFakeBroker(t)
	c := startClient(t, b, nil)
	window := uint16(5)
	conn := b.accept(packets.Connack{Properties: &packets.Properties{ReceiveMaximum: &window}})
	require.NoError(t, c.waitUp(shortContext(t)))
	const n = 200
	var ends []int
	var wg sync.WaitGroup
	wg.Add(n)
	for i := range n {
		c.PublishAsync(Message{Topic: "t", Payload: []byte(strconv.Itoa(i)), QoS: 1}, func(err error) {
			require.NoError(t, err)
			ends = append(ends, i)
			wg.Done()
		})
	}
	var open []uint16
	for i := range n {
		p := conn.readPublish()
		require.Equal(t, strconv.Itoa(i), string(p.Payload))
		open = append(open, p.PacketID)
		if len(open) == int(window) { // the broker's window is full: nothing more may come
			if i < 10 {
				conn.silent()
			}
			for _, id := range open {
				conn.puback(id, 0, "")
			}
			open = nil
		}
	}
	wg.Wait()
	for i := range n {
		require.Equal(t, i, ends[i])
	}
}

func TestLossWithoutSessionEndsPublishesAtOnce(t *testing.T) {
	b := newFakeBroker(t)
	lost := make(chan error, 4)
	c := startClient(t, b, func(o *Options) { o.OnDisconnect = func(err error) { lost <- err } })
	conn := b.accept(packets.Connack{})
	end := make(chan error, 1)
	go func() { end <- c.Publish(shortContext(t), Message{Topic: "a", QoS: 1}) }()
	conn.readPublish()
	_ = conn.Close()
	require.ErrorIs(t, <-end, ErrConnectionLost)
	require.ErrorContains(t, <-lost, "closed the connection")
	conn = b.accept(packets.Connack{})
	conn.silent()
}

func TestSessionSendsAgainInOrder(t *testing.T) {
	b := newFakeBroker(t)
	c := startClient(t, b, func(o *Options) { o.CleanStart, o.SessionExpiry = false, time.Hour })
	conn := b.accept(packets.Connack{})
	require.NoError(t, c.waitUp(shortContext(t)))
	ends := make(chan error, 4)
	for i := range 4 {
		qos := byte(1 + i%2)
		c.PublishAsync(Message{Topic: "t", Payload: []byte{byte('a' + i)}, QoS: qos}, func(err error) { ends <- err })
	}
	ids := map[string]uint16{}
	for range 4 {
		p := conn.readPublish()
		ids[string(p.Payload)] = p.PacketID
	}
	conn.send(packets.PUBREC, &packets.Pubrec{PacketID: ids["b"], Properties: &packets.Properties{}})
	require.Equal(t, packets.PUBREL, conn.read().Type)
	conn.puback(ids["a"], 0, "")
	require.NoError(t, <-ends)
	_ = conn.Close()
	for range 2 { // the second loss comes while the first one's messages are being sent again
		conn = b.accept(packets.Connack{SessionPresent: true})
		require.Equal(t, ids["b"], conn.read().Content.(*packets.Pubrel).PacketID)
		for _, want := range []string{"c", "d"} {
			p := conn.readPublish()
			require.Equal(t, want, string(p.Payload))
			require.True(t, p.Duplicate)
			require.Equal(t, ids[want], p.PacketID)
		}
		_ = conn.Close()
	}
	conn = b.accept(packets.Connack{SessionPresent: false}) // the broker forgot us
	for range 3 {
		require.ErrorIs(t, <-ends, ErrConnectionLost)
	}
	conn.silent()
}

func TestPublishWaitsForAConnection(t *testing.T) {
	b := newFakeBroker(t)
	c := startClient(t, b, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := c.Publish(ctx, Message{Topic: "a"})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, b.url())
	c.PublishAsync(Message{Topic: "a"}, func(e error) { err = e })
	require.ErrorIs(t, err, ErrNotConnected)
	end := make(chan error, 1)
	go func() { end <- c.Publish(shortContext(t), Message{Topic: "a", QoS: 0}) }()
	conn := b.accept(packets.Connack{})
	require.Equal(t, "a", conn.readPublish().Topic)
	require.NoError(t, <-end)
}

func TestIncomingInOrderAndAcknowledgedAfterTheHandler(t *testing.T) {
	b := newFakeBroker(t)
	proceed := make(chan struct{})
	got := make(chan string, 10)
	startClient(t, b, func(o *Options) {
		o.Subscriptions = []Subscription{{Filter: "x/#", QoS: 2}, {Filter: "y", QoS: 1}}
		o.OnMessage = func(m Message) { <-proceed; got <- string(m.Payload) }
	})
	conn := b.accept(packets.Connack{})
	sub := conn.grant()
	require.Len(t, sub.Subscriptions, 2)
	conn.publish("x/1", "one", 1, 100)
	conn.publish("x/1", "two", 2, 101)
	conn.publish("x/1", "three", 0, 0)
	conn.silent()
	proceed <- struct{}{}
	require.Equal(t, uint16(100), conn.read().PacketID())
	conn.silent()
	proceed <- struct{}{}
	require.Equal(t, packets.PUBREC, conn.read().Type)
	proceed <- struct{}{}
	conn.publish("x/1", "two", 2, 101) // again: its PUBREC got lost
	require.Equal(t, packets.PUBREC, conn.read().Type)
	conn.send(packets.PUBREL, &packets.Pubrel{PacketID: 101, Properties: &packets.Properties{}})
	require.Equal(t, packets.PUBCOMP, conn.read().Type)
	require.Equal(t, []string{"one", "two", "three"}, []string{<-got, <-got, <-got})
}

func TestHandlerMayPublishAndWait(t *testing.T) {
	b := newFakeBroker(t)
	var c *Client
	ready := make(chan struct{})
	c = startClient(t, b, func(o *Options) {
		o.OnMessage = func(m Message) {
			<-ready
			_ = c.Publish(context.Background(), Message{Topic: "echo", Payload: m.Payload, QoS: 1})
		}
	})
	close(ready)
	conn := b.accept(packets.Connack{})
	for i := range 50 {
		conn.publish("in", strconv.Itoa(i), 0, 0)
	}
	for i := range 50 {
		p := conn.readPublish()
		require.Equal(t, strconv.Itoa(i), string(p.Payload))
		conn.puback(p.PacketID, 0, "")
	}
}

func TestSubscribeRefused(t *testing.T) {
	b := newFakeBroker(t)
	c := startClient(t, b, nil)
	conn := b.accept(packets.Connack{})
	end := make(chan error, 1)
	go func() {
		end <- c.Subscribe(shortContext(t), Subscription{Filter: "a", QoS: 1}, Subscription{Filter: "b", QoS: 1})
	}()
	conn.grant(1, 0x87)
	require.EqualError(t, <-end, "mqtt: subscribe to b refused: not authorised (0x87)")
}

func TestRefusedConnectGivesUpAfterAttempts(t *testing.T) {
	b := newFakeBroker(t)
	var told []error
	o := Options{Servers: []string{b.url()}, CleanStart: true, Attempts: 2, Backoff: Backoff{Min: time.Millisecond, Max: time.Millisecond}}
	o.OnConnectError = func(err error) { told = append(told, err) }
	c, err := New(o)
	require.NoError(t, err)
	end := make(chan error, 1)
	go func() { end <- c.Run(t.Context()) }()
	for range 2 {
		b.accept(packets.Connack{ReasonCode: 0x86, Properties: &packets.Properties{ReasonString: "no user ann"}})
	}
	err = <-end
	var refused *Refused
	require.ErrorAs(t, err, &refused)
	require.ErrorContains(t, err, "bad user name or password (0x86): no user ann")
	require.Len(t, told, 2)
	require.ErrorIs(t, c.Publish(shortContext(t), Message{Topic: "a"}), ErrClosed)
}

func TestOnConnectErrorTriesAgain(t *testing.T) {
	b := newFakeBroker(t)
	var calls atomic.Int32
	startClient(t, b, func(o *Options) {
		o.OnConnect = func(context.Context, bool) error {
			if calls.Add(1) == 1 {
				return errors.New("not yet")
			}
			return nil
		}
	})
	b.accept(packets.Connack{})
	b.accept(packets.Connack{})
	require.Eventually(t, func() bool { return calls.Load() == 2 }, testTimeout, time.Millisecond)
}

func TestSilentBrokerIsNoticed(t *testing.T) {
	t.Parallel()
	b := newFakeBroker(t)
	lost := make(chan error, 4)
	startClient(t, b, func(o *Options) {
		o.KeepAlive = time.Second
		o.OnDisconnect = func(err error) { lost <- err }
	})
	b.accept(packets.Connack{}) // and never a PINGRESP
	select {
	case err := <-lost:
		require.ErrorContains(t, err, "silent")
	case <-time.After(testTimeout):
		require.Fail(t, "a dead broker was not noticed within the keep-alive")
	}
}

func TestQuietConnectionIsKeptAlive(t *testing.T) {
	t.Parallel()
	b := newFakeBroker(t)
	startClient(t, b, func(o *Options) { o.KeepAlive = time.Second })
	conn := b.accept(packets.Connack{})
	for range 3 {
		_ = conn.SetReadDeadline(time.Now().Add(testTimeout)) // how punctual it is says the machine, not the client
		cp, err := readPacket(conn.r, 100)
		require.NoError(t, err)
		require.Equal(t, packets.PINGREQ, cp.Type)
		conn.send(packets.PINGRESP, &packets.Pingresp{})
	}
}

func TestStopSaysGoodbyeAfterWhatIsQueued(t *testing.T) {
	for _, will := range []bool{false, true} {
		testGoodbye(t, will)
	}
}

func testGoodbye(t *testing.T, will bool) {
	b := newFakeBroker(t)
	c, err := New(Options{Servers: []string{b.url()}, CleanStart: true, Will: &Message{Topic: "gone"}})
	require.NoError(t, err)
	if will {
		c.PublishWillAtEnd()
	}
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan error, 1)
	go func() { end <- c.Run(ctx) }()
	conn := b.accept(packets.Connack{})
	require.NoError(t, c.waitUp(shortContext(t)))
	for i := range 20 {
		c.PublishAsync(Message{Topic: fmt.Sprint(i)}, nil)
	}
	cancel()
	for i := range 20 {
		require.Equal(t, fmt.Sprint(i), conn.readPublish().Topic)
	}
	goodbye, ok := conn.read().Content.(*packets.Disconnect)
	require.True(t, ok)
	require.Equal(t, will, goodbye.ReasonCode == packets.DisconnectDisconnectWithWillMessage)
	require.NoError(t, <-end)
}

func TestBrokerThatBreaksTheRulesIsLeft(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string][]byte{
		"too large":       {0x30, 0xff, 0xff, 0xff, 0x7f},
		"length":          {0x30, 0xff, 0xff, 0xff, 0xff, 0x7f},
		"unknown type":    {0x00, 0x00},
		"empty publish":   {0x32, 0x00},
		"second connack":  {0x20, 0x03, 0, 0, 0},
		"wrong direction": {0x82, 0x06, 0, 1, 0, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newFakeBroker(t)
			startClient(t, b, nil)
			conn := b.accept(packets.Connack{})
			_, err := conn.Write(raw)
			require.NoError(t, err)
			b.accept(packets.Connack{}) // it came back
		})
	}
	t.Run("receive maximum", func(t *testing.T) {
		b := newFakeBroker(t)
		block := make(chan struct{})
		startClient(t, b, func(o *Options) {
			o.ReceiveMaximum = 1
			o.OnMessage = func(Message) { <-block }
		})
		conn := b.accept(packets.Connack{})
		large := strings.Repeat("x", 600_000)
		for id := range uint16(3) {
			conn.publish("a", large, 1, id+1)
		}
		b.accept(packets.Connack{})
		close(block)
	})
}

// Mosquitto 2.0 sends all retained messages that match a subscription, however few it is allowed.
func TestABrokerThatSendsMoreMessagesThanItMayIsHeardWhileTheyAreSmall(t *testing.T) {
	b := newFakeBroker(t)
	block, handled := make(chan struct{}), make(chan string, 10)
	startClient(t, b, func(o *Options) {
		o.ReceiveMaximum = 2
		o.OnMessage = func(m Message) {
			<-block
			handled <- m.Topic
		}
	})
	conn := b.accept(packets.Connack{})
	for id := range uint16(10) {
		conn.publish(strconv.Itoa(int(id)), "", 1, id+1)
	}
	close(block)
	for i := range 10 {
		require.Equal(t, strconv.Itoa(i), <-handled)
	}
}

func TestRequest(t *testing.T) {
	b := newFakeBroker(t)
	c := startClient(t, b, nil)
	conn := b.accept(packets.Connack{})
	type result struct {
		m   Message
		err error
	}
	results := make(chan result, 2)
	for i := range 2 {
		go func() {
			m, err := c.Request(shortContext(t), Message{Topic: "ask", Payload: []byte(strconv.Itoa(i)), QoS: 1})
			results <- result{m, err}
		}()
		if i == 0 {
			conn.grant()
		}
		p := conn.readPublish()
		conn.puback(p.PacketID, 0, "")
		conn.send(packets.PUBLISH, &packets.Publish{
			Topic: p.Properties.ResponseTopic, Payload: []byte("re " + string(p.Payload)), QoS: 1, PacketID: 9,
			Properties: &packets.Properties{CorrelationData: p.Properties.CorrelationData},
		})
		require.Equal(t, packets.PUBACK, conn.read().Type)
		r := <-results
		require.NoError(t, r.err)
		require.Equal(t, "re "+strconv.Itoa(i), string(r.m.Payload))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err := c.Request(ctx, Message{Topic: "ask", QoS: 0})
	require.ErrorContains(t, err, "no answer")
}

func TestTooManyPendingAndTooLargeAreRefusedHere(t *testing.T) {
	b := newFakeBroker(t)
	c := startClient(t, b, func(o *Options) { o.MaxPending = 2 })
	limit := uint32(1000)
	b.accept(packets.Connack{Properties: &packets.Properties{MaximumPacketSize: &limit}})
	require.NoError(t, c.waitUp(shortContext(t)))
	var refused *Refused
	require.ErrorAs(t, c.Publish(shortContext(t), Message{Topic: "a", Payload: make([]byte, 1001)}), &refused)
	require.EqualValues(t, 0x95, refused.Code)
	for range 2 {
		c.PublishAsync(Message{Topic: "a", QoS: 1}, nil)
	}
	var err error
	c.PublishAsync(Message{Topic: "a", QoS: 1}, func(e error) { err = e })
	require.ErrorIs(t, err, ErrBusy)
}

func TestSecondServerIsTried(t *testing.T) {
	t.Parallel()
	b := newFakeBroker(t)
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, dead.Close())
	startClient(t, b, func(o *Options) { o.Servers = []string{"mqtt://" + dead.Addr().String(), b.url()} })
	b.accept(packets.Connack{})
}

func TestOptionsThatCannotWork(t *testing.T) {
	for name, o := range map[string]Options{
		"no server":   {ClientID: "a"},
		"bad url":     {Servers: []string{"127.0.0.1:1883"}, ClientID: "a"},
		"bad scheme":  {Servers: []string{"http://h"}, ClientID: "a"},
		"no id":       {Servers: []string{"mqtt://h"}},
		"backoff":     {Servers: []string{"mqtt://h"}, ClientID: "a", Backoff: Backoff{Min: 2, Max: 1}},
		"keep alive":  {Servers: []string{"mqtt://h"}, ClientID: "a", KeepAlive: time.Millisecond},
		"will":        {Servers: []string{"mqtt://h"}, ClientID: "a", Will: &Message{Topic: "a/#"}},
		"filter":      {Servers: []string{"mqtt://h"}, ClientID: "a", Subscriptions: []Subscription{{Filter: ""}}},
		"id in utf-8": {Servers: []string{"mqtt://h"}, ClientID: "a\xff"},
	} {
		_, err := New(o)
		require.Error(t, err, name)
	}
	_, err := New(Options{Servers: []string{"nope://u:secret@h"}, ClientID: "a"})
	require.NotContains(t, err.Error(), "secret")
}

func FuzzDecode(f *testing.F) {
	f.Add(byte(0x32), []byte{0, 1, 'a', 0, 1, 0, 'x'})
	f.Add(byte(0x20), []byte{0, 0, 3, 0x21, 0, 1})
	f.Add(byte(0x30), []byte{0, 1, 'a', 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, first byte, body []byte) {
		cp, err := decodePacket(first, body)
		if err != nil {
			return
		}
		if p, ok := cp.Content.(*packets.Publish); ok {
			_ = fromPacket(p)
		}
	})
}

// logLines is a log that is read while it is written.
type logLines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A broker that sends large messages fills no more memory at QoS 0 than it could at QoS 1.
func TestMessagesThatWaitAreBoundedInBytes(t *testing.T) {
	b := newFakeBroker(t)
	var count Counters
	handling, goOn := make(chan struct{}), make(chan struct{})
	startClient(t, b, func(o *Options) {
		o.Counters, o.ReceiveMaximum = &count, 1
		o.OnMessage = func(Message) {
			handling <- struct{}{}
			<-goOn
		}
	})
	conn := b.accept(packets.Connack{})
	conn.publish("first", "", 0, 0)
	<-handling
	for range 20 {
		conn.publish("flood", strings.Repeat("x", 99_995), 0, 0)
	}
	counted := func(counts func() bool) { require.Eventually(t, counts, testTimeout, time.Millisecond) }
	counted(func() bool { return count.Dropped.Load() == 10 })
	require.EqualValues(t, 10, count.Waiting.Load())
	close(goOn)
	for range 10 {
		<-handling
	}
	counted(func() bool { return count.Waiting.Load() == 0 })
}

// What a client drops because its owner is slower than its broker is counted and said,
// and so is what waits in it.
func TestWhatIsDroppedIsCounted(t *testing.T) {
	b := newFakeBroker(t)
	var count Counters
	var log logLines
	handling, goOn := make(chan struct{}, maxWaiting+1), make(chan struct{})
	c := startClient(t, b, func(o *Options) {
		o.Counters, o.Log = &count, zerolog.New(&log)
		o.OnMessage = func(Message) {
			handling <- struct{}{}
			<-goOn
		}
	})
	letGo := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(letGo)
	conn := b.accept(packets.Connack{})
	conn.publish("first", "", 0, 0)
	<-handling
	for range maxWaiting + 7 {
		conn.publish("flood", "", 0, 0)
	}
	counted := func(counts func() bool) { require.Eventually(t, counts, testTimeout, time.Millisecond) }
	counted(func() bool { return count.Dropped.Load() == 7 })
	require.EqualValues(t, maxWaiting, count.Waiting.Load())
	require.Contains(t, log.String(), "QoS 0 messages are dropped")
	letGo()
	counted(func() bool { return count.Waiting.Load() == 0 })

	acknowledged := make(chan error, 1)
	c.PublishAsync(Message{Topic: "a", QoS: 1}, func(err error) { acknowledged <- err })
	require.EqualValues(t, 1, count.Pending.Load())
	conn.puback(conn.readPublish().PacketID, 0, "")
	require.NoError(t, <-acknowledged)
	require.Zero(t, count.Pending.Load())
}

// What is published over one connection goes over no other, neither what was sent nor what waited, although the session goes on.
func TestPublishOverAConnectionGoesOverNoOther(t *testing.T) {
	b := newFakeBroker(t)
	over := make(chan context.Context, 2)
	c := startClient(t, b, func(o *Options) {
		o.CleanStart, o.SessionExpiry = false, time.Hour
		o.OnConnect = func(ctx context.Context, _ bool) error { over <- ctx; return nil }
	})
	one := uint16(1)
	first := b.accept(packets.Connack{Properties: &packets.Properties{ReceiveMaximum: &one}})
	ctx := <-over
	ends := make(chan error, 4)
	c.PublishOver(ctx, Message{Topic: "sent", QoS: 1}, func(err error) { ends <- err })
	require.Equal(t, "sent", first.readPublish().Topic)
	c.PublishOver(ctx, Message{Topic: "waits", QoS: 1}, func(err error) { ends <- err })
	c.PublishAsync(Message{Topic: "any", QoS: 1}, func(err error) { ends <- err })
	require.NoError(t, first.Close())
	second := b.accept(packets.Connack{SessionPresent: true})
	<-over
	for range 2 {
		require.ErrorIs(t, <-ends, ErrConnectionLost)
	}
	got := second.readPublish()
	require.Equal(t, "any", got.Topic)
	c.PublishOver(ctx, Message{Topic: "late", QoS: 1}, func(err error) { ends <- err })
	require.ErrorIs(t, <-ends, ErrNotConnected)
	second.puback(got.PacketID, 0, "")
	require.NoError(t, <-ends)
	second.silent()
	require.Zero(t, c.opts.Counters.Pending.Load())
}

// The broker knows the packet identifier of a QoS 2 publish that was sent: it is completed, or the identifier could not be used again.
func TestAQoS2PublishOverAConnectionIsCompletedOverTheNext(t *testing.T) {
	b := newFakeBroker(t)
	over := make(chan context.Context, 2)
	c := startClient(t, b, func(o *Options) {
		o.CleanStart, o.SessionExpiry = false, time.Hour
		o.OnConnect = func(ctx context.Context, _ bool) error { over <- ctx; return nil }
	})
	first := b.accept(packets.Connack{})
	end := make(chan error, 1)
	c.PublishOver(<-over, Message{Topic: "sent", QoS: 2}, func(err error) { end <- err })
	sent := first.readPublish()
	require.NoError(t, first.Close())
	second := b.accept(packets.Connack{SessionPresent: true})
	again := second.readPublish()
	require.Equal(t, sent.PacketID, again.PacketID)
	require.True(t, again.Duplicate)
	second.send(packets.PUBREC, &packets.Pubrec{PacketID: sent.PacketID, Properties: &packets.Properties{}})
	require.Equal(t, packets.PUBREL, second.read().Type)
	second.send(packets.PUBCOMP, &packets.Pubcomp{PacketID: sent.PacketID, Properties: &packets.Properties{}})
	require.NoError(t, <-end)
}

// A broker that has taken a PUBREL, and whose PUBCOMP was lost, knows the identifier no more: the publish is complete.
func TestAQoS2PublishWhosePubcompWasLostIsComplete(t *testing.T) {
	b := newFakeBroker(t)
	c := startClient(t, b, func(o *Options) { o.CleanStart, o.SessionExpiry = false, time.Hour })
	first := b.accept(packets.Connack{})
	end := make(chan error, 1)
	go func() { end <- c.Publish(t.Context(), Message{Topic: "sent", QoS: 2}) }()
	sent := first.readPublish()
	first.send(packets.PUBREC, &packets.Pubrec{PacketID: sent.PacketID, Properties: &packets.Properties{}})
	require.Equal(t, packets.PUBREL, first.read().Type)
	require.NoError(t, first.Close())
	second := b.accept(packets.Connack{SessionPresent: true})
	require.Equal(t, packets.PUBREL, second.read().Type)
	second.send(packets.PUBCOMP, &packets.Pubcomp{PacketID: sent.PacketID, ReasonCode: packets.PubcompPacketIdentifierNotFound, Properties: &packets.Properties{}})
	require.NoError(t, <-end)
}

// A server that was connected is tried first when its connection is lost, not the first of the list, and another one when the client wants that.
func TestTheServerThatWorkedIsTriedFirst(t *testing.T) {
	refuses, works := newFakeBroker(t), newFakeBroker(t)
	c := startClient(t, works, func(o *Options) {
		o.Servers, o.Backoff = []string{refuses.url(), works.url()}, Backoff{Min: time.Millisecond, Max: time.Hour}
	})
	refuses.accept(packets.Connack{ReasonCode: packets.ConnackServerUnavailable})
	for range 3 {
		conn := works.accept(packets.Connack{})
		began := time.Now() // after the client's
		require.NoError(t, c.waitUp(shortContext(t)))
		require.Equal(t, works.url(), c.Server())
		require.Eventually(t, func() bool { return time.Since(began) > 10*time.Millisecond }, time.Minute, time.Millisecond, "it is up for longer than a refusal")
		require.NoError(t, conn.Close())
	}
	works.accept(packets.Connack{})
	require.NoError(t, c.waitUp(shortContext(t)))
	require.Empty(t, refuses.conns)
	c.Elsewhere(errors.New("it is another hub"))
	refuses.accept(packets.Connack{})
	require.NoError(t, c.waitUp(shortContext(t)))
	require.Equal(t, refuses.url(), c.Server())
}

// Who says which server it is to be isn't given another one, also when that refuses.
func TestTheServerThatIsAskedForIsTried(t *testing.T) {
	first, second := newFakeBroker(t), newFakeBroker(t)
	var wanted atomic.Pointer[string]
	ask := func(url string) { wanted.Store(&url) }
	ask(second.url())
	c, err := New(Options{Servers: []string{first.url(), second.url()}, CleanStart: true, Backoff: Backoff{Min: time.Millisecond, Max: time.Millisecond}})
	require.NoError(t, err)
	c.Choose(func() string { return *wanted.Load() })
	runs := make(chan error, 1)
	ctx, end := context.WithCancel(t.Context())
	go func() { runs <- c.Run(ctx) }()
	defer func() {
		end()
		require.NoError(t, <-runs)
	}()
	for range 3 {
		second.accept(packets.Connack{ReasonCode: packets.ConnackServerUnavailable})
	}
	require.Empty(t, first.conns)
	conn := second.accept(packets.Connack{})
	ask(first.url())
	require.NoError(t, conn.Close())
	first.accept(packets.Connack{})
}
