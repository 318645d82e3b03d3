// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
)

// What is retained for a client that is back is what it says, and not what the will of its connection before says.
func testAWillNeverOvertakesTheNextConnectionsMessages(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	will := withWill("state", "offline", 0, func(pk *packets.Packet) { pk.Connect.WillRetain = true })
	many := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Subscribe}, PacketID: 9}
	for i := range 50 { // so that the end takes time
		many.Filters = append(many.Filters, packets.Subscription{Filter: fmt.Sprint("x/", i)})
	}
	for range 50 {
		c := openClient(t, b, "c", will)
		c.send(many)
		c.expect(packets.Suback)
		next := dialBroker(t, b)
		if tcp, ok := c.conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.conn.Close()
		require.Equal(t, byte(0), next.connect("c", will))
		require.Zero(t, next.publish1("state", "online", markRetain).ReasonCode)
		next.disconnect()
		require.Equal(t, "online", string(b.retained.get("state").Payload))
	}
}

// A session of expiry 0 ends with its connection, although the next asks for no clean start and none after it either; and a
// delayed will is due with the session's end.
func testASessionOfExpiry0EndsWhenItIsTakenOver(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub"), openClient(t, b, "pub")
	sub.sub("will", 0)
	old := openClient(t, b, "c", withWill("will", "gone", 3600))
	old.sub("a", 1)
	next := openClient(t, b, "c", resumeSession)
	require.False(t, next.connack.SessionPresent)
	require.Equal(t, []string{"gone"}, sub.collect(1))
	pub.publish1("a", "x")
	next.nothing()
}

// How a connection or session ends, and what becomes of what it holds: see endConnection.
func TestEachEndOfASession(t *testing.T) {
	for _, e := range []struct {
		how    string
		delay  uint32
		expiry uint32
		will   int  // how often it is published
		stays  bool // the session, with its records
		shared bool // messages of shared subscriptions go to the other member
		end    func(t *testing.T, b *Broker, c *testClient)
	}{
		{"DISCONNECT", 0, 3600, 0, true, false, func(_ *testing.T, _ *Broker, c *testClient) { c.disconnect() }},
		{"DISCONNECT", 0, 0, 0, false, true, func(_ *testing.T, _ *Broker, c *testClient) { c.disconnect() }},
		{"lost", 0, 3600, 1, true, false, func(_ *testing.T, b *Broker, c *testClient) { c.leave(b, "c") }},
		{"lost, delayed", 3600, 3600, 0, true, false, func(_ *testing.T, b *Broker, c *testClient) { c.leave(b, "c") }},
		{"lost, delayed", 3600, 0, 1, false, true, func(_ *testing.T, b *Broker, c *testClient) { c.leave(b, "c") }},
		{"disconnected by the program", 0, 3600, 1, true, false, func(_ *testing.T, b *Broker, c *testClient) { b.Disconnect("c", ""); c.ended() }},
		{"taken over, resumed", 0, 3600, 1, true, false, func(t *testing.T, b *Broker, _ *testClient) { openClient(t, b, "c", persistentSession).disconnect() }},
		{"taken over, resumed, delayed", 3600, 3600, 0, true, false, func(t *testing.T, b *Broker, _ *testClient) { openClient(t, b, "c", persistentSession).disconnect() }},
		{"taken over, anew", 3600, 3600, 1, false, true, func(t *testing.T, b *Broker, _ *testClient) { openClient(t, b, "c").disconnect() }},
		{"expired", 3600, 1, 1, false, true, func(t *testing.T, b *Broker, c *testClient) {
			c.leave(b, "c")
			require.Eventually(t, func() bool { return b.clients.session("c") == nil }, testTimeout, time.Millisecond)
		}},
		{"ended by an operator", 3600, 3600, 1, false, true, func(t *testing.T, b *Broker, _ *testClient) { require.NoError(t, b.EndSession("c")) }},
		{"ended by an operator while away", 3600, 3600, 1, false, true, func(t *testing.T, b *Broker, c *testClient) {
			c.leave(b, "c")
			require.NoError(t, b.EndSession("c"))
		}},
		{"identity ended", 0, 3600, 0, false, true, func(_ *testing.T, b *Broker, c *testClient) {
			require.True(t, b.EndIdentity(func(id *Identity) bool { return id.ClientID == "c" }, "revoked"))
			c.ended()
		}},
		{"identity ended while away", 3600, 3600, 0, false, true, func(t *testing.T, b *Broker, c *testClient) {
			c.leave(b, "c")
			require.False(t, b.EndIdentity(func(id *Identity) bool { return id.ClientID == "c" }, "revoked"))
		}},
	} {
		t.Run(fmt.Sprint(e.how, ", expiry ", e.expiry), func(t *testing.T) {
			told := &recordedPresence{}
			dir := t.TempDir()
			b, _ := startKept(t, dir, func(o *Options) { o.Presence = told })
			sub := openClient(t, b, "sub")
			sub.sub("will", 0)
			c := openClient(t, b, "c", withSessionExpiry(e.expiry), withWill("will", "gone", e.delay), receiveMaximum(1))
			c.sub("$share/g/work", 1)
			openClient(t, b, "pub").publish1("work", "done")
			c.expect(packets.Publish) // and not acknowledged
			other := openClient(t, b, "other")
			other.sub("$share/g/work", 1)
			kept := 0
			if e.expiry > 0 {
				kept = 1
			}
			require.Equal(t, kept, b.Stats().Kept)

			e.end(t, b, c)
			require.Eventually(t, func() bool { return b.clients.connected("c") == nil }, testTimeout, time.Millisecond)
			b.clients.locks.lock("c")() // it has ended completely
			if e.will > 0 {
				require.Equal(t, []string{"gone"}, sub.collect(1))
			}
			sub.nothing()
			require.Equal(t, e.stays, b.clients.session("c") != nil)
			require.Equal(t, e.stays, b.Stats().Kept == 1)
			if e.shared {
				require.Equal(t, []string{"done"}, other.collect(1))
			}
			other.nothing()
			log := told.entries()
			require.Contains(t, log, "-c")
			openClient(t, b, "flush").publish1("elsewhere", "takes the rest to disk", markRetain)
			again, _ := restartCrashed(t, dir, nil)
			require.Equal(t, e.stays, again.clients.session("c") != nil, "on disk")
		})
	}
}

// Who has left without its will, and sees that the broker knows, has no will although the broker is killed now.
func TestWhoLeftHasNoWillAfterAKill(t *testing.T) {
	dir := t.TempDir()
	b, _ := startKept(t, dir, nil)
	openClient(t, b, "sub", persistentSession).sub("will", 1)
	for i := range 5 {
		openClient(t, b, "c", withWill("will", strconv.Itoa(i), 0)).disconnect()
		again, _ := restartCrashed(t, dir, nil)
		openClient(t, again, "sub", persistentSession).nothing()
	}
}

// Messages of a shared subscription that can't be stored for another member stay where they are.
func TestMessagesThatCantBeRedistributedAreKept(t *testing.T) {
	dir := t.TempDir()
	j, err := journal.Open(journal.Options{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() })
	f := &failingJournal{Journal: j}
	b := startBroker(t, func(o *Options) { o.Journal = f })
	c, other := openClient(t, b, "c", persistentSession), openClient(t, b, "other", persistentSession)
	c.sub("$share/g/work", 1)
	openClient(t, b, "pub").publish1("work", "done")
	c.expect(packets.Publish) // and not acknowledged
	other.sub("$share/g/work", 1)
	other.leave(b, "other")
	ended := b.clients.session("c")
	f.broken.Store(true)
	_ = b.EndSession("c")
	require.Eventually(t, func() bool {
		b.clients.mu.Lock()
		defer b.clients.mu.Unlock()
		return ended.expiryInterval == 0
	}, testTimeout, time.Millisecond)
	done := make(chan struct{})
	j.Commit(nil, func(error) { close(done) })
	<-done
	again, _ := restartCrashed(t, dir, nil)
	require.Equal(t, []string{"done"}, openClient(t, again, "other", persistentSession).collect(1))
	require.Nil(t, again.clients.session("c"))
}

// A new session of another user, under an identifier that the old one's user may not have, counts as any new session.
func TestAReservedIdentifierCountsAgainstTheLimitOfSessions(t *testing.T) {
	dir := t.TempDir()
	b, stop := startKept(t, dir, func(o *Options) { withUsers(o); o.Limits.PerUser = 1 })
	openClient(t, b, "mapper-any", persistentSession, credentialsOf("op", "secret")).leave(b, "mapper-any") // on a hub no mapper's
	stop()
	b, _ = startKept(t, dir, func(o *Options) { withUsers(o); o.Limits.PerUser = 1; o.Node = "n1" })
	openClient(t, b, "mapper-other", persistentSession, credentialsOf("any", "secret"))
	require.Equal(t, byte(0x97), dialBroker(t, b).connect("mapper-any", persistentSession, credentialsOf("any", "secret")))
}

// A session that begins leaves the others' routes as they are.
func TestANewSessionThrowsNoRouteAway(t *testing.T) {
	b := startBroker(t, nil)
	before := b.router.index.gen.Load()
	openClient(t, b, "c", persistentSession).disconnect()
	openClient(t, b, "c", persistentSession).disconnect()
	openClient(t, b, "c").disconnect()
	require.Equal(t, before, b.router.index.gen.Load())
}
