// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"strings"
)

// typeDictionary are the types of a server that has no definitions of them, as those made before version 1.04 of the standard: a file of
// the OPC Binary Type Description System (part 5 of the standard, annex D).
type typeDictionary struct {
	Namespace  string           `xml:"TargetNamespace,attr"`
	Structures []dictionaryType `xml:"StructuredType"`
	Enums      []dictionaryEnum `xml:"EnumeratedType"`

	prefixes map[string]string // of names, to namespaces
	named    map[string][]dictionaryField
	bits     map[string]int // of enumerations
	types    map[string]*StructureType
}

type dictionaryType struct {
	Name   string            `xml:"Name,attr"`
	Fields []dictionaryField `xml:"Field"`
}

type dictionaryField struct {
	Name        string `xml:"Name,attr"`
	TypeName    string `xml:"TypeName,attr"`
	Length      uint32 `xml:"Length,attr"`
	LengthField string `xml:"LengthField,attr"`
	SwitchField string `xml:"SwitchField,attr"`
	SwitchValue uint32 `xml:"SwitchValue,attr"`
	Operand     string `xml:"SwitchOperand,attr"`
	Terminator  string `xml:"Terminator,attr"`
}

type dictionaryEnum struct {
	Name string `xml:"Name,attr"`
	Bits int    `xml:"LengthInBits,attr"`
}

// The namespaces of the types that each dictionary knows.
const (
	binarySchema = "http://opcfoundation.org/BinarySchema/"
	uaSchema     = "http://opcfoundation.org/UA/"
)

// schemaKinds are the types of those namespaces.
var schemaKinds = map[string]Kind{
	"Boolean": KindBoolean, "SByte": KindSByte, "Byte": KindByte, "Int16": KindInt16, "UInt16": KindUInt16, "Int32": KindInt32, "UInt32": KindUInt32,
	"Int64": KindInt64, "UInt64": KindUInt64, "Float": KindFloat, "Double": KindDouble, "String": KindString, "CharArray": KindString,
	"DateTime": KindDateTime, "Guid": KindGUID, "ByteString": KindByteString, "XmlElement": KindXML, "NodeId": KindNodeID,
	"ExpandedNodeId": KindExpandedNodeID, "StatusCode": KindStatus, "QualifiedName": KindQualifiedName, "LocalizedText": KindLocalizedText,
	"ExtensionObject": KindStructure, "DataValue": KindDataValue, "Variant": KindVariant, "DiagnosticInfo": KindDiagnosticInfo,
}

var errDictionary = errors.New("the server's dictionary of types is not understood")

// fromDictionary finds the type of a structure in the dictionary that its encoding's description is of; nil: there is none.
func (l *TypeReader) fromDictionary(ctx context.Context, encoding NodeID) (*StructureType, error) {
	descriptions, err := l.session.browse(ctx, browseQuery{node: encoding, kind: referencesHasDescription})
	if err != nil || len(descriptions) == 0 {
		return nil, err
	}
	description := descriptions[0].Node
	owners, err := l.session.browse(ctx, browseQuery{node: description, kind: referencesHasComponent, inverse: true})
	if err != nil || len(owners) == 0 {
		return nil, err
	}
	values, err := l.session.Read(ctx, []ReadRequest{{Node: description, Attribute: AttributeValue}})
	if err != nil {
		return nil, err
	}
	name, ok := singleOf[string](values[0].Value)
	if !ok {
		return nil, nil
	}
	dictionary, known := l.parsed[owners[0].Node]
	if !known {
		if values, err = l.session.Read(ctx, []ReadRequest{{Node: owners[0].Node, Attribute: AttributeValue}}); err != nil {
			return nil, err
		}
		text, _ := singleOf[[]byte](values[0].Value)
		if dictionary, err = parseDictionary(text); err != nil {
			dictionary = nil // it won't be better the next time
		}
		l.parsed[owners[0].Node] = dictionary
	}
	if dictionary == nil {
		return nil, nil
	}
	t, err := dictionary.structure(name, 0)
	if err != nil {
		return nil, nil //nolint:nilerr // there is none that is understood
	}
	return t, nil
}

// singleOf is a value that is one of a Go type.
func singleOf[T any](v Value) (x T, ok bool) {
	if len(v.Values) == 1 && !v.Array {
		x, ok = v.Values[0].(T)
	}
	return x, ok
}

func parseDictionary(text []byte) (*typeDictionary, error) {
	d := &typeDictionary{prefixes: map[string]string{}, named: map[string][]dictionaryField{}, bits: map[string]int{}, types: map[string]*StructureType{}}
	if err := xml.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("%w: %w", errDictionary, err)
	}
	for _, t := range d.Structures {
		d.named[t.Name] = t.Fields
	}
	for _, e := range d.Enums {
		d.bits[e.Name] = e.Bits
	}
	var head struct {
		Attributes []xml.Attr `xml:",any,attr"`
	}
	if err := xml.Unmarshal(text, &head); err != nil {
		return nil, fmt.Errorf("%w: %w", errDictionary, err)
	}
	for _, a := range head.Attributes {
		if a.Name.Space == "xmlns" {
			d.prefixes[a.Name.Local] = a.Value
		}
	}
	return d, nil
}

// structure makes a type of what the dictionary says.
func (d *typeDictionary) structure(name string, depth int) (*StructureType, error) {
	if t, ok := d.types[name]; ok {
		return t, nil
	}
	fields, ok := d.named[name]
	if !ok || depth > maxTypeDepth || len(d.types) >= maxTypes || len(fields) > maxFields {
		return nil, fmt.Errorf("%w: %s", errDictionary, name)
	}
	t := &StructureType{}
	d.types[name] = t // before its fields: one may be a list of the same
	if err := d.fields(t, fields, depth); err != nil {
		clear(d.types) // what is in it already may be incomplete
		return nil, err
	}
	return t, nil
}

func (d *typeDictionary) fields(t *StructureType, fields []dictionaryField, depth int) error {
	lengths, switches := map[string]bool{}, map[string]bool{}
	for _, f := range fields {
		lengths[f.LengthField], switches[f.SwitchField] = true, true
	}
	bits := uint32(0)
	var optional []string // names of the bits that say what is there
	for i, f := range fields {
		space, name := d.resolve(f.TypeName)
		bit := space == binarySchema && name == "Bit"
		switch {
		case f.Operand != "" || f.Terminator != "" || bit && len(t.Fields) > 0:
			return fmt.Errorf("%w: the field %s", errDictionary, f.Name)
		case bit:
			bits += max(f.Length, 1)
			if switches[f.Name] {
				optional = append(optional, f.Name)
			}
			continue
		case lengths[f.Name]: // the length is before the array
			if i+1 >= len(fields) || fields[i+1].LengthField != f.Name || schemaKinds[name] != KindInt32 {
				return fmt.Errorf("%w: the length %s", errDictionary, f.Name)
			}
			continue
		case switches[f.Name]:
			if i > 0 || schemaKinds[name] != KindUInt32 {
				return fmt.Errorf("%w: the switch %s", errDictionary, f.Name)
			}
			t.Kind = UnionStructure
			continue
		}
		field, err := d.field(f, space, name, depth)
		if err != nil {
			return err
		}
		switch {
		case t.Kind == UnionStructure && (f.SwitchField != fields[0].Name || f.SwitchValue != uint32(len(t.Fields)+1)):
			return fmt.Errorf("%w: the member %s of a union", errDictionary, f.Name)
		case t.Kind != UnionStructure && f.SwitchField != "":
			if len(optional) == 0 || optional[0] != f.SwitchField { // the bits are in the order of the fields
				return fmt.Errorf("%w: the optional field %s", errDictionary, f.Name)
			}
			optional, field.Optional = optional[1:], true
		}
		t.Fields = append(t.Fields, field)
	}
	if bits > 0 {
		t.Kind = OptionalStructure
		if bits != 32 || len(optional) > 0 {
			return fmt.Errorf("%w: %d bits", errDictionary, bits)
		}
	}
	return nil
}

func (d *typeDictionary) field(f dictionaryField, space, name string, depth int) (StructureField, error) {
	field := StructureField{Name: f.Name}
	if f.LengthField != "" {
		field.Rank = 1
	}
	kind, ok := schemaKinds[name]
	if (space == binarySchema || space == uaSchema) && ok {
		field.Kind = kind
		return field, nil
	}
	if space != d.Namespace {
		return field, fmt.Errorf("%w: the field %s is of %s", errDictionary, f.Name, f.TypeName)
	}
	if bits, isEnum := d.bits[name]; isEnum {
		kinds := map[int]Kind{0: KindInt32, 8: KindByte, 16: KindUInt16, 32: KindInt32, 64: KindUInt64}
		if field.Kind, ok = kinds[bits]; !ok {
			return field, fmt.Errorf("%w: the enumeration %s", errDictionary, name)
		}
		return field, nil
	}
	inner, err := d.structure(name, depth+1)
	field.Kind, field.Type = KindStructure, inner
	return field, err
}

// resolve is the namespace and name of a type.
func (d *typeDictionary) resolve(typeName string) (space, name string) {
	prefix, name, ok := strings.Cut(typeName, ":")
	if !ok {
		return d.Namespace, typeName
	}
	return d.prefixes[prefix], name
}
