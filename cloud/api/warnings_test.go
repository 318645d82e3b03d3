package api

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// nodes makes Nodes, as cores do that connect.
func (h *hub) nodes(names ...string) {
	h.t.Helper()
	for _, name := range names {
		h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"`+name+`"}}`)
	}
}

// A Device may be there before its node. A misspelt one is, too, and for ever.
func TestAWriterIsToldThatThereIsNoSuchNode(t *testing.T) {
	const onAttic = `{"spec":{"nodeName":"attic"}}`
	says := []string{`299 - "spec.nodeName: there is no Node attic; its devices wait until a core of that name connects"`}
	h := newHub(t)
	h.nodes("n1")
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	told := func(want []string, r hubResponse) {
		t.Helper()
		require.Less(t, r.code, 300, "%s", r.body)
		require.Equal(t, want, r.header.Values("Warning"))
	}
	told(nil, h.do("POST", namespaceRoot+"/devices", deviceOnNode("lamp", "n1")))
	told(says, h.do("PUT", namespaceRoot+"/devices/lamp", deviceOnNode("lamp", "attic")))
	told(nil, h.do("PUT", namespaceRoot+"/devices/lamp", deviceOnNode("lamp", "attic")))
	told(nil, h.do("PATCH", namespaceRoot+"/devices/lamp", `{"spec":{"desired":{"power":"ON"}}}`, "Content-Type", mergePatch))
	told(nil, h.do("PATCH", namespaceRoot+"/devices/lamp", `{"spec":{"nodeName":"n1"}}`, "Content-Type", mergePatch))
	told(says, h.do("PATCH", namespaceRoot+"/devices/lamp?dryRun=All", onAttic, "Content-Type", mergePatch))
	told(says, h.do("PATCH", namespaceRoot+"/devices/lamp", onAttic, "Content-Type", mergePatch))
	h.ok("DELETE", namespaceRoot+"/devices/lamp", "")
	told(says, h.apply("ann", `{`+requiredSpec+`, nodeName: attic}`, ""))
	told(nil, h.apply("ann", `{`+requiredSpec+`, nodeName: attic}`, ""))
	told(says, h.do("POST", namespaceRoot+"/devices", deviceOnNode("fan", "attic")))
	h.nodes("attic")
	told(nil, h.do("POST", namespaceRoot+"/devices", deviceOnNode("bell", "attic")))
}

func TestAWriterIsToldThatThereIsNoSuchModel(t *testing.T) {
	h := newHub(t)
	h.nodes("n1")
	made := h.ok("POST", namespaceRoot+"/devices", deviceOnNode("lamp", "n1"))
	require.Equal(t, []string{`299 - "spec.deviceModelRef.name: there is no DeviceModel dimmable; the device waits until there is, ` +
		`and its desired values are not checked yet"`}, made.header.Values("Warning"))
	again := h.ok("PATCH", namespaceRoot+"/devices/lamp", `{"spec":{"desired":{"power":"ON"}}}`, "Content-Type", mergePatch)
	require.Empty(t, again.header.Values("Warning"))
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	require.Empty(t, h.ok("POST", namespaceRoot+"/devices", deviceOnNode("fan", "n1")).header.Values("Warning"))
}

// Without quotes ON is a boolean to YAML, and no text that anybody would publish.
func TestAWriterIsToldWhatYAMLMadeOfON(t *testing.T) {
	h := newHub(t)
	enum := func(name, list string) hubResponse {
		return h.ok("POST", namespaceRoot+"/devicemodels", "metadata: {name: "+name+"}\nspec: {properties: [{name: power, enum: "+list+"}]}", "Content-Type", "application/yaml")
	}
	require.Contains(t, enum("bare", "[true, false, IDLE]").header.Get("Warning"), "spec.properties[0].enum: a text of power may be true or false")
	require.Empty(t, enum("quoted", `["ON", "OFF"]`).header.Values("Warning"))
}

// Permissions are a decimal number, as in Ignition; who writes them in octal is told, for the file would have others than are meant.
func TestAWriterIsToldOfPermissionsInOctal(t *testing.T) {
	h := newHub(t)
	spec := func(mode string) string {
		return `{"config":[{"name":"f","configType":"FileListProviderSpec","files":[{"path":"/etc/x","content":"x","mode":` + mode + `}]}]}`
	}
	says := func(at string) []string {
		return []string{`299 - "` + at + `.config[0].files[0].mode: 644 is 1204 in octal; the permissions 644 are 420, or 0644 in YAML"`}
	}
	r := h.do("POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"},"spec":`+spec("644")+`}`)
	require.Equal(t, says("spec"), r.header.Values("Warning"), "%s", r.body)
	r = h.do("POST", apiRoot+"/fleets", `{"metadata":{"name":"f"},"spec":{"template":{"spec":`+spec("644")+`}}}`)
	require.Equal(t, says("spec.template.spec"), r.header.Values("Warning"), "%s", r.body)
	for name, mode := range map[string]string{"a": "420", "b": "493", "c": "384", "d": "511", "e": "1023", "f": "444"} {
		r = h.do("POST", apiRoot+"/nodes", `{"metadata":{"name":"`+name+`"},"spec":`+spec(mode)+`}`)
		require.Equal(t, 201, r.code, "%s", r.body)
		require.Empty(t, r.header.Values("Warning"), mode)
	}
}
