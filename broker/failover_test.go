// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"
	"github.com/stretchr/testify/require"
)

// The clients of a broker that ends, by a kill or in order, come back to the one that goes on with its journal: those that do have no will there, and those
// that don't have it once, when they have had their time.
func TestWillsWaitForClientsThatAFailoverCut(t *testing.T) {
	failover := func(o *Options) { o.Failover = true }
	for _, how := range []string{"killed", "stopped"} {
		t.Run(how, func(t *testing.T) {
			dir := t.TempDir()
			b, stop := startKept(t, dir, failover)
			watch := openClient(t, b, "watch", persistentSession)
			watch.sub("will/#", 1)
			watch.leave(b, "watch")
			for _, kind := range []string{"back", "gone"} {
				openClient(t, b, kind+"-clean", withWill("will/"+kind+"-clean", kind+" clean", 0), keepAlive(2))
				openClient(t, b, kind+"-kept", persistentSession, withWill("will/"+kind+"-kept", kind+" kept", 0), keepAlive(2))
			}
			openClient(t, b, "patient", withWill("will/patient", "patient", 0), keepAlive(3600))
			if how == "killed" {
				b, _ = restartCrashed(t, dir, failover)
			} else {
				stop()
				b, _ = startKept(t, dir, failover)
			}
			began := time.Now()
			openClient(t, b, "back-clean")
			openClient(t, b, "back-kept", persistentSession)
			watch = openClient(t, b, "watch", persistentSession)
			require.ElementsMatch(t, []string{"gone clean", "gone kept"}, watch.collect(2))
			require.Greater(t, time.Since(began), 2*time.Second, "they had one and a half keep-alives")
			watch.nothing()
		})
	}
}

// Who comes through another hub that ends, however, is not lost: it has its time to come back before its will acts, whatever its session is. Who ends
// while that hub is there is lost.
func TestWillsWaitForClientsOfAHubThatIsGone(t *testing.T) {
	b, _ := startKept(t, t.TempDir(), nil)
	watch := openClient(t, b, "watch")
	watch.sub("will/#", 1)
	var gone atomic.Bool
	through := func(id string, opts ...connectOption) *testClient {
		here, there := net.Pipe()
		go func() {
			_ = b.ServeCarried(there, Origin{Listener: b.listeners[0].Name, Remote: "127.0.0.1:5", Loopback: true, Gone: gone.Load})
		}()
		c := wrapConn(t, here)
		require.Equal(t, byte(0), c.connect(id, opts...), "CONNACK")
		return c
	}
	require.NoError(t, through("lost", withWill("will/lost", "lost", 0), keepAlive(3600)).conn.Close())
	require.Equal(t, []string{"lost"}, watch.collect(1))
	left := through("left", withWill("will/left", "left", 0), keepAlive(1))
	left.disconnect()
	var cut []*testClient
	for _, kind := range []string{"back", "gone"} {
		cut = append(cut, through(kind+"-clean", withWill("will/"+kind+"-clean", kind+" clean", 0), keepAlive(2)),
			through(kind+"-kept", persistentSession, withWill("will/"+kind+"-kept", kind+" kept", 0), keepAlive(2)))
	}
	cut = append(cut, through("patient", withWill("will/patient", "patient", 0), keepAlive(3600)))
	gone.Store(true)
	began := time.Now()
	for _, c := range cut {
		require.NoError(t, c.conn.Close())
	}
	openClient(t, b, "back-clean")
	openClient(t, b, "back-kept", persistentSession)
	require.ElementsMatch(t, []string{"gone clean", "gone kept"}, watch.collect(2))
	require.Greater(t, time.Since(began), 2*time.Second, "they had one and a half keep-alives")
	watch.nothing()
}

// What another broker may be asked as well is answered only while this one knows that nobody else has its journal.
func TestNothingIsAcknowledgedByABrokerThatMayHaveLostItsJournal(t *testing.T) {
	asked, answer := make(chan struct{}, 100), make(chan bool)
	b, _ := startKept(t, t.TempDir(), func(o *Options) {
		signedIn := false
		o.Owned = func() bool {
			if !signedIn { // the CONNECT
				signedIn = true
				return true
			}
			asked <- struct{}{}
			return <-answer
		}
	})
	c := openClient(t, b, "c")
	c.publish("own", "to nobody", 1, 7)
	<-asked
	_, err := c.read(100 * time.Millisecond)
	require.Error(t, err, "it is not answered")
	answer <- true
	require.EqualValues(t, 7, c.expect(packets.Puback).PacketID)
	c.publish("own", "QoS 0", 0, 0)
	c.publish("own", "lost", 1, 8)
	<-asked
	answer <- false
	pk, err := c.read(testTimeout)
	require.False(t, err == nil && pk.FixedHeader.Type == packets.Puback, "neither yes nor no")
}
