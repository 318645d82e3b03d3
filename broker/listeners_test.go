package broker

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"

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
		{Listeners: []Listener{{Address: "0.0.0.0:0", TLS: newAuthority(t).server()}}},
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
	b := start(t, nil)
	_, err := New(Options{Listeners: []Listener{{Address: "127.0.0.1:0"}, {Address: b.Addrs()[0].String()}}})
	require.Error(t, err)
}

func TestBadUsersAreRefused(t *testing.T) {
	for _, u := range []User{
		{Name: "x", Role: topics.RoleOperator, PasswordHash: "plain"},
		{Name: "x", Role: "king", PasswordHash: hash7},
		{Name: "x", Role: topics.RoleHub, PasswordHash: hash7},
		{Name: "X", Role: topics.RoleNode, PasswordHash: hash7},
		{Name: "x", Role: topics.RoleViewer, PasswordHash: hash7, Nodes: []string{"["}},
	} {
		_, err := New(Options{Auth: Auth{Users: []User{u}}})
		require.Error(t, err, "%+v", u)
	}
}

// Being reached over loopback is not enough: the listener has to be on loopback,
// or a proxy on this host would make everybody anonymous.
func TestAnonymousOnlyOnLoopbackListeners(t *testing.T) {
	b := start(t, func(o *Options) {
		o.InsecureListen = true
		o.Listeners = []Listener{{Name: "all", Address: "0.0.0.0:0"}}
	})
	c := dial(t, b)
	require.Equal(t, byte(0x86), c.connect("c"))
	c = dial(t, b)
	require.Equal(t, byte(0x86), c.connect("c", credentialsOf("node/n1", "")))
}

func TestWebSocket(t *testing.T) {
	b := start(t, func(o *Options) {
		o.Listeners = append(o.Listeners, Listener{Name: "ws", Address: "127.0.0.1:0", WebSocket: true, Origins: []string{"https://ui.example"}})
	})
	url := "ws://" + b.Addrs()[1].String() + "/mqtt"
	sub, pub := dialWS(t, url, nil), open(t, b, "pub")
	require.Equal(t, byte(0), sub.connect("sub"))
	sub.sub("a", 1)
	pub.meanwhile("a", 0, 500)
	require.Equal(t, numbers(0, 500), sub.collect(500))
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
	require.NoError(t, ws.WriteMessage(websocket.TextMessage, encode(t, connectPacket("text"), 5)))
	_, _, err = ws.ReadMessage()
	require.Error(t, err)
}

// ask opens a connection and writes text to it. Its end is all that follows.
func ask(t *testing.T, b *Broker, text string) net.Conn {
	conn, err := net.Dial("tcp", b.Addrs()[0].String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
	return conn
}

// Who asks for anything else than a WebSocket is answered once, and keeps no connection.
func TestARequestIsNoConnection(t *testing.T) {
	b := place{webSocket: true}.start(t, nil)
	for request, status := range map[string]int{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n":                                          http.StatusBadRequest,
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n":               http.StatusBadRequest,
		"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n": http.StatusUpgradeRequired,
	} {
		conn := ask(t, b, request)
		r := bufio.NewReader(conn)
		res, err := http.ReadResponse(r, nil)
		require.NoError(t, err, request)
		require.Equal(t, status, res.StatusCode, request)
		_, err = io.Copy(io.Discard, res.Body)
		require.NoError(t, err)
		_, err = r.ReadByte()
		require.ErrorIs(t, err, io.EOF, request)
	}
	_, _ = io.Copy(io.Discard, ask(t, b, "GET / HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 2*handshakeBytes)))
}

// Up to its CONNECT a connection is under the same limits, whatever carries it.
func TestWhoSaysNothingMakesRoom(t *testing.T) {
	for name, half := range map[string]string{"websocket": "GET / HTTP/1.1\r\nHost:", "tcp": "\x10"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := place{webSocket: name == "websocket"}.start(t, func(o *Options) {
				o.Limits.Connections, o.Limits.ConnectTimeout = 64, time.Hour
			})
			for range 40 {
				ask(t, b, half)
			}
			require.Eventually(t, func() bool { return b.Stats().Rejected[crowdedOut] >= 24 }, patience, 10*time.Millisecond)
			open(t, b, "c")
		})
	}
}

func TestWhoSaysNothingIsGivenUp(t *testing.T) {
	b := place{webSocket: true}.start(t, func(o *Options) { o.Limits.ConnectTimeout = 50 * time.Millisecond })
	for _, half := range []string{"", "GET / HTTP/1.1\r\nHost:"} {
		_, err := io.Copy(io.Discard, ask(t, b, half))
		require.NoError(t, err)
	}
	require.EqualValues(t, 2, b.Stats().Rejected[noConnect])
}

// Pages of the host's own ports may connect, and of the origins that are listed; no others. The subprotocol that an older
// client asks for is echoed.
func TestTrial23Browsers(t *testing.T) {
	b := start(t, func(o *Options) {
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

	for asked, want := range map[string]string{"mqttv3.1": "mqttv3.1", "mqtt": "mqtt", "other": ""} {
		ws, res, err := (&websocket.Dialer{Subprotocols: []string{asked}}).Dial(url, nil)
		require.NoError(t, err)
		_ = res.Body.Close()
		require.Equal(t, want, ws.Subprotocol())
	}
}
