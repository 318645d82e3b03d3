package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/fleet"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/sources"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/bolt"
	"github.com/edgebus/edgebus/topics/resource"
)

const waitTimeout = 30 * time.Second

// testHub is a store with the controllers of fleets, and nodes that say at once that they have what their specs want.
type testHub struct {
	*testing.T
	*bolt.Store
	*objects.Registry
	user   *objects.Controller
	events sync.Map
	fail   sync.Map     // nodes that fail whatever they get, or a text
	agents sync.Map     // what agents of nodes say of the update that they have not made: a condition
	ahead  atomic.Int64 // of the clock
	poll   time.Duration
	broken atomic.Bool // Fleets can't be written
	stop   func()
}

// failingWriter is a store in which Fleets can't be written at times.
type failingWriter struct {
	*bolt.Store
	broken *atomic.Bool
}

func (f failingWriter) Update(ctx context.Context, o store.Object, rev uint64) (store.Object, error) {
	if o.Kind == resource.KindFleet && f.broken.Load() {
		return o, errors.New("it can't be written")
	}
	return f.Store.Update(ctx, o, rev)
}

type plainSealer struct{}

func (plainSealer) Seal(plain []byte, _ string) ([]byte, error)  { return plain, nil }
func (plainSealer) Open(sealed []byte, _ string) ([]byte, error) { return sealed, nil }

func newTestHub(t *testing.T) *testHub {
	t.Parallel()
	st, err := bolt.Open(bolt.Options{Path: filepath.Join(t.TempDir(), "hub.db")})
	require.NoError(t, err)
	h := &testHub{T: t, Store: st, poll: 100 * time.Millisecond}
	h.Registry = objects.New(objects.Options{Reader: st, Writer: failingWriter{st, &h.broken}, Log: zerolog.Nop(), Seal: plainSealer{}})
	h.user = h.Controller("test")
	h.start()
	t.Cleanup(func() { h.stop(); require.NoError(t, st.Close()) })
	return h
}

// record counts events by their reasons, and by their messages.
func (h *testHub) record(o resource.Occurrence) {
	for _, key := range []string{o.Reason, o.Reason + " " + o.Message} {
		n, _ := h.events.LoadOrStore(key, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
	}
}

func (h *testHub) recorded(reason string) int64 {
	n, ok := h.events.Load(reason)
	if !ok {
		return 0
	}
	return n.(*atomic.Int64).Load()
}

func (h *testHub) Put(_ context.Context, r io.Reader, _ string) (string, int64, error) {
	data, err := io.ReadAll(r)
	return resource.DigestOf(data), int64(len(data)), err
}

func (h *testHub) Has(string) (int64, bool) { return 0, true }

// start runs the controllers, until stop.
func (h *testHub) start() {
	ctx, cancel := context.WithCancel(context.Background())
	runtime := control.New(control.Options{Reader: h.Store, Watcher: h.Store, Metrics: prometheus.NewRegistry(), Log: zerolog.Nop(), FirstRetry: time.Millisecond})
	src := sources.NewResolver(sources.ResolverOptions{
		Client:  sources.New(sources.Options{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Timeout: 5 * time.Second}),
		Objects: h.Controller("sources"), Reader: h.Store, Writer: h.Store, Blobs: h, Interval: h.poll,
	})
	all := append(fleet.Controllers(fleet.Options{
		Objects: h.Registry, Reader: h.Store, Sources: src, Record: h.record,
		Now: func() time.Time { return time.Now().Add(time.Duration(h.ahead.Load())) }, Poll: h.poll, Pause: 2 * time.Millisecond, Retry: 20 * time.Millisecond,
	}), control.Controller{Name: "nodes", Watches: []control.Watch{{Kind: resource.KindNode}}, Reconcile: h.answer, Workers: 4})
	all = append(all, src.Controllers()...)
	done := make(chan error)
	go func() { done <- runtime.Run(ctx, all...) }()
	h.stop = func() { cancel(); require.NoError(h, <-done) }
}

// answer is what renderer and agent of a node say.
func (h *testHub) answer(ctx context.Context, key store.Key) (time.Duration, error) {
	err := objects.UpdateStatus(ctx, h.user, key, func(n *resource.Node) error {
		if n.Metadata.Annotations["offline"] != "" {
			n.Status.State = resource.Offline
			return nil
		}
		n.Status.State = resource.Online
		if n.Status.SpecVersion == "" && len(n.Spec.Config) == 0 && n.Spec.OS == nil {
			return nil // nothing has ever been wanted of it: it is not rendered
		}
		text, err := json.Marshal(n.Spec)
		if err != nil {
			return err
		}
		version := resource.DigestOf(text)
		n.Status.SpecVersion = version
		n.Status.Conditions = resource.SetCondition(n.Status.Conditions, resource.Condition{
			Type: resource.ConditionSpecRendered, Status: "True", Reason: "Rendered", ObservedGeneration: n.Metadata.Generation,
		}, time.Now())
		if what, fails := h.fail.Load(key.Name); fails && (what == true || strings.Contains(string(text), what.(string))) {
			n.Status.Failed = &resource.FailedVersion{RenderedVersion: version, Reason: "HookFailed"}
			return nil
		}
		if says, ok := h.agents.Load(key.Name); ok {
			n.Status.Conditions = resource.SetCondition(n.Status.Conditions, says.(resource.Condition), time.Now().Add(time.Duration(h.ahead.Load())))
			return nil
		}
		n.Status.RenderedVersion, n.Status.Failed = version, nil
		return nil
	})
	if errors.Is(err, resource.NotFound) {
		return 0, nil
	}
	return 0, err
}

func (h *testHub) makeNode(name string, labels ...string) {
	m := resource.Meta{Name: name, Labels: map[string]string{}}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		m.Labels[key] = value
	}
	_, err := objects.Create(h.Context(), h.user, &resource.Node{Metadata: m})
	require.NoError(h, err)
}

func (h *testHub) makeFleet(name, label, image string, change ...func(f *resource.Fleet)) {
	key, value, _ := strings.Cut(label, "=")
	f := &resource.Fleet{Metadata: resource.Meta{Name: name}}
	f.Spec.Selector = &resource.LabelSelector{MatchLabels: map[string]string{key: value}}
	f.Spec.Template.Spec = motdSpec(image)
	for _, c := range change {
		c(f)
	}
	_, err := objects.Create(h.Context(), h.user, f)
	require.NoError(h, err)
}

func motdSpec(text string) resource.NodeSpec {
	return resource.NodeSpec{Config: []resource.ConfigItem{{Name: "motd", ConfigType: resource.ConfigFiles, Files: []resource.InlineFile{{Path: "/etc/motd", Content: text}}}}}
}

func (h *testHub) node(name string) *resource.Node {
	n, err := objects.Get[resource.Node](h.Context(), h.user, store.Key{Kind: resource.KindNode, Name: name})
	require.NoError(h, err)
	return n
}

func (h *testHub) fleet(name string) *resource.Fleet {
	f, err := objects.Get[resource.Fleet](h.Context(), h.user, store.Key{Kind: resource.KindFleet, Name: name})
	require.NoError(h, err)
	return f
}

func (h *testHub) editNode(name string, change func(n *resource.Node)) {
	err := objects.Update(h.Context(), h.user, store.Key{Kind: resource.KindNode, Name: name}, func(n *resource.Node) error { change(n); return nil })
	require.NoError(h, err)
}

func (h *testHub) editFleet(name string, change func(f *resource.Fleet)) {
	err := objects.Update(h.Context(), h.user, store.Key{Kind: resource.KindFleet, Name: name}, func(f *resource.Fleet) error { change(f); return nil })
	require.NoError(h, err)
}

func (h *testHub) until(what string, is func() bool) {
	h.Helper()
	require.Eventually(h, is, waitTimeout, 5*time.Millisecond, what)
}

func (h *testHub) untilOwner(node, owner string) {
	h.Helper()
	h.until(node+" is owned by "+owner, func() bool { return h.node(node).Metadata.Owner == owner })
}

// untilMotd waits until a node has a text, and says that it has.
func (h *testHub) untilMotd(node, text string) {
	h.Helper()
	h.until(node+" has "+text, func() bool {
		n := h.node(node)
		return len(n.Spec.Config) == 1 && n.Spec.Config[0].Files[0].Content == text && n.Status.RenderedVersion == n.Status.SpecVersion
	})
}

func conditionStatus(list []resource.Condition, kind string) string {
	for _, c := range list {
		if c.Type == kind {
			return c.Status + " " + c.Message
		}
	}
	return ""
}

func TestOwners(t *testing.T) {
	h := newTestHub(t)
	h.makeNode("n1", "site=a")
	h.makeNode("n2", "site=b")
	h.makeNode("n3", "site=none")
	h.editNode("n3", func(n *resource.Node) { n.Spec = motdSpec("by hand") })
	h.makeFleet("a", "site=a", "one")
	h.untilOwner("n1", "Fleet/a")
	h.untilMotd("n1", "one")
	require.Empty(t, h.node("n2").Metadata.Owner)

	h.editNode("n1", func(n *resource.Node) { n.Metadata.Labels["site"] = "b" }) // 14: released, and the spec stays
	h.untilOwner("n1", "")
	h.untilMotd("n1", "one")
	require.Empty(t, h.node("n1").Metadata.Annotations)
	h.makeFleet("b", "site=b", "two")
	h.untilMotd("n1", "two")
	h.untilMotd("n2", "two")
	h.editNode("n1", func(n *resource.Node) { n.Metadata.Labels["site"] = "a" }) // 15: moved
	h.untilOwner("n1", "Fleet/a")
	h.untilMotd("n1", "one")

	h.editNode("n1", func(n *resource.Node) { n.Metadata.Labels["fleet-controller"] = "paused" }) // 16
	h.untilOwner("n1", "")
	h.editNode("n1", func(n *resource.Node) { n.Spec = motdSpec("by hand") })
	h.untilMotd("n1", "by hand")
	h.editNode("n1", func(n *resource.Node) { delete(n.Metadata.Labels, "fleet-controller") }) // 17
	h.untilMotd("n1", "one")

	h.editNode("n3", func(n *resource.Node) { n.Metadata.Owner = "ResourceSync/git"; n.Metadata.Labels["site"] = "a" }) // 19
	h.makeFleet("a2", "site=a", "three")                                                                                // 20
	h.until("both say that they overlap", func() bool {
		return conditionStatus(h.fleet("a").Status.Conditions, "OverlappingSelectors") == "True nodes of it match a2" &&
			conditionStatus(h.fleet("a2").Status.Conditions, "OverlappingSelectors") == "True nodes of it match a" &&
			conditionStatus(h.node("n1").Status.Conditions, "MultipleOwners") == "True the fleets a, a2 match"
	})
	require.Equal(t, "Fleet/a", h.node("n1").Metadata.Owner)
	require.Equal(t, "ResourceSync/git", h.node("n3").Metadata.Owner)
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Selector.MatchLabels = map[string]string{"site": "c"} })
	h.untilMotd("n1", "three")
	h.until("they overlap no more", func() bool {
		return strings.HasPrefix(conditionStatus(h.fleet("a").Status.Conditions, "OverlappingSelectors"), "False") &&
			strings.HasPrefix(conditionStatus(h.node("n1").Status.Conditions, "MultipleOwners"), "False")
	})

	require.NoError(t, h.user.Delete(t.Context(), store.Key{Kind: resource.KindFleet, Name: "a2"}))
	h.untilOwner("n1", "")
	h.until("the fleet is gone", func() bool {
		_, err := objects.Get[resource.Fleet](t.Context(), h.user, store.Key{Kind: resource.KindFleet, Name: "a2"})
		return errors.Is(err, resource.NotFound)
	})
	require.Equal(t, "by hand", h.node("n3").Spec.Config[0].Files[0].Content)
}

func TestVersions(t *testing.T) {
	h := newTestHub(t)
	_, err := objects.Create(t.Context(), h.user, &resource.ConfigMap{Metadata: resource.Meta{Name: "m", Namespace: "default"}, Data: map[string]string{"a": "1"}})
	require.NoError(t, err)
	h.makeNode("n1", "site=a", "room=hall")
	h.makeNode("n2", "site=a")
	h.makeFleet("a", "site=a", "{{ .metadata.labels.room }}")
	h.untilMotd("n1", "hall")
	h.until("the other node lacks the label", func() bool {
		r := h.fleet("a").Status.Rollout
		return r != nil && r.Updated == 1 && r.FailedNodes == 1 &&
			strings.Contains(r.Message, `spec.config[0].files[0].content: node n2: map has no entry for key "room"`)
	})
	h.editFleet("a", func(f *resource.Fleet) { // a label that makes a spec which no node may have is its node's fault alone
		f.Spec.Template.Spec = motdSpec("three")
		f.Spec.Template.Spec.Config[0].Files[0].Path = `/{{ getOrDefault .metadata.labels "room" "../x" }}`
	})
	h.untilMotd("n1", "three")
	h.until("the other node's path is refused", func() bool {
		return strings.Contains(h.fleet("a").Status.Rollout.Message, "spec.config[0].files[0].path")
	})
	h.editFleet("a", func(f *resource.Fleet) {
		f.Spec.Template.Spec = motdSpec("two")
		f.Spec.Template.Spec.Config = append(f.Spec.Template.Spec.Config, resource.ConfigItem{
			Name: "m", ConfigType: resource.ConfigMapRef, ConfigMapRef: &resource.ConfigMapMount{Name: "m", MountPath: "/etc/m"},
		})
	})
	frozen := func(node string) string {
		c := h.node(node).Spec.Config
		if len(c) < 2 || len(c[1].Files) == 0 {
			return ""
		}
		return c[1].Files[0].Path + " " + c[1].Files[0].Digest
	}
	for _, n := range []string{"n1", "n2"} {
		h.until("the ConfigMap is frozen", func() bool { return frozen(n) == "/etc/m/a "+resource.DigestOf([]byte("1")) })
	}
	h.until("it is rolled out", func() bool {
		return h.node("n1").Metadata.Annotations["fleet-controller/templateVersion"] == "a-0000003" && h.fleet("a").Status.Rollout.Updated == 2
	})
	require.Equal(t, "a-0000003", h.fleet("a").Metadata.Annotations["fleet-controller/templateVersion"])

	err = objects.Update(t.Context(), h.user, store.Key{Kind: resource.KindConfigMap, Namespace: "default", Name: "m"}, func(m *resource.ConfigMap) error {
		m.Data["a"] = "2"
		return nil
	})
	require.NoError(t, err)
	for _, n := range []string{"n1", "n2"} { // 32
		h.until("the changed ConfigMap has a version of its own", func() bool { return frozen(n) == "/etc/m/a "+resource.DigestOf([]byte("2")) })
	}

	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec.Config[1].ConfigMapRef.Name = "nosuch" }) // 33
	h.until("it says what is missing", func() bool {
		return strings.HasPrefix(conditionStatus(h.fleet("a").Status.Conditions, "TemplateResolved"), "False") &&
			strings.Contains(conditionStatus(h.fleet("a").Status.Conditions, "TemplateResolved"), "nosuch")
	})
	require.Equal(t, "a-0000004", h.fleet("a").Metadata.Annotations["fleet-controller/templateVersion"])
	digests := map[string]bool{}
	require.NoError(t, fleet.BlobReferences(h.Store)(t.Context(), func(d string) { digests[d] = true }))
	require.True(t, digests[resource.DigestOf([]byte("1"))] && digests[resource.DigestOf([]byte("2"))])

	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec("{{ range .metadata.labels }}{{ end }}") })
	h.until("it says what is wrong", func() bool {
		return strings.Contains(conditionStatus(h.fleet("a").Status.Conditions, "TemplateResolved"), "range and template are not supported")
	})
	for i := range 14 {
		h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec(fmt.Sprint(i)) })
		h.untilMotd("n1", fmt.Sprint(i))
		h.until("it is rolled out", func() bool { return h.fleet("a").Status.Rollout.Updated == 2 })
	}
	h.until("old versions are deleted", func() bool { // 36
		n := 0
		for _, err := range objects.List[resource.TemplateVersion](t.Context(), h.user, "") {
			require.NoError(t, err)
			n++
		}
		return n <= 13
	})
}

func TestARolloutHaltsAndGoesOn(t *testing.T) {
	h := newTestHub(t)
	for i := range 20 {
		h.makeNode(fmt.Sprintf("n%02d", i), "site=a", fmt.Sprintf("line=%d", i%2))
	}
	policy := &resource.RolloutPolicy{
		DeviceSelection: &resource.DeviceSelection{Strategy: "BatchSequence", Sequence: []resource.RolloutBatch{
			{Selector: &resource.LabelSelector{MatchLabels: map[string]string{"line": "1"}}, Limit: "3"}, {Limit: "50%"},
		}},
		SuccessThreshold: "100%", DefaultUpdateTimeout: "1m",
	}
	h.makeFleet("a", "site=a", "one", func(f *resource.Fleet) { f.Spec.RolloutPolicy = policy })
	with := func(text string) (names []string) {
		for i := range 20 {
			n := h.node(fmt.Sprintf("n%02d", i))
			if len(n.Spec.Config) > 0 && n.Spec.Config[0].Files[0].Content == text {
				names = append(names, n.Metadata.Name)
			}
		}
		return names
	}
	h.until("all have it", func() bool { return len(with("one")) == 20 })
	h.until("and say so", func() bool { return h.fleet("a").Status.Rollout.Updated == 20 })

	h.fail.Store("n03", true)
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec("two") })
	h.until("it halts in the first batch", func() bool { r := h.fleet("a").Status.Rollout; return r.Reason == "Halted" && r.FailedNodes == 1 })
	require.Equal(t, []string{"n01", "n03", "n05"}, with("two"))
	require.Regexp(t, "^batch 1 of 3: (1 of 3 failed, and 3 must succeed|2 of 3 succeeded, and 3 are needed)$", h.fleet("a").Status.Rollout.Message)
	h.until("there is an event of it", func() bool { return h.recorded("RolloutHalted") == 1 })

	h.stop() // the hub starts again, and starts nothing twice
	h.start()
	h.fail.Delete("n03")
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Paused = true; f.Spec.Template.Spec = motdSpec("three") })
	h.until("it is paused", func() bool {
		r := h.fleet("a").Status.Rollout
		return r.Reason == "Paused" && r.TemplateVersion == "a-0000003"
	})
	require.Empty(t, with("three"))
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Paused = false })
	h.until("all have it", func() bool { return len(with("three")) == 20 })
	h.until("and say so", func() bool {
		r := h.fleet("a").Status.Rollout
		return r.Updated == 20 && r.Reason == "" && r.Batch == 3
	})
	batches := map[string]int{}
	for i := range 20 {
		batches[h.node(fmt.Sprintf("n%02d", i)).Metadata.Annotations["fleet-controller/batch"]]++
	}
	require.Equal(t, 3, batches["a-0000003/1"])
	require.Equal(t, 10, batches["a-0000003/2"])
}

// A node that is offline through several changes gets only the last.
func TestWhoIsAwayGetsTheLast(t *testing.T) {
	h := newTestHub(t)
	h.makeNode("n1", "site=a")
	h.makeNode("n2", "site=a")
	h.editNode("n2", func(n *resource.Node) { n.Metadata.Annotations = map[string]string{"offline": "yes"} })
	h.until("n2 is offline", func() bool { return h.node("n2").Status.State == resource.Offline })
	h.makeFleet("a", "site=a", "0")
	for i := range 5 {
		h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec(fmt.Sprint(i)) })
		h.untilMotd("n1", fmt.Sprint(i))
	}
	require.Empty(t, h.node("n2").Spec.Config)
	h.until("the fleet says why", func() bool { return h.fleet("a").Status.Rollout.Message == "1 are offline" })
	h.editNode("n2", func(n *resource.Node) { delete(n.Metadata.Annotations, "offline") })
	h.untilMotd("n2", "4")
	require.EqualValues(t, 2, h.node("n2").Metadata.Generation)
}

// What the template comes to for a node follows its labels, and somebody who writes the controller's annotations hides nothing.
func TestNodesKeepToTheirVersion(t *testing.T) {
	h := newTestHub(t)
	h.makeNode("n1", "site=a", "room=hall")
	h.makeNode("n2", "site=a", "room=yard")
	h.makeFleet("a", "site=a", "{{ .metadata.labels.room }}")
	h.untilMotd("n1", "hall")
	h.editNode("n1", func(n *resource.Node) { n.Metadata.Labels["room"] = "cellar" })
	h.untilMotd("n1", "cellar")
	inline := func(text string) {
		h.editFleet("a", func(f *resource.Fleet) {
			f.Spec.Template.Spec.Config = append(f.Spec.Template.Spec.Config[:1], resource.ConfigItem{Name: "i", ConfigType: resource.ConfigInline, Inline: json.RawMessage(text)})
		})
	}
	inline(`{"ignition":{"version":"3.4.0"},"storage":{}}`)
	h.until("it has the document", func() bool { return len(h.node("n1").Spec.Config) == 2 })
	inline(`{"storage":{},"ignition":{"version":"3.4.0"}}`) // the same
	const assigned = "fleet-controller/assignedTemplateVersion"
	h.editNode("n1", func(n *resource.Node) { delete(n.Metadata.Annotations, assigned) })
	h.until("it is assigned again", func() bool { return h.node("n1").Metadata.Annotations[assigned] == "a-0000002" })

	h.editFleet("a", func(f *resource.Fleet) {
		f.Spec.Paused = true
		f.Spec.Template.Spec = motdSpec("two")
	})
	h.until("it is paused", func() bool { return h.fleet("a").Status.Rollout.TemplateVersion == "a-0000003" })
	h.editNode("n1", func(n *resource.Node) { n.Metadata.Annotations[assigned] = "a-0000003" })
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Paused = false })
	h.untilMotd("n1", "two")
	h.untilMotd("n2", "two")
	h.until("all have it", func() bool {
		r := h.fleet("a").Status.Rollout
		return r.TemplateVersion == "a-0000003" && r.FinishedAt != ""
	})
	for i := 3; i < 6; i++ {
		h.makeNode(fmt.Sprintf("n%d", i), "site=a")
		h.until("it has it, too", func() bool { return h.fleet("a").Status.Rollout.Updated == i })
	}
	h.until("the version has an event", func() bool { return h.recorded("RolledOut all 2 nodes have a-0000003") == 1 })
	require.Zero(t, h.recorded("RolledOut all 3 nodes have a-0000003")+h.recorded("RolledOut all 4 nodes have a-0000003")) // nodes that join are none
}

// A node is released when its fleet goes, also one that never had a finalizer; and the fleet's versions go with it.
func TestAFleetThatIsGone(t *testing.T) {
	h := newTestHub(t)
	h.makeNode("n1", "site=a")
	vanish := func() {
		key := store.Key{Kind: resource.KindFleet, Name: "a"}
		h.until("it is deleted", func() bool {
			o, err := h.Store.Get(t.Context(), key)
			require.NoError(t, err)
			_, err = h.Store.Delete(t.Context(), key, o.Rev)
			return err == nil
		})
	}
	noVersions := func() bool {
		for range objects.List[resource.TemplateVersion](t.Context(), h.user, "") {
			return false
		}
		return true
	}
	h.makeFleet("a", "site=a", "one")
	h.untilMotd("n1", "one")
	vanish()
	h.untilOwner("n1", "")
	h.until("its versions are gone", noVersions)
	require.Equal(t, "one", h.node("n1").Spec.Config[0].Files[0].Content)

	h.makeFleet("a", "site=a", "two")
	h.untilMotd("n1", "two")
	h.stop()
	vanish()
	h.start()
	h.untilOwner("n1", "")
	h.until("its versions are gone", noVersions)
}

// Overlaps are said also after a write has failed, and are right after a restart.
func TestOverlapsAreSaidInTheEnd(t *testing.T) {
	h := newTestHub(t)
	h.makeFleet("a", "site=a", "one")
	h.makeFleet("b", "line=1", "two")
	h.makeNode("n1", "site=a")
	h.untilMotd("n1", "one")
	says := func(fleet, text string) {
		h.until(text, func() bool { return conditionStatus(h.fleet(fleet).Status.Conditions, "OverlappingSelectors") == text })
	}
	says("a", "False no node of it matches another fleet")
	h.broken.Store(true)
	h.editNode("n1", func(n *resource.Node) { n.Metadata.Labels["line"] = "1" })
	h.until("the node says so", func() bool {
		return conditionStatus(h.node("n1").Status.Conditions, "MultipleOwners") == "True the fleets a, b match"
	})
	h.broken.Store(false)
	says("a", "True nodes of it match b")
	says("b", "True nodes of it match a")
	h.stop()
	h.editNode("n1", func(n *resource.Node) { delete(n.Metadata.Labels, "line") })
	h.start()
	says("a", "False no node of it matches another fleet")
	says("b", "False no node of it matches another fleet")
}

// What a template refers to is frozen also if there is no node yet, and if it is empty.
func TestWhatIsFrozen(t *testing.T) {
	h := newTestHub(t)
	m := &resource.ConfigMap{Metadata: resource.Meta{Name: "m", Namespace: "default"}}
	_, err := objects.Create(t.Context(), h.user, m)
	require.NoError(t, err)
	h.makeFleet("a", "site=a", "one", func(f *resource.Fleet) {
		f.Spec.Template.Spec.Config = append(f.Spec.Template.Spec.Config, resource.ConfigItem{
			Name: "m", ConfigType: resource.ConfigMapRef, ConfigMapRef: &resource.ConfigMapMount{Name: "m", MountPath: "/etc/m"},
		})
	})
	version := func(name string) (v *resource.TemplateVersion) {
		h.until("there is "+name, func() (ok bool) {
			v, err = objects.Get[resource.TemplateVersion](t.Context(), h.user, store.Key{Name: name})
			return err == nil
		})
		return v
	}
	require.Len(t, version("a-0000001").Spec.References, 1)
	h.makeNode("n1", "site=a")
	h.untilMotd("n1", "one") // and nothing else: the ConfigMap is empty
	err = objects.Update(t.Context(), h.user, store.Key{Kind: resource.KindConfigMap, Namespace: "default", Name: "m"}, func(m *resource.ConfigMap) error {
		m.Data = map[string]string{"a": "1"}
		return nil
	})
	require.NoError(t, err)
	require.Len(t, version("a-0000002").Spec.References[0].Files, 1)
	h.until("it is frozen", func() bool { c := h.node("n1").Spec.Config; return len(c) == 2 && len(c[1].Files) == 1 })

	h.makeNode("n2", "site=b") // nothing is wanted of a new node: it has that at once
	h.makeFleet("b", "site=b", "", func(f *resource.Fleet) { f.Spec.Template.Spec = resource.NodeSpec{} })
	h.until("all have nothing", func() bool { r := h.fleet("b").Status.Rollout; return r != nil && r.Updated == 1 })

	blob := func(i int) string { return resource.DigestOf([]byte{byte(i)}) }
	h.makeFleet("c", "site=c", "", func(f *resource.Fleet) {
		f.Spec.Template.Spec.Config[0].Files = []resource.InlineFile{{Path: "/x", Digest: blob(1), Size: 1}}
		f.Spec.Template.Spec.Applications = []resource.Application{{Name: "x", AppType: "quadlet", Files: []resource.InlineFile{{Path: "x.container", Digest: blob(2), Size: 1}}}}
	})
	used := map[string]bool{}
	require.NoError(t, fleet.BlobReferences(h.Store)(t.Context(), func(d string) { used[d] = true }))
	require.True(t, used[blob(1)] && used[blob(2)])
}

// Images of applications are frozen; the registry's password is tried again when its Secret has changed.
func TestImagesAreFrozen(t *testing.T) {
	h := newTestHub(t)
	h.stop()
	h.poll = time.Hour
	h.start()
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "right" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	ref, err := name.ParseReference(host + "/app:1")
	require.NoError(t, err)
	image, err := random.Image(100, 1)
	require.NoError(t, err)
	require.NoError(t, remote.Write(ref, image, remote.WithAuth(&authn.Basic{Username: "u", Password: "right"})))
	digest, err := image.Digest()
	require.NoError(t, err)

	secret := &resource.Secret{Metadata: resource.Meta{Name: "s", Namespace: "default"}, Data: map[string][]byte{"username": []byte("u"), "password": []byte("wrong")}}
	_, err = objects.Create(t.Context(), h.user, secret)
	require.NoError(t, err)
	_, err = objects.Create(t.Context(), h.user, &resource.Repository{
		Metadata: resource.Meta{Name: "r"}, Spec: resource.RepositorySpec{URL: server.URL, Type: "oci", SecretRef: &resource.SecretRef{Name: "s"}},
	})
	require.NoError(t, err)
	h.makeNode("n1", "site=a")
	h.makeFleet("a", "site=a", "", func(f *resource.Fleet) {
		f.Spec.Template.Spec = resource.NodeSpec{Applications: []resource.Application{
			{Name: "q", AppType: "quadlet", Files: []resource.InlineFile{{Path: "q.container", Content: "[Container]\nImage=" + host + "/app:1\n"}}},
			{Name: "c", AppType: "compose", Files: []resource.InlineFile{{Path: "compose.yaml", Content: "services: {a: {image: '" + host + "/app:1'}}"}}},
		}}
	})
	h.until("the password is wrong", func() bool {
		r, err := objects.Get[resource.Repository](t.Context(), h.user, store.Key{Name: "r"})
		require.NoError(t, err)
		return conditionStatus(h.fleet("a").Status.Conditions, "TemplateResolved") != "" && strings.HasPrefix(conditionStatus(r.Status.Conditions, "Accessible"), "False")
	})
	err = objects.Update(t.Context(), h.user, store.Key{Kind: resource.KindSecret, Namespace: "default", Name: "s"}, func(s *resource.Secret) error {
		s.Data["password"] = []byte("right")
		return nil
	})
	require.NoError(t, err)
	h.until("the images are frozen", func() bool {
		apps := h.node("n1").Spec.Applications
		return len(apps) == 2 && apps[0].Files[0].Content == "[Container]\nImage="+host+"/app@"+digest.String()+"\n" &&
			apps[1].Files[0].Content == "services: {a: {image: '"+host+"/app@"+digest.String()+"'}}"
	})
	h.until("the Repository says so", func() bool {
		r, err := objects.Get[resource.Repository](t.Context(), h.user, store.Key{Name: "r"})
		require.NoError(t, err)
		return strings.HasPrefix(conditionStatus(r.Status.Conditions, "Accessible"), "True")
	})
}

// A version that halts is rolled back if the policy says so, and any is if somebody says so; the next one goes out as usual.
func TestVersionsAreRolledBack(t *testing.T) {
	h := newTestHub(t)
	for i := range 4 {
		h.makeNode(fmt.Sprintf("n%d", i), "site=a")
	}
	has := func(version, from, text string) {
		h.until("all have "+version, func() bool {
			r := h.fleet("a").Status.Rollout
			if r == nil || r.TemplateVersion != version || r.RolledBackFrom != from || r.Updated != 4 {
				return false
			}
			for i := range 4 {
				n := h.node(fmt.Sprintf("n%d", i))
				if n.Spec.Config[0].Files[0].Content != text || n.Metadata.Annotations["fleet-controller/templateVersion"] != version {
					return false
				}
			}
			return true
		})
	}
	h.makeFleet("a", "site=a", "one", func(f *resource.Fleet) {
		f.Spec.RolloutPolicy = &resource.RolloutPolicy{SuccessThreshold: "100%", OnFailure: resource.OnFailureRollBack}
	})
	has("a-0000001", "", "one")
	h.fail.Store("n1", "two")
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec("two") })
	has("a-0000001", "a-0000002", "one")
	h.until("there is an event", func() bool { return h.recorded("RolledBack") == 1 })
	h.stop()
	h.start()
	h.makeNode("n4", "site=b")
	has("a-0000001", "a-0000002", "one")
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec("three") })
	has("a-0000003", "", "three")

	h.editFleet("a", func(f *resource.Fleet) { f.Metadata.Annotations[resource.RollBackAnnotation] = "a-0000001" })
	has("a-0000001", "a-0000003", "one")
	h.editFleet("a", func(f *resource.Fleet) { delete(f.Metadata.Annotations, resource.RollBackAnnotation) })
	has("a-0000003", "", "three")
	h.editFleet("a", func(f *resource.Fleet) { f.Metadata.Annotations[resource.RollBackAnnotation] = "nosuch" })
	has("a-0000003", "", "three")
}

func TestOldVersionsGo(t *testing.T) {
	h := newTestHub(t)
	h.makeNode("n1", "site=a")
	versions := func() (names []string) {
		for v, err := range objects.List[resource.TemplateVersion](t.Context(), h.user, "") {
			require.NoError(t, err)
			names = append(names, v.Metadata.Name)
		}
		return names
	}
	two := 2
	h.makeFleet("a", "site=a", "0", func(f *resource.Fleet) { f.Spec.RevisionHistoryLimit = &two })
	for i := range 6 {
		h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec(fmt.Sprint(i)) })
		h.until("it is rolled out", func() bool {
			r := h.fleet("a").Status.Rollout
			return r != nil && r.TemplateVersion == fmt.Sprintf("a-%07d", i+1) && r.FinishedAt != ""
		})
	}
	h.until("two are kept beside the present one and the one before", func() bool { return len(versions()) == 4 })
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.RevisionHistoryAge = "1h" })
	h.ahead.Store(int64(2 * time.Hour))
	h.until("the old ones are gone", func() bool { return slices.Equal(versions(), []string{"a-0000005", "a-0000006"}) })
}

// Nodes get a version in their windows only, each in its own time zone.
func TestNodesWaitForTheirWindows(t *testing.T) {
	h := newTestHub(t)
	h.ahead.Store(int64(time.Until(time.Date(2030, 5, 1, 0, 30, 0, 0, time.UTC))))
	zone := func(name, zone string) {
		h.editNode(name, func(n *resource.Node) {
			n.Metadata.Annotations = map[string]string{resource.TimeZoneAnnotation: zone}
		})
	}
	for _, name := range []string{"tokyo", "utc", "wrong"} {
		h.makeNode(name, "site=no")
	}
	zone("tokyo", "Asia/Tokyo")
	zone("wrong", "Mars/Olympus")
	h.makeFleet("a", "site=a", "one", func(f *resource.Fleet) {
		f.Spec.RolloutPolicy = &resource.RolloutPolicy{SuccessThreshold: "0%", UpdateSchedule: &resource.UpdateSchedule{At: "0 9 * * *", StartGraceDuration: "2h"}}
	})
	for _, name := range []string{"tokyo", "utc", "wrong"} {
		h.editNode(name, func(n *resource.Node) { n.Metadata.Labels["site"] = "a" })
	}
	h.untilMotd("tokyo", "one") // it is half past nine there
	h.until("the others wait", func() bool {
		r := h.fleet("a").Status.Rollout
		return r.Nodes == 3 && r.Updated == 1 && r.FailedNodes == 1 && r.Reason == "OutsideTargetsWindow" &&
			strings.Contains(r.Message, `node wrong: spec.rolloutPolicy.updateSchedule: "Mars/Olympus" is no time zone`)
	})
	require.Empty(t, h.node("utc").Spec.Config)
	h.ahead.Add(int64(9 * time.Hour))
	h.untilMotd("utc", "one")
	h.editFleet("a", func(f *resource.Fleet) {
		f.Spec.RolloutPolicy.DownloadSchedule = &resource.UpdateSchedule{At: "0 20 * * *"}
		f.Spec.Template.Spec = motdSpec("two")
	})
	h.until("there is no time", func() bool {
		return strings.Contains(h.fleet("a").Status.Rollout.Message, "updateSchedule and downloadSchedule are never open together")
	})
}

// A fleet counts its nodes by how they are, as they change, come and go.
func TestAFleetCountsItsNodes(t *testing.T) {
	h := newTestHub(t)
	h.fail.Store("c", true)
	for _, name := range []string{"a", "b", "c"} {
		h.makeNode(name, "site=hall")
	}
	h.makeFleet("f", "site=hall", "one")
	counts := func(want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			text, err := json.Marshal(h.fleet("f").Status.Summary)
			require.NoError(t, err)
			return string(text) == want
		}, waitTimeout, time.Millisecond, want)
	}
	counts(`{"nodes":3,"summaryStatus":{"Online":3},"updateStatus":{"Unknown":1,"UpToDate":2},"applicationStatus":{"NoApplications":3}}`)
	status := func(edit func(s *resource.NodeStatus)) {
		err := objects.UpdateStatus(h.Context(), h.user, store.Key{Kind: resource.KindNode, Name: "a"}, func(n *resource.Node) error { edit(&n.Status); return nil })
		require.NoError(t, err)
	}
	status(func(s *resource.NodeStatus) {
		s.Resources = &resource.ResourceStatus{Disk: resource.SeverityWarning}
		s.Applications = []resource.ApplicationStatus{{Name: "shop", Status: "Running"}}
		s.Conditions = resource.SetCondition(s.Conditions, resource.Condition{Type: resource.ConditionUpdating, Status: "True", Reason: "Staging"}, time.Now())
	})
	counts(`{"nodes":3,"summaryStatus":{"Degraded":1,"Online":2},"updateStatus":{"Unknown":1,"UpToDate":1,"Updating":1},"applicationStatus":{"Healthy":1,"NoApplications":2}}`)
	status(func(s *resource.NodeStatus) {
		s.Resources, s.Applications = nil, nil
		s.Conditions = resource.SetCondition(s.Conditions, resource.Condition{Type: resource.ConditionUpdating, Status: "False", Reason: "Idle"}, time.Now())
	})
	counts(`{"nodes":3,"summaryStatus":{"Online":3},"updateStatus":{"Unknown":1,"UpToDate":2},"applicationStatus":{"NoApplications":3}}`)
	h.editNode("a", func(n *resource.Node) { n.Metadata.Annotations["offline"] = "yes" })
	counts(`{"nodes":3,"summaryStatus":{"Online":2,"Unknown":1},"updateStatus":{"Unknown":1,"UpToDate":2},"applicationStatus":{"NoApplications":3}}`)
	h.editNode("b", func(n *resource.Node) { n.Metadata.Labels["site"] = "yard" })
	counts(`{"nodes":2,"summaryStatus":{"Online":1,"Unknown":1},"updateStatus":{"Unknown":1,"UpToDate":1},"applicationStatus":{"NoApplications":2}}`)
	for _, name := range []string{"a", "c"} {
		require.NoError(t, h.user.Delete(h.Context(), store.Key{Kind: resource.KindNode, Name: name}))
	}
	counts(`{}`)
}

// A node whose agent waits for a window of its own policy is waited for. Its time counts from when it begins.
func TestAgentsThatWaitForTheirWindowsDoNotTimeOut(t *testing.T) {
	h := newTestHub(t)
	h.makeNode("fast", "site=a")
	h.makeNode("slow", "site=a")
	says := func(status, reason string) {
		h.agents.Store("slow", resource.Condition{Type: resource.ConditionUpdating, Status: status, Reason: reason})
		h.editNode("slow", func(n *resource.Node) { n.Metadata.Annotations["says"] = reason })
	}
	h.editNode("slow", func(n *resource.Node) { n.Metadata.Annotations = map[string]string{"a": "b"} })
	says("False", resource.WaitingForWindow)
	h.makeFleet("a", "site=a", "one", func(f *resource.Fleet) {
		f.Spec.RolloutPolicy = &resource.RolloutPolicy{SuccessThreshold: "50%", DefaultUpdateTimeout: "10m"}
		f.Spec.Template.Spec.UpdatePolicy = &resource.UpdatePolicy{UpdateSchedule: &resource.UpdateSchedule{At: "0 2 * * *"}}
	})
	rollout := func(updated, failed int) func() bool {
		return func() bool {
			r := h.fleet("a").Status.Rollout
			return r != nil && r.Nodes == 2 && r.Updated == updated && r.FailedNodes == failed
		}
	}
	h.until("one has it, and the other one waits", rollout(1, 0))
	looked := func(text string) { // the fleet has been looked at since
		h.editFleet("a", func(f *resource.Fleet) { f.Spec.RolloutPolicy.SuccessThreshold = text })
		h.until("it has been looked at", func() bool {
			f := h.fleet("a")
			return f.Status.Rollout.ObservedGeneration == f.Metadata.Generation
		})
	}
	h.ahead.Add(int64(5 * time.Hour))
	looked("51%")
	require.True(t, rollout(1, 0)(), "%+v", h.fleet("a").Status.Rollout)
	says("True", "Staging")
	h.until("it has begun", func() bool {
		return slices.ContainsFunc(h.node("slow").Status.Conditions, func(c resource.Condition) bool { return c.Reason == "Staging" })
	})
	looked("52%")
	require.True(t, rollout(1, 0)(), "%+v", h.fleet("a").Status.Rollout)
	h.ahead.Add(int64(11 * time.Minute))
	looked("53%")
	h.until("it has not answered in time", rollout(1, 1))
	h.agents.Delete("slow")
	h.editNode("slow", func(n *resource.Node) { n.Metadata.Annotations["says"] = "done" })
	h.until("it has it after all", rollout(2, 0))
}

// What is amid one version is not available for the next one either, whether that is newer, an undo, or another fleet's.
func TestTheBudgetCountsNodesThatAreAmidAnotherVersion(t *testing.T) {
	h := newTestHub(t)
	names := []string{"a", "b", "c", "d", "e"}
	policy := func(f *resource.Fleet) {
		two := 2
		f.Spec.RolloutPolicy = &resource.RolloutPolicy{DisruptionBudget: &resource.DisruptionBudget{MaxUnavailable: &two}, DefaultUpdateTimeout: "10m"}
	}
	for _, n := range names {
		h.makeNode(n, "site=x")
	}
	h.makeNode("z", "site=y")
	h.makeFleet("f", "site=x", "one", policy)
	h.makeFleet("g", "site=y", "one", policy)
	for _, n := range append(names, "z") {
		h.untilMotd(n, "one")
	}
	h.until("both are rolled out", func() bool {
		return h.fleet("f").Status.Rollout.FinishedAt != "" && h.fleet("g").Status.Rollout.FinishedAt != ""
	})
	slow := resource.Condition{Type: resource.ConditionUpdating, Status: "True", Reason: "Applying"}
	busy := func() (n int) {
		for _, name := range append(names, "z") {
			if s := h.node(name).Status; s.RenderedVersion != s.SpecVersion {
				n++
			}
		}
		return n
	}
	waits := func(fleet string) {
		h.until(fleet+" waits for its budget", func() bool {
			f := h.fleet(fleet)
			return f.Status.Rollout.ObservedGeneration == f.Metadata.Generation && f.Status.Rollout.Reason == "DisruptionBudgetReached" && busy() == 2
		})
	}
	for _, n := range []string{"d", "z"} {
		h.agents.Store(n, slow)
	}
	h.editFleet("f", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec("two") })
	h.editFleet("g", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec("two") })
	h.until("d and z are amid it, and the others have it", func() bool {
		return busy() == 2 && h.fleet("f").Status.Rollout.Updated == 4 && h.fleet("g").Status.Rollout.Updating == 1
	})
	for _, n := range []string{"a", "b", "c", "e"} {
		h.agents.Store(n, slow)
	}
	h.editNode("z", func(n *resource.Node) { n.Metadata.Labels["site"] = "x" })
	h.untilOwner("z", "Fleet/f")
	h.editFleet("f", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec("three") })
	waits("f")
	h.editFleet("f", func(f *resource.Fleet) {
		f.Spec.RolloutPolicy.DefaultUpdateTimeout = "11m"
		f.Metadata.Annotations[resource.RollBackAnnotation] = "f-0000001"
	})
	waits("f")
	h.until("those that are amid another get it", func() bool {
		return h.node("d").Spec.Config[0].Files[0].Content == "one" && h.node("z").Spec.Config[0].Files[0].Content == "one"
	})
	for _, n := range append(names, "z") {
		h.agents.Delete(n)
		h.editNode(n, func(o *resource.Node) { o.Metadata.Annotations["says"] = "done" })
	}
	for _, n := range append(names, "z") {
		h.untilMotd(n, "one")
	}
}

// What nodes have, and what a rollout is undone with, is kept from users; the rest they may delete.
func TestVersionsThatAreNeededAreNotDeletedByUsers(t *testing.T) {
	h := newTestHub(t)
	h.makeNode("n1", "site=a")
	h.makeNode("n2", "site=a")
	finished := func(version string) {
		h.until(version+" is rolled out", func() bool {
			r := h.fleet("a").Status.Rollout
			return r != nil && r.TemplateVersion == version && r.FinishedAt != "" &&
				h.node("n1").Metadata.Annotations[resource.VersionAnnotation] == version && h.node("n2").Metadata.Annotations[resource.VersionAnnotation] == version
		})
	}
	remove := func(version string, force bool) error {
		_, err := h.Registry.Delete(t.Context(), store.Key{Kind: resource.KindTemplateVersion, Name: version}, &objects.WriteOptions{Force: force}, nil)
		return err
	}
	h.makeFleet("a", "site=a", "1", func(f *resource.Fleet) {
		f.Spec.RolloutPolicy = &resource.RolloutPolicy{SuccessThreshold: "100%"}
	})
	for i := range 3 {
		h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec(fmt.Sprint(i + 1)) })
		finished(fmt.Sprintf("a-%07d", i+1))
	}
	refused := func(version, why string) {
		err := remove(version, false)
		require.ErrorIs(t, err, resource.Conflict)
		require.ErrorContains(t, err, why)
	}
	refused("a-0000003", "the nodes n1, n2 have it")
	refused("a-0000002", "undone")
	require.NoError(t, remove("a-0000001", false))

	h.fail.Store("n1", true)
	h.fail.Store("n2", true)
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec("4") })
	h.until("it has halted", func() bool {
		r := h.fleet("a").Status.Rollout
		return r.TemplateVersion == "a-0000004" && r.Reason == "Halted"
	})
	refused("a-0000003", "n1, n2") // which have applied it
	require.NoError(t, remove("a-0000002", false))
	h.editFleet("a", func(f *resource.Fleet) { f.Metadata.Annotations[resource.RollBackAnnotation] = "a-0000003" })
	h.untilSpec("n1", "3")
	refused("a-0000003", "n1, n2")
	for _, n := range []string{"n1", "n2"} {
		require.NoError(t, h.user.Delete(h.Context(), store.Key{Kind: resource.KindNode, Name: n}))
	}
	refused("a-0000003", "rolled back to it")
	require.NoError(t, remove("a-0000003", true))
	require.NoError(t, h.user.Delete(h.Context(), store.Key{Kind: resource.KindFleet, Name: "a"}))
	h.until("the fleet is gone, and its versions", func() bool {
		page, err := h.Store.List(t.Context(), resource.KindTemplateVersion, store.ListOptions{})
		require.NoError(t, err)
		return len(page.Items) == 0
	})
}

// untilSpec waits until a node is given a text.
func (h *testHub) untilSpec(node, text string) {
	h.Helper()
	h.until(node+" is given "+text, func() bool {
		n := h.node(node)
		return len(n.Spec.Config) == 1 && n.Spec.Config[0].Files[0].Content == text
	})
}

func TestAHaltedRolloutNamesNodesThatCameBackFromAPause(t *testing.T) {
	h := newTestHub(t)
	for _, n := range []string{"n1", "n2", "n3"} {
		h.makeNode(n, "site=a")
	}
	h.makeFleet("a", "site=a", "one", func(f *resource.Fleet) {
		f.Spec.RolloutPolicy = &resource.RolloutPolicy{
			SuccessThreshold: "100%", DeviceSelection: &resource.DeviceSelection{Strategy: "BatchSequence", Sequence: []resource.RolloutBatch{{Limit: "1"}}},
		}
	})
	for _, n := range []string{"n1", "n2", "n3"} {
		h.untilMotd(n, "one")
	}
	h.editNode("n3", func(n *resource.Node) { n.Metadata.Labels["fleet-controller"] = "paused" })
	h.untilOwner("n3", "")
	h.editNode("n3", func(n *resource.Node) { n.Spec = motdSpec("by hand") })
	h.fail.Store("n1", "two")
	h.editFleet("a", func(f *resource.Fleet) { f.Spec.Template.Spec = motdSpec("two") })
	message := func() string {
		r := h.fleet("a").Status.Rollout
		if r == nil || r.Reason != "Halted" {
			return ""
		}
		return r.Message
	}
	h.until("it has halted", func() bool { return message() != "" })
	require.NotContains(t, message(), "no version of the fleet")
	h.editNode("n3", func(n *resource.Node) { delete(n.Metadata.Labels, "fleet-controller") })
	h.until("the fleet names it", func() bool {
		return strings.Contains(message(), "until they are given a-0000002, 1 have a spec that is of no version of the fleet: n3")
	})
	h.fail.Delete("n1")
	h.editNode("n1", func(n *resource.Node) { n.Metadata.Labels["again"] = "1" })
	h.untilMotd("n3", "two")
	h.until("it says no more of it", func() bool { return !strings.Contains(h.fleet("a").Status.Rollout.Message, "n3") })
}
