// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
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

// kubectl shows of an invalid object nothing but its causes, so each has one that says why.
func TestARefusedPatchHasACauseThatSaysWhy(t *testing.T) {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	at := namespaceRoot + "/devicemodels/dimmable"
	for _, c := range []struct{ media, patch, field, says string }{
		{jsonPatch, `[{"op":"test","path":"/metadata/name","value":"other"}]`, "patch", "the patch is not for this object"},
		{jsonPatch, `[{"op":"remove","path":"/spec/nothing"}]`, "patch", "the patch can't be applied"},
		{mergePatch, `{"metadata":{"labels":{"a":"b c"}}}`, "metadata.labels[a]", "a label's value is"},
	} {
		st := h.do("PATCH", at, c.patch, "Content-Type", c.media)
		require.Equal(t, http.StatusUnprocessableEntity, st.code, "%s", st.body)
		require.Equal(t, c.field, st.str("details.causes.0.field"), "%s", st.body)
		require.Contains(t, st.str("details.causes.0.message"), c.says)
		require.Equal(t, "DeviceModel", st.str("details.kind"))
	}
	require.Contains(t, h.refused(http.StatusBadRequest, "BadRequest", "PATCH", at, `[]`, "Content-Type", mergePatch), "a merge patch is an object")
}

// apply applies a Device as a manager; more is more of its query.
func (h *hub) apply(manager, spec, more string) hubResponse {
	h.t.Helper()
	return h.do("PATCH", namespaceRoot+"/devices/lamp?fieldManager="+manager+more,
		"apiVersion: edgebus.io/v1alpha1\nkind: Device\nmetadata: {name: lamp}\nspec: "+spec, "Content-Type", applyPatch)
}

const requiredSpec = `deviceModelRef: {name: dimmable}, protocol: {type: modbus}`

func (r hubResponse) managers() (out []string) {
	list, _ := r.at("metadata.managedFields").([]any)
	for _, e := range list {
		out = append(out, e.(jsonObject)["manager"].(string))
	}
	return out
}

func TestApply(t *testing.T) {
	h := newHub(t)
	made := h.apply("ann", `{`+requiredSpec+`, desired: {power: "ON", brightness: 40}}`, "")
	require.Equal(t, 201, made.code, "%s", made.body)
	require.Equal(t, "40", made.str("spec.desired.brightness"))
	require.Equal(t, []string{"ann"}, made.managers())
	require.Equal(t, "Apply", made.str("metadata.managedFields.0.operation"))

	same := h.apply("ann", `{`+requiredSpec+`, desired: {power: "ON", brightness: 40}}`, "")
	require.Equal(t, 200, same.code)
	require.Equal(t, made.tree, same.tree, "no change, no write")

	both := h.apply("bob", `{desired: {power: "ON"}}`, "")
	require.Equal(t, 200, both.code, "%s", both.body)
	require.ElementsMatch(t, []string{"ann", "bob"}, both.managers())

	clash := h.apply("bob", `{desired: {power: "OFF"}}`, "")
	require.Equal(t, 409, clash.code)
	require.Equal(t, "Conflict", clash.str("reason"))
	require.Equal(t, `conflict with "ann"`, clash.str("details.causes.0.message"))
	require.Equal(t, "FieldManagerConflict", clash.str("details.causes.0.reason"))
	require.Equal(t, ".spec.desired.power", clash.str("details.causes.0.field"))

	forced := h.apply("bob", `{desired: {power: "OFF"}}`, "&force=true")
	require.Equal(t, "OFF", forced.str("spec.desired.power"))
	left := h.apply("ann", `{`+requiredSpec+`, desired: {brightness: 40}}`, "")
	require.Equal(t, "OFF", left.str("spec.desired.power"), "it is bob's now")
	gone := h.apply("ann", `{`+requiredSpec+`}`, "")
	require.Nil(t, gone.at("spec.desired.brightness"), "nobody wants it any more")
	require.Equal(t, "OFF", gone.str("spec.desired.power"))

	dry := h.apply("bob", `{desired: {power: "DIM"}}`, "&dryRun=All")
	require.Equal(t, "DIM", dry.str("spec.desired.power"))
	require.Equal(t, "OFF", h.ok("GET", namespaceRoot+"/devices/lamp", "").str("spec.desired.power"))
}

func TestApplyIsRefused(t *testing.T) {
	h := newHub(t)
	for says, r := range map[string]hubResponse{
		"fieldManager is required":              h.apply("", `{}`, ""),
		"does not match":                        h.do("PATCH", namespaceRoot+"/devices/other?fieldManager=x", lampJSON("", ""), "Content-Type", applyPatch),
		"apiVersion and kind":                   h.do("PATCH", namespaceRoot+"/devices/lamp?fieldManager=x", `{"metadata":{"name":"lamp"}}`, "Content-Type", applyPatch),
		"managedFields must be nil":             h.do("PATCH", namespaceRoot+"/devices/lamp?fieldManager=x", lampJSON(`,"managedFields":[{}]`, ""), "Content-Type", applyPatch),
		"unknown field":                         h.apply("x", `{`+requiredSpec+`, wrong: 1}`, "&fieldValidation=Strict"),
		"spec.protocol.type: is required":       h.apply("x", `{deviceModelRef: {name: m}}`, ""),
		"force is for":                          h.do("PATCH", namespaceRoot+"/devices/lamp?force=true", `{}`, "Content-Type", mergePatch),
		"at most 128":                           h.apply(strings.Repeat("x", 129), `{`+requiredSpec+`}`, ""),
		"devices.edgebus.io \"lamp\" not found": h.do("PATCH", namespaceRoot+"/devices/lamp/status?fieldManager=x", lampJSON("", ""), "Content-Type", applyPatch),
	} {
		require.Equal(t, "Status", r.str("kind"))
		require.Contains(t, r.str("message"), says)
		require.Less(t, r.code, 500)
	}
	h.refused(404, "NotFound", "GET", namespaceRoot+"/devices/lamp", "")
}

// An object has no record of managers until it is first applied; then other writes are in it, too.
func TestManagersAreKept(t *testing.T) {
	h := newHub(t)
	made := h.ok("POST", namespaceRoot+"/devices", lampJSON("", `,"desired":{"power":"ON"}`))
	require.Nil(t, made.at("metadata.managedFields"))
	first := h.apply("ann", `{desired: {power: "ON"}}`, "")
	require.ElementsMatch(t, []string{"ann", "before-first-apply"}, first.managers())

	patched := h.ok("PATCH", namespaceRoot+"/devices/lamp?fieldManager=edit", `{"spec":{"desired":{"power":"OFF"}}}`, "Content-Type", mergePatch)
	require.Contains(t, patched.managers(), "edit")
	clash := h.apply("ann", `{desired: {power: "ON"}}`, "")
	require.Equal(t, 409, clash.code)
	require.Contains(t, clash.str("message"), `conflict with "edit"`)

	h.ok("PATCH", namespaceRoot+"/devices/lamp/status?fieldManager=mapper", `{"status":{"state":"online"}}`, "Content-Type", mergePatch)
	got := h.ok("GET", namespaceRoot+"/devices/lamp", "")
	require.Contains(t, got.managers(), "mapper")
	require.Equal(t, "online", got.str("status.state"))
	status := h.do("PATCH", namespaceRoot+"/devices/lamp/status?fieldManager=ann", `{"apiVersion":"edgebus.io/v1alpha1","kind":"Device","status":{"lastSeen":"x"},"spec":{"nodeName":"n9"}}`, "Content-Type", applyPatch)
	require.Equal(t, 200, status.code, "%s", status.body)
	require.Equal(t, "x", status.str("status.lastSeen"))
	require.Equal(t, "online", status.str("status.state"))
	require.Equal(t, "n1", status.str("spec.nodeName"))

	reset := h.ok("PATCH", namespaceRoot+"/devices/lamp", `{"metadata":{"managedFields":[{}]}}`, "Content-Type", mergePatch)
	require.Empty(t, reset.managers())
}

// Lists that have keys are merged by them.
func TestApplyMergesLists(t *testing.T) {
	h := newHub(t)
	apply := func(manager, properties string) hubResponse {
		return h.do("PATCH", namespaceRoot+"/devicemodels/m?fieldManager="+manager,
			`{"apiVersion":"edgebus.io/v1alpha1","kind":"DeviceModel","spec":{"properties":[`+properties+`]}}`, "Content-Type", applyPatch)
	}
	apply("a", `{"name":"x","type":"int"}`)
	both := apply("b", `{"name":"y","type":"int"}`)
	require.Len(t, both.at("spec.properties"), 2)
	clash := apply("b", `{"name":"x","type":"string"}`)
	require.Equal(t, `.spec.properties[name="x"].type`, clash.str("details.causes.0.field"))
	twice := apply("b", `{"name":"z"},{"name":"z"}`)
	require.Equal(t, 422, twice.code, "%s", twice.body)
	left := apply("a", ``)
	require.Len(t, left.at("spec.properties"), 1)
}

// What kubectl apply wrote is taken over by kubectl apply --server-side.
func TestFromClientSideApply(t *testing.T) {
	h := newHub(t)
	last := `{\"apiVersion\":\"edgebus.io/v1alpha1\",\"kind\":\"Device\",\"metadata\":{\"name\":\"lamp\"},\"spec\":{\"deviceModelRef\":{\"name\":\"dimmable\"},\"nodeName\":\"n1\",\"protocol\":{\"type\":\"modbus\"}}}`
	h.ok("POST", namespaceRoot+"/devices?fieldManager=kubectl-client-side-apply",
		lampJSON(`,"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"`+last+`"}`, ""))
	moved := h.apply("kubectl", `{`+requiredSpec+`, nodeName: n2}`, "")
	require.Equal(t, 200, moved.code, "%s", moved.body)
	require.Equal(t, "n2", moved.str("spec.nodeName"))
	other := h.apply("other", `{nodeName: n3}`, "")
	require.Equal(t, 409, other.code)
}

func TestRacingApplies(t *testing.T) {
	h := newHub(t)
	const writers = 16
	codes := make(chan int, writers)
	for i := range writers {
		go func() {
			codes <- h.do("PATCH", namespaceRoot+"/devices/lamp?fieldManager=m"+string(rune('a'+i)),
				lampJSON("", `,"desired":{"p`+string(rune('a'+i))+`":"1"}`), "Content-Type", applyPatch).code
		}()
	}
	for range writers {
		select {
		case code := <-codes:
			require.Less(t, code, 300)
		case <-time.After(time.Minute):
			require.Fail(t, "an apply never ended")
		}
	}
	got := h.ok("GET", namespaceRoot+"/devices/lamp", "")
	require.Len(t, got.at("spec.desired"), writers)
	require.Len(t, got.managers(), writers)
	require.Equal(t, resource.KindDevice, got.str("kind"))
}

// An apply that changes nothing is no write, also if its body has fields that are null or empty and a second has passed since the one before.
func TestAnApplyThatChangesNothingWritesNothing(t *testing.T) {
	h := newHub(t)
	const at = "/api/v1/namespaces/default/configmaps/"
	for name, meta := range map[string]string{"plain": "", "null": "creationTimestamp: null", "empty": "labels: {}", "both": "annotations: {}\n  labels: null"} {
		apply := func(value string) hubResponse {
			return h.ok("PATCH", at+name+"?fieldManager=m", "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  "+meta+"\ndata: {a: "+value+"}\n", "Content-Type", applyPatch)
		}
		apply("b")
		const longAgo = "2020-01-01T00:00:00Z"
		aged := h.ok("PATCH", at+name, `[{"op":"replace","path":"/metadata/managedFields/0/time","value":"`+longAgo+`"}]`, "Content-Type", jsonPatch)
		require.Equal(t, longAgo, aged.str("metadata.managedFields.0.time"))
		require.Equal(t, aged.tree, apply("b").tree, meta)
		changed := apply("c")
		require.NotEqual(t, aged.str("metadata.resourceVersion"), changed.str("metadata.resourceVersion"))
		require.NotEqual(t, longAgo, changed.str("metadata.managedFields.0.time"))
	}
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	device := func(more string) hubResponse {
		return h.ok("PATCH", namespaceRoot+"/devices/lamp?fieldManager=m", "apiVersion: edgebus.io/v1alpha1\nkind: Device\nmetadata: {name: lamp"+more+"}\nspec: {"+requiredSpec+", desired: {}}\nstatus: {}", "Content-Type", applyPatch)
	}
	made := device(", labels: {}")
	aged := h.ok("PATCH", namespaceRoot+"/devices/lamp", `[{"op":"replace","path":"/metadata/managedFields/0/time","value":"2020-01-01T00:00:00Z"}]`, "Content-Type", jsonPatch)
	require.NotEqual(t, made.tree, aged.tree)
	require.Equal(t, aged.tree, device(", labels: {}").tree)
}

// TestDesiredValuesThatAreSetOverMQTTHaveAnOwner changes a Device in the store, as desired writes do, which don't go through the API.
func TestDesiredValuesThatAreSetOverMQTTHaveAnOwner(t *testing.T) {
	var reg *objects.Registry
	h := newHub(t, func(o *hubOptions) {
		reg = objects.New(objects.Options{Reader: o.Reader, Writer: o.Writer, Log: o.Log, Managers: Managers()})
	})
	require.Equal(t, 201, h.apply("ann", `{`+requiredSpec+`, desired: {power: "ON"}}`, "").code)
	key := store.Key{Kind: "Device", Namespace: "default", Name: "lamp"}
	before, err := h.store.Get(t.Context(), key)
	require.NoError(t, err)
	changed := bytes.Replace(before.Data, []byte(`"power":"ON"`), []byte(`"power":"OFF"`), 1)
	data, err := reg.Managed(before, changed, "bob")
	require.NoError(t, err)
	_, err = h.store.Update(t.Context(), store.Object{Key: key, Data: data}, before.Rev)
	require.NoError(t, err)

	clash := h.apply("ann", `{`+requiredSpec+`, desired: {power: "ON"}}`, "")
	require.Equal(t, 409, clash.code, "%s", clash.body)
	require.Contains(t, clash.str("details.causes.0.message"), `conflict with "bob"`)
	require.Equal(t, ".spec.desired.power", clash.str("details.causes.0.field"))
	require.Equal(t, "ON", h.apply("ann", `{`+requiredSpec+`, desired: {power: "ON"}}`, "&force=true").str("spec.desired.power"))
}
