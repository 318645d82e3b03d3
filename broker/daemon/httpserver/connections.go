// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/topics/limits"
)

// WithDeadlines bounds the time in which a request's body must arrive, and its answer must be read, so that an inactive
// client does not hold a connection.
func WithDeadlines(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*limitedConn); ok {
			c.limit.begin(c)
			defer c.limit.end(c)
		}
		// A ResponseWriter without deadlines, as in tests, has no connection to hold.
		rc, now := http.NewResponseController(w), time.Now()
		if r.ContentLength != 0 { // a read deadline would end a watch
			_ = rc.SetReadDeadline(now.Add(bodyTimeout))
		}
		_ = rc.SetWriteDeadline(now.Add(answerTimeout))
		h.ServeHTTP(w, r)
	})
}

// maxReserve bounds the connections that are reserved for this host: for its operator, health checks, a proxy.
const maxReserve = 64

// minIdle is how long a connection must have been idle before it is closed for another: until then its next request may
// be on the way.
const minIdle = 500 * time.Millisecond

// connLimit bounds the number of connections, in all and for each remote host. A connection is idle while no request of
// it is being served, even if part of one has been received. At the limit a new connection replaces the one that has
// been idle for longest, or waits until one is idle.
type connLimit struct {
	most    int           // connections
	reserve int           // of them, for this host alone
	each    int           // how many of them another host may have; 0: all
	minIdle time.Duration // before a connection is closed for another
	open    atomic.Int64
	full    atomic.Int64 // how often a connection came at the limit

	mu      sync.Mutex
	hosts   map[string]int
	idle    list.List // of *limitedConn, idle for longest first
	waiting list.List // of *limitedConn, oldest first
}

// newConnLimit gives one host at most half of the connections: clients have not signed in when they connect.
func newConnLimit(l limits.Limits) *connLimit {
	r := &connLimit{most: l.Requests, reserve: min(maxReserve, l.Requests/8), minIdle: minIdle, hosts: make(map[string]int)}
	if l.PerAddress > 0 {
		r.each = min(l.PerAddress, max(1, l.Requests/2))
	}
	return r
}

type connState int

const (
	stateWaiting connState = iota // to be admitted
	stateIdle                     // admitted, without a request
	stateServing                  // admitted, with at least one request
	stateClosed                   // closed
)

// limitedConn is a connection. It is not read before it is admitted.
type limitedConn struct {
	net.Conn
	limit *connLimit
	host  string        // empty: this one
	begun chan struct{} // closed when it is admitted
	over  chan struct{} // closed with the connection

	// Guarded by limit.mu.
	state    connState
	requests int           // that are being served
	place    *list.Element // in idle or waiting
	since    time.Time     // when it became idle
}

type connKey struct{}

// withConn gives requests access to their connection.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// accept takes a connection, unless all connections of its host, or all in total, serve requests and as many wait.
func (r *connLimit) accept(from net.Conn) (*limitedConn, bool) {
	c := &limitedConn{Conn: from, limit: r, host: hostOf(from.RemoteAddr()), begun: make(chan struct{}), over: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.each > 0 && c.host != "" && r.hosts[c.host] >= r.each {
		r.full.Add(1)
		if !r.closeIdle(func(other *limitedConn) bool { return other.host == c.host }) {
			return nil, false
		}
	}
	if int(r.open.Load()) >= r.limitFor(c) {
		r.full.Add(1)
		if !r.closeIdle(func(*limitedConn) bool { return true }) && r.waiting.Len() >= r.most {
			return nil, false
		}
	}
	r.hosts[c.host]++
	c.place = r.waiting.PushBack(c)
	r.admit()
	return c, true
}

// limitFor is how many connections may be open when this one is admitted.
func (r *connLimit) limitFor(c *limitedConn) int {
	if c.host != "" {
		return r.most - r.reserve
	}
	return r.most
}

// admit admits waiting connections, as far as the limit permits.
func (r *connLimit) admit() {
	for e := r.waiting.Front(); e != nil; {
		c := e.Value.(*limitedConn)
		e = e.Next()
		if int(r.open.Load()) < r.limitFor(c) {
			r.waiting.Remove(c.place)
			r.open.Add(1)
			r.setIdle(c)
			close(c.begun)
		}
	}
}

// closeIdle closes the connection that has been idle for longest of those that match, if there is one.
func (r *connLimit) closeIdle(match func(*limitedConn) bool) bool {
	for e := r.idle.Front(); e != nil; e = e.Next() {
		c := e.Value.(*limitedConn)
		if time.Since(c.since) < r.minIdle {
			return false // those behind it are idle for less
		}
		if match(c) {
			r.leave(c)
			_ = c.Conn.Close() // without an answer: there was no request
			return true
		}
	}
	return false
}

// leave removes a connection, and admits another.
func (r *connLimit) leave(c *limitedConn) {
	switch c.state {
	case stateClosed:
		return
	case stateWaiting:
		r.waiting.Remove(c.place)
	case stateIdle:
		r.idle.Remove(c.place)
	}
	if c.state != stateWaiting {
		r.open.Add(-1)
	}
	c.state = stateClosed
	close(c.over)
	if r.hosts[c.host]--; r.hosts[c.host] == 0 {
		delete(r.hosts, c.host)
	}
	r.admit()
}

// begin notes that a request is being served.
func (r *connLimit) begin(c *limitedConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.requests++
	if c.state == stateIdle {
		r.idle.Remove(c.place)
		c.state = stateServing
	}
}

// end notes that it has been answered.
func (r *connLimit) end(c *limitedConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.requests--; c.requests == 0 && c.state == stateServing {
		r.setIdle(c)
	}
}

func (r *connLimit) setIdle(c *limitedConn) {
	c.state, c.place, c.since = stateIdle, r.idle.PushBack(c), time.Now()
}

// retry closes an idle connection for one that waits, if there is one by now.
func (r *connLimit) retry(c *limitedConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.state == stateWaiting {
		r.closeIdle(func(*limitedConn) bool { return true })
	}
}

// Read waits until the connection is admitted, for at most as long as a request may take to arrive.
func (c *limitedConn) Read(b []byte) (int, error) {
	select {
	case <-c.begun:
		return c.Conn.Read(b)
	default:
	}
	timeout, again := time.NewTimer(headerTimeout), time.NewTicker(minIdle/2)
	defer timeout.Stop()
	defer again.Stop()
	for {
		select {
		case <-c.begun:
			return c.Conn.Read(b)
		case <-c.over:
			return 0, net.ErrClosed
		case <-timeout.C:
			return 0, os.ErrDeadlineExceeded
		case <-again.C:
			c.limit.retry(c)
		}
	}
}

// Close closes the connection, and admits another.
func (c *limitedConn) Close() error {
	c.limit.mu.Lock()
	c.limit.leave(c)
	c.limit.mu.Unlock()
	return c.Conn.Close()
}

// hostOf is the host that a connection counts for: none for this host, which may be a proxy.
func hostOf(remote net.Addr) string {
	if tcp, ok := remote.(*net.TCPAddr); !ok || tcp.IP.IsLoopback() {
		return ""
	}
	return daemon.Network(remote.String())
}

// limitedListener accepts connections that wait to be admitted, so that those behind them, which may be admitted at
// once, don't wait with them.
type limitedListener struct {
	net.Listener
	limit *connLimit
}

func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		from, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c, ok := l.limit.accept(from); ok {
			return c, nil
		}
		_ = from.Close() // without an answer: nothing was read
	}
}
