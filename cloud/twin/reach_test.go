package twin

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// condition waits until a condition of the lamp's has that reason.
func (r *rig) condition(kind, reason string) (found resource.Condition) {
	r.t.Helper()
	r.status(func(s resource.DeviceStatus) bool {
		for _, c := range s.Conditions {
			if c.Type == kind && c.Reason == reason {
				found = c
				return true
			}
		}
		return false
	})
	return found
}

func TestADevicesStatusSaysWhyItIsNotOnline(t *testing.T) {
	r, c := newJoinedRig(t)
	require.Equal(t, "no mapper is connected to node n1", r.condition("Online", "NoMapper").Message)
	c.report("mappers/virtual/protocols", `["virtual"]`)
	c.report("mappers/virtual/state", "online")
	r.condition("Online", "NotHeard")

	r.edit("lamp", func(d *resource.Device) { d.Spec.Protocol.Type = "opcua" })
	require.Equal(t, `no mapper on n1 speaks "opcua"; connected mappers: virtual (virtual)`, r.condition("Online", "NoMapper").Message)

	r.forgetNotes()
	c.report("devices/lamp/problem", `{"code":"BadConfig","message":"spec.protocol.config.address: is required"}`)
	c.report("devices/lamp/state", "offline")
	require.Equal(t, "spec.protocol.config.address: is required", r.condition("Online", "BadConfig").Message)
	require.Equal(t, "BadConfig: spec.protocol.config.address: is required", r.awaitEvent("Offline").Message)

	c.report("devices/lamp/state", "online")
	require.Equal(t, "True", r.condition("Online", "Online").Status)
}

func TestADeviceOfANodeThatNobodyKnows(t *testing.T) {
	r := newRig(t)
	r.create(resource.KindDeviceModel, "lamp", lampModel(false))
	r.create(resource.KindDevice, "lamp", lampOn("n7"))
	c := r.condition(resource.ConditionNodeOnline, "NoSuchNode")
	require.Equal(t, "False", c.Status)
	require.Contains(t, c.Message, "no Node n7 is registered")
	require.Equal(t, c.Message, r.condition("Online", "NoSuchNode").Message)
	r.connect(newCore("n7"))
	require.Equal(t, "True", r.condition(resource.ConditionNodeOnline, "NodeOnline").Status)
	r.condition("Online", "NoMapper")
}
