// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The rendered spec of a Device is for itself and for people whose nodes it is one of (21). knownRenderedVersion is the version that the
// client has, and there are no other parameters (22). The answer is 200 with another version, 204 with none, 202 while the spec can't be
// rendered, 403 for another Device's, 404 where there is none (23).
func Test21To23Rendered(t *testing.T) {
	t.Parallel()
	const name = notIt
	callOK(t, "", "POST", flightctlPath+"devices", `{"apiVersion":"flightctl.io/v1alpha1","kind":"Device","metadata":{"name":"`+name+`"}}`)
	makeNode(t, "p21")
	code, why := writeSpec(t, name, motdConfig("rendered"))
	require.Equal(t, 200, code, why)
	untilIs(t, "nodes/"+name, "status.specVersion", "1")
	paths := []string{flightctlPath + "devices/" + name + "/rendered", "/apis/flightctl.io/v1alpha1/devices/" + name + "/rendered", apiPath + "nodes/" + name + "/rendered"}
	ask := func(as, path string) (int, http.Header) {
		code, _, header := callAPI(t, as, "GET", path, "")
		return code, header
	}
	is := func(want int, as, path string) {
		t.Helper()
		code, _ := ask(as, path)
		require.Equal(t, want, code, "%s asks for %s", as, path)
	}
	for _, path := range paths {
		is(200, name, path)
		is(200, operator, path)
		is(200, "", path)
		is(403, theNode, path)
		is(403, name, strings.Replace(path, name, "p21", 1))
		is(404, operator, strings.Replace(path, name, "p21-none", 1))
		is(200, name, path+"?knownRenderedVersion=0")
		is(204, name, path+"?knownRenderedVersion=1")
		is(200, name, path+"?knownTemplateVersion=1")
		is(200, name, path+"?knownOwner=Fleet/x")
	}
	require.Contains(t, callOK(t, name, "GET", paths[0], "").text(""), "rendered")

	patchObject(t, "nodes/"+name, `{"spec":{"config":[{"name":"a","configType":"ConfigMapProviderSpec","configMapRef":{"name":"p21","mountPath":"/etc/p21"}}]}}`)
	untilCondition(t, "nodes/"+name, "SpecRendered", "False")
	for _, path := range paths {
		code, header := ask(name, path+"?knownRenderedVersion=1")
		require.Equal(t, 202, code, path)
		require.NotEmpty(t, header.Get("Retry-After"), path)
	}
	callOK(t, "", "POST", flightctlPath+"namespaces/default/configmaps", `{"metadata":{"name":"p21"},"data":{"a":"b"}}`)
	waitUntil(t, func() error {
		if code, _ := ask(name, paths[0]+"?knownRenderedVersion=1"); code != 200 {
			return fmt.Errorf("answered with %d", code)
		}
		return nil
	})
}

// edgebus get node/x --rendered, also as JSON, shows what a node is to apply.
func Test24CommandLine(t *testing.T) {
	t.Parallel()
	makeNode(t, "p24")
	code, why := writeSpec(t, "p24", motdConfig("shown"))
	require.Equal(t, 200, code, why)
	untilIs(t, "nodes/p24", "status.specVersion", "1")
	out := runEdgebus(t, "get", "node/p24", "--rendered")
	require.Contains(t, out, `renderedVersion: "1"`)
	require.Contains(t, out, "shown")
	out = runEdgebus(t, "get", "node/p24", "--rendered", "-o", "json")
	require.Contains(t, out, `"renderedVersion": "1"`)
}

// A Device's status is written by itself, and by no other node nor user; it says which version the Device has applied.
func renderedSpecsAreServed(t *testing.T) {
	at := flightctlPath + "devices/" + theNode + "/status"
	reportStatus(t, `"renderedVersion":"7"`)
	require.Equal(t, "7", getObject(t, "nodes/"+theNode).text("status.renderedVersion"))
	for _, as := range []string{notIt, operator, viewer, ""} {
		callRefused(t, 403, as, "PUT", at, reportBody(`"renderedVersion":"8"`))
	}
	callRefused(t, 403, theNode, "PUT", flightctlPath+"devices/"+theNode, reportBody(`"renderedVersion":"8"`))
	callRefused(t, 403, theNode, "PATCH", flightctlPath+"devices/"+theNode, `{"spec":{"os":{"image":"quay.io/x:1"}}}`)
	require.Equal(t, "7", getObject(t, "nodes/"+theNode).text("status.renderedVersion"))
}

// A node that speaks only flightctl's HTTP API is online by its requests, and its fleet rolls out to it and counts it as any other.
func TestAFleetRollsOutToANodeThatSpeaksHTTPOnly(t *testing.T) {
	t.Parallel()
	at := flightctlPath + "devices/" + overHTTP
	status := func(version string) string {
		return `{"apiVersion":"flightctl.io/v1beta1","kind":"Device","metadata":{"name":"` + overHTTP + `"},"status":{"config":{"renderedVersion":"` + version + `"}}}`
	}
	makeNode(t, overHTTP, "http=only")
	makeFleet(t, "http", "http=only", motdConfig("over HTTP"))
	untilIs(t, "fleets/http", "status.rollout.message", "1 is offline")
	callOK(t, overHTTP, "PUT", at+"/status", status("0"))
	untilIs(t, "nodes/"+overHTTP, "status.state", "online")
	waitUntil(t, func() error {
		code, answer, _ := callAPI(t, overHTTP, "GET", at+"/rendered?knownRenderedVersion=0", "")
		if code != 200 || !strings.Contains(fmt.Sprint(answer), "over HTTP") {
			return fmt.Errorf("answered with %d: %v", code, answer)
		}
		return nil
	})
	callOK(t, overHTTP, "PUT", at+"/status", status("1"))
	untilIs(t, "fleets/http", "status.rollout.updated", "1")
	untilIs(t, "fleets/http", "status.summary.summaryStatus.Online", "1")
	untilIs(t, "nodes/"+overHTTP, "metadata.annotations.fleet-controller/templateVersion", "http-0000001")
}

// A node that is heard of no more is offline.
func Test26Heartbeat(t *testing.T) {
	t.Parallel()
	n := newNodeWithAgent(t)
	code, why := writeSpec(t, n.name, motdConfig("x"))
	require.Equal(t, 200, code, why)
	n.untilFile(t, "etc/motd", "x")
	waitUntil(t, func() error { return wantEqual("1", n.get(t).text("status.renderedVersion")) })
	seen, err := time.Parse(time.RFC3339Nano, n.get(t).text("status.updatedAt"))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), seen, 5*time.Minute)
	require.NoError(t, sharedHub.Crash(n.core))
	untilIs(t, "nodes/"+n.name, "status.state", "offline")
	require.Equal(t, "1", n.get(t).text("status.renderedVersion"), "what it said last stays")
	require.NoError(t, sharedHub.Start(t.Context(), n.core))
	untilIs(t, "nodes/"+n.name, "status.state", "online")
}

// The floating references of a Device without an owner are followed: what they stand for changes, and it is rendered anew.
func Test27UnownedReferencesAreFollowed(t *testing.T) {
	t.Parallel()
	t.Run("ConfigMap", func(t *testing.T) {
		t.Parallel()
		n := newNodeWithAgent(t)
		callOK(t, "", "POST", flightctlPath+"namespaces/default/configmaps", `{"metadata":{"name":"p27"},"data":{"a":"one"}}`)
		patchObject(t, "nodes/"+n.name, `{"spec":{"config":[{"name":"a","configType":"ConfigMapProviderSpec","configMapRef":{"name":"p27","mountPath":"/etc/p27"}}]}}`)
		n.untilFile(t, "etc/p27/a", "one")
		callOK(t, "", "PATCH", flightctlPath+"namespaces/default/configmaps/p27", `{"data":{"a":"two"}}`)
		n.untilFile(t, "etc/p27/a", "two")
		untilIs(t, "nodes/"+n.name, "status.renderedVersion", "2")
		require.Equal(t, "2", n.get(t).text("metadata.generation"), "it was made, and given this spec")
	})
	t.Run("Secret", func(t *testing.T) {
		t.Parallel()
		n := newNodeWithAgent(t)
		makeSecret(t, "p27", "one")
		code, why := writeSpec(t, n.name, `{"config":[{"name":"a","configType":"KubernetesSecretProviderSpec","secretRef":{"name":"p27","mountPath":"/etc/p27"}}]}`)
		require.Equal(t, 200, code, why)
		n.untilFile(t, "etc/p27/psk", "one")
		callOK(t, operator, "PATCH", flightctlPath+"namespaces/default/secrets/p27", `{"stringData":{"psk":"two"}}`)
		n.untilFile(t, "etc/p27/psk", "two")
		untilIs(t, "nodes/"+n.name, "status.renderedVersion", "2")
	})
	t.Run("Git", func(t *testing.T) {
		t.Parallel()
		n := newNodeWithAgent(t)
		r := makeRepository(t, "p27", "etc/p27", "one\n")
		code, why := writeSpec(t, n.name, `{"config":[{"name":"a","configType":"GitConfigProviderSpec","gitRef":{"repository":"p27","targetRevision":"main","path":"/"}}]}`)
		require.Equal(t, 200, code, why)
		n.untilFile(t, "etc/p27", "one\n")
		r.commit(t, "etc/p27", "two\n")
		n.untilFile(t, "etc/p27", "two\n")
		untilIs(t, "nodes/"+n.name, "status.renderedVersion", "2")
		require.Equal(t, "2", n.get(t).text("metadata.generation"), "it was made, and given this spec")
	})
}

func makeSecret(t *testing.T, name, psk string) {
	t.Helper()
	callOK(t, operator, "POST", flightctlPath+"namespaces/default/secrets", fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":%q},"stringData":{"psk":%q}}`, name, psk))
}
