// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/edgebus/edgebus/edge/agent/files"
	"github.com/edgebus/edgebus/topics/resource"
)

// An update goes through these steps. Until stepSwap nothing is changed and nothing is on disk: after a crash it begins again. From
// then on each step is on disk before it is done, and doing it again has the same outcome; of hooks, see hookProgress.
const (
	stepWindow      = resource.WaitingForWindow
	stepStage       = "Staging"              // contents are fetched and verified
	stepBeforeHooks = "BeforeUpdatingHooks"  // hooks before anything is changed
	stepSwap        = "WritingFiles"         // files are put in place, in one transaction
	stepSwapped     = "FilesWritten"         // they are
	stepOS          = "SwitchingOS"          // another OS image is made the one to boot next
	stepReboot      = "Rebooting"            // the host is booted into it
	stepAfterReboot = "AfterRebootingHooks"  // it was
	stepAfterHooks  = "AfterUpdatingHooks"   // hooks after the files are in place
	stepApps        = "StartingApplications" // applications are started, changed and stopped
	stepHealth      = "CheckingHealth"       // checks and applications
	stepCommit      = "Committing"           // what was before is forgotten
	stepRollBack    = "RollingBack"          // what was before is put back
)

// maxResumed is how often an update goes on after the agent ended in the midst of it. After that it is rolled back: it may be
// what ends the agent.
const maxResumed = 3

// specFailure is why a version can't be applied. It is not tried again until it changes.
type specFailure struct{ reason, message string }

func (f specFailure) Error() string { return f.message }

// toFailure makes a failure of an error that isn't one, unless ctx ended: then it is no fault of the version.
func toFailure(ctx context.Context, reason string, err error) error {
	var known specFailure
	if err == nil || errors.Is(err, errWaiting) {
		return err
	}
	if errors.As(err, &known) {
		return specFailure{known.reason, err.Error()}
	}
	var ofFile *files.Error
	if errors.As(err, &ofFile) && ofFile.Reason != "" {
		reason = ofFile.Reason
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return specFailure{reason, err.Error()}
}

var (
	// errWaiting is in the error of a step that can't be done yet.
	errWaiting = errors.New("waiting")
	// errSuperseded ends the staging of a version when there is a newer one.
	errSuperseded = errors.New("there is a newer version")
)

// resumed is the update as it goes on after the agent was started. swapped says that its files are in their places. It is
// rolled back if it was interrupted too often, and begins again if it had changed nothing: then it is nil.
func (u specUpdate) resumed(swapped bool) *specUpdate {
	switch {
	case u.Step == stepRollBack || u.Step == stepCommit:
		return &u
	case !swapped:
		return nil
	case u.Step == stepSwap:
		u.Step = stepSwapped
	case u.Step == stepReboot && u.Boot != "":
		return &u
	case u.Step == stepReboot: // a power cut may have lost the image that was to be booted next
		u.Step = stepOS
	}
	if u.Resumed++; u.Resumed > maxResumed {
		u = u.failing(specFailure{resource.FailedInterrupted, fmt.Sprintf("the agent ended %d times in the midst of it, at last in the step %s", u.Resumed, u.Step)}, time.Time{})
	}
	return &u
}

// failing is the update when a step has failed.
func (u specUpdate) failing(f specFailure, now time.Time) specUpdate {
	u.Failed = &resource.FailedVersion{RenderedVersion: u.Spec.RenderedVersion, Reason: f.reason, Message: f.message}
	if !now.IsZero() {
		u.Failed.At = resource.FormatTime(now)
	}
	u.Step = stepRollBack
	return u
}

// nextStep is the step after one that was done. switchOS says that the spec wants another OS image than the host has booted.
func nextStep(step string, switchOS bool) string {
	switch step {
	case stepStage:
		return stepBeforeHooks
	case stepBeforeHooks:
		return stepSwap
	case stepSwap:
		return stepSwapped
	case stepSwapped:
		if switchOS {
			return stepOS
		}
		return stepAfterHooks
	case stepOS:
		return stepReboot
	case stepReboot:
		return stepAfterReboot
	case stepAfterReboot:
		return stepAfterHooks
	case stepAfterHooks:
		return stepApps
	case stepApps:
		return stepHealth
	}
	return stepCommit
}

// check says what is wrong with a spec, before anything of it is done.
func (a *agent) check(spec resource.RenderedSpec) error {
	if spec.Hooks != nil {
		for _, list := range []struct {
			where string
			hooks []resource.Hook
		}{
			{"hooks.beforeUpdating", spec.Hooks.BeforeUpdating},
			{"hooks.afterUpdating", spec.Hooks.AfterUpdating},
			{"hooks.beforeRebooting", spec.Hooks.BeforeRebooting},
			{"hooks.afterRebooting", spec.Hooks.AfterRebooting},
		} {
			if err := a.commands.allow(list.where, list.hooks); err != nil {
				return err
			}
		}
	}
	if spec.OS != nil && spec.OS.Image != "" && a.image.os == nil {
		return specFailure{resource.FailedOS, "os.image: this host's OS is none that can be switched to an image"}
	}
	if len(spec.Applications) > 0 && a.applications == nil {
		return specFailure{resource.FailedApplication, "applications: this agent can't run any"}
	}
	return nil
}

// runOnce does what there is to do. It returns after how long it is to be called again if nothing happens.
func (a *agent) runOnce(ctx context.Context) (again time.Duration) {
	if a.state.Update == nil {
		spec, err := a.bus.spec()
		if err != nil || !a.state.wants(spec) && !a.retry.retries(spec) {
			a.progress("", "", err)
			return min(a.idle(ctx), a.retry.retryIn(spec))
		}
		wait, err := a.awaitWindows(ctx, *spec)
		if wait > 0 {
			return min(wait, a.idle(ctx))
		}
		if err == nil {
			err = a.prepare(ctx, *spec)
		}
		if err != nil {
			return a.handleUnprepared(*spec, err)
		}
	}
	for a.state.Update != nil && ctx.Err() == nil {
		u := *a.state.Update
		a.progress(u.Spec.RenderedVersion, u.Step, nil)
		a.hook(u.Step)
		err := a.takeStep(ctx, &u)
		if ctx.Err() != nil {
			return 0
		}
		if err := a.saveOutcome(u, err); err != nil {
			a.progress(u.Spec.RenderedVersion, u.Step, err)
			a.reportUnsaved(u.Spec, err)
			a.log.Error().Err(err).Str("step", u.Step).Msg("the update can't go on")
			return retryAfter
		}
	}
	return 0
}

// retryAfter is when a step is tried again that neither succeeded nor failed for good.
const retryAfter = 10 * time.Second

// prepare stages a spec and runs the hooks before it, and then the update is begun. Before that nothing is changed.
func (a *agent) prepare(ctx context.Context, spec resource.RenderedSpec) error {
	u := specUpdate{Spec: spec, Step: stepStage}
	a.log.Info().Str("rendered_version", spec.RenderedVersion).Msg("update begins")
	a.progress(spec.RenderedVersion, stepStage, nil)
	a.hook(stepStage)
	if err := a.check(spec); err != nil {
		return err
	}
	ctx, cancel := a.untilSuperseded(ctx, spec)
	defer cancel()
	if err := a.stage(ctx, spec, spec.Drift == resource.DriftReport); err != nil {
		return toFailure(ctx, resource.FailedWrite, err)
	}
	a.progress(spec.RenderedVersion, stepBeforeHooks, nil)
	a.hook(stepBeforeHooks)
	if err := a.hooks.run(ctx, "beforeUpdating", u); err != nil {
		return err
	}
	u.Step = stepSwap
	return a.saveUpdate(u)
}

// stage verifies the files of a spec and writes what differs beside their places.
func (a *agent) stage(ctx context.Context, spec resource.RenderedSpec, leaveDrifted bool) error {
	want, err := a.filesOf(spec)
	if err != nil {
		return err
	}
	return a.files.Stage(ctx, files.Spec{
		Version: spec.RenderedVersion, Files: want, LeaveDrifted: leaveDrifted,
		Content: func(c resource.Content) (io.ReadCloser, error) { return a.content(ctx, c) },
	})
}

// filesOf are a spec's files and those of its applications.
func (a *agent) filesOf(spec resource.RenderedSpec) ([]resource.RenderedFile, error) {
	want := spec.Files
	for _, app := range spec.Applications {
		files, err := a.applications.Files(app)
		if err != nil {
			return nil, specFailure{resource.FailedInvalid, err.Error()}
		}
		want = append(want[:len(want):len(want)], files...)
	}
	return want, nil
}

// handleUnprepared handles what kept an update from beginning: a failure is remembered, everything else is tried again.
func (a *agent) handleUnprepared(spec resource.RenderedSpec, err error) (again time.Duration) {
	if endErr := a.endFiles(false); endErr != nil {
		a.log.Error().Err(endErr).Msg("staged files can't be removed")
	}
	var f specFailure
	if !errors.As(err, &f) {
		if !errors.Is(err, errSuperseded) {
			a.progress(spec.RenderedVersion, stepStage, err)
			a.reportUnsaved(spec, err)
			a.log.Info().Err(err).Str("rendered_version", spec.RenderedVersion).Msg("update waits")
		}
		if errors.Is(err, errSuperseded) || errors.Is(err, context.Canceled) {
			return 0
		}
		return retryAfter
	}
	a.log.Error().Str("rendered_version", spec.RenderedVersion).Str("reason", f.reason).Str("error", f.message).Msg("update failed before anything was changed")
	u := specUpdate{Spec: spec}.failing(f, a.now())
	a.retry.retryLater(u.Spec)
	err = a.save(func(s *agentState) { s.Failed, s.FailedDigest, s.Hooks = u.Failed, specDigest(u.Spec), hookProgress{} })
	a.progress("", "", nil)
	if err != nil {
		u.Failed.Message += "; and " + err.Error()
		a.mu.Lock()
		a.live.failed = u.Failed
		a.mu.Unlock()
		a.changed()
		a.log.Error().Err(err).Msg("that a version failed can't be remembered: it is tried again")
		return retryAfter
	}
	return 0
}

// endFiles commits the files of an update or rolls them back, unless that was done before the agent was started.
func (a *agent) endFiles(commit bool) error {
	found, _, err := a.files.Recover()
	switch {
	case err != nil || found != files.RecoverySwapped:
		return err
	case !commit:
		return a.files.RollBack()
	}
	left, err := a.files.Commit()
	if len(left) > 0 {
		a.log.Info().Strs("directories", left).Msg("directories that the spec no longer has are kept: others' files are in them")
	}
	return err
}

// takeStep does the step of an update. It may add to u.
func (a *agent) takeStep(ctx context.Context, u *specUpdate) error {
	switch u.Step {
	case stepSwap:
		return toFailure(ctx, resource.FailedWrite, a.files.Swap())
	case stepSwapped:
		return nil
	case stepOS:
		return toFailure(ctx, resource.FailedOS, a.image.to(ctx, u))
	case stepReboot:
		return a.image.reboot(ctx, u)
	case stepAfterReboot:
		return a.hooks.run(ctx, "afterRebooting", *u)
	case stepAfterHooks:
		return a.hooks.run(ctx, "afterUpdating", *u)
	case stepApps:
		return a.switchApplications(ctx, u, a.state.Applied, u.Spec, a.files.Changes())
	case stepHealth:
		return a.health(ctx, u.Spec)
	case stepCommit:
		a.image.discard(ctx, "")
		return a.endFiles(true)
	case stepRollBack:
		a.image.discard(ctx, "")
		return a.rollBack(ctx, u)
	}
	return specFailure{resource.FailedInterrupted, fmt.Sprintf("the agent's state has a step %q, which this version does not know", u.Step)}
}

// saveOutcome puts the outcome of a step on disk. It returns an error if the step is to be tried again.
func (a *agent) saveOutcome(u specUpdate, err error) error {
	var f specFailure
	switch {
	case errors.As(err, &f) && u.Step != stepRollBack && u.Step != stepCommit:
		a.log.Error().Str("rendered_version", u.Spec.RenderedVersion).Str("step", u.Step).Str("reason", f.reason).Str("error", f.message).Msg("update failed and is rolled back")
		u = u.failing(f, a.now())
		return a.saveUpdate(u)
	case err != nil:
		return err
	case u.Step == stepCommit:
		err = a.save(func(s *agentState) {
			s.Applied, s.Unstarted, s.Update, s.Failed, s.FailedDigest, s.Hooks = u.Spec, u.Unstarted, nil, nil, "", hookProgress{}
			s.Downloaded = downloadedSpec{}
		})
		if err == nil {
			a.applied()
			a.log.Info().Str("rendered_version", u.Spec.RenderedVersion).Msg("update applied")
		}
		a.progress("", "", err)
		return err
	case u.Step == stepRollBack:
		if u.Failed.At == "" {
			u.Failed.At = resource.FormatTime(a.now())
		}
		a.retry.retryLater(u.Spec)
		err = a.save(func(s *agentState) {
			s.Unstarted, s.Update, s.Failed, s.FailedDigest, s.Hooks = u.Unstarted, nil, u.Failed, specDigest(u.Spec), hookProgress{}
			s.Downloaded = downloadedSpec{}
		})
		if err == nil {
			a.log.Warn().Str("rendered_version", u.Spec.RenderedVersion).Str("applied", a.state.Applied.RenderedVersion).Msg("update rolled back")
		}
		a.progress("", "", err)
		return err
	}
	for {
		switchOS := u.Step == stepSwapped && a.image.wanted(u.Spec)
		u.Step = nextStep(u.Step, switchOS)
		if !a.stepIsEmpty(u) {
			return a.saveUpdate(u)
		}
	}
}

// stepIsEmpty reports whether a step has nothing to do, so that it need not be on disk.
func (a *agent) stepIsEmpty(u specUpdate) bool {
	switch u.Step {
	case stepAfterHooks:
		return len(a.hooks.due("afterUpdating", u)) == 0
	case stepAfterReboot:
		return len(a.hooks.due("afterRebooting", u)) == 0
	case stepApps:
		return len(u.Spec.Applications) == 0 && len(a.state.Applied.Applications) == 0
	case stepHealth:
		return len(a.o.Config.Health.Checks) == 0 && len(u.Spec.Applications) == 0
	}
	return false
}

// rollBack puts back what was before an update. All of it may be done again.
func (a *agent) rollBack(ctx context.Context, u *specUpdate) error {
	changes := a.files.Changes()
	if err := a.endFiles(false); err != nil {
		return err
	}
	if u.OSBefore != nil {
		reboot, err := a.image.os.Rollback(ctx, *u.OSBefore)
		if err != nil {
			return fmt.Errorf("the OS image can't be switched back: %w", err)
		}
		if reboot && (u.RollbackReboots < maxRollbackReboots || u.RollbackBoot == a.state.Boot) {
			return a.image.rebootBack(ctx, u)
		}
		if reboot { // its boot loader has another opinion: a host that runs another image is better than one that reboots for ever
			u.Failed.Message += fmt.Sprintf("; and when it was rolled back: the host was rebooted %d times and does not boot %s", u.RollbackReboots, u.OSBefore.Image)
		}
	}
	// If what was there before can't be started again, the next update may do it, and the applications' status says it.
	if err := a.switchApplications(ctx, u, u.Spec, a.state.Applied, changes); err != nil {
		u.Failed.Message += fmt.Sprintf("; and when it was rolled back: %v", err)
	}
	return nil
}

// switchApplications stops and starts applications, and notes in u which are to be started after the update: optional ones.
func (a *agent) switchApplications(ctx context.Context, u *specUpdate, from, to resource.RenderedSpec, changes []files.Change) error {
	if a.applications == nil {
		return nil
	}
	var changed []string
	for _, c := range changes {
		changed = append(changed, c.Path)
	}
	unstarted, err := a.applications.Switch(ctx, from.Applications, to.Applications, changed)
	u.Unstarted = nil
	for _, app := range to.Applications {
		if app.Optional && (slices.Contains(unstarted, app.Name) || slices.Contains(a.state.Unstarted, app.Name)) {
			u.Unstarted = append(u.Unstarted, app.Name)
		}
	}
	a.starts.Succeeded()
	return toFailure(ctx, resource.FailedApplication, err)
}

// health waits until all checks succeed and all applications that are not optional run, or have completed.
func (a *agent) health(ctx context.Context, spec resource.RenderedSpec) error {
	over := time.After(a.o.Config.Health.Timeout)
	for {
		err := a.healthProblem(ctx, spec)
		if err == nil {
			return nil
		}
		a.progress(spec.RenderedVersion, stepHealth, err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over:
			return specFailure{resource.FailedHealth, fmt.Sprintf("after %s: %v", a.o.Config.Health.Timeout, err)}
		case <-time.After(a.o.HealthPause):
		}
	}
}

func (a *agent) healthProblem(ctx context.Context, spec resource.RenderedSpec) error {
	for i, c := range a.o.Config.Health.Checks {
		limit, err := parseTimeout(c.Timeout)
		if err != nil {
			return err
		}
		env := commandEnvironment(a.o.Config.Root, "health", specUpdate{Spec: spec})
		if err := a.commands.run(ctx, c.Run, limit, env); err != nil {
			return fmt.Errorf("health.checks[%d]: %w", i, err)
		}
	}
	required := slices.DeleteFunc(slices.Clone(spec.Applications), func(app resource.RenderedApplication) bool { return app.Optional })
	if len(required) == 0 {
		return nil
	}
	for _, app := range a.applications.Status(ctx, required) {
		if app.Status != "Running" && app.Status != "Completed" {
			return fmt.Errorf("application %s is %s %s", app.Name, app.Status, app.Message)
		}
	}
	return nil
}
