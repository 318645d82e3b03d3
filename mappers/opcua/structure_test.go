// SPDX-License-Identifier: Apache-2.0

package opcua

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/mappers"
	"github.com/edgebus/edgebus/mappers/jsonpath"
	"github.com/edgebus/edgebus/mappers/opcua/wire"
)

// newPressValue is {"Mode":1,"Axes":[{"Load":1.5},{"Load":2.5}],"Names":["a","b"]}, whose Tool is not there.
func newPressValue() (*wire.StructureType, wire.Value) {
	axis := &wire.StructureType{Fields: []wire.StructureField{{Name: "Load", Kind: wire.KindFloat}}}
	kind := &wire.StructureType{Kind: wire.OptionalStructure, Fields: []wire.StructureField{
		{Name: "Mode", Kind: wire.KindInt32},
		{Name: "Axes", Kind: wire.KindStructure, Type: axis, Rank: 1},
		{Name: "Names", Kind: wire.KindString, Rank: 1},
		{Name: "Tool", Kind: wire.KindByte, Optional: true},
	}}
	one := func(k wire.Kind, x any) wire.Value { return wire.Value{Kind: k, Values: []any{x}} }
	load := func(x float32) wire.Members { return wire.Members{{Name: "Load", Value: one(wire.KindFloat, x)}} }
	return kind, one(wire.KindStructure, structure{wire.NumericID(1, 7), kind, wire.Members{
		{Name: "Mode", Value: one(wire.KindInt32, int64(1))},
		{Name: "Axes", Value: wire.Value{Kind: wire.KindStructure, Array: true, Values: []any{load(1.5), load(2.5)}}},
		{Name: "Names", Value: wire.Value{Kind: wire.KindString, Array: true, Values: []any{"a", "b"}}},
	}})
}

func pressField(t *testing.T, path string) *field {
	t.Helper()
	p, err := jsonpath.Parse(path)
	require.NoError(t, err)
	return &field{node: wire.NumericID(1, 1), path: p}
}

func TestMembersOfAStructureAreRead(t *testing.T) {
	for path, want := range map[string]string{
		"": `{"Mode":1,"Axes":[{"Load":1.5},{"Load":2.5}],"Names":["a","b"]}`, "Mode": "1", "Axes[1].Load": "2.5", "Axes": `[{"Load":1.5},{"Load":2.5}]`,
		"Axes[0]": `{"Load":1.5}`, "Names[1]": "b", "Names": `["a","b"]`,
	} {
		_, v := newPressValue()
		text, err := pressField(t, path).decode(v)
		require.NoError(t, err, path)
		assert.Equal(t, want, text, path)
	}
	for _, path := range []string{"Tool", "Nothing", "Axes[2].Load", "Mode.X", "Axes.Load", "[0]"} {
		_, v := newPressValue()
		_, err := pressField(t, path).decode(v)
		var refused *mappers.Refusal
		require.ErrorAs(t, err, &refused, path)
		assert.Equal(t, mappers.Unknown, refused.Code, path)
	}
}

func TestMembersOfAStructureAreWritten(t *testing.T) {
	for _, c := range []struct{ path, text, want string }{
		{"Mode", "2", `{"Mode":2,"Axes":[{"Load":1.5},{"Load":2.5}],"Names":["a","b"]}`},
		{"Axes[1].Load", "3.5", `{"Mode":1,"Axes":[{"Load":1.5},{"Load":3.5}],"Names":["a","b"]}`},
		{"Axes", `[{"Load":7}]`, `{"Mode":1,"Axes":[{"Load":7}],"Names":["a","b"]}`},
		{"Axes[0]", `{"Load":7}`, `{"Mode":1,"Axes":[{"Load":7},{"Load":2.5}],"Names":["a","b"]}`},
		{"Names[0]", "x", `{"Mode":1,"Axes":[{"Load":1.5},{"Load":2.5}],"Names":["x","b"]}`},
		{"Tool", "9", `{"Mode":1,"Axes":[{"Load":1.5},{"Load":2.5}],"Names":["a","b"],"Tool":9}`},
		{"", `{"Mode":5,"Names":[],"Axes":[]}`, `{"Mode":5,"Axes":[],"Names":[]}`},
	} {
		kind, v := newPressValue()
		f := pressField(t, c.path)
		written, err := f.changed(v, c.text)
		require.NoError(t, err, c.path)
		s := written.Values[0].(wire.Structure)
		members, err := kind.Decode(s.Body)
		require.NoError(t, err, c.path)
		assert.JSONEq(t, c.want, string(f.membersAsJSON(members)), c.path)
		assert.Equal(t, wire.NumericID(1, 7), s.Type)
	}
	for _, c := range []struct{ path, text, want string }{
		{"Mode", "x", "no whole number"},
		{"Axes[5].Load", "1", "no element 5"},
		{"Axes.Load", "1", "name one of its elements"},
		{"Mode.X", "1", "no members"},
		{"Nothing", "1", "no member Nothing"},
		{"Tool.X", "1", "doesn't have its member Tool"},
		{"", "7", "no object"},
		{"", `{"Mode":1}`, "Axes is missing"},
		{"", `{"Mode":1,"Axes":[],"Names":[],"Colour":1}`, "no member Colour"},
		{"Axes", "{}", "no list"},
		{"Axes", `[{}]`, "Load is missing"},
		{"[0].Mode", "1", "no element"},
	} {
		_, v := newPressValue()
		_, err := pressField(t, c.path).changed(v, c.text)
		var refused *mappers.Refusal
		require.ErrorAs(t, err, &refused, c.path)
		require.ErrorContains(t, err, c.want, c.path)
	}
}
