// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/fleet"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/sources"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/test/controltest"
	"github.com/edgebus/edgebus/topics/resource"
)

const waitTimeout = 30 * time.Second

// testHub is a store with the controllers of fleets, and nodes that say at once that they have what their specs want.
type testHub struct {
	*controltest.Hub
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
	*disk.Store
	broken *atomic.Bool
}

func (f failingWriter) Update(ctx context.Context, o store.Object, rev uint64) (store.Object, error) {
	if o.Kind == resource.KindFleet && f.broken.Load() {
		return o, errors.New("it can't be written")
	}
	return f.Store.Update(ctx, o, rev)
}

func newTestHub(t *testing.T) *testHub {
	t.Parallel()
	h := &testHub{poll: 100 * time.Millisecond}
	h.Hub = controltest.New(t, func(o *objects.Options) {
		stored := o.Reader.(*disk.Store)
		o.Writer, o.Derived = failingWriter{stored, &h.broken}, stored
	})
	h.start()
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
	src := sources.NewResolver(sources.ResolverOptions{
		Client:  sources.New(sources.Options{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Timeout: 5 * time.Second}),
		Objects: h.Controller("sources"), Reader: h.Store, Writer: h.Store, Blobs: h, Interval: h.poll,
	})
	all := append(fleet.Controllers(fleet.Options{
		Objects: h.Registry, Reader: h.Store, Sources: src, Record: h.record,
		Now: func() time.Time { return time.Now().Add(time.Duration(h.ahead.Load())) }, Poll: h.poll, Pause: 2 * time.Millisecond, Retry: 20 * time.Millisecond,
	}), control.Controller{Name: "nodes", Watches: []control.Watch{{Kind: resource.KindNode}}, Reconcile: h.answer, Workers: 4})
	all = append(all, src.Controllers()...)
	h.stop = h.Run(prometheus.NewRegistry(), all...)
}

// answer is what renderer and agent of a node say.
func (h *testHub) answer(ctx context.Context, key store.Key) (time.Duration, error) {
	err := objects.UpdateStatus(ctx, h.User, key, func(n *resource.Node) error {
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
	_, err := objects.Create(h.Context(), h.User, &resource.Node{Metadata: m})
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
	_, err := objects.Create(h.Context(), h.User, f)
	require.NoError(h, err)
}

func motdSpec(text string) resource.NodeSpec {
	return resource.NodeSpec{Config: []resource.ConfigItem{{Name: "motd", ConfigType: resource.ConfigFiles, Files: []resource.InlineFile{{Path: "/etc/motd", Content: text}}}}}
}

func (h *testHub) node(name string) *resource.Node {
	n, err := objects.Get[resource.Node](h.Context(), h.User, store.Key{Kind: resource.KindNode, Name: name})
	require.NoError(h, err)
	return n
}

func (h *testHub) fleet(name string) *resource.Fleet {
	f, err := objects.Get[resource.Fleet](h.Context(), h.User, store.Key{Kind: resource.KindFleet, Name: name})
	require.NoError(h, err)
	return f
}

func (h *testHub) editNode(name string, change func(n *resource.Node)) {
	err := objects.Update(h.Context(), h.User, store.Key{Kind: resource.KindNode, Name: name}, func(n *resource.Node) error { change(n); return nil })
	require.NoError(h, err)
}

func (h *testHub) editFleet(name string, change func(f *resource.Fleet)) {
	err := objects.Update(h.Context(), h.User, store.Key{Kind: resource.KindFleet, Name: name}, func(f *resource.Fleet) error { change(f); return nil })
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

// untilSpec waits until a node is given a text.
func (h *testHub) untilSpec(node, text string) {
	h.Helper()
	h.until(node+" is given "+text, func() bool {
		n := h.node(node)
		return len(n.Spec.Config) == 1 && n.Spec.Config[0].Files[0].Content == text
	})
}
