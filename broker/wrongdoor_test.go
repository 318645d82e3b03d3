package broker

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
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
