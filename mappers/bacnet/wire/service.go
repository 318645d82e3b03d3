// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
)

// The numbers of services (21 of the standard).
const (
	serviceConfirmedCOV = 1
	serviceSubscribeCOV = 5
	serviceRead         = 12
	serviceReadMultiple = 14
	serviceWrite        = 15
	unconfirmedIAm      = 0
	unconfirmedCOV      = 2
	unconfirmedWhoIs    = 8
	codeUnknownObject   = 31
	codeUnknownProperty = 32
	codeOther           = 0
	codeDeviceBusy      = 3
	classDevice         = 0
	classObject         = 1
	classProperty       = 2
	codeWriteDenied     = 40
	codeValueOutOfRange = 37
	codeInvalidDataType = 9
	rejectTooMany       = 7

	rejectUndefinedEnumeration = 8

	rejectUnrecognized   = 9
	abortTooLong         = 4 // segmentation isn't supported
	abortBufferOverflow  = 1
	abortTooLongForAPDU  = 11
	rejectBufferOverflow = 1
)

// Error is a device's refusal of a request, or of one property of it, by class and code of the standard.
type Error struct{ Class, Code uint32 }

func (e Error) Error() string {
	if text := errorCodes[e.Code]; text != "" {
		return text
	}
	return fmt.Sprintf("error %d of class %d", e.Code, e.Class)
}

var errorCodes = map[uint32]string{
	2: "configuration in progress", 3: "device busy", 9: "invalid data type", 25: "operational problem", 26: "password failure",
	27: "read access denied", 31: "unknown object", 32: "unknown property", 37: "value out of range", 40: "write access denied",
	42: "invalid array index", 43: "COV subscription failed", 45: "optional functionality not supported", 47: "datatype not supported",
	50: "property is no array", 84: "value not initialized",
}

// Busy reports whether the device may take the request in a moment.
func (e Error) Busy() bool { return e.Code == 2 || e.Code == 3 || e.Code == 25 }

// Reject is a device's answer that it didn't understand a request, by reason of the standard.
type Reject byte

// Abort is a device's answer that it couldn't end a request, by reason of the standard.
type Abort byte

func (r Reject) Error() string {
	if r == rejectUnrecognized {
		return "the device doesn't know the service"
	}
	return fmt.Sprintf("the device rejected the request (reason %d)", byte(r))
}

func (a Abort) Error() string {
	if a.TooLong() {
		return "the answer is too long for one message"
	}
	return fmt.Sprintf("the device aborted the request (reason %d)", byte(a))
}

// TooLong reports whether fewer properties in a request would help.
func (a Abort) TooLong() bool {
	return a == abortTooLong || a == abortBufferOverflow || a == abortTooLongForAPDU
}

// IsUnknownService reports whether a device says that it doesn't know the service at all.
func IsUnknownService(err error) bool {
	var r Reject
	return errors.As(err, &r) && r == rejectUnrecognized
}

// IsTooLong reports whether a device says that a request or its answer is too long for it.
func IsTooLong(err error) bool {
	var r Reject
	var a Abort
	return errors.As(err, &a) && a.TooLong() || errors.As(err, &r) && (r == rejectBufferOverflow || r == rejectTooMany)
}

// IsRejected reports whether a device answered that it didn't understand a request, or couldn't end it.
func IsRejected(err error) bool {
	var r Reject
	var a Abort
	return errors.As(err, &a) || errors.As(err, &r)
}

// NoIndex says that a property is meant as a whole, and not one element of an array.
const NoIndex = -1

// Reference is a property of an object, or with Index one element of it.
type Reference struct {
	Object   ObjectID
	Property PropertyID
	Index    int // NoIndex; 0 is an array's length
}

// Result is what a device answers for a Reference: values, or an Error.
type Result struct {
	Reference
	Values []any
	Err    error
}

func appendReference(b []byte, first byte, r Reference) []byte {
	b = appendContextUnsigned(b, first, uint64(r.Property))
	if r.Index >= 0 {
		b = appendContextUnsigned(b, first+1, uint64(r.Index))
	}
	return b
}

func (r *reader) reference(object ObjectID, first byte) Reference {
	ref := Reference{Object: object, Property: PropertyID(r.contextUnsigned(first)), Index: NoIndex}
	if r.isContext(first + 1) {
		ref.Index = int(r.contextUnsigned(first+1) & 0x7FFFFFFF)
	}
	return ref
}

// values reads what stands between the opening and closing tag number.
func (r *reader) values(number byte) (list []any) {
	r.open(number)
	for r.err == nil && !r.isClose(number) {
		list = append(list, r.value())
	}
	r.closing(number)
	return list
}

// errorOf reads an error's class and code.
func (r *reader) errorOf() Error {
	class, isClass := r.value().(Enumerated)
	code, isCode := r.value().(Enumerated)
	if !isClass || !isCode {
		r.fail(errors.New("an error has no class and code"))
	}
	return Error{uint32(class), uint32(code)}
}

func encodeReadMultiple(refs []Reference) (b []byte) {
	for i := 0; i < len(refs); {
		object := refs[i].Object
		b = appendOpen(appendContextObject(b, 0, object), 1)
		for ; i < len(refs) && refs[i].Object == object; i++ {
			b = appendReference(b, 0, refs[i])
		}
		b = appendClose(b, 1)
	}
	return b
}

func decodeReadMultiple(data []byte) (list []Reference, err error) {
	r := reader{data: data}
	for len(r.data) > 0 {
		object := r.contextObject(0)
		r.open(1)
		for r.err == nil && !r.isClose(1) {
			list = append(list, r.reference(object, 0))
		}
		r.closing(1)
	}
	return list, r.err
}

func encodeResults(list []Result) (b []byte, err error) {
	for i := 0; i < len(list); {
		object := list[i].Object
		b = appendOpen(appendContextObject(b, 0, object), 1)
		for ; i < len(list) && list[i].Object == object; i++ {
			b = appendReference(b, 2, list[i].Reference)
			var refused Error
			if errors.As(list[i].Err, &refused) {
				b = appendOpen(b, 5)
				b, _ = appendValue(b, Enumerated(refused.Class))
				b, _ = appendValue(b, Enumerated(refused.Code))
				b = appendClose(b, 5)
				continue
			}
			if b, err = appendValues(b, 4, list[i].Values); err != nil {
				return nil, err
			}
		}
		b = appendClose(b, 1)
	}
	return b, nil
}

func appendValues(b []byte, number byte, values []any) (_ []byte, err error) {
	b = appendOpen(b, number)
	for _, v := range values {
		if b, err = appendValue(b, v); err != nil {
			return nil, err
		}
	}
	return appendClose(b, number), nil
}

func decodeResults(data []byte) (list []Result, err error) {
	r := reader{data: data}
	for len(r.data) > 0 {
		object := r.contextObject(0)
		r.open(1)
		for r.err == nil && !r.isClose(1) {
			result := Result{Reference: r.reference(object, 2)}
			if r.isOpen(5) {
				r.open(5)
				result.Err = r.errorOf()
				r.closing(5)
			} else {
				result.Values = r.values(4)
			}
			list = append(list, result)
		}
		r.closing(1)
	}
	return list, r.err
}

func encodeRead(ref Reference) []byte {
	return appendReference(appendContextObject(nil, 0, ref.Object), 1, ref)
}

func decodeRead(data []byte) (Reference, error) {
	r := reader{data: data}
	ref := r.reference(r.contextObject(0), 1)
	return ref, r.err
}

func encodeResult(result Result) ([]byte, error) {
	return appendValues(encodeRead(result.Reference), 3, result.Values)
}

func decodeResult(data []byte) (Result, error) {
	r := reader{data: data}
	result := Result{Reference: r.reference(r.contextObject(0), 1)}
	result.Values = r.values(3)
	return result, r.err
}

// write is a request to set a property; a priority of 0 is none.
type write struct {
	Reference
	value    any
	priority byte
}

func encodeWrite(w write) ([]byte, error) {
	b, err := appendValues(encodeRead(w.Reference), 3, []any{w.value})
	if err == nil && w.priority > 0 {
		b = appendContextUnsigned(b, 4, uint64(w.priority))
	}
	return b, err
}

func decodeWrite(data []byte) (w write, err error) {
	r := reader{data: data}
	w.Reference = r.reference(r.contextObject(0), 1)
	values := r.values(3)
	if r.isContext(4) {
		w.priority = byte(r.contextUnsigned(4))
	}
	switch {
	case r.err != nil:
		return w, r.err
	case len(values) != 1:
		return w, fmt.Errorf("%d values are written, and not one", len(values))
	}
	w.value = values[0]
	return w, nil
}

// subscription asks for notifications of an object for so many seconds.
type subscription struct {
	process   uint32
	object    ObjectID
	confirmed bool
	lifetime  uint32
}

func encodeSubscribe(s subscription) []byte {
	b := appendContextObject(appendContextUnsigned(nil, 0, uint64(s.process)), 1, s.object)
	confirmed := byte(0)
	if s.confirmed {
		confirmed = 1
	}
	return appendContextUnsigned(append(appendTag(b, 2, 8, 1), confirmed), 3, uint64(s.lifetime))
}

func decodeSubscribe(data []byte) (s subscription, cancel bool, err error) {
	r := reader{data: data}
	s.process, s.object = uint32(r.contextUnsigned(0)), r.contextObject(1)
	cancel = !r.isContext(2)
	if !cancel {
		s.confirmed = r.contextUnsigned(2) == 1
		if r.isContext(3) {
			s.lifetime = uint32(r.contextUnsigned(3))
		}
	}
	return s, cancel, r.err
}

// Notification is what a device tells of an object that was subscribed to.
type Notification struct {
	Process  uint32
	Device   ObjectID
	Object   ObjectID
	TimeLeft uint32 // seconds that the subscription has left
	Values   []Result
}

func encodeNotification(n Notification) (b []byte, err error) {
	b = appendContextObject(appendContextUnsigned(nil, 0, uint64(n.Process)), 1, n.Device)
	b = appendContextUnsigned(appendContextObject(b, 2, n.Object), 3, uint64(n.TimeLeft))
	b = appendOpen(b, 4)
	for _, v := range n.Values {
		b = appendReference(b, 0, v.Reference)
		if b, err = appendValues(b, 2, v.Values); err != nil {
			return nil, err
		}
	}
	return appendClose(b, 4), nil
}

func decodeNotification(data []byte) (n Notification, err error) {
	r := reader{data: data}
	n.Process = uint32(r.contextUnsigned(0))
	n.Device, n.Object = r.contextObject(1), r.contextObject(2)
	n.TimeLeft = uint32(r.contextUnsigned(3))
	r.open(4)
	for r.err == nil && !r.isClose(4) {
		v := Result{Reference: r.reference(n.Object, 0)}
		v.Values = r.values(2)
		if r.isContext(3) {
			r.contextUnsigned(3) // the priority of what changed it
		}
		n.Values = append(n.Values, v)
	}
	r.closing(4)
	return n, r.err
}

// IAm is a device's answer to Who-Is, or what it says when it starts.
type IAm struct {
	Address Address
	Device  ObjectID
	MaxAPDU int
	Vendor  int
}

func encodeWhoIs(low, high uint32) []byte {
	if low == 0 && high >= MaxInstance {
		return nil
	}
	return appendContextUnsigned(appendContextUnsigned(nil, 0, uint64(low)), 1, uint64(high))
}

func decodeWhoIs(data []byte) (low, high uint32, err error) {
	r := reader{data: data}
	if len(data) == 0 {
		return 0, MaxInstance, nil
	}
	low, high = uint32(r.contextUnsigned(0)), uint32(r.contextUnsigned(1))
	return low, high, r.err
}

func encodeIAm(i IAm) (b []byte) {
	for _, v := range []any{i.Device, uint64(i.MaxAPDU), Enumerated(3), uint64(i.Vendor)} {
		b, _ = appendValue(b, v)
	}
	return b
}

func decodeIAm(data []byte) (i IAm, err error) {
	r := reader{data: data}
	device, isObject := r.value().(ObjectID)
	length, isNumber := r.value().(uint64)
	_, isEnumerated := r.value().(Enumerated)
	vendor, isVendor := r.value().(uint64)
	if r.err == nil && !(isObject && isNumber && isEnumerated && isVendor && device.Type() == Device && vendor <= 0xFFFF && length <= 0xFFFF) {
		r.err = errors.New("an I-Am doesn't say device, length, segmentation and vendor")
	}
	i.Device, i.MaxAPDU, i.Vendor = device, int(min(length, 0xFFFF)), int(min(vendor, 0xFFFF))
	return i, r.err
}
