// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var startTime = time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)

func makeTargets(n int, change ...func(t *Target)) (list []Target) {
	for i := range n {
		t := Target{Name: fmt.Sprintf("n%02d", i), Online: true, Available: true, Labels: map[string]string{"site": fmt.Sprint(i % 2)}}
		for _, f := range change {
			f(&t)
		}
		list = append(list, t)
	}
	return list
}

func ptr[T any](v T) *T { return &v }

func matchSite(s string) func(map[string]string) bool {
	return func(labels map[string]string) bool { return labels["site"] == s }
}

func TestPlan(t *testing.T) {
	tenPercent := Batch{Limit: &Amount{10, true}}
	for name, c := range map[string]struct {
		in      Input
		started int
		reason  Reason
		message string
		batch   int
	}{
		"all at once":      {in: Input{Targets: makeTargets(5)}, started: 5, batch: 1},
		"nothing to do":    {in: Input{Targets: makeTargets(5, func(t *Target) { t.State = Done })}, batch: 0},
		"concurrency":      {in: Input{Targets: makeTargets(5), Policy: Policy{Concurrency: 2}}, started: 2, reason: ConcurrencyReached, message: "3 wait: 2 are under way, and at most 2 may be", batch: 1},
		"first batch":      {in: Input{Targets: makeTargets(20), Policy: Policy{Batches: []Batch{tenPercent}}}, started: 2, reason: LaterBatch, message: "18 wait for batch 1 of 2, of which 2 are under way", batch: 1},
		"by label":         {in: Input{Targets: makeTargets(20), Policy: Policy{Batches: []Batch{{Matches: matchSite("1"), Limit: &Amount{Value: 3}}}}}, started: 3, reason: LaterBatch, batch: 1},
		"nobody matches":   {in: Input{Targets: makeTargets(4), Policy: Policy{Batches: []Batch{{Matches: matchSite("x")}}}}, started: 4, batch: 2},
		"paused":           {in: Input{Targets: makeTargets(5), Paused: true}, reason: Paused, message: "the rollout is paused"},
		"unconfirmed":      {in: Input{Targets: makeTargets(5), Unconfirmed: true}, reason: Unconfirmed},
		"closed":           {in: Input{Targets: makeTargets(5), NotBefore: startTime.Add(time.Hour)}, reason: OutsideWindow, message: "the next window opens at 2026-11-22T11:00:00Z"},
		"offline":          {in: Input{Targets: makeTargets(5, func(t *Target) { t.Online = t.Name != "n03" })}, started: 4, reason: Offline, message: "1 is offline", batch: 1},
		"held":             {in: Input{Targets: makeTargets(2, func(t *Target) { t.HeldReason = "a race is on" })}, reason: OnHold, batch: 1},
		"own window":       {in: Input{Targets: makeTargets(2, func(t *Target) { t.NotBefore = startTime.Add(time.Hour) })}, reason: OutsideTargetsWindow, batch: 1},
		"unavailable":      {in: Input{Targets: makeTargets(6), Policy: Policy{Budget: Budget{GroupBy: []string{"site"}, MaxUnavailable: ptr(1)}}}, started: 2, reason: DisruptionBudgetReached, batch: 1},
		"available":        {in: Input{Targets: makeTargets(6), Policy: Policy{Budget: Budget{MinAvailable: ptr(4)}}}, started: 2, reason: DisruptionBudgetReached, batch: 1},
		"others are away":  {in: Input{Targets: makeTargets(6, func(t *Target) { t.Available = t.Name > "n01" }), Policy: Policy{Budget: Budget{MaxUnavailable: ptr(2)}}}, started: 2, reason: DisruptionBudgetReached, batch: 1},
		"others are busy":  {in: Input{Targets: makeTargets(6, func(t *Target) { t.Busy = t.Name > "n03" }), Policy: Policy{Budget: Budget{MaxUnavailable: ptr(2)}}}, started: 2, reason: DisruptionBudgetReached, batch: 1},
		"places are taken": {in: Input{Targets: makeTargets(6, func(t *Target) { t.Busy = t.Name == "n05" }), Policy: Policy{Concurrency: 2}}, started: 2, reason: ConcurrencyReached, batch: 1},
		"the busy go first": {in: Input{
			Targets: makeTargets(6, func(t *Target) { t.Busy = t.Name == "n05" }),
			Policy:  Policy{Batches: []Batch{{Limit: &Amount{Value: 1}}}, Budget: Budget{MaxUnavailable: ptr(1)}},
		}, started: 1, reason: LaterBatch, batch: 1},
		"too many failed": {in: Input{Targets: makeTargets(10, failIf("n00", "n01")), Policy: Policy{Failures: &Amount{10, true}}}, reason: Halted, message: "2 of 10 failed, and at most 1 may"},
		"hopeless": {
			in: Input{Targets: makeTargets(10, failIf("n00"), inBatch(1, "n00", "n01")), Progress: Progress{1, startTime}, Policy: Policy{Success: 100, Batches: []Batch{{Limit: &Amount{2, false}}}}}, reason: Halted,
			message: "batch 1 of 2: 1 of 2 failed, and 2 must succeed", batch: 1,
		},
		"threshold": {
			in:      Input{Now: startTime.Add(time.Hour), Targets: makeTargets(10, doneIf("n00"), offlineIf("n01"), inBatch(1, "n00", "n01")), Progress: Progress{1, startTime}, Policy: Policy{Success: 90, Timeout: time.Minute, Batches: []Batch{{Limit: &Amount{2, false}}}}},
			reason:  Halted,
			message: "batch 1 of 2: 1 of 2 succeeded, and 2 are needed", batch: 1,
		},
		"the policy has lost batches": {
			in: Input{Targets: makeTargets(4, doneIf("n00"), inBatch(4, "n00"), inBatch(3, "n01")), Progress: Progress{4, startTime}, Policy: Policy{Batches: []Batch{{}}}}, started: 3, batch: 2,
		},
		"offline ones are waited for": {
			in:     Input{Targets: makeTargets(4, doneIf("n00"), offlineIf("n01"), inBatch(1, "n00", "n01")), Progress: Progress{1, startTime}, Policy: Policy{Success: 50, Timeout: time.Minute, Batches: []Batch{{Limit: &Amount{2, false}}}}},
			reason: Offline, batch: 1,
		},
		"but not for ever": {
			in:      Input{Now: startTime.Add(time.Minute), Targets: makeTargets(4, doneIf("n00"), offlineIf("n01"), inBatch(1, "n00", "n01")), Progress: Progress{1, startTime}, Policy: Policy{Success: 50, Timeout: time.Minute, Batches: []Batch{{Limit: &Amount{2, false}}}}},
			started: 2, reason: Offline, batch: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.in.Now.IsZero() {
				c.in.Now = startTime
			}
			d := Plan(c.in)
			require.Len(t, d.Started, c.started)
			require.Equal(t, c.reason, d.Reason, "%+v", d)
			require.Equal(t, c.batch, d.Progress.Batch)
			if c.message != "" {
				require.Equal(t, c.message, d.Message)
			}
			require.Equal(t, d.Reason == "", d.Message == "")
		})
	}
}

func failIf(names ...string) func(*Target) { return setIf(names, func(t *Target) { t.State = Failed }) }
func doneIf(names ...string) func(*Target) { return setIf(names, func(t *Target) { t.State = Done }) }
func offlineIf(names ...string) func(*Target) {
	return setIf(names, func(t *Target) { t.Online = false })
}

func inBatch(n int, names ...string) func(*Target) {
	return setIf(names, func(t *Target) { t.Batch = n })
}

func setIf(names []string, set func(*Target)) func(*Target) {
	return func(t *Target) {
		if slices.Contains(names, t.Name) {
			set(t)
		}
	}
}

func TestAgainIsWhenSomethingTimesOut(t *testing.T) {
	in := Input{Now: startTime, Policy: Policy{Timeout: time.Minute, Success: 100}, Targets: makeTargets(2, offlineIf("n01"))}
	d := Plan(in)
	require.Equal(t, startTime.Add(time.Minute), d.Again)
	in.Progress, in.Now = d.Progress, startTime.Add(time.Minute)
	in.Targets[0].State, in.Targets[0].Since, in.Targets[0].Batch = Updating, startTime, 1
	d = Plan(in)
	require.Equal(t, 1, d.TimedOut)
	require.Equal(t, Halted, d.Reason)
	require.Zero(t, d.Again)
}

// simulatedWorld is what a rollout meets: nodes that answer or don't, and a hub that stops between any two of its writes.
type simulatedWorld struct {
	in      Input
	plan    func(Input) Decision
	started map[string]int
}

// step asks for a decision, checks it, and does what it says, up to a crash.
func (w *simulatedWorld) step(crash int) (Decision, error) {
	in := w.in
	in.Targets = slices.Clone(w.in.Targets)
	d := w.plan(in)
	if err := w.check(d); err != nil {
		return d, err
	}
	writes := 0
	alive := func() bool { writes++; return writes != crash }
	if !alive() {
		return d, nil
	}
	w.in.Progress = d.Progress
	for _, name := range slices.Sorted(maps.Keys(d.Selected)) {
		if !alive() {
			return d, nil
		}
		w.target(name).Batch = d.Selected[name]
	}
	for _, name := range d.Started {
		if !alive() {
			return d, nil
		}
		t := w.target(name)
		t.State, t.Since, t.Busy = Updating, w.in.Now, true
		w.started[name]++
	}
	return d, nil
}

func (w *simulatedWorld) target(name string) *Target {
	i := slices.IndexFunc(w.in.Targets, func(t Target) bool { return t.Name == name })
	return &w.in.Targets[i]
}

// check says which promise a decision breaks. It is written without any code of Plan.
func (w *simulatedWorld) check(d Decision) error {
	in, p := w.in, w.in.Policy
	lost := func(t Target) bool {
		return t.State == Updating && p.Timeout > 0 && in.Now.Sub(t.Since) >= p.Timeout
	}
	failed, updating := 0, 0
	for _, t := range in.Targets {
		switch {
		case t.State == Failed || lost(t):
			failed++
		case t.State == Updating:
			updating++
		}
	}
	if err := w.checkSelection(d); err != nil {
		return err
	}
	if err := w.checkComplete(d); err != nil {
		return err
	}
	if len(d.Started) == 0 {
		return w.checkBatches(d, lost)
	}
	if in.Paused || in.Unconfirmed || in.Now.Before(in.NotBefore) {
		return errors.New("started although nothing may be")
	}
	if p.Failures != nil {
		most := p.Failures.Value
		if p.Failures.Percent {
			most = (len(in.Targets)*most + 99) / 100
		}
		if failed > most {
			return fmt.Errorf("started although %d failed", failed)
		}
	}
	places := len(d.Started)
	for _, t := range in.Targets {
		if late := p.Timeout > 0 && in.Now.Sub(t.Since) >= p.Timeout; t.Busy && t.State != Updating && !late {
			updating++
			if slices.Contains(d.Started, t.Name) {
				places-- // it keeps the one that it has
			}
		}
	}
	if places > 0 && p.Concurrency > 0 && updating+places > p.Concurrency {
		return fmt.Errorf("%d are updating, and %d are started", updating, len(d.Started))
	}
	for _, name := range d.Started {
		t := *w.target(name)
		switch {
		case w.started[name] > 0 || t.State != Pending:
			return fmt.Errorf("%s was started before", name)
		case !t.Online || t.HeldReason != "" || in.Now.Before(t.NotBefore):
			return fmt.Errorf("%s can't be started", name)
		case t.Batch == 0 && d.Selected[name] == 0:
			return fmt.Errorf("%s is not in a batch", name)
		case min(t.Batch, len(p.Batches)+1) > d.Progress.Batch: // the policy may have lost batches
			return fmt.Errorf("%s is of a later batch", name)
		}
	}
	if err := w.checkBudget(d); err != nil {
		return err
	}
	return w.checkBatches(d, lost)
}

// checkComplete checks that no target of the last batch of a complete rollout could have been started. One of an earlier batch that
// was offline may come back later.
func (w *simulatedWorld) checkComplete(d Decision) error {
	if !d.Complete {
		return nil
	}
	last := len(w.in.Policy.Batches) + 1
	for _, t := range w.in.Targets {
		if of := cmp.Or(t.Batch, d.Selected[t.Name]); t.State == Pending && t.Online && (of == 0 || of >= last) {
			return fmt.Errorf("it is complete, and %s was not started", t.Name)
		}
	}
	return nil
}

// checkSelection checks that batches have no more than their limits, and only what matches.
func (w *simulatedWorld) checkSelection(d Decision) error {
	for n, b := range w.in.Policy.Batches {
		n++
		matching, in, selected := 0, 0, 0
		for _, t := range w.in.Targets {
			matches := b.Matches == nil || b.Matches(t.Labels)
			now := d.Selected[t.Name] == n
			if now && (!matches || t.Batch != 0) {
				return fmt.Errorf("%s was selected for batch %d", t.Name, n)
			}
			if now {
				selected++
			}
			if now || t.Batch == n {
				in++
			}
			if matches || t.Batch == n {
				matching++
			}
		}
		if b.Limit == nil || selected == 0 {
			continue
		}
		most := b.Limit.Value
		if b.Limit.Percent {
			most = (matching*most + 99) / 100
		}
		if in > most {
			return fmt.Errorf("batch %d has %d, and its limit is %d", n, in, most)
		}
	}
	return nil
}

func (w *simulatedWorld) checkBudget(d Decision) error {
	b := w.in.Policy.Budget
	type count struct{ down, up, disturbed int }
	groups := map[string]*count{}
	for _, t := range w.in.Targets {
		key := ""
		for _, label := range b.GroupBy {
			key += "/" + t.Labels[label]
		}
		if groups[key] == nil {
			groups[key] = new(count)
		}
		g, works := groups[key], t.Online && t.Available && t.State != Updating && !t.Busy
		begins := slices.Contains(d.Started, t.Name)
		if works && begins {
			g.disturbed++
		}
		if works && !begins {
			g.up++
		} else {
			g.down++
		}
	}
	for key, g := range groups {
		if g.disturbed > 0 && (b.MaxUnavailable != nil && g.down > *b.MaxUnavailable || b.MinAvailable != nil && g.up < *b.MinAvailable) {
			return fmt.Errorf("group %q has %d available and %d not", key, g.up, g.down)
		}
	}
	return nil
}

// checkBatches checks that the batches which a decision leaves behind are full, over, and succeeded.
func (w *simulatedWorld) checkBatches(d Decision, lost func(Target) bool) error {
	p := w.in.Policy
	for n := max(1, w.in.Progress.Batch); n < d.Progress.Batch; n++ {
		b := p.Batches[n-1]
		all, done, matching, free := 0, 0, 0, 0
		for _, t := range w.in.Targets {
			of := cmp.Or(t.Batch, d.Selected[t.Name])
			matches := b.Matches == nil || b.Matches(t.Labels)
			if matches || of == n {
				matching++
			}
			if matches && t.Batch == 0 && (of == 0 || of > n) {
				free++
			}
			if of != n {
				continue
			}
			all++
			gone := t.State == Pending && !t.Online && p.Timeout > 0 && n == w.in.Progress.Batch && w.in.Now.Sub(w.in.Progress.Since) >= p.Timeout
			switch {
			case t.State == Done:
				done++
			case t.State == Failed || lost(t) || gone:
			default:
				return fmt.Errorf("batch %d was left while %s was %d", n, t.Name, t.State)
			}
		}
		want := p.Success
		if b.Success != nil {
			want = *b.Success
		}
		if done*100 < all*want {
			return fmt.Errorf("batch %d was left with %d of %d", n, done, all)
		}
		if free > 0 && (b.Limit == nil || all < b.Limit.Of(matching)) {
			return fmt.Errorf("batch %d was left with %d, though %d more match", n, all, free)
		}
	}
	return nil
}

func drawAmount(t *rapid.T, name string, most int) *Amount {
	if rapid.Bool().Draw(t, "no "+name) {
		return nil
	}
	if rapid.Bool().Draw(t, name+" in percent") {
		return &Amount{rapid.IntRange(0, 100).Draw(t, name), true}
	}
	return &Amount{rapid.IntRange(0, most).Draw(t, name), false}
}

func drawInt(t *rapid.T, name string, most int) *int {
	return rapid.Ptr(rapid.IntRange(0, most), true).Draw(t, name)
}

func drawPolicy(t *rapid.T, n int) (p Policy) {
	for i := range rapid.IntRange(0, 3).Draw(t, "batches") {
		b := Batch{Limit: drawAmount(t, "limit", n), Success: drawInt(t, "batch's success", 100)}
		if rapid.Bool().Draw(t, "by label") {
			b.Matches = matchSite(fmt.Sprint(i))
		}
		p.Batches = append(p.Batches, b)
	}
	p.Success = rapid.IntRange(0, 100).Draw(t, "success")
	p.Concurrency = rapid.IntRange(0, n).Draw(t, "concurrency")
	p.Budget = Budget{MinAvailable: drawInt(t, "available", n), MaxUnavailable: drawInt(t, "unavailable", n)}
	if rapid.Bool().Draw(t, "grouped") {
		p.Budget.GroupBy = []string{"site"}
	}
	p.Failures = drawAmount(t, "failures", n)
	p.Timeout = time.Duration(rapid.IntRange(0, 5).Draw(t, "timeout")) * time.Minute
	return p
}

func drawWorld(t *rapid.T, plan func(Input) Decision) *simulatedWorld {
	n := rapid.IntRange(1, 12).Draw(t, "nodes")
	w := &simulatedWorld{plan: plan, started: map[string]int{}}
	w.in = Input{Now: startTime, Policy: drawPolicy(t, n), Targets: makeTargets(n, func(x *Target) {
		x.Labels["site"] = fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "site"))
	})}
	return w
}

// disturb is one event: an answer, time, a connection, a label, a policy, somebody who pauses, a window, another version, or the one before again.
func (w *simulatedWorld) disturb(t *rapid.T) {
	x := &w.in.Targets[rapid.IntRange(0, len(w.in.Targets)-1).Draw(t, "target")]
	window := func() time.Time {
		return w.in.Now.Add(time.Duration(rapid.IntRange(-60, 60).Draw(t, "window")) * 5 * time.Second)
	}
	switch rapid.IntRange(0, 12).Draw(t, "event") {
	case 0, 1, 2, 3:
		x.Busy = false
		if x.State == Updating {
			x.State = rapid.SampledFrom([]State{Done, Done, Done, Failed}).Draw(t, "answer")
		}
	case 4:
		w.in.Now = w.in.Now.Add(time.Duration(rapid.IntRange(1, 90).Draw(t, "time")) * 5 * time.Second)
	case 5:
		x.Online = !x.Online
	case 6:
		x.Labels = map[string]string{"site": fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "label"))}
	case 7:
		x.Available = !x.Available
	case 8:
		w.in.Policy = drawPolicy(t, len(w.in.Targets))
	case 9:
		w.in.Paused = !w.in.Paused
		x.HeldReason = rapid.SampledFrom([]string{"", "", "held"}).Draw(t, "held")
	case 10:
		x.NotBefore = window()
	case 11:
		w.in.NotBefore = window()
	case 12:
		w.replace(rapid.Bool().Draw(t, "undo"))
	}
}

// replace rolls out another version: a new one, or the one before, which all targets have that were not started.
func (w *simulatedWorld) replace(undo bool) {
	w.in.Progress, w.started = Progress{}, map[string]int{}
	for i := range w.in.Targets {
		t := &w.in.Targets[i]
		if undo && t.State == Pending {
			t.State = Done
		} else {
			t.State = Pending
		}
		t.Batch = 0 // whoever is amid the version before stays so
	}
}

func (w *simulatedWorld) play(t *rapid.T) error {
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		w.disturb(t)
		if _, err := w.step(rapid.IntRange(0, 8).Draw(t, "crash")); err != nil {
			return err
		}
	}
	return nil
}

func TestNoScheduleBreaksAPromise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		if err := drawWorld(t, Plan).play(t); err != nil {
			t.Fatal(err)
		}
	})
}

// Once everything works and nothing is in the way, a rollout ends.
func TestARolloutEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, Plan)
		w.in.Policy.Budget, w.in.Policy.Concurrency = Budget{}, max(1, w.in.Policy.Concurrency)
		w.in.NotBefore = startTime.Add(time.Hour)
		for i := range w.in.Targets {
			w.in.Targets[i].NotBefore = startTime.Add(time.Duration(rapid.IntRange(0, 200).Draw(t, "window")) * time.Minute)
		}
		undone := rapid.IntRange(0, 20).Draw(t, "undone")
		for n := range 300 {
			if n == undone {
				w.replace(true)
			}
			d, err := w.step(0)
			if err != nil {
				t.Fatal(err)
			}
			if d.Finished {
				return
			}
			answered := false
			for i := range w.in.Targets {
				if x := &w.in.Targets[i]; x.State == Updating {
					x.State, answered = Done, true
				}
				w.in.Targets[i].Busy = false
			}
			if !answered && !d.Again.IsZero() { // nothing happens before
				w.in.Now = d.Again
			}
		}
		t.Fatalf("it did not end: %+v", w.in)
	})
}

// The checker finds what a planner does wrong: otherwise its silence would say nothing.
func TestTheCheckerSeesEachMistake(t *testing.T) {
	for name, wrong := range map[string]func(Input) Decision{
		"no concurrency": func(in Input) Decision { in.Policy.Concurrency = 0; return Plan(in) },
		"one too many": func(in Input) Decision {
			in.Policy.Concurrency += in.Policy.Concurrency / max(1, in.Policy.Concurrency)
			return Plan(in)
		},
		"no budget":    func(in Input) Decision { in.Policy.Budget = Budget{}; return Plan(in) },
		"wrong groups": func(in Input) Decision { in.Policy.Budget.GroupBy = []string{"room"}; return Plan(in) },
		"no batches": func(in Input) Decision {
			last := len(in.Policy.Batches) + 1
			in.Policy.Batches = nil
			d := Plan(in)
			d.Progress.Batch = max(last, in.Progress.Batch)
			return d
		},
		"no limits": func(in Input) Decision {
			in.Policy.Batches = slices.Clone(in.Policy.Batches)
			for i := range in.Policy.Batches {
				in.Policy.Batches[i].Limit = nil
			}
			return Plan(in)
		},
		"any label": func(in Input) Decision {
			in.Policy.Batches = slices.Clone(in.Policy.Batches)
			for i := range in.Policy.Batches {
				in.Policy.Batches[i].Matches = nil
			}
			return Plan(in)
		},
		"no threshold":    func(in Input) Decision { in.Policy.Success = 0; return Plan(in) },
		"failures go on":  func(in Input) Decision { in.Policy.Failures = nil; return Plan(in) },
		"pause is unseen": func(in Input) Decision { in.Paused = false; return Plan(in) },
		"holds are unseen": func(in Input) Decision {
			for i := range in.Targets {
				in.Targets[i].HeldReason = ""
			}
			return Plan(in)
		},
		"updates to another version are unseen": func(in Input) Decision {
			for i := range in.Targets {
				in.Targets[i].Busy = false
			}
			return Plan(in)
		},
		"windows of targets are unseen": func(in Input) Decision {
			for i := range in.Targets {
				in.Targets[i].NotBefore = time.Time{}
			}
			return Plan(in)
		},
		"the rollout's window is unseen": func(in Input) Decision { in.NotBefore = time.Time{}; return Plan(in) },
		"an undo goes on where the other version was": func() func(in Input) Decision {
			var last Progress
			return func(in Input) Decision {
				if in.Progress.Batch == 0 {
					in.Progress = last
				}
				d := Plan(in)
				last = d.Progress
				return d
			}
		}(),
		"an undo starts what has the version": func(in Input) Decision {
			for i := range in.Targets {
				if in.Targets[i].State == Done {
					in.Targets[i].State = Pending
				}
			}
			return Plan(in)
		},
		"complete too early": func(in Input) Decision {
			d := Plan(in)
			d.Complete = d.Progress.Batch == d.Batches
			return d
		},
		"all are online": func(in Input) Decision {
			for i := range in.Targets {
				in.Targets[i].Online = true
			}
			return Plan(in)
		},
		"forgets what it started": func(in Input) Decision {
			for i := range in.Targets {
				if in.Targets[i].State == Failed {
					in.Targets[i].State = Pending
				}
			}
			return Plan(in)
		},
	} {
		t.Run(name, func(t *testing.T) {
			caught := false
			for range 50 { // a hundred schedules may miss a rare mistake
				if caught {
					break
				}
				rapid.Check(t, func(t *rapid.T) {
					w := drawWorld(t, wrong)
					for range 60 {
						if caught {
							return
						}
						w.disturb(t)
						_, err := w.step(0)
						caught = caught || err != nil
					}
				})
			}
			require.True(t, caught)
		})
	}
}

func TestPlanKeepsItsInput(t *testing.T) {
	in := Input{Now: startTime, Targets: makeTargets(3)}
	before := slices.Clone(in.Targets)
	labels := maps.Clone(in.Targets[0].Labels)
	Plan(in)
	require.Equal(t, before, in.Targets)
	require.Equal(t, labels, in.Targets[0].Labels)
}

func BenchmarkPlan(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			in := Input{Now: startTime, Targets: makeTargets(n), Policy: Policy{
				Success: 90, Concurrency: 50, Timeout: time.Minute, Batches: []Batch{{Limit: &Amount{1, true}}, {Limit: &Amount{10, true}}},
				Budget: Budget{GroupBy: []string{"site"}, MaxUnavailable: ptr(20)},
			}}
			for b.Loop() {
				Plan(in)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/target")
		})
	}
}
