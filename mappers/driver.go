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

// Driver opens devices of one protocol. It is the only interface that a driver must implement, with Session. The others
// below are optional capabilities of the driver or its sessions.
type Driver interface {
	// Protocols are the names that Devices and models use for the protocol, the usual one first. Case and the
	// characters '-', '_' and ' ' don't matter.
	Protocols() []string
	// Open connects to a device. After a *ConfigError, which says that the configuration can't work, it is called again
	// when the configuration has changed. After any other error it is called again with increasing delay. While it runs,
	// other devices of the same bus wait: it should not wait for the device to answer (see Pinger).
	Open(ctx context.Context, d Device) (Session, error)
}

// Session is an open device. One goroutine calls its methods, except Push. Every method must return soon after ctx ends. It
// is called only with properties of the device and with values that these can have: see Opened.
//
// A *Refusal is an error of one property; the device stays online. After any other error the session is closed, and the
// device is offline until Open succeeds again.
type Session interface {
	// Close releases the device. It is called once, and is the last call.
	Close() error
}

// Sharer is a Driver whose devices share connections. Devices with the same bus are used by one goroutine, one after the
// other. Without it each device has its own goroutine.
type Sharer interface {
	Bus(d Device) string
}

// Reader is a Session that can read one property.
type Reader interface {
	Read(ctx context.Context, property string) (string, error)
}

// BatchReader is a Session that reads several properties in one call. It is used instead of Reader where both exist. A
// property that is missing in the result was not read; that is not an error.
type BatchReader interface {
	ReadBatch(ctx context.Context, properties []string) (map[string]Reading, error)
}

// Reading is the result for one property: its value or an error.
type Reading struct {
	Value string
	Err   error
	// Raw is what the device itself says, where Value was computed from it: texts of which each means the same, such as -1 and 65535.
	// A visitor's notAvailable is compared with it. Empty: Value.
	Raw []string
}

// Writer is a Session that can set properties. A *Refusal is final for this value unless its code is Unavailable. After any
// other error the device is opened again and gets the value that is desired then; if the property can be read, it is
// compared first.
type Writer interface {
	Write(ctx context.Context, property, value string) error
}

// Rounder is a Session whose device can't represent every value of its properties' types. Nearest returns the value that a
// property has after value was written; the property is then in sync. Nearest computes it and doesn't ask the device.
type Rounder interface {
	Nearest(property, value string) (string, error)
}

// Pusher is a Session whose device sends changes by itself. Push runs until ctx ends or the connection is lost, and calls
// emit, which never blocks, with each change.
type Pusher interface {
	Push(ctx context.Context, emit func(property, value string)) error
}

// Pinger is a Session that can find out with one short request whether the device answers. Ping is called after Open, and
// when another device of the bus has failed. While other devices of the bus are online, ctx ends after
// Options.ProbeTimeout, so that a device that doesn't answer delays them by at most that. A driver whose devices share
// connections should implement it.
type Pinger interface {
	Ping(ctx context.Context) error
}

// Commander is a Session that executes commands: requests with an answer that are never stored. Each is called at most once,
// and only before its deadline. A *Refusal says that nothing was done; after any other error the command may have been
// executed.
type Commander interface {
	Command(ctx context.Context, name string, payload []byte) ([]byte, error)
}

// Device is the driver's view of a device.
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

// Property is one property of a device, with how this protocol reaches it. One whose visitor has Words is a String for a driver, without
// limits: it reads and writes what the device says, and the SDK translates it.
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

	NotAvailable []string // what the device says when it has no value
	Words        []Word   // the values, and what the device says for them; empty: the same
}

// Word is a value of a property, and what the device says and takes for it.
type Word struct {
	Value string
	Read  []string
	Write string
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

// Numeric reports whether values of the type are numbers.
func (t Type) Numeric() bool { return t == Int || t == Float || t == Double }

// Refusal is the error of a device or driver that refuses a value, or can't read a property. Code is one word, for programs. It is
// final unless the code is Unavailable.
type Refusal struct{ Code, Message string }

func (r *Refusal) Error() string { return r.Code + ": " + r.Message }

// The codes of refusals.
const (
	OutOfRange   = "OutOfRange"   // the value is not one that the property can have
	ReadOnly     = "ReadOnly"     // the property can't be written
	Invalid      = "Invalid"      // the value is not of the property's type
	Rejected     = "Rejected"     // the device refused it
	NotReachable = "NotReachable" // the configuration doesn't say how to reach the property
	Expired      = "Expired"      // the value's validUntil had passed before it could be applied
	Held         = "Held"         // atBoot: hold: an old value is not applied; a newer one will be
	SafeValue    = "SafeValue"    // atBoot: safe: the safe value was applied instead
	Unknown      = "Unknown"      // of a read: the device says that it has no value, or says none that can be understood
	Unavailable  = "Unavailable"  // the device can't take it at the moment: the only code with which the write is tried again
)

// Refuse makes a Refusal.
func Refuse(code, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Message: fmt.Sprintf(format, args...)}
}

func asRefusal(err error) (*Refusal, bool) {
	var r *Refusal
	ok := errors.As(err, &r)
	return r, ok
}

// ConfigError is an error in a Device's or model's configuration: the path of the field, and what is wrong with it.
type ConfigError struct{ Field, Message string }

func (e *ConfigError) Error() string { return e.Field + ": " + e.Message }

// BadConfig makes a ConfigError.
func BadConfig(field, format string, args ...any) *ConfigError {
	return &ConfigError{Field: field, Message: fmt.Sprintf(format, args...)}
}

// Opened is a driver's Session with the checks that are the same for every driver. The Session is never called for a
// property that the device doesn't have, for a write to a read-only property, with a value that the property can't have,
// or after Close.
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
	s, err := driver.Open(ctx, d.untranslated())
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

// CanRead reports whether the session is a Reader or a BatchReader.
func (o *Opened) CanRead() bool {
	_, one := o.Session.(Reader)
	_, many := o.Session.(BatchReader)
	return one || many
}

// CanWrite reports whether the driver can write.
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

// Read reads properties, with ReadBatch if the session has it. Each call of the driver is made through within, which limits
// its time.
func (o *Opened) Read(ctx context.Context, names []string, within func(context.Context, func(context.Context) error) error) (map[string]Reading, error) {
	got := make(map[string]Reading, len(names))
	var known []string
	for _, name := range names {
		_, err := o.property(name)
		if _, refused := asRefusal(err); refused {
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
				p, _ := o.device.Property(name)
				got[name] = p.translate(r)
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
		if _, refused := asRefusal(err); err != nil && !refused {
			return nil, err
		}
		p, _ := o.device.Property(name)
		got[name] = p.translate(Reading{Value: value, Err: err})
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
	if value, err = p.written(value); err != nil {
		return err
	}
	return w.Write(ctx, name, value)
}

// Check says what is wrong with a value for the property: its type, its range or its enumeration; nil: nothing.
func (p Property) Check(value string) *Refusal { return checkValue(p.spec(), value) }

// Same reports whether two texts are the same value of the property: 21.50 and 21.5 are. Of a property with words they are texts of the
// device.
func (p Property) Same(a, b string) bool {
	if len(p.Words) > 0 {
		x, y := p.word(a), p.word(b)
		return x != nil && x == y
	}
	spec := p.spec()
	return spec.Canonical([]byte(a)) == spec.Canonical([]byte(b))
}

func (p Property) spec() resource.Property {
	spec := resource.Property{Name: p.Name, Type: resource.DataType(p.Type), Unit: p.Unit, Minimum: p.Minimum, Maximum: p.Maximum}
	for _, e := range p.Enum {
		spec.Enum = append(spec.Enum, resource.Value(e))
	}
	return spec
}

// checkValue returns why the model doesn't allow a desired value; nil: it does. The core checks this too, but the model may have
// changed since.
func checkValue(spec resource.Property, value string) *Refusal {
	err := spec.Check([]byte(value))
	if err == nil {
		return nil
	}
	code := Invalid
	if withoutLimits(spec).Check([]byte(value)) == nil { // the type is right, so the range or enumeration is not
		code = OutOfRange
	}
	return Refuse(code, "%s", strings.TrimSpace(err.Error()))
}

// withoutLimits is a property without its limits for desired values: a value read from the device may be beyond them.
func withoutLimits(spec resource.Property) resource.Property {
	spec.Minimum, spec.Maximum, spec.Enum = nil, nil, nil
	return spec
}
