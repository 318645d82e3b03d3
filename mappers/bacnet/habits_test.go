// SPDX-License-Identifier: Apache-2.0

package bacnet

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/bacnet/wire"
	"github.com/edgebus/edgebus/mappers/drivertest"
)

// newPlayedUnit has a temperature and a level, and the habits of the n-th device.
func newPlayedUnit(t *testing.T, p *drivertest.HabitPlay, n int) *wire.Server {
	t.Helper()
	object := func(name string, value any) map[wire.PropertyID][]any {
		return map[wire.PropertyID][]any{
			wire.ObjectName: {name}, wire.PresentValue: {value}, wire.RelinquishValue: {value}, wire.StatusFlags: {wire.BitString{false, false, false, false}},
		}
	}
	s, err := wire.NewServer("127.0.0.1:0", uint32(n+1), map[wire.ObjectID]*wire.ServerObject{
		unitSupply:   {Properties: object("temperature", float32(21.5))},
		unitSetpoint: {Commandable: true, Properties: object("level", float32(7))},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	s.Play(func(r wire.ServerRequest) wire.ServerAnswer {
		played := p.Request(n, r.Object == unitSupply, r.Write)
		a := wire.ServerAnswer{Ignored: played.Ignored, Busy: played.Busy, Lost: played.Lost, Delay: played.Delay}
		if played.Late {
			a.Later = drivertest.ReadLater
		}
		return a
	})
	return s
}

func TestTheHabitsOfAllProtocols(t *testing.T) {
	drivertest.RunHabits(t, func(t *testing.T) drivertest.HabitRig {
		p := drivertest.NewHabitPlay()
		var units []*wire.Server
		for n := range 20 {
			units = append(units, newPlayedUnit(t, p, n))
		}
		driver := New(Options{Listen: "127.0.0.1:0", Broadcast: units[0].Addr().String(), Timeout: 400 * time.Millisecond})
		t.Cleanup(func() { _ = driver.Close() })
		return drivertest.HabitRig{
			Driver: driver,
			Device: func(n int) mappers.Device {
				low, high := 0.0, 100.0
				level := property("level", mappers.Int, true, "object", "AV:1")
				level.Minimum, level.Maximum = &low, &high
				return mappers.Device{
					Name: "unit-" + strconv.Itoa(n), Config: map[string]string{"address": units[n].Addr().String(), "maxProperties": "1"},
					Properties: []mappers.Property{property("temperature", mappers.Float, false, "object", "AI:1"), level},
				}
			},
			Set: func(n int, habit drivertest.DeviceHabit, on bool) {
				if habit == drivertest.HabitNoValue { // it has a value that isn't to be trusted
					units[n].SetProperty(unitSupply, wire.StatusFlags, wire.BitString{false, on, false, false})
				}
				p.Set(n, habit, on)
			},
			Wrote: p.Wrote,
			Missing: map[drivertest.DeviceHabit]string{
				drivertest.HabitClosesConnection: "BACnet/IP has no connections",
				drivertest.HabitStranger:         "nobody answers a request in the device's place: a router that doesn't reach it sends a message of the network layer, which answers nothing",
			},
		}
	})
}
