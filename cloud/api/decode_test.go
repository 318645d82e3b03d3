// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDuplicateFields(t *testing.T) {
	for text, want := range map[string][]string{
		`{"a":1,"b":{"a":2},"c":[{"a":3},{"a":4}]}`:       nil,
		`{"a":1,"a":1,"a":1}`:                             {"a"},
		`{"a":{"b":1,"c":2,"b":3},"d":[7,{"e":1,"e":2}]}`: {"a.b", "d[1].e"},
		`{"a":{"x":1,"x":2},"a":{"x":1}}`:                 {"a.x", "a"},
		`{"a":1,"\u0061":2}`:                              {"a"},
		`7`:                                               nil,
	} {
		require.Equal(t, want, duplicateFields([]byte(text)), text)
	}
	fromText, err := fromYAML([]byte("a: {b: 1, b: 2}\nc:\n- d: 1\n- d: 1\n  d: 2\n"))
	require.NoError(t, err)
	require.Equal(t, []string{"a.b", "c[1].d"}, duplicateFields(fromText))
}

func TestDuplicateFieldsAreReported(t *testing.T) {
	h := newHub(t)
	h.nodes("n2", "n4")
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	body := lampJSON("", `,"nodeName":"n2"`)
	const says = `duplicate field "spec.nodeName"`
	for what, r := range map[string]hubResponse{
		"create": h.do("POST", namespaceRoot+"/devices?fieldValidation=Strict", body),
		"YAML":   h.do("POST", namespaceRoot+"/devices?fieldValidation=Strict", "metadata: {name: x}\nspec:\n  nodeName: a\n  nodeName: b\n", "Content-Type", "application/yaml"),
		"apply":  h.do("PATCH", namespaceRoot+"/devices/lamp?fieldManager=x&fieldValidation=Strict", body, "Content-Type", applyPatch),
	} {
		require.Equal(t, 400, r.code, what)
		require.Contains(t, r.str("message"), "strict decoding error: "+says, what)
		require.Equal(t, "spec.nodeName", r.str("details.causes.0.field"), what)
	}
	made := h.ok("POST", namespaceRoot+"/devices", body)
	require.Equal(t, []string{`299 - "duplicate field \"spec.nodeName\""`}, made.header.Values("Warning"))
	require.Equal(t, "n2", made.str("spec.nodeName"), "the last counts")
	const patch = `{"spec":{"nodeName":"n3","nodeName":"n4"}}`
	h.refused(400, "BadRequest", "PATCH", namespaceRoot+"/devices/lamp?fieldValidation=Strict", patch, "Content-Type", mergePatch)
	quiet := h.ok("PATCH", namespaceRoot+"/devices/lamp?fieldValidation=Ignore", patch, "Content-Type", mergePatch)
	require.Empty(t, quiet.header.Values("Warning"))
}

func TestYAMLMeansWhatItSays(t *testing.T) {
	for text, want := range map[string]string{
		"a: OFF\nb: yes\nc: true\nd: ~\n":    `{"a":"OFF","b":"yes","c":true,"d":null}`,
		"a: 2024-04-30T15:06:20Z\nb: 1.5\n":  `{"a":"2024-04-30T15:06:20Z","b":1.5}`,
		"1: x\ntrue: y\n":                    `{"1":"x","true":"y"}`,
		"name: one\nmore: {x: 1}\nname: two": `{"name":"two","more":{"x":1}}`,
		"'<<': x\na: '*b'\n":                 `{"<<":"x","a":"*b"}`,
		"":                                   `null`,
		"a: 18446744073709551615\nb: 0x10\n": `{"a":18446744073709551615,"b":16}`,
		"a: |+\n  x\n  y\n":                  `{"a":"x\ny\n"}`,
	} {
		got, err := fromYAML([]byte(text))
		require.NoError(t, err, text)
		require.JSONEq(t, want, string(got))
	}
	for _, text := range []string{
		"a: *nobody", "- *my-container*", "a: [", "\tx", "a: .nan",
		"a: &a [x,x,x,x,x,x,x,x,x,x]\n" + strings.Repeat("a: &a [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n", 9),
		"x: &x\n  y: *x\n",
	} {
		_, err := fromYAML([]byte(text))
		require.Error(t, err, text)
	}
}

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

// badManifest is a manifest that nobody should send. says is what the answer names: the field or the rule.
type badManifest struct{ path, body, says string }

// manifestYAML is an object of a kind with a name and a spec in YAML.
func manifestYAML(name, spec string) string { return "metadata: {name: " + name + "}\nspec: " + spec }

func badManifests() []badManifest {
	deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	bomb := "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n" +
		"d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n"
	const (
		dev, mod    = namespaceRoot + "/devices", namespaceRoot + "/devicemodels"
		nodes       = apiRoot + "/nodes"
		fleets      = apiRoot + "/fleets"
		repos       = apiRoot + "/repositories"
		syncs       = apiRoot + "/resourcesyncs"
		ups         = apiRoot + "/upgrades"
		confs       = namespaceRoot + "/configurations"
		insts       = namespaceRoot + "/instances"
		secrets     = "/api/v1/namespaces/default/secrets"
		configMaps  = "/api/v1/namespaces/default/configmaps"
		enrollments = apiRoot + "/enrollmentrequests"
		visitors    = `{deviceModelRef: {name: m}, protocol: {type: x}, propertyVisitors: `
	)
	list := []badManifest{
		// not an object at all
		{dev, ``, "must be an object"},
		{dev, `null`, "must be an object"},
		{dev, `[]`, "must be an object"},
		{dev, `7`, "must be an object"},
		{dev, `{`, "neither JSON nor YAML"},
		{dev, "a: b: c", "neither JSON nor YAML"},
		{dev, "\tx: 1", "neither JSON nor YAML"},
		{dev, "\x00\xff", "neither JSON nor YAML"},
		{dev, bomb, "neither JSON nor YAML"},
		{dev, deep, "max depth"},
		{dev, `{"spec":` + deep + `}`, "max depth"},
		// what only the strict are told
		{dev + strictQuery, `{"metadata":{"name":"x"},"spek":{}}`, `unknown field "spek"`},
		{dev + strictQuery, manifestYAML("x", `{deviceModelRef: {name: m}, protocol: {type: x}, nodename: n1}`), `unknown field "spec.nodename"`},
		{dev + strictQuery, `{"metadata":{"name":"x","name":"y"}}`, `duplicate field "metadata.name"`},
		{mod + strictQuery, manifestYAML("x", `{properties: [{name: a, unit: m, unit: cm}]}`), `duplicate field "spec.properties[0].unit"`},
		// another object
		{dev, `{"kind":"Node","metadata":{"name":"x"}}`, "kind"},
		{dev, `{"apiVersion":"v9","metadata":{"name":"x"}}`, "apiVersion"},
		{dev, `{"metadata":{"name":"x","namespace":"other"}}`, "namespace"},
		{dev, `{"metadata":{"name":"x","resourceVersion":"7"}}`, "resourceVersion"},
		{dev, `{"metadata":{"name":"x","owner":"Fleet/f"}}`, "owner"},
		// metadata
		{nodes, `{}`, "metadata.name"},
		{nodes, `{"metadata":{"name":7}}`, "name"},
		{nodes, `{"metadata":{"name":"UPPER"}}`, "metadata.name"},
		{nodes, `{"metadata":{"name":"a/b"}}`, "metadata.name"},
		{nodes, `{"metadata":{"name":"a b"}}`, "metadata.name"},
		{nodes, `{"metadata":{"name":"a..b"}}`, "metadata.name"},
		{nodes, `{"metadata":{"name":"a-.b"}}`, "metadata.name"},
		{nodes, `{"metadata":{"name":"x","labels":{"a":"E160x/E170x"}}}`, "metadata.labels[a]"},
		{nodes, `{"metadata":{"name":"x","labels":{"a":"B0:B4:48"}}}`, "metadata.labels[a]"},
		{nodes, `{"metadata":{"name":"x","labels":{"a":"two words"}}}`, "metadata.labels[a]"},
		{nodes, `{"metadata":{"name":"x","labels":{"a":"-x"}}}`, "metadata.labels[a]"},
		{nodes, `{"metadata":{"name":"x","labels":{"a-":"x"}}}`, "metadata.labels"},
		{fleets, manifestYAML("x", `{selector: {matchLabels: {a: "b c"}}}`), "spec.selector.matchLabels[a]"},
		{
			nodes, `{"metadata":{"name":"x","ownerReferences":[{"apiVersion":"v1","kind":"Fleet","name":"f","uid":"1","controller":true},{"apiVersion":"v1","kind":"Fleet","name":"g","uid":"2","controller":true}]}}`,
			"both the controller; at most one owner is",
		},
		{nodes, `{"metadata":{"name":"` + strings.Repeat("x", 300) + `"}}`, "metadata.name"},
		{nodes, `{"metadata":[]}`, "metadata"},
		{nodes, `{"metadata":{"name":"x","labels":{"a b":"c"}}}`, "metadata.labels"},
		{nodes, `{"metadata":{"name":"x","labels":{"":"c"}}}`, "metadata.labels"},
		{nodes, `{"metadata":{"name":"x","labels":{"a":7}}}`, "metadata.labels"},
		{nodes, `{"metadata":{"name":"x","labels":{"a":"` + strings.Repeat("x", 64) + `"}}}`, "metadata.labels[a]"},
		{nodes, `{"metadata":{"name":"x","annotations":{"a":"` + strings.Repeat("x", 300_000) + `"}}}`, "metadata.annotations"},
		{nodes, `{"metadata":{"name":"x","creationTimestamp":"yesterday"}}`, "metadata.creationTimestamp"},
		{nodes, `{"metadata":{"name":"x","annotations":{"a b":"c"}}}`, "metadata.annotations"},
		{nodes, `{"metadata":{"name":"x","finalizers":[""]}}`, "metadata.finalizers[0]"},
		{nodes, `{"metadata":{"name":"x","ownerReferences":"x"}}`, "metadata.ownerReferences"},
		{nodes, `{"metadata":{"name":"x","ownerReferences":[7]}}`, "metadata.ownerReferences[0]"},
		{nodes, `{"metadata":{"name":"x","ownerReferences":[{"apiVersion":"v1","kind":"Fleet","name":"f"}]}}`, "metadata.ownerReferences[0].uid"},
		{nodes, `{"metadata":{"name":"x","finalizers":"all"}}`, "finalizers"},
		// devices and models
		{dev, manifestYAML("x", `{}`), "spec.deviceModelRef.name"},
		{dev, manifestYAML("x", `{deviceModelRef: {name: m}}`), "spec.protocol.type"},
		{dev, manifestYAML("x", `{deviceModelRef: {name: "M!"}, protocol: {type: x}}`), "spec.deviceModelRef.name"},
		{dev, manifestYAML("x", `{deviceModelRef: {name: m}, protocol: {type: x}, nodeName: "N 1"}`), "spec.nodeName"},
		{dev, manifestYAML("x", `{deviceModelRef: {name: m}, protocol: {type: x}, desired: {"a/b": "1"}}`), "spec.desired[a/b]"},
		{dev, manifestYAML("x", `{deviceModelRef: {name: m}, protocol: {type: x}, desired: {a: "1"}, desiredUntil: {a: soon}}`), "spec.desiredUntil[a]"},
		{dev, manifestYAML("x", `{deviceModelRef: [m], protocol: {type: x}}`), "spec.deviceModelRef"},
		{dev, manifestYAML("x", visitors+`[{collectCycle: 5}]}`), "spec.propertyVisitors[0].propertyName"},
		{dev, manifestYAML("x", visitors+`[{propertyName: a, collectCycle: -5}]}`), "spec.propertyVisitors[0].collectCycle"},
		{dev, manifestYAML("x", visitors+`[{propertyName: a, deadband: -1}]}`), "spec.propertyVisitors[0].deadband"},
		{dev, manifestYAML("x", visitors+`[{propertyName: a}, {propertyName: a}]}`), "spec.propertyVisitors[1].propertyName"},
		{mod, manifestYAML("x", `{properties: [{name: a}, {name: a}]}`), "spec.properties[1].name"},
		{mod, manifestYAML("x", `{properties: [{name: a, type: colour}]}`), "spec.properties[0].type"},
		{mod, manifestYAML("x", `{properties: [{name: a, type: int, minimum: 2, maximum: 1}]}`), "spec.properties[0].minimum"},
		{mod, manifestYAML("x", `{properties: [{name: a, accessMode: rw}]}`), "spec.properties[0].accessMode"},
		{mod, manifestYAML("x", `{propertyVisitors: [{protocol: p, visitors: [{propertyName: none}]}]}`), "visitors[0].propertyName"},
		{mod, manifestYAML("x", `{propertyVisitors: [{protocol: p, visitors: []}, {protocol: P, visitors: []}]}`), "spec.propertyVisitors[1].protocol"},
		{mod, manifestYAML("x", `{properties: {name: a}}`), "spec.properties"},
		// nodes and fleets
		{nodes, manifestYAML("x", `{config: [{name: c, configType: Magic}]}`), "spec.config[0].configType"},
		{nodes, manifestYAML("x", `{config: [{name: c, configType: GitConfigProviderSpec}]}`), "spec.config[0].gitRef"},
		{nodes, manifestYAML("x", `{config: [{name: c, configType: InlineConfigProviderSpec, inline: text}]}`), "spec.config[0].inline"},
		{fleets, manifestYAML("x", `{selector: {matchExpressions: [{key: a, operator: In}]}, template: {spec: {}}}`), "matchExpressions[0].values"},
		{fleets, manifestYAML("x", `{selector: {matchExpressions: [{key: a, operator: Near}]}, template: {spec: {}}}`), "matchExpressions[0].operator"},
		{fleets, manifestYAML("x", `{selector: {matchLabels: {a: [b]}}, template: {spec: {}}}`), "matchLabels"},
		// sources and upgrades
		{repos, manifestYAML("x", `{}`), "spec.url"},
		{repos, manifestYAML("x", `{url: nowhere}`), "spec.url"},
		{repos, manifestYAML("x", `{url: "ftp://h/x"}`), "spec.url"},
		{repos, manifestYAML("x", `{url: "https://ann:hunter2@h/x"}`), "must not hold a password"},
		{syncs, manifestYAML("x", `{repository: r, targetRevision: main}`), "spec.path"},
		{syncs, manifestYAML("x", `{repository: r, targetRevision: main, path: /, interval: often}`), "spec.interval"},
		{ups, manifestYAML("x", `{nodeNames: [n1]}`), "spec.version"},
		{ups, manifestYAML("x", `{version: v1}`), "spec.nodeNames"},
		{ups, manifestYAML("x", `{version: v1, nodeNames: [n1, n1]}`), "spec.nodeNames[1]"},
		// discovery, values, enrolment
		{confs, manifestYAML("x", `{}`), "spec.discoveryHandler.name"},
		{confs, manifestYAML("x", `{discoveryHandler: {name: x}, capacity: 0}`), "spec.capacity"},
		{confs, manifestYAML("x", `{discoveryHandler: {name: x}, capacity: many}`), "spec.capacity"},
		{insts, manifestYAML("x", `{configurationName: c, deviceSpecs: [{hostPath: /a, containerPath: /a, permissions: x}]}`), "spec.deviceSpecs[0].permissions"},
		{secrets, `{"metadata":{"name":"x"},"data":{"a":"no base64"}}`, "data"},
		{secrets, `{"metadata":{"name":"x"},"data":{"../a":""}}`, "data[../a]"},
		{configMaps, `{"metadata":{"name":"x"},"data":{"a":"x"},"binaryData":{"a":"AA=="}}`, "binaryData[a]"},
		{configMaps, `{"metadata":{"name":"x"},"data":{"a":"` + strings.Repeat("x", 1<<20+1) + `"}}`, "data"},
		{enrollments, manifestYAML("x", `{csr: x, approval: Maybe}`), "spec.approval"},
		{nodes, `{"metadata":{"name":"x"},"data":"` + strings.Repeat("x", 4<<20) + `"}`, "larger than"},
	}
	return list
}

// Each is answered with a Status that names the place, and none of them is stored or ends the hub.
func TestBadManifests(t *testing.T) {
	h := newHub(t, withSealer(t), asUser)
	all := badManifests()
	require.GreaterOrEqual(t, len(all), 60)
	for i, b := range all {
		t.Run(fmt.Sprintf("%d", i), func(t *testing.T) {
			r := h.do("POST", b.path, b.body, "Content-Type", "application/yaml")
			require.Equal(t, "Status", r.str("kind"), "%.300s → %.300s", b.body, r.body)
			require.GreaterOrEqual(t, r.code, 400)
			require.Less(t, r.code, 500, "%.300s", r.body)
			require.Contains(t, r.str("message")+fmt.Sprint(r.at("details.causes")), b.says)
			require.NotContains(t, string(r.body), "hunter2")
		})
	}
	for _, k := range Kinds() {
		require.Empty(t, h.ok("GET", k.root()+"/"+k.Plural, "").names(), k.Name)
	}
}

// What may not be created may not be put in the place of what is there, by any verb.
func TestBadManifestsReplaceNothing(t *testing.T) {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devices", lampNamed("x"))
	h.ok("POST", namespaceRoot+"/devicemodels", strings.Replace(modelJSON, "dimmable", "x", 1))
	before := map[string]string{}
	for _, of := range []string{"/devices", "/devicemodels"} {
		before[namespaceRoot+of] = string(h.ok("GET", namespaceRoot+of+"/x", "").body)
	}
	tried := 0
	for _, b := range badManifests() {
		if before[b.path] == "" || !strings.HasPrefix(b.says, "spec.") && !strings.Contains(b.says, "visitors") {
			continue
		}
		tried++
		said := func(what string, r hubResponse) {
			require.Equal(t, "Status", r.str("kind"), "%.300s → %.300s", b.body, r.body)
			require.Contains(t, []int{400, 422}, r.code)
			require.Contains(t, r.str("message")+fmt.Sprint(r.at("details.causes")), what)
		}
		said(b.says, h.do("PUT", b.path+"/x", b.body, "Content-Type", "application/yaml"))
		if b.body != manifestYAML("x", `{}`) && b.says != "spec.protocol.type" { // what lacks something changes nothing
			asJSON, err := fromYAML([]byte(b.body))
			require.NoError(t, err)
			said(b.says, h.do("PATCH", b.path+"/x", string(asJSON), "Content-Type", mergePatch))
			head := fmt.Sprintf("apiVersion: edgebus.io/v1alpha1\nkind: %s\n", map[bool]string{true: "Device", false: "DeviceModel"}[b.path == namespaceRoot+"/devices"])
			field, _, _ := strings.Cut(strings.TrimPrefix(b.says, "spec."), "[") // of a list with keys its own library says it
			said(field, h.do("PATCH", b.path+"/x?fieldManager=me&force=true", head+b.body, "Content-Type", applyPatch))
		}
	}
	require.Greater(t, tried, 15)
	for at, was := range before {
		require.Equal(t, was, string(h.ok("GET", at+"/x", "").body))
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
