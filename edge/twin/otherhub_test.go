package twin

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

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
	r.twin.Connected(rand.Uint64(), func([]byte) {}, func() {})
	r.twin.Receive(hello)
	require.Eventually(t, func() bool { s := r.twin.Stats(); return s.Hub == mine+1 && s.OtherHub == mine }, testTimeout, 2*time.Millisecond)

	r.twin.Disconnected()
	require.Eventually(t, func() bool { s := r.twin.Stats(); return s.Hub == 0 && s.OtherHub == 0 }, testTimeout, 2*time.Millisecond)
}
