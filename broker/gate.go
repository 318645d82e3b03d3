package broker

import (
	"net"
	"sync"
	"time"
)

// gate is a listening socket that lets in so many connections a second, after two
// seconds' worth at once. The rest wait in the system's backlog: that a thousand nodes come back
// together is no reason to refuse one, and none to keep those waiting who are there.
type gate struct {
	net.Listener
	every  time.Duration
	next   time.Time // when the bucket is empty
	closed <-chan struct{}
	// metered says that something lies between a socket and who reads packets from it.
	metered bool
	held    func() // told of each connection that had to wait
}

const fullBucket = 2 * time.Second

func (g *gate) Accept() (net.Conn, error) {
	conn, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g.hold()
	if tcp, ok := conn.(*net.TCPConn); ok && g.metered {
		conn = &metered{TCPConn: tcp}
	}
	return conn, nil
}

// hold waits until the next may come in.
func (g *gate) hold() {
	now := time.Now()
	if full := now.Add(-fullBucket); g.next.Before(full) {
		g.next = full
	}
	g.next = g.next.Add(g.every)
	if wait := g.next.Sub(now); wait > 0 {
		g.held()
		select {
		case <-time.After(wait):
		case <-g.closed:
		}
	}
}

// lobby is where connections are that have not sent a CONNECT. When it is full the
// one that is there longest goes: who means it needs no time, and so it can't be
// occupied by those who don't.
type lobby struct {
	size int

	mu    sync.Mutex
	queue []*conn // nil: has left
	first uint64  // place of queue[0]
	in    int
}

// enter gives a connection its place, and says who has to go for it.
func (l *lobby) enter(c *conn) (out *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.in >= l.size {
		out = l.oldest()
	}
	c.place = l.first + uint64(len(l.queue))
	l.queue = append(l.queue, c)
	l.in++
	return out
}

func (l *lobby) oldest() *conn {
	for _, c := range l.queue {
		if c != nil {
			l.drop(c)
			return c
		}
	}
	return nil
}

// leave is called once a CONNECT has come, or the connection has ended.
func (l *lobby) leave(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(c)
}

func (l *lobby) drop(c *conn) {
	if c.place < l.first || l.queue[c.place-l.first] != c {
		return
	}
	l.queue[c.place-l.first] = nil
	l.in--
	n := 0
	for n < len(l.queue) && l.queue[n] == nil {
		n++
	}
	l.queue, l.first = l.queue[n:], l.first+uint64(n)
}
