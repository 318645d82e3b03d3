package broker

import (
	"bufio"
	"bytes"
	"cmp"
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
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"

	"github.com/edgebus/edgebus/configs/daemon"
)

// listener is a bound address. It outlives failed accepts.
type listener struct {
	Listener
	b        *Broker
	bound    net.Listener
	loopback bool
	closed   atomic.Bool
	connects throttle // of CONNECTs
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
		l.connects.every = time.Second / time.Duration(b.opts.Limits.ConnectRate)
		l.bound = &limitedListener{
			Listener: daemon.ReserveDescriptors(bound, daemon.MQTTReserve), rate: &throttle{every: l.connects.every / acceptsPerConnect}, closed: b.closed,
			metered: o.TLS != nil || o.WebSocket,
			held:    b.metrics.held.Inc,
		}
		if o.TLS != nil {
			l.bound = tls.NewListener(l.bound, o.TLS)
		}
		b.listeners = append(b.listeners, l)
	}
	return nil
}

func loopbackAddr(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

const acceptLogEvery = 10 * time.Second // how often at most it is said that none can be accepted

// serve accepts connections until the listener is closed.
func (l *listener) serve() {
	var said time.Time
	for {
		transport, err := l.bound.Accept()
		switch {
		case err == nil:
			if l.WebSocket {
				transport = &wsConn{Conn: transport, upgrade: l.upgrade}
			}
			go l.b.serve(l, transport) // ends with the connection; Close waits for it
		case l.closed.Load() || errors.Is(err, net.ErrClosed):
			return
		default: // out of file descriptors, or a client that was gone already
			if time.Since(said) > acceptLogEvery {
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
	return l.bound.Close()
}

// peerCertificate is the client's certificate, if it has a verified one.
func (c *conn) peerCertificate() *x509.Certificate {
	secure, ok := beneath(c.Conn).(*tls.Conn)
	if !ok {
		return nil
	}
	state := secure.ConnectionState()
	return verified(&state)
}

func verified(state *tls.ConnectionState) *x509.Certificate {
	if state == nil || len(state.VerifiedChains) == 0 {
		return nil
	}
	return state.PeerCertificates[0]
}

// limitedListener is a listening socket that lets in so many connections a second, after two
// seconds' worth at once. The rest wait in the system's backlog.
type limitedListener struct {
	net.Listener
	rate   *throttle
	closed <-chan struct{}
	// metered says that something lies between a socket and who reads packets from it.
	metered bool
	held    func() // told of each connection that had to wait
}

// acceptsPerConnect is how many connections are accepted for each that may send its CONNECT: so many more than
// that a flood of those that never do doesn't keep the others waiting outside for long.
const acceptsPerConnect = 10

func (g *limitedListener) Accept() (net.Conn, error) {
	conn, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g.rate.wait(g.closed, g.held)
	if tcp, ok := conn.(*net.TCPConn); ok && g.metered {
		conn = &metered{TCPConn: tcp}
	}
	return conn, nil
}

// throttle lets so many by a second, after two seconds' worth at once. The zero value lets all by.
type throttle struct {
	every time.Duration

	mu   sync.Mutex
	next time.Time // when the bucket is empty
}

const burst = 2 * time.Second

// wait waits for the caller's turn, or for the end. held is told of who has to.
func (r *throttle) wait(end <-chan struct{}, held func()) {
	if r.every == 0 {
		return
	}
	now := time.Now()
	r.mu.Lock()
	if full := now.Add(-burst); r.next.Before(full) {
		r.next = full
	}
	r.next = r.next.Add(r.every)
	wait := r.next.Sub(now)
	r.mu.Unlock()
	if wait <= 0 {
		return
	}
	held()
	select {
	case <-time.After(wait):
	case <-end:
	}
}

// pendingConns is where connections are that have not sent a CONNECT. When it is full the
// one that is there longest goes: who means it needs no time, and so it can't be
// occupied by those who don't. One address has a quarter of it, and then it is its own that go.
type pendingConns struct {
	size int

	mu    sync.Mutex
	queue []*conn // nil: has left
	first uint64  // place of queue[0]
	in    int
	of    map[string]int // by address
}

// add gives a connection its place, and says who has to go for it.
func (l *pendingConns) add(c *conn) (out *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = make(map[string]int)
	}
	at := c.host
	switch {
	case l.of[at] >= max(1, l.size/4):
		out = l.removeOldest(func(x *conn) bool { return x.host == at })
	case l.in >= l.size:
		out = l.removeOldest(func(*conn) bool { return true })
	}
	c.pendingIndex = l.first + uint64(len(l.queue))
	l.queue = append(l.queue, c)
	l.in++
	l.of[at]++
	return out
}

func (l *pendingConns) removeOldest(may func(*conn) bool) *conn {
	for _, c := range l.queue {
		if c != nil && may(c) {
			l.drop(c)
			return c
		}
	}
	return nil
}

// remove is called once a CONNECT has come, or the connection has ended.
func (l *pendingConns) remove(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(c)
}

func (l *pendingConns) drop(c *conn) {
	if c.pendingIndex < l.first || l.queue[c.pendingIndex-l.first] != c {
		return
	}
	l.queue[c.pendingIndex-l.first] = nil
	l.in--
	if l.of[c.host]--; l.of[c.host] == 0 {
		delete(l.of, c.host)
	}
	n := 0
	for n < len(l.queue) && l.queue[n] == nil {
		n++
	}
	l.queue, l.first = l.queue[n:], l.first+uint64(n)
}

// wsConn makes a byte stream of WebSocket messages, in whose boundaries MQTT has no
// interest. It is read by one goroutine and written by one. Like that of TLS, the
// handshake is a part of the first read: whoever has not got further than that is a
// connection without a CONNECT, and under the same limits as any other.
type wsConn struct {
	net.Conn // beneath the WebSocket
	upgrade  func(http.ResponseWriter, *http.Request) (*websocket.Conn, error)
	ws       atomic.Pointer[websocket.Conn] // nil: no handshake yet
	pings    func()                         // told of each ping, if set
	message  io.Reader
	deadline atomic.Pointer[time.Time]
}

const handshakeBytes = 16 << 10 // of a request

// errNotHTTP is why somebody is disconnected who speaks TLS to a listener without, or MQTT without WebSocket.
var errNotHTTP = errors.New("not HTTP")

var errNotBinary = errors.New("a WebSocket message that is not binary")

// beneath is what carries a connection's bytes, WebSocket or not.
func beneath(transport net.Conn) net.Conn {
	if ws, ok := transport.(*wsConn); ok {
		return ws.Conn
	}
	return transport
}

// handshake makes a WebSocket connection of a request. A request that isn't for one is
// answered, and nothing that comes after it is read.
func (c *wsConn) handshake() (*websocket.Conn, error) {
	bounded := &io.LimitedReader{R: c.Conn, N: handshakeBytes}
	a := &answer{Conn: c.Conn, in: bufio.NewReader(bounded), header: make(http.Header)}
	if first, err := a.in.Peek(1); err == nil && (first[0] < 'A' || first[0] > 'Z') { // no method of HTTP begins so
		return nil, errNotHTTP
	}
	r, err := http.ReadRequest(a.in)
	if err != nil {
		return nil, err
	}
	ws, err := c.upgrade(a, r)
	if err != nil {
		return nil, err
	}
	bounded.N = math.MaxInt64
	if answerPing := ws.PingHandler(); c.pings != nil {
		ws.SetPingHandler(func(text string) error {
			c.pings()
			return answerPing(text)
		})
	}
	c.ws.Store(ws)
	return ws, nil
}

// answer is the answer to a request, from which the connection can be taken.
type answer struct {
	net.Conn
	in     *bufio.Reader
	header http.Header
	status int
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) { a.status = status }

func (a *answer) Write(body []byte) (int, error) {
	r := http.Response{
		StatusCode: a.status, ProtoMajor: 1, ProtoMinor: 1, Header: a.header, Close: true,
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
	return len(body), r.Write(a.Conn)
}

func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return a.Conn, bufio.NewReadWriter(a.in, bufio.NewWriter(a.Conn)), nil
}

// upgrade answers a request for a WebSocket connection.
func (l *listener) upgrade(w http.ResponseWriter, r *http.Request) (*websocket.Conn, error) {
	upgrader := websocket.Upgrader{
		Subprotocols: []string{"mqtt", "mqttv3.1"}, CheckOrigin: l.originAllowed, HandshakeTimeout: l.b.opts.Limits.ConnectTimeout,
	}
	return upgrader.Upgrade(w, r, nil)
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

// CloseWrite says goodbye as WebSocket has it.
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
