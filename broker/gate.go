package broker

import (
	"net"
	"sync"
	"time"
)

// gate is a listening socket that lets in so many connections a second, after two
// seconds' worth at once. The rest wait in the system's backlog.
type gate struct {
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

func (g *gate) Accept() (net.Conn, error) {
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

const fullBucket = 2 * time.Second

// wait waits for the caller's turn, or for the end. held is told of who has to.
func (r *throttle) wait(end <-chan struct{}, held func()) {
	if r.every == 0 {
		return
	}
	now := time.Now()
	r.mu.Lock()
	if full := now.Add(-fullBucket); r.next.Before(full) {
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

// lobby is where connections are that have not sent a CONNECT. When it is full the
// one that is there longest goes: who means it needs no time, and so it can't be
// occupied by those who don't. One address has a quarter of it, and then it is its own that go.
type lobby struct {
	size int

	mu    sync.Mutex
	queue []*conn // nil: has left
	first uint64  // place of queue[0]
	in    int
	of    map[string]int // by address
}

// enter gives a connection its place, and says who has to go for it.
func (l *lobby) enter(c *conn) (out *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = make(map[string]int)
	}
	at := c.host
	switch {
	case l.of[at] >= max(1, l.size/4):
		out = l.oldest(func(x *conn) bool { return x.host == at })
	case l.in >= l.size:
		out = l.oldest(func(*conn) bool { return true })
	}
	c.place = l.first + uint64(len(l.queue))
	l.queue = append(l.queue, c)
	l.in++
	l.of[at]++
	return out
}

func (l *lobby) oldest(may func(*conn) bool) *conn {
	for _, c := range l.queue {
		if c != nil && may(c) {
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
	if l.of[c.host]--; l.of[c.host] == 0 {
		delete(l.of, c.host)
	}
	n := 0
	for n < len(l.queue) && l.queue[n] == nil {
		n++
	}
	l.queue, l.first = l.queue[n:], l.first+uint64(n)
}
