// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bytes"
	"context"
	"fmt"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestConnectionsOfOneUser(t *testing.T) {
	b := startBroker(t, func(o *Options) { withUsers(o); o.Limits.PerUser = 2 })
	op := credentialsOf("op", "secret")
	first := openClient(t, b, "first", op)
	openClient(t, b, "second", op)
	more := dialBroker(t, b)
	require.Equal(t, byte(0x97), more.connect("third", op))
	require.Equal(t, "one user may have 2 connections at most (limits.perUser), as many as op has", more.connack.Properties.ReasonString)
	old := dialBroker(t, b)
	require.Equal(t, byte(3), old.connect("third", op, version311))
	openClient(t, b, "other", credentialsOf("boss", "secret"))
	openClient(t, b, "nobody")
	openClient(t, b, "nobody too")
	openClient(t, b, "nobody three")
	openClient(t, b, "second", op) // takes its own place over
	require.Equal(t, int64(2), b.Stats().Rejected[daemon.Label(tooManyOfOne)])

	ctx, end := context.WithCancel(context.Background())
	r := httptest.NewRequest("GET", "/", nil).WithContext(ctx)
	r.SetBasicAuth("op", "secret")
	_, err := b.SignIn(r)
	require.Equal(t, resource.Quota, resource.KindOf(err), "requests count as well")
	first.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}})
	require.Eventually(t, func() bool { _, err = b.SignIn(r); return err == nil }, 10*time.Second, time.Millisecond)
	more = dialBroker(t, b)
	require.Equal(t, byte(0x97), more.connect("third", op), "the request is under way")
	end()
	require.Eventually(t, func() bool { return dialBroker(t, b).connect("third", op) == 0 }, 10*time.Second, time.Millisecond)
}

// Who is signed in and sends bodies slowly takes half of the room at most, whatever perUser is.
func TestRequestsOfOneUserAreBounded(t *testing.T) {
	b := startBroker(t, func(o *Options) { withUsers(o); o.Limits.Requests, o.Limits.PerUser = 6, 100 })
	ctx, end := context.WithCancel(context.Background())
	ask := func(user string) error {
		r := httptest.NewRequest("POST", "/", nil).WithContext(ctx)
		r.SetBasicAuth(user, "secret")
		_, err := b.SignIn(r)
		return err
	}
	for range 3 {
		require.NoError(t, ask("view"))
	}
	err := ask("view")
	require.Equal(t, resource.Quota, resource.KindOf(err))
	require.ErrorContains(t, err, "one user may have 3 HTTP requests under way at most (half of limits.requests), as many as view has")
	require.NoError(t, ask("op"))
	openClient(t, b, "of MQTT", credentialsOf("view", "secret"))
	end()
	ctx = context.Background()
	require.Eventually(t, func() bool { return ask("view") == nil }, 10*time.Second, time.Millisecond)
}

func TestConnectionsFromOneAddress(t *testing.T) {
	b := startBroker(t, func(o *Options) { withUsers(o); o.Limits.PerAddress = 1 })
	openClient(t, b, "this host")
	openClient(t, b, "isn't counted")
	ctx, end := context.WithCancel(context.Background())
	ask := func(from, user string) error {
		r := httptest.NewRequest("GET", "/", nil).WithContext(ctx)
		r.RemoteAddr = from
		r.SetBasicAuth(user, "secret")
		_, err := b.SignIn(r)
		return err
	}
	require.NoError(t, ask("192.0.2.1:1000", "op"))
	require.NoError(t, ask("[2001:db8::1]:1000", "op"))
	require.ErrorContains(t, ask("[::ffff:192.0.2.1]:1001", "view"), "one address may have 1 connections at most (limits.perAddress), as many as 192.0.2.1 has")
	end()
	ctx = context.Background()
	require.Eventually(t, func() bool { return ask("192.0.2.1:1002", "view") == nil }, 10*time.Second, time.Millisecond)
}

// userProperties are so many empty user properties.
func userProperties(n int) packets.Properties {
	return packets.Properties{User: make([]packets.UserProperty, n)}
}

func TestUserPropertiesOfAMessageAreBounded(t *testing.T) {
	b := startBroker(t, nil)
	c, sub := openClient(t, b, "c"), openClient(t, b, "sub")
	sub.sub("#", 2)
	require.Zero(t, c.publish1("a", "64", withProperties(userProperties(64))).ReasonCode)
	require.Len(t, sub.expect(packets.Publish).Properties.User, 64)
	sub.ack(packets.Puback, 1)
	for _, n := range []int{65, 72, 73, 100_000} {
		refused := c.publish1("a", strconv.Itoa(n), withProperties(userProperties(n)), markRetain)
		require.Equal(t, byte(codeQuota), refused.ReasonCode, n)
		require.Equal(t, `more than 64 user properties: topic "a"`, refused.Properties.ReasonString)
		c.publish("a", "2", 2, 9, withProperties(userProperties(n)))
		require.Equal(t, byte(codeQuota), c.expect(packets.Pubrec).ReasonCode)
		c.publish("a", "0", 0, 0, withProperties(userProperties(n)))
	}
	c.publish("a", "the identifier is free", 2, 9)
	require.Zero(t, c.expect(packets.Pubrec).ReasonCode)
	require.Equal(t, "the identifier is free", string(sub.expect(packets.Publish).Payload), "nothing else came")
	require.EqualValues(t, 12, b.Stats().Refused[daemon.Label("Quota")])
	require.Zero(t, b.Stats().Retained)
}

func TestUserPropertiesOfOtherPacketsAreBounded(t *testing.T) {
	b := startBroker(t, nil)
	for name, with := range map[string]connectOption{
		"CONNECT": func(pk *packets.Packet) { pk.Properties.User = userProperties(65).User },
		"will": withWill("w", "x", 0, func(pk *packets.Packet) {
			pk.Connect.WillProperties.User = userProperties(65).User
		}),
	} {
		c := dialBroker(t, b)
		require.Equal(t, byte(codeQuota), c.connect("c", with), name)
		require.Equal(t, "more than 64 user properties", c.connack.Properties.ReasonString)
	}
	for _, kind := range []byte{packets.Subscribe, packets.Unsubscribe, packets.Disconnect} {
		c := openClient(t, b, "c")
		pk := packets.Packet{FixedHeader: packets.FixedHeader{Type: kind}, PacketID: 3, Properties: userProperties(65), Filters: packets.Subscriptions{{Filter: "a"}}}
		c.send(pk)
		code, _ := c.ended()
		require.Equal(t, byte(codeQuota), code, kind)
	}
}

// checkCost has the memory that do makes the process use be what the broker then counts, or less: so
// room that is counted in bytes is room that there is.
func checkCost(t *testing.T, counted func() int64, do func()) {
	t.Helper()
	before, was := memoryInUse(), counted()
	do()
	grown, count := int64(memoryInUse()-before), counted()-was
	t.Logf("%d bytes in use, %d counted", grown, count)
	require.Positive(t, count)
	require.Less(t, float64(grown), 1.5*float64(count), "more memory than is counted")
}

// checkCostFromDisk has what comes from disk cost what is counted, and that be what it was.
func checkCostFromDisk(t *testing.T, dir string, held func(*Broker) int64, want int64) {
	t.Helper()
	var b *Broker
	checkCost(t, func() int64 {
		if b == nil {
			return 0
		}
		return held(b)
	}, func() { b, _ = startKept(t, dir, nil) })
	require.Equal(t, want, held(b))
}

// All of a message's memory counts, in queues and retained, and after a restart.
func TestMessagesCountWhatTheyCost(t *testing.T) {
	const n = 4000
	for name, message := range map[string]func(i int) packets.Packet{
		"small": func(i int) packets.Packet {
			return publishPacket(fmt.Sprintf("t/%d", i), "1", 1, uint16(i%pipelineLength)+1, markRetain)
		},
		"empty user properties": func(i int) packets.Packet {
			return publishPacket(fmt.Sprintf("t/%d", i), "1", 1, uint16(i%pipelineLength)+1, withProperties(userProperties(64)), markRetain)
		},
		"properties": func(i int) packets.Packet {
			long := strings.Repeat("x", 500)
			return publishPacket(fmt.Sprintf("t/%d", i), "1", 1, uint16(i%pipelineLength)+1, markRetain, withProperties(packets.Properties{
				ContentType: long, ResponseTopic: long, CorrelationData: []byte(long), User: []packets.UserProperty{{Key: long, Val: long}},
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			b, stop := startKept(t, dir, nil)
			// A message that is retained and queued is there once: what is measured is one of both.
			queued := func() int64 { return b.quotas.queued.Held() }
			retained := func() int64 { return b.quotas.retained.Held() }
			pub := openClient(t, b, "pub")
			clear := func() {
				pub.pipeline(n, func(i int) packets.Packet {
					pk := message(i)
					pk.Payload, pk.FixedHeader.Retain = nil, true
					return pk
				})
				require.Zero(t, retained())
			}
			pub.pipeline(n, message)
			clear() // what the broker and its journal need in any case is there
			checkCost(t, retained, func() { pub.pipeline(n, message) })
			clear()
			sub := openClient(t, b, "sub", persistentSession)
			sub.sub("t/#", 1)
			sub.leave(b, "sub")
			checkCost(t, queued, func() {
				pub.pipeline(n, func(i int) packets.Packet {
					pk := message(i)
					pk.FixedHeader.Retain = false
					return pk
				})
			})
			held := queued()
			stop()
			checkCostFromDisk(t, dir, func(b *Broker) int64 { return b.quotas.queued.Held() }, held)
		})
	}
}

// A subscription counts what it costs, by its levels, and after a restart.
func TestSubscriptionsCountWhatTheyCost(t *testing.T) {
	dir := t.TempDir()
	b, stop := startKept(t, dir, nil)
	held := func() int64 { return b.quotas.state.Held() }
	sub := openClient(t, b, "sub", persistentSession)
	subscribe := func(first, n int) {
		for i := first; i < first+n; i += 100 {
			pk := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Subscribe}, PacketID: 9}
			for j := range 100 {
				pk.Filters = append(pk.Filters, packets.Subscription{Filter: fmt.Sprintf("%d", i+j) + strings.Repeat("/a", 20), Qos: 1})
			}
			sub.send(pk)
			for _, code := range sub.expect(packets.Suback).ReasonCodes {
				require.Equal(t, byte(1), code)
			}
		}
	}
	checkCost(t, held, func() { subscribe(0, 5000) })
	counted := held()
	stop()
	checkCostFromDisk(t, dir, func(b *Broker) int64 { return b.quotas.state.Held() }, counted)
}

// One user's subscriptions leave room for another's, whatever connections they come by; wills and topic aliases
// count as well.
func TestSubscriptionsByUserAndForAll(t *testing.T) {
	b := startBroker(t, func(o *Options) { withUsers(o); o.Limits.Session.State = 1 << 20 })
	op, boss := credentialsOf("op", "secret"), credentialsOf("boss", "secret")
	deep := func(i int) string { return strconv.Itoa(i) + strings.Repeat("/a", 40) }
	fill := func(id string, who connectOption) (n int) {
		c := openClient(t, b, id, who)
		for c.subscribe(deep(n), 0).ReasonCodes[0] == 0 {
			n++
		}
		return n
	}
	first := fill("first", op)
	require.Positive(t, first)
	require.Zero(t, fill("second", op), "another connection is the same user's")
	large := strings.Repeat("x", 60_000)
	refused := dialBroker(t, b)
	require.Equal(t, byte(codeQuota), refused.connect("third", op, withWill(large, "x", 0)))
	require.Contains(t, refused.connack.Properties.ReasonString, "op has")
	require.Contains(t, refused.connack.Properties.ReasonString, "limits.session.state")
	aliased := openClient(t, b, "fourth", op)
	aliased.publish(large, "x", 0, 0, withProperties(packets.Properties{TopicAlias: 1, TopicAliasFlag: true}))
	code, _ := aliased.ended()
	require.Equal(t, byte(codeQuota), code)
	other := fill("other", boss)
	require.Greater(t, other, first/3, "and another user has as much as is left, but for half of it")
	openClient(t, b, "any", credentialsOf("any", "secret"), withWill("w", "x", 0)).leave(b, "willing")

	b.clients.connected("first").disconnect(0, errDisconnected)
	b.clients.connected("other").disconnect(0, errDisconnected)
	b.clients.connected("second").disconnect(0, errDisconnected)
	require.Eventually(t, func() bool { return b.quotas.state.Held() == 0 }, testTimeout, time.Millisecond, "all of it is given back")
}

// Sessions that a viewer has left behind on all topics take nothing from another user's durable session.
func TestAbandonedSessionsTakeNothingFromOthers(t *testing.T) {
	b, _ := startKept(t, t.TempDir(), func(o *Options) { withUsers(o); o.Limits.Session.All = 4 << 20 })
	for i := range 20 {
		id := "gone" + strconv.Itoa(i)
		c := openClient(t, b, id, persistentSession, credentialsOf("view", "secret"))
		c.sub("#", 1)
		c.leave(b, id)
	}
	work := openClient(t, b, "work", persistentSession, credentialsOf("boss", "secret"))
	work.sub("jobs", 1)
	work.leave(b, "work")
	pub := openClient(t, b, "pub", credentialsOf("op", "secret"))
	payload := strings.Repeat("x", 10_000)
	noise := func() {
		pub.pipeline(500, func(i int) packets.Packet { return publishPacket("noise", payload, 1, uint16(i%pipelineLength)+1) })
	}
	noise()
	pub.burst("jobs", 0, 150)
	noise()
	pub.burst("jobs", 150, 150)
	require.Positive(t, b.Stats().Dropped["queue_full"])
	require.LessOrEqual(t, b.Stats().HeldBytes, int64(4<<20))
	work = openClient(t, b, "work", persistentSession, credentialsOf("boss", "secret"))
	require.Equal(t, numberedPayloads(0, 300), work.collect(300))
}

// Of one user's sessions, too, one that was left behind takes not all that the user may have.
func TestAbandonedSessionOfTheSameUser(t *testing.T) {
	b, _ := startKept(t, t.TempDir(), func(o *Options) { o.Limits.Session.All = 4 << 20 })
	for _, id := range []string{"gone", "work"} {
		c := openClient(t, b, id, persistentSession)
		c.sub(map[string]string{"gone": "#", "work": "jobs"}[id], 1)
		c.leave(b, id)
	}
	pub := openClient(t, b, "pub")
	pub.pipeline(500, func(i int) packets.Packet {
		return publishPacket("noise", strings.Repeat("x", 10_000), 1, uint16(i%pipelineLength)+1)
	})
	pub.burst("jobs", 0, 300)
	require.Equal(t, numberedPayloads(0, 300), openClient(t, b, "work", persistentSession).collect(300))
}

// countBridged fills the room for retained messages with a node's, until it is refused.
func countBridged(t *testing.T, b *Broker, node, below string) (n int) {
	t.Helper()
	c := openClient(t, b, "node/"+node, credentialsOf("node/"+node, ""))
	for c.publish1(fmt.Sprintf("v1/nodes/%s/bridge/%s/%d", node, below, n), "x", markRetain).ReasonCode == 0 {
		n++
	}
	c.leave(b, "node/"+node)
	return n
}

func TestRetainedMessagesOfANodeLeaveRoom(t *testing.T) {
	dir := t.TempDir()
	tree := newFakeTree()
	limited := func(o *Options) {
		withUsers(o)
		o.Limits.Retained.Bytes = 100_000
		o.Tree = passingTree{tree, nil}
	}
	var b *Broker
	run := func() (stop func()) {
		b, stop = startKept(t, dir, func(o *Options) {
			limited(o)
			o.Tree = passingTree{tree, func(m Message, done func(error)) { b.Pass(m, done) }}
		})
		return stop
	}
	stop := run()
	first := countBridged(t, b, "n1", "a")
	require.Greater(t, first, 50)
	second := countBridged(t, b, "n2", "a")
	require.Positive(t, second, "another node finds room")
	retained := b.quotas.retained.Held()
	stop()

	stop = run()
	defer stop()
	require.Equal(t, retained, b.quotas.retained.Held())
	require.Zero(t, countBridged(t, b, "n1", "b"), "it is known whose they are")
	boss := openClient(t, b, "boss", credentialsOf("boss", "secret"))
	require.Zero(t, boss.publish1("own", "x", markRetain).ReasonCode, "the administrator finds room")
	clear := func(c *testClient, topic string) byte { return c.publish1(topic, "", markRetain).ReasonCode }
	require.Zero(t, clear(boss, "v1/nodes/n1/bridge/a/0"), "and may clear any, also when all is full")
	require.Equal(t, byte(codeNotAuthorized), boss.publish1("v1/nodes/n1/bridge/a/1", "x", markRetain).ReasonCode, "but not write it")
	require.Equal(t, byte(codeNotAuthorized), clear(openClient(t, b, "op", credentialsOf("op", "secret")), "v1/nodes/n1/bridge/a/1"), "not an operator of some nodes")
	require.Equal(t, byte(codeNotAuthorized), clear(openClient(t, b, "view", credentialsOf("view", "secret")), "v1/nodes/n1/bridge/a/1"))
	require.Equal(t, first+second, b.Stats().Retained, "one came, one went")

	b.ForgetNode("n1")
	require.Equal(t, second+1, b.Stats().Retained)
	require.Greater(t, countBridged(t, b, "n3", "a"), second, "what a Node has left makes room when it is deleted")
}

// passingTree is a tree that passes on what nodes bridge, as the hub's does.
type passingTree struct {
	Tree
	pass func(Message, func(error))
}

func (p passingTree) Publish(m Message, done func(error)) {
	if topics.IsBridged(m.Topic) {
		p.pass(m, done)
		return
	}
	p.Tree.Publish(m, done)
}

// A Node that is deleted leaves no session behind.
func TestADeletedNodesSessionEnds(t *testing.T) {
	b := startBroker(t, withUsers)
	openClient(t, b, "node/n1", persistentSession, credentialsOf("node/n1", "")).leave(b, "node/n1")
	openClient(t, b, "node/n2", persistentSession, credentialsOf("node/n2", "")).leave(b, "node/n2")
	b.ForgetNode("n1")
	require.Equal(t, 1, b.Stats().Kept)
	require.True(t, openClient(t, b, "node/n2", persistentSession, credentialsOf("node/n2", "")).connack.SessionPresent)
}

// What a mapper retains on a node leaves room for the node's other users.
func TestRetainedMessagesOfAMapperLeaveRoom(t *testing.T) {
	b := startBroker(t, func(o *Options) { withUsers(o); o.Node = "n1"; o.Limits.Retained.Bytes = 100_000 })
	mapper := openClient(t, b, "map", credentialsOf("map", "secret"))
	n := 0
	for mapper.publish1(strconv.Itoa(n), "x", markRetain).ReasonCode == 0 {
		n++
	}
	require.Greater(t, n, 50)
	boss := openClient(t, b, "boss", credentialsOf("boss", "secret"))
	require.Zero(t, boss.publish1("own", "x", markRetain).ReasonCode)
	require.Zero(t, boss.publish1("0", "", markRetain).ReasonCode)
	require.Zero(t, boss.publish1("1", "", markRetain).ReasonCode)
	require.Equal(t, n-1, b.Stats().Retained)
	require.Zero(t, mapper.publish1("0", "y", markRetain).ReasonCode, "there is room again")
}

// unfinishedPacket is the beginning of a packet of a given length.
func unfinishedPacket(first byte, length int, begins string, arrived int) []byte {
	var packet bytes.Buffer
	packet.WriteByte(first)
	for n := length; n > 0; n >>= 7 {
		digit := byte(n & 0x7F)
		if n > 0x7F {
			digit |= 0x80
		}
		packet.WriteByte(digit)
	}
	packet.WriteString(begins)
	return append(packet.Bytes(), make([]byte, arrived-packet.Len())...)
}

func TestWhoHasNotSignedInGetsLittleMemory(t *testing.T) {
	const begins = "\x00\x04MQTT\x05"
	b := startBroker(t, nil)
	large := dialBroker(t, b)
	large.version = 5
	large.raw(unfinishedPacket(packets.Connect<<4, maxConnect, begins, 1000))
	refused := large.expect(packets.Connack)
	require.Equal(t, byte(codeTooLarge), refused.ReasonCode, "before it has arrived")
	require.Contains(t, refused.Properties.ReasonString, "64 KiB")

	const n, each = 300, 60_000
	slow := make([]*testClient, n)
	for i := range slow {
		slow[i] = dialBroker(t, b)
		_, _ = slow[i].conn.Write(unfinishedPacket(packets.Connect<<4, each+1, begins, each)) // it may be closed meanwhile
	}
	held := b.quotas.unsigned.Held
	require.Eventually(t, func() bool { return held() > maxUnsigned/2-2*readBufferSize }, testTimeout, time.Millisecond)
	require.LessOrEqual(t, held(), int64(maxUnsigned/2), "one address has half at most")
	openClient(t, b, "honest", withWill("w", strings.Repeat("x", 20_000), 0)).disconnect()
	for _, c := range slow {
		_ = c.conn.Close()
	}
	require.Eventually(t, func() bool { return held() == 0 }, testTimeout, time.Millisecond, "all of it is given back")
}

func TestUnfinishedPacketsAreSharedAmongUsers(t *testing.T) {
	b := startBroker(t, func(o *Options) { withUsers(o); o.Limits.Packet, o.Limits.Unfinished = 1<<20, 1 })
	held := b.quotas.unfinished.Held
	slow := func(i int) *testClient {
		c := openClient(t, b, "slow"+strconv.Itoa(i), credentialsOf("op", "secret"))
		_, _ = c.conn.Write(unfinishedPacket(packets.Publish<<4, 1<<20-100, "\x00\x01t\x00", 1<<20-200)) // it may be closed meanwhile
		return c
	}
	both := []*testClient{slow(0), slow(1)} // of four that there is room for
	require.Eventually(t, func() bool { return held() > 2<<20-2*readBufferSize }, testTimeout, time.Millisecond)
	last := slow(2)
	require.Eventually(t, func() bool { return held() > 3<<20-2*readBufferSize || b.clients.connected("slow2") == nil }, testTimeout, time.Millisecond)
	if b.clients.connected("slow2") != nil { // it came at once, while the user still had less than was left
		both = append(both, last)
		last = slow(3)
	}
	code, _ := last.ended()
	require.Equal(t, byte(codeQuota), code, "it has as much as is left for all others")

	_ = both[0].conn.Close()
	require.Eventually(t, func() bool { return held() <= 2<<20 }, testTimeout, time.Millisecond)
	other := openClient(t, b, "any", credentialsOf("any", "secret"))
	other.raw(unfinishedPacket(packets.Publish<<4, 1<<20-100, "\x00\x01t\x00", 1<<20-200))
	other.raw(make([]byte, 104))
	other.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Pingreq}})
	other.expect(packets.Pingresp)
	for _, c := range append(both, other) {
		_ = c.conn.Close()
	}
	require.Eventually(t, func() bool { return held() == 0 }, testTimeout, time.Millisecond, "all of it is given back")
}

// publishUnreleased publishes n messages of QoS 2 from a session that stays, and releases none.
func publishUnreleased(t *testing.T, c *testClient, n int) {
	t.Helper()
	for from := 1; from <= n; from += 1000 {
		var b []byte
		last := min(from+999, n)
		for id := from; id <= last; id++ {
			b = append(b, encodePacket(t, publishPacket("t", "", 2, uint16(id)), 4)...)
		}
		go func() { _, _ = c.conn.Write(b) }()
		for range last - from + 1 {
			c.expect(packets.Pubrec)
		}
	}
}

// What waits for a PUBREL counts what it costs, after a restart too, and is given back with the PUBREL or the session.
func TestUnreleasedPublishesCountWhatTheyCost(t *testing.T) {
	dir := t.TempDir()
	b, stop := startKept(t, dir, nil)
	held := func() int64 { return b.quotas.state.Held() }
	c := openClient(t, b, "pub", version311, resumeSession)
	before := held()
	checkCost(t, held, func() { publishUnreleased(t, c, 65_535) })
	counted := held()
	stop()
	checkCostFromDisk(t, dir, func(b *Broker) int64 { return b.quotas.state.Held() }, counted)

	b, stop = startKept(t, t.TempDir(), nil)
	c = openClient(t, b, "pub", version311, resumeSession)
	publishUnreleased(t, c, 100)
	require.Positive(t, held()-before)
	for id := range uint16(60) {
		c.ack(packets.Pubrel, id+1)
		c.expect(packets.Pubcomp)
	}
	left := held()
	require.Positive(t, left)
	c.leave(b, "pub")
	require.Equal(t, left, held(), "the session keeps them")
	openClient(t, b, "pub").disconnect()
	require.Eventually(t, func() bool { return held() == 0 }, testTimeout, time.Millisecond)
	stop()
}

// A client that releases nothing gets no more than its user's part, and is told; a user's other clients go on publishing.
func TestUnreleasedPublishesAreAUsersPart(t *testing.T) {
	b, _ := startKept(t, t.TempDir(), func(o *Options) { withUsers(o); o.Limits.Session.State = 64 << 10 })
	hog := openClient(t, b, "hog", credentialsOf("op", "secret"), func(pk *packets.Packet) {
		pk.Connect.Clean = false
		pk.ProtocolVersion = 4
	})
	publishUnreleased(t, hog, 5000) // each is answered: 3.1.1 has no other answer
	require.LessOrEqual(t, b.quotas.state.Held(), int64(40<<10))
	other := openClient(t, b, "other", credentialsOf("op", "secret"))
	for id := uint16(1); id < 50; id++ {
		other.publish("t", "x", 2, id)
		require.Equal(t, byte(0), other.expect(packets.Pubrec).ReasonCode, "it releases what it publishes")
		other.ack(packets.Pubrel, id)
		other.expect(packets.Pubcomp)
	}
	for id := uint16(100); id < 116; id++ {
		other.publish("t", "x", 2, id)
		require.Equal(t, byte(0), other.expect(packets.Pubrec).ReasonCode)
	}
	other.publish("t", "x", 2, 200)
	refused := other.expect(packets.Pubrec)
	require.Equal(t, byte(codeQuota), refused.ReasonCode)
	require.Contains(t, refused.Properties.ReasonString, "limits.session.state")
}
