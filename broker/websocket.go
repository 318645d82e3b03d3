package broker

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
)

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
