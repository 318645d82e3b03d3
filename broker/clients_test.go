// SPDX-License-Identifier: Apache-2.0

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

	"github.com/edgebus/edgebus/broker/daemon"
)

func cleanStart(pk *packets.Packet) { pk.Connect.Clean = true }

// Who would have one session too many is refused; whoever has one keeps it, with what is
// in it: when he goes, when the broker goes, and when it comes back with a lower limit.
func testNoSessionEndsForAnother(t *testing.T, at brokerSetup) {
	dir := t.TempDir()
	limited := func(o *Options) { o.Limits.Sessions = 3 }
	b, stop := at.startOn(t, dir, limited)
	first, second, third := openClient(t, b, "first", persistentSession), openClient(t, b, "second", persistentSession, version311), openClient(t, b, "third", persistentSession)
	for _, c := range []*testClient{first, second, third} {
		c.sub("a", 1)
	}
	first.leave(b, "first")

	fourth := dialBroker(t, b)
	require.Equal(t, byte(0x97), fourth.connect("fourth", persistentSession))
	require.Contains(t, fourth.connack.Properties.ReasonString, "3 (limits.sessions)")
	require.Equal(t, byte(3), dialBroker(t, b).connect("fourth", persistentSession, version311), "server unavailable")
	require.Equal(t, int64(2), b.Stats().Rejected[daemon.Label(connectReasons[codeQuota])])
	require.Equal(t, 3, b.Stats().Kept)
	pub := openClient(t, b, "pub") // whose session ends with its connection
	require.Equal(t, byte(0x97), dialBroker(t, b).connect("pub", persistentSession), "in place of one that isn't kept")
	pub.publish1("a", "owed")

	second.leave(b, "second")
	again := openClient(t, b, "second", persistentSession, version311)
	require.True(t, again.connack.SessionPresent)
	require.Equal(t, []string{"owed"}, again.collect(1))
	again.nothing()
	third.leave(b, "third")
	require.False(t, openClient(t, b, "third", persistentSession, cleanStart).connack.SessionPresent, "anew, in the place of his own")
	stop() // with two of them connected

	b, _ = at.startOn(t, dir, func(o *Options) { o.Limits.Sessions = 1 })
	require.Equal(t, 3, b.Stats().Kept)
	first = openClient(t, b, "first", persistentSession)
	require.True(t, first.connack.SessionPresent)
	require.Equal(t, []string{"owed"}, first.collect(1))
	for _, id := range []string{"second", "third"} {
		require.Equal(t, byte(0x97), dialBroker(t, b).connect("fourth", persistentSession))
		openClient(t, b, id, cleanStart).leave(b, id) // gives it up
	}
	require.Equal(t, 1, b.Stats().Kept)
	bye := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}}
	bye.Properties.SessionExpiryIntervalFlag = true // 0
	first.send(bye)
	first.ended()
	require.Eventually(t, func() bool { return b.Stats().Kept == 0 }, testTimeout, time.Millisecond)
	openClient(t, b, "fourth", persistentSession)
}

func TestASessionThatExpiresMakesRoom(t *testing.T) {
	b := startBroker(t, func(o *Options) { o.Limits.Sessions = 1 })
	c := openClient(t, b, "first", withSessionExpiry(1))
	require.Equal(t, byte(0x97), dialBroker(t, b).connect("second", persistentSession))
	c.leave(b, "first")
	require.Eventually(t, func() bool { return b.Stats().Kept == 0 }, testTimeout, time.Millisecond)
	openClient(t, b, "second", persistentSession)
}

// Who leaves session after session behind takes the room of no other user.
func TestSessionsOfOneUser(t *testing.T) {
	dir := t.TempDir()
	few := func(o *Options) { withUsers(o); o.Limits.PerUser = 2 }
	b, stop := startKept(t, dir, few)
	op := credentialsOf("op", "secret")
	for _, id := range []string{"one", "two"} {
		openClient(t, b, id, persistentSession, op).leave(b, id)
	}
	more := dialBroker(t, b)
	require.Equal(t, byte(0x97), more.connect("three", persistentSession, op))
	require.Equal(t, "one user may have 2 sessions that outlive their connections at most (limits.perUser), as many as op has", more.connack.Properties.ReasonString)
	openClient(t, b, "three", op).leave(b, "three") // one that ends with its connection
	openClient(t, b, "boss", persistentSession, credentialsOf("boss", "secret"))
	stop()

	b, _ = startKept(t, dir, few)
	require.Equal(t, byte(0x97), dialBroker(t, b).connect("three", persistentSession, op), "they are counted when they come back, too")
	again := openClient(t, b, "one", persistentSession, op)
	require.True(t, again.connack.SessionPresent)
	again.leave(b, "one")
	openClient(t, b, "two", cleanStart, op).leave(b, "two") // gives it up
	openClient(t, b, "three", persistentSession, op)
}

// recordedPresence writes down what it is told.
type recordedPresence struct {
	mu   sync.Mutex
	log  []string
	ids  map[string]Identity
	errs []error
}

func (p *recordedPresence) note(s string, id *Identity) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = append(p.log, s)
	if p.ids == nil {
		p.ids = make(map[string]Identity)
	}
	p.ids[s] = *id
}

func (p *recordedPresence) Connected(id *Identity) { p.note("+"+id.ClientID, id) }
func (p *recordedPresence) Subscribed(id *Identity, filter string) {
	p.note(id.ClientID+" "+filter, id)
}

func (p *recordedPresence) Disconnected(id *Identity, err error) {
	p.mu.Lock()
	p.errs = append(p.errs, err)
	p.mu.Unlock()
	p.note("-"+id.ClientID, id)
}

func (p *recordedPresence) entries() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.log)
}

func (p *recordedPresence) last(t *testing.T, entry string) Identity {
	t.Helper()
	require.Eventually(t, func() bool { return slices.Contains(p.entries(), entry) }, testTimeout, time.Millisecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ids[entry]
}

func TestPresence(t *testing.T) {
	told := &recordedPresence{}
	b := startBroker(t, func(o *Options) { o.Presence = told })
	c := openClient(t, b, "c")
	c.sub("a", 1)
	again := openClient(t, b, "c")
	again.disconnect()
	require.Eventually(t, func() bool { return len(told.entries()) == 5 }, testTimeout, time.Millisecond)
	openClient(t, b, "d").leave(b, "d")
	told.last(t, "-d")
	require.Equal(t, []string{"+c", "c a", "-c", "+c", "-c", "+d", "-d"}, told.entries())
	require.ErrorIs(t, told.errs[0], ErrTakenOver)
	require.NoError(t, told.errs[1], "a DISCONNECT is no error")
	require.Error(t, told.errs[2])
	require.Zero(t, b.Stats().Connections)
}

func TestPresenceIsInOrderUnderTakeovers(t *testing.T) {
	told := &recordedPresence{}
	b := startBroker(t, func(o *Options) { o.Presence = told })
	var all sync.WaitGroup
	for range 40 {
		c := dialBroker(t, b)
		all.Go(func() { c.send(connectPacket("c")) })
	}
	all.Wait()
	settled := func() bool { log := told.entries(); return b.Stats().Connections == 1 && len(log)%2 == 1 }
	require.Eventually(t, settled, testTimeout, 20*time.Millisecond)
	for i, s := range told.entries() {
		require.Equal(t, []string{"+c", "-c"}[i%2], s)
	}
}

func TestDisconnectByTheBus(t *testing.T) {
	b := startBroker(t, nil)
	five, three := openClient(t, b, "five"), openClient(t, b, "three", version311)
	require.True(t, b.Disconnect("five", "node deleted"))
	pk := five.expect(packets.Disconnect)
	require.Equal(t, byte(0x98), pk.ReasonCode)
	require.Equal(t, "node deleted", pk.Properties.ReasonString)
	require.True(t, b.Disconnect("three", "node deleted"))
	_, err := three.read(testTimeout)
	require.Error(t, err)
	require.False(t, b.Disconnect("nobody", ""))
}

// A client that falls silent is given one and a half keep-alives from its last packet, to
// the moment: the clock is the test's.
func TestKeepAliveIsOneAndAHalf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := &recordedPresence{}
		b, err := New(Options{Auth: Auth{Anonymous: anonymousOperator}, Presence: told})
		require.NoError(t, err)
		ours, theirs := net.Pipe()
		go (&listener{connects: newRateLimiter(1000), b: b, loopback: true}).serveConn(pipeConn{theirs})
		c := wrapConn(t, ours)
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
				b, err := New(Options{Auth: Auth{Anonymous: anonymousOperator}})
				require.NoError(t, err)
				ours, theirs := net.Pipe()
				go (&listener{connects: newRateLimiter(1000), b: b, loopback: true}).serveConn(pipeConn{theirs})
				c := wrapConn(t, ours)
				require.Equal(t, byte(0), c.connect("c", keepAlive(30)))
				packet := encodePacket(t, packets.Packet{
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
func testKeepAliveCountsFromTheLastPacket(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	for {
		c := openClient(t, b, "c", keepAlive(1))
		time.Sleep(time.Second) // of the one and a half
		begun := time.Now()
		_, _ = c.conn.Write(encodePacket(t, packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}}, c.version))
		if pk, err := c.read(testTimeout); err != nil || pk.FixedHeader.Type != packets.Pingresp {
			continue // the machine is too busy to say it in time
		}
		require.Equal(t, byte(0x8D), c.expect(packets.Disconnect).ReasonCode)
		require.GreaterOrEqual(t, time.Since(begun), 1500*time.Millisecond)
		return
	}
}

// slowPresence is a presence that takes its time over an end.
type slowPresence struct {
	*recordedPresence
	ending, ended chan struct{}
}

func (s slowPresence) Disconnected(id *Identity, err error) {
	close(s.ending)
	<-s.ended
	s.recordedPresence.Disconnected(id, err)
}

// A client that has left finds its connection closed when its session knows that, and not
// before: the next connection may come at once.
func TestWhoLeftIsForgottenFirst(t *testing.T) {
	told := slowPresence{&recordedPresence{}, make(chan struct{}), make(chan struct{})}
	b := startBroker(t, func(o *Options) { o.Presence = told })
	c := openClient(t, b, "c")
	c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}})
	<-told.ending
	_ = c.conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	_, err := c.r.Peek(1)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	close(told.ended)
	c.ended()
}

func TestServerKeepAlive(t *testing.T) {
	b := startBroker(t, func(o *Options) { o.Limits.KeepAlive = 30 * time.Second })
	for _, seconds := range []uint16{0, 31, 60} {
		c := openClient(t, b, "c"+strconv.Itoa(int(seconds)), keepAlive(seconds))
		require.Equal(t, uint16(30), c.connack.Properties.ServerKeepAlive)
	}
	require.False(t, openClient(t, b, "ok", keepAlive(20)).connack.Properties.ServerKeepAliveFlag)
}

func TestCloseTellsClients(t *testing.T) {
	told := &recordedPresence{}
	b := startBroker(t, func(o *Options) { o.Presence = told })
	sub, silent := openClient(t, b, "sub"), dialBroker(t, b)
	sub.sub("will", 1)
	openClient(t, b, "c", withWill("will", "gone", 0))
	require.NoError(t, b.Close(t.Context()))
	code, n := sub.ended()
	require.Equal(t, byte(0x8B), code)
	require.Equal(t, 1, n)
	silent.ended()
	require.Contains(t, told.entries(), "-c")
	require.False(t, errors.Is(b.Close(t.Context()), errStopping))
}

func TestConnectHasALimitInTime(t *testing.T) {
	b := startBroker(t, func(o *Options) { o.Limits.ConnectTimeout = 50 * time.Millisecond })
	c := dialBroker(t, b)
	c.ended()
}

func TestConnectionLimit(t *testing.T) {
	b := startBroker(t, func(o *Options) { o.Limits.Connections = 2 })
	openClient(t, b, "1")
	two := openClient(t, b, "2")
	dialBroker(t, b).ended()
	two.disconnect()
	require.Eventually(t, func() bool {
		b.clients.mu.Lock()
		defer b.clients.mu.Unlock()
		return len(b.clients.conns) == 1
	}, testTimeout, time.Millisecond)
	openClient(t, b, "3")
}

func testTakeoverLosesNothing(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	openClient(t, b, "sub", persistentSession).sub("a", 1)
	pub := openClient(t, b, "pub")
	var published sync.WaitGroup
	published.Go(func() { pub.burst("a", 0, 8000) })

	seen := make(map[string]bool)
	for range 97 {
		sub := openClient(t, b, "sub", persistentSession)
		for range 40 {
			pk, err := sub.read(testTimeout)
			require.NoError(t, err)
			seen[string(pk.Payload)] = true
			sub.ack(packets.Puback, pk.PacketID)
			if len(seen) == 8000 {
				break
			}
		}
	}
	published.Wait()
	sub := openClient(t, b, "sub", persistentSession)
	for len(seen) < 8000 {
		pk := sub.expect(packets.Publish)
		seen[string(pk.Payload)] = true
		sub.ack(packets.Puback, pk.PacketID)
	}
	require.Eventually(t, func() bool { return b.Stats().Connections == 2 }, testTimeout, time.Millisecond)
}

func testTakeoverOfV3SendsNothing(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	old := openClient(t, b, "id", version311)
	openClient(t, b, "id", version311)
	pk, err := old.read(testTimeout)
	require.Error(t, err, "%+v", pk)

	five := openClient(t, b, "five")
	openClient(t, b, "five")
	code, n := five.ended()
	require.Equal(t, byte(0x8E), code)
	require.Equal(t, 1, n)
}

// A client that reads nothing can still be taken over: nobody waits for what can't be written
// to it, which is given up after an hour here.
func testTakeoverOfAStalledClient(t *testing.T, at brokerSetup) {
	b := at.start(t, func(o *Options) { o.Limits.WriteTimeout = time.Hour })
	stalled, pub := openClient(t, b, "sub", persistentSession, keepAlive(0)), openClient(t, b, "pub")
	stalled.sub("a", 0)
	for range 16 {
		pub.publish("a", strings.Repeat("x", int(at.limits.Packet)-100), 0, 0)
	}
	pub.nothing()
	require.True(t, openClient(t, b, "sub", persistentSession).connack.SessionPresent)
}

func testConcurrentConnectsOfOneClientLeaveOne(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	var all sync.WaitGroup
	for range 30 {
		c := dialBroker(t, b)
		all.Go(func() { c.send(connectPacket("same", persistentSession)) })
	}
	all.Wait()
	require.Eventually(t, func() bool {
		b.clients.mu.Lock()
		defer b.clients.mu.Unlock()
		return len(b.clients.conns) == 1
	}, testTimeout, time.Millisecond)
	require.Eventually(t, func() bool { return b.Stats().Connections == 1 }, testTimeout, time.Millisecond)
	pub := openClient(t, b, "pub")
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
	b := startBroker(t, func(o *Options) { o.Tree = tree })
	old := openClient(t, b, "mapper", persistentSession)
	old.raw(append(
		encodePacket(t, publishPacket(reportedTopic, "1", 1, 1), 5),
		encodePacket(t, publishPacket(reportedTopic, "2", 1, 2), 5)...))
	<-tree.begun
	again := dialBroker(t, b)
	again.send(connectPacket("mapper", persistentSession))
	require.Eventually(t, b.clients.connected("mapper").drain.asked, testTimeout, time.Millisecond)
	_, err := again.read(100 * time.Millisecond) // the broker has nothing else to do, and could answer
	require.Error(t, err, "CONNACK while the old connection's publish is being applied")
	close(tree.goOn)
	require.True(t, again.expect(packets.Connack).SessionPresent)
	require.Zero(t, again.publish1(reportedTopic, "3").ReasonCode)
	var got []string
	for _, m := range tree.got {
		got = append(got, string(m.Payload))
	}
	require.Equal(t, []string{"1", "2", "3"}, got)
}

// Connections that fight over a session end one another's packets in order, and the last one is let in.
func TestManyTakeoversKeepTheOrder(t *testing.T) {
	tree := newFakeTree()
	b := startBroker(t, withTree(tree))
	next := 0
	for range 50 {
		c := openClient(t, b, "mapper", persistentSession)
		var burst []byte
		for i := range 20 {
			burst = append(burst, encodePacket(t, publishPacket(reportedTopic, strconv.Itoa(next+i), 1, uint16(i+1)), 5)...)
		}
		c.raw(burst)
		next += 20
	}
	last := openClient(t, b, "mapper", persistentSession)
	require.Zero(t, last.publish1(reportedTopic, strconv.Itoa(next)).ReasonCode)
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

func testWillKeepsItsProperties(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub := openClient(t, b, "sub")
	sub.sub("will", 2)
	want := packets.Properties{
		ContentType: "text/plain", ResponseTopic: "re/me", CorrelationData: []byte("c"), PayloadFormat: 1, PayloadFormatFlag: true,
		User: []packets.UserProperty{{Key: "k", Val: "v"}}, MessageExpiryInterval: 50,
	}
	c := openClient(t, b, "c", withWill("will", "gone", 0, func(pk *packets.Packet) {
		pk.Connect.WillProperties, pk.Connect.WillRetain, pk.Connect.WillQos = want, true, 2
	}))
	c.leave(b, "c")
	pk := sub.expect(packets.Publish)
	require.Equal(t, "gone", string(pk.Payload))
	require.Equal(t, byte(2), pk.FixedHeader.Qos)
	require.Equal(t, want, pk.Properties)
	late := openClient(t, b, "late")
	late.sub("will", 0)
	require.Equal(t, "gone", string(late.expect(packets.Publish).Payload))
}

func testEmptyWillIsAllowed(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub"), openClient(t, b, "pub")
	pub.publish1("will", "there", markRetain)
	openClient(t, b, "c", withWill("will", "", 0, func(pk *packets.Packet) { pk.Connect.WillRetain = true })).leave(b, "c")
	require.Eventually(t, func() bool { return b.Stats().Retained == 0 }, testTimeout, time.Millisecond)
	sub.sub("will", 1)
	sub.nothing()
}

func testNoWillAfterDisconnect(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub := openClient(t, b, "sub")
	sub.sub("will", 1)
	openClient(t, b, "c", withWill("will", "gone", 0)).disconnect()
	c := openClient(t, b, "c", withWill("will", "with will", 0))
	c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}, ReasonCode: 4})
	require.Equal(t, []string{"with will"}, sub.collect(1))
}

func testWillDelay(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub := openClient(t, b, "sub")
	sub.sub("will/#", 1)
	begun := time.Now()
	openClient(t, b, "gone", persistentSession, withWill("will/gone", "gone", 1)).leave(b, "gone")
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
		b, err := New(Options{Auth: Auth{Anonymous: anonymousOperator}})
		require.NoError(t, err)
		connect := func(id string, opts ...connectOption) *testClient {
			ours, theirs := net.Pipe()
			go (&listener{connects: newRateLimiter(1000), b: b, loopback: true}).serveConn(pipeConn{theirs})
			c := wrapConn(t, ours)
			require.Equal(t, byte(0), c.connect(id, opts...))
			return c
		}
		sub := connect("sub", keepAlive(0))
		sub.sub("will", 0)
		const delay = 10 * time.Second
		dying := func() *testClient {
			return connect("c", persistentSession, withWill("will", "gone", uint32(delay.Seconds())))
		}
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
func testWillDelayEndsWithTheSession(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub := openClient(t, b, "sub")
	sub.sub("will/#", 1)
	openClient(t, b, "clean", withWill("will/clean", "gone", 3600)).leave(b, "clean")
	require.Equal(t, []string{"gone"}, sub.collect(1))
	openClient(t, b, "short", persistentSession, func(pk *packets.Packet) { pk.Properties.SessionExpiryInterval = 1 },
		withWill("will/short", "expired", 3600)).leave(b, "short")
	require.Equal(t, []string{"expired"}, sub.collect(1))
	openClient(t, b, "restart", persistentSession, withWill("will/restart", "restarted", 3600)).leave(b, "restart")
	openClient(t, b, "restart")
	require.Equal(t, []string{"restarted"}, sub.collect(1))
}

// The will of a connection that is taken over comes before anything of the new one.
func testWillOnTakeover(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub := openClient(t, b, "sub")
	sub.sub("state", 1)
	openClient(t, b, "c", persistentSession, withWill("state", "offline", 0))
	again := openClient(t, b, "c", persistentSession, withWill("state", "offline", 60))
	again.publish1("state", "online")
	require.Equal(t, []string{"offline", "online"}, sub.collect(2))
	openClient(t, b, "c", persistentSession)
	sub.nothing()
}

func TestWillGoesThePathOfAPublish(t *testing.T) {
	tree := newFakeTree()
	b := startBroker(t, withTree(tree))
	const state = "v1/nodes/n1/mappers/m/state"
	openClient(t, b, "mapper", withWill(state, "offline", 0)).leave(b, "mapper")
	require.Eventually(t, func() bool { tree.mu.Lock(); defer tree.mu.Unlock(); return len(tree.got) == 1 }, testTimeout, time.Millisecond)
	require.Equal(t, state, tree.got[0].Topic)
	require.Equal(t, "mapper", tree.got[0].Publisher.ClientID)

	c := dialBroker(t, b)
	require.Equal(t, byte(0x90), c.connect("bad", withWill("a/#", "x", 0)))
	_, n := c.ended()
	require.Zero(t, n)
}

// A will that can't be published is refused at CONNECT, for its place and for its payload.
func TestWillsThatCantBePublished(t *testing.T) {
	b := startBroker(t, withTree(newFakeTree()))
	lie := func(pk *packets.Packet) {
		pk.Connect.WillProperties.PayloadFormat, pk.Connect.WillProperties.PayloadFormatFlag = 1, true
	}
	for code, will := range map[byte]connectOption{
		0x87: withWill("v1/nodes/n1/spec", "mine", 0), 0x90: withWill("v1/nodes/n1/nonsense", "x", 0), 0x99: withWill("a", "\xff", 0, lie),
	} {
		c := dialBroker(t, b)
		require.Equal(t, code, c.connect("c", will))
		require.Contains(t, c.connack.Properties.ReasonString, "will: ")
	}
	require.Equal(t, byte(connackNotAuthorized), dialBroker(t, b).connect("three", version311, withWill("v1/nodes/n1/spec", "mine", 0)))
	require.Equal(t, int64(4), b.Stats().Rejected[daemon.Label(willRefused)])
}

// The will of a session that ends with its connection is published when the broker comes back after a kill, once, and not
// that of a client that had disconnected.
func TestWillAfterAKill(t *testing.T) {
	dir := t.TempDir()
	b, _ := startKept(t, dir, nil)
	openClient(t, b, "sub", persistentSession).sub("will/#", 1)
	openClient(t, b, "five", withWill("will/five", "gone", 60))
	openClient(t, b, "three", version311, withWill("will/three", "gone", 0))
	openClient(t, b, "left", withWill("will/left", "gone", 0)).disconnect()
	lost := openClient(t, b, "lost", withWill("will/lost", "gone", 0))
	lost.leave(b, "lost")
	openClient(t, b, "flush").publish1("elsewhere", "takes the rest to disk", markRetain)

	for _, n := range []int{3, 0} {
		b, dir = restartCrashed(t, dir, nil)
		sub := openClient(t, b, "sub", persistentSession)
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
		flush := openClient(t, b, "flush") // a message that is acknowledged before it is on disk is deleted once it is there
		flush.publish1("elsewhere", "takes the messages to disk", markRetain)
		flush.publish1("elsewhere", "takes their deletion to disk", markRetain)
	}
}

// What a client published before is sent, and acknowledged, while the tree makes it wait: its part of the tree's queue may be full.
func TestEarlierMessagesAreSentWhileTheTreeMakesTheirPublisherWait(t *testing.T) {
	for name, options := range map[string][]connectOption{"session": nil, "durable session": {persistentSession}} {
		t.Run(name, func(t *testing.T) {
			tree := &slowTree{fakeTree: newFakeTree(), begun: make(chan struct{}), goOn: make(chan struct{})}
			b, _ := startKept(t, t.TempDir(), func(o *Options) { o.Tree = tree })
			sub, pub := openClient(t, b, "sub", options...), openClient(t, b, "pub")
			sub.sub("own/+", 1)
			pub.raw(slices.Concat(
				encodePacket(t, publishPacket("own/0", "x", 0, 0), 5), encodePacket(t, publishPacket("own/1", "x", 1, 1), 5), encodePacket(t, publishPacket(reportedTopic, "1", 1, 2), 5)))
			<-tree.begun
			require.Equal(t, "own/0", sub.expect(packets.Publish).TopicName)
			require.Equal(t, "own/1", sub.expect(packets.Publish).TopicName)
			require.EqualValues(t, 1, pub.expect(packets.Puback).PacketID)
			close(tree.goOn)
			require.EqualValues(t, 2, pub.expect(packets.Puback).PacketID)
		})
	}
}
