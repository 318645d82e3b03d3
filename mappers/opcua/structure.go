// SPDX-License-Identifier: Apache-2.0

package opcua

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/jsonpath"
	"github.com/edgebus/edgebus/mappers/opcua/wire"
)

// structure is a value with members, and what it has to be written with.
type structure struct {
	encoding wire.NodeID
	kind     *wire.StructureType
	members  wire.Members
}

// typeCache has the types of a server's structures, as long as the connection is.
type typeCache struct {
	mu     sync.Mutex
	reader *wire.TypeReader
}

// open has the structures in a value read by their types. One whose type the server doesn't tell stays as it is: its text says so.
func (c *typeCache) open(ctx context.Context, v wire.Value) (wire.Value, error) {
	if v.Kind != wire.KindStructure {
		return v, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	opened := wire.Value{Kind: v.Kind, Array: v.Array, Values: slices.Clone(v.Values)}
	for i, x := range v.Values {
		s, ok := x.(wire.Structure)
		if !ok || s.Type.IsNull() {
			continue
		}
		kind, err := c.reader.Of(ctx, s.Type)
		switch {
		case errors.As(err, new(wire.Status)): // the server has said that it doesn't tell
		case err != nil:
			return v, err
		default:
			if members, err := kind.Decode(s.Body); err == nil {
				opened.Values[i] = structure{s.Type, kind, members}
			}
		}
	}
	return opened, nil
}

// sealValue makes of a value that was opened what is written.
func sealValue(v wire.Value) (wire.Value, error) {
	out := wire.Value{Kind: v.Kind, Array: v.Array}
	for _, x := range v.Values {
		if s, ok := x.(structure); ok {
			body, err := s.kind.Encode(s.members)
			if err != nil {
				return out, mappers.Refuse(mappers.Invalid, "%v", err)
			}
			x = wire.Structure{Type: s.encoding, Body: body}
		}
		out.Values = append(out.Values, x)
	}
	return out, nil
}

// at finds the part of a value that a path leads to.
func (f *field) at(v wire.Value) (wire.Value, error) {
	for i, step := range f.path {
		switch step := step.(type) {
		case string:
			m := membersOf(v).Find(step)
			if m == nil {
				return v, f.unknown("has no member %s", formatPath(f.path[:i+1]))
			}
			v = m.Value
		case int:
			if !v.Array || step >= len(v.Values) {
				return v, f.unknown("has no element %s", formatPath(f.path[:i+1]))
			}
			v = wire.Value{Kind: v.Kind, Values: v.Values[step : step+1]}
		}
		for len(v.Values) == 1 && !v.Array {
			inner, ok := v.Values[0].(wire.Value) // a Variant
			if !ok {
				break
			}
			v = inner
		}
	}
	return v, nil
}

// membersOf are those of a value that is one structure.
func membersOf(v wire.Value) wire.Members {
	if len(v.Values) != 1 || v.Array {
		return nil
	}
	switch x := v.Values[0].(type) {
	case structure:
		return x.members
	case wire.Members:
		return x
	}
	return nil
}

// formatPath is a path as a model has it.
func formatPath(p jsonpath.Path) string {
	var b bytes.Buffer
	for i, step := range p {
		switch n, isIndex := step.(int); {
		case isIndex:
			fmt.Fprintf(&b, "[%d]", n)
		case i > 0:
			fmt.Fprintf(&b, ".%v", step)
		default:
			fmt.Fprint(&b, step)
		}
	}
	return b.String()
}

// plain has texts as they are without the type of a property.
func (f *field) plain() *field { return &field{node: f.node} }

// asJSON is a value as JSON. What JSON can't have, and structures of types that aren't known, are null.
func (f *field) asJSON(v wire.Value) json.RawMessage {
	if v.Array {
		list := make([]json.RawMessage, len(v.Values))
		for i, x := range v.Values {
			list[i] = f.elementAsJSON(v.Kind, x)
		}
		return encodeJSON(list)
	}
	if len(v.Values) != 1 {
		return json.RawMessage("null")
	}
	return f.elementAsJSON(v.Kind, v.Values[0])
}

func (f *field) elementAsJSON(k wire.Kind, x any) json.RawMessage {
	switch x := x.(type) {
	case structure:
		return f.membersAsJSON(x.members)
	case wire.Members:
		return f.membersAsJSON(x)
	case wire.Value:
		return f.asJSON(x)
	}
	text, err := f.plain().text(k, x)
	if err != nil {
		return json.RawMessage("null")
	}
	return encodeJSON(jsonValue(x, text))
}

// membersAsJSON keeps the members' order.
func (f *field) membersAsJSON(m wire.Members) json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, x := range m {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(encodeJSON(x.Name))
		b.WriteByte(':')
		b.Write(f.asJSON(x.Value))
	}
	b.WriteByte('}')
	return b.Bytes()
}

func encodeJSON(x any) json.RawMessage {
	b, err := json.Marshal(x)
	if err != nil {
		return json.RawMessage("null")
	}
	return b
}

// changed is the value of a structure in which the member that the path leads to has another value; without a path all of it has.
func (f *field) changed(v wire.Value, text string) (wire.Value, error) {
	if len(f.path) == 0 {
		return f.replaced(v, text)
	}
	path, i := f.path, 0
	n, indexed := path[0].(int)
	if indexed {
		path, i = path[1:], n
	}
	if indexed != v.Array || i >= len(v.Values) {
		return v, mappers.Refuse(mappers.Rejected, "%s has no element %s", f.node, formatPath(f.path[:1]))
	}
	if len(path) == 0 {
		return v, mappers.Refuse(mappers.Rejected, "%s: an element of a list of structures is not written whole: name its member", f.node)
	}
	s, ok := v.Values[i].(structure)
	if !ok {
		return v, mappers.Refuse(mappers.NotReachable, "%s: the server doesn't say what is in the structure", f.node)
	}
	members, err := setMember(s.members, s.kind, path, text)
	if err != nil {
		return v, err
	}
	v.Values[i] = structure{s.encoding, s.kind, members}
	return sealValue(v)
}

// replaced is the value of structures that are written whole.
func (f *field) replaced(v wire.Value, text string) (wire.Value, error) {
	list := []json.RawMessage{json.RawMessage(text)}
	if v.Array {
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return v, mappers.Refuse(mappers.Invalid, "%q is no list of objects", clipText(text))
		}
	}
	if len(v.Values) == 0 && len(list) > 0 {
		return v, mappers.Refuse(mappers.NotReachable, "%s has no structure yet, of which the type would be known", f.node)
	}
	out := wire.Value{Kind: v.Kind, Array: v.Array, Values: []any{}}
	for i, raw := range list {
		s, ok := v.Values[min(i, len(v.Values)-1)].(structure)
		if !ok {
			return v, mappers.Refuse(mappers.NotReachable, "%s: the server doesn't say what is in the structure", f.node)
		}
		members, err := membersFrom(s.kind, raw)
		if err != nil {
			return v, err
		}
		out.Values = append(out.Values, structure{s.encoding, s.kind, members})
	}
	return sealValue(out)
}

// setMember sets the member that a path leads to.
func setMember(m wire.Members, kind *wire.StructureType, path jsonpath.Path, text string) (wire.Members, error) {
	name, ok := path[0].(string)
	f := kind.Field(name)
	if !ok || f == nil {
		return m, mappers.Refuse(mappers.NotReachable, "the structure has no member %s", formatPath(path[:1]))
	}
	x := m.Find(name)
	if x == nil {
		if kind.Kind != wire.OptionalStructure || len(path) > 1 {
			return m, mappers.Refuse(mappers.Rejected, "the structure doesn't have its member %s at the moment", name)
		}
		m = append(m, wire.Member{Name: name})
		x = &m[len(m)-1]
	}
	if path = path[1:]; len(path) == 0 {
		v, err := memberFrom(*f, text)
		x.Set(v)
		return m, err
	}
	element := 0
	if n, isIndex := path[0].(int); isIndex {
		if element, path = n, path[1:]; f.Rank != 1 || element >= len(x.Value.Values) {
			return m, mappers.Refuse(mappers.Rejected, "%s has no element %d", name, element)
		}
	} else if f.Rank != 0 {
		return m, mappers.Refuse(mappers.NotReachable, "%s is a list: name one of its elements", name)
	}
	values := slices.Clone(x.Value.Values)
	inner, isStructure := values[element].(wire.Members)
	switch {
	case len(path) == 0:
		one := *f
		one.Rank = 0
		v, err := memberFrom(one, text)
		if err != nil {
			return m, err
		}
		values[element] = v.Values[0]
	case f.Type == nil || !isStructure:
		return m, mappers.Refuse(mappers.NotReachable, "%s has no members", name)
	default:
		changed, err := setMember(inner, f.Type, path, text)
		if err != nil {
			return m, err
		}
		values[element] = changed
	}
	x.Set(wire.Value{Kind: x.Value.Kind, Array: x.Value.Array, Values: values})
	return m, nil
}

// memberFrom makes a member's value of a text.
func memberFrom(f wire.StructureField, text string) (wire.Value, error) {
	switch {
	case f.Rank > 1:
		return wire.Value{}, mappers.Refuse(mappers.Rejected, "%s is an array of %d dimensions, which is not written", f.Name, f.Rank)
	case f.Type == nil:
		return encode(text, f.Kind, f.Rank > 0)
	}
	list := []json.RawMessage{json.RawMessage(text)}
	if f.Rank > 0 {
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return wire.Value{}, mappers.Refuse(mappers.Invalid, "%s: %q is no list of objects", f.Name, clipText(text))
		}
	}
	v := wire.Value{Kind: f.Kind, Array: f.Rank > 0, Values: []any{}}
	for _, raw := range list {
		m, err := membersFrom(f.Type, raw)
		if err != nil {
			return v, err
		}
		v.Values = append(v.Values, m)
	}
	return v, nil
}

// membersFrom makes a structure of an object, which has all members that aren't optional.
func membersFrom(kind *wire.StructureType, raw json.RawMessage) (wire.Members, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(raw, &object); err != nil || object == nil {
		return nil, mappers.Refuse(mappers.Invalid, "%q is no object such as {\"X\":1}", clipText(string(raw)))
	}
	out := wire.Members{}
	for _, f := range kind.Fields {
		raw, ok := object[f.Name]
		delete(object, f.Name)
		if !ok {
			continue // Encode says what is missing
		}
		text := string(raw)
		if s := ""; json.Unmarshal(raw, &s) == nil && text != "null" {
			text = s
		}
		v, err := memberFrom(f, text)
		if err != nil {
			return nil, err
		}
		out = append(out, wire.Member{Name: f.Name, Value: v})
	}
	for name := range object {
		return nil, mappers.Refuse(mappers.Invalid, "the structure has no member %s", clipText(name))
	}
	return out, nil
}

// clipText shortens a text for an error.
func clipText(text string) string { return text[:min(len(text), 80)] }
