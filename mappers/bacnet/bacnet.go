// SPDX-License-Identifier: Apache-2.0

package bacnet

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/bacnet/wire"
	"github.com/edgebus/edgebus/mappers/settings"
)

// Options configure the driver.
type Options struct {
	// Listen, Broadcast and BBMD are wire.Options'.
	Listen, Broadcast, BBMD string
	// Timeout is how long a device may take to answer where its Device doesn't say.
	Timeout time.Duration
}

// Driver makes sessions, which share one socket.
type Driver struct {
	o Options

	mu     sync.Mutex
	client *wire.Client
}

// New makes a driver. The socket is opened with the first device.
func New(o Options) *Driver { return &Driver{o: o} }

// Protocols implements mappers.Driver.
func (d *Driver) Protocols() []string { return []string{"bacnet", "bacnetip"} }

// Bus implements mappers.Sharer: devices of one network behind a router share its line, others are asked at the same time.
func (d *Driver) Bus(dev mappers.Device) string {
	s := settings.OfDevice("bacnet", dev)
	if network := s.Get("network"); network != "" {
		return s.Get("address") + " network " + network
	}
	return "device " + dev.Name
}

func (d *Driver) open() (*wire.Client, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.client == nil {
		c, err := wire.NewClient(wire.Options{Listen: d.o.Listen, Broadcast: d.o.Broadcast, BBMD: d.o.BBMD, Timeout: d.o.Timeout})
		if err != nil {
			return nil, err
		}
		d.client = c
	}
	return d.client, nil
}

// Close ends the socket.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.client == nil {
		return nil
	}
	c := d.client
	d.client = nil
	return c.Close()
}

// Open implements mappers.Driver.
func (d *Driver) Open(_ context.Context, dev mappers.Device) (mappers.Session, error) {
	c, err := parseDevice(dev, d.o.Timeout)
	if err != nil {
		return nil, err
	}
	client, err := d.open()
	if err != nil {
		return nil, err
	}
	return &session{client: client, device: dev, config: c, limit: mappers.NewRequestLimit(dev, "MaxProperties", c.most, defaultMost)}, nil
}

// session is an open device.
type session struct {
	client *wire.Client
	device mappers.Device
	config deviceConfig
	limit  *mappers.RequestLimit // of properties

	mu      sync.Mutex
	address *wire.Address // nil: not known yet
	singly  bool          // the device doesn't know ReadPropertyMultiple, for as long as limit is 1

	process       uint32 // that subscriptions have
	listensTo     wire.Address
	stopListening func() // nil: there are no subscriptions
}

// Close implements mappers.Session.
func (s *session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopListening != nil {
		s.stopListening()
		s.stopListening = nil
	}
	return nil
}

// Reconnect implements mappers.Reconnector: the name may have another address, or the device another.
func (s *session) Reconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.address = nil
}

// Timeout implements mappers.Timeouter.
func (s *session) Timeout() time.Duration { return s.config.timeout }

// where finds the device's address.
func (s *session) where(ctx context.Context) (wire.Address, error) {
	s.mu.Lock()
	known := s.address
	s.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	var a wire.Address
	if s.config.host != "" {
		host, err := wire.ResolveHost(s.config.host)
		if err != nil {
			return a, mappers.NotSent(err)
		}
		a = wire.Address{Host: host, Network: s.config.network, MAC: s.config.mac}
	} else {
		found, err := s.client.Find(ctx, uint32(s.config.instance))
		if err != nil {
			return a, mappers.NotSent(err)
		}
		a = found.Address
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.address = &a
	return a, nil
}

// Ping implements mappers.Pinger: any answer counts.
func (s *session) Ping(ctx context.Context) error {
	if s.config.first == nil {
		return nil
	}
	to, err := s.where(ctx)
	if err != nil {
		return err
	}
	_, err = s.client.Read(ctx, to, s.config.first.ref)
	if s.config.first.refusal(err) != nil {
		return nil
	}
	return err
}

func (s *session) field(name string) (*field, error) {
	f := s.config.fields[name]
	if f == nil {
		return nil, mappers.Refuse(mappers.NotReachable, "the model has no bacnet visitor for %s", name)
	}
	return f, nil
}

// Group implements mappers.Grouper.
func (s *session) Group(properties []string) [][]string {
	return slices.Collect(slices.Chunk(properties, s.limit.Most()))
}

// ReadBatch implements mappers.BatchReader. A request that is too much for the device is cut in halves, and the limit is learnt.
func (s *session) ReadBatch(ctx context.Context, properties []string) (map[string]mappers.Reading, error) {
	got := make(map[string]mappers.Reading, len(properties))
	to, err := s.where(ctx)
	if err != nil {
		return nil, err
	}
	var fields []*field
	for _, name := range properties {
		if f, err := s.field(name); err != nil {
			got[name] = mappers.Reading{Err: err}
		} else {
			fields = append(fields, f)
		}
	}
	return got, s.read(ctx, to, fields, got)
}

func (s *session) read(ctx context.Context, to wire.Address, fields []*field, got map[string]mappers.Reading) error {
	if len(fields) == 0 {
		return nil
	}
	s.mu.Lock()
	s.singly = s.singly && s.limit.Most() == 1
	singly := s.singly
	s.mu.Unlock()
	if singly {
		return s.readSingly(ctx, to, fields, got)
	}
	var refs []wire.Reference
	for _, f := range fields {
		refs = append(refs, f.ref)
		if f.ref.Property == wire.PresentValue {
			refs = append(refs, wire.Reference{Object: f.ref.Object, Property: wire.StatusFlags, Index: wire.NoIndex})
		}
	}
	results, err := s.client.ReadMultiple(ctx, to, refs)
	half := (len(fields) + 1) / 2
	switch {
	case wire.IsUnknownService(err), len(fields) == 1 && wire.IsTooLong(err):
		s.limit.Learn(1, "doesn't know ReadPropertyMultiple, and is read one by one: set maxProperties to %d")
		s.mu.Lock()
		s.singly = true
		s.mu.Unlock()
		return s.readSingly(ctx, to, fields, got)
	case len(fields) > 1 && wire.IsRejected(err): // for one of them, or because they are too many
		if wire.IsTooLong(err) {
			s.limit.Learn(half, "answers at most %d properties at once: set maxProperties")
		}
		if err := s.read(ctx, to, fields[:half], got); err != nil {
			return err
		}
		return s.read(ctx, to, fields[half:], got)
	case err != nil:
		if r := fields[0].refusal(err); r != nil {
			return allFields(fields, got, r)
		}
		return err
	}
	for _, f := range fields {
		got[f.name] = f.reading(results)
	}
	return nil
}

// allFields gives each field the device's answer for all of them.
func allFields(fields []*field, got map[string]mappers.Reading, err error) error {
	var refusal *mappers.Refusal
	if !errors.As(err, &refusal) {
		return err
	}
	for _, f := range fields {
		got[f.name] = mappers.Reading{Err: refusal}
	}
	return nil
}

// readSingly is for devices that don't know ReadPropertyMultiple.
func (s *session) readSingly(ctx context.Context, to wire.Address, fields []*field, got map[string]mappers.Reading) error {
	for _, f := range fields {
		values, err := s.client.Read(ctx, to, f.ref)
		if err != nil {
			r := f.refusal(err)
			if r == nil {
				return err
			}
			if err := allFields([]*field{f}, got, r); err != nil {
				return err
			}
			continue
		}
		results := []wire.Result{{Reference: f.ref, Values: values}}
		if f.ref.Property == wire.PresentValue {
			flags := wire.Reference{Object: f.ref.Object, Property: wire.StatusFlags, Index: wire.NoIndex}
			said, err := s.client.Read(ctx, to, flags)
			if r := f.refusal(err); r == nil && err != nil {
				return err
			} else if r != nil && allFields(nil, got, r) != nil { // it is busy
				return r
			}
			results = append(results, wire.Result{Reference: flags, Values: said, Err: err})
		}
		got[f.name] = f.reading(results)
	}
	return nil
}

// reading finds the field's value among results. A present value that the device itself doesn't trust is none.
func (f *field) reading(results []wire.Result) mappers.Reading {
	reading := mappers.Reading{Err: mappers.Refuse(mappers.Unknown, "%s %s is not in the device's answer", f.ref.Object, f.ref.Property)}
	for _, r := range results {
		switch {
		case r.Reference == f.ref && r.Err != nil:
			return mappers.Reading{Err: f.refusal(r.Err)}
		case r.Reference == f.ref:
			reading.Value, reading.Err = f.decode(r.Values)
		}
	}
	if f.ref.Property == wire.PresentValue && isFaulty(f.ref.Object, results) {
		reading.Err = f.unknown("is not reliable: the object's status flags have fault")
	}
	return reading
}

// isFaulty reports whether an object's status flags say so: the second of in alarm, fault, overridden, out of service.
func isFaulty(id wire.ObjectID, results []wire.Result) bool {
	for _, r := range results {
		if r.Object == id && r.Property == wire.StatusFlags && len(r.Values) == 1 {
			flags, ok := r.Values[0].(wire.BitString)
			return ok && len(flags) == 4 && flags[1]
		}
	}
	return false
}

// Nearest implements mappers.Rounder: a Real has 24 bits.
func (s *session) Nearest(property, value string) (string, error) {
	f, err := s.field(property)
	if err != nil {
		return "", err
	}
	v, err := f.encode(value)
	if err != nil {
		return "", err
	}
	if v == nil {
		return value, nil
	}
	return f.text(v)
}

// Write implements mappers.Writer.
func (s *session) Write(ctx context.Context, property, value string) error {
	f, err := s.field(property)
	if err != nil {
		return err
	}
	return s.write(ctx, f, value)
}

func (s *session) write(ctx context.Context, f *field, value string) error {
	v, err := f.encode(value)
	if err != nil {
		return err
	}
	return s.put(ctx, f, v)
}

// Relinquish implements mappers.Relinquisher: it writes null with the property's priority. What isn't commandable, and refuses that, keeps
// its value.
func (s *session) Relinquish(ctx context.Context, property string) error {
	f, err := s.field(property)
	if err != nil {
		return err
	}
	return s.put(ctx, f, nil)
}

func (s *session) put(ctx context.Context, f *field, v any) error {
	to, err := s.where(ctx)
	if err != nil {
		return err
	}
	err = s.client.Write(ctx, to, f.ref, v, f.priority)
	if r := f.refusal(err); r != nil {
		return r
	}
	return err
}

// Command implements mappers.Commander: it writes a property.
func (s *session) Command(ctx context.Context, name string, payload []byte) ([]byte, error) {
	f := s.config.commands[name]
	if f == nil {
		return nil, mappers.Refuse(mappers.NotReachable, "the model has no bacnet visitor for the command %s", name)
	}
	return nil, s.write(ctx, f, cmp.Or(f.value, string(payload)))
}
