// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"bytes"
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/daemon"
	"github.com/edgebus/edgebus/topics"
)

// TestFloodIsReadInQuanta: while another client publishes, a client that sends without a pause is read more
// slowly, all of it and in order.
func TestFloodIsReadInQuanta(t *testing.T) {
	b := startBroker(t, nil)
	sub, flood, calm := openClient(t, b, "sub"), openClient(t, b, "flood"), openClient(t, b, "calm")
	sub.sub("flood", 1)
	const n = 1000
	var all bytes.Buffer
	for i := range n {
		pk := publishPacket("flood", strconv.Itoa(i), 1, uint16(i+1))
		pk.ProtocolVersion = 5
		require.NoError(t, pk.PublishEncode(&all))
	}
	calm.publish1("calm", "x")
	go func() { _, _ = flood.conn.Write(all.Bytes()) }()
	for i := range n {
		m := sub.expect(packets.Publish)
		require.Equal(t, strconv.Itoa(i), string(m.Payload))
		sub.ack(packets.Puback, m.PacketID)
		if i%100 == 0 {
			calm.publish1("calm", "x")
		}
	}
	st := b.Stats()
	require.Positive(t, st.Pauses)
	require.GreaterOrEqual(t, st.Paused, time.Duration(st.Pauses)*pauseLeast)
}

// TestClientThatIsAloneIsNotPaused, however fast it sends.
func TestClientThatIsAloneIsNotPaused(t *testing.T) {
	b := startBroker(t, nil)
	before := openClient(t, b, "flood")
	before.publish1("calm", "x")
	before.leave(b, "flood")
	flood := openClient(t, b, "flood") // still the same client
	var all bytes.Buffer
	for range 5000 {
		pk := publishPacket("flood", "x", 0, 0)
		pk.ProtocolVersion = 5
		require.NoError(t, pk.PublishEncode(&all))
	}
	_, err := flood.conn.Write(all.Bytes())
	require.NoError(t, err)
	flood.nothing()
	require.Zero(t, b.Stats().Pauses)
}

// TestRetainedMessagesAreServedInQuanta: while another client publishes, a large retained tree is sent more
// slowly, and to a client that is alone it is not.
func TestRetainedMessagesAreServedInQuanta(t *testing.T) {
	b := startBroker(t, nil)
	const n = 3000
	for i := range n {
		b.Publish(Message{Topic: "kept/" + strconv.Itoa(i), Payload: make([]byte, 100), Retain: true})
	}
	read := func(id string) {
		sub := openClient(t, b, id)
		sub.sub("kept/#", 0)
		for range n {
			sub.expect(packets.Publish)
		}
	}
	read("alone")
	require.Zero(t, b.Stats().Pauses)
	b.activePublisher.last.Store(&lastPublish{"somebody", time.Now().Add(time.Hour)}) // lately, however long it takes here
	read("reader")
	require.Positive(t, b.Stats().Pauses)
}

// TestPacketRate: who sends more packets a second than it may waits, after a second's worth, and loses
// nothing by it; nodes and others don't.
func TestPacketRate(t *testing.T) {
	b := startBroker(t, func(o *Options) { o.Limits.PacketRate = 100 })
	sub, fast := openClient(t, b, "sub"), openClient(t, b, "fast")
	sub.sub("fast", 0)
	var all bytes.Buffer
	const n = 150
	for i := range n {
		pk := publishPacket("fast", strconv.Itoa(i), 0, 0)
		pk.ProtocolVersion = 5
		require.NoError(t, pk.PublishEncode(&all))
	}
	began := time.Now()
	_, err := fast.conn.Write(all.Bytes())
	require.NoError(t, err)
	require.Equal(t, numberedPayloads(0, n), sub.collect(n))
	require.GreaterOrEqual(t, time.Since(began), (n-100-1)*time.Second/100)
	require.Positive(t, b.Stats().Pauses)

	node := &conn{b: b, ident: &Identity{ClientID: "n1", Roles: []topics.Role{topics.RoleNode}}}
	node.throttle.c = node
	for range n {
		node.throttle.keepRate()
	}
	require.Nil(t, node.throttle.rate)
}

func TestTooManyWrongPasswords(t *testing.T) {
	b := startBroker(t, func(o *Options) { withUsers(o); o.Limits.WrongPasswords = 2 })
	try := func(user, password string, opts ...connectOption) byte {
		return dialBroker(t, b).connect("id-"+user, append(opts, credentialsOf(user, password))...)
	}
	for range 2 {
		require.Equal(t, byte(codeBadCredentials), try("boss", "wrong"))
	}
	require.Equal(t, byte(codeConnectRate), try("boss", "secret"))
	require.Equal(t, byte(codeSuccess), try("op", "secret"), "another user")
	require.Equal(t, byte(connackUnavailable), try("boss", "secret", version311))
	require.Equal(t, int64(2), b.Stats().Rejected[daemon.Label(connectReasons[codeConnectRate])])
}

// TestClientsThatReadNothing are disconnected, and counted.
func TestClientsThatReadNothing(t *testing.T) {
	b := startBroker(t, func(o *Options) { o.Limits.WriteTimeout = 50 * time.Millisecond })
	stalled, pub := openClient(t, b, "stalled"), openClient(t, b, "pub")
	stalled.sub("a", 0)
	payload := string(make([]byte, 256<<10))
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for b.Stats().Closed[daemon.Label(readsNothing)] == 0 {
		require.NoError(t, ctx.Err())
		pub.publish1("a", payload)
	}
}

// TestReceiverOfAFloodIsNoFlood: it acknowledges without a break, and is not held up.
func TestReceiverOfAFloodIsNoFlood(t *testing.T) {
	b := startBroker(t, nil)
	sub, calm := openClient(t, b, "sub"), openClient(t, b, "calm")
	sub.sub("a", 1)
	for i := range 3 * quantumPackets {
		b.Publish(Message{Topic: "a", Payload: []byte(strconv.Itoa(i)), QoS: 1})
	}
	calm.publish1("calm", "x")
	var acks bytes.Buffer
	for range 3 * quantumPackets {
		m := sub.expect(packets.Publish)
		ack := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: m.PacketID, ProtocolVersion: 5}
		require.NoError(t, ack.PubackEncode(&acks))
	}
	_, err := sub.conn.Write(acks.Bytes())
	require.NoError(t, err)
	sub.nothing()
	require.Zero(t, b.Stats().Pauses)
	require.Zero(t, b.Stats().Queued)
}

// TestWhoWaitsForEachAnswerIsNoFlood, however fast the answers are.
func TestWhoWaitsForEachAnswerIsNoFlood(t *testing.T) {
	b := startBroker(t, nil)
	busy, calm := openClient(t, b, "busy"), openClient(t, b, "calm")
	for i := range 10 * quantumPackets {
		if i%quantumPackets == 0 {
			calm.publish1("calm", "x")
		}
		busy.publish1("busy", "x")
	}
	require.Zero(t, b.Stats().Pauses)
}
