// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"cmp"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/modbus/wire"
)

// deviceConfig is a Device's configuration, understood.
type deviceConfig struct {
	target       wire.Target
	unit         uint8
	timeout      time.Duration // of one request
	pause        time.Duration // between two requests
	connectDelay time.Duration
	connect      connectMode
	strict       bool
	gap          uint16
	maxRegisters uint16 // of one request
	write        writeMode
	fields       map[string]*registerField
	order        []*registerField // those that can be read, in the model's order
	commands     map[string]*registerField
	values       map[string]string // what commands write that have no input
}

// connectMode is how long a connection is kept.
type connectMode string

const (
	connectKeep    connectMode = "keep"    // always
	connectCycle   connectMode = "cycle"   // while there is something to ask
	connectRequest connectMode = "request" // for one request
)

// writeMode is which functions write: those for one register or coil, or those for several.
type writeMode string

const (
	writeEither   writeMode = "" // for one where there is one, until the device says that it doesn't know the function
	writeSingle   writeMode = "single"
	writeMultiple writeMode = "multiple"
)

// configSettings are a configuration's values and its path. Keys are found whatever their case. A key that was never asked for is
// an error: see unknown.
type configSettings struct {
	path   string
	values map[string]string // by key in lower case
	used   map[string]bool
}

func newSettings(path string, config map[string]string) configSettings {
	s := configSettings{path: path, values: map[string]string{}, used: map[string]bool{}}
	for k, v := range config {
		s.values[strings.ToLower(k)] = strings.TrimSpace(v)
	}
	return s
}

// get returns the first of the keys that is set, and which it was.
func (s configSettings) get(keys ...string) (value, key string) {
	for _, k := range keys {
		low := strings.ToLower(k)
		s.used[low] = true
		if v := s.values[low]; v != "" && value == "" {
			value, key = v, k
		}
	}
	return value, cmp.Or(key, keys[0])
}

func (s configSettings) bad(key, format string, args ...any) error {
	return mappers.BadConfig(s.path+key, format, args...)
}

func (s configSettings) integer(def, low, high int64, keys ...string) (int64, error) {
	text, key := s.get(keys...)
	if text == "" {
		return def, nil
	}
	n, err := strconv.ParseInt(text, 0, 64) // 0x10 is how many manuals write it
	if err != nil || n < low || n > high {
		return 0, s.bad(key, "%q is no number from %d to %d", text, low, high)
	}
	return n, nil
}

func (s configSettings) number(def float64, keys ...string) (float64, error) {
	text, key := s.get(keys...)
	if text == "" {
		return def, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return 0, s.bad(key, "%q is no number", text)
	}
	return f, nil
}

func (s configSettings) boolean(keys ...string) (bool, error) {
	text, key := s.get(keys...)
	if text == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(strings.ToLower(text))
	if err != nil {
		return false, s.bad(key, "%q is neither true nor false", text)
	}
	return b, nil
}

func (s configSettings) duration(def time.Duration, keys ...string) (time.Duration, error) {
	text, key := s.get(keys...)
	if text == "" {
		return def, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, s.bad(key, "%q is no duration, such as 50ms or 2s", text)
	}
	return d, nil
}

// oneOf returns a setting that is one of some words; the first is the default.
func oneOf[T ~string](s configSettings, key string, words ...T) (T, error) {
	text, _ := s.get(key)
	for _, w := range words {
		if strings.EqualFold(text, string(w)) {
			return w, nil
		}
	}
	if text == "" {
		return words[0], nil
	}
	var list []string
	for _, w := range words {
		if w != "" {
			list = append(list, string(w))
		}
	}
	return "", s.bad(key, "%q is none of %s", text, strings.Join(list, ", "))
}

// unknown reports a key that means nothing here.
func (s configSettings) unknown() error {
	for _, key := range slices.Sorted(maps.Keys(s.values)) {
		if !s.used[key] {
			return s.bad(key, "is no setting of modbus")
		}
	}
	return nil
}

const protocolPath = "spec.protocol.config."

func parseDevice(d mappers.Device, o Options) (c deviceConfig, err error) {
	s := newSettings(protocolPath, d.Config)
	for _, parse := range []func(configSettings) error{
		c.parseTarget, c.parseUnit, func(s configSettings) error { return c.parseTimes(s, o) }, c.parseHabits, configSettings.unknown,
	} {
		if err := parse(s); err != nil {
			return c, err
		}
	}
	c.fields = map[string]*registerField{}
	for _, p := range d.Properties {
		if !p.Visited && len(p.Config) == 0 {
			continue // the model doesn't say how to reach it: its reads and writes are refused
		}
		f, err := parseField(p)
		if err != nil {
			return c, err
		}
		c.fields[p.Name] = f
		if f.sunspec == nil {
			c.order = append(c.order, f)
		}
	}
	return c, c.parseCommands(d.Commands)
}

// parseCommands reads the commands of the model: each writes a value once, its input or the one that its visitor says.
func (c *deviceConfig) parseCommands(list []mappers.Property) error {
	c.commands, c.values = map[string]*registerField{}, map[string]string{}
	for _, p := range list {
		s := newSettings("visitors["+p.Name+"].config.", p.Config)
		value, _ := s.get("value")
		switch {
		case value == "" && p.Type == "":
			return s.bad("value", "is required: what the command writes, as it has no input")
		case value != "" && p.Type != "":
			return s.bad("value", "can't be beside an input, which is what the command writes")
		case p.Type == "":
			p.Type = typeOfValue(value)
			c.values[p.Name] = value
		}
		p.Writable, p.Config = true, maps.Clone(p.Config)
		maps.DeleteFunc(p.Config, func(key, _ string) bool { return strings.EqualFold(key, "value") })
		f, err := parseField(p)
		if err != nil {
			return err
		}
		if value != "" && !f.scaled && f.sunspec == nil {
			if _, err := f.encode(value); err != nil {
				return s.bad("value", "%v", err)
			}
		}
		c.commands[p.Name] = f
	}
	return nil
}

// typeOfValue is the type of a property that can have a value.
func typeOfValue(value string) mappers.Type {
	if _, err := strconv.ParseInt(value, 10, 64); err == nil {
		return mappers.Int
	}
	if _, err := strconv.ParseFloat(value, 64); err == nil {
		return mappers.Double
	}
	if value == "true" || value == "false" {
		return mappers.Boolean
	}
	return mappers.String
}

func (c *deviceConfig) parseUnit(s configSettings) error {
	unit, err := s.integer(1, 0, 255, "unit", "slaveID", "unitID")
	c.unit = uint8(unit)
	return err
}

func (c *deviceConfig) parseTimes(s configSettings, o Options) (err error) {
	if c.timeout, err = s.duration(o.Timeout, "timeout"); err != nil {
		return err
	}
	if c.timeout == 0 {
		return s.bad("timeout", "must be above 0, such as 2s")
	}
	if c.pause, err = s.duration(0, "pause"); err != nil {
		return err
	}
	c.connectDelay, err = s.duration(0, "connectDelay")
	return err
}

func (c *deviceConfig) parseHabits(s configSettings) (err error) {
	gap, err := s.integer(8, 0, 100, "gap")
	if err != nil {
		return err
	}
	most, err := s.integer(wire.MaxReadRegisters, 1, wire.MaxReadRegisters, "maxRegisters")
	if err != nil {
		return err
	}
	c.gap, c.maxRegisters = uint16(gap), uint16(most)
	if c.connect, err = oneOf(s, "connect", connectKeep, connectCycle, connectRequest); err != nil {
		return err
	}
	if c.write, err = oneOf(s, "write", writeEither, writeSingle, writeMultiple); err != nil {
		return err
	}
	c.strict, err = s.boolean("strict")
	return err
}

// parseTarget reads where the device is. communicateMode is KubeEdge's: TCP or RTU follows from the address.
func (c *deviceConfig) parseTarget(s configSettings) error {
	s.get("communicateMode")
	text, key := s.get("address", "url")
	if port, _ := s.get("serialPort"); text == "" && port != "" {
		text, key = "rtu://"+port, "serialPort"
	}
	if ip, _ := s.get("ip", "host"); text == "" && ip != "" {
		port, err := s.integer(502, 1, 65535, "port", "tcpPort")
		if err != nil {
			return err
		}
		text = net.JoinHostPort(ip, strconv.FormatInt(port, 10))
	}
	s.get("port", "tcpPort")
	if text == "" {
		return s.bad(key, "is required: where the device is, such as tcp://10.0.0.5:502 or rtu:///dev/ttyUSB0")
	}
	t, err := wire.ParseTarget(text)
	if err != nil {
		return s.bad(key, "%v", err)
	}
	if t.ZeroPort() {
		return s.bad(key, "%q has no port from 1 to 65535", text)
	}
	if c.target, err = parseLine(s, t); err != nil {
		return err
	}
	return nil
}

var parityNames = map[string]byte{"none": 'N', "n": 'N', "even": 'E', "e": 'E', "odd": 'O', "o": 'O'}

// parseLine reads how a serial line is set.
func parseLine(s configSettings, t wire.Target) (wire.Target, error) {
	baud, err := s.integer(int64(wire.DefaultLine.Baud), 50, 4_000_000, "baud", "baudRate")
	if err != nil {
		return t, err
	}
	stop, err := s.integer(int64(wire.DefaultLine.StopBits), 1, 2, "stopBits")
	if err != nil {
		return t, err
	}
	if _, err := s.integer(8, 8, 8, "dataBits"); err != nil {
		return t, s.bad("dataBits", "must be 8, as Modbus RTU has it")
	}
	text, key := s.get("parity")
	parity := parityNames[strings.ToLower(cmp.Or(text, "none"))]
	if parity == 0 {
		return t, s.bad(key, "%q is none of none, even, odd", text)
	}
	if t.Serial() {
		t.Line = wire.Line{Baud: int(baud), Parity: parity, StopBits: int(stop)}
	}
	return t, nil
}
