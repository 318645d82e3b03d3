package api

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDuplicateFields(t *testing.T) {
	for text, want := range map[string][]string{
		`{"a":1,"b":{"a":2},"c":[{"a":3},{"a":4}]}`:       nil,
		`{"a":1,"a":1,"a":1}`:                             {"a"},
		`{"a":{"b":1,"c":2,"b":3},"d":[7,{"e":1,"e":2}]}`: {"a.b", "d[1].e"},
		`{"a":{"x":1,"x":2},"a":{"x":1}}`:                 {"a.x", "a"},
		`{"a":1,"\u0061":2}`:                              {"a"},
		`7`:                                               nil,
	} {
		require.Equal(t, want, duplicateFields([]byte(text)), text)
	}
	fromText, err := fromYAML([]byte("a: {b: 1, b: 2}\nc:\n- d: 1\n- d: 1\n  d: 2\n"))
	require.NoError(t, err)
	require.Equal(t, []string{"a.b", "c[1].d"}, duplicateFields(fromText))
}

func TestDuplicateFieldsAreReported(t *testing.T) {
	h := newHub(t)
	h.nodes("n2", "n4")
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	body := lampJSON("", `,"nodeName":"n2"`)
	const says = `duplicate field "spec.nodeName"`
	for what, r := range map[string]hubResponse{
		"create": h.do("POST", namespaceRoot+"/devices?fieldValidation=Strict", body),
		"YAML":   h.do("POST", namespaceRoot+"/devices?fieldValidation=Strict", "metadata: {name: x}\nspec:\n  nodeName: a\n  nodeName: b\n", "Content-Type", "application/yaml"),
		"apply":  h.do("PATCH", namespaceRoot+"/devices/lamp?fieldManager=x&fieldValidation=Strict", body, "Content-Type", applyPatch),
	} {
		require.Equal(t, 400, r.code, what)
		require.Contains(t, r.str("message"), "strict decoding error: "+says, what)
		require.Equal(t, "spec.nodeName", r.str("details.causes.0.field"), what)
	}
	made := h.ok("POST", namespaceRoot+"/devices", body)
	require.Equal(t, []string{`299 - "duplicate field \"spec.nodeName\""`}, made.header.Values("Warning"))
	require.Equal(t, "n2", made.str("spec.nodeName"), "the last counts")
	const patch = `{"spec":{"nodeName":"n3","nodeName":"n4"}}`
	h.refused(400, "BadRequest", "PATCH", namespaceRoot+"/devices/lamp?fieldValidation=Strict", patch, "Content-Type", mergePatch)
	quiet := h.ok("PATCH", namespaceRoot+"/devices/lamp?fieldValidation=Ignore", patch, "Content-Type", mergePatch)
	require.Empty(t, quiet.header.Values("Warning"))
}
