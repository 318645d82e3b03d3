package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// bad is a manifest that nobody should send. says is what the answer names: the field or the rule.
type bad struct{ path, body, says string }

// manifest is an object of a kind with a name and a spec in YAML.
func manifest(name, spec string) string { return "metadata: {name: " + name + "}\nspec: " + spec }

func badManifests() []bad {
	deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	bomb := "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n" +
		"d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n"
	const (
		dev, mod    = inNS + "/devices", inNS + "/devicemodels"
		nodes       = base + "/nodes"
		fleets      = base + "/fleets"
		repos       = base + "/repositories"
		syncs       = base + "/resourcesyncs"
		ups         = base + "/upgrades"
		confs       = inNS + "/configurations"
		insts       = inNS + "/instances"
		secrets     = "/api/v1/namespaces/default/secrets"
		configMaps  = "/api/v1/namespaces/default/configmaps"
		enrollments = base + "/enrollmentrequests"
		visitors    = `{deviceModelRef: {name: m}, protocol: {type: x}, propertyVisitors: `
	)
	list := []bad{
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
		{dev + strict, `{"metadata":{"name":"x"},"spek":{}}`, `unknown field "spek"`},
		{dev + strict, manifest("x", `{deviceModelRef: {name: m}, protocol: {type: x}, nodename: n1}`), `unknown field "spec.nodename"`},
		{dev + strict, `{"metadata":{"name":"x","name":"y"}}`, `duplicate field "metadata.name"`},
		{mod + strict, manifest("x", `{properties: [{name: a, unit: m, unit: cm}]}`), `duplicate field "spec.properties[0].unit"`},
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
		{fleets, manifest("x", `{selector: {matchLabels: {a: "b c"}}}`), "spec.selector.matchLabels[a]"},
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
		{dev, manifest("x", `{}`), "spec.deviceModelRef.name"},
		{dev, manifest("x", `{deviceModelRef: {name: m}}`), "spec.protocol.type"},
		{dev, manifest("x", `{deviceModelRef: {name: "M!"}, protocol: {type: x}}`), "spec.deviceModelRef.name"},
		{dev, manifest("x", `{deviceModelRef: {name: m}, protocol: {type: x}, nodeName: "N 1"}`), "spec.nodeName"},
		{dev, manifest("x", `{deviceModelRef: {name: m}, protocol: {type: x}, desired: {"a/b": "1"}}`), "spec.desired[a/b]"},
		{dev, manifest("x", `{deviceModelRef: {name: m}, protocol: {type: x}, desired: {a: "1"}, desiredUntil: {a: soon}}`), "spec.desiredUntil[a]"},
		{dev, manifest("x", `{deviceModelRef: [m], protocol: {type: x}}`), "spec.deviceModelRef"},
		{dev, manifest("x", visitors+`[{collectCycle: 5}]}`), "spec.propertyVisitors[0].propertyName"},
		{dev, manifest("x", visitors+`[{propertyName: a, collectCycle: -5}]}`), "spec.propertyVisitors[0].collectCycle"},
		{dev, manifest("x", visitors+`[{propertyName: a, deadband: -1}]}`), "spec.propertyVisitors[0].deadband"},
		{dev, manifest("x", visitors+`[{propertyName: a}, {propertyName: a}]}`), "spec.propertyVisitors[1].propertyName"},
		{mod, manifest("x", `{properties: [{name: a}, {name: a}]}`), "spec.properties[1].name"},
		{mod, manifest("x", `{properties: [{name: a, type: colour}]}`), "spec.properties[0].type"},
		{mod, manifest("x", `{properties: [{name: a, type: int, minimum: 2, maximum: 1}]}`), "spec.properties[0].minimum"},
		{mod, manifest("x", `{properties: [{name: a, accessMode: rw}]}`), "spec.properties[0].accessMode"},
		{mod, manifest("x", `{propertyVisitors: [{protocol: p, visitors: [{propertyName: none}]}]}`), "visitors[0].propertyName"},
		{mod, manifest("x", `{propertyVisitors: [{protocol: p, visitors: []}, {protocol: P, visitors: []}]}`), "spec.propertyVisitors[1].protocol"},
		{mod, manifest("x", `{properties: {name: a}}`), "spec.properties"},
		// nodes and fleets
		{nodes, manifest("x", `{config: [{name: c, configType: Magic}]}`), "spec.config[0].configType"},
		{nodes, manifest("x", `{config: [{name: c, configType: GitConfigProviderSpec}]}`), "spec.config[0].gitRef"},
		{nodes, manifest("x", `{config: [{name: c, configType: InlineConfigProviderSpec, inline: text}]}`), "spec.config[0].inline"},
		{fleets, manifest("x", `{selector: {matchExpressions: [{key: a, operator: In}]}, template: {spec: {}}}`), "matchExpressions[0].values"},
		{fleets, manifest("x", `{selector: {matchExpressions: [{key: a, operator: Near}]}, template: {spec: {}}}`), "matchExpressions[0].operator"},
		{fleets, manifest("x", `{selector: {matchLabels: {a: [b]}}, template: {spec: {}}}`), "matchLabels"},
		// sources and upgrades
		{repos, manifest("x", `{}`), "spec.url"},
		{repos, manifest("x", `{url: nowhere}`), "spec.url"},
		{repos, manifest("x", `{url: "ftp://h/x"}`), "spec.url"},
		{repos, manifest("x", `{url: "https://ann:hunter2@h/x"}`), "must not hold a password"},
		{syncs, manifest("x", `{repository: r, targetRevision: main}`), "spec.path"},
		{syncs, manifest("x", `{repository: r, targetRevision: main, path: /, interval: often}`), "spec.interval"},
		{ups, manifest("x", `{nodeNames: [n1]}`), "spec.version"},
		{ups, manifest("x", `{version: v1}`), "spec.nodeNames"},
		{ups, manifest("x", `{version: v1, nodeNames: [n1, n1]}`), "spec.nodeNames[1]"},
		// discovery, values, enrolment
		{confs, manifest("x", `{}`), "spec.discoveryHandler.name"},
		{confs, manifest("x", `{discoveryHandler: {name: x}, capacity: 0}`), "spec.capacity"},
		{confs, manifest("x", `{discoveryHandler: {name: x}, capacity: many}`), "spec.capacity"},
		{insts, manifest("x", `{configurationName: c, deviceSpecs: [{hostPath: /a, containerPath: /a, permissions: x}]}`), "spec.deviceSpecs[0].permissions"},
		{secrets, `{"metadata":{"name":"x"},"data":{"a":"no base64"}}`, "data"},
		{secrets, `{"metadata":{"name":"x"},"data":{"../a":""}}`, "data[../a]"},
		{configMaps, `{"metadata":{"name":"x"},"data":{"a":"x"},"binaryData":{"a":"AA=="}}`, "binaryData[a]"},
		{configMaps, `{"metadata":{"name":"x"},"data":{"a":"` + strings.Repeat("x", 1<<20+1) + `"}}`, "data"},
		{enrollments, manifest("x", `{csr: x, approval: Maybe}`), "spec.approval"},
		{nodes, `{"metadata":{"name":"x"},"data":"` + strings.Repeat("x", 4<<20) + `"}`, "larger than"},
	}
	return list
}

// Each is answered with a Status that names the place, and none of them is stored or ends the hub.
func TestBadManifests(t *testing.T) {
	h := newHub(t, sealed(t), asUser)
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
	h.ok("POST", inNS+"/devices", named("x"))
	h.ok("POST", inNS+"/devicemodels", strings.Replace(model, "dimmable", "x", 1))
	before := map[string]string{}
	for _, of := range []string{"/devices", "/devicemodels"} {
		before[inNS+of] = string(h.ok("GET", inNS+of+"/x", "").body)
	}
	tried := 0
	for _, b := range badManifests() {
		if before[b.path] == "" || !strings.HasPrefix(b.says, "spec.") && !strings.Contains(b.says, "visitors") {
			continue
		}
		tried++
		said := func(what string, r reply) {
			require.Equal(t, "Status", r.str("kind"), "%.300s → %.300s", b.body, r.body)
			require.Contains(t, []int{400, 422}, r.code)
			require.Contains(t, r.str("message")+fmt.Sprint(r.at("details.causes")), what)
		}
		said(b.says, h.do("PUT", b.path+"/x", b.body, "Content-Type", "application/yaml"))
		if b.body != manifest("x", `{}`) && b.says != "spec.protocol.type" { // what lacks something changes nothing
			asJSON, err := fromYAML([]byte(b.body))
			require.NoError(t, err)
			said(b.says, h.do("PATCH", b.path+"/x", string(asJSON), "Content-Type", mergePatch))
			head := fmt.Sprintf("apiVersion: edgebus.io/v1alpha1\nkind: %s\n", map[bool]string{true: "Device", false: "DeviceModel"}[b.path == inNS+"/devices"])
			field, _, _ := strings.Cut(strings.TrimPrefix(b.says, "spec."), "[") // of a list with keys its own library says it
			said(field, h.do("PATCH", b.path+"/x?fieldManager=me&force=true", head+b.body, "Content-Type", applyPatch))
		}
	}
	require.Greater(t, tried, 15)
	for at, was := range before {
		require.Equal(t, was, string(h.ok("GET", at+"/x", "").body))
	}
}
