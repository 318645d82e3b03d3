package broker

import (
	"net"
	"runtime"
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

// guard keeps those from guessing passwords who were wrong too often, and from
// keeping the processor busy with it: a hash is made to be expensive.
type guard struct {
	most  int // failures in guardTime
	turns chan struct{}

	mu     sync.Mutex
	failed map[string]failures
}

type failures struct {
	n     int
	since time.Time
}

const (
	guardTime = time.Minute
	guardSize = 10_000 // that are remembered
)

func newGuard(most int) *guard {
	return &guard{most: most, turns: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)), failed: make(map[string]failures)}
}

// check has a password checked, but for somebody who was wrong too often.
func (g *guard) check(who string, right func() bool) (ok, tooMany bool) {
	if g.failures(who) >= g.most {
		return false, true
	}
	g.turns <- struct{}{}
	ok = right()
	<-g.turns
	if !ok {
		g.note(who)
	}
	return ok, false
}

// identify says who it is, or the reason code of who isn't let in. One who knows a
// user's name and is at another address can't keep that user out.
func (b *Broker) identify(remote net.Addr, c credentials) (id Identity, code byte) {
	if c = b.auth.needed(c); !c.hasPass {
		id, ok := b.auth.identify(c)
		return id, refusalCode(ok, false)
	}
	who, _, err := net.SplitHostPort(remote.String())
	if err != nil {
		who = remote.String()
	}
	if u, known := b.auth.account(c.user); known {
		who += " " + u.Name
	}
	ok, tooMany := b.guard.check(who, func() (ok bool) {
		id, ok = b.auth.identify(c)
		return ok
	})
	return id, refusalCode(ok, tooMany)
}

func refusalCode(ok, tooMany bool) byte {
	switch {
	case tooMany:
		return codeConnectRate
	case !ok:
		return codeBadCredentials
	}
	return codeSuccess
}

func (g *guard) failures(who string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	f := g.failed[who]
	if time.Since(f.since) > guardTime {
		return 0
	}
	return f.n
}

func (g *guard) note(who string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f := g.failed[who]
	if time.Since(f.since) > guardTime {
		f = failures{since: time.Now()}
	}
	f.n++
	if len(g.failed) >= guardSize && f.n == 1 {
		clear(g.failed)
	}
	g.failed[who] = f
}
