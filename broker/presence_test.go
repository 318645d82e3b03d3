package broker

import (
	"errors"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"
)

// presence writes down what it is told.
type presence struct {
	mu   sync.Mutex
	log  []string
	ids  map[string]Identity
	errs []error
}

func (p *presence) note(s string, id Identity) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = append(p.log, s)
	if p.ids == nil {
		p.ids = make(map[string]Identity)
	}
	p.ids[s] = id
}

func (p *presence) Connected(id Identity)                 { p.note("+"+id.ClientID, id) }
func (p *presence) Subscribed(id Identity, filter string) { p.note(id.ClientID+" "+filter, id) }
func (p *presence) Disconnected(id Identity, err error) {
	p.mu.Lock()
	p.errs = append(p.errs, err)
	p.mu.Unlock()
	p.note("-"+id.ClientID, id)
}

func (p *presence) entries() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.log)
}

func (p *presence) last(t *testing.T, entry string) Identity {
	t.Helper()
	require.Eventually(t, func() bool { return slices.Contains(p.entries(), entry) }, patience, time.Millisecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ids[entry]
}

func TestPresence(t *testing.T) {
	told := &presence{}
	b := start(t, func(o *Options) { o.Presence = told })
	c := open(t, b, "c")
	c.sub("a", 1)
	again := open(t, b, "c")
	again.disconnect()
	require.Eventually(t, func() bool { return len(told.entries()) == 5 }, patience, time.Millisecond)
	open(t, b, "d").leave(b, "d")
	told.last(t, "-d")
	require.Equal(t, []string{"+c", "c a", "-c", "+c", "-c", "+d", "-d"}, told.entries())
	require.ErrorIs(t, told.errs[0], ErrTakenOver)
	require.NoError(t, told.errs[1], "a DISCONNECT is no error")
	require.Error(t, told.errs[2])
	require.Zero(t, b.Stats().Connections)
}

func TestPresenceIsInOrderUnderTakeovers(t *testing.T) {
	told := &presence{}
	b := start(t, func(o *Options) { o.Presence = told })
	var all sync.WaitGroup
	for range 40 {
		c := dial(t, b)
		all.Go(func() { c.send(connectPacket("c")) })
	}
	all.Wait()
	settled := func() bool { log := told.entries(); return b.Stats().Connections == 1 && len(log)%2 == 1 }
	require.Eventually(t, settled, patience, 20*time.Millisecond)
	for i, s := range told.entries() {
		require.Equal(t, []string{"+c", "-c"}[i%2], s)
	}
}

func TestDisconnectByTheBus(t *testing.T) {
	b := start(t, nil)
	five, three := open(t, b, "five"), open(t, b, "three", v3)
	require.True(t, b.Disconnect("five", "node deleted"))
	pk := five.expect(packets.Disconnect)
	require.Equal(t, byte(0x98), pk.ReasonCode)
	require.Equal(t, "node deleted", pk.Properties.ReasonString)
	require.True(t, b.Disconnect("three", "node deleted"))
	_, err := three.read(patience)
	require.Error(t, err)
	require.False(t, b.Disconnect("nobody", ""))
}

// A client that falls silent is given one and a half keep-alives from its last packet, to
// the moment: the clock is the test's.
func TestKeepAliveIsOneAndAHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := &presence{}
		b, err := New(Options{Auth: Auth{Anonymous: anybody}, Presence: told})
		require.NoError(t, err)
		ours, theirs := net.Pipe()
		go b.serve(&listener{b: b, loopback: true}, pipeConn{theirs})
		c := wrap(t, ours)
		require.Equal(t, byte(0), c.connect("c", keepAlive(30)))
		for _, pause := range []time.Duration{time.Millisecond, time.Second, 44 * time.Second, 2 * time.Second, 44999 * time.Millisecond} {
			time.Sleep(pause) // the test's own clock
			c.nothing()
		}
		last := time.Now()
		pk, err := c.read(time.Hour)
		require.NoError(t, err)
		require.Equal(t, packets.Disconnect, pk.FixedHeader.Type)
		require.Equal(t, byte(0x8D), pk.ReasonCode)
		require.Equal(t, 45*time.Second, time.Since(last))
		require.NoError(t, b.Close(t.Context()))
		told.last(t, "-c")
	})
}

// Nothing between us and the socket takes the moving of a deadline for an end.
func testKeepAliveCountsFromTheLastPacket(t *testing.T, at place) {
	b := at.start(t, nil)
	for {
		c := open(t, b, "c", keepAlive(1))
		time.Sleep(time.Second) // of the one and a half
		begun := time.Now()
		_, _ = c.conn.Write(encode(t, packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}}, c.version))
		if pk, err := c.read(patience); err != nil || pk.FixedHeader.Type != packets.Pingresp {
			continue // the machine is too busy to say it in time
		}
		require.Equal(t, byte(0x8D), c.expect(packets.Disconnect).ReasonCode)
		require.GreaterOrEqual(t, time.Since(begun), 1500*time.Millisecond)
		return
	}
}

// slowly is a presence that takes its time over an end.
type slowly struct {
	*presence
	ending, ended chan struct{}
}

func (s slowly) Disconnected(id Identity, err error) {
	close(s.ending)
	<-s.ended
	s.presence.Disconnected(id, err)
}

// A client that has left finds its connection closed when its session knows that, and not
// before: the next connection may come at once.
func TestWhoLeftIsForgottenFirst(t *testing.T) {
	told := slowly{&presence{}, make(chan struct{}), make(chan struct{})}
	b := start(t, func(o *Options) { o.Presence = told })
	c := open(t, b, "c")
	c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}})
	<-told.ending
	_ = c.conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	_, err := c.r.Peek(1)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	close(told.ended)
	c.ended()
}

func TestServerKeepAlive(t *testing.T) {
	b := start(t, func(o *Options) { o.Limits.KeepAlive = 30 * time.Second })
	for _, asked := range []uint16{0, 31, 60} {
		c := open(t, b, "c"+strconv.Itoa(int(asked)), keepAlive(asked))
		require.Equal(t, uint16(30), c.connack.Properties.ServerKeepAlive)
	}
	require.False(t, open(t, b, "ok", keepAlive(20)).connack.Properties.ServerKeepAliveFlag)
}

func TestCloseTellsClients(t *testing.T) {
	told := &presence{}
	b := start(t, func(o *Options) { o.Presence = told })
	sub, silent := open(t, b, "sub"), dial(t, b)
	sub.sub("will", 1)
	open(t, b, "c", withWill("will", "gone", 0))
	require.NoError(t, b.Close(t.Context()))
	code, n := sub.ended()
	require.Equal(t, byte(0x8B), code)
	require.Equal(t, 1, n)
	silent.ended()
	require.Contains(t, told.entries(), "-c")
	require.False(t, errors.Is(b.Close(t.Context()), errServerGone))
}

func TestConnectHasALimitInTime(t *testing.T) {
	b := start(t, func(o *Options) { o.Limits.ConnectTimeout = 50 * time.Millisecond })
	c := dial(t, b)
	c.ended()
}

func TestConnectionLimit(t *testing.T) {
	b := start(t, func(o *Options) { o.Limits.Connections = 2 })
	open(t, b, "1")
	two := open(t, b, "2")
	dial(t, b).ended()
	two.disconnect()
	require.Eventually(t, func() bool {
		b.clients.mu.Lock()
		defer b.clients.mu.Unlock()
		return len(b.clients.conns) == 1
	}, patience, time.Millisecond)
	open(t, b, "3")
}
