// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"time"

	"github.com/edgebus/edgebus/mappers/modbus/wire"
)

// The simulated thermostat's registers. Every unit has its own room.
//
//	coil 0              may heat (read and write; on at the start)
//	discrete input 0    heats now
//	holding register 0  setpoint in tenths of a degree, 50 to 350 (read and write; 200 at the start)
//	holding registers 100-219  what was written to them; their addresses at the start
//	input register 0    temperature in tenths of a degree
//	input registers 1-2 temperature, float32, high word first
//	input registers 3-4 energy used in Wh, uint32, high word first
const (
	outsideTemperature = 5.0           // °C
	heaterPower        = 2000.0        // W
	heaterLift         = 30.0          // how much warmer than outside the heater can make a room
	roomInertia        = 3 * time.Hour // until a room has gone two thirds of the way
	roomHysteresis     = 0.3
)

var simulatedIdentification = wire.Identification{0: "Edgebus", 1: "simulated-thermostat", 2: "1.0"}

// SimulatorOptions configure a simulated thermostat.
type SimulatorOptions struct {
	Listen   string        // host:port; port 0 takes a free one; default 127.0.0.1:0
	Units    int           // units 1 to Units answer, others don't exist; default 1
	Speed    float64       // how many times faster than the clock rooms warm up; default 60
	DriveLog string        // a file that gets a line of JSON for each write
	Timeout  time.Duration // closes idle connections; default 1 min
	Sunspec  bool          // holding registers from 40000 on are those of a SunSpec inverter, too
	Habits   *Habits       // how it misbehaves; nil: it does not
	Now      func() time.Time
}

// Simulator is a Modbus server over TCP that believes to be a house full of thermostats.
type Simulator struct {
	o      SimulatorOptions
	server wire.Server
	drives io.WriteCloser

	mu      sync.Mutex
	rooms   map[uint8]*simulatedRoom
	sunspec []uint16 // from sunspecBases[0] on
}

// NewSimulator starts a simulator; Close stops it.
func NewSimulator(o SimulatorOptions) (*Simulator, error) {
	o = o.withDefaults()
	if o.Units < 1 || o.Units > 247 || o.Speed < 0 || math.IsNaN(o.Speed) {
		return nil, fmt.Errorf("simulator: %d units at speed %g: units are 1 to 247, and time doesn't go back", o.Units, o.Speed)
	}
	s := &Simulator{o: o, rooms: map[uint8]*simulatedRoom{}}
	for u := 1; u <= o.Units; u++ {
		r := &simulatedRoom{temperature: 18 + float64(u%5)/2, setpoint: 200, enabled: true, last: o.Now()}
		for i := range r.block {
			r.block[i] = uint16(blockAddress + i)
		}
		s.rooms[uint8(u)] = r
	}
	if o.Sunspec {
		s.sunspec = sunspecImage()
	}
	if o.DriveLog != "" {
		f, err := os.OpenFile(o.DriveLog, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // G302: a log of a simulation
		if err != nil {
			return nil, fmt.Errorf("drive log: %w", err)
		}
		s.drives = f
	}
	s.server.Handle, s.server.Idle, s.server.Identification = s.handle, o.Timeout, simulatedIdentification
	if o.Habits != nil {
		o.Habits.apply(&s.server)
	}
	if err := s.server.Listen(o.Listen); err != nil {
		return nil, errors.Join(err, s.closeLog())
	}
	return s, nil
}

func (o SimulatorOptions) withDefaults() SimulatorOptions {
	o.Listen, o.Units, o.Speed = cmp.Or(o.Listen, "127.0.0.1:0"), cmp.Or(o.Units, 1), cmp.Or(o.Speed, 60)
	if o.Timeout <= 0 {
		o.Timeout = time.Minute
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Addr is where it listens, host:port.
func (s *Simulator) Addr() string { return s.server.Addr() }

// Close stops the server.
func (s *Simulator) Close() error { return errors.Join(s.server.Close(), s.closeLog()) }

func (s *Simulator) closeLog() error {
	if s.drives == nil {
		return nil
	}
	return s.drives.Close()
}

// simulatedRoom is what one thermostat looks after.
type simulatedRoom struct {
	temperature float64
	setpoint    uint16
	enabled     bool
	heating     bool
	energy      float64 // Wh
	last        time.Time
	block       [blockSize]uint16
}

// pass lets time pass: the heater goes on and off around the setpoint, and the room follows slowly.
func (r *simulatedRoom) pass(now time.Time, speed float64) {
	left := time.Duration(float64(now.Sub(r.last)) * speed)
	r.last = now
	left = min(left, 7*24*time.Hour) // then it has long settled
	for left > 0 {
		step := min(left, time.Minute)
		left -= step
		r.control()
		target := outsideTemperature
		if r.heating {
			target += heaterLift
			r.energy += heaterPower * step.Hours()
		}
		r.temperature += (target - r.temperature) * (1 - math.Exp(-float64(step)/float64(roomInertia)))
	}
	r.control()
}

func (r *simulatedRoom) control() {
	want := float64(r.setpoint) / 10
	switch {
	case !r.enabled, r.temperature > want+roomHysteresis:
		r.heating = false
	case r.temperature < want-roomHysteresis:
		r.heating = true
	}
}

func (r *simulatedRoom) inputs() []uint16 {
	t := math.Float32bits(float32(math.Round(r.temperature*100) / 100))
	e := uint32(r.energy)
	return []uint16{uint16(int16(math.Round(r.temperature * 10))), uint16(t >> 16), uint16(t), uint16(e >> 16), uint16(e)}
}

// handle answers a request, as the room of its unit is now.
func (s *Simulator) handle(c wire.Call) ([]uint16, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.rooms[c.Unit]
	if r == nil {
		return nil, wire.TargetSilent
	}
	r.pass(s.o.Now(), s.o.Speed)
	if c.IsWrite() {
		return nil, s.write(r, c)
	}
	if from := int(c.Address) - int(sunspecBases[0]); c.Function == wire.ReadHoldingRegisters && from >= 0 && from+int(c.Quantity) <= len(s.sunspec) {
		return s.sunspec[from : from+int(c.Quantity)], nil
	}
	return r.read(c)
}

// The block of registers that any value can be written to; each begins with its own address.
const (
	blockAddress = 100
	blockSize    = 120
)

func (r *simulatedRoom) read(c wire.Call) ([]uint16, error) {
	var table []uint16
	address := int(c.Address)
	switch c.Function {
	case wire.ReadCoils:
		table = []uint16{boolWord(r.enabled)}
	case wire.ReadDiscreteInputs:
		table = []uint16{boolWord(r.heating)}
	case wire.ReadInputRegisters:
		table = r.inputs()
	default:
		table = []uint16{r.setpoint}
		if address >= blockAddress {
			table, address = r.block[:], address-blockAddress
		}
	}
	if address+int(c.Quantity) > len(table) {
		return nil, wire.IllegalAddress
	}
	return table[address : address+int(c.Quantity)], nil
}

func boolWord(on bool) uint16 {
	if on {
		return 1
	}
	return 0
}

// write writes the coil, the setpoint, or registers of the block.
func (s *Simulator) write(r *simulatedRoom, c wire.Call) error {
	coil := c.Function == wire.WriteSingleCoil || c.Function == wire.WriteMultipleCoils
	switch {
	case !coil && c.Address >= blockAddress && int(c.Address)+len(c.Values) <= blockAddress+blockSize:
		for i, v := range c.Values {
			if err := s.drove(c.Unit, "holding", int(c.Address)+i, v); err != nil {
				return err
			}
		}
		copy(r.block[c.Address-blockAddress:], c.Values)
		return nil
	case c.Address != 0 || len(c.Values) != 1:
		return wire.IllegalAddress
	case coil:
		r.enabled = c.Values[0] != 0
		return s.drove(c.Unit, "coil", 0, r.enabled)
	case c.Values[0] < 50 || c.Values[0] > 350:
		return wire.IllegalValue
	}
	r.setpoint = c.Values[0]
	return s.drove(c.Unit, "holding", 0, r.setpoint)
}

// drove writes a line of the drive log.
func (s *Simulator) drove(unit uint8, register string, address int, value any) error {
	if s.drives == nil {
		return nil
	}
	line, err := json.Marshal(map[string]any{
		"unit": unit, "register": register, "address": address, "value": value, "time": s.o.Now().UTC().Format(time.RFC3339Nano),
	})
	if err == nil {
		_, err = s.drives.Write(append(line, '\n'))
	}
	if err != nil {
		return wire.DeviceFailure
	}
	return nil
}
