// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/drivertest"
	"github.com/edgebus/edgebus/mappers/modbus/wire"
)

// unitServer is a Modbus server on a socket whose units are in the test's hand. Only registers that were set exist.
type unitServer struct {
	t      *testing.T
	addr   string
	server *wire.Server

	mu       sync.Mutex
	bits     map[uint8]map[uint16]bool
	words    map[uint8]map[uint16]uint16
	held     map[uint8]chan struct{}
	requests []string
}

func newServer(t *testing.T) *unitServer {
	s := &unitServer{
		t: t, bits: map[uint8]map[uint16]bool{}, words: map[uint8]map[uint16]uint16{}, held: map[uint8]chan struct{}{},
	}
	s.addr = "127.0.0.1:0"
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *unitServer) start() {
	s.server = &wire.Server{Handle: s.handle}
	require.NoError(s.t, s.server.Listen(s.addr))
	s.addr = s.server.Addr()
}

func (s *unitServer) stop() {
	s.mu.Lock()
	for unit, held := range s.held {
		close(held)
		delete(s.held, unit)
	}
	s.mu.Unlock()
	_ = s.server.Close()
}

func (s *unitServer) set(unit uint8, address uint16, words ...uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.words[unit] == nil {
		s.words[unit] = map[uint16]uint16{}
	}
	for i, w := range words {
		s.words[unit][address+uint16(i)] = w
	}
}

func (s *unitServer) setBits(unit uint8, address uint16, bits ...bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bits[unit] == nil {
		s.bits[unit] = map[uint16]bool{}
	}
	for i, b := range bits {
		s.bits[unit][address+uint16(i)] = b
	}
}

func (s *unitServer) word(unit uint8, address uint16) uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.words[unit][address]
}

// hold has a unit answer nothing until it is released.
func (s *unitServer) hold(unit uint8) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := make(chan struct{})
	s.held[unit] = held
	release = sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[unit] == held {
			delete(s.held, unit)
			close(held)
		}
	})
	s.t.Cleanup(release)
	return release
}

func (s *unitServer) took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.requests
	s.requests = nil
	return r
}

func (s *unitServer) enter(unit uint8, what string, address, quantity uint16) {
	s.mu.Lock()
	held := s.held[unit]
	s.requests = append(s.requests, fmt.Sprintf("%d %s %d+%d", unit, what, address, quantity))
	s.mu.Unlock()
	if held != nil {
		<-held
	}
}

func (s *unitServer) handle(c wire.Call) ([]uint16, error) {
	table := map[byte]string{
		wire.ReadCoils: "coil", wire.WriteSingleCoil: "coil", wire.WriteMultipleCoils: "coil", wire.ReadDiscreteInputs: "discrete",
		wire.ReadHoldingRegisters: "holding", wire.ReadInputRegisters: "input", wire.WriteSingleRegister: "holding", wire.WriteMultipleRegisters: "holding",
	}[c.Function]
	s.enter(c.Unit, table, c.Address, c.Quantity)
	s.mu.Lock()
	defer s.mu.Unlock()
	if table == "coil" || table == "discrete" {
		out, err := lookUp(s.bits[c.Unit], c)
		if c.IsWrite() && err == nil {
			for i, v := range c.Values {
				s.bits[c.Unit][c.Address+uint16(i)] = v != 0
			}
		}
		words := make([]uint16, len(out))
		for i, on := range out {
			words[i] = boolWord(on)
		}
		return words, err
	}
	if c.IsWrite() && c.Values[0] == 0xdead {
		return nil, wire.IllegalValue
	}
	out, err := lookUp(s.words[c.Unit], c)
	if c.IsWrite() && err == nil {
		for i, v := range c.Values {
			s.words[c.Unit][c.Address+uint16(i)] = v
		}
	}
	return out, err
}

func lookUp[T any](have map[uint16]T, c wire.Call) ([]T, error) {
	out := make([]T, c.Quantity)
	for i := range out {
		v, ok := have[c.Address+uint16(i)]
		if !ok {
			return nil, wire.IllegalAddress
		}
		out[i] = v
	}
	return out, nil
}

func newProperty(name string, typ mappers.Type, writable bool, config ...string) mappers.Property {
	p := mappers.Property{Name: name, Type: typ, Writable: writable, Visited: true, Config: map[string]string{}}
	for i := 0; i < len(config); i += 2 {
		p.Config[config[i]] = config[i+1]
	}
	return p
}

func (s *unitServer) device(unit string, props ...mappers.Property) mappers.Device {
	return mappers.Device{
		Name: "plc" + unit, Properties: props,
		Config: map[string]string{"address": "tcp://" + s.addr, "unit": unit, "timeout": "30s"},
	}
}

func openDevice(t *testing.T, d mappers.Device) *session {
	t.Helper()
	s, err := New(Options{}).Open(t.Context(), d)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s.(*session)
}

func (s *session) get(t *testing.T, name string) string {
	t.Helper()
	got, err := s.ReadBatch(t.Context(), []string{name})
	require.NoError(t, err)
	require.NoError(t, got[name].Err)
	return got[name].Value
}

func allTypes() []mappers.Property {
	low, high := -30000.0, 30000.0
	level := newProperty("level", mappers.Int, true, "register", "holding", "address", "0")
	level.Minimum, level.Maximum = &low, &high
	power := newProperty("power", mappers.String, true, "register", "coil", "address", "0")
	power.Enum = []string{"ON", "OFF"}
	return []mappers.Property{
		level, power,
		newProperty("u16", mappers.Int, true, "register", "holding", "address", "1", "type", "uint16"),
		newProperty("i32", mappers.Int, true, "register", "holding", "address", "2", "type", "int32", "wordOrder", "low-first"),
		newProperty("u32", mappers.Int, true, "register", "holding", "address", "4", "type", "uint32", "byteOrder", "little"),
		newProperty("i64", mappers.Int, true, "register", "holding", "address", "6", "type", "int64"),
		newProperty("u64", mappers.Double, true, "register", "holding", "address", "10", "type", "uint64"),
		newProperty("f32", mappers.Float, true, "register", "holding", "address", "14", "type", "float32"),
		newProperty("f64", mappers.Double, true, "register", "holding", "address", "16", "type", "float64", "wordOrder", "little"),
		newProperty("flag", mappers.Boolean, true, "register", "holding", "address", "20", "bit", "9"),
		newProperty("open", mappers.Boolean, true, "register", "coil", "address", "1"),
		newProperty("door", mappers.Boolean, false, "register", "discrete-input", "address", "1"),
		newProperty("temp", mappers.Float, false, "register", "input", "address", "0", "type", "int16", "scale", "0.1"),
	}
}

func TestDriver(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Rig {
		s := newServer(t)
		for unit := range uint8(3) {
			s.set(unit, 0, make([]uint16, 21)...)
			s.setBits(unit, 0, false, false)
		}
		another := s.device("2", allTypes()...)
		broken := s.device("1", allTypes()...)
		broken.Config = map[string]string{"unit": "1"}
		badUnit := s.device("500", allTypes()...)
		return drivertest.Rig{
			Driver: New(Options{}), Device: s.device("1", allTypes()...), Another: &another,
			Broken: map[string]mappers.Device{"spec.protocol.config.address": broken, "spec.protocol.config.unit": badUnit},
			Stop:   s.stop, Start: s.start,
		}
	})
}

func TestGroupedReads(t *testing.T) {
	s := newServer(t)
	s.set(1, 0, make([]uint16, 40)...)
	s.set(1, 1000, 5)
	d := s.device("1",
		newProperty("a", mappers.Int, false, "register", "holding", "address", "0"),
		newProperty("b", mappers.Float, false, "register", "holding", "address", "5"),
		newProperty("c", mappers.Int, false, "register", "holding", "address", "15"),
		newProperty("d", mappers.Int, false, "register", "holding", "address", "30"),
		newProperty("e", mappers.Int, false, "register", "input", "address", "31"),
		newProperty("f", mappers.Int, false, "register", "holding", "address", "1000"))
	got, err := openDevice(t, d).ReadBatch(t.Context(), []string{"f", "e", "d", "c", "b", "a"})
	require.NoError(t, err)
	require.Len(t, got, 6)
	require.Equal(t, "5", got["f"].Value)
	require.Equal(t, []string{"1 input 31+1", "1 holding 0+16", "1 holding 30+1", "1 holding 1000+1"}, s.took())
}

func TestLargestRequest(t *testing.T) {
	var fields []*registerField
	for a := range uint16(300) {
		fields = append(fields, &registerField{table: tableHolding, address: a, words: 1})
	}
	fields = append(fields, &registerField{table: tableHolding, address: 65535, words: 1})
	never := func(*registerField) bool { return false }
	groups := planGroups(fields, groupRules{gap: 8, most: wire.MaxReadRegisters, apart: never, cut: never})
	require.Len(t, groups, 4)
	for _, g := range groups {
		require.LessOrEqual(t, g.size, uint16(wire.MaxReadRegisters))
	}
}

func TestGroupWithAHoleIsReadApart(t *testing.T) {
	s := newServer(t)
	s.set(1, 0, 11)
	s.set(1, 3, 13) // 1 and 2 don't exist
	d := s.device("1",
		newProperty("a", mappers.Int, false, "register", "holding", "address", "0"),
		newProperty("b", mappers.Int, false, "register", "holding", "address", "3"),
		newProperty("gone", mappers.Int, false, "register", "holding", "address", "4"))
	session := openDevice(t, d)
	for range 3 {
		got, err := session.ReadBatch(t.Context(), []string{"a", "b", "gone"})
		require.NoError(t, err)
		require.Equal(t, "11", got["a"].Value)
		require.Equal(t, "13", got["b"].Value)
		var r *mappers.Refusal
		require.ErrorAs(t, got["gone"].Err, &r)
		require.Contains(t, r.Message, "illegal data address")
	}
	require.Len(t, s.took(), 6+3+3, "the hole is found by halving, and then three requests are left")
}

func TestExceptionRefusesAWrite(t *testing.T) {
	s := newServer(t)
	s.set(1, 0, 1)
	session := openDevice(t, s.device("1", newProperty("a", mappers.Int, true, "register", "holding", "address", "0", "type", "uint16")))
	var r *mappers.Refusal
	require.ErrorAs(t, session.Write(t.Context(), "a", "57005"), &r) // 0xdead
	require.Equal(t, mappers.Rejected, r.Code)
	require.Equal(t, "1", session.get(t, "a"))
}

func TestBitKeepsItsNeighbours(t *testing.T) {
	s := newServer(t)
	s.set(1, 0, 0b1010_0000_0000_0101)
	session := openDevice(t, s.device("1",
		newProperty("a", mappers.Boolean, true, "register", "holding", "address", "0", "bit", "1"),
		newProperty("b", mappers.Boolean, true, "register", "holding", "address", "0", "bit", "0", "byteOrder", "little")))
	require.NoError(t, session.Write(t.Context(), "a", "true"))
	require.Equal(t, uint16(0b1010_0000_0000_0111), s.word(1, 0))
	near, err := session.Nearest("a", "true")
	require.NoError(t, err)
	require.Equal(t, "true", near)
	require.NoError(t, session.Write(t.Context(), "b", "true"))
	require.Equal(t, uint16(0b1010_0001_0000_0111), s.word(1, 0))
}

func TestSlowUnitTimesOutAndOthersGoOn(t *testing.T) {
	s := newServer(t)
	p := newProperty("a", mappers.Int, false, "register", "holding", "address", "0")
	for unit := range uint8(4) {
		s.set(unit, 0, uint16(unit))
	}
	driver := New(Options{})
	impatient := func(unit string) mappers.Device {
		d := s.device(unit, p)
		d.Config["timeout"] = "1s"
		return d
	}
	first, err := driver.Open(t.Context(), impatient("1"))
	require.NoError(t, err)
	second, err := driver.Open(t.Context(), impatient("2"))
	require.NoError(t, err)
	require.Len(t, driver.buses, 1, "one connection")
	for range 2 {
		release := s.hold(1)
		_, err = first.(*session).ReadBatch(t.Context(), []string{"a"})
		require.True(t, wire.IsTimeout(err), err)
		release()
		require.Equal(t, "2", second.(*session).get(t, "a"), "the late answer of unit 1 is not taken for unit 2's")
	}
	require.Equal(t, "1", first.(*session).get(t, "a"))
	require.NoError(t, first.Close())
	require.NoError(t, second.Close())
	require.Empty(t, driver.buses)
}

func TestGivingUpDoesNotWaitForTheUnit(t *testing.T) {
	s := newServer(t)
	s.set(1, 0, 1)
	release := s.hold(1)
	session := openDevice(t, s.device("1", newProperty("a", mappers.Int, false, "register", "holding", "address", "0")))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := session.ReadBatch(ctx, []string{"a"})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	release()
	require.Equal(t, "1", session.get(t, "a"))
}

func TestDeadGatewayIsDialledOnceForAll(t *testing.T) {
	s := newServer(t)
	s.stop()
	driver := New(Options{})
	p := newProperty("a", mappers.Int, false, "register", "holding", "address", "0")
	var last error
	for i := range 5 {
		d, err := driver.Open(t.Context(), s.device(fmt.Sprint(i), p))
		require.NoError(t, err)
		_, err = d.(*session).ReadBatch(t.Context(), []string{"a"})
		require.ErrorContains(t, err, s.addr)
		if last != nil {
			require.Same(t, last, err, "the same failed attempt")
		}
		last = err
	}
}

func TestSimulator(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	var mu sync.Mutex
	clock := func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	file := filepath.Join(t.TempDir(), "drives")
	s, err := NewSimulator(SimulatorOptions{Units: 2, DriveLog: file, Now: clock})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	setpoint := newProperty("setpoint", mappers.Float, true, "register", "holding", "address", "0", "type", "int16", "scale", "0.1")
	d := mappers.Device{Name: "t", Config: map[string]string{"address": s.Addr(), "unit": "2"}, Properties: []mappers.Property{
		setpoint,
		newProperty("heating", mappers.Boolean, false, "register", "discrete-input", "address", "0"),
		newProperty("enabled", mappers.Boolean, true, "register", "coil", "address", "0"),
		newProperty("temperature", mappers.Float, false, "register", "input", "address", "0", "type", "int16", "scale", "0.1"),
		newProperty("exact", mappers.Float, false, "register", "input", "address", "1"),
		newProperty("energy", mappers.Int, false, "register", "input", "address", "3", "type", "uint32"),
	}}
	session := openDevice(t, d)
	require.Equal(t, "20", session.get(t, "setpoint"))
	require.Equal(t, "19", session.get(t, "temperature"))
	require.NoError(t, session.Write(t.Context(), "setpoint", "23.5"))
	require.Equal(t, "true", session.get(t, "heating"))
	mu.Lock()
	now = now.Add(10 * time.Minute) // ten hours in the room
	mu.Unlock()
	temperature := session.get(t, "exact")
	require.Regexp(t, `^2[34]\.`, temperature)
	require.NotEqual(t, "0", session.get(t, "energy"))
	var r *mappers.Refusal
	require.ErrorAs(t, session.Write(t.Context(), "setpoint", "45"), &r)
	require.NoError(t, session.Write(t.Context(), "enabled", "false"))
	require.Equal(t, "false", session.get(t, "heating"))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(text), "\n"), string(text))
	_, err = openDevice(t, mappers.Device{Name: "u", Config: map[string]string{"address": s.Addr(), "unit": "9"}, Properties: d.Properties}).
		ReadBatch(t.Context(), []string{"setpoint"})
	require.ErrorIs(t, err, wire.TargetSilent)
}

func TestAScaleIsReadWithItsValue(t *testing.T) {
	s := newServer(t)
	scaled := func(name, address, from string) mappers.Property {
		return newProperty(name, mappers.Double, true, "register", "holding", "address", address, "type", "int16", "scaleFrom", from)
	}
	s.set(1, 100, 2301, 77, 0xfffe)
	s.set(1, 200, 15)
	s.set(1, 203, 1)
	s.set(1, 600, 0x8000)
	d := s.device("1", scaled("current", "100", "102"), scaled("other", "101", "102"), scaled("hole", "200", "203"), scaled("far", "100", "500"), scaled("none", "101", "600"))
	session := openDevice(t, d)
	for _, want := range [][]string{{"1 holding 100+3"}, {"1 holding 100+3"}} {
		got, err := session.ReadBatch(t.Context(), []string{"current", "other"})
		require.NoError(t, err)
		require.Equal(t, "23.01", got["current"].Value)
		require.Equal(t, "0.77", got["other"].Value)
		require.Equal(t, want, s.took())
	}
	require.Equal(t, "150", session.get(t, "hole"))
	require.Equal(t, []string{"1 holding 200+4", "1 holding 203+1", "1 holding 200+1"}, s.took(), "a register in between doesn't exist")
	require.Equal(t, "150", session.get(t, "hole"))
	require.Equal(t, []string{"1 holding 203+1", "1 holding 200+1"}, s.took())
	got, err := session.ReadBatch(t.Context(), []string{"far", "none"})
	require.NoError(t, err)
	for name, says := range map[string]string{"far": "Unknown: the scale in register 500 is not known", "none": "Unknown: the scale in register 600 is not known"} {
		require.EqualError(t, got[name].Err, says, "a number with a scale that isn't known is none")
	}
	require.ErrorContains(t, session.Write(t.Context(), "none", "1"), "Unavailable: the scale in register 600 is not known", "it is written once the device says it again")
	require.NoError(t, session.Write(t.Context(), "current", "1.5"))
	require.EqualValues(t, 150, s.word(1, 100))
	near, err := session.Nearest("current", "1.503")
	require.NoError(t, err)
	require.Equal(t, "1.5", near)
}

// TestAScaleIsReadWithItsValueInTheLastRegister, on either side of it.
func TestAScaleIsReadWithItsValueInTheLastRegister(t *testing.T) {
	s := newServer(t)
	s.set(1, 65534, 1, 2)
	scaled := func(name, address, from string) mappers.Property {
		return newProperty(name, mappers.Double, false, "register", "holding", "address", address, "type", "int16", "scaleFrom", from)
	}
	session := openDevice(t, s.device("1", scaled("value", "65535", "65534"), scaled("scale", "65534", "65535")))
	require.Equal(t, "20", session.get(t, "value"))
	require.Equal(t, "100", session.get(t, "scale"))
	require.Equal(t, []string{"1 holding 65534+2", "1 holding 65534+2"}, s.took())
}

// TestAScaleThatIsBeyondAllNumbers makes no number of a register, and writes none.
func TestAScaleThatIsBeyondAllNumbers(t *testing.T) {
	for scale, exponent := range map[string]uint16{"1e+300": 10, "1e-320": 0xfff6} {
		s := newServer(t)
		s.set(1, 0, 0, exponent)
		session := openDevice(t, s.device("1", newProperty("p", mappers.Int, true, "register", "holding", "address", "0", "type", "int16", "scale", scale, "scaleFrom", "1")))
		got, err := session.ReadBatch(t.Context(), []string{"p"})
		require.NoError(t, err)
		require.ErrorContains(t, got["p"].Err, "Unknown: the scale "+scale)
		require.ErrorContains(t, session.Write(t.Context(), "p", "0"), "Unavailable: the scale "+scale)
	}
}

func TestSomeBitsOfARegisterAreWrittenAlone(t *testing.T) {
	s := newServer(t)
	s.set(1, 0, 0xf0ff)
	phase := newProperty("phase", mappers.String, true, "register", "holding", "address", "0", "bits", "8-11")
	phase.Enum = []string{"idle", "running"}
	phase.Words = []mappers.Word{{Value: "idle", Read: []string{"0"}, Write: "0"}, {Value: "running", Read: []string{"1", "0x2"}, Write: "0x1"}}
	o, err := mappers.Open(t.Context(), New(Options{}), s.device("1", phase))
	require.NoError(t, err)
	t.Cleanup(func() { _ = o.Close() })
	read := func() mappers.Reading {
		got, err := o.Read(t.Context(), []string{"phase"})
		require.NoError(t, err)
		return got["phase"]
	}
	require.Equal(t, "idle", read().Value)
	require.NoError(t, o.Write(t.Context(), "phase", "running"))
	require.EqualValues(t, 0xf1ff, s.word(1, 0))
	s.set(1, 0, 0xf2ff)
	require.Equal(t, "running", read().Value)
	s.set(1, 0, 0xf3ff)
	require.ErrorContains(t, read().Err, `Unknown: the device says "3", which is none of the words of phase`)
	require.ErrorContains(t, o.Write(t.Context(), "phase", "broken"), "OutOfRange")
}

func TestAValueThatTheDeviceHasNotIsUnknown(t *testing.T) {
	s := newServer(t)
	s.set(1, 0, 0xffff, 0x8000, 0x8000, 655, 0)
	property := func(name, address, typ, scale, none string) mappers.Property {
		p := newProperty(name, mappers.Double, false, "register", "holding", "address", address, "type", typ, "scale", scale)
		p.NotAvailable = []string{none}
		return p
	}
	d := s.device("1", property("u", "0", "uint16", "0.1", "0xFFFF"), property("i", "1", "int16", "0.1", "0x8000"), property("minus", "2", "int16", "1", "-32768"),
		property("scaled", "3", "uint16", "0.1", "65.5"), property("zero", "4", "uint16", "1", "0xFFFF"))
	o, err := mappers.Open(t.Context(), New(Options{}), d)
	require.NoError(t, err)
	t.Cleanup(func() { _ = o.Close() })
	got, err := o.Read(t.Context(), []string{"u", "i", "minus", "scaled", "zero"})
	require.NoError(t, err)
	for _, name := range []string{"u", "i", "minus"} {
		require.ErrorContains(t, got[name].Err, "it has no value (notAvailable)", name)
	}
	require.Equal(t, "65.5", got["scaled"].Value, "notAvailable is compared before any scale")
	require.Equal(t, "0", got["zero"].Value)
}
