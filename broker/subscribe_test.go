// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
)

func testSharedGroupLeavesOutWhoIsAway(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	first, second, pub := openClient(t, b, "first", persistentSession), openClient(t, b, "second", persistentSession), openClient(t, b, "pub")
	first.sub("$share/g/a", 1)
	second.sub("$share/g/a", 1)
	pub.burst("a", 0, 10)
	all := append(first.collect(5), second.collect(5)...)
	require.ElementsMatch(t, numberedPayloads(0, 10), all)

	second.leave(b, "second")
	pub.burst("a", 10, 10)
	require.Equal(t, numberedPayloads(10, 10), first.collect(10))
	first.leave(b, "first")
	pub.burst("a", 20, 4) // nobody is there: they wait
	first, second = openClient(t, b, "first", persistentSession), openClient(t, b, "second", persistentSession)
	require.ElementsMatch(t, numberedPayloads(20, 4), append(first.collect(2), second.collect(2)...))
}

func testSharedGroupForgetsWhoExpired(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	short := func(pk *packets.Packet) { pk.Properties.SessionExpiryInterval = 1 }
	first, second, pub := openClient(t, b, "first", persistentSession), openClient(t, b, "second", persistentSession, short), openClient(t, b, "pub")
	first.sub("$share/g/a", 1)
	second.sub("$share/g/a", 1)
	second.leave(b, "second")
	require.Eventually(t, func() bool { return b.Stats().Sessions == 2 }, testTimeout, 10*time.Millisecond)
	first.leave(b, "first")
	pub.burst("a", 0, 10)
	first = openClient(t, b, "first", persistentSession)
	require.Equal(t, numberedPayloads(0, 10), first.collect(10))
}

func testOverlappingSubscriptions(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub"), openClient(t, b, "pub")
	sub.sub("a/#", 0, subID(3))
	sub.sub("a/+", 2, subID(1))
	sub.sub("a/b", 1)
	pub.publish("a/b", "x", 2, 1)
	pk := sub.expect(packets.Publish)
	require.Equal(t, byte(2), pk.FixedHeader.Qos)
	require.Equal(t, []int{1, 3}, pk.Properties.SubscriptionIdentifier)
	sub.nothing()
}

func testFilterCoversItsParent(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub"), openClient(t, b, "pub")
	sub.sub("a/+/#", 1)
	pub.publish1("a", "no")
	pub.publish1("a/b", "yes")
	pub.publish1("a/b/c/d", "deep")
	require.Equal(t, []string{"yes", "deep"}, sub.collect(2))
}

func testNoLocal(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	c, other := openClient(t, b, "c"), openClient(t, b, "other")
	c.sub("a", 1, subFlags(func(s *packets.Subscription) { s.NoLocal = true }))
	c.publish1("a", "own")
	other.publish1("a", "other's")
	require.Equal(t, []string{"other's"}, c.collect(1))
	c.sub("+", 1)
	c.publish("a", "own", 1, 3)
	c.nextOf(packets.Puback, func(pk packets.Packet) { require.Equal(t, "own", string(pk.Payload)) })
}

func testUnsubscribe(t *testing.T, at brokerSetup) {
	b := at.start(t, nil)
	sub, pub := openClient(t, b, "sub"), openClient(t, b, "pub")
	sub.sub("a", 1)
	require.Equal(t, []byte{0, 0x11}, sub.unsub("a", "b"))
	pub.publish1("a", "x")
	sub.nothing()
	require.Zero(t, b.Stats().Subscriptions)
}

// Filters are bounded by what they cost, not by their number alone, and that is known over a
// restart.
func testFiltersAreWeighed(t *testing.T, at brokerSetup) {
	few := func(o *Options) { o.Limits.Session.State = 256 << 10 } // of which one user has half
	dir := t.TempDir()
	b, stop := at.startOn(t, dir, few)
	sub := openClient(t, b, "sub", persistentSession)
	code := func(filter string) byte { return sub.subscribe(filter, 1).ReasonCodes[0] }
	long := func(name string) string { return name + strings.Repeat("x", 65_000) }
	sub.sub(long("a"), 1)
	sub.sub(long("b"), 1)
	refused := sub.subscribe(long("c"), 1)
	require.Equal(t, []byte{codeQuota}, refused.ReasonCodes)
	require.Contains(t, refused.Properties.ReasonString, "limits.session.state")
	sub.sub(long("a"), 2) // it has that one
	sub.unsub(long("b"))
	sub.sub(long("c"), 1)
	held := b.quotas.state.Held()
	stop()

	b, _ = at.startOn(t, dir, few)
	require.Equal(t, held, b.quotas.state.Held(), "what comes from disk counts as what clients ask for")
	sub = openClient(t, b, "sub", persistentSession)
	require.Equal(t, byte(codeQuota), code(long("d")))
	sub.unsub(long("a"))
	deep := func(i int) string { return fmt.Sprint(i) + strings.Repeat("/a", 199) }
	sub.sub(deep(0), 1)
	sub.sub(deep(1), 1)
	require.Equal(t, byte(codeQuota), code(deep(2)), "levels count, too")
	other := openClient(t, b, "other", persistentSession) // the same user
	require.Equal(t, []byte{codeQuota}, other.subscribe(deep(3), 1).ReasonCodes)
}

// publishTo has n numbered messages of QoS 1 acknowledged.
func publishTo(t *testing.T, b *Broker, topic string, n int) {
	t.Helper()
	openClient(t, b, "publisher").burst(topic, 0, n)
}

// countReceived collects what members of a group acknowledge, until all numbers have come.
func countReceived(t *testing.T, n int, members ...*testClient) {
	t.Helper()
	all := make(chan string, 2*n)
	for _, c := range members {
		go func() {
			for {
				pk, err := c.read(testTimeout)
				if err != nil || pk.FixedHeader.Type != packets.Publish {
					return
				}
				all <- string(pk.Payload)
				ack := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: pk.PacketID}
				_, _ = c.conn.Write(encodePacket(c.t, ack, c.version)) // the test may be over
			}
		}()
	}
	seen := make(map[string]bool)
	for len(seen) < n {
		select {
		case text := <-all:
			seen[text] = true
		case <-time.After(testTimeout):
			t.Fatalf("%d of %d messages came", len(seen), n)
		}
	}
}

// What was queued for a member, or sent to it and not acknowledged, goes to the others when it
// dies [4.8.2], however many messages there are.
func TestAMemberThatDiesLosesNothing(t *testing.T) {
	for _, n := range []int{10, 6000} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			b := startBroker(t, nil)
			var members []*testClient
			for i := range 3 {
				c := openClient(t, b, "worker"+strconv.Itoa(i), receiveMaximum(20))
				c.sub("$share/workers/jobs", 1)
				members = append(members, c)
			}
			publishTo(t, b, "jobs", n) // nobody acknowledges any
			members[0].leave(b, "worker0")
			countReceived(t, n, members[1:]...)
			require.Zero(t, b.Stats().Dropped["session_ended"])
		})
	}
}

// The same for a session that ends by a clean start, and for one that outlives its connection and expires, whose
// messages are on disk before they are no longer there.
func TestMessagesOfAnEndedSharedSessionAreHandedOver(t *testing.T) {
	dir := t.TempDir()
	b, _ := startKept(t, dir, nil)
	one, two := openClient(t, b, "one", persistentSession), openClient(t, b, "two", persistentSession)
	one.sub("$share/workers/jobs", 1)
	two.sub("$share/workers/jobs", 1)
	publishTo(t, b, "jobs", 10)
	openClient(t, b, "one") // a clean start
	b, _ = restartCrashed(t, dir, nil)
	again := openClient(t, b, "two", persistentSession)
	countReceived(t, 10, again)
}

// A member that expires while the broker is down, or had expired when it was killed, leaves its messages as well.
func TestASharedSessionThatExpiredWhileTheBrokerWasDownIsHandedOver(t *testing.T) {
	dir, now := t.TempDir(), &testClock{now: time.Now()}
	options := func(o *Options) { o.Now = now.read }
	b, stop := startKept(t, dir, options)
	gone, stays := openClient(t, b, "gone", withSessionExpiry(60)), openClient(t, b, "stays", persistentSession)
	for _, c := range []*testClient{gone, stays} {
		c.sub("$share/workers/jobs", 1)
	}
	publishTo(t, b, "jobs", 10)
	stop()
	now.add(2 * time.Minute)
	b, _ = startKept(t, dir, options)
	countReceived(t, 10, openClient(t, b, "stays", persistentSession))
	require.Eventually(t, func() bool { return b.Stats().Sessions == 1 }, testTimeout, time.Millisecond)
}

// What was sent at QoS 2 is nobody else's [MQTT-4.8.2-5], nor what a member refused [MQTT-4.8.2-6]; with no member left it
// is counted as dropped.
func TestNotEverythingIsHandedOver(t *testing.T) {
	b := startBroker(t, nil)
	first, pub := openClient(t, b, "first", receiveMaximum(2)), openClient(t, b, "pub")
	first.sub("$share/workers/jobs", 2)
	for i, qos := range []byte{2, 1, 2, 1} {
		pub.publish("jobs", strconv.Itoa(i), qos, uint16(i+1))
		pub.expect([]byte{0, packets.Puback, packets.Pubrec}[qos])
	}
	require.Equal(t, "0", string(first.expect(packets.Publish).Payload))
	refused := first.expect(packets.Publish)
	first.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: refused.PacketID, ReasonCode: 0x80})
	require.Equal(t, "2", string(first.expect(packets.Publish).Payload))
	second := openClient(t, b, "second")
	second.sub("$share/workers/jobs", 1)
	first.leave(b, "first")
	require.Equal(t, []string{"3"}, second.collect(1))
	second.nothing()
	require.Equal(t, int64(2), b.Stats().Dropped["session_ended"])
	second.publish("jobs", "last", 1, 1)
	second.nextOf(packets.Puback, func(packets.Packet) {})
	second.leave(b, "second")
	require.Eventually(t, func() bool { return b.Stats().Queued == 0 }, testTimeout, time.Millisecond)
}

// Whether anybody is subscribed, and who, are answered by two walks that must agree
// with the contract's rule.
func TestIndexAgreesWithTheRule(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	pick := func(words ...string) string {
		levels := make([]string, rnd.IntN(4)+1)
		for i := range levels {
			levels[i] = words[rnd.IntN(len(words))]
		}
		return strings.Join(levels, "/")
	}
	for range 2000 {
		var x subscriptionIndex
		var subs []*subscription
		for range rnd.IntN(4) {
			filter := pick("a", "b", "$c", "", "+")
			if rnd.IntN(3) == 0 {
				filter += "/#"
			}
			s := newSubscription(&client{}, filter)
			x.add(s)
			subs = append(subs, s)
			if rnd.IntN(4) == 0 {
				x.remove(s)
				subs = subs[:len(subs)-1]
			}
		}
		topic := pick("a", "b", "$c", "")
		want, found := 0, 0
		for _, s := range subs {
			if topics.Match(s.plain, topic) {
				want++
			}
		}
		x.match(topic, func(*subscription) { found++ })
		require.Equal(t, want, found, topic)
		require.Equal(t, want > 0, x.matches(topic), topic)
	}
}

// memoryInUse is what is left when all that nobody needs is gone.
func memoryInUse() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// subscribedRouter is a router with clients who subscribed to a filter.
func subscribedRouter(clients int, filter string) *router {
	r := newRouter(newAccessControl(Options{}))
	b := &Broker{router: r, dispatcher: &messageDispatcher{}}
	b.clients.b = b
	b.quotas = newQuotas(Limits{})
	b.opts.Limits = Limits{}.Complete()
	for i := range clients {
		c := b.clients.newClient(&Identity{ClientID: fmt.Sprint(i), Roles: []topics.Role{topics.RoleOperator}}, false)
		r.index.add(newSubscription(c, filter))
	}
	return r
}

// However many topics are published on, and however long or widely read they are, what
// is remembered of them is bounded, and the packets they came in aren't kept.
func TestRoutesAreBounded(t *testing.T) {
	const most = 256 << 10
	for name, c := range map[string]struct {
		readers int
		filter  string
		topics  int
		length  int // of a topic
		packet  int // in which it came
	}{
		"short topics in large packets": {1, "#", 1_000, 10, 64 << 10},
		"topics of 1 KiB":               {1, "#", 5_000, maxRouteTopic, maxRouteTopic},
		"the longest topics":            {1, "#", 300, 65_535, 65_535},
		"many readers":                  {100, "#", 700, 10, 10},
		"very many readers":             {1_000, "#", 70, 10, 10},
		"shared by many":                {1_000, "$share/g/#", 600, 10, 10},
	} {
		t.Run(name, func(t *testing.T) {
			r := subscribedRouter(c.readers, c.filter)
			r.most = most
			before, taken := memoryInUse(), 0
			for i := range c.topics {
				packet := fmt.Sprintf("%0*d", c.length, i) + strings.Repeat("x", c.packet-c.length)
				r.route(packet[:c.length])
				if (i+1)%(c.topics/3) == 0 {
					taken = max(taken, memoryInUse()-before)
				}
			}
			require.Less(t, taken, 8*most)
			runtime.KeepAlive(r)
		})
	}
}

// A shared group's name is remembered for its turn, when nobody is in it any more, too.
func TestTurnsAreBounded(t *testing.T) {
	r := subscribedRouter(0, "")
	r.most = 8 << 20
	before := memoryInUse()
	long := strings.Repeat("x", 60_000)
	for i := range 300 {
		r.turn(groupKey{"", "g", fmt.Sprint(i, long)})
	}
	require.Less(t, memoryInUse()-before, r.most)
	runtime.KeepAlive(r)
}

// A route that is outdated is no reason to keep those who were subscribed.
func TestRoutesKeepNobodyWhoHasGone(t *testing.T) {
	r := subscribedRouter(1, "a")
	for i := range 100 {
		r.route(fmt.Sprint("b/", i))
	}
	require.Len(t, r.routes, 100)
	require.Same(t, r.route("b/7"), r.route("b/7"))
	r.index.gen.Add(1)
	rt := r.route("a")
	require.Equal(t, map[string]*route{"a": rt}, r.routes)
	require.Same(t, rt, r.known([]byte("a")))
	require.Nil(t, r.known([]byte("b/7")))
}

func BenchmarkRoute(b *testing.B) {
	for _, n := range []int{1, 1_000} {
		r := subscribedRouter(n, "#")
		known := make([]string, 64)
		for i := range known {
			known[i] = fmt.Sprint("some/topic/", i)
		}
		b.Run(fmt.Sprintf("known/readers=%d", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				r.route(known[i%len(known)])
			}
		})
		b.Run(fmt.Sprintf("new/readers=%d", n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				r.route(fmt.Sprint("some/other/", i))
			}
		})
	}
}
