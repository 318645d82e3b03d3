package broker

import (
	"crypto/tls"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/topics"
)

// A client that always has more to read would keep the processor, the disk and its
// subscribers' sockets to itself. So it is read in turns. A turn ends after some
// packets or a moment, and when others publish, too, all of it is stored before the
// next one begins, which is not before twice the time has passed that it took: two
// thirds of all there is are left to those who ask for little, and they need not
// wait in a line. Nothing is lost by that, for what isn't read waits at the sender.
// A client that is alone is read as fast as it can send.
const (
	turnPackets = 64
	turnGrain   = 8 // packets, or reads without one, after which the clock is looked at
	turnBytes   = 64 << 10
	turnTime    = 200 * time.Microsecond
	restLeast   = time.Millisecond // what a timer can do
	restMost    = 100 * time.Millisecond
	third       = 3                     // times what it takes is to pass
	storeMost   = 50 * time.Millisecond // that a turn waits for what it published

	waited  = 50 * time.Microsecond  // for which a client that sends on doesn't stop
	idled   = 20 * time.Millisecond  // and one that took longer ends a flood
	company = time.Second            // how long somebody who published counts
	noted   = 100 * time.Millisecond // how often that is taken note of
)

// turn is a connection's, and its reading goroutine's alone.
type turn struct {
	began   time.Time
	packets int
	reads   int // of the socket since the last packet
	bytes   int
	greedy  bool      // it did not stop by itself
	seen    time.Time // when it last counted as company
}

// begin is the start of another one.
func (t *turn) begin(now time.Time) { t.began, t.packets, t.reads, t.bytes = now, 0, 0, 0 }

// others knows who was read lately and stopped by himself.
type others struct {
	greedy atomic.Int64 // connections that don't stop

	mu           sync.Mutex
	last, before sighting // of two
}

type sighting struct {
	of string // a client's id: who comes back is nobody else
	at time.Time
}

// note takes note of a client that publishes and is not greedy.
func (o *others) note(id string, t *turn) {
	if t.greedy || t.began.Sub(t.seen) < noted {
		return
	}
	t.seen = t.began
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last.of != id {
		o.before = o.last
	}
	o.last = sighting{id, t.began}
}

// forget takes back that a client is not greedy.
func (o *others) forget(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.before.of == id {
		o.before = sighting{}
	}
	if o.last.of == id {
		o.last, o.before = o.before, sighting{}
	}
}

// than says whether there are others than the client.
func (o *others) than(id string, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.last
	if s.of == id {
		s = o.before
	}
	return now.Sub(s.at) < company
}

// metered is a socket that tells its connection's turn of every read: what is between
// the two, such as WebSocket's frames, may never let anything through.
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

// meter has the socket beneath a transport tell the connection, whose goroutine alone
// reads it from now on.
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

// arrived is told that a read of the socket is over, how long it waited, and whether it
// brought little. A client that then has the answers to all it sent waits for each.
func (c *conn) arrived(now time.Time, took time.Duration, little bool) {
	t := &c.turn
	if took < waited && !(little && c.acks.clear()) {
		if t.reads++; t.reads >= turnGrain && now.Sub(t.began) > turnTime {
			c.endTurn(now)
		}
		return
	}
	t.begin(now)
	if took > idled {
		c.setGreedy(false)
	}
}

func (c *conn) setGreedy(greedy bool) {
	if c.turn.greedy == greedy {
		return
	}
	c.turn.greedy = greedy
	if greedy {
		c.b.others.greedy.Add(1)
		c.b.others.forget(c.ident.ClientID)
		return
	}
	c.b.others.greedy.Add(-1)
}

// owed is told of an acknowledgement. Those of what the client was sent are no flood of
// its own, and if they waited it would get more than it can take.
func (c *conn) owed(known bool) {
	if !known {
		c.spend(0)
		return
	}
	c.turn.reads = 0
}

// spend counts what was read against the turn, and at its end has the client wait.
func (c *conn) spend(bytes int) {
	c.keepRate()
	t := &c.turn
	t.reads = 0
	t.packets++
	t.bytes += bytes
	full := t.packets >= turnPackets || t.bytes >= turnBytes
	if !full && t.packets%turnGrain != 0 {
		return
	}
	now := time.Now()
	if !full && now.Sub(t.began) < turnTime {
		return
	}
	c.endTurn(now)
}

// keepRate has a client wait that sends more than limits.packetRate, but for a second's worth.
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
	if ahead < restLeast {
		return
	}
	c.batch.Flush()
	c.pause(ahead, &c.bounded, "a client that sends more packets a second than limits.packetRate is read at that rate")
	c.turn.begin(time.Now()) // it has rested
}

func (c *conn) endTurn(now time.Time) {
	t := &c.turn
	c.setGreedy(true)
	if c.b.others.than(c.ident.ClientID, now) {
		c.rest()
	}
	t.begin(time.Now())
}

// rest lets the others go first.
func (c *conn) rest() {
	c.batch.Flush()
	c.recent = nil // it may be outdated by then, and is large
	c.acks.settle(storeMost)
	runtime.Gosched()
	took := time.Since(c.turn.began)
	c.pause(min(time.Duration((c.b.others.share()-1)*float64(took)), restMost), &c.slowed,
		"a client that sends without a break is read more slowly while others publish, too")
}

// share says how many times what a greedy client takes has to be, so that all of them
// together take no more than a third.
func (o *others) share() float64 {
	return third * max(1, float64(o.greedy.Load())/float64(runtime.GOMAXPROCS(0)))
}

// debt is time that was used, until the share of it has passed that leaves the others theirs, but
// for what nobody can be asked to wait for: it ends soon after what has caused it.
type debt struct{ until time.Time }

// add counts what was used just now, and says for how long nothing should be.
func (d *debt) add(now time.Time, took time.Duration, share float64) (wait time.Duration) {
	if began := now.Add(-took); d.until.Before(began) {
		d.until = began
	}
	d.until = d.until.Add(time.Duration(share * float64(took)))
	if most := now.Add(restMost); d.until.After(most) {
		d.until = most
	}
	return d.until.Sub(now)
}

// served is told of the time that it took to bring the client what is retained. A large
// tree is as good as a flood: while others publish, serving it gets a third as well.
func (c *conn) served(took time.Duration, more bool) {
	now := time.Now()
	if !c.b.others.than(c.ident.ClientID, now) {
		return
	}
	wait := c.unpaid.add(now, took, c.b.others.share())
	if !more || wait < restLeast {
		return
	}
	c.b.others.greedy.Add(1)
	defer c.b.others.greedy.Add(-1)
	c.pause(wait, &c.spread, "a client that is given many retained messages gets them more slowly while others publish, too")
}

// pause waits, and tells of it the first time.
func (c *conn) pause(d time.Duration, told *bool, what string) {
	d = max(d, restLeast)
	c.b.stats.rests.Add(1)
	c.b.stats.rested.Add(int64(d))
	if !*told {
		*told = true
		c.b.floods.Info().Str("client", c.ident.ClientID).Str("user", c.ident.User).Str("remote", c.ident.Remote).Msg(what)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.w.Done():
	}
}
