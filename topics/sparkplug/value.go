// SPDX-License-Identifier: Apache-2.0

package sparkplug

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"
	"unicode/utf8"
)

// DataType is the type of a metric, by its number in Sparkplug B.
type DataType uint32

// The types whose values are texts here.
const (
	TypeUnspecified DataType = iota
	TypeInt8
	TypeInt16
	TypeInt32
	TypeInt64
	TypeUInt8
	TypeUInt16
	TypeUInt32
	TypeUInt64
	TypeFloat
	TypeDouble
	TypeBoolean
	TypeString
	TypeDateTime
	TypeText
	TypeUUID
	TypeDataSet
	TypeBytes
	TypeFile
	TypeTemplate
)

const (
	typeInt8Array     DataType = 22
	typeUInt64Array   DataType = 29
	typeFloatArray    DataType = 30
	typeDoubleArray   DataType = 31
	typeBooleanArray  DataType = 32
	typeStringArray   DataType = 33
	typeDateTimeArray DataType = 34
)

// The members of a metric that have its value.
const (
	fieldInt      = 10
	fieldLong     = 11
	fieldFloat    = 12
	fieldDouble   = 13
	fieldBoolean  = 14
	fieldString   = 15
	fieldBytes    = 16
	fieldDataSet  = 17
	fieldTemplate = 18
)

// signedBits are those of an integer that may be negative; 0: it is none.
func (t DataType) signedBits() int {
	if t >= TypeInt8 && t <= TypeInt64 {
		return 8 << (t - TypeInt8)
	}
	return 0
}

// unsignedBits are those of an integer that isn't negative; 0: it is none.
func (t DataType) unsignedBits() int {
	if t >= TypeUInt8 && t <= TypeUInt64 {
		return 8 << (t - TypeUInt8)
	}
	return 0
}

// Text is the metric's value as text: a number, true or false, RFC 3339 for a time, base64 for bytes, JSON for an array. Its own type goes
// before that of its birth.
func (m Metric) Text(born DataType) (string, error) {
	t := m.Type
	if t == TypeUnspecified {
		t = born
	}
	switch m.field {
	case fieldInt, fieldLong:
		return integerText(t, m.number), nil
	case fieldFloat:
		return strconv.FormatFloat(float64(math.Float32frombits(uint32(m.number))), 'g', -1, 32), nil
	case fieldDouble:
		return strconv.FormatFloat(math.Float64frombits(m.number), 'g', -1, 64), nil
	case fieldBoolean:
		return strconv.FormatBool(m.number != 0), nil
	case fieldString:
		if !utf8.Valid(m.bytes) {
			return "", fmt.Errorf("a text that is not UTF-8")
		}
		return string(m.bytes), nil
	case fieldBytes:
		if t >= typeInt8Array && t <= typeDateTimeArray {
			return arrayText(t, m.bytes)
		}
		return base64.StdEncoding.EncodeToString(m.bytes), nil
	case fieldDataSet:
		return "", fmt.Errorf("a data set, which is no value of a property")
	case fieldTemplate:
		return "", fmt.Errorf("a template, which is no value of a property")
	}
	return "", fmt.Errorf("no value")
}

// integerText reads the bits of an integer. Negative ones of 8 to 32 bits are 32 bits wide, or what their writer made of that.
func integerText(t DataType, number uint64) string {
	switch {
	case t == TypeBoolean:
		return strconv.FormatBool(number != 0)
	case t == TypeDateTime:
		return time.UnixMilli(int64(number)).UTC().Format("2006-01-02T15:04:05.000Z07:00")
	case t.signedBits() == 64:
		return strconv.FormatInt(int64(number), 10)
	case t.signedBits() > 0:
		shift := 64 - t.signedBits()
		return strconv.FormatInt(int64(number<<shift)>>shift, 10)
	}
	return strconv.FormatUint(number, 10)
}

// arrayText reads an array, whose elements are packed, as JSON.
func arrayText(t DataType, b []byte) (string, error) {
	var list []any
	element := func(size int, value func(b []byte) any) error {
		if len(b)%size != 0 {
			return fmt.Errorf("an array whose %d bytes are no multiple of %d", len(b), size)
		}
		for ; len(b) > 0; b = b[size:] {
			list = append(list, value(b))
		}
		return nil
	}
	var err error
	switch {
	case t == typeBooleanArray:
		return booleansText(b)
	case t == typeStringArray:
		for _, text := range bytes.Split(bytes.TrimSuffix(b, []byte{0}), []byte{0}) {
			if len(b) > 0 {
				list = append(list, string(text))
			}
		}
	case t == typeFloatArray:
		err = element(4, func(b []byte) any {
			return jsonNumber(strconv.FormatFloat(float64(math.Float32frombits(binary.LittleEndian.Uint32(b))), 'g', -1, 32))
		})
	case t == typeDoubleArray:
		err = element(8, func(b []byte) any {
			return jsonNumber(strconv.FormatFloat(math.Float64frombits(binary.LittleEndian.Uint64(b)), 'g', -1, 64))
		})
	case t == typeDateTimeArray:
		err = element(8, func(b []byte) any { return integerText(TypeDateTime, binary.LittleEndian.Uint64(b)) })
	case t <= typeUInt64Array:
		of := t - typeInt8Array + TypeInt8
		size := max(of.signedBits(), of.unsignedBits()) / 8
		err = element(size, func(b []byte) any {
			var bits [8]byte
			copy(bits[:], b[:size])
			return json.Number(integerText(of, binary.LittleEndian.Uint64(bits[:])))
		})
	}
	if err != nil {
		return "", err
	}
	if list == nil {
		return "[]", nil
	}
	text, err := json.Marshal(list)
	return string(text), err
}

// jsonNumber is a number in JSON, or a text if JSON has none for it, such as NaN.
func jsonNumber(text string) any {
	if json.Valid([]byte(text)) {
		return json.Number(text)
	}
	return text
}

// booleansText reads an array of bits, which follow their count.
func booleansText(b []byte) (string, error) {
	if len(b) < 4 {
		return "", errTruncated
	}
	count, bits := uint64(binary.LittleEndian.Uint32(b)), b[4:]
	if count > 8*uint64(len(bits)) {
		return "", errTruncated
	}
	list := make([]bool, count)
	for i := range list {
		list[i] = bits[i/8]&(0x80>>(i%8)) != 0
	}
	text, err := json.Marshal(list)
	return string(text), err
}

// Value is a metric with a value of a type.
func Value(t DataType, text string) (m Metric, err error) {
	m.Type = t
	switch {
	case t.signedBits() > 0:
		n, err := strconv.ParseInt(text, 10, t.signedBits())
		if err != nil {
			return m, fmt.Errorf("%.80q is no integer of %d bits", text, t.signedBits())
		}
		m.field, m.number = fieldInt, uint64(uint32(n))
		if t == TypeInt64 {
			m.field, m.number = fieldLong, uint64(n)
		}
	case t.unsignedBits() > 0:
		n, err := strconv.ParseUint(text, 10, t.unsignedBits())
		if err != nil {
			return m, fmt.Errorf("%.80q is no integer of %d bits without a sign", text, t.unsignedBits())
		}
		m.field, m.number = fieldInt, n
		if t >= TypeUInt32 { // a number of 32 bits without a sign is a long
			m.field = fieldLong
		}
	case t == TypeFloat, t == TypeDouble:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return m, fmt.Errorf("%.80q is no number", text)
		}
		m.field, m.number = fieldDouble, math.Float64bits(x)
		if t == TypeFloat {
			m.field, m.number = fieldFloat, uint64(math.Float32bits(float32(x)))
		}
	case t == TypeBoolean:
		yes, err := strconv.ParseBool(text)
		if err != nil {
			return m, fmt.Errorf("%.80q is neither true nor false", text)
		}
		if m.field = fieldBoolean; yes {
			m.number = 1
		}
	case t == TypeDateTime:
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return m, fmt.Errorf("%.80q is no time such as 2026-01-31T12:00:00Z", text)
		}
		m.field, m.number = fieldLong, uint64(at.UnixMilli())
	case t == TypeBytes, t == TypeFile:
		m.field = fieldBytes
		if m.bytes, err = base64.StdEncoding.DecodeString(text); err != nil {
			return m, fmt.Errorf("%.80q is no base64", text)
		}
	case t == TypeString, t == TypeText, t == TypeUUID:
		m.field, m.bytes = fieldString, []byte(text)
	default:
		return m, fmt.Errorf("a value of the type %d can't be written", t)
	}
	return m, nil
}
