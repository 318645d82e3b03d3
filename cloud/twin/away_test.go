package twin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

func nodeCondition(s resource.DeviceStatus) string {
	for _, c := range s.Conditions {
		if c.Type == resource.ConditionNodeOnline {
			return c.Status
		}
	}
	return ""
}

// A Device's status says when its node has been away for a while, through a restart of
// the hub, and until the node is back.
func TestADeviceOfAnAbsentNodeIsNotSaidToBeOnline(t *testing.T) {
	r, c := newJoinedRig(t)
	c.report("devices/lamp/reported/power", "ON")
	c.report("devices/lamp/state", resource.Online)
	r.status(func(s resource.DeviceStatus) bool { return s.State == resource.Online && nodeCondition(s) != "False" })
	seen, _ := r.device("lamp")
	r.awayAfter = time.Millisecond
	r.restart()
	away := func(s resource.DeviceStatus) bool { return s.State == resource.Unknown && nodeCondition(s) == "False" }
	r.status(away)
	r.awayAfter = time.Hour
	r.restart()
	require.Never(t, func() bool { d, _ := r.device("lamp"); return !away(d.Status) }, 100*time.Millisecond, 10*time.Millisecond)
	r.connect(c)
	r.status(func(s resource.DeviceStatus) bool { return s.State == resource.Online && nodeCondition(s) == "True" })
	d, _ := r.device("lamp")
	require.Equal(t, seen.Status.LastSeen, d.Status.LastSeen)
	require.Equal(t, "ON", d.Status.Twin["power"].Reported.Value)
}
