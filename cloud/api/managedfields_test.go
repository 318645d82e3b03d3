// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// owned lists who owns which of the fields at path, as they are written in the record.
func (r hubResponse) owned(path ...string) map[string][]string {
	out := make(map[string][]string)
	list, _ := r.at("metadata.managedFields").([]any)
	for _, e := range list {
		at := e.(jsonObject)["fieldsV1"]
		for _, step := range path {
			below, _ := at.(jsonObject)
			at = below["f:"+step]
		}
		fields, _ := at.(jsonObject)
		for name := range fields {
			if name != "." {
				manager := e.(jsonObject)["manager"].(string)
				out[name[len("f:"):]] = append(out[name[len("f:"):]], manager)
			}
		}
	}
	return out
}

// kubectl apply --server-side takes over all that the owner of its annotation has, and removes what
// its manifest hasn't: so of what was there before, that owner has only what kubectl apply said.
func TestWhoOwnedItBefore(t *testing.T) {
	const head = `"apiVersion":"edgebus.io/v1alpha1","kind":"Device"`
	client, before := []string{clientSideManager}, []string{beforeFirstManager}
	for name, c := range map[string]struct {
		said  string // by kubectl apply; the labels are room=hall, floor=2
		owner map[string][]string
	}{
		"one of two":         {`{` + head + `,"metadata":{"labels":{"room":"hall"}}}`, map[string][]string{"room": client, "floor": before}},
		"both":               {`{` + head + `,"metadata":{"labels":{"room":"hall","floor":"2"}}}`, map[string][]string{"room": client, "floor": client}},
		"changed since":      {`{` + head + `,"metadata":{"labels":{"room":"attic"}}}`, map[string][]string{"room": before, "floor": before}},
		"removed since":      {`{` + head + `,"metadata":{"labels":{"roof":"flat"}}}`, map[string][]string{"room": before, "floor": before}},
		"what was read out":  {`{` + head + `,"metadata":{"uid":"u","resourceVersion":"1","labels":{"room":"hall"},"managedFields":[{"manager":"x"}]},"status":{"state":"online"}}`, map[string][]string{"room": client, "floor": before}},
		"unknown fields":     {`{` + head + `,"metadata":{"labels":{"room":"hall"}},"wrong":1}`, map[string][]string{"room": client, "floor": before}},
		"nothing":            {``, map[string][]string{"room": before, "floor": before}},
		"no object":          {`[]`, map[string][]string{"room": before, "floor": before}},
		"no JSON":            {`{`, map[string][]string{"room": before, "floor": before}},
		"another kind":       {`{"apiVersion":"edgebus.io/v1alpha1","kind":"Node","metadata":{"labels":{"room":"hall"}}}`, map[string][]string{"room": before, "floor": before}},
		"another group":      {`{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"Device","metadata":{"labels":{"room":"hall"}}}`, map[string][]string{"room": before, "floor": before}},
		"text for an object": {`{` + head + `,"metadata":{"labels":{"room":"hall"}},"spec":"x"}`, map[string][]string{"room": before, "floor": before}},
		"null for an object": {`{` + head + `,"metadata":null}`, map[string][]string{"room": before, "floor": before}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t)
			text, err := json.Marshal(c.said)
			require.NoError(t, err)
			h.ok("POST", namespaceRoot+"/devices", lampJSON(`,"labels":{"room":"hall","floor":"2"},"annotations":{"`+lastAppliedAnnotation+`":`+string(text)+`,"note":"x"}`, ``))
			got := h.apply("ann", `{`+requiredSpec+`}`, "")
			require.Equal(t, 200, got.code, "%s", got.body)
			require.Equal(t, c.owner, got.owned("metadata", "labels"))
			notes := map[string][]string{lastAppliedAnnotation: client, "note": before}
			if c.said == "" {
				notes[lastAppliedAnnotation] = before
			}
			require.Equal(t, notes, got.owned("metadata", "annotations"))
		})
	}
}

// A list whose items lack their keys can be written into an annotation, but not be merged.
func TestWhatWasSaidCanBeNonsense(t *testing.T) {
	for _, said := range []string{`[{"type":"int"}]`, `[{"name":"x","type":"int"},{"name":"x","type":"int"}]`, `[null]`, `{}`} {
		h := newHub(t)
		text, err := json.Marshal(`{"apiVersion":"edgebus.io/v1alpha1","kind":"DeviceModel","spec":{"properties":` + said + `}}`)
		require.NoError(t, err)
		h.ok("POST", namespaceRoot+"/devicemodels", `{"metadata":{"name":"m","annotations":{"`+lastAppliedAnnotation+`":`+string(text)+`}},"spec":{"properties":[{"name":"x","type":"int"}]}}`)
		got := h.do("PATCH", namespaceRoot+"/devicemodels/m?fieldManager=ann",
			`{"apiVersion":"edgebus.io/v1alpha1","kind":"DeviceModel","spec":{"description":"d"}}`, "Content-Type", applyPatch)
		require.Equal(t, 200, got.code, "%s: %s", said, got.body)
		require.Equal(t, map[string][]string{lastAppliedAnnotation: {clientSideManager}}, got.owned("metadata", "annotations"), said)
		require.Len(t, got.at("spec.properties"), 1, said)
	}
}

// The record may begin with the status; it is the same.
func TestTheStatusIsAppliedFirst(t *testing.T) {
	h := newHub(t)
	text, err := json.Marshal(`{"apiVersion":"edgebus.io/v1alpha1","kind":"Device","metadata":{"labels":{"room":"hall"}}}`)
	require.NoError(t, err)
	h.ok("POST", namespaceRoot+"/devices", lampJSON(`,"labels":{"room":"hall","floor":"2"},"annotations":{"`+lastAppliedAnnotation+`":`+string(text)+`}`, ``))
	got := h.do("PATCH", namespaceRoot+"/devices/lamp/status?fieldManager=ann", `{"apiVersion":"edgebus.io/v1alpha1","kind":"Device","status":{"state":"online"}}`, "Content-Type", applyPatch)
	require.Equal(t, 200, got.code, "%s", got.body)
	require.Equal(t, map[string][]string{"room": {clientSideManager}, "floor": {beforeFirstManager}}, got.owned("metadata", "labels"))
	for _, e := range got.at("metadata.managedFields").([]any) {
		require.Equal(t, e.(jsonObject)["manager"] == "ann", e.(jsonObject)["subresource"] == "status")
	}
}
