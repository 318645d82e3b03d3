// SPDX-License-Identifier: Apache-2.0

package sparkplug

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the specification's own library writes for a birth of three metrics, byte by byte.
func TestABirthIsReadAsItIsOnTheWire(t *testing.T) {
	b, err := hex.DecodeString(
		"08e807" + // timestamp 1000
			"1214" + "0a054c6576656c" + "1001" + "200a" + "69" + "0000000000001240" + // Level, alias 1, TypeDouble, 4.5
			"1207" + "0a034f6666" + "3801" + // Off, null
			"1812") // seq 18
	require.NoError(t, err)
	p, err := Parse(b)
	require.NoError(t, err)
	require.Equal(t, uint64(1000), p.Timestamp)
	require.Equal(t, 18, p.Seq)
	require.Len(t, p.Metrics, 2)
	level := p.Metrics[0]
	require.Equal(t, "Level", level.Name)
	require.Equal(t, uint64(1), level.Alias)
	text, err := level.Text(TypeUnspecified)
	require.NoError(t, err)
	require.Equal(t, "4.5", text)
	require.True(t, p.Metrics[1].Null)
	require.Equal(t, b, p.Append(nil))
}

func TestValuesOfEveryTypeAreWrittenAndRead(t *testing.T) {
	for _, tt := range []struct {
		typ  DataType
		text string
	}{
		{TypeInt8, "-5"},
		{TypeInt16, "-300"},
		{TypeInt32, "-70000"},
		{TypeInt64, "-9007199254740993"},
		{TypeUInt8, "255"},
		{TypeUInt16, "65535"},
		{TypeUInt32, "4294967295"},
		{TypeUInt64, "18446744073709551615"},
		{TypeFloat, "0.2301"},
		{TypeDouble, "-1e-300"},
		{TypeBoolean, "true"},
		{TypeBoolean, "false"},
		{TypeString, "tür"},
		{TypeText, ""},
		{TypeUUID, "x"},
		{TypeDateTime, "2026-01-31T12:00:00.500Z"},
		{TypeBytes, "AP8="},
		{TypeFile, "AA=="},
	} {
		m, err := Value(tt.typ, tt.text)
		require.NoError(t, err, tt.text)
		m.Name = "x"
		p, err := Parse(Payload{Timestamp: 1, Seq: -1, Metrics: []Metric{m}}.Append(nil))
		require.NoError(t, err)
		require.Equal(t, -1, p.Seq)
		text, err := p.Metrics[0].Text(TypeUnspecified)
		require.NoError(t, err)
		require.Equal(t, tt.text, text)
		p.Metrics[0].Type = TypeUnspecified // as data after a birth may be
		text, err = p.Metrics[0].Text(tt.typ)
		require.NoError(t, err)
		require.Equal(t, tt.text, text)
	}
	for typ, text := range map[DataType]string{TypeInt8: "128", TypeUInt8: "-1", TypeFloat: "x", TypeBoolean: "ON", TypeDateTime: "now", TypeBytes: "?", TypeDataSet: "1", TypeUnspecified: "1"} {
		_, err := Value(typ, text)
		require.Error(t, err, text)
	}
}

func TestNegativeNumbersOfOtherWriters(t *testing.T) {
	for _, number := range []uint64{0xfffffffb, 0xfffffffffffffffb, 0xfb} { // as 32 bits, as 64 bits, as 8 bits
		text, err := Metric{field: fieldInt, number: number, Type: TypeInt8}.Text(TypeUnspecified)
		require.NoError(t, err)
		require.Equal(t, "-5", text)
	}
}

func TestArraysAreJSON(t *testing.T) {
	float := binary.LittleEndian.AppendUint32(nil, math.Float32bits(0.1))
	for _, tt := range []struct {
		typ   DataType
		bytes []byte
		want  string
	}{
		{typeInt8Array, []byte{0xff, 1}, "[-1,1]"},
		{23, []byte{0x30, 0x8a}, "[-30160]"},
		{typeUInt64Array, []byte{1, 0, 0, 0, 0, 0, 0, 0x80}, "[9223372036854775809]"},
		{typeFloatArray, float, "[0.1]"},
		{typeDoubleArray, binary.LittleEndian.AppendUint64(nil, math.Float64bits(math.NaN())), `["NaN"]`},
		{typeBooleanArray, []byte{3, 0, 0, 0, 0xa0}, "[true,false,true]"},
		{typeStringArray, []byte("a\x00b\x00"), `["a","b"]`},
		{typeStringArray, nil, "[]"},
		{typeDateTimeArray, make([]byte, 8), `["1970-01-01T00:00:00.000Z"]`},
	} {
		text, err := Metric{Type: tt.typ, field: fieldBytes, bytes: tt.bytes}.Text(TypeUnspecified)
		require.NoError(t, err)
		require.Equal(t, tt.want, text)
	}
	for typ, b := range map[DataType][]byte{typeFloatArray: {1}, typeBooleanArray: {9, 0, 0, 0, 0}} {
		_, err := Metric{Type: typ, field: fieldBytes, bytes: b}.Text(TypeUnspecified)
		require.Error(t, err)
	}
}

func TestPropertiesAreWrittenAndRead(t *testing.T) {
	m, err := Value(TypeFloat, "21.5")
	require.NoError(t, err)
	m.Name = "x"
	list := []Property{QualityProperty(QualityStale), TextProperty(KeyUnit, "°C"), NumberProperty(KeyLow, -40.5)}
	m.SetProperties(list)
	p, err := Parse(Payload{Seq: 1, Metrics: []Metric{m}}.Append(nil))
	require.NoError(t, err)
	read := p.Metrics[0]
	require.EqualValues(t, QualityStale, read.Quality())
	said, err := read.Properties()
	require.NoError(t, err)
	require.Len(t, said, 3)
	for i, want := range []string{"500", "°C", "-40.5"} {
		text, err := said[i].Text()
		require.NoError(t, err)
		require.Equal(t, want, text)
		require.Equal(t, list[i].Key, said[i].Key)
	}
	require.EqualValues(t, QualityGood, Metric{}.Quality())
	for _, set := range [][]byte{{0x0a, 1, 'a'}, {0x12, 0}, appendProperties(nil, make([]Property, MaxProperties+1))} { // a key or a value too few, too many
		p, err = Parse(appendBytes(nil, 2, appendBytes(nil, fieldProperties, set)))
		require.NoError(t, err, "whoever wants the value alone gets it")
		_, err = p.Metrics[0].Properties()
		require.ErrorContains(t, err, "propert")
	}
}

func TestWhatIsNoValueSaysSo(t *testing.T) {
	for field, want := range map[uint64]string{fieldDataSet: "data set", fieldTemplate: "template", 0: "no value"} {
		_, err := Metric{field: field}.Text(TypeUnspecified)
		require.ErrorContains(t, err, want)
	}
	_, err := Metric{field: fieldString, bytes: []byte{0xff}}.Text(TypeString)
	require.ErrorContains(t, err, "not UTF-8")
}

// FuzzParse has payloads of any kind: they are metrics, or an error, and never more.
func FuzzParse(f *testing.F) {
	m, _ := Value(TypeDouble, "4.5")
	m.Name, m.Alias, m.HasAlias = "Level", 7, true
	m.SetProperties([]Property{QualityProperty(QualityBad), TextProperty(KeyUnit, "m")})
	f.Add(Payload{Timestamp: 1, Seq: 3, Metrics: []Metric{m}}.Append(nil))
	f.Add([]byte{0x12, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Add([]byte{0x0b})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse(b)
		if err != nil {
			return
		}
		for _, m := range p.Metrics {
			for typ := TypeUnspecified; typ <= typeDateTimeArray; typ++ {
				_, _ = m.Text(typ)
			}
			list, _ := m.Properties()
			for _, property := range list {
				_, _ = property.Text()
			}
		}
		again, err := Parse(p.Append(nil))
		if err != nil || len(again.Metrics) != len(p.Metrics) || again.Seq != p.Seq {
			t.Fatalf("%v: %#v after %#v", err, again, p)
		}
	})
}
