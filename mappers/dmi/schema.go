// SPDX-License-Identifier: Apache-2.0

package dmi

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// contract is a version of the interface: the name of its package.
type contract string

// The contracts.
const (
	contractV1beta1  contract = "v1beta1"
	contractV1alpha1 contract = "v1alpha1"
)

// fieldKind is how the value of a field is written.
type fieldKind uint8

const (
	kindText    fieldKind = iota // a number or boolean is written as its text
	kindInteger                  // a text of digits too
	kindDouble
	kindFloat
	kindFlag
	kindMessage
	kindMessages
	kindTexts  // map<string, string>
	kindValues // a CustomizedValue: {map<string, google.protobuf.Any> data}
)

// field is a field of a message.
type field struct {
	number protowire.Number
	kind   fieldKind
	of     message // of kindMessage and kindMessages
}

// message are the fields of a message, by their names in lower case: KubeEdge itself doesn't tell case apart when it reads JSON.
type message map[string]field

var (
	twinValue = message{"value": {1, kindText, nil}, "metadata": {2, kindTexts, nil}}
	// protocolSection is a protocol, or how it reaches a property.
	protocolSection = message{"protocolname": {1, kindText, nil}, "configdata": {2, kindValues, nil}}

	pushMethod = message{
		"http": {1, kindMessage, message{"hostname": {1, kindText, nil}, "port": {2, kindInteger, nil}, "requestpath": {3, kindText, nil}, "timeout": {4, kindInteger, nil}}},
		"mqtt": {2, kindMessage, message{"address": {1, kindText, nil}, "topic": {2, kindText, nil}, "qos": {3, kindInteger, nil}, "retained": {4, kindFlag, nil}}},
		"dbmethod": {3, kindMessage, message{
			"influxdb2": {1, kindMessage, message{
				"influxdb2clientconfig": {1, kindMessage, message{"url": {1, kindText, nil}, "org": {2, kindText, nil}, "bucket": {3, kindText, nil}}},
				"influxdb2dataconfig":   {2, kindMessage, message{"measurement": {1, kindText, nil}, "tag": {2, kindTexts, nil}, "fieldkey": {3, kindText, nil}}},
			}},
			"redis": {2, kindMessage, message{
				"redisclientconfig": {1, kindMessage, message{"addr": {1, kindText, nil}, "db": {2, kindInteger, nil}, "poolsize": {3, kindInteger, nil}, "minidleconns": {4, kindInteger, nil}}},
			}},
			"tdengine": {3, kindMessage, message{
				"tdengineclientconfig": {1, kindMessage, message{"addr": {1, kindText, nil}, "dbname": {2, kindText, nil}}},
			}},
			"mysql": {4, kindMessage, message{
				"mysqlclientconfig": {1, kindMessage, message{"addr": {1, kindText, nil}, "database": {2, kindText, nil}, "username": {3, kindText, nil}}},
			}},
		}},
		"otel": {4, kindMessage, message{"endpointurl": {1, kindText, nil}}},
	}

	deviceV1beta1 = message{
		"name": {1, kindText, nil},
		"spec": {2, kindMessage, message{
			"devicemodelreference": {1, kindText, nil},
			"protocol":             {2, kindMessage, protocolSection},
			"properties": {3, kindMessages, message{
				"name": {1, kindText, nil}, "desired": {2, kindMessage, twinValue}, "visitors": {3, kindMessage, protocolSection},
				"reportcycle": {4, kindInteger, nil}, "collectcycle": {5, kindInteger, nil}, "reporttocloud": {6, kindFlag, nil},
				"pushmethod": {7, kindMessage, pushMethod},
			}},
			"methods": {4, kindMessages, message{"name": {1, kindText, nil}, "description": {2, kindText, nil}, "propertynames": {3, kindText, nil}}},
		}},
		"status":    {3, kindMessage, message{"reporttocloud": {2, kindFlag, nil}, "reportcycle": {3, kindInteger, nil}}},
		"namespace": {4, kindText, nil},
	}
	modelV1beta1 = message{
		"name": {1, kindText, nil},
		"spec": {2, kindMessage, message{
			"properties": {1, kindMessages, message{
				"name": {1, kindText, nil}, "description": {2, kindText, nil}, "type": {3, kindText, nil}, "accessmode": {4, kindText, nil},
				"minimum": {5, kindText, nil}, "maximum": {6, kindText, nil}, "unit": {7, kindText, nil},
			}},
		}},
		"namespace": {3, kindText, nil},
	}

	protocolV1alpha1 = message{
		"opcua": {1, kindMessage, message{
			"url": {1, kindText, nil}, "username": {2, kindText, nil}, "password": {3, kindText, nil}, "securitypolicy": {4, kindText, nil},
			"securitymode": {5, kindText, nil}, "certificate": {6, kindText, nil}, "privatekey": {7, kindText, nil}, "timeout": {8, kindInteger, nil},
		}},
		"modbus":    {2, kindMessage, message{"slaveid": {1, kindInteger, nil}}},
		"bluetooth": {3, kindMessage, message{"macaddress": {1, kindText, nil}}},
		"common": {4, kindMessage, message{
			"com": {1, kindMessage, message{
				"serialport": {1, kindText, nil}, "baudrate": {2, kindInteger, nil}, "databits": {3, kindInteger, nil}, "parity": {4, kindText, nil}, "stopbits": {5, kindInteger, nil},
			}},
			"tcp":      {2, kindMessage, message{"ip": {1, kindText, nil}, "port": {2, kindInteger, nil}}},
			"commtype": {3, kindText, nil}, "reconntimeout": {4, kindInteger, nil}, "reconnretrytimes": {5, kindInteger, nil},
			"collecttimeout": {6, kindInteger, nil}, "collectretrytimes": {7, kindInteger, nil}, "collecttype": {8, kindText, nil},
			"customizedvalues": {9, kindValues, nil},
		}},
		"customizedprotocol": {5, kindMessage, protocolSection},
	}
	deviceV1alpha1 = message{
		"name": {1, kindText, nil},
		"spec": {2, kindMessage, message{
			"devicemodelreference": {1, kindText, nil},
			"protocol":             {2, kindMessage, protocolV1alpha1},
			"propertyvisitors": {3, kindMessages, message{
				"propertyname": {1, kindText, nil}, "reportcycle": {2, kindInteger, nil}, "collectcycle": {3, kindInteger, nil},
				"customizedvalues": {4, kindValues, nil},
				"opcua":            {5, kindMessage, message{"nodeid": {1, kindText, nil}, "browsename": {2, kindText, nil}}},
				"modbus": {6, kindMessage, message{
					"register": {1, kindText, nil}, "offset": {2, kindInteger, nil}, "limit": {3, kindInteger, nil}, "scale": {4, kindDouble, nil},
					"isswap": {5, kindFlag, nil}, "isregisterswap": {6, kindFlag, nil},
				}},
				"bluetooth": {7, kindMessage, message{
					"characteristicuuid": {1, kindText, nil},
					"dataconverter": {3, kindMessage, message{
						"startindex": {1, kindInteger, nil}, "endindex": {2, kindInteger, nil}, "shiftleft": {3, kindInteger, nil}, "shiftright": {4, kindInteger, nil},
						"orderofoperations": {5, kindMessages, message{"operationtype": {1, kindText, nil}, "operationvalue": {2, kindDouble, nil}}},
					}},
				}},
				"customizedprotocol": {8, kindMessage, protocolSection},
			}},
		}},
		"status": {3, kindMessage, message{
			"twins": {1, kindMessages, message{"propertyname": {1, kindText, nil}, "desired": {2, kindMessage, twinValue}, "reported": {3, kindMessage, twinValue}}},
		}},
	}
	modelV1alpha1 = message{
		"name": {1, kindText, nil},
		"spec": {2, kindMessage, message{
			"properties": {1, kindMessages, message{
				"name": {1, kindText, nil}, "description": {2, kindText, nil},
				"type": {3, kindMessage, message{
					"int": {1, kindMessage, limits(kindInteger)}, "string": {2, kindMessage, message{"accessmode": {1, kindText, nil}, "defaultvalue": {2, kindText, nil}}},
					"double": {3, kindMessage, limits(kindDouble)}, "float": {4, kindMessage, limits(kindFloat)},
					"boolean": {5, kindMessage, message{"accessmode": {1, kindText, nil}, "defaultvalue": {2, kindFlag, nil}}},
					"bytes":   {6, kindMessage, message{"accessmode": {1, kindText, nil}}},
				}},
			}},
			"protocol": {3, kindText, nil},
		}},
	}
)

// limits are the fields of a numeric type in v1alpha1.
func limits(number fieldKind) message {
	return message{
		"accessmode": {1, kindText, nil}, "defaultvalue": {2, number, nil}, "minimum": {3, number, nil}, "maximum": {4, number, nil}, "unit": {5, kindText, nil},
	}
}

// encode makes a message of JSON, which was read with numbers as json.Number. What the message doesn't have is left out. A value of another type is an error
// that names it.
func (m message) encode(at string, in map[string]any) (out []byte, err error) {
	for _, name := range slices.Sorted(maps.Keys(in)) {
		f, known := m[strings.ToLower(name)]
		if !known || in[name] == nil {
			continue
		}
		if out, err = f.append(out, at+"."+name, in[name]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (f field) append(out []byte, at string, v any) ([]byte, error) {
	if list, ok := v.([]any); ok {
		for i, e := range list {
			var err error
			if out, err = f.append(out, fmt.Sprintf("%s[%d]", at, i), e); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	switch f.kind {
	case kindMessage, kindMessages:
		object, ok := v.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s: must be an object", at)
		}
		sub, err := f.of.encode(at, object)
		return appendBytes(out, f.number, sub), err
	case kindTexts, kindValues:
		object, ok := v.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s: must be an object", at)
		}
		return f.appendMap(out, at, object)
	}
	text := scalarText(v)
	switch f.kind {
	case kindInteger:
		n, err := strconv.ParseInt(text, 10, 64)
		if x, wrong := strconv.ParseFloat(text, 64); err != nil && wrong == nil && x == math.Trunc(x) && math.Abs(x) < 1<<53 {
			n, err = int64(x), nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %q is no whole number", at, text)
		}
		return protowire.AppendVarint(protowire.AppendTag(out, f.number, protowire.VarintType), uint64(n)), nil
	case kindDouble, kindFloat:
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is no number", at, text)
		}
		if f.kind == kindFloat {
			return protowire.AppendFixed32(protowire.AppendTag(out, f.number, protowire.Fixed32Type), math.Float32bits(float32(x))), nil
		}
		return protowire.AppendFixed64(protowire.AppendTag(out, f.number, protowire.Fixed64Type), math.Float64bits(x)), nil
	case kindFlag:
		on, err := strconv.ParseBool(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is neither true nor false", at, text)
		}
		return protowire.AppendVarint(protowire.AppendTag(out, f.number, protowire.VarintType), protowire.EncodeBool(on)), nil
	}
	return appendBytes(out, f.number, []byte(text)), nil
}

// appendMap writes a map: each of its entries is a message of key and value.
func (f field) appendMap(out []byte, at string, object map[string]any) ([]byte, error) {
	var entries []byte
	number := f.number
	if f.kind == kindValues {
		number = 1 // of CustomizedValue
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		value := []byte(scalarText(object[key]))
		if f.kind == kindValues {
			value = anyValue(object[key])
		}
		entries = appendBytes(entries, number, appendBytes(appendBytes(nil, 1, []byte(key)), 2, value))
	}
	if f.kind == kindValues { // KubeEdge's mappers end when it is missing
		return appendBytes(out, f.number, entries), nil
	}
	return append(out, entries...), nil
}

// anyValue wraps a value in a google.protobuf.Any: KubeEdge's mappers know wrappers of texts, flags, whole numbers and single-precision ones. An object or a list
// is wrapped as its JSON.
func anyValue(v any) []byte {
	wrap := func(kind string, content []byte) []byte {
		return appendBytes(appendBytes(nil, 1, []byte("type.googleapis.com/google.protobuf."+kind)), 2, content)
	}
	switch v := v.(type) {
	case bool:
		return wrap("BoolValue", protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), protowire.EncodeBool(v)))
	case json.Number:
		if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return wrap("Int64Value", protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(n)))
		}
		x, _ := v.Float64() // a number of JSON is one
		return wrap("FloatValue", protowire.AppendFixed32(protowire.AppendTag(nil, 1, protowire.Fixed32Type), math.Float32bits(float32(x))))
	}
	return wrap("StringValue", appendBytes(nil, 1, []byte(scalarText(v))))
}

// scalarText is a value of JSON as text.
func scalarText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	case bool:
		return strconv.FormatBool(v)
	}
	text, _ := json.Marshal(v) // it was read from JSON
	return string(text)
}

func appendBytes(out []byte, number protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(out, number, protowire.BytesType), content)
}
