// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/topics/resource"
)

// The steps of an upgrade, as its record on disk has them. steps says what each of them does, and which one comes after it.
const (
	stepPrepare        = "Preparing"      // there is no record yet: the order is verified, and what it needs is fetched
	stepInstall        = "Installing"     // the order's own installer is run
	stepBackUp         = "BackingUp"      // what the roll-back needs is kept
	stepSwitch         = "Switching"      // current leads to the new version, or the core's file has the new settings
	stepCommand        = "RunningCommand" // the order's own command installs the new version
	stepStart          = "Starting"       // the core is started with what is new
	stepTrial          = "Trial"          // it is observed
	stepCommit         = "Committing"     // the new version is the node's
	stepFollow         = "Following"      // services that run its programs are started again
	stepAgent          = "ReplacingAgent" // the new agent is tried beside the present one
	stepTakeOver       = "TakingOver"     // the new agent has the place of the old one, and has yet to report
	stepRevert         = "Reverting"      // what was before is put back
	stepRestart        = "Restarting"     // the core is started with what was before
	stepRestore        = "Restoring"      // the core's data is put back, which the core before can't open
	stepProbation      = "Probation"      // the upgrade is over, and what was before is kept
	stepSucceeded      = "Succeeded"      // the outcome is noted: this and the following steps are the last ones
	stepUnchanged      = "Unchanged"
	stepRolledBack     = "RolledBack"
	stepRollbackFailed = "RollbackFailed"
)

// stepResult is how a step went.
type stepResult string

const (
	resultDone      stepResult = "done"
	resultFailed    stepResult = "failed"     // with a Failure
	resultKilled    stepResult = "killed"     // the agent ended in the midst of the step: found when the next one starts
	resultNothing   stepResult = "nothing"    // the order is carried out by having been prepared
	resultInstaller stepResult = "installer"  // prepared, and the order has an installer
	resultCommand   stepResult = "command"    // backed up, and the order has a command
	resultAgentOnly stepResult = "agent only" // the core has the version already, and the agent has not
	resultReplaced  stepResult = "replaced"   // the new agent has reported, and gets the place of this one
	resultTakenOver stepResult = "taken over" // this process is the new agent
	resultDamaged   stepResult = "damaged"    // the core does not run with what was before: its data may be why
	resultEnded     stepResult = "ended"      // the outcome is on disk
	resultAgain     stepResult = "again"      // it can't be done yet, and nothing follows from that: whatever the step, it is taken again
	resultReplace   stepResult = "replace"    // nothing follows yet: this process is to end, and tries the new agent
)

// stepEffect is what a step does to the host, and with that what may be done if nobody knows whether it was taken.
type stepEffect string

const (
	effectNone       stepEffect = "none"       // it changes nothing
	effectRepeatable stepEffect = "repeatable" // taken twice it leaves what it leaves when it is taken once
	effectOnce       stepEffect = "once"       // it runs a program that isn't ours: it is never taken twice
)

// tableStep is a row of the table.
type tableStep struct {
	// take takes the step. It may change what the record says besides the step. nil: another part does that, before there is an upgrade or after it.
	take   func(u *Upgrader, ctx context.Context, up *upgradeRecord) (stepResult, error)
	effect stepEffect
	// report is the step that the hub is told.
	report string
	// next is the step after each result. A step of effectOnce is on disk before it is taken, and resultKilled never leads to it.
	next map[stepResult]string
	// timed steps fail when the time of the order is over.
	timed bool
	// urgent steps are taken though the record can't be written: a core that fails is not left running because of a full disk.
	urgent bool
	// holds has nothing but the step start the core.
	holds bool
}

type nextSteps = map[stepResult]string

// stepTable is the table of an upgrade. All that decides what comes next is in it and in the record on disk.
var stepTable = map[string]tableStep{
	stepPrepare: {effect: effectNone, report: resource.StepWaiting, next: nextSteps{
		resultDone: stepBackUp, resultInstaller: stepInstall, resultAgentOnly: stepFollow, resultNothing: stepSucceeded, resultFailed: stepUnchanged, resultKilled: stepPrepare,
	}},
	stepInstall: {take: (*Upgrader).runInstaller, effect: effectOnce, report: resource.StepInstalling, timed: true, next: nextSteps{
		resultDone: stepBackUp, resultFailed: stepUnchanged, resultKilled: stepUnchanged,
	}},
	stepBackUp: {take: (*Upgrader).takeBackUp, effect: effectRepeatable, report: resource.StepBackingUp, timed: true, next: nextSteps{
		resultDone: stepSwitch, resultCommand: stepCommand, resultFailed: stepUnchanged, resultKilled: stepBackUp,
	}},
	stepSwitch: {take: (*Upgrader).takeSwitch, effect: effectRepeatable, report: resource.StepSwitching, timed: true, holds: true, next: nextSteps{
		resultDone: stepStart, resultFailed: stepRevert, resultKilled: stepSwitch,
	}},
	stepCommand: {take: (*Upgrader).takeSwitch, effect: effectOnce, report: resource.StepSwitching, timed: true, holds: true, next: nextSteps{
		resultDone: stepStart, resultFailed: stepRevert, resultKilled: stepRevert,
	}},
	stepStart: {take: (*Upgrader).takeStart, effect: effectRepeatable, report: resource.StepTrial, timed: true, holds: true, next: nextSteps{
		resultDone: stepTrial, resultFailed: stepRevert, resultKilled: stepStart,
	}},
	stepTrial: {take: (*Upgrader).takeTrial, effect: effectNone, report: resource.StepTrial, timed: true, holds: true, next: nextSteps{
		resultDone: stepCommit, resultFailed: stepRevert, resultKilled: stepStart,
	}},
	stepCommit: {take: (*Upgrader).takeCommit, effect: effectRepeatable, report: resource.StepAgent, next: nextSteps{
		resultDone: stepFollow, resultKilled: stepCommit,
	}},
	stepFollow: {take: (*Upgrader).takeFollow, effect: effectRepeatable, report: resource.StepAgent, next: nextSteps{
		resultDone: stepAgent, resultFailed: stepSucceeded, resultKilled: stepFollow,
	}},
	stepAgent: {take: (*Upgrader).takeAgent, effect: effectRepeatable, report: resource.StepAgent, next: nextSteps{
		resultDone: stepSucceeded, resultFailed: stepSucceeded, resultReplaced: stepTakeOver, resultKilled: stepAgent,
	}},
	stepTakeOver: {take: (*Upgrader).takeOver, effect: effectRepeatable, report: resource.StepAgent, next: nextSteps{
		resultDone: stepSucceeded, resultFailed: stepSucceeded, resultTakenOver: stepTakeOver, resultKilled: stepAgent,
	}},
	stepRevert: {take: (*Upgrader).takeRevert, effect: effectRepeatable, report: resource.StepRollingBack, urgent: true, holds: true, next: nextSteps{
		resultDone: stepRestart, resultFailed: stepRestart, resultKilled: stepRevert,
	}},
	stepRestart: {take: (*Upgrader).takeRestart, effect: effectRepeatable, report: resource.StepRollingBack, urgent: true, holds: true, next: nextSteps{
		resultDone: stepRolledBack, resultDamaged: stepRestore, resultFailed: stepRollbackFailed, resultKilled: stepRestart,
	}},
	stepRestore: {take: (*Upgrader).takeRestore, effect: effectRepeatable, report: resource.StepRollingBack, urgent: true, holds: true, next: nextSteps{
		resultDone: stepRolledBack, resultFailed: stepRollbackFailed, resultKilled: stepRestore,
	}},
	stepProbation:      {effect: effectNone, report: resource.StepAgent, next: nextSteps{resultFailed: stepRevert, resultKilled: stepProbation}},
	stepSucceeded:      {take: (*Upgrader).takeEnd, effect: effectRepeatable, report: resource.StepAgent, next: nextSteps{resultKilled: stepSucceeded}},
	stepUnchanged:      {take: (*Upgrader).takeEnd, effect: effectRepeatable, report: resource.StepRollingBack, next: nextSteps{resultKilled: stepUnchanged}},
	stepRolledBack:     {take: (*Upgrader).takeEnd, effect: effectRepeatable, report: resource.StepRollingBack, next: nextSteps{resultKilled: stepRolledBack}},
	stepRollbackFailed: {take: (*Upgrader).takeEnd, effect: effectRepeatable, report: resource.StepRollingBack, next: nextSteps{resultKilled: stepRollbackFailed}},
}

// take takes a step, unless the time of the order is over.
func (u *Upgrader) take(ctx context.Context, up *upgradeRecord) (stepResult, error) {
	row := stepTable[up.Step]
	if row.timed {
		if err := u.inTime(up.Order, up.Started); err != nil {
			return resultFailed, err
		}
	}
	return row.take(u, ctx, up)
}

// resultOf is the result of what there is one error of: a Failure, or one that says why it can't be done yet.
func resultOf(err error) (stepResult, error) {
	switch {
	case err == nil:
		return resultDone, nil
	case errors.As(err, new(*Failure)):
		return resultFailed, err
	}
	return resultAgain, err
}

// after is the record after a result of its step, and the state with it. Nothing comes after what the table does not have.
func (up upgradeRecord) after(r stepResult, why error) (change func(*upgradeState), ok bool) {
	next, ok := stepTable[up.Step].next[r]
	if !ok {
		return nil, false
	}
	var f *Failure
	if errors.As(why, &f) && next == stepSucceeded {
		up.AgentFailed = f
	} else if f != nil && up.Failed == nil {
		up.Failed = f
	}
	before := up.Step
	up.Step = next
	return func(s *upgradeState) {
		if s.Upgrade = &up; next == stepCommit && up.Order.Version != "" {
			s.Previous, s.Version = up.From, up.Order.Version
		} else if before == stepProbation && next == stepRevert && up.Order.Version != "" {
			s.Previous, s.Version = "", up.From
		}
	}, true
}

// carryOut takes the steps of the upgrade that is being made, until it is over, or can't go on now. It returns after how long it is to be called again.
func (u *Upgrader) carryOut(ctx context.Context) (again time.Duration, err error) {
	for u.state.Upgrade != nil && ctx.Err() == nil {
		up := *u.state.Upgrade
		row := stepTable[up.Step]
		if u.unwritten && !row.urgent {
			if err := u.save(func(*upgradeState) {}); err != nil {
				return u.noteStuck(up, err), nil
			}
		}
		u.noteOrder(up.Order)
		u.progress(row.report, nil)
		u.hook(row.report)
		r, err := u.take(ctx, &up)
		switch {
		case ctx.Err() != nil:
			return 0, nil
		case r == resultAgain:
			return u.noteStuck(up, err), nil
		case r == resultReplace:
			return 0, &AgentReplacement{u, up.Order.Version}
		case r == resultEnded:
			continue
		}
		if err := u.saveResult(up, r, err); err != nil {
			return u.noteStuck(up, err), nil
		}
	}
	return 0, nil
}

// saveResult puts a result on disk: the record after it. What can't be written is not forgotten, and is written before the next step, unless that is urgent;
// a step that has changed nothing is taken again instead, for what it has seen may not hold any more.
func (u *Upgrader) saveResult(up upgradeRecord, r stepResult, why error) error {
	change, ok := up.after(r, why)
	if !ok {
		return fmt.Errorf("the step %s has come to %q, for which there is no next step", up.Step, r)
	}
	if r == resultFailed {
		u.log.Error().Err(why).Str("version", up.Order.Version).Str("step", up.Step).Msg("the upgrade failed in this step")
	}
	err := u.save(change)
	if next := up.nextStep(r); err != nil && (stepTable[up.Step].effect != effectNone || stepTable[next].urgent) {
		u.assume(change, err)
		return nil
	}
	return err
}

func (up upgradeRecord) nextStep(r stepResult) string { return stepTable[up.Step].next[r] }

// noteStuck says why an upgrade does not go on now.
func (u *Upgrader) noteStuck(up upgradeRecord, why error) (again time.Duration) {
	u.log.Error().Err(why).Str("step", up.Step).Msg("the upgrade can't go on")
	if up.Step == stepRolledBack {
		why = fmt.Errorf("%s runs again; %w", up.previousName(), why)
	}
	u.progress(stepTable[up.Step].report, why)
	return pollPause
}

// resumed is an upgrade after the agent was started again in the midst of it. runsNew says whether this process is the new agent, and boot is the
// host's. One that is interrupted again and again fails: it may be what ends the agent, or the host.
func (up upgradeRecord) resumed(runsNew bool, boot string) (r stepResult, now upgradeRecord, why error) {
	row, known := stepTable[up.Step]
	if !known || row.take == nil { // Preparing and Probation are no step of a record
		up.Step = stepTrial // whatever it was: it is rolled back
		return resultFailed, up, failf(resource.UpgradeFailedInterrupted, "the state has a step that this version does not know")
	}
	if up.Step == stepTakeOver {
		switch {
		case runsNew:
			return resultTakenOver, up, nil
		case up.AgentBoot == boot:
			return resultFailed, up, failf(resource.UpgradeFailedAgent, "it reported on trial, and then, in the place of the present one, it ended or did not report in time")
		}
	}
	up.Resumed++
	switch _, fails := row.next[resultFailed]; {
	case row.effect == effectOnce:
		why = failf(resource.UpgradeFailedInterrupted, "the agent ended while %s was to be run: nobody knows how far that came, and it is not run twice", up.program())
	case up.Resumed > maxResumed && fails && !row.urgent:
		return resultFailed, up, failf(resource.UpgradeFailedInterrupted, "the agent ended %d times in the midst of it, at last in the step %s", up.Resumed, row.report)
	}
	return resultKilled, up, why
}

// program is the command of a step that is taken once.
func (up upgradeRecord) program() string {
	if up.Step == stepInstall {
		return "upgradeInstaller"
	}
	return "upgradeCmd"
}

// takeBackUp keeps what the roll-back needs. Whether there is time to go on is asked here, because from the next step on the core
// is started again to go back.
func (u *Upgrader) takeBackUp(ctx context.Context, up *upgradeRecord) (stepResult, error) {
	if err := u.kindOf(up.Order).backUp(ctx); err != nil {
		return resultOf(toFailure(ctx, resource.UpgradeFailedBackup, err))
	}
	if err := cmp.Or(u.inTime(up.Order, up.Started), u.inWindow(up.Order)); err != nil {
		return resultFailed, err
	}
	if len(up.Order.Command) > 0 {
		return resultCommand, nil
	}
	return resultDone, nil
}

// inWindow fails when the time is over in which an order may switch.
func (u *Upgrader) inWindow(o resource.UpgradeOrder) error {
	if before, err := time.Parse(time.RFC3339, o.SwitchBefore); err == nil && u.now().After(before) {
		return failf(resource.UpgradeFailedWindow, "the window closed at %s, before the core was started with what is new", o.SwitchBefore)
	}
	return nil
}

// takeSwitch has the next start of the core be with what is new.
func (u *Upgrader) takeSwitch(ctx context.Context, up *upgradeRecord) (stepResult, error) {
	if err := u.inWindow(up.Order); err != nil { // the host was away
		return resultFailed, err
	}
	return resultOf(toFailure(ctx, resource.UpgradeFailedSwitch, u.kindOf(up.Order).apply(ctx, *up)))
}

// takeStart starts the core with what is new, unless that runs: the agent was started again meanwhile.
func (u *Upgrader) takeStart(ctx context.Context, up *upgradeRecord) (stepResult, error) {
	if u.core.runsVersionOf(ctx, *up) {
		return resultDone, nil
	}
	u.log.Info().Str("order", up.Order.ID).Msg(up.newName() + " is started on trial")
	if err := u.core.restart(ctx); err != nil {
		return resultOf(u.core.withOutput(ctx, toFailure(ctx, resource.UpgradeFailedStart, fmt.Errorf("%s can't be started: %w", up.newName(), err))))
	}
	return resultDone, nil
}

// takeTrial observes the core that was started.
func (u *Upgrader) takeTrial(ctx context.Context, up *upgradeRecord) (stepResult, error) {
	left := up.Started.Add(time.Duration(up.Order.Timeout) * time.Second).Sub(u.now())
	return resultOf(u.core.withOutput(ctx, u.core.observe(ctx, *up, min(u.o.Config.Trial.Timeout, left.Round(time.Millisecond)))))
}

// takeCommit has the core run on. That it is the node's was written with the step.
func (u *Upgrader) takeCommit(_ context.Context, up *upgradeRecord) (stepResult, error) {
	u.core.committed()
	u.mu.Lock()
	u.live.versionDamage = "" // it was of the version before
	u.mu.Unlock()
	u.log.Info().Str("order", up.Order.ID).Str("version", u.state.Version).Msg(up.newName() + " is committed")
	return resultDone, nil
}

// takeFollow starts services again. The new agent is to report one that failed: it does not find it.
func (u *Upgrader) takeFollow(ctx context.Context, up *upgradeRecord) (stepResult, error) {
	if err := u.services.follow(ctx); err != nil {
		up.ServicesError = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return resultDone, nil
}

// takeRevert puts back what was before. A command that the node's settings refuse would be refused for ever, and one may fail each time: then the core
// is started with what is there. A disk that is full isn't counted, because it goes on when there is room.
func (u *Upgrader) takeRevert(ctx context.Context, up *upgradeRecord) (stepResult, error) {
	err := u.kindOf(up.Order).revert(ctx, *up)
	if err == nil {
		up.RevertError = ""
		return resultDone, nil
	}
	if ctx.Err() != nil || datadir.IsFull(err) {
		return resultAgain, err
	}
	up.RevertError = err.Error()
	if up.RevertAttempts++; up.RevertAttempts >= maxRevertAttempts || isRefused(err) {
		return resultFailed, err
	}
	next := *up
	u.keep(func(s *upgradeState) { s.Upgrade = &next })
	return resultAgain, err
}

// takeRestart starts the core with what was before.
func (u *Upgrader) takeRestart(ctx context.Context, up *upgradeRecord) (stepResult, error) {
	err := u.core.restart(ctx)
	if err == nil {
		err = u.core.awaitRunning(ctx)
	}
	switch {
	case err != nil && up.RevertError == "" && u.kindOf(up.Order).restores:
		up.RestartError = err.Error()
		return resultDamaged, nil
	case up.RevertError != "":
		if err != nil {
			up.RevertError += "\n" + err.Error()
		}
		up.Failed = up.Failed.and("%s could not be put back: %s", up.previousName(), up.RevertError)
		return resultFailed, nil
	case err != nil:
		up.Failed = up.Failed.and("%s did not run again: %v", up.previousName(), err)
		return resultFailed, nil
	}
	return resultDone, nil
}

// takeRestore puts the core's data back if the core before can't open it.
func (u *Upgrader) takeRestore(ctx context.Context, up *upgradeRecord) (stepResult, error) {
	if err := u.core.restore(ctx, up); err != nil {
		up.Failed = up.Failed.and("%s did not run again: %v", up.previousName(), err)
		return resultFailed, nil
	}
	return resultDone, nil
}

// and adds to a Failure what came after it.
func (f *Failure) and(format string, args ...any) *Failure {
	return &Failure{f.Reason, f.Message + "; and then " + fmt.Sprintf(format, args...), f.Log}
}

// takeEnd notes the outcome.
func (u *Upgrader) takeEnd(ctx context.Context, up *upgradeRecord) (stepResult, error) {
	o := up.outcome(u.kindOf(up.Order).done, u.now())
	if u.core.core != nil {
		u.core.committed()
	}
	if up.Step == stepRolledBack || up.Step == stepRollbackFailed {
		_ = u.services.follow(ctx) // services that were started again meanwhile; it is logged
	}
	probation := u.state.Probation
	if up.Step == stepSucceeded {
		probation = cmp.Or(u.probation.begin(*up), probation)
	}
	if o.Result != resource.UpgradeRollbackFailed { // else a person needs the backup and both versions
		u.tidy(*up, probation != nil)
	}
	if err := u.save(func(s *upgradeState) { s.end(o); s.Probation = probation }); err != nil {
		return resultAgain, err
	}
	u.probation.looked = time.Time{}
	u.log.Info().Str("order", o.Order).Str("result", o.Result).Str("reason", o.Reason).Msg("the upgrade is over")
	u.progress("", nil)
	return resultEnded, nil
}

// outcome is how an upgrade in one of the last steps has ended. done is what there is to say when it has succeeded.
func (up upgradeRecord) outcome(done string, at time.Time) orderOutcome {
	o := orderOutcome{Order: up.Order.ID, From: up.From, To: up.Order.Version, At: at}
	f := up.Failed
	switch up.Step {
	case stepSucceeded:
		o.Result, o.Message = resource.UpgradeSuccess, done
		if f = up.AgentFailed; f != nil {
			f = &Failure{f.Reason, "the core is upgraded, and the agent is not: " + f.Message, f.Log}
		}
	case stepRollbackFailed:
		o.Result = resource.UpgradeRollbackFailed
	default:
		o.Result = resource.UpgradeRolledBack
	}
	if f != nil {
		o.Reason, o.Message, o.Log = f.Reason, f.Message, f.Log
	}
	if up.ServicesError != "" && up.Step == stepSucceeded {
		o.Message = strings.TrimPrefix(o.Message+"; ", "; ") + "with the new version " + up.ServicesError
	}
	return o
}
