package modbus

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"os"
	"sync"
	"time"

	mb "github.com/simonvetter/modbus"
)

// The simulated thermostat's registers. Every unit has its own room.
//
//	coil 0              may heat (read and write; on at the start)
//	discrete input 0    heats now
//	holding register 0  setpoint in tenths of a degree, 50 to 350 (read and write; 200 at the start)
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

// SimulatorOptions configure a simulated thermostat.
type SimulatorOptions struct {
	Listen   string        // host:port; port 0 takes a free one; default 127.0.0.1:0
	Units    int           // units 1 to Units answer, others don't exist; default 1
	Speed    float64       // how many times faster than the clock rooms warm up; default 60
	DriveLog string        // a file that gets a line of JSON for each write
	Timeout  time.Duration // closes idle connections; default 1 min
	Now      func() time.Time
}

// Simulator is a Modbus server over TCP that believes to be a house full of thermostats.
type Simulator struct {
	o      SimulatorOptions
	server *mb.ModbusServer
	addr   string
	drives io.WriteCloser

	mu    sync.Mutex
	rooms map[uint8]*simulatedRoom
}

// NewSimulator starts a simulator; Close stops it.
func NewSimulator(o SimulatorOptions) (*Simulator, error) {
	o = o.withDefaults()
	if o.Units < 1 || o.Units > 247 || o.Speed < 0 || math.IsNaN(o.Speed) {
		return nil, fmt.Errorf("simulator: %d units at speed %g: units are 1 to 247, and time doesn't go back", o.Units, o.Speed)
	}
	s := &Simulator{o: o, rooms: map[uint8]*simulatedRoom{}}
	for u := 1; u <= o.Units; u++ {
		s.rooms[uint8(u)] = &simulatedRoom{temperature: 18 + float64(u%5)/2, setpoint: 200, enabled: true, last: o.Now()}
	}
	if o.DriveLog != "" {
		f, err := os.OpenFile(o.DriveLog, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // G302: a log of a simulation
		if err != nil {
			return nil, fmt.Errorf("drive log: %w", err)
		}
		s.drives = f
	}
	if err := s.listen(); err != nil {
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

// listen starts the server. The library doesn't tell which port it took for 0, so a free one is looked for first; if another
// process takes it in between, the next one is tried.
func (s *Simulator) listen() (err error) {
	for range 10 {
		if s.addr, err = freeAddress(s.o.Listen); err != nil {
			return err
		}
		s.server, err = mb.NewServer(&mb.ServerConfiguration{
			URL: "tcp://" + s.addr, Timeout: s.o.Timeout, MaxClients: 64, Logger: log.New(io.Discard, "", 0),
		}, s)
		if err != nil {
			return err
		}
		if err = s.server.Start(); err == nil || s.addr == s.o.Listen {
			return err
		}
	}
	return err
}

func freeAddress(listen string) (string, error) {
	if _, port, err := net.SplitHostPort(listen); err != nil || port != "0" {
		return listen, err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// Addr is where it listens, host:port.
func (s *Simulator) Addr() string { return s.addr }

// Close stops the server.
func (s *Simulator) Close() error { return errors.Join(s.server.Stop(), s.closeLog()) }

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

// at finds the room of a unit and lets time pass in it. mu is held.
func (s *Simulator) at(unit uint8) (*simulatedRoom, error) {
	r := s.rooms[unit]
	if r == nil {
		return nil, mb.ErrGWTargetFailedToRespond
	}
	r.pass(s.o.Now(), s.o.Speed)
	return r, nil
}

// readTable answers with a part of one of a room's tables.
func readTable[T any](s *Simulator, unit uint8, address, quantity uint16, table func(*simulatedRoom) []T) ([]T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.at(unit)
	if err != nil {
		return nil, err
	}
	all := table(r)
	if int(address)+int(quantity) > len(all) {
		return nil, mb.ErrIllegalDataAddress
	}
	return all[address : address+quantity], nil
}

// write sets what stands at address 0, which is all that can be written in any table.
func (s *Simulator) write(unit uint8, table string, address, quantity uint16, value any, set func(*simulatedRoom)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := s.at(unit)
	switch {
	case err != nil:
		return err
	case address != 0 || quantity != 1:
		return mb.ErrIllegalDataAddress
	}
	set(r)
	return s.drove(unit, table, 0, value)
}

// HandleCoils implements the library's RequestHandler.
func (s *Simulator) HandleCoils(q *mb.CoilsRequest) ([]bool, error) {
	if q.IsWrite {
		return nil, s.write(q.UnitId, "coil", q.Addr, q.Quantity, q.Args[0], func(r *simulatedRoom) { r.enabled = q.Args[0] })
	}
	return readTable(s, q.UnitId, q.Addr, q.Quantity, func(r *simulatedRoom) []bool { return []bool{r.enabled} })
}

// HandleDiscreteInputs implements the library's RequestHandler.
func (s *Simulator) HandleDiscreteInputs(q *mb.DiscreteInputsRequest) ([]bool, error) {
	return readTable(s, q.UnitId, q.Addr, q.Quantity, func(r *simulatedRoom) []bool { return []bool{r.heating} })
}

// HandleHoldingRegisters implements the library's RequestHandler.
func (s *Simulator) HandleHoldingRegisters(q *mb.HoldingRegistersRequest) ([]uint16, error) {
	if !q.IsWrite {
		return readTable(s, q.UnitId, q.Addr, q.Quantity, func(r *simulatedRoom) []uint16 { return []uint16{r.setpoint} })
	}
	if q.Addr == 0 && (q.Args[0] < 50 || q.Args[0] > 350) {
		return nil, mb.ErrIllegalDataValue
	}
	return nil, s.write(q.UnitId, "holding", q.Addr, q.Quantity, q.Args[0], func(r *simulatedRoom) { r.setpoint = q.Args[0] })
}

// HandleInputRegisters implements the library's RequestHandler.
func (s *Simulator) HandleInputRegisters(q *mb.InputRegistersRequest) ([]uint16, error) {
	return readTable(s, q.UnitId, q.Addr, q.Quantity, (*simulatedRoom).inputs)
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
		return mb.ErrServerDeviceFailure
	}
	return nil
}
