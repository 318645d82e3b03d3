// SPDX-License-Identifier: Apache-2.0

package snmp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gosnmp/gosnmp"

	"github.com/edgebus/edgebus/mappers"
)

// Options configure the driver.
type Options struct {
	// Traps is the UDP address that traps come to; empty: none are heard.
	Traps string
	// CredentialsDir has a file for each user or community that Devices name.
	CredentialsDir string
	// Timeout is how long an agent may take to answer where its Device doesn't say.
	Timeout time.Duration
}

// Driver makes sessions.
type Driver struct {
	o     Options
	traps *trapListener
}

// New makes a driver. Traps are listened for once a device wants them.
func New(o Options) *Driver { return &Driver{o: o, traps: newTrapListener(o.Traps)} }

// Protocols implements mappers.Driver.
func (d *Driver) Protocols() []string { return []string{"snmp", "snmpv3"} }

// Open implements mappers.Driver.
func (d *Driver) Open(_ context.Context, dev mappers.Device) (mappers.Session, error) {
	c, err := parseDevice(dev, d.o.Timeout)
	if err != nil {
		return nil, err
	}
	a, err := newAgent(c.agentConfig, d.o.CredentialsDir)
	if err != nil {
		return nil, err
	}
	a.tries = 1
	return &session{
		driver: d, device: dev, config: c, agent: a, limit: mappers.NewRequestLimit(dev, "MaxOids", c.most, defaultMost),
		rows: map[string]string{}, types: map[string]string{},
	}, nil
}

// session is an open device.
type session struct {
	driver *Driver
	device mappers.Device
	config deviceConfig
	agent  *agent
	limit  *mappers.RequestLimit // of objects

	sources trapSources

	mu    sync.Mutex
	rows  map[string]string // the rows of tables that were found, by column and value
	types map[string]string // the types of objects that were read
}

const defaultMost = 20

// Close implements mappers.Session.
func (s *session) Close() error {
	s.agent.close()
	return nil
}

// Reconnect implements mappers.Reconnector.
func (s *session) Reconnect() {
	s.agent.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.rows)
}

// Timeout implements mappers.Timeouter.
func (s *session) Timeout() time.Duration { return s.config.timeout + s.config.timeout/4 }

// upTime is an object that each agent has.
const upTime = ".1.3.6.1.2.1.1.3.0"

// Ping implements mappers.Pinger.
func (s *session) Ping(ctx context.Context) error {
	_, err := s.agent.get(ctx, []string{upTime})
	return err
}

// Group implements mappers.Grouper.
func (s *session) Group(properties []string) [][]string {
	return slices.Collect(slices.Chunk(properties, s.limit.Most()))
}

// ReadBatch implements mappers.BatchReader.
func (s *session) ReadBatch(ctx context.Context, properties []string) (map[string]mappers.Reading, error) {
	got := make(map[string]mappers.Reading, len(properties))
	var cells []cell
	var lost error // a table that can't be walked takes nothing else with it
	for _, name := range properties {
		f := s.config.fields[name]
		if f == nil {
			got[name] = mappers.Reading{Err: mappers.Refuse(mappers.NotReachable, "the model has no snmp visitor for %s", name)}
			continue
		}
		c, err := cell{}, lost
		if f.where == "" || lost == nil {
			c, err = s.locate(ctx, f)
		}
		if err == nil {
			cells = append(cells, c)
			continue
		}
		got[name] = mappers.Reading{Err: err}
		var refusal *mappers.Refusal
		if !errors.As(err, &refusal) {
			lost = err
		}
	}
	if len(cells) == 0 && lost != nil {
		return nil, lost
	}
	return got, s.read(ctx, cells, got)
}

// cell is where a field is now: the object, and of a table the cell that says which row it is.
type cell struct {
	*field
	object, check string
}

// locate finds the row of a table in which a field is.
func (s *session) locate(ctx context.Context, f *field) (cell, error) {
	if f.where == "" {
		return cell{f, f.oid, ""}, nil
	}
	key := f.where + "=" + f.is
	s.mu.Lock()
	row, known := s.rows[key]
	s.mu.Unlock()
	if !known {
		column := field{oid: f.where, scale: 1}
		err := s.agent.walk(ctx, f.where, func(v gosnmp.SnmpPDU) error {
			if text, err := column.decode(v); err == nil && text == f.is && row == "" {
				row = strings.TrimPrefix(v.Name, f.where)
			}
			return nil
		})
		if err != nil {
			return cell{}, err
		}
		if row == "" {
			return cell{}, mappers.Refuse(mappers.NotReachable, "no row of the table has %s = %s", f.where[1:], f.is)
		}
		s.mu.Lock()
		s.rows[key] = row
		s.mu.Unlock()
	}
	return cell{f, f.oid + row, f.where + row}, nil
}

func (s *session) forgetRow(f *field) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.rows, f.where+"="+f.is)
}

// read reads cells, in halves if they are too many for the agent. A row that has moved is looked for again at the next reading.
func (s *session) read(ctx context.Context, cells []cell, got map[string]mappers.Reading) error {
	if len(cells) == 0 {
		return nil
	}
	var oids []string
	for _, c := range cells {
		oids = append(oids, c.object)
		if c.check != "" {
			oids = append(oids, c.check)
		}
	}
	packet, err := s.agent.get(ctx, oids)
	if err != nil {
		return err
	}
	switch {
	case packet.Error == gosnmp.TooBig && len(cells) > 1:
		half := (len(cells) + 1) / 2
		s.limit.Learn(half, "answers at most %d objects at once: set maxOids")
		if err := s.read(ctx, cells[:half], got); err != nil {
			return err
		}
		return s.read(ctx, cells[half:], got)
	case packet.Error == gosnmp.GenErr: // there is no other word for an agent that can't read it at the moment
		return mappers.Busy(fmt.Errorf("%s: the agent says %s", cells[0].oid[1:], packet.Error))
	case packet.Error != gosnmp.NoError:
		for _, c := range cells {
			got[c.name] = mappers.Reading{Err: mappers.Refuse(mappers.Rejected, "%s: the agent says %s", c.oid[1:], packet.Error)}
		}
		return nil
	}
	values := packet.Variables
	for _, c := range cells {
		value := values[0]
		values = values[1:]
		if c.check != "" {
			said, err := (&field{oid: c.where, scale: 1}).decode(values[0])
			values = values[1:]
			if err != nil || said != c.is {
				s.forgetRow(c.field)
				got[c.name] = mappers.Reading{Err: c.unknown("the table's row has moved")}
				continue
			}
		}
		s.mu.Lock()
		if typ, ok := typeNames[value.Type]; ok {
			s.types[c.oid] = typ
		}
		s.mu.Unlock()
		got[c.name] = c.reading(value)
	}
	return nil
}

// typeOf is as what a field is set.
func (s *session) typeOf(ctx context.Context, c cell) (string, error) {
	s.mu.Lock()
	typ := s.types[c.oid]
	s.mu.Unlock()
	if c.typ != "" || typ != "" {
		return cmp.Or(c.typ, typ), nil
	}
	packet, err := s.agent.get(ctx, []string{c.object})
	if err != nil {
		return "", err
	}
	if packet.Error == gosnmp.NoError && len(packet.Variables) == 1 {
		typ = typeNames[packet.Variables[0].Type]
	}
	return typ, nil
}

// Write implements mappers.Writer.
func (s *session) Write(ctx context.Context, property, value string) error {
	f := s.config.fields[property]
	if f == nil {
		return mappers.Refuse(mappers.NotReachable, "the model has no snmp visitor for %s", property)
	}
	return s.set(ctx, f, value)
}

func (s *session) set(ctx context.Context, f *field, value string) error {
	c, err := s.locate(ctx, f)
	if err != nil {
		return err
	}
	typ, err := s.typeOf(ctx, c)
	if err != nil {
		return err
	}
	v, err := f.encode(c.object, value, typ)
	if err != nil {
		return err
	}
	packet, err := s.agent.set(ctx, v)
	if err != nil {
		return err
	}
	if packet.Error != gosnmp.NoError {
		return f.refusal(value, packet.Error)
	}
	return nil
}

// Nearest implements mappers.Rounder: an object with a scale has steps.
func (s *session) Nearest(property, value string) (string, error) {
	f := s.config.fields[property]
	if f == nil || f.scale == 1 || !f.spec.Type.Numeric() {
		return value, nil
	}
	n, err := f.whole(value)
	if err != nil {
		return "", err
	}
	return f.number(float64(n), 64)
}

// Command implements mappers.Commander: it sets an object.
func (s *session) Command(ctx context.Context, name string, payload []byte) ([]byte, error) {
	f := s.config.commands[name]
	if f == nil {
		return nil, mappers.Refuse(mappers.NotReachable, "the model has no snmp visitor for the command %s", name)
	}
	return nil, s.set(ctx, f, cmp.Or(f.value, string(payload)))
}
