// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"crypto/tls"
	"errors"
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/time/rate"
)

// Reading is bounded per connection: after a quantum of 64 packets, 64 KiB or 200 µs without a pause of its
// own, what a client has sent is stored and sent on, and the client is paused for twice the time that the
// quantum took, if another client has published within the last second. What isn't read meanwhile waits
// at the sender: nothing is lost. Without this one publisher at full speed multiplies the others' latency (bench: Neighbours).
// A client that is alone is read as fast as it sends.
const (
	quantumPackets = 64
	quantumBytes   = 64 << 10
	quantumTime    = 200 * time.Microsecond
	clockEvery     = 8 // packets, or reads without one, after which the clock is looked at

	pauseFactor  = 2                // times what a quantum took
	pauseLeast   = time.Millisecond // what a timer can do
	pauseMost    = 100 * time.Millisecond
	maxStoreWait = 50 * time.Millisecond // that the end of a quantum waits for what was published in it

	ownPause  = 50 * time.Microsecond  // a read that waits so long ends the quantum: the client paused by itself
	idleAfter = 20 * time.Millisecond  // a read that waits so long ends a flood
	activeFor = time.Second            // how long a client that published counts as waiting
	noteEvery = 100 * time.Millisecond // how often a client that publishes is noted
)

// quantum counts what a connection has read without a pause. Only the reading goroutine uses it.
type quantum struct {
	began   time.Time
	packets int
	reads   int // of the socket since the last packet
	bytes   int
	flood   bool      // the client has used up its last quantum
	marked  time.Time // when the client was last noted as a neighbour
}

func (q *quantum) begin(now time.Time) { q.began, q.packets, q.reads, q.bytes = now, 0, 0, 0 }

// activePublisher is a client that has published lately without using up its quantum, by its client id, so that a client that
// reconnects is not its own neighbour. One client is remembered at a time, until it is silent or uses up a quantum.
type activePublisher struct{ last atomic.Pointer[lastPublish] }

type lastPublish struct {
	client string
	at     time.Time
}

// note remembers a client that publishes.
func (n *activePublisher) note(client string, q *quantum) {
	if q.flood || q.began.Sub(q.marked) < noteEvery {
		return
	}
	q.marked = q.began
	if last := n.last.Load(); last == nil || last.client == client || q.began.Sub(last.at) > activeFor/2 {
		n.last.Store(&lastPublish{client, q.began})
	}
}

// forget removes a client that has used up its quantum, so that another one can be remembered.
func (n *activePublisher) forget(client string) {
	if last := n.last.Load(); last != nil && last.client == client {
		n.last.CompareAndSwap(last, nil)
	}
}

// othersActive reports whether another client has published lately.
func (n *activePublisher) othersActive(client string, now time.Time) bool {
	last := n.last.Load()
	return last != nil && last.client != client && now.Sub(last.at) < activeFor
}

// readThrottle decides when a connection is read on, and sent more of what is retained, while others publish. The goroutine that
// reads uses it, and the one that writes where it says so.
type readThrottle struct {
	c           *conn
	quantum     quantum
	rate        *rate.Limiter // limits.packetRate; nil: none
	loggedFlood bool          // it was logged that the client is read more slowly; once is enough
	loggedRate  bool          // it was logged that it sends more than limits.packetRate

	// Used by the goroutine that is writing.
	retainedPause  time.Duration // pause that is due for the retained messages sent so far
	loggedRetained bool          // it was logged that the client gets retained messages more slowly
}

// meteredSocket is the socket below TLS or WebSocket. It counts every read in its connection's quantum, since records and frames
// cost time although they may never complete a packet.
type meteredSocket struct {
	net.Conn
	c *conn // nil: not known yet
}

// CloseWrite ends the direction, where the socket has two.
func (m *meteredSocket) CloseWrite() error {
	if half, ok := m.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

func (m *meteredSocket) Read(p []byte) (int, error) {
	if m.c == nil {
		return m.Conn.Read(p)
	}
	began := time.Now()
	n, err := m.Conn.Read(p)
	for again := n == 0; again; {
		poll := func() (got bool, err error) {
			n, err = m.poll(p)
			return n > 0, err
		}
		if again, err = m.c.interrupted(err, 0, poll); again {
			n, err = m.Conn.Read(p)
			again = n == 0
		}
	}
	now := time.Now()
	m.c.keepAlive.unextendedBytes += n // of a record, before it is complete
	m.c.throttle.countRead(now, now.Sub(began), false)
	return n, err
}

// poll reads without waiting, whatever the deadline is. What is no plain socket has nothing to be read so.
func (m *meteredSocket) poll(p []byte) (n int, err error) {
	socket, ok := m.Conn.(syscall.Conn)
	if !ok {
		return 0, nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	controlled := raw.Control(func(fd uintptr) { n, _, err = tryRead(fd, p) })
	return n, errors.Join(controlled, err)
}

// meterSocket makes the socket below a transport count in the connection's quantum. From then on only the connection's reading
// goroutine may read from it.
func meterSocket(transport net.Conn, c *conn) {
	if ws, ok := transport.(*wsConn); ok {
		ws.pings = func() { c.throttle.countPacket(0) } // they count as packets
	}
	transport = underlyingConn(transport)
	if carried, ok := transport.(*carriedConn); ok {
		transport = carried.Conn
	}
	if secure, ok := transport.(*tls.Conn); ok {
		transport = secure.NetConn()
	}
	if m, ok := transport.(*meteredSocket); ok {
		m.c = c
	}
}

// countRead is called after each read of the socket, with how long it waited and whether it brought little. A client that
// sends little and has the answers to everything it sent waits for each answer: that counts as a pause, too.
func (t *readThrottle) countRead(now time.Time, took time.Duration, little bool) {
	q := &t.quantum
	if took < ownPause && !(little && t.c.publisher.acks.empty()) {
		if q.reads++; q.reads >= clockEvery && now.Sub(q.began) > quantumTime {
			t.endQuantum(now)
		}
		return
	}
	q.begin(now)
	if took > idleAfter {
		q.flood = false
	}
}

// countAck is called for each acknowledgement of a client. Acknowledgements of messages that were sent to the client are
// not counted in the quantum: reading them late would slow down what the client receives.
func (t *readThrottle) countAck(known bool) {
	if !known {
		t.countPacket(0)
		return
	}
	t.quantum.reads = 0
}

// countPacket counts a packet in the quantum, and ends the quantum when it is used up.
func (t *readThrottle) countPacket(bytes int) {
	t.keepRate()
	q := &t.quantum
	q.reads = 0
	q.packets++
	q.bytes += bytes
	full := q.packets >= quantumPackets || q.bytes >= quantumBytes
	if !full && q.packets%clockEvery != 0 {
		return
	}
	now := time.Now()
	if !full && now.Sub(q.began) < quantumTime {
		return
	}
	t.endQuantum(now)
}

func (t *readThrottle) endQuantum(now time.Time) {
	c := t.c
	q := &t.quantum
	q.flood = true
	c.b.activePublisher.forget(c.ident.ClientID)
	if c.b.activePublisher.othersActive(c.ident.ClientID, now) {
		c.batch.Flush()
		c.publisher.lastRoute = nil // it may be outdated after the pause, and is large
		c.publisher.acks.waitAll(maxStoreWait)
		runtime.Gosched()
		t.pause(min(pauseFactor*time.Since(q.began), pauseMost), &t.loggedFlood,
			"a client that sends without a pause is read more slowly while others publish")
	}
	q.begin(time.Now())
}

// keepRate pauses a client that sends more than limits.packetRate, after a second's worth at once.
func (t *readThrottle) keepRate() {
	if t.rate == nil {
		return
	}
	wait := t.rate.Reserve().Delay()
	if wait < pauseLeast {
		return
	}
	t.c.batch.Flush()
	t.pause(wait, &t.loggedRate, "a client that sends more packets a second than limits.packetRate is read at that rate")
	t.quantum.begin(time.Now())
}

// servedRetained is called by the goroutine that writes to the client, with the time that it spent on retained
// messages. Serving a large tree costs as much as a flood, so while others publish it is paused by the same rule.
func (t *readThrottle) servedRetained(took time.Duration, more bool) {
	if !t.c.b.activePublisher.othersActive(t.c.ident.ClientID, time.Now()) {
		t.retainedPause = 0
		return
	}
	t.retainedPause = min(t.retainedPause+pauseFactor*took, pauseMost)
	if !more || t.retainedPause < pauseLeast {
		return
	}
	t.pause(t.retainedPause, &t.loggedRetained, "a client that is sent many retained messages gets them more slowly while others publish")
	t.retainedPause = 0
}

// pause waits, counts the pause, and logs its reason once for each connection.
func (t *readThrottle) pause(d time.Duration, told *bool, reason string) {
	c := t.c
	d = max(d, pauseLeast)
	c.b.metrics.pauses.Inc()
	c.b.metrics.pausedSeconds.Add(d.Seconds())
	if !*told {
		*told = true
		c.b.sampledLog.Info().Str("client", c.ident.ClientID).Str("user", c.ident.User).Str("remote", c.ident.Remote).Msg(reason)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.w.Done():
	}
}
