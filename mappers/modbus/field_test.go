// SPDX-License-Identifier: Apache-2.0

package modbus

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
)

func TestDecodeAndEncode(t *testing.T) {
	for _, c := range []struct {
		typ    mappers.Type
		config string
		words  []uint16
		text   string
	}{
		{mappers.Int, "type=int16", []uint16{0xffff}, "-1"},
		{mappers.Int, "type=uint16", []uint16{0xffff}, "65535"},
		{mappers.Int, "type=int32", []uint16{0x0001, 0x0002}, "65538"},
		{mappers.Int, "type=int32 wordOrder=low-first", []uint16{0x0002, 0x0001}, "65538"},
		{mappers.Int, "type=int32 byteOrder=little", []uint16{0x0100, 0x0200}, "65538"},
		{mappers.Int, "type=int32 byteOrder=little wordOrder=little", []uint16{0x0200, 0x0100}, "65538"},
		{mappers.Int, "type=int32 isSwap=TRUE isRegisterSwap=true", []uint16{0x0200, 0x0100}, "65538"},
		{mappers.Int, "type=int32", []uint16{0x8000, 0}, "-2147483648"},
		{mappers.Int, "type=int64", []uint16{0x7fff, 0xffff, 0xffff, 0xffff}, "9223372036854775807"},
		{mappers.Double, "type=uint64", []uint16{0xffff, 0xffff, 0xffff, 0xffff}, "18446744073709551615"},
		{mappers.Float, "type=float32", []uint16{0x41ac, 0x0000}, "21.5"},
		{mappers.Float, "type=float32", []uint16{0x3dcc, 0xcccd}, "0.1"},
		{mappers.Double, "type=float64", []uint16{0x3fb9, 0x9999, 0x9999, 0x999a}, "0.1"},
		{mappers.Float, "type=int16 scale=0.1", []uint16{215}, "21.5"},
		{mappers.Float, "type=int16 scale=0.1 offset=-40", []uint16{615}, "21.5"},
		{mappers.Float, "type=uint16 scale=0.001", []uint16{3}, "0.003"},
		{mappers.Double, "type=uint64 scale=0.1", []uint16{0, 0x011f, 0x71fb, 0x04cb}, "123456789012.3"},
		{mappers.Double, "type=int64 scale=0.001", []uint16{0, 0, 0, 215}, "0.215"},
		{mappers.Int, "type=int16 scale=10", []uint16{0xfffe}, "-20"},
		{mappers.Int, "limit=2", []uint16{0, 7}, "7"},
		{mappers.Float, "limit=1 scale=0.5", []uint16{3}, "1.5"},
		{mappers.Boolean, "bit=3", []uint16{1}, "true"},
		{mappers.Float, "type=float32 scale=1000", []uint16{0x3e6b, 0x9f56}, "230.1"},
		{mappers.Double, "type=float32", []uint16{0x3e6b, 0x9f56}, "0.2301"},
		{mappers.Int, "type=bcd16", []uint16{0x1234}, "1234"},
		{mappers.Int, "type=bcd32 wordOrder=low-first", []uint16{0x5678, 0x1234}, "12345678"},
		{mappers.Float, "type=bcd16 scale=0.1", []uint16{0x0215}, "21.5"},
		{mappers.String, "type=unixtime32", []uint16{0x6921, 0x4b00}, "2025-11-22T05:32:48Z"},
		{mappers.Int, "type=unixtime32", []uint16{0x6921, 0x4b00}, "1763789568"},
		{mappers.String, "type=string length=3", []uint16{0x5341, 0x2d37, 0}, "SA-7"},
		{mappers.String, "limit=2", []uint16{0x5341, 0x2d37}, "SA-7"},
		{mappers.String, "length=3 byteOrder=little", []uint16{0x4153, 0x372d, 0}, "SA-7"},
		{mappers.String, "length=2 wordOrder=low-first", []uint16{0x2d37, 0x5341}, "SA-7"},
		{mappers.Int, "bits=4-7", []uint16{0x00a0}, "10"},
		{mappers.Int, "type=uint32 bits=8-23", []uint16{0x0012, 0x3400}, "4660"},
	} {
		p := mappers.Property{Name: "p", Type: c.typ, Writable: true, Config: map[string]string{"register": "holding", "address": "1"}}
		for _, kv := range strings.Fields(c.config) {
			k, v, _ := strings.Cut(kv, "=")
			p.Config[k] = v
		}
		f, err := parseField(p)
		require.NoError(t, err, c.config)
		if f.kind == kindBit {
			require.Equal(t, "false", f.decodeBit(1))
			require.Equal(t, "true", f.decodeBit(8))
		} else {
			got, err := f.decode(c.words)
			require.NoError(t, err, c.config)
			require.Equal(t, c.text, got, c.config)
		}
		words, err := f.encode(c.text)
		require.NoError(t, err, c.config)
		require.Equal(t, c.words, words, c.config)
	}
}

// TestWhatIsNoValueIsUnknown: never a number or text of registers that hold none.
func TestWhatIsNoValueIsUnknown(t *testing.T) {
	for config, words := range map[string][]uint16{
		"type=bcd16": {0x12a4}, "type=float32": {0x7fc0, 0}, "type=float64": {0x7ff0, 0, 0, 0},
		"type=string length=2": {0xffff, 0xffff}, "type=string length=1": {0x2020}, "length=1": {0x4107},
	} {
		typ := mappers.Double
		if strings.Contains(config, "length") {
			typ = mappers.String
		}
		p := mappers.Property{Name: "p", Type: typ, Config: map[string]string{"register": "holding", "address": "1"}}
		for _, kv := range strings.Fields(config) {
			k, v, _ := strings.Cut(kv, "=")
			p.Config[k] = v
		}
		f, err := parseField(p)
		require.NoError(t, err, config)
		var r *mappers.Refusal
		require.ErrorAs(t, f.reading(words).Err, &r, config)
		require.Equal(t, mappers.Unknown, r.Code, config)
	}
}

func TestATextInRegistersMustBeSaidToBeOne(t *testing.T) {
	for config, says := range map[string]string{
		"": "type: is required for a text", "type=string": "length: is required", "type=uint16": "type: uint16 is a number, but p is a string: give the visitor words",
		"length=124": "length: ", "type=uint16 length=2": "length: is for the type string", "type=int16 bits=4-7": "bits: is for an unsigned number",
		"bits=7-4": "bits: ", "bits=4-16": "bits: ", "length=2 scale=2": "scale: ", "length=2 scaleFrom=9": "scaleFrom: ", "length=2 bit=1": "bit: ",
	} {
		p := mappers.Property{Name: "p", Type: mappers.String, Config: map[string]string{"register": "holding", "address": "1"}}
		for _, kv := range strings.Fields(config) {
			k, v, _ := strings.Cut(kv, "=")
			p.Config[k] = v
		}
		if strings.Contains(config, "bits") {
			p.Words = []mappers.Word{{Value: "idle", Read: []string{"0"}}}
		}
		_, err := parseField(p)
		require.ErrorContains(t, err, "visitors[p].config."+says, config)
	}
}

func TestKubeEdgeSpelling(t *testing.T) {
	d := mappers.Device{
		Config: map[string]string{"communicateMode": "TCP", "ip": "10.0.0.5", "port": "1502", "slaveID": "7"},
		Properties: []mappers.Property{
			{Name: "temp", Type: mappers.Float, Config: map[string]string{"register": "HoldingRegister", "offset": "2", "limit": "1", "scale": "0.1", "isSwap": "true", "isRegisterSwap": "false"}},
			{Name: "on", Type: mappers.Boolean, Writable: true, Config: map[string]string{"register": "CoilRegister", "offset": "3", "limit": "1"}},
			{Name: "unreached", Type: mappers.Int},
		},
	}
	c, err := parseDevice(d, Options{Timeout: DefaultTimeout})
	require.NoError(t, err)
	require.Equal(t, "tcp://10.0.0.5:1502", c.target.String())
	require.EqualValues(t, 7, c.unit)
	require.Len(t, c.fields, 2)
	require.EqualValues(t, 2, c.fields["temp"].address)
	got, err := c.fields["temp"].decode([]uint16{0xd700})
	require.NoError(t, err)
	require.Equal(t, "21.5", got)
	require.Equal(t, tableCoil, c.fields["on"].table)
}

func TestMistakesAreNamed(t *testing.T) {
	visitor := func(config string, typ mappers.Type, writable bool) error {
		p := mappers.Property{Name: "p", Type: typ, Writable: writable, Visited: true, Config: map[string]string{}}
		for _, kv := range strings.Fields(config) {
			k, v, _ := strings.Cut(kv, "=")
			p.Config[k] = v
		}
		_, err := parseDevice(mappers.Device{Config: map[string]string{"address": "h"}, Properties: []mappers.Property{p}}, Options{Timeout: DefaultTimeout})
		return err
	}
	for config, field := range map[string]string{
		"":                                        "register",
		"register=drum address=1":                 "register",
		"register=holding":                        "address",
		"register=holding address=65536":          "address",
		"register=holding address=x":              "address",
		"register=holding address=65535":          "address", // two registers
		"register=holding address=1 type=int":     "type",
		"register=holding address=1 bit=1":        "bit",
		"register=holding address=1 scale=0":      "scale",
		"register=holding address=1 scale=x":      "scale",
		"register=holding address=1 wordOrder=up": "wordOrder",
		"register=holding address=1 byteOrder=up": "byteOrder",
		"register=holding address=1 isSwap=y":     "isSwap",
		"register=holding address=1 colour=red":   "colour",
		"register=holding address=1 limit=3":      "limit",
		"register=holding address=1 limit=5":      "limit",
		"register=coil address=1 type=int16":      "type",
		"register=holding address=1 on=AN":        "on",
	} {
		var bad *mappers.ConfigError
		require.ErrorAs(t, visitor(config, mappers.Float, false), &bad, config)
		require.Equal(t, "visitors[p].config."+field, bad.Field, config)
	}
	require.Error(t, visitor("register=input address=1", mappers.Float, true), "input registers can't be written")
	require.Error(t, visitor("register=holding address=1", mappers.Bytes, false))
	for config, field := range map[string]string{
		"": "address", "address=udp://h": "address", "address=h parity=mark": "parity", "address=h:0": "address", "address=h unit=x": "unit",
		"address=h timeout=soon": "timeout", "address=h gap=-1": "gap", "ip=h port=x": "port", "address=h adress=i": "adress",
	} {
		d := mappers.Device{Config: map[string]string{}}
		for _, kv := range strings.Fields(config) {
			k, v, _ := strings.Cut(kv, "=")
			d.Config[k] = v
		}
		var bad *mappers.ConfigError
		_, err := parseDevice(d, Options{Timeout: DefaultTimeout})
		require.ErrorAs(t, err, &bad, config)
		require.Equal(t, protocolPath+field, bad.Field, config)
	}
}

func TestWhatDoesNotFitIsRefused(t *testing.T) {
	for config, values := range map[string][]string{
		"type=int16":             {"32768", "-32769", "1e300", "x", "", "NaN"},
		"type=uint16":            {"-1", "65536"},
		"type=int32":             {"2147483648"},
		"type=int64":             {"9223372036854775808"},
		"type=float32":           {"1e39"},
		"type=int16 scale=0.001": {"33"},
		"type=float64 scale=0.1": {"1e308"},
		"type=uint64 bits=0-59":  {"-1", "1152921504606846976"},
		"type=uint64 bits=0-63":  {"18446744073709551616"},
	} {
		p := mappers.Property{Name: "p", Type: mappers.Double, Writable: true, Config: map[string]string{"register": "holding", "address": "1"}}
		for _, kv := range strings.Fields(config) {
			k, v, _ := strings.Cut(kv, "=")
			p.Config[k] = v
		}
		f, err := parseField(p)
		require.NoError(t, err)
		for _, v := range values {
			var r *mappers.Refusal
			_, err := f.encode(v)
			require.ErrorAs(t, err, &r, "%s %s", config, v)
		}
	}
}

// FuzzField: no configuration and no register content may panic, and what is accepted can be read back as it was
// written.
func FuzzField(f *testing.F) {
	f.Add("holding", "1", "int16", "0.1", "5", "21.5", uint64(215))
	f.Add("CoilRegister", "0x10", "", "", "", "true", uint64(1))
	f.Add("input", "65535", "float64", "1e308", "-1e308", "NaN", ^uint64(0))
	f.Fuzz(func(t *testing.T, register, address, typ, scale, offset, value string, raw uint64) {
		for _, pt := range []mappers.Type{mappers.Int, mappers.Double, mappers.Boolean, mappers.String} {
			fd, err := parseField(mappers.Property{Name: "p", Type: pt, Writable: true, Config: map[string]string{
				"register": register, "address": address, "type": typ, "scale": scale, "offset": offset,
			}})
			if err != nil {
				var bad *mappers.ConfigError
				require.True(t, errors.As(err, &bad))
				continue
			}
			_, _ = fd.decode(fd.splitWords(raw))
			words, err := fd.encode(value)
			if err != nil {
				continue
			}
			require.Len(t, words, int(fd.words))
			if fd.kind != kindBit {
				_, _ = fd.decode(words)
			}
		}
	})
}
