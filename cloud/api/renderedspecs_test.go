// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// renders stands for the controller of package cloud/render: it stores what n1 is to apply, and says that its spec is rendered.
func (h *hub) renders(node, spec string) {
	h.t.Helper()
	key := store.Key{Kind: resource.KindRenderedSpec, Name: node}
	if _, err := h.store.Create(h.t.Context(), store.Object{Key: key, Data: []byte(spec)}); err != nil {
		_, err = h.store.Update(h.t.Context(), store.Object{Key: key, Data: []byte(spec)}, 0)
		require.NoError(h.t, err)
	}
	o, err := h.store.Get(h.t.Context(), store.Key{Kind: resource.KindNode, Name: node})
	require.NoError(h.t, err)
	var n resource.Node
	require.NoError(h.t, json.Unmarshal(o.Data, &n))
	status := fmt.Sprintf(`{"specVersion":"7","conditions":[{"type":"SpecRendered","status":"True","observedGeneration":%d}]}`, n.Metadata.Generation)
	_, err = h.store.Update(h.t.Context(), store.Object{Key: o.Key, Status: []byte(status)}, 0)
	require.NoError(h.t, err)
}

const renderedOfN1 = `{"renderedVersion":"7","os":{"image":"os:2"},"files":[
	{"path":"/etc/motd","type":"file","mode":"0644","text":"hello\n"},{"path":"/etc/raw","type":"file","mode":"0600","user":"app","group":"7","base64":"/w=="},
	{"path":"/etc/s","type":"file","mode":"0600","secret":{"name":"default.s","key":"a","version":"1"}},
	{"path":"/srv","type":"directory","mode":"0755"}],
	"applications":[{"name":"web","appType":"quadlet","files":[{"path":"web.container","type":"file","mode":"0644","text":"[Container]\n"}],"envVars":{"A":"1"}}],
	"monitoring":{"systemd":{"matchPatterns":["a*"]}}}`

// Points 21, 22 and 23 of the fleet document: a node sees what it is to apply, and no other node does; people see it of their
// nodes; knownRenderedVersion is the version that the client has. The answers are 200, 204, 202, 403 and 404.
func TestRenderedSpecsAreServed(t *testing.T) {
	h := newHubWithUsers(t)
	wants := `{"spec":{"os":{"image":"os:2"}}}`
	paths := []string{"/api/v1/devices/n1/rendered", "/apis/flightctl.io/v1alpha1/devices/n1/rendered", "/apis/flightctl.io/v1beta1/devices/n1/rendered", apiRoot + "/nodes/n1/rendered"}
	code := func(path, as string) int {
		t.Helper()
		return h.do("GET", path, "", "As", as).code
	}
	for _, path := range paths {
		require.Equal(t, 200, code(path, "n1"), "nothing is wanted of it")
		require.Equal(t, 204, code(path+"?knownRenderedVersion=0", "n1"))
	}
	h.ok("PATCH", apiRoot+"/nodes/n1", wants, "As", "boss", "Content-Type", mergePatch)
	for _, path := range paths {
		r := h.do("GET", path, "", "As", "n1")
		require.Equal(t, 202, r.code, "not rendered yet")
		require.NotEmpty(t, r.header.Get("Retry-After"))
	}
	h.renders("n1", renderedOfN1)
	for _, path := range paths {
		for _, who := range []string{"n1", "boss", "ann", "vic", "eve"} {
			require.Equal(t, 200, code(path, who), path)
			require.Equal(t, 200, code(path+"?knownRenderedVersion=6", who), path)
			require.Equal(t, 204, code(path+"?knownRenderedVersion=7", who), path)
			require.Equal(t, 200, code(path+"?knownOwner=x&knownTemplateVersion=7", who), "these are no parameters")
		}
		require.Equal(t, 403, code(path, "joe"), "another node's")
		require.Equal(t, 403, code(path, "map"), path)
		require.Equal(t, 403, code(strings.Replace(path, "n1", "n2", 1), "vic"), "a viewer's, who has another node")
		require.Equal(t, 401, code(path, ""), path)
		require.Equal(t, 403, code(strings.Replace(path, "n1", "gone", 1), "joe"), "who may not see it, does not learn whether it exists")
		require.Equal(t, 404, code(strings.Replace(path, "n1", "gone", 1), "boss"), path)
	}
	h.ok("PATCH", apiRoot+"/nodes/n1", `{"spec":{"os":{"image":"os:3"}}}`, "As", "boss", "Content-Type", mergePatch)
	require.Equal(t, 202, code(paths[0]+"?knownRenderedVersion=7", "n1"), "the new spec is not rendered yet")
	require.Equal(t, 200, code(paths[0], "n1"), "what was rendered before is better than nothing")
}

// fakeCallers notes which nodes have asked over HTTP.
type fakeCallers struct{ nodes []string }

func (c *fakeCallers) HTTPPresence() time.Duration { return 5 * time.Minute }

func (c *fakeCallers) AskedOverHTTP(node string) func() {
	c.nodes = append(c.nodes, node)
	return func() { c.nodes = append(c.nodes, "answered") }
}

// A Device is present by what it asks and reports itself, and is told for how long; nobody else's request says that it is there.
func TestADevicesOwnRequestsArePresence(t *testing.T) {
	heard := new(fakeCallers)
	h := newHub(t, func(o *hubOptions) { o.Authenticate, o.Presence = authenticateByHeader, heard })
	h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"}}`, "As", "boss")
	const at = "/api/v1/devices/n1"
	status := `{"apiVersion":"flightctl.io/v1beta1","kind":"Device","metadata":{"name":"n1"},"status":{}}`
	for _, c := range []struct{ method, path, body string }{
		{"GET", at + "/rendered", ""},
		{"GET", at + "/rendered?knownRenderedVersion=0", ""},
		{"PUT", at + "/status", status},
		{"PUT", "/apis/flightctl.io/v1beta1/devices/n1/status", status},
		{"GET", apiRoot + "/nodes/n1/rendered", ""},
	} {
		heard.nodes = nil
		r := h.do(c.method, c.path, c.body, "As", "n1")
		require.Less(t, r.code, 300, r.body)
		require.Equal(t, "300", r.header.Get("Edgebus-Presence"), c.path)
		require.Equal(t, []string{"n1", "answered"}, heard.nodes, c.path)
	}
	heard.nodes = nil
	for _, as := range []string{"boss", "vic", "joe"} {
		require.Empty(t, h.do("GET", at+"/rendered", "", "As", as).header.Get("Edgebus-Presence"))
		h.do("PUT", at+"/status", status, "As", as)
	}
	h.ok("GET", at, "", "As", "n1")
	require.Empty(t, heard.nodes)
}

// A Device writes its status and reads it as a part of itself.
func TestADevicesStatusIsWriteOnlyForItself(t *testing.T) {
	h := newHubWithUsers(t)
	for _, at := range []string{"/api/v1/devices/n1/status", "/apis/flightctl.io/v1beta1/devices/n1/status"} {
		r := h.do("GET", at, "", "As", "n1")
		require.Equal(t, 405, r.code, r.body)
		require.Contains(t, string(r.body), strings.TrimSuffix(at, "/status"))
		require.Equal(t, 200, h.do("GET", at, "", "As", "vic").code)
	}
	require.Equal(t, 200, h.do("GET", "/api/v1/devices/n1", "", "As", "n1").code)
}

// What flightctl's agent gets: its files with their contents, and the values of Secrets, which nobody else gets.
func TestRenderedAsFlightctlHasIt(t *testing.T) {
	h := newHubWithUsers(t)
	h.renders("n1", renderedOfN1)
	own := h.ok("GET", "/api/v1/devices/n1/rendered", "", "As", "n1")
	require.Equal(t, "flightctl.io/v1beta1", own.str("apiVersion"))
	require.Equal(t, "Device", own.str("kind"))
	require.Equal(t, "n1", own.str("metadata.name"))
	require.Equal(t, map[string]any{"renderedVersion": "7", "device-controller/renderedVersion": "7"}, own.at("metadata.annotations"))
	config, err := json.Marshal(own.at("spec"))
	require.NoError(t, err)
	require.JSONEq(t, `{"os":{"image":"os:2"},"systemd":{"matchPatterns":["a*"]},
		"config":[{"name":"rendered","inline":[{"path":"/etc/motd","mode":420,"content":"hello\n"},
			{"path":"/etc/raw","mode":384,"user":"app","group":"7","content":"/w==","contentEncoding":"base64"},{"path":"/etc/s","mode":384,"content":"a"}]}],
		"applications":[{"name":"web","appType":"quadlet","envVars":{"A":"1"},"inline":[{"path":"web.container","mode":420,"content":"[Container]\n"}]}]}`, string(config))
	require.Contains(t, warningsOf(own), "/srv")
	for _, path := range []string{"/api/v1/devices/n1/rendered", "/apis/flightctl.io/v1alpha1/devices/n1/rendered", apiRoot + "/nodes/n1/rendered"} {
		require.NotContains(t, string(h.ok("GET", path, "", "As", "boss").body), `"content":"a"`, path)
		require.NotContains(t, string(h.ok("GET", path, "", "As", "boss").body), `data:;base64,YQ==`, path)
	}
	require.NotContains(t, string(h.ok("GET", apiRoot+"/nodes/n1/rendered", "", "As", "n1").body), `"content"`, "that path has digests and names")
	older := h.ok("GET", "/api/v1/devices/n1/rendered", "", "As", "n1", "Flightctl-API-Version", "v1alpha1")
	var ignition struct {
		Storage struct {
			Files       []struct{ Path, Mode any }
			Directories []struct{ Path string }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(older.str("spec.config")), &ignition))
	require.Len(t, ignition.Storage.Files, 3)
	require.Equal(t, "/srv", ignition.Storage.Directories[0].Path)
	require.Contains(t, older.str("spec.config"), "data:;base64,YQ==")
	require.Equal(t, 406, h.do("GET", "/api/v1/devices/n1/rendered", "", "As", "n1", "Flightctl-API-Version", "v999").code)
	ours := h.ok("GET", apiRoot+"/nodes/n1/rendered", "", "As", "n1")
	require.Equal(t, "RenderedSpec", ours.str("kind"))
	require.Equal(t, "default.s", ours.str("files.2.secret.name"))
}

// Points 3, 4, 5, 6, 8, 9, 10, 25 and 26 of the fleet document, in the form of flightctl's agent of today: a Device of v1beta1 at its own path,
// its annotations with the version, and the agent's status among what the hub says.
func TestAnAgentOfTodayReports(t *testing.T) {
	h := newHubWithUsers(t)
	const path = "/api/v1/devices/n1"
	spec := `"spec":{"os":{"image":"os:2"},"config":[{"name":"motd","inline":[{"path":"/etc/motd","content":"hello"}]},
		{"name":"wifi","secretRef":{"name":"s","namespace":"default","mountPath":"/etc"}}],"systemd":{"matchPatterns":["a*"]}}`
	put := h.ok("PUT", path, `{"apiVersion":"flightctl.io/v1beta1","kind":"Device","metadata":{"name":"n1"},`+spec+`}`, "As", "boss")
	require.Equal(t, "flightctl.io/v1beta1", put.str("apiVersion"))
	ours := h.ok("GET", apiRoot+"/nodes/n1", "", "As", "boss")
	require.Equal(t, "FileListProviderSpec", ours.str("spec.config.0.configType"))
	require.Equal(t, "KubernetesSecretProviderSpec", ours.str("spec.config.1.configType"))
	require.Equal(t, "a*", ours.str("spec.monitoring.systemd.matchPatterns.0"))
	h.renders("n1", renderedOfN1)
	report := `{"apiVersion":"flightctl.io/v1beta1","kind":"Device","metadata":{"name":%q},"status":{"config":{"renderedVersion":"7"},
		"conditions":[{"type":"Updating","status":"False"},{"type":"SpecRendered","status":"False"}],"os":{"image":"os:2","imageDigest":"sha256:1"},
		"systemInfo":{"architecture":"amd64","bootID":"b","operatingSystem":"linux","agentVersion":"1.0"},
		"applications":[{"name":"web","ready":"1/1","restarts":2,"status":"Running","appType":"quadlet","embedded":false}],
		"systemd":[{"unit":"a.service","loadState":"loaded","activeState":"active"}],"resources":{"cpu":"Healthy","memory":"Warning","disk":"Healthy"},
		"applicationsSummary":{"status":"Error"},"summary":{"status":"Error"},"updated":{"status":"OutOfDate"},"lifecycle":{"status":"Unknown"},"integrity":{"status":"Verified"}}}`
	said := h.ok("PUT", path+"/status", fmt.Sprintf(report, "n1"), "As", "n1")
	require.Equal(t, "flightctl.io/v1beta1", said.str("apiVersion"))
	require.Equal(t, 403, h.do("PUT", "/api/v1/devices/n2/status", fmt.Sprintf(report, "n2"), "As", "n1").code)
	ours = h.ok("GET", apiRoot+"/nodes/n1", "", "As", "boss")
	require.Equal(t, "7", ours.str("status.renderedVersion"))
	require.Equal(t, "7", ours.str("status.specVersion"))
	require.Equal(t, "sha256:1", ours.str("status.os.imageDigest"))
	require.Equal(t, "Warning", ours.str("status.resources.memory"))
	require.Equal(t, "a.service", ours.str("status.systemdUnits.0.name"))
	require.Equal(t, "1/1", ours.str("status.applications.0.ready"))
	require.Equal(t, "True", ours.str("status.conditions.0.status"), "SpecRendered is the hub's")
	shown := h.ok("GET", "/apis/flightctl.io/v1beta1/devices/n1", "", "As", "boss")
	require.Equal(t, "7", shown.at("metadata.annotations").(map[string]any)["device-controller/renderedVersion"])
	require.Equal(t, "UpToDate", shown.str("status.updated.status"))
	require.Equal(t, "Healthy", shown.str("status.applicationsSummary.status"))
	require.Equal(t, "Verified", shown.str("status.integrity.status"))
	require.Equal(t, "v1alpha1", strings.TrimPrefix(h.ok("GET", path, "", "As", "boss").str("apiVersion"), "flightctl.io/"))
	require.Equal(t, "v1beta1", strings.TrimPrefix(h.ok("GET", path, "", "As", "boss", "Flightctl-API-Version", "v1beta1").str("apiVersion"), "flightctl.io/"))
	require.Nil(t, ours.at("metadata.annotations.renderedVersion"), "they are served, not stored")
}

// Point 1 of the fleet document: every write changes resourceVersion, and one that was made from a stale one is refused with 409.
func TestEveryWriteChangesTheResourceVersion(t *testing.T) {
	h := newHub(t, asUser)
	for _, at := range []string{apiRoot + "/nodes", "/api/v1/devices", "/apis/flightctl.io/v1beta1/devices"} {
		name := fmt.Sprint("n", len(at))
		versions := map[string]bool{}
		made := h.ok("POST", at, fmt.Sprintf(`{"metadata":{"name":%q}}`, name))
		versions[made.str("metadata.resourceVersion")] = true
		for _, body := range []string{`{"metadata":{"labels":{"a":"b"}}}`, `{"spec":{"os":{"image":"os:1"}}}`} {
			versions[h.ok("PATCH", at+"/"+name, body, "Content-Type", mergePatch).str("metadata.resourceVersion")] = true
		}
		versions[h.ok("PATCH", apiRoot+"/nodes/"+name+"/status", `{"status":{"version":"v1"}}`, "Content-Type", mergePatch, "As", "controller").str("metadata.resourceVersion")] = true
		require.Len(t, versions, 4, at)
		require.Equal(t, 409, h.do("PUT", at+"/"+name, string(made.body)).code, "made from a stale version")
	}
}

// Points 2, 7 and 11 of the fleet document: a Node without an owner is its user's, floating references are stored as they are written, and
// only a controller makes anybody its owner.
func TestAnUnownedNodeIsTheUsers(t *testing.T) {
	h := newHub(t, asUser)
	for _, at := range []string{apiRoot + "/nodes", "/api/v1/devices", "/apis/flightctl.io/v1beta1/devices"} {
		one := at + "/" + fmt.Sprint("n", len(at))
		h.ok("POST", at, fmt.Sprintf(`{"metadata":{"name":"n%d"}}`, len(at)))
		for _, image := range []string{"quay.io/x:latest", "quay.io/x:v1"} {
			require.Equal(t, image, h.ok("PATCH", one, `{"spec":{"os":{"image":"`+image+`"}}}`, "Content-Type", mergePatch).str("spec.os.image"))
		}
		require.Empty(t, h.ok("GET", one, "").str("metadata.owner"))
		require.Equal(t, 403, h.do("PATCH", one, `{"metadata":{"owner":"Fleet/mine"}}`, "Content-Type", mergePatch).code)
		require.Equal(t, "Fleet/shops", h.ok("PATCH", one, `{"metadata":{"owner":"Fleet/shops"}}`, "Content-Type", mergePatch, "Impersonate-User", "controller").str("metadata.owner"))
	}
}

// The size in a spec is its writer's word: whatever it says, the hub answers, and only with the blob whole.
func TestContentIsAsLongAsTheSpecSays(t *testing.T) {
	blob := []byte("hello")
	s := &renderedSpecs{readBlob: func(_ string, p []byte, _ int64) (int, error) {
		if n := copy(p, blob); n < len(p) {
			return n, io.EOF
		}
		return len(p), nil
	}}
	got, err := s.content("sha256:x", 5)
	require.NoError(t, err)
	require.Equal(t, blob, got)
	for _, size := range []int64{-1, 4, 6, maxContent + 1, 1 << 62} {
		_, err := s.content("sha256:x", size)
		require.Error(t, err, size)
	}
	_, err = s.content("sha256:x", 1<<62)
	require.ErrorContains(t, err, "at most 16777216 are served in this form")
}
