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

func TestDesiredGoesFromThePublishToTheNode(t *testing.T) {
	r, c := newJoinedRig(t)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	d, _ := r.device("lamp")
	require.Equal(t, resource.Value("ON"), d.Spec.Desired["power"], "the acknowledged value is in the store")
	require.Equal(t, uint64(1), d.DesiredMeta["power"].Ver)
	require.Equal(t, "ops", d.DesiredMeta["power"].Origin)
	require.Equal(t, uint64(1), c.gets("devices/lamp/desired/power", "ON").Ver)

	require.NoError(t, r.send(lampDesired, `{"power":"OFF","brightness":40}`))
	require.Equal(t, uint64(2), c.gets("devices/lamp/desired/power", "OFF").Ver)
	c.gets("devices/lamp/desired/brightness", "40")
	require.NoError(t, r.send(lampDesired+"/brightness", ""))
	c.gets("devices/lamp/desired/brightness", "")
}

func TestWhatIsRefusedOnTheHub(t *testing.T) {
	r, c := newJoinedRig(t)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	_, before := r.device("lamp")
	for _, tt := range []struct {
		topic, payload string
		kind           resource.ErrorKind
		says           string
	}{
		{lampDesired + "/brightness", "101", resource.Invalid, "maximum of 100"},
		{lampDesired + "/temperature", "20", resource.Forbidden, "read-only"},
		{lampDesired + "/colour", "red", resource.NotFound, "it has power, brightness"},
		{lampDesired + "/colour", "", resource.NotFound, "it has power, brightness"},
		{lampDesired, `{"temperature":null}`, resource.Forbidden, "read-only"},
		{lampDesired, `{"power":"OFF","brightness":-1}`, resource.Invalid, "minimum of 0"},
		{lampDesired, `ON`, resource.Invalid, "JSON object"},
		{"v1/nodes/n2/devices/lamp/desired/power", "ON", resource.NotFound, "belongs to node n1"},
		{"v1/nodes/n1/devices/attic/desired/power", "ON", resource.NotFound, "no device attic"},
		{"v1/nodes/n1/devices/lmp/desired/power", "ON", resource.NotFound, "no device lmp: did you mean lamp?"},
		{"v1/nodes/n1/devices/lamp/reported/power", "ON", resource.Forbidden, "edge"},
		{"v1/nodes/n1/devices/lamp", "{}", resource.Forbidden, "cloud"},
		{"v1/nodes/n1/state", "online", resource.Forbidden, "hub"},
		{"v1/nodes/n1/nonsense", "", resource.BadTopic, "no such topic"},
		{lampDesired + "/power", strings.Repeat("x", link.MaxValue+1), resource.TooLarge, "131072"},
	} {
		err := r.send(tt.topic, tt.payload)
		require.Equal(t, tt.kind, resource.KindOf(err), "%s: %v", tt.topic, err)
		require.ErrorContains(t, err, tt.says)
	}
	d, after := r.device("lamp")
	require.Equal(t, before.Data, after.Data)
	require.Equal(t, resource.Value("ON"), d.Spec.Desired["power"])
	c.gets("devices/lamp/desired/power", "ON")
}

func TestReportsReachTheStatusAndOutliveTheHub(t *testing.T) {
	r, c := newJoinedRig(t)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	c.report("devices/lamp/reported/power", "OFF")
	c.report("devices/lamp/state", "online")
	r.status(func(s resource.DeviceStatus) bool {
		return s.State == "online" && s.Twin["power"].Reported != nil && !s.Twin["power"].InSync
	})
	d, _ := r.device("lamp")
	require.NotEmpty(t, d.Status.LastSeen)
	c.report("devices/lamp/reported/power", "ON")
	r.status(func(s resource.DeviceStatus) bool { return s.Twin["power"].InSync })
	require.Equal(t, []string{"OFF", "ON"}, r.said("v1/nodes/n1/devices/lamp/reported/power"))

	r.restart()
	require.Equal(t, "ON", string(r.retained("#")["v1/nodes/n1/devices/lamp/reported/power"].Payload))
}

func (r *rig) status(ok func(resource.DeviceStatus) bool) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { d, _ := r.device("lamp"); return ok(d.Status) }, testTimeout, 2*time.Millisecond)
}

func (r *rig) retained(filter string) map[string]broker.Message {
	all := make(map[string]broker.Message)
	pull := r.twins.Retained(filter)
	for list := pull(5); len(list) > 0; list = pull(5) {
		for _, m := range list {
			all[m.Topic] = m
		}
	}
	return all
}

func (r *rig) inStep() {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		for _, c := range r.nodes {
			c.mu.Lock()
			up := c.up.InStep()
			c.mu.Unlock()
			if !up {
				return false
			}
		}
		return r.twins.Stats().InStep == len(r.nodes)
	}, testTimeout, 2*time.Millisecond)
}

func TestForgedKeysAreNotShown(t *testing.T) {
	r, c := newJoinedRig(t)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	c.gets("devices/lamp/desired/power", "ON")
	for _, key := range []string{"devices/lamp/desired/power", "devices/lamp/desired/brightness", "state", "membership", "devices/lamp", "nonsense"} {
		c.report(key, "OFF")
	}
	r.inStep()
	all := r.retained("#")
	require.Equal(t, "ON", string(all[lampDesired+"/power"].Payload))
	require.NotContains(t, all, lampDesired+"/brightness")
	require.Equal(t, "online", string(all["v1/nodes/n1/state"].Payload))
	require.Equal(t, `{"devices":["lamp"]}`, string(all["v1/nodes/n1/membership"].Payload))
	require.NotContains(t, r.said(lampDesired+"/power"), "OFF")
}
