// SPDX-License-Identifier: Apache-2.0

package snmp

import (
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/settings"
)

const protocol = "snmp"

// agentConfig says where an agent is, and how it is signed in to.
type agentConfig struct {
	host        string
	port        uint16
	version     string // 2c or 3
	community   string
	credentials string // the name of a file
	timeout     time.Duration
}

// deviceConfig is a Device's configuration, understood.
type deviceConfig struct {
	agentConfig
	most     int      // objects in one request; 0: learnt
	sources  []string // addresses that traps come from besides
	fields   map[string]*field
	commands map[string]*field
	events   []*trapEvent
	first    *field
}

// field is where a property or a command is.
type field struct {
	name  string
	spec  mappers.Property
	oid   string // with a dot before it
	where string // of a table: the column that says which row
	is    string // and what it says there
	typ   string // as what it is set; empty: as it was read
	hex   bool   // octets are shown as hexadecimal
	scale float64
	value string // of a command: what is set; empty: its input
}

// trapEvent is an event that a trap tells.
type trapEvent struct {
	name  string
	trap  string // the trap's object, with a dot before it
	value string // the object of which the trap has a value; empty: all of them, as JSON
}

func parseDevice(d mappers.Device, timeout time.Duration) (c deviceConfig, err error) {
	s := settings.OfDevice(protocol, d)
	if err := c.parseAgent(s, timeout); err != nil {
		return c, err
	}
	most, err := s.Integer("maxOids", 0, 1, 1000)
	if err != nil {
		return c, err
	}
	c.most = int(most)
	for source := range strings.SplitSeq(s.Get("trapSources"), ",") {
		if source = strings.TrimSpace(source); source == "" {
			continue
		}
		if net.ParseIP(source) == nil {
			return c, s.Bad("trapSources", "%q is no IP address", source)
		}
		c.sources = append(c.sources, source)
	}
	row := s.Get("row")
	if err := s.Rest(protocolSettings.Device); err != nil {
		return c, err
	}
	c.fields, c.commands = map[string]*field{}, map[string]*field{}
	for _, p := range d.Properties {
		if !p.Visited {
			continue
		}
		f, err := parseField(p, row, protocolSettings.Property)
		if err != nil {
			return c, err
		}
		if c.fields[p.Name] = f; c.first == nil {
			c.first = f
		}
	}
	for _, p := range d.Commands {
		if c.commands[p.Name], err = parseField(p, row, protocolSettings.Command); err != nil {
			return c, err
		}
	}
	for _, p := range d.Events {
		e, err := parseEvent(p)
		if err != nil {
			return c, err
		}
		c.events = append(c.events, e)
	}
	return c, nil
}

func (c *agentConfig) parseAgent(s settings.Reader, timeout time.Duration) (err error) {
	address := s.Get("address")
	host, port, splitErr := net.SplitHostPort(address)
	if splitErr != nil {
		host, port = strings.Trim(address, "[]"), "161"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if host == "" || err != nil || strings.ContainsAny(host, "/ ") {
		return s.Bad("address", "%q is no host such as 10.0.0.9 or 10.0.0.9:161", address)
	}
	c.host, c.port = host, uint16(n)
	if c.version, err = s.Choice("version", "2c", "2c", "3"); err != nil {
		return err
	}
	if c.credentials, err = s.FileName("credentials"); err != nil {
		return err
	}
	c.community = s.Get("community")
	switch {
	case c.version == "3" && c.credentials == "":
		return s.Bad("credentials", "is required with version 3: the name of a file with user, authentication and privacy")
	case c.version == "3" && c.community != "":
		return s.Bad("community", "is of version 2c, not of 3")
	}
	c.timeout, err = s.Duration("timeout", timeout, 10*time.Millisecond, 10*time.Minute)
	return err
}

// parseOID gives an object's name with the dot before it that the library has.
func parseOID(text string) (string, bool) {
	text = strings.TrimPrefix(text, ".")
	parts := strings.Split(text, ".")
	if len(parts) < 2 || len(parts) > 128 {
		return "", false
	}
	for _, p := range parts {
		if _, err := strconv.ParseUint(p, 10, 32); err != nil {
			return "", false
		}
	}
	return "." + text, true
}

// setTypes are the types of values that are set.
var setTypes = []string{"integer", "unsigned", "counter", "timeticks", "string", "hex", "oid", "address"}

// parseField reads a visitor's settings. row is the Device's: which row of a table it is, where the visitor doesn't say it.
func parseField(p mappers.Property, row string, table []mappers.ProtocolSetting) (*field, error) {
	s := settings.OfVisitor(protocol, p)
	f := &field{name: p.Name, spec: p, scale: 1, value: s.Get("value")}
	oid := func(key string, required bool) (string, error) {
		text := s.Get(key)
		if text == "" && !required {
			return "", nil
		}
		oid, ok := parseOID(text)
		if !ok {
			return "", s.Bad(key, "%q is no object such as 1.3.6.1.2.1.1.3.0", text)
		}
		return oid, nil
	}
	var err error
	if f.oid, err = oid("oid", true); err != nil {
		return nil, err
	}
	if f.where, err = oid("where", false); err != nil {
		return nil, err
	}
	if f.is = s.Get("is"); f.is == "" && f.where != "" {
		f.is = row
	}
	if (f.where == "") != (f.is == "") {
		return nil, s.Bad("is", "belongs to where: the row of a table in which the column where has this value, unless the Device's row says it")
	}
	if s.Get("type") != "" {
		if f.typ, err = s.Choice("type", "", setTypes...); err != nil {
			return nil, err
		}
	}
	if f.hex, err = s.Boolean("hex", false); err != nil {
		return nil, err
	}
	if text := s.Get("scale"); text != "" {
		f.scale, err = strconv.ParseFloat(text, 64)
		if err != nil || !(f.scale > 0 || f.scale < 0) || f.scale > 1e12 || f.scale < -1e12 {
			return nil, s.Bad("scale", "%q is no number other than 0, from -1e12 to 1e12", text)
		}
	}
	return f, s.Rest(table)
}

func parseEvent(p mappers.Property) (*trapEvent, error) {
	s := settings.OfVisitor(protocol, p)
	e := &trapEvent{name: p.Name}
	var ok bool
	if e.trap, ok = parseOID(s.Get("trap")); !ok {
		return nil, s.Bad("trap", "%q is no trap such as 1.3.6.1.6.3.1.1.5.3", s.Get("trap"))
	}
	if text := s.Get("value"); text != "" {
		if e.value, ok = parseOID(text); !ok {
			return nil, s.Bad("value", "%q is no object such as 1.3.6.1.2.1.2.2.1.1", text)
		}
	}
	return e, s.Rest(protocolSettings.Event)
}
