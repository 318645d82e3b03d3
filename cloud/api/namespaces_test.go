// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/api/protobuf"
)

// A namespace is there as long as somebody sees something in it.
func TestNamespacesAreListed(t *testing.T) {
	h := newHubWithUsers(t)
	boss := []string{"As", "boss"}
	for name, node := range map[string]string{"a": "n1", "b": "n2", "c": "n2"} {
		space := "/" + map[string]string{"a": "attic", "b": "barn", "c": "barn"}[name] + "/"
		body := strings.Replace(deviceOnNode("lamp-"+name, node), "default", "", 1)
		h.ok("POST", apiRoot+"/namespaces"+space+"devices", body, boss...)
	}
	seen := func(as string) (names []string) {
		list := h.ok("GET", "/api/v1/namespaces", "", "As", as)
		require.Equal(t, "NamespaceList", list.str("kind"))
		for _, item := range list.at("items").([]any) {
			names = append(names, item.(map[string]any)["metadata"].(map[string]any)["name"].(string))
		}
		return names
	}
	require.Equal(t, []string{"attic", "barn", "default"}, seen("boss"))
	require.Equal(t, []string{"attic", "default"}, seen("vic"), "of others' nodes nothing is told")
	require.Equal(t, []string{"default"}, seen("map"))

	require.Len(t, h.ok("GET", "/api/v1/namespaces", "", "As", "boss", "Accept", asTable).at("rows"), 3)
	require.Equal(t, "Namespace", h.ok("GET", "/api/v1/namespaces/attic", "", boss...).str("kind"))
	require.Equal(t, h.ok("GET", "/api/v1/namespaces/barn", "", "As", "vic").tree["status"], h.ok("GET", "/api/v1/namespaces/nothing", "", "As", "vic").tree["status"],
		"of others' nodes nothing is told: every name is a namespace")
	h.refused(404, "NotFound", "GET", "/api/v1/namespaces/No.name", "", boss...)
	h.refused(401, "Unauthorized", "GET", "/api/v1/namespaces", "")
	h.ok("DELETE", apiRoot+"/namespaces/attic/devices/lamp-a", "", boss...)
	require.Equal(t, []string{"barn", "default"}, seen("boss"))
}

// A directory of manifests that has its Namespace can be applied. Whoever wants to make or change one is told what it is.
func TestNamespacesAreAppliedButNotWritten(t *testing.T) {
	h := newHub(t)
	const at, body = "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop"}}`
	for _, c := range [][4]string{
		{"POST", at, "application/json"},
		{"POST", at, protobuf.MediaType},
		{"PUT", at + "/shop", "application/json"},
		{"DELETE", at + "/shop", protobuf.MediaType},
		{"PATCH", at + "/shop?fieldManager=kubectl-label", strategicPatch},
		{"DELETE", at, "application/json"},
	} {
		require.Contains(t, h.refused(405, "MethodNotAllowed", c[0], c[1], body, "Content-Type", c[2]), "every name is one")
	}
	require.Equal(t, "shop", h.ok("GET", at+"/shop", "").str("metadata.name"))
	for _, c := range [][2]string{{"kubectl-client-side-apply", strategicPatch}, {"kubectl", applyPatch}} {
		applied := h.ok("PATCH", at+"/shop?fieldManager="+c[0], body, "Content-Type", c[1])
		require.Equal(t, "Namespace", applied.str("kind"))
		require.Contains(t, warningsOf(applied), "nothing of this Namespace is stored")
	}
}

// What `kubectl get all` asks for needs no right of its own, so that everybody who may list devices has an answer.
func TestGetAllLeavesCredentialsOut(t *testing.T) {
	h := newHubWithUsers(t)
	all := map[string]bool{}
	for _, r := range h.ok("GET", apiRoot, "", "As", "boss").at("resources").([]any) {
		kind := r.(map[string]any)
		categories, _ := kind["categories"].([]any)
		all[kind["name"].(string)] = len(categories) == 1
	}
	require.True(t, all["devices"])
	require.True(t, all["nodes"])
	require.Contains(t, all, "repositories")
	require.False(t, all["repositories"])
}
