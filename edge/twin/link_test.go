// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestHowLongTheHubHasLackedAKey(t *testing.T) {
	r := newJoinedRig(t)
	r.inStep()
	r.cut()
	r.clock.Add(3600_000)
	require.Zero(t, r.twin.Stats().Oldest, "it lacks nothing, however old")
	require.Error(t, r.send("devices/hall/reported/nothing", "1")) // a batch that began before the hour passed has ended with this
	require.NoError(t, r.send("devices/hall/reported/temperature", "21"))
	r.clock.Add(60_000)
	require.NoError(t, r.send("devices/hall/state", "online"))
	r.clock.Add(30_000)
	require.Equal(t, 90*time.Second, r.twin.Stats().Oldest)
	r.clock.Add(-3600_000)
	require.Zero(t, r.twin.Stats().Oldest, "nothing is younger than now")
	r.connect()
	r.inStep()
	r.clock.Add(7200_000)
	require.Zero(t, r.twin.Stats().Oldest)
}

func TestTheNodeNoticesAnotherHub(t *testing.T) {
	r := newJoinedRig(t)
	r.inStep()
	r.hub.Lock()
	mine := resource.HubID(r.down.Lineage().OwnerID())
	r.hub.Unlock()
	s := r.twin.Stats()
	require.Equal(t, mine, s.Hub)
	require.Zero(t, s.OtherHub)

	r.cut()
	r.twin.Disconnected()
	other := link.NewProjection(link.Down, func() uint64 { return link.NonceOf(uint32(mine)+1, rand.Uint64()) })
	other.Connect(1)
	hello, err := link.Encode(other.Messages()[0])
	require.NoError(t, err)
	r.twin.Connected(rand.Uint64(), func([]byte, []string) {}, func() {})
	r.twin.Receive(hello, nil)
	require.Eventually(t, func() bool { s := r.twin.Stats(); return s.Hub == mine+1 && s.OtherHub == mine }, testTimeout, 2*time.Millisecond)

	r.twin.Disconnected()
	require.Eventually(t, func() bool { s := r.twin.Stats(); return s.Hub == 0 && s.OtherHub == 0 }, testTimeout, 2*time.Millisecond)
}

func TestTrafficDoesNotDelayResends(t *testing.T) {
	r := newJoinedRig(t)
	r.inStep()
	var said atomic.Int64
	r.twin.Connected(rand.Uint64(), func([]byte, []string) { said.Add(1) }, func() {}) // a hub that hears nothing
	r.busy(func() bool { return said.Load() > 3 })
}

// On a node that reports all the time the hub is never in step, and streams go all the same.
func TestStreamsGoOnceTheHubHasCaughtUp(t *testing.T) {
	r := newJoinedRig(t)
	r.inStep()
	r.restart() // without a hub now
	toHub, ready := make(chan []byte, 1000), make(chan struct{})
	r.twin.Connected(rand.Uint64(), func(b []byte, _ []string) { toHub <- b }, func() { close(ready) })
	for i := 0; ; i++ {
		require.Less(t, i, 100)
		select {
		case <-ready:
			require.False(t, r.twin.Stats().InStep)
			return
		case b := <-toHub:
			r.hear(b)
			require.NoError(t, r.send("devices/hall/reported/temperature", fmt.Sprint(i))) // before the answer
			r.say(r.twin)
		}
	}
}

func TestMalformedMessagesFromTheHubChangeNothing(t *testing.T) {
	r := newJoinedRig(t)
	before := r.retained()
	for i := range 200 {
		b := make([]byte, i)
		for j := range b {
			b[j] = byte(rand.IntN(256))
		}
		r.twin.Receive(b, nil)
	}
	require.NoError(t, r.send("devices/hall/reported/temperature", "20"))
	after := r.retained()
	delete(after, "devices/hall/reported/temperature")
	require.Equal(t, before, after)
}
