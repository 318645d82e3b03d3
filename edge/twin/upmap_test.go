// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

// localHall is the thermostat with a Device whose reported values and state stay on the node, or don't.
func localHall(local ...string) resource.Device {
	return resource.Device{Metadata: resource.Meta{Name: "hall", UID: "u1"}, Spec: resource.DeviceSpec{
		NodeName: "n1", Protocol: resource.Protocol{Type: "virtual"}, Local: local, LocalState: len(local) > 0,
	}}
}

// What stays on the node is all there for its clients, also after a restart, and the hub never has it; when the Device says
// otherwise it is moved.
func TestLocalValuesStayOnTheNode(t *testing.T) {
	r := newRig(t)
	r.bind(localHall("setpoint"), thermostat)
	r.connect()
	r.shows("devices/hall", func(m broker.Message) bool { return len(m.Payload) > 0 })
	require.NoError(t, r.send("devices/hall/reported/setpoint", "21"))
	require.NoError(t, r.send("devices/hall/reported/setpoint", "22", forVersion("1")))
	require.NoError(t, r.send("devices/hall/reported/profile", `{"a":1}`))
	require.NoError(t, r.send("devices/hall/state", "online"))
	first := r.value("devices/hall/reported/setpoint", "22")
	require.Equal(t, "1", userProperty(first, "for"))
	require.Equal(t, "2", userProperty(first, "ver"))
	r.value("devices/hall/state", "online")
	require.Equal(t, []string{"21", "22"}, r.said("devices/hall/reported/setpoint"))
	r.inStep()
	require.Equal(t, `{"a":1}`, r.atHub("devices/hall/reported/profile"))
	require.Empty(t, r.atHub("devices/hall/reported/setpoint"))
	require.Empty(t, r.atHub("devices/hall/state"))
	d, ok := r.twin.Device("hall")
	require.True(t, ok)
	require.Equal(t, "22", d.Device.Status.Twin["setpoint"].Reported.Value)
	require.Equal(t, resource.Online, d.Device.Status.State)

	r.restart()
	require.Equal(t, "2", userProperty(r.value("devices/hall/reported/setpoint", "22"), "ver"))
	r.connect()
	r.inStep()
	require.Empty(t, r.atHub("devices/hall/reported/setpoint"))

	r.bind(localHall(), thermostat)
	require.Eventually(t, func() bool {
		return r.atHub("devices/hall/reported/setpoint") == "22" && r.atHub("devices/hall/state") == "online"
	}, testTimeout, 1e6, "it is told now")
	r.bind(localHall("setpoint", "profile"), thermostat)
	require.Eventually(t, func() bool {
		return r.atHub("devices/hall/reported/setpoint")+r.atHub("devices/hall/reported/profile")+r.atHub("devices/hall/state") == ""
	}, testTimeout, 1e6, "the hub forgets it")
	r.value("devices/hall/reported/profile", `{"a":1}`)
	require.NoError(t, r.send("devices/hall/reported/setpoint", ""))
	r.shows("devices/hall/reported/setpoint", func(m broker.Message) bool { return len(m.Payload) == 0 })
	r.want("devices/hall", "", 9) // it leaves
	require.Eventually(t, func() bool { _, there := r.retained()["devices/hall/reported/profile"]; return !there }, testTimeout, 1e6)
}

// limit gives the node a quota of so many keys and bytes more than it has.
func (r *rig) limit(keys, bytes int) {
	done := make(chan struct{})
	r.twin.host.Put("", 0, func(*batch) {
		r.twin.opts.Quota = link.Quota{Keys: r.twin.up.Len() + keys, Bytes: r.twin.up.Bytes() + bytes}
		close(done)
	})
	<-done
}

func TestAPublishBeyondTheNodesQuotaIsRefused(t *testing.T) {
	r := newJoinedRig(t)
	require.NoError(t, r.send("mappers/m1/state", "online"))
	r.limit(1, 1<<20)
	before := r.twin.Stats().UpKeys

	err := r.send("devices/hall/reported", `{"temperature":20,"mode":"off"}`)
	require.ErrorIs(t, err, resource.Quota)
	require.Contains(t, err.Error(), "devices/hall/reported/")
	require.Contains(t, err.Error(), "(limits.node)")
	require.Equal(t, before, r.twin.Stats().UpKeys, "all of it is refused")

	require.NoError(t, r.send("devices/hall/reported/temperature", "20"))
	require.ErrorIs(t, r.send("mappers/m2/state", "online"), resource.Quota)
	require.ErrorIs(t, r.send("devices/hall/desired/setpoint", "20"), resource.Quota)
	require.ErrorIs(t, r.send("devices/hall/state", "online"), resource.Quota)
	require.NoError(t, r.send("devices/hall/reported/temperature", "21"), "what it has may change")
	require.NoError(t, r.send("mappers/m1/state", "offline"))
	require.NoError(t, r.send("devices/hall/reported", `{"temperature":null,"mode":"off"}`), "one goes and one comes")

	r.limit(10, 100)
	require.ErrorIs(t, r.send("devices/hall/reported/profile", `{"x":"`+strings.Repeat("v", 100)+`"}`), resource.Quota)
	require.NoError(t, r.send("devices/hall/reported/profile", `{"x":"v"}`))
}

func TestAStricterQuotaOfTheHubIsShown(t *testing.T) {
	r := newRig(t)
	r.up.SetQuota(link.Quota{Keys: 2})
	r.add("hall", "u1", thermostat)
	r.connect()
	r.shows("devices/hall", func(m broker.Message) bool { return len(m.Payload) > 0 })
	require.NoError(t, r.send("devices/hall/reported", `{"temperature":20,"mode":"off"}`), "the node goes on")
	require.Eventually(t, func() bool { return r.twin.Stats().Oversize == "3 keys, at most 2 are taken" }, testTimeout, 2*time.Millisecond)
	r.wantShown("devices/hall/desired/setpoint", "22", 1) // the other direction is another matter

	require.NoError(t, r.send("devices/hall/reported/mode", ""))
	r.inStep()
	require.Empty(t, r.twin.Stats().Oversize)
}
