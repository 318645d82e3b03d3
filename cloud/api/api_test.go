// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	apiRoot       = "/apis/edgebus.io/v1alpha1"
	namespaceRoot = apiRoot + "/namespaces/default"
	lampFormat    = `{"apiVersion":"edgebus.io/v1alpha1","kind":"Device","metadata":{"name":"lamp"%s},
		"spec":{"deviceModelRef":{"name":"dimmable"},"nodeName":"n1","protocol":{"type":"modbus"}%s}}`
	modelJSON = `{"metadata":{"name":"dimmable"},"spec":{"properties":[
		{"name":"power","type":"string","accessMode":"ReadWrite","enum":["ON","OFF"]},
		{"name":"brightness","type":"int","accessMode":"ReadWrite","maximum":100},
		{"name":"temperature","type":"float"}]}}`
)

// hub is the API on a real listener, over a real store.
type hub struct {
	t     *testing.T
	url   string
	store *disk.Store
	mu    sync.Mutex
	now   time.Time
}

// hubOptions are the API's, and what its objects are written with.
type hubOptions struct {
	Options
	Writer store.Writer
	Seal   objects.Sealer
	Suffix func() string
}

func newAPI(o hubOptions) http.Handler {
	if o.Objects == nil {
		o.Objects = objects.New(objects.Options{
			Reader: o.Reader, Writer: o.Writer, Log: o.Log, Now: o.Now, Seal: o.Seal, Suffix: o.Suffix, Managers: Managers(),
		})
	}
	return New(o.Options)
}

func newHub(t *testing.T, change ...func(*hubOptions)) *hub {
	st, err := disk.Open(disk.Options{Path: filepath.Join(t.TempDir(), "log"), Tombstones: 16})
	require.NoError(t, err)
	h := &hub{t: t, store: st, now: time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)}
	o := hubOptions{Writer: st, Options: Options{Reader: st, Watcher: st, Log: zerolog.New(zerolog.NewTestWriter(t)), Now: h.clock}}
	for _, c := range change {
		c(&o)
	}
	server := httptest.NewServer(newAPI(o))
	h.url = server.URL
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		require.NoError(t, st.Check())
		require.NoError(t, st.Close())
	})
	return h
}

func (h *hub) clock() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *hub) pass(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(d)
}

type hubResponse struct {
	t      *testing.T
	code   int
	header http.Header
	body   []byte
	tree   map[string]any
	closed bool // the connection, after it
}

// do sends a request; headers are pairs.
func (h *hub) do(method, path, body string, headers ...string) hubResponse {
	h.t.Helper()
	req, err := http.NewRequest(method, h.url+path, strings.NewReader(body))
	require.NoError(h.t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(h.t, err)
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	require.NoError(h.t, err)
	r := hubResponse{t: h.t, code: resp.StatusCode, header: resp.Header, body: raw, closed: resp.Close}
	_ = json.Unmarshal(raw, &r.tree) // text has no tree
	return r
}

// ok sends a request that must succeed.
func (h *hub) ok(method, path, body string, headers ...string) hubResponse {
	h.t.Helper()
	r := h.do(method, path, body, headers...)
	require.Less(h.t, r.code, 300, "%s %s: %s", method, path, r.body)
	return r
}

// refused sends a request that must be answered by a Status, and returns its message.
func (h *hub) refused(code int, reason, method, path, body string, headers ...string) string {
	h.t.Helper()
	r := h.do(method, path, body, headers...)
	require.Equal(h.t, code, r.code, "%s", r.body)
	require.Equal(h.t, "Status", r.str("kind"))
	require.Equal(h.t, "Failure", r.str("status"))
	require.Equal(h.t, reason, r.str("reason"))
	require.EqualValues(h.t, code, r.at("code"))
	return r.str("message")
}

// at finds a value by its path: metadata.name, items.0.metadata.
func (r hubResponse) at(path string) any {
	var v any = r.tree
	for part := range strings.SplitSeq(path, ".") {
		switch node := v.(type) {
		case map[string]any:
			v = node[part]
		case []any:
			var i int
			if _, err := fmt.Sscan(part, &i); err != nil || i >= len(node) {
				return nil
			}
			v = node[i]
		default:
			return nil
		}
	}
	return v
}

func (r hubResponse) str(path string) string {
	s, _ := r.at(path).(string)
	return s
}

func (r hubResponse) names() (out []string) {
	items, _ := r.at("items").([]any)
	for i := range items {
		out = append(out, r.str(fmt.Sprintf("items.%d.metadata.name", i)))
	}
	return out
}

func lampJSON(meta, spec string) string { return fmt.Sprintf(lampFormat, meta, spec) }

func lampNamed(name string) string {
	return strings.Replace(lampJSON("", ""), `"lamp"`, `"`+name+`"`, 1)
}

func TestCreateAndGet(t *testing.T) {
	h := newHub(t, asUser)
	made := h.ok("POST", namespaceRoot+"/devices", lampJSON(`,"labels":{"room":"hall"},"uid":"mine","generation":7,"creationTimestamp":null`, ``))
	require.Equal(t, 201, made.code)
	require.Equal(t, "default", made.str("metadata.namespace"))
	require.Len(t, made.str("metadata.uid"), 36)
	require.EqualValues(t, 1, made.at("metadata.generation"))
	require.Equal(t, "2026-11-21T10:00:00Z", made.str("metadata.creationTimestamp"))
	require.NotEmpty(t, made.str("metadata.resourceVersion"))
	require.Equal(t, made.tree, h.ok("GET", namespaceRoot+"/devices/lamp", "").tree)

	msg := h.refused(409, "AlreadyExists", "POST", namespaceRoot+"/devices", lampJSON("", ""))
	require.Equal(t, `devices.edgebus.io "lamp" already exists`, msg)
	msg = h.refused(404, "NotFound", "GET", namespaceRoot+"/devices/none", "")
	require.Equal(t, `devices.edgebus.io "none" not found`, msg)
	h.refused(404, "NotFound", "GET", apiRoot+"/widgets", "")
	h.refused(404, "NotFound", "GET", "/apis/edgebus.io/v9/nodes", "")
	h.refused(404, "NotFound", "GET", apiRoot+"/devices/lamp", "")
	h.refused(404, "NotFound", "GET", apiRoot+"/namespaces/default/nodes", "")
	h.refused(400, "BadRequest", "POST", namespaceRoot+"/devices", lampJSON(`,"namespace":"other"`, ""))
	h.refused(400, "BadRequest", "POST", namespaceRoot+"/devices", lampJSON(`,"resourceVersion":"1"`, ""))
	h.refused(400, "BadRequest", "POST", namespaceRoot+"/devicemodels", lampJSON("", ""))
	h.refused(403, "Forbidden", "POST", namespaceRoot+"/devices", lampJSON(`,"owner":"Fleet/x"`, ""))
}

// A method that isn't served is answered with those that are, wherever there is anything; HEAD is served as GET is.
func TestMethodsThatAreServedAreListed(t *testing.T) {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
	for _, c := range []struct{ method, path, allow string }{
		{"PUT", namespaceRoot + "/devices", "GET, HEAD, POST, DELETE"},
		{"OPTIONS", namespaceRoot + "/devices", "GET, HEAD, POST, DELETE"},
		{"POST", namespaceRoot + "/devices/lamp", "GET, HEAD, PUT, PATCH, DELETE"},
		{"DELETE", namespaceRoot + "/devices/lamp/status", "GET, HEAD, PUT, PATCH"},
		{"POST", "/api/v1/namespaces", "GET, HEAD"},
		{"POST", "/version", "GET, HEAD"},
		{"DELETE", "/healthz", "GET, HEAD"},
	} {
		r := h.do(c.method, c.path, "")
		require.Equal(t, 405, r.code, "%s %s: %s", c.method, c.path, r.body)
		require.Equal(t, c.allow, r.header.Get("Allow"), c.path)
	}
	h.refused(404, "NotFound", "POST", "/nothing", "{}")
	head := h.do("HEAD", namespaceRoot+"/devices/lamp", "")
	require.Equal(t, 200, head.code)
	require.Empty(t, head.body)
	require.Equal(t, 404, h.do("HEAD", namespaceRoot+"/devices/none", "").code)
}

func TestForms(t *testing.T) {
	h := newHub(t)
	y := "apiVersion: edgebus.io/v1alpha1\nkind: Node\nmetadata:\n  name: n1\n"
	h.ok("POST", apiRoot+"/nodes", y, "Content-Type", "application/yaml")
	r := h.ok("GET", apiRoot+"/nodes/n1", "", "Accept", "application/yaml")
	require.Equal(t, "application/yaml", r.header.Get("Content-Type"))
	require.Contains(t, string(r.body), "name: n1\n")
	h.refused(406, "NotAcceptable", "GET", apiRoot+"/nodes/n1", "", "Accept", "text/html")
	h.ok("GET", apiRoot+"/nodes/n1", "", "Accept", "application/vnd.kubernetes.protobuf, application/json")
	h.refused(415, "UnsupportedMediaType", "POST", apiRoot+"/nodes", "x", "Content-Type", "application/vnd.kubernetes.protobuf")
	h.refused(415, "UnsupportedMediaType", "POST", apiRoot+"/nodes", y, "Content-Type", "application/x-www-form-urlencoded")
	h.refused(415, "UnsupportedMediaType", "POST", apiRoot+"/nodes", `{}`, "Content-Type", "application/json; =")
	h.refused(400, "BadRequest", "POST", apiRoot+"/nodes", "{[")
	h.refused(400, "BadRequest", "POST", apiRoot+"/nodes", "[]")
	h.refused(400, "BadRequest", "POST", apiRoot+"/nodes", `{"metadata":{"name":7}}`)
	cross := h.do("POST", apiRoot+"/nodes", `{"metadata":{"name":"n2"}}`, "Sec-Fetch-Site", "cross-site")
	require.Equal(t, 403, cross.code, "another site's page")
}

func TestBodyLimit(t *testing.T) {
	h := newHub(t, func(o *hubOptions) { o.MaxBody = 1000 })
	h.refused(413, "RequestEntityTooLarge", "POST", namespaceRoot+"/devices", lampJSON(`,"annotations":{"a":"`+strings.Repeat("x", 1000)+`"}`, ""))
}

func TestGenerateName(t *testing.T) {
	h := newHub(t)
	body := strings.Replace(lampJSON("", ""), `"name":"lamp"`, `"generateName":"lamp-"`, 1)
	seen := map[string]bool{}
	for range 20 {
		name := h.ok("POST", namespaceRoot+"/devices", body).str("metadata.name")
		require.Regexp(t, `^lamp-[a-z0-9]{5}$`, name)
		require.False(t, seen[name])
		seen[name] = true
	}
}

func TestInvalid(t *testing.T) {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	r := h.do("POST", namespaceRoot+"/devices", lampJSON("", `,"desired":{"brightness":400,"power":"DIM","temperature":"1","none":"1"}`))
	require.Equal(t, 422, r.code)
	require.Equal(t, "Invalid", r.str("reason"))
	var fields []string
	for i := range 4 {
		fields = append(fields, r.str(fmt.Sprintf("details.causes.%d.field", i)))
		require.NotEmpty(t, r.str(fmt.Sprintf("details.causes.%d.message", i)))
	}
	require.ElementsMatch(t, []string{"spec.desired[brightness]", "spec.desired[power]", "spec.desired[temperature]", "spec.desired[none]"}, fields)
	require.Equal(t, "Device", r.str("details.kind"))
	require.Equal(t, "lamp", r.str("details.name"))

	h.refused(422, "Invalid", "POST", namespaceRoot+"/devices", `{"metadata":{"name":"Bad_Name"}}`)
	h.refused(422, "Invalid", "POST", namespaceRoot+"/devicemodels", `{"metadata":{"name":"m"},"spec":{"properties":[{"name":"a","type":"blob"}]}}`)
	r = h.do("POST", namespaceRoot+"/devices", lampJSON("", `,"desired":["power"]`))
	require.Equal(t, 400, r.code)
	require.Equal(t, "spec.desired", r.str("details.causes.0.field"))
	// Without its model a device waits: what it wants is checked when somebody writes it again.
	h.ok("POST", apiRoot+"/namespaces/other/devices", lampJSON("", `,"desired":{"anything":"1"}`))
}

func TestUnknownFields(t *testing.T) {
	h := newHub(t)
	h.nodes("n1")
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	body := lampJSON(`,"colour":"red"`, `,"desiredd":{},"protocoll":{"x":1}`)
	r := h.do("POST", namespaceRoot+"/devices?fieldValidation=Strict", body)
	require.Equal(t, 400, r.code)
	require.Contains(t, r.str("message"), `strict decoding error: unknown field "metadata.colour", unknown field "spec.desiredd", unknown field "spec.protocoll"`)
	require.Equal(t, "spec.desiredd", r.str("details.causes.1.field"))

	r = h.ok("POST", namespaceRoot+"/devices?fieldValidation=Warn", body)
	require.Equal(t, []string{`299 - "unknown field \"metadata.colour\""`, `299 - "unknown field \"spec.desiredd\""`, `299 - "unknown field \"spec.protocoll\""`}, r.header.Values("Warning"))
	require.NotContains(t, string(r.body), "protocoll")
	require.Empty(t, h.ok("PUT", namespaceRoot+"/devices/lamp?fieldValidation=Ignore", body).header.Values("Warning"))
	h.refused(400, "BadRequest", "PUT", namespaceRoot+"/devices/lamp?fieldValidation=Never", body)
	// Go's decoder would take a field in any case.
	h.refused(400, "BadRequest", "PUT", namespaceRoot+"/devices/lamp?fieldValidation=Strict", strings.Replace(lampJSON("", ""), `"spec"`, `"Spec"`, 1))
}

func TestUpdate(t *testing.T) {
	h := newHub(t, asUser)
	made := h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
	rv := made.str("metadata.resourceVersion")

	same := h.ok("PUT", namespaceRoot+"/devices/lamp", string(made.body))
	require.Equal(t, made.tree, same.tree, "a write that changes nothing is no write")

	labelled := h.ok("PUT", namespaceRoot+"/devices/lamp", lampJSON(`,"labels":{"a":"b"},"resourceVersion":"`+rv+`"`, ""))
	require.EqualValues(t, 1, labelled.at("metadata.generation"), "metadata doesn't count")
	require.NotEqual(t, rv, labelled.str("metadata.resourceVersion"))
	require.Equal(t, made.str("metadata.uid"), labelled.str("metadata.uid"))
	require.Equal(t, made.str("metadata.creationTimestamp"), labelled.str("metadata.creationTimestamp"))

	msg := h.refused(409, "Conflict", "PUT", namespaceRoot+"/devices/lamp", lampJSON(`,"resourceVersion":"`+rv+`"`, ""))
	require.Contains(t, msg, "the object has been modified")
	require.Contains(t, msg, rv)
	changed := h.ok("PUT", namespaceRoot+"/devices/lamp", strings.Replace(lampJSON("", ""), "n1", "n2", 1))
	require.EqualValues(t, 2, changed.at("metadata.generation"))

	h.refused(409, "Conflict", "PUT", namespaceRoot+"/devices/lamp", lampJSON(`,"uid":"another"`, ""))
	h.refused(400, "BadRequest", "PUT", namespaceRoot+"/devices/lamp", lampNamed("other"))
	h.refused(403, "Forbidden", "PUT", namespaceRoot+"/devices/lamp", lampJSON(`,"owner":"Fleet/x"`, ""))
	h.refused(400, "BadRequest", "PUT", namespaceRoot+"/devices/lamp", lampJSON(`,"resourceVersion":"x"`, ""))
	h.refused(404, "NotFound", "PUT", namespaceRoot+"/devices/none", lampNamed("none"))
}

func TestStatusSubresource(t *testing.T) {
	h := newHub(t)
	made := h.ok("POST", namespaceRoot+"/devices", strings.Replace(lampJSON("", ""), `"spec"`, `"status":{"state":"online"},"spec"`, 1))
	require.Nil(t, made.at("status.state"), "a status is not for the creator")
	withStatus := strings.Replace(lampJSON("", ""), `"spec"`, `"status":{"state":"online"},"spec"`, 1)
	require.Nil(t, h.ok("PUT", namespaceRoot+"/devices/lamp", withStatus).at("status.state"))

	put := h.ok("PUT", namespaceRoot+"/devices/lamp/status", strings.Replace(withStatus, "n1", "n9", 1))
	require.Equal(t, "online", put.str("status.state"))
	require.Equal(t, "n1", put.str("spec.nodeName"), "a status writes nothing else")
	require.NotEqual(t, made.str("metadata.resourceVersion"), put.str("metadata.resourceVersion"))
	require.EqualValues(t, 1, put.at("metadata.generation"))
	patched := h.ok("PATCH", namespaceRoot+"/devices/lamp/status", `{"status":{"state":"offline"}}`, "Content-Type", mergePatch)
	require.Equal(t, "offline", patched.str("status.state"))
	require.Equal(t, patched.tree, h.ok("GET", namespaceRoot+"/devices/lamp/status", "").tree)
	after := h.ok("PUT", namespaceRoot+"/devices/lamp", lampJSON("", `,"desired":{"power":"ON"}`))
	require.Equal(t, "offline", after.str("status.state"), "it outlives a write of the spec")
	after = h.ok("PUT", namespaceRoot+"/devices/lamp", strings.Replace(lampJSON("", ""), "n1", "n2", 1))
	require.Equal(t, "unknown", after.str("status.state"), "but for one that gives the device to another node")
	h.refused(405, "MethodNotAllowed", "DELETE", namespaceRoot+"/devices/lamp/status", "")
	h.refused(404, "NotFound", "GET", namespaceRoot+"/devices/lamp/scale", "")
}

func TestPatch(t *testing.T) {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	made := h.ok("POST", namespaceRoot+"/devices", lampJSON(`,"labels":{"a":"1","b":"2"}`, `,"desired":{"power":"ON"}`))
	merge := func(body string) hubResponse {
		return h.do("PATCH", namespaceRoot+"/devices/lamp", body, "Content-Type", mergePatch)
	}
	r := merge(`{"metadata":{"labels":{"a":null}},"spec":{"desired":{"brightness":40}}}`)
	require.Equal(t, 200, r.code, "%s", r.body)
	require.Equal(t, map[string]any{"b": "2"}, r.at("metadata.labels"))
	require.Equal(t, map[string]any{"power": "ON", "brightness": "40"}, r.at("spec.desired"))
	require.Equal(t, 409, merge(`{"metadata":{"resourceVersion":"`+made.str("metadata.resourceVersion")+`"}}`).code)
	require.Equal(t, 422, merge(`{"spec":{"desired":{"brightness":101}}}`).code)
	require.Equal(t, 400, merge(`[]`).code)
	require.Equal(t, 200, merge(`{}`).code)

	ops := func(body string) hubResponse {
		return h.do("PATCH", namespaceRoot+"/devices/lamp", body, "Content-Type", jsonPatch)
	}
	r = ops(`[{"op":"test","path":"/spec/nodeName","value":"n1"},{"op":"remove","path":"/spec/desired/power"}]`)
	require.Equal(t, 200, r.code, "%s", r.body)
	require.Equal(t, map[string]any{"brightness": "40"}, r.at("spec.desired"))
	require.Equal(t, 422, ops(`[{"op":"test","path":"/spec/nodeName","value":"n2"}]`).code)
	require.Equal(t, 422, ops(`[{"op":"remove","path":"/spec/none"}]`).code)
	require.Equal(t, 400, ops(`{}`).code)
	require.Equal(t, 413, ops("["+strings.Repeat(`{"op":"remove","path":"/a"},`, maxOperations)+`{"op":"remove","path":"/a"}]`).code)
	h.refused(415, "UnsupportedMediaType", "PATCH", namespaceRoot+"/devices/lamp", `{}`, "Content-Type", "application/strategic-merge-patch+json")
}

func TestDryRun(t *testing.T) {
	h := newHub(t)
	all := "?dryRun=All"
	require.Equal(t, 201, h.ok("POST", namespaceRoot+"/devices"+all, lampJSON("", "")).code)
	h.refused(404, "NotFound", "GET", namespaceRoot+"/devices/lamp", "")
	made := h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
	h.refused(409, "AlreadyExists", "POST", namespaceRoot+"/devices"+all, lampJSON("", ""))
	h.refused(409, "AlreadyExists", "POST", apiRoot+"/namespaces/other/devices"+all, lampJSON("", ""))
	r := h.ok("PUT", namespaceRoot+"/devices/lamp"+all, strings.Replace(lampJSON("", ""), "n1", "n2", 1))
	require.Equal(t, "n2", r.str("spec.nodeName"))
	h.ok("PUT", namespaceRoot+"/devices/lamp/status"+all, `{"status":{"state":"online"}}`)
	h.ok("DELETE", namespaceRoot+"/devices/lamp"+all, "")
	h.ok("DELETE", namespaceRoot+"/devices/lamp", `{"dryRun":["All"]}`)
	require.Equal(t, made.tree, h.ok("GET", namespaceRoot+"/devices/lamp", "").tree)
	h.refused(400, "BadRequest", "DELETE", namespaceRoot+"/devices/lamp?dryRun=Some", "")
}

// What the hub keeps with wanted values is written in the same commit, and is nobody's to see or set.
func TestDesiredMeta(t *testing.T) {
	h := newHub(t)
	stored := func() (d resource.Device) {
		o, err := h.store.Get(context.Background(), store.Key{Kind: "Device", Namespace: "default", Name: "lamp"})
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(o.Data, &d))
		return d
	}
	r := h.ok("POST", namespaceRoot+"/devices?fieldManager=me", strings.Replace(lampJSON("", `,"desired":{"power":"ON"}`), `"spec"`, `"desiredMeta":{"power":{"ver":99}},"spec"`, 1))
	require.Contains(t, r.header.Get("Warning"), "desiredMeta")
	require.NotContains(t, string(r.body), "desiredMeta")
	ts := h.clock().UnixMilli()
	require.Equal(t, map[string]resource.DesiredMeta{"power": {Ver: 1, TS: ts, Origin: "api/me"}}, stored().DesiredMeta)

	h.pass(time.Second)
	h.ok("PATCH", namespaceRoot+"/devices/lamp", `{"metadata":{"labels":{"a":"b"}}}`, "Content-Type", mergePatch)
	require.EqualValues(t, 1, stored().DesiredMeta["power"].Ver)
	h.ok("PATCH", namespaceRoot+"/devices/lamp", `{"spec":{"desired":{"power":"OFF"}},"desiredMeta":null}`, "Content-Type", mergePatch, "User-Agent", "curl/8")
	require.Equal(t, resource.DesiredMeta{Ver: 2, TS: ts + 1000, Origin: "api/curl"}, stored().DesiredMeta["power"])
	h.ok("PATCH", namespaceRoot+"/devices/lamp", `{"spec":{"desired":null}}`, "Content-Type", mergePatch)
	require.Equal(t, uint64(3), stored().DesiredMeta["power"].Ver)
	require.True(t, stored().DesiredMeta["power"].Cleared)
	for _, path := range []string{namespaceRoot + "/devices", namespaceRoot + "/devices/lamp", apiRoot + "/devices?watch=true&timeoutSeconds=1"} {
		require.NotContains(t, string(h.ok("GET", path, "").body), "desiredMeta")
	}
	row := h.ok("GET", namespaceRoot+"/devices?includeObject=Object", "", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	require.NotContains(t, string(row.body), "desiredMeta")
}

// watchStream reads a watch.
type watchStream struct {
	t     *testing.T
	lines *bufio.Reader
	body  io.Closer
}

func (h *hub) watch(path string, headers ...string) *watchStream {
	h.t.Helper()
	req, err := http.NewRequest("GET", h.url+path, nil)
	require.NoError(h.t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(h.t, err)
	require.Equal(h.t, 200, resp.StatusCode)
	s := &watchStream{h.t, bufio.NewReader(resp.Body), resp.Body}
	h.t.Cleanup(func() { _ = resp.Body.Close() })
	return s
}

func (s *watchStream) next() hubResponse {
	s.t.Helper()
	line, err := s.lines.ReadBytes('\n')
	require.NoError(s.t, err)
	r := hubResponse{t: s.t, body: line}
	require.NoError(s.t, json.Unmarshal(line, &r.tree))
	return r
}

func (s *watchStream) expect(want ...string) {
	s.t.Helper()
	for _, w := range want {
		r := s.next()
		require.Equal(s.t, w, r.str("type")+" "+r.str("object.metadata.name"), "%s", r.body)
	}
}

// asUser makes everybody an operator of all nodes, but As: controller.
func asUser(o *hubOptions) {
	o.Authenticate = func(r *http.Request) (broker.Identity, error) {
		role := topics.RoleOperator
		if r.Header.Get("As") == "controller" {
			role = topics.RoleController
		}
		return broker.Identity{User: "ann", Roles: []topics.Role{role}, Nodes: []string{"*"}}, nil
	}
}

func warningsOf(r hubResponse) string { return strings.Join(r.header.Values("Warning"), "\n") }
