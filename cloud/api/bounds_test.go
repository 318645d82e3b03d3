package api

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// many writes so many items with commas between them.
func many(n int, format string) string {
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
		"a: &x [1]\nb: [" + many(100_000, "*x") + "]":  "line 1: anchors (&name) and aliases (*name) are not taken",
		"metadata: {name: a}\nspec: &x {nodeName: n1}": "line 2: anchors",
		"&x a: b":         "anchors",
		"a: {<<: {b: c}}": "line 1: merge keys (<<) are not taken",
		"a: {<<: [" + many(3000, "{b#: c}") + "]}": "merge keys",
		"[a, b]: c":                          "a key is text",
		strings.Repeat("%TAG !x! y\n", 50):   "%TAG",
		strings.Repeat("# x\n", maxYAML/4+1): "YAML at most 1048576: send JSON",
		"a: .inf":                            ".inf",
	} {
		r := h.do("POST", inNS+"/devices", body, inYAML...)
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
	unknown := `{"metadata":{"name":"x"},"spec":{"deviceModelRef":{"name":"m"},"protocol":{"type":"p"},` + many(40_000, `"u#":1`) + `}}`
	long := strings.Repeat("k", maxPath-len(`"status""twin""u39999"""`))
	for name, c := range map[string]struct {
		method, path, body string
	}{
		"unknown":     {"POST", inNS + "/devices?fieldValidation=Strict", unknown},
		"twice":       {"POST", inNS + "/devices?fieldValidation=Strict", strings.Replace(unknown, `"u`, `"u0":1,"u`, 1)},
		"long path":   {"POST", inNS + "/devices?fieldValidation=Strict", `{"metadata":{"name":"x"},"status":{"twin":{"` + long + `":{` + many(40_000, `"u#":1`) + `}}}}`},
		"duplicates":  {"POST", inNS + "/devices?fieldValidation=Strict", `{"metadata":{"name":"x"},"status":{"twin":{"` + long + `":{` + many(40_000, `"u":1`) + `}}}}`},
		"in YAML":     {"POST", inNS + "/devices?fieldValidation=Strict", "metadata: {name: x}\nspec: {" + many(40_000, "u#: 1") + "}"},
		"dialect":     {"POST", beta1 + "/devices?fieldValidation=Strict", `{"metadata":{"name":"x"},"spec":{` + many(40_000, `"u#":1`) + `}}`},
		"apply":       {"PATCH", inNS + "/devices/x?fieldManager=a&fieldValidation=Strict", `{"apiVersion":"edgebus.io/v1alpha1","kind":"Device","spec":{` + many(20_000, `"u#":1`) + `}}`},
		"properties":  {"POST", inNS + "/devicemodels", `{"metadata":{"name":"x"},"spec":{"properties":[` + many(20_000, `{"name":""}`) + `]}}`},
		"annotations": {"POST", inNS + "/devices", `{"metadata":{"name":"x","annotations":{` + many(40_000, `"#?":"v"`) + `}},"spec":{}}`},
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
	said := h.refused(400, "BadRequest", "POST", inNS+"/devices", `{"metadata":{"name":"x","annotations":{"`+long+`":{"`+long+`":1}}}}`)
	require.Contains(t, said, "at most 4096 bytes")
	warned := h.do("POST", inNS+"/devices", unknown)
	require.LessOrEqual(t, len(warned.header.Values("Warning")), maxFaults+2)
}

// What costs more than it is long, or is compared each with each, has a bound of its own.
func TestWhatIsComparedIsFew(t *testing.T) {
	h := newHub(t)
	h.ok("POST", inNS+"/devices", lamp("", ""))
	h.ok("POST", base+"/nodes", `{"metadata":{"name":"n1"},"spec":{}}`)
	conditions := func(n int) string {
		return `{"status":{"conditions":[` + many(n, `{"type":"c#","status":"True"}`) + `]}}`
	}
	merge := func(path, body string) reply { return h.do("PATCH", path, body, "Content-Type", mergePatch) }
	require.Equal(t, 200, merge(inNS+"/devices/lamp/status", conditions(90)).code)
	for _, path := range []string{inNS + "/devices/lamp/status", base + "/nodes/n1/status", "/api/v1/devices/n1/status"} {
		r := merge(path, conditions(5000))
		require.Equal(t, 422, r.code, "%s: %.200s", path, r.body)
		require.Contains(t, r.str("message"), "at most 100")
	}
	r := merge(inNS+"/devices/lamp/status", `{"status":{"state":"`+strings.Repeat("x", 512<<10)+`"}}`)
	require.Equal(t, 413, r.code)
	require.Contains(t, r.str("message"), "524288")
	for field, body := range map[string]string{
		"finalizers":      `{"metadata":{"finalizers":[` + many(20_000, `"a.io/f#"`) + `]}}`,
		"ownerReferences": `{"metadata":{"ownerReferences":[` + many(9000, `{"apiVersion":"v1","kind":"A","name":"b","uid":"#"}`) + `]}}`,
		"labels":          `{"metadata":{"labels":{` + many(40_000, `"l#":"v"`) + `}}}`,
	} {
		r := merge(inNS+"/devices/lamp", body)
		require.Equal(t, 422, r.code, field)
		require.Contains(t, r.str("message"), "metadata."+field)
	}
	for field, entry := range map[string]string{
		"propertyVisitors": `{"propertyName":"p#"}`, "commands": `{"name":"c#"}`, "push": `{"propertyName":"p#"}`, "local": `"p#"`,
	} {
		r := merge(inNS+"/devices/lamp", `{"spec":{"`+field+`":[`+many(4097, entry)+`]}}`)
		require.Equal(t, 422, r.code, field)
		require.Contains(t, r.str("message"), "spec."+field+": has 4097 entries; at most 4096 are taken")
	}
	r = merge(inNS+"/devices/lamp", `{"spec":{"commands":[{"name":"c","properties":[`+many(4097, `"p#"`)+`]}]}}`)
	require.Contains(t, r.str("message"), "spec.commands: has 4098 entries")
	for field, entry := range map[string]string{"properties": `{"name":"p#","type":"int"}`, "propertyVisitors": `{"protocol":"p#"}`} {
		r := h.do("POST", inNS+"/devicemodels", `{"metadata":{"name":"x"},"spec":{"`+field+`":[`+many(4097, entry)+`]}}`)
		require.Equal(t, 422, r.code, field)
		require.Contains(t, r.str("message"), "spec."+field+": has 4097 entries; at most 4096 are taken")
	}
	require.Equal(t, 413, merge(inNS+"/devices/lamp", `{"spec":{"desired":{`+many(maxValues, `"p#":"1"`)+`}}}`).code)
	require.Equal(t, 400, merge(inNS+"/devices/lamp", strings.Repeat(`{"spec":`, 9000)+"1"+strings.Repeat("}", 9000)).code)
	// Patches that are small enough can't make an object that is not.
	require.Equal(t, 200, merge(inNS+"/devices/lamp", `{"spec":{"desired":{`+many(30_000, `"p#":"1"`)+`}}}`).code)
	require.Equal(t, 413, merge(inNS+"/devices/lamp", `{"spec":{"desired":{`+many(30_000, `"q#":"1"`)+`}}}`).code)
	copies := h.do("PATCH", inNS+"/devices/lamp", `[`+many(maxOperations, `{"op":"copy","from":"/spec/desired","path":"/metadata/annotations/c#"}`)+`]`, "Content-Type", jsonPatch)
	require.Equal(t, 422, copies.code, "%.200s", copies.body)
	tooMany := h.do("PATCH", inNS+"/devices/lamp", `[`+many(maxOperations+1, `{"op":"test","path":"/kind","value":"Device"}`)+`]`, "Content-Type", jsonPatch)
	require.Equal(t, 413, tooMany.code, "%.200s", tooMany.body)
	require.Equal(t, 200, merge(inNS+"/devices/lamp", `{"spec":{"desired":null}}`).code)
	// Names with escapes take another way through a merge, with the same outcome.
	r = merge(inNS+"/devices/lamp", `{"metadata":{"annotations":{"\u0061":"1","\u0062":null}},"spec":{"d\u0065sired":{`+many(20_000, `"\u0070#":"1"`)+`}}}`)
	require.Equal(t, 200, r.code, "%.200s", r.body)
	require.Equal(t, map[string]any{"a": "1"}, r.at("metadata.annotations"))
	require.Len(t, r.at("spec.desired"), 20_000)
}

// A selector is compared with every object, so it is short.
func TestSelectorsAreShort(t *testing.T) {
	h := newHub(t)
	for _, query := range []string{
		"labelSelector=" + many(3000, "a#!=b"), "labelSelector=a+in+(" + many(3000, "a#") + ")", "fieldSelector=" + many(1000, "metadata.name!=a#"),
	} {
		h.refused(400, "BadRequest", "GET", inNS+"/devices?"+query, "")
		h.refused(400, "BadRequest", "GET", inNS+"/devices?watch=true&"+query, "")
		h.refused(400, "BadRequest", "DELETE", inNS+"/devices?"+query, "")
	}
	h.ok("GET", inNS+"/devices?labelSelector="+many(1000, "a#!=b"), "")
}
