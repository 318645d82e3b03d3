// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"context"
	"sync"
	"time"

	"github.com/edgebus/edgebus/mappers"
)

// DefaultTimeout is how long a unit may take to answer where nothing else is said.
const DefaultTimeout = 2 * time.Second

// Options configure the driver. The zero value is usable.
type Options struct {
	Timeout time.Duration // default DefaultTimeout
}

// Driver opens Modbus devices.
type Driver struct {
	o       Options
	patient bool // one unit is asked after the other, most of which aren't there: none keeps another waiting, and the connection stays
	mu      sync.Mutex
	buses   map[string]*bus // by target
}

// New makes a driver.
func New(o Options) *Driver {
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	return &Driver{o: o, buses: map[string]*bus{}}
}

// Protocols implements mappers.Driver.
func (d *Driver) Protocols() []string { return []string{"modbus", "modbus-tcp", "modbus-rtu"} }

// Bus implements mappers.Sharer.
func (d *Driver) Bus(dev mappers.Device) string {
	c, err := parseDevice(dev, d.o)
	if err != nil {
		return "unusable " + dev.Name
	}
	return c.target.String()
}

// Open implements mappers.Driver. It checks the configuration; whether the unit answers shows with the first request.
func (d *Driver) Open(_ context.Context, dev mappers.Device) (mappers.Session, error) {
	c, err := parseDevice(dev, d.o)
	if err != nil {
		return nil, err
	}
	return &session{driver: d, device: dev, config: c, bus: d.acquire(c.target.String()), layout: newLayout()}, nil
}

// acquire takes a share of a connection, release gives it back; the last one ends it.
func (d *Driver) acquire(key string) *bus {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.buses[key]
	if b == nil {
		b = newBus(key)
		d.buses[key] = b
	}
	b.shares.Add(1)
	return b
}

func (d *Driver) release(b *bus) {
	d.mu.Lock()
	last := b.shares.Add(-1) == 0
	if last {
		delete(d.buses, b.key)
	}
	d.mu.Unlock()
	if last {
		b.close()
	}
}
