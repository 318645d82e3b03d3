// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/test/oneprocessor"
	"github.com/edgebus/edgebus/topics"
)

func TestInsecureListenersAreRefused(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "192.0.2.1:0", "[::]:0"} {
		_, err := New(Options{Listeners: []Listener{{Address: address}}})
		require.ErrorContains(t, err, "configure TLS", address)
	}
	_, err := New(Options{Listeners: []Listener{{Address: "nonsense"}}})
	require.Error(t, err)
	for _, o := range []Options{
		{Listeners: []Listener{{Address: "0.0.0.0:0"}}, InsecureListen: true},
		{Listeners: []Listener{{Address: "0.0.0.0:0", TLS: newTestAuthority(t).server()}}},
		{Listeners: []Listener{{Address: "localhost:0"}, {Address: "127.0.0.1:0"}}},
	} {
		b, err := New(o)
		require.NoError(t, err)
		for _, a := range b.Addrs() {
			require.NotContains(t, a.String(), ":0")
		}
		require.NoError(t, b.Close(t.Context()))
	}
}

func TestATakenPortIsAnError(t *testing.T) {
	b := startBroker(t, nil)
	_, err := New(Options{Listeners: []Listener{{Address: "127.0.0.1:0"}, {Address: b.Addrs()[0].String()}}})
	require.Error(t, err)
}

func TestBadUsersAreRefused(t *testing.T) {
	for _, u := range []User{
		{Name: "x", Role: topics.RoleOperator, PasswordHash: "plain"},
		{Name: "x", Role: "king", PasswordHash: hashPBKDF2},
		{Name: "x", Role: topics.RoleHub, PasswordHash: hashPBKDF2},
		{Name: "X", Role: topics.RoleNode, PasswordHash: hashPBKDF2},
		{Name: "x", Role: topics.RoleViewer, PasswordHash: hashPBKDF2, Nodes: []string{"["}},
	} {
		_, err := New(Options{Auth: Auth{Users: []User{u}}})
		require.Error(t, err, "%+v", u)
	}
}

// Being reached over loopback is not enough: the listener has to be on loopback,
// or a proxy on this host would make everybody anonymous.
func TestAnonymousOnlyOnLoopbackListeners(t *testing.T) {
	b := startBroker(t, func(o *Options) {
		o.InsecureListen = true
		o.Listeners = []Listener{{Name: "all", Address: "0.0.0.0:0"}}
	})
	c := dialBroker(t, b)
	require.Equal(t, byte(0x86), c.connect("c"))
	c = dialBroker(t, b)
	require.Equal(t, byte(0x86), c.connect("c", credentialsOf("node/n1", "")))
}

func TestWebSocket(t *testing.T) {
	b := startBroker(t, func(o *Options) {
		o.Listeners = append(o.Listeners, Listener{Name: "ws", Address: "127.0.0.1:0", WebSocket: true, Origins: []string{"https://ui.example"}})
	})
	url := "ws://" + b.Addrs()[1].String() + "/mqtt"
	sub, pub := dialWS(t, url, nil), openClient(t, b, "pub")
	require.Equal(t, byte(0), sub.connect("sub"))
	sub.sub("a", 1)
	pub.meanwhile("a", 0, 500)
	require.Equal(t, numberedPayloads(0, 500), sub.collect(500))
	large := strings.Repeat("x", 500_000)
	sub.publish("a", large, 0, 0)
	require.Len(t, sub.expect(3).Payload, len(large))
	again := dialWS(t, url, nil)
	require.Equal(t, byte(0), again.connect("sub"))
	code, _ := sub.ended()
	require.Equal(t, byte(0x8E), code)

	host := b.Addrs()[1].String()
	for origin, ok := range map[string]bool{
		"http://" + host: true, "https://ui.example": true, "https://evil.example": false, "null": false,
	} {
		_, res, err := websocket.DefaultDialer.Dial(url, http.Header{"Origin": {origin}})
		require.Equal(t, ok, err == nil, origin)
		_ = res.Body.Close()
	}
	// a page whose name was made to resolve to this host
	_, res, err := websocket.DefaultDialer.Dial(url, http.Header{"Origin": {"http://evil.example"}, "Host": {"evil.example"}})
	require.Error(t, err)
	_ = res.Body.Close()

	ws, res, err := websocket.DefaultDialer.Dial(url, nil)
	require.NoError(t, err)
	_ = res.Body.Close()
	require.NoError(t, ws.WriteMessage(websocket.TextMessage, encodePacket(t, connectPacket("text"), 5)))
	_, _, err = ws.ReadMessage()
	require.Error(t, err)
}

// sendText opens a connection and writes text to it. Its end is all that follows.
func sendText(t *testing.T, b *Broker, text string) net.Conn {
	conn, err := net.Dial("tcp", b.Addrs()[0].String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(testTimeout)))
	return conn
}

// Who asks for anything else than a WebSocket is answered once, and keeps no connection.
func TestARequestIsNoConnection(t *testing.T) {
	b := brokerSetup{webSocket: true}.start(t, nil)
	for request, status := range map[string]int{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n":                                          http.StatusBadRequest,
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n":               http.StatusBadRequest,
		"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n": http.StatusUpgradeRequired,
	} {
		conn := sendText(t, b, request)
		r := bufio.NewReader(conn)
		res, err := http.ReadResponse(r, nil)
		require.NoError(t, err, request)
		require.Equal(t, status, res.StatusCode, request)
		_, err = io.Copy(io.Discard, res.Body)
		require.NoError(t, err)
		_, err = r.ReadByte()
		require.ErrorIs(t, err, io.EOF, request)
	}
	_, _ = io.Copy(io.Discard, sendText(t, b, "GET / HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 2*handshakeBytes)))
}

// Up to its CONNECT a connection is under the same limits, whatever carries it.
func TestWhoSaysNothingMakesRoom(t *testing.T) {
	for name, half := range map[string]string{"websocket": "GET / HTTP/1.1\r\nHost:", "tcp": "\x10"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := brokerSetup{webSocket: name == "websocket"}.start(t, func(o *Options) {
				o.Limits.Connections, o.Limits.ConnectTimeout = 64, time.Hour
			})
			for range 40 {
				sendText(t, b, half)
			}
			// All 40 have arrived, of which this host keeps four: none comes later, and takes the place of the next client.
			require.Eventually(t, func() bool { return b.Stats().Rejected[daemon.Label(evictedPending)] == 36 }, testTimeout, 10*time.Millisecond)
			openClient(t, b, "c")
		})
	}
}

func TestWhoSaysNothingIsGivenUp(t *testing.T) {
	b := brokerSetup{webSocket: true}.start(t, func(o *Options) { o.Limits.ConnectTimeout = 50 * time.Millisecond })
	for _, half := range []string{"", "GET / HTTP/1.1\r\nHost:"} {
		_, err := io.Copy(io.Discard, sendText(t, b, half))
		require.NoError(t, err)
	}
	require.EqualValues(t, 2, b.Stats().Rejected[daemon.Label(noConnect)])
}

// Pages of the host's own ports may connect, and of the origins that are listed; no others. The subprotocol that an older
// client asks for is echoed.
func TestBrowsersConnectOverWebSocket(t *testing.T) {
	b := startBroker(t, func(o *Options) {
		o.Listeners = []Listener{{Name: "ws", Address: "127.0.0.1:0", WebSocket: true, Pages: []string{"8080", "443"}, Origins: []string{"https://app.example:444"}}}
	})
	url := "ws://" + b.Addrs()[0].String() + "/mqtt"
	for origin, ok := range map[string]bool{
		"http://127.0.0.1:8080": true, "https://127.0.0.1": true, "https://app.example:444": true, "": true,
		"http://127.0.0.1:9999": false, "http://127.0.0.1": false, "https://app.example": false, "http://app.example:444": false,
		"http://localhost:8080": false, "null": false,
	} {
		header := http.Header{}
		if origin != "" {
			header.Set("Origin", origin)
		}
		_, res, err := websocket.DefaultDialer.Dial(url, header)
		require.Equal(t, ok, err == nil, origin)
		if _ = res.Body.Close(); !ok {
			require.Equal(t, http.StatusForbidden, res.StatusCode)
		}
	}
	// a page whose name was made to resolve to this host
	_, res, err := websocket.DefaultDialer.Dial(url, http.Header{"Origin": {"http://evil.example:8080"}, "Host": {"evil.example"}})
	require.Error(t, err)
	_ = res.Body.Close()

	for offered, want := range map[string]string{"mqttv3.1": "mqttv3.1", "mqtt": "mqtt", "other": ""} {
		ws, res, err := (&websocket.Dialer{Subprotocols: []string{offered}}).Dial(url, nil)
		require.NoError(t, err)
		_ = res.Body.Close()
		require.Equal(t, want, ws.Subprotocol())
	}
}

// said waits for a line of the log about a connection of a listener.
func (l *logLines) said(t *testing.T, listener string) (text string) {
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for line := range bytes.Lines(l.buf.Bytes()) {
			var fields map[string]any
			if json.Unmarshal(line, &fields) == nil && fields["listener"] == listener && fields["level"] == "info" && fields["remote"] != nil {
				text = fmt.Sprint(fields["message"])
			}
		}
		return text != ""
	}, 10*time.Second, time.Millisecond)
	return text
}

// A client without TLS on a listener with it, and the other way round: the log says which it is, for neither understands
// what the other says.
func TestTheWrongListenerIsNamed(t *testing.T) {
	a, log := newTestAuthority(t), &logLines{}
	b := startBroker(t, func(o *Options) {
		o.Log = zerolog.New(log)
		o.Listeners = []Listener{
			{Name: "plain", Address: "127.0.0.1:0"}, {Name: "tls", Address: "127.0.0.1:0", TLS: a.server()},
		}
	})
	plain, err := net.Dial("tcp", b.Addrs()[1].String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = plain.Close() })
	_, err = plain.Write([]byte("\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01c"))
	require.NoError(t, err)
	require.Equal(t, "connection refused: this listener wants TLS, and the client speaks without: have it use mqtts://", log.said(t, "tls"))

	_, err = tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", b.Addrs()[0].String(), a.client(""))
	require.Error(t, err)
	require.Equal(t, "connection refused: the client speaks TLS, and this listener doesn't: see mqtt.tls.listen, or have the client use mqtt://",
		log.said(t, "plain"))
}

// Who speaks another protocol than the listener's is told at once: nothing here ends in time by itself.
func TestAClientAtTheWrongPortIsTold(t *testing.T) {
	b := startBroker(t, func(o *Options) {
		o.Limits.ConnectTimeout = time.Hour
		o.Listeners = []Listener{{Name: "mqtt", Address: "127.0.0.1:0"}, {Name: "ws", Address: "127.0.0.1:0", WebSocket: true}}
	})
	send := func(listener int, text string) (answer string) {
		conn, err := net.Dial("tcp", b.Addrs()[listener].String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = conn.Write([]byte(text))
		require.NoError(t, err)
		_ = conn.SetReadDeadline(time.Now().Add(testTimeout))
		all, err := io.ReadAll(conn)
		var late net.Error
		require.False(t, errors.As(err, &late) && late.Timeout(), "%q is not answered", text)
		return string(all)
	}
	for _, request := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "GET /mqtt HTTP/1.1\r\nUpgrade: websocket\r\n\r\n", "POST"} {
		require.Contains(t, send(0, request), "400 Bad Request")
	}
	require.Contains(t, send(0, "GET "), "mqtt.websocket.listen")
	require.Empty(t, send(1, "\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01c"))
	require.Empty(t, send(1, "\x16\x03\x01"))
	require.Contains(t, send(1, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "400 Bad Request")
}

func newPending(size int) *pendingConns[*conn] {
	return &pendingConns[*conn]{size: size, host: func(c *conn) string { return c.quotas.host }}
}

func connFrom(host string) *conn { return &conn{quotas: connQuotas{host: host}} }

func TestTheOldestPendingConnectionIsClosedForANewOne(t *testing.T) {
	l := newPending(2)
	a, b, c, d, e := connFrom("a"), connFrom("b"), connFrom("c"), connFrom("d"), connFrom("e")
	require.Nil(t, l.add(a))
	require.Nil(t, l.add(b))
	l.remove(a)
	l.remove(a)
	require.Nil(t, l.add(c))
	require.Same(t, b, l.add(d))
	l.remove(b) // who was sent away leaves, too
	require.Same(t, c, l.add(e))
	l.remove(e)
	l.remove(d)
	require.Zero(t, l.conns.Len())
	require.Empty(t, l.byHost)
}

// endlessListener is a listener that always has somebody waiting.
type endlessListener struct{ net.Listener }

func (endlessListener) Accept() (net.Conn, error) {
	conn, _ := net.Pipe()
	return conn, nil
}

func TestConnectionsBeyondTheRateWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := 0
		g := &limitedListener{Listener: endlessListener{}, rate: newRateLimiter(25), delayed: func() { held++ }}
		began := time.Now()
		for range 60 {
			_, err := g.Accept()
			require.NoError(t, err)
		}
		require.Equal(t, 10, held, "fifty come in at once")
		require.Equal(t, 10*time.Second/25, time.Since(began))
	})
}

func TestNeighbourIsAnotherClient(t *testing.T) {
	var n activePublisher
	now := time.Now()
	n.note("one", &quantum{began: now})
	require.False(t, n.othersActive("one", now))
	require.True(t, n.othersActive("two", now))
	n.note("two", &quantum{began: now})
	require.True(t, n.othersActive("two", now), "one is still there")
	n.forget("one")
	require.False(t, n.othersActive("two", now))
	n.note("two", &quantum{began: now})
	require.True(t, n.othersActive("one", now))
	require.False(t, n.othersActive("three", now.Add(2*activeFor)), "long ago")
	n.note("three", &quantum{began: now.Add(activeFor)})
	require.True(t, n.othersActive("two", now.Add(activeFor)), "who fell silent makes room")
	var f activePublisher
	f.note("one", &quantum{began: now, flood: true})
	require.False(t, f.othersActive("two", now), "a flood is nobody to wait for")
}

// Connections that send no CONNECT keep nobody else waiting: more are let in than may connect, and those of one
// address make room for one another.
func TestAFloodWithoutCONNECTIsLoggedOnce(t *testing.T) {
	l := newPending(40)
	other := connFrom("192.0.2.2")
	require.Nil(t, l.add(other))
	flood := make([]*conn, 30)
	for i := range flood {
		flood[i] = connFrom("192.0.2.1")
		out := l.add(flood[i])
		if i < 10 {
			require.Nil(t, out)
		} else {
			require.Same(t, flood[i-10], out, "its own oldest goes")
		}
	}
	l.remove(other)
	require.Equal(t, map[string]int{"192.0.2.1": 10}, l.byHost)

	b := startBroker(t, func(o *Options) { o.Limits.ConnectRate, o.Limits.ConnectTimeout = 100, time.Hour })
	for range 3 * 2 * 100 { // three times what a full bucket lets connect
		dialBroker(t, b)
	}
	openClient(t, b, "c")
	require.Zero(t, b.Stats().Held, "nobody had to wait")
}

const bridgeState = "$SYS/broker/connection/site.hub/state"

// openBridge connects as mosquitto's bridges do: with the bridge bit in the protocol level, and
// a retained will below $SYS.
func openBridge(t *testing.T, b *Broker, id string, opts ...connectOption) *testClient {
	t.Helper()
	c := dialBroker(t, b)
	pk := connectPacket(id, append(opts, withWill(bridgeState, "0", 0, func(pk *packets.Packet) { pk.Connect.WillRetain = true }))...)
	c.version = pk.ProtocolVersion
	raw := encodePacket(t, pk, c.version)
	at := bytes.Index(raw, pk.Connect.ProtocolName) + len(pk.Connect.ProtocolName)
	raw[at] |= bridgeBit
	c.raw(raw)
	c.connack = c.expect(packets.Connack)
	require.Zero(t, c.connack.ReasonCode)
	return c
}

// A mosquitto bridge gets in with each version, is answered in that version, and may say on its
// own topic below $SYS that it is connected; nobody hears it.
func TestABridgeIsKnownByItsBit(t *testing.T) {
	for name, version := range map[string]connectOption{"3.1": version31, "3.1.1": version311, "5": func(*packets.Packet) {}} {
		t.Run(name, func(t *testing.T) {
			b := startBroker(t, nil)
			sub, other := openClient(t, b, "sub"), openClient(t, b, "other")
			sub.sub("#", 1)
			sub.sub(bridgeState, 1)
			c := openBridge(t, b, "site", version)
			for qos, answer := range map[byte]byte{1: packets.Puback, 2: packets.Pubrec} {
				c.publish(bridgeState, "1", qos, 5, markRetain)
				require.Zero(t, c.expect(answer).ReasonCode)
			}
			c.leave(b, "site")
			require.Zero(t, b.Stats().Retained)
			require.Zero(t, b.Stats().Refused[daemon.Label("BadTopic")])
			other.publish1("end", "")
			require.Equal(t, "end", sub.expect(packets.Publish).TopicName)
		})
	}
}

// What a bridge sent doesn't come back to it, live or retained, and the retain flag comes as it was published.
func TestBridgeHearsNoEcho(t *testing.T) {
	b := startBroker(t, nil)
	pub, c := openClient(t, b, "pub"), openBridge(t, b, "site", version311, persistentSession)
	c.publish1("mine", "retained", markRetain)
	c.sub("#", 1)
	c.publish1("mine", "live", markRetain)
	pub.publish1("yours", "kept", markRetain)
	pub.publish1("yours/too", "not kept")
	for _, kept := range []bool{true, false} {
		pk := c.expect(packets.Publish)
		require.Equal(t, kept, pk.FixedHeader.Retain, pk.TopicName)
		require.Contains(t, pk.TopicName, "yours")
		c.ack(packets.Puback, pk.PacketID)
	}
	c.nothing()
	c.sub("$share/g/shared", 1) // to which no-local can't be applied
	c.publish("shared", "x", 1, 7)
	require.Equal(t, "shared", c.answered(packets.Puback).TopicName)
}

// A level that nobody has is answered in the nearest version that there is.
func TestBridgeLevelIsAnsweredInItsVersion(t *testing.T) {
	b := startBroker(t, nil)
	for level, want := range map[byte]struct{ version, code byte }{
		0x82: {4, connackBadVersion}, 0x83: {4, connackBadVersion}, 0x86: {5, codeBadVersion}, 0x84: {4, 0},
	} {
		c := dialBroker(t, b)
		c.version = want.version
		raw := connectRaw("MQTT", level&^bridgeBit, 2, nil, "x")
		raw[8] = level
		c.raw(raw)
		ack := c.expect(packets.Connack)
		require.Equal(t, want.code, ack.ReasonCode, "level %#x", level)
	}
}

// A bridge without clean start that says no session expiry, as mosquitto's do with MQTT 5, has a session all the same.
func TestABridgeWithoutCleanStartHasASession(t *testing.T) {
	b := startBroker(t, func(o *Options) { o.Limits.Session.Expiry = time.Hour })
	bridge := openBridge(t, b, "site", resumeSession)
	require.Equal(t, uint32(3600), bridge.connack.Properties.SessionExpiryInterval)
	bridge.sub("plant/#", 1)
	_ = bridge.conn.Close()
	require.Eventually(t, func() bool { return b.clients.connected("site") == nil }, testTimeout, time.Millisecond)
	other := openClient(t, b, "other", resumeSession)
	other.publish1("plant/down", "while it was away")
	bridge = openBridge(t, b, "site", resumeSession)
	require.True(t, bridge.connack.SessionPresent)
	require.Equal(t, "while it was away", string(bridge.expect(packets.Publish).Payload))
	require.Zero(t, other.connack.Properties.SessionExpiryInterval, "other clients have what they ask for")
}

// mosquitto 2.0 says only by its will that it is a bridge, with MQTT 5.
func TestABridgeIsKnownByItsWill(t *testing.T) {
	b := startBroker(t, func(o *Options) { o.Limits.Session.Expiry = time.Hour })
	options := []connectOption{resumeSession, withWill(bridgeState, "0", 0)}
	bridge := openClient(t, b, "site", options...)
	require.Equal(t, uint32(3600), bridge.connack.Properties.SessionExpiryInterval)
	bridge.sub("plant/#", 1)
	_ = bridge.conn.Close()
	require.Eventually(t, func() bool { return b.clients.connected("site") == nil }, testTimeout, time.Millisecond)
	require.True(t, openClient(t, b, "site", options...).connack.SessionPresent)
}

// A bridge sends all that waits in it, whatever receive maximum CONNACK said.
func TestABridgeBeyondTheReceiveMaximumIsReadMoreSlowly(t *testing.T) {
	tree := newFakeTree()
	b := startBroker(t, func(o *Options) { o.Limits.ReceiveMaximum = 10; o.Tree = tree })
	for _, qos := range []byte{1, 2} {
		bridge := openBridge(t, b, "site")
		const n = 500
		for i := range n {
			bridge.publish("plant/up", strconv.Itoa(i), qos, uint16(i+1))
		}
		kind := map[byte]byte{1: packets.Puback, 2: packets.Pubrec}[qos]
		for i := range n {
			require.Equal(t, uint16(i+1), bridge.expect(kind).PacketID)
		}
		bridge.disconnect()
	}
}

// A browser tells its page nothing of why it was refused: the log does.
func TestARefusedOriginIsLogged(t *testing.T) {
	var log bytes.Buffer
	b := startBroker(t, func(o *Options) { o.Listeners[0].WebSocket, o.Log = true, zerolog.New(zerolog.SyncWriter(&log)) })
	_, res, err := websocket.DefaultDialer.Dial("ws://"+b.Addrs()[0].String(), http.Header{"Origin": {"https://foreign.example"}})
	require.Error(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusForbidden, res.StatusCode)
	require.NoError(t, b.Close(t.Context())) // nothing is logged any more
	require.Contains(t, log.String(), "mqtt.websocket.origins")
	require.Contains(t, log.String(), "https://foreign.example")
	require.Equal(t, int64(1), b.Stats().Rejected[daemon.Label(originRefused)])
	foreign := b.Report().RefusedOrigin // for edgebus doctor
	require.NotNil(t, foreign)
	require.Equal(t, "https://foreign.example", foreign.Origin)
	require.WithinDuration(t, time.Now(), foreign.At, testTimeout)
}

// crowdedListener is a listener at which the next connection waits already, of a client that is gone.
type crowdedListener struct {
	net.Listener
	accepted atomic.Int64
	closed   chan struct{}
}

func (c *crowdedListener) Accept() (net.Conn, error) {
	select {
	case <-c.closed:
		return nil, net.ErrClosed
	default:
	}
	c.accepted.Add(1)
	conn, client := net.Pipe()
	return conn, client.Close()
}

// On a single processor whom the network has woken runs before the next of many connections that wait to be accepted.
func TestOnOneProcessorOthersRunBetweenConnections(t *testing.T) {
	b := startBroker(t, nil)
	oneprocessor.Use(t)
	bound := &crowdedListener{closed: make(chan struct{})}
	l := &listener{b: b, bound: bound, connects: newRateLimiter(0)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.serve()
	}()
	givesWay := oneprocessor.GivesWay(&bound.accepted)
	close(bound.closed)
	<-ended
	require.True(t, givesWay)
}
