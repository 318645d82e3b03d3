// SPDX-License-Identifier: Apache-2.0

package upgrade_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/control"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/cloud/store/disk"
	"github.com/edgebus/edgebus/cloud/upgrade"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	waitTimeout  = 30 * time.Second
	testManifest = `{"version":"%s","programs":[{"name":"edgecore","architecture":"arm64","digest":"sha256:01ba4719c80b6fe911b091a7c05124b64eeece964e09c058ef8f9805daca546b","size":1}]}`
)

// testHub is a store with the controller of Upgrades, and nodes that carry out what they are ordered. The nodes outlive the hub.
type testHub struct {
	*testing.T
	*disk.Store
	*objects.Registry
	path   string
	user   *objects.Controller
	stop   func()
	events sync.Map

	mu    sync.Mutex
	log   []string                          // of what nodes do: "begin n1 id", "end n1 id"
	done  map[string]resource.UpgradeReport // the last report, by node and ID
	tries map[string]string                 // by node: the ID that it carries out
	most  int                               // how many carried out something at a time
	bad   map[string]bool
	mute  map[string]bool // never answer
}

func newTestHub(t *testing.T) *testHub {
	h := &testHub{T: t, path: filepath.Join(t.TempDir(), "log"), done: map[string]resource.UpgradeReport{}, tries: map[string]string{}, bad: map[string]bool{}, mute: map[string]bool{}}
	h.start()
	t.Cleanup(func() { h.stop() })
	return h
}

func (h *testHub) start() {
	st, err := disk.Open(disk.Options{Path: h.path})
	require.NoError(h, err)
	h.Store = st
	h.Registry = objects.New(objects.Options{Reader: st, Writer: st, Log: zerolog.Nop()})
	h.user = h.Controller("test")
	ctx, cancel := context.WithCancel(context.Background())
	runtime := control.New(control.Options{Reader: st, Watcher: st, Metrics: prometheus.NewRegistry(), Log: zerolog.New(zerolog.NewTestWriter(h.T)), FirstRetry: time.Millisecond})
	done := make(chan error)
	go func() {
		done <- runtime.Run(ctx, upgrade.Controller(upgrade.Options{
			Objects: h.Registry, Reader: st, Writer: st, Pause: 20 * time.Millisecond, Record: func(o resource.Occurrence) { h.events.Store(o.Name+" "+o.Reason, o.Message) },
		}), control.Controller{Name: "nodes", Watches: []control.Watch{{Kind: resource.KindUpgradeOrder}}, Reconcile: h.obey, Workers: 8})
	}()
	h.stop = func() { cancel(); require.NoError(h, <-done); require.NoError(h, st.Close()) }
}

// obey is a node that begins an order when it sees it, reports a step, and ends it when it is called again.
func (h *testHub) obey(ctx context.Context, key store.Key) (time.Duration, error) {
	o, err := h.Store.Get(ctx, key)
	h.mu.Lock()
	defer h.mu.Unlock()
	node := key.Name
	if errors.Is(err, resource.NotFound) {
		delete(h.tries, node)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	order, err := resource.ParseUpgradeOrder(o.Data)
	require.NoError(h, err)
	r := resource.UpgradeReport{Order: order.ID, From: "v1.0.0", To: order.Version, Wait: order.Wait}
	last, ended := h.done[node+order.ID]
	switch {
	case h.mute[node]:
		return 0, nil
	case ended:
		r = last
	case order.Wait:
		r.Step = resource.StepReady
	case h.tries[node] != order.ID:
		h.tries[node] = order.ID
		h.log = append(h.log, "begin "+node+" "+order.ID)
		h.most = max(h.most, len(h.tries))
		r.Step = resource.StepTrial
	default:
		r.Result = resource.UpgradeSuccess
		if h.bad[node] {
			r.Result, r.Reason = resource.UpgradeRolledBack, resource.UpgradeFailedExited
		}
		if r.Result == resource.UpgradeSuccess && order.Version != "" { // the core says so, too
			err := objects.UpdateStatus(ctx, h.user, store.Key{Kind: resource.KindNode, Name: node}, func(n *resource.Node) error {
				n.Status.Version = order.Version
				return nil
			})
			if err != nil {
				return 0, err
			}
		}
		h.done[node+order.ID] = r
		h.log = append(h.log, "end "+node+" "+order.ID)
		delete(h.tries, node)
	}
	data, err := json.Marshal(r)
	require.NoError(h, err)
	if err := upgrade.StoreReport(ctx, h.Store, h.Store, node, data); err != nil || r.Result != "" {
		return 0, err
	}
	return time.Millisecond, nil
}

func (h *testHub) makeNodes(n int, labels map[string]string) {
	h.Helper()
	var all sync.WaitGroup
	limit := make(chan struct{}, 64)
	for i := range n {
		limit <- struct{}{}
		all.Go(func() {
			defer func() { <-limit }()
			name := fmt.Sprintf("n%03d", i)
			_, err := objects.Create(h.Context(), h.user, &resource.Node{Metadata: resource.Meta{Name: name, Labels: labels}})
			require.NoError(h, err)
			h.online(name, true)
		})
	}
	all.Wait()
}

func (h *testHub) online(node string, is bool) {
	err := objects.UpdateStatus(h.Context(), h.user, store.Key{Kind: resource.KindNode, Name: node}, func(n *resource.Node) error {
		n.Status.Version, n.Status.State = "v1.0.0", resource.Offline
		if is {
			n.Status.State = resource.Online
		}
		return nil
	})
	require.NoError(h, err)
}

func (h *testHub) push(version string) {
	_, err := objects.Create(h.Context(), h.user, &resource.Artifact{Metadata: resource.Meta{Name: version}, Spec: resource.ArtifactSpec{
		Manifest: fmt.Sprintf(testManifest, version), Signature: "a\nb\nc\nd\n",
	}})
	require.NoError(h, err)
}

func (h *testHub) upgrade(name string, spec resource.UpgradeSpec) {
	_, err := objects.Create(h.Context(), h.user, &resource.Upgrade{Metadata: resource.Meta{Name: name}, Spec: spec})
	require.NoError(h, err)
}

func (h *testHub) change(name string, change func(s *resource.UpgradeSpec)) {
	err := objects.Update(h.Context(), h.user, store.Key{Kind: resource.KindUpgrade, Name: name}, func(u *resource.Upgrade) error {
		change(&u.Spec)
		return nil
	})
	require.NoError(h, err)
}

func (h *testHub) get(name string) *resource.Upgrade {
	u, err := objects.Get[resource.Upgrade](h.Context(), h.user, store.Key{Kind: resource.KindUpgrade, Name: name})
	require.NoError(h, err)
	return u
}

// until waits until the rollout of an Upgrade is as wanted.
// until waits for as long as the upgrade gets on: how fast 500 nodes do is a matter of the machine.
func (h *testHub) until(name string, is func(r resource.UpgradeRollout) bool) resource.UpgradeRollout {
	h.Helper()
	var r resource.UpgradeRollout
	tick := time.NewTicker(waitTimeout / 3000)
	defer tick.Stop()
	for changed := time.Now(); ; <-tick.C {
		if now := h.get(name).Status.Rollout; now != nil && !reflect.DeepEqual(*now, r) {
			r, changed = *now, time.Now()
		}
		if is(r) {
			return r
		}
		require.Less(h, time.Since(changed), waitTimeout, "%s: %+v", name, &r)
	}
}

func (h *testHub) orders() []store.Object {
	page, err := h.Store.List(h.Context(), resource.KindUpgradeOrder, store.ListOptions{})
	require.NoError(h, err)
	return page.Items
}

var fleetLabels = map[string]string{"fleet": "all"}

func byLabel(version string) resource.UpgradeSpec {
	return resource.UpgradeSpec{Version: version, LabelSelector: &resource.LabelSelector{MatchLabels: fleetLabels}}
}

// 500 nodes, of which 5 % are bad: with a budget that allows them all are asked, never more than the concurrency at a time, each once, although
// the hub stops in the midst of it.
func TestFiveHundredNodesAndAHubThatStops(t *testing.T) {
	h := newTestHub(t)
	h.makeNodes(500, fleetLabels)
	for i := 0; i < 500; i += 20 {
		h.bad[fmt.Sprintf("n%03d", i)] = true
	}
	h.push("v2.0.0")
	spec := byLabel("v2.0.0")
	spec.Concurrency = 40
	h.upgrade("up", spec)
	for _, done := range []int{50, 150, 300} {
		h.until("up", func(r resource.UpgradeRollout) bool { return r.Succeeded+r.Failed >= done })
		h.stop()
		h.start()
	}
	r := h.until("up", func(r resource.UpgradeRollout) bool { return r.Succeeded+r.Failed == 500 })
	require.Equal(t, 25, r.Failed)
	require.Eventually(t, func() bool { return len(h.orders()) == 0 }, waitTimeout, waitTimeout/10000)
	h.mu.Lock()
	defer h.mu.Unlock()
	require.LessOrEqual(t, h.most, 40)
	seen := map[string]bool{}
	for _, line := range h.log {
		require.False(t, seen[line], "twice: %s", line)
		seen[line] = true
	}
	require.Len(t, h.log, 2*500)
}

// The failure budget stops the upgrade: after the failure that exceeds it only those go on that had begun.
func TestTheFailureBudgetStops(t *testing.T) {
	h := newTestHub(t)
	h.makeNodes(500, fleetLabels)
	for i := 0; i < 500; i += 20 {
		h.bad[fmt.Sprintf("n%03d", i)] = true
	}
	h.push("v2.0.0")
	spec := byLabel("v2.0.0")
	spec.Concurrency, spec.FailureBudget = 25, "1%"
	h.upgrade("up", spec)
	r := h.until("up", func(r resource.UpgradeRollout) bool { return r.Reason == "Halted" && r.Upgrading == 0 })
	require.Contains(t, r.Message, "of 500 failed, and at most 5 may")
	h.mu.Lock()
	defer h.mu.Unlock()
	failed, sixth := 0, 0
	for i, line := range h.log {
		var what, node, id string
		_, err := fmt.Sscan(line, &what, &node, &id)
		require.NoError(t, err)
		if what == "end" && h.bad[node] {
			if failed++; failed == 6 {
				sixth = i
			}
		}
	}
	begun := 0
	for _, line := range h.log[sixth:] {
		if line[:5] == "begin" {
			begun++
		}
	}
	require.LessOrEqual(t, begun, 25, "one wave")
	require.LessOrEqual(t, h.most, 25)
	require.Eventually(t, func() bool { _, said := h.events.Load("up UpgradeHalted"); return said }, waitTimeout, waitTimeout/10000)
}

func TestTwoUpgradesWantANode(t *testing.T) {
	h := newTestHub(t)
	h.makeNodes(2, fleetLabels)
	h.mute["n000"] = true
	spec := byLabel("v2.0.0")
	spec.Paused = true
	h.push("v2.0.0")
	h.upgrade("first", spec)
	h.until("first", func(r resource.UpgradeRollout) bool { return r.Reason == "Paused" })
	spec.Version, spec.Paused = "v3.0.0", false
	h.push("v3.0.0")
	h.upgrade("second", spec)
	r := h.until("second", func(r resource.UpgradeRollout) bool { return r.Reason == "OnHold" })
	require.Equal(t, "2 are held; the first one: n000: WaitingForUpgrade: the Upgrade first is to be done with the node first", r.Message)
	h.change("first", func(s *resource.UpgradeSpec) { s.Paused = false })
	h.until("first", func(r resource.UpgradeRollout) bool { return r.Upgrading == 1 })
	h.change("first", func(s *resource.UpgradeSpec) { s.Aborted = true })
	require.Eventually(t, func() bool { // n001 was free when first was aborted
		list := h.orders()
		return len(list) == 1 && list[0].Name == "n000" && strings.Contains(string(list[0].Data), `"upgrade":"second"`)
	}, waitTimeout, waitTimeout/10000)
	require.NoError(t, h.user.Delete(t.Context(), store.Key{Kind: resource.KindUpgrade, Name: "second"}))
	require.Eventually(t, func() bool { return len(h.orders()) == 0 }, waitTimeout, waitTimeout/10000)
	h.change("first", func(s *resource.UpgradeSpec) { s.Aborted = false })
	h.until("first", func(r resource.UpgradeRollout) bool { return r.Upgrading == 1 })
	h.stop()
	h.mu.Lock()
	h.mute = map[string]bool{}
	h.mu.Unlock()
	h.start()
	h.until("first", func(r resource.UpgradeRollout) bool { return r.Succeeded == 2 })
	require.Eventually(t, func() bool { _, said := h.events.Load("first Upgraded"); return said }, waitTimeout, waitTimeout/10000)
}

// An Upgrade without its Artifact holds up no later one of the same node, and is begun after that when the Artifact comes.
func TestAnUpgradeWithoutItsArtifactHoldsUpNoOther(t *testing.T) {
	h := newTestHub(t)
	h.makeNodes(1, fleetLabels)
	h.upgrade("first", byLabel("v2.0.0"))
	h.until("first", func(r resource.UpgradeRollout) bool { return r.Reason == upgrade.ReasonNoArtifact })
	h.push("v3.0.0")
	h.upgrade("second", byLabel("v3.0.0"))
	h.until("second", func(r resource.UpgradeRollout) bool { return r.Succeeded == 1 })
	h.push("v2.0.0")
	h.until("first", func(r resource.UpgradeRollout) bool { return r.Succeeded == 1 })
}

// A node that is offline waits, and goes when it comes. An Upgrade that was deleted when the hub was stopped leaves no order.
func TestOfflineNodesWait(t *testing.T) {
	h := newTestHub(t)
	h.makeNodes(2, nil)
	h.online("n001", false)
	h.push("v2.0.0")
	h.upgrade("up", resource.UpgradeSpec{Version: "v2.0.0", NodeNames: []string{"n000", "n001", "n009"}})
	h.until("up", func(r resource.UpgradeRollout) bool { return r.Succeeded == 1 && r.Reason == "Offline" })
	nodes := h.get("up").Status.Nodes
	require.Equal(t, "Offline: the node begins when it is online again", nodes[1].Last().Reason)
	require.Equal(t, "NotFound: there is no Node n009", nodes[2].Last().Reason)
	h.mu.Lock()
	h.mute["n009"] = true
	h.mu.Unlock()
	h.online("n001", true)
	h.until("up", func(r resource.UpgradeRollout) bool { return r.Succeeded == 2 })
	_, err := objects.Create(t.Context(), h.user, &resource.Node{Metadata: resource.Meta{Name: "n009"}})
	require.NoError(t, err)
	h.online("n009", true)
	h.until("up", func(r resource.UpgradeRollout) bool { return r.Upgrading == 1 })
	h.stop()
	st, err := disk.Open(disk.Options{Path: h.path})
	require.NoError(t, err)
	_, err = st.Delete(t.Context(), store.Key{Kind: resource.KindUpgrade, Name: "up"}, 0)
	require.NoError(t, err)
	require.NoError(t, st.Close())
	h.start()
	require.Eventually(t, func() bool { return len(h.orders()) == 0 }, waitTimeout, waitTimeout/10000)
}

// An Upgrade that is done is told of nodes that go away, come back, and roll back afterwards.
func TestAnUpgradeThatIsDoneFollowsItsNodes(t *testing.T) {
	h := newTestHub(t)
	h.makeNodes(2, fleetLabels)
	h.push("v2.0.0")
	h.upgrade("up", byLabel("v2.0.0"))
	h.until("up", func(r resource.UpgradeRollout) bool { return r.Succeeded == 2 })
	present := func(is string) {
		err := objects.UpdateStatus(t.Context(), h.user, store.Key{Kind: resource.KindNode, Name: "n000"}, func(n *resource.Node) error { n.Status.State = is; return nil })
		require.NoError(t, err)
	}
	present(resource.Offline)
	h.until("up", func(r resource.UpgradeRollout) bool { return r.Succeeded == 2 && r.Away == 1 })
	present(resource.Online)
	h.until("up", func(r resource.UpgradeRollout) bool { return r.Succeeded == 2 && r.Away == 0 })
	u := h.get("up")
	data, err := json.Marshal(resource.UpgradeReport{Order: upgrade.OrderID(u, *u.Status.Rollout), From: "v1.0.0", To: "v2.0.0", Result: resource.UpgradeRolledBack, Reason: resource.UpgradeFailedConnection})
	require.NoError(t, err)
	require.NoError(t, upgrade.StoreReport(t.Context(), h.Store, h.Store, "n000", data))
	h.until("up", func(r resource.UpgradeRollout) bool { return r.Succeeded == 1 && r.Failed == 1 })
}

// The document's validations, by number.
// A day after its last success an Upgrade is looked at no more when its nodes change, although it doesn't change itself.
func TestAnUpgradeThatIsLongOverIsLeftAlone(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	c := upgrade.Controller(upgrade.Options{Objects: newTestHub(t).Registry, Now: func() time.Time { return now }})
	key := store.Key{Kind: resource.KindUpgrade, Name: "u"}
	state := func(nodes string) *store.Object {
		return &store.Object{Key: key, Data: []byte(`{"metadata":{"name":"u"}}`), Status: []byte(`{"nodes":[` + nodes + `]}`)}
	}
	looksAt := func(kind, name string) (keys []store.Key) {
		for _, w := range c.Watches {
			if w.Kind == kind {
				keys = append(keys, w.Keys(store.Object{Key: store.Key{Kind: kind, Name: name}})...)
			}
		}
		return keys
	}
	over := state(`{"nodeName":"n1","history":[{"operationStatus":"upgrade_success","endedAt":"2026-11-21T09:00:00Z"}]},
		{"nodeName":"n2","history":[{"operationStatus":"upgrade_failed_rollback_success"}]}`)
	c.Indexes[0].Change(nil, over)
	require.Equal(t, []store.Key{key}, looksAt(resource.KindNode, "n1"))
	require.Equal(t, []store.Key{key}, looksAt(resource.KindUpgradeReport, "n1"))
	require.Equal(t, []store.Key{key}, looksAt(resource.KindArtifact, "a"))
	require.Empty(t, looksAt(resource.KindNode, "n2"))
	now = now.Add(24 * time.Hour)
	require.Empty(t, looksAt(resource.KindNode, "n1"))
	require.Empty(t, looksAt(resource.KindUpgradeReport, "n1"))
	require.Empty(t, looksAt(resource.KindArtifact, "a"))

	c.Indexes[0].Change(over, state(`{"nodeName":"n1","history":[{"operationStatus":"upgrading"}]}`))
	now = now.AddDate(1, 0, 0)
	require.Equal(t, []store.Key{key}, looksAt(resource.KindNode, "n1"), "it has not answered")
	require.Equal(t, []store.Key{key}, looksAt(resource.KindArtifact, "a"))
}

func TestUpgradesAreValidated(t *testing.T) {
	h := newTestHub(t)
	h.makeNodes(1, fleetLabels)
	refused := func(field, why string, spec resource.UpgradeSpec) {
		t.Helper()
		_, err := objects.Create(t.Context(), h.user, &resource.Upgrade{Metadata: resource.Meta{Name: "bad"}, Spec: spec})
		require.ErrorIs(t, err, resource.Invalid)
		require.ErrorContains(t, err, field+": ")
		require.ErrorContains(t, err, why)
	}
	names := []string{"n000"}
	// 1: required fields.
	refused("spec.version", "is required", resource.UpgradeSpec{NodeNames: names})
	// 2: not both empty; at least one valid node. Both are an error, too.
	refused("spec.nodeNames", "is required, unless labelSelector", resource.UpgradeSpec{Version: "v1"})
	refused("spec.nodeNames", "is required, unless labelSelector", resource.UpgradeSpec{Version: "v1", LabelSelector: &resource.LabelSelector{}})
	refused("spec.nodeNames", "not by both", resource.UpgradeSpec{Version: "v1", NodeNames: names, LabelSelector: byLabel("").LabelSelector})
	refused("spec.nodeNames", "there is no Node x, y: at least one has to exist", resource.UpgradeSpec{Version: "v1", NodeNames: []string{"x", "y"}})
	refused("spec.labelSelector", "matches no Node", resource.UpgradeSpec{Version: "v1", LabelSelector: &resource.LabelSelector{MatchLabels: map[string]string{"fleet": "none"}}})
	refused("spec.nodeNames[1]", "occurs twice", resource.UpgradeSpec{Version: "v1", NodeNames: []string{"n000", "n000"}})

	h.mu.Lock()
	h.mute["n000"] = true
	h.mu.Unlock()
	h.push("v2.0.0")
	h.upgrade("up", resource.UpgradeSpec{Version: "v2.0.0", NodeNames: names})
	change := func(field, why string, change func(s *resource.UpgradeSpec)) {
		t.Helper()
		err := objects.Update(t.Context(), h.user, store.Key{Kind: resource.KindUpgrade, Name: "up"}, func(u *resource.Upgrade) error {
			change(&u.Spec)
			return nil
		})
		require.ErrorIs(t, err, resource.Invalid)
		require.ErrorContains(t, err, field+": ")
		require.ErrorContains(t, err, why)
	}
	h.until("up", func(r resource.UpgradeRollout) bool { return r.Upgrading == 1 })
	// 3: no update without feedback from the edge. 5: nor of the version.
	change("spec.version", "the node n000 is being upgraded", func(s *resource.UpgradeSpec) { s.Version = "v3.0.0" })
	change("spec.concurrency", "can't be changed yet", func(s *resource.UpgradeSpec) { s.Concurrency = 2 })
	change("spec.upgradeCmd", "can't be changed yet", func(s *resource.UpgradeSpec) { s.UpgradeCmd = "keadm upgrade" })
	h.change("up", func(s *resource.UpgradeSpec) { s.Paused = true })
	// 4: never other nodes.
	change("spec.nodeNames", "immutable", func(s *resource.UpgradeSpec) { s.NodeNames = []string{"n001"} })
	h.mu.Lock()
	h.bad["n000"] = true
	h.mute = map[string]bool{}
	h.mu.Unlock()
	require.Eventually(t, func() bool { return len(h.orders()) == 1 }, waitTimeout, time.Millisecond) // the status says so before it is there
	_, err := h.obey(t.Context(), h.orders()[0].Key)
	require.NoError(t, err)
	_, err = h.obey(t.Context(), store.Key{Kind: resource.KindUpgradeOrder, Name: "n000"})
	require.NoError(t, err)
	h.until("up", func(r resource.UpgradeRollout) bool { return r.Failed == 1 })
	// 6: why it failed is in the status.
	a := h.get("up").Status.Nodes[0].Last()
	require.Equal(t, resource.UpgradeRolledBack+" Exited v1.0.0 v2.0.0", fmt.Sprint(a.OperationStatus, " ", a.Reason, " ", a.FromVersion, " ", a.ToVersion))
	// 5: now the version may change. 7: 20 entries a node.
	for i := range 25 {
		h.change("up", func(s *resource.UpgradeSpec) { s.Paused, s.Attempt = false, i+1 })
		h.until("up", func(r resource.UpgradeRollout) bool { return r.Run == i+2 && r.Failed == 1 })
	}
	require.Len(t, h.get("up").Status.Nodes[0].History, resource.MaxUpgradeHistory)
}
