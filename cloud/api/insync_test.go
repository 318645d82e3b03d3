package api

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
)

// settledLamp is a lamp that is as it is wanted: on, and online.
func settledLamp(t *testing.T) *hub {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	made := h.ok("POST", namespaceRoot+"/devices", lampJSON("", `,"desired":{"power":"ON"}`))
	require.Equal(t, "ON", made.str("status.twin.power.desired.value"))
	require.Equal(t, "False", made.condition("InSync"), "nobody has reported anything")
	_, err := h.store.Update(context.Background(), store.Object{Key: store.Key{Kind: "Device", Namespace: "default", Name: "lamp"}, Status: json.RawMessage(`{
		"state":"online","twin":{"power":{"desired":{"value":"ON","ver":1},"reported":{"value":"ON","ver":1,"for":1},"inSync":true}},
		"conditions":[{"type":"InSync","status":"True","reason":"AsDesired","observedGeneration":1,"lastTransitionTime":"2026-11-21T09:00:00Z"},
			{"type":"Online","status":"True","reason":"Online","observedGeneration":1,"lastTransitionTime":"2026-11-21T09:00:00Z"}]}`)}, 0)
	require.NoError(t, err)
	return h
}

func (r hubResponse) condition(kind string) string {
	conditions, _ := r.at("status.conditions").([]any)
	for _, c := range conditions {
		if c := c.(dict); c["type"] == kind {
			require.Equal(r.t, r.at("metadata.generation"), c["observedGeneration"], "%s is about the object as it is", kind)
			return c["status"].(string)
		}
	}
	r.t.Fatalf("no condition %s: %s", kind, r.body)
	return ""
}

// Whoever writes a desired value by whichever verb, and whoever reads it in whichever form, has a status that is about it.
func TestTheAnswerOfAWriteIsAboutIt(t *testing.T) {
	off := `,"desired":{"power":"OFF"}`
	for verb, write := range map[string]func(h *hub) hubResponse{
		"merge patch": func(h *hub) hubResponse {
			return h.ok("PATCH", namespaceRoot+"/devices/lamp", `{"spec":{"desired":{"power":"OFF"}}}`, "Content-Type", mergePatch)
		},
		"JSON patch": func(h *hub) hubResponse {
			return h.ok("PATCH", namespaceRoot+"/devices/lamp", `[{"op":"replace","path":"/spec/desired/power","value":"OFF"}]`, "Content-Type", jsonPatch)
		},
		"PUT": func(h *hub) hubResponse { return h.ok("PUT", namespaceRoot+"/devices/lamp", lampJSON("", off)) },
		"apply": func(h *hub) hubResponse {
			return h.ok("PATCH", namespaceRoot+"/devices/lamp?fieldManager=ann&force=true", `{"apiVersion":"edgebus.io/v1alpha1","kind":"Device","spec":{"desired":{"power":"OFF"}}}`, "Content-Type", applyPatch)
		},
		"dry run": func(h *hub) hubResponse {
			r := h.ok("PATCH", namespaceRoot+"/devices/lamp?dryRun=All", `{"spec":{"desired":{"power":"OFF"}}}`, "Content-Type", mergePatch)
			h.ok("PATCH", namespaceRoot+"/devices/lamp", `{"spec":{"desired":{"power":"OFF"}}}`, "Content-Type", mergePatch)
			return r
		},
	} {
		t.Run(verb, func(t *testing.T) {
			h := settledLamp(t)
			watched := h.watch(namespaceRoot + "/devices?watch=true&resourceVersion=" + h.ok("GET", namespaceRoot+"/devices", "").str("metadata.resourceVersion"))
			table := h.watch(namespaceRoot+"/devices?watch=true&resourceVersion="+h.ok("GET", namespaceRoot+"/devices", "").str("metadata.resourceVersion"),
				"Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
			got := write(h)
			event := watched.next()
			event.tree = event.tree["object"].(dict)
			for where, r := range map[string]hubResponse{"answer": got, "GET": h.ok("GET", namespaceRoot+"/devices/lamp", ""), "watch": event} {
				require.Equal(t, "OFF", r.str("spec.desired.power"), where)
				require.Equal(t, "OFF", r.str("status.twin.power.desired.value"), where)
				require.EqualValues(t, 2, r.at("status.twin.power.desired.ver"), where)
				require.Equal(t, "ON", r.str("status.twin.power.reported.value"), where)
				require.Equal(t, false, r.at("status.twin.power.inSync"), where)
				require.Equal(t, "False", r.condition("InSync"), where)
				require.Equal(t, "True", r.condition("Online"), where)
				require.Equal(t, "online", r.str("status.state"), where)
			}
			list := h.ok("GET", namespaceRoot+"/devices", "")
			require.Equal(t, "OFF", list.str("items.0.status.twin.power.desired.value"))
			row := h.ok("GET", namespaceRoot+"/devices", "", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
			require.Equal(t, "False", row.str("rows.0.cells.4"), "%s", row.body)
			require.Equal(t, "False", table.next().str("object.rows.0.cells.4"))
			theirs := h.ok("GET", kubeedgeAlpha1+"/devices/lamp", "")
			require.Equal(t, "OFF", theirs.str("status.twins.0.expected.value"), "%s", theirs.body)
		})
	}
}

// A dialect has its wishes in the status: a write of that is a write of ours.
func TestADesiredValueInADialectsStatusIsSet(t *testing.T) {
	h := settledLamp(t)
	h.ok("PATCH", kubeedgeAlpha1+"/devices/lamp/status", `{"status":{"twins":[{"name":"power","expected":{"value":"OFF"}}]}}`, "Content-Type", mergePatch)
	got := h.ok("GET", namespaceRoot+"/devices/lamp", "")
	require.Equal(t, "OFF", got.str("spec.desired.power"), "%s", got.body)
	require.Equal(t, "OFF", got.str("status.twin.power.desired.value"))
	require.Equal(t, "False", got.condition("InSync"))
}

// What another node reported says nothing about a device that was given to this one.
func TestAMovedDeviceIsNotAsTheOtherNodeSaid(t *testing.T) {
	h := settledLamp(t)
	moved := h.ok("PATCH", namespaceRoot+"/devices/lamp", `{"spec":{"nodeName":"n2"}}`, "Content-Type", mergePatch)
	require.Equal(t, "False", moved.condition("InSync"))
	require.Nil(t, moved.at("status.twin.power.reported"))
	require.Equal(t, "unknown", moved.str("status.state"))
}
