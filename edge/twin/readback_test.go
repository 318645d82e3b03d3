package twin

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// While the state is read back on a full disk, the node's devices are its devices: telemetry is refused for the disk, and not because
// there is no such device.
func TestDevicesStayWhileTheStateIsReadBack(t *testing.T) {
	r := newJoinedRig(t)
	var over, missing atomic.Bool
	var looking sync.WaitGroup
	looking.Go(func() {
		for !over.Load() {
			if r.twin.Has("n1", "hall") != nil {
				missing.Store(true)
			}
		}
	})
	r.store.broken.Store(true)
	r.store.takesProbes.Store(true) // each commit is tried, fails, and is read back
	for range 200 {
		r.twin.host.Put("", 0, func(*batch) { r.twin.outage.Every = time.Nanosecond; r.twin.outage.Stored() })
		require.ErrorIs(t, r.send("devices/hall/reported/temperature", "20.5"), resource.Unavailable)
	}
	r.store.broken.Store(false)
	over.Store(true)
	looking.Wait()
	require.False(t, missing.Load())
}
