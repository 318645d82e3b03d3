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

// TestAClockAheadIsAConditionOfItsProperties: until a report of them is accepted.
func TestAClockAheadIsAConditionOfItsProperties(t *testing.T) {
	r := newJoinedRig(t)
	at := func(d time.Duration) broker.UserProperty {
		return broker.UserProperty{Key: "ts", Value: resource.FormatTime(time.UnixMilli(r.clock.Load()).Add(d))}
	}
	require.NoError(t, r.send("devices/hall/reported/temperature", "19", at(0)))
	require.ErrorIs(t, r.send("devices/hall/reported/temperature", "20", at(time.Hour)), resource.Invalid)
	m := r.shows("devices/hall/problem/temperature", func(m broker.Message) bool { return len(m.Payload) > 0 })
	why, err := resource.ParseProblem(m.Payload)
	require.NoError(t, err)
	require.Equal(t, resource.ClockAhead, why.Code)
	readable := func() string {
		d, _ := r.twin.Device("hall")
		c := resource.ConditionOf(d.Device.Status.Conditions, resource.ConditionReadable)
		return c.Status + " " + c.Message
	}
	require.Contains(t, readable(), "False temperature: ClockAhead: ")
	require.ErrorIs(t, r.send("devices/hall/reported", `{"setpoint":20}`, at(time.Hour)), resource.Invalid)
	require.Contains(t, r.retained(), "devices/hall/problem/setpoint")

	require.NoError(t, r.send("devices/hall/reported", `{"setpoint":20,"temperature":20}`, at(time.Minute)))
	require.NotContains(t, r.retained(), "devices/hall/problem/temperature")
	require.NotContains(t, r.retained(), "devices/hall/problem/setpoint")
}

// TestATimestampOfTelemetryIsChecked as that of a value is.
func TestATimestampOfTelemetryIsChecked(t *testing.T) {
	r := newJoinedRig(t)
	passed := make(chan func(error), 9)
	r.kept.Store(&passed)
	for _, kind := range []string{"telemetry", "events"} {
		topic := "devices/hall/" + kind + "/pulse"
		for _, ts := range []string{resource.FormatTime(time.UnixMilli(r.clock.Load()).Add(2 * time.Minute)), "never"} {
			require.ErrorIs(t, r.send(topic, "1", broker.UserProperty{Key: "ts", Value: ts}), resource.Invalid, topic)
		}
		done := make(chan error, 1)
		go func() {
			done <- r.send(topic, "1", broker.UserProperty{Key: "ts", Value: resource.FormatTime(time.UnixMilli(r.clock.Load()))})
		}()
		(<-passed)(nil)
		require.NoError(t, <-done)
	}
}

// A report that a durable session gets is acknowledged once both the store and that session have it, and refused where the session's
// disk is full.
func TestAReportIsAcknowledgedWhenDurableSessionsHaveIt(t *testing.T) {
	r := newJoinedRig(t)
	outcomes := make(chan func(error), 16)
	r.kept.Store(&outcomes)
	report := func(value string) <-chan error {
		return r.publishAs(&broker.Identity{ClientID: "tester"}, "devices/hall/reported/temperature", value, broker.Properties{})
	}
	answer := report("20.5")
	done := <-outcomes
	require.Empty(t, answer, "the store has it, and the session doesn't")
	done(nil)
	require.NoError(t, <-answer)
	answer = report("21")
	(<-outcomes)(resource.Errorf(resource.Unavailable, "", "no space left on device"))
	require.ErrorIs(t, <-answer, resource.Unavailable)
	r.kept.Store(nil)
}

func TestARefusedOverrideBlamesNoDesiredValue(t *testing.T) {
	r := newJoinedRig(t)
	r.wantShown("devices/hall/desired/setpoint", "20", 41)
	require.NoError(t, r.send("devices/hall/desired/setpoint", "25"))
	require.NoError(t, r.send("devices/hall/refused/setpoint", `{"for":2,"code":"Stuck"}`))
	require.JSONEq(t, `{"for":2,"code":"Stuck"}`, string(r.retained()["devices/hall/refused/setpoint"].Payload))
}

func TestNothingWantedNothingRefused(t *testing.T) {
	r := newJoinedRig(t)
	r.wantShown("devices/hall/desired/setpoint", "20", 41)
	require.NoError(t, r.send("devices/hall/refused/setpoint", `{"for":1,"code":"Stuck"}`))
	r.want("devices/hall/desired/setpoint", "", 0)
	r.value("devices/hall/desired/setpoint", "")
	require.NotContains(t, r.retained(), "devices/hall/refused/setpoint")
}

func TestARefusalOfAnOlderDesiredValue(t *testing.T) {
	r := newJoinedRig(t)
	r.wantShown("devices/hall/desired/setpoint", "20", 41)
	r.inStep()
	release := r.holdSteps()
	waiting := r.twin.host.Len()
	r.want("devices/hall/desired/setpoint", "21", 42)
	require.Eventually(t, func() bool { return r.twin.host.Len() > waiting }, testTimeout, time.Millisecond, "its DELTA waits")
	done := r.publishAs(nil, "devices/hall/refused/setpoint", `{"for":1,"code":"Stuck"}`, broker.Properties{})
	release()
	require.NoError(t, r.await(done))
	require.NotContains(t, r.retained(), "devices/hall/refused/setpoint")
}

func TestRefusalNamesTheCloudsVersionAndClears(t *testing.T) {
	r := newJoinedRig(t)
	r.wantShown("devices/hall/desired/setpoint", "20", 41)
	require.NoError(t, r.send("devices/hall/refused/setpoint", `{"for":1,"code":"Stuck","message":"valve"}`))
	require.JSONEq(t, `{"for":1,"ver":41,"code":"Stuck","message":"valve"}`, string(r.retained()["devices/hall/refused/setpoint"].Payload))

	require.NoError(t, r.send("devices/hall/reported/setpoint", "18", forVersion("1"))) // not newer than what was refused
	require.Contains(t, r.retained(), "devices/hall/refused/setpoint")
	r.wantShown("devices/hall/desired/setpoint", "21", 42)
	require.NoError(t, r.send("devices/hall/reported/setpoint", "21", forVersion("2")))
	require.NotContains(t, r.retained(), "devices/hall/refused/setpoint")
	require.NoError(t, r.send("devices/hall/refused/setpoint", `{"for":1,"code":"Stuck"}`)) // speaks of the past
	require.NotContains(t, r.retained(), "devices/hall/refused/setpoint")
}

// What was refused, or could not be read, before a restart is cleared by the next report as well.
func TestAReportClearsTheFaultsOfBeforeTheRestart(t *testing.T) {
	r := newJoinedRig(t)
	r.wantShown("devices/hall/desired/setpoint", "20", 41)
	require.NoError(t, r.send("devices/hall/refused/setpoint", `{"for":1,"code":"Stuck"}`))
	require.NoError(t, r.send("devices/hall/problem/temperature", `{"code":"Unplugged"}`))
	r.restart()
	require.NoError(t, r.send("devices/hall/reported/setpoint", "20", forVersion("1")))
	require.NoError(t, r.send("devices/hall/reported/temperature", "19"))
	require.NotContains(t, r.retained(), "devices/hall/refused/setpoint")
	require.NotContains(t, r.retained(), "devices/hall/problem/temperature")
}

func TestGetAnswersWithTheWholeTwin(t *testing.T) {
	r := newJoinedRig(t)
	r.wantShown("devices/hall/desired/setpoint", "20.0", 5)
	require.NoError(t, r.send("devices/hall/reported/setpoint", "20", forVersion("1")))
	require.NoError(t, r.await(r.publishAs(nil, "devices/hall/get", "", broker.Properties{ResponseTopic: "reply/me", Correlation: []byte("c1")})))
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.out[len(r.out)-1]
	require.Equal(t, "reply/me", last.Topic)
	require.Equal(t, "c1", string(last.Props.Correlation))
	var twin map[string]resource.TwinProperty
	require.NoError(t, json.Unmarshal(last.Payload, &twin))
	require.True(t, twin["setpoint"].InSync, "20 is 20.0")
	require.Equal(t, uint64(5), twin["setpoint"].Desired.Ver)
}

// TestAValueThatIsUnknownIsCleared: a reader must not take the one before for the device's.
func TestAValueThatIsUnknownIsCleared(t *testing.T) {
	r := newJoinedRig(t)
	require.NoError(t, r.send("devices/hall/reported/temperature", "20.5"))
	require.NoError(t, r.send("devices/hall/problem/temperature", `{"code":"Rejected"}`))
	r.value("devices/hall/reported/temperature", "20.5")
	require.NoError(t, r.send("devices/hall/problem/temperature", `{"code":"Unknown","message":"the device says 0xFFFF"}`))
	require.NotContains(t, r.retained(), "devices/hall/reported/temperature")
	require.Contains(t, r.retained(), "devices/hall/problem/temperature")
	require.NoError(t, r.send("devices/hall/reported/temperature", "21"))
	require.NotContains(t, r.retained(), "devices/hall/problem/temperature")
	require.NoError(t, r.send("devices/hall/problem/temperature", `{"code":"Unread","message":"no answer"}`))
	r.value("devices/hall/reported/temperature", "21")
	require.NoError(t, r.send("devices/hall/problem/temperature", `{"code":"Stale","message":"the device has not said it again"}`))
	require.NotContains(t, r.retained(), "devices/hall/reported/temperature", "too old is no value either")
}
