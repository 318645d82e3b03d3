// SPDX-License-Identifier: Apache-2.0

package snmp

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gosnmp/gosnmp"

	"github.com/edgebus/edgebus/mappers"
)

// reading is what an agent says of a property.
func (f *field) reading(v gosnmp.SnmpPDU) mappers.Reading {
	text, err := f.decode(v)
	return mappers.Reading{Value: text, Err: err}
}

func (f *field) unknown(format string, args ...any) error {
	return mappers.Refuse(mappers.Unknown, "%s "+format, append([]any{f.oid[1:]}, args...)...)
}

func (f *field) decode(v gosnmp.SnmpPDU) (string, error) {
	switch v.Type {
	case gosnmp.NoSuchObject, gosnmp.NoSuchInstance, gosnmp.EndOfMibView:
		return "", mappers.Refuse(mappers.NotReachable, "%s: the agent has no such object", f.oid[1:])
	case gosnmp.OctetString, gosnmp.Opaque, gosnmp.BitString:
		b, ok := v.Value.([]byte)
		if !ok {
			return "", f.unknown("has no octets")
		}
		return f.octets(b)
	case gosnmp.ObjectIdentifier:
		text, _ := v.Value.(string)
		return strings.TrimPrefix(text, "."), nil
	case gosnmp.IPAddress:
		text, _ := v.Value.(string)
		return text, nil
	case gosnmp.OpaqueFloat:
		x, _ := v.Value.(float32)
		return f.number(float64(x), 32)
	case gosnmp.OpaqueDouble:
		x, _ := v.Value.(float64)
		return f.number(x, 64)
	case gosnmp.Integer, gosnmp.Counter32, gosnmp.Gauge32, gosnmp.TimeTicks, gosnmp.Counter64, gosnmp.Uinteger32:
		n := gosnmp.ToBigInt(v.Value)
		switch {
		case f.spec.Type == mappers.Boolean && n.IsInt64() && n.Int64() == 1: // TruthValue: true is 1, false is 2
			return "true", nil
		case f.spec.Type == mappers.Boolean && n.IsInt64() && (n.Int64() == 2 || n.Int64() == 0):
			return "false", nil
		case f.spec.Type == mappers.Boolean:
			return "", f.unknown("is %s, neither 1 (true) nor 2 (false)", n)
		case f.scale == 1:
			return n.String(), nil
		}
		x, _ := n.Float64()
		return f.number(x, 64)
	}
	return "", f.unknown("has no value")
}

// number scales a number, and drops what the multiplication added behind its precision.
func (f *field) number(x float64, size int) (string, error) {
	if f.scale != 1 {
		x, _ = strconv.ParseFloat(strconv.FormatFloat(x*f.scale, 'g', 15, 64), 64)
		size = 64
	}
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return "", f.unknown("is %v", x)
	}
	return strconv.FormatFloat(x, 'f', -1, size), nil
}

// octets are a text if they can be read, and hexadecimal if not.
func (f *field) octets(b []byte) (string, error) {
	switch text := strings.TrimRight(string(b), "\x00"); {
	case f.spec.Type == mappers.Bytes:
		return base64.StdEncoding.EncodeToString(b), nil
	case f.spec.Type.Numeric():
		x, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil {
			return "", f.unknown("is %q, no number", shortText(text))
		}
		if f.scale == 1 && !math.IsNaN(x) && !math.IsInf(x, 0) {
			return strings.TrimSpace(text), nil
		}
		return f.number(x, 64)
	case !f.hex && utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) && !unicode.IsSpace(r) }) < 0:
		return text, nil
	}
	pairs := make([]string, len(b))
	for i, x := range b {
		pairs[i] = hex.EncodeToString([]byte{x})
	}
	return strings.Join(pairs, ":"), nil
}

func shortText(s string) string { return s[:min(len(s), 40)] }

// typeNames are the types that values have which were read, as they are set.
var typeNames = map[gosnmp.Asn1BER]string{
	gosnmp.Integer: "integer", gosnmp.Gauge32: "unsigned", gosnmp.Uinteger32: "unsigned", gosnmp.Counter32: "counter", gosnmp.TimeTicks: "timeticks",
	gosnmp.OctetString: "string", gosnmp.ObjectIdentifier: "oid", gosnmp.IPAddress: "address",
}

// encode makes the value that is set of a text.
func (f *field) encode(oid, text, typ string) (v gosnmp.SnmpPDU, err error) {
	v.Name = oid
	invalid := func(what string) (gosnmp.SnmpPDU, error) {
		return v, mappers.Refuse(mappers.Invalid, "%s: %q is no %s", f.oid[1:], shortText(text), what)
	}
	switch typ {
	case "integer", "unsigned", "counter", "timeticks":
		n, err := f.whole(text)
		if err != nil {
			return v, err
		}
		if typ == "integer" {
			if n < math.MinInt32 || n > math.MaxInt32 {
				return invalid("whole number from -2147483648 to 2147483647")
			}
			v.Type, v.Value = gosnmp.Integer, int(n)
			return v, nil
		}
		if n < 0 || n > math.MaxUint32 {
			return invalid("whole number from 0 to 4294967295")
		}
		v.Type, v.Value = map[string]gosnmp.Asn1BER{"unsigned": gosnmp.Gauge32, "counter": gosnmp.Counter32, "timeticks": gosnmp.TimeTicks}[typ], uint32(n)
	case "string":
		v.Type, v.Value = gosnmp.OctetString, text
		if f.spec.Type == mappers.Bytes {
			b, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				return invalid("text in base64")
			}
			v.Value = b
		}
	case "hex":
		b, err := hex.DecodeString(strings.ReplaceAll(text, ":", ""))
		if err != nil {
			return invalid("hexadecimal such as 00:1a:2b")
		}
		v.Type, v.Value = gosnmp.OctetString, b
	case "oid":
		oid, ok := parseOID(text)
		if !ok {
			return invalid("object such as 1.3.6.1.2.1")
		}
		v.Type, v.Value = gosnmp.ObjectIdentifier, oid
	case "address":
		if ip := net.ParseIP(text); ip == nil || ip.To4() == nil {
			return invalid("IPv4 address")
		}
		v.Type, v.Value = gosnmp.IPAddress, text
	default:
		return v, mappers.Refuse(mappers.NotReachable, "%s: the model's visitor doesn't say as what it is set: set type to one of %s", f.oid[1:], strings.Join(setTypes, ", "))
	}
	return v, nil
}

// whole is the number that is set for a text: without its scale.
func (f *field) whole(text string) (int64, error) {
	if f.spec.Type == mappers.Boolean || text == "true" || text == "false" {
		if b, err := strconv.ParseBool(text); err == nil {
			return map[bool]int64{true: 1, false: 2}[b], nil
		}
	}
	x, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || math.IsNaN(x) || math.Abs(x/f.scale) > 1e15 {
		return 0, mappers.Refuse(mappers.Invalid, "%s: %q is no number", f.oid[1:], shortText(text))
	}
	if f.scale == 1 && x != math.Trunc(x) {
		return 0, mappers.Refuse(mappers.Invalid, "%s: %q is no whole number", f.oid[1:], shortText(text))
	}
	return int64(math.Round(x / f.scale)), nil
}

// refusal is what an agent's error means for a value that was set.
func (f *field) refusal(value string, e gosnmp.SNMPError) error {
	code := mappers.Rejected
	switch e {
	case gosnmp.ResourceUnavailable:
		return mappers.Busy(fmt.Errorf("%s = %s: the agent says %s", f.oid[1:], shortText(value), e))
	case gosnmp.ReadOnly, gosnmp.NoAccess, gosnmp.NotWritable, gosnmp.AuthorizationError:
		code = mappers.ReadOnly
	case gosnmp.BadValue, gosnmp.WrongValue, gosnmp.InconsistentValue:
		code = mappers.OutOfRange
	case gosnmp.WrongType, gosnmp.WrongLength, gosnmp.WrongEncoding:
		code = mappers.Invalid
	case gosnmp.NoSuchName, gosnmp.NoCreation:
		code = mappers.NotReachable
	}
	return mappers.Refuse(code, "%s = %s: the agent says %s", f.oid[1:], shortText(value), e)
}
