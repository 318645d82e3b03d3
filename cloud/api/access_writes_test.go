// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Nodes, viewers and mappers write nothing: no kind in any group, by no verb, whole or in part.
func TestOnlyOperatorsWrite(t *testing.T) {
	h := newHubWithUsers(t)
	before := h.ok("GET", apiRoot+"/devices", "", "As", "boss").str("metadata.resourceVersion")
	require.NotEmpty(t, before)
	kinds := addDialects(Kinds())
	for i := range kinds {
		k := &kinds[i]
		collection := k.root() + "/" + k.Plural
		if k.Namespaced {
			collection = k.root() + "/namespaces/default/" + k.Plural
		}
		for _, name := range []string{"n1", "lamp1"} { // there may be one of that name, or not
			for _, c := range [][3]string{
				{"POST", collection, "application/json"},
				{"POST", collection + "?dryRun=All", "application/json"},
				{"POST", collection + "?watch=true", "application/json"},
				{"DELETE", collection, "application/json"},
				{"PUT", collection + "/" + name, "application/json"},
				{"PUT", collection + "/" + name + "/status", "application/json"},
				{"PATCH", collection + "/" + name, mergePatch},
				{"PATCH", collection + "/" + name, jsonPatch},
				{"PATCH", collection + "/" + name + "?fieldManager=f&force=true", applyPatch},
				{"PATCH", collection + "/" + name + "/status", mergePatch},
				{"DELETE", collection + "/" + name, "application/json"},
				{"BREW", collection + "/" + name, "application/json"},
			} {
				for _, as := range []string{"vic", "map", "n1", "nobody"} {
					want := 403
					switch {
					case as == "nobody":
						want = 401
					case as == "n1" && name == "n1" && k.storeKind() == "Node" && strings.HasSuffix(c[1], "/status"):
						continue // see TestANodeReportsItsOwnStatus
					case k.NoStatus && strings.HasSuffix(c[1], "/status"):
						want = 404
					}
					r := h.do(c[0], c[1], deviceOnNode(name, "n1"), "As", as, "Content-Type", c[2], "X-HTTP-Method-Override", "GET")
					require.Equal(t, want, r.code, "%s: %s %s: %s", as, c[0], c[1], r.body)
				}
			}
		}
	}
	require.Equal(t, before, h.ok("GET", apiRoot+"/devices", "", "As", "boss").str("metadata.resourceVersion"), "nothing was written")
}

// dialectForm is a kind's path in some group, and an object of it of a name and a node.
type dialectForm struct {
	collection string
	of         func(name, node string) string
}

func deviceForms() []dialectForm {
	form := func(apiVersion, spec string) dialectForm {
		return dialectForm{"/apis/" + apiVersion + "/namespaces/default/devices", func(name, node string) string {
			return fmt.Sprintf(`{"apiVersion":%q,"kind":"Device","metadata":{"name":%q},"spec":{"deviceModelRef":{"name":"dimmable"},%s}}`,
				apiVersion, name, fmt.Sprintf(spec, node))
		}}
	}
	return []dialectForm{
		form("edgebus.io/v1alpha1", `"nodeName":%q,"protocol":{"type":"virtual"}`),
		form("devices.kubeedge.io/v1alpha1", `"node":{"id":%q},"protocol":{"type":"virtual"}`),
		form("devices.kubeedge.io/v1alpha2", `"nodeSelector":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"","operator":"In","values":[%q]}]}]},`+
			`"protocol":{"customizedProtocol":{"protocolName":"virtual"}}`),
		form("devices.kubeedge.io/v1beta1", `"nodeName":%q,"protocol":{"protocolName":"virtual"}`),
	}
}

func specOf(object string) string {
	return strings.TrimSuffix(object[strings.Index(object, `"spec":`)+len(`"spec":`):], "}")
}

// attempts are ways to write an object as another one is to be: whole, in part, by apply.
func (f dialectForm) attempts(name, node string) [][4]string {
	at, body := f.collection+"/"+name, f.of(name, node)
	return [][4]string{
		{"PUT", at, "application/json", body},
		{"PATCH", at, mergePatch, body},
		{"PATCH", at, jsonPatch, `[{"op":"replace","path":"/spec","value":` + specOf(body) + `}]`},
		{"PATCH", at + "?fieldManager=f&force=true", applyPatch, body},
	}
}

// What is on another node is out of reach for who has some, in any group's form: it can't be written, taken
// over or deleted, and nothing can be put there.
func TestOthersDevicesAreOutOfReach(t *testing.T) {
	h := newHubWithUsers(t)
	before := h.ok("GET", apiRoot+"/devices", "", "As", "boss").at("items")
	for _, f := range deviceForms() {
		at := f.collection + "/lamp2"
		refused := [][4]string{
			{"POST", f.collection, "application/json", f.of("new", "n2")},
			{"POST", f.collection + "?dryRun=All", "application/json", f.of("new", "n2")},
			{"POST", f.collection, "application/json", f.of("new", "")},
			{"PATCH", f.collection + "/new?fieldManager=f", applyPatch, f.of("new", "n2")},
			{"PATCH", at, jsonPatch, `[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`},
			{"PUT", at + "/status", "application/json", f.of("lamp2", "n2")},
			{"PATCH", at + "/status", mergePatch, `{"status":{}}`},
			{"DELETE", at, "application/json", ""},
			{"DELETE", at + "?dryRun=All", "application/json", ""},
			{"GET", at, "application/json", ""},
		}
		refused = append(refused, f.attempts("lamp2", "n1")...) // take it
		refused = append(refused, f.attempts("lamp2", "n2")...) // change it
		refused = append(refused, f.attempts("lamp0", "n1")...) // take what is nobody's
		refused = append(refused, f.attempts("lamp1", "n2")...) // give it away
		for _, c := range refused {
			r := h.do(c[0], c[1], c[3], "As", "ann", "Content-Type", c[2])
			if r.code == 422 && c[2] == mergePatch || r.code == 422 && c[2] == applyPatch { // of an older form into what has the newer field: two nodes are named
				require.Contains(t, r.str("message"), "is not the node of spec.nodeName")
				continue
			}
			require.Equal(t, 403, r.code, "%s %s %s: %s", c[0], c[1], c[3], r.body)
			if !strings.HasPrefix(c[1], namespaceRoot+"/devices/lamp2/status") {
				require.Contains(t, r.str("message"), "ann is an operator of the nodes n1, plant-*")
			}
		}
		for _, c := range f.attempts("lamp1", "n1") { // the same of one's own
			c[1] += map[bool]string{true: "&", false: "?"}[strings.Contains(c[1], "?")] + "dryRun=All"
			r := h.do(c[0], c[1], c[3], "As", "ann", "Content-Type", c[2])
			require.Equal(t, 200, r.code, "%s %s %s: %s", c[0], c[1], c[3], r.body)
		}
		require.Contains(t, []int{400, 422}, h.do("PUT", f.collection+"/lamp1", strings.Replace(f.of("lamp1", "n1"), `"dimmable"`, "5", 1), "As", "ann").code,
			"what can't be understood isn't called forbidden")
	}
	require.Equal(t, before, h.ok("GET", apiRoot+"/devices", "", "As", "boss").at("items"))
}

// The same of Nodes, which are flightctl's Devices, in either of its places.
func TestOthersNodesAreOutOfReach(t *testing.T) {
	h := newHubWithUsers(t)
	before := h.ok("GET", apiRoot+"/nodes", "", "As", "boss").at("items")
	form := func(collection, apiVersion, kind string) dialectForm {
		return dialectForm{collection, func(name, image string) string {
			return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q},"spec":{"os":{"image":%q}}}`, apiVersion, kind, name, image)
		}}
	}
	for _, f := range []dialectForm{
		form(apiRoot+"/nodes", "edgebus.io/v1alpha1", "Node"),
		form("/apis/flightctl.io/v1alpha1/devices", "flightctl.io/v1alpha1", "Device"),
		form("/api/v1/devices", "flightctl.io/v1alpha1", "Device"),
	} {
		for _, c := range append(f.attempts("n2", "quay.io/x:1"), [][4]string{
			{"POST", f.collection, "application/json", f.of("n3", "quay.io/x:1")},
			{"POST", f.collection, "application/json", `{"metadata":{"generateName":"n1"},"spec":{}}`},
			{"PATCH", f.collection + "/n3?fieldManager=f", applyPatch, f.of("n3", "quay.io/x:1")},
			{"PATCH", f.collection + "/n2/status", mergePatch, `{"status":{}}`},
			{"PUT", f.collection + "/n2/status", "application/json", f.of("n2", "")},
			{"DELETE", f.collection + "/n2", "application/json", ""},
			{"GET", f.collection + "/n2", "application/json", ""},
		}...) {
			r := h.do(c[0], c[1], c[3], "As", "ann", "Content-Type", c[2])
			require.Equal(t, 403, r.code, "%s %s %s: %s", c[0], c[1], c[3], r.body)
		}
		r := h.do("POST", f.collection+"?dryRun=All", f.of("plant-7", "quay.io/x:1"), "As", "ann")
		require.Equal(t, 201, r.code, "%s", r.body)
	}
	require.Equal(t, before, h.ok("GET", apiRoot+"/nodes", "", "As", "boss").at("items"))
}

// What belongs to no node (models, fleets, configurations of Akri, secrets) is written by who has all nodes.
func TestWhatIsSharedIsForWhoHasAllNodes(t *testing.T) {
	h := newHubWithUsers(t)
	kinds := addDialects(Kinds())
	for i := range kinds {
		k := &kinds[i]
		if k.Node != nil && k.Name != "Event" {
			continue
		}
		collection := k.root() + "/" + k.Plural
		if k.Namespaced {
			collection = k.root() + "/namespaces/default/" + k.Plural
		}
		for _, c := range [][3]string{
			{"POST", collection, "application/json"},
			{"DELETE", collection, "application/json"},
			{"PUT", collection + "/n1", "application/json"},
			{"PATCH", collection + "/n1", mergePatch},
			{"PATCH", collection + "/n1", jsonPatch},
			{"PATCH", collection + "/n1?fieldManager=f&force=true", applyPatch},
			{"DELETE", collection + "/n1", "application/json"},
		} {
			r := h.do(c[0], c[1], `{"metadata":{"name":"n1"}}`, "As", "ann", "Content-Type", c[2])
			require.Equal(t, 403, r.code, "%s %s: %s", c[0], c[1], r.body)
		}
	}
}

// A node says how it is, as flightctl's agent does with its certificate: in the status of its own Node, and nowhere else.
func TestANodeReportsItsOwnStatus(t *testing.T) {
	h := newHubWithUsers(t)
	h.ok("PATCH", apiRoot+"/nodes/n1", `{"metadata":{"labels":{"a":"b"}},"spec":{"os":{"image":"quay.io/x:1"}}}`, "As", "boss", "Content-Type", mergePatch)
	before := h.ok("GET", apiRoot+"/nodes/n1", "", "As", "boss")
	for i, c := range []struct{ collection, head string }{
		{apiRoot + "/nodes", `"apiVersion":"edgebus.io/v1alpha1","kind":"Node"`},
		{"/apis/flightctl.io/v1alpha1/devices", `"apiVersion":"flightctl.io/v1alpha1","kind":"Device"`},
		{"/api/v1/devices", `"apiVersion":"flightctl.io/v1alpha1","kind":"Device"`},
	} {
		body := func(name, version string) string {
			return fmt.Sprintf(`{%s,"metadata":{"name":%q,"labels":{"a":"mine"},"annotations":{"a":"mine"}},`+
				`"spec":{"os":{"image":"quay.io/x:2"}},"status":{"renderedVersion":%q}}`, c.head, name, version)
		}
		own, version := c.collection+"/n1/status", fmt.Sprint(i)
		require.Equal(t, version, h.ok("PUT", own, body("n1", version), "As", "n1").str("status.renderedVersion"))
		h.ok("PATCH", own, body("n1", version+"0"), "As", "n1", "Content-Type", mergePatch)
		after := h.ok("GET", apiRoot+"/nodes/n1", "", "As", "n1")
		require.Equal(t, version+"0", after.str("status.renderedVersion"))
		require.Equal(t, before.at("spec"), after.at("spec"))
		require.Equal(t, before.at("metadata.labels"), after.at("metadata.labels"))
		require.Nil(t, after.at("metadata.annotations"))

		for _, refused := range [][3]string{
			{"PUT", c.collection + "/n2/status", body("n2", "9")},
			{"PATCH", c.collection + "/n2/status", body("n2", "9")},
			{"PUT", c.collection + "/n3/status", body("n3", "9")}, // there is none
			{"PUT", c.collection + "/n1", body("n1", "9")},
			{"PATCH", c.collection + "/n1", body("n1", "9")},
			{"POST", own, body("n1", "9")},
			{"DELETE", own, ""},
		} {
			r := h.do(refused[0], refused[1], refused[2], "As", "n1", "Content-Type", patchType(refused[0]))
			require.Equal(t, 403, r.code, "%s %s: %s", refused[0], refused[1], r.body)
		}
		require.Equal(t, 409, h.do("PUT", own, strings.Replace(body("n1", "9"), `{"name"`, `{"uid":"other","name"`, 1), "As", "n1").code)
	}
	require.Equal(t, 403, h.do("PUT", namespaceRoot+"/devices/lamp1/status", deviceOnNode("lamp1", "n1"), "As", "n1").code, "a Device's comes over MQTT")

	rules := h.ok("POST", authorizationRoot+"/selfsubjectrulesreviews", `{"spec":{"namespace":"default"}}`, "As", "n1")
	require.Contains(t, string(rules.body), `"resourceNames":["n1"],"resources":["nodes/status"],"verbs":["patch","update"]`)
	for name, want := range map[string]bool{"n1": true, "n2": false, "": false} {
		r := h.ok("POST", authorizationRoot+"/selfsubjectaccessreviews", fmt.Sprintf(
			`{"spec":{"resourceAttributes":{"verb":"update","group":"edgebus.io","resource":"nodes","subresource":"status","name":%q}}}`, name), "As", "n1")
		require.Equal(t, want, r.at("status.allowed"), name)
	}
}
