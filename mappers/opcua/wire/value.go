// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"math"
	"time"
)

// Kind is the number of a built-in type (part 6 of the standard, 5.1.2).
type Kind byte

// The built-in types that a Value can have.
const (
	KindNull Kind = iota
	KindBoolean
	KindSByte
	KindByte
	KindInt16
	KindUInt16
	KindInt32
	KindUInt32
	KindInt64
	KindUInt64
	KindFloat
	KindDouble
	KindString
	KindDateTime
	KindGUID
	KindByteString
	KindXML
	KindNodeID
	KindExpandedNodeID
	KindStatus
	KindQualifiedName
	KindLocalizedText
	KindStructure
	KindDataValue
	KindVariant
	KindDiagnosticInfo
)

var kindNames = []string{
	"Null", "Boolean", "SByte", "Byte", "Int16", "UInt16", "Int32", "UInt32", "Int64", "UInt64", "Float", "Double", "String", "DateTime", "Guid",
	"ByteString", "XmlElement", "NodeId", "ExpandedNodeId", "StatusCode", "QualifiedName", "LocalizedText", "Structure", "DataValue", "Variant",
	"DiagnosticInfo",
}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("type %d", byte(k))
}

// Value is a Variant: one or several values of a built-in type. Values are Go's: bool, int64, uint64, float32, float64, string (also
// names, texts and XML), []byte, time.Time, NodeID, Status, Value, and Structure for what a StructureType reads.
type Value struct {
	Kind   Kind
	Array  bool
	Values []any
}

// Structure is a value with an inner structure, by the type of its encoding.
type Structure struct {
	Type NodeID
	Body []byte
}

// DataValue is a value with its quality and times.
type DataValue struct {
	Value  Value
	Status Status
	Source time.Time
}

func (r *reader) value(depth int) (v Value) {
	if depth > 10 {
		r.fail(fmt.Errorf("values are nested more than 10 times"))
		return v
	}
	mask := r.byte()
	v.Kind, v.Array = Kind(mask&0x3F), mask&0x80 != 0
	if v.Kind > KindDiagnosticInfo {
		r.fail(fmt.Errorf("type %d of a value is not known", v.Kind))
		return v
	}
	switch {
	case v.Kind == KindNull:
	case v.Array:
		v.Values = readList(r, 1, func() any { return r.scalar(v.Kind, depth) })
	default:
		v.Values = []any{r.scalar(v.Kind, depth)}
	}
	if mask&0x40 != 0 { // dimensions: the elements are told as a plain list
		for range r.count(4) {
			r.uint32()
		}
	}
	return v
}

func (r *reader) scalar(k Kind, depth int) any {
	switch k {
	case KindBoolean:
		return r.bool()
	case KindSByte:
		return int64(int8(r.byte()))
	case KindByte:
		return uint64(r.byte())
	case KindInt16:
		return int64(int16(r.uint16()))
	case KindUInt16:
		return uint64(r.uint16())
	case KindInt32:
		return int64(int32(r.uint32()))
	case KindUInt32:
		return uint64(r.uint32())
	case KindInt64:
		return int64(r.uint64())
	case KindUInt64:
		return r.uint64()
	case KindFloat:
		return math.Float32frombits(r.uint32())
	case KindDouble:
		return r.double()
	case KindString, KindXML:
		return r.string()
	case KindDateTime:
		return r.time()
	case KindGUID:
		return append([]byte{}, r.take(16)...)
	case KindByteString:
		return r.bytes()
	case KindNodeID, KindExpandedNodeID:
		return r.nodeID()
	case KindStatus:
		return Status(r.uint32())
	case KindQualifiedName:
		return r.qualifiedName()
	case KindLocalizedText:
		return r.localizedText()
	case KindStructure:
		e := r.extension()
		return Structure{e.typeID, e.body}
	case KindDataValue:
		return r.dataValue(depth + 1).Value
	case KindVariant:
		return r.value(depth + 1)
	}
	r.diagnostics(0)
	return nil
}

func (r *reader) dataValue(depth int) (d DataValue) {
	mask := r.byte()
	if mask&0x01 != 0 {
		d.Value = r.value(depth)
	}
	if mask&0x02 != 0 {
		d.Status = Status(r.uint32())
	}
	if mask&0x04 != 0 {
		d.Source = r.time()
	}
	if mask&0x10 != 0 {
		r.uint16()
	}
	if mask&0x08 != 0 {
		r.time()
	}
	if mask&0x20 != 0 {
		r.uint16()
	}
	return d
}

// value appends a Value. Its Values are of the Go types that reading gives.
func (w *writer) value(v Value) error {
	mask := byte(v.Kind)
	if v.Array {
		mask |= 0x80
	}
	w.byte(mask)
	if v.Array {
		w.uint32(uint32(len(v.Values)))
	}
	for _, x := range v.Values {
		if err := w.scalar(v.Kind, x); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) scalar(k Kind, x any) error {
	switch x := x.(type) {
	case bool:
		w.bool(x)
	case int64:
		return w.integer(k, uint64(x))
	case uint64:
		return w.integer(k, x)
	case float32:
		w.uint32(math.Float32bits(x))
	case float64:
		w.double(x)
	case string:
		switch k {
		case KindLocalizedText:
			w.byte(2)
		case KindQualifiedName:
			w.uint16(0)
		}
		w.bytes([]byte(x))
	case []byte:
		if k == KindGUID {
			w.data = append(w.data, x...)
			return nil
		}
		w.bytes(x)
	case time.Time:
		w.time(x)
	case NodeID:
		w.nodeID(x)
	case Status:
		w.uint32(uint32(x))
	case Value:
		if k != KindVariant {
			return fmt.Errorf("a value of type %s can't be written", k)
		}
		return w.value(x)
	case Structure:
		w.nodeID(x.Type)
		w.byte(1)
		w.bytes(x.Body)
	default:
		return fmt.Errorf("a value of type %s can't be written", k)
	}
	return nil
}

func (w *writer) integer(k Kind, v uint64) error {
	switch k {
	case KindSByte, KindByte:
		w.byte(byte(v))
	case KindInt16, KindUInt16:
		w.uint16(uint16(v))
	case KindInt32, KindUInt32:
		w.uint32(uint32(v))
	case KindInt64, KindUInt64:
		w.uint64(v)
	default:
		return fmt.Errorf("an integer is no %s", k)
	}
	return nil
}
