package broker

import (
	"strconv"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"
)

// publishTo has n numbered messages of QoS 1 acknowledged.
func publishTo(t *testing.T, b *Broker, topic string, n int) {
	t.Helper()
	open(t, b, "publisher").burst(topic, 0, n)
}

// seenBy collects what members of a group acknowledge, until all numbers have come.
func seenBy(t *testing.T, n int, members ...*tc) {
	t.Helper()
	all := make(chan string, 2*n)
	for _, c := range members {
		go func() {
			for {
				pk, err := c.read(patience)
				if err != nil || pk.FixedHeader.Type != packets.Publish {
					return
				}
				all <- string(pk.Payload)
				ack := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: pk.PacketID}
				_, _ = c.conn.Write(encode(c.t, ack, c.version)) // the test may be over
			}
		}()
	}
	seen := make(map[string]bool)
	for len(seen) < n {
		select {
		case text := <-all:
			seen[text] = true
		case <-time.After(patience):
			t.Fatalf("%d of %d messages came", len(seen), n)
		}
	}
}

// What was queued for a member, or sent to it and not acknowledged, goes to the others when it
// dies [4.8.2], however many messages there are.
func TestTrial25AMemberThatDiesLosesNothing(t *testing.T) {
	for _, n := range []int{10, 6000} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			b := start(t, nil)
			var members []*tc
			for i := range 3 {
				c := open(t, b, "worker"+strconv.Itoa(i), receiveMaximum(20))
				c.sub("$share/workers/jobs", 1)
				members = append(members, c)
			}
			publishTo(t, b, "jobs", n) // nobody acknowledges any
			members[0].leave(b, "worker0")
			seenBy(t, n, members[1:]...)
			require.Zero(t, b.Stats().Dropped["session_ended"])
		})
	}
}

// The same for a session that ends by a clean start, and for one that outlives its connection and expires, whose
// messages are on disk before they are no longer there.
func TestTrial25SessionsThatEnd(t *testing.T) {
	dir := t.TempDir()
	b, _ := kept(t, dir, nil)
	one, two := open(t, b, "one", persistent), open(t, b, "two", persistent)
	one.sub("$share/workers/jobs", 1)
	two.sub("$share/workers/jobs", 1)
	publishTo(t, b, "jobs", 10)
	open(t, b, "one") // a clean start
	b, _ = restarted(t, dir, nil)
	again := open(t, b, "two", persistent)
	seenBy(t, 10, again)
}

// A member that expires while the broker is down, or had expired when it was killed, leaves its messages as well.
func TestTrial25ExpiredWhileTheBrokerWasDown(t *testing.T) {
	dir, now := t.TempDir(), &clock{now: time.Now()}
	options := func(o *Options) { o.Now = now.read }
	b, stop := kept(t, dir, options)
	gone, stays := open(t, b, "gone", persistent, expires(60)), open(t, b, "stays", persistent)
	for _, c := range []*tc{gone, stays} {
		c.sub("$share/workers/jobs", 1)
	}
	publishTo(t, b, "jobs", 10)
	stop()
	now.add(2 * time.Minute)
	b, _ = kept(t, dir, options)
	seenBy(t, 10, open(t, b, "stays", persistent))
	require.Eventually(t, func() bool { return b.Stats().Sessions == 1 }, patience, time.Millisecond)
}

// What was sent at QoS 2 is nobody else's [MQTT-4.8.2-5], nor what a member refused [MQTT-4.8.2-6]; with no member left it
// is counted as dropped.
func TestTrial25NotEverythingIsHandedOver(t *testing.T) {
	b := start(t, nil)
	first, pub := open(t, b, "first", receiveMaximum(2)), open(t, b, "pub")
	first.sub("$share/workers/jobs", 2)
	for i, qos := range []byte{2, 1, 2, 1} {
		pub.publish("jobs", strconv.Itoa(i), qos, uint16(i+1))
		pub.expect([]byte{0, packets.Puback, packets.Pubrec}[qos])
	}
	require.Equal(t, "0", string(first.expect(packets.Publish).Payload))
	refused := first.expect(packets.Publish)
	first.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: refused.PacketID, ReasonCode: 0x80})
	require.Equal(t, "2", string(first.expect(packets.Publish).Payload))
	second := open(t, b, "second")
	second.sub("$share/workers/jobs", 1)
	first.leave(b, "first")
	require.Equal(t, []string{"3"}, second.collect(1))
	second.nothing()
	require.Equal(t, int64(2), b.Stats().Dropped["session_ended"])
	second.publish("jobs", "last", 1, 1)
	second.nextOf(packets.Puback, func(packets.Packet) {})
	second.leave(b, "second")
	require.Eventually(t, func() bool { return b.Stats().Queued == 0 }, patience, time.Millisecond)
}
