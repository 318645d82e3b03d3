// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
)

// dialServer opens the byte stream to a server: TCP, TLS or WebSocket.
func dialServer(ctx context.Context, o Options, s server) (net.Conn, error) {
	if s.ws {
		return dialWebSocket(ctx, o, s)
	}
	conn, err := o.Dial(ctx, s.network, s.address)
	if err != nil || !s.tls {
		return conn, withoutDialPrefix(err, s.address)
	}
	cfg := o.secure()
	cfg.ServerName = cmp.Or(cfg.ServerName, s.url.Hostname())
	secure := tls.Client(conn, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return secure, nil
}

// secure is the TLS configuration for one connection.
func (o Options) secure() *tls.Config {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.TLS != nil {
		cfg = o.TLS.Clone()
	}
	if o.Roots != nil {
		cfg.RootCAs = o.Roots()
	}
	return cfg
}

func dialWebSocket(ctx context.Context, o Options, s server) (net.Conn, error) {
	d := websocket.Dialer{
		NetDialContext:  o.Dial,
		TLSClientConfig: o.secure(),
		Subprotocols:    []string{"mqtt"},
		Proxy:           http.ProxyFromEnvironment,
	}
	u := *s.url
	u.User = nil                                         // it is meant for MQTT, not for HTTP
	ws, resp, err := d.DialContext(ctx, u.String(), nil) //nolint:bodyclose // the dialer has read it
	if err != nil {
		if resp != nil {
			return nil, fmt.Errorf("WebSocket: HTTP status %s: is %s the path of the broker's WebSocket listener? %w", resp.Status, u.Path, err)
		}
		return nil, fmt.Errorf("WebSocket: %w", withoutDialPrefix(err, s.url.Host))
	}
	return &wsConn{Conn: ws}, nil
}

// withoutDialPrefix removes from a dial's error what its callers say anyway: that it was a dial, and the address.
func withoutDialPrefix(err error, address string) error {
	var dialing *net.OpError
	if !errors.As(err, &dialing) || dialing.Op != "dial" || dialing.Addr == nil || dialing.Addr.String() != address {
		return err
	}
	var why syscall.Errno
	if errors.As(dialing.Err, &why) {
		return why
	}
	return dialing.Err
}

// wsConn makes a byte stream of binary WebSocket messages. One goroutine reads and one writes.
type wsConn struct {
	*websocket.Conn
	r io.Reader
}

func (c *wsConn) Read(p []byte) (int, error) {
	for {
		if c.r == nil {
			kind, r, err := c.NextReader()
			if err != nil {
				return 0, err
			}
			if kind != websocket.BinaryMessage {
				return 0, errors.New("WebSocket: got a text message, MQTT is binary")
			}
			c.r = r
		}
		n, err := c.r.Read(p)
		if errors.Is(err, io.EOF) {
			c.r, err = nil, nil
			if n == 0 {
				continue
			}
		}
		return n, err
	}
}

func (c *wsConn) Write(p []byte) (int, error) {
	if err := c.WriteMessage(websocket.BinaryMessage, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (c *wsConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// timeoutConn fails when no byte was read or written for a while. The deadline is set for each read and write, so that a
// large packet over a slow line does not end the connection.
type timeoutConn struct {
	net.Conn
	timeout            atomic.Int64 // nanoseconds
	lastRead, lastSent atomic.Int64 // Unix nanoseconds
}

func (c *timeoutConn) Read(p []byte) (int, error) {
	_ = c.SetReadDeadline(time.Now().Add(time.Duration(c.timeout.Load())))
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.lastRead.Store(time.Now().UnixNano())
	}
	return n, err
}

// writePiece is how much has to be written within the patience: a long packet over a slow line is no silence.
const writePiece = 8 << 10

// Write writes in pieces. As long as they go out, the broker can't answer a PINGREQ, which would come behind them: it isn't expected to.
func (c *timeoutConn) Write(p []byte) (n int, err error) {
	for first := true; first || len(p) > n; first = false {
		patience := time.Now().Add(time.Duration(c.timeout.Load()))
		_ = c.SetWriteDeadline(patience)
		if !first {
			_ = c.SetReadDeadline(patience)
		}
		c.lastSent.Store(time.Now().UnixNano())
		wrote, err := c.Conn.Write(p[n:min(len(p), n+writePiece)])
		if n += wrote; err != nil {
			return n, err
		}
	}
	return n, nil
}

// explain says why no connection could be made and what to do, where the error itself would mislead.
func (o Options) explain(err error, s server) error {
	var (
		refused  *Refused
		unknown  x509.UnknownAuthorityError
		hostname x509.HostnameError
		invalid  x509.CertificateInvalidError
		record   tls.RecordHeaderError
		remote   *net.OpError
	)
	secure := s.tls || s.url.Scheme == "wss"
	say := func(format string, args ...any) error { return fmt.Errorf(format+" (%w)", append(args, err)...) }
	switch {
	case errors.As(err, &refused):
		return err
	case errors.As(err, &unknown):
		return say("the server's certificate is signed by an authority that isn't trusted here: give that authority's certificate as ca")
	case errors.As(err, &hostname):
		return say("the server's certificate is for another name: use a name that is in it, or make it one for %s", s.url.Hostname())
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return say("the server's certificate is not valid now, but from %s to %s: make it a new one, unless the clock here is wrong",
			formatDay(invalid.Cert.NotBefore), formatDay(invalid.Cert.NotAfter))
	case errors.As(err, &record):
		return say("the server doesn't speak TLS there: should the address begin with %s?", map[bool]string{true: "ws://", false: "mqtt://"}[s.ws])
	case errors.As(err, &remote) && alertOf(remote) != 0:
		return say("%s", o.rejected(alertOf(remote)))
	case !isHangUp(err) && !errors.Is(err, errNoAnswer):
		return err
	case !s.ws && errors.Is(err, errNoAnswer) && o.speaksHTTP(s):
		return say("an HTTP server answers there, not an MQTT broker: give the broker's own address, whose port is another")
	case !isHangUp(err):
		return err
	case secure && o.outdated():
		return say("%s", o.rejected(alertExpired))
	case secure:
		return say("the server hung up: does it speak TLS there, and does it take our certificate?")
	}
	return say("the server hung up before it answered: does it speak MQTT 5 there, and without TLS? With TLS the address begins with mqtts://")
}

// Alerts of TLS (RFC 8446, section 6.2).
const (
	alertBadCertificate = 42
	alertExpired        = 45
	alertUnknownCA      = 48
)

// alertOf is the number of the alert with which the server ended the handshake; 0: it sent none. The library has no type for it.
func alertOf(err *net.OpError) uint64 {
	if code := reflect.ValueOf(err.Err); err.Op == "remote error" && code.Kind() == reflect.Uint8 {
		return code.Uint()
	}
	return 0
}

// rejected is why the server did not accept our certificate, or that we have none.
func (o Options) rejected(alert uint64) string {
	leaf := Leaf(o.TLS)
	switch {
	case leaf == nil:
		return "the server wants a certificate, and none is set: give one as cert and key"
	case o.outdated():
		return fmt.Sprintf("our certificate is not valid now, but from %s to %s: make a new one, unless the clock here is wrong", formatDay(leaf.NotBefore), formatDay(leaf.NotAfter))
	case alert == alertExpired:
		return "the server takes our certificate for expired: is its clock right?"
	case alert == alertUnknownCA, alert == alertBadCertificate:
		return "our certificate is not signed by an authority that the server trusts: see clientCA there"
	}
	return "the server refused TLS with us: see its log, and the certificates of both"
}

// Leaf is the certificate that a client with these settings presents now; nil: none.
func Leaf(c *tls.Config) *x509.Certificate {
	var shown *tls.Certificate
	switch {
	case c == nil:
		return nil
	case c.GetClientCertificate != nil:
		shown, _ = c.GetClientCertificate(nil) // without one there is none to check
	case len(c.Certificates) > 0:
		shown = &c.Certificates[0]
	}
	switch {
	case shown == nil || len(shown.Certificate) == 0:
		return nil
	case shown.Leaf != nil:
		return shown.Leaf
	}
	leaf, err := x509.ParseCertificate(shown.Certificate[0])
	if err != nil {
		return nil
	}
	return leaf
}

func (o Options) outdated() bool {
	leaf, now := Leaf(o.TLS), time.Now()
	return leaf != nil && (now.After(leaf.NotAfter) || now.Before(leaf.NotBefore))
}

func formatDay(t time.Time) string { return t.UTC().Format("2006-01-02 15:04") }

func isHangUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// errNoAnswer is in the error if CONNECT was sent and no CONNACK came.
var errNoAnswer = errors.New("no CONNACK")

// speaksHTTP reports whether a server that didn't answer CONNECT is a web server, which was waiting for the end of a line.
func (o Options) speaksHTTP(s server) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	conn, err := dialServer(ctx, o, s)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	answer := make([]byte, len("HTTP/"))
	if _, err := io.WriteString(conn, "HEAD / HTTP/1.0\r\n\r\n"); err != nil {
		return false
	}
	_, err = io.ReadFull(conn, answer)
	return err == nil && string(answer) == "HTTP/"
}
