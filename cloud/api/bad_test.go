package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
