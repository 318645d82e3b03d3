// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

func (h *hub) devices(n int) {
	for i := range n {
		body := strings.Replace(lampNamed(fmt.Sprintf("d%02d", i)), `"metadata":{`, fmt.Sprintf(`"metadata":{"labels":{"odd":"%v","n":"%d"},`, i%2 == 1, i), 1)
		h.ok("POST", namespaceRoot+"/devices", strings.Replace(body, "n1", fmt.Sprint("n", i%3), 1))
	}
}

func TestList(t *testing.T) {
	h := newHub(t)
	empty := h.ok("GET", namespaceRoot+"/devices", "")
	require.Equal(t, "DeviceList", empty.str("kind"))
	require.Equal(t, []any{}, empty.at("items"))
	h.devices(6)
	h.ok("POST", apiRoot+"/namespaces/other/devices", lampNamed("x"))
	require.Equal(t, []string{"d00", "d01", "d02", "d03", "d04", "d05"}, h.ok("GET", namespaceRoot+"/devices", "").names())
	require.Len(t, h.ok("GET", apiRoot+"/devices", "").names(), 7)

	for selector, want := range map[string]string{
		"labelSelector=odd=true":                            "d01 d03 d05",
		"labelSelector=odd!=true,n notin (0, 2)":            "d04",
		"labelSelector=n in (1,2)":                          "d01 d02",
		"labelSelector=!n":                                  "",
		"labelSelector=n,odd==false":                        "d00 d02 d04",
		"fieldSelector=metadata.name=d03":                   "d03",
		"fieldSelector=metadata.name!=d03,spec.nodeName=n0": "d00",
		"fieldSelector=metadata.namespace=other":            "",
		"fieldSelector=spec.nodeName=n1&labelSelector=odd":  "d01 d04",
	} {
		query := strings.ReplaceAll(url.PathEscape(selector), "+", "%2B")
		require.Equal(t, want, strings.Join(h.ok("GET", namespaceRoot+"/devices?"+query, "").names(), " "), selector)
	}
	for _, bad := range []string{
		"labelSelector=a in b", "labelSelector=,", "labelSelector=a=b=c", "labelSelector=(", "fieldSelector=spec.colour=red",
		"fieldSelector=metadata.name", "limit=x", "limit=-1", "continue=x", "continue=e30", "resourceVersion=x",
	} {
		h.refused(400, "BadRequest", "GET", namespaceRoot+"/devices?"+url.PathEscape(bad), "")
	}
}

func TestPages(t *testing.T) {
	h := newHub(t)
	h.devices(10)
	first := h.ok("GET", namespaceRoot+"/devices?limit=4", "")
	require.EqualValues(t, 6, first.at("metadata.remainingItemCount"))
	h.ok("DELETE", namespaceRoot+"/devices/d05", "")
	h.ok("POST", namespaceRoot+"/devices", lampNamed("d041"))
	second := h.ok("GET", namespaceRoot+"/devices?limit=4&continue="+first.str("metadata.continue"), "")
	require.Equal(t, []string{"d04", "d05", "d06", "d07"}, second.names(), "as it was")
	require.Equal(t, first.str("metadata.resourceVersion"), second.str("metadata.resourceVersion"))
	third := h.ok("GET", namespaceRoot+"/devices?limit=4&continue="+second.str("metadata.continue"), "")
	require.Equal(t, []string{"d08", "d09"}, third.names())
	require.Empty(t, third.str("metadata.continue"))

	odd := h.ok("GET", namespaceRoot+"/devices?limit=2&labelSelector=odd=true", "")
	require.Equal(t, []string{"d01", "d03"}, odd.names())
	require.Nil(t, odd.at("metadata.remainingItemCount"))
	odd = h.ok("GET", namespaceRoot+"/devices?limit=2&labelSelector=odd=true&continue="+odd.str("metadata.continue"), "")
	require.Equal(t, []string{"d07", "d09"}, odd.names())

	gone := continueToken{Rev: 99999, Name: "d01"}.String()
	h.refused(410, "Expired", "GET", namespaceRoot+"/devices?limit=2&continue="+gone, "")
}

func TestTable(t *testing.T) {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
	h.ok("PUT", namespaceRoot+"/devices/lamp/status", `{"status":{"state":"online","conditions":[{"type":"InSync","status":"True"}]}}`)
	h.pass(5*time.Minute + 7*time.Second)
	r := h.ok("GET", namespaceRoot+"/devices?limit=500", "", "Accept", asTable)
	require.Equal(t, "Table", r.str("kind"))
	require.Equal(t, "meta.k8s.io/v1", r.str("apiVersion"))
	var shown []string
	for i := range r.at("columnDefinitions").([]any) {
		if at := fmt.Sprintf("columnDefinitions.%d.", i); r.at(at+"priority") == 0.0 {
			shown = append(shown, r.str(at+"name")+"="+fmt.Sprint(r.at(fmt.Sprintf("rows.0.cells.%d", i))))
		}
	}
	require.Equal(t, []string{"Name=lamp", "Node=n1", "Model=dimmable", "State=online", "In-Sync=True", "Alarm=<none>", "Reported=<none>", "Age=5m7s"}, shown)
	require.Equal(t, "PartialObjectMetadata", r.str("rows.0.object.kind"))
	require.Equal(t, "lamp", r.str("rows.0.object.metadata.name"))
	one := h.ok("GET", namespaceRoot+"/devices/lamp?includeObject=Object", "", "Accept", asTable)
	require.Equal(t, "n1", one.str("rows.0.object.spec.nodeName"))
	none := h.ok("GET", namespaceRoot+"/devices/lamp?includeObject=None", "", "Accept", asTable)
	require.Nil(t, none.at("rows.0.object"))
}

// As in Kubernetes' own tables: times are relative, and what there is no value of is <none>, so that columns stay apart.
func TestATableHasRelativeTimesAndNoEmptyCells(t *testing.T) {
	h := newHub(t)
	h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"}}`)
	h.ok("PUT", apiRoot+"/nodes/n1/status", `{"status":{"state":"online","lastSeen":"2026-11-21T09:00:00Z","certificateExpires":"2027-01-20T10:00:00Z"}}`)
	h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
	cells := func(path string) map[string]any {
		r, found := h.ok("GET", path, "", "Accept", asTable), map[string]any{}
		for i := range r.at("columnDefinitions").([]any) {
			found[r.str(fmt.Sprintf("columnDefinitions.%d.name", i))] = r.at(fmt.Sprintf("rows.0.cells.%d", i))
		}
		return found
	}
	node := cells(apiRoot + "/nodes")
	require.Equal(t, "60m", node["Last-Seen"])
	require.Equal(t, "in 60d", node["Certificate-Ends"])
	require.Equal(t, "<none>", node["Fleet"])
	require.Equal(t, "<none>", node["Image"])
	device := cells(namespaceRoot + "/devices")
	require.Equal(t, "<none>", device["Last-Seen"])
	require.Equal(t, "<none>", device["Reported"])
}

func TestATableShowsReportedValuesAndTheMostUrgentAlarm(t *testing.T) {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
	h.ok("PUT", namespaceRoot+"/devices/lamp/status", `{"status":{"twin":{"power":{"reported":{"value":"ON","ver":1}},
		"brightness":{"reported":{"value":"40","ver":1}},"hue":{"desired":{"value":"7","ver":1}}},
		"alarms":[{"propertyName":"hue","name":"odd","severity":"critical","acknowledged":true},{"propertyName":"power","name":"on","severity":"low"},{"propertyName":"brightness","name":"bright","severity":"high"}]}}`)
	r := h.ok("GET", namespaceRoot+"/devices/lamp", "", "Accept", asTable)
	columns := r.at("columnDefinitions").([]any)
	shown := map[string]string{}
	for i := range columns {
		if r.at(fmt.Sprintf("columnDefinitions.%d.priority", i)) == 0.0 {
			shown[r.str(fmt.Sprintf("columnDefinitions.%d.name", i))] = r.str(fmt.Sprintf("rows.0.cells.%d", i))
		}
	}
	require.Equal(t, "brightness=40,power=ON", shown["Reported"])
	require.Equal(t, "brightness/bright, +2", shown["Alarm"])
}

func TestReportedValuesFitInARow(t *testing.T) {
	of := func(values ...string) string {
		twin := make(map[string]resource.TwinProperty)
		for i, v := range values {
			twin[fmt.Sprintf("p%02d", i)] = resource.TwinProperty{Reported: &resource.TwinValue{Value: v}}
		}
		return reportedCell(twin)
	}
	require.Empty(t, of())
	require.Equal(t, "p00=21.5", of("21.5"))
	require.Equal(t, "p00=a·[31mb", of("a\x1b[31mb"), "nothing that steers a terminal")
	require.Equal(t, "p00="+strings.Repeat("é", cellValue-1)+"…,p01=", of(strings.Repeat("é", 1000), ""))
	many := of(strings.Split(strings.Repeat("value ", 200), " ")...)
	require.LessOrEqual(t, len(many), 2*cellWidth)
	require.True(t, strings.HasSuffix(many, ",…"), many)
}

func TestWatch(t *testing.T) {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
	rv := h.ok("GET", namespaceRoot+"/devices", "").str("metadata.resourceVersion")
	w := h.watch(namespaceRoot + "/devices?watch=true&resourceVersion=" + rv)
	everything := h.watch(apiRoot + "/devices?watch=1") // from what there is
	everything.expect("ADDED lamp")

	h.ok("POST", apiRoot+"/namespaces/other/devices", lampNamed("elsewhere"))
	h.ok("PUT", namespaceRoot+"/devices/lamp/status", `{"status":{"state":"online"}}`)
	event := w.next()
	require.Equal(t, "MODIFIED", event.str("type"))
	require.Equal(t, "online", event.str("object.status.state"))
	h.ok("DELETE", namespaceRoot+"/devices/lamp", "")
	deleted := w.next()
	require.Equal(t, "DELETED", deleted.str("type"))
	require.NotEqual(t, event.str("object.metadata.resourceVersion"), deleted.str("object.metadata.resourceVersion"))
	everything.expect("ADDED elsewhere", "MODIFIED lamp", "DELETED lamp")

	resumed := h.watch(namespaceRoot + "/devices?watch=true&resourceVersion=" + event.str("object.metadata.resourceVersion"))
	require.Equal(t, deleted.tree, resumed.next().tree)
}

func TestWatchSelectors(t *testing.T) {
	h := newHub(t)
	h.devices(2)
	red := h.watch(namespaceRoot + "/devices?watch=true&labelSelector=colour=red")
	one := h.watch(namespaceRoot + "/devices?watch=true&fieldSelector=metadata.name=d01")
	one.expect("ADDED d01")
	label := func(name, value string) {
		h.ok("PATCH", namespaceRoot+"/devices/"+name, `{"metadata":{"labels":{"colour":`+value+`}}}`, "Content-Type", mergePatch)
	}
	label("d00", `"red"`)
	red.expect("ADDED d00")
	label("d01", `"blue"`)
	label("d00", `"red"`) // no change
	h.ok("PUT", namespaceRoot+"/devices/d00/status", `{"status":{"state":"online"}}`)
	red.expect("MODIFIED d00")
	label("d00", `null`)
	red.expect("DELETED d00")
	h.ok("DELETE", namespaceRoot+"/devices/d00", "")
	label("d01", `"red"`)
	red.expect("ADDED d01")
	h.ok("DELETE", namespaceRoot+"/devices/d01", "")
	red.expect("DELETED d01")
	one.expect("MODIFIED d01", "MODIFIED d01", "DELETED d01")
}

func TestWatchTables(t *testing.T) {
	h := newHub(t)
	w := h.watch(namespaceRoot+"/devices?watch=true", "Accept", asTable)
	h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
	first := w.next()
	require.Equal(t, "Table", first.str("object.kind"))
	require.NotEmpty(t, first.at("object.columnDefinitions"))
	require.Equal(t, "lamp", first.str("object.rows.0.cells.0"))
	h.ok("DELETE", namespaceRoot+"/devices/lamp", "")
	second := w.next()
	require.Equal(t, "DELETED", second.str("type"))
	require.Empty(t, second.at("object.columnDefinitions"))
	h.refused(406, "NotAcceptable", "GET", namespaceRoot+"/devices?watch=true", "", "Accept", "application/yaml")
}

func TestWatchGone(t *testing.T) {
	h := newHub(t)
	h.devices(1)
	rv := h.ok("GET", namespaceRoot+"/devices", "").str("metadata.resourceVersion")
	for range 20 { // more deletes than the store remembers
		h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
		h.ok("DELETE", namespaceRoot+"/devices/lamp", "")
	}
	h.refused(410, "Expired", "GET", namespaceRoot+"/devices?watch=true&resourceVersion="+rv, "")
	h.refused(410, "Expired", "GET", namespaceRoot+"/devices?watch=true&resourceVersion=999999", "")
	h.refused(400, "BadRequest", "GET", namespaceRoot+"/devices?watch=true&resourceVersion=x", "")
	h.refused(400, "BadRequest", "GET", namespaceRoot+"/devices?watch=true&timeoutSeconds=x", "")
	h.refused(422, "Invalid", "GET", namespaceRoot+"/devices?watch=true&sendInitialEvents=true", "")
	h.refused(422, "Invalid", "GET", namespaceRoot+"/devices?watch=true&resourceVersionMatch=Exact", "")
}

// goneWatcher stands for a store that loses a slow watcher.
type goneWatcher struct{ store.Stream }

func (g goneWatcher) Watch(context.Context, store.Key, uint64) (store.Stream, error) { return g, nil }
func (g goneWatcher) Next(context.Context) ([]store.Event, error) {
	return nil, store.Gone("Device", 1, 2)
}
func (g goneWatcher) Close() {}

func TestWatchGoneMidway(t *testing.T) {
	h := newHub(t, func(o *hubOptions) { o.Watcher = goneWatcher{} })
	w := h.watch(namespaceRoot + "/devices?watch=true")
	event := w.next()
	require.Equal(t, "ERROR", event.str("type"))
	require.Equal(t, "Status", event.str("object.kind"))
	require.EqualValues(t, 410, event.at("object.code"))
	require.Equal(t, "Expired", event.str("object.reason"))
	_, err := w.lines.ReadBytes('\n')
	require.ErrorIs(t, err, io.EOF)
}

func TestBookmarks(t *testing.T) {
	h := newHub(t, func(o *hubOptions) { o.Bookmarks = 20 * time.Millisecond })
	h.devices(1)
	w := h.watch(namespaceRoot + "/devices?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
	w.expect("ADDED d00")
	mark := w.next()
	require.Equal(t, "BOOKMARK", mark.str("type"))
	annotations, _ := mark.at("object.metadata.annotations").(map[string]any)
	require.Equal(t, "true", annotations["k8s.io/initial-events-end"])
	mark = w.next()
	require.Equal(t, "BOOKMARK", mark.str("type"))
	require.Equal(t, "Device", mark.str("object.kind"))
	require.Nil(t, mark.at("object.metadata.annotations"))

	h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"}}`) // another kind moves it on
	newest := h.ok("GET", apiRoot+"/nodes/n1", "").str("metadata.resourceVersion")
	require.Eventually(t, func() bool { return w.next().str("object.metadata.resourceVersion") == newest }, 30*time.Second, time.Millisecond)

	quiet := h.watch(namespaceRoot + "/devices?watch=true&timeoutSeconds=1&resourceVersion=" + newest)
	line, err := quiet.lines.ReadBytes('\n')
	require.Error(t, err, "nobody asked for bookmarks: %s", line)
}

func TestDiscovery(t *testing.T) {
	h := newHub(t)
	v2 := "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	r := h.ok("GET", "/apis", "", "Accept", v2+",application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json")
	require.Equal(t, v2, r.header.Get("Content-Type"))
	require.Equal(t, "edgebus.io", r.str("items.0.metadata.name"))
	require.Equal(t, "devices", r.str("items.0.versions.0.resources.0.resource"))
	require.Equal(t, "APIGroupList", h.ok("GET", "/apis", "").str("kind"))
	require.Equal(t, "APIGroup", h.ok("GET", "/apis/edgebus.io", "").str("kind"))
	require.Equal(t, "APIVersions", h.ok("GET", "/api", "").str("kind"))
	require.Equal(t, "APIResourceList", h.ok("GET", "/api/v1", "").str("kind"))
	require.Equal(t, "devices/status", h.ok("GET", apiRoot, "").str("resources.1.name"))
	require.Equal(t, "1", h.ok("GET", "/version", "").str("major"))
	require.Contains(t, string(h.ok("GET", "/openapi/v3", "").body), "/openapi/v3/apis/edgebus.io/v1alpha1")
	doc := h.ok("GET", "/openapi/v3/apis/edgebus.io/v1alpha1", "")
	props := doc.at("components.schemas").(map[string]any)["io.edgebus.v1alpha1.Device"].(map[string]any)["properties"].(map[string]any)
	require.Contains(t, props, "spec")
	require.NotContains(t, props, "desiredMeta")
	core := h.ok("GET", "/api", "", "Accept", v2)
	require.Equal(t, "secrets", core.str("items.0.versions.0.resources.0.resource"))
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 119 * time.Second: "119s", 5 * time.Minute: "5m", 9*time.Minute + time.Second: "9m1s", 100 * time.Minute: "100m",
		4*time.Hour + 30*time.Minute: "4h30m", 20 * time.Hour: "20h", 75 * time.Hour: "3d3h", 100 * 24 * time.Hour: "100d", 800 * 24 * time.Hour: "2y70d",
	} {
		now := time.Unix(1_790_000_000, 0)
		created := now.Add(-d)
		s := &encoder{now: func() time.Time { return now }}
		require.Equal(t, want, s.age(&created))
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(lampJSON("", `,"desired":{"a":1}`))
	f.Add(`{"metadata":{"ownerReferences":[{}],"creationTimestamp":null},"Spec":{}}`)
	f.Add(`{"spec":{"properties":[{"name":"a","enum":[1,"b",{}]}]},"desiredMeta":{}}`)
	kinds := Kinds()
	f.Fuzz(func(t *testing.T, raw string) {
		for i := range kinds {
			k := &kinds[i]
			o, _, err := k.decode([]byte(raw))
			if err != nil {
				continue
			}
			require.Empty(t, o.DesiredMeta)
			again, err := o.ForClient()
			require.NoError(t, err)
			same, unknown, err := k.decode(again)
			require.NoError(t, err)
			require.Empty(t, unknown, "what was taken is known")
			twice, err := same.ForClient()
			require.NoError(t, err)
			require.Equal(t, string(again), string(twice))
		}
	})
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

func TestListsAreNotOlderThanAsked(t *testing.T) {
	h := newHub(t)
	h.devices(2)
	rv := h.ok("GET", namespaceRoot+"/devices", "").str("metadata.resourceVersion")
	h.ok("GET", namespaceRoot+"/devices?resourceVersion="+rv+"&resourceVersionMatch=NotOlderThan", "")
	r := h.do("GET", namespaceRoot+"/devices?resourceVersion=999999", "")
	require.Equal(t, 504, r.code)
	require.Equal(t, "ResourceVersionTooLarge", r.str("details.causes.0.reason"), "what client-go looks for, to list anew")
	for _, bad := range []string{
		"resourceVersionMatch=Exact", "resourceVersionMatch=Later&resourceVersion=" + rv, "resourceVersionMatch=Exact&resourceVersion=0",
		"resourceVersionMatch=Exact&continue=x&resourceVersion=" + rv,
	} {
		h.refused(422, "Invalid", "GET", namespaceRoot+"/devices?"+bad, "")
	}
}

// Queries have booleans as Kubernetes reads them: Python's clients write True.
func TestAQuerysBooleansAreThoseOfKubernetes(t *testing.T) {
	for i, value := range []string{"=true", "=1", "=True", "=TRUE", "=yes", "=", "", "=false", "=False", "=0"} {
		is := i < 7
		t.Run(value, func(t *testing.T) {
			t.Parallel() // the watches last a second each
			h := newHub(t)
			h.devices(1)
			got := h.ok("GET", namespaceRoot+"/devices?timeoutSeconds=1&watch"+value, "")
			require.Equal(t, is, strings.HasPrefix(string(got.body), `{"type":"ADDED"`), "%s", got.body)

			got = h.ok("GET", namespaceRoot+"/devices?timeoutSeconds=1&watch=1&allowWatchBookmarks=True&resourceVersionMatch=NotOlderThan&sendInitialEvents"+value, "")
			require.Equal(t, is, strings.Contains(string(got.body), "initial-events-end"), "%s", got.body)

			body := `{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"x"}}`
			h.ok("PATCH", "/api/v1/namespaces/default/configmaps/c?fieldManager=a&force=true", body, "Content-Type", applyPatch)
			taken := h.do("PATCH", "/api/v1/namespaces/default/configmaps/c?fieldManager=b&force"+value, strings.Replace(body, "x", "y", 1), "Content-Type", applyPatch)
			require.Equal(t, map[bool]int{true: 200, false: 409}[is], taken.code, "%s", taken.body)
		})
	}
}
