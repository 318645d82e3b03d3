// SPDX-License-Identifier: Apache-2.0

// Package upgrade brings the edge cores of nodes to other versions, as Upgrades say. Plan decides what each node is ordered now and what the
// Upgrade's status says; the controller reads, calls it, and writes. The package rollout has the rules of how many nodes at a time.
//
// It never replaces a program: a node's agent does, as its UpgradeOrder says. It never orders the same twice with another ID, so that a hub
// that starts again in the midst of a rollout, or from a backup, has nothing done a second time.
package upgrade

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/rollout"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	defaultTimeout       = 10 * time.Minute
	defaultFailureBudget = "10%"
	// maxGrace is how much longer than the node the hub waits at most: the node rolls back by itself, and says so.
	maxGrace = time.Minute
	// maxReason bounds a reason in the status, in bytes.
	maxReason = 300
	// maxAttempts bounds how many attempts a status has: it is one record of the store. With more than 500 nodes each has a shorter history.
	maxAttempts = 500 * resource.MaxUpgradeHistory
)

// NodeState is what a plan depends on of a node.
type NodeState struct {
	Name   string
	Labels map[string]string
	Exists bool
	Online bool
	// OverHTTP says that it is present, and has no core that could begin.
	OverHTTP bool
	// Version is that of its core, as far as the hub knows.
	Version string
	// Report is what it last said about upgrades; nil: nothing.
	Report *resource.UpgradeReport
	// EarlierUpgrade is the other Upgrade that the node is for first; empty: none is.
	EarlierUpgrade string
}

// Input is all that a plan depends on.
type Input struct {
	Now     time.Time
	Upgrade *resource.Upgrade
	// Nodes are those of the status, or all that there are if a run is to begin: see Begins.
	Nodes []NodeState
	// Artifact is the Upgrade's; nil: there is none.
	Artifact *resource.Artifact
}

// Plan is what is to be done.
type Plan struct {
	// Status is to be written before any order is.
	Status resource.UpgradeStatus
	// Orders are those of the nodes that are to have one. Other nodes have none of this Upgrade.
	Orders map[string]resource.UpgradeOrder
	// Changed are the nodes whose newest attempt has ended, or has begun.
	Changed []string
	// Again is when the plan changes by itself; the zero time: it doesn't.
	Again time.Time
}

// BeginsRun says whether another run is to begin: the first one, or one for a spec that wants something else.
func BeginsRun(u *resource.Upgrade) bool {
	return u.Status.Rollout == nil || u.Status.Rollout.Spec != u.Spec.RunOf()
}

// WantsNode says whether an Upgrade has something to do with a node, and whether that has begun.
func WantsNode(u *resource.Upgrade, node string, of map[string]string) (wants, begun bool) {
	if i := slices.IndexFunc(u.Status.Nodes, func(n resource.UpgradeNode) bool { return n.NodeName == node }); i >= 0 {
		if last := u.Status.Nodes[i].Last(); last.Open() {
			begun = last.OperationStatus == resource.Upgrading
			return begun || !u.Spec.Aborted, begun
		}
		if !BeginsRun(u) {
			return false, false
		}
	}
	return BeginsRun(u) && !u.Spec.Aborted && u.Metadata.DeletionTimestamp == nil && nodeMatcher(u.Spec)(node, of), false
}

// nodeMatcher says which nodes a spec chooses.
func nodeMatcher(s resource.UpgradeSpec) func(node string, of map[string]string) bool {
	if len(s.NodeNames) > 0 {
		return func(node string, _ map[string]string) bool { return slices.Contains(s.NodeNames, node) }
	}
	selector := objects.Selector(s.LabelSelector)
	return func(_ string, of map[string]string) bool { return selector.Matches(labels.Set(of)) }
}

// OrderID is the identity of what an Upgrade orders of each node in a run. The hash of the spec is in it because a hub that was restored from a
// backup may count a run a second time, for something else.
func OrderID(u *resource.Upgrade, r resource.UpgradeRollout) string {
	return fmt.Sprintf("%s.%d.%s", u.Metadata.UID, r.Run, r.Spec)
}

// PlanUpgrade plans an Upgrade. It is a pure function.
func PlanUpgrade(in Input) Plan {
	p := &planner{Input: in, spec: in.Upgrade.Spec, nodes: make(map[string]NodeState, len(in.Nodes)), plan: Plan{Orders: make(map[string]resource.UpgradeOrder)}}
	for _, n := range in.Nodes {
		p.nodes[n.Name] = n
	}
	p.begin()
	p.timeout = defaultTimeout
	if d, err := time.ParseDuration(p.spec.Timeout); err == nil {
		p.timeout = d
	}
	p.id = OrderID(in.Upgrade, p.rollout)
	for i := range p.attempts {
		p.followReport(&p.attempts[i])
	}
	p.start()
	for _, n := range p.attempts {
		p.makeOrder(n)
	}
	p.plan.Status.Nodes = p.attempts
	p.plan.Status.Conditions = in.Upgrade.Status.Conditions
	p.plan.Status.Rollout = p.summary()
	return p.plan
}

type planner struct {
	Input
	spec     resource.UpgradeSpec
	nodes    map[string]NodeState
	attempts []resource.UpgradeNode // those of the status, with a newest attempt of this run each
	rollout  resource.UpgradeRollout
	id       string
	timeout  time.Duration
	plan     Plan
}

func (p *planner) stamp() string { return p.Now.UTC().Format(time.RFC3339) }

// lookAgainAt notes that something changes at a time.
func (p *planner) lookAgainAt(at time.Time) {
	if at.After(p.Now) && (p.plan.Again.IsZero() || at.Before(p.plan.Again)) {
		p.plan.Again = at
	}
}

// begin makes the list of nodes. It is made once for a run; until then each node that the spec chooses is in it.
func (p *planner) begin() {
	before := p.Upgrade.Status
	for _, n := range before.Nodes {
		n.History = slices.Clone(n.History)
		p.attempts = append(p.attempts, n)
	}
	if !BeginsRun(p.Upgrade) {
		p.rollout = *before.Rollout
		return
	}
	if p.spec.Aborted {
		if before.Rollout != nil {
			p.rollout = *before.Rollout // what the run before has begun may still end
		}
		return
	}
	p.rollout = resource.UpgradeRollout{Run: 1, Spec: p.spec.RunOf(), Started: p.stamp()}
	if before.Rollout != nil {
		p.rollout.Run = before.Rollout.Run + 1
	}
	names := slices.Clone(p.spec.NodeNames)
	if len(names) == 0 {
		matches := nodeMatcher(p.spec)
		for _, n := range p.Nodes {
			if n.Exists && matches(n.Name, n.Labels) {
				names = append(names, n.Name)
			}
		}
	}
	slices.Sort(names)
	var list []resource.UpgradeNode
	kept := min(max(1, maxAttempts/max(1, len(names))), resource.MaxUpgradeHistory)
	for _, name := range names {
		n := resource.UpgradeNode{NodeName: name}
		if i := slices.IndexFunc(p.attempts, func(n resource.UpgradeNode) bool { return n.NodeName == name }); i >= 0 {
			n = p.attempts[i]
		}
		a := resource.UpgradeAttempt{FromVersion: p.nodes[name].Version, ToVersion: p.spec.Version, OperationStatus: resource.UpgradePending, Run: p.rollout.Run}
		n.History = append(n.History, a)
		n.History = n.History[max(0, len(n.History)-kept):]
		list = append(list, n)
	}
	p.attempts = list
}

// newest is the attempt of this run; nil: there is none.
func (p *planner) newest(n *resource.UpgradeNode) *resource.UpgradeAttempt {
	if last := len(n.History) - 1; last >= 0 && n.History[last].Run == p.rollout.Run {
		return &n.History[last]
	}
	return nil
}

// report is what a node says about this run; nil: nothing.
func (p *planner) report(node string) *resource.UpgradeReport {
	if r := p.nodes[node].Report; r != nil && r.Order == p.id {
		return r
	}
	return nil
}

// onTrial says whether a node is amid an upgrade, so that the version that it runs may be on trial.
func onTrial(r *resource.UpgradeReport) bool { return r != nil && r.Step != "" && r.Result == "" }

// agentFailed says whether a node has the version, but for its agent: then it is ordered once more.
func (p *planner) agentFailed(n NodeState) bool {
	return n.Report != nil && n.Report.Reason == resource.UpgradeFailedAgent && n.Report.To == p.spec.Version
}

// followReport takes over what a node reports, and ends an attempt that has taken too long.
func (p *planner) followReport(n *resource.UpgradeNode) {
	a := p.newest(n)
	if a == nil {
		return
	}
	before := *a
	r := p.report(n.NodeName)
	unconfirmed := p.unconfirmedByCore(*a, r, p.nodes[n.NodeName])
	switch node := p.nodes[n.NodeName]; {
	case r != nil && r.Result != "" && unconfirmed == "":
		p.endAttempt(a, r)
	case !a.Open():
	case a.OperationStatus == resource.UpgradePending:
		a.FromVersion = cmp.Or(node.Version, a.FromVersion)
		if node.EarlierUpgrade == "" && node.Exists && p.spec.UpgradeCmd == "" && p.spec.Version != "" && node.Version == p.spec.Version && !p.spec.Aborted && !onTrial(node.Report) && !p.agentFailed(node) {
			a.OperationStatus, a.Reason, a.EndedAt = resource.UpgradeSuccess, "the node runs this version already", p.stamp()
		}
	case p.Now.Before(p.deadline(*a)) && !(p.spec.Aborted && canStop(r)):
		p.lookAgainAt(p.deadline(*a))
		p.noteStep(a, r)
		if unconfirmed != "" {
			a.Reason = objects.ClipText(unconfirmed, maxReason)
		}
	case p.spec.Aborted && canStop(r):
		a.OperationStatus, a.Step, a.StartedAt = resource.UpgradePending, "", ""
	default:
		a.Reason = fmt.Sprintf("%s: no answer within %s", resource.UpgradeFailedTimeout, p.timeout)
		switch {
		case unconfirmed != "":
			a.Reason = fmt.Sprintf("%s: %s, for %s", resource.UpgradeFailedTimeout, unconfirmed, p.timeout)
		case r == nil:
			a.Reason += "; does edgeagent run on the node?"
		case r.Message != "":
			a.Reason += "; in the step " + r.Step + ": " + r.Message
		default:
			a.Reason += "; it was in the step " + r.Step
		}
		a.Reason, a.EndedAt = objects.ClipText(a.Reason, maxReason), p.stamp()
	}
	p.noteAway(a, p.nodes[n.NodeName])
	if a.OperationStatus != before.OperationStatus || a.EndedAt != before.EndedAt {
		p.plan.Changed = append(p.plan.Changed, n.NodeName)
	}
}

// awayPeriod is how long after its success a node that goes away is said to be away since.
const awayPeriod = 24 * time.Hour

// openEndTime is of what has no end yet.
var openEndTime = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// changesUntil is until when what a node has been through may still change: it has not answered, it is away, or it may go away or roll back
// soon after. Zero: it may not.
func changesUntil(a resource.UpgradeAttempt) time.Time {
	switch a.OperationStatus {
	case resource.UpgradePending, resource.Upgrading:
		return openEndTime
	case resource.UpgradeSuccess:
		if a.AwaySince != "" {
			return openEndTime
		}
		return awayUntil(a)
	}
	return time.Time{}
}

// awayUntil is until when a node that goes away after its success is said to be away since.
func awayUntil(a resource.UpgradeAttempt) time.Time {
	ended, err := time.Parse(time.RFC3339, a.EndedAt)
	if err != nil {
		return time.Time{}
	}
	return ended.Add(awayPeriod)
}

// noteAway notes since when a node is away that has succeeded. One that another Upgrade has given something else is that one's.
func (p *planner) noteAway(a *resource.UpgradeAttempt, node NodeState) {
	switch {
	case a.OperationStatus != resource.UpgradeSuccess, !node.Exists, node.Online, node.OverHTTP, p.spec.Version != "" && node.Version != p.spec.Version:
		a.AwaySince = ""
	case a.AwaySince == "" && p.Now.Before(awayUntil(*a)):
		a.AwaySince = p.stamp()
	}
}

// unconfirmedByCore is what speaks against the success that a node's agent reports: the node has a version when its core has said so, over its
// own link. Empty: nothing does.
func (p *planner) unconfirmedByCore(a resource.UpgradeAttempt, r *resource.UpgradeReport, node NodeState) string {
	if r == nil || r.Result != resource.UpgradeSuccess || a.OperationStatus == resource.UpgradeSuccess || p.spec.Version == "" || node.Version == p.spec.Version {
		return ""
	}
	return fmt.Sprintf("the agent says %s, the core %s", p.spec.Version, cmp.Or(node.Version, "nothing yet"))
}

// endAttempt notes how an attempt has ended.
func (p *planner) endAttempt(a *resource.UpgradeAttempt, r *resource.UpgradeReport) {
	if a.OperationStatus == r.Result {
		return
	}
	a.OperationStatus, a.Step, a.FromVersion, a.EndedAt = r.Result, "", cmp.Or(r.From, a.FromVersion), p.stamp()
	a.Reason = r.Reason
	if r.Message != "" {
		a.Reason = strings.TrimPrefix(a.Reason+": "+r.Message, ": ")
	}
	a.Reason = objects.ClipText(a.Reason, maxReason)
}

// deadline is when an attempt counts as failed.
func (p *planner) deadline(a resource.UpgradeAttempt) time.Time {
	began, _ := time.Parse(time.RFC3339, a.StartedAt) // the beginning of time if somebody has spoiled it
	return began.Add(p.timeout + min(p.timeout/5, maxGrace))
}

// canStop says whether a node has changed nothing yet, as far as the hub knows.
func canStop(r *resource.UpgradeReport) bool {
	if r == nil {
		return true
	}
	if r.Result != "" {
		return false
	}
	switch r.Step {
	case "", resource.StepHeld, resource.StepReady, resource.StepWaiting, resource.StepDownloading:
		return true
	}
	return false
}

// noteStep notes what a node that has begun does. One whose owner holds it is told to wait, and when it has confirmed that it is pending again.
func (p *planner) noteStep(a *resource.UpgradeAttempt, r *resource.UpgradeReport) {
	if r == nil {
		return
	}
	waits := r.Step == resource.StepHeld || r.Step == resource.StepReady
	switch {
	case r.Wait && a.Step == resource.StepHeld && waits:
		a.OperationStatus, a.Step, a.StartedAt, a.Reason = resource.UpgradePending, "", "", ""
	case r.Wait: // this was before it was told to begin
	case r.Step == resource.StepHeld, r.Step == resource.StepWaiting:
		a.Step, a.Reason = r.Step, objects.ClipText(r.Message, maxReason)
	default:
		a.Step, a.Reason = r.Step, ""
	}
}

// announced says whether a node that is pending is to have its order already, so that its owner can release it.
func (p *planner) announced(node string) bool {
	r := p.report(node)
	return p.nodes[node].Exists && !p.spec.Aborted && p.missingArtifact() == "" && p.nodes[node].EarlierUpgrade == "" &&
		(p.spec.RequireNodeConfirmation && !p.unconfirmed() || r != nil && r.Wait && r.Result == "")
}

func (p *planner) unconfirmed() bool {
	return p.spec.RequireConfirmation && p.spec.Confirmed != p.spec.Confirmation()
}

// missingArtifact says what an order can't be made without.
func (p *planner) missingArtifact() string {
	if p.spec.Version == "" || p.Artifact != nil || p.spec.UpgradeCmd != "" && p.spec.Artifact == "" {
		return ""
	}
	return "there is no Artifact " + ArtifactName(p.spec) + ": make it by edgebus artifact push"
}

// ArtifactName is the name of an Upgrade's Artifact.
func ArtifactName(s resource.UpgradeSpec) string { return cmp.Or(s.Artifact, s.Version) }

// start begins the nodes that may begin now.
func (p *planner) start() {
	if p.spec.Aborted {
		for i := range p.attempts {
			if a := p.newest(&p.attempts[i]); a != nil && a.OperationStatus == resource.UpgradePending {
				a.Reason = "Aborted: the upgrade was aborted before the node had begun"
			}
		}
		p.rollout.Reason, p.rollout.Message = "Aborted", "the upgrade was aborted"
		return
	}
	in := rollout.Input{
		Now: p.Now, Paused: p.spec.Paused, Unconfirmed: p.unconfirmed(),
		Policy: rollout.Policy{Concurrency: max(1, p.spec.Concurrency), Failures: rollout.ParseAmount(cmp.Or(p.spec.FailureBudget, defaultFailureBudget))},
	}
	if opens, _ := p.spec.Window.At(p.Now); opens.After(p.Now) {
		in.NotBefore = opens
	}
	for i := range p.attempts {
		in.Targets = append(in.Targets, p.target(&p.attempts[i]))
	}
	if why := p.missingArtifact(); why != "" {
		p.rollout.Reason, p.rollout.Message = ReasonNoArtifact, why
		if !in.Paused && !in.Unconfirmed && in.NotBefore.IsZero() {
			p.withoutArtifact(why)
		}
		return
	}
	d := rollout.Plan(in)
	p.rollout.Reason, p.rollout.Message = string(d.Reason), d.Message
	p.lookAgainAt(d.Again)
	started := make(map[string]bool, len(d.Started))
	for _, name := range d.Started {
		started[name] = true
	}
	for i := range p.attempts {
		n := &p.attempts[i]
		a := p.newest(n)
		if a == nil || a.OperationStatus != resource.UpgradePending {
			continue
		}
		a.Reason = in.Targets[i].HeldReason
		switch node := p.nodes[n.NodeName]; {
		case started[n.NodeName]:
			a.OperationStatus, a.Reason, a.StartedAt = resource.Upgrading, "", p.stamp()
			p.lookAgainAt(p.deadline(*a))
			p.plan.Changed = append(p.plan.Changed, n.NodeName)
		case !node.Exists:
			a.Reason = "NotFound: there is no Node " + n.NodeName
		case node.OverHTTP:
			a.Reason = "NoCore: the node speaks HTTP only, and begins when its core connects"
		case !node.Online:
			a.Reason = "Offline: the node begins when it is online again"
		}
	}
}

// ReasonNoArtifact is the reason of an Upgrade that begins with no node because its Artifact is missing.
const ReasonNoArtifact = "NoArtifact"

// withoutArtifact ends the attempts of a run whose Artifact is still missing after the time that a node would have.
func (p *planner) withoutArtifact(why string) {
	since, _ := time.Parse(time.RFC3339, p.rollout.Started)
	if due := since.Add(p.timeout); p.Now.Before(due) {
		p.lookAgainAt(due)
		return
	}
	for i := range p.attempts {
		if a := p.newest(&p.attempts[i]); a != nil && a.OperationStatus == resource.UpgradePending {
			a.OperationStatus, a.EndedAt = resource.UpgradeRolledBack, p.stamp()
			a.Reason = objects.ClipText(fmt.Sprintf("%s: %s; it was not there within %s, and the node was told nothing", ReasonNoArtifact, why, p.timeout), maxReason)
			p.plan.Changed = append(p.plan.Changed, p.attempts[i].NodeName)
		}
	}
}

// target is a node as the engine has it.
func (p *planner) target(n *resource.UpgradeNode) rollout.Target {
	node := p.nodes[n.NodeName]
	t := rollout.Target{Name: n.NodeName, Labels: node.Labels, Online: node.Exists && node.Online, Available: node.Online}
	a := p.newest(n)
	switch {
	case a == nil || a.OperationStatus == resource.UpgradeSuccess:
		t.State = rollout.Done
	case a.OperationStatus == resource.UpgradePending:
		t.HeldReason = p.heldReason(node)
	case a.Open():
		t.State = rollout.Updating
		t.Since, _ = time.Parse(time.RFC3339, a.StartedAt)
	default:
		t.State = rollout.Failed
	}
	return t
}

// heldReason is why a node that is pending can't be told to begin.
func (p *planner) heldReason(node NodeState) string {
	r := p.report(node.Name)
	switch {
	case node.EarlierUpgrade != "":
		return "WaitingForUpgrade: the Upgrade " + node.EarlierUpgrade + " is to be done with the node first"
	case r != nil && r.Wait && r.Step == resource.StepReady:
		return ""
	case p.spec.RequireNodeConfirmation, r != nil && r.Wait:
		return objects.ClipText("WaitingForOwner: the node's owner has to release it by edgeagent upgrade release", maxReason)
	case node.Report != nil && node.Report.Held != "":
		return objects.ClipText("Held: "+node.Report.Held, maxReason)
	}
	return ""
}

// makeOrder makes the order that a node is to have.
func (p *planner) makeOrder(n resource.UpgradeNode) {
	a := p.newest(&n)
	if a == nil || !a.Open() || !p.nodes[n.NodeName].Exists {
		return
	}
	wait := a.OperationStatus == resource.UpgradePending
	if wait && !p.announced(n.NodeName) {
		return
	}
	o := resource.UpgradeOrder{
		ID: p.id, Upgrade: p.Upgrade.Metadata.Name, Version: p.spec.Version, Settings: p.spec.Settings, Images: p.spec.Images, Wait: wait || a.Step == resource.StepHeld, Confirm: p.spec.RequireNodeConfirmation,
		Installer: strings.Fields(p.spec.UpgradeInstaller), Command: strings.Fields(p.spec.UpgradeCmd),
		AllowDowngrade: p.spec.AllowDowngrade, Checks: p.spec.Checks, Timeout: max(1, int64(p.timeout/time.Second)),
	}
	if p.Artifact != nil && p.spec.Version != "" {
		o.Manifest, o.Signature, o.Source = p.Artifact.Spec.Manifest, p.Artifact.Spec.Signature, p.Artifact.Spec.Source
	}
	if !wait {
		o.Begun = a.StartedAt
	}
	if !wait && p.spec.Window != nil {
		began, _ := time.Parse(time.RFC3339, a.StartedAt)
		_, closes := p.spec.Window.At(began)
		o.SwitchBefore = closes.UTC().Format(time.RFC3339)
	}
	p.plan.Orders[n.NodeName] = o
}

// summary counts the nodes.
func (p *planner) summary() *resource.UpgradeRollout {
	if p.rollout.Run == 0 {
		return nil
	}
	s := p.rollout
	s.Nodes, s.Pending, s.Upgrading, s.Succeeded, s.Failed, s.Away = len(p.attempts), 0, 0, 0, 0, 0
	for i := range p.attempts {
		switch a := p.newest(&p.attempts[i]); {
		case a == nil:
		case a.OperationStatus == resource.UpgradeSuccess:
			s.Succeeded++
			if a.AwaySince != "" {
				s.Away++
			}
		case a.OperationStatus == resource.UpgradePending:
			s.Pending++
		case a.Open():
			s.Upgrading++
		default:
			s.Failed++
		}
	}
	return &s
}
