// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/render"
	"github.com/edgebus/edgebus/cloud/sources"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/test/controltest"
	"github.com/edgebus/edgebus/topics/resource"
)

const waitTimeout = 30 * time.Second

// testHub is a store with the controller beside it.
type testHub struct {
	*controltest.Hub
	metrics *prometheus.Registry
	stop    func()

	mu    sync.Mutex
	blobs map[string]string
	calls map[string]int // reconciles by Node
}

func newTestHub(t *testing.T) *testHub {
	t.Helper()
	return &testHub{Hub: controltest.New(t, nil), blobs: map[string]string{}, calls: map[string]int{}, stop: func() {}}
}

func (r *testHub) Put(_ context.Context, from io.Reader, _ string) (string, int64, error) {
	data, err := io.ReadAll(from)
	r.mu.Lock()
	defer r.mu.Unlock()
	digest := resource.DigestOf(data)
	r.blobs[digest] = string(data)
	return digest, int64(len(data)), err
}

func (r *testHub) Has(digest string) (int64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text, ok := r.blobs[digest]
	return int64(len(text)), ok
}

// run starts the controller; it is stopped before, if it runs.
func (r *testHub) run() {
	r.Helper()
	r.stop()
	r.metrics = prometheus.NewRegistry()
	src := sources.NewResolver(sources.ResolverOptions{
		Client:  sources.New(sources.Options{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Timeout: 5 * time.Second}),
		Objects: r.Controller("sources"), Reader: r.Store, Writer: r.Store, Blobs: r, Interval: 50 * time.Millisecond,
	})
	c := render.NewController(render.Options{
		Objects: r.Controller("render"), Reader: r.Store, Writer: r.Store, Blobs: r, Sources: src, Metrics: r.metrics,
	})
	reconcile := c.Reconcile
	c.Reconcile = func(ctx context.Context, key store.Key) (time.Duration, error) {
		r.mu.Lock()
		r.calls[key.Name]++
		r.mu.Unlock()
		return reconcile(ctx, key)
	}
	r.stop = r.Run(r.metrics, append(src.Controllers(), c)...)
}

func (r *testHub) reconciled(node string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[node]
}

// node creates a Node, or changes its spec.
func (r *testHub) node(name string, spec resource.NodeSpec) {
	r.Helper()
	n := &resource.Node{Metadata: resource.Meta{Name: name}, Spec: spec}
	_, err := objects.Create(r.Context(), r.User, n)
	if err != nil {
		err = objects.Update(r.Context(), r.User, store.Key{Name: name}, func(n *resource.Node) error { n.Spec = spec; return nil })
	}
	require.NoError(r, err)
}

func (r *testHub) delete(kind, namespace, name string) {
	r.Helper()
	require.NoError(r, r.User.Delete(r.Context(), store.Key{Kind: kind, Namespace: namespace, Name: name}))
}

func (r *testHub) configMap(name, value string) {
	r.Helper()
	m := &resource.ConfigMap{Metadata: resource.Meta{Namespace: "default", Name: name}, Data: map[string]string{"key": value}}
	if _, err := objects.Create(r.Context(), r.User, m); err != nil {
		err = objects.Update(r.Context(), r.User, store.Key{Namespace: "default", Name: name}, func(o *resource.ConfigMap) error { o.Data = m.Data; return nil })
		require.NoError(r, err)
	}
}

func (r *testHub) status(node string) resource.NodeStatus {
	r.Helper()
	n, err := objects.Get[resource.Node](r.Context(), r.User, store.Key{Name: node})
	require.NoError(r, err)
	return n.Status
}

// rendered is the record of a Node; empty: there is none.
func (r *testHub) rendered(node string) (spec resource.RenderedSpec) {
	r.Helper()
	o, err := r.Store.Get(r.Context(), store.Key{Kind: resource.KindRenderedSpec, Name: node})
	if err == nil {
		require.NoError(r, json.Unmarshal(o.Data, &spec))
	}
	return spec
}

// await waits until the last spec of a Node has been looked at, and returns its conditions in short: SpecRendered=True …
func (r *testHub) await(node string) (conditions string) {
	r.Helper()
	require.Eventually(r, func() bool {
		n, err := objects.Get[resource.Node](r.Context(), r.User, store.Key{Name: node})
		if err != nil {
			return false
		}
		conditions = ""
		for _, c := range n.Status.Conditions {
			if c.ObservedGeneration == n.Metadata.Generation {
				conditions += c.Type + "=" + c.Status + ":" + c.Reason + " "
			}
		}
		return strings.Contains(conditions, resource.ConditionSpecRendered)
	}, waitTimeout, time.Millisecond)
	return conditions
}

func (r *testHub) awaitVersion(node, version string) {
	r.Helper()
	require.Eventually(r, func() bool {
		return r.rendered(node).RenderedVersion == version && r.status(node).SpecVersion == version
	},
		waitTimeout, time.Millisecond, "the version of %s is %s", node, r.rendered(node).RenderedVersion)
}

func motdSpec(text string) resource.NodeSpec {
	return resource.NodeSpec{Config: []resource.ConfigItem{fileList("motd", resource.InlineFile{Path: "/etc/motd", Content: text})}}
}

func configMapSpec(name, dir string) resource.NodeSpec {
	return resource.NodeSpec{Config: []resource.ConfigItem{
		{Name: "m", ConfigType: resource.ConfigMapRef, ConfigMapRef: &resource.ConfigMapMount{Name: name, MountPath: dir}},
	}}
}

// Point 10 of the fleet document: a change of the spec raises renderedVersion. It rises when, and only when, the outcome changes, over
// restarts as well.
func TestTheVersionRisesWithEachChangeOfTheOutcome(t *testing.T) {
	r := newTestHub(t)
	r.run()
	r.node("n1", motdSpec("one"))
	r.awaitVersion("n1", "1")
	r.node("n1", motdSpec("two"))
	r.awaitVersion("n1", "2")
	require.Equal(t, "two", r.rendered("n1").Files[0].Text)

	same := resource.NodeSpec{Config: []resource.ConfigItem{inlineConfig("other", ignitionStorage(`"files":[{"path":"/etc/motd","overwrite":true,"contents":{"source":"data:,two"}}]`))}}
	r.node("n1", same) // another spec, which comes to the same
	require.Contains(t, r.await("n1"), "SpecRendered=True:Rendered")
	r.awaitVersion("n1", "2")
	before, err := r.Store.Get(t.Context(), store.Key{Kind: resource.KindRenderedSpec, Name: "n1"})
	require.NoError(t, err)
	for range 3 {
		r.stop()
		done := r.reconciled("n1")
		r.run()
		require.Eventually(t, func() bool { return r.reconciled("n1") > done }, waitTimeout, time.Millisecond)
	}
	r.stop()
	after, err := r.Store.Get(t.Context(), store.Key{Kind: resource.KindRenderedSpec, Name: "n1"})
	require.NoError(t, err)
	require.Equal(t, before, after, "a restart writes nothing")
	r.run()
	r.node("n1", resource.NodeSpec{})
	r.awaitVersion("n1", "3")
	require.Empty(t, r.rendered("n1").Files, "an empty spec removes what there was")
}

// A Node that has never had a spec has no record and no conditions: most Nodes of a hub may have only Devices.
func TestNoSpecIsNothing(t *testing.T) {
	r := newTestHub(t)
	r.run()
	r.node("n1", resource.NodeSpec{})
	r.node("n2", motdSpec("x"))
	r.awaitVersion("n2", "1")
	require.Eventually(t, func() bool { return r.reconciled("n1") > 0 }, waitTimeout, time.Millisecond)
	r.stop()
	require.Empty(t, r.rendered("n1"))
	require.Empty(t, r.status("n1").Conditions)
}

// A Node that is deleted takes its record with it; the same name never gets a version again that it had.
func TestVersionsAreNeverRepeatedForAName(t *testing.T) {
	r := newTestHub(t)
	r.run()
	r.node("n1", motdSpec("1"))
	r.node("n1", motdSpec("2"))
	r.await("n1")
	for i := range 3 {
		r.node("n1", motdSpec(fmt.Sprint("more", i)))
		r.await("n1")
	}
	last := versionNumber(t, r.rendered("n1").RenderedVersion)
	r.delete(resource.KindNode, "", "n1")
	require.Eventually(t, func() bool { return r.rendered("n1").RenderedVersion == "" }, waitTimeout, time.Millisecond)
	r.node("n1", motdSpec("1"))
	r.await("n1")
	again := versionNumber(t, r.rendered("n1").RenderedVersion)
	require.Greater(t, again, last)

	// Made anew while nobody looks.
	r.stop()
	r.delete(resource.KindNode, "", "n1")
	r.node("n1", motdSpec("1"))
	r.run()
	require.Eventually(t, func() bool { return versionNumber(t, r.rendered("n1").RenderedVersion) > again }, waitTimeout, time.Millisecond)

	// Deleted while nobody looks.
	r.await("n1")
	r.stop()
	r.delete(resource.KindNode, "", "n1")
	r.run()
	require.Eventually(t, func() bool { return r.rendered("n1").RenderedVersion == "" }, waitTimeout, time.Millisecond)
}

// TestAReportNeverMovesTheVersion: an agent may say anything.
func TestAReportNeverMovesTheVersion(t *testing.T) {
	r := newTestHub(t)
	r.run()
	r.node("n1", motdSpec("0"))
	r.awaitVersion("n1", "1")
	for i, said := range []string{"500", "-1", "1e99", "18446744073709551615", "text"} {
		err := objects.UpdateStatus(t.Context(), r.User, store.Key{Name: "n1"}, func(n *resource.Node) error {
			n.Status.RenderedVersion, n.Status.Failed = said, &resource.FailedVersion{RenderedVersion: said, Reason: "HookFailed"}
			return nil
		})
		require.NoError(t, err)
		r.node("n1", motdSpec(fmt.Sprint(i+1)))
		r.awaitVersion("n1", fmt.Sprint(i+2))
	}
}

// TestAnotherAttemptIsAnotherVersion: whoever changes the annotation has the agent try again what has failed.
func TestAnotherAttemptIsAnotherVersion(t *testing.T) {
	r := newTestHub(t)
	r.run()
	r.node("n1", motdSpec("1"))
	r.awaitVersion("n1", "1")
	for i, value := range []string{"now", "again", "again", ""} {
		err := objects.Update(t.Context(), r.User, store.Key{Name: "n1"}, func(n *resource.Node) error {
			n.Metadata.Annotations = map[string]string{resource.RetryAnnotation: value, "other": fmt.Sprint(i)}
			return nil
		})
		require.NoError(t, err)
		r.awaitVersion("n1", []string{"2", "3", "3", "4"}[i])
		require.Equal(t, "1", r.rendered("n1").Files[0].Text)
	}
}

func versionNumber(t *testing.T, version string) (n int) {
	t.Helper()
	if version == "" {
		return 0
	}
	_, err := fmt.Sscan(version, &n)
	require.NoError(t, err)
	return n
}

// Points 7, 9 and 27 of the fleet document: references float: a change of what a Node refers to renders it anew, and what is
// missing is a condition with its name, while the node keeps what it was sent.
func TestReferencesOfATemplateFloat(t *testing.T) {
	r := newTestHub(t)
	r.run()
	r.node("n1", configMapSpec("motd", "/etc"))
	require.Equal(t, "SpecRendered=False:ReferenceNotFound ReferencesResolved=False:ReferenceNotFound ", r.await("n1"))
	require.Contains(t, r.status("n1").Conditions[1].Message, "ConfigMap default/motd")
	require.Empty(t, r.rendered("n1"))
	r.configMap("motd", "one")
	r.awaitVersion("n1", "1")
	require.Equal(t, "SpecRendered=True:Rendered ReferencesResolved=True:Resolved ", r.await("n1"))
	r.configMap("motd", strings.Repeat("two", 1000))
	r.awaitVersion("n1", "2")
	f := r.rendered("n1").Files[0]
	require.Equal(t, "/etc/key", f.Path)
	r.mu.Lock()
	require.Equal(t, strings.Repeat("two", 1000), r.blobs[f.Digest])
	r.mu.Unlock()
	r.delete(resource.KindConfigMap, "default", "motd")
	require.Eventually(t, func() bool { return strings.Contains(r.await("n1"), "ReferencesResolved=False") }, waitTimeout, time.Millisecond)
	require.Equal(t, "2", r.rendered("n1").RenderedVersion, "the node keeps what it was sent")

	_, err := objects.Create(t.Context(), r.User, &resource.Secret{Metadata: resource.Meta{Namespace: "default", Name: "wifi"}, Data: map[string][]byte{"psk": []byte("hunter2")}})
	require.NoError(t, err)
	r.node("n1", resource.NodeSpec{Config: []resource.ConfigItem{{Name: "s", ConfigType: resource.ConfigSecret, SecretRef: &resource.SecretMount{Name: "wifi", MountPath: "/etc"}}}})
	r.awaitVersion("n1", "3")
	one := r.rendered("n1").Files[0].Secret
	require.Equal(t, "default.wifi", one.Name)
	err = objects.Update(t.Context(), r.User, store.Key{Namespace: "default", Name: "wifi"}, func(s *resource.Secret) error {
		s.Data = map[string][]byte{"psk": []byte("correct horse")}
		return nil
	})
	require.NoError(t, err)
	r.awaitVersion("n1", "4")
	require.NotEqual(t, one.Version, r.rendered("n1").Files[0].Secret.Version)
	raw, err := r.Store.Get(t.Context(), store.Key{Kind: resource.KindRenderedSpec, Name: "n1"})
	require.NoError(t, err)
	require.NotContains(t, string(raw.Data)+string(raw.Status), "Y29ycmVjdCBob3JzZQ")
}

// What can't be rendered is a condition, and neither a status that others write nor an unrelated object renders a Node again.
func TestOnlyWhatConcernsANodeRendersIt(t *testing.T) {
	r := newTestHub(t)
	r.run()
	const n = 50
	for i := range n {
		r.node(fmt.Sprint("n", i), motdSpec("x"))
	}
	r.configMap("used", "1")
	r.node("user", configMapSpec("used", "/etc"))
	for i := range n {
		r.await(fmt.Sprint("n", i))
	}
	r.await("user")
	count := func() (calls int) {
		for i := range n {
			calls += r.reconciled(fmt.Sprint("n", i))
		}
		return calls
	}
	settled := 0
	settle := func() { // a change that concerns a Node comes after all that is under way
		settled++
		user := r.reconciled("user")
		r.configMap("used", fmt.Sprint("change ", settled))
		require.Eventually(t, func() bool { return r.reconciled("user") > user }, waitTimeout, time.Millisecond)
		r.awaitVersion("user", fmt.Sprint(1+settled))
	}
	settle()
	before := count()
	for i := range 20 {
		err := objects.UpdateStatus(t.Context(), r.User, store.Key{Name: fmt.Sprint("n", i)}, func(n *resource.Node) error { n.Status.Version = "v2"; return nil })
		require.NoError(t, err)
		r.configMap("unrelated", fmt.Sprint(i))
	}
	settle()
	require.Equal(t, before, count())
	require.Equal(t, "v2", r.status("n0").Version)

	r.node("n0", resource.NodeSpec{Config: []resource.ConfigItem{inlineConfig("bad", `{"ignition":{"version":"2.0.0"}}`)}})
	require.Equal(t, "SpecRendered=False:InvalidConfig ", r.await("n0"))
	require.Equal(t, "x", r.rendered("n0").Files[0].Text)
	require.Equal(t, "v2", r.status("n0").Version, "the rest of the status is others'")
	require.NoError(t, testutil.GatherAndCompare(r.metrics, strings.NewReader("# HELP edgebus_renders_total Nodes' specs that were rendered, by result: changed (a new renderedVersion), unchanged or problem.\n"+
		"# TYPE edgebus_renders_total counter\nedgebus_renders_total{result=\"changed\"} 53\nedgebus_renders_total{result=\"problem\"} 1\nedgebus_renders_total{result=\"unchanged\"} 0\n"), "edgebus_renders_total"))
}

// What a node runs for discovered devices is sent with its spec, also to a Node without one; an application of the spec has its name
// to itself.
func TestBrokersOfDiscoveredDevices(t *testing.T) {
	r := newTestHub(t)
	r.run()
	key := store.Key{Kind: render.ApplicationsKind, Name: "n1"}
	apps := func(names ...string) []byte {
		var list []resource.Application
		for _, name := range names {
			list = append(list, resource.Application{Name: name, AppType: resource.AppQuadlet, Files: []resource.InlineFile{{Path: name + ".container", Content: "broker"}}})
		}
		data, err := json.Marshal(list)
		require.NoError(t, err)
		return data
	}
	sent := func(want ...string) {
		t.Helper()
		require.Eventually(t, func() bool {
			o, err := r.Get(t.Context(), store.Key{Kind: resource.KindRenderedSpec, Name: "n1"})
			var s resource.RenderedSpec
			if err != nil || json.Unmarshal(o.Data, &s) != nil || len(s.Applications) != len(want) {
				return false
			}
			for i, a := range s.Applications {
				if a.Name+" "+a.Files[0].Text != want[i] || a.Optional != (a.Files[0].Text == "broker") {
					return false
				}
			}
			return true
		}, waitTimeout, time.Millisecond, "%v", want)
	}
	r.node("n1", resource.NodeSpec{})
	record, err := r.Store.Create(t.Context(), store.Object{Key: key, Data: apps("b1", "b2")})
	require.NoError(t, err)
	sent("b1 broker", "b2 broker")
	r.node("n1", resource.NodeSpec{Applications: []resource.Application{{Name: "b1", AppType: resource.AppQuadlet, Files: []resource.InlineFile{{Path: "b1.container", Content: "mine"}}}}})
	sent("b1 mine", "b2 broker")
	record, err = r.Update(t.Context(), store.Object{Key: key, Data: apps("b2", "b3")}, record.Rev)
	require.NoError(t, err)
	sent("b1 mine", "b2 broker", "b3 broker")

	// One that can't be rendered is left out by itself, and a record says why.
	problems := func(want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			o, err := r.Get(t.Context(), store.Key{Kind: render.ProblemsKind, Name: "n1"})
			return string(o.Data) == want && (err == nil) == (want != "")
		}, waitTimeout, time.Millisecond, "%s", want)
	}
	problems("")
	record, err = r.Update(t.Context(), store.Object{Key: key, Data: apps("b1", "b2", "../b3")}, record.Rev)
	require.NoError(t, err)
	sent("b1 mine", "b2 broker")
	problems(`{"../b3":"spec.applications[../b3]: the path \"../b3.container\" must be relative, without '..', '//' and a '/' at its end","b1":"the spec of the node has an application of this name"}`)
	_, err = r.Store.Delete(t.Context(), key, record.Rev)
	require.NoError(t, err)
	sent("b1 mine")
	problems("")
}
