// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/drivertest"
	"github.com/edgebus/edgebus/mappers/modbus/wire"
)

// suiteUnits are units behind one address with the habits of the suite. Each has a temperature in input register 0 and a level in holding
// register 0.
type suiteUnits struct {
	mu       sync.Mutex
	habits   map[int]map[drivertest.DeviceHabit]bool
	level    map[int]uint16
	old      map[int]uint16
	written  map[int]time.Time
	writes   map[int]int
	requests map[int]int
}

func (u *suiteUnits) handle(c wire.Call) ([]uint16, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := int(c.Unit) - 1
	switch {
	case c.IsWrite():
		u.old[n], u.level[n], u.written[n] = u.level[n], c.Values[0], time.Now()
		u.writes[n]++
		return nil, nil
	case c.Address != 0 || c.Quantity != 1:
		return nil, wire.IllegalAddress
	case c.Function == wire.ReadInputRegisters && u.habits[n][drivertest.HabitNoValue]:
		return []uint16{0x8000}, nil
	case c.Function == wire.ReadInputRegisters:
		return []uint16{215}, nil
	case u.habits[n][drivertest.HabitOldValue] && time.Since(u.written[n]) < time.Second:
		return []uint16{u.old[n]}, nil
	}
	return []uint16{u.level[n]}, nil
}

func (u *suiteUnits) before(r *wire.Reply) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := int(r.Call.Unit) - 1
	has := u.habits[n]
	u.requests[n]++
	switch {
	case has[drivertest.HabitDead], has[drivertest.HabitComesBack], has[drivertest.HabitSilentProperty] && r.Call.Function == wire.ReadInputRegisters:
		r.Silent = true
	case has[drivertest.HabitStranger]:
		r.Refuse(wire.TargetSilent)
	case has[drivertest.HabitBusy] && u.requests[n]%2 == 0:
		r.Refuse(wire.DeviceBusy)
	}
}

func (u *suiteUnits) after(r *wire.Reply) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := int(r.Call.Unit) - 1
	has := u.habits[n]
	r.Silent = r.Silent || has[drivertest.HabitLosesAnswers] && u.requests[n]%2 == 0 || has[drivertest.HabitLosesWrites] && r.Call.IsWrite()
	r.Close = has[drivertest.HabitClosesConnection]
	if has[drivertest.HabitSlow] {
		r.Delay = 300 * time.Millisecond
	}
}

func TestTheHabitsOfAllProtocols(t *testing.T) {
	drivertest.RunHabits(t, func(t *testing.T) drivertest.HabitRig {
		u := &suiteUnits{habits: map[int]map[drivertest.DeviceHabit]bool{}, level: map[int]uint16{}, old: map[int]uint16{}, written: map[int]time.Time{}, writes: map[int]int{}, requests: map[int]int{}}
		s := &wire.Server{Handle: u.handle, Before: u.before, After: u.after}
		require.NoError(t, s.Listen("127.0.0.1:0"))
		t.Cleanup(func() { _ = s.Close() })
		return drivertest.HabitRig{
			Driver: New(Options{}),
			Device: func(n int) mappers.Device {
				low, high := 0.0, 100.0
				temperature := newProperty("temperature", mappers.Float, false, "register", "input", "address", "0", "type", "int16", "scale", "0.1")
				temperature.NotAvailable = []string{"-32768"}
				level := newProperty("level", mappers.Int, true, "register", "holding", "address", "0", "type", "uint16")
				level.Minimum, level.Maximum = &low, &high
				return mappers.Device{
					Name: fmt.Sprintf("unit-%d", n), Properties: []mappers.Property{temperature, level},
					Config: map[string]string{"address": s.Addr(), "unit": fmt.Sprint(n + 1), "timeout": "400ms"},
				}
			},
			Set: func(n int, habit drivertest.DeviceHabit, on bool) {
				u.mu.Lock()
				defer u.mu.Unlock()
				if u.habits[n] == nil {
					u.habits[n] = map[drivertest.DeviceHabit]bool{}
				}
				u.habits[n][habit] = on
			},
			Wrote: func(n int) int {
				u.mu.Lock()
				defer u.mu.Unlock()
				return u.writes[n]
			},
		}
	})
}
