package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A namespace is there as long as somebody sees something in it.
func TestTrial21Namespaces(t *testing.T) {
	h := withPeople(t)
	boss := []string{"As", "boss"}
	for name, node := range map[string]string{"a": "n1", "b": "n2", "c": "n2"} {
		space := "/" + map[string]string{"a": "attic", "b": "barn", "c": "barn"}[name] + "/"
		body := strings.Replace(onNode("lamp-"+name, node), "default", "", 1)
		h.ok("POST", base+"/namespaces"+space+"devices", body, boss...)
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
	h.refused(404, "NotFound", "GET", "/api/v1/namespaces/barn", "", "As", "vic")
	h.refused(401, "Unauthorized", "GET", "/api/v1/namespaces", "")
	h.ok("DELETE", base+"/namespaces/attic/devices/lamp-a", "", boss...)
	require.Equal(t, []string{"barn", "default"}, seen("boss"))
}

// What `kubectl get all` asks for needs no right of its own, so that everybody who may list devices has an answer.
func TestTrial21GetAllLeavesCredentialsOut(t *testing.T) {
	h := withPeople(t)
	all := map[string]bool{}
	for _, r := range h.ok("GET", base, "", "As", "boss").at("resources").([]any) {
		kind := r.(map[string]any)
		categories, _ := kind["categories"].([]any)
		all[kind["name"].(string)] = len(categories) == 1
	}
	require.True(t, all["devices"])
	require.True(t, all["nodes"])
	require.Contains(t, all, "repositories")
	require.False(t, all["repositories"])
}
