// SPDX-License-Identifier: Apache-2.0

package opcua

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/opcua/wire"
)

// reading is what a server says of a property: a value that it says is good.
func (f *field) reading(d wire.DataValue) mappers.Reading {
	if !d.Status.IsGood() {
		return mappers.Reading{Err: f.refusal(d.Status)}
	}
	text, err := f.decode(d.Value)
	if len(text) > maxText {
		return mappers.Reading{Err: f.unknown("has a value of %d bytes as text, more than %d", len(text), maxText)}
	}
	return mappers.Reading{Value: text, Err: err}
}

// maxText bounds what is kept of a server's value.
const maxText = 256 << 10

// saysNothing reports whether a status is of a server that doesn't reach its device.
func saysNothing(s wire.Status) bool {
	return s.Is(wire.BadNoCommunication) || s.Is(wire.BadNotConnected) || s.Is(wire.BadCommunicationError)
}

// isBusy reports whether the server can't serve a request at the moment.
func isBusy(err error) bool {
	return errors.Is(err, wire.BadTCPServerTooBusy) || errors.Is(err, wire.BadResourceUnavailable)
}

// refusal is what a status means for a property.
func (f *field) refusal(s wire.Status) error {
	code := mappers.Rejected
	switch {
	case saysNothing(s):
		return mappers.Refuse(mappers.Unknown, "%s: the server doesn't reach its device: %v", f.node, s)
	case s.Is(wire.BadNodeIDUnknown), s.Is(wire.BadNodeIDInvalid), s.Is(wire.BadAttributeIDInvalid), s.Is(wire.BadNotReadable), s.Is(wire.BadUserAccessDenied):
		code = mappers.NotReachable
	case s.Is(wire.BadWaitingForInitialData), s.Is(wire.BadSensorFailure), s.Is(wire.BadDeviceFailure), s.Is(wire.BadOutOfService), !s.IsBad():
		code = mappers.Unknown
	}
	return mappers.Refuse(code, "%s: the server says %v", f.node, s)
}

// writeError makes a refusal of the server's answer to a write. A server that has forgotten the session has not taken it.
func (f *field) writeError(value string, err error) error {
	var status wire.Status
	switch {
	case mappers.IsNotSent(err):
		return err
	case errors.Is(err, wire.ErrNotSent):
		return mappers.NotSent(err)
	case !errors.As(err, &status):
		return err
	case status.HasNoSession():
		return mappers.NotSent(err)
	case isBusy(err):
		return mappers.Busy(err)
	}
	return f.writeRefusal(value, status)
}

// writeRefusal is what a status means for a value that was written.
func (f *field) writeRefusal(value string, s wire.Status) error {
	code := mappers.Rejected
	switch {
	case s.Is(wire.BadNotWritable), s.Is(wire.BadWriteNotSupported), s.Is(wire.BadUserAccessDenied):
		code = mappers.ReadOnly
	case s.Is(wire.BadOutOfRange):
		code = mappers.OutOfRange
	case s.Is(wire.BadTypeMismatch):
		code = mappers.Invalid
	case saysNothing(s):
		code = mappers.Unavailable
	}
	return mappers.Refuse(code, "%s = %s: the server says %v", f.node, value, s)
}

func (f *field) unknown(format string, args ...any) error {
	return mappers.Refuse(mappers.Unknown, "%s "+format, append([]any{f.node}, args...)...)
}

func (f *field) decode(v wire.Value) (string, error) {
	if v.Kind == wire.KindNull {
		return "", f.unknown("has no value")
	}
	if f.isOne(v) {
		v.Array = false
	}
	v, err := f.at(v)
	if err != nil {
		return "", err
	}
	if !v.Array {
		if len(v.Values) != 1 {
			return "", f.unknown("has %d values", len(v.Values))
		}
		return f.text(v.Kind, v.Values[0])
	}
	list := make([]any, len(v.Values))
	for i, x := range v.Values {
		text, err := f.text(v.Kind, x)
		if err != nil {
			return "", err
		}
		list[i] = jsonValue(x, text)
	}
	b, err := json.Marshal(list)
	return string(b), err
}

// isOne is whether an array is of the one element that index names.
func (f *field) isOne(v wire.Value) bool {
	return v.Array && f.index != "" && !strings.ContainsAny(f.index, ":,") && len(v.Values) == 1
}

// jsonValue keeps numbers and booleans what they are.
func jsonValue(x any, text string) any {
	switch x := x.(type) {
	case int64, uint64, float32, float64:
		return json.Number(text)
	case bool:
		return x
	case structure, wire.Members, wire.Value:
		return json.RawMessage(text)
	}
	return text
}

func (f *field) text(k wire.Kind, x any) (string, error) {
	numeric := f.spec.Type.Numeric()
	switch x := x.(type) {
	case bool:
		if numeric {
			return map[bool]string{true: "1", false: "0"}[x], nil
		}
		return strconv.FormatBool(x), nil
	case int64:
		return f.integer(strconv.FormatInt(x, 10), x == 0, x == 1)
	case uint64:
		return f.integer(strconv.FormatUint(x, 10), x == 0, x == 1)
	case float32:
		return f.number(float64(x), 32)
	case float64:
		return f.number(x, 64)
	case string:
		return x, nil
	case []byte:
		return base64.StdEncoding.EncodeToString(x), nil
	case time.Time:
		if numeric {
			return strconv.FormatInt(x.Unix(), 10), nil
		}
		return x.Format(time.RFC3339Nano), nil
	case wire.NodeID:
		return x.String(), nil
	case wire.Status:
		return x.Error(), nil
	case structure, wire.Members, wire.Value:
		return string(f.elementAsJSON(k, x)), nil
	case wire.Structure:
		return "", f.unknown("is a structure of the encoding %s, which the server doesn't describe", x.Type)
	}
	return "", f.unknown("has a value of type %s, which is not read", k)
}

// integer is a whole number, or true and false.
func (f *field) integer(text string, isZero, isOne bool) (string, error) {
	if f.spec.Type != mappers.Boolean {
		return text, nil
	}
	if !isZero && !isOne {
		return "", f.unknown("is %s, neither 0 nor 1", text)
	}
	return strconv.FormatBool(isOne), nil
}

func (f *field) number(v float64, size int) (string, error) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "", f.unknown("is %v", v)
	}
	return strconv.FormatFloat(v, 'f', -1, size), nil
}

// encode makes the value of a text, of a built-in type.
func encode(text string, k wire.Kind, array bool) (wire.Value, error) {
	v := wire.Value{Kind: k, Array: array}
	texts := []string{text}
	if array {
		var list []json.RawMessage
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return v, mappers.Refuse(mappers.Invalid, "%q is no list such as [1,2]", text)
		}
		texts, v.Values = nil, []any{}
		for _, raw := range list {
			var s string
			if json.Unmarshal(raw, &s) != nil {
				s = string(raw)
			}
			texts = append(texts, s)
		}
	}
	for _, t := range texts {
		x, err := encodeScalar(t, k)
		if err != nil {
			return v, err
		}
		v.Values = append(v.Values, x)
	}
	return v, nil
}

// integerBits are the sizes of whole numbers; negative: with a sign.
var integerBits = map[wire.Kind]int{
	wire.KindSByte: -8, wire.KindInt16: -16, wire.KindInt32: -32, wire.KindInt64: -64,
	wire.KindByte: 8, wire.KindUInt16: 16, wire.KindUInt32: 32, wire.KindUInt64: 64,
}

func encodeScalar(text string, k wire.Kind) (any, error) {
	invalid := func(what string) (any, error) {
		return nil, mappers.Refuse(mappers.Invalid, "%q is no %s: the node has the type %s", text, what, k)
	}
	bits := integerBits[k]
	switch {
	case k == wire.KindBoolean:
		b, err := strconv.ParseBool(strings.ToLower(text))
		if err != nil {
			return invalid("true or false")
		}
		return b, nil
	case bits != 0:
		whole := text
		if w, fraction, ok := strings.Cut(text, "."); ok && strings.Trim(fraction, "0") == "" { // 21.0
			whole = w
		}
		if b, err := strconv.ParseBool(text); err == nil && (text == "true" || text == "false") {
			whole = map[bool]string{true: "1", false: "0"}[b]
		}
		if bits < 0 {
			v, err := strconv.ParseInt(whole, 10, -bits)
			if err != nil {
				return invalid("whole number that fits")
			}
			return v, nil
		}
		v, err := strconv.ParseUint(whole, 10, bits)
		if err != nil {
			return invalid("whole number that fits")
		}
		return v, nil
	case k == wire.KindFloat, k == wire.KindDouble:
		size := map[wire.Kind]int{wire.KindFloat: 32, wire.KindDouble: 64}[k]
		v, err := strconv.ParseFloat(text, size)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			return invalid("number")
		}
		if size == 32 {
			return float32(v), nil
		}
		return v, nil
	case k == wire.KindString, k == wire.KindLocalizedText, k == wire.KindXML:
		return text, nil
	case k == wire.KindByteString:
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return invalid("text in base64")
		}
		return b, nil
	case k == wire.KindDateTime:
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return invalid("time such as 2026-11-27T12:00:00Z")
		}
		return t.UTC(), nil
	}
	return nil, mappers.Refuse(mappers.Rejected, "the node has the type %s, which is not written", k)
}

// encodeArguments makes a method's arguments of a command's input.
func encodeArguments(inputs []wire.MethodArgument, payload string) ([]wire.Value, error) {
	texts := []string{payload}
	switch {
	case len(inputs) == 0:
		if strings.TrimSpace(payload) != "" {
			return nil, mappers.Refuse(mappers.Invalid, "the method takes no arguments")
		}
		return nil, nil
	case len(inputs) > 1:
		var list []json.RawMessage
		if err := json.Unmarshal([]byte(payload), &list); err != nil || len(list) != len(inputs) {
			return nil, mappers.Refuse(mappers.Invalid, "the method takes a list of %d arguments, such as [1,2]", len(inputs))
		}
		texts = nil
		for _, raw := range list {
			var s string
			if json.Unmarshal(raw, &s) != nil {
				s = string(raw)
			}
			texts = append(texts, s)
		}
	}
	var out []wire.Value
	for i, in := range inputs {
		kind := wire.BuiltIn(in.Type)
		if kind == wire.KindNull {
			return nil, mappers.Refuse(mappers.NotReachable, "argument %s of the method has the type %s, which is not written", in.Name, in.Type)
		}
		v, err := encode(texts[i], kind, in.Array)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// results are what a method returned: nothing, one value, or a list of them.
func (f *field) results(values []wire.Value) ([]byte, error) {
	list := []any{}
	for _, v := range values {
		text, err := f.decode(v)
		if err != nil {
			return nil, err
		}
		if len(values) == 1 {
			return []byte(text), nil
		}
		if v.Array {
			list = append(list, json.RawMessage(text))
		} else {
			list = append(list, jsonValue(v.Values[0], text))
		}
	}
	if len(list) == 0 {
		return nil, nil
	}
	return json.Marshal(list)
}
