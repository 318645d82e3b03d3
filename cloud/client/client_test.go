// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/api"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/topics/resource"
)

// newTestHub is the hub's API over a real store. in may stand before it.
func newTestHub(t *testing.T, in func(http.Handler) http.Handler) (*Client, *httptest.Server) {
	st, err := disk.Open(disk.Options{Path: filepath.Join(t.TempDir(), "log"), Tombstones: 16})
	require.NoError(t, err)
	handler := api.New(api.Options{
		Objects: objects.New(objects.Options{Reader: st, Writer: st, Log: zerolog.Nop(), Managers: api.Managers()}),
		Reader:  st, Watcher: st, Log: zerolog.Nop(), WatchOptions: api.WatchOptions{Bookmarks: 20 * time.Millisecond},
	})
	if in != nil {
		handler = in(handler)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		require.NoError(t, st.Close())
	})
	c, err := New(Options{Server: server.URL + "/"})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c, server
}

func findKind(t *testing.T, c *Client, name string) Kind {
	k, err := c.Kind(t.Context(), name)
	require.NoError(t, err)
	return k
}

func modelManifest(name string) []byte {
	return []byte(`{"apiVersion":"edgebus.io/v1alpha1","kind":"DeviceModel","metadata":{"name":"` + name + `"},"spec":{"properties":[{"name":"power"}]}}`)
}

func TestKindsHaveManyNames(t *testing.T) {
	c, _ := newTestHub(t, nil)
	for _, name := range []string{"devicemodel", "devicemodels", "dm", "DeviceModel", "devicemodels.edgebus.io", "devicemodels.v1alpha1.edgebus.io"} {
		require.Equal(t, "DeviceModel", findKind(t, c, name).Name, name)
	}
	_, err := c.Kind(t.Context(), "lamp")
	require.ErrorIs(t, err, resource.NotFound)
	require.ErrorContains(t, err, "it knows devices, devicemodels")
	_, err = c.KindOf(t.Context(), resource.TypeMeta{APIVersion: "v2", Kind: "Device"})
	require.ErrorContains(t, err, "no kind Device of v2")
	require.False(t, findKind(t, c, "nodes").Namespaced)
}

func TestListsComeInPages(t *testing.T) {
	c, _ := newTestHub(t, nil)
	k := findKind(t, c, "dm")
	for i := range 7 {
		_, err := c.Create(t.Context(), k, "default", modelManifest(fmt.Sprint("m", i)), WriteOptions{Strict: true})
		require.NoError(t, err)
	}
	var sizes []int
	rev, err := c.List(t.Context(), k, ListOptions{Namespace: "default", Page: 3}, func(page []Object) error {
		sizes = append(sizes, len(page))
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, rev)
	require.Equal(t, []int{3, 3, 1}, sizes)
	rows := 0
	_, err = c.Tables(t.Context(), k, ListOptions{Fields: "metadata.name=m3"}, func(page Table) error {
		require.Equal(t, "m3", page.Rows[0].Object.Metadata.Name)
		require.Equal(t, "Name", page.Columns[0].Name)
		rows += len(page.Rows)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 1, rows)
	_, err = c.List(t.Context(), k, ListOptions{Labels: "=="}, func([]Object) error { return nil })
	require.ErrorIs(t, err, resource.Invalid)
}

func TestRefusalsHaveAKind(t *testing.T) {
	c, _ := newTestHub(t, nil)
	k := findKind(t, c, "dm")
	_, err := c.Object(t.Context(), k, "default", "none")
	require.ErrorIs(t, err, resource.NotFound)
	made, err := c.Create(t.Context(), k, "default", modelManifest("m"), WriteOptions{})
	require.NoError(t, err)
	_, err = c.Create(t.Context(), k, "default", modelManifest("m"), WriteOptions{})
	require.ErrorIs(t, err, resource.AlreadyExists)
	_, err = c.Patch(t.Context(), k, "default", "m", mergePatch(t, `{"metadata":{"resourceVersion":"1000"}}`), WriteOptions{})
	require.ErrorIs(t, err, resource.Conflict)
	_, err = c.Patch(t.Context(), k, "default", "m", mergePatch(t, `{"spec":{"properties":[{"name":"a/b"}]}}`), WriteOptions{})
	var re *resource.Error
	require.ErrorAs(t, err, &re)
	require.Equal(t, resource.Invalid, re.Kind)
	require.NotEmpty(t, re.Causes)
	_, err = c.Patch(t.Context(), k, "default", "m", mergePatch(t, `{"metadata":{"labels":{"a":"b"}}}`), WriteOptions{DryRun: true})
	require.NoError(t, err)
	now, err := c.Object(t.Context(), k, "default", "m")
	require.NoError(t, err)
	require.Equal(t, made.Metadata.ResourceVersion, now.Metadata.ResourceVersion)
	left, err := c.Delete(t.Context(), k, "default", "m", WriteOptions{})
	require.NoError(t, err)
	require.Nil(t, left)
}

func TestNoAnswerSaysWhatToDo(t *testing.T) {
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() {
		for conn, err := silent.Accept(); err == nil; conn, err = silent.Accept() {
			conn.Close()
		}
	}()
	defer silent.Close()
	for server, want := range map[string]string{
		"http://127.0.0.1:1":               "Is cloudhub running",
		secure.URL:                         "--ca",
		"http" + secure.URL[len("https"):]: "begins with https://",
		"https" + other.URL[len("http"):]:  "begin with http://",
		other.URL:                          "something else",
		"http://" + silent.Addr().String(): "port of MQTT",
		"http://no-such-host.invalid":      "spelt right",
	} {
		c, err := New(Options{Server: server, Timeout: 30 * time.Second})
		require.NoError(t, err)
		_, err = c.Kinds(t.Context())
		require.ErrorIs(t, err, resource.Unavailable, server)
		require.ErrorContains(t, err, want, server)
		require.ErrorAs(t, err, new(*Unreachable))
	}
	for _, server := range []string{"", "hub", "mqtt://127.0.0.1:1883", "http://"} {
		_, err := New(Options{Server: server})
		require.ErrorContains(t, err, "is no address of a hub", server)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c, err := New(Options{Server: other.URL})
	require.NoError(t, err)
	_, err = c.Kinds(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestAWatchGoesOnWhereItBrokeOff(t *testing.T) {
	var refuse atomic.Bool
	c, server := newTestHub(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if refuse.Load() && r.URL.Query().Get("watch") != "" {
				http.Error(w, "not now", http.StatusServiceUnavailable)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	warned := make(chan string, 16)
	c.Warn = func(text string) { warned <- text }
	k := findKind(t, c, "dm")
	_, err := c.Create(t.Context(), k, "default", modelManifest("before"), WriteOptions{})
	require.NoError(t, err)
	rev, err := c.List(t.Context(), k, ListOptions{}, func([]Object) error { return nil })
	require.NoError(t, err)

	seen := make(chan string, 16)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func(c *Client) {
		ended <- c.Watch(ctx, k, ListOptions{Namespace: "default"}, rev, func(e Event) error {
			seen <- e.Type + " " + e.Object.Metadata.Name
			return nil
		})
	}(c)
	make := func(name string) {
		_, err := c.Create(t.Context(), k, "default", modelManifest(name), WriteOptions{})
		require.NoError(t, err)
	}
	make("a")
	require.Equal(t, "ADDED a", <-seen)
	refuse.Store(true)
	server.CloseClientConnections()
	c, err = New(Options{Server: server.URL}) // the watch keeps the old one
	require.NoError(t, err)
	defer c.Close()
	require.Contains(t, <-warned, "continues when the hub is back")
	make("b")
	_, err = c.Delete(t.Context(), k, "default", "a", WriteOptions{})
	require.NoError(t, err)
	refuse.Store(false)
	require.Equal(t, "ADDED b", <-seen)
	require.Equal(t, "DELETED a", <-seen)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)

	for i := range 40 { // more than the store remembers
		make(fmt.Sprint("x", i))
		_, err := c.Delete(t.Context(), k, "default", fmt.Sprint("x", i), WriteOptions{})
		require.NoError(t, err)
	}
	err = c.Watch(t.Context(), k, ListOptions{}, rev, func(Event) error { return nil })
	require.ErrorIs(t, err, resource.Gone)
	own := errors.New("enough")
	err = c.WatchTables(t.Context(), k, ListOptions{}, "", func(e Event) error {
		require.Len(t, e.Table.Rows, 1)
		return own
	})
	require.ErrorIs(t, err, own)
}

func TestApply(t *testing.T) {
	c, _ := newTestHub(t, nil)
	k := findKind(t, c, "devices")
	apply := func(how WriteOptions, text string) (Outcome, error) {
		var o Object
		require.NoError(t, json.Unmarshal([]byte(`{"apiVersion":"edgebus.io/v1alpha1","kind":"Device",`+text+`}`), &o))
		change, err := c.Apply(t.Context(), k, "default", o, how)
		return change.Outcome, err
	}
	is := func(want Outcome, text string) {
		t.Helper()
		got, err := apply(WriteOptions{Strict: true}, text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	device := func() (d resource.Device) {
		o, err := c.Object(t.Context(), k, "default", "lamp")
		require.NoError(t, err)
		require.NoError(t, o.Into(&d))
		return d
	}
	const both = `"metadata":{"name":"lamp","uid":"other","labels":{"a":"1","b":"2"}},"status":{"state":"online"},` +
		`"spec":{"deviceModelRef":{"name":"m"},"protocol":{"type":"virtual"},"nodeName":"n1","desired":{"brightness":40}}`
	got, err := apply(WriteOptions{DryRun: true}, both)
	require.NoError(t, err)
	require.Equal(t, Created, got)
	is(Created, both)
	is(Unchanged, both)

	// Somebody else wants something; it is none of the manifest's.
	_, err = c.Patch(t.Context(), k, "default", "lamp", mergePatch(t, `{"spec":{"desired":{"power":"ON"}},"metadata":{"labels":{"c":"3"}}}`), WriteOptions{})
	require.NoError(t, err)
	is(Unchanged, both)
	is(Configured, `"metadata":{"name":"lamp","labels":{"a":"1"}},"spec":{"deviceModelRef":{"name":"m"},"protocol":{"type":"virtual"},"desired":{"brightness":41}}`)
	d := device()
	require.Equal(t, map[string]string{"a": "1", "c": "3"}, d.Metadata.Labels, "b is gone, c was never ours")
	require.Equal(t, map[string]resource.Value{"brightness": "41", "power": "ON"}, d.Spec.Desired)
	require.Empty(t, d.Spec.NodeName, "is no longer said")

	_, err = apply(WriteOptions{Strict: true}, `"metadata":{"name":"lamp"},"spec":{"nodName":"n1"}`)
	require.ErrorContains(t, err, "nodName")
	_, err = apply(WriteOptions{}, `"metadata":{"name":"lamp","resourceVersion":"1","labels":{"x":"y"}}`)
	require.ErrorIs(t, err, resource.Conflict, "somebody was faster")
	_, err = c.Create(t.Context(), k, "other", []byte(`{"metadata":{"name":"taken"}, "spec":{"deviceModelRef":{"name":"m"},"protocol":{"type":"virtual"}}}`), WriteOptions{})
	require.NoError(t, err)
	_, err = apply(WriteOptions{}, `"metadata":{"name":"taken","resourceVersion":"1"}, "spec":{"deviceModelRef":{"name":"m"},"protocol":{"type":"virtual"}}`)
	require.ErrorIs(t, err, resource.AlreadyExists, "in another namespace")
}

// TestApplyWaitsForTheEndOfAnObject applies an object that is being deleted: it comes anew, and doesn't go a moment later.
func TestApplyWaitsForTheEndOfAnObject(t *testing.T) {
	c, _ := newTestHub(t, nil)
	k := findKind(t, c, "dm")
	manifest := func() (o Object) {
		require.NoError(t, json.Unmarshal([]byte(`{"apiVersion":"edgebus.io/v1alpha1","kind":"DeviceModel","metadata":{"name":"m","finalizers":["a.b/c"]},"spec":{"properties":[{"name":"power"}]}}`), &o))
		return o
	}
	got, err := c.Apply(t.Context(), k, "default", manifest(), WriteOptions{})
	require.NoError(t, err)
	require.Equal(t, Created, got.Outcome)
	left, err := c.Delete(t.Context(), k, "default", "m", WriteOptions{})
	require.NoError(t, err)
	_, err = c.Apply(t.Context(), k, "default", manifest(), WriteOptions{DryRun: true})
	require.ErrorIs(t, err, resource.Conflict)
	require.ErrorContains(t, err, "is being deleted")
	type result struct {
		Outcome
		error
	}
	applied := make(chan result)
	go func() {
		got, err := c.Apply(t.Context(), k, "default", manifest(), WriteOptions{})
		applied <- result{got.Outcome, err}
	}()
	_, err = c.Patch(t.Context(), k, "default", "m", map[string]any{"metadata": map[string]any{"finalizers": nil}}, WriteOptions{})
	require.NoError(t, err)
	r := <-applied
	require.NoError(t, r.error)
	require.Equal(t, Created, r.Outcome)
	now, err := c.Object(t.Context(), k, "default", "m")
	require.NoError(t, err)
	require.Nil(t, now.Metadata.DeletionTimestamp)
	require.NotEqual(t, left.Metadata.UID, now.Metadata.UID)
}

func TestDocuments(t *testing.T) {
	const lamp = "apiVersion: edgebus.io/v1alpha1\nkind: Device\nmetadata: {name: lamp}\n"
	for name, c := range map[string]struct {
		text    string
		objects []int
		err     string
	}{
		"one":            {lamp, []int{1}, ""},
		"several":        {"# nothing\n---\n" + lamp + "---  # more\n" + lamp + "---\n", []int{1, 1}, ""},
		"windows":        {lamp + "---\r\n" + lamp, []int{1, 1}, ""},
		"text with ---":  {lamp + "data: |\n  ---\n  x\n", []int{1}, ""},
		"list":           {"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Device, metadata: {name: a}}\n- {apiVersion: v1, kind: Device, metadata: {name: b}}\n", []int{2}, ""},
		"JSON":           {`{"apiVersion":"v1","kind":"Device","metadata":{"name":"a"}} {"apiVersion":"v1","kind":"Device","metadata":{"name":"b"}}`, []int{1, 1}, ""},
		"flow":           {`{apiVersion: v1, kind: Device, metadata: {name: a}}`, []int{1}, ""},
		"no YAML":        {"a: [", []int{0}, "is not YAML"},
		"no object":      {"hello", []int{0}, "is no object"},
		"no kind":        {"apiVersion: v1\nmetadata: {name: a}", []int{0}, "kind: is missing"},
		"no name":        {"apiVersion: v1\nkind: A", []int{0}, "metadata.name: is missing"},
		"odd metadata":   {"apiVersion: v1\nkind: A\nmetadata: 3", []int{0}, "metadata: can't be a number"},
		"item no object": {"kind: List\nitems: [3]", []int{0}, "items[0]: is no object"},
		"one bad item":   {"kind: List\nitems: [{apiVersion: v1, kind: A, metadata: {name: a}}, {kind: A}, {apiVersion: v1, kind: A, metadata: {name: b}}]", []int{2}, "items[1]: apiVersion: is missing"},
		"list of a kind": {"apiVersion: v1\nkind: ConfigMapList\nitems: [{metadata: {name: a}}, {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}]", []int{2}, ""},
		"generated name": {"apiVersion: v1\nkind: A\nmetadata: {generateName: a-}", []int{1}, ""},
		"null":           {"null\n---\n" + lamp + "---\n~\n", []int{1}, ""},
		"null in JSON":   {`{"apiVersion":"v1","kind":"A","metadata":{"name":"a"}} null`, []int{1}, ""},
		"empty":          {"# nothing\n", nil, ""},
	} {
		var objects []int
		for i, d := range Documents([]byte(c.text)) {
			require.Equal(t, i+1, d.Number, name)
			objects = append(objects, len(d.Objects))
			if c.err != "" {
				require.ErrorContains(t, d.Err, c.err, name)
				require.ErrorIs(t, d.Err, resource.Invalid, name)
			} else {
				require.NoError(t, d.Err, name)
			}
		}
		require.Equal(t, c.objects, objects, name)
	}
}

// The items of a list of one kind are of that kind, as they are in an answer of the API, whose items don't say so.
func TestItemsOfAListOfAKind(t *testing.T) {
	d := Documents([]byte("apiVersion: edgebus.io/v1alpha1\nkind: DeviceList\nitems: [{metadata: {name: a}, spec: {nodeName: n1}}]"))[0]
	require.NoError(t, d.Err)
	require.Equal(t, resource.TypeMeta{APIVersion: "edgebus.io/v1alpha1", Kind: "Device"}, d.Objects[0].TypeMeta)
	tree, err := d.Objects[0].Tree()
	require.NoError(t, err)
	require.Equal(t, map[string]any{"apiVersion": "edgebus.io/v1alpha1", "kind": "Device", "metadata": map[string]any{"name": "a"}, "spec": map[string]any{"nodeName": "n1"}}, tree)
}

func TestDocumentsTellOfKeysThatAreThereTwice(t *testing.T) {
	const lamp = "apiVersion: edgebus.io/v1alpha1\nkind: Device\nmetadata: {name: lamp}\n"
	for text, warning := range map[string]string{
		lamp + "spec:\n  a: 1\n  a: 2\n  b: 1\n  b: 2\n": `line 6: key "a" already set in map, line 8: key "b" already set in map`,
		lamp + "spec:\n  a: 1\n  b: {a: 2}\n":            "",
		lamp + "x: &x {a: 1}\nspec:\n  <<: *x\n  a: 2\n": "",
	} {
		all := Documents([]byte(text))
		require.Len(t, all, 1)
		require.NoError(t, all[0].Err)
		require.Equal(t, warning, all[0].Warning)
	}
}

func FuzzDocuments(f *testing.F) {
	f.Add([]byte("kind: List\nitems: [{}]\n---\n{}"))
	f.Add([]byte(`{"kind":"List","items":[{"metadata":{"annotations":3}}]}`))
	f.Fuzz(func(_ *testing.T, text []byte) {
		for _, d := range Documents(text) {
			for _, o := range d.Objects {
				_, _ = o.annotated("default") // must not panic
			}
		}
	})
}

// TestAServerThatHangsIsSaidToHang: it takes connections, as one that is stopped by a debugger does.
func TestAServerThatHangsIsSaidToHang(t *testing.T) {
	hung, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer hung.Close()
	c, err := New(Options{Server: "http://" + hung.Addr().String(), Timeout: time.Second})
	require.NoError(t, err)
	_, err = c.Kinds(t.Context())
	require.ErrorIs(t, err, resource.Unavailable)
	require.ErrorContains(t, err, "no answer from the hub at "+c.Server+": it takes the connection, and has not answered GET /api")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	err = c.Watch(ctx, Kind{Version: "v1", Plural: "secrets"}, ListOptions{}, "1", nil)
	require.ErrorIs(t, err, resource.Unavailable, "nothing was watched")
	require.ErrorContains(t, err, "has not answered GET /api/v1/secrets")
	c, err = New(Options{Server: "https://" + hung.Addr().String(), Timeout: time.Second})
	require.NoError(t, err)
	_, err = c.Kinds(t.Context())
	require.ErrorContains(t, err, "it takes the connection, and has not answered GET /api", "nor greeted by TLS")
}

// TestTimeThatIsUpSaysNothingOfTheHub: of one that answers, nobody is sent to look for a firewall.
func TestTimeThatIsUpSaysNothingOfTheHub(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/hangs" {
			_, _ = w.Write([]byte("{}"))
			_ = http.NewResponseController(w).Flush()
		}
		if r.URL.Path != "/answers" {
			<-r.Context().Done()
		}
	}))
	defer server.Close()
	defer server.CloseClientConnections()
	c, err := New(Options{Server: server.URL, Timeout: math.MaxInt64})
	require.NoError(t, err)
	require.NoError(t, c.Get(t.Context(), "/answers", nil), "as long as can be said is no less than nothing")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var asked sync.WaitGroup
	for _, path := range []string{"/hangs", "/begins"} {
		asked.Go(func() {
			err := c.Get(ctx, path, nil)
			assert.EqualError(t, err, "no answer from the hub at "+server.URL+": time was up (--timeout)", path)
			assert.ErrorIs(t, err, resource.Unavailable)
		})
	}
	asked.Wait()
	require.ErrorContains(t, c.Get(ctx, "/answers", nil), "time was up (--timeout)")
}

// mergePatch is a merge patch.
func mergePatch(t *testing.T, text string) (patch map[string]any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), &patch))
	return patch
}
