// SPDX-License-Identifier: Apache-2.0

// Package rollout decides which targets of a rollout are to be started now, and says why no more are. A target is a node that
// is to become something else: a fleet's next template version, or another version of the edge core.
//
// Plan is a pure function. All that it has to remember between two calls is in its input: the batch of each target and the
// Progress of the last decision, which the caller stores before it starts what was decided. So a rollout goes on after any
// restart, and starts nothing twice. The package never reads a clock, an object or a topic.
package rollout

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// State is how far a target is.
type State uint8

// The states of a target.
const (
	Pending  State = iota // it has not been started
	Updating              // it was started and has not answered
	Done                  // it is as it should be
	Failed                // it said that it can't
)

// Target is one node of a rollout.
type Target struct {
	Name   string
	Labels map[string]string
	State  State
	// Busy says that it is amid an update, to whatever version: its state is how far it is with this one.
	Busy bool
	// Since is when it was started, of a target that is Updating or Busy.
	Since time.Time
	// Batch is the batch that it was selected for, as the last decision said; 0: none.
	Batch int
	// Online reports whether it can be reached, Available whether it does its work. One that is offline is not available.
	Online, Available bool
	// NotBefore is when its own window opens; the zero time: it is open.
	NotBefore time.Time
	// WaitsForWindow says that it was started and waits for its own window, which it does without timing out.
	WaitsForWindow bool
	// HeldReason is why its owner doesn't want it to be started; empty: he doesn't mind.
	HeldReason string
}

// Amount is a number, or a percentage of another number.
type Amount struct {
	Value   int
	Percent bool
}

// Of is the amount of n, rounded up.
func (a Amount) Of(n int) int {
	if !a.Percent {
		return a.Value
	}
	return (n*a.Value + 99) / 100
}

// ParseAmount reads a number, or a percentage such as 10%; nil: the text is neither.
func ParseAmount(text string) *Amount {
	digits, percent := strings.CutSuffix(text, "%")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return nil
	}
	return &Amount{Value: n, Percent: percent}
}

// Batch is a part of the targets that is finished before the next one begins.
type Batch struct {
	// Matches says by its labels whether a target may be in the batch; nil: any.
	Matches func(labels map[string]string) bool
	// Limit is how many of those that match and were in no earlier batch are selected, a percentage that of all that match;
	// nil: all of them.
	Limit *Amount
	// Success is the percentage of the batch that must be Done before the next one begins; nil: that of the Policy.
	Success *int
}

// Budget bounds how many targets are not available at a time.
type Budget struct {
	// GroupBy are labels: targets with the same values of them are a group, and the budget is each group's. None: all
	// targets are one group.
	GroupBy []string
	// MinAvailable is how many of a group must stay available, MaxUnavailable how many may be not available. Those that
	// are not available for other reasons count, too. nil: no bound.
	MinAvailable, MaxUnavailable *int
}

// Policy is how a rollout goes.
type Policy struct {
	// Batches are in order; after them all targets that are left are the last batch.
	Batches []Batch
	// Success is the percentage of a batch that must be Done before the next one begins.
	Success int
	// Concurrency is how many targets are Updating or Busy at a time; 0: no bound. A target that has timed out doesn't count.
	Concurrency int
	Budget      Budget
	// Failures is how many targets may fail or time out; more of them stop the rollout. nil: no bound.
	Failures *Amount
	// Timeout is when a target that was started and didn't answer counts as failed, and when a batch no longer waits for
	// a target that is offline. 0: never.
	Timeout time.Duration
}

// Progress is what a decision hands on to the next one. The zero value is the beginning.
type Progress struct {
	// Batch is the batch that is under way, counted from 1.
	Batch int
	// Since is when it began.
	Since time.Time
}

// Input is all that a decision depends on.
type Input struct {
	Now      time.Time
	Policy   Policy
	Progress Progress
	Targets  []Target
	Paused   bool
	// Unconfirmed says that a user has to confirm the rollout before anything is started.
	Unconfirmed bool
	// NotBefore is when the rollout's window opens; the zero time: it is open.
	NotBefore time.Time
}

// Reason is why a target is not started, or why a rollout doesn't go on.
type Reason string

// The reasons. The first four concern the whole rollout.
const (
	Paused                  Reason = "Paused"
	Unconfirmed             Reason = "WaitingForConfirmation"
	OutsideWindow           Reason = "OutsideWindow"
	Halted                  Reason = "Halted" // too many have failed
	LaterBatch              Reason = "LaterBatch"
	ConcurrencyReached      Reason = "ConcurrencyReached"
	DisruptionBudgetReached Reason = "DisruptionBudgetReached"
	Offline                 Reason = "Offline"
	OnHold                  Reason = "OnHold"
	OutsideTargetsWindow    Reason = "OutsideTargetsWindow"
)

// Decision is what to do now.
type Decision struct {
	// Progress is to be stored, and each of Selected to be marked with its batch, before Started are started.
	Progress Progress
	Selected map[string]int
	// Started are the targets to start now. They are selected, online and pending.
	Started []string
	// Finished says that every target is Done, Complete that the last batch is over, and each succeeded: at most some
	// failed or are offline.
	Finished, Complete bool
	// Reason is why nothing was started, or why no more were; empty if every target was started or is Done.
	Reason Reason
	// Message says the same to people.
	Message string
	// Waiting counts the targets that are pending and not started, by reason.
	Waiting map[Reason]int
	// Counts of all targets. TimedOut ones are neither Updating nor Failed.
	Pending, Updating, Done, Failed, TimedOut int
	// Batches is how many batches there are, the last one of what is left included.
	Batches int
	// Again is when the decision changes by itself; the zero time: it doesn't.
	Again time.Time
}

// Plan decides.
func Plan(in Input) Decision {
	p := &planner{Input: in, decision: Decision{Waiting: make(map[Reason]int), Selected: make(map[string]int), Batches: len(in.Policy.Batches) + 1}}
	p.Targets = slices.Clone(in.Targets)
	slices.SortFunc(p.Targets, func(a, b Target) int { return cmp.Compare(a.Name, b.Name) })
	p.decision.Progress = in.Progress
	p.decision.Progress.Batch = min(p.decision.Progress.Batch, p.decision.Batches) // the policy may have lost batches since
	for i := range p.Targets {
		p.Targets[i].Batch = min(p.Targets[i].Batch, p.decision.Batches)
	}
	p.count()
	if p.stopped() {
		if goesOn := in; in.Paused || in.Unconfirmed || in.Now.Before(in.NotBefore) { // none of these hides that it has failed
			goesOn.Paused, goesOn.Unconfirmed, goesOn.NotBefore = false, false, time.Time{}
			if d := Plan(goesOn); d.Reason == Halted {
				return d
			}
		}
		p.waitAll(p.decision.Reason)
		return p.decision
	}
	for p.selectBatch(); p.batchOver() && p.decision.Progress.Batch < p.decision.Batches; p.selectBatch() {
		if !p.succeeded() {
			p.waitAll(Halted)
			return p.decision
		}
		p.decision.Progress = Progress{Batch: p.decision.Progress.Batch + 1, Since: p.Now}
	}
	if p.cannotSucceed() {
		p.waitAll(Halted)
		return p.decision
	}
	p.decision.Complete = p.decision.Progress.Batch == p.decision.Batches && p.batchOver() && p.hasSucceeded()
	p.start()
	p.explain()
	return p.decision
}

type planner struct {
	Input
	decision Decision
}

// timedOut reports whether a target was started too long ago.
func (p *planner) timedOut(t Target) bool { return t.State == Updating && p.isLate(t) }

func (p *planner) isLate(t Target) bool {
	return !t.WaitsForWindow && p.Policy.Timeout > 0 && !p.Now.Before(t.Since.Add(p.Policy.Timeout))
}

// otherwiseBusy reports whether a target is amid another update than this one, and takes a place of the concurrency. When it is
// started it keeps that place.
func (p *planner) otherwiseBusy(t Target) bool { return t.Busy && t.State != Updating && !p.isLate(t) }

// count counts the targets, and notes when the next of them times out.
func (p *planner) count() {
	for _, t := range p.Targets {
		switch {
		case t.State == Pending:
			p.decision.Pending++
		case t.State == Done:
			p.decision.Done++
		case t.State == Failed:
			p.decision.Failed++
		case p.timedOut(t):
			p.decision.TimedOut++
		default:
			p.decision.Updating++
			if p.Policy.Timeout > 0 && !t.WaitsForWindow {
				p.lookAgainAt(t.Since.Add(p.Policy.Timeout))
			}
		}
	}
	p.decision.Finished = p.decision.Done == len(p.Targets)
	p.decision.Complete = p.decision.Finished
}

func (p *planner) lookAgainAt(at time.Time) {
	if at.After(p.Now) && (p.decision.Again.IsZero() || at.Before(p.decision.Again)) {
		p.decision.Again = at
	}
}

// stopped reports whether nothing at all may be started.
func (p *planner) stopped() bool {
	failed := p.decision.Failed + p.decision.TimedOut
	switch most := p.Policy.Failures; {
	case p.decision.Finished:
	case most != nil && failed > most.Of(len(p.Targets)):
		p.stop(Halted, "%d of %d failed, and at most %d may", failed, len(p.Targets), most.Of(len(p.Targets)))
	case p.Paused:
		p.stop(Paused, "the rollout is paused")
	case p.Unconfirmed:
		p.stop(Unconfirmed, "somebody has to confirm the rollout")
	case p.Now.Before(p.NotBefore):
		p.stop(OutsideWindow, "the next window opens at %s", p.NotBefore.Format(time.RFC3339))
		p.lookAgainAt(p.NotBefore)
	}
	return p.decision.Finished || p.decision.Reason != ""
}

func (p *planner) stop(why Reason, format string, args ...any) {
	p.decision.Reason, p.decision.Message = why, fmt.Sprintf(format, args...)
}

func (p *planner) waitAll(why Reason) {
	if p.decision.Pending > 0 {
		p.decision.Waiting = map[Reason]int{why: p.decision.Pending}
	}
}

// selectBatch fills the batch that is under way. It may have been filled before in part, when the hub stopped between two
// writes; and a target that has got other labels since then stays in the batch that it was selected for.
func (p *planner) selectBatch() {
	if p.decision.Progress.Batch == 0 {
		p.decision.Progress = Progress{Batch: 1, Since: p.Now}
	}
	n := p.decision.Progress.Batch
	b := Batch{}
	if n <= len(p.Policy.Batches) {
		b = p.Policy.Batches[n-1]
	}
	var free []*Target
	selected, matching := 0, 0
	for i := range p.Targets {
		t := &p.Targets[i]
		matches := b.Matches == nil || b.Matches(t.Labels)
		switch {
		case t.Batch == n:
			selected++
			matching++
		case matches && t.Batch == 0:
			free = append(free, t)
			matching++
		case matches:
			matching++
		}
	}
	// Those that are amid another update first: they are not available until they have this one, so that others would wait for them.
	slices.SortStableFunc(free, func(a, b *Target) int {
		switch {
		case a.Busy == b.Busy:
			return 0
		case a.Busy:
			return -1
		}
		return 1
	})
	most := len(free)
	if b.Limit != nil {
		most = min(most, max(0, b.Limit.Of(matching)-selected))
	}
	for _, t := range free[:most] {
		t.Batch = n
		p.decision.Selected[t.Name] = n
	}
}

// countBatch calls each for the targets of the batch that is under way, and counts them.
func (p *planner) countBatch(each func(t Target)) (n int) {
	for _, t := range p.Targets {
		if t.Batch == p.decision.Progress.Batch {
			n++
			each(t)
		}
	}
	return n
}

// batchOver reports whether no target of the batch is waited for.
func (p *planner) batchOver() bool {
	over := true
	p.countBatch(func(t Target) {
		switch {
		case t.State == Done || t.State == Failed || p.timedOut(t):
		case t.State == Pending && !t.Online && p.Policy.Timeout > 0 && !p.Now.Before(p.decision.Progress.Since.Add(p.Policy.Timeout)):
		default:
			over = false
			if t.State == Pending && !t.Online && p.Policy.Timeout > 0 {
				p.lookAgainAt(p.decision.Progress.Since.Add(p.Policy.Timeout))
			}
		}
	})
	return over
}

// neededOf is how many of the n targets of the batch must be Done.
func (p *planner) neededOf(n int) int {
	percent := p.Policy.Success
	if b := p.decision.Progress.Batch; b <= len(p.Policy.Batches) && p.Policy.Batches[b-1].Success != nil {
		percent = *p.Policy.Batches[b-1].Success
	}
	return Amount{Value: percent, Percent: true}.Of(n)
}

// result is how many targets the batch has, and how many of them are Done.
func (p *planner) result() (done, n int) {
	n = p.countBatch(func(t Target) {
		if t.State == Done {
			done++
		}
	})
	return done, n
}

func (p *planner) hasSucceeded() bool {
	done, n := p.result()
	return done >= p.neededOf(n)
}

// succeeded reports whether enough of a batch that is over are Done, and stops the rollout otherwise.
func (p *planner) succeeded() bool {
	if p.hasSucceeded() {
		return true
	}
	done, n := p.result()
	p.stop(Halted, "batch %d of %d: %d of %d succeeded, and %d are needed", p.decision.Progress.Batch, p.decision.Batches, done, n, p.neededOf(n))
	return false
}

// cannotSucceed reports whether so many of the batch have failed that it can't succeed any more.
func (p *planner) cannotSucceed() bool {
	failed := 0
	n := p.countBatch(func(t Target) {
		if t.State == Failed || p.timedOut(t) {
			failed++
		}
	})
	if n-failed >= p.neededOf(n) {
		return false
	}
	p.stop(Halted, "batch %d of %d: %d of %d failed, and %d must succeed", p.decision.Progress.Batch, p.decision.Batches, failed, n, p.neededOf(n))
	return true
}

// group is what a target has in common with those of its group.
func (b Budget) group(t Target) string {
	var values []string
	for _, label := range b.GroupBy {
		v, ok := t.Labels[label]
		values = append(values, fmt.Sprintf("%t %s", ok, v))
	}
	return strings.Join(values, "\n")
}

type budgetGroup struct{ all, available int }

// takes reports whether one target more of a group may become unavailable.
func (b Budget) takes(g *budgetGroup) bool {
	return (b.MinAvailable == nil || g.available-1 >= *b.MinAvailable) &&
		(b.MaxUnavailable == nil || g.all-g.available+1 <= *b.MaxUnavailable)
}

// start starts what may be started.
func (p *planner) start() {
	groups := make(map[string]*budgetGroup)
	for _, t := range p.Targets {
		key := p.Policy.Budget.group(t)
		if groups[key] == nil {
			groups[key] = new(budgetGroup)
		}
		groups[key].all++
		if t.works() {
			groups[key].available++
		}
	}
	updating := p.decision.Updating
	for _, t := range p.Targets {
		if p.otherwiseBusy(t) {
			updating++
			if p.Policy.Timeout > 0 && !t.WaitsForWindow {
				p.lookAgainAt(t.Since.Add(p.Policy.Timeout))
			}
		}
	}
	for _, t := range p.Targets {
		if t.State != Pending {
			continue
		}
		g := groups[p.Policy.Budget.group(t)]
		if why := p.waitReason(t, g, updating); why != "" {
			p.decision.Waiting[why]++
			continue
		}
		if !p.otherwiseBusy(t) {
			updating++
		}
		if t.works() {
			g.available--
		}
		p.decision.Started = append(p.decision.Started, t.Name)
	}
	p.decision.Updating += len(p.decision.Started)
	p.decision.Pending -= len(p.decision.Started)
	if len(p.decision.Started) > 0 && p.Policy.Timeout > 0 {
		p.lookAgainAt(p.Now.Add(p.Policy.Timeout))
	}
}

// works reports whether a target counts as available: one that is being updated may stop at any moment.
func (t Target) works() bool { return t.Online && t.Available && t.State != Updating && !t.Busy }

// waitReason is why a pending target can't be started; empty: it can.
func (p *planner) waitReason(t Target, g *budgetGroup, updating int) Reason {
	switch {
	case t.Batch == 0 || t.Batch > p.decision.Progress.Batch:
		return LaterBatch
	case !t.Online:
		return Offline
	case t.HeldReason != "":
		return OnHold
	case p.Now.Before(t.NotBefore):
		p.lookAgainAt(t.NotBefore)
		return OutsideTargetsWindow
	case p.Policy.Concurrency > 0 && updating >= p.Policy.Concurrency && !p.otherwiseBusy(t):
		return ConcurrencyReached
	case t.works() && !p.Policy.Budget.takes(g):
		return DisruptionBudgetReached
	}
	return ""
}

// explain says why no more was started: the reason that the most targets wait for, those of later batches aside.
func (p *planner) explain() {
	waiting := maps.Clone(p.decision.Waiting)
	if len(waiting) > 1 {
		delete(waiting, LaterBatch)
	}
	for _, why := range slices.Sorted(maps.Keys(waiting)) {
		if p.decision.Reason == "" || waiting[why] > waiting[p.decision.Reason] {
			p.decision.Reason = why
		}
	}
	n := waiting[p.decision.Reason]
	switch p.decision.Reason {
	case LaterBatch:
		p.decision.Message = fmt.Sprintf("%d %s for batch %d of %d, of which %d %s under way", n, verb(n, "waits", "wait"), p.decision.Progress.Batch, p.decision.Batches, p.decision.Updating, verb(p.decision.Updating, "is", "are"))
	case ConcurrencyReached:
		p.decision.Message = fmt.Sprintf("%d %s: %d %s under way, and at most %d may be",
			n, verb(n, "waits", "wait"), p.decision.Updating, verb(p.decision.Updating, "is", "are"), p.Policy.Concurrency)
	case DisruptionBudgetReached:
		p.decision.Message = fmt.Sprintf("%d %s: the disruption budget lets no more nodes of a group become unavailable", n, verb(n, "waits", "wait"))
	case Offline:
		p.decision.Message = fmt.Sprintf("%d %s offline", n, verb(n, "is", "are"))
	case OnHold:
		i := slices.IndexFunc(p.Targets, func(t Target) bool { return t.State == Pending && t.HeldReason != "" })
		p.decision.Message = fmt.Sprintf("%d %s held; the first one: %s: %s", n, verb(n, "is", "are"), p.Targets[i].Name, p.Targets[i].HeldReason)
	case OutsideTargetsWindow:
		p.decision.Message = fmt.Sprintf("%d %s for a window", n, verb(n, "waits", "wait"))
	}
}

// verb is the form of a verb that n of something take.
func verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
