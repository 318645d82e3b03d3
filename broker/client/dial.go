package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
)

// dial opens the byte stream to a server: TCP, TLS or WebSocket.
func dial(ctx context.Context, o Options, s server) (net.Conn, error) {
	if s.ws {
		return dialWebSocket(ctx, o, s)
	}
	conn, err := o.Dial(ctx, "tcp", s.address)
	if err != nil || !s.tls {
		return conn, plain(err, s.address)
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.TLS != nil {
		cfg = o.TLS.Clone()
	}
	if cfg.ServerName == "" {
		cfg.ServerName = s.url.Hostname()
	}
	secure := tls.Client(conn, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return secure, nil
}

func dialWebSocket(ctx context.Context, o Options, s server) (net.Conn, error) {
	d := websocket.Dialer{
		NetDialContext:  o.Dial,
		TLSClientConfig: o.TLS,
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
		return nil, fmt.Errorf("WebSocket: %w", plain(err, s.url.Host))
	}
	return &wsConn{Conn: ws}, nil
}

// plain leaves out of a failed dial what is said before it: that it was one, and where to.
func plain(err error, address string) error {
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

// patientConn fails when nothing at all moved for a while. The deadline follows every single read and write, so a
// large packet over a slow line is not mistaken for a dead one.
type patientConn struct {
	net.Conn
	patience           atomic.Int64 // nanoseconds
	lastRead, lastSent atomic.Int64 // Unix nanoseconds
}

func (c *patientConn) Read(p []byte) (int, error) {
	_ = c.SetReadDeadline(time.Now().Add(time.Duration(c.patience.Load())))
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.lastRead.Store(time.Now().UnixNano())
	}
	return n, err
}

func (c *patientConn) Write(p []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(time.Duration(c.patience.Load())))
	c.lastSent.Store(time.Now().UnixNano())
	return c.Conn.Write(p)
}
