// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/api/protobuf"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// authenticateByHeader answers by the header As, as a broker does by certificates and passwords.
func authenticateByHeader(r *http.Request) (broker.Identity, error) {
	people := map[string]broker.Identity{
		"boss": {Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"*"}},
		"ann":  {Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"n1", "plant-*"}},
		"vic":  {Roles: []topics.Role{topics.RoleViewer}, Nodes: []string{"n1"}},
		"eve":  {Roles: []topics.Role{topics.RoleViewer}, Nodes: []string{"*"}},
		"img":  {Roles: []topics.Role{topics.RoleEnroller}},
		"img2": {Roles: []topics.Role{topics.RoleEnroller}},
		"map":  {Roles: []topics.Role{topics.RoleMapper}},
		"n1":   {Roles: []topics.Role{topics.RoleNode}, Node: "n1", Expires: time.Now().Add(time.Hour)},
		"joe":  {Roles: []topics.Role{topics.RoleNode}, Node: "joe", Expires: time.Now().Add(time.Hour)},
	}
	id, known := people[r.Header.Get("As")]
	if !known {
		return id, resource.Errorf(resource.Unauthorized, "", "not signed in")
	}
	id.User = r.Header.Get("As")
	return id, nil
}

// newHubWithUsers is a hub with a device on n1, one on n2, and one on no node.
func newHubWithUsers(t *testing.T) *hub {
	h := newHub(t, withSealer(t), func(o *hubOptions) {
		o.Authenticate = authenticateByHeader
		o.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "figures") })
		o.Page.FinishUpgrade = func(w http.ResponseWriter, _ *http.Request) error { writeText(w, http.StatusOK, "done"); return nil }
		o.Links = func(node string, most int) (r resource.LinkReport) {
			r.FullestQueue, r.FullestQueueClient, r.Missed, r.Refused = 1, "somebody", 2, map[string]int64{"quota": 3}
			for _, name := range []string{"n2", "n1", "plant-a"} {
				if (node == "" || node == name) && len(r.Links) < most {
					r.Links = append(r.Links, resource.Link{Node: name})
				}
			}
			return r
		}
	})
	boss := []string{"As", "boss"}
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON, boss...)
	for name, node := range map[string]string{"lamp1": "n1", "lamp2": "n2", "lamp0": ""} {
		h.ok("POST", namespaceRoot+"/devices", deviceOnNode(name, node), boss...)
	}
	for _, node := range []string{"n1", "n2"} {
		h.ok("POST", apiRoot+"/nodes", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{}}`, node), boss...)
	}
	h.ok("POST", "/api/v1/namespaces/default/secrets", `{"metadata":{"name":"s"},"data":{"a":"YQ=="}}`, boss...)
	for _, about := range []string{"Device/lamp1", "Device/lamp2", "Device/gone", "Node/n1", "Node/n2", "DeviceModel/dimmable"} {
		kind, name, _ := strings.Cut(about, "/")
		h.ok("POST", "/api/v1/namespaces/default/events", fmt.Sprintf(
			`{"metadata":{"generateName":"e-"},"reason":"Test","type":"Normal","involvedObject":{"kind":%q,"name":%q,"namespace":"default"}}`, kind, name), boss...)
	}
	return h
}

func deviceOnNode(name, node string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"deviceModelRef":{"name":"dimmable"},"nodeName":%q,"protocol":{"type":"virtual"}}}`, name, node)
}

func TestWhoHasNotSignedInIsRefused(t *testing.T) {
	h := newHubWithUsers(t)
	for _, path := range []string{"/", "/apis", apiRoot, apiRoot + "/devices", "/metrics", "/links", "/openapi/v3"} {
		r := h.do("GET", path, "")
		require.Equal(t, 401, r.code, path)
		require.True(t, r.closed, "who is nobody holds no connection")
		require.Equal(t, "Unauthorized", r.str("reason"))
		require.Contains(t, r.header.Get("WWW-Authenticate"), "Basic")
	}
	for _, path := range publicPaths {
		code := 200
		if path == loginPath {
			code = 404 // this hub has no provider
		}
		require.Equal(t, code, h.do("GET", path, "").code, path)
	}
}

// What each may do, in one table: the code of each answer.
func TestWhoMayDoWhat(t *testing.T) {
	h := newHubWithUsers(t)
	lamp := namespaceRoot + "/devices/lamp"
	label := `{"metadata":{"labels":{"a":"b"}}}`
	for _, c := range []struct {
		method, path, body           string
		boss, ann, vic, eve, mapp, n int
	}{
		{"GET", lamp + "1", "", 200, 200, 200, 200, 403, 200},
		{"GET", lamp + "2", "", 200, 403, 403, 200, 403, 403},
		{"GET", lamp + "0", "", 200, 403, 403, 200, 403, 403},
		{"GET", lamp + "9", "", 404, 404, 404, 404, 403, 404},
		{"PATCH", lamp + "1", label, 200, 200, 403, 403, 403, 403},
		{"PATCH", lamp + "2", label, 200, 403, 403, 403, 403, 403},
		{"PATCH", lamp + "1/status", `{"status":{"state":"online"}}`, 403, 403, 403, 403, 403, 403},
		{"PATCH", lamp + "0", `{"spec":{"nodeName":"n1"}}`, 200, 200, 403, 403, 403, 403}, // boss has bound it
		{"PATCH", lamp + "1", `{"spec":{"nodeName":"n2"}}`, 200, 403, 403, 403, 403, 403}, // and moved this
		{"POST", namespaceRoot + "/devices?dryRun=All", deviceOnNode("new", "n1"), 201, 201, 403, 403, 403, 403},
		{"POST", namespaceRoot + "/devices?dryRun=All", deviceOnNode("new", "plant-7"), 201, 201, 403, 403, 403, 403},
		{"POST", namespaceRoot + "/devices?dryRun=All", deviceOnNode("new", "n2"), 201, 403, 403, 403, 403, 403},
		{"POST", namespaceRoot + "/devices?dryRun=All", deviceOnNode("new", ""), 201, 403, 403, 403, 403, 403},
		{"DELETE", lamp + "2?dryRun=All", "", 200, 403, 403, 403, 403, 403},
		{"PUT", namespaceRoot + "/devices/lamp2", deviceOnNode("lamp2", "n1"), 200, 200, 403, 403, 403, 403}, // boss took it back to n1
		{"GET", apiRoot + "/nodes/n1", "", 200, 200, 200, 200, 403, 200},
		{"GET", apiRoot + "/nodes/n2", "", 200, 403, 403, 200, 403, 403},
		{"DELETE", apiRoot + "/nodes/n2?dryRun=All", "", 200, 403, 403, 403, 403, 403},
		{"GET", "/apis/flightctl.io/v1alpha1/devices/n2", "", 200, 403, 403, 200, 403, 403},
		{"GET", namespaceRoot + "/devicemodels", "", 200, 200, 200, 200, 403, 403},
		{"PATCH", namespaceRoot + "/devicemodels/dimmable", label, 200, 403, 403, 403, 403, 403},
		{"GET", "/api/v1/namespaces/default/secrets/s", "", 200, 403, 403, 403, 403, 403},
		{"GET", "/api/v1/secrets", "", 200, 403, 403, 403, 403, 403},
		{"GET", "/api/v1/secrets?watch=true&timeoutSeconds=1", "", 200, 403, 403, 403, 403, 403},
		{"GET", "/metrics", "", 200, 200, 200, 200, 403, 403},
		{"GET", "/links", "", 200, 200, 200, 200, 403, 403},
		{"GET", "/links/n1", "", 200, 200, 200, 200, 403, 200},
		{"GET", "/links/n2", "", 200, 403, 403, 200, 403, 403},
		{"POST", "/cluster/finish-upgrade", "", 200, 403, 403, 403, 403, 403},
		{"GET", "/apis", "", 200, 200, 200, 200, 200, 200},
	} {
		for i, as := range []string{"boss", "ann", "vic", "eve", "map", "n1"} {
			want := []int{c.boss, c.ann, c.vic, c.eve, c.mapp, c.n}[i]
			r := h.do(c.method, c.path, c.body, "As", as, "Content-Type", patchType(c.method))
			require.Equal(t, want, r.code, "%s: %s %s: %s", as, c.method, c.path, r.body)
			if want == 403 {
				require.Equal(t, "Forbidden", r.str("reason"))
				require.Contains(t, r.str("message"), as)
			}
		}
	}
}

func patchType(method string) string {
	if method == "PATCH" {
		return mergePatch
	}
	return "application/json"
}

// A request for somebody else is not taken for one's own: kubectl auth can-i --as would hear what isn't so. An operator of all
// nodes may act as a controller, which is no way to see more.
func TestNobodyActsForSomebodyElse(t *testing.T) {
	h := newHubWithUsers(t)
	for _, as := range [][]string{
		{"Impersonate-User", "vic"},
		{"Impersonate-User", "controller", "Impersonate-Group", "system:masters"},
		{"Impersonate-Group", "controller"},
		{"Impersonate-Uid", "7"},
		{"Impersonate-Extra-Scopes", "all"},
		{"Impersonate-User", "controller/render"},
	} {
		require.Contains(t, h.refused(403, "Forbidden", "GET", apiRoot+"/devices", "", append(as, "As", "boss")...), "--as")
	}
	state := `{"status":{"state":"offline"}}`
	write := func(as string, more ...string) hubResponse {
		return h.do("PATCH", apiRoot+"/nodes/n1/status", state, append([]string{"As", as, "Content-Type", mergePatch}, more...)...)
	}
	controller := []string{"Impersonate-User", "controller"}
	for _, as := range []string{"ann", "vic", "eve", "map", "n1"} {
		require.Contains(t, h.refused(403, "Forbidden", "GET", apiRoot+"/devices", "", append(controller, "As", as)...), "operators of all nodes")
	}
	said := write("boss")
	require.Equal(t, 403, said.code)
	require.Contains(t, said.str("message"), "--as controller")
	done := write("boss", controller...)
	require.Equal(t, 200, done.code, "%s", done.body)
	require.Equal(t, "offline", done.str("status.state"))
	owned := h.ok("PATCH", apiRoot+"/nodes/n1", `{"metadata":{"owner":"Fleet/shops"}}`, append(controller, "As", "boss", "Content-Type", mergePatch)...)
	require.Equal(t, "Fleet/shops", owned.str("metadata.owner"))
	h.refused(403, "Forbidden", "PATCH", apiRoot+"/nodes/n2", `{"metadata":{"owner":"Fleet/shops"}}`, "As", "boss", "Content-Type", mergePatch)

	anonymous := broker.Identity{Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"*"}}
	h = newHub(t, withSealer(t), func(o *hubOptions) {
		o.Authenticate = func(*http.Request) (broker.Identity, error) { return anonymous, nil }
	})
	h.refused(403, "Forbidden", "GET", "/api/v1/secrets", "", controller...)
	h.ok("GET", apiRoot+"/devices", "", controller...)
}

func TestARefusalSaysWhoWhatAndWhy(t *testing.T) {
	h := newHubWithUsers(t)
	require.Equal(t, `devices.edgebus.io "lamp2" is forbidden: User "ann" cannot delete resource "devices" in API group "edgebus.io" in the namespace "default": `+
		`ann is an operator of the nodes n1, plant-* (auth.users); what belongs to others, or to all, needs nodes: ["*"]`,
		h.refused(403, "Forbidden", "DELETE", namespaceRoot+"/devices/lamp2", "", "As", "ann"))
	require.Contains(t, h.refused(403, "Forbidden", "GET", apiRoot+"/devicemodels", "", "As", "n1"), "n1 is a node, which reads what is its own and writes its Node's status")
}

// Lists and watches leave out what is none of the user's, as a subscription does.
func TestListsAreOfOnesOwn(t *testing.T) {
	h := newHubWithUsers(t)
	devices := apiRoot + "/devices"
	require.Equal(t, []string{"lamp0", "lamp1", "lamp2"}, h.ok("GET", devices, "", "As", "eve").names())
	require.Equal(t, []string{"lamp1"}, h.ok("GET", devices, "", "As", "ann").names())
	require.Equal(t, []string{"lamp1"}, h.ok("GET", devices+"?limit=1", "", "As", "n1").names())
	require.Equal(t, []string{"n1"}, h.ok("GET", apiRoot+"/nodes", "", "As", "vic").names())
	require.Len(t, h.ok("GET", "/api/v1/events", "", "As", "boss").names(), 6)
	require.Len(t, h.ok("GET", "/api/v1/events", "", "As", "vic").names(), 3, "of lamp1, n1 and the model")
	require.Len(t, h.ok("GET", "/apis/events.k8s.io/v1/events", "", "As", "vic").names(), 3)
	require.Equal(t, "n1", h.ok("GET", "/links?limit=1", "", "As", "ann").at("links.0.node"))
	require.EqualValues(t, 1, h.ok("GET", "/links?limit=1", "", "As", "ann").at("more"))
	for _, c := range [][2]string{{"ann", "/links"}, {"ann", "/links/n1"}, {"vic", "/links"}, {"eve", "/links"}, {"n1", "/links/n1"}} {
		require.NotRegexp(t, `somebody|fullest|missed|refused`, string(h.ok("GET", c[1], "", "As", c[0]).body), "how the hub's other clients fare")
	}
	require.Equal(t, "somebody", h.ok("GET", "/links", "", "As", "boss").str("fullestQueueClient"))
	deleted := h.ok("DELETE", namespaceRoot+"/devices", "", "As", "ann")
	require.Equal(t, []string{"lamp1"}, deleted.names())
	require.Equal(t, []string{"lamp0", "lamp2"}, h.ok("GET", devices, "", "As", "boss").names())
}

// TestACertificateThatNobodyListed is a node's: of a node that isn't there one hears why nothing is shown.
func TestACertificateThatNobodyListed(t *testing.T) {
	h := newHubWithUsers(t)
	for _, path := range []string{apiRoot + "/devices", apiRoot + "/nodes", namespaceRoot + "/devices"} {
		r := h.ok("GET", path, "", "As", "joe")
		require.Empty(t, r.names())
		require.Contains(t, r.header.Get("Warning"), `the certificate is for \"joe\", and as auth.users of the hub has no user of that name`, path)
		require.Empty(t, h.ok("GET", path, "", "As", "n1").header.Get("Warning"), "a node that is there")
	}
	require.Equal(t, 403, h.do("GET", apiRoot+"/devicemodels", "", "As", "joe").code)
}

func TestAWatchIsOfOnesOwn(t *testing.T) {
	h := newHubWithUsers(t)
	w := h.watch(apiRoot+"/devices?watch=true", "As", "vic")
	w.expect("ADDED lamp1")
	all := h.watch(apiRoot+"/devices?watch=true", "As", "boss")
	all.expect("ADDED lamp0", "ADDED lamp1", "ADDED lamp2")
	h.ok("PATCH", namespaceRoot+"/devices/lamp2", `{"spec":{"nodeName":"n1"}}`, "As", "boss", "Content-Type", mergePatch)
	w.expect("ADDED lamp2") // it came
	h.ok("PATCH", namespaceRoot+"/devices/lamp1", `{"spec":{"nodeName":"n2"}}`, "As", "boss", "Content-Type", mergePatch)
	went := w.next() // it went, whither is not said
	require.Equal(t, "DELETED lamp1", went.str("type")+" "+went.str("object.metadata.name"))
	require.NotEmpty(t, went.str("object.metadata.uid"))
	require.NotContains(t, string(went.body), "n2")
	all.expect("MODIFIED lamp2")
	require.Equal(t, "n2", all.next().str("object.spec.nodeName"), "who sees both is told whither")
}

// Who was away is told that things are no longer there, if they may have been; nothing else of what isn't theirs.
func TestAWatchThatCatchesUpIsOfOnesOwn(t *testing.T) {
	h := newHubWithUsers(t)
	devices := []string{namespaceRoot + "/devices/lamp2", namespaceRoot + "/devices/lamp1"}
	events := []string{h.eventOf("lamp2"), h.eventOf("lamp1")}
	for _, c := range []struct {
		path, accept string
		changed      []string
	}{
		{apiRoot + "/devices", "", devices},
		{apiRoot + "/devices", asTable, devices},
		{"/apis/devices.kubeedge.io/v1alpha2/devices", "", devices},
		{"/api/v1/events", "", events},
		{"/apis/events.k8s.io/v1/events", "", events},
		{"/apis/events.k8s.io/v1/events", asTable, events},
	} {
		rv := h.ok("GET", c.path, "", "As", "boss").str("metadata.resourceVersion")
		for _, o := range c.changed {
			h.ok("PATCH", o, `{"metadata":{"labels":{"a":"secret`+rv+`"}}}`, "As", "boss", "Content-Type", mergePatch)
		}
		w := h.watch(c.path+"?watch=true&includeObject=Object&resourceVersion="+rv, "As", "vic", "Accept", c.accept)
		other := w.next()
		require.Equal(t, "DELETED", other.str("type"), "%s", other.body)
		require.NotContains(t, string(other.body), "secret")
		require.NotContains(t, string(other.body), "n2")
		mine := w.next()
		require.Contains(t, string(mine.body), "secret")
	}
}

// eventOf is the path of the Event about a device.
func (h *hub) eventOf(device string) string {
	list := h.ok("GET", coreEvents+"?fieldSelector=involvedObject.name="+device, "", "As", "boss")
	return coreEvents + "/" + list.str("items.0.metadata.name")
}

// The name of a device that is gone is anybody's to take; what happened to that one is not.
func TestEventsOfAnotherOfThatNameAreNobodys(t *testing.T) {
	h := newHubWithUsers(t)
	uid := h.ok("GET", namespaceRoot+"/devices/lamp2", "", "As", "boss").str("metadata.uid")
	h.ok("POST", coreEvents, `{"metadata":{"name":"jam"},"reason":"Jammed","type":"Warning","message":"in hall 2",
		"involvedObject":{"kind":"Device","namespace":"default","name":"lamp2","uid":"`+uid+`"}}`, "As", "boss")
	h.ok("DELETE", namespaceRoot+"/devices/lamp2", "", "As", "boss")
	h.ok("POST", namespaceRoot+"/devices", deviceOnNode("lamp2", "n1"), "As", "ann")
	for _, path := range []string{"/api/v1/events", "/apis/events.k8s.io/v1/events"} {
		require.NotContains(t, h.ok("GET", path, "", "As", "ann").names(), "jam")
		require.Contains(t, h.ok("GET", path, "", "As", "boss").names(), "jam")
	}
	h.refused(403, "Forbidden", "GET", coreEvents+"/jam", "", "As", "ann")
}

// flightctl's form of a Repository has passwords and keys, which are kept: they are not for everybody who looks.
func TestRepositoriesAreForWhoHasAllNodes(t *testing.T) {
	h := newHubWithUsers(t)
	const theirs = "/apis/flightctl.io/v1alpha1/repositories"
	h.ok("POST", theirs, `{"metadata":{"name":"r"},"spec":{"type":"http","url":"https://example.org","httpConfig":{"password":"hunter2"}}}`, "As", "boss")
	for _, path := range []string{theirs, apiRoot + "/repositories", "/api/v1/repositories"} {
		require.Equal(t, "hunter2", h.ok("GET", theirs+"/r", "", "As", "boss").str("spec.httpConfig.password"))
		for _, as := range []string{"ann", "vic", "eve", "map", "n1"} {
			for _, what := range []string{"", "?watch=true&timeoutSeconds=1", "/r", "/r/status"} {
				r := h.do("GET", path+what, "", "As", as)
				require.Equal(t, 403, r.code, "%s: GET %s%s: %s", as, path, what, r.body)
				require.NotContains(t, string(r.body), "hunter2")
			}
			for _, accept := range []string{asTable, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"} {
				require.Equal(t, 403, h.do("GET", path, "", "As", as, "Accept", accept).code)
			}
		}
	}
	rules := h.ok("POST", authorizationRoot+"/selfsubjectrulesreviews", `{"spec":{"namespace":"default"}}`, "As", "eve")
	require.NotContains(t, string(rules.body), "repositories")
}

// What nobody may do, since there is nothing of the kind, is refused with that reason, and not with the user's role.
func TestReviewsSayWhatThereIsNot(t *testing.T) {
	h := newHubWithUsers(t)
	for asked, want := range map[string]string{
		`"verb":"delete","group":"edgebus.io","resource":"devices","subresource":"status"`: "devices.edgebus.io/status can't be asked to delete",
		`"verb":"get","group":"edgebus.io","resource":"devices","subresource":"scale"`:     "this hub has no devices.edgebus.io/scale",
		`"verb":"list","group":"apps","resource":"deployments"`:                            "this hub has no deployments.apps",
		`"verb":"create","resource":"namespaces"`:                                          "namespaces can't be asked to create",
	} {
		r := h.ok("POST", authorizationRoot+"/selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{`+asked+`}}}`, "As", "boss")
		require.Equal(t, false, r.at("status.allowed"))
		require.Equal(t, want, r.str("status.reason"))
	}
}

func TestReviewsTellTheTruth(t *testing.T) {
	h := newHubWithUsers(t)
	can := func(as, verb, group, plural, name string) bool {
		r := h.ok("POST", authorizationRoot+"/selfsubjectaccessreviews", fmt.Sprintf(
			`{"spec":{"resourceAttributes":{"namespace":"default","verb":%q,"group":%q,"resource":%q,"name":%q}}}`, verb, group, plural, name), "As", as)
		require.Equal(t, plural, r.str("spec.resourceAttributes.resource"))
		return r.at("status.allowed") == true
	}
	for _, c := range []struct {
		as, verb, group, plural, name string
		want                          bool
	}{
		{"boss", "*", "*", "*", "", true},
		{"eve", "*", "*", "*", "", false},
		{"ann", "create", resource.Group, "devices", "", true},
		{"ann", "delete", resource.Group, "devices", "lamp1", true},
		{"ann", "delete", resource.Group, "devices", "lamp2", false},
		{"ann", "update", resource.Group, "nodes", "plant-5", true},
		{"ann", "update", resource.Group, "nodes", "n9", false},
		{"ann", "create", resource.Group, "devicemodels", "", false},
		{"ann", "get", "", "secrets", "", false},
		{"boss", "get", "", "secrets", "", true},
		{"vic", "list", resource.Group, "devices", "", true},
		{"vic", "create", resource.Group, "devices", "", false},
		{"ann", "obey", resource.Group, "devices", "", false},
		{"ann", "*", resource.Group, "devices", "", true},
		{"ann", "create", "authorization.k8s.io", "selfsubjectaccessreviews", "", true},
		{"vic", "list", "", "namespaces", "", true},
		{"vic", "watch", "", "namespaces", "", false},
		{"boss", "create", "", "namespaces", "", false},
		{"boss", "obey", resource.Group, "devices", "", false},
		{"boss", "list", "apps", "deployments", "", false},
		{"boss", "*", resource.Group, "devices", "", true},
		{"boss", "*", resource.Group, "templateversions", "", false},
		{"boss", "get", "devices.kubeedge.io", "devicestatuses", "", true},
		{"boss", "create", "devices.kubeedge.io", "devicestatuses", "", false},
		{"vic", "*", resource.Group, "devices", "", false},
		{"ann", "delete", "devices.kubeedge.io", "devices", "lamp1", true},
		{"ann", "delete", "devices.kubeedge.io", "devices", "lamp2", false},
		{"n1", "get", resource.Group, "nodes", "n1", true},
		{"n1", "list", resource.Group, "fleets", "", false},
		{"map", "list", resource.Group, "devices", "", false},
		{"vic", "list", "apps", "deployments", "", false},
	} {
		require.Equal(t, c.want, can(c.as, c.verb, c.group, c.plural, c.name), "%+v", c)
	}
	part := func(as, verb, group, plural, subresource string) any {
		return h.ok("POST", authorizationRoot+"/selfsubjectaccessreviews", fmt.Sprintf(
			`{"spec":{"resourceAttributes":{"namespace":"default","verb":%q,"group":%q,"resource":%q,"subresource":%q}}}`, verb, group, plural, subresource), "As", as).at("status.allowed")
	}
	require.Equal(t, true, part("boss", "get", resource.Group, "devices", "status"))
	require.Equal(t, false, part("boss", "delete", resource.Group, "devices", "status"))
	require.Equal(t, false, part("boss", "get", resource.Group, "devices", "scale"))
	require.Equal(t, false, part("boss", "get", "", "secrets", "status"))
	require.Equal(t, true, part("boss", "update", resource.Group, "enrollmentrequests", "approval"))
	require.Equal(t, false, part("ann", "update", resource.Group, "enrollmentrequests", "approval"))
	path := func(as, path string) any {
		return h.ok("POST", authorizationRoot+"/selfsubjectaccessreviews",
			`{"spec":{"nonResourceAttributes":{"verb":"get","path":"`+path+`"}}}`, "As", as).at("status.allowed")
	}
	require.Equal(t, true, path("vic", "/metrics"))
	require.Equal(t, false, path("n1", "/metrics"))
	require.Equal(t, true, path("n1", "/healthz"))
	require.Equal(t, true, path("n1", "/links/n1"))
	require.Equal(t, false, path("n1", "/links/n2"))
	require.Equal(t, true, path("map", "/apis"))
	require.Equal(t, "ann", h.ok("POST", authenticationRoot+"/selfsubjectreviews", `{}`, "As", "ann").at("status.userInfo.username"))
	rules := h.ok("POST", authorizationRoot+"/selfsubjectrulesreviews", `{"spec":{"namespace":"default"}}`, "As", "vic")
	require.Equal(t, []any{"get", "list", "watch"}, rules.at("status.resourceRules.0.verbs"))
	require.NotContains(t, string(rules.body), "secrets")
}

// kubectl sends reviews in protobuf, for it knows the kind.
func TestAReviewInProtobuf(t *testing.T) {
	h := newHubWithUsers(t)
	field := func(number protowire.Number, value string) string {
		return string(protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), value))
	}
	ask := func(verb, plural string) hubResponse {
		attributes := field(1, "default") + field(2, verb) + field(3, resource.Group) + field(5, plural)
		return h.ok("POST", authorizationRoot+"/selfsubjectaccessreviews", "k8s\x00"+field(1, "meta")+field(2, field(2, field(1, attributes))),
			"As", "vic", "Content-Type", protobuf.MediaType)
	}
	require.Equal(t, true, ask("list", "devices").at("status.allowed"))
	require.Equal(t, false, ask("create", "devices").at("status.allowed"))
	for _, bad := range []string{"", "k8s", "k8s\x00\xff", "k8s\x00" + string(binary.AppendUvarint(nil, 1<<60))} {
		h.refused(400, "BadRequest", "POST", authorizationRoot+"/selfsubjectaccessreviews", bad, "As", "vic", "Content-Type", protobuf.MediaType)
	}
}

// One user leaves others room to watch, whoever it is.
func TestWatchesOfOneUserLeaveRoom(t *testing.T) {
	h := newHub(t, func(o *hubOptions) { o.Authenticate, o.Watches = authenticateByHeader, 4 })
	path := apiRoot + "/devices?watch=true"
	first := h.watch(path, "As", "boss")
	h.watch(path, "As", "boss")
	require.Equal(t, "one user may have 2 watches at most (half of limits.watches), as many as boss has", h.refused(429, "TooManyRequests", "GET", path, "", "As", "boss"))
	h.watch(path, "As", "vic")
	require.NoError(t, first.body.Close())
	require.Eventually(t, func() bool {
		return h.do("GET", path+"&timeoutSeconds=1", "", "As", "boss").code == 200
	}, 10*time.Second, time.Millisecond)
}

// A watch ends with the certificate that it was opened with, and so does the trust in who has it.
func TestAWatchEndsWithItsCertificate(t *testing.T) {
	h := newHub(t, func(o *hubOptions) {
		o.Authenticate = func(*http.Request) (broker.Identity, error) {
			return broker.Identity{User: "ann", Roles: []topics.Role{topics.RoleViewer}, Nodes: []string{"*"}, Expires: o.Now().Add(time.Millisecond)}, nil
		}
	})
	w := h.watch(apiRoot + "/devices?watch=true&timeoutSeconds=3600")
	_, err := w.lines.ReadBytes('\n')
	require.ErrorIs(t, err, io.EOF, "it is over")
}

func TestWatchesLeaveRoom(t *testing.T) {
	h := newHub(t, func(o *hubOptions) { o.Watches = 1 })
	first := h.watch(apiRoot + "/devices?watch=true")
	require.Equal(t, "there are as many watches as there may be: 1 (limits.watches)",
		h.refused(429, "TooManyRequests", "GET", apiRoot+"/devices?watch=true", ""))
	h.ok("GET", apiRoot+"/devices", "")
	require.NoError(t, first.body.Close())
	require.Eventually(t, func() bool {
		return h.do("GET", apiRoot+"/devices?watch=true&timeoutSeconds=1", "").code == 200
	}, 10*time.Second, time.Millisecond)
}

// An error names the name that may have been meant, if its reader may see that object.
func TestNotFoundNamesANearName(t *testing.T) {
	h := newHubWithUsers(t)
	for _, method := range []string{"GET", "DELETE"} {
		require.Contains(t, h.refused(404, "NotFound", method, namespaceRoot+"/devices/lmp1", "", "As", "ann"), `"lmp1" not found: did you mean lamp1?`)
		require.NotContains(t, h.refused(404, "NotFound", method, namespaceRoot+"/devices/pump", "", "As", "ann"), "did you mean")
	}
	require.Contains(t, h.refused(404, "NotFound", "GET", namespaceRoot+"/devices/lmp2", "", "As", "boss"), "did you mean lamp2?")
	require.NotContains(t, h.refused(404, "NotFound", "GET", namespaceRoot+"/devices/lmp2", "", "As", "ann"), "lamp2")
}

// kubectl leaves a password out over plain HTTP, so that somebody who gave one is told nothing of it otherwise.
func TestWhoIsNotSignedInIsToldThatKubectlSendsNoPasswordOverHTTP(t *testing.T) {
	h := newHub(t, withSealer(t), func(o *hubOptions) {
		o.Authenticate = func(*http.Request) (broker.Identity, error) {
			return broker.Identity{Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"*"}}, nil
		}
	})
	for _, path := range []string{"/api/v1/secrets", apiRoot + "/repositories"} {
		message := h.refused(403, "Forbidden", "GET", path, "")
		require.Contains(t, message, "kubectl sends no password over plain HTTP")
		require.Contains(t, message, "http.tls.listen")
	}
}

func TestAccessReview(t *testing.T) {
	h := newHub(t)
	r := h.ok("POST", authorizationRoot+"/selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{"verb":"create","group":"edgebus.io","resource":"devices"}}}`)
	require.Equal(t, true, r.at("status.allowed"))
	require.Equal(t, "devices", r.str("spec.resourceAttributes.resource"))
	h.refused(400, "BadRequest", "POST", authorizationRoot+"/selfsubjectaccessreviews", `[]`)
}

func TestAReviewIsSmall(t *testing.T) {
	h := newHub(t)
	spec := `{"spec":{"resourceAttributes":{"verb":"get","resource":"devices","group":"edgebus.io"}}%s}`
	r := h.ok("POST", authorizationRoot+"/selfsubjectaccessreviews", fmt.Sprintf(spec, ""))
	require.Equal(t, true, r.at("status.allowed"))
	for _, media := range []string{"application/json", "application/yaml", protobuf.MediaType} {
		h.refused(413, "RequestEntityTooLarge", "POST", authorizationRoot+"/selfsubjectaccessreviews", fmt.Sprintf(spec, strings.Repeat(" ", maxReview)), "Content-Type", media)
	}
}

func TestSite(t *testing.T) {
	sick := errors.New("not in step")
	h := newHub(t, func(o *hubOptions) {
		o.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeText(w, 200, "metric 1\n") })
		o.Ready = map[string]func(context.Context) error{"twin": func(context.Context) error { return sick }}
	})
	require.Equal(t, "ok\n", string(h.ok("GET", "/healthz", "").body))
	require.Equal(t, "metric 1\n", string(h.ok("GET", "/metrics", "").body))
	r := h.do("GET", "/readyz", "")
	require.Equal(t, 503, r.code)
	require.Equal(t, "[-]twin: not in step\n", string(r.body))
	require.Contains(t, string(h.ok("GET", "/", "").body), apiRoot+"/devices")
	h.refused(404, "NotFound", "GET", "/nothing", "")
}

// Whoever comes without a name may do all that an operator of all nodes may, but for Secrets and the like.
func TestNobodyWithoutANameIsGivenSecrets(t *testing.T) {
	all := broker.Identity{Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"*"}}
	anonymous := accessOf(all)
	all.User = "boss"
	boss := accessOf(all)
	kinds, secret := Kinds(), 0
	for i := range kinds {
		k := &kinds[i]
		for _, verb := range verbs {
			if k.WrittenBy != "" {
				continue
			}
			require.True(t, boss.may(verb, k), "%s %s", verb, k.Plural)
			require.Equal(t, !k.Sealed && !k.HasCredentials, anonymous.may(verb, k), "%s %s", verb, k.Plural)
		}
		if k.Sealed || k.HasCredentials {
			secret++
		}
	}
	require.Positive(t, secret)
	require.Contains(t, anonymous.rule, "signed in")
}

type logLine struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logLine) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logLine) lines(with ...string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		has := true
		for _, w := range with {
			has = has && strings.Contains(line, w)
		}
		if has {
			n++
		}
	}
	return n
}

func TestWhoReadsSecretsIsLogged(t *testing.T) {
	var log logLine
	h := newHub(t, withSealer(t), func(o *hubOptions) { o.Authenticate, o.Log = authenticateByHeader, zerolog.New(&log) })
	const at = "/api/v1/namespaces/default/secrets"
	h.ok("POST", at, `{"metadata":{"name":"s"},"data":{"a":"cGFzc3dvcmQ="}}`, "As", "boss")
	h.ok("GET", at+"/s", "", "As", "boss")
	h.ok("GET", at, "", "As", "boss")
	h.ok("PATCH", at+"/s", `{}`, "As", "boss", "Content-Type", mergePatch)
	for verb, name := range map[string]string{"get": "s", "list": "", "patch": "s", "create": ""} {
		require.Equal(t, 1, log.lines("Secrets asked for", `"user":"boss"`, `"remote":"127.0.0.1:`, `"verb":"`+verb+`"`, `"namespace":"default"`, `"name":"`+name+`"`), verb)
	}
	h.refused(403, "Forbidden", "GET", at+"/s", "", "As", "ann")
	require.Zero(t, log.lines("Secrets asked for", `"user":"ann"`), "who got none")
	for range 100 {
		h.ok("GET", at+"/s", "", "As", "boss")
	}
	require.Less(t, log.lines("Secrets asked for"), 100, "of a flood not each")
	require.Zero(t, log.lines("cGFzc3dvcmQ"))
	require.Zero(t, log.lines("password"))
}

// A TemplateVersion is made by controllers alone; everybody who may see it may delete it.
func TestUsersMakeNoTemplateVersions(t *testing.T) {
	h := newHub(t, asUser)
	version := func(name string) string {
		return `{"metadata":{"name":"` + name + `"},"spec":{"fleet":"f","template":{"spec":{}}}}`
	}
	h.ok("POST", apiRoot+"/fleets", `{"metadata":{"name":"f"},"spec":{"template":{"spec":{}}}}`)
	h.ok("POST", apiRoot+"/templateversions", version("f-1"), "As", "controller")
	for _, at := range []string{apiRoot + "/templateversions", flightctlAPI + "/templateversions"} {
		for _, c := range [][3]string{
			{"POST", at, "application/json"},
			{"PUT", at + "/f-1", "application/json"},
			{"PATCH", at + "/f-1", mergePatch},
			{"PATCH", at + "/f-1?fieldManager=x&force=true", applyPatch},
			{"PUT", at + "/f-1/status", "application/json"},
		} {
			require.Contains(t, h.refused(403, "Forbidden", c[0], c[1], version("f-1"), "Content-Type", c[2]), "role controller", c[1])
		}
	}
	for _, at := range []string{"/api/v1/templateversions", "/api/v1/fleets/f/templateversions"} {
		for _, c := range [][2]string{{"POST", at}, {"PUT", at + "/f-1"}, {"PATCH", at + "/f-1"}} {
			require.Contains(t, h.refused(405, "MethodNotAllowed", c[0], c[1], version("f-1")), "made and changed by controllers")
		}
		require.Equal(t, []string{"f-1"}, h.ok("GET", at, "").names())
	}
	can := func(verb string) string {
		return string(h.do("POST", authorizationRoot+"/selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{"group":"edgebus.io","resource":"templateversions","verb":"`+verb+`"}}}`).body)
	}
	require.Contains(t, can("create"), `"allowed":false`)
	require.Contains(t, can("delete"), `"allowed":true`)
	h.ok("DELETE", "/api/v1/fleets/f/templateversions/f-1", "")
}

// Status and owner of what controllers act on are theirs; the refusal says whose, and how one becomes one.
func TestStatusAndOwnerAreTheControllers(t *testing.T) {
	h := newHub(t, asUser)
	for at, sample := range syncSamples {
		u, err := url.Parse(at)
		require.NoError(t, err)
		h := newHub(t, asUser)
		made := h.ok("POST", u.Path, sample)
		one := u.Path + "/" + made.str("metadata.name")
		said := h.refused(403, "Forbidden", "PATCH", one+"/status", `{"status":{}}`, "Content-Type", mergePatch)
		require.Contains(t, said, "the status of", one)
		require.Contains(t, said, "role controller", one)
		said = h.refused(403, "Forbidden", "PUT", one+"/status", string(made.body))
		require.Contains(t, said, "role controller", one)
		said = h.refused(403, "Forbidden", "PATCH", one, `{"metadata":{"owner":"Fleet/x"}}`, "Content-Type", mergePatch)
		require.Contains(t, said, "role controller", one)
		h.ok("PATCH", one+"/status", `{"status":null}`, "Content-Type", mergePatch, "As", "controller")
	}
	h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"},"spec":{"os":{"image":"os:1"}}}`)
	require.Equal(t, "Fleet/shops", h.ok("PATCH", apiRoot+"/nodes/n1", `{"metadata":{"owner":"Fleet/shops"}}`, "Content-Type", mergePatch, "Impersonate-User", "controller").str("metadata.owner"))
	h.ok("PATCH", apiRoot+"/nodes/n1", `{"spec":{"os":{"image":"os:2"}}}`, "Content-Type", mergePatch, "Impersonate-User", "controller")
	for _, at := range []string{apiRoot + "/nodes/n1", flightctlAPI + "/devices/n1", "/api/v1/devices/n1"} {
		for _, body := range []string{`{"spec":{"os":{"image":"os:3"}}}`, `{"metadata":{"owner":"Fleet/mine"}}`, `{"metadata":{"owner":null}}`} {
			require.Contains(t, h.refused(409, "Conflict", "PATCH", at, body, "Content-Type", mergePatch), "Fleet/shops manages the object", at)
		}
		h.ok("PATCH", at, `{"metadata":{"labels":{"a":"b"}}}`, "Content-Type", mergePatch)
	}
	stored, err := h.store.Get(context.Background(), store.Key{Kind: resource.KindNode, Name: "n1"})
	require.NoError(t, err)
	require.Contains(t, string(stored.Data), "os:2")
}

// The audit log has the names, addresses and topics of everybody.
func TestTheAuditLogIsForOperatorsOfAllNodes(t *testing.T) {
	h := newHubWithUsers(t)
	for _, as := range []string{"ann", "vic", "eve", "map", "n1"} {
		require.Equal(t, 403, h.do("GET", "/audit", "", "As", as).code, as)
	}
	require.Equal(t, 404, h.do("GET", "/audit", "", "As", "boss").code, "this one keeps none")
}

// What a Rule carries out on a node is for the node's operators, and a path that no Rule has is nobody's.
func TestRequestsByARuleAreForOperatorsOfTheNode(t *testing.T) {
	h := newHub(t, func(o *hubOptions) {
		o.Authenticate = authenticateByHeader
		o.Devices.Rule = func(r *http.Request) (string, func(http.ResponseWriter, *http.Request) error) {
			node, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
			if rest != "default/test" {
				return "", nil
			}
			return node, func(w http.ResponseWriter, _ *http.Request) error {
				writeText(w, http.StatusAccepted, "done")
				return nil
			}
		}
	})
	for _, c := range []struct {
		as, node string
		code     int
	}{
		{"boss", "n1", 202},
		{"boss", "n9", 202},
		{"ann", "n1", 202},
		{"ann", "plant-a", 202},
		{"ann", "n2", 403},
		{"vic", "n1", 403},
		{"eve", "n1", 403},
		{"img", "n1", 403},
		{"map", "n1", 403},
		{"n1", "n1", 403},
		{"nobody", "n1", 401},
	} {
		require.Equal(t, c.code, h.do("POST", "/"+c.node+"/default/test", "x", "As", c.as).code, "%s %s", c.as, c.node)
	}
	require.Equal(t, 404, h.do("POST", "/n1/default/other", "x", "As", "boss").code)
	for _, method := range []string{"POST", "GET"} {
		require.Equal(t, 403, h.do(method, "/n1/default/test", "", "As", "boss", "Origin", "https://elsewhere.example", "Sec-Fetch-Site", "cross-site").code, "another site's page")
	}
}
