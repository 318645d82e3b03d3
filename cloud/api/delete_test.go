// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
)

func TestDeleteCollection(t *testing.T) {
	h := newHub(t)
	for _, name := range []string{"a", "b", "c"} {
		h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"`+name+`","labels":{"is":"`+name+`"}}}`)
	}
	h.ok("POST", apiRoot+"/nodes", `{"metadata":{"name":"d","finalizers":["x/y"]}}`)
	require.Len(t, h.ok("DELETE", apiRoot+"/nodes?dryRun=All", "").at("items"), 4)
	require.Len(t, h.ok("DELETE", apiRoot+"/nodes?labelSelector=is+in+(a,b)", "").at("items"), 2)
	require.Equal(t, []string{"c", "d"}, h.ok("GET", apiRoot+"/nodes", "").names())
	rest := h.ok("DELETE", apiRoot+"/nodes", "")
	require.Len(t, rest.at("items"), 2)
	left := h.ok("GET", apiRoot+"/nodes", "")
	require.Equal(t, []string{"d"}, left.names())
	require.NotEmpty(t, left.str("items.0.metadata.deletionTimestamp"), "its finalizer holds it")
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

func TestDelete(t *testing.T) {
	h := newHub(t)
	made := h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
	h.refused(409, "Conflict", "DELETE", namespaceRoot+"/devices/lamp", `{"preconditions":{"uid":"other"}}`)
	h.refused(409, "Conflict", "DELETE", namespaceRoot+"/devices/lamp", `{"preconditions":{"resourceVersion":"1"}}`)
	r := h.ok("DELETE", namespaceRoot+"/devices/lamp", `{"kind":"DeleteOptions","propagationPolicy":"Background","preconditions":{"uid":"`+made.str("metadata.uid")+`"}}`)
	require.Equal(t, "Success", r.str("status"))
	require.Equal(t, made.str("metadata.uid"), r.str("details.uid"))
	h.refused(404, "NotFound", "DELETE", namespaceRoot+"/devices/lamp", "")
}

func TestFinalizers(t *testing.T) {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devices", lampJSON(`,"finalizers":["x.io/a","x.io/b"]`, ""))
	r := h.ok("DELETE", namespaceRoot+"/devices/lamp", "")
	require.Equal(t, "2026-11-21T10:00:00Z", r.str("metadata.deletionTimestamp"))
	require.EqualValues(t, 2, r.at("metadata.generation"))
	h.pass(time.Hour)
	again := h.ok("DELETE", namespaceRoot+"/devices/lamp", "")
	require.Equal(t, r.tree, again.tree, "it was deleted already")
	h.refused(422, "Invalid", "PUT", namespaceRoot+"/devices/lamp", lampJSON(`,"finalizers":["x.io/c"]`, ""))
	h.ok("PUT", namespaceRoot+"/devices/lamp", lampJSON(`,"finalizers":["x.io/b"]`, ""))
	last := h.ok("PATCH", namespaceRoot+"/devices/lamp", `{"metadata":{"finalizers":null}}`, "Content-Type", mergePatch)
	require.NotEmpty(t, last.str("metadata.deletionTimestamp"))
	h.refused(404, "NotFound", "GET", namespaceRoot+"/devices/lamp", "")
}

func TestModelInUse(t *testing.T) {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	h.ok("POST", namespaceRoot+"/devices", lampNamed("a"))
	h.ok("POST", namespaceRoot+"/devices", lampNamed("b"))
	h.ok("POST", apiRoot+"/namespaces/other/devices", lampNamed("c")) // means another model
	row := func() string {
		return fmt.Sprint(h.ok("GET", namespaceRoot+"/devicemodels", "", "Accept", asTable).at("rows.0.cells"))
	}
	require.Contains(t, row(), " Active ")
	r := h.ok("DELETE", namespaceRoot+"/devicemodels/dimmable", "")
	require.Contains(t, r.header.Get("Warning"), "in use by a, b;")
	require.NotEmpty(t, r.str("metadata.deletionTimestamp"))
	require.Equal(t, "InUse", r.str("status.conditions.0.type"))
	require.Contains(t, r.str("status.conditions.0.message"), "a, b")
	require.Contains(t, row(), " Terminating ", "kubectl shows of itself nothing in lists")
	h.refused(422, "Invalid", "POST", namespaceRoot+"/devices", lampNamed("d"))

	h.ok("DELETE", namespaceRoot+"/devices/a", "")
	r = h.ok("GET", namespaceRoot+"/devicemodels/dimmable", "")
	require.Contains(t, r.str("status.conditions.0.message"), "waits for b")
	h.ok("PATCH", namespaceRoot+"/devices/b", `{"spec":{"deviceModelRef":{"name":"other"}}}`, "Content-Type", mergePatch)
	h.refused(404, "NotFound", "GET", namespaceRoot+"/devicemodels/dimmable", "")
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	r = h.ok("DELETE", namespaceRoot+"/devicemodels/dimmable", "")
	require.Equal(t, "Success", r.str("status"), "nobody holds it")
}

// The hub stopped between the last device's deletion and its model's.
func TestModelReleasedAtStart(t *testing.T) {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devicemodels", modelJSON)
	h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
	h.ok("DELETE", namespaceRoot+"/devicemodels/dimmable", "")
	_, err := h.store.Delete(context.Background(), store.Key{Kind: "Device", Namespace: "default", Name: "lamp"}, 0)
	require.NoError(t, err)
	h.ok("GET", namespaceRoot+"/devicemodels/dimmable", "")
	newAPI(hubOptions{Writer: h.store, Options: Options{Reader: h.store, Watcher: h.store, Log: zerolog.Nop()}})
	h.refused(404, "NotFound", "GET", namespaceRoot+"/devicemodels/dimmable", "")
}

// An object in the body of a DELETE is no options: its client may have meant a write.
func TestABodyThatIsNoDeleteOptionsDeletesNothing(t *testing.T) {
	h := newHub(t)
	h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
	require.Contains(t, h.refused(400, "BadRequest", "DELETE", namespaceRoot+"/devices/lamp", lampJSON("", "")), `not "Device"`)
	require.Contains(t, h.refused(400, "BadRequest", "DELETE", namespaceRoot+"/devices", `{"kind":"DeviceList","items":[]}`), `not "DeviceList"`)
	h.ok("GET", namespaceRoot+"/devices/lamp", "")
	h.ok("DELETE", namespaceRoot+"/devices/lamp", `{"kind":"DeleteOptions","apiVersion":"meta.k8s.io/v1"}`)
}
