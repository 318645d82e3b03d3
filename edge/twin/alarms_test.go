// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

// boilerModel is a model whose temperature has an alarm.
func boilerModel(after int64) resource.DeviceModel {
	return resource.DeviceModel{Metadata: resource.Meta{Name: "boiler"}, Spec: resource.DeviceModelSpec{Properties: []resource.Property{
		{Name: "temperature", Type: resource.TypeFloat, Unit: "°C", Alarms: []resource.PropertyAlarm{
			{Name: "hot", Above: float64Pointer(80), Clear: float64Pointer(75), After: after, Severity: resource.AlarmHigh},
		}},
		{Name: "door", Type: resource.TypeBoolean, Alarms: []resource.PropertyAlarm{{Name: "open", Equals: "true"}}},
	}}}
}

func newBoilerRig(t *testing.T, after int64) *rig {
	r := newRig(t)
	r.add("boiler", "u1", boilerModel(after))
	r.connect()
	r.shows("devices/boiler", func(m broker.Message) bool { return len(m.Payload) > 0 })
	return r
}

const (
	bornHot   = "devices/boiler/reported/temperature"
	hotAlarm  = "devices/boiler/alarms/temperature"
	alarmText = "devices/boiler/events/alarm"
)

// alarms are the alarms that are raised, by name, and the texts that were told of changes.
func (r *rig) alarmNames(key string) (names []string) {
	list, err := resource.ParseAlarms(r.retained()[key].Payload)
	require.NoError(r.t, err)
	for _, a := range list {
		names = append(names, a.Name)
	}
	return names
}

func (r *rig) alarmChanges() (states []string) {
	for _, text := range r.said(alarmText) {
		var c resource.AlarmChange
		require.NoError(r.t, json.Unmarshal([]byte(text), &c))
		states = append(states, c.PropertyName+"/"+c.Name+" "+c.State+" at "+c.Value)
	}
	return states
}

func TestAnAlarmIsRaisedAndClearedByTheValue(t *testing.T) {
	r := newBoilerRig(t, 0)
	for _, c := range []struct {
		value  string
		raised bool
	}{{"80", false}, {"80.5", true}, {"79", true}, {"81", true}, {"75", false}, {"78", false}, {"90", true}} {
		require.NoError(t, r.send(bornHot, c.value))
		require.Equal(t, c.raised, len(r.alarmNames(hotAlarm)) == 1, c.value)
	}
	require.NoError(t, r.send("devices/boiler/reported/door", "true"))
	require.NoError(t, r.send("devices/boiler/reported/door", "false"))
	require.Equal(t, []string{
		"temperature/hot raised at 80.5", "temperature/hot cleared at 75", "temperature/hot raised at 90", "door/open raised at true", "door/open cleared at false",
	}, r.alarmChanges())
	require.Contains(t, r.said(alarmText)[0], `"message":"temperature is 80.5 °C, above 80 °C"`)

	b, ok := r.twin.Device("boiler")
	require.True(t, ok)
	require.Len(t, b.Device.Status.Alarms, 1)
	c := resource.ConditionOf(b.Device.Status.Conditions, resource.ConditionAlarm)
	require.Equal(t, "True", c.Status)
	require.Equal(t, "High", c.Reason)
	require.Contains(t, c.Message, "hot: temperature is 90 °C, above 80 °C (high, since ")
}

func TestARestartRaisesNoAlarmAgainAndClearsNone(t *testing.T) {
	r := newBoilerRig(t, 0)
	require.NoError(t, r.send(bornHot, "85"))
	raised := string(r.retained()[hotAlarm].Payload)
	require.NoError(t, r.send(bornHot, "78"))
	r.restart()
	require.NoError(t, r.send("devices/boiler/reported/door", "false"))
	require.Equal(t, raised, string(r.retained()[hotAlarm].Payload), "it is below the limit, and not yet at what clears it")
	require.NoError(t, r.send(bornHot, "79"))
	require.Equal(t, []string{"temperature/hot raised at 85"}, r.alarmChanges())
	require.NoError(t, r.send(bornHot, "70"))
	require.Empty(t, r.alarmNames(hotAlarm))
	require.Len(t, r.alarmChanges(), 2)
}

func TestAnUnknownValueNeitherRaisesNorClears(t *testing.T) {
	r := newBoilerRig(t, 1000)
	unknown := func() {
		require.NoError(t, r.send("devices/boiler/problem/temperature", `{"code":"Unknown","message":"0xFFFF"}`))
	}
	require.NoError(t, r.send(bornHot, "85"))
	unknown()
	r.clock.Add(5000)
	require.NoError(t, r.send("devices/boiler/reported/door", "false"))
	require.Empty(t, r.alarmNames(hotAlarm), "it was not known for long enough that it is hot")

	require.NoError(t, r.send(bornHot, "85"))
	r.clock.Add(1001)
	require.Eventually(t, func() bool { return len(r.alarmNames(hotAlarm)) == 1 }, testTimeout, time.Millisecond)
	unknown()
	require.Len(t, r.alarmNames(hotAlarm), 1)
	require.NoError(t, r.send("devices/boiler/state", "offline"))
	require.NoError(t, r.send(bornHot, "20"))
	require.Len(t, r.alarmNames(hotAlarm), 1, "of a device that is offline nobody knows")
	require.NoError(t, r.send("devices/boiler/state", "online"))
	require.Empty(t, r.alarmNames(hotAlarm))
}

func TestAnAlarmWaitsUntilItsValueIsThereForLongEnough(t *testing.T) {
	r := newBoilerRig(t, 60_000)
	require.NoError(t, r.send(bornHot, "85"))
	r.clock.Add(59_000)
	require.NoError(t, r.send(bornHot, "86"))
	require.Empty(t, r.alarmNames(hotAlarm))
	require.NoError(t, r.send(bornHot, "79"))
	r.clock.Add(59_000)
	require.NoError(t, r.send(bornHot, "85"))
	r.clock.Add(59_000)
	r.restart()
	require.NoError(t, r.send("devices/boiler/reported/door", "false"))
	require.Empty(t, r.alarmNames(hotAlarm))
	r.clock.Add(1_000)
	require.NoError(t, r.send("devices/boiler/reported/door", "true"))
	require.Equal(t, []string{"hot"}, r.alarmNames(hotAlarm), "the time before the restart counts")
}

// The value that would raise it comes in the same batch as the next one.
func TestAShortPeakRaisesAnAlarm(t *testing.T) {
	r := newBoilerRig(t, 0)
	release := r.holdSteps()
	tester := &broker.Identity{ClientID: "tester"}
	first := r.publishAs(tester, bornHot, "85", broker.Properties{})
	second := r.publishAs(tester, bornHot, "20", broker.Properties{})
	release()
	require.NoError(t, r.await(first))
	require.NoError(t, r.await(second))
	require.Equal(t, []string{"temperature/hot raised at 85", "temperature/hot cleared at 20"}, r.alarmChanges())
}

func TestAlarmsGoWithTheirDeviceAndTheirLimits(t *testing.T) {
	r := newBoilerRig(t, 0)
	require.NoError(t, r.send(bornHot, "85"))
	require.Len(t, r.alarmNames(hotAlarm), 1)
	m := boilerModel(0)
	m.Spec.Properties[0].Alarms = nil
	r.add("boiler", "u1", m)
	require.Eventually(t, func() bool { return len(r.alarmNames(hotAlarm)) == 0 }, testTimeout, time.Millisecond)
	r.add("boiler", "u1", boilerModel(0))
	require.Eventually(t, func() bool { return len(r.alarmNames(hotAlarm)) == 1 }, testTimeout, time.Millisecond, "the value is there already")
	r.add("boiler", "u2", boilerModel(0))
	require.Eventually(t, func() bool { return len(r.alarmNames(hotAlarm)) == 0 }, testTimeout, time.Millisecond, "of another Device of the name nothing is known")
}

func TestAnAlarmThatCantBeStoredIsRaisedLater(t *testing.T) {
	r := newBoilerRig(t, 1000)
	require.NoError(t, r.send(bornHot, "85"))
	r.store.broken.Store(true)
	r.probeOften()
	require.Error(t, r.send("devices/boiler/reported/door", "true"))
	r.clock.Add(2000)
	r.store.broken.Store(false)
	require.Eventually(t, func() bool { return len(r.alarmNames(hotAlarm)) == 1 }, testTimeout, 10*time.Millisecond)
	require.Equal(t, []string{"temperature/hot raised at 85"}, r.alarmChanges())
}

func TestAnAlarmOfALocalValueDoesNotTellIt(t *testing.T) {
	r := newRig(t)
	r.bind(resource.Device{Metadata: resource.Meta{Name: "boiler", UID: "u1"}, Spec: resource.DeviceSpec{
		NodeName: "n1", Protocol: resource.Protocol{Type: "virtual"}, Local: []string{"temperature"},
	}}, boilerModel(0))
	r.connect()
	r.shows("devices/boiler", func(m broker.Message) bool { return len(m.Payload) > 0 })
	require.NoError(t, r.send(bornHot, "85.75"))
	r.inStep()
	require.Contains(t, r.atHub(hotAlarm), `"message":"temperature is above 80 °C"`)
	require.NotContains(t, r.atHub(hotAlarm), "85.75")
}
