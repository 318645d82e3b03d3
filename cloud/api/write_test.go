// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

const strictQuery = "?fieldValidation=Strict"

// Old exports have a selfLink, in every group.
func TestSelfLinkIsIgnored(t *testing.T) {
	h := newHub(t)
	made := h.ok("POST", namespaceRoot+"/devices"+strictQuery, lampJSON(`,"selfLink":"/old"`, ""))
	require.Nil(t, made.at("metadata.selfLink"))
	put := h.ok("PUT", namespaceRoot+"/devices/lamp"+strictQuery, lampJSON(`,"selfLink":"/old"`, `,"desired":{"power":"ON"}`))
	require.Nil(t, put.at("metadata.selfLink"))
	hall := strings.Replace(strings.Replace(kubeedgeDevice, `"lamp"`, `"hall","selfLink":"/old"`, 1), `{"value":true}`, `{"value":true,"optional":true}`, 1)
	made = h.ok("POST", kubeedgeAlpha1+"/devices"+strictQuery, hall)
	require.Nil(t, made.at("metadata.selfLink"))
	require.Equal(t, true, made.at("status.twins.0.expected.optional"), "the first documents have it")
}

func TestWhatNodesAnswerToAnUpgradeIsChecked(t *testing.T) {
	h := newHub(t)
	const of = "/upgrades/up/status"
	h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"}}`)
	h.ok("POST", apiRoot+"/upgrades", `{"metadata":{"name":"up"},"spec":{"version":"v1","nodeNames":["n1"]}}`)
	attempts := func(n int, status string) string {
		list := strings.Repeat(`,{"operationStatus":"`+status+`"}`, n)[1:]
		return `{"status":{"nodes":[{"nodeName":"n1","history":[` + list + `]}]}}`
	}
	h.ok("PATCH", apiRoot+of, attempts(20, resource.UpgradeSuccess), "Content-Type", mergePatch)
	said := h.refused(422, "Invalid", "PATCH", apiRoot+of, attempts(21, resource.UpgradeSuccess), "Content-Type", mergePatch)
	require.Contains(t, said, "status.nodes[0].history")
	said = h.refused(422, "Invalid", "PATCH", apiRoot+of, attempts(1, "banana"), "Content-Type", mergePatch)
	require.Contains(t, said, "status.nodes[0].history[0].operationStatus")
	h.refused(422, "Invalid", "PATCH", "/apis/upgrade.kubeedge.io/v1alpha2"+of, attempts(1, "banana"), "Content-Type", mergePatch)
}

func TestAnOwnedObjectsSpecIsItsOwners(t *testing.T) {
	h := newHub(t, asUser)
	key := store.Key{Kind: resource.KindNode, Name: "n1"}
	_, err := h.store.Create(context.Background(), store.Object{Key: key, Data: []byte(
		`{"apiVersion":"edgebus.io/v1alpha1","kind":"Node","metadata":{"name":"n1","owner":"Fleet/shops"},"spec":{"os":{"image":"os:1"}}}`)})
	require.NoError(t, err)
	for at, body := range map[string]string{apiRoot + "/nodes/n1": `{"spec":{"os":{"image":"os:2"}}}`, flightctlDevices + "/n1": `{"spec":{"os":{"image":"os:2"}}}`} {
		said := h.refused(409, "Conflict", "PATCH", at, body, "Content-Type", mergePatch)
		require.Contains(t, said, "Fleet/shops manages the object")
	}
	h.refused(409, "Conflict", "PATCH", apiRoot+"/nodes/n1", `{"metadata":{"owner":""}}`, "Content-Type", mergePatch)
	labelled := h.ok("PATCH", apiRoot+"/nodes/n1", `{"metadata":{"labels":{"site":"a"},"annotations":{"note":"b"}}}`, "Content-Type", mergePatch)
	require.Equal(t, "os:1", labelled.str("spec.os.image"))
}

func TestUniqueName(t *testing.T) {
	h := newHub(t)
	other := apiRoot + "/namespaces/other/devices"
	h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
	msg := h.refused(409, "AlreadyExists", "POST", other, lampJSON("", ""))
	require.Contains(t, msg, "default/lamp", "it names the other")
	h.ok("POST", apiRoot+"/namespaces/other/devicemodels", modelJSON)
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)

	h.ok("DELETE", namespaceRoot+"/devices/lamp", "")
	h.ok("POST", other, lampJSON("", ""))
	h.refused(409, "AlreadyExists", "POST", namespaceRoot+"/devices", lampJSON("", ""))
	h.ok("DELETE", other+"/lamp", "")
	h.ok("POST", other, lampJSON("", ""), "x", "in the same again")
}

func TestUniqueNameRace(t *testing.T) {
	h := newHub(t)
	for round := range 5 {
		var wg sync.WaitGroup
		codes := make([]int, 20)
		for i := range codes {
			wg.Go(func() {
				path := fmt.Sprintf("%s/namespaces/ns%d/devices", apiRoot, i%10)
				codes[i] = h.do("POST", path, lampNamed(fmt.Sprint("d", round))).code
			})
		}
		wg.Wait()
		won := 0
		for _, code := range codes {
			if code == 201 {
				won++
				continue
			}
			require.Equal(t, 409, code)
		}
		require.LessOrEqual(t, won, 1)
		found := h.ok("GET", apiRoot+"/devices?fieldSelector=metadata.name="+fmt.Sprint("d", round), "")
		require.Len(t, found.names(), won)
		require.Equal(t, 1, won)
	}
}

// A claim whose object never came: the hub stopped between the two.
func TestLostClaim(t *testing.T) {
	h := newHub(t)
	data, err := json.Marshal(jsonObject{"namespace": "gone", "nonce": "x"})
	require.NoError(t, err)
	_, err = h.store.Create(context.Background(), store.Object{Key: store.Key{Kind: "DeviceName", Name: "lamp"}, Data: data})
	require.NoError(t, err)
	h.pass(-24 * time.Hour) // whatever the clock says
	h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
	h.refused(409, "AlreadyExists", "POST", apiRoot+"/namespaces/gone/devices", lampJSON("", ""))
}

// What was stored under older rules is no obstacle: only what a change brings is looked at.
func TestMetadataOfOldRules(t *testing.T) {
	h := newHub(t)
	const path = apiRoot + "/nodes/n1"
	_, err := h.store.Create(t.Context(), store.Object{Key: store.Key{Kind: "Node", Name: "n1"}, Data: []byte(`{"metadata":{"name":"n1","uid":"u",
		"labels":{"odd label":"` + strings.Repeat("x", 100) + `"},"annotations":{"what is it?":"` + strings.Repeat("x", 300<<10) + `"},
		"finalizers":["odd finalizer","x.io/a"],"ownerReferences":[{"name":"only"}]},"spec":{}}`)})
	require.NoError(t, err)
	patch := func(metadata string) hubResponse {
		return h.do("PATCH", path, `{"metadata":`+metadata+`}`, "Content-Type", mergePatch)
	}
	for _, change := range []string{`{"labels":{"floor":"2"}}`, `{"annotations":{"what is it?":"a lamp"}}`, `{"finalizers":["odd finalizer"]}`, `{"ownerReferences":null}`} {
		r := patch(change)
		require.Equal(t, 200, r.code, "%s: %s", change, r.body)
	}
	for _, change := range []string{
		`{"labels":{"another odd label":""}}`, `{"annotations":{"who is it?":""}}`, `{"finalizers":["another odd one"]}`, `{"ownerReferences":[{"name":"only"}]}`,
		`{"annotations":{"x":"` + strings.Repeat("x", 300<<10) + `"}}`,
	} {
		require.Equal(t, 422, patch(change).code, change)
	}
	h.ok("DELETE", path, "")
	require.Equal(t, 200, patch(`{"finalizers":null}`).code)
	h.refused(404, "NotFound", "GET", path, "")
}

// Sixty writers on one object, over a dozen connections: every accepted write was made on what it had read.
func TestRacingPuts(t *testing.T) {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devices", lampJSON(`,"annotations":{"n":"0"}`, ""))
	const writers = 60
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 12, MaxConnsPerHost: 12}}
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for !incrementCount(t, client, h.url+namespaceRoot+"/devices/lamp") {
			}
		})
	}
	wg.Wait()
	require.Equal(t, fmt.Sprint(writers), h.ok("GET", namespaceRoot+"/devices/lamp", "").str("metadata.annotations.n"))
	for range writers { // patches expect nothing, and none is lost either
		wg.Go(func() {
			req, _ := http.NewRequest("PATCH", h.url+namespaceRoot+"/devices/lamp", strings.NewReader(`{"metadata":{"labels":{"`+resource.NewUID()[:8]+`":"x"}}}`))
			req.Header.Set("Content-Type", mergePatch)
			resp, err := client.Do(req)
			if err != nil || resp.StatusCode != 200 {
				t.Error(err, resp)
				return
			}
			_ = resp.Body.Close()
		})
	}
	wg.Wait()
	require.Len(t, h.ok("GET", namespaceRoot+"/devices/lamp", "").at("metadata.labels"), writers)
}

// incrementCount adds one to an annotation; false: somebody else was faster.
func incrementCount(t *testing.T, client *http.Client, url string) bool {
	resp, err := client.Get(url)
	if err != nil {
		t.Error(err)
		return true
	}
	var o objects.Object
	err = json.NewDecoder(resp.Body).Decode(&o)
	_ = resp.Body.Close()
	var n int
	if _, scan := fmt.Sscan(o.Metadata.Annotations["n"], &n); err != nil || scan != nil {
		t.Error(err, scan)
		return true
	}
	o.Metadata.Annotations["n"] = fmt.Sprint(n + 1)
	raw, _ := json.Marshal(o)
	req, _ := http.NewRequest("PUT", url, bytes.NewReader(raw))
	if resp, err = client.Do(req); err != nil {
		t.Error(err)
		return true
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 200 && resp.StatusCode != 409 {
		t.Error("status", resp.StatusCode)
	}
	return resp.StatusCode != 409
}

// failingWriter stands for a store that can't commit.
type failingWriter struct {
	store.Writer
	err error
}

func (f failingWriter) Create(context.Context, store.Object) (store.Object, error) {
	return store.Object{}, f.err
}

func TestStoreFails(t *testing.T) {
	h := newHub(t, func(o *hubOptions) { o.Writer = failingWriter{o.Writer, store.UnknownOutcome(errors.New("disk full"))} })
	msg := h.refused(503, "ServiceUnavailable", "POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"}}`)
	require.Contains(t, msg, "unknown")
	h = newHub(t, func(o *hubOptions) { o.Writer = failingWriter{o.Writer, errors.New("secret path /x")} })
	msg = h.refused(500, "InternalError", "POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"}}`)
	require.NotContains(t, msg, "secret")
}

// A name of a generateName is no longer than a label's value, as in Kubernetes, so that it can be one.
func TestALongGenerateNameIsCut(t *testing.T) {
	h := newHub(t)
	prefix := strings.Repeat("g", 250)
	name := h.ok("POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"generateName":"`+prefix+`"}}`).str("metadata.name")
	require.Len(t, name, 63)
	require.True(t, strings.HasPrefix(name, prefix[:58]))
}

// A name that is made and taken already is made again, of a kind whose names are unique in all namespaces as well; not for ever.
func TestAMadeNameThatIsTakenIsMadeAgain(t *testing.T) {
	suffixes := []string{"a", "a", "b", "a", "b", "c"}
	made := 0
	h := newHub(t, func(o *hubOptions) {
		o.Suffix = func() string {
			made++
			return suffixes[min(made, len(suffixes))-1]
		}
	})
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	body := `{"metadata":{"generateName":"lamp-"},"spec":{"deviceModelRef":{"name":"dimmable"},"protocol":{"type":"modbus"}}}`
	for _, want := range []struct{ namespace, name string }{{"default", "lamp-a"}, {"default", "lamp-b"}, {"other", "lamp-c"}} {
		got := h.ok("POST", apiRoot+"/namespaces/"+want.namespace+"/devices", body)
		require.Equal(t, want.name, got.str("metadata.name"))
		require.Equal(t, "lamp-", got.str("metadata.generateName"))
	}
	require.Equal(t, len(suffixes), made)
	h.refused(http.StatusConflict, "AlreadyExists", "POST", namespaceRoot+"/devices", body)
	require.Equal(t, len(suffixes)+9, made)
	require.Equal(t, []string{"lamp-a", "lamp-b"}, h.ok("GET", namespaceRoot+"/devices", "").names())
}

// settledLamp is a lamp that is as it is wanted: on, and online.
func settledLamp(t *testing.T) *hub {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	made := h.ok("POST", namespaceRoot+"/devices", lampJSON("", `,"desired":{"power":"ON"}`))
	require.Equal(t, "ON", made.str("status.twin.power.desired.value"))
	require.Equal(t, "False", made.condition("InSync"), "nobody has reported anything")
	_, err := h.store.Update(context.Background(), store.Object{Key: store.Key{Kind: "Device", Namespace: "default", Name: "lamp"}, Status: json.RawMessage(`{
		"state":"online","twin":{"power":{"desired":{"value":"ON","ver":1},"reported":{"value":"ON","ver":1,"for":1},"inSync":true}},
		"conditions":[{"type":"InSync","status":"True","reason":"AsDesired","observedGeneration":1,"lastTransitionTime":"2026-11-21T09:00:00Z"},
			{"type":"Online","status":"True","reason":"Online","observedGeneration":1,"lastTransitionTime":"2026-11-21T09:00:00Z"}]}`)}, 0)
	require.NoError(t, err)
	return h
}

func (r hubResponse) condition(kind string) string {
	conditions, _ := r.at("status.conditions").([]any)
	for _, c := range conditions {
		if c := c.(jsonObject); c["type"] == kind {
			require.Equal(r.t, r.at("metadata.generation"), c["observedGeneration"], "%s is about the object as it is", kind)
			return c["status"].(string)
		}
	}
	r.t.Fatalf("no condition %s: %s", kind, r.body)
	return ""
}

// Whoever writes a desired value by whichever verb, and whoever reads it in whichever form, has a status that is about it.
func TestTheAnswerOfAWriteIsAboutIt(t *testing.T) {
	off := `,"desired":{"power":"OFF"}`
	for verb, write := range map[string]func(h *hub) hubResponse{
		"merge patch": func(h *hub) hubResponse {
			return h.ok("PATCH", namespaceRoot+"/devices/lamp", `{"spec":{"desired":{"power":"OFF"}}}`, "Content-Type", mergePatch)
		},
		"JSON patch": func(h *hub) hubResponse {
			return h.ok("PATCH", namespaceRoot+"/devices/lamp", `[{"op":"replace","path":"/spec/desired/power","value":"OFF"}]`, "Content-Type", jsonPatch)
		},
		"PUT": func(h *hub) hubResponse { return h.ok("PUT", namespaceRoot+"/devices/lamp", lampJSON("", off)) },
		"apply": func(h *hub) hubResponse {
			return h.ok("PATCH", namespaceRoot+"/devices/lamp?fieldManager=ann&force=true", `{"apiVersion":"edgebus.io/v1alpha1","kind":"Device","spec":{"desired":{"power":"OFF"}}}`, "Content-Type", applyPatch)
		},
		"dry run": func(h *hub) hubResponse {
			r := h.ok("PATCH", namespaceRoot+"/devices/lamp?dryRun=All", `{"spec":{"desired":{"power":"OFF"}}}`, "Content-Type", mergePatch)
			h.ok("PATCH", namespaceRoot+"/devices/lamp", `{"spec":{"desired":{"power":"OFF"}}}`, "Content-Type", mergePatch)
			return r
		},
	} {
		t.Run(verb, func(t *testing.T) {
			h := settledLamp(t)
			watched := h.watch(namespaceRoot + "/devices?watch=true&resourceVersion=" + h.ok("GET", namespaceRoot+"/devices", "").str("metadata.resourceVersion"))
			table := h.watch(namespaceRoot+"/devices?watch=true&resourceVersion="+h.ok("GET", namespaceRoot+"/devices", "").str("metadata.resourceVersion"),
				"Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
			got := write(h)
			event := watched.next()
			event.tree = event.tree["object"].(jsonObject)
			for where, r := range map[string]hubResponse{"answer": got, "GET": h.ok("GET", namespaceRoot+"/devices/lamp", ""), "watch": event} {
				require.Equal(t, "OFF", r.str("spec.desired.power"), where)
				require.Equal(t, "OFF", r.str("status.twin.power.desired.value"), where)
				require.EqualValues(t, 2, r.at("status.twin.power.desired.ver"), where)
				require.Equal(t, "ON", r.str("status.twin.power.reported.value"), where)
				require.Equal(t, false, r.at("status.twin.power.inSync"), where)
				require.Equal(t, "False", r.condition("InSync"), where)
				require.Equal(t, "True", r.condition("Online"), where)
				require.Equal(t, "online", r.str("status.state"), where)
			}
			list := h.ok("GET", namespaceRoot+"/devices", "")
			require.Equal(t, "OFF", list.str("items.0.status.twin.power.desired.value"))
			row := h.ok("GET", namespaceRoot+"/devices", "", "Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
			require.Equal(t, "False", row.str("rows.0.cells.4"), "%s", row.body)
			require.Equal(t, "False", table.next().str("object.rows.0.cells.4"))
			theirs := h.ok("GET", kubeedgeAlpha1+"/devices/lamp", "")
			require.Equal(t, "OFF", theirs.str("status.twins.0.expected.value"), "%s", theirs.body)
		})
	}
}

// A dialect has its wishes in the status: a write of that is a write of ours.
func TestADesiredValueInADialectsStatusIsSet(t *testing.T) {
	h := settledLamp(t)
	h.ok("PATCH", kubeedgeAlpha1+"/devices/lamp/status", `{"status":{"twins":[{"name":"power","expected":{"value":"OFF"}}]}}`, "Content-Type", mergePatch)
	got := h.ok("GET", namespaceRoot+"/devices/lamp", "")
	require.Equal(t, "OFF", got.str("spec.desired.power"), "%s", got.body)
	require.Equal(t, "OFF", got.str("status.twin.power.desired.value"))
	require.Equal(t, "False", got.condition("InSync"))
}

// What another node reported says nothing about a device that was given to this one.
func TestAMovedDeviceIsNotAsTheOtherNodeSaid(t *testing.T) {
	h := settledLamp(t)
	moved := h.ok("PATCH", namespaceRoot+"/devices/lamp", `{"spec":{"nodeName":"n2"}}`, "Content-Type", mergePatch)
	require.Equal(t, "False", moved.condition("InSync"))
	require.Nil(t, moved.at("status.twin.power.reported"))
	require.Equal(t, "unknown", moved.str("status.state"))
}

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

const flightctlAPI = "/apis/flightctl.io/v1alpha1"

// syncSamples are valid objects of a kind that users write and controllers report on, by the collection that they are posted to.
var syncSamples = map[string]string{
	apiRoot + "/resourcesyncs": `{"metadata":{"name":"s"},"spec":{"repository":"r","targetRevision":"main","path":"/"}}`,
}

// A text that a host is going to be given has a grammar, in every form of the object.
func TestTextForShellsIsRefused(t *testing.T) {
	h := newHub(t, asUser)
	h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"}}`)
	upgrade := func(version, installer, cmd string) string {
		return marshalText(t, jsonObject{"metadata": jsonObject{"name": "u"}, "spec": jsonObject{
			"version": version, "upgradeInstaller": installer, "upgradeCmd": cmd, "nodeNames": []string{"n1"},
		}})
	}
	bad := []string{
		"v1.10.0; rm -rf /", "$(id)", "`id`", "v1 && x", "a|b", "v1.0.0\nrm", "a > /etc/passwd", "'quoted'", `"quoted"`, "a\\b", "--help", "-o x", "a  b", "é", "*", "~root", "x\x00y", "{a,b}", "!1", "#x", "${IFS}",
		strings.Repeat("1", 2000),
	}
	for _, at := range []string{apiRoot + "/upgrades", "/apis/upgrade.kubeedge.io/v1alpha2/upgrades"} {
		for _, text := range bad {
			require.Contains(t, h.refused(422, "Invalid", "POST", at, upgrade(text, "", "")), "spec.version", "%q", text)
			require.Contains(t, h.refused(422, "Invalid", "POST", at, upgrade("v1.0.0", text, "")), "spec.upgradeInstaller", "%q", text)
			require.Contains(t, h.refused(422, "Invalid", "POST", at, upgrade("v1.0.0", "", text)), "spec.upgradeCmd", "%q", text)
		}
		for _, version := range []string{"v1.10.0", "1.10.0", "v1.10.0-rc.1+build.5", "v0.0.0-20261121-abcdef"} {
			h.ok("POST", at+"?dryRun=All", upgrade(version, "install", "keadm upgrade --toVersion=v1.10.0 --force /usr/bin/x"))
		}
	}
	for _, where := range []struct{ at, form string }{
		{apiRoot + "/nodes", `{"metadata":{"name":"n"},"spec":{"os":{"image":%s}}}`},
		{flightctlAPI + "/devices", `{"metadata":{"name":"n"},"spec":{"os":{"image":%s}}}`},
		{apiRoot + "/fleets", `{"metadata":{"name":"n"},"spec":{"template":{"spec":{"os":{"image":%s}}}}}`},
		{"/api/v1/fleets", `{"metadata":{"name":"n"},"spec":{"template":{"spec":{"os":{"image":%s}}}}}`},
	} {
		for _, image := range append(bad, "a:b:c", "UPPER/name", "name@sha256:123", "https://host/x") {
			require.Contains(t, h.refused(422, "Invalid", "POST", where.at, fmt.Sprintf(where.form, marshalText(t, image))), "os.image", "%q", image)
		}
		for _, image := range []string{"os:1", "quay.io/redhat/rhde:9.2", "localhost:5000/a/b_c/d-e:v1.0", "Registry.Example.org/a@sha256:" + strings.Repeat("0a", 32)} {
			h.ok("POST", where.at+"?dryRun=All", fmt.Sprintf(where.form, marshalText(t, image)))
		}
	}
	for _, revision := range bad {
		said := h.refused(422, "Invalid", "POST", apiRoot+"/resourcesyncs", marshalText(t, jsonObject{
			"metadata": jsonObject{"name": "s"}, "spec": jsonObject{"repository": "r", "path": "/", "targetRevision": revision},
		}))
		require.Contains(t, said, "spec.targetRevision", "%q", revision)
	}
}

func TestNodesThatAreNotThereAreDoubted(t *testing.T) {
	h := newHub(t, asUser)
	h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"}}`)
	for at, form := range map[string]string{
		apiRoot + "/upgrades":                         `{"metadata":{"name":"u"},"spec":{"version":"v1.0.0","nodeNames":[%s]}}`,
		"/apis/upgrade.kubeedge.io/v1alpha2/upgrades": `{"metadata":{"name":"u"},"spec":{"version":"v1.0.0","nodeNames":[%s]}}`,
	} {
		said := warningsOf(h.ok("POST", at+"?dryRun=All", fmt.Sprintf(form, `"n1","n7","n8"`)))
		require.Contains(t, said, "there is no Node n7, n8", at)
		require.NotContains(t, warningsOf(h.ok("POST", at+"?dryRun=All", fmt.Sprintf(form, `"n1"`))), "there is no Node", at)
	}
}
