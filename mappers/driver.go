package mappers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/topics/resource"
)

// Driver opens devices of one protocol. It is all that a driver must be; what else it or its sessions can do is found
// out by asking for the interfaces below.
type Driver interface {
	// Protocols are the names that Devices and models use for the protocol, the usual one first. Case and the
	// characters '-', '_' and ' ' don't matter.
	Protocols() []string
	// Open connects to a device. A *ConfigError says that its configuration can't work: it is not tried again before
	// the configuration changes. Any other error is tried again, later and later.
	// Where devices share a bus, the others wait for it: it should not wait for the device (see Pinger).
	Open(ctx context.Context, d Device) (Session, error)
}

// Session is an open device. One goroutine uses it, but for Push. Every method must return soon after ctx ends. It is asked only for
// properties of the device, and told only values that these can have: see Opened.
//
// An error that is a *Refusal is about one property, and the device is well. Any other error means that the device
// can't be reached: the session is closed and the device is offline until another Open succeeds.
type Session interface {
	// Close lets go of the device. It is called once, and nothing after it.
	Close() error
}

// Sharer is a Driver whose devices share connections: those with the same bus are used by one goroutine, one after
// the other. Without it every device has a goroutine of its own.
type Sharer interface {
	Bus(d Device) string
}

// Reader is a Session that can read one property.
type Reader interface {
	Read(ctx context.Context, property string) (string, error)
}

// BatchReader is a Session that reads several properties at less cost than one by one. It is preferred to Reader. A
// property that is missing in the answer was not read, which is no error.
type BatchReader interface {
	ReadBatch(ctx context.Context, properties []string) (map[string]Reading, error)
}

// Reading is what reading one property gave: its value, or why there is none.
type Reading struct {
	Value string
	Err   error
}

// Writer is a Session that can set properties. A *Refusal is final for this value unless its code is Unavailable;
// after any other error the write is tried again, with the value wanted then, and compared first where the property can be read.
type Writer interface {
	Write(ctx context.Context, property, value string) error
}

// Rounder is a Session whose device can't have every value of its properties' types. Nearest is the value that it has once value
// was written: a device that has it is as it should be. It is computed, without asking the device.
type Rounder interface {
	Nearest(property, value string) (string, error)
}

// Pusher is a Session whose device tells of changes by itself. Push runs until ctx ends or the device is lost, and
// calls emit, which never blocks, with every change.
type Pusher interface {
	Push(ctx context.Context, emit func(property, value string)) error
}

// Pinger is a Session that can find out whether the device is there: with one short request, whose error is the
// device's. It is asked when the device was opened, and when another device of its bus has failed. While others of the bus are
// online ctx ends after Options.ProbeTimeout, so that a device that doesn't answer holds them up for no longer; a driver
// whose devices share connections should implement it.
type Pinger interface {
	Ping(ctx context.Context) error
}

// Commander is a Session that takes commands: requests that are answered, and never stored. Each comes at most once, and
// only while whoever asks still waits. A *Refusal says that nothing was done; after any other error it may have been.
type Commander interface {
	Command(ctx context.Context, name string, payload []byte) ([]byte, error)
}

// Device is a device as its driver needs to know it.
type Device struct {
	Node, Name string
	// Bus is spec.protocol.name: which of several configurations of the protocol.
	Bus        string
	Config     map[string]string // spec.protocol.config
	Properties []Property
}

// Property finds a property by name.
func (d Device) Property(name string) (Property, bool) {
	for _, p := range d.Properties {
		if p.Name == name {
			return p, true
		}
	}
	return Property{}, false
}

// Property is one property of a device, with how this protocol reaches it.
type Property struct {
	Name     string
	Type     Type
	Writable bool
	Unit     string
	Minimum  *float64
	Maximum  *float64
	Enum     []string
	Config   map[string]string // the visitor's
	Visited  bool              // the model has a visitor of this protocol for it
	Collect  time.Duration     // how often to read it
	Report   time.Duration     // how often to report it unchanged; 0 never
	Deadband float64
}

// Type is the data type of a property's values, which travel as text: 21.5, true, base64 for bytes, JSON for objects
// and arrays.
type Type string

// The data types.
const (
	Int     Type = "int"
	Float   Type = "float"
	Double  Type = "double"
	Boolean Type = "boolean"
	String  Type = "string"
	Bytes   Type = "bytes"
	Object  Type = "object"
	Array   Type = "array"
)

// Numeric says whether values of the type are numbers.
func (t Type) Numeric() bool { return t == Int || t == Float || t == Double }

// Refusal is a device's or driver's no to one value or property. Code is one word, for programs. It is final unless the
// code is Unavailable.
type Refusal struct{ Code, Message string }

func (r *Refusal) Error() string { return r.Code + ": " + r.Message }

// The codes of refusals.
const (
	OutOfRange   = "OutOfRange"   // the value is not one that the property can have
	ReadOnly     = "ReadOnly"     // the property can't be written
	Invalid      = "Invalid"      // the value is not of the property's type
	Rejected     = "Rejected"     // the device said no
	NotReachable = "NotReachable" // the configuration doesn't say how to reach the property
	Expired      = "Expired"      // the value's validUntil had passed before it could be applied
	Held         = "Held"         // atBoot: hold: an old value waits for a new one
	SafeValue    = "SafeValue"    // atBoot: safe: the safe value was applied instead
	Unavailable  = "Unavailable"  // the device can't at the moment: it is tried again, the only one of these that is
)

// Refuse makes a Refusal.
func Refuse(code, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Message: fmt.Sprintf(format, args...)}
}

func refusal(err error) (*Refusal, bool) {
	var r *Refusal
	ok := errors.As(err, &r)
	return r, ok
}

// ConfigError is a mistake in a Device's or model's configuration: the field's path, and what is wrong there.
type ConfigError struct{ Field, Message string }

func (e *ConfigError) Error() string { return e.Field + ": " + e.Message }

// BadConfig makes a ConfigError.
func BadConfig(field, format string, args ...any) *ConfigError {
	return &ConfigError{Field: field, Message: fmt.Sprintf(format, args...)}
}

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
