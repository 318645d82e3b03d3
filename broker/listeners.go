package broker

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
)

// listener is a bound address. It outlives failed accepts.
type listener struct {
	Listener
	b        *Broker
	bound    net.Listener
	loopback bool
	http     *http.Server // WebSocket only
	closed   atomic.Bool
}

// listen binds all addresses, or none.
func (b *Broker) listen() error {
	for _, o := range b.opts.Listeners {
		bound, err := new(net.ListenConfig).Listen(context.Background(), "tcp", o.Address)
		if err != nil {
			for _, l := range b.listeners {
				_ = l.close()
			}
			return fmt.Errorf("%s: %w", cmp.Or(o.Setting, "listener "+o.Name), err)
		}
		l := &listener{Listener: o, b: b, loopback: loopbackAddr(bound.Addr())}
		l.bound = &gate{
			Listener: bound, every: time.Second / time.Duration(b.opts.Limits.ConnectRate), closed: b.closed,
			metered: o.TLS != nil || o.WebSocket,
			held:    func() { b.stats.held.Add(1) },
		}
		if o.TLS != nil {
			l.bound = tls.NewListener(l.bound, o.TLS)
		}
		if o.WebSocket {
			l.http = l.webSocketServer()
		}
		b.listeners = append(b.listeners, l)
	}
	return nil
}

func loopbackAddr(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

const acceptSaid = 10 * time.Second // how often at most it is said that none can be accepted

// serve accepts connections until the listener is closed.
func (l *listener) serve() {
	if l.http != nil {
		if err := l.http.Serve(l.bound); err != nil && !l.closed.Load() {
			l.b.log.Error().Err(err).Str("listener", l.Name).Msg("listener failed")
		}
		return
	}
	var said time.Time
	for {
		transport, err := l.bound.Accept()
		switch {
		case err == nil:
			go l.b.serve(l, transport, nil) // ends with the connection; Close waits for it
		case l.closed.Load() || errors.Is(err, net.ErrClosed):
			return
		default: // out of file descriptors, or a client that was gone already
			if time.Since(said) > acceptSaid {
				l.b.log.Warn().Err(err).Str("listener", l.Name).Msg("new connections can't be accepted now; those that stand go on")
				said = time.Now()
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-l.b.closed:
				return
			}
		}
	}
}

func (l *listener) close() error {
	if l.closed.Swap(true) {
		return nil
	}
	err := l.bound.Close()
	if l.http != nil {
		_ = l.http.Close()
	}
	return err
}

func (l *listener) webSocketServer() *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(l.upgrade),
		ReadHeaderTimeout: l.b.opts.Limits.ConnectTimeout,
		IdleTimeout:       l.b.opts.Limits.ConnectTimeout,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          stdlog.New(io.Discard, "", 0),
	}
}

// upgrade makes a WebSocket connection of a request.
func (l *listener) upgrade(w http.ResponseWriter, r *http.Request) {
	upgrader := websocket.Upgrader{Subprotocols: []string{"mqtt"}, CheckOrigin: l.originAllowed}
	ws, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	l.b.serve(l, &wsConn{Conn: ws.NetConn(), ws: ws}, verified(r.TLS))
}

// originAllowed keeps web pages out that are not ours: on a loopback listener a
// browser's user may be anonymous, and any page can make the browser connect. The
// host has to be this one, too, since a page's name can be made to resolve to it.
func (l *listener) originAllowed(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || slices.Contains(l.Origins, origin) {
		return true
	}
	u, err := url.Parse(origin)
	if err != nil || u.Host != r.Host {
		return false
	}
	return !l.loopback || loopbackHost(u.Hostname())
}

// peerCertificate is the client's certificate, if it has a verified one.
func (c *conn) peerCertificate() *x509.Certificate {
	if t, ok := c.Conn.(*tls.Conn); ok {
		state := t.ConnectionState()
		return verified(&state)
	}
	return c.cert
}

func verified(state *tls.ConnectionState) *x509.Certificate {
	if state == nil || len(state.VerifiedChains) == 0 {
		return nil
	}
	return state.PeerCertificates[0]
}

// wsConn makes a byte stream of WebSocket messages, in whose boundaries MQTT has no
// interest. It is read by one goroutine and written by one.
type wsConn struct {
	net.Conn // beneath the WebSocket
	ws       *websocket.Conn
	message  io.Reader
	deadline atomic.Pointer[time.Time]
}

var errNotBinary = errors.New("a WebSocket message that is not binary")

func (c *wsConn) Read(p []byte) (int, error) {
	for {
		if c.message == nil {
			kind, message, err := c.ws.NextReader()
			if err != nil {
				return 0, err
			}
			if kind != websocket.BinaryMessage {
				return 0, errNotBinary
			}
			c.message = message
		}
		n, err := c.message.Read(p)
		if errors.Is(err, io.EOF) {
			c.message, err = nil, nil
		}
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
	}
}

func (c *wsConn) Write(p []byte) (int, error) {
	if d := c.deadline.Load(); d != nil {
		_ = c.ws.SetWriteDeadline(*d)
	}
	if err := c.ws.WriteMessage(websocket.BinaryMessage, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// SetWriteDeadline applies to a write under way and to later ones.
func (c *wsConn) SetWriteDeadline(t time.Time) error {
	c.deadline.Store(&t)
	return c.Conn.SetWriteDeadline(t)
}

// CloseWrite says goodbye as WebSocket has it.
func (c *wsConn) CloseWrite() error {
	bye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	if err := c.ws.WriteControl(websocket.CloseMessage, bye, time.Now().Add(time.Second)); err != nil {
		return err
	}
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
