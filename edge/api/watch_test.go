// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

// watchSince is the path of a watch that goes on from now.
func watchSince(t *testing.T, url, query string) string {
	t.Helper()
	var l listAnswer[resource.Device]
	require.Equal(t, 200, getJSON(t, url+canonicalRoot+"/devices", &l))
	return url + canonicalRoot + "/devices?watch=true&resourceVersion=" + l.Metadata.ResourceVersion + query
}

// Who watches with a selector, is away and goes on where it was is told of each Device that it had and has no more.
func TestAWatchWithASelectorThatGoesOnToldOfWhatLeft(t *testing.T) {
	f, url := newTestServer(t)
	for _, name := range []string{"deleted", "again", "left", "stays", "other"} {
		f.set(name, "ON")
		f.label(name, "hall")
	}
	f.label("other", "cellar")
	at := watchSince(t, url, "&labelSelector=room%3Dhall")
	f.remove("deleted")
	f.remove("again")
	f.set("again", "OFF")
	f.label("again", "hall")
	f.label("left", "cellar")
	f.label("stays", "hall")
	f.set("new", "ON")
	f.label("new", "hall")

	next := followWatch(t, at)
	for _, want := range []string{"DELETED deleted", "DELETED again", "ADDED again", "DELETED left", "MODIFIED stays", "ADDED new"} {
		kind, d := next()
		require.Equal(t, want, kind+" "+d.Metadata.Name)
	}
	f.label("other", "hall")
	kind, d := next()
	require.Equal(t, "ADDED other", kind+" "+d.Metadata.Name)
}

// Who may read some Devices is not told the names of others that were removed: it has to list again.
func TestAReaderOfSomeDevicesListsAgainAfterRemovals(t *testing.T) {
	f := newFakeTwins()
	s := httptest.NewServer(New(Options{
		Twins: f, Models: f.models, Node: f.node, Ready: func() error { return nil }, Metrics: http.NotFoundHandler(),
		Authenticate: func(*http.Request) (broker.Identity, error) { return broker.Identity{}, nil },
		MayRead:      func(broker.Identity) func(string) bool { return func(name string) bool { return name == "mine" } },
	}))
	t.Cleanup(s.Close)
	f.set("mine", "ON")
	f.set("secret", "ON")
	at := watchSince(t, s.URL, "")
	f.set("secret", "OFF")
	f.set("mine", "OFF")
	kind, d := followWatch(t, at)()
	require.Equal(t, "MODIFIED mine", kind+" "+d.Metadata.Name)
	f.remove("secret")
	require.Equal(t, 410, expiredIn(t, at))
}

// A watch ends when its client said.
func TestAWatchEndsWhenItsTimeIsUp(t *testing.T) {
	f, url := newTestServer(t)
	f.set("lamp", "ON")
	for _, kind := range []string{"devices", "devicemodels", "nodes"} {
		client := http.Client{Timeout: 20 * time.Second}
		resp, err := client.Get(url + canonicalRoot + "/" + kind + "?watch=true&timeoutSeconds=1")
		require.NoError(t, err)
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			require.Contains(t, lines.Text(), `"ADDED"`)
		}
		require.NoError(t, lines.Err(), "it ends as a whole answer does")
		require.NoError(t, resp.Body.Close())
	}
	require.Equal(t, 422, getJSON(t, url+canonicalRoot+"/devices?watch=true&timeoutSeconds=soon", nil))
}

// Queries have booleans as Kubernetes reads them: Python's clients write True.
func TestAQuerysBooleansAreThoseOfKubernetes(t *testing.T) {
	f, url := newTestServer(t)
	f.set("lamp", "ON")
	for i, value := range []string{"=true", "=1", "=True", "=TRUE", "=yes", "=", "", "=false", "=False", "=0"} {
		resp, err := http.Get(url + canonicalRoot + "/devices?timeoutSeconds=1&watch" + value)
		require.NoError(t, err)
		line, err := bufio.NewReader(resp.Body).ReadString('\n')
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, i < 7, strings.HasPrefix(line, `{"type":"ADDED"`), "watch%s: %s", value, strconv.Quote(line))
	}
}

// Older clients watch at paths of their own, and ask discovery with a final slash.
func TestOldPathsOfClients(t *testing.T) {
	f, url := newTestServer(t)
	f.set("lamp", "ON")
	f.set("fan", "ON")
	for path, want := range map[string]int{"/watch/devices": 2, "/watch/namespaces/default/devices": 2, "/watch/namespaces/default/devices/fan": 1, "/watch/nodes": 1} {
		resp, err := http.Get(url + canonicalRoot + path + "?timeoutSeconds=1")
		require.NoError(t, err)
		n := 0
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); n++ {
			require.Contains(t, lines.Text(), `"ADDED"`)
		}
		require.NoError(t, resp.Body.Close())
		require.Equal(t, want, n, path)
	}
	for _, path := range []string{"/version/", "/apis/", "/api/v1/", canonicalRoot + "/"} {
		require.Equal(t, 200, getJSON(t, url+path, nil), path)
	}
	for _, path := range []string{"/watch/", "/watch/%2F"} {
		require.Equal(t, 404, getJSON(t, url+canonicalRoot+path, nil), path)
	}
}
