// SPDX-License-Identifier: Apache-2.0

package bacnet

import (
	"errors"
	"math"
	"time"

	"github.com/edgebus/edgebus/mappers/bacnet/wire"
)

// The objects of the simulated air handling unit.
var (
	unitSupply   = wire.NewObjectID(wire.AnalogInput, 1)
	unitOutside  = wire.NewObjectID(wire.AnalogInput, 2)
	unitSetpoint = wire.NewObjectID(wire.AnalogValue, 1)
	unitFan      = wire.NewObjectID(wire.BinaryOutput, 1)
	unitMode     = wire.NewObjectID(wire.MultiStateValue, 1)
	unitFilter   = wire.NewObjectID(wire.BinaryInput, 1)
)

// Unit numbers of the standard.
const (
	degreesCelsius = wire.Enumerated(62)
	noUnits        = wire.Enumerated(95)
)

// NewSimulator starts a simulated air handling unit with the number instance. It runs until its Close.
func NewSimulator(listen string, instance uint32) (*wire.Server, error) {
	fine := wire.BitString{false, false, false, false}
	within := func(low, high float32) func(any) error {
		return func(v any) error {
			if f, ok := v.(float32); !ok || f < low || f > high {
				return errors.New("out of range")
			}
			return nil
		}
	}
	object := func(name string, value, unit any) map[wire.PropertyID][]any {
		p := map[wire.PropertyID][]any{
			wire.ObjectName: {name}, wire.PresentValue: {value}, wire.StatusFlags: {fine}, wire.RelinquishValue: {value},
		}
		if unit != nil {
			p[wire.Units] = []any{unit}
		}
		return p
	}
	modes := object("Mode", uint64(2), nil)
	modes[wire.NumberOfStates], modes[wire.StateText] = []any{uint64(3)}, []any{"off", "auto", "manual"}
	set := object("Setpoint", float32(21), degreesCelsius)
	set[wire.MinPresentValue], set[wire.MaxPresentValue] = []any{float32(16)}, []any{float32(28)}
	return wire.NewServer(listen, instance, map[wire.ObjectID]*wire.ServerObject{
		wire.NewObjectID(wire.Device, instance): {Properties: map[wire.PropertyID][]any{
			wire.ObjectName: {"Air handling unit"}, wire.VendorName: {"Edgebus"}, wire.ModelName: {"Simulator"}, wire.Description: {"A simulated device"},
		}},
		unitSupply:   {Properties: object("Supply temperature", float32(19.5), degreesCelsius)},
		unitOutside:  {Properties: object("Outside air temperature", float32(7), degreesCelsius)},
		unitSetpoint: {Commandable: true, Properties: set, Check: within(16, 28)},
		unitFan:      {Commandable: true, Properties: object("Fan", wire.Enumerated(1), nil)},
		unitMode: {Commandable: true, Properties: modes, Check: func(v any) error {
			if n, ok := v.(uint64); !ok || n < 1 || n > 3 {
				return errors.New("there are three modes")
			}
			return nil
		}},
		unitFilter: {Properties: object("Filter dirty", wire.Enumerated(0), nil)},
	})
}

// simulate lets the supply air follow the setpoint while the fan runs.
func simulate(s *wire.Server, done <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			now, _ := s.Value(unitSupply).(float32)
			goal, _ := s.Value(unitOutside).(float32)
			if on, _ := s.Value(unitFan).(wire.Enumerated); on == 1 {
				goal, _ = s.Value(unitSetpoint).(float32)
			}
			next := float32(math.Round(float64(now+(goal-now)/20)*10) / 10)
			if next != now {
				s.Set(unitSupply, next)
			}
		}
	}
}
