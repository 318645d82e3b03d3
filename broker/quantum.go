package broker

import (
	"crypto/tls"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/topics"
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

	pauseFactor = 2                // times what a quantum took
	pauseLeast  = time.Millisecond // what a timer can do
	pauseMost   = 100 * time.Millisecond
	storeMost   = 50 * time.Millisecond // that the end of a quantum waits for what was published in it

	ownPause    = 50 * time.Microsecond  // a read that waits so long ends the quantum: the client paused by itself
	idleAfter   = 20 * time.Millisecond  // a read that waits so long ends a flood
	neighbours  = time.Second            // how long a client that published counts as somebody to wait for
	markedEvery = 100 * time.Millisecond // how often a client that publishes is noted
)

// quantum is what a connection has read without a pause. It belongs to the reading goroutine.
type quantum struct {
	began   time.Time
	packets int
	reads   int // of the socket since the last packet
	bytes   int
	flood   bool      // the client has used up its last quantum
	marked  time.Time // when the client was last noted as a neighbour
}

func (q *quantum) begin(now time.Time) { q.began, q.packets, q.reads, q.bytes = now, 0, 0, 0 }

// neighbour is a client that has published lately without using up its quantum. It is known by its client id: a
// client that reconnects is not its own neighbour. One is remembered at a time, until it falls silent or floods.
type neighbour struct{ last atomic.Pointer[published] }

type published struct {
	client string
	at     time.Time
}

// note takes note of a client that publishes.
func (n *neighbour) note(client string, q *quantum) {
	if q.flood || q.began.Sub(q.marked) < markedEvery {
		return
	}
	q.marked = q.began
	if last := n.last.Load(); last == nil || last.client == client || q.began.Sub(last.at) > neighbours/2 {
		n.last.Store(&published{client, q.began})
	}
}

// forget makes room for another one: the client has turned out to be a flood.
func (n *neighbour) forget(client string) {
	if last := n.last.Load(); last != nil && last.client == client {
		n.last.CompareAndSwap(last, nil)
	}
}

// beside reports whether another client has published lately.
func (n *neighbour) beside(client string, now time.Time) bool {
	last := n.last.Load()
	return last != nil && last.client != client && now.Sub(last.at) < neighbours
}

// metered is a socket that counts every read in its connection's quantum, so that what WebSocket frames and TLS
// records cost is counted although they may never let a packet through.
type metered struct {
	*net.TCPConn
	c *conn // nil: none yet
}

func (m *metered) Read(p []byte) (int, error) {
	if m.c == nil {
		return m.TCPConn.Read(p)
	}
	began := time.Now()
	n, err := m.TCPConn.Read(p)
	for n == 0 && m.c.mayGoOn(err) {
		n, err = m.TCPConn.Read(p)
	}
	now := time.Now()
	m.c.arrived(now, now.Sub(began), false)
	return n, err
}

// meter has the socket beneath a transport count in the connection's quantum. The connection's reading goroutine
// alone reads it from now on.
func (c *conn) meter(transport net.Conn) {
	if ws, ok := transport.(*wsConn); ok {
		ws.pings = func() { c.spend(0) } // they count as packets
	}
	transport = beneath(transport)
	if secure, ok := transport.(*tls.Conn); ok {
		transport = secure.NetConn()
	}
	if m, ok := transport.(*metered); ok {
		m.c = c
	}
}

// arrived is called after each read of the socket, with how long it waited and whether it brought little. A client
// that has the answers to all it sent, and sends little, waits for each answer: that is a pause, too.
func (c *conn) arrived(now time.Time, took time.Duration, little bool) {
	q := &c.quantum
	if took < ownPause && !(little && c.acks.clear()) {
		if q.reads++; q.reads >= clockEvery && now.Sub(q.began) > quantumTime {
			c.endQuantum(now)
		}
		return
	}
	q.begin(now)
	if took > idleAfter {
		q.flood = false
	}
}

// acknowledged is called for a client's acknowledgement. Those of messages that were sent to it cost
// no quantum: if they waited it would be sent more than it can take.
func (c *conn) acknowledged(known bool) {
	if !known {
		c.spend(0)
		return
	}
	c.quantum.reads = 0
}

// spend counts a packet in the quantum, and ends the quantum when it is used up.
func (c *conn) spend(bytes int) {
	c.keepRate()
	q := &c.quantum
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
	c.endQuantum(now)
}

func (c *conn) endQuantum(now time.Time) {
	q := &c.quantum
	q.flood = true
	c.b.neighbour.forget(c.ident.ClientID)
	if c.b.neighbour.beside(c.ident.ClientID, now) {
		c.batch.Flush()
		c.recent = nil // it may be outdated after the pause, and is large
		c.acks.settle(storeMost)
		runtime.Gosched()
		c.pause(min(pauseFactor*time.Since(q.began), pauseMost), &c.toldFlood,
			"a client that sends without a pause is read more slowly while others publish")
	}
	q.begin(time.Now())
}

// keepRate pauses a client that sends more than limits.packetRate, averaged over a second.
func (c *conn) keepRate() {
	rate := c.b.opts.Limits.PacketRate
	if rate == 0 || c.ident.Has(topics.RoleNode) {
		return
	}
	at := time.Now()
	if c.allowed.Before(at) {
		c.allowed = at
	}
	c.allowed = c.allowed.Add(time.Second / time.Duration(rate))
	ahead := c.allowed.Sub(at) - time.Second
	if ahead < pauseLeast {
		return
	}
	c.batch.Flush()
	c.pause(ahead, &c.toldRate, "a client that sends more packets a second than limits.packetRate is read at that rate")
	c.quantum.begin(time.Now())
}

// servedRetained is called by the goroutine that writes to the client, with the time that it spent on retained
// messages. Serving a large tree takes as much as a flood, so while others publish it pauses in the same measure.
func (c *conn) servedRetained(took time.Duration, more bool) {
	if !c.b.neighbour.beside(c.ident.ClientID, time.Now()) {
		c.owing = 0
		return
	}
	c.owing = min(c.owing+pauseFactor*took, pauseMost)
	if !more || c.owing < pauseLeast {
		return
	}
	c.pause(c.owing, &c.toldRetained, "a client that is sent many retained messages gets them more slowly while others publish")
	c.owing = 0
}

// pause waits, counts it, and logs the reason once for a connection.
func (c *conn) pause(d time.Duration, told *bool, reason string) {
	d = max(d, pauseLeast)
	c.b.stats.pauses.Add(1)
	c.b.stats.paused.Add(int64(d))
	if !*told {
		*told = true
		c.b.floods.Info().Str("client", c.ident.ClientID).Str("user", c.ident.User).Str("remote", c.ident.Remote).Msg(reason)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.w.Done():
	}
}
