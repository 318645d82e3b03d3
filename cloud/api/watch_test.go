// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A change is put into each form once, however many watch in that form.
func TestWatchersShareWhatTheyAreSent(t *testing.T) {
	var rows atomic.Int64
	h := newHub(t, func(o *hubOptions) {
		kinds := Kinds()
		require.Equal(t, "Device", kinds[0].Name)
		cells := kinds[0].Cells
		kinds[0].Cells = func(obj any) []any {
			rows.Add(1)
			return cells(obj)
		}
		o.Kinds = addDialects(kinds)
	})
	var watchers []*watchStream
	for range 50 {
		watchers = append(watchers, h.watch(namespaceRoot+"/devices?watch=true", "Accept", asTable))
	}
	h.ok("POST", namespaceRoot+"/devices", lampJSON("", ""))
	for i, kind := range []string{"ADDED", "MODIFIED", "MODIFIED"} {
		for _, w := range watchers {
			event := w.next()
			require.Equal(t, kind, event.str("type"))
			require.Equal(t, i == 0, event.at("object.columnDefinitions") != nil)
			require.Equal(t, "lamp", event.str("object.rows.0.cells.0"))
		}
		require.EqualValues(t, i+1, rows.Load())
		h.ok("PATCH", namespaceRoot+"/devices/lamp", `{"metadata":{"labels":{"i":"`+strconv.Itoa(i)+`"}}}`, "Content-Type", mergePatch)
	}
}

// Who watches in another form, or at another time, has something else to see.
func TestWatchersShareNothingElse(t *testing.T) {
	h := newHub(t)
	h.devices(1)
	rv := h.ok("GET", namespaceRoot+"/devices", "").str("metadata.resourceVersion")
	h.ok("PATCH", namespaceRoot+"/devices/d00", `{"metadata":{"labels":{"a":"b"}}}`, "Content-Type", mergePatch)
	for range 2 {
		for _, c := range []struct{ at, query, accept string }{
			{namespaceRoot, "", "application/json"},
			{namespaceRoot, "", asPartial},
			{namespaceRoot, "includeObject=Object", asTable},
			{namespaceRoot, "includeObject=None", asTable},
			{namespaceRoot, "", asTable},
			{kubeedgeBeta1, "", "application/json"},
			{kubeedgeBeta1, "", asPartial},
		} {
			now := h.ok("GET", c.at+"/devices/d00?"+c.query, "", "Accept", c.accept)
			for range 2 {
				event := h.watch(c.at+"/devices?watch=true&resourceVersion="+rv+"&"+c.query, "Accept", c.accept).next()
				require.Equal(t, "MODIFIED", event.str("type"))
				require.Equal(t, now.tree, event.at("object"), "%s", c.accept)
			}
		}
		h.pass(5 * time.Minute) // a Table says how old things are
	}
}

func TestAWatchThatWantsNothingOfWhatThereIs(t *testing.T) {
	h := newHub(t)
	h.devices(2)
	w := h.watch(namespaceRoot + "/devices?watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan")
	h.ok("POST", namespaceRoot+"/devices", lampNamed("later"))
	w.expect("ADDED later")
}

// Older clients watch at paths of their own.
func TestOldPathsOfWatches(t *testing.T) {
	h := newHub(t)
	h.devices(2)
	for path, want := range map[string][]string{
		apiRoot + "/watch/devices": {"d00", "d01"}, apiRoot + "/watch/namespaces/default/devices": {"d00", "d01"},
		apiRoot + "/watch/namespaces/default/devices/d01": {"d01"}, "/api/v1/watch/namespaces/default/configmaps": nil,
	} {
		got := h.ok("GET", path+"?timeoutSeconds=1", "")
		require.Equal(t, len(want), strings.Count(string(got.body), `{"type":"ADDED"`), path)
		for _, name := range want {
			require.Contains(t, string(got.body), `"name":"`+name+`"`)
		}
	}
	h.refused(404, "NotFound", "DELETE", apiRoot+"/watch/namespaces/default/devices", "")
}
