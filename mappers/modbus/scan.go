// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/cmd"
	"github.com/edgebus/edgebus/mappers/modbus/wire"
)

// lineFlags are the flags that say how a device is reached.
type lineFlags struct {
	baud, stopBits int
	parity         string
	timeout        time.Duration
}

func (l *lineFlags) add(c *cobra.Command, timeout time.Duration) {
	c.Flags().IntVar(&l.baud, "baud", 0, "of a serial line; default 9600")
	c.Flags().StringVar(&l.parity, "parity", "", "of a serial line: none, even or odd; default none")
	c.Flags().IntVar(&l.stopBits, "stop-bits", 1, "of a serial line")
	c.Flags().DurationVar(&l.timeout, "timeout", timeout, "how long an answer may take")
}

// config is the protocol config of a Device that is reached so.
func (l lineFlags) config(address string, unit int) map[string]string {
	c := map[string]string{"address": address, "unit": strconv.Itoa(unit), "timeout": l.timeout.String()}
	if t, err := wire.ParseTarget(address); err == nil && t.Serial() {
		c["baud"], c["parity"], c["stopBits"] = strconv.Itoa(cmp.Or(l.baud, wire.DefaultLine.Baud)), cmp.Or(l.parity, "none"), strconv.Itoa(l.stopBits)
	}
	return c
}

// newCommandDriver is the driver of a command, which asks one unit after the other.
func newCommandDriver() *Driver {
	d := New(Options{})
	d.patient = true
	return d
}

// openUnit opens a unit with properties.
func (d *Driver) openUnit(ctx context.Context, config map[string]string, properties []mappers.Property) (*session, error) {
	s, err := d.Open(ctx, mappers.Device{Name: "device", Config: config, Properties: properties})
	if err != nil {
		return nil, err
	}
	return s.(*session), nil
}

// readAll reads all properties of a session, group by group; one that is not answered once more.
func (s *session) readAll(ctx context.Context) (got map[string]mappers.Reading, err error) {
	var names []string
	for name := range s.config.fields {
		names = append(names, name)
	}
	slices.Sort(names)
	got = map[string]mappers.Reading{}
	for _, group := range s.Group(names) {
		part, failed := s.ReadBatch(ctx, group)
		if failed != nil {
			part, failed = s.ReadBatch(ctx, group)
		}
		if err = cmp.Or(err, failed); ctx.Err() != nil {
			return got, ctx.Err()
		}
		for name, r := range part {
			got[name] = r
		}
	}
	if len(got) > 0 {
		err = nil
	}
	return got, err
}

// registerRange reads FIRST or FIRST-LAST.
func registerRange(text string) (first, last int, err error) {
	from, to, ranged := strings.Cut(text, "-")
	if !ranged {
		to = from
	}
	low, err1 := strconv.ParseUint(from, 0, 16)
	high, err2 := strconv.ParseUint(to, 0, 16)
	if err1 != nil || err2 != nil || high < low || high-low > 999 {
		return 0, 0, fmt.Errorf("%q is no register from 0 to 65535, and no range of at most 1000, such as 0-9", text)
	}
	return int(low), int(high), nil
}

// readTypes are the types whose registers are as many as the type says.
var readTypes = strings.TrimSuffix(typeNames, ", string")

func readCommand(stdout io.Writer) *cobra.Command {
	var line lineFlags
	var unit int
	var typ, wordOrder, byteOrder, scale string
	c := &cobra.Command{
		Use:   "read ADDRESS TABLE FIRST[-LAST]",
		Short: "Print registers of a device",
		Long: `read prints registers of a device: what they hold as they are and, with --type, what they mean. TABLE is holding,
input, coil or discrete-input.`,
		Example: `  mapper-modbus read 10.0.0.5 holding 0-9
  mapper-modbus read rtu:///dev/ttyUSB0 input 30001 --unit 7 --baud 19200 --parity even
  mapper-modbus read 10.0.0.5 input 0-3 --type float32 --word-order low-first`,
		Args: cobra.ExactArgs(3),
		RunE: func(c *cobra.Command, args []string) error {
			first, last, err := registerRange(args[2])
			if err != nil {
				return err
			}
			r := registerReader{config: line.config(args[0], unit), table: args[1], first: first, last: last, typ: typ, settings: map[string]string{"wordOrder": wordOrder, "byteOrder": byteOrder, "scale": scale}}
			return r.run(commandContext(c), stdout)
		},
	}
	line.add(c, DefaultTimeout)
	c.Flags().IntVar(&unit, "unit", 1, "the unit, 0 to 255")
	c.Flags().StringVar(&typ, "type", "", "what the registers mean: "+readTypes)
	c.Flags().StringVar(&wordOrder, "word-order", "", "high-first or low-first")
	c.Flags().StringVar(&byteOrder, "byte-order", "", "big or little")
	c.Flags().StringVar(&scale, "scale", "", "what the number is multiplied with")
	return c
}

func commandContext(c *cobra.Command) context.Context {
	if ctx := c.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}

// registerReader is the command read.
type registerReader struct {
	config      map[string]string
	table       string
	first, last int
	typ         string
	settings    map[string]string
}

func (r registerReader) property(name string, address int, typ string) mappers.Property {
	p := mappers.Property{Name: name, Type: mappers.Double, Visited: true, Config: map[string]string{"register": r.table, "address": strconv.Itoa(address), "type": typ}}
	if typ == "bool" {
		p.Type = mappers.Int
	}
	return p
}

func (r registerReader) run(ctx context.Context, stdout io.Writer) error {
	plain := "uint16"
	if t := registerTables[strings.ToLower(strings.ReplaceAll(r.table, "-", ""))]; t.bits() {
		plain = "bool"
	}
	var list []mappers.Property
	for a := r.first; a <= r.last; a++ {
		list = append(list, r.property(fmt.Sprintf("plain %05d", a), a, plain))
	}
	step := int(valueKinds[strings.ToLower(r.typ)].words)
	if r.typ != "" && step == 0 {
		return fmt.Errorf("--type: %q is none of %s", r.typ, readTypes)
	}
	for a := r.first; step > 0 && a+step-1 <= r.last; a += step {
		p := r.property(fmt.Sprintf("typed %05d", a), a, r.typ)
		for key, value := range r.settings {
			if value != "" {
				p.Config[key] = value
			}
		}
		list = append(list, p)
	}
	s, err := newCommandDriver().openUnit(ctx, r.config, list)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	got, err := s.readAll(ctx)
	if err != nil {
		return cmd.Failed(err)
	}
	w := tabwriter.NewWriter(stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, strings.TrimRight("REGISTER\tHEX\tUNSIGNED\tSIGNED\t"+strings.ToUpper(r.typ), "\t"))
	for a := r.first; a <= r.last; a++ {
		x := got[fmt.Sprintf("plain %05d", a)]
		if x.Err != nil {
			fmt.Fprintf(w, "%d\t%v\n", a, x.Err)
			continue
		}
		n, _ := strconv.ParseUint(x.Value, 10, 16)
		text := fmt.Sprintf("%d\t0x%04X\t%d\t%d", a, n, n, int16(uint16(n)))
		if typed, ok := got[fmt.Sprintf("typed %05d", a)]; ok && typed.Err != nil {
			text += fmt.Sprintf("\t%v", typed.Err)
		} else if ok {
			text += "\t" + typed.Value
		}
		fmt.Fprintln(w, text)
	}
	return w.Flush()
}

func scanCommand(stdout, stderr io.Writer) *cobra.Command {
	s := unitScanner{stdout: stdout, stderr: stderr}
	var units, registers string
	c := &cobra.Command{
		Use:   "scan ADDRESS",
		Short: "Find units and their registers, and write a Device and a DeviceModel of each",
		Long: `scan asks the units behind an address, or on a serial line, for their registers, and writes a Device and a DeviceModel
of each unit that answers, which edgebus apply takes. Of a unit that speaks SunSpec they have the points of its models. On a serial
line without --baud and --parity the usual ones are tried until a unit answers. It never writes to a device.`,
		Example: `  mapper-modbus scan 10.0.0.5 --node plant1 > meter.yaml
  mapper-modbus scan rtu:///dev/ttyUSB0 --units 7 --name meter --node plant1 | edgebus apply -f -
  mapper-modbus scan rtu:///dev/ttyUSB0 --units 1-247
  mapper-modbus scan 10.0.0.9 --sunspec | edgebus apply -f -`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) (err error) {
			if s.first, s.last, err = registerRange(registers); err != nil {
				return err
			}
			if s.lowUnit, s.highUnit, err = registerRange(units); err != nil || s.highUnit > 255 {
				return fmt.Errorf("%q are no units from 0 to 255, such as 1-10", units)
			}
			s.address = args[0]
			return s.run(commandContext(c))
		},
	}
	s.line.add(c, 500*time.Millisecond)
	c.Flags().StringVar(&units, "units", "1-10", "the units that are asked")
	c.Flags().StringVar(&registers, "registers", "0-99", "the registers and coils that are looked for")
	c.Flags().BoolVar(&s.sunspec, "sunspec", false, "only units that speak SunSpec")
	c.Flags().StringVar(&s.node, "node", "", "the node of the Devices; default node1")
	c.Flags().StringVar(&s.name, "name", "", "name of Device and DeviceModel; of several units their numbers are added (default: modbus-UNIT, or what the unit calls itself)")
	return c
}

// unitScanner is the command scan.
type unitScanner struct {
	address           string
	line              lineFlags
	lowUnit, highUnit int
	first, last       int
	sunspec           bool
	node, name        string
	stdout, stderr    io.Writer
	driver            *Driver
	found             int
}

// usualLines are how serial lines are usually set, the commonest first.
var usualLines = []lineFlags{
	{baud: 9600, parity: "none"},
	{baud: 19200, parity: "even"},
	{baud: 9600, parity: "even"},
	{baud: 19200, parity: "none"},
	{baud: 115200, parity: "none"},
	{baud: 38400, parity: "none"},
	{baud: 57600, parity: "none"},
	{baud: 4800, parity: "none"},
	{baud: 2400, parity: "none"},
	{baud: 38400, parity: "even"},
	{baud: 115200, parity: "even"},
	{baud: 9600, parity: "odd"},
	{baud: 19200, parity: "odd"},
}

func (s *unitScanner) run(ctx context.Context) error {
	target, err := wire.ParseTarget(s.address)
	if err != nil {
		return err
	}
	s.driver = newCommandDriver()
	line := s.driver.acquire(target.String()) // one connection for all: whoever opens a serial line twice loses half of what comes
	defer s.driver.release(line)
	lines := []lineFlags{s.line}
	if target.Serial() && s.line.baud == 0 && s.line.parity == "" {
		lines = usualLines
	}
	for _, line := range lines {
		s.line.baud, s.line.parity = line.baud, line.parity
		for unit := s.lowUnit; unit <= s.highUnit; unit++ {
			if err := s.unit(ctx, unit); err != nil {
				return cmd.Failed(err)
			}
		}
		if s.found > 0 {
			return nil
		}
		if len(lines) > 1 {
			fmt.Fprintf(s.stderr, "nothing answers at %d baud, parity %s\n", line.baud, line.parity)
		}
	}
	return cmd.Failed(fmt.Errorf("no unit from %d to %d answers", s.lowUnit, s.highUnit))
}

// unit writes the manifests of a unit, if it answers.
func (s *unitScanner) unit(ctx context.Context, unit int) error {
	u, err := s.driver.openUnit(ctx, s.line.config(s.address, unit), nil)
	if err != nil {
		return err
	}
	defer func() { _ = u.Close() }()
	blocks, err := readSunspec(u.readHolding(ctx))
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case mappers.IsNotSent(err) && !errors.Is(err, wire.ErrLate):
		return err
	case err != nil && !isBusy(err):
		return nil // it isn't there
	}
	fmt.Fprintf(s.stderr, "unit %d answers\n", unit)
	config := u.device.Config
	delete(config, "timeout")
	found := cmd.FoundDevice{Name: fmt.Sprintf("modbus-%d", unit), Node: s.node, Protocol: "modbus", Config: config}
	if len(blocks) > 0 {
		found.Properties, found.Title, err = u.sunspecProperties(ctx, blocks)
		found.Name = cmp.Or(found.Title, found.Name)
	} else if !s.sunspec {
		found.Properties, err = s.registers(ctx, unit)
	}
	if err != nil || len(found.Properties) == 0 {
		return err
	}
	if s.name != "" {
		if found.Name = s.name; s.lowUnit != s.highUnit {
			found.Name = fmt.Sprintf("%s-%d", s.name, unit)
		}
	}
	if s.found++; s.found > 1 {
		fmt.Fprintln(s.stdout, "---")
	}
	return cmd.WriteManifests(s.stdout, found)
}

// registers are the registers and coils that a unit has.
func (s *unitScanner) registers(ctx context.Context, unit int) (list []cmd.FoundProperty, err error) {
	for _, table := range []struct{ name, typ string }{{"holding", "uint16"}, {"input", "uint16"}, {"coil", "bool"}, {"discrete-input", "bool"}} {
		reader := registerReader{table: table.name}
		var asked []mappers.Property
		for a := s.first; a <= s.last; a++ {
			asked = append(asked, reader.property(fmt.Sprintf("%s-%d", table.name, a), a, table.typ))
		}
		u, err := s.driver.openUnit(ctx, s.line.config(s.address, unit), asked)
		if err != nil {
			return nil, err
		}
		got, err := u.readAll(ctx)
		_ = u.Close()
		if ctx.Err() != nil {
			return nil, err
		}
		for _, p := range asked {
			if r, ok := got[p.Name]; !ok || r.Err != nil {
				continue
			}
			typ := "int"
			if table.typ == "bool" {
				typ = "boolean"
			}
			list = append(list, cmd.FoundProperty{Name: p.Name, Type: typ, Config: p.Config})
		}
	}
	return list, nil
}

// sunspecProperties are the points of a unit's models that have a value, and what the unit calls itself.
func (s *session) sunspecProperties(ctx context.Context, blocks []sunspecBlock) (list []cmd.FoundProperty, title string, err error) {
	s.blocks = blocks
	var candidates []cmd.FoundProperty
	for _, b := range blocks {
		candidates = append(candidates, b.candidates()...)
	}
	var properties []mappers.Property
	for _, c := range candidates {
		typ := mappers.Type(c.Type)
		if len(c.Words) > 0 { // which are for the number that is there
			typ = mappers.Int
		}
		properties = append(properties, mappers.Property{Name: c.Name, Type: typ, Visited: true, Config: c.Config})
	}
	u, err := s.driver.openUnit(ctx, s.device.Config, properties)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = u.Close() }()
	if err := u.locate(ctx); err != nil {
		return nil, "", err
	}
	got, err := u.readAll(ctx)
	for _, c := range candidates {
		if r, ok := got[c.Name]; ok && r.Err == nil {
			list = append(list, c)
		}
	}
	title = strings.TrimSpace(got["Mn"].Value + " " + got["Md"].Value)
	return list, title, err
}

// inverterStates are the words for an inverter's St.
var inverterStates = []string{"off", "sleeping", "starting", "running", "throttled", "shutting-down", "fault", "standby"}

// candidates are the points that a block may have a value for.
func (b sunspecBlock) candidates() (list []cmd.FoundProperty) {
	m, known := b.model()
	if !known {
		return nil
	}
	model := cmp.Or(m.kind, strconv.Itoa(b.number))
	fixed, size := parsePoints(m.points)
	prefix := ""
	if m.kind == "" || m.kind == "mppt" {
		prefix = model + "-"
	}
	add := func(points []sunspecPoint, prefix, path string) {
		for _, p := range points {
			if p.typ == 'x' || p.typ == '-' {
				continue
			}
			f := cmd.FoundProperty{Name: prefix + p.name, Type: "int", Unit: p.unit, Config: map[string]string{"sunspec": path + "/" + p.name}}
			switch {
			case p.typ == 's':
				f.Type = "string"
			case p.factor != "" || p.typ == 'f' || p.words == 4:
				f.Type = "double"
			case m.kind == "inverter" && p.name == "St":
				f.Type, f.Enum = "string", inverterStates
				for i, state := range inverterStates {
					f.Words = append(f.Words, cmd.FoundWord{Value: state, Read: []string{strconv.Itoa(i + 1)}})
				}
			}
			list = append(list, f)
		}
	}
	add(fixed, prefix, model)
	part, partSize := parsePoints(m.repeat)
	for i := 1; partSize > 0 && int(size)+i*int(partSize) <= int(b.length); i++ {
		add(part, fmt.Sprintf("%s%d-", prefix, i), fmt.Sprintf("%s/%d", model, i))
	}
	return list
}
