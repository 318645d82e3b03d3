// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/broker/daemon/seal"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// withSealer gives the hub a key for Secrets.
func withSealer(t *testing.T) func(*hubOptions) {
	key, err := seal.Create(t.TempDir())
	require.NoError(t, err)
	return func(o *hubOptions) { o.Seal = key }
}

// readSamples are objects in which every field has a value, one or more of each kind.
func readSamples(t *testing.T) map[string][]jsonObject {
	text, err := os.ReadFile("testdata/samples.yaml")
	require.NoError(t, err)
	out := map[string][]jsonObject{}
	for doc := range bytes.SplitSeq(text, []byte("\n---\n")) {
		raw, err := yaml.YAMLToJSON(doc)
		require.NoError(t, err)
		tree := jsonObject{}
		require.NoError(t, json.Unmarshal(raw, &tree))
		kind := tree["kind"].(string)
		out[kind] = append(out[kind], tree)
	}
	return out
}

func (k *Kind) collection() string {
	if k.Namespaced {
		return k.root() + "/namespaces/default/" + k.Plural
	}
	return k.root() + "/" + k.Plural
}

func nameOf(o jsonObject) string { return o["metadata"].(jsonObject)["name"].(string) }

func marshalText(t *testing.T, v any) string {
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return string(raw)
}

// makeHost makes the Node that the samples of Upgrades are for.
func (h *hub) makeHost() {
	h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"host","labels":{"node-role.kubernetes.io/edge":"","node-role.kubernetes.io/agent":"","stage":"production"}}}`)
}

// dropReady removes the conditions that the hub sets by itself with each write.
func dropReady(o jsonObject) {
	status, _ := o["status"].(jsonObject)
	if list, ok := status["conditions"].([]any); ok {
		status["conditions"] = slices.DeleteFunc(list, func(c any) bool { return c.(jsonObject)["type"] == "Ready" || c.(jsonObject)["type"] == "Stalled" })
	}
}

// Each kind takes all of its fields, and gives them back.
func TestEveryKindRoundTrips(t *testing.T) {
	h := newHub(t, withSealer(t))
	h.makeHost()
	all := readSamples(t)
	for _, k := range Kinds() {
		last := ""
		for _, o := range all[k.Name] {
			if o["apiVersion"] != k.APIVersion() {
				continue // of another group
			}
			last = nameOf(o)
			at := k.collection() + "/" + nameOf(o)
			h.ok("POST", k.collection()+"?fieldValidation=Strict", marshalText(t, o))
			if status, ok := o["status"]; ok {
				h.ok("PATCH", at+"/status?fieldValidation=Strict", marshalText(t, jsonObject{"status": status}), "Content-Type", mergePatch)
			}
			got := h.ok("GET", at, "")
			if k.SetReady != nil {
				dropReady(got.tree)
			}
			for field := range o {
				if field != "metadata" && field != "stringData" {
					require.Equal(t, o[field], got.tree[field], "%s %s", k.Name, field)
				}
			}
			before := got.str("metadata.resourceVersion")
			again := h.ok("PUT", at, string(got.body))
			require.Equal(t, before, again.str("metadata.resourceVersion"), "%s: what was read is no change", k.Name)
		}
		require.NotEmpty(t, last, "no sample of %s", k.Name)
		list := h.ok("GET", k.collection(), "")
		require.Equal(t, k.Name+"List", list.str("kind"))
		require.Equal(t, k.APIVersion(), list.str("items.0.apiVersion"))
		table := h.ok("GET", k.collection(), "", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
		require.Len(t, table.at("rows.0.cells"), len(k.tableColumns()), k.Name)
		h.ok("DELETE", k.collection()+"/"+last, "")
	}
}

// schemaLeaf is a place in a sample that the schema has a rule for.
type schemaLeaf struct {
	path []any // names and indexes
	bad  any   // a value that breaks it; nil: none at all
	rule string
}

// schemaLeaves finds the places in v for which def has rules.
func schemaLeaves(def jsonObject, v any, path []any, found *[]schemaLeaf) {
	add := func(rule string, bad any, below ...any) {
		*found = append(*found, schemaLeaf{slices.Concat(path, below), bad, rule})
	}
	if def["enum"] != nil {
		add("enum", "nonsense")
	}
	if least, ok := def["minimum"].(float64); ok {
		add("minimum", least-1)
	}
	if def["pattern"] != nil {
		add("pattern", "?")
	}
	if most, ok := def["maxItems"].(float64); ok {
		list := v.([]any)
		for len(list) <= int(most) {
			list = append(list, list[0])
		}
		add("maxItems", list)
	}
	switch v := v.(type) {
	case jsonObject:
		required, _ := def["required"].([]any)
		for _, name := range required {
			add("required", nil, name)
		}
		props, _ := def["properties"].(jsonObject)
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if below, ok := props[name].(jsonObject); ok {
				schemaLeaves(below, v[name], slices.Concat(path, []any{name}), found)
			}
		}
	case []any:
		items, _ := def["items"].(jsonObject)
		for i := range v {
			schemaLeaves(items, v[i], slices.Concat(path, []any{i}), found)
		}
	}
}

// breakLeaf is a copy of o in which one leaf is bad, and the path of that leaf in words.
func breakLeaf(t *testing.T, o jsonObject, l schemaLeaf) (jsonObject, string) {
	out := jsonObject{}
	require.NoError(t, json.Unmarshal([]byte(marshalText(t, o)), &out))
	var at any = out
	said := ""
	for i, step := range l.path {
		last := i == len(l.path)-1
		switch step := step.(type) {
		case string:
			said = strings.TrimPrefix(said+"."+step, ".")
			switch {
			case last && l.bad == nil:
				delete(at.(jsonObject), step)
			case last:
				at.(jsonObject)[step] = l.bad
			default:
				at = at.(jsonObject)[step]
			}
		case int:
			said += "[" + strconv.Itoa(step) + "]"
			at = at.([]any)[step]
		}
	}
	return out, said
}

// What the schema asks is what the hub refuses, with the field's path.
func TestSchemaRulesAreKept(t *testing.T) {
	h := newHub(t, withSealer(t))
	h.makeHost()
	all, defs := readSamples(t), decodeSchemas()
	tried := map[string]int{}
	for _, k := range Kinds() {
		for _, o := range all[k.Name] {
			if o["apiVersion"] != k.APIVersion() {
				continue // of another group
			}
			h.ok("POST", k.collection(), marshalText(t, o))
			props := defs[k.schemaName()].(jsonObject)["properties"].(jsonObject)
			for _, part := range []string{"spec", "status"} {
				if o[part] == nil {
					continue
				}
				var found []schemaLeaf
				schemaLeaves(props[part].(jsonObject), o[part], []any{part}, &found)
				for _, l := range found {
					bad, field := breakLeaf(t, o, l)
					at := k.collection() + "/" + nameOf(o)
					if part == "status" {
						at += "/status"
					}
					r := h.do("PUT", at, marshalText(t, bad))
					require.Equal(t, 422, r.code, "%s against %s at %s: %s", k.Name, l.rule, field, r.body)
					causes, _ := r.at("details.causes").([]any)
					require.True(t, slices.ContainsFunc(causes, func(c any) bool {
						return strings.HasPrefix(c.(jsonObject)["field"].(string), field)
					}), "%s at %s: %s", l.rule, field, r.body)
					tried[l.rule]++
				}
			}
		}
	}
	for rule, least := range map[string]int{"required": 60, "enum": 15, "minimum": 5, "pattern": 1, "maxItems": 1} {
		require.GreaterOrEqual(t, tried[rule], least, rule)
	}
}

// filledIn are the places of a schema that are filled in v, or are not.
func filledIn(def jsonObject, v any, at string, found map[string]bool) {
	found[at] = found[at] || v != nil
	switch v := v.(type) {
	case jsonObject:
		props, _ := def["properties"].(jsonObject)
		for name, prop := range props {
			filledIn(prop.(jsonObject), v[name], at+"."+name, found)
		}
		below, _ := def["additionalProperties"].(jsonObject)
		for _, e := range v {
			filledIn(below, e, at+".*", found)
		}
	case []any:
		items, _ := def["items"].(jsonObject)
		for _, e := range v {
			filledIn(items, e, at+"[]", found)
		}
	}
}

// The tests with samples are about every field, because the samples have every field.
func TestSamplesHaveEveryField(t *testing.T) {
	all, defs := readSamples(t), decodeSchemas()
	for _, k := range Kinds() {
		found := map[string]bool{}
		for _, o := range all[k.Name] {
			if o["apiVersion"] == k.APIVersion() {
				filledIn(defs[k.schemaName()].(jsonObject), o, k.Name, found)
			}
		}
		for _, at := range slices.Sorted(maps.Keys(found)) {
			if !strings.HasPrefix(at, k.Name+".metadata.") && at != "Secret.stringData" { // which is never shown
				require.True(t, found[at], "%s: no sample has it", at)
			}
		}
	}
}

func TestSecretsAreSealed(t *testing.T) {
	h := newHub(t, withSealer(t))
	at := "/api/v1/namespaces/default/secrets"
	made := h.ok("POST", at, `{"metadata":{"name":"a","annotations":{"copy":"hunter2"}},"stringData":{"password":"hunter2"}}`)
	require.Equal(t, "aHVudGVyMg==", made.str("data.password"))
	require.Equal(t, "Opaque", made.str("type"))
	require.Nil(t, made.at("stringData"))
	require.EqualValues(t, 1, made.at("metadata.generation"))

	page, err := h.store.List(t.Context(), resource.KindSecret, store.ListOptions{})
	require.NoError(t, err)
	stored := string(page.Items[0].Data)
	require.NotContains(t, stored, "hunter2")
	require.NotContains(t, stored, "aHVudGVyMg==")
	require.NotContains(t, stored, "password")

	table := h.ok("GET", at, "", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	require.NotContains(t, string(table.body), "hunter2")
	require.NotContains(t, string(table.body), "aHVudGVyMg==")

	same := h.ok("PATCH", at+"/a", `{"stringData":{"password":"hunter2"}}`, "Content-Type", mergePatch)
	require.Equal(t, made.str("metadata.resourceVersion"), same.str("metadata.resourceVersion"), "no change, no write")
	next := h.ok("PATCH", at+"/a", `{"stringData":{"user":"ann"}}`, "Content-Type", mergePatch)
	require.Equal(t, "YW5u", next.str("data.user"))
	require.EqualValues(t, 2, next.at("metadata.generation"))
	require.Equal(t, "aHVudGVyMg==", next.str("data.password"))
	gone := h.ok("PATCH", at+"/a", `{"data":{"user":null}}`, "Content-Type", mergePatch)
	require.Nil(t, gone.at("data.user"))
	h.refused(422, "Invalid", "PATCH", at+"/a", `{"type":"other"}`, "Content-Type", mergePatch)
	msg := h.refused(400, "BadRequest", "POST", at, `{"metadata":{"name":"b"},"data":{"x":"hunter2 is no base64"}}`)
	require.NotContains(t, msg, "hunter2")
	h.refused(404, "NotFound", "GET", at+"/a/status", "")

	h.ok("PATCH", at+"/a", `{"immutable":true}`, "Content-Type", mergePatch)
	h.refused(422, "Invalid", "PATCH", at+"/a", `{"stringData":{"password":"x"}}`, "Content-Type", mergePatch)
	h.refused(422, "Invalid", "PATCH", at+"/a", `{"immutable":false}`, "Content-Type", mergePatch)
	was := h.ok("GET", at+"/a", "").at("metadata.generation")
	labelled := h.ok("PATCH", at+"/a", `{"metadata":{"labels":{"x":"y"}}}`, "Content-Type", mergePatch)
	require.Equal(t, was, labelled.at("metadata.generation"), "it counts changes of the values")
	h.ok("DELETE", at+"/a", "")
}

func TestNoSecretsWithoutAKey(t *testing.T) {
	h := newHub(t)
	h.refused(503, "ServiceUnavailable", "POST", "/api/v1/namespaces/default/secrets", `{"metadata":{"name":"a"}}`)
	h.ok("POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"a"},"data":{"k":"v"}}`)
}

func TestRulesOfKinds(t *testing.T) {
	h := newHub(t)
	up := func(spec string) string { return `{"metadata":{"name":"up"},"spec":{` + spec + `}}` }
	h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"}}`)
	h.ok("POST", apiRoot+"/upgrades", up(`"version":"v1","nodeNames":["n1"]`))
	says := func(field, spec string) {
		t.Helper()
		r := h.do("PUT", apiRoot+"/upgrades/up", up(spec))
		require.Equal(t, 422, r.code, "%s", r.body)
		require.Equal(t, field, r.str("details.causes.0.field"))
	}
	says("spec.nodeNames", `"version":"v1","nodeNames":["n2"]`)
	says("spec.nodeNames", `"version":"v1","nodeNames":["n1"],"labelSelector":{"matchLabels":{"a":"b"}}`)
	says("spec.labelSelector", `"version":"v1","labelSelector":{"matchLabels":{"a":"b"}}`)
	says("spec.version", `"version":"v2","nodeNames":["n1"]`)
	status := func(state string) {
		h.ok("PATCH", apiRoot+"/upgrades/up/status", fmt.Sprintf(`{"status":{"nodes":[{"nodeName":"n1","history":[{"operationStatus":%q}]}]}}`, state), "Content-Type", mergePatch)
	}
	status(resource.Upgrading)
	says("spec.version", `"version":"v2","nodeNames":["n1"]`)
	status(resource.UpgradeSuccess)
	h.ok("PUT", apiRoot+"/upgrades/up", up(`"version":"v2","nodeNames":["n1"]`))

	tv := `{"metadata":{"name":"f-1"},"spec":{"fleet":"%s","template":{"spec":{}}}}`
	h.ok("POST", apiRoot+"/templateversions", fmt.Sprintf(tv, "f"))
	h.refused(422, "Invalid", "PUT", apiRoot+"/templateversions/f-1", fmt.Sprintf(tv, "g"))
}

// client-go reads these times in one form only: an Event in another would break its lists.
func TestEventsTimesAreAsClientsReadThem(t *testing.T) {
	h := newHub(t)
	const at = "/apis/events.k8s.io/v1/namespaces/default/events"
	event := func(name, when string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"regarding":{"kind":"Device","name":"lamp"},"eventTime":%s,
			"series":{"count":2,"lastObservedTime":%s}}`, name, when, when)
	}
	for name, when := range map[string]string{"whole": `"2026-11-21T10:00:00Z"`, "fine": `"2026-11-21T11:00:00.000000001+01:00"`} {
		made := h.ok("POST", at, event(name, when))
		require.Equal(t, "2026-11-21T10:00:00.000000Z", made.str("eventTime"))
		require.Equal(t, "2026-11-21T10:00:00.000000Z", made.str("series.lastObservedTime"))
	}
	h.ok("POST", at, event("none", "null"))
	for _, bad := range []string{`"yesterday"`, `7`, `{}`} {
		h.refused(400, "BadRequest", "POST", at, event("bad", bad))
	}
}

// An Event of whichever writer has the time that events.k8s.io requires.
func TestEventsHaveAnEventTime(t *testing.T) {
	h := newHub(t)
	h.ok("POST", "/api/v1/namespaces/default/events", `{"metadata":{"name":"e"},"involvedObject":{"name":"lamp"},"firstTimestamp":"2026-11-20T10:00:00Z"}`)
	require.Equal(t, "2026-11-20T10:00:00.000000Z", h.ok("GET", "/apis/events.k8s.io/v1/namespaces/default/events", "").str("items.0.eventTime"))
}

// A Device is checked by its model as it is now, however often that was read before.
func TestModelsCountAsTheyAre(t *testing.T) {
	h := newHub(t)
	models := namespaceRoot + "/devicemodels"
	h.ok("POST", models, modelJSON)
	h.ok("POST", namespaceRoot+"/devices", lampJSON("", `,"desired":{"brightness":"90"}`))
	want := func(value string) []string {
		return []string{"PATCH", namespaceRoot + "/devices/lamp", `{"spec":{"desired":{"brightness":"` + value + `"}}}`, "Content-Type", mergePatch}
	}
	ask := want("91")
	h.ok(ask[0], ask[1], ask[2], ask[3:]...)
	h.ok("PUT", models+"/dimmable", strings.Replace(modelJSON, `"maximum":100`, `"maximum":50`, 1))
	ask = want("92")
	require.Contains(t, h.refused(422, "Invalid", ask[0], ask[1], ask[2], ask[3:]...), "50")
	h.ok("PUT", models+"/dimmable", modelJSON)
	ask = want("93")
	h.ok(ask[0], ask[1], ask[2], ask[3:]...)
}

const (
	coreEvents = "/api/v1/namespaces/default/events"
	newEvents  = "/apis/events.k8s.io/v1/namespaces/default/events"
)

func TestAnEventHasTwoForms(t *testing.T) {
	h := newHub(t)
	h.ok("POST", coreEvents, `{"metadata":{"name":"lamp.1"},"involvedObject":{"kind":"Device","name":"lamp","uid":"u1"},
		"reason":"Refused","message":"Jammed","type":"Warning","count":3,"reportingComponent":"cloudhub"}`)
	got := h.ok("GET", newEvents+"/lamp.1", "")
	require.Equal(t, "events.k8s.io/v1", got.str("apiVersion"))
	require.Equal(t, "lamp", got.str("regarding.name"))
	require.Equal(t, "Jammed", got.str("note"))
	require.Equal(t, "cloudhub", got.str("reportingController"))
	require.EqualValues(t, 3, got.at("deprecatedCount"))
	require.Nil(t, got.at("involvedObject"))

	h.ok("PATCH", newEvents+"/lamp.1", `{"note":"mended"}`, "Content-Type", mergePatch)
	got = h.ok("GET", coreEvents+"/lamp.1", "")
	require.Equal(t, "mended", got.str("message"))
	require.Nil(t, got.at("note"))
	r := h.do("POST", newEvents+"?fieldValidation=Strict", `{"metadata":{"name":"x"},"regarding":{"name":"lamp"},"type":"Odd"}`)
	require.Equal(t, 422, r.code, r.body)
}

func TestEventsAreChosenByWhatTheyAreAbout(t *testing.T) {
	h := newHub(t)
	for _, o := range []string{
		`{"metadata":{"name":"a"},"involvedObject":{"kind":"Device","namespace":"default","name":"lamp","uid":"u1"},"reason":"Bound","type":"Normal"}`,
		`{"metadata":{"name":"b"},"involvedObject":{"kind":"Device","namespace":"default","name":"fan","uid":"u2"},"reason":"Refused","type":"Warning"}`,
		`{"metadata":{"name":"c"},"involvedObject":{"kind":"Node","name":"n1","uid":"u3"},"reason":"Left","type":"Warning"}`,
	} {
		h.ok("POST", coreEvents, o)
	}
	for selector, want := range map[string]string{
		"involvedObject.name=lamp,involvedObject.namespace=default,involvedObject.kind=Device,involvedObject.uid=u1": "a",
		"involvedObject.kind=Node,involvedObject.namespace=":                                                         "c",
		"type!=Normal,involvedObject.kind=Device":                                                                    "b",
		"reason=Left": "c",
	} {
		list := h.ok("GET", "/api/v1/events?fieldSelector="+selector, "")
		require.Len(t, list.at("items"), 1, selector)
		require.Equal(t, want, list.str("items.0.metadata.name"), selector)
	}
	list := h.ok("GET", newEvents+"?fieldSelector=regarding.name=fan,type=Warning", "")
	require.Len(t, list.at("items"), 1)
	require.Equal(t, "fan", list.str("items.0.regarding.name"))
	require.Equal(t, 400, h.do("GET", coreEvents+"?fieldSelector=regarding.name=fan", "").code)
}

// A Node is a Device to flightctl: kubectl describe devices.flightctl.io asks for the Events of a Device with the Node's uid.
func TestEventsAreFoundByWhatAnotherGroupCallsTheirObject(t *testing.T) {
	h := newHub(t)
	uid := h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"}}`).str("metadata.uid")
	h.ok("POST", coreEvents, `{"metadata":{"name":"node"},"involvedObject":{"apiVersion":"edgebus.io/v1alpha1","kind":"Node","name":"n1","uid":"`+uid+`"},"reason":"InStep"}`)
	h.ok("POST", coreEvents, `{"metadata":{"name":"device"},"involvedObject":{"kind":"Device","namespace":"default","name":"n1","uid":"u2"},"reason":"Bound"}`)
	for selector, want := range map[string][]string{
		"kind=Device,X.name=n1,X.namespace=,X.uid=" + uid: {"node"},
		"uid=" + uid + ",X.kind=Device":                   {"node"},
		"kind=Node,X.name=n1,X.uid=" + uid:                {"node"},
		"kind=Fleet,X.name=n1,X.uid=" + uid:               nil,
		"kind!=Device,X.uid=" + uid:                       {"node"},
		"kind=Device,X.uid!=" + uid:                       {"device"},
		"kind=Device,X.uid=u2":                            {"device"},
		"kind=Device,X.name=n1":                           {"device"},
		"kind=Device,X.uid=":                              nil,
		// as kubectl events --for asks
		"kind=Device,X.apiVersion=flightctl.io/v1alpha1,X.name=n1": {"node"},
		"kind=Node,X.apiVersion=edgebus.io/v1alpha1,X.name=n1":     {"node"},
		"kind=Device,X.apiVersion=example.org/v1,X.name=n1":        nil,
	} {
		of := strings.ReplaceAll("X."+selector, "X.", "involvedObject.")
		require.Equal(t, want, h.ok("GET", "/api/v1/events?fieldSelector="+of, "").names(), of)
		of = strings.ReplaceAll("X."+selector, "X.", "regarding.")
		require.Equal(t, want, h.ok("GET", "/apis/events.k8s.io/v1/events?fieldSelector="+of, "").names(), of)
	}
}

// All kinds are acted on: no write is warned about that has nothing wrong.
func TestAllKindsAreActedOn(t *testing.T) {
	h := newHub(t, asUser)
	h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"}}`)
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	for at, text := range map[string]string{
		apiRoot + "/resourcesyncs": syncSamples[apiRoot+"/resourcesyncs"],
		apiRoot + "/nodes":         `{"metadata":{"name":"plain"}}`, flightctlAPI + "/devices": `{"metadata":{"name":"n"},"spec":{"os":{"image":"os:1"}}}`, namespaceRoot + "/devices": lampJSON("", ""),
		"/api/v1/namespaces/default/configmaps":              `{"metadata":{"name":"c"},"data":{"a":"b"}}`,
		namespaceRoot + "/configurations":                    `{"metadata":{"name":"c"},"spec":{"discoveryHandler":{"name":"udev"}}}`,
		"/apis/akri.sh/v0/namespaces/default/configurations": `{"metadata":{"name":"c2"},"spec":{"discoveryHandler":{"name":"udev","discoveryDetails":"x"}}}`,
		namespaceRoot + "/instances":                         `{"metadata":{"name":"i"},"spec":{"configurationName":"c"}}`,
	} {
		require.Empty(t, warningsOf(h.ok("POST", at, text)), "%s is acted on", at)
	}
}
