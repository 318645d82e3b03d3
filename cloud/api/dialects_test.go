// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	kubeedgeAlpha1   = "/apis/devices.kubeedge.io/v1alpha1/namespaces/default"
	kubeedgeBeta1    = "/apis/devices.kubeedge.io/v1beta1/namespaces/default"
	flightctlDevices = "/apis/flightctl.io/v1alpha1/devices"
	kubeedgeDevice   = `{"apiVersion":"devices.kubeedge.io/v1alpha1","kind":"Device","metadata":{"name":"lamp"},
		"spec":{"deviceModelRef":{"name":"dimmable"},"node":{"id":"n1","comment":"in the hall"},"protocol":{"type":"modbus","config":{"unit":3}}},
		"status":{"state":"online","twins":[{"name":"power","expected":{"value":true},"actual":{"value":false}}]}}`
	mergeType = "application/merge-patch+json"
)

func TestDialectsAreDiscovered(t *testing.T) {
	h := newHub(t)
	groups := h.ok("GET", "/apis", "")
	require.Equal(t, "edgebus.io", groups.str("groups.0.name"), "kubectl get devices means ours")
	kubeedge := h.ok("GET", "/apis/devices.kubeedge.io", "")
	require.Equal(t, "v1beta1", kubeedge.str("preferredVersion.version"))
	require.Equal(t, "v1alpha1", kubeedge.str("versions.2.version"))
	for _, at := range []string{"devices.kubeedge.io/v1alpha2", "flightctl.io/v1alpha1", "akri.sh/v0", "upgrade.kubeedge.io/v1alpha2"} {
		require.NotEmpty(t, h.ok("GET", "/apis/"+at, "").at("resources"))
		require.NotEmpty(t, h.ok("GET", "/openapi/v3/apis/"+at, "").at("paths"))
	}
}

// A dialect shows the same objects: the same revisions, the same watch, the same rules.
func TestDialectIsAView(t *testing.T) {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	watched := h.watch(kubeedgeBeta1 + "/devices?watch=true")
	made := h.ok("POST", kubeedgeAlpha1+"/devices", kubeedgeDevice)
	require.Equal(t, "n1", made.str("spec.node.id"))
	require.Equal(t, "online", made.str("status.state"), "a claim is shown where it was made")

	ours := h.ok("GET", namespaceRoot+"/devices/lamp", "")
	require.Equal(t, "edgebus.io/v1alpha1", ours.str("apiVersion"))
	require.Equal(t, made.at("metadata.resourceVersion"), ours.at("metadata.resourceVersion"))
	require.Equal(t, "n1", ours.str("spec.nodeName"))
	require.Equal(t, "3", ours.str("spec.protocol.config.unit"))
	require.Equal(t, "ON", ours.str("spec.desired.power"), "by the model's enumeration")
	require.Nil(t, ours.at("status.state"), "what only is claimed is no status")

	event := watched.next()
	require.Equal(t, "ADDED", event.str("type"))
	require.Equal(t, "devices.kubeedge.io/v1beta1", event.str("object.apiVersion"))
	require.Equal(t, "power", event.str("object.spec.properties.0.name"))

	list := h.ok("GET", "/apis/devices.kubeedge.io/v1alpha2/devices", "")
	require.Equal(t, "DeviceList", list.str("kind"))
	require.Equal(t, "In", list.str("items.0.spec.nodeSelector.nodeSelectorTerms.0.matchExpressions.0.operator"))

	h.refused(http.StatusUnsupportedMediaType, "UnsupportedMediaType", "PATCH", kubeedgeAlpha1+"/devices/lamp/status?fieldManager=x", kubeedgeDevice, "Content-Type", applyPatch)
	h.ok("DELETE", kubeedgeAlpha1+"/devices/lamp", "")
	h.refused(http.StatusNotFound, "NotFound", "GET", namespaceRoot+"/devices/lamp", "")
	require.Equal(t, "DELETED", watched.next().str("type"))
}

func TestDialectWrites(t *testing.T) {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	h.ok("POST", namespaceRoot+"/devices", lampJSON(`,"labels":{"room":"hall"}`, `,"desired":{"brightness":40},"desiredUntil":{"brightness":"2027-01-01T00:00:00Z"}`))

	patched := h.ok("PATCH", kubeedgeBeta1+"/devices/lamp", `{"spec":{"nodeName":"n2"}}`, "Content-Type", mergeType)
	require.Equal(t, "n2", patched.str("spec.nodeName"))
	ours := h.ok("GET", namespaceRoot+"/devices/lamp", "")
	require.Equal(t, "n2", ours.str("spec.nodeName"))
	require.Equal(t, "2027-01-01T00:00:00Z", ours.str("spec.desiredUntil.brightness"), "what the form can't say stays")
	require.EqualValues(t, 2, ours.at("metadata.generation"))

	// A wish stands in the status there: it is one through either path.
	wish := `{"spec":{"nodeName":"n5"},"status":{"twins":[{"name":"brightness","expected":{"value":50},"actual":{"value":"45"}}]}}`
	h.ok("PATCH", kubeedgeAlpha1+"/devices/lamp/status", wish, "Content-Type", mergeType)
	ours = h.ok("GET", namespaceRoot+"/devices/lamp", "")
	require.Equal(t, "50", ours.str("spec.desired.brightness"))
	require.Equal(t, "45", ours.str("status.twin.brightness.reported.value"))
	require.Equal(t, "n2", ours.str("spec.nodeName"))

	// Nothing else of it is a user's to say.
	h = newHub(t, asUser)
	h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
	h.ok("PATCH", kubeedgeAlpha1+"/devices/lamp/status", wish, "Content-Type", mergeType)
	ours = h.ok("GET", namespaceRoot+"/devices/lamp", "")
	require.Equal(t, "50", ours.str("spec.desired.brightness"))
	require.Nil(t, ours.at("status.twin.brightness.reported"))
	h.refused(403, "Forbidden", "PATCH", namespaceRoot+"/devices/lamp/status", `{"status":{"state":"online"}}`, "Content-Type", mergeType)

	// The canonical rules hold, and name the dialect's kind.
	h = newHub(t)
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
	said := h.refused(http.StatusUnprocessableEntity, "Invalid", "PATCH", kubeedgeAlpha1+"/devices/lamp",
		`{"status":{"twins":[{"name":"brightness","expected":{"value":500}}]}}`, "Content-Type", mergeType)
	require.Contains(t, said, "Device.devices.kubeedge.io")
	require.Contains(t, said, "status.twins[0].expected.value")
	said = h.refused(http.StatusUnprocessableEntity, "Invalid", "PATCH", kubeedgeAlpha1+"/devices/lamp", `{"spec":{"node":{"id":"n3"}}}`, "Content-Type", mergeType)
	require.Contains(t, said, "spec.nodeName", "two nodes can't both be meant")
	h.refused(http.StatusBadRequest, "BadRequest", "PUT", kubeedgeBeta1+"/devices/lamp", kubeedgeDevice)
	h.refused(http.StatusConflict, "Conflict", "PATCH", kubeedgeBeta1+"/devices/lamp", `{"metadata":{"resourceVersion":"1"}}`, "Content-Type", mergeType)
}

// What a manifest of flightctl says of owner and revision is the server's to say.
// flightctl's own clients ask below /api/v1, where the core group has Secrets and ConfigMaps.
func TestFlightctlsOwnPaths(t *testing.T) {
	const root = "/api/v1"
	h := newHub(t)
	kind := func(name string) string { return `{"apiVersion":"flightctl.io/v1alpha1","kind":"` + name + `",` }
	made := h.ok("POST", root+"/devices", kind("Device")+`"metadata":{"name":"host","labels":{"site":"a"}},"spec":{"os":{"image":"os:1"}}}`)
	require.Equal(t, "os:1", made.str("spec.os.image"))
	require.Equal(t, made.tree, h.ok("GET", flightctlDevices+"/host", "").tree, "the same object in the same form")
	require.Equal(t, "os:1", h.ok("GET", apiRoot+"/nodes/host", "").str("spec.os.image"))
	h.ok("PUT", root+"/devices/host/status", kind("Device")+`"metadata":{"name":"host"},"status":{"renderedVersion":"3"}}`)
	require.Equal(t, "3", h.ok("GET", apiRoot+"/nodes/host", "").str("status.renderedVersion"))
	require.Equal(t, []string{"host"}, h.ok("GET", root+"/devices?labelSelector=site=a", "").names())
	require.Empty(t, h.ok("GET", root+"/devices?labelSelector=site=b", "").names())

	for _, of := range []string{"a", "b"} {
		h.ok("POST", root+"/fleets", kind("Fleet")+`"metadata":{"name":"`+of+`"},"spec":{"template":{"spec":{"os":{"image":"os:2"}}}}}`)
		h.ok("POST", "/apis/flightctl.io/v1alpha1/templateversions", kind("TemplateVersion")+`"metadata":{"name":"`+of+`-1"},"spec":{"fleet":"`+of+`"}}`)
	}
	require.Equal(t, []string{"b-1"}, h.ok("GET", root+"/fleets/b/templateversions", "").names())
	require.Empty(t, h.ok("GET", root+"/fleets/b/templateversions?fieldSelector=metadata.name=a-1", "").names())
	require.Equal(t, "b-1", h.ok("GET", root+"/fleets/b/templateversions/b-1", "").str("metadata.name"))
	for _, none := range []string{"/fleets/b/templateversions/a-1", "/fleets/b/templateversions/c", "/fleets/c/templateversions/a-1", "/fleets/b/templateversions/b-1/status"} {
		h.refused(http.StatusNotFound, "NotFound", "GET", root+none, "")
		h.refused(http.StatusNotFound, "NotFound", "DELETE", root+none, "")
	}
	require.Equal(t, []string{"a"}, h.ok("GET", root+"/fleets?fieldSelector=metadata.name=a", "").names())

	h.ok("DELETE", root+"/fleets/b/templateversions", "")
	require.Equal(t, []string{"a-1"}, h.ok("GET", root+"/templateversions", "").names())

	h.ok("DELETE", root+"/devices/host", "")
	h.refused(http.StatusNotFound, "NotFound", "GET", apiRoot+"/nodes/host", "")
	for _, none := range []string{"/nodes", "/devices/host/rendered", "/namespaces/default/devices", "/fleets/a/devices", "/fleets/a/status/templateversions"} {
		h.refused(http.StatusNotFound, "NotFound", "GET", root+none, "")
	}
}

// An agent's conditions stand among those that others wrote: it erases none of these, and takes back its own.
func TestAnAgentsConditionsAreItsOwn(t *testing.T) {
	for _, at := range []string{"/api/v1/devices/host", flightctlDevices + "/host"} {
		h := newHub(t)
		h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"host"}}`)
		h.ok("PATCH", apiRoot+"/nodes/host/status", `{"status":{"state":"online","conditions":[{"type":"QuotaExceeded","status":"True","reason":"TooMuch"}]}}`, "Content-Type", mergeType)
		conditions := func(at string) (out []string) {
			list, _ := h.ok("GET", at, "").at("status.conditions").([]any)
			for _, c := range list {
				out = append(out, c.(jsonObject)["type"].(string)+"="+c.(jsonObject)["status"].(string))
			}
			return out
		}
		report := func(list, more string) {
			h.ok("PUT", at+"/status", `{"apiVersion":"flightctl.io/v1alpha1","kind":"Device","metadata":{"name":"host"},"status":{"conditions":[`+list+`]`+more+`}}`)
		}
		c := func(kind, status string) string { return `{"type":"` + kind + `","status":"` + status + `"}` }
		report(c("Progressing", "True")+","+c("Available", "True"), `,"renderedVersion":"3"`)
		require.Equal(t, []string{"QuotaExceeded=True", "Progressing=True", "Available=True"}, conditions(at))
		require.Equal(t, conditions(at), conditions(apiRoot+"/nodes/host"))
		report(c("Available", "False"), "")
		require.Equal(t, []string{"QuotaExceeded=True", "Available=False"}, conditions(at), "what it reports no more goes")
		node := h.ok("GET", apiRoot+"/nodes/host", "")
		require.Equal(t, "online", node.str("status.state"))
		require.Nil(t, node.at("status.renderedVersion"), "all else of a status is what the PUT says")
		require.Equal(t, []any{"Available"}, node.at("status.agentConditions"))

		// Who reads all and writes all back claims nothing; a patch erases no more than a PUT.
		h.ok("PUT", at+"/status", string(h.ok("GET", at, "").body))
		h.ok("PATCH", at+"/status", `{"status":{"conditions":[`+c("Available", "True")+`]}}`, "Content-Type", mergeType)
		require.Equal(t, []string{"QuotaExceeded=True", "Available=True"}, conditions(at))
		before := h.ok("GET", at, "").str("metadata.resourceVersion")
		report(c("Available", "True"), "")
		require.Equal(t, before, h.ok("GET", at, "").str("metadata.resourceVersion"), "the same report is no change")
		report("", "")
		require.Equal(t, []string{"QuotaExceeded=True"}, conditions(at))
		require.Nil(t, h.ok("GET", apiRoot+"/nodes/host", "").at("status.agentConditions"))
	}
}

// What the hub says of a Node is the hub's, whatever an agent read of it before.
func TestAnAgentNeverOwnsTheHubsConditions(t *testing.T) {
	for _, at := range []string{"/api/v1/devices/host", flightctlDevices + "/host"} {
		h := newHub(t)
		h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"host"}}`)
		says := func(ready, more string) {
			h.ok("PATCH", apiRoot+"/nodes/host/status", `{"status":{"conditions":[{"type":"Ready","status":"`+ready+`","reason":"R"}]`+more+`}}`, "Content-Type", mergeType)
		}
		report := func(list string) {
			h.ok("PUT", at+"/status", `{"apiVersion":"flightctl.io/v1alpha1","kind":"Device","metadata":{"name":"host"},"status":{"conditions":[`+list+`]}}`)
		}
		is := func(ready, own any) {
			t.Helper()
			node := h.ok("GET", apiRoot+"/nodes/host", "")
			require.Equal(t, own, node.at("status.agentConditions"))
			require.Equal(t, "Ready", node.str("status.conditions.0.type"))
			require.Equal(t, ready, node.at("status.conditions.0.status"))
			require.Nil(t, node.at("status.conditions.1"))
		}
		says("True", "")
		require.Equal(t, "Ready", h.ok("GET", at, "").str("status.conditions.0.type"), "agents see it")
		says("False", "") // the link drops
		report(`{"type":"Ready","status":"True","reason":"R"},{"type":"OfAnotherHub","status":"True"}`)
		is("False", nil)
		report("")
		is("False", nil)
		says("True", `,"agentConditions":["Ready"]`) // as a hub before this one may have left it
		report("")
		is("True", nil)
	}
}

func TestDialectClaims(t *testing.T) {
	h := newHub(t, asUser)
	host := `{"apiVersion":"flightctl.io/v1alpha1","kind":"Device","metadata":{"name":"n1","owner":"Fleet/f","resourceVersion":"somehash"},
		"spec":{"os":{"image":"quay.io/x:1"},"config":[{"name":"g","configType":"GitConfigProviderSpec","repository":"r","ref":"v1","path":"/p"}]}}`
	made := h.ok("POST", flightctlDevices, host)
	require.Nil(t, made.at("metadata.owner"))
	node := h.ok("GET", apiRoot+"/nodes/n1", "")
	require.Equal(t, "v1", node.str("spec.config.0.gitRef.targetRevision"))
	require.Equal(t, "v1", made.str("spec.config.0.ref"))

	h.ok("PUT", flightctlDevices+"/n1", host)
	h.refused(http.StatusForbidden, "Forbidden", "PATCH", flightctlDevices+"/n1", `{"metadata":{"owner":"Fleet/other"}}`, "Content-Type", mergeType)
	h.refused(http.StatusConflict, "Conflict", "PATCH", flightctlDevices+"/n1", `{"metadata":{"resourceVersion":"77"}}`, "Content-Type", mergeType)

	h.ok("PATCH", apiRoot+"/nodes/n1", `{"spec":{"config":[{"name":"g","configType":"GitConfigProviderSpec","gitRef":{"repository":"r","targetRevision":"v2","path":"/p"}}]}}`, "Content-Type", mergeType)
	shown := h.ok("GET", flightctlDevices+"/n1", "")
	require.Equal(t, "v2", shown.str("spec.config.0.gitRef.targetRevision"))
	require.Nil(t, shown.at("spec.config.0.ref"), "what was said before the change isn't shown beside it")
}

// The first document's Device as text: the hub reads OFF as its author meant it.
func TestSampleAsText(t *testing.T) {
	sample, err := os.ReadFile("../../topics/dialect/testdata/device-management-device.yaml")
	require.NoError(t, err)
	h := newHub(t)
	made := h.ok("POST", kubeedgeAlpha1+"/devices", string(sample), "Content-Type", "application/yaml")
	require.Equal(t, "OFF", made.str("status.twins.0.expected.value"))
	require.Equal(t, "OFF", h.ok("GET", namespaceRoot+"/devices/sensor-tag01", "").str("spec.desired.temperature-enable"))
}

// At flightctl's own paths the header says which version is meant, the answer which it is, and the body goes before the header.
func TestVersionsAtFlightctlsPaths(t *testing.T) {
	h := newHub(t, asUser)
	const header = "Flightctl-API-Version"
	fleet := `{"apiVersion":"flightctl.io/v1beta1","kind":"Fleet","metadata":{"name":"f"},"spec":{"template":{"spec":{"config":[
		{"name":"web","httpRef":{"repository":"r","suffix":"/x","filePath":"/etc/x"}}]}},
		"rolloutPolicy":{"deviceSelection":{"strategy":"BatchSequence","sequence":[{"limit":3},{"limit":"10%"}]}}}}`
	made := h.do("POST", "/api/v1/fleets", fleet)
	require.Equal(t, 201, made.code, string(made.body))
	require.Equal(t, "v1beta1", made.header.Get(header))
	for version, configType := range map[string]any{"": "HttpConfigProviderSpec", "v1alpha1": "HttpConfigProviderSpec", "v1beta1": nil} {
		got := h.do("GET", "/api/v1/fleets/f", "", header, version)
		require.Equal(t, 200, got.code)
		require.Equal(t, cmp.Or(version, "v1alpha1"), got.header.Get(header))
		require.Equal(t, header, got.header.Get("Vary"))
		one := h.ok("GET", "/api/v1/fleets/f", "", header, version)
		require.Equal(t, "flightctl.io/"+cmp.Or(version, "v1alpha1"), one.str("apiVersion"))
		require.Equal(t, configType, one.at("spec.template.spec.config.0.configType"))
		require.InDelta(t, 3, one.at("spec.rolloutPolicy.deviceSelection.sequence.0.limit"), 0)
		require.Equal(t, "10%", one.at("spec.rolloutPolicy.deviceSelection.sequence.1.limit"))
	}
	require.Equal(t, "3", h.ok("GET", apiRoot+"/fleets/f", "").at("spec.rolloutPolicy.deviceSelection.sequence.0.limit"))
	for _, path := range []string{"/api/v1/fleets/f", "/api/v1/fleets", "/api/v1/devices", "/api/v1/repositories", "/api/v1/resourcesyncs", "/api/v1/fleets/f/templateversions"} {
		require.Equal(t, 406, h.do("GET", path, "", header, "v9").code, path)
		require.Equal(t, 200, h.do("GET", path, "", header, "v1beta1").code, path)
	}
	h.ok("POST", apiRoot+"/templateversions", `{"apiVersion":"edgebus.io/v1alpha1","kind":"TemplateVersion","metadata":{"name":"f-0000001"},"spec":{"fleet":"f","template":{"spec":{"os":{"image":"r.example/x:1"}}},
		"references":[{"type":"image","source":"r.example/x","floating":"1","resolved":"sha256:00"}]}}`, "As", "controller")
	version := h.ok("GET", "/api/v1/fleets/f/templateversions/f-0000001", "", header, "v1beta1")
	require.Equal(t, "r.example/x@sha256:00", version.str("status.os.image"))
	h.ok("DELETE", "/api/v1/fleets/f/templateversions/f-0000001", "", header, "v1beta1")
	require.Equal(t, 404, h.do("GET", "/api/v1/fleets/f/templateversions/f-0000001", "").code)

	// The document: a Device's spec has no templateVersion.
	h.ok("POST", flightctlDevices, `{"apiVersion":"flightctl.io/v1alpha1","kind":"Device","metadata":{"name":"n1"},"spec":{}}`)
	h.refused(400, "BadRequest", "PATCH", "/api/v1/devices/n1?fieldValidation=Strict", `{"spec":{"templateVersion":"1"}}`, "Content-Type", mergeType)
	require.Nil(t, h.ok("PATCH", "/api/v1/devices/n1", `{"spec":{"templateVersion":"1"}}`, "Content-Type", mergeType).at("spec.templateVersion"))
}

// Jobs are Upgrades: each of the three kinds has those that want what it is about.
func TestJobsAreUpgradesOfTheirAction(t *testing.T) {
	const jobs = "/apis/operations.kubeedge.io/v1alpha2"
	job := func(name, spec string) string { return `{"metadata":{"name":"` + name + `"},"spec":` + spec + `}` }
	h := newHub(t)
	h.nodes("n1")
	watched := h.watch(jobs + "/configupdatejobs?watch=true")
	h.ok("POST", jobs+"/nodeupgradejobs", job("up", `{"version":"v2.0.0","nodeNames":["n1"],"failureTolerate":"0.3","timeoutSeconds":180,"checkItems":["cpu"]}`))
	h.ok("POST", jobs+"/configupdatejobs", job("set", `{"updateFields":{"log.level":"debug"},"nodeNames":["n1"],"concurrency":2}`))
	pull := h.do("POST", "/apis/operations.kubeedge.io/v1alpha1/imageprepulljobs", job("pull", `{"imagePrePullTemplate":{"images":["busybox:1"],"nodeNames":["n1"],"retryTimes":1}}`))
	require.Equal(t, 201, pull.code, "%s", pull.body)
	require.Contains(t, pull.header.Get("Warning"), "spec.imagePrePullTemplate.retryTimes is kept and not used")

	ours := h.ok("GET", apiRoot+"/upgrades", "")
	require.Equal(t, []string{"pull", "set", "up"}, ours.names())
	up := h.ok("GET", apiRoot+"/upgrades/up", "")
	require.Equal(t, "30%", up.str("spec.failureBudget"))
	require.Equal(t, "3m0s", up.str("spec.timeout"))
	require.EqualValues(t, 80, up.at("spec.checks.cpu"))
	require.Equal(t, map[string]any{"log.level": "debug"}, h.ok("GET", apiRoot+"/upgrades/set", "").at("spec.settings"))

	for kind, name := range map[string]string{"nodeupgradejobs": "up", "configupdatejobs": "set", "imageprepulljobs": "pull"} {
		require.Equal(t, []string{name}, h.ok("GET", jobs+"/"+kind, "").names())
		require.Equal(t, name, h.ok("GET", jobs+"/"+kind+"/"+name, "").str("metadata.name"))
		require.Empty(t, h.ok("GET", jobs+"/"+kind+"?fieldSelector=metadata.name=other", "").names())
		for _, other := range []string{"up", "set", "pull"} {
			if other != name {
				h.refused(404, "NotFound", "GET", jobs+"/"+kind+"/"+other, "")
				h.refused(404, "NotFound", "DELETE", jobs+"/"+kind+"/"+other, "")
				h.refused(404, "NotFound", "PATCH", jobs+"/"+kind+"/"+other, `{"spec":{"concurrency":3}}`, "Content-Type", mergeType)
			}
		}
	}
	event := watched.next()
	require.Equal(t, "set", event.str("object.metadata.name"))
	require.Equal(t, "ConfigUpdateJob", event.str("object.kind"))

	// The name is that of one object, whatever it wants.
	taken := h.refused(409, "AlreadyExists", "POST", jobs+"/configupdatejobs", job("up", `{"updateFields":{"log.level":"info"},"nodeNames":["n1"]}`))
	require.Contains(t, taken, "the Upgrade up has the name and is no ConfigUpdateJob", "GET finds no such job")
	taken = h.refused(409, "AlreadyExists", "POST", jobs+"/configupdatejobs", job("set", `{"updateFields":{"log.level":"info"},"nodeNames":["n1"]}`))
	require.NotContains(t, taken, "is no ConfigUpdateJob")
	for field, bad := range map[string]string{
		"spec.updateFields":       `{"nodeNames":["n1"]}`,
		"spec.failureTolerate":    `{"updateFields":{"a":"b"},"failureTolerate":"30%","nodeNames":["n1"]}`,
		"spec.checkItems[1]":      `{"updateFields":{"a":"b"},"checkItems":["mem","gpu"],"nodeNames":["n1"]}`,
		"spec.timeoutSeconds":     `{"updateFields":{"a":"b"},"timeoutSeconds":-1,"nodeNames":["n1"]}`,
		"must be the name of a s": `{"updateFields":{"a b":"c"},"nodeNames":["n1"]}`,
	} {
		require.Contains(t, h.refused(422, "Invalid", "POST", jobs+"/configupdatejobs", job("bad", bad)), field)
	}

	h.ok("PATCH", jobs+"/configupdatejobs/set", `{"metadata":{"labels":{"team":"plant"}}}`, "Content-Type", mergeType)
	require.Equal(t, "plant", h.ok("GET", apiRoot+"/upgrades/set", "").str("metadata.labels.team"))
	require.Equal(t, "MODIFIED", watched.next().str("type"))
	h.ok("DELETE", apiRoot+"/upgrades/set", "")
	require.Equal(t, "DELETED", watched.next().str("type"))
	h.ok("DELETE", jobs+"/imageprepulljobs", "")
	require.Equal(t, []string{"up"}, h.ok("GET", apiRoot+"/upgrades", "").names())
}

// Dialects that are left out of discovery are served all the same: k9s opens the first kind that it finds under :devices.
func TestDialectsAreLeftOutOfDiscovery(t *testing.T) {
	for _, own := range []bool{false, true} {
		h := newHub(t, asUser, func(o *hubOptions) { o.OwnOnly = own })
		groups := string(h.ok("GET", "/apis", "", "Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList").body) + string(h.ok("GET", "/apis", "").body)
		require.Contains(t, groups, "edgebus.io")
		require.Contains(t, groups, "events.k8s.io")
		for _, group := range []string{"flightctl.io", "devices.kubeedge.io", "akri.sh"} {
			if own {
				require.NotContains(t, groups, group)
			} else {
				require.Contains(t, groups, group)
			}
		}
		require.Equal(t, map[bool]int{false: 200, true: 404}[own], h.do("GET", "/apis/flightctl.io/v1beta1", "").code)
		h.ok("POST", "/apis/flightctl.io/v1beta1/devices", `{"metadata":{"name":"n1"},"spec":{}}`)
		require.Equal(t, []string{"n1"}, h.ok("GET", "/api/v1/devices", "").names())
	}
}

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
	require.Equal(t, jsonObject{"power": "ON"}, ours.at("spec.desired"))
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

// A new object's name is in its body alone.
func TestARefusalInADialectNamesTheObject(t *testing.T) {
	h := newHub(t)
	message := h.refused(http.StatusUnprocessableEntity, "Invalid", "POST", "/apis/devices.kubeedge.io/v1beta1/namespaces/default/devicemodels",
		`{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"DeviceModel","metadata":{"name":"m1"},"spec":{"protocol":"modbus","properties":[{"name":"p","type":"WORD"}]}}`)
	require.Contains(t, message, `DeviceModel.devices.kubeedge.io "m1" is invalid: spec.properties[0].type: "WORD": must be INT`)
}

// Every field of every dialect says what it is: kubectl explain shows it.
func TestEveryFieldOfADialectIsExplained(t *testing.T) {
	for _, k := range addDialects(Kinds()) {
		if k.dialect == nil {
			continue
		}
		def := k.dialect.schema(decodeSchemas())
		for _, part := range []string{"spec", "status"} {
			below, _ := def["properties"].(jsonObject)[part].(jsonObject)
			eachProperty(below, func(name string, prop jsonObject) {
				require.NotEmpty(t, prop["description"], "%s %s: %s in %s", k.APIVersion(), k.Name, name, part)
			})
		}
	}
}

// What is wrong with an object of KubeEdge's is said by the names that its fields have in the version that its author wrote.
func TestKubeEdgesNamesAreInErrors(t *testing.T) {
	h := newHub(t, asUser)
	h.ok("POST", apiRoot+"/namespaces/default/devicemodels", `{"metadata":{"name":"pump"},"spec":{"properties":[{"name":"speed","type":"int","accessMode":"ReadWrite"}]}}`)
	const model, device = `"kind":"DeviceModel","metadata":{"name":"m"}`, `"kind":"Device","metadata":{"name":"d"}`
	const pump = `"deviceModelRef":{"name":"pump"}`
	for _, c := range []struct{ version, object, field string }{
		{"v1alpha2", model + `,"spec":{"properties":[{"name":"a","type":{"int":{"accessMode":"ReadSometimes"}}}]}`, "spec.properties[0].type.int.accessMode"},
		{"v1alpha2", model + `,"spec":{"properties":[{"name":"a","type":{"int":{}}},{"name":"b","type":{"double":{"minimum":3,"maximum":2}}}]}`, "spec.properties[1].type.double.minimum"},
		{"v1alpha2", model + `,"spec":{"properties":[{"name":"a b","type":{"int":{}}}]}`, "spec.properties[0].name"},
		{"v1alpha2", device + `,"spec":{` + pump + `},"status":{"twins":[{"propertyName":"speed","desired":{"value":"fast"}}]}`, "status.twins[0].desired.value"},
		{"v1alpha1", model + `,"spec":{"properties":[{"name":"a","config":{"dataType":"int","accessMode":"x"}}]}`, "spec.properties[0].config.accessMode"},
		{"v1alpha1", model + `,"spec":{"properties":[{"name":"a","config":{"dataType":"int","min":"3","max":"2"}}]}`, "spec.properties[0].config.min"},
		{"v1alpha1", device + `,"spec":{` + pump + `},"status":{"twins":[{"name":"speed","expected":{"value":"fast"}}]}`, "status.twins[0].expected.value"},
		{"v1beta1", model + `,"spec":{"properties":[{"name":"a","type":"INT","visitors":{"protocolName":"x"}},{"name":"b","type":"INT","visitors":{}}]}`, "spec.properties[1].visitors.protocolName"},
		{"v1beta1", device + `,"spec":{` + pump + `,"properties":[{"name":"sped"},{"name":"speed","desired":{"value":"fast"}}]}`, "spec.properties[1].desired.value"},
		{"v1beta1", device + `,"spec":{` + pump + `,"properties":[{"name":"speed"},{"name":"sped","visitors":{}}]}`, "spec.properties[1].name"},
		{"v1beta1", device + `,"spec":{` + pump + `,"properties":[{"name":"speed","collectCycle":999999999999999999,"visitors":{}}]}`, "spec.properties[0].collectCycle"},
		{"v1beta1", device + `,"spec":{` + pump + `,"properties":[{"name":"speed"},{"name":"sped","reportToCloud":false}]}`, "spec.properties[1].name"},
		{"v1beta1", device + `,"spec":{` + pump + `,"properties":[{"name":"speed","pushMethod":{"mqtt":{"address":"tcp://b:1883","topic":"a/#"}}}]}`, "spec.properties[0].pushMethod.mqtt.topic"},
		{"v1beta1", device + `,"spec":{` + pump + `,"methods":[{"name":"set","propertyNames":["sped"]}]}`, "spec.methods[0].propertyNames[0]"},
	} {
		group := "devices.kubeedge.io/" + c.version
		path := "/devicemodels"
		if strings.HasPrefix(c.object, device) {
			path = "/devices"
		}
		bad := h.do("POST", "/apis/"+group+"/namespaces/default"+path, `{"apiVersion":"`+group+`",`+c.object+`}`)
		require.Equal(t, 422, bad.code, c.object)
		require.Contains(t, bad.str("message"), " is invalid: "+c.field+": ")
		require.Contains(t, string(bad.body), `"field":"`+c.field+`"`)
	}
	two := h.do("POST", "/apis/devices.kubeedge.io/v1alpha2/namespaces/default/devicemodels", `{`+model+`,"spec":{"properties":[
		{"name":"a","type":{"int":{"accessMode":"x"}}},{"name":"b","type":{"double":{"accessMode":"y"}}}]}}`)
	require.Regexp(t, `invalid: spec\.properties\[0\]\.type\.int\.accessMode: .*; spec\.properties\[1\]\.type\.double\.accessMode: `, two.str("message"))
}
