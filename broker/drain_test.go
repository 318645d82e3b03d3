// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"strconv"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"
)

var disconnectPacket = packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Disconnect}}

// A client that leaves and is back at once, on a connection that is ready: nothing that it sent is lost, and no will acts.
func testWhatWasSentBeforeTheCloseCounts(t *testing.T, at brokerSetup) {
	if at.carried {
		t.Skip("two connections that another hub carries may overtake each other by what is on the way: docs/mqtt.md")
	}
	b := at.start(t, nil)
	sub := openClient(t, b, "sub", keepAlive(0))
	sub.sub("will", 0)
	sub.sub("last", 0)
	bye := disconnectPacket
	bye.Properties.SessionExpiryIntervalFlag = true // 0
	for i := range 40 {
		c := openClient(t, b, "c", persistentSession, withWill("will", "gone", 0))
		require.False(t, c.connack.SessionPresent, "round %d", i)
		next := dialBroker(t, b)
		c.raw(append(encodePacket(t, publishPacket("last", strconv.Itoa(i), 0, 0), 5), encodePacket(t, bye, 5)...))
		_ = c.conn.Close()
		require.Equal(t, byte(0), next.connect("c", persistentSession))
		require.False(t, next.connack.SessionPresent, "DISCONNECT said that the session ends")
		require.Equal(t, "last", sub.expect(packets.Publish).TopicName)
		next.send(bye)
		next.ended()
	}
	sub.nothing()
}

// The broker ends a connection only when it has handled what had arrived: here a DISCONNECT is waiting behind a message
// that takes its time.
func TestAConnectionThatTheBrokerEndsIsReadToItsEnd(t *testing.T) {
	for how, end := range map[string]func(*Broker){
		"taken over":   func(b *Broker) { b.clients.takeOver("c") },
		"disconnected": func(b *Broker) { b.Disconnect("c", "because") },
		"failed":       func(b *Broker) { b.clients.connected("c").expel(0, nil) },
		"session":      func(b *Broker) { _ = b.EndSession("c") },
		"stopped":      func(b *Broker) { b.clients.close() },
	} {
		t.Run(how, func(t *testing.T) {
			tree := &slowTree{fakeTree: newFakeTree(), begun: make(chan struct{}), goOn: make(chan struct{})}
			told := &recordedPresence{}
			b := startBroker(t, func(o *Options) { o.Tree = tree; o.Presence = told })
			c := openClient(t, b, "c", withWill(reportedTopic, "9", 0))
			c.raw(append(append(encodePacket(t, publishPacket(reportedTopic, "1", 1, 1), 5), encodePacket(t, publishPacket(reportedTopic, "2", 1, 2), 5)...), encodePacket(t, disconnectPacket, 5)...))
			<-tree.begun
			conn := b.clients.connected("c")
			go end(b)
			require.Eventually(t, conn.drain.asked, testTimeout, time.Millisecond)
			close(tree.goOn)
			<-conn.end.detached
			tree.mu.Lock()
			defer tree.mu.Unlock()
			require.Len(t, tree.got, 2, "both messages, and no will")
		})
	}
}

// Who doesn't stop sending is cut off after a bounded time.
func TestAFloodDoesNotKeepTheNextConnectionOut(t *testing.T) {
	b := startBroker(t, nil)
	old := openClient(t, b, "c")
	go func() {
		packet := encodePacket(t, publishPacket("a", "x", 0, 0), 5)
		for { // until the broker closes the connection
			if _, err := old.conn.Write(packet); err != nil {
				return
			}
		}
	}()
	require.Eventually(t, func() bool { return b.metrics.received.Load() > 1000 }, testTimeout, time.Millisecond)
	began := time.Now()
	openClient(t, b, "c")
	require.Less(t, time.Since(began), 3*drainTime)
}

// What a connection holds is given back by what its client said, not by when that was read.
func TestLimitsCountWhatClientsHaveSaid(t *testing.T) {
	bye := disconnectPacket
	bye.Properties.SessionExpiryIntervalFlag = true // 0
	for name, limit := range map[string]func(*Options){
		"sessions":              func(o *Options) { o.Limits.Sessions = 1 },
		"connections of a user": func(o *Options) { o.Limits.PerUser = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			b := startBroker(t, func(o *Options) { withUsers(o); limit(o) })
			for i := range 40 {
				c := openClient(t, b, "c"+strconv.Itoa(i), persistentSession, credentialsOf("op", "secret"))
				c.send(bye)
				_ = c.conn.Close()
			}
		})
	}
}
