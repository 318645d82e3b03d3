package bacnet

import (
	"cmp"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/bacnet/wire"
)

// deviceConfig is a Device's configuration, understood.
type deviceConfig struct {
	host     string // host or host:port; empty: found by the device's number
	instance int64  // of the device object; -1: not given
	network  uint16
	mac      string
	priority byte
	timeout  time.Duration
	lifetime time.Duration // of subscriptions; 0: none are made
	most     int           // properties in one request; 0: learnt
	fields   map[string]*field
	commands map[string]*field
	first    *field // nil: there is nothing to read
}

// field is where a property or a command is.
type field struct {
	name     string
	spec     mappers.Property
	ref      wire.Reference
	kind     kind
	bit      int // of a bit string; -1: all of them
	priority byte
	value    string // of a command: what is written; empty: its input
}

const (
	protocolPath    = "spec.protocol.config."
	defaultMost     = 20
	defaultLifetime = 5 * time.Minute
)

// settings are a configuration's values and its path. Keys are found whatever their case.
type settings struct {
	path   string
	values map[string]string
	used   map[string]bool
}

func newSettings(path string, config map[string]string) settings {
	s := settings{path: path, values: map[string]string{}, used: map[string]bool{}}
	for k, v := range config {
		s.values[strings.ToLower(k)] = strings.TrimSpace(v)
	}
	return s
}

func (s settings) get(key string) string {
	s.used[strings.ToLower(key)] = true
	return s.values[strings.ToLower(key)]
}

func (s settings) bad(key, format string, args ...any) error {
	return mappers.BadConfig(s.path+key, format, args...)
}

func (s settings) integer(key string, def, low, high int64) (int64, error) {
	text := s.get(key)
	if text == "" {
		return def, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		return 0, s.bad(key, "%q is no number from %d to %d", text, low, high)
	}
	return n, nil
}

func (s settings) duration(key string, def, low, high time.Duration) (time.Duration, error) {
	text := s.get(key)
	if text == "" {
		return def, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < low || d > high {
		return 0, s.bad(key, "%q is no time from %s to %s, such as %s", text, low, high, cmp.Or(def, low))
	}
	return d, nil
}

func (s settings) boolean(key string, def bool) (bool, error) {
	text := s.get(key)
	if text == "" {
		return def, nil
	}
	b, err := strconv.ParseBool(strings.ToLower(text))
	if err != nil {
		return false, s.bad(key, "%q is neither true nor false", text)
	}
	return b, nil
}

func (s settings) unknown() error {
	for _, key := range slices.Sorted(maps.Keys(s.values)) {
		if !s.used[key] {
			return s.bad(key, "is no setting of bacnet")
		}
	}
	return nil
}

func parseDevice(d mappers.Device, timeout time.Duration) (c deviceConfig, err error) {
	s := newSettings(protocolPath, d.Config)
	if err := c.parseAddress(s); err != nil {
		return c, err
	}
	if c.timeout, err = s.duration("timeout", timeout, 10*time.Millisecond, 10*time.Minute); err != nil {
		return c, err
	}
	cov, err := s.boolean("cov", true)
	if err != nil {
		return c, err
	}
	if c.lifetime, err = s.duration("covLifetime", defaultLifetime, 10*time.Second, 24*time.Hour); err != nil {
		return c, err
	}
	if !cov {
		c.lifetime = 0
	}
	priority, err := s.integer("priority", 16, 1, 16)
	if err != nil {
		return c, err
	}
	c.priority = byte(priority)
	most, err := s.integer("maxProperties", 0, 1, 1000)
	if err != nil {
		return c, err
	}
	c.most = int(most)
	if err := s.unknown(); err != nil {
		return c, err
	}
	c.fields, c.commands = map[string]*field{}, map[string]*field{}
	for _, p := range d.Properties {
		if !p.Visited {
			continue
		}
		f, err := parseField(p.Name, p.Config, c.priority)
		if err != nil {
			return c, err
		}
		f.spec = p
		c.fields[p.Name] = f
		if c.first == nil {
			c.first = f
		}
	}
	return c, nil
}

func (c *deviceConfig) parseAddress(s settings) (err error) {
	c.host = s.get("address")
	if c.instance, err = s.integer("device", -1, 0, wire.MaxInstance-1); err != nil {
		return err
	}
	network, err := s.integer("network", 0, 1, 65534)
	if err != nil {
		return err
	}
	c.network = uint16(network)
	if text := strings.TrimPrefix(s.get("mac"), "0x"); text != "" {
		mac, err := hex.DecodeString(strings.ReplaceAll(text, ":", ""))
		if err != nil || len(mac) > 7 {
			return s.bad("mac", "%q is no address in hexadecimal, such as 0b", text)
		}
		c.mac = string(mac)
	}
	switch {
	case c.host == "" && c.instance < 0:
		return s.bad("address", "is required, as 10.0.0.9 or 10.0.0.9:47808; or device, the device's number, by which it is found")
	case (c.network == 0) != (c.mac == ""):
		return s.bad("mac", "belongs to network: a device behind a router has both, or is found by device, its number")
	case c.network != 0 && c.host == "":
		return s.bad("address", "is required with network and mac: the router's")
	}
	if c.host != "" {
		if strings.ContainsAny(c.host, "/ ") {
			return s.bad("address", "%q is no host such as 10.0.0.9 or 10.0.0.9:47808", c.host)
		}
	}
	return nil
}

func parseField(name string, config map[string]string, priority byte) (*field, error) {
	s := newSettings("visitor "+name+": config.", config)
	f := &field{name: name, bit: -1, value: s.get("value")}
	object := s.get("object")
	if object == "" {
		return nil, s.bad("object", "is required, such as analogInput:3")
	}
	id, err := wire.ParseObject(object)
	if err != nil {
		return nil, s.bad("object", "%v", err)
	}
	f.ref = wire.Reference{Object: id, Property: wire.PresentValue, Index: wire.NoIndex}
	if text := s.get("property"); text != "" {
		if f.ref.Property, err = wire.ParseProperty(text); err != nil {
			return nil, s.bad("property", "%v", err)
		}
	}
	index, err := s.integer("index", wire.NoIndex, 0, 1<<31-1)
	if err != nil {
		return nil, err
	}
	f.ref.Index = int(index)
	bit, err := s.integer("bit", -1, 0, 255)
	if err != nil {
		return nil, err
	}
	f.bit = int(bit)
	own, err := s.integer("priority", int64(priority), 1, 16)
	if err != nil {
		return nil, err
	}
	f.priority = byte(own)
	if f.kind, err = parseKind(s.get("type"), f.ref); err != nil {
		return nil, s.bad("type", "%v", err)
	}
	return f, s.unknown()
}
