package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// applyForm applies a manifest in another group's form as a manager.
func (h *hub) applyForm(path, manager, manifest, more string) hubResponse {
	h.t.Helper()
	return h.do("PATCH", path+"?fieldManager="+manager+more, manifest, "Content-Type", applyPatch)
}

// A dialect is a version of the kind: who applies in it owns fields of that form, and conflicts name these.
func TestApplyInADialect(t *testing.T) {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	at := kubeedgeAlpha1 + "/devices/lamp"
	made := h.applyForm(at, "ann", kubeedgeDevice, "")
	require.Equal(t, 201, made.code, "%s", made.body)
	require.Equal(t, "n1", made.str("spec.node.id"))
	require.Equal(t, "in the hall", made.str("spec.node.comment"), "what is only kept as well")
	require.Equal(t, "devices.kubeedge.io/v1alpha1", made.str("metadata.managedFields.0.apiVersion"))
	require.NotContains(t, string(made.body), `"f:dialect.edgebus.io`, "the hub's own notes have no owner")
	ours := h.ok("GET", namespaceRoot+"/devices/lamp", "")
	require.Equal(t, "ON", ours.str("spec.desired.power"), "a wish, though it stands in the status")

	const head = "apiVersion: devices.kubeedge.io/v1alpha1\nkind: Device\nmetadata: {name: lamp}\n"
	clash := h.applyForm(at, "bob", head+"spec: {node: {id: n2}}", "")
	require.Equal(t, 409, clash.code, "%s", clash.body)
	require.Equal(t, ".spec.node.id", clash.str("details.causes.0.field"))
	require.Contains(t, clash.str("details.causes.0.message"), `conflict with "ann"`)
	clash = h.applyForm(at, "bob", head+"status: {twins: [{name: power, expected: {value: 'OFF'}}]}", "")
	require.Equal(t, 409, clash.code, "%s", clash.body)
	require.Equal(t, `.status.twins[name="power"].expected.value`, clash.str("details.causes.0.field"))

	forced := h.applyForm(at, "bob", head+"spec: {node: {id: n2}}", "&force=true")
	require.Equal(t, 200, forced.code, "%s", forced.body)
	require.Equal(t, "n2", h.ok("GET", namespaceRoot+"/devices/lamp", "").str("spec.nodeName"))

	// What a manager no longer says goes, and nothing else.
	less := h.applyForm(at, "ann", head+"spec: {deviceModelRef: {name: dimmable}, protocol: {type: modbus}}", "")
	require.Equal(t, 200, less.code, "%s", less.body)
	ours = h.ok("GET", namespaceRoot+"/devices/lamp", "")
	require.Nil(t, ours.at("spec.desired"))
	require.Nil(t, ours.at("spec.protocol.config"))
	require.Equal(t, "n2", ours.str("spec.nodeName"), "it is bob's")

	refused := h.applyForm(at, "ann", head+"spec: {protocol: {type: [1]}}", "")
	require.Equal(t, http.StatusUnprocessableEntity, refused.code)
	require.Contains(t, string(refused.body), "spec.protocol.type")
}

// Managers of several forms share an object.
func TestApplyInTwoForms(t *testing.T) {
	h := newHub(t)
	made := h.apply("ann", `{`+requiredSpec+`, nodeName: n1, desired: {power: "ON"}}`, "")
	require.Equal(t, 201, made.code, "%s", made.body)
	const head = "apiVersion: devices.kubeedge.io/v1beta1\nkind: Device\nmetadata: {name: lamp}\n"
	at := kubeedgeBeta1 + "/devices/lamp"
	same := h.applyForm(at, "bob", head+"spec: {nodeName: n1, properties: [{name: brightness, desired: {value: 40}}]}", "")
	require.Equal(t, 200, same.code, "%s", same.body)
	require.ElementsMatch(t, []string{"ann", "bob"}, same.managers())
	clash := h.applyForm(at, "bob", head+"spec: {nodeName: n2}", "")
	require.Equal(t, 409, clash.code, "%s", clash.body)
	require.Equal(t, ".spec.nodeName", clash.str("details.causes.0.field"))

	// The other way round the owner's form is the dialect's.
	clash = h.apply("ann", `{`+requiredSpec+`, nodeName: n1, desired: {power: "ON", brightness: 50}}`, "")
	require.Equal(t, 409, clash.code, "%s", clash.body)
	require.Contains(t, clash.str("details.causes.0.message"), `conflict with "bob"`)
	require.Equal(t, `.spec.properties[name="brightness"].desired.value`, clash.str("details.causes.0.field"))

	// Bob no longer wants brightness; ann's fields stay.
	less := h.applyForm(at, "bob", head+"spec: {nodeName: n1}", "")
	require.Equal(t, 200, less.code, "%s", less.body)
	ours := h.ok("GET", namespaceRoot+"/devices/lamp", "")
	require.Equal(t, dict{"power": "ON"}, ours.at("spec.desired"))
}

// A field that a dialect doesn't have is kept, told of, and refused by those who ask for that.
func TestMisspeltInADialect(t *testing.T) {
	h := newHub(t)
	body := `{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"Device","metadata":{"name":"lamp","label":{}},
		"spec":{"deviceModelRef":{"name":"dimmable"},"protocol":{"protocolName":"modbus"},"properties":[{"name":"power","pushMethod":{"dbMethod":{"any":1}},"desird":{"value":"ON"}}]}}`
	at := kubeedgeBeta1 + "/devices"
	said := h.refused(400, "BadRequest", "POST", at+"?fieldValidation=Strict", body)
	require.Contains(t, said, `unknown field "metadata.label"`)
	require.Contains(t, said, `unknown field "spec.properties[0].desird"`)
	require.NotContains(t, said, "pushMethod")
	made := h.ok("POST", at, body)
	require.Contains(t, made.header.Values("Warning"), `299 - "unknown field \"spec.properties[0].desird\""`)
	require.Equal(t, "ON", made.str("spec.properties.0.desird.value"))
	patched := h.ok("PATCH", at+"/lamp?fieldValidation=Strict", `{"spec":{"nodeName":"n1"}}`, "Content-Type", mergeType)
	require.Equal(t, "n1", patched.str("spec.nodeName"), "what was there already is no reason")
	applied := h.applyForm(at+"/lamp", "ann", `{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"Device","spec":{"nodename":"n1"}}`, "&fieldValidation=Strict")
	require.Equal(t, 400, applied.code, "%s", applied.body)
}

// Every field of every dialect says what it is: kubectl explain shows it.
func TestEveryFieldOfADialectIsExplained(t *testing.T) {
	for _, k := range addDialects(Kinds()) {
		if k.dialect == nil {
			continue
		}
		def := k.dialect.schema()
		for _, part := range []string{"spec", "status"} {
			below, _ := def["properties"].(dict)[part].(dict)
			eachProperty(below, func(name string, prop dict) {
				require.NotEmpty(t, prop["description"], "%s %s: %s in %s", k.APIVersion(), k.Name, name, part)
			})
		}
	}
}
