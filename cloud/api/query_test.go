package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Queries have booleans as Kubernetes reads them: Python's clients write True.
func TestAQuerysBooleansAreThoseOfKubernetes(t *testing.T) {
	h := newHub(t)
	h.devices(1)
	for i, value := range []string{"=true", "=1", "=True", "=TRUE", "=yes", "=", "", "=false", "=False", "=0"} {
		is := i < 7
		got := h.ok("GET", namespaceRoot+"/devices?timeoutSeconds=1&watch"+value, "")
		require.Equal(t, is, strings.HasPrefix(string(got.body), `{"type":"ADDED"`), "watch%s: %s", value, got.body)

		got = h.ok("GET", namespaceRoot+"/devices?timeoutSeconds=1&watch=1&allowWatchBookmarks=True&resourceVersionMatch=NotOlderThan&sendInitialEvents"+value, "")
		require.Equal(t, is, strings.Contains(string(got.body), "initial-events-end"), "sendInitialEvents%s: %s", value, got.body)

		body := `{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"` + strings.Repeat("x", i+1) + `"}}`
		h.ok("PATCH", "/api/v1/namespaces/default/configmaps/c?fieldManager=a&force=true", body, "Content-Type", applyPatch)
		taken := h.do("PATCH", "/api/v1/namespaces/default/configmaps/c?fieldManager=b&force"+value, strings.Replace(body, "x", "y", 1), "Content-Type", applyPatch)
		require.Equal(t, map[bool]int{true: 200, false: 409}[is], taken.code, "force%s: %s", value, taken.body)
	}
}

// A body is one object. What stands behind it is refused, as it would be dropped otherwise.
func TestABodyIsOneObject(t *testing.T) {
	h := newHub(t)
	const maps, second = "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"b"}}`
	one := func(name string) string { return `{"metadata":{"name":"` + name + `"}}` }
	for _, media := range []string{"", "application/json", "application/yaml"} {
		for name, body := range map[string]string{
			"two objects": one("a") + second, "rubbish": one("a") + " and so on", "a list behind": one("a") + "[]", "a line between": one("a") + "\n" + second,
			"two documents": one("a") + "\n---\n" + second, "three": one("a") + "\n---\n---\n" + second + "\n---\n" + second,
		} {
			h.refused(400, "BadRequest", "POST", maps, body, "Content-Type", media)
			h.refused(400, "BadRequest", "DELETE", maps, "{}"+body, "Content-Type", media)
			require.Empty(t, h.ok("GET", maps, "").at("items"), "%s as %q", name, media)
		}
	}
	for _, number := range []string{"NaN", "Infinity", "-Infinity", "nan", "0x10", "'a'"} {
		h.refused(400, "BadRequest", "POST", maps, `{"metadata":{"name":"a"},"data":{"a":`+number+`}}`, "Content-Type", "application/json")
	}
	apply := "apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n"
	h.refused(400, "BadRequest", "PATCH", maps+"/a?fieldManager=m", apply+"---\n"+apply, "Content-Type", applyPatch)
	for _, media := range []string{mergePatch, jsonPatch, strategicPatch} {
		h.refused(400, "BadRequest", "PATCH", maps+"/a", `{"data":{}}{"data":{}}`, "Content-Type", media)
	}

	// Separators without a document between them are no second one.
	for i, body := range []string{"---\n" + one("c0"), one("c1") + "\n---\n", "# a comment\n---\n---\n" + one("c2") + "\n...\n"} {
		made := h.ok("POST", maps, body, "Content-Type", "application/yaml")
		require.Equal(t, "c"+string(rune('0'+i)), made.str("metadata.name"))
	}
}

// Discovery answers at paths with a final slash as well, and says what generated clients require.
func TestDiscoveryHasFinalSlashes(t *testing.T) {
	h := newHub(t)
	for _, path := range []string{"/version", "/api", "/api/v1", "/apis", "/apis/edgebus.io", apiRoot, "/apis/coordination.k8s.io/v1", "/openapi/v3"} {
		require.Equal(t, h.ok("GET", path, "").body, h.ok("GET", path+"/", "").body, path)
	}
	version := h.ok("GET", "/version", "")
	for _, field := range []string{"major", "minor", "gitVersion", "gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"} {
		require.IsType(t, "", version.at(field), field)
	}
}

// Older clients watch at paths of their own.
func TestOldPathsOfWatches(t *testing.T) {
	h := newHub(t)
	h.devices(2)
	for path, want := range map[string][]string{
		apiRoot + "/watch/devices": {"d00", "d01"}, apiRoot + "/watch/namespaces/default/devices": {"d00", "d01"},
		apiRoot + "/watch/namespaces/default/devices/d01": {"d01"}, "/api/v1/watch/namespaces/default/configmaps": nil,
	} {
		got := h.ok("GET", path+"?timeoutSeconds=1", "")
		require.Equal(t, len(want), strings.Count(string(got.body), `{"type":"ADDED"`), path)
		for _, name := range want {
			require.Contains(t, string(got.body), `"name":"`+name+`"`)
		}
	}
	h.refused(404, "NotFound", "DELETE", apiRoot+"/watch/namespaces/default/devices", "")
}

// What is written in base64 is text to clients, and OpenAPI 2 has each verb.
func TestOpenAPIHasBytesAsTextAndAllVerbs(t *testing.T) {
	h := newHub(t)
	schema := string(h.ok("GET", "/openapi/v3/apis/flightctl.io/v1beta1", "").body)
	require.Regexp(t, `"sshPrivateKey":\{[^}]*"format":"byte"[^}]*"type":"string"`, schema)
	v2 := h.ok("GET", "/openapi/v2", "")
	paths := v2.tree["paths"].(dict)
	require.Len(t, paths[namespacePath("devices")], 3)
	require.Len(t, paths[namespacePath("devices")+"/{name}"], 4)
}

func namespacePath(plural string) string { return apiRoot + "/namespaces/{namespace}/" + plural }

// An Event of whichever writer has the time that events.k8s.io requires.
func TestEventsHaveAnEventTime(t *testing.T) {
	h := newHub(t)
	h.ok("POST", "/api/v1/namespaces/default/events", `{"metadata":{"name":"e"},"involvedObject":{"name":"lamp"},"firstTimestamp":"2026-11-20T10:00:00Z"}`)
	require.Equal(t, "2026-11-20T10:00:00.000000Z", h.ok("GET", "/apis/events.k8s.io/v1/namespaces/default/events", "").str("items.0.eventTime"))
}
