// SPDX-License-Identifier: Apache-2.0

package bacnet

import (
	"encoding/hex"
	"strings"
	"time"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/bacnet/wire"
	"github.com/edgebus/edgebus/mappers/settings"
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
	defaultMost     = 20
	defaultLifetime = 5 * time.Minute
)

func parseDevice(d mappers.Device, timeout time.Duration) (c deviceConfig, err error) {
	s := settings.OfDevice("bacnet", d)
	if err := c.parseAddress(s); err != nil {
		return c, err
	}
	if c.timeout, err = s.Duration("timeout", timeout, 10*time.Millisecond, 10*time.Minute); err != nil {
		return c, err
	}
	cov, err := s.Boolean("cov", true)
	if err != nil {
		return c, err
	}
	if c.lifetime, err = s.Duration("covLifetime", defaultLifetime, 10*time.Second, 24*time.Hour); err != nil {
		return c, err
	}
	if !cov {
		c.lifetime = 0
	}
	priority, err := s.Integer("priority", 16, 1, 16)
	if err != nil {
		return c, err
	}
	c.priority = byte(priority)
	most, err := s.Integer("maxProperties", 0, 1, 1000)
	if err != nil {
		return c, err
	}
	c.most = int(most)
	if err := s.Rest(protocolSettings.Device); err != nil {
		return c, err
	}
	c.fields, c.commands = map[string]*field{}, map[string]*field{}
	for _, p := range d.Properties {
		if !p.Visited {
			continue
		}
		f, err := parseField(p, c.priority, protocolSettings.Property)
		if err != nil {
			return c, err
		}
		c.fields[p.Name] = f
		if c.first == nil {
			c.first = f
		}
	}
	for _, p := range d.Commands {
		if c.commands[p.Name], err = parseField(p, c.priority, protocolSettings.Command); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (c *deviceConfig) parseAddress(s settings.Reader) (err error) {
	c.host = s.Get("address")
	if c.instance, err = s.Integer("device", -1, 0, wire.MaxInstance-1); err != nil {
		return err
	}
	network, err := s.Integer("network", 0, 1, 65534)
	if err != nil {
		return err
	}
	c.network = uint16(network)
	if text := strings.TrimPrefix(s.Get("mac"), "0x"); text != "" {
		mac, err := hex.DecodeString(strings.ReplaceAll(text, ":", ""))
		if err != nil || len(mac) > 7 {
			return s.Bad("mac", "%q is no address in hexadecimal, such as 0b", text)
		}
		c.mac = string(mac)
	}
	switch {
	case c.host == "" && c.instance < 0:
		return s.Bad("address", "is required, as 10.0.0.9 or 10.0.0.9:47808; or device, the device's number, by which it is found")
	case (c.network == 0) != (c.mac == ""):
		return s.Bad("mac", "belongs to network: a device behind a router has both, or is found by device, its number")
	case c.network != 0 && c.host == "":
		return s.Bad("address", "is required with network and mac: the router's")
	}
	if c.host != "" {
		if strings.ContainsAny(c.host, "/ ") {
			return s.Bad("address", "%q is no host such as 10.0.0.9 or 10.0.0.9:47808", c.host)
		}
	}
	return nil
}

func parseField(p mappers.Property, priority byte, table []mappers.ProtocolSetting) (*field, error) {
	s := settings.OfVisitor("bacnet", p)
	f := &field{name: p.Name, spec: p, bit: -1, value: s.Get("value")}
	object := s.Get("object")
	if object == "" {
		return nil, s.Bad("object", "is required, such as analogInput:3")
	}
	id, err := wire.ParseObject(object)
	if err != nil {
		return nil, s.Bad("object", "%v", err)
	}
	f.ref = wire.Reference{Object: id, Property: wire.PresentValue, Index: wire.NoIndex}
	if text := s.Get("property"); text != "" {
		if f.ref.Property, err = wire.ParseProperty(text); err != nil {
			return nil, s.Bad("property", "%v", err)
		}
	}
	index, err := s.Integer("index", wire.NoIndex, 0, 1<<31-1)
	if err != nil {
		return nil, err
	}
	f.ref.Index = int(index)
	bit, err := s.Integer("bit", -1, 0, 255)
	if err != nil {
		return nil, err
	}
	f.bit = int(bit)
	own, err := s.Integer("priority", int64(priority), 1, 16)
	if err != nil {
		return nil, err
	}
	f.priority = byte(own)
	if f.kind, err = parseKind(s.Get("type"), f.ref); err != nil {
		return nil, s.Bad("type", "%v", err)
	}
	return f, s.Rest(table)
}
