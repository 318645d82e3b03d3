// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/session"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/limits"
)

const testTimeout = 30 * time.Second // a busy machine must not fail a test

// usualLimits are limits for tests that aren't about them.
var usualLimits = Limits{
	Packet: 1<<20 + 64<<10, ReceiveMaximum: 1024, TopicAliases: 64, Inflight: 1024, WrongPasswords: 20,
	ConnectTimeout: 10 * time.Second, WriteTimeout: time.Minute,
}

// startBroker runs a broker on a free port until the test ends.
func startBroker(t *testing.T, change func(*Options)) *Broker {
	t.Helper()
	o := Options{
		Listeners: []Listener{{Name: "tcp", Address: "127.0.0.1:0"}},
		Auth:      Auth{Anonymous: []topics.Role{topics.RoleOperator, topics.RoleMapper}, LoopbackNodes: true},
		Limits:    usualLimits,
		Log:       zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.Disabled),
	}
	if change != nil {
		change(&o)
	}
	b, err := New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- b.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-served)
	})
	return b
}

// testClient is an MQTT client that does nothing by itself: packet ids, acknowledgements
// and flags are the test's.
type testClient struct {
	t       *testing.T
	conn    net.Conn
	r       *bufio.Reader
	version byte
	connack packets.Packet
	wmu     sync.Mutex
}

type connectOption func(*packets.Packet)

func resumeSession(pk *packets.Packet) { pk.Connect.Clean = false }

// withSessionExpiry resumes a session, which outlives its connection by that long.
func withSessionExpiry(seconds uint32) connectOption {
	return func(pk *packets.Packet) {
		pk.Connect.Clean = false
		pk.Properties.SessionExpiryInterval, pk.Properties.SessionExpiryIntervalFlag = seconds, true
	}
}

func persistentSession(pk *packets.Packet) { withSessionExpiry(3600)(pk) }

func version311(pk *packets.Packet) { pk.ProtocolVersion = 4 }
func version31(pk *packets.Packet)  { pk.ProtocolVersion, pk.Connect.ProtocolName = 3, []byte("MQIsdp") }

func receiveMaximum(n uint16) connectOption {
	return func(pk *packets.Packet) { pk.Properties.ReceiveMaximum = n }
}

func maximumPacket(n uint32) connectOption {
	return func(pk *packets.Packet) { pk.Properties.MaximumPacketSize = n }
}

func keepAlive(s uint16) connectOption {
	return func(pk *packets.Packet) { pk.Connect.Keepalive = s }
}

func credentialsOf(user, password string) connectOption {
	return func(pk *packets.Packet) {
		pk.Connect.UsernameFlag, pk.Connect.Username = true, []byte(user)
		if password != "" {
			pk.Connect.PasswordFlag, pk.Connect.Password = true, []byte(password)
		}
	}
}

func withWill(topic, payload string, delay uint32, change ...func(*packets.Packet)) connectOption {
	return func(pk *packets.Packet) {
		pk.Connect.WillFlag, pk.Connect.WillTopic, pk.Connect.WillPayload = true, topic, []byte(payload)
		pk.Connect.WillQos = 1
		pk.Connect.WillProperties.WillDelayInterval = delay
		for _, f := range change {
			f(pk)
		}
	}
}

func connectPacket(id string, opts ...connectOption) packets.Packet {
	pk := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Connect}, ProtocolVersion: 5,
		Connect: packets.ConnectParams{ProtocolName: []byte("MQTT"), ClientIdentifier: id, Clean: true, Keepalive: 60},
	}
	for _, o := range opts {
		o(&pk)
	}
	if pk.ProtocolVersion < 5 {
		pk.Properties = packets.Properties{}
	}
	return pk
}

// openClient connects and expects to be taken.
func openClient(t *testing.T, b *Broker, id string, opts ...connectOption) *testClient {
	t.Helper()
	c := dialBroker(t, b)
	require.Equal(t, byte(0), c.connect(id, opts...), "CONNACK")
	return c
}

// dialBroker connects to the broker's first listener, as that wants it.
func dialBroker(t *testing.T, b *Broker) *testClient {
	t.Helper()
	addr := b.Addrs()[0]
	if c, ok := carriersByBroker.Load(b); ok {
		addr = c.(*ConnCarrier).Addrs()[0]
	}
	switch l := b.opts.Listeners[0]; {
	case l.WebSocket:
		return dialWS(t, "ws://"+addr.String()+"/mqtt", nil)
	case l.TLS != nil:
		return dialTLS(t, addr, anyServer())
	}
	conn, err := net.Dial("tcp", addr.String())
	require.NoError(t, err)
	return wrapConn(t, conn)
}

func dialTLS(t *testing.T, addr net.Addr, config *tls.Config) *testClient {
	t.Helper()
	conn, err := tls.Dial("tcp", addr.String(), config)
	require.NoError(t, err)
	return wrapConn(t, conn)
}

func dialWS(t *testing.T, url string, config *tls.Config) *testClient {
	t.Helper()
	d := websocket.Dialer{Subprotocols: []string{"mqtt"}, TLSClientConfig: config}
	ws, res, err := d.Dial(url, nil)
	require.NoError(t, err)
	_ = res.Body.Close()
	require.Equal(t, "mqtt", ws.Subprotocol())
	conn := &wsConn{Conn: ws.NetConn()}
	conn.ws.Store(ws)
	return wrapConn(t, conn)
}

func wrapConn(t *testing.T, conn net.Conn) *testClient {
	t.Cleanup(func() { _ = conn.Close() })
	return &testClient{t: t, conn: conn, r: bufio.NewReaderSize(conn, 64<<10), version: 5}
}

func (c *testClient) connect(id string, opts ...connectOption) byte {
	c.t.Helper()
	pk := connectPacket(id, opts...)
	c.version = pk.ProtocolVersion
	c.send(pk)
	c.connack = c.expect(packets.Connack)
	return c.connack.ReasonCode
}

func (c *testClient) send(pk packets.Packet) {
	c.t.Helper()
	c.raw(encodePacket(c.t, pk, c.version))
}

func (c *testClient) raw(b []byte) {
	c.t.Helper()
	c.wmu.Lock()
	defer c.wmu.Unlock()
	_, err := c.conn.Write(b)
	require.NoError(c.t, err)
}

func encodePacket(t testing.TB, pk packets.Packet, version byte) []byte {
	pk.ProtocolVersion = version
	pk.Mods.AllowResponseInfo = true
	var buf bytes.Buffer
	var err error
	switch pk.FixedHeader.Type {
	case packets.Connect:
		err = pk.ConnectEncode(&buf)
	case packets.Publish:
		err = pk.PublishEncode(&buf)
	case packets.Puback:
		err = pk.PubackEncode(&buf)
	case packets.Pubrec:
		err = pk.PubrecEncode(&buf)
	case packets.Pubrel:
		pk.FixedHeader.Qos = 1
		err = pk.PubrelEncode(&buf)
	case packets.Pubcomp:
		err = pk.PubcompEncode(&buf)
	case packets.Subscribe:
		pk.FixedHeader.Qos = 1
		err = pk.SubscribeEncode(&buf)
	case packets.Unsubscribe:
		pk.FixedHeader.Qos = 1
		err = pk.UnsubscribeEncode(&buf)
	case packets.Pingreq:
		err = pk.PingreqEncode(&buf)
	case packets.Disconnect:
		err = pk.DisconnectEncode(&buf)
	}
	require.NoError(t, err)
	return buf.Bytes()
}

// read returns the next packet, or the error that ended the connection.
func (c *testClient) read(wait time.Duration) (packets.Packet, error) {
	_ = c.conn.SetReadDeadline(time.Now().Add(wait))
	var pk packets.Packet
	first, err := c.r.ReadByte()
	if err != nil {
		return pk, err
	}
	if err := pk.FixedHeader.Decode(first); err != nil {
		return pk, err
	}
	if pk.FixedHeader.Remaining, _, err = packets.DecodeLength(c.r); err != nil {
		return pk, err
	}
	body := make([]byte, pk.FixedHeader.Remaining)
	if _, err := io.ReadFull(c.r, body); err != nil {
		return pk, err
	}
	pk.ProtocolVersion = c.version
	switch pk.FixedHeader.Type {
	case packets.Connack:
		err = pk.ConnackDecode(body)
	case packets.Publish:
		err = pk.PublishDecode(body)
	case packets.Puback:
		err = pk.PubackDecode(body)
	case packets.Pubrec:
		err = pk.PubrecDecode(body)
	case packets.Pubrel:
		err = pk.PubrelDecode(body)
	case packets.Pubcomp:
		err = pk.PubcompDecode(body)
	case packets.Suback:
		err = pk.SubackDecode(body)
	case packets.Unsuback:
		err = pk.UnsubackDecode(body)
	case packets.Disconnect:
		err = pk.DisconnectDecode(body)
	}
	return pk, err
}

func (c *testClient) expect(kind byte) packets.Packet {
	c.t.Helper()
	pk, err := c.read(testTimeout)
	require.NoError(c.t, err, "waiting for %s", packets.PacketNames[kind])
	require.Equal(c.t, packets.PacketNames[kind], packets.PacketNames[pk.FixedHeader.Type], "%s %.100s %d", pk.TopicName, pk.Payload, pk.ReasonCode)
	return pk
}

// nothing expects that no packet is on its way: the answer to a ping comes first.
func (c *testClient) nothing() {
	c.t.Helper()
	c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	c.expect(packets.Pingresp)
}

// ended expects the connection to be closed, and returns the last packet's reason code.
func (c *testClient) ended() (code byte, disconnects int) {
	c.t.Helper()
	for {
		pk, err := c.read(testTimeout)
		if err != nil {
			require.NotErrorIs(c.t, err, context.DeadlineExceeded)
			var late net.Error
			require.False(c.t, errors.As(err, &late) && late.Timeout(), "connection not closed")
			return code, disconnects
		}
		if pk.FixedHeader.Type == packets.Disconnect {
			code, disconnects = pk.ReasonCode, disconnects+1
		}
	}
}

type pubOption func(*packets.Packet)

func markRetain(pk *packets.Packet) { pk.FixedHeader.Retain = true }
func markDup(pk *packets.Packet)    { pk.FixedHeader.Dup = true }

func withProperties(p packets.Properties) pubOption {
	return func(pk *packets.Packet) { pk.Properties = p }
}

func (c *testClient) publish(topic, payload string, qos byte, id uint16, opts ...pubOption) {
	c.t.Helper()
	c.send(publishPacket(topic, payload, qos, id, opts...))
}

func publishPacket(topic, payload string, qos byte, id uint16, opts ...pubOption) packets.Packet {
	pk := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: qos}, PacketID: id, TopicName: topic, Payload: []byte(payload),
	}
	for _, o := range opts {
		o(&pk)
	}
	return pk
}

func (c *testClient) ack(kind byte, id uint16) {
	c.t.Helper()
	c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: kind}, PacketID: id})
}

// publish1 publishes at QoS 1 and returns the PUBACK.
func (c *testClient) publish1(topic, payload string, opts ...pubOption) packets.Packet {
	c.t.Helper()
	c.publish(topic, payload, 1, 7, opts...)
	return c.expect(packets.Puback)
}

// answered expects an answer and a message of QoS 0, in whatever order, and returns the message.
func (c *testClient) answered(kind byte) (m packets.Packet) {
	c.t.Helper()
	c.nextOf(kind, func(pk packets.Packet) { m = pk })
	if m.TopicName == "" {
		m = c.expect(packets.Publish)
	}
	return m
}

type subOption func(*packets.Packet)

func subID(id int) subOption {
	return func(pk *packets.Packet) { pk.Properties.SubscriptionIdentifier = []int{id} }
}

func subFlags(change func(*packets.Subscription)) subOption {
	return func(pk *packets.Packet) {
		for i := range pk.Filters {
			change(&pk.Filters[i])
		}
	}
}

func (c *testClient) subscribe(filter string, qos byte, opts ...subOption) packets.Packet {
	c.t.Helper()
	pk := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Subscribe}, PacketID: 9,
		Filters: packets.Subscriptions{{Filter: filter, Qos: qos}},
	}
	for _, o := range opts {
		o(&pk)
	}
	c.send(pk)
	return c.expect(packets.Suback)
}

// sub subscribes and expects to be granted the QoS.
func (c *testClient) sub(filter string, qos byte, opts ...subOption) {
	c.t.Helper()
	ack := c.subscribe(filter, qos, opts...)
	require.Equal(c.t, []byte{qos}, ack.ReasonCodes, ack.Properties.ReasonString)
}

// unsub unsubscribes, and returns the reason codes.
func (c *testClient) unsub(filters ...string) []byte {
	c.t.Helper()
	pk := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Unsubscribe}, PacketID: 4}
	for _, f := range filters {
		pk.Filters = append(pk.Filters, packets.Subscription{Filter: f})
	}
	c.send(pk)
	return c.expect(packets.Unsuback).ReasonCodes
}

func (c *testClient) disconnect() {
	c.t.Helper()
	c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}})
	c.ended()
}

// leave drops the connection and waits until the broker has noticed.
func (c *testClient) leave(b *Broker, id string) {
	c.t.Helper()
	_ = c.conn.Close()
	require.Eventually(c.t, func() bool { return b.clients.connected(id) == nil }, testTimeout, time.Millisecond)
}

// collect reads n messages, acknowledging each, and returns their payloads.
func (c *testClient) collect(n int) []string {
	c.t.Helper()
	var got []string
	for len(got) < n {
		pk := c.expect(packets.Publish)
		got = append(got, string(pk.Payload))
		if pk.FixedHeader.Qos == 1 {
			c.ack(packets.Puback, pk.PacketID)
		}
	}
	return got
}

// burst publishes n numbered messages at QoS 1, no more at a time than a broker takes,
// and waits until all are acknowledged.
func (c *testClient) burst(topic string, from, n int) {
	c.t.Helper()
	c.pipeline(n, func(i int) packets.Packet {
		return publishPacket(topic, strconv.Itoa(from+i), 1, uint16(i%pipelineLength)+1)
	})
}

// meanwhile is burst beside the test, whose connections aren't closed before all is acknowledged.
func (c *testClient) meanwhile(topic string, from, n int) {
	var burst sync.WaitGroup
	burst.Go(func() { c.burst(topic, from, n) })
	c.t.Cleanup(burst.Wait)
}

const pipelineLength = 1000 // below the default receive maximum

// pipeline publishes n messages of QoS 1, many at a time.
func (c *testClient) pipeline(n int, message func(i int) packets.Packet) {
	c.t.Helper()
	room, acked := make(chan struct{}, pipelineLength), make(chan struct{})
	go func() {
		defer close(acked)
		for range n {
			pk, err := c.read(testTimeout)
			if err != nil || pk.FixedHeader.Type != packets.Puback || pk.ReasonCode != 0 {
				c.t.Errorf("PUBACK: type %d, reason %#x %s, %v", pk.FixedHeader.Type, pk.ReasonCode, pk.Properties.ReasonString, err)
				return
			}
			<-room
		}
	}()
	var buf []byte
	for i := range n {
		buf = append(buf, encodePacket(c.t, message(i), c.version)...)
		select {
		case room <- struct{}{}:
		case <-acked:
			return
		}
		if i%250 == 249 || i == n-1 {
			c.raw(buf)
			buf = buf[:0]
		}
	}
	<-acked
}

// roomFor is the room that messages of the client pub on the topic a take.
func roomFor(payloads ...string) (n limits.Size) {
	for _, p := range payloads {
		n += limits.Size((&session.Message{Topic: "a", Payload: []byte(p), From: "pub"}).Weight())
	}
	return n
}

func numberedPayloads(from, n int) []string {
	var out []string
	for i := from; i < from+n; i++ {
		out = append(out, strconv.Itoa(i))
	}
	return out
}
