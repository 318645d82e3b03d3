// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bufio"
	"bytes"
	"cmp"
	"container/list"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	"github.com/rs/zerolog"
	"golang.org/x/time/rate"

	"github.com/edgebus/edgebus/broker/daemon"
)

// listener is a bound address, from which connections are accepted. A failed accept doesn't end it.
type listener struct {
	Listener
	b        *Broker
	bound    net.Listener
	loopback bool
	closed   atomic.Bool
	connects *rate.Limiter // of CONNECTs
}

// listen binds all addresses, or none.
func (b *Broker) listen() error {
	for _, o := range b.opts.Listeners {
		bound, loopback, err := bindLimited(o, b.opts.Limits, b.closed, b.metrics.held.Inc)
		if err != nil {
			for _, l := range b.listeners {
				_ = l.close()
			}
			return err
		}
		l := &listener{Listener: o, b: b, bound: bound, loopback: loopback, connects: newRateLimiter(b.opts.Limits.ConnectRate)}
		b.listeners = append(b.listeners, l)
	}
	return nil
}

// bindLimited binds a listener's address, from which connections are accepted at a limited rate.
func bindLimited(o Listener, limits Limits, closed <-chan struct{}, delayed func()) (bound net.Listener, loopback bool, err error) {
	if bound, err = bindAddress(o.Address); err != nil {
		return nil, false, fmt.Errorf("%s: %w", cmp.Or(o.Setting, "listener "+o.Name), err)
	}
	loopback = loopbackAddr(bound.Addr())
	bound = &limitedListener{
		Listener: daemon.ReserveDescriptors(bound, daemon.MQTTReserve), rate: newRateLimiter(limits.ConnectRate * acceptsPerConnect), closed: closed,
		metered: o.TLS != nil || o.WebSocket,
		delayed: delayed,
	}
	if o.TLS != nil {
		bound = tls.NewListener(bound, o.TLS)
	}
	return bound, loopback, nil
}

// bindAddress listens on a TCP address, or on a Unix socket, whose address is unix: and its path.
func bindAddress(address string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, unixScheme); ok {
		return listenUnix(path)
	}
	return new(net.ListenConfig).Listen(context.Background(), "tcp", address)
}

func loopbackAddr(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

const acceptLogEvery = 10 * time.Second // how often a failed accept is logged, at most

// serve accepts connections until the listener is closed.
func (l *listener) serve() {
	acceptConns(l.bound, l.b.closed, l.b.log.With().Str("listener", l.Name).Logger(), func(transport net.Conn) {
		if l.WebSocket {
			transport = &wsConn{Conn: transport, upgrade: l.upgrade}
		}
		go l.serveConn(transport) // ends with the connection; Close waits for it
	})
}

// acceptConns has connections served until the listener is closed, or closed is. A failed accept doesn't end it.
func acceptConns(bound net.Listener, closed <-chan struct{}, log zerolog.Logger, serve func(net.Conn)) {
	var said time.Time
	for {
		transport, err := bound.Accept()
		switch {
		case err == nil:
			serve(transport)
			runtime.Gosched() // on a single processor those who wait for the network run before the next connection (docs/adr/0153)
		case errors.Is(err, net.ErrClosed):
			return
		default: // out of file descriptors, or a client that was gone already
			if time.Since(said) > acceptLogEvery {
				log.Warn().Err(err).Msg("new connections can't be accepted now; those that stand go on")
				said = time.Now()
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-closed:
				return
			}
		}
	}
}

func (l *listener) close() error {
	if l.closed.Swap(true) {
		return nil
	}
	return l.bound.Close()
}

// peerCertificate is the client's certificate, if it has a verified one.
func (c *conn) peerCertificate() *x509.Certificate {
	if carried, ok := underlyingConn(c.Conn).(*carriedConn); ok {
		return carried.certificate
	}
	secure, ok := underlyingConn(c.Conn).(*tls.Conn)
	if !ok {
		return nil
	}
	state := secure.ConnectionState()
	return verifiedCertificate(&state)
}

func verifiedCertificate(state *tls.ConnectionState) *x509.Certificate {
	if state == nil || len(state.VerifiedChains) == 0 {
		return nil
	}
	return state.PeerCertificates[0]
}

// limitedListener accepts connections at a limited rate. The rest wait in the system's backlog.
type limitedListener struct {
	net.Listener
	rate    *rate.Limiter
	closed  <-chan struct{}
	metered bool   // TLS or WebSocket reads from the socket: its reads are counted there
	delayed func() // called for each connection that has to wait
}

// acceptsPerConnect is how many connections are accepted for each CONNECT that is: so many that a flood of connections
// that never send one doesn't keep the others waiting for long.
const acceptsPerConnect = 10

func (g *limitedListener) Accept() (net.Conn, error) {
	conn, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	awaitRate(g.rate, g.closed, g.delayed)
	if local, ok := conn.(*net.UnixConn); ok {
		return withPeer(local)
	}
	tcp, ok := conn.(*net.TCPConn)
	if ok {
		limitUnsent(tcp)
	}
	if ok && g.metered {
		conn = &meteredSocket{Conn: tcp}
	}
	return conn, nil
}

// newRateLimiter lets n callers a second go on, after two seconds' worth of them at once.
func newRateLimiter(n int) *rate.Limiter { return rate.NewLimiter(rate.Limit(n), 2*n) }

// awaitRate waits until the limiter lets the caller go on, or for the end. It calls delayed if it has to wait.
func awaitRate(l *rate.Limiter, end <-chan struct{}, delayed func()) {
	wait := l.Reserve().Delay()
	if wait <= 0 {
		return
	}
	delayed()
	select {
	case <-time.After(wait):
	case <-end:
	}
}

// pendingConns are the connections that have not sent a CONNECT, in the order in which they were accepted. At its limit
// the oldest is closed for a new one: a client that wants to connect sends its CONNECT at once, so those that don't can't
// keep it out. One host has a quarter of the places at most; beyond that its own oldest connection is closed.
type pendingConns[C comparable] struct {
	size int
	host func(C) string // that a connection comes from

	mu     sync.Mutex
	conns  list.List           // of C, oldest first
	places map[C]*list.Element // in conns
	byHost map[string]int      // how many of them each host has
}

// add adds a connection, and returns the one that has to be closed for it; nil: none.
func (p *pendingConns[C]) add(c C) (evicted C) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byHost == nil {
		p.byHost, p.places = make(map[string]int), make(map[C]*list.Element)
	}
	host := p.host(c)
	switch {
	case p.byHost[host] >= max(1, p.size/4):
		evicted = p.removeOldest(func(x C) bool { return p.host(x) == host })
	case p.conns.Len() >= p.size:
		evicted = p.removeOldest(func(C) bool { return true })
	}
	p.places[c] = p.conns.PushBack(c)
	p.byHost[host]++
	return evicted
}

func (p *pendingConns[C]) removeOldest(may func(C) bool) (oldest C) {
	for e := p.conns.Front(); e != nil; e = e.Next() {
		if c := e.Value.(C); may(c) {
			p.drop(c)
			return c
		}
	}
	return oldest
}

// remove is called once a CONNECT has come, or the connection has ended.
func (p *pendingConns[C]) remove(c C) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(c)
}

func (p *pendingConns[C]) drop(c C) {
	place := p.places[c]
	if place == nil {
		return
	}
	p.conns.Remove(place)
	delete(p.places, c)
	host := p.host(c)
	if p.byHost[host]--; p.byHost[host] == 0 {
		delete(p.byHost, host)
	}
}

// wsConn makes a byte stream of WebSocket messages, whose boundaries mean nothing to MQTT. One goroutine reads and one
// writes. Like that of TLS, the handshake is a part of the first read: until then it is a connection without a CONNECT,
// under the same limits as any other.
type wsConn struct {
	net.Conn // beneath the WebSocket
	upgrade  func(http.ResponseWriter, *http.Request) (*websocket.Conn, error)
	ws       atomic.Pointer[websocket.Conn] // nil: no handshake yet
	identity *Identity                      // whose the connection is, if that is known already
	pings    func()                         // called for each ping, if set
	message  io.Reader
	deadline atomic.Pointer[time.Time]
}

const handshakeBytes = 16 << 10 // of a request

// errNotHTTP ends a connection to a WebSocket listener that doesn't begin with an HTTP request, but with TLS or MQTT.
var errNotHTTP = errors.New("not HTTP")

var errNotBinary = errors.New("a WebSocket message that is not binary")

// underlyingConn is what carries a connection's bytes, WebSocket or not.
func underlyingConn(transport net.Conn) net.Conn {
	if ws, ok := transport.(*wsConn); ok {
		return ws.Conn
	}
	return transport
}

// handshake reads an HTTP request and upgrades the connection to WebSocket. Any other request is answered, and nothing
// that comes after it is read.
func (c *wsConn) handshake() (*websocket.Conn, error) {
	bounded := &io.LimitedReader{R: c.Conn, N: handshakeBytes}
	a := &handshakeWriter{Conn: c.Conn, in: bufio.NewReader(bounded), header: make(http.Header)}
	if first, err := a.in.Peek(1); err == nil && (first[0] < 'A' || first[0] > 'Z') { // no method of HTTP begins so
		return nil, errNotHTTP
	}
	r, err := http.ReadRequest(a.in)
	if err != nil {
		return nil, err
	}
	r.RemoteAddr = c.RemoteAddr().String()
	ws, err := c.upgrade(a, r)
	if err != nil {
		return nil, err
	}
	bounded.N = math.MaxInt64
	c.established(ws)
	return ws, nil
}

// established is called with the WebSocket connection that a handshake has led to.
func (c *wsConn) established(ws *websocket.Conn) {
	answerPing := ws.PingHandler()
	ws.SetPingHandler(func(text string) error {
		if c.pings != nil {
			c.pings()
		}
		return answerPing(text)
	})
	c.ws.Store(ws)
}

// handshakeWriter is the http.ResponseWriter of the handshake, which can be hijacked.
type handshakeWriter struct {
	net.Conn
	in     *bufio.Reader
	header http.Header
	status int
}

func (a *handshakeWriter) Header() http.Header { return a.header }

func (a *handshakeWriter) WriteHeader(status int) { a.status = status }

func (a *handshakeWriter) Write(body []byte) (int, error) {
	r := http.Response{
		StatusCode: a.status, ProtoMajor: 1, ProtoMinor: 1, Header: a.header, Close: true,
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
	return len(body), r.Write(a.Conn)
}

func (a *handshakeWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return a.Conn, bufio.NewReadWriter(a.in, bufio.NewWriter(a.Conn)), nil
}

// upgrade answers a request for a WebSocket connection.
func (l *listener) upgrade(w http.ResponseWriter, r *http.Request) (*websocket.Conn, error) {
	upgrader := websocket.Upgrader{
		Subprotocols: []string{"mqtt", "mqttv3.1"}, CheckOrigin: l.checkOrigin, HandshakeTimeout: l.b.opts.Limits.ConnectTimeout,
	}
	return upgrader.Upgrade(w, r, nil)
}

func (l *listener) checkOrigin(r *http.Request) bool { return l.allowed(r, l.originAllowed) }

// allowed logs the refusal of an origin, of which a browser tells its page nothing.
func (l *listener) allowed(r *http.Request, by func(*http.Request) bool) bool {
	allowed := by(r)
	if !allowed {
		l.b.metrics.rejected.WithLabelValues(daemon.Label(originRefused)).Inc()
		l.b.refusedOrigin.Store(&RefusedOrigin{Origin: clipText(r.Header.Get("Origin")), Listener: l.Name, At: time.Now()})
		l.b.sampledLog.Info().Str("listener", l.Name).Str("origin", clipText(r.Header.Get("Origin"))).Str("remote", r.RemoteAddr).
			Msg("connection refused: web pages of this origin may not connect; mqtt.websocket.origins lists those that may")
	}
	return allowed
}

// originAllowed refuses web pages of other origins: on a loopback listener a browser's user may be anonymous, and any
// page can make the browser connect. The origin's host has to be this listener's, since the name of any site can be made
// to resolve to it.
func (l *listener) originAllowed(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || slices.Contains(l.Origins, origin) {
		return true
	}
	u, err := url.Parse(origin)
	if err != nil || u.Hostname() != (&url.URL{Host: r.Host}).Hostname() {
		return false
	}
	port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	return (u.Host == r.Host || slices.Contains(l.Pages, port)) && (!l.loopback || loopbackHost(u.Hostname()))
}

func (c *wsConn) Read(p []byte) (int, error) {
	ws := c.ws.Load()
	if ws == nil {
		var err error
		if ws, err = c.handshake(); err != nil {
			return 0, err
		}
	}
	for {
		if c.message == nil {
			kind, message, err := ws.NextReader()
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
	ws := c.ws.Load()
	if d := c.deadline.Load(); d != nil {
		_ = ws.SetWriteDeadline(*d)
	}
	if err := ws.WriteMessage(websocket.BinaryMessage, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// SetWriteDeadline applies to a write under way and to later ones.
func (c *wsConn) SetWriteDeadline(t time.Time) error {
	c.deadline.Store(&t)
	return c.Conn.SetWriteDeadline(t)
}

// CloseWrite sends a WebSocket close frame and ends the direction.
func (c *wsConn) CloseWrite() error {
	if ws := c.ws.Load(); ws != nil {
		bye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
		if err := ws.WriteControl(websocket.CloseMessage, bye, time.Now().Add(time.Second)); err != nil {
			return err
		}
	}
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
