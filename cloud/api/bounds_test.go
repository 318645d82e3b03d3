package api

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// repeatFormat writes so many items with commas between them.
func repeatFormat(n int, format string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strings.ReplaceAll(format, "#", fmt.Sprint(i)))
	}
	return b.String()
}

var inYAML = []string{"Content-Type", "application/yaml"}

// What YAML has beyond JSON lets a small body stand for a large one. It is refused, with what to do.
func TestYAMLIsNoMoreThanJSON(t *testing.T) {
	h := newHub(t)
	for body, says := range map[string]string{
		"a: &x [1]\nb: [" + repeatFormat(100_000, "*x") + "]": "line 1: anchors (&name) and aliases (*name) are not taken",
		"metadata: {name: a}\nspec: &x {nodeName: n1}":        "line 2: anchors",
		"&x a: b":         "anchors",
		"a: {<<: {b: c}}": "line 1: merge keys (<<) are not taken",
		"a: {<<: [" + repeatFormat(3000, "{b#: c}") + "]}": "merge keys",
		"[a, b]: c":                          "a key is text",
		strings.Repeat("%TAG !x! y\n", 50):   "%TAG",
		strings.Repeat("# x\n", maxYAML/4+1): "YAML at most 1048576: send JSON",
		"a: .inf":                            ".inf",
	} {
		r := h.do("POST", namespaceRoot+"/devices", body, inYAML...)
		require.Equal(t, 400, r.code, "%.60s", body)
		require.Contains(t, r.str("message"), says)
		require.Less(t, len(r.body), 1000)
	}
	// Of all keys of a large object each is looked at once.
	var text strings.Builder
	text.WriteString("kind: ConfigMap\nmetadata: {name: keys}\ndata:\n")
	for i := range 40_000 {
		fmt.Fprintf(&text, "  k%d: v\n", i)
	}
	body := []byte(text.String())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	out, err := fromYAML(body)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.Empty(t, duplicateFields(out))
	require.Less(t, len(out), 2*len(body))
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100*len(body)))
	h.ok("POST", "/api/v1/namespaces/default/configmaps", text.String(), inYAML...)
}

func TestAReviewIsSmall(t *testing.T) {
	h := newHub(t)
	spec := `{"spec":{"resourceAttributes":{"verb":"get","resource":"devices","group":"edgebus.io"}}%s}`
	r := h.ok("POST", authorizationRoot+"/selfsubjectaccessreviews", fmt.Sprintf(spec, ""))
	require.Equal(t, true, r.at("status.allowed"))
	for _, media := range []string{"application/json", "application/yaml", protobufType} {
		h.refused(413, "RequestEntityTooLarge", "POST", authorizationRoot+"/selfsubjectaccessreviews", fmt.Sprintf(spec, strings.Repeat(" ", maxReview)), "Content-Type", media)
	}
}

// Whatever is wrong with a body, and however often, the answer names a bounded number of faults.
func TestFaultsAreBounded(t *testing.T) {
	h := newHub(t)
	unknown := `{"metadata":{"name":"x"},"spec":{"deviceModelRef":{"name":"m"},"protocol":{"type":"p"},` + repeatFormat(40_000, `"u#":1`) + `}}`
	long := strings.Repeat("k", maxPath-len(`"status""twin""u39999"""`))
	for name, c := range map[string]struct {
		method, path, body string
	}{
		"unknown":     {"POST", namespaceRoot + "/devices?fieldValidation=Strict", unknown},
		"twice":       {"POST", namespaceRoot + "/devices?fieldValidation=Strict", strings.Replace(unknown, `"u`, `"u0":1,"u`, 1)},
		"long path":   {"POST", namespaceRoot + "/devices?fieldValidation=Strict", `{"metadata":{"name":"x"},"status":{"twin":{"` + long + `":{` + repeatFormat(40_000, `"u#":1`) + `}}}}`},
		"duplicates":  {"POST", namespaceRoot + "/devices?fieldValidation=Strict", `{"metadata":{"name":"x"},"status":{"twin":{"` + long + `":{` + repeatFormat(40_000, `"u":1`) + `}}}}`},
		"in YAML":     {"POST", namespaceRoot + "/devices?fieldValidation=Strict", "metadata: {name: x}\nspec: {" + repeatFormat(40_000, "u#: 1") + "}"},
		"dialect":     {"POST", kubeedgeBeta1 + "/devices?fieldValidation=Strict", `{"metadata":{"name":"x"},"spec":{` + repeatFormat(40_000, `"u#":1`) + `}}`},
		"apply":       {"PATCH", namespaceRoot + "/devices/x?fieldManager=a&fieldValidation=Strict", `{"apiVersion":"edgebus.io/v1alpha1","kind":"Device","spec":{` + repeatFormat(20_000, `"u#":1`) + `}}`},
		"properties":  {"POST", namespaceRoot + "/devicemodels", `{"metadata":{"name":"x"},"spec":{"properties":[` + repeatFormat(20_000, `{"name":""}`) + `]}}`},
		"annotations": {"POST", namespaceRoot + "/devices", `{"metadata":{"name":"x","annotations":{` + repeatFormat(40_000, `"#?":"v"`) + `}},"spec":{}}`},
	} {
		t.Run(name, func(t *testing.T) {
			media := map[bool]string{true: applyPatch, false: "application/json"}[c.method == "PATCH"]
			if name == "in YAML" {
				media = "application/yaml"
			}
			r := h.do(c.method, c.path, c.body, "Content-Type", media)
			require.Contains(t, []int{400, 422}, r.code, "%.300s", r.body)
			causes, _ := r.at("details.causes").([]any)
			require.NotEmpty(t, causes)
			require.LessOrEqual(t, len(causes), maxFaults+1)
			require.Less(t, len(r.body), 32<<10)
		})
	}
	said := h.refused(400, "BadRequest", "POST", namespaceRoot+"/devices", `{"metadata":{"name":"x","annotations":{"`+long+`":{"`+long+`":1}}}}`)
	require.Contains(t, said, "at most 4096 bytes")
	warned := h.do("POST", namespaceRoot+"/devices", unknown)
	require.LessOrEqual(t, len(warned.header.Values("Warning")), maxFaults+2)
}

// What costs more than it is long, or is compared each with each, has a bound of its own.
func TestWhatIsComparedIsFew(t *testing.T) {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
	h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"},"spec":{}}`)
	conditions := func(n int) string {
		return `{"status":{"conditions":[` + repeatFormat(n, `{"type":"c#","status":"True"}`) + `]}}`
	}
	merge := func(path, body string) hubResponse { return h.do("PATCH", path, body, "Content-Type", mergePatch) }
	require.Equal(t, 200, merge(namespaceRoot+"/devices/lamp/status", conditions(90)).code)
	for _, path := range []string{namespaceRoot + "/devices/lamp/status", apiRoot + "/nodes/n1/status", "/api/v1/devices/n1/status"} {
		r := merge(path, conditions(5000))
		require.Equal(t, 422, r.code, "%s: %.200s", path, r.body)
		require.Contains(t, r.str("message"), "at most 100")
	}
	r := merge(namespaceRoot+"/devices/lamp/status", `{"status":{"state":"`+strings.Repeat("x", 512<<10)+`"}}`)
	require.Equal(t, 413, r.code)
	require.Contains(t, r.str("message"), "524288")
	for field, body := range map[string]string{
		"finalizers":      `{"metadata":{"finalizers":[` + repeatFormat(20_000, `"a.io/f#"`) + `]}}`,
		"ownerReferences": `{"metadata":{"ownerReferences":[` + repeatFormat(9000, `{"apiVersion":"v1","kind":"A","name":"b","uid":"#"}`) + `]}}`,
		"labels":          `{"metadata":{"labels":{` + repeatFormat(40_000, `"l#":"v"`) + `}}}`,
	} {
		r := merge(namespaceRoot+"/devices/lamp", body)
		require.Equal(t, 422, r.code, field)
		require.Contains(t, r.str("message"), "metadata."+field)
	}
	for field, entry := range map[string]string{
		"propertyVisitors": `{"propertyName":"p#"}`, "commands": `{"name":"c#"}`, "push": `{"propertyName":"p#"}`, "local": `"p#"`,
	} {
		r := merge(namespaceRoot+"/devices/lamp", `{"spec":{"`+field+`":[`+repeatFormat(4097, entry)+`]}}`)
		require.Equal(t, 422, r.code, field)
		require.Contains(t, r.str("message"), "spec."+field+": has 4097 entries; at most 4096 are taken")
	}
	r = merge(namespaceRoot+"/devices/lamp", `{"spec":{"commands":[{"name":"c","properties":[`+repeatFormat(4097, `"p#"`)+`]}]}}`)
	require.Contains(t, r.str("message"), "spec.commands: has 4098 entries")
	for field, entry := range map[string]string{"properties": `{"name":"p#","type":"int"}`, "propertyVisitors": `{"protocol":"p#"}`} {
		r := h.do("POST", namespaceRoot+"/devicemodels", `{"metadata":{"name":"x"},"spec":{"`+field+`":[`+repeatFormat(4097, entry)+`]}}`)
		require.Equal(t, 422, r.code, field)
		require.Contains(t, r.str("message"), "spec."+field+": has 4097 entries; at most 4096 are taken")
	}
	require.Equal(t, 413, merge(namespaceRoot+"/devices/lamp", `{"spec":{"desired":{`+repeatFormat(maxValues, `"p#":"1"`)+`}}}`).code)
	require.Equal(t, 400, merge(namespaceRoot+"/devices/lamp", strings.Repeat(`{"spec":`, 9000)+"1"+strings.Repeat("}", 9000)).code)
	// Patches that are small enough can't make an object that is not.
	require.Equal(t, 200, merge(namespaceRoot+"/devices/lamp", `{"spec":{"desired":{`+repeatFormat(30_000, `"p#":"1"`)+`}}}`).code)
	require.Equal(t, 413, merge(namespaceRoot+"/devices/lamp", `{"spec":{"desired":{`+repeatFormat(30_000, `"q#":"1"`)+`}}}`).code)
	copies := h.do("PATCH", namespaceRoot+"/devices/lamp", `[`+repeatFormat(maxOperations, `{"op":"copy","from":"/spec/desired","path":"/metadata/annotations/c#"}`)+`]`, "Content-Type", jsonPatch)
	require.Equal(t, 422, copies.code, "%.200s", copies.body)
	tooMany := h.do("PATCH", namespaceRoot+"/devices/lamp", `[`+repeatFormat(maxOperations+1, `{"op":"test","path":"/kind","value":"Device"}`)+`]`, "Content-Type", jsonPatch)
	require.Equal(t, 413, tooMany.code, "%.200s", tooMany.body)
	require.Equal(t, 200, merge(namespaceRoot+"/devices/lamp", `{"spec":{"desired":null}}`).code)
	// Names with escapes take another way through a merge, with the same outcome.
	r = merge(namespaceRoot+"/devices/lamp", `{"metadata":{"annotations":{"\u0061":"1","\u0062":null}},"spec":{"d\u0065sired":{`+repeatFormat(20_000, `"\u0070#":"1"`)+`}}}`)
	require.Equal(t, 200, r.code, "%.200s", r.body)
	require.Equal(t, map[string]any{"a": "1"}, r.at("metadata.annotations"))
	require.Len(t, r.at("spec.desired"), 20_000)
}

// A selector is compared with every object, so it is short.
func TestSelectorsAreShort(t *testing.T) {
	h := newHub(t)
	for _, query := range []string{
		"labelSelector=" + repeatFormat(3000, "a#!=b"), "labelSelector=a+in+(" + repeatFormat(3000, "a#") + ")", "fieldSelector=" + repeatFormat(1000, "metadata.name!=a#"),
	} {
		h.refused(400, "BadRequest", "GET", namespaceRoot+"/devices?"+query, "")
		h.refused(400, "BadRequest", "GET", namespaceRoot+"/devices?watch=true&"+query, "")
		h.refused(400, "BadRequest", "DELETE", namespaceRoot+"/devices?"+query, "")
	}
	h.ok("GET", namespaceRoot+"/devices?labelSelector="+repeatFormat(1000, "a#!=b"), "")
}
