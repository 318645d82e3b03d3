package broker

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// said waits for a line of the log about a connection of a listener.
func (l *lines) said(t *testing.T, listener string) (text string) {
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
	a, log := newAuthority(t), &lines{}
	b := start(t, func(o *Options) {
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
func TestTrial29TheWrongPort(t *testing.T) {
	b := start(t, func(o *Options) {
		o.Limits.ConnectTimeout = time.Hour
		o.Listeners = []Listener{{Name: "mqtt", Address: "127.0.0.1:0"}, {Name: "ws", Address: "127.0.0.1:0", WebSocket: true}}
	})
	send := func(listener int, text string) (answer string) {
		conn, err := net.Dial("tcp", b.Addrs()[listener].String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = conn.Write([]byte(text))
		require.NoError(t, err)
		_ = conn.SetReadDeadline(time.Now().Add(patience))
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
