package mappers

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/edgebus/edgebus/topics/resource"
)

// Opened is an open device as the SDK uses it: a driver's Session, and before it the checks that are the same for every
// driver. A Session is never asked for a property that the device hasn't, never told a value that its property can't
// have or a value for one that can't be written, and never called once it is closed.
type Opened struct {
	Session
	device Device
	closed atomic.Bool
}

var errClosed = errors.New("the device was closed")

// Open opens a device for the SDK, and for tests of a driver.
func Open(ctx context.Context, driver Driver, d Device) (*Opened, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s, err := driver.Open(ctx, d)
	if err != nil {
		return nil, err
	}
	return &Opened{Session: s, device: d}, nil
}

// Close closes the Session, once.
func (o *Opened) Close() error {
	if o.closed.Swap(true) {
		return nil
	}
	return o.Session.Close()
}

// CanRead says whether the driver can read, in whichever way.
func (o *Opened) CanRead() bool {
	_, one := o.Session.(Reader)
	_, many := o.Session.(BatchReader)
	return one || many
}

// CanWrite says whether the driver can write.
func (o *Opened) CanWrite() bool {
	_, ok := o.Session.(Writer)
	return ok
}

// property finds a property of a device that is open.
func (o *Opened) property(name string) (Property, error) {
	p, ok := o.device.Property(name)
	switch {
	case o.closed.Load():
		return p, errClosed
	case !ok:
		return p, Refuse(NotReachable, "%s is no property of %s", name, o.device.Name)
	}
	return p, nil
}

// Read reads properties in the way that the driver has. within is called with each call of the driver, to bound it.
func (o *Opened) Read(ctx context.Context, names []string, within func(context.Context, func(context.Context) error) error) (map[string]Reading, error) {
	got := make(map[string]Reading, len(names))
	var known []string
	for _, name := range names {
		_, err := o.property(name)
		if _, refused := refusal(err); refused {
			got[name] = Reading{Err: err}
		} else if err != nil {
			return nil, err
		} else {
			known = append(known, name)
		}
	}
	if b, ok := o.Session.(BatchReader); ok && len(known) > 0 {
		err := within(ctx, func(ctx context.Context) error {
			read, err := b.ReadBatch(ctx, known)
			for name, r := range read {
				got[name] = r
			}
			return err
		})
		return got, err
	}
	for _, name := range known {
		var value string
		err := within(ctx, func(ctx context.Context) (err error) {
			value, err = o.Session.(Reader).Read(ctx, name)
			return err
		})
		if _, refused := refusal(err); err != nil && !refused {
			return nil, err
		}
		got[name] = Reading{value, err}
	}
	return got, nil
}

// Write writes a value that the property can have.
func (o *Opened) Write(ctx context.Context, name, value string) error {
	p, err := o.property(name)
	if err != nil {
		return err
	}
	w, ok := o.Session.(Writer)
	if !ok || !p.Writable {
		return Refuse(ReadOnly, "%s can't be written", name)
	}
	if r := p.Check(value); r != nil {
		return r
	}
	return w.Write(ctx, name, value)
}

// Check says what is wrong with a value for the property: its type, its range or its enumeration; nil: nothing.
func (p Property) Check(value string) *Refusal {
	spec := resource.Property{Name: p.Name, Type: resource.DataType(p.Type), Unit: p.Unit, Minimum: p.Minimum, Maximum: p.Maximum}
	for _, e := range p.Enum {
		spec.Enum = append(spec.Enum, resource.Value(e))
	}
	return objection(spec, value)
}

func objection(spec resource.Property, value string) *Refusal {
	err := spec.Check([]byte(value))
	if err == nil {
		return nil
	}
	code := Invalid
	spec.Minimum, spec.Maximum, spec.Enum = nil, nil, nil
	if spec.Check([]byte(value)) == nil { // of the right type: it is the range
		code = OutOfRange
	}
	return Refuse(code, "%s", strings.TrimSpace(err.Error()))
}
