package httpserver

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/configs"
)

// patient gives every request a time in which it must have come, and its answer one in
// which it must have been read, so that nobody holds a connection by doing nothing.
func patient(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*conn); ok {
			c.room.begin(c)
			defer c.room.end(c)
		}
		// Where a deadline can't be set, as in tests, there is no connection to be held.
		rc, now := http.NewResponseController(w), time.Now()
		if r.ContentLength != 0 { // or it would end a watch
			_ = rc.SetReadDeadline(now.Add(bodyTimeout))
		}
		_ = rc.SetWriteDeadline(now.Add(answerTimeout))
		h.ServeHTTP(w, r)
	})
}

// maxReserve is how many connections at most are kept for this host: for its operator, health checks, a proxy.
const maxReserve = 64

// rest is how long a connection is left alone that has just come, or was answered: its request may be on the way.
const rest = 500 * time.Millisecond

// room is that for connections. A connection is idle while no request of it is being served, whatever its client has sent
// of one. When there is no room, who comes takes that of the one that has been idle for longest, or waits until one is.
type room struct {
	most    int           // connections
	reserve int           // of them, for this host alone
	each    int           // how many of them another host may have; 0: all
	rest    time.Duration // of idle connections
	open    atomic.Int64
	full    atomic.Int64 // times that there was no room

	mu      sync.Mutex
	hosts   map[netip.Addr]int
	idle    list.List // of *conn, the one that has been idle for longest first
	waiting list.List // of *conn, the one that came first first
}

// newRoom leaves half of the room to others, whoever comes: nobody has signed in yet.
func newRoom(l configs.Limits) *room {
	r := &room{most: l.Requests, reserve: min(maxReserve, l.Requests/8), rest: rest, hosts: make(map[netip.Addr]int)}
	if l.PerAddress > 0 {
		r.each = min(l.PerAddress, max(1, l.Requests/2))
	}
	return r
}

type state int

const (
	waits  state = iota // for room
	idles               // has room, and no request that is being served
	serves              // has one
	left
)

// conn is a connection. It is read once there is room for it.
type conn struct {
	net.Conn
	room  *room
	host  netip.Addr    // not valid: this one
	begun chan struct{} // closed once there is room
	over  chan struct{} // closed with the connection

	// The room's, under its mu.
	state    state
	requests int           // that are being served
	place    *list.Element // in idle or waiting
	since    time.Time     // when it became idle
}

type connKey struct{}

// withConn lets a request know its connection.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// come lets a connection in, unless all of its host's, or of all, are busy and as many wait.
func (r *room) come(from net.Conn) (*conn, bool) {
	c := &conn{Conn: from, room: r, host: hostOf(from.RemoteAddr()), begun: make(chan struct{}), over: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.each > 0 && c.host.IsValid() && r.hosts[c.host] >= r.each {
		r.full.Add(1)
		if !r.dismiss(func(other *conn) bool { return other.host == c.host }) {
			return nil, false
		}
	}
	if int(r.open.Load()) >= r.limit(c) {
		r.full.Add(1)
		if !r.dismiss(func(*conn) bool { return true }) && r.waiting.Len() >= r.most {
			return nil, false
		}
	}
	r.hosts[c.host]++
	c.place = r.waiting.PushBack(c)
	r.admit()
	return c, true
}

// limit is how many connections there may be before this one.
func (r *room) limit(c *conn) int {
	if c.host.IsValid() {
		return r.most - r.reserve
	}
	return r.most
}

// admit gives those that wait the room that there is.
func (r *room) admit() {
	for e := r.waiting.Front(); e != nil; {
		c := e.Value.(*conn)
		e = e.Next()
		if int(r.open.Load()) < r.limit(c) {
			r.waiting.Remove(c.place)
			r.open.Add(1)
			r.rests(c)
			close(c.begun)
		}
	}
}

// dismiss closes the connection that has been idle for longest of those that are meant, if there is one.
func (r *room) dismiss(meant func(*conn) bool) bool {
	for e := r.idle.Front(); e != nil; e = e.Next() {
		c := e.Value.(*conn)
		if time.Since(c.since) < r.rest {
			return false // and so are those behind it
		}
		if meant(c) {
			r.leave(c)
			_ = c.Conn.Close() // its client is told nothing: there was no request
			return true
		}
	}
	return false
}

// leave makes room.
func (r *room) leave(c *conn) {
	switch c.state {
	case left:
		return
	case waits:
		r.waiting.Remove(c.place)
	case idles:
		r.idle.Remove(c.place)
	}
	if c.state != waits {
		r.open.Add(-1)
	}
	c.state = left
	close(c.over)
	if r.hosts[c.host]--; r.hosts[c.host] == 0 {
		delete(r.hosts, c.host)
	}
	r.admit()
}

// begin is called when a request is going to be served.
func (r *room) begin(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.requests++
	if c.state == idles {
		r.idle.Remove(c.place)
		c.state = serves
	}
}

// end is called when it has been.
func (r *room) end(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.requests--; c.requests == 0 && c.state == serves {
		r.rests(c)
	}
}

func (r *room) rests(c *conn) { c.state, c.place, c.since = idles, r.idle.PushBack(c), time.Now() }

// press makes room for a connection that waits, if there is an idle one by now.
func (r *room) press(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.state == waits {
		r.dismiss(func(*conn) bool { return true })
	}
}

// Read waits for room first, as long as a request may take to come.
func (c *conn) Read(b []byte) (int, error) {
	select {
	case <-c.begun:
		return c.Conn.Read(b)
	default:
	}
	patience, again := time.NewTimer(headerTimeout), time.NewTicker(rest/2)
	defer patience.Stop()
	defer again.Stop()
	for {
		select {
		case <-c.begun:
			return c.Conn.Read(b)
		case <-c.over:
			return 0, net.ErrClosed
		case <-patience.C:
			return 0, os.ErrDeadlineExceeded
		case <-again.C:
			c.room.press(c)
		}
	}
}

// Close gives its room to another.
func (c *conn) Close() error {
	c.room.mu.Lock()
	c.room.leave(c)
	c.room.mu.Unlock()
	return c.Conn.Close()
}

// hostOf is whom a connection counts for. Behind this host may be a proxy, with everybody; a host with IPv6 has as many
// addresses as it likes, all of one network.
func hostOf(remote net.Addr) (host netip.Addr) {
	tcp, ok := remote.(*net.TCPAddr)
	if !ok || tcp.IP.IsLoopback() {
		return host
	}
	host = tcp.AddrPort().Addr().Unmap().WithZone("")
	if host.Is6() {
		host = netip.PrefixFrom(host, 64).Masked().Addr()
	}
	return host
}

// bounded is a listener whose connections have to find room. One that waits for it was accepted, so that those behind
// it, for which there may be some, don't wait with it.
type bounded struct {
	net.Listener
	room *room
}

func (l *bounded) Accept() (net.Conn, error) {
	for {
		from, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c, ok := l.room.come(from); ok {
			return c, nil
		}
		_ = from.Close() // which tells nobody anything: there was no word yet
	}
}
