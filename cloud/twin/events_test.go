// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// awaitEvent waits until something of that reason was told, and gives all that was.
func (r *rig) awaitEvent(reason string) (last resource.Occurrence) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		for _, h := range r.notes() {
			if h.Reason == reason {
				last = h
				return true
			}
		}
		return false
	}, testTimeout, time.Millisecond, "%s should be told", reason)
	return last
}

func (r *rig) notes() []resource.Occurrence {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]resource.Occurrence(nil), r.happened...)
}

func TestNodeEvents(t *testing.T) {
	r, c := newJoinedRig(t)
	r.inStep()
	require.Equal(t, "n1", r.awaitEvent("Joined").Name)
	r.awaitEvent("InStep")
	r.disconnect(c)
	require.Equal(t, resource.EventWarning, r.awaitEvent("Left").Type)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	require.Eventually(t, func() bool { return r.link("n1").Behind.Keys == 1 }, testTimeout, time.Millisecond)
	r.forgetNotes()
	r.connect(c)
	require.Regexp(t, `^in step after .* offline: it lacked 1 of 3 keys$`, r.awaitEvent("InStep").Message)

	r.twins.Rejected(broker.RejectedConnect{ClientID: "node/n1", Reason: "expired", Remote: "here"})
	require.Contains(t, r.awaitEvent("Rejected").Message, "expired")
	r.forgetNotes()
	r.twins.Rejected(broker.RejectedConnect{ClientID: "node/made-up", Reason: "expired"})
	require.Empty(t, r.notes())

	c.report("mappers/modbus/state", "offline")
	require.Equal(t, "modbus", r.awaitEvent("MapperGone").About)
}

func (r *rig) forgetNotes() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.happened = nil
}

func TestDeviceEvents(t *testing.T) {
	r, c := newJoinedRig(t)
	r.inStep()
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	c.gets("devices/lamp/desired/power", "ON")
	c.report("devices/lamp/refused/power", `{"for":1,"ver":1,"code":"Jammed","message":"the relay"}`)
	h := r.awaitEvent("Refused")
	require.Equal(t, "power: ON refused: Jammed: the relay", h.Message)
	require.Equal(t, "default", h.Namespace)
	c.report("devices/lamp/conflict/brightness", `{"desired":"60","override":"40","policy":"cloud","winner":"desired"}`)
	require.Equal(t, "brightness: override 40 against desired 60: desired won (policy cloud)", r.awaitEvent("Conflict").Message)
	c.report("devices/lamp/state", "offline")
	r.awaitEvent("Offline")
	c.report("devices/other/state", "offline") // of no device of this node

	r.forgetNotes()
	r.edit("lamp", func(d *resource.Device) { d.Spec.NodeName = "n2" })
	require.Equal(t, "from node n1 to node n2", r.awaitEvent("Moved").Message)
	r.edit("lamp", func(d *resource.Device) { d.Spec.NodeName = "" })
	r.awaitEvent("Unbound")
	r.edit("lamp", func(d *resource.Device) { d.Spec.NodeName = "n1" })
	r.awaitEvent("Bound")
	r.forgetNotes()
	r.restart()
	require.Empty(t, r.notes(), "what was before is told once")
}

func TestUnstoredReportsHaveNoEvents(t *testing.T) {
	r, c := newJoinedRig(t)
	r.inStep()
	r.fault.reports.Store(true)
	c.report("devices/lamp/state", "offline")
	require.Eventually(t, func() bool { return r.twins.Stats().FailedCommits > 0 }, testTimeout, time.Millisecond)
	r.storesAgain()
	r.connect(c)
	r.awaitEvent("Offline")
	offline := 0
	for _, h := range r.notes() {
		if h.Reason == "Offline" {
			offline++
		}
	}
	require.Equal(t, 1, offline)
}

func TestAlarmsOfANodeAreAConditionAndEventsOfTheDevice(t *testing.T) {
	r, c := newJoinedRig(t)
	raised := `[{"name":"hot","severity":"high","since":"2026-11-21T10:00:00.000Z","value":"85","message":"temperature is 85, above 80"}]`
	c.report("devices/lamp/alarms/temperature", raised)
	alarm := func(status, reason string) resource.Device {
		t.Helper()
		var d resource.Device
		require.Eventually(t, func() bool {
			d, _ = r.device("lamp")
			got := resource.ConditionOf(d.Status.Conditions, resource.ConditionAlarm)
			return got.Status == status && got.Reason == reason
		}, testTimeout, time.Millisecond, reason)
		return d
	}
	d := alarm("True", "High")
	require.Equal(t, "temperature/hot", d.Status.Alarms[0].Key())
	require.False(t, d.Status.Alarms[0].Acknowledged)
	e := r.awaitEvent("AlarmRaised")
	require.Equal(t, resource.EventWarning, e.Type)
	require.Equal(t, "temperature/hot: temperature is 85, above 80 (high)", e.Message)

	r.edit("lamp", func(d *resource.Device) {
		d.Spec.AcknowledgedAlarms = map[string]string{"temperature/hot": "2026-11-21T10:05:00Z"}
	})
	require.True(t, alarm("True", resource.ReasonAcknowledged).Status.Alarms[0].Acknowledged)
	c.report("devices/lamp/alarms/temperature", `[{"name":"hot","severity":"high","since":"2026-11-21T11:00:00.000Z","message":"again"}]`)
	require.False(t, alarm("True", "High").Status.Alarms[0].Acknowledged, "another one of which nobody knows")
	r.awaitEvent("AlarmCleared") // the one before
	r.forgetNotes()
	c.report("devices/lamp/alarms/temperature", "")
	require.Empty(t, alarm("False", resource.ReasonNoAlarm).Status.Alarms)
	r.awaitEvent("AlarmCleared")

	r.forgetNotes()
	r.restart()
	r.connect(c)
	r.inStep()
	for _, n := range r.notes() {
		require.NotContains(t, n.Reason, "Alarm")
	}
}

func TestACommandsInputIsCheckedOnTheHub(t *testing.T) {
	r, _ := newJoinedRig(t)
	require.NoError(t, r.twins.CheckCommand("n1", "lamp", "blink", []byte("x")))
	m := lampModel(false)
	m.Spec.Commands = []resource.ModelCommand{{Name: "blink"}}
	data, err := json.Marshal(m)
	require.NoError(t, err)
	_, err = r.store.Update(t.Context(), store.Object{Key: store.Key{Kind: resource.KindDeviceModel, Namespace: "default", Name: "lamp"}, Data: data}, 0)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return r.twins.CheckCommand("n1", "lamp", "blink", []byte("x")) != nil }, testTimeout, time.Millisecond)
	require.NoError(t, r.twins.CheckCommand("n1", "lamp", "blink", nil))
	require.ErrorIs(t, r.twins.CheckCommand("n2", "lamp", "blink", nil), resource.NotFound)
}
