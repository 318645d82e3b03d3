package broker

import (
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
		pub.publish("a", strings.Repeat("x", int(at.limits.MaximumPacket)-100), 0, 0)
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
