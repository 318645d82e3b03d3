package broker

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"
)

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
// come after a newer one that was acknowledged. What was being applied comes before, and what
// arrived behind it not at all.
func TestTrial35NothingOfTheOldConnectionAfterCONNACK(t *testing.T) {
	tree := &slowTree{fakeTree: newFakeTree(), begun: make(chan struct{}), goOn: make(chan struct{})}
	b := start(t, func(o *Options) { o.Tree = tree })
	old := open(t, b, "mapper", persistent)
	old.raw(append(
		encode(t, publishPacket(reported, "1", 1, 1), 5),
		encode(t, publishPacket(reported, "2", 1, 2), 5)...))
	<-tree.begun
	again := dial(t, b)
	again.send(connectPacket("mapper", persistent))
	require.Eventually(t, func() bool { return b.Stats().Takeovers == 1 }, patience, time.Millisecond)
	_, err := again.read(100 * time.Millisecond) // the broker has nothing else to do, and could answer
	require.Error(t, err, "CONNACK while the old connection's publish is being applied")
	close(tree.goOn)
	require.True(t, again.expect(packets.Connack).SessionPresent)
	require.Zero(t, again.publish1(reported, "3").ReasonCode)
	var got []string
	for _, m := range tree.got {
		got = append(got, string(m.Payload))
	}
	require.Equal(t, []string{"1", "3"}, got)
}

// Connections that fight over a session end one another's packets in order, and the last one is let in.
func TestTrial35ManyTakeoversKeepTheOrder(t *testing.T) {
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
