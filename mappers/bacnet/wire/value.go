// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Values are Go's: nil (Null), bool, uint64 (Unsigned), int64 (Signed), float32 (Real), float64 (Double), []byte (OCTET STRING), string,
// BitString, Enumerated, Date, Time, ObjectID, and Constructed for what has an inner structure.
type (
	// BitString are bits, the first one first.
	BitString []bool
	// Enumerated is the number of an enumeration's value.
	Enumerated uint32
	// Date is year less 1900, month, day, day of the week; 255 is any.
	Date [4]byte
	// Time is hour, minute, second, hundredths; 255 is any.
	Time [4]byte
	// Constructed stands for a value with an inner structure, which this package doesn't read.
	Constructed struct{}
)

// The numbers of application tags (20.2.1.4 of the standard).
const (
	tagNull = iota
	tagBoolean
	tagUnsigned
	tagSigned
	tagReal
	tagDouble
	tagOctets
	tagText
	tagBits
	tagEnumerated
	tagDate
	tagTime
	tagObject
)

var errShort = errors.New("the message ends within a value")

// tagHeader is what a value begins with.
type tagHeader struct {
	number        byte
	context       bool
	open, close   bool
	length        int // of the content; of an application Boolean its value
	isApplication bool
}

// reader reads tags and contents one after the other. The first error stays.
type reader struct {
	data []byte
	err  error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.data = nil
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.data) {
		r.fail(errShort)
		return nil
	}
	b := r.data[:n]
	r.data = r.data[n:]
	return b
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

// header reads the next tag.
func (r *reader) header() (h tagHeader) {
	first := r.byte()
	h.number, h.context = first>>4, first&8 != 0
	h.isApplication = !h.context
	if h.number == 15 {
		h.number = r.byte()
	}
	switch low := first & 7; {
	case low == 6 && h.context:
		h.open = true
	case low == 7 && h.context:
		h.close = true
	case low < 5:
		h.length = int(low)
	case low == 5:
		h.length = r.longLength()
	default:
		r.fail(errors.New("a tag's length is neither a number nor an opening or closing"))
	}
	return h
}

func (r *reader) longLength() int {
	switch n := r.byte(); n {
	case 254:
		if b := r.take(2); b != nil {
			return int(binary.BigEndian.Uint16(b))
		}
	case 255:
		if b := r.take(4); b != nil {
			if v := binary.BigEndian.Uint32(b); v <= math.MaxInt32 {
				return int(v)
			}
			r.fail(errShort)
		}
	default:
		return int(n)
	}
	return 0
}

// peek is the next tag, unread; false at the end.
func (r *reader) peek() (tagHeader, bool) {
	if len(r.data) == 0 || r.err != nil {
		return tagHeader{}, false
	}
	c := reader{data: r.data}
	h := c.header()
	return h, c.err == nil
}

// isContext reports whether the next is the context tag number, neither opening nor closing.
func (r *reader) isContext(number byte) bool {
	h, ok := r.peek()
	return ok && h.context && !h.open && !h.close && h.number == number
}

func (r *reader) isOpen(number byte) bool {
	h, ok := r.peek()
	return ok && h.open && h.number == number
}

func (r *reader) isClose(number byte) bool {
	h, ok := r.peek()
	return ok && h.close && h.number == number
}

// open reads the opening tag number, closing the closing one.
func (r *reader) open(number byte) {
	if h := r.header(); !h.open || h.number != number {
		r.fail(fmt.Errorf("opening tag %d is missing", number))
	}
}

func (r *reader) closing(number byte) {
	if h := r.header(); !h.close || h.number != number {
		r.fail(fmt.Errorf("closing tag %d is missing", number))
	}
}

// contextUnsigned reads an unsigned number or an enumeration with context tag number.
func (r *reader) contextUnsigned(number byte) uint64 {
	h := r.header()
	if !h.context || h.open || h.close || h.number != number {
		r.fail(fmt.Errorf("context tag %d is missing", number))
	}
	v, err := decodeUnsigned(r.take(h.length))
	if err != nil {
		r.fail(err)
	}
	return v
}

func (r *reader) contextObject(number byte) ObjectID { return ObjectID(r.contextUnsigned(number)) }

// value reads one application value, or skips one with an inner structure.
func (r *reader) value() any {
	h := r.header()
	switch {
	case r.err != nil:
		return nil
	case h.close:
		r.fail(errors.New("a closing tag stands where a value belongs"))
		return nil
	case h.open:
		r.skip(h.number)
		return Constructed{}
	case h.context:
		r.take(h.length)
		return Constructed{}
	}
	v, err := decodeApplication(h, r)
	if err != nil {
		r.fail(err)
	}
	return v
}

// skip reads over everything up to the closing tag.
func (r *reader) skip(number byte) {
	open := []byte{number}
	for len(open) > 0 && r.err == nil {
		h := r.header()
		switch {
		case h.open && len(open) < 32:
			open = append(open, h.number)
		case h.open:
			r.fail(errors.New("values are nested more than 32 times"))
		case h.close && h.number == open[len(open)-1]:
			open = open[:len(open)-1]
		case h.close:
			r.fail(errors.New("a closing tag is not that of what was opened"))
		case h.isApplication && h.number == tagBoolean: // its value is in the tag
		default:
			r.take(h.length)
		}
	}
}

func decodeApplication(h tagHeader, r *reader) (any, error) {
	if h.number == tagBoolean {
		if h.length > 1 {
			return nil, errors.New("a Boolean is neither 0 nor 1")
		}
		return h.length == 1, nil
	}
	b := r.take(h.length)
	if r.err != nil {
		return nil, r.err
	}
	fixed := map[byte]int{tagNull: 0, tagReal: 4, tagDouble: 8, tagDate: 4, tagTime: 4, tagObject: 4}
	if n, ok := fixed[h.number]; ok && len(b) != n {
		return nil, fmt.Errorf("a value of type %d has %d bytes and not %d", h.number, len(b), n)
	}
	switch h.number {
	case tagNull:
		return nil, nil
	case tagUnsigned:
		return decodeUnsigned(b)
	case tagSigned:
		return decodeSigned(b)
	case tagReal:
		return math.Float32frombits(binary.BigEndian.Uint32(b)), nil
	case tagDouble:
		return math.Float64frombits(binary.BigEndian.Uint64(b)), nil
	case tagOctets:
		return append([]byte{}, b...), nil
	case tagText:
		return decodeText(b)
	case tagBits:
		return decodeBits(b)
	case tagEnumerated:
		v, err := decodeUnsigned(b)
		return Enumerated(v), err
	case tagDate:
		return Date(b), nil
	case tagTime:
		return Time(b), nil
	case tagObject:
		return ObjectID(binary.BigEndian.Uint32(b)), nil
	}
	return nil, fmt.Errorf("application tag %d is not one of the standard's", h.number)
}

func decodeUnsigned(b []byte) (v uint64, err error) {
	if len(b) == 0 || len(b) > 8 {
		return 0, fmt.Errorf("a number has %d bytes, not 1 to 8", len(b))
	}
	for _, x := range b {
		v = v<<8 | uint64(x)
	}
	return v, nil
}

func decodeSigned(b []byte) (int64, error) {
	v, err := decodeUnsigned(b)
	shift := 64 - 8*len(b)
	if err != nil {
		return 0, err
	}
	return int64(v<<shift) >> shift, nil
}

// decodeText reads a character string: UTF-8, UCS-2 or ISO 8859-1.
func decodeText(b []byte) (string, error) {
	if len(b) == 0 {
		return "", errors.New("a text has no character set")
	}
	set, b := b[0], b[1:]
	switch {
	case set == 0 && utf8.Valid(b):
		return string(b), nil
	case set == 4 && len(b)%2 == 0:
		units := make([]uint16, len(b)/2)
		for i := range units {
			units[i] = binary.BigEndian.Uint16(b[2*i:])
		}
		return string(utf16.Decode(units)), nil
	case set == 5 || set == 0: // older devices say 0 for what they write in ISO 8859-1
		runes := make([]rune, len(b))
		for i, c := range b {
			runes[i] = rune(c)
		}
		return string(runes), nil
	}
	return "", fmt.Errorf("character set %d is not UTF-8, UCS-2 or ISO 8859-1", set)
}

func decodeBits(b []byte) (BitString, error) {
	if len(b) == 0 || b[0] > 7 || int(b[0]) > 8*(len(b)-1) {
		return nil, errors.New("a bit string's count of unused bits is wrong")
	}
	list := make(BitString, 8*(len(b)-1)-int(b[0]))
	for i := range list {
		list[i] = b[1+i/8]>>(7-i%8)&1 == 1
	}
	return list, nil
}

// String is the bits as 0 and 1.
func (s BitString) String() string {
	var b strings.Builder
	for _, set := range s {
		b.WriteString(strconv.Itoa(map[bool]int{true: 1}[set]))
	}
	return b.String()
}

// appendTag appends a tag; class 0 is application, 8 context.
func appendTag(b []byte, number, class byte, length int) []byte {
	first := number<<4 | class
	if number > 14 {
		first = 0xF0 | class
	}
	if length < 5 {
		b = append(b, first|byte(length))
	} else {
		b = append(b, first|5)
	}
	if number > 14 {
		b = append(b, number)
	}
	switch {
	case length < 5:
	case length < 254:
		b = append(b, byte(length))
	default:
		b = binary.BigEndian.AppendUint16(append(b, 254), uint16(length))
	}
	return b
}

func appendOpen(b []byte, number byte) []byte  { return append(b, number<<4|8|6) }
func appendClose(b []byte, number byte) []byte { return append(b, number<<4|8|7) }

func unsignedBytes(v uint64) []byte {
	b := binary.BigEndian.AppendUint64(nil, v)
	for len(b) > 1 && b[0] == 0 {
		b = b[1:]
	}
	return b
}

func signedBytes(v int64) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(v))
	for len(b) > 1 && (b[0] == 0 && b[1] < 0x80 || b[0] == 0xFF && b[1] >= 0x80) {
		b = b[1:]
	}
	return b
}

func appendContextUnsigned(b []byte, number byte, v uint64) []byte {
	content := unsignedBytes(v)
	return append(appendTag(b, number, 8, len(content)), content...)
}

func appendContextObject(b []byte, number byte, id ObjectID) []byte {
	return binary.BigEndian.AppendUint32(appendTag(b, number, 8, 4), uint32(id))
}

// appendValue appends an application value.
func appendValue(b []byte, v any) ([]byte, error) {
	with := func(number byte, content []byte) ([]byte, error) {
		if len(content) > math.MaxUint16 {
			return b, fmt.Errorf("a value of %d bytes is too long", len(content))
		}
		return append(appendTag(b, number, 0, len(content)), content...), nil
	}
	switch v := v.(type) {
	case nil:
		return with(tagNull, nil)
	case bool:
		n := 0
		if v {
			n = 1
		}
		return appendTag(b, tagBoolean, 0, n), nil
	case uint64:
		return with(tagUnsigned, unsignedBytes(v))
	case int64:
		return with(tagSigned, signedBytes(v))
	case float32:
		return with(tagReal, binary.BigEndian.AppendUint32(nil, math.Float32bits(v)))
	case float64:
		return with(tagDouble, binary.BigEndian.AppendUint64(nil, math.Float64bits(v)))
	case []byte:
		return with(tagOctets, v)
	case string:
		return with(tagText, append([]byte{0}, v...))
	case BitString:
		content := make([]byte, 1+(len(v)+7)/8)
		content[0] = byte((8 - len(v)%8) % 8)
		for i, set := range v {
			if set {
				content[1+i/8] |= 1 << (7 - i%8)
			}
		}
		return with(tagBits, content)
	case Enumerated:
		return with(tagEnumerated, unsignedBytes(uint64(v)))
	case Date:
		return with(tagDate, v[:])
	case Time:
		return with(tagTime, v[:])
	case ObjectID:
		return with(tagObject, binary.BigEndian.AppendUint32(nil, uint32(v)))
	}
	return b, fmt.Errorf("%T can't be written", v)
}
