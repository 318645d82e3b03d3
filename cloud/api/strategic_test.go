package api

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// What kubectl apply, edit and patch send for kinds that it has compiled in.
func TestStrategicMergePatches(t *testing.T) {
	h := newHub(t)
	const at = "/api/v1/namespaces/default/configmaps"
	patch := func(text string) hubResponse {
		return h.ok("PATCH", at+"/settings", text, "Content-Type", strategicPatch)
	}
	h.ok("POST", at, `{"metadata":{"name":"settings","finalizers":["a.example/x","b.example/y"]},"data":{"one":"1","two":"2"}}`)
	p := patch(`{"data":{"one":null,"three":"3"},"metadata":{"labels":{"site":"a"}}}`)
	require.Equal(t, map[string]any{"two": "2", "three": "3"}, p.at("data"))
	require.Equal(t, "a", p.str("metadata.labels.site"))

	p = patch(`{"metadata":{"finalizers":["c.example/z"],"$setElementOrder/finalizers":["c.example/z","a.example/x","b.example/y"]}}`)
	require.Equal(t, []any{"c.example/z", "a.example/x", "b.example/y"}, p.at("metadata.finalizers"), "lists of names are merged")
	p = patch(`{"metadata":{"$deleteFromPrimitiveList/finalizers":["a.example/x"]}}`)
	require.Equal(t, []any{"c.example/z", "b.example/y"}, p.at("metadata.finalizers"))
	p = patch(`{"data":{"$patch":"replace","four":"4"}}`)
	require.Equal(t, map[string]any{"four": "4"}, p.at("data"))

	h.ok("PATCH", at+"/settings?dryRun=All", `{"data":{"five":"5"}}`, "Content-Type", strategicPatch)
	require.Nil(t, h.ok("GET", at+"/settings", "").at("data.five"))
	h.refused(409, "Conflict", "PATCH", at+"/settings", `{"metadata":{"resourceVersion":"1"}}`, "Content-Type", strategicPatch)
	for _, bad := range []string{`{"data":{"$patch":"explode"}}`, `[]`, `7`, `{"metadata":{"finalizers":[{"a":1}]}}`} {
		h.refused(400, "BadRequest", "PATCH", at+"/settings", bad, "Content-Type", strategicPatch)
	}
	h.refused(415, "UnsupportedMediaType", "PATCH", namespaceRoot+"/devices/lamp", `{}`, "Content-Type", strategicPatch)
}

func FuzzStrategicMergePatch(f *testing.F) {
	const doc = `{"metadata":{"name":"a","finalizers":["x/y"],"ownerReferences":[{"uid":"1"}],"labels":{"a":"b"}},"data":{"a":"b"}}`
	for _, seed := range []string{
		`{"data":{"a":null}}`, `{"metadata":{"finalizers":["z"],"$setElementOrder/finalizers":["z","x/y"]}}`,
		`{"metadata":{"ownerReferences":[{"uid":"1","$patch":"delete"}]}}`, `{"$retainKeys":["data"],"data":{}}`, `{"$patch":"replace"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		apply, err := strategicPatcher(raw)
		if err != nil {
			return
		}
		if out, err := apply([]byte(doc)); err == nil {
			require.True(t, json.Valid(out))
		}
	})
}
