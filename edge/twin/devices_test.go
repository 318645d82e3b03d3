// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestAnUnknownDeviceIsToldWhichOneMayHaveBeenMeant(t *testing.T) {
	r := newJoinedRig(t)
	publish := func(key string, as *broker.Identity) error {
		return r.await(r.publishAs(as, key, "20.5", broker.Properties{}))
	}
	operator := &broker.Identity{ClientID: "ann", Roles: []topics.Role{topics.RoleOperator}}
	for _, key := range []string{"devices/hal/desired/setpoint", "devices/hal/telemetry/x"} {
		require.ErrorContains(t, publish(key, operator), "device hal does not belong to node n1: did you mean hall?")
		mapper := &broker.Identity{ClientID: "mapper-x", Roles: []topics.Role{topics.RoleMapper}}
		require.NotContains(t, publish(key, mapper).Error(), "hall", "a mapper need not know of other mappers' devices")
	}
	require.ErrorContains(t, r.twin.Has("n1", "hal"), "did you mean hall?", "a command")
	require.NotContains(t, publish("devices/pump/desired/setpoint", operator).Error(), "did you mean")
}

func TestDeviceLookupWaitsForNoCommit(t *testing.T) {
	r := newJoinedRig(t)
	release := r.holdSteps()
	asked := make(chan error, 2)
	go func() {
		asked <- r.twin.Has("n1", "hall")
		asked <- r.twin.Has("n1", "cellar")
	}()
	select {
	case err := <-asked:
		require.NoError(t, err)
		require.Equal(t, resource.NotFound, resource.KindOf(<-asked))
	case <-time.After(testTimeout):
		t.Error("it waits")
	}
	release()
}

func TestAnotherDeviceOfTheSameNameIsDrivenAnew(t *testing.T) {
	r := newJoinedRig(t)
	first := userProperty(r.wantShown("devices/hall/desired/setpoint", "20", 1), "ver")
	r.add("hall", "u2", thermostat) // deleted and created again while nobody looked: the same wish, of another device
	r.shows("devices/hall/desired/setpoint", func(m broker.Message) bool { return userProperty(m, "ver") > first && string(m.Payload) == "20" })
}

func TestASuccessorInheritsNoDesiredValues(t *testing.T) {
	r := newJoinedRig(t)
	require.NoError(t, r.send("devices/hall/desired/setpoint", "20")) // a local wish, of the first one
	r.add("hall", "u2", thermostat)
	require.Eventually(t, func() bool {
		said := r.said("devices/hall/desired/setpoint")
		return len(said) == 2 && said[1] == ""
	}, testTimeout, time.Millisecond, "who subscribed is told that it is gone")
	require.NotContains(t, r.retained(), "devices/hall/desired/setpoint")
}

// Which protocol a device has is known to readers with the message that says so: what is before it goes to the
// mappers that had the device, also the word that it is gone.
func TestADeviceComesAndGoesWithItsProtocol(t *testing.T) {
	r := newJoinedRig(t)
	said := make(chan string, 100)
	r.mu.Lock()
	r.during = func(m broker.Message) {
		if m.Topic == "v1/nodes/n1/devices/hall" {
			protocol, _ := r.twin.Protocol("hall")
			said <- fmt.Sprintf("%s %v", protocol, len(m.Payload) > 0)
		}
	}
	r.mu.Unlock()
	d := resource.Device{Metadata: resource.Meta{Name: "hall", UID: "u1"}, Spec: resource.DeviceSpec{NodeName: "n1", Protocol: resource.Protocol{Type: "modbus"}}}
	r.bind(d, thermostat)
	require.Equal(t, "virtual false", <-said, "to who had it it is gone")
	require.Equal(t, "modbus true", <-said)
	d.Metadata.Labels = map[string]string{"another": "label"}
	r.bind(d, thermostat)
	require.Equal(t, "modbus true", <-said, "the same device is not gone")
	r.want("devices/hall", "", 0)
	require.Equal(t, "modbus false", <-said)
	require.Eventually(t, func() bool { _, known := r.twin.Protocol("hall"); return !known }, testTimeout, time.Millisecond)
}

func TestARemovedDeviceLeavesNoKeys(t *testing.T) {
	r := newJoinedRig(t)
	r.wantShown("devices/hall/desired/setpoint", "20", 1)
	require.NoError(t, r.send("devices/hall/reported/setpoint", "20", forVersion("1")))
	require.NoError(t, r.send("devices/hall/state", "online"))
	require.NoError(t, r.send("devices/hall/desired/mode", "off"))
	r.want("devices/hall", "", 0)
	r.want("devices/hall/desired/setpoint", "", 0)
	require.Eventually(t, func() bool {
		for key := range r.retained() {
			if strings.HasPrefix(key, "devices/") {
				return false
			}
		}
		return true
	}, testTimeout, 2*time.Millisecond)
	require.Equal(t, resource.NotFound, resource.KindOf(r.send("devices/hall/reported/setpoint", "21")))

	r.add("hall", "u2", thermostat) // another of the same name: versions go on rising
	m := r.wantShown("devices/hall/desired/setpoint", "22", 1)
	require.Equal(t, "3", userProperty(m, "ver"), "after 1 for 20, 2 for its end")
}

func TestADeviceOfTheSameNameIsAnother(t *testing.T) {
	r := newJoinedRig(t)
	require.NoError(t, r.send("devices/hall/reported/temperature", "20"))
	r.add("hall", "u2", thermostat)
	require.Eventually(t, func() bool {
		_, ok := r.retained()["devices/hall/reported/temperature"]
		return !ok
	}, testTimeout, 2*time.Millisecond)
}

func TestALargeModelArrivesWhole(t *testing.T) {
	r := newJoinedRig(t)
	m := thermostat
	for i := range 3000 {
		m.Spec.Properties = append(m.Spec.Properties, resource.Property{Name: fmt.Sprintf("p%d", i), Description: strings.Repeat("long ", 10)})
	}
	r.add("plant", "u9", m)
	got := r.shows("devices/plant", func(m broker.Message) bool { return len(m.Payload) > 2*topics.PartSize })
	var b resource.Bundle
	require.NoError(t, json.Unmarshal(got.Payload, &b))
	require.Len(t, b.Model.Spec.Properties, 3004)
	require.NoError(t, r.send("devices/plant/reported/p2999", "x"))
	for key := range r.retained() {
		require.NotContains(t, key, "/parts/")
	}
	r.restart()
	require.NoError(t, r.send("devices/plant/reported/p2998", "x"))
}

func TestTheNodeKnowsItsLabels(t *testing.T) {
	r := newRig(t)
	r.connect()
	require.Nil(t, r.twin.NodeLabels())
	r.want("membership", `{"devices":["lamp"],"labels":{"site":"hall"}}`, 1)
	require.Eventually(t, func() bool { return r.twin.NodeLabels()["site"] == "hall" }, testTimeout, 2*time.Millisecond)
	r.restart()
	require.Equal(t, map[string]string{"site": "hall"}, r.twin.NodeLabels())
}
