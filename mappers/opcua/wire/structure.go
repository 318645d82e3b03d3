// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// The bounds of what a server says about its types, and of one value of such a type.
const (
	maxTypes      = 500  // that are read of one server
	maxFields     = 1000 // of a type
	maxTypeDepth  = 20   // of types within types, and of types that are derived from others
	maxMembers    = 1 << 14
	maxDimensions = 3
)

// StructureKind is how the members of a structure follow each other.
type StructureKind uint32

// The kinds of structures.
const (
	PlainStructure StructureKind = iota
	OptionalStructure
	UnionStructure
	SubtypedStructure // a field that is Optional may have a structure of a derived type
	SubtypedUnion
)

// StructureType is a data type with fields.
type StructureType struct {
	Kind   StructureKind
	Fields []StructureField
	// Encoding is the identifier that values have.
	Encoding NodeID
}

// StructureField is a field of a StructureType.
type StructureField struct {
	Name     string
	Kind     Kind
	Type     *StructureType // of a structure within the structure; nil: it is of a built-in type, or a structure of any type
	Rank     int            // dimensions of an array; 0: it is none
	Optional bool
}

// Members are a structure's, in their order. What is optional and not there is left out; of a union there is one, or none.
type Members []Member

// Member is a part of a structure. Its value's Values are Members, or Structure, where Kind is KindStructure.
type Member struct {
	Name  string
	Value Value

	encoded []byte // as it came; nil: it was set
}

// Find finds a member by name; nil: there is none.
func (m Members) Find(name string) *Member {
	if i := slices.IndexFunc(m, func(x Member) bool { return x.Name == name }); i >= 0 {
		return &m[i]
	}
	return nil
}

// Set gives the member another value.
func (m *Member) Set(v Value) { m.Value, m.encoded = v, nil }

// Field finds a field by name; nil: there is none.
func (t *StructureType) Field(name string) *StructureField {
	if i := slices.IndexFunc(t.Fields, func(f StructureField) bool { return f.Name == name }); i >= 0 {
		return &t.Fields[i]
	}
	return nil
}

// Decode reads a structure, all of it.
func (t *StructureType) Decode(body []byte) (Members, error) {
	d := structureDecoder{reader: reader{data: body}}
	m := d.members(t, 0)
	if d.err == nil && len(d.data) > 0 {
		d.err = fmt.Errorf("a structure has %d bytes more than its type", len(d.data))
	}
	return m, d.err
}

// structureDecoder bounds what is read: structures without members take no bytes.
type structureDecoder struct {
	reader
	parts int
}

func (d *structureDecoder) members(t *StructureType, depth int) Members {
	if depth > maxTypeDepth {
		d.fail(fmt.Errorf("structures are nested more than %d times", maxTypeDepth))
		return nil
	}
	out := Members{}
	var mask uint32
	switch t.Kind {
	case OptionalStructure:
		mask = d.uint32()
	case UnionStructure, SubtypedUnion:
		n := d.uint32()
		if n == 0 {
			return out
		}
		if n > uint32(len(t.Fields)) {
			d.fail(fmt.Errorf("a union has its member %d of %d", n, len(t.Fields)))
			return nil
		}
		return d.member(out, t, t.Fields[n-1], depth)
	}
	bit := 0
	for _, f := range t.Fields {
		if t.Kind == OptionalStructure && f.Optional {
			bit++
			if mask&(1<<(bit-1)) == 0 {
				continue
			}
		}
		if out = d.member(out, t, f, depth); d.err != nil {
			return nil
		}
	}
	return out
}

func (d *structureDecoder) member(to Members, t *StructureType, f StructureField, depth int) Members {
	before := d.data
	v := Value{Kind: f.Kind, Array: f.Rank > 0}
	if v.Array {
		v.Values = d.list(t, f, depth)
	} else {
		v.Values = []any{d.one(t, f, depth)}
	}
	if d.err != nil {
		return nil
	}
	return append(to, Member{Name: f.Name, Value: v, encoded: before[:len(before)-len(d.data)]})
}

func (d *structureDecoder) list(t *StructureType, f StructureField, depth int) []any {
	n := 0
	if f.Rank == 1 {
		n = d.count(0)
	} else { // the lengths of all dimensions, and then the elements
		if n = 1; d.count(4) != f.Rank {
			d.fail(fmt.Errorf("an array has other than %d dimensions", f.Rank))
		}
		for range f.Rank {
			size := int(int32(d.uint32()))
			if size < 0 || size > maxMembers || n*size > maxMembers {
				d.fail(fmt.Errorf("an array has more than %d elements", maxMembers))
				return nil
			}
			n *= size
		}
	}
	out := []any{}
	for range n {
		x := d.one(t, f, depth)
		if d.err != nil {
			return nil
		}
		out = append(out, x)
	}
	return out
}

func (d *structureDecoder) one(t *StructureType, f StructureField, depth int) any {
	if d.parts++; d.parts > maxMembers {
		d.fail(fmt.Errorf("a structure has more than %d members", maxMembers))
		return nil
	}
	if f.Type != nil && !t.isSubtyped(f) {
		return d.members(f.Type, depth+1)
	}
	return d.scalar(f.Kind, 0)
}

// isSubtyped is whether a field has its type with it.
func (t *StructureType) isSubtyped(f StructureField) bool {
	return f.Optional && (t.Kind == SubtypedStructure || t.Kind == SubtypedUnion)
}

// Encode makes the body of a structure. Members that were decoded and not set are as they came.
func (t *StructureType) Encode(m Members) ([]byte, error) {
	var w writer
	err := w.members(t, m)
	return w.data, err
}

func (w *writer) members(t *StructureType, m Members) error {
	switch t.Kind {
	case OptionalStructure:
		mask, bit := uint32(0), 0
		for _, f := range t.Fields {
			if !f.Optional {
				continue
			}
			if m.Find(f.Name) != nil {
				mask |= 1 << bit
			}
			bit++
		}
		w.uint32(mask)
	case UnionStructure, SubtypedUnion:
		if len(m) == 0 {
			w.uint32(0)
			return nil
		}
		i := slices.IndexFunc(t.Fields, func(f StructureField) bool { return f.Name == m[0].Name })
		if i < 0 || len(m) > 1 {
			return fmt.Errorf("a union has one of its members: %q is none, or there are several", m[0].Name)
		}
		w.uint32(uint32(i + 1))
		return w.member(t.Fields[i], m[0])
	}
	for _, f := range t.Fields {
		x := m.Find(f.Name)
		switch {
		case x != nil:
			if err := w.member(f, *x); err != nil {
				return err
			}
		case t.Kind != OptionalStructure || !f.Optional:
			return fmt.Errorf("the member %s is missing", f.Name)
		}
	}
	return nil
}

func (w *writer) member(f StructureField, m Member) error {
	if m.encoded != nil {
		w.data = append(w.data, m.encoded...)
		return nil
	}
	if f.Rank > 1 {
		return fmt.Errorf("the member %s is an array of %d dimensions, which is not written", f.Name, f.Rank)
	}
	if f.Rank == 1 {
		w.uint32(uint32(len(m.Value.Values)))
	}
	for _, x := range m.Value.Values {
		inner, structured := x.(Members)
		var err error
		switch {
		case structured && f.Type != nil:
			err = w.members(f.Type, inner)
		case f.Type != nil:
			err = errors.New("it is a structure")
		default:
			err = w.scalar(f.Kind, x)
		}
		if err != nil {
			return fmt.Errorf("the member %s: %w", f.Name, err)
		}
	}
	return nil
}

// TypeReader reads a server's data types, and remembers them.
type TypeReader struct {
	session *Session
	found   map[NodeID]*StructureType // by the encoding that values name; nil: there is none
	types   map[NodeID]fieldType      // by data type
	parsed  map[NodeID]*typeDictionary
}

// fieldType is what a field of a data type has.
type fieldType struct {
	kind      Kind
	structure *StructureType
}

// NewTypeReader makes a TypeReader. It is used by one at a time.
func NewTypeReader(s *Session) *TypeReader {
	return &TypeReader{session: s, found: map[NodeID]*StructureType{}, types: map[NodeID]fieldType{}, parsed: map[NodeID]*typeDictionary{}}
}

// Of finds the type of a structure by its encoding, as a value has it. An error that is a Status says that the server doesn't tell.
func (l *TypeReader) Of(ctx context.Context, encoding NodeID) (*StructureType, error) {
	t, known := l.found[encoding]
	if !known {
		var err error
		if t, err = l.read(ctx, encoding); err != nil && !errors.As(err, new(Status)) {
			return nil, err // another time perhaps
		}
		if len(l.found) < maxTypes {
			l.found[encoding] = t
		}
	}
	if t == nil {
		return nil, fmt.Errorf("the server doesn't say what is in structures of the encoding %s: %w", encoding, BadNotSupported)
	}
	return t, nil
}

// OfDataType finds the type of a structure by its data type, as a variable or a method's argument has it.
func (l *TypeReader) OfDataType(ctx context.Context, id NodeID) (*StructureType, error) {
	f, err := l.dataType(ctx, id, 0)
	if err != nil {
		return nil, err
	}
	if f.structure == nil || !f.structure.Encoding.IsNull() {
		return f.structure, nil
	}
	refs, err := l.session.browse(ctx, browseQuery{node: id, kind: referencesHasEncoding})
	if i := slices.IndexFunc(refs, func(r Reference) bool { return r.BrowseName == "Default Binary" }); i >= 0 {
		f.structure.Encoding = refs[i].Node
		return f.structure, nil
	}
	return nil, err
}

func (l *TypeReader) read(ctx context.Context, encoding NodeID) (*StructureType, error) {
	refs, err := l.session.browse(ctx, browseQuery{node: encoding, kind: referencesHasEncoding, inverse: true})
	if err != nil {
		return nil, err
	}
	for _, ref := range refs {
		f, err := l.dataType(ctx, ref.Node, 0)
		if err != nil && !errors.As(err, new(Status)) {
			return nil, err
		}
		if f.structure != nil {
			f.structure.Encoding = encoding
			return f.structure, nil
		}
	}
	return l.fromDictionary(ctx, encoding)
}

// dataType is what a field of a data type has: a built-in type, or a structure. Types that are derived from others have what those have.
func (l *TypeReader) dataType(ctx context.Context, id NodeID, depth int) (f fieldType, err error) {
	if kind, ok := builtInField(id); ok {
		return fieldType{kind: kind}, nil
	}
	if f, known := l.types[id]; known {
		return f, nil
	}
	if depth > maxTypeDepth || len(l.types) >= maxTypes {
		return f, fmt.Errorf("types are nested more than %d times, or there are more than %d: %w", maxTypeDepth, maxTypes, BadEncodingLimitsExceeded)
	}
	values, err := l.session.Read(ctx, []ReadRequest{{Node: id, Attribute: AttributeDataTypeDefinition}})
	if err != nil {
		return f, err
	}
	if definition, ok := structureDefinition(values[0].Value); ok {
		f = fieldType{KindStructure, &StructureType{Kind: definition.kind, Encoding: definition.encoding}}
		l.types[id] = f // before its fields: one may be a list of the same
		for _, d := range definition.fields {
			inner, err := l.dataType(ctx, d.dataType, depth+1)
			if err != nil {
				clear(l.types) // what is in it already may be incomplete
				return fieldType{}, err
			}
			f.structure.Fields = append(f.structure.Fields, StructureField{Name: d.name, Kind: inner.kind, Type: inner.structure, Rank: d.rank, Optional: d.optional})
		}
		return f, nil
	}
	refs, err := l.session.browse(ctx, browseQuery{node: id, kind: referencesHasSubtype, inverse: true})
	if err != nil {
		return f, err
	}
	if len(refs) == 0 {
		return f, fmt.Errorf("the data type %s is derived from none: %w", id, BadNotSupported)
	}
	if f, err = l.dataType(ctx, refs[0].Node, depth+1); err == nil && f.kind == KindStructure && f.structure == nil {
		err = fmt.Errorf("the server doesn't say what is in the data type %s: %w", id, BadNotSupported)
	}
	if err == nil {
		l.types[id] = f
	}
	return f, err
}

// builtInField is what a field has whose data type is a built-in one, or one of those that others are derived from.
func builtInField(id NodeID) (Kind, bool) {
	if id.Namespace != 0 || id.kind != 0 {
		return 0, false
	}
	switch n := id.number; {
	case n == dataTypeEnumeration:
		return KindInt32, true
	case n >= dataTypeNumber && n < dataTypeEnumeration: // Number, Integer, UInteger: any of them
		return KindVariant, true
	case n == uint32(KindVariant), n == uint32(KindDataValue), n == uint32(KindStructure), n > 0 && n <= uint32(KindDiagnosticInfo):
		return Kind(n), true
	}
	return 0, false
}

const (
	dataTypeNumber      = 26
	dataTypeEnumeration = 29
)

// definition is what a StructureDefinition says.
type definition struct {
	encoding NodeID
	kind     StructureKind
	fields   []definedField
}

type definedField struct {
	name     string
	dataType NodeID
	rank     int
	optional bool
}

// structureDefinition reads the value of the attribute DataTypeDefinition, if it is of a structure.
func structureDefinition(v Value) (d definition, ok bool) {
	if len(v.Values) != 1 {
		return d, false
	}
	s, is := v.Values[0].(Structure)
	if !is || s.Type != NumericID(0, idStructureDefinition) {
		return d, false
	}
	r := reader{data: s.Body}
	d.encoding = r.nodeID()
	r.nodeID()
	d.kind = StructureKind(r.uint32())
	d.fields = readList(&r, 20, func() (f definedField) {
		f.name = r.string()
		r.localizedText()
		f.dataType = r.nodeID()
		f.rank = int(int32(r.uint32()))
		for range r.count(4) {
			r.uint32()
		}
		r.uint32()
		f.optional = r.bool()
		return f
	})
	if r.err != nil || d.kind > SubtypedUnion || len(d.fields) > maxFields {
		return d, false
	}
	for i, f := range d.fields {
		if f.rank == 0 || f.rank < -1 || f.rank > maxDimensions { // it may be an array or not
			return d, false
		}
		d.fields[i].rank = max(f.rank, 0)
	}
	return d, true
}
