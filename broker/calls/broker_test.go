// SPDX-License-Identifier: Apache-2.0

package calls_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/calls"
	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	testTimeout  = 30 * time.Second // a busy machine must not fail a test
	commandTopic = "v1/nodes/n1/devices/lamp/commands/beep"
)

// noTree has the device lamp on n1, and takes nothing.
type noTree struct{}

func (noTree) Publish(m broker.Message, done func(error)) {
	done(resource.Errorf(resource.Forbidden, "", "%s is not for you", m.Topic))
}

func (noTree) Retained(string) func(int) []broker.Message {
	return func(int) []broker.Message { return nil }
}

func (noTree) CheckCommand(node, device, _ string, _ []byte) error {
	if node == "n1" && device == "lamp" {
		return nil
	}
	return resource.Errorf(resource.NotFound, "", "device %s does not belong to node %s", device, node)
}

// startCalls runs a broker with calls; on the hub's, cores execute them.
func startCalls(t *testing.T, hub bool) (*calls.Calls, string) {
	t.Helper()
	var b *broker.Broker
	o := calls.Options{
		Role: topics.RoleMapper, Tree: noTree{}, Log: zerolog.Nop(),
		Publish:     func(m broker.Message) { b.Publish(m) },
		Subscribers: func(topic string) []broker.Subscriber { return b.Subscribers(topic) },
		Limits:      calls.Limits{Timeout: testTimeout, Longest: testTimeout, Client: 100, All: 100},
	}
	bo := broker.Options{Listeners: []broker.Listener{{Address: "127.0.0.1:0"}}, Log: zerolog.Nop()}
	bo.Auth.Anonymous = []topics.Role{topics.RoleOperator, topics.RoleMapper}
	if hub {
		o.Role = topics.RoleNode
		bo.Auth.Anonymous, bo.Auth.LoopbackNodes = []topics.Role{topics.RoleOperator}, true
	}
	c := calls.New(o)
	bo.Tree, bo.Presence = c, c
	b, err := broker.New(bo)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- b.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-served)
	})
	return c, b.Addrs()[0].String()
}

// connectClient runs a client until the test ends, or stop is called. What it gets is in the channel.
func connectClient(t *testing.T, addr, id string, change func(*client.Options)) (c *client.Client, got chan client.Message, stop func()) {
	t.Helper()
	got = make(chan client.Message, 100)
	up := make(chan struct{}, 10)
	o := client.Options{
		Servers: []string{"mqtt://" + addr}, ClientID: id, CleanStart: true, Log: zerolog.Nop(),
		OnMessage: func(m client.Message) { got <- m },
		OnConnect: func(context.Context, bool) error { up <- struct{}{}; return nil },
	}
	if change != nil {
		change(&o)
	}
	c, err := client.New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	var once atomic.Bool
	stop = func() {
		if !once.Swap(true) {
			cancel()
			<-ended
		}
	}
	t.Cleanup(stop)
	<-up
	return c, got, stop
}

func subscribedTo(filter string) func(*client.Options) {
	return func(o *client.Options) { o.Subscriptions = []client.Subscription{{Filter: filter, QoS: 2}} }
}

func nextMessage(t *testing.T, got chan client.Message) client.Message {
	t.Helper()
	select {
	case m := <-got:
		return m
	case <-time.After(testTimeout):
		require.Fail(t, "nothing came")
		panic("unreachable")
	}
}

func TestOverABroker(t *testing.T) {
	for _, hub := range []bool{false, true} {
		b, addr := startCalls(t, hub)
		executor, commands, _ := connectClient(t, addr, "executor", func(o *client.Options) {
			subscribedTo("v1/nodes/n1/devices/+/commands/+")(o)
			if hub {
				o.User, o.ClientID = "node/n1", "node/n1"
			}
		})
		ann, answers, _ := connectClient(t, addr, "ann", subscribedTo("reply/ann"))
		for qos := range byte(3) {
			require.NoError(t, ann.Publish(t.Context(), client.Message{
				Topic: commandTopic, Payload: []byte("twice"), QoS: qos, ResponseTopic: "reply/ann", Correlation: []byte{qos},
			}))
			m := nextMessage(t, commands)
			require.Zero(t, m.QoS)
			require.NoError(t, executor.Publish(t.Context(), client.Message{Topic: m.ResponseTopic, Payload: []byte("beep beep"), QoS: 1}))
			r := nextMessage(t, answers)
			require.Equal(t, "beep beep", string(r.Payload))
			require.Equal(t, []byte{qos}, r.Correlation)
			require.Equal(t, qos, r.QoS)
			require.Equal(t, "OK", r.Property("code"))
			require.ErrorContains(t, executor.Publish(t.Context(), client.Message{Topic: m.ResponseTopic, QoS: 1}), "nobody waits")
			if hub { // operators may not answer there
				require.ErrorContains(t, ann.Publish(t.Context(), client.Message{Topic: m.ResponseTopic, QoS: 1}), "0x87")
			}
		}
		require.Equal(t, calls.Stats{Taken: 3, Late: 3, Ended: map[string]int64{"OK": 3}}, b.Stats())
	}
}

// A durable session whose client is away executes nothing, now or when it is back.
func TestAwayIsAway(t *testing.T) {
	_, addr := startCalls(t, false)
	lasting := func(o *client.Options) {
		subscribedTo(commandTopic)(o)
		o.CleanStart, o.SessionExpiry = false, time.Hour
	}
	_, _, stop := connectClient(t, addr, "mapper", lasting)
	ann, answers, _ := connectClient(t, addr, "ann", subscribedTo("reply/ann"))
	ask := client.Message{Topic: commandTopic, QoS: 1, ResponseTopic: "reply/ann"}
	require.NoError(t, ann.Publish(t.Context(), ask))
	stop()
	require.Equal(t, "Lost", nextMessage(t, answers).Property("code"))
	require.NoError(t, ann.Publish(t.Context(), ask))
	require.Equal(t, "MapperOffline", nextMessage(t, answers).Property("code"))
	_, commands, _ := connectClient(t, addr, "mapper", lasting)
	ask.Payload = []byte("now")
	require.NoError(t, ann.Publish(t.Context(), ask))
	require.Equal(t, "now", string(nextMessage(t, commands).Payload))
}

// Two copies of one PUBLISH, the second marked as such, as a client sends them that
// lost its connection in between.
func TestSentAgainOverABroker(t *testing.T) {
	for qos := byte(1); qos <= 2; qos++ {
		_, addr := startCalls(t, false)
		_, commands, _ := connectClient(t, addr, "mapper", subscribedTo(commandTopic))
		first := dialRaw(t, addr)
		first.publish(qos, false)
		require.Equal(t, "x", string(nextMessage(t, commands).Payload))
		first.Close()
		second := dialRaw(t, addr)
		second.publish(qos, true)
		require.Equal(t, byte(0), second.acknowledged(), "it is under way")

		third := dialRaw(t, addr)
		third.id = 99 // as if it had been another publish, whose first copy nobody saw
		third.topic = "v1/nodes/n1/devices/lamp/commands/reset"
		third.publish(qos, true)
		require.Equal(t, byte(0x83), third.acknowledged())
		require.Empty(t, commands)
	}
}

// rawClient is a client without a session that sends what it is told to.
type rawClient struct {
	net.Conn
	t     *testing.T
	r     *bufio.Reader
	topic string
	id    uint16
}

func dialRaw(t *testing.T, addr string) *rawClient {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(testTimeout)))
	c := &rawClient{conn, t, bufio.NewReader(conn), commandTopic, 7}
	c.send(0x10, "\x00\x04MQTT\x05\x02\x00\x3c\x00", "\x00\x03raw")
	require.Equal(t, byte(0x20), c.read()[0])
	return c
}

func (c *rawClient) send(kind byte, parts ...string) {
	var body []byte
	for _, p := range parts {
		body = append(body, p...)
	}
	_, err := c.Write(append([]byte{kind, byte(len(body))}, body...))
	require.NoError(c.t, err)
}

func (c *rawClient) publish(qos byte, again bool) {
	kind := 0x30 | qos<<1
	if again {
		kind |= 8
	}
	topic := binary.BigEndian.AppendUint16(nil, uint16(len(c.topic)))
	id := binary.BigEndian.AppendUint16(nil, c.id)
	c.send(kind, string(topic)+c.topic, string(id), "\x04\x09\x00\x01cx") // with correlation data
}

// read returns a packet's first byte and what is behind its length.
func (c *rawClient) read() []byte {
	kind, err := c.r.ReadByte()
	require.NoError(c.t, err)
	n, err := binary.ReadUvarint(c.r)
	require.NoError(c.t, err)
	body := make([]byte, n)
	_, err = io.ReadFull(c.r, body)
	require.NoError(c.t, err)
	return append([]byte{kind}, body...)
}

// acknowledged is the reason code of a PUBACK or PUBREC.
func (c *rawClient) acknowledged() byte {
	p := c.read()
	require.Contains(c.t, []byte{0x40, 0x50}, p[0])
	require.Equal(c.t, c.id, binary.BigEndian.Uint16(p[1:]))
	if len(p) == 3 {
		return 0
	}
	return p[3]
}

func BenchmarkCommand(b *testing.B) {
	for _, n := range []int{0, 1000} {
		b.Run(strconv.Itoa(n)+"waiting", func(b *testing.B) {
			subs := []broker.Subscriber{{Identity: &broker.Identity{ClientID: "m", Roles: []topics.Role{topics.RoleMapper}}, Filter: commandTopic}}
			var last broker.Message
			c := calls.New(calls.Options{
				Role: topics.RoleMapper, Tree: noTree{}, Log: zerolog.Nop(), Publish: func(m broker.Message) { last = m },
				Subscribers: func(string) []broker.Subscriber { return subs },
				Limits:      calls.Limits{Timeout: time.Hour, Longest: time.Hour, Client: 2000, All: 2000},
			})
			ask := broker.Message{Topic: commandTopic, QoS: 1, Publisher: &broker.Identity{ClientID: "a"}, Props: broker.Properties{ResponseTopic: "r"}}
			for range n {
				c.Publish(ask, func(error) {})
			}
			mapper := &broker.Identity{Roles: []topics.Role{topics.RoleMapper}}
			for b.Loop() {
				c.Publish(ask, func(error) {})
				c.Publish(broker.Message{Topic: last.Props.ResponseTopic, Publisher: mapper}, func(error) {})
			}
		})
	}
}
