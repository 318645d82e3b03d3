// Package modbus drives Modbus devices over TCP: coils, discrete inputs, holding and input registers, and the numbers
// that vendors make of them. Units behind one address share a connection and one goroutine.
//
// A Device's protocol config:
//
//	address: tcp://10.0.0.5:502, rtuovertcp://…, or host:port   (also: url; or ip and port)
//	unit:    1                                                  (also: slaveID, unitID)
//	timeout: 2s     gap: 8    registers that may be read for nothing, to save a request
//
// A visitor's config says which register, and what it means: see field.
//
// The package never guesses at a configuration: what it can't understand is refused with the path of the field. It
// never repeats a write by itself.
package modbus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	mb "github.com/simonvetter/modbus"
	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/cmd"
)

// DefaultTimeout is how long a unit may take to answer where nothing else is said.
const DefaultTimeout = 2 * time.Second

// Options configure the driver. The zero value is usable.
type Options struct {
	Timeout time.Duration // default DefaultTimeout
}

// Driver opens Modbus devices.
type Driver struct {
	o     Options
	mu    sync.Mutex
	buses map[busKey]*bus
}

// New makes a driver.
func New(o Options) *Driver {
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	return &Driver{o: o, buses: map[busKey]*bus{}}
}

// Protocols implements mappers.Driver.
func (d *Driver) Protocols() []string { return []string{"modbus", "modbus-tcp"} }

// Bus implements mappers.Sharer.
func (d *Driver) Bus(dev mappers.Device) string {
	c, err := parseDevice(dev, d.o)
	if err != nil {
		return "unusable " + dev.Name
	}
	return c.key.url
}

// Open implements mappers.Driver. It checks the configuration; whether the unit answers shows with the first request.
func (d *Driver) Open(_ context.Context, dev mappers.Device) (mappers.Session, error) {
	c, err := parseDevice(dev, d.o)
	if err != nil {
		return nil, err
	}
	return &session{driver: d, config: c, bus: d.acquire(c.key), splitGroups: map[string]bool{}, readAlone: map[string]bool{}}, nil
}

// acquire takes a share of a connection, release gives it back; the last one ends it.
func (d *Driver) acquire(key busKey) *bus {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.buses[key]
	if b == nil {
		b = newBus(key)
		d.buses[key] = b
	}
	b.shares++
	return b
}

func (d *Driver) release(b *bus) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if b.shares--; b.shares == 0 {
		delete(d.buses, b.key)
		b.stop()
	}
}

// session is one unit.
type session struct {
	driver *Driver
	config deviceConfig
	bus    *bus

	mu          sync.Mutex
	splitGroups map[string]bool // groups that the unit refused to answer at once, though not one by one
	readAlone   map[string]bool // properties that the unit refused to answer, which are read without others
}

var errClosed = errors.New("modbus: the device was closed")

// Close implements mappers.Session.
func (s *session) Close() error {
	s.driver.release(s.bus)
	return nil
}

// Ping implements mappers.Pinger: it reads the first property. Any answer of the unit, also an exception, counts.
func (s *session) Ping(ctx context.Context) error {
	if s.config.first == nil {
		return nil // there is nothing to ask for
	}
	timeout := s.bus.key.timeout
	if end, ok := ctx.Deadline(); ok {
		timeout = max(time.Millisecond, min(timeout, time.Until(end)))
	}
	f := s.config.first
	err := s.bus.callWithin(ctx, s.config.unit, timeout, func(c *mb.ModbusClient) error {
		_, err := singleGroup(f).read(c)
		return err
	})
	if s.refusal(f.name, err) != nil {
		return nil
	}
	return err
}

// ReadBatch implements mappers.BatchReader.
func (s *session) ReadBatch(ctx context.Context, properties []string) (map[string]mappers.Reading, error) {
	got := make(map[string]mappers.Reading, len(properties))
	var fields []*registerField
	for _, name := range properties {
		f, err := s.field(name)
		if err != nil {
			got[name] = mappers.Reading{Err: err}
			continue
		}
		fields = append(fields, f)
	}
	for _, g := range s.groups(fields) {
		if err := s.readGroup(ctx, g, got); err != nil {
			return nil, err
		}
	}
	return got, nil
}

func (s *session) field(name string) (*registerField, error) {
	f := s.config.fields[name]
	if f == nil {
		return nil, mappers.Refuse(mappers.NotReachable, "the model has no modbus visitor for %s", name)
	}
	return f, nil
}

// groups plans the requests. Registers that the unit has refused before are read by themselves, so that the others can be read.
func (s *session) groups(fields []*registerField) (list []registerGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var together []*registerField
	for _, f := range fields {
		if s.readAlone[f.name] {
			list = append(list, singleGroup(f))
		} else {
			together = append(together, f)
		}
	}
	for _, g := range planGroups(together, s.config.gap) {
		if s.splitGroups[g.String()] {
			list = append(list, g.split()...)
		} else {
			list = append(list, g)
		}
	}
	return list
}

// readGroup adds a group's values to got. The error is the unit's; a register's goes into its Reading. A group with a register
// that doesn't exist is read again one by one.
func (s *session) readGroup(ctx context.Context, g registerGroup, got map[string]mappers.Reading) error {
	for _, f := range g.fields {
		if f.apart {
			if err := s.readFactor(ctx, f); err != nil {
				return err
			}
		}
	}
	words, err := s.bus.read(ctx, s.config.unit, g)
	refused := s.refusal(g.String(), err)
	switch {
	case err != nil && refused == nil:
		return err
	case refused != nil && refused.Code == mappers.Unavailable && !errors.Is(err, mb.ErrServerDeviceFailure): // nor would it be, one by one
		for _, f := range g.fields {
			got[f.name] = mappers.Reading{Err: refused}
		}
		return nil
	case refused != nil && len(g.fields) > 1: // one of them, or a register in between, doesn't exist
		for _, one := range g.split() {
			if err := s.readGroup(ctx, one, got); err != nil {
				return err
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.splitGroups[g.String()] = !slices.ContainsFunc(g.fields, func(f *registerField) bool { return s.readAlone[f.name] })
		return nil
	}
	if f := g.fields[0]; refused != nil && f.scaled && !f.apart { // a register between the value and its factor doesn't exist
		f.apart = true
		return s.readGroup(ctx, singleGroup(f), got)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if refused != nil {
		s.readAlone[g.fields[0].name] = true
		got[g.fields[0].name] = mappers.Reading{Err: refused}
		return nil
	}
	for _, f := range g.fields {
		delete(s.readAlone, f.name)
		if f.scaled && !f.apart {
			if err := f.setFactor(words[f.factorAddress-g.address]); err != nil {
				got[f.name] = mappers.Reading{Err: err, Raw: f.raw(words[f.address-g.address : f.address-g.address+f.words])}
				continue
			}
		}
		got[f.name] = f.reading(words[f.address-g.address : f.address-g.address+f.words])
	}
	return nil
}

// readFactor reads the register of a field's factor by itself. What the unit refuses, and what is no factor, leaves it unknown.
func (s *session) readFactor(ctx context.Context, f *registerField) error {
	f.exponentKnown = false
	words, err := s.bus.read(ctx, s.config.unit, registerGroup{table: f.table, address: f.factorAddress, size: 1})
	switch {
	case err != nil && s.refusal(f.name, err) == nil:
		return err
	case err == nil:
		_ = f.setFactor(words[0]) // said when the value is decoded
	}
	return nil
}

// Nearest implements mappers.Rounder: a value that is finer than the register's scale becomes the nearest that it can hold.
func (s *session) Nearest(property, value string) (string, error) {
	f, err := s.field(property)
	if err != nil {
		return "", err
	}
	words, err := f.encode(value)
	if err != nil {
		return "", err
	}
	return f.decode(words)
}

// Write implements mappers.Writer.
func (s *session) Write(ctx context.Context, property, value string) error {
	f, err := s.field(property)
	if err != nil {
		return err
	}
	if f.scaled {
		if err := s.readFactor(ctx, f); err != nil {
			return err
		}
	}
	words, err := f.encode(value)
	if err != nil {
		return err
	}
	err = s.bus.write(ctx, s.config.unit, f, words)
	if r := s.refusal(property+" = "+value, err); r != nil {
		return r
	}
	return err
}

// refusal is what an exception of the unit's means for a property; nil: the unit did not answer. A gateway that
// can't reach it did, in its place.
func (s *session) refusal(what string, err error) *mappers.Refusal {
	code := mappers.Rejected
	switch {
	case errors.Is(err, mb.ErrServerDeviceFailure), errors.Is(err, mb.ErrAcknowledge), errors.Is(err, mb.ErrServerDeviceBusy):
		code = mappers.Unavailable
	case errors.Is(err, mb.ErrIllegalFunction), errors.Is(err, mb.ErrIllegalDataAddress), errors.Is(err, mb.ErrIllegalDataValue),
		errors.Is(err, mb.ErrMemoryParityError):
	default:
		return nil
	}
	return mappers.Refuse(code, "%s: unit %d answered: %v", what, s.config.unit, err)
}

// Main is the program mapper-modbus.
func Main(args []string, stdout, stderr io.Writer) int {
	return cmd.Program[configs.Modbus]{
		Name:  "mapper-modbus",
		Short: "The mapper for Modbus devices",
		Long: `mapper-modbus connects to a node's broker and drives every Device of that node whose
protocol is "modbus". The Device says where it is:

  protocol: {type: modbus, config: {address: "tcp://10.0.0.5:502", unit: "1"}}

and its model's visitors say which register is which property:

  register:  coil, discrete-input, holding or input    address: 0
  type:      bool int16 uint16 int32 uint32 int64 uint64 float32 float64
             bcd16 bcd32 unixtime32 string (length: 8)     bit: 3   bits: 4-7
  scale: 0.1   scaleFrom: 40076   offset: -40   wordOrder: low-first   byteOrder: little

KubeEdge's spellings (HoldingRegister, offset, limit, isSwap, isRegisterSwap) are understood, too.
mapper-modbus simulate is a device to try it on.`,
		Example: `  mapper-modbus                                    # the node on this host
  mapper-modbus simulate --listen 127.0.0.1:1502   # in another window
  mapper-modbus --server mqtts://10.0.0.7:8883 --tls-ca ca.pem --user m1`,
		Driver: func(c configs.Modbus, o *mappers.Options) (mappers.Driver, error) {
			o.ProbeTimeout = c.ProbeTimeout
			return New(Options{Timeout: c.Timeout}), nil
		},
		Commands: []*cobra.Command{simulateCommand(stdout)},
	}.Main(args, stdout, stderr)
}

func simulateCommand(stdout io.Writer) *cobra.Command {
	var o SimulatorOptions
	c := &cobra.Command{
		Use:   "simulate",
		Short: "Serve simulated thermostats over Modbus TCP",
		Long: `simulate serves thermostats over Modbus TCP until it is interrupted. Each unit is a room that
cools and is heated:

  coil 0                may heat           discrete input 0      heats now
  holding register 0    setpoint, 0.1 °C   input register 0      temperature, 0.1 °C
  input registers 1-2   temperature, float32                3-4  energy in Wh, uint32

A setpoint below 5 or above 35 °C is refused, as a real one would.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return cmd.Failed(runSimulator(c.Context(), o, stdout)) },
	}
	c.Flags().StringVar(&o.Listen, "listen", "127.0.0.1:1502", "address to listen on; port 0 takes a free one")
	c.Flags().IntVar(&o.Units, "units", 1, "units 1 to this number answer")
	c.Flags().Float64Var(&o.Speed, "speed", 60, "how many times faster than the clock rooms warm up")
	c.Flags().StringVar(&o.DriveLog, "drive-log", "", "file that gets a line of JSON for each write")
	return c
}

func runSimulator(ctx context.Context, o SimulatorOptions, stdout io.Writer) error {
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := NewSimulator(o)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, s.Addr())
	<-ctx.Done()
	return s.Close()
}
