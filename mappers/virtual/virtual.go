// Package virtual drives simulated devices: a lamp that warms up, or any model whose properties behave as its visitors
// say. They are for trying things out, demonstrations and tests: no hardware is touched, and a device forgets
// everything when it is closed, as hardware does that loses power.
//
// A property that can be written keeps what was written. One that can't moves by itself, by its visitor's config:
//
//	generator: sine | random-walk | sawtooth | constant
//	min, max:  between them (default: the model's range, else 0 to 100)
//	period:    of sine and sawtooth (default 60s); a random walk crosses its range in about that time
//	value:     of constant, and what a writable property begins with (also: initial, minimum, maximum)
//
// Without a generator a property called temperature warms with brightness while power is ON, as a lamp does; other
// numbers walk at random, booleans and enumerations stay.
//
// Two commands are known: beep, once or twice as the payload says, and reset, after which all is as it began.
package virtual

import (
	"context"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/edgebus/edgebus/mappers"
)

// Options configure the driver. The zero value is usable.
type Options struct {
	Now func() time.Time // default time.Now
	// Seed makes the devices' behaviour repeatable; each device has its own course.
	Seed uint64
	// Buses is how many goroutines share the devices; default 1.
	Buses int
}

// Driver makes simulated devices.
type Driver struct{ o Options }

// New makes a driver.
func New(o Options) *Driver {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Buses = max(o.Buses, 1)
	return &Driver{o}
}

// Protocols implements mappers.Driver.
func (d *Driver) Protocols() []string { return []string{"virtual", "simulated", "mock"} }

// Bus implements mappers.Sharer: simulated devices answer at once, so that one goroutine serves many.
func (d *Driver) Bus(dev mappers.Device) string {
	return "virtual-" + string(rune('a'+int(hash(dev.Name)%uint64(min(d.o.Buses, 26)))))
}

// Open implements mappers.Driver.
func (d *Driver) Open(_ context.Context, dev mappers.Device) (mappers.Session, error) {
	s := &session{now: d.o.Now, device: dev, props: map[string]*property{}}
	random := rand.New(rand.NewPCG(d.o.Seed, hash(dev.Name)))
	for _, p := range dev.Properties {
		prop, err := newProperty(p, d.o.Now(), random)
		if err != nil {
			return nil, err
		}
		s.props[p.Name] = prop
	}
	s.findLamp()
	return s, nil
}

func hash(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s))
	return h.Sum64()
}

// session is one simulated device.
type session struct {
	now    func() time.Time
	device mappers.Device

	mu    sync.Mutex
	props map[string]*property
	lamp  *lamp
}

// ReadBatch implements mappers.BatchReader.
func (s *session) ReadBatch(ctx context.Context, properties []string) (map[string]mappers.Reading, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	now := s.now()
	got := make(map[string]mappers.Reading, len(properties))
	for _, name := range properties {
		p := s.props[name]
		switch {
		case s.lamp != nil && s.lamp.temperature == p:
			got[name] = mappers.Reading{Value: p.format(s.lamp.read(now))}
		default:
			got[name] = mappers.Reading{Value: p.read(now)}
		}
	}
	return got, nil
}

// Write implements mappers.Writer.
func (s *session) Write(ctx context.Context, property, value string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.lamp != nil {
		s.lamp.read(s.now()) // what was until now counts with the old setting
	}
	s.props[property].text = value
	return nil
}

// Command implements mappers.Commander: "beep" makes a noise, "reset" brings the device back to how it began.
func (s *session) Command(ctx context.Context, name string, payload []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	switch name {
	case "beep":
		return beep(string(payload))
	case "reset":
		for _, p := range s.props {
			p.text = p.first
		}
		return []byte("ok"), nil
	}
	return nil, mappers.Refuse(mappers.Rejected, "%s knows the commands beep and reset, not %s", s.device.Name, name)
}

func beep(times string) ([]byte, error) {
	switch times {
	case "", "once":
		return []byte("beep"), nil
	case "twice":
		return []byte("beep beep"), nil
	}
	return nil, mappers.Refuse(mappers.Invalid, "beep once or twice, not %q", times)
}

// Close implements mappers.Session.
func (s *session) Close() error { return nil }
