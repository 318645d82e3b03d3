package twin

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

// An override ends when the clock says so, however it came to say it, and with
// nothing else happening on the node.
func TestOverrideEndsWhenTheClockHasJumped(t *testing.T) {
	r := newJoinedRig(t)
	r.want("devices/hall/desired/setpoint", "20", 1)
	r.value("devices/hall/desired/setpoint", "20")
	r.nap = 10 * time.Millisecond
	r.restart()
	override := func(lasts int64) {
		until := resource.FormatMillis(r.clock.Load() + lasts)
		require.NoError(t, r.send("devices/hall/desired/setpoint", "25", broker.UserProperty{Key: "until", Value: until}))
		r.value("devices/hall/desired/setpoint", "25")
	}
	const hour = 3600_000
	override(hour)
	r.clock.Add(hour + 1) // forward
	r.value("devices/hall/desired/setpoint", "20")

	override(60_000)
	r.clock.Add(-hour) // back: it lasts longer
	looked := r.twin.Stats().Steps
	require.Eventually(t, func() bool { return r.twin.Stats().Steps > looked+3 }, testTimeout, time.Millisecond)
	last := r.value("devices/hall/desired/setpoint", "25")
	r.clock.Add(hour + 60_001)
	ended := r.value("devices/hall/desired/setpoint", "20")
	require.Greater(t, versionOf(t, ended), versionOf(t, last), "versions rise whatever the clock does")
}

// Timestamps follow the clock, and nothing but the policy latest asks for them.
func TestReportsWhileTheClockJumps(t *testing.T) {
	r := newJoinedRig(t)
	var last uint64
	for i, jump := range []int64{0, 1e9, -5e9, 1} {
		r.clock.Add(jump)
		value := []string{"1", "2", "3", "4"}[i]
		require.NoError(t, r.send("devices/hall/reported/temperature", value))
		m := r.value("devices/hall/reported/temperature", value)
		require.Greater(t, versionOf(t, m), last)
		last = versionOf(t, m)
		r.inStep()
		require.Equal(t, value, r.atHub("devices/hall/reported/temperature"))
	}
}

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

func versionOf(t *testing.T, m broker.Message) uint64 {
	t.Helper()
	ver, err := strconv.ParseUint(userProperty(m, "ver"), 10, 64)
	require.NoError(t, err)
	return ver
}
