package twin

import (
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
		for _, c := range d.Device.Status.Conditions {
			if c.Type == resource.ConditionReadable {
				return c.Status + " " + c.Message
			}
		}
		return ""
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
