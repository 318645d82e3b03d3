package twin

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// One user fills the node's keys with no names of mappers, and leaves room for others', also after a restart.
func TestMappersOfOneUserLeaveRoom(t *testing.T) {
	r := newJoinedRig(t)
	limited := func() {
		done := make(chan struct{})
		r.twin.host.Put("", 0, func(*batch) { r.twin.opts.Mappers = 20; close(done) })
		<-done
	}
	limited()
	fill := func(user string) (n int) {
		for ; ; n++ {
			kind, payload := "state", "online"
			if n%2 == 1 {
				kind, payload = "protocols", `["virtual"]`
			}
			err := r.sendAs(user, user, fmt.Sprintf("mappers/%s%d/%s", user, n, kind), payload)
			if err != nil {
				require.ErrorIs(t, err, resource.Quota)
				require.Contains(t, err.Error(), "limits.mappers")
				return n
			}
		}
	}
	first := fill("a")
	require.Greater(t, first, 5)
	require.Less(t, first, 20)
	require.NoError(t, r.sendAs("b", "b", "mappers/b/state", "online"), "another user's mapper is let in")
	require.NoError(t, r.sendAs("a", "a", "mappers/a0/state", "online"), "those that are known go on")
	require.NoError(t, r.sendAs("a", "a", "mappers/a0/protocols", `["virtual"]`))

	r.restart()
	limited()
	before := r.twin.Stats().UpKeys
	require.Less(t, fill("a"), 20)
	require.NoError(t, r.sendAs("c", "c", "mappers/c/state", "online"))
	require.Less(t, r.twin.Stats().UpKeys, before+40)
	require.NoError(t, r.sendAs("c", "c", "mappers/c/state", ""), "what is cleared makes room")
	require.NoError(t, r.sendAs("c", "c", "mappers/c2/state", "online"))
}
