package broker

import (
	"fmt"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"
)

// exactly is a client's end of QoS 2: what it has taken, and the packet ids that the broker has not released.
type exactly struct {
	times map[string]int
	open  map[uint16]bool
}

func newExactly() *exactly { return &exactly{make(map[string]int), make(map[uint16]bool)} }

// take answers what comes until so many topics were taken, and each message at QoS 2 is through.
func (e *exactly) take(c *tc, n int) {
	c.t.Helper()
	for len(e.times) < n || len(e.open) > 0 {
		pk, err := c.read(patience)
		require.NoError(c.t, err, "%d of %d, open %v", len(e.times), n, e.open)
		switch pk.FixedHeader.Type {
		case packets.Publish:
			if !e.open[pk.PacketID] {
				e.times[pk.TopicName]++
			}
			if pk.FixedHeader.Qos == 1 {
				c.ack(packets.Puback, pk.PacketID)
				continue
			}
			e.open[pk.PacketID] = true
			c.ack(packets.Pubrec, pk.PacketID)
		case packets.Pubrel:
			delete(e.open, pk.PacketID)
			c.ack(packets.Pubcomp, pk.PacketID)
		}
	}
}

// killedAfter kills the broker once it has dealt with all that the client has sent, and all that is on disk.
func (e *exactly) killedAfter(t *testing.T, dir string, b *Broker, c *tc) (*Broker, string) {
	t.Helper()
	c.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	c.nextOf(packets.Pingresp, func(pk packets.Packet) {
		if pk.FixedHeader.Qos == 1 { // which is acknowledged with that
			e.times[pk.TopicName]++
		}
	})
	open(t, b, "flush").publish1("elsewhere", "takes the rest to disk", retain)
	return restarted(t, dir, nil)
}

func (e *exactly) once(t *testing.T, n int) {
	t.Helper()
	require.Len(t, e.times, n)
	for topic, times := range e.times {
		require.Equal(t, 1, times, topic)
	}
}

// What is retained comes once at QoS 2 though the broker is killed in the middle of it, again and again [4.3.3].
func TestTrial24RetainedComesOnceOverKills(t *testing.T) {
	dir := t.TempDir()
	b, _ := kept(t, dir, nil)
	const all = 400
	pub := open(t, b, "pub")
	for i := range all {
		pub.publish(fmt.Sprintf("r/%03d", i), "x", 2, 1, retain)
		pub.expect(packets.Pubrec)
		pub.ack(packets.Pubrel, 1)
		pub.expect(packets.Pubcomp)
	}
	e := newExactly()
	sub := open(t, b, "sub", persistent, receiveMaximum(20))
	sub.sub("r/#", 2)
	for _, n := range []int{130, 131, 200, 270} {
		e.take(sub, n)
		b, dir = restarted(t, dir, nil) // at any moment: some are on their way
		sub = open(t, b, "sub", persistent, receiveMaximum(20))
		require.True(t, sub.connack.SessionPresent)
	}
	e.take(sub, all)
	sub.nothing()
	e.once(t, all)
}

// A client that leaves right after its SUBACK, and a broker that is killed: what is retained later comes from the queue,
// and not again as retained; also once it was acknowledged, while the rest is still to come.
func TestTrial24WhatCameLiveIsKnownAfterAKill(t *testing.T) {
	for _, qos := range []byte{1, 2} {
		t.Run(fmt.Sprint(qos), func(t *testing.T) {
			dir := t.TempDir()
			b, _ := kept(t, dir, nil)
			pub := open(t, b, "pub")
			set := func(topic string) {
				pub.publish(topic, "x", qos, 9, retain)
				pub.expect(map[byte]byte{1: packets.Puback, 2: packets.Pubrec}[qos])
				if qos == 2 {
					pub.ack(packets.Pubrel, 9)
					pub.expect(packets.Pubcomp)
				}
			}
			const old = 200
			for i := range old {
				set(fmt.Sprintf("r/%03d", i))
			}
			sub := open(t, b, "sub", persistent, receiveMaximum(1))
			sub.sub("r/#", qos)
			e := newExactly()
			e.take(sub, 1) // the others aren't fetched before there is room for them
			sub.leave(b, "sub")
			set("r/new")
			set("r/newer")
			for n := 40; n < old; n += 40 {
				b, dir = restarted(t, dir, nil)
				sub = open(t, b, "sub", persistent, receiveMaximum(1))
				e.take(sub, n)
				b, dir = e.killedAfter(t, dir, b, sub)
				sub = open(t, b, "sub", persistent, receiveMaximum(1))
			}
			e.take(sub, old+2)
			sub.nothing()
			require.Equal(t, 1, e.times["r/new"])
			require.Equal(t, 1, e.times["r/newer"])
			require.Len(t, e.times, old+2)
			if qos == 2 {
				e.once(t, old+2)
			}
		})
	}
}

// Nothing of a replay is left on disk once it is over.
func TestTrial24AReplayLeavesNothingOnDisk(t *testing.T) {
	dir := t.TempDir()
	b, stop := kept(t, dir, nil)
	pub, sub := open(t, b, "pub"), open(t, b, "sub", persistent, receiveMaximum(1))
	for i := range 70 {
		pub.publish1(fmt.Sprintf("r/%03d", i), "x", retain)
	}
	sub.sub("r/#", 1)
	pub.publish1("r/new", "x", retain)
	newExactly().take(sub, 71)
	sub.nothing()
	require.Eventually(t, func() bool { return b.Stats().Queued == 0 }, patience, time.Millisecond)
	stop()
	require.Equal(t, 71+3, recordsIn(t, dir), "the retained ones, the session, its subscription, how far it was sent")
}
