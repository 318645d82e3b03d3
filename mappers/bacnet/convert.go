// SPDX-License-Identifier: Apache-2.0

package bacnet

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/bacnet/wire"
)

// kind is the type of BACnet's that a property is written as.
type kind string

const (
	kindUnknown  kind = "" // it can't be written without the setting type
	kindReal     kind = "real"
	kindDouble   kind = "double"
	kindUnsigned kind = "unsigned"
	kindSigned   kind = "signed"
	kindEnum     kind = "enumerated"
	kindBoolean  kind = "boolean"
	kindText     kind = "string"
)

var kinds = []kind{kindReal, kindDouble, kindUnsigned, kindSigned, kindEnum, kindBoolean, kindText}

// presentValues are the types of present values by type of object.
var presentValues = map[wire.ObjectType]kind{
	wire.AnalogInput: kindReal, wire.AnalogOutput: kindReal, wire.AnalogValue: kindReal, wire.Loop: kindReal, wire.LightingOutput: kindReal,
	wire.PulseConverter: kindReal, wire.LargeAnalogValue: kindDouble, wire.BinaryInput: kindEnum, wire.BinaryOutput: kindEnum,
	wire.BinaryValue: kindEnum, wire.MultiStateInput: kindUnsigned, wire.MultiStateOutput: kindUnsigned, wire.MultiStateValue: kindUnsigned,
	wire.Accumulator: kindUnsigned, wire.PositiveIntegerValue: kindUnsigned, wire.IntegerValue: kindSigned, wire.CharacterStringValue: kindText,
}

func parseKind(text string, ref wire.Reference) (kind, error) {
	if text != "" {
		k := kind(strings.ToLower(text))
		if !slices.Contains(kinds, k) {
			return "", fmt.Errorf("%q is none of %v", text, kinds)
		}
		return k, nil
	}
	switch ref.Property {
	case wire.PresentValue, wire.RelinquishValue:
		return presentValues[ref.Object.Type()], nil
	case wire.OutOfService:
		return kindBoolean, nil
	case wire.ObjectName, wire.Description:
		return kindText, nil
	case wire.MaxPresentValue, wire.MinPresentValue:
		return kindReal, nil
	}
	return kindUnknown, nil
}

// binary reports whether the field's value is one of inactive and active.
func (f *field) binary() bool {
	t := f.ref.Object.Type()
	return f.ref.Property == wire.PresentValue && (t == wire.BinaryInput || t == wire.BinaryOutput || t == wire.BinaryValue)
}

var binaryWords = map[string]uint32{"inactive": 0, "active": 1, "0": 0, "1": 1, "false": 0, "true": 1, "off": 0, "on": 1}

// encode makes the value that is written of a text. null relinquishes what was written before.
func (f *field) encode(text string) (any, error) {
	invalid := func(what string) error {
		return mappers.Refuse(mappers.Invalid, "%s: %q is no %s", f.ref.Object, text, what)
	}
	text = strings.TrimSpace(text)
	if text == "null" {
		return nil, nil
	}
	switch f.kind {
	case kindReal, kindDouble:
		bits := 64
		if f.kind == kindReal {
			bits = 32
		}
		v, err := strconv.ParseFloat(text, bits)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, invalid("number")
		}
		if f.kind == kindReal {
			return float32(v), nil
		}
		return v, nil
	case kindUnsigned:
		v, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return nil, invalid("number from 0 to 4294967295")
		}
		return v, nil
	case kindSigned:
		v, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return nil, invalid("number from -2147483648 to 2147483647")
		}
		return v, nil
	case kindEnum:
		if v, ok := binaryWords[strings.ToLower(text)]; ok && (f.binary() || f.spec.Type == mappers.Boolean) {
			return wire.Enumerated(v), nil
		}
		v, err := strconv.ParseUint(text, 10, 32)
		if err != nil || f.binary() {
			return nil, invalid("value such as active or inactive")
		}
		return wire.Enumerated(v), nil
	case kindBoolean:
		v, ok := binaryWords[strings.ToLower(text)]
		if !ok {
			return nil, invalid("true or false")
		}
		return v == 1, nil
	case kindText:
		return text, nil
	}
	return nil, mappers.Refuse(mappers.NotReachable, "%s %s: the model's visitor doesn't say as what it is written: set type to one of %v", f.ref.Object, f.ref.Property, kinds)
}

// decode makes the text of what the device says.
func (f *field) decode(values []any) (string, error) {
	if f.spec.Type == mappers.Array {
		list := make([]any, len(values))
		for i, v := range values {
			text, err := f.text(v)
			if err != nil {
				return "", err
			}
			list[i] = text
			if n := json.Number(text); n.String() != "" && json.Valid([]byte(text)) {
				list[i] = n
			}
		}
		b, err := json.Marshal(list)
		return string(b), err
	}
	if len(values) != 1 {
		return "", f.unknown("has %d values: take one by its index, or all with the type array", len(values))
	}
	return f.text(values[0])
}

func (f *field) unknown(format string, args ...any) error {
	return mappers.Refuse(mappers.Unknown, "%s %s "+format, append([]any{f.ref.Object, f.ref.Property}, args...)...)
}

func (f *field) text(v any) (string, error) {
	boolean := f.spec.Type == mappers.Boolean
	truth := func(n float64) (string, error) {
		if n != 0 && n != 1 {
			return "", f.unknown("is %v, neither 0 nor 1", v)
		}
		return strconv.FormatBool(n == 1), nil
	}
	switch v := v.(type) {
	case nil:
		return "", f.unknown("has no value")
	case bool:
		if f.spec.Type.Numeric() {
			return map[bool]string{true: "1", false: "0"}[v], nil
		}
		return strconv.FormatBool(v), nil
	case uint64:
		if boolean {
			return truth(float64(v))
		}
		return strconv.FormatUint(v, 10), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case float32:
		return f.number(float64(v), 32)
	case float64:
		return f.number(v, 64)
	case string:
		return v, nil
	case []byte:
		return base64.StdEncoding.EncodeToString(v), nil
	case wire.Enumerated:
		switch {
		case boolean:
			return truth(float64(v))
		case f.binary() && v < 2 && !f.spec.Type.Numeric():
			return []string{"inactive", "active"}[v], nil
		}
		return strconv.FormatUint(uint64(v), 10), nil
	case wire.BitString:
		return f.bits(v)
	case wire.Date:
		return dateText(v), nil
	case wire.Time:
		return fmt.Sprintf("%02d:%02d:%02d", v[0], v[1], v[2]), nil
	case wire.ObjectID:
		return v.String(), nil
	}
	return "", f.unknown("has an inner structure, which is not read")
}

func (f *field) number(v float64, size int) (string, error) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "", f.unknown("is %v", v)
	}
	return strconv.FormatFloat(v, 'f', -1, size), nil
}

func (f *field) bits(v wire.BitString) (string, error) {
	switch {
	case f.bit < 0:
		return v.String(), nil
	case f.bit >= len(v):
		return "", f.unknown("has %d bits, and no bit %d", len(v), f.bit)
	case f.spec.Type == mappers.Boolean:
		return strconv.FormatBool(v[f.bit]), nil
	}
	return v[f.bit : f.bit+1].String(), nil
}

// dateText is a date as 2026-11-27; what is any is written *.
func dateText(d wire.Date) string {
	year, month, day := "*", "*", "*"
	if d[0] != 255 {
		year = strconv.Itoa(1900 + int(d[0]))
	}
	if d[1] != 255 {
		month = fmt.Sprintf("%02d", d[1])
	}
	if d[2] != 255 {
		day = fmt.Sprintf("%02d", d[2])
	}
	return year + "-" + month + "-" + day
}

// refusal is what a device's refusal means for a property; nil: err is something else.
func (f *field) refusal(err error) error {
	switch e := err.(type) { //nolint:errorlint // wire's errors are never wrapped
	case wire.Error:
		code := mappers.Rejected
		switch {
		case e.Busy():
			return mappers.Busy(fmt.Errorf("%s %s: %w", f.ref.Object, f.ref.Property, e))
		case e.Code == 37:
			code = mappers.OutOfRange
		case e.Code == 40:
			code = mappers.ReadOnly
		}
		return mappers.Refuse(code, "%s %s: the device says: %v", f.ref.Object, f.ref.Property, e)
	case wire.Reject, wire.Abort:
		return mappers.Refuse(mappers.Rejected, "%s %s: %v", f.ref.Object, f.ref.Property, e)
	}
	return nil
}
