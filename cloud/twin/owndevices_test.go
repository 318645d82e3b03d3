package twin

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// shown is what a subscriber to everything finds retained of a topic; empty: nothing.
func (r *rig) shown(topic string) string {
	next := r.twins.Retained(topic)
	for list := next(10); len(list) > 0; list = next(10) {
		for _, m := range list {
			return string(m.Payload)
		}
	}
	return ""
}

// What a node reports of a device that isn't bound to it is shown to nobody, live or retained, until it is.
func TestANodeReportsItsOwnDevicesOnly(t *testing.T) {
	r, _ := newJoinedRig(t)
	passed := 0
	r.twins.opts.Pass = func(_ broker.Message, done func(error)) { passed++; done(nil) }
	rogue := r.connect(newCore("n2"))
	const topic = "v1/nodes/n2/devices/lamp/reported/power"
	rogue.report("devices/lamp/reported/power", "OFF")
	rogue.report("mappers/m/state", "online")
	require.Eventually(t, func() bool { return r.shown("v1/nodes/n2/mappers/m/state") == "online" }, testTimeout, 1e6, "what was said before is known")
	require.Empty(t, r.said(topic))
	require.Empty(t, r.shown(topic))

	for _, kind := range []string{"telemetry/power", "events/fell"} {
		publish := func(node string) error {
			done := make(chan error, 1)
			r.twins.Publish(broker.Message{Topic: topics.Prefix + node + "/devices/lamp/" + kind, Publisher: nodeIdentity(node)}, func(err error) { done <- err })
			return <-done
		}
		require.Equal(t, resource.NotFound, resource.KindOf(publish("n2")))
		require.NoError(t, publish("n1"))
	}
	require.Equal(t, 2, passed)

	r.edit("lamp", func(d *resource.Device) { d.Spec.NodeName = "n2" })
	require.Eventually(t, func() bool { return len(r.said(topic)) == 1 }, testTimeout, 1e6, "with the device comes what was said of it")
	require.Equal(t, "OFF", r.shown(topic))
	require.Error(t, r.twins.Has("n1", "lamp"))
	require.NoError(t, r.twins.Has("n2", "lamp"))
}
