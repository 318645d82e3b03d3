// SPDX-License-Identifier: Apache-2.0

package virtual_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/drivertest"
	"github.com/edgebus/edgebus/mappers/virtual"
)

func lampDevice(name string) mappers.Device {
	low, high := 0.0, 100.0
	return mappers.Device{Name: name, Properties: []mappers.Property{
		{Name: "power", Type: mappers.String, Writable: true, Enum: []string{"ON", "OFF"}},
		{Name: "brightness", Type: mappers.Int, Writable: true, Minimum: &low, Maximum: &high},
		{Name: "temperature", Type: mappers.Float},
	}}
}

func deviceWith(config map[string]string, typ mappers.Type, writable bool) mappers.Device {
	return mappers.Device{Name: "x", Properties: []mappers.Property{{Name: "p", Type: typ, Writable: writable, Config: config}}}
}

func TestDriver(t *testing.T) {
	drivertest.Run(t, func(*testing.T) drivertest.Rig {
		other := lampDevice("other")
		at := "properties[p].config."
		return drivertest.Rig{
			Driver: virtual.New(virtual.Options{}), Device: lampDevice("lamp"), Another: &other,
			Broken: map[string]mappers.Device{
				at + "generator": deviceWith(map[string]string{"generator": "magic"}, mappers.Float, false),
				at + "period":    deviceWith(map[string]string{"period": "soon"}, mappers.Float, false),
				at + "min":       deviceWith(map[string]string{"min": "5", "max": "1"}, mappers.Float, false),
				at + "max":       deviceWith(map[string]string{"max": "hot"}, mappers.Float, false),
				at + "colour":    deviceWith(map[string]string{"colour": "red"}, mappers.Int, true),
				at + "value":     deviceWith(map[string]string{"value": "hot"}, mappers.Int, true),
			},
		}
	})
}

func TestTheHabitsOfAllProtocols(t *testing.T) {
	drivertest.RunHabits(t, func(*testing.T) drivertest.HabitRig {
		habits := new(virtual.Habits)
		low, high := 0.0, 100.0
		name := func(n int) string { return "device-" + strconv.Itoa(n) }
		return drivertest.HabitRig{
			Driver: virtual.New(virtual.Options{Habits: habits}),
			Device: func(n int) mappers.Device {
				return mappers.Device{Name: name(n), Properties: []mappers.Property{
					{Name: "temperature", Type: mappers.Float, Visited: true, NotAvailable: []string{"none"}, Config: map[string]string{"generator": "constant", "value": "21.5"}},
					{Name: "level", Type: mappers.Int, Writable: true, Visited: true, Minimum: &low, Maximum: &high},
				}}
			},
			Set:   func(n int, habit drivertest.DeviceHabit, on bool) { habits.Set(name(n), string(habit), on) },
			Wrote: func(n int) int { return habits.Wrote(name(n)) },
		}
	})
}

func TestDriverOfEveryType(t *testing.T) {
	drivertest.Run(t, func(*testing.T) drivertest.Rig {
		d := mappers.Device{Name: "all"}
		for _, typ := range []mappers.Type{mappers.Int, mappers.Float, mappers.Double, mappers.Boolean, mappers.String, mappers.Bytes, mappers.Object, mappers.Array} {
			d.Properties = append(d.Properties, mappers.Property{Name: "get-" + string(typ), Type: typ})
		}
		d.Properties = append(d.Properties,
			mappers.Property{Name: "set-int", Type: mappers.Int, Writable: true},
			mappers.Property{Name: "set-bool", Type: mappers.Boolean, Writable: true},
			mappers.Property{Name: "set-text", Type: mappers.String, Writable: true})
		return drivertest.Rig{Driver: virtual.New(virtual.Options{}), Device: d}
	})
}

// testClock is a time that the test moves.
type testClock struct{ t time.Time }

func (c *testClock) now() time.Time { return c.t }

func readNumber(t *testing.T, s mappers.Session, property string) float64 {
	t.Helper()
	got, err := s.(mappers.BatchReader).ReadBatch(t.Context(), []string{property})
	require.NoError(t, err)
	require.NoError(t, got[property].Err)
	f, err := strconv.ParseFloat(got[property].Value, 64)
	require.NoError(t, err)
	return f
}

func TestLampWarmsWithBrightness(t *testing.T) {
	c := &testClock{time.Unix(1_700_000_000, 0)}
	s, err := virtual.New(virtual.Options{Now: c.now}).Open(t.Context(), lampDevice("lamp"))
	require.NoError(t, err)
	cold := readNumber(t, s, "temperature")
	require.InDelta(t, 21, cold, 1)
	set := func(p, v string) { require.NoError(t, s.(mappers.Writer).Write(t.Context(), p, v)) }
	set("power", "ON")
	set("brightness", "50")
	last := cold
	for range 10 {
		c.t = c.t.Add(20 * time.Second)
		now := readNumber(t, s, "temperature")
		require.GreaterOrEqual(t, now, last-0.7)
		last = now
	}
	require.InDelta(t, 40, last, 1)
	set("brightness", "100")
	c.t = c.t.Add(5 * time.Minute)
	require.InDelta(t, 59, readNumber(t, s, "temperature"), 1)
	set("power", "OFF")
	c.t = c.t.Add(10 * time.Minute)
	require.InDelta(t, 21, readNumber(t, s, "temperature"), 1)
}

func TestGeneratorsStayInTheirRangeAndMove(t *testing.T) {
	for _, generator := range []string{"sine", "random-walk", "sawtooth"} {
		t.Run(generator, func(t *testing.T) {
			c := &testClock{time.Unix(1_700_000_000, 0)}
			d := deviceWith(map[string]string{"generator": generator, "min": "-5", "max": "15", "period": "10s"}, mappers.Double, false)
			course := func() (seen []float64) {
				c.t = time.Unix(1_700_000_000, 0)
				s, err := virtual.New(virtual.Options{Now: c.now, Seed: 7}).Open(t.Context(), d)
				require.NoError(t, err)
				for range 300 {
					c.t = c.t.Add(100 * time.Millisecond)
					v := readNumber(t, s, "p")
					require.GreaterOrEqual(t, v, -5.0)
					require.LessOrEqual(t, v, 15.0)
					seen = append(seen, v)
				}
				return seen
			}
			first := course()
			low, high := first[0], first[0]
			for _, v := range first {
				low, high = min(low, v), max(high, v)
			}
			require.Greater(t, high-low, 5.0, "it hardly moves")
			require.Equal(t, first, course(), "the same seed gives the same course")
		})
	}
}

func TestCommands(t *testing.T) {
	s, err := virtual.New(virtual.Options{}).Open(t.Context(), lampDevice("lamp"))
	require.NoError(t, err)
	require.NoError(t, s.(mappers.Writer).Write(t.Context(), "brightness", "50"))
	_, err = s.(mappers.Commander).Command(t.Context(), "reset", nil)
	require.NoError(t, err)
	require.Zero(t, readNumber(t, s, "brightness"))
	sound, err := s.(mappers.Commander).Command(t.Context(), "beep", []byte("twice"))
	require.NoError(t, err)
	require.Equal(t, "beep beep", string(sound))
	_, err = s.(mappers.Commander).Command(t.Context(), "fly", nil)
	require.Error(t, err)
}

func TestEventsHappenByThemselvesAndByCommands(t *testing.T) {
	d := mappers.Device{
		Name: "bell",
		Events: []mappers.Property{
			{Name: "pressed", Type: mappers.String, Enum: []string{"single", "double"}, Config: map[string]string{"command": "press"}},
			{Name: "tick", Type: mappers.Int, Config: map[string]string{"every": "10ms"}},
		},
		Commands: []mappers.Property{{Name: "press", Type: mappers.String}},
	}
	s, err := virtual.New(virtual.Options{}).Open(t.Context(), d)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	told, ended := make(chan string), make(chan error, 1)
	go func() {
		ended <- s.(mappers.EventSource).Events(ctx, func(event, value string) { told <- event + " " + value })
	}()
	for _, input := range []string{"double", "double", ""} {
		_, err := s.(mappers.Commander).Command(t.Context(), "press", []byte(input))
		require.NoError(t, err)
	}
	for _, want := range []string{"pressed double", "pressed double", "pressed single"} {
		for got := <-told; got != want; got = <-told {
			require.Equal(t, "tick 1", got)
		}
	}
	require.Equal(t, "tick 1", <-told)
	cancel()
	for stopped := false; !stopped; {
		select {
		case err := <-ended:
			require.NoError(t, err)
			stopped = true
		case <-told:
		}
	}
	for want, config := range map[string]map[string]string{
		"visitors[pressed].config.every": {"every": "soon"}, "visitors[pressed].config.command": {"command": "fly"}, "visitors[pressed].config.of": {"of": "x"},
	} {
		d.Events[0].Config = config
		_, err := virtual.New(virtual.Options{}).Open(t.Context(), d)
		require.ErrorContains(t, err, want)
	}
}

// A setting that the table doesn't have is refused, and one that it has is not: forms and checks are of one table.
func TestTheTableOfSettingsIsWhatIsChecked(t *testing.T) {
	settings := virtual.New(virtual.Options{}).Settings()
	require.NotEmpty(t, settings.Property)
	for _, s := range settings.Property {
		d := deviceWith(map[string]string{s.Name: "!"}, mappers.Float, false)
		if _, err := virtual.New(virtual.Options{}).Open(t.Context(), d); err != nil {
			require.NotContains(t, err.Error(), "is no setting", s.Name)
		}
	}
	_, err := virtual.New(virtual.Options{}).Open(t.Context(), deviceWith(map[string]string{"colour": "!"}, mappers.Float, false))
	require.ErrorContains(t, err, "is no setting")
}
