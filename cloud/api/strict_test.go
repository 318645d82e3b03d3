package api

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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

func TestPropagation(t *testing.T) {
	h := newHub(t)
	for i, body := range []string{`{"propagationPolicy":"Foreground"}`, `{"propagationPolicy":"Orphan"}`, `{"orphanDependents":true}`, ``} {
		name := fmt.Sprint("d", i)
		h.ok("POST", namespaceRoot+"/devices", lampNamed(name))
		h.ok("DELETE", namespaceRoot+"/devices/"+name, body)
	}
	h.ok("POST", namespaceRoot+"/devices", lampNamed("d"))
	for _, at := range []string{"/devices/d", "/devices"} {
		h.refused(422, "Invalid", "DELETE", namespaceRoot+at, `{"propagationPolicy":"Sideways"}`)
		h.refused(422, "Invalid", "DELETE", namespaceRoot+at+"?propagationPolicy=Sideways", "")
		h.refused(422, "Invalid", "DELETE", namespaceRoot+at, `{"propagationPolicy":"Orphan","orphanDependents":true}`)
	}
	h.ok("DELETE", namespaceRoot+"/devices/d?propagationPolicy=Background", "")
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

func TestAWatchThatWantsNothingOfWhatThereIs(t *testing.T) {
	h := newHub(t)
	h.devices(2)
	w := h.watch(namespaceRoot + "/devices?watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan")
	h.ok("POST", namespaceRoot+"/devices", lampNamed("later"))
	w.expect("ADDED later")
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
