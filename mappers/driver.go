// SPDX-License-Identifier: Apache-2.0

package mappers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
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
// A *Refusal is the device's answer about one property. Busy, NotTheDevice, NotSent and SaysOffline tell other errors apart. Any other
// error means that the device has not answered this request: the session stays open, the request is made once more on a fresh
// connection (see Reconnector), and the device is offline when nothing has answered for Device.OfflineAfter.
type Session interface {
	// Close releases the device. It is called once, and is the last call.
	Close() error
}

// Sharer is a Driver whose devices share connections. Devices with the same bus are used by one goroutine, one after the
// other. Without it each device has its own goroutine.
type Sharer interface {
	Bus(d Device) string
}

// Describer is a Driver that says which settings its protocol has, for forms and `edgebus device settings`: a table, from which the
// driver's own checks follow as far as they can.
type Describer interface {
	Settings() ProtocolSettings
}

// DeviceFormer is a Driver that needs Devices as they were written, such as texts apart from numbers. What it makes of one with its model becomes
// Device.Form, and a device with another form is configured anew.
type DeviceFormer interface {
	Form(b resource.Bundle) string
}

// ProtocolSettings are the settings of a protocol; Run adds its names.
type ProtocolSettings = resource.ProtocolSettings

// ProtocolSetting is one setting of a protocol.
type ProtocolSetting = resource.ProtocolSetting

// Reader is a Session that can read one property.
type Reader interface {
	Read(ctx context.Context, property string) (string, error)
}

// BatchReader is a Session that reads several properties in one call. It is used instead of Reader where both exist. A
// property that is missing in the result was not read; that is not an error.
//
// One call is one request to the device, with its own limit of time: a driver that needs several requests for properties says which belong
// together: see Grouper. An error is one of all properties of the call, and of no others.
type BatchReader interface {
	ReadBatch(ctx context.Context, properties []string) (map[string]Reading, error)
}

// Grouper is a BatchReader that reads properties in several requests. Group cuts properties into those of one request each: ReadBatch is
// called for one group at a time, and requests to other devices of the bus come in between. Without it all are one group. It is asked
// before every reading, so that what was learnt about the device counts at once, and doesn't ask the device.
type Grouper interface {
	Group(properties []string) [][]string
}

// Reconnector is a Session that can make its connection anew: the next request goes over a fresh one. It is called after a request that was
// not answered. Without it the session is closed and the device is opened again. Where devices share the connection, it stays if another
// device has answered over it since.
type Reconnector interface {
	Reconnect()
}

// Timeouter is a Session that knows how long a request to the device may take, where that is configured. Without it, or if it is 0, a request may
// take Options.CallTimeout.
type Timeouter interface {
	Timeout() time.Duration
}

// Reading is the result for one property: its value or an error.
type Reading struct {
	Value string
	Err   error
	// Raw is what the device itself says, where Value was computed from it: texts of which each means the same, such as -1 and 65535.
	// A visitor's notAvailable is compared with it. Empty: Value.
	Raw []string
	// At is when the device said it, where that is not now: the values of a device that sends them by itself don't grow younger by being read.
	At time.Time

	polled bool // the device was asked for it, and is asked again
}

// Writer is a Session that can set properties. A *Refusal is final for this value unless its code is Unavailable. After NotSent the value
// that is desired then is written when the device answers. After any other error the device may have the value: the property is read
// until it has, for as long as the visitor's confirmWithin, and the value is written again only after that. If the property can't
// be read, the value is refused as Lost. With ErrUnconfirmed the driver says the same of a request that went well.
type Writer interface {
	Write(ctx context.Context, property, value string) error
}

// Relinquisher is a Session whose device has values of its own below those that were written to it, such as the priorities of BACnet. When the
// desired value of a property is gone, and one had been written, Relinquish takes back what was: the device decides again. It may be called
// again for the same property, after an answer that was lost or a restart of the mapper; its errors mean what those of Write do. Without it a device keeps what
// was written last.
type Relinquisher interface {
	Relinquish(ctx context.Context, property string) error
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

// EventSource is a Session whose device tells events: what happens once, such as the press of a button. Events runs until ctx ends, and
// calls emit, which never blocks, with each of Device.Events that happens; equal ones are two. What the device had said before the session
// was opened, such as a retained message, is none.
type EventSource interface {
	Events(ctx context.Context, emit func(event, value string)) error
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
// executed. Of those that the model has, and this protocol has a visitor for, Device.Commands says how the device is reached; the payload
// is one that the model allows.
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
	// Events and Commands are those of the model that have a visitor of this protocol. The type and limits of a command are those of its
	// input; one without a type has none.
	Events, Commands []Property
	// OfflineAfter is how long nothing of the device has answered until it is offline: spec.protocol.config.offlineAfter, which the driver
	// doesn't get. 0: three of its cycles, and at least 5 s.
	OfflineAfter time.Duration
	// Form is what a DeviceFormer made of the Device and its model.
	Form string

	tell    func(code, message string)
	inForce func() map[string]string
}

// InForce are the desired values that were written to the device and are desired still, by property.
func (d Device) InForce() map[string]string {
	if d.inForce == nil {
		return nil
	}
	return d.inForce()
}

// Tell says what users should know of a device that works, such as a limit that the driver has found out, with the setting that makes it
// last: "reads at most 40 registers at once: set maxRegisters". code is one word, which says what it is about; what was told before of
// the same is replaced, and ended by an empty message. It is shown as long as the session is open. It never blocks.
func (d Device) Tell(code, message string) {
	if d.tell != nil {
		d.tell(code, message)
	}
}

// Property finds a property by name.
func (d Device) Property(name string) (Property, bool) {
	return namedProperty(d.Properties, name)
}

// Event finds an event by name.
func (d Device) Event(name string) (Property, bool) { return namedProperty(d.Events, name) }

// Command finds a command by name.
func (d Device) Command(name string) (Property, bool) { return namedProperty(d.Commands, name) }

func namedProperty(list []Property, name string) (Property, bool) {
	for _, p := range list {
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

	ConfirmWithin time.Duration // how long the device may take to have a value that was written; 0: Options.ConfirmWithin
	ExpireAfter   time.Duration // how long a value counts that is not refreshed; 0: for ever

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
	Lost         = "Lost"         // nobody knows whether the device got it, and it can't be read back: it is not repeated
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

// errorKind tells errors apart that are no Refusal.
type errorKind uint8

const (
	kindNoAnswer errorKind = iota // nothing was said about it
	kindBusy
	kindStranger
	kindNotSent
	kindOffline
)

type kindError struct {
	error
	kind errorKind
}

func (e *kindError) Unwrap() error { return e.error }

// Busy marks the answer of a device that can't serve the request at the moment: it is a sign of life, and the request is made again in the
// same cycle.
func Busy(err error) error { return &kindError{err, kindBusy} }

// NotTheDevice marks the answer of somebody else in the device's place, such as a gateway that doesn't reach it: no sign of life.
func NotTheDevice(err error) error { return &kindError{err, kindStranger} }

// NotSent marks the error of a request that can't have reached the device, because there was no connection to send it on.
func NotSent(err error) error { return &kindError{err, kindNotSent} }

// IsNotSent reports whether err is of a request that can't have reached the device.
func IsNotSent(err error) bool { return kindOf(err) == kindNotSent }

// SaysOffline marks that the device, or who speaks for it, says that it is offline: it is offline at once.
func SaysOffline(err error) error { return &kindError{err, kindOffline} }

// ErrUnconfirmed is the error of a Write that went well and that the device has not confirmed: the property shows whether it has the value.
var ErrUnconfirmed = errors.New("the device has not confirmed the value")

// kindOf is the kind of an error. One of a connection that can't be made is of a request that wasn't sent.
func kindOf(err error) errorKind {
	var k *kindError
	if errors.As(err, &k) {
		return k.kind
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
		return kindNotSent
	}
	return kindNoAnswer
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

// Groups cuts properties into those that are read in one request each.
func (o *Opened) Groups(names []string) (groups [][]string) {
	g, several := o.Session.(Grouper)
	_, batch := o.Session.(BatchReader)
	switch {
	case len(names) == 0 || o.closed.Load():
		return nil
	case !batch:
		return slices.Collect(slices.Chunk(names, 1))
	case !several:
		return [][]string{names}
	}
	left := slices.Clone(names)
	for _, group := range g.Group(left) {
		group = slices.DeleteFunc(slices.Clone(group), func(name string) bool { return !slices.Contains(names, name) })
		if len(group) > 0 {
			groups = append(groups, group)
		}
		left = slices.DeleteFunc(left, func(name string) bool { return slices.Contains(group, name) })
	}
	if len(left) > 0 { // what a driver doesn't know how to reach is its answer about it
		groups = append(groups, left)
	}
	return groups
}

// Read reads the properties of one group. The error is one of all of them.
func (o *Opened) Read(ctx context.Context, names []string) (map[string]Reading, error) {
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
	if len(known) == 0 {
		return got, nil
	}
	read := map[string]Reading{}
	var err error
	if b, ok := o.Session.(BatchReader); ok {
		read, err = b.ReadBatch(ctx, known)
	} else {
		var r Reading
		r.Value, err = o.Session.(Reader).Read(ctx, known[0])
		if _, refused := asRefusal(err); refused {
			r.Err, err = err, nil
		}
		read[known[0]] = r
	}
	if err != nil {
		return nil, err
	}
	for name, r := range read {
		if p, ok := o.device.Property(name); ok {
			got[name] = p.translate(r)
		}
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

// Relinquish takes back what was written to a property.
func (o *Opened) Relinquish(ctx context.Context, name string) error {
	p, err := o.property(name)
	if err != nil {
		return err
	}
	r, ok := o.Session.(Relinquisher)
	if !ok || !p.Writable {
		return Refuse(ReadOnly, "%s can't be written", name)
	}
	return r.Relinquish(ctx, name)
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
