package broker

import (
	"errors"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/configs/daemon"
)

func clean(pk *packets.Packet) { pk.Connect.Clean = true }

// Who would have one session too many is refused; whoever has one keeps it, with what is
// in it: when he goes, when the broker goes, and when it comes back with a lower limit.
func testNoSessionEndsForAnother(t *testing.T, at place) {
	dir := t.TempDir()
	limited := func(o *Options) { o.Limits.Sessions = 3 }
	b, stop := at.kept(t, dir, limited)
	first, second, third := open(t, b, "first", persistent), open(t, b, "second", persistent, v3), open(t, b, "third", persistent)
	for _, c := range []*tc{first, second, third} {
		c.sub("a", 1)
	}
	first.leave(b, "first")

	fourth := dial(t, b)
	require.Equal(t, byte(0x97), fourth.connect("fourth", persistent))
	require.Contains(t, fourth.connack.Properties.ReasonString, "3 (limits.sessions)")
	require.Equal(t, byte(3), dial(t, b).connect("fourth", persistent, v3), "server unavailable")
	require.Equal(t, int64(2), b.Stats().Rejected[daemon.Label(connectReasons[codeQuota])])
	require.Equal(t, 3, b.Stats().Kept)
	pub := open(t, b, "pub") // whose session ends with its connection
	require.Equal(t, byte(0x97), dial(t, b).connect("pub", persistent), "in place of one that isn't kept")
	pub.publish1("a", "owed")

	second.leave(b, "second")
	again := open(t, b, "second", persistent, v3)
	require.True(t, again.connack.SessionPresent)
	require.Equal(t, []string{"owed"}, again.collect(1))
	again.nothing()
	third.leave(b, "third")
	require.False(t, open(t, b, "third", persistent, clean).connack.SessionPresent, "anew, in the place of his own")
	stop() // with two of them connected

	b, _ = at.kept(t, dir, func(o *Options) { o.Limits.Sessions = 1 })
	require.Equal(t, 3, b.Stats().Kept)
	first = open(t, b, "first", persistent)
	require.True(t, first.connack.SessionPresent)
	require.Equal(t, []string{"owed"}, first.collect(1))
	for _, id := range []string{"second", "third"} {
		require.Equal(t, byte(0x97), dial(t, b).connect("fourth", persistent))
		open(t, b, id, clean).leave(b, id) // gives it up
	}
	require.Equal(t, 1, b.Stats().Kept)
	bye := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}}
	bye.Properties.SessionExpiryIntervalFlag = true // 0
	first.send(bye)
	first.ended()
	require.Eventually(t, func() bool { return b.Stats().Kept == 0 }, patience, time.Millisecond)
	open(t, b, "fourth", persistent)
}

func TestASessionThatExpiresMakesRoom(t *testing.T) {
	b := start(t, func(o *Options) { o.Limits.Sessions = 1 })
	c := open(t, b, "first", persistent, expires(1))
	require.Equal(t, byte(0x97), dial(t, b).connect("second", persistent))
	c.leave(b, "first")
	require.Eventually(t, func() bool { return b.Stats().Kept == 0 }, patience, time.Millisecond)
	open(t, b, "second", persistent)
}

// Who leaves session after session behind takes the room of no other user.
func TestSessionsOfOneUser(t *testing.T) {
	dir := t.TempDir()
	few := func(o *Options) { withUsers(o); o.Limits.PerUser = 2 }
	b, stop := kept(t, dir, few)
	op := credentialsOf("op", "secret")
	for _, id := range []string{"one", "two"} {
		open(t, b, id, persistent, op).leave(b, id)
	}
	more := dial(t, b)
	require.Equal(t, byte(0x97), more.connect("three", persistent, op))
	require.Equal(t, "one user may have 2 sessions that outlive their connections at most (limits.perUser), as many as op has", more.connack.Properties.ReasonString)
	open(t, b, "three", op).leave(b, "three") // one that ends with its connection
	open(t, b, "boss", persistent, credentialsOf("boss", "secret"))
	stop()

	b, _ = kept(t, dir, few)
	require.Equal(t, byte(0x97), dial(t, b).connect("three", persistent, op), "they are counted when they come back, too")
	again := open(t, b, "one", persistent, op)
	require.True(t, again.connack.SessionPresent)
	again.leave(b, "one")
	open(t, b, "two", clean, op).leave(b, "two") // gives it up
	open(t, b, "three", persistent, op)
}

// presence writes down what it is told.
type presence struct {
	mu   sync.Mutex
	log  []string
	ids  map[string]Identity
	errs []error
}

func (p *presence) note(s string, id *Identity) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = append(p.log, s)
	if p.ids == nil {
		p.ids = make(map[string]Identity)
	}
	p.ids[s] = *id
}

func (p *presence) Connected(id *Identity)                 { p.note("+"+id.ClientID, id) }
func (p *presence) Subscribed(id *Identity, filter string) { p.note(id.ClientID+" "+filter, id) }
func (p *presence) Disconnected(id *Identity, err error) {
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
		go b.serve(&listener{connects: newRateLimiter(1000), b: b, loopback: true}, pipeConn{theirs})
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

// A packet that takes longer than one and a half keep-alives to arrive is taken; who trickles is not waited for.
func TestArrivingBytesKeepAConnectionAlive(t *testing.T) {
	for name, rate := range map[string]int{"a slow line": 300, "who trickles": 20} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, err := New(Options{Auth: Auth{Anonymous: anybody}})
				require.NoError(t, err)
				ours, theirs := net.Pipe()
				go b.serve(&listener{connects: newRateLimiter(1000), b: b, loopback: true}, pipeConn{theirs})
				c := wrap(t, ours)
				require.Equal(t, byte(0), c.connect("c", keepAlive(30)))
				packet := encode(t, packets.Packet{
					FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 1}, TopicName: "t", PacketID: 1, Payload: make([]byte, 60_000),
				}, c.version)
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					for len(packet) > 0 {
						n, err := ours.Write(packet[:min(rate, len(packet))])
						if packet = packet[n:]; err != nil {
							return
						}
						time.Sleep(time.Second) // the test's own clock
					}
				}()
				pk, err := c.read(time.Hour)
				require.NoError(t, err)
				if rate > leastRate {
					require.Equal(t, packets.Puback, pk.FixedHeader.Type)
				} else {
					require.Equal(t, packets.Disconnect, pk.FixedHeader.Type)
					require.Equal(t, byte(0x8D), pk.ReasonCode)
				}
				require.NoError(t, b.Close(t.Context()))
				_ = ours.Close()
				<-sent
			})
		})
	}
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

func (s slowly) Disconnected(id *Identity, err error) {
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
	for _, treeBacklog := range []uint16{0, 31, 60} {
		c := open(t, b, "c"+strconv.Itoa(int(treeBacklog)), keepAlive(treeBacklog))
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

func testTakeoverLosesNothing(t *testing.T, at place) {
	b := at.start(t, nil)
	open(t, b, "sub", persistent).sub("a", 1)
	pub := open(t, b, "pub")
	var published sync.WaitGroup
	published.Go(func() { pub.burst("a", 0, 8000) })

	seen := make(map[string]bool)
	for range 97 {
		sub := open(t, b, "sub", persistent)
		for range 40 {
			pk, err := sub.read(patience)
			require.NoError(t, err)
			seen[string(pk.Payload)] = true
			sub.ack(packets.Puback, pk.PacketID)
			if len(seen) == 8000 {
				break
			}
		}
	}
	published.Wait()
	sub := open(t, b, "sub", persistent)
	for len(seen) < 8000 {
		pk := sub.expect(packets.Publish)
		seen[string(pk.Payload)] = true
		sub.ack(packets.Puback, pk.PacketID)
	}
	require.Eventually(t, func() bool { return b.Stats().Connections == 2 }, patience, time.Millisecond)
}

func testTakeoverOfV3SendsNothing(t *testing.T, at place) {
	b := at.start(t, nil)
	old := open(t, b, "id", v3)
	open(t, b, "id", v3)
	pk, err := old.read(patience)
	require.Error(t, err, "%+v", pk)

	five := open(t, b, "five")
	open(t, b, "five")
	code, n := five.ended()
	require.Equal(t, byte(0x8E), code)
	require.Equal(t, 1, n)
}

// A client that reads nothing can still be taken over: nobody waits for what can't be written
// to it, which is given up after an hour here.
func testTakeoverOfAStalledClient(t *testing.T, at place) {
	b := at.start(t, func(o *Options) { o.Limits.WriteTimeout = time.Hour })
	stalled, pub := open(t, b, "sub", persistent, keepAlive(0)), open(t, b, "pub")
	stalled.sub("a", 0)
	for range 16 {
		pub.publish("a", strings.Repeat("x", int(at.limits.Packet)-100), 0, 0)
	}
	pub.nothing()
	require.True(t, open(t, b, "sub", persistent).connack.SessionPresent)
}

func testConcurrentConnectsOfOneClientLeaveOne(t *testing.T, at place) {
	b := at.start(t, nil)
	var all sync.WaitGroup
	for range 30 {
		c := dial(t, b)
		all.Go(func() { c.send(connectPacket("same", persistent)) })
	}
	all.Wait()
	require.Eventually(t, func() bool {
		b.clients.mu.Lock()
		defer b.clients.mu.Unlock()
		return len(b.clients.conns) == 1
	}, patience, time.Millisecond)
	require.Eventually(t, func() bool { return b.Stats().Connections == 1 }, patience, time.Millisecond)
	pub := open(t, b, "pub")
	pub.nothing()
	require.NotNil(t, b.clients.connected("same"))
}

// slowTree takes its time over the first message.
type slowTree struct {
	*fakeTree
	begun, goOn chan struct{}
	once        sync.Once
}

func (s *slowTree) Publish(m Message, done func(error)) {
	s.once.Do(func() { close(s.begun); <-s.goOn })
	s.fakeTree.Publish(m, done)
}

// Nothing of the old connection is applied once the new one has its CONNACK: an older value can't
// come after a newer one that was acknowledged. What had arrived comes before.
func TestNothingOfTheOldConnectionAfterCONNACK(t *testing.T) {
	tree := &slowTree{fakeTree: newFakeTree(), begun: make(chan struct{}), goOn: make(chan struct{})}
	b := start(t, func(o *Options) { o.Tree = tree })
	old := open(t, b, "mapper", persistent)
	old.raw(append(
		encode(t, publishPacket(reported, "1", 1, 1), 5),
		encode(t, publishPacket(reported, "2", 1, 2), 5)...))
	<-tree.begun
	again := dial(t, b)
	again.send(connectPacket("mapper", persistent))
	require.Eventually(t, b.clients.connected("mapper").drain.asked, patience, time.Millisecond)
	_, err := again.read(100 * time.Millisecond) // the broker has nothing else to do, and could answer
	require.Error(t, err, "CONNACK while the old connection's publish is being applied")
	close(tree.goOn)
	require.True(t, again.expect(packets.Connack).SessionPresent)
	require.Zero(t, again.publish1(reported, "3").ReasonCode)
	var got []string
	for _, m := range tree.got {
		got = append(got, string(m.Payload))
	}
	require.Equal(t, []string{"1", "2", "3"}, got)
}

// Connections that fight over a session end one another's packets in order, and the last one is let in.
func TestManyTakeoversKeepTheOrder(t *testing.T) {
	tree := newFakeTree()
	b := start(t, withTree(tree))
	next := 0
	for range 50 {
		c := open(t, b, "mapper", persistent)
		var burst []byte
		for i := range 20 {
			burst = append(burst, encode(t, publishPacket(reported, strconv.Itoa(next+i), 1, uint16(i+1)), 5)...)
		}
		c.raw(burst)
		next += 20
	}
	last := open(t, b, "mapper", persistent)
	require.Zero(t, last.publish1(reported, strconv.Itoa(next)).ReasonCode)
	before := -1
	tree.mu.Lock()
	defer tree.mu.Unlock()
	for _, m := range tree.got {
		n, err := strconv.Atoi(string(m.Payload))
		require.NoError(t, err)
		require.Greater(t, n, before)
		before = n
	}
	require.Equal(t, next, before)
}

func testWillKeepsItsProperties(t *testing.T, at place) {
	b := at.start(t, nil)
	sub := open(t, b, "sub")
	sub.sub("will", 2)
	want := packets.Properties{
		ContentType: "text/plain", ResponseTopic: "re/me", CorrelationData: []byte("c"), PayloadFormat: 1, PayloadFormatFlag: true,
		User: []packets.UserProperty{{Key: "k", Val: "v"}}, MessageExpiryInterval: 50,
	}
	c := open(t, b, "c", withWill("will", "gone", 0, func(pk *packets.Packet) {
		pk.Connect.WillProperties, pk.Connect.WillRetain, pk.Connect.WillQos = want, true, 2
	}))
	c.leave(b, "c")
	pk := sub.expect(packets.Publish)
	require.Equal(t, "gone", string(pk.Payload))
	require.Equal(t, byte(2), pk.FixedHeader.Qos)
	require.Equal(t, want, pk.Properties)
	late := open(t, b, "late")
	late.sub("will", 0)
	require.Equal(t, "gone", string(late.expect(packets.Publish).Payload))
}

func testEmptyWillIsAllowed(t *testing.T, at place) {
	b := at.start(t, nil)
	sub, pub := open(t, b, "sub"), open(t, b, "pub")
	pub.publish1("will", "there", retain)
	open(t, b, "c", withWill("will", "", 0, func(pk *packets.Packet) { pk.Connect.WillRetain = true })).leave(b, "c")
	require.Eventually(t, func() bool { return b.Stats().Retained == 0 }, patience, time.Millisecond)
	sub.sub("will", 1)
	sub.nothing()
}

func testNoWillAfterDisconnect(t *testing.T, at place) {
	b := at.start(t, nil)
	sub := open(t, b, "sub")
	sub.sub("will", 1)
	open(t, b, "c", withWill("will", "gone", 0)).disconnect()
	c := open(t, b, "c", withWill("will", "with will", 0))
	c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, ReasonCode: 4})
	require.Equal(t, []string{"with will"}, sub.collect(1))
}

func testWillDelay(t *testing.T, at place) {
	b := at.start(t, nil)
	sub := open(t, b, "sub")
	sub.sub("will/#", 1)
	begun := time.Now()
	open(t, b, "gone", persistent, withWill("will/gone", "gone", 1)).leave(b, "gone")
	pk := sub.expect(packets.Publish)
	require.Equal(t, "will/gone", pk.TopicName)
	require.GreaterOrEqual(t, time.Since(begun), time.Second)
	sub.ack(packets.Puback, pk.PacketID)
	sub.nothing()
}

// Who is back before its will's delay is over has no will, and who isn't has it then, to the
// moment: the clock is the test's.
func TestWillDelayIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := New(Options{Auth: Auth{Anonymous: anybody}})
		require.NoError(t, err)
		connect := func(id string, opts ...connectOption) *tc {
			ours, theirs := net.Pipe()
			go b.serve(&listener{connects: newRateLimiter(1000), b: b, loopback: true}, pipeConn{theirs})
			c := wrap(t, ours)
			require.Equal(t, byte(0), c.connect(id, opts...))
			return c
		}
		sub := connect("sub", keepAlive(0))
		sub.sub("will", 0)
		const delay = 10 * time.Second
		dying := func() *tc { return connect("c", persistent, withWill("will", "gone", uint32(delay.Seconds()))) }
		require.NoError(t, dying().conn.Close())
		time.Sleep(delay - time.Millisecond) // the test's own clock
		back := dying()
		time.Sleep(2 * delay) // the test's own clock
		sub.nothing()

		left := time.Now()
		require.NoError(t, back.conn.Close())
		require.Equal(t, "gone", string(sub.expect(packets.Publish).Payload))
		require.Equal(t, delay, time.Since(left))
		require.NoError(t, b.Close(t.Context()))
	})
}

// The session's end is the will's latest moment.
func testWillDelayEndsWithTheSession(t *testing.T, at place) {
	b := at.start(t, nil)
	sub := open(t, b, "sub")
	sub.sub("will/#", 1)
	open(t, b, "clean", withWill("will/clean", "gone", 3600)).leave(b, "clean")
	require.Equal(t, []string{"gone"}, sub.collect(1))
	open(t, b, "short", persistent, func(pk *packets.Packet) { pk.Properties.SessionExpiryInterval = 1 },
		withWill("will/short", "expired", 3600)).leave(b, "short")
	require.Equal(t, []string{"expired"}, sub.collect(1))
	open(t, b, "restart", persistent, withWill("will/restart", "restarted", 3600)).leave(b, "restart")
	open(t, b, "restart")
	require.Equal(t, []string{"restarted"}, sub.collect(1))
}

// The will of a connection that is taken over comes before anything of the new one.
func testWillOnTakeover(t *testing.T, at place) {
	b := at.start(t, nil)
	sub := open(t, b, "sub")
	sub.sub("state", 1)
	open(t, b, "c", persistent, withWill("state", "offline", 0))
	again := open(t, b, "c", persistent, withWill("state", "offline", 60))
	again.publish1("state", "online")
	require.Equal(t, []string{"offline", "online"}, sub.collect(2))
	open(t, b, "c", persistent)
	sub.nothing()
}

func TestWillGoesThePathOfAPublish(t *testing.T) {
	tree := newFakeTree()
	b := start(t, withTree(tree))
	const state = "v1/nodes/n1/mappers/m/state"
	open(t, b, "mapper", withWill(state, "offline", 0)).leave(b, "mapper")
	require.Eventually(t, func() bool { tree.mu.Lock(); defer tree.mu.Unlock(); return len(tree.got) == 1 }, patience, time.Millisecond)
	require.Equal(t, state, tree.got[0].Topic)
	require.Equal(t, "mapper", tree.got[0].Publisher.ClientID)

	c := dial(t, b)
	require.Equal(t, byte(0x90), c.connect("bad", withWill("a/#", "x", 0)))
	_, n := c.ended()
	require.Zero(t, n)
}

// A will that can't be published is refused at CONNECT, for its place and for its payload.
func TestWillsThatCantBePublished(t *testing.T) {
	b := start(t, withTree(newFakeTree()))
	lie := func(pk *packets.Packet) {
		pk.Connect.WillProperties.PayloadFormat, pk.Connect.WillProperties.PayloadFormatFlag = 1, true
	}
	for code, will := range map[byte]connectOption{
		0x87: withWill("v1/nodes/n1/spec", "mine", 0), 0x90: withWill("v1/nodes/n1/nonsense", "x", 0), 0x99: withWill("a", "\xff", 0, lie),
	} {
		c := dial(t, b)
		require.Equal(t, code, c.connect("c", will))
		require.Contains(t, c.connack.Properties.ReasonString, "will: ")
	}
	require.Equal(t, byte(connackNotAuthorized), dial(t, b).connect("three", v3, withWill("v1/nodes/n1/spec", "mine", 0)))
	require.Equal(t, int64(4), b.Stats().Rejected[daemon.Label(willRefused)])
}

// The will of a session that ends with its connection is published when the broker comes back after a kill, once, and not
// that of a client that had disconnected.
func TestWillAfterAKill(t *testing.T) {
	dir := t.TempDir()
	b, _ := kept(t, dir, nil)
	open(t, b, "sub", persistent).sub("will/#", 1)
	open(t, b, "five", withWill("will/five", "gone", 60))
	open(t, b, "three", v3, withWill("will/three", "gone", 0))
	open(t, b, "left", withWill("will/left", "gone", 0)).disconnect()
	lost := open(t, b, "lost", withWill("will/lost", "gone", 0))
	lost.leave(b, "lost")
	open(t, b, "flush").publish1("elsewhere", "takes the rest to disk", retain)

	for _, n := range []int{3, 0} {
		b, dir = restarted(t, dir, nil)
		sub := open(t, b, "sub", persistent)
		got := make(map[string]int)
		for range n {
			pk := sub.expect(packets.Publish)
			got[pk.TopicName]++
			sub.ack(packets.Puback, pk.PacketID)
		}
		sub.nothing()
		if n > 0 {
			require.Equal(t, map[string]int{"will/five": 1, "will/three": 1, "will/lost": 1}, got)
		}
		flush := open(t, b, "flush") // a message that is acknowledged before it is on disk is deleted once it is there
		flush.publish1("elsewhere", "takes the messages to disk", retain)
		flush.publish1("elsewhere", "takes their deletion to disk", retain)
	}
}

// What a client published before is sent, and acknowledged, while the tree makes it wait: its part of the tree's queue may be full.
func TestEarlierMessagesAreSentWhileTheTreeMakesTheirPublisherWait(t *testing.T) {
	for name, options := range map[string][]connectOption{"session": nil, "durable session": {persistent}} {
		t.Run(name, func(t *testing.T) {
			tree := &slowTree{fakeTree: newFakeTree(), begun: make(chan struct{}), goOn: make(chan struct{})}
			b, _ := kept(t, t.TempDir(), func(o *Options) { o.Tree = tree })
			sub, pub := open(t, b, "sub", options...), open(t, b, "pub")
			sub.sub("own/+", 1)
			pub.raw(slices.Concat(
				encode(t, publishPacket("own/0", "x", 0, 0), 5), encode(t, publishPacket("own/1", "x", 1, 1), 5), encode(t, publishPacket(reported, "1", 1, 2), 5)))
			<-tree.begun
			require.Equal(t, "own/0", sub.expect(packets.Publish).TopicName)
			require.Equal(t, "own/1", sub.expect(packets.Publish).TopicName)
			require.EqualValues(t, 1, pub.expect(packets.Puback).PacketID)
			close(tree.goOn)
			require.EqualValues(t, 2, pub.expect(packets.Puback).PacketID)
		})
	}
}
