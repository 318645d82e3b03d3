// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pressDictionary has all that a dictionary can say, as servers of before version 1.04 do.
const pressDictionary = `<?xml version="1.0" encoding="utf-8"?>
<opc:TypeDictionary xmlns:opc="http://opcfoundation.org/BinarySchema/" xmlns:ua="http://opcfoundation.org/UA/" xmlns:tns="urn:press" TargetNamespace="urn:press">
  <opc:Import Namespace="http://opcfoundation.org/UA/"/>
  <opc:EnumeratedType LengthInBits="32" Name="Mode"><opc:EnumeratedValue Name="Off" Value="0"/></opc:EnumeratedType>
  <opc:StructuredType Name="Axis" BaseType="ua:ExtensionObject">
    <opc:Field Name="Position" TypeName="opc:Double"/>
    <opc:Field Name="Label" TypeName="ua:LocalizedText"/>
  </opc:StructuredType>
  <opc:StructuredType Name="Load" BaseType="ua:Union">
    <opc:Field Name="SwitchField" TypeName="opc:UInt32"/>
    <opc:Field Name="Force" TypeName="opc:Float" SwitchField="SwitchField" SwitchValue="1"/>
    <opc:Field Name="Text" TypeName="opc:CharArray" SwitchField="SwitchField" SwitchValue="2"/>
  </opc:StructuredType>
  <opc:StructuredType Name="Press" BaseType="ua:ExtensionObject">
    <opc:Field Name="ToolSpecified" TypeName="opc:Bit"/>
    <opc:Field Name="LoadSpecified" TypeName="opc:Bit"/>
    <opc:Field Name="Reserved1" TypeName="opc:Bit" Length="30"/>
    <opc:Field Name="Mode" TypeName="tns:Mode"/>
    <opc:Field Name="Tool" TypeName="opc:UInt16" SwitchField="ToolSpecified"/>
    <opc:Field Name="NoOfAxes" TypeName="opc:Int32"/>
    <opc:Field Name="Axes" TypeName="tns:Axis" LengthField="NoOfAxes"/>
    <opc:Field Name="Load" TypeName="tns:Load" SwitchField="LoadSpecified"/>
  </opc:StructuredType>
  <opc:StructuredType Name="Elsewhere"><opc:Field Name="X" TypeName="other:Thing"/></opc:StructuredType>
  <opc:StructuredType Name="Bits"><opc:Field Name="A" TypeName="opc:Bit"/><opc:Field Name="B" TypeName="opc:Bit" Length="7"/></opc:StructuredType>
</opc:TypeDictionary>`

func pressType(t *testing.T) *StructureType {
	t.Helper()
	d, err := parseDictionary([]byte(pressDictionary))
	require.NoError(t, err)
	kind, err := d.structure("Press", 0)
	require.NoError(t, err)
	return kind
}

func TestADictionaryOfTypesSaysWhatIsInAStructure(t *testing.T) {
	axis := &StructureType{Fields: []StructureField{{Name: "Position", Kind: KindDouble}, {Name: "Label", Kind: KindLocalizedText}}}
	load := &StructureType{Kind: UnionStructure, Fields: []StructureField{{Name: "Force", Kind: KindFloat}, {Name: "Text", Kind: KindString}}}
	assert.Equal(t, &StructureType{Kind: OptionalStructure, Fields: []StructureField{
		{Name: "Mode", Kind: KindInt32},
		{Name: "Tool", Kind: KindUInt16, Optional: true},
		{Name: "Axes", Kind: KindStructure, Type: axis, Rank: 1},
		{Name: "Load", Kind: KindStructure, Type: load, Optional: true},
	}}, pressType(t))
	d, err := parseDictionary([]byte(pressDictionary))
	require.NoError(t, err)
	for _, name := range []string{"Elsewhere", "Bits", "Nothing"} {
		_, err := d.structure(name, 0)
		require.ErrorIs(t, err, errDictionary, name)
	}
}

func TestAMemberIsSetAndTheOthersAreWrittenAsTheyCame(t *testing.T) {
	var w writer
	w.uint32(2) // Load is there, and Tool is not
	w.uint32(7)
	w.uint32(2)
	w.double(1.5)
	w.data = append(w.data, 3)
	w.bytes([]byte("de"))
	w.bytes([]byte("links"))
	w.double(2.5)
	w.data = append(w.data, 0)
	w.uint32(2)
	w.bytes(nil) // a text that is null, and not empty
	kind := pressType(t)
	m, err := kind.Decode(w.data)
	require.NoError(t, err)
	assert.Equal(t, []any{int64(7)}, m.Find("Mode").Value.Values)
	assert.Nil(t, m.Find("Tool"))
	same, err := kind.Encode(m)
	require.NoError(t, err)
	assert.Equal(t, w.data, same)
	m.Find("Mode").Set(Value{Kind: KindInt32, Values: []any{int64(8)}})
	changed, err := kind.Encode(m)
	require.NoError(t, err)
	want := slices.Clone(w.data)
	want[4] = 8
	assert.Equal(t, want, changed)
	m = append(m, Member{Name: "Tool", Value: Value{Kind: KindUInt16, Values: []any{uint64(5)}}})
	changed, err = kind.Encode(m)
	require.NoError(t, err)
	assert.Equal(t, uint32(3), binary.LittleEndian.Uint32(changed))
	again, err := kind.Decode(changed)
	require.NoError(t, err)
	assert.Equal(t, []any{uint64(5)}, again.Find("Tool").Value.Values)

	_, err = kind.Decode(append(w.data, 0))
	require.ErrorContains(t, err, "1 bytes more than its type")
	_, err = kind.Decode(w.data[:20])
	require.ErrorIs(t, err, errShort)
	_, err = kind.Encode(Members{})
	require.ErrorContains(t, err, "Mode is missing")
}

// A server can't make this program allocate what it has not sent.
func TestWhatAServerClaimsTakesABoundedMemory(t *testing.T) {
	nothing := &StructureType{}
	for range 5 { // each has as many of the one before as it likes, in no bytes
		nothing = &StructureType{Fields: []StructureField{{Name: "All", Kind: KindStructure, Type: nothing, Rank: 1}}}
	}
	var body writer
	for range 5 {
		body.uint32(1 << 15)
	}
	_, err := nothing.Decode(body.data)
	require.Error(t, err)
	endless := &StructureType{}
	endless.Fields = []StructureField{{Name: "Inner", Kind: KindStructure, Type: endless}}
	_, err = endless.Decode(nil)
	require.ErrorContains(t, err, "nested more than")
	var w writer // lists of lists of values of no type: one byte each
	w.byte(byte(KindVariant) | 0x80)
	w.uint32(100)
	for range 100 {
		w.byte(byte(KindVariant) | 0x80)
		w.uint32(60000)
		w.data = append(w.data, make([]byte, 60000)...)
	}
	r := reader{data: w.data}
	r.value(0)
	require.ErrorContains(t, r.err, "elements of arrays")
}
