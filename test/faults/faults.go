// SPDX-License-Identifier: Apache-2.0

// Package faults breaks networks: a TCP proxy that delays, throttles, splits and
// cuts what passes through it, and heals again. What it does by chance it does by
// a seed, so that a failure can be had again.
//
// It never looks into the bytes, and it never loses or changes one of a connection
// that goes on: that is what TCP promises. What is lost is connections.
package faults

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// Cut is a way for a network to fail.
type Cut int

// The ways to fail. All but Reset are silent: both ends believe in their
// connections until something of their own makes them think again.
const (
	None      Cut = iota
	Reset         // connections are reset, new ones as soon as they are made
	Blackhole     // nothing passes, either way; new connections open and stay silent
	Up            // nothing passes from the client to the target
	Down          // nothing passes from the target to the client
	HalfOpen      // the target sees resets, the client silence; new connections as with Blackhole
)

var cutNames = map[string]Cut{"reset": Reset, "blackhole": Blackhole, "up": Up, "down": Down, "halfopen": HalfOpen}

// ParseCut reads a way to fail: reset, blackhole, up, down or halfopen.
func ParseCut(name string) (Cut, error) {
	if c, ok := cutNames[name]; ok {
		return c, nil
	}
	return None, fmt.Errorf("%q is not one of reset, blackhole, up, down, halfopen", name)
}

func (c Cut) String() string {
	for name, cut := range cutNames {
		if cut == c {
			return name
		}
	}
	return "none"
}

// Options say where a proxy stands.
type Options struct {
	Listen string // default 127.0.0.1:0
	Target string // host:port, dialled for each connection
	Seed   uint64
}

// Conditions are those of a network that works, more or less.
type Conditions struct {
	Delay     time.Duration // one way
	Jitter    time.Duration // at most as much more, by chance; order is kept
	Bandwidth int           // bytes a second, each way of each connection; 0 unlimited
	Shared    int           // bytes a second, each way of all connections together, which queue in the order of arrival; 0 unlimited
	Split     bool          // writes are cut into pieces of random sizes
}

// Proxy passes connections on to its target.
type Proxy struct {
	options  Options
	listener net.Listener
	wait     sync.WaitGroup

	mu         sync.Mutex
	conditions Conditions
	cut        Cut
	changed    chan struct{} // closed and replaced when conditions, cut or closed change
	pairs      map[*connPair]bool
	accepted   uint64
	passed     [2]uint64    // bytes up and down
	free       [2]time.Time // when the shared link has sent what it was given
	closed     bool
}

// New starts a proxy. Close ends it.
func New(o Options) (*Proxy, error) {
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return nil, err
	}
	p := &Proxy{options: o, listener: listener, changed: make(chan struct{}), pairs: map[*connPair]bool{}}
	p.wait.Go(p.accept)
	return p, nil
}

// Addr is where clients connect.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Set changes the conditions, from the next bytes on.
func (p *Proxy) Set(c Conditions) {
	p.change(func() { p.conditions = c })
}

// Cut breaks the network.
func (p *Proxy) Cut(c Cut) {
	p.change(func() {
		p.cut = c
		for pair := range p.pairs {
			switch c {
			case Reset:
				pair.reset()
			case HalfOpen:
				pair.halve()
			}
		}
	})
}

// Heal mends the network. Connections that were silent go on, with everything that
// was held back, as TCP's retransmission would have it; half-open ones are reset.
func (p *Proxy) Heal() {
	p.change(func() {
		p.cut = None
		for pair := range p.pairs {
			if pair.halved {
				pair.reset()
			}
		}
	})
}

// Drop resets the present connections and nothing else.
func (p *Proxy) Drop() {
	p.change(func() {
		for pair := range p.pairs {
			pair.reset()
		}
	})
}

// Connections is how many clients are connected, and how many ever were.
func (p *Proxy) Connections() (now int, ever uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pairs), p.accepted
}

// Passed is how many bytes went to the target and came from it.
func (p *Proxy) Passed() (up, down uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.passed[0], p.passed[1]
}

// Close resets every connection and waits for all that the proxy has started.
func (p *Proxy) Close() {
	_ = p.listener.Close()
	p.change(func() {
		p.closed = true
		for pair := range p.pairs {
			pair.reset()
		}
	})
	p.wait.Wait()
}

func (p *Proxy) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

// state is the present conditions and cut, and a channel that closes with them.
func (p *Proxy) state() (Conditions, Cut, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conditions, p.cut, p.changed
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.accepted++
		number, refuse := p.accepted, p.closed || p.cut == Reset
		if refuse {
			p.mu.Unlock()
			resetConn(client)
			continue
		}
		pair := &connPair{proxy: p, client: client, done: make(chan struct{})}
		p.pairs[pair] = true
		p.mu.Unlock()
		p.wait.Go(func() { pair.run(number) })
	}
}

// connPair is a client's connection and the one to the target.
type connPair struct {
	proxy  *Proxy
	client net.Conn
	done   chan struct{}
	once   sync.Once

	// guarded by proxy.mu
	target net.Conn
	halved bool
}

// reset ends both connections as a crash would. Called with proxy.mu held.
func (c *connPair) reset() {
	c.once.Do(func() { close(c.done) })
	resetConn(c.client)
	if c.target != nil {
		resetConn(c.target)
	}
}

// halve ends the target's connection only. Called with proxy.mu held.
func (c *connPair) halve() {
	c.halved = true
	if c.target != nil {
		resetConn(c.target)
	}
}

func resetConn(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

func (c *connPair) run(number uint64) {
	defer func() {
		c.proxy.mu.Lock()
		defer c.proxy.mu.Unlock()
		c.reset()
		delete(c.proxy.pairs, c)
	}()
	if !c.untilOpen(Blackhole, HalfOpen) {
		return
	}
	target, err := net.DialTimeout("tcp", c.proxy.options.Target, 5*time.Second)
	if err != nil {
		return
	}
	c.proxy.mu.Lock()
	c.target = target
	select {
	case <-c.done: // reset while dialling
		resetConn(target)
	default:
	}
	c.proxy.mu.Unlock()

	var both sync.WaitGroup
	both.Go(func() { c.pump(0, number, c.client, target) })
	both.Go(func() { c.pump(1, number, target, c.client) })
	both.Wait()
	c.proxy.mu.Lock()
	halved := c.halved
	c.proxy.mu.Unlock()
	if halved {
		<-c.done // the client goes on believing
		return
	}
	_ = c.client.Close() // in peace, if nobody has reset it: what was written still arrives
	_ = target.Close()
}

// untilOpen waits until the network is cut in none of these ways.
func (c *connPair) untilOpen(cuts ...Cut) bool {
	for {
		_, now, changed := c.proxy.state()
		open := true
		for _, cut := range cuts {
			open = open && now != cut
		}
		if open {
			return true
		}
		select {
		case <-changed:
		case <-c.done:
			return false
		}
	}
}

// delayedPiece is some bytes on their way, and when they are due.
type delayedPiece struct {
	data []byte
	due  time.Time
}

// inFlight bounds the pieces between a reader and its writer: what a network holds.
const inFlight = 256

// pump carries one direction: 0 up, 1 down. The end of from becomes the end of to,
// after everything before it.
func (c *connPair) pump(direction int, number uint64, from, to net.Conn) {
	chance := rand.New(rand.NewPCG(c.proxy.options.Seed, number<<1|uint64(direction)))
	pieces := make(chan delayedPiece, inFlight)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(pieces)
		c.read(direction, from, pieces, chance)
	})
	ok := c.write(direction, to, pieces)
	if !ok {
		c.proxy.mu.Lock()
		if !c.halved {
			c.reset() // unblocks the reader
		}
		c.proxy.mu.Unlock()
	} else if tcp, isTCP := to.(*net.TCPConn); isTCP {
		_ = tcp.CloseWrite()
	}
	for range pieces { // the reader must not hang on a full channel
	}
	reader.Wait()
}

// shared is when a link that all connections share has sent so many more bytes.
func (p *Proxy) shared(direction, bytes, rate int) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.free[direction].Before(now) {
		p.free[direction] = now
	}
	p.free[direction] = p.free[direction].Add(time.Duration(bytes) * time.Second / time.Duration(rate))
	return p.free[direction]
}

func (c *connPair) read(direction int, from net.Conn, pieces chan<- delayedPiece, chance *rand.Rand) {
	buffer := make([]byte, 32<<10)
	var last time.Time
	for {
		n, err := from.Read(buffer)
		conditions, _, _ := c.proxy.state()
		for data := buffer[:n]; len(data) > 0; {
			size := len(data)
			if conditions.Split {
				size = 1 + chance.IntN(size)
			}
			sent := time.Now()
			if conditions.Shared > 0 {
				sent = c.proxy.shared(direction, size, conditions.Shared)
			}
			due := sent.Add(conditions.Delay)
			if conditions.Jitter > 0 {
				due = due.Add(time.Duration(chance.Int64N(int64(conditions.Jitter))))
			}
			if due.Before(last) {
				due = last
			}
			last = due
			select {
			case pieces <- delayedPiece{data: append([]byte(nil), data[:size]...), due: due}:
			case <-c.done:
				return
			}
			data = data[size:]
		}
		if err != nil {
			return
		}
	}
}

// write is false when it ended before the pieces did.
func (c *connPair) write(direction int, to net.Conn, pieces <-chan delayedPiece) bool {
	closed := []Cut{Blackhole, HalfOpen, [2]Cut{Up, Down}[direction]}
	for piece := range pieces {
		if !c.pause(time.Until(piece.due)) || !c.untilOpen(closed...) {
			return false
		}
		if _, err := to.Write(piece.data); err != nil {
			return false
		}
		c.proxy.mu.Lock()
		c.proxy.passed[direction] += uint64(len(piece.data))
		rate := c.proxy.conditions.Bandwidth
		c.proxy.mu.Unlock()
		if rate > 0 && !c.pause(time.Duration(len(piece.data))*time.Second/time.Duration(rate)) {
			return false
		}
	}
	return c.untilOpen(closed...) // the end is held back like everything else
}

func (c *connPair) pause(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.done:
		return false
	}
}
