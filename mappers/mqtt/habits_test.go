// SPDX-License-Identifier: Apache-2.0

package mqtt

import (
	"strconv"
	"testing"
	"time"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/drivertest"
)

// newPlayedLamp is a lamp with a temperature and a level, and the habits of the n-th device.
func newPlayedLamp(t *testing.T, server, name string, p *drivertest.HabitPlay, n int) *simulatedLamp {
	l := newLamp(t, server, name)
	l.mu.Lock()
	l.play = func(set bool) drivertest.PlayedRequest { return p.Request(n, false, set) }
	l.mu.Unlock()
	l.change(map[string]any{"temperature": 21.5, "level": 7})
	return l
}

func TestTheHabitsOfAllProtocols(t *testing.T) {
	drivertest.RunHabits(t, func(t *testing.T) drivertest.HabitRig {
		server, p := newBroker(t), drivertest.NewHabitPlay()
		name := func(n int) string { return "lamps/" + strconv.Itoa(n) }
		var lamps []*simulatedLamp
		for n := range 20 {
			lamps = append(lamps, newPlayedLamp(t, server, name(n), p, n))
		}
		return drivertest.HabitRig{
			Driver: newDriver(server, 400*time.Millisecond),
			Device: func(n int) mappers.Device {
				low, high := 0.0, 100.0
				return mappers.Device{
					Name: "lamp-" + strconv.Itoa(n),
					Config: map[string]string{
						"topic": name(n), "availability": "{topic}/availability", "availabilityPath": "state", "get": "{topic}/get", "getPayload": `{"state":""}`, "getEvery": "1s",
					},
					Properties: []mappers.Property{
						{Name: "temperature", Type: mappers.Float, Visited: true, Config: map[string]string{"state": "{topic}", "path": "temperature"}},
						{Name: "level", Type: mappers.Int, Writable: true, Minimum: &low, Maximum: &high, Visited: true, Config: map[string]string{"state": "{topic}", "path": "level", "command": "{topic}/set"}},
					},
				}
			},
			Set: func(n int, habit drivertest.DeviceHabit, on bool) {
				p.Set(n, habit, on)
				switch habit {
				case drivertest.HabitDead: // its broker says so
					lamps[n].available(!on)
				case drivertest.HabitNoValue:
					lamps[n].change(map[string]any{"temperature": map[bool]any{true: nil, false: 21.5}[on]})
				}
			},
			Wrote: p.Wrote,
			Missing: map[drivertest.DeviceHabit]string{
				drivertest.HabitClosesConnection: "a device has its connection with the broker, and none with the mapper",
				drivertest.HabitSilentProperty:   "a property isn't asked for by itself: what a device doesn't tell any more grows old, by the model's expireAfter",
				drivertest.HabitBusy:             "a message has no answer that could say so",
				drivertest.HabitStranger:         "nobody but the device publishes its state",
			},
		}
	})
}
