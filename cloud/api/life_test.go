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

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

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
	data, err := json.Marshal(dict{"namespace": "gone", "nonce": "x"})
	require.NoError(t, err)
	_, err = h.store.Create(context.Background(), store.Object{Key: store.Key{Kind: "DeviceName", Name: "lamp"}, Data: data})
	require.NoError(t, err)
	h.pass(-24 * time.Hour) // whatever the clock says
	h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
	h.refused(409, "AlreadyExists", "POST", apiRoot+"/namespaces/gone/devices", lampJSON("", ""))
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
	New(Options{Reader: h.store, Writer: h.store, Watcher: h.store, Log: zerolog.Nop()})
	h.refused(404, "NotFound", "GET", namespaceRoot+"/devicemodels/dimmable", "")
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
	h := newHub(t, func(o *Options) { o.Writer = failingWriter{o.Writer, store.UnknownOutcome(errors.New("disk full"))} })
	msg := h.refused(503, "ServiceUnavailable", "POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"}}`)
	require.Contains(t, msg, "unknown")
	h = newHub(t, func(o *Options) { o.Writer = failingWriter{o.Writer, errors.New("secret path /x")} })
	msg = h.refused(500, "InternalError", "POST", apiRoot+"/nodes", `{"metadata":{"name":"n1"}}`)
	require.NotContains(t, msg, "secret")
}

func TestSite(t *testing.T) {
	sick := errors.New("not in step")
	h := newHub(t, func(o *Options) {
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
