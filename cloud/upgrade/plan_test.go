// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/edgebus/edgebus/topics/resource"
)

var startTime = time.Date(2026, 11, 22, 22, 0, 0, 0, time.UTC)

const testManifest = `{"version":"v1.2.0","programs":[{"name":"edgecore","architecture":"arm64","digest":"sha256:01ba4719c80b6fe911b091a7c05124b64eeece964e09c058ef8f9805daca546b","size":1}]}`

// simulatedWorld is a hub with an Upgrade, and its nodes. A hub that stops between two writes has the status, and not all of the orders.
type simulatedWorld struct {
	now      time.Time
	upgrade  resource.Upgrade
	nodes    []NodeState
	artifact *resource.Artifact
	orders   map[string]resource.UpgradeOrder
	plan     func(Input) Plan
	last     Plan
}

func newSimulatedWorld(nodes int) *simulatedWorld {
	w := &simulatedWorld{now: startTime, orders: map[string]resource.UpgradeOrder{}, plan: PlanUpgrade}
	w.artifact = &resource.Artifact{Spec: resource.ArtifactSpec{Manifest: testManifest, Signature: "s"}}
	w.upgrade.Metadata = resource.Meta{Name: "up", UID: "u1"}
	w.upgrade.Spec = resource.UpgradeSpec{Version: "v1.2.0", LabelSelector: &resource.LabelSelector{MatchLabels: map[string]string{"a": "b"}}, FailureBudget: "100%", Concurrency: nodes}
	for i := range nodes {
		w.nodes = append(w.nodes, NodeState{Name: fmt.Sprintf("n%02d", i), Labels: map[string]string{"a": "b"}, Exists: true, Online: true, Version: "v1.1.0"})
	}
	return w
}

// step plans, and writes what the plan says until the hub crashes: after the status, or after some orders. -1: it doesn't.
func (w *simulatedWorld) step(crash int) Plan {
	p := w.plan(Input{Now: w.now, Upgrade: &w.upgrade, Nodes: slices.Clone(w.nodes), Artifact: w.artifact})
	w.last = p
	w.upgrade.Status = p.Status
	for node := range w.orders {
		if _, ok := p.Orders[node]; !ok && crash != 0 {
			delete(w.orders, node)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(p.Orders)) {
		if crash == 0 {
			return p
		}
		crash--
		w.orders[node] = p.Orders[node]
	}
	return p
}

func (w *simulatedWorld) node(name string) *NodeState {
	return &w.nodes[slices.IndexFunc(w.nodes, func(n NodeState) bool { return n.Name == name })]
}

// says has a node report of its order.
func (w *simulatedWorld) says(node string, r resource.UpgradeReport) {
	r.Order = OrderID(&w.upgrade, *w.upgrade.Status.Rollout)
	w.node(node).Report = &r
}

func (w *simulatedWorld) attempt(node string) resource.UpgradeAttempt {
	i := slices.IndexFunc(w.upgrade.Status.Nodes, func(n resource.UpgradeNode) bool { return n.NodeName == node })
	return w.upgrade.Status.Nodes[i].Last()
}

// begun are the nodes that are ordered to begin, in order.
func (w *simulatedWorld) begun() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(w.orders)) {
		if !w.orders[name].Wait {
			names = append(names, name)
		}
	}
	return names
}

func (w *simulatedWorld) ends(node, result, reason string) {
	w.says(node, resource.UpgradeReport{Result: result, Reason: reason, From: "v1.1.0"})
	if result == resource.UpgradeSuccess {
		w.node(node).Version = w.upgrade.Spec.Version
	}
}

func TestAnUpgradeOfOneNode(t *testing.T) {
	w := newSimulatedWorld(1)
	w.upgrade.Spec.UpgradeCmd, w.upgrade.Spec.Timeout = "/usr/bin/up --now", "90s"
	w.upgrade.Spec.Checks, w.upgrade.Spec.AllowDowngrade = &resource.UpgradeChecks{Disk: 80}, true
	p := w.step(-1)
	require.Equal(t, resource.UpgradeOrder{
		ID: "u1.1." + w.upgrade.Spec.RunOf(), Upgrade: "up", Version: "v1.2.0", Manifest: testManifest, Signature: "s", Installer: []string{},
		Command: []string{"/usr/bin/up", "--now"}, AllowDowngrade: true, Checks: &resource.UpgradeChecks{Disk: 80}, Timeout: 90, Begun: "2026-11-22T22:00:00Z",
	}, w.orders["n00"])
	require.Equal(t, startTime.Add(108*time.Second), p.Again)
	require.Equal(t, resource.UpgradeAttempt{
		FromVersion: "v1.1.0", ToVersion: "v1.2.0", OperationStatus: resource.Upgrading, Run: 1, StartedAt: "2026-11-22T22:00:00Z",
	}, w.attempt("n00"))
	w.says("n00", resource.UpgradeReport{Step: resource.StepTrial})
	w.step(-1)
	require.Equal(t, resource.StepTrial, w.attempt("n00").Step)
	w.says("n00", resource.UpgradeReport{Result: resource.UpgradeRolledBack, Reason: resource.UpgradeFailedExited, Message: "exit status 3", From: "v1.1.0"})
	p = w.step(-1)
	require.Equal(t, "Exited: exit status 3", w.attempt("n00").Reason)
	require.Equal(t, resource.UpgradeRolledBack, w.attempt("n00").OperationStatus)
	require.Empty(t, p.Orders)
	require.Equal(t, []string{"n00"}, p.Changed)
	require.Equal(t, 1, p.Status.Rollout.Failed)
	require.Equal(t, p.Status, w.step(-1).Status, "nothing changes any more")

	w.upgrade.Spec.Attempt = 2 // once more
	w.step(-1)
	require.Len(t, w.upgrade.Status.Nodes[0].History, 2)
	require.Equal(t, []string{"n00"}, w.begun())
	w.ends("n00", resource.UpgradeSuccess, "")
	p = w.step(-1)
	require.Equal(t, resource.UpgradeRollout{Run: 2, Spec: w.upgrade.Spec.RunOf(), Started: "2026-11-22T22:00:00Z", Nodes: 1, Succeeded: 1}, *p.Status.Rollout)
	require.Zero(t, p.Again)
	for i := range 30 { // 20 attempts are kept
		w.node("n00").Version = "v1.1.0"
		w.upgrade.Spec.Attempt = 3 + i
		w.step(-1)
	}
	require.Len(t, w.upgrade.Status.Nodes[0].History, resource.MaxUpgradeHistory)
}

func TestSettingsAndImages(t *testing.T) {
	for name, spec := range map[string]resource.UpgradeSpec{
		"1 setting": {Settings: map[string]string{"link.rate": "1MB"}}, "2 images": {Images: []string{"r.example/a:1", "r.example/b:1"}},
	} {
		w := newSimulatedWorld(1)
		w.artifact = nil // none is needed
		w.node("n00").Version = ""
		spec.NodeNames, spec.RequireConfirmation, spec.Timeout = []string{"n00"}, true, "90s"
		w.upgrade.Spec = spec
		require.Equal(t, name, spec.Goal())
		require.Equal(t, "WaitingForConfirmation", w.step(-1).Status.Rollout.Reason)
		require.Empty(t, w.begun())
		w.upgrade.Spec.Confirmed = w.upgrade.Status.Rollout.Spec
		w.step(-1)
		require.Equal(t, resource.UpgradeOrder{
			ID: "u1.1." + spec.RunOf(), Upgrade: "up", Settings: spec.Settings, Images: spec.Images, Installer: []string{}, Command: []string{}, Timeout: 90, Begun: "2026-11-22T22:00:00Z",
		}, w.orders["n00"])
		payload, err := json.Marshal(w.orders["n00"])
		require.NoError(t, err)
		_, err = resource.ParseUpgradeOrder(payload)
		require.NoError(t, err)
		w.says("n00", resource.UpgradeReport{Result: resource.UpgradeSuccess})
		require.Equal(t, 1, w.step(-1).Status.Rollout.Succeeded)
	}
}

func TestWhyANodeWaits(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(w *simulatedWorld)
		reason  string // of the node
		whole   string // of the Upgrade
		message string
	}{
		"offline": {func(w *simulatedWorld) { w.nodes[0].Online = false }, "Offline: the node begins when it is online again", "Offline", "1 is offline"},
		"no such node": {func(w *simulatedWorld) {
			w.nodes, w.upgrade.Spec.NodeNames, w.upgrade.Spec.LabelSelector = nil, []string{"n00"}, nil
		}, "NotFound: there is no Node n00", "Offline", ""},
		"another Upgrade":  {func(w *simulatedWorld) { w.nodes[0].EarlierUpgrade = "first" }, "WaitingForUpgrade: the Upgrade first is to be done with the node first", "OnHold", "1 is held; the first one: n00: WaitingForUpgrade"},
		"its owner":        {func(w *simulatedWorld) { w.nodes[0].Report = &resource.UpgradeReport{Held: "a race is on"} }, "Held: a race is on", "OnHold", "a race is on"},
		"paused":           {func(w *simulatedWorld) { w.upgrade.Spec.Paused = true }, "", "Paused", "the rollout is paused"},
		"unconfirmed":      {func(w *simulatedWorld) { w.upgrade.Spec.RequireConfirmation = true }, "", "WaitingForConfirmation", ""},
		"confirmed before": {func(w *simulatedWorld) { w.upgrade.Spec.RequireConfirmation, w.upgrade.Spec.Confirmed = true, "v1.1.0" }, "", "WaitingForConfirmation", ""},
		"no artifact":      {func(w *simulatedWorld) { w.artifact = nil }, "", "NoArtifact", "there is no Artifact v1.2.0: make it by edgebus artifact push"},
		"window":           {func(w *simulatedWorld) { w.upgrade.Spec.Window = &resource.UpgradeWindow{From: "23:30", To: "04:00"} }, "", "OutsideWindow", "the next window opens at 2026-11-22T23:30:00Z"},
		"aborted":          {func(w *simulatedWorld) { w.step(0); w.upgrade.Spec.Aborted = true; w.nodes[0].Report = nil }, "Aborted: the upgrade was aborted before the node had begun", "Aborted", "the upgrade was aborted"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSimulatedWorld(1)
			c.change(w)
			p := w.step(-1)
			require.Empty(t, w.begun())
			require.Equal(t, resource.UpgradePending, w.attempt("n00").OperationStatus)
			require.Equal(t, c.reason, w.attempt("n00").Reason)
			require.Equal(t, c.whole, p.Status.Rollout.Reason)
			require.Contains(t, p.Status.Rollout.Message, c.message)
			if name == "window" {
				w.now = p.Again
				w.step(-1)
				require.Equal(t, "2026-11-23T04:00:00Z", w.orders["n00"].SwitchBefore)
				w.now = w.now.Add(time.Minute)
				w.step(-1)
				require.Equal(t, "2026-11-23T04:00:00Z", w.orders["n00"].SwitchBefore)
			}
		})
	}
}

// The hub waits for a while longer than the node may take, says in which step it was, and takes a late answer.
func TestANodeThatDoesNotAnswer(t *testing.T) {
	w := newSimulatedWorld(2)
	w.upgrade.Spec.Concurrency, w.upgrade.Spec.Timeout = 1, "10m"
	p := w.step(-1)
	w.says("n00", resource.UpgradeReport{Step: resource.StepTrial})
	w.now = p.Again.Add(-time.Second)
	w.step(-1)
	require.Equal(t, []string{"n00"}, w.begun())
	w.now = p.Again
	w.step(-1)
	require.Equal(t, "Timeout: no answer within 10m0s; it was in the step Trial", w.attempt("n00").Reason)
	require.Equal(t, []string{"n01"}, w.begun(), "the order is withdrawn, and the next one begins")
	require.Equal(t, 1, w.upgrade.Status.Rollout.Failed)
	w.node("n00").Report.Step, w.node("n00").Report.Result, w.node("n00").Version = "", resource.UpgradeSuccess, "v1.2.0"
	w.step(-1)
	require.Equal(t, resource.UpgradeSuccess, w.attempt("n00").OperationStatus)
	require.Zero(t, w.upgrade.Status.Rollout.Failed)
	w.now = w.now.Add(time.Hour)
	w.step(-1)
	require.Equal(t, "Timeout: no answer within 10m0s; does edgeagent run on the node?", w.attempt("n01").Reason)
}

// A node has a version when its core says so over its own link, whatever its agent says. Until then it is being upgraded, and after its time it has
// failed, with the words of both; the core's word may still come.
func TestAnAgentThatSaysSuccessIsNotBelievedWithoutTheCore(t *testing.T) {
	for core, words := range map[string]string{"v1.1.0": "the agent says v1.2.0, the core v1.1.0", "": "the agent says v1.2.0, the core nothing yet"} {
		w := newSimulatedWorld(2)
		w.upgrade.Spec.Concurrency, w.upgrade.Spec.FailureBudget = 1, "0"
		p := w.step(-1)
		w.says("n00", resource.UpgradeReport{Result: resource.UpgradeSuccess, Version: "v1.2.0", From: "v1.1.0", To: "v1.2.0"})
		w.node("n00").Version = core
		w.now = p.Again.Add(-time.Second)
		p = w.step(-1)
		require.Equal(t, resource.Upgrading+" "+words, w.attempt("n00").OperationStatus+" "+w.attempt("n00").Reason)
		require.Equal(t, []string{"n00"}, w.begun(), "no other one begins")
		w.now = p.Again
		w.step(-1)
		require.Equal(t, "Timeout: "+words+", for 10m0s", w.attempt("n00").Reason)
		require.NotEmpty(t, w.attempt("n00").EndedAt)
		require.Equal(t, 1, w.upgrade.Status.Rollout.Failed)
		require.Zero(t, w.upgrade.Status.Rollout.Succeeded)
		require.Empty(t, w.begun(), "the failure budget is used up")
		w.node("n00").Version = "v1.2.0"
		w.step(-1)
		require.Equal(t, resource.UpgradeSuccess, w.attempt("n00").OperationStatus)
		w.node("n00").Version = "v1.3.0" // by somebody, later
		w.step(-1)
		require.Equal(t, resource.UpgradeSuccess, w.attempt("n00").OperationStatus)
	}
}

// A node that goes away soon after its success is counted, until it is back, rolls back, or another Upgrade has given it something else.
func TestNodesThatAreAwaySinceTheirSuccessAreCounted(t *testing.T) {
	w := newSimulatedWorld(3)
	w.step(-1)
	for _, n := range w.nodes {
		w.ends(n.Name, resource.UpgradeSuccess, "")
	}
	w.step(-1)
	require.Equal(t, "3 0", fmt.Sprint(w.upgrade.Status.Rollout.Succeeded, w.upgrade.Status.Rollout.Away))
	w.now = startTime.Add(awayPeriod - time.Minute)
	w.node("n00").Online, w.node("n01").Online = false, false
	w.step(-1)
	require.Equal(t, "3 2", fmt.Sprint(w.upgrade.Status.Rollout.Succeeded, w.upgrade.Status.Rollout.Away))
	require.Equal(t, "2026-11-23T21:59:00Z", w.attempt("n00").AwaySince)
	w.upgrade.SetReady(w.now)
	require.Equal(t, "all 3 nodes have v1.2.0; 2 of them have been away since soon after that", w.upgrade.Status.Conditions[0].Message)
	require.True(t, w.now.Before(changesUntil(w.attempt("n02"))))

	w.now = startTime.Add(48 * time.Hour)
	w.node("n02").Online = false // for a reason of its own
	w.node("n01").Online = true
	w.says("n01", resource.UpgradeReport{Result: resource.UpgradeRolledBack, Reason: resource.UpgradeFailedConnection, Message: "it was without the hub for 10m0s", From: "v1.1.0"})
	p := w.step(-1)
	require.Equal(t, []string{"n01"}, p.Changed)
	require.Equal(t, "2 1 1", fmt.Sprint(w.upgrade.Status.Rollout.Succeeded, w.upgrade.Status.Rollout.Failed, w.upgrade.Status.Rollout.Away))
	require.Equal(t, resource.UpgradeRolledBack+" NoConnection: it was without the hub for 10m0s", w.attempt("n01").OperationStatus+" "+w.attempt("n01").Reason)
	require.Equal(t, "2026-11-23T21:59:00Z", w.attempt("n00").AwaySince, "it is away still")
	require.Empty(t, w.attempt("n02").AwaySince)
	require.True(t, w.now.Before(changesUntil(w.attempt("n00"))))
	require.False(t, w.now.Before(changesUntil(w.attempt("n02"))))
	w.node("n00").Version = "v1.3.0"
	w.step(-1)
	require.Zero(t, w.upgrade.Status.Rollout.Away)
}

// An Upgrade whose Artifact does not come ends with that as its cause. The time does not pass while it may not begin anyway.
func TestAnUpgradeWithoutItsArtifactEnds(t *testing.T) {
	w := newSimulatedWorld(2)
	w.artifact, w.upgrade.Spec.Paused = nil, true
	w.step(-1)
	w.now = w.now.Add(time.Hour)
	w.step(-1)
	require.Equal(t, resource.UpgradePending, w.attempt("n00").OperationStatus)
	w = newSimulatedWorld(2)
	w.artifact = nil
	p := w.step(-1)
	require.Equal(t, startTime.Add(10*time.Minute), p.Again)
	w.now = p.Again
	p = w.step(-1)
	require.Equal(t, []string{"n00", "n01"}, p.Changed)
	a := w.attempt("n00")
	require.Equal(t, resource.UpgradeRolledBack, a.OperationStatus)
	require.Contains(t, a.Reason, "NoArtifact: there is no Artifact v1.2.0")
	require.Equal(t, 2, w.upgrade.Status.Rollout.Failed)
	require.Equal(t, ReasonNoArtifact, w.upgrade.Status.Rollout.Reason)
	w.artifact = newSimulatedWorld(0).artifact
	w.step(-1)
	require.Empty(t, w.begun(), "it is tried again when the attempt is counted up")
	w.upgrade.Spec.Attempt++
	w.step(-1)
	require.Equal(t, []string{"n00", "n01"}, w.begun())
}

// A node whose owner holds it gives its place to another, and gets one again once it is released.
func TestANodeThatIsHeldGivesItsPlaceToAnother(t *testing.T) {
	w := newSimulatedWorld(2)
	w.upgrade.Spec.Concurrency = 1
	w.step(-1)
	require.Equal(t, []string{"n00"}, w.begun())
	w.says("n00", resource.UpgradeReport{Step: resource.StepHeld, Message: "release it"})
	w.step(-1)
	require.True(t, w.orders["n00"].Wait)
	require.Empty(t, w.begun(), "it may have begun meanwhile")
	w.says("n00", resource.UpgradeReport{Step: resource.StepHeld, Wait: true})
	w.step(-1)
	require.Equal(t, []string{"n01"}, w.begun())
	require.Contains(t, w.attempt("n00").Reason, "WaitingForOwner")
	w.says("n00", resource.UpgradeReport{Step: resource.StepReady, Wait: true})
	w.step(-1)
	require.Equal(t, []string{"n01"}, w.begun())
	w.ends("n01", resource.UpgradeSuccess, "")
	w.step(-1)
	require.Equal(t, []string{"n00"}, w.begun())
	w.step(-1)
	require.Equal(t, []string{"n00"}, w.begun(), "what it said before it was told to begin doesn't count")
	w.says("n00", resource.UpgradeReport{Step: resource.StepDownloading})
	w.step(-1)
	require.Equal(t, resource.StepDownloading, w.attempt("n00").Step)
}

func TestOwnersConfirmAfterTheHub(t *testing.T) {
	w := newSimulatedWorld(3)
	w.upgrade.Spec.RequireConfirmation, w.upgrade.Spec.RequireNodeConfirmation = true, true
	w.step(-1)
	require.Empty(t, w.orders)
	w.upgrade.Spec.Confirmed = "v1.2.0"
	w.nodes[1].Online = false
	w.step(-1)
	require.Len(t, w.orders, 3, "all are told, so that their owners can release them")
	require.Empty(t, w.begun())
	require.True(t, w.orders["n00"].Confirm)
	for _, n := range w.nodes {
		w.says(n.Name, resource.UpgradeReport{Step: resource.StepReady, Wait: true})
	}
	w.step(-1)
	require.Equal(t, []string{"n00", "n02"}, w.begun())
	w.nodes[1].Online = true
	w.step(-1)
	require.Len(t, w.begun(), 3)
}

func TestAnUpgradeIsAborted(t *testing.T) {
	w := newSimulatedWorld(4)
	w.upgrade.Spec.Concurrency = 3
	w.step(-1)
	w.says("n00", resource.UpgradeReport{Step: resource.StepDownloading})
	w.says("n01", resource.UpgradeReport{Step: resource.StepSwitching})
	w.step(-1)
	w.upgrade.Spec.Aborted = true
	w.step(-1)
	require.Equal(t, []string{"n01"}, w.begun(), "it has changed something already")
	require.Equal(t, resource.UpgradePending, w.attempt("n00").OperationStatus)
	require.ErrorContains(t, nextUpgrade(w, "v1.3.0").CheckUpdate(w.upgrade), "the node n01 is being upgraded")
	w.ends("n00", resource.UpgradeSuccess, "") // it had not noticed
	w.ends("n01", resource.UpgradeRolledBack, resource.UpgradeFailedHang)
	w.step(-1)
	require.Equal(t, resource.UpgradeSuccess, w.attempt("n00").OperationStatus)
	require.Equal(t, resource.UpgradeRollout{
		Run: 1, Spec: w.upgrade.Spec.RunOf(), Started: "2026-11-22T22:00:00Z", Nodes: 4, Pending: 2, Succeeded: 1, Failed: 1, Reason: "Aborted", Message: "the upgrade was aborted",
	}, *w.upgrade.Status.Rollout)
	require.NoError(t, nextUpgrade(w, "v1.3.0").CheckUpdate(w.upgrade))
	w.upgrade.Spec.Aborted = false
	w.step(-1)
	require.Equal(t, []string{"n02", "n03"}, w.begun())
}

func nextUpgrade(w *simulatedWorld, version string) resource.Upgrade {
	u := w.upgrade
	u.Spec.Version = version
	return u
}

func TestNodesAreChosenWhenARunBegins(t *testing.T) {
	w := newSimulatedWorld(2)
	w.nodes[1].Labels = nil
	w.step(-1)
	require.Len(t, w.upgrade.Status.Nodes, 1)
	w.nodes[1].Labels = w.nodes[0].Labels
	w.nodes[0].Labels = nil
	w.step(-1)
	require.Len(t, w.upgrade.Status.Nodes, 1, "later labels don't count")
	require.Equal(t, []string{"n00"}, w.begun())
	wants, begun := WantsNode(&w.upgrade, "n00", nil)
	require.True(t, wants && begun)
	wants, _ = WantsNode(&w.upgrade, "n01", w.nodes[1].Labels)
	require.False(t, wants)
	w.ends("n00", resource.UpgradeSuccess, "")
	w.step(-1)
	w.upgrade.Spec.Version = "v1.3.0"
	wants, begun = WantsNode(&w.upgrade, "n01", w.nodes[1].Labels)
	require.True(t, wants && !begun)
	w.step(-1)
	require.Equal(t, "n01", w.upgrade.Status.Nodes[0].NodeName)
}

func TestANodeThatRunsTheVersionIsLeftAlone(t *testing.T) {
	w := newSimulatedWorld(2)
	w.nodes[1].Version = "v1.2.0"
	w.step(-1)
	require.Equal(t, []string{"n00"}, w.begun())
	require.Equal(t, resource.UpgradeSuccess, w.attempt("n01").OperationStatus)
}

// A node whose agent was not replaced is ordered the version once more when attempt is counted up, and is left alone until then.
func TestAnAgentThatFailedIsTriedAgain(t *testing.T) {
	w := newSimulatedWorld(2)
	w.step(-1)
	w.ends("n00", resource.UpgradeSuccess, "")
	w.says("n01", resource.UpgradeReport{Result: resource.UpgradeSuccess, Reason: resource.UpgradeFailedAgent, From: "v1.1.0", To: "v1.2.0"})
	w.node("n01").Version = "v1.2.0"
	w.step(-1)
	require.Empty(t, w.step(-1).Orders)
	require.Equal(t, 2, w.upgrade.Status.Rollout.Succeeded)
	w.upgrade.Spec.Attempt = 1
	w.step(-1)
	require.Equal(t, []string{"n01"}, w.begun())
	w.ends("n01", resource.UpgradeSuccess, "")
	require.Empty(t, w.step(-1).Orders)
	require.Equal(t, 2, w.upgrade.Status.Rollout.Succeeded)
}

// simulate plays upgrades with nodes that answer anything, hubs that crash, and people who change their minds, and says which promise is broken.
func simulate(t *rapid.T, plan func(Input) Plan) error {
	w := newSimulatedWorld(rapid.IntRange(1, 8).Draw(t, "nodes"))
	w.plan = plan
	concurrency := rapid.IntRange(1, 4).Draw(t, "concurrency")
	budget := rapid.IntRange(0, 3).Draw(t, "budget")
	w.upgrade.Spec.Concurrency, w.upgrade.Spec.FailureBudget, w.upgrade.Spec.Timeout = concurrency, fmt.Sprint(budget), "1m"
	done := map[string]bool{}  // node and order: carried out
	works := map[string]bool{} // nodes that carry out their order
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		failed := 0
		for _, n := range w.upgrade.Status.Nodes {
			if a := n.Last(); a.OperationStatus == resource.UpgradeRolledBack || a.OperationStatus == resource.Upgrading && !a.Open() {
				failed++
			}
		}
		before := w.begun()
		crash := rapid.IntRange(-1, 3).Draw(t, "crash")
		w.step(crash)
		for _, name := range w.begun() {
			n := *w.node(name)
			switch fresh := !slices.Contains(before, name); {
			case !fresh:
			case w.upgrade.Spec.Aborted:
				return errors.New("begun though aborted")
			case !n.Exists:
				return errors.New("begun though deleted")
			}
		}
		began := 0
		for _, name := range w.last.Changed {
			a := w.attempt(name)
			if a.OperationStatus != resource.Upgrading || !a.Open() {
				continue
			}
			began++
			if n := *w.node(name); w.upgrade.Spec.Paused || !n.Online || n.EarlierUpgrade != "" || w.artifact == nil {
				return fmt.Errorf("%s begun though it must not: %+v", name, n)
			}
		}
		if began > 0 && failed > budget {
			return fmt.Errorf("%d begun after %d failed, of at most %d", began, failed, budget)
		}
		if r := w.upgrade.Status.Rollout; r != nil && r.Upgrading > concurrency {
			return fmt.Errorf("%d at once, of at most %d", r.Upgrading, concurrency)
		}
		if len(w.begun()) > concurrency {
			return fmt.Errorf("%d have orders, of at most %d", len(w.begun()), concurrency)
		}
		for name := range works { // they stop when the order is gone before they changed anything
			if o, ok := w.orders[name]; !ok || o.Wait {
				delete(works, name)
			}
		}
		if len(w.nodes) == 0 {
			continue
		}
		n := &w.nodes[rapid.IntRange(0, len(w.nodes)-1).Draw(t, "which")]
		o, has := w.orders[n.Name]
		can := has && n.Online && !done[n.Name+o.ID]
		switch rapid.SampledFrom([]string{"work", "succeed", "fail", "hold", "ready", "online", "time", "pause", "abort", "artifact", "other", "delete"}).Draw(t, "event") {
		case "work":
			if can && !o.Wait {
				works[n.Name] = true
				w.says(n.Name, resource.UpgradeReport{Step: resource.StepDownloading})
			}
		case "succeed", "fail":
			if !can || o.Wait {
				break
			}
			delete(works, n.Name)
			done[n.Name+o.ID] = true
			if rapid.Bool().Draw(t, "good") {
				w.ends(n.Name, resource.UpgradeSuccess, "")
			} else {
				w.ends(n.Name, resource.UpgradeRolledBack, resource.UpgradeFailedExited)
			}
		case "hold":
			if can && !works[n.Name] {
				w.says(n.Name, resource.UpgradeReport{Step: resource.StepHeld, Wait: o.Wait})
			}
		case "ready":
			if can && o.Wait {
				w.says(n.Name, resource.UpgradeReport{Step: resource.StepReady, Wait: true})
			}
		case "online":
			n.Online = !n.Online
		case "time":
			w.now = w.now.Add(time.Duration(rapid.IntRange(1, 90).Draw(t, "seconds")) * time.Second)
		case "pause":
			w.upgrade.Spec.Paused = !w.upgrade.Spec.Paused
		case "abort":
			w.upgrade.Spec.Aborted = !w.upgrade.Spec.Aborted
		case "artifact":
			if w.artifact == nil {
				w.artifact = &resource.Artifact{Spec: resource.ArtifactSpec{Manifest: testManifest}}
			} else {
				w.artifact = nil
			}
		case "other":
			n.EarlierUpgrade = map[string]string{"": "other", "other": ""}[n.EarlierUpgrade]
		case "delete":
			n.Exists, n.Online = !n.Exists, !n.Exists
		}
	}
	return nil
}

func TestPlansKeepTheirPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		if err := simulate(t, PlanUpgrade); err != nil {
			t.Fatal(err)
		}
	})
}

// Without one of its rules the planner breaks a promise that the test sees.
func TestWithoutARuleAPromiseIsBroken(t *testing.T) {
	for name, change := range map[string]func(in *Input){
		"concurrency": func(in *Input) { in.Upgrade.Spec.Concurrency = 100 },
		"budget":      func(in *Input) { in.Upgrade.Spec.FailureBudget = "100%" },
		"pause":       func(in *Input) { in.Upgrade.Spec.Paused = false },
		"abort":       func(in *Input) { in.Upgrade.Spec.Aborted = false },
		"artifact":    func(in *Input) { in.Artifact = &resource.Artifact{} },
		"offline": func(in *Input) {
			for i := range in.Nodes {
				in.Nodes[i].Online = true
			}
		},
		"another Upgrade": func(in *Input) {
			for i := range in.Nodes {
				in.Nodes[i].EarlierUpgrade = ""
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			broken := rapid.Custom(func(t *rapid.T) error {
				return simulate(t, func(in Input) Plan {
					u := *in.Upgrade
					in.Upgrade = &u
					change(&in)
					return PlanUpgrade(in)
				})
			})
			for seed := range 2000 {
				if broken.Example(seed) != nil {
					return
				}
			}
			t.Fatal("no promise was broken")
		})
	}
}
