package twin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// TestADeviceMadeAnewWhileItsNodeIsAwayHasNothingOfTheFormerOne: until the node reports of it. One that only left for a while keeps what
// was reported.
func TestADeviceMadeAnewWhileItsNodeIsAwayHasNothingOfTheFormerOne(t *testing.T) {
	for _, uid := range []string{"u1", "u2"} {
		r, c := newJoinedRig(t)
		c.report("devices/lamp/reported/power", "ON")
		c.report("devices/lamp/state", resource.Online)
		r.status(func(s resource.DeviceStatus) bool {
			return s.Twin["power"].Reported != nil && s.State == resource.Online
		})
		r.disconnect(c)
		_, err := r.store.Delete(t.Context(), store.Key{Kind: resource.KindDevice, Namespace: "default", Name: "lamp"}, 0)
		require.NoError(t, err)
		lamp := lampOn("n1")
		lamp.Metadata.UID = uid
		r.create(resource.KindDevice, "lamp", lamp)
		if uid == "u1" {
			r.status(func(s resource.DeviceStatus) bool { return s.Twin["power"].Reported != nil })
			continue
		}
		r.status(func(s resource.DeviceStatus) bool {
			return len(s.Conditions) > 0 && s.Twin["power"].Reported == nil && s.State == resource.Unknown
		})
		require.NotContains(t, r.retained("v1/nodes/n1/#"), "v1/nodes/n1/devices/lamp/reported/power")

		c.mu.Lock()
		c.up.Delete("devices/lamp/reported/power", time.Now().UnixMilli(), "") // as a core does that learns of the other Device
		c.mu.Unlock()
		r.connect(c)
		c.report("devices/lamp/reported/power", "ON")
		r.status(func(s resource.DeviceStatus) bool { return s.Twin["power"].Reported != nil })
		require.Contains(t, r.retained("v1/nodes/n1/#"), "v1/nodes/n1/devices/lamp/reported/power")
	}
}
