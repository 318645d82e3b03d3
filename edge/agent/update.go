package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/configs/daemon/datadir"
	"github.com/edgebus/edgebus/edge/agent/files"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// An update goes through these steps. Until stepSwap nothing is changed and nothing is on disk: after a crash it begins again. From
// then on each step is on disk before it is done, and doing it again has the same outcome; of hooks, see hookProgress.
const (
	stepWindow  = resource.WaitingForWindow
	stepStage   = "Staging"              // contents are fetched and verified
	stepBefore  = "BeforeUpdatingHooks"  // hooks before anything is changed
	stepSwap    = "WritingFiles"         // files are put in place, in one transaction
	stepSwapped = "FilesWritten"         // they are
	stepOS      = "SwitchingOS"          // another OS image is made the one to boot next
	stepReboot  = "Rebooting"            // the host is booted into it
	stepBooted  = "AfterRebootingHooks"  // it was
	stepAfter   = "AfterUpdatingHooks"   // hooks after the files are in place
	stepApps    = "StartingApplications" // applications are started, changed and stopped
	stepHealth  = "CheckingHealth"       // checks and applications
	stepCommit  = "Committing"           // what was before is forgotten
	stepBack    = "RollingBack"          // what was before is put back
)

// maxBackBoots is how often the host is rebooted to have its OS image from before an update again.
const maxBackBoots = 3

// maxResumed is how often an update goes on after the agent ended in the midst of it. After that it is rolled back: it may be
// what ends the agent.
const maxResumed = 3

// state is what an agent keeps on disk.
type state struct {
	// Applied is the spec that is applied whole; without a version there is none.
	Applied resource.RenderedSpec `json:"applied"`
	// Failed is the version that failed last, and FailedSpec the digest of its content: a hub that has lost its store may
	// give the number to another content.
	Failed     *resource.FailedVersion `json:"failed,omitempty"`
	FailedSpec string                  `json:"failedSpec,omitempty"`
	// Unstarted are the optional applications of Applied that are still to be started.
	Unstarted []string `json:"unstarted,omitempty"`
	// Update is the update that is being made.
	Update *update `json:"update,omitempty"`
	// Hooks is how far the hooks of the update are that is being made or prepared.
	Hooks hookProgress `json:"hooks,omitzero"`
	// Downloaded is what was downloaded before its window.
	Downloaded downloaded `json:"downloaded,omitzero"`
	// Boot is the boot of the host that the agent saw last, and BootSeen when it first saw it.
	Boot     string    `json:"boot,omitempty"`
	BootSeen time.Time `json:"bootSeen,omitzero"`
	// Rebooted says that the agent has seen another boot before.
	Rebooted bool `json:"rebooted,omitempty"`
}

// downloaded is a spec that was downloaded before its window.
type downloaded struct {
	// Spec is the digest of the spec.
	Spec string `json:"spec"`
	// OSDone says that there is nothing to download for its OS image; OS is the image if it was downloaded, for this spec or an earlier one.
	OSDone bool   `json:"osDone,omitempty"`
	OS     string `json:"os,omitempty"`
}

// update is one that is being made.
type update struct {
	Spec resource.RenderedSpec `json:"spec"`
	Step string                `json:"step"`
	// Resumed is how often the agent was started in the midst of it.
	Resumed int `json:"resumed,omitempty"`
	// Unstarted are the optional applications that are to be started after it.
	Unstarted []string `json:"unstarted,omitempty"`
	// OSBefore is the image that was booted when another one was to be made the next; it is on disk before that is done.
	OSBefore *resource.OSStatus `json:"osBefore,omitempty"`
	// Boot is the boot in which the reboot was ordered.
	Boot string `json:"boot,omitempty"`
	// Failed is why it is rolled back.
	Failed *resource.FailedVersion `json:"failed,omitempty"`
	// BackBoots is how many boots of the host were to be into the image before; BackBoot is the last of them that was ended for it.
	BackBoots int    `json:"backBoots,omitempty"`
	BackBoot  string `json:"backBoot,omitempty"`
}

// failure is why a version can't be applied. It is not tried again until it changes.
type failure struct{ reason, message string }

func (f failure) Error() string { return f.message }

// failed makes a failure of an error that isn't one, unless ctx ended: then it is no fault of the version.
func failed(ctx context.Context, reason string, err error) error {
	var known failure
	if err == nil || errors.Is(err, errWaiting) {
		return err
	}
	if errors.As(err, &known) {
		return failure{known.reason, err.Error()}
	}
	var ofFile *files.Error
	if errors.As(err, &ofFile) && ofFile.Reason != "" {
		reason = ofFile.Reason
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return failure{reason, err.Error()}
}

var (
	// errWaiting is in the error of a step that can't be done yet.
	errWaiting = errors.New("waiting")
	// errSuperseded ends the staging of a version when there is a newer one.
	errSuperseded = errors.New("there is a newer version")
)

const stateName = "state.json"

func loadState(dir string) (state, error) {
	var s state
	text, err := os.ReadFile(filepath.Join(dir, stateName))
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("the agent's state can't be read: %w", err)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return state{}, damagedError{fmt.Errorf("the agent's state %s is damaged: %w", filepath.Join(dir, stateName), err)}
	}
	return s, nil
}

// damagedError is of a state that is on disk and is none.
type damagedError struct{ error }

func (s state) save(dir string) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return datadir.WriteFile(filepath.Join(dir, stateName), text)
}

// digestOf tells the content of one spec from another's.
func digestOf(spec resource.RenderedSpec) string {
	text, _ := json.Marshal(spec) // it was read from JSON
	return resource.DigestOf(text)
}

// wants reports whether a spec is to be applied: it is another than the one that is, and not the one that failed.
func (s state) wants(spec *resource.RenderedSpec) bool {
	if spec == nil || s.failedBefore(spec) {
		return false
	}
	// A hub that was restored from a backup may give a version's number to another content.
	return spec.RenderedVersion != s.Applied.RenderedVersion || !reflect.DeepEqual(*spec, s.Applied)
}

// resumed is the update as it goes on after the agent was started. swapped says that its files are in their places. It is
// rolled back if it was interrupted too often, and begins again if it had changed nothing: then it is nil.
func (u update) resumed(swapped bool) *update {
	switch {
	case u.Step == stepBack || u.Step == stepCommit:
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
		u = u.failing(failure{resource.FailedInterrupted, fmt.Sprintf("the agent ended %d times in the midst of it, at last in the step %s", u.Resumed, u.Step)}, time.Time{})
	}
	return &u
}

// failing is the update when a step has failed.
func (u update) failing(f failure, now time.Time) update {
	u.Failed = &resource.FailedVersion{RenderedVersion: u.Spec.RenderedVersion, Reason: f.reason, Message: f.message}
	if !now.IsZero() {
		u.Failed.At = resource.Time(now)
	}
	u.Step = stepBack
	return u
}

// following is the step after one that was done. switchOS says that the spec wants another OS image than the host has booted.
func following(step string, switchOS bool) string {
	switch step {
	case stepStage:
		return stepBefore
	case stepBefore:
		return stepSwap
	case stepSwap:
		return stepSwapped
	case stepSwapped:
		if switchOS {
			return stepOS
		}
		return stepAfter
	case stepOS:
		return stepReboot
	case stepReboot:
		return stepBooted
	case stepBooted:
		return stepAfter
	case stepAfter:
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
	if spec.OS != nil && spec.OS.Image != "" && a.os == nil {
		return failure{resource.FailedOS, "os.image: this host's OS is none that can be switched to an image"}
	}
	if len(spec.Applications) > 0 && a.applications == nil {
		return failure{resource.FailedApplication, "applications: this agent can't run any"}
	}
	return nil
}

// do does what there is to do. It returns after how long it is to be called again if nothing happens.
func (a *agent) do(ctx context.Context) (again time.Duration) {
	if a.state.Update == nil {
		spec, err := a.wanted()
		if err != nil || !a.state.wants(spec) && !a.retries(spec) {
			a.progress("", "", err)
			return min(a.idle(ctx), a.retryIn(spec))
		}
		wait, err := a.awaitWindows(ctx, *spec)
		if wait > 0 {
			return min(wait, a.idle(ctx))
		}
		if err == nil {
			err = a.prepare(ctx, *spec)
		}
		if err != nil {
			return a.unprepared(*spec, err)
		}
	}
	for a.state.Update != nil && ctx.Err() == nil {
		u := *a.state.Update
		a.progress(u.Spec.RenderedVersion, u.Step, nil)
		a.o.hook(u.Step)
		err := a.step(ctx, &u)
		if ctx.Err() != nil {
			return 0
		}
		if err := a.stepped(u, err); err != nil {
			a.progress(u.Spec.RenderedVersion, u.Step, err)
			a.unsaved(u.Spec, err)
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
	u := update{Spec: spec, Step: stepStage}
	a.log.Info().Str("rendered_version", spec.RenderedVersion).Msg("update begins")
	a.progress(spec.RenderedVersion, stepStage, nil)
	a.o.hook(stepStage)
	if err := a.check(spec); err != nil {
		return err
	}
	ctx, cancel := a.untilSuperseded(ctx, spec)
	defer cancel()
	if err := a.stage(ctx, spec, spec.Drift == resource.DriftReport); err != nil {
		return failed(ctx, resource.FailedWrite, err)
	}
	a.progress(spec.RenderedVersion, stepBefore, nil)
	a.o.hook(stepBefore)
	if err := a.hooks(ctx, "beforeUpdating", u); err != nil {
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
			return nil, failure{resource.FailedInvalid, err.Error()}
		}
		want = append(want[:len(want):len(want)], files...)
	}
	return want, nil
}

// unprepared handles what kept an update from beginning: a failure is remembered, everything else is tried again.
func (a *agent) unprepared(spec resource.RenderedSpec, err error) (again time.Duration) {
	if endErr := a.endFiles(false); endErr != nil {
		a.log.Error().Err(endErr).Msg("staged files can't be removed")
	}
	var f failure
	if !errors.As(err, &f) {
		if !errors.Is(err, errSuperseded) {
			a.progress(spec.RenderedVersion, stepStage, err)
			a.unsaved(spec, err)
			a.log.Info().Err(err).Str("rendered_version", spec.RenderedVersion).Msg("update waits")
		}
		if errors.Is(err, errSuperseded) || errors.Is(err, context.Canceled) {
			return 0
		}
		return retryAfter
	}
	a.log.Error().Str("rendered_version", spec.RenderedVersion).Str("reason", f.reason).Str("error", f.message).Msg("update failed before anything was changed")
	u := update{Spec: spec}.failing(f, a.o.Now())
	a.retryLater(u.Spec)
	err = a.save(func(s *state) { s.Failed, s.FailedSpec, s.Hooks = u.Failed, digestOf(u.Spec), hookProgress{} })
	a.progress("", "", nil)
	if err != nil {
		u.Failed.Message += "; and " + err.Error()
		a.mu.Lock()
		a.seen.failed = u.Failed
		a.mu.Unlock()
		a.changed()
		a.log.Error().Err(err).Msg("that a version failed can't be remembered: it is tried again")
		return retryAfter
	}
	return 0
}

// unsaved reports a version as failed while the agent's state can't be written, so that it can't go on.
func (a *agent) unsaved(spec resource.RenderedSpec, err error) {
	if !errors.As(err, new(notSaved)) {
		return
	}
	a.mu.Lock()
	a.seen.failed = &resource.FailedVersion{RenderedVersion: spec.RenderedVersion, Reason: resource.FailedWrite, Message: err.Error(), At: resource.Time(a.o.Now())}
	a.mu.Unlock()
	a.changed()
}

// retry is when a version is tried again that failed.
type retry struct {
	spec          string // its digest
	backoff.Retry        // due at once after the agent was started
}

// hostRetry is the wait before a version is tried again that failed because of what the host is like.
var hostRetry = backoff.Backoff{Min: time.Minute, Max: time.Hour}

// lookForRetry is how often the agent looks whether somebody asks for that.
const lookForRetry = 2 * time.Second

// retryFile asks the agent to try again the version that failed.
const retryFile = "retry"

// ofHost reports whether a version failed because of what may change without another version: room on a disk, what stands in a place, a
// blob that the hub doesn't have yet. Nothing of the host but files was changed by it, so that to try it again costs nothing.
func ofHost(f *resource.FailedVersion) bool {
	return slices.Contains([]string{resource.FailedWrite, resource.FailedPath, resource.FailedContent}, f.Reason)
}

// failedBefore reports whether a spec is the one that failed last.
func (s state) failedBefore(spec *resource.RenderedSpec) bool {
	return spec != nil && s.Failed != nil && s.Failed.RenderedVersion == spec.RenderedVersion && s.FailedSpec == digestOf(*spec)
}

// retries reports whether a version that failed is tried again now.
func (a *agent) retries(spec *resource.RenderedSpec) bool {
	if !a.state.failedBefore(spec) {
		return false
	}
	if os.Remove(filepath.Join(a.o.Config.Data.Dir, retryFile)) == nil {
		a.log.Info().Str("rendered_version", spec.RenderedVersion).Msg("a version that failed is tried again, as it was asked for on this node")
		return true
	}
	return ofHost(a.state.Failed) && a.retryWait(spec) <= 0
}

func (a *agent) retryWait(spec *resource.RenderedSpec) time.Duration {
	if a.retry.spec != a.state.FailedSpec {
		return 0
	}
	return a.retry.Left(hostRetry, a.o.Now())
}

// retryIn is when it is to be asked again whether a version is tried again.
func (a *agent) retryIn(spec *resource.RenderedSpec) time.Duration {
	if !a.state.failedBefore(spec) {
		return time.Hour
	}
	if ofHost(a.state.Failed) {
		return max(min(a.retryWait(spec), lookForRetry), time.Millisecond)
	}
	return lookForRetry
}

func (a *agent) retryLater(spec resource.RenderedSpec) {
	if digest := digestOf(spec); a.retry.spec != digest {
		a.retry = retry{spec: digest}
	}
	a.retry.Failed(hostRetry, a.o.Now())
}

// endFiles commits the files of an update or rolls them back, unless that was done before the agent was started.
func (a *agent) endFiles(commit bool) error {
	found, _, err := a.files.Recover()
	switch {
	case err != nil || found != files.Swapped:
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

func (a *agent) saveUpdate(u update) error { return a.save(func(s *state) { s.Update = &u }) }

// step does the step of an update. It may add to u.
func (a *agent) step(ctx context.Context, u *update) error {
	switch u.Step {
	case stepSwap:
		return failed(ctx, resource.FailedWrite, a.files.Swap())
	case stepSwapped:
		return nil
	case stepOS:
		return failed(ctx, resource.FailedOS, a.switchOS(ctx, u))
	case stepReboot:
		return a.reboot(ctx, u)
	case stepBooted:
		return a.hooks(ctx, "afterRebooting", *u)
	case stepAfter:
		return a.hooks(ctx, "afterUpdating", *u)
	case stepApps:
		return a.switchApplications(ctx, u, a.state.Applied, u.Spec, a.files.Changes())
	case stepHealth:
		return a.health(ctx, u.Spec)
	case stepCommit:
		a.discardOS(ctx, "")
		return a.endFiles(true)
	case stepBack:
		a.discardOS(ctx, "")
		return a.rollBack(ctx, u)
	}
	return failure{resource.FailedInterrupted, fmt.Sprintf("the agent's state has a step %q, which this version does not know", u.Step)}
}

// stepped puts the outcome of a step on disk. It returns an error if the step is to be tried again.
func (a *agent) stepped(u update, err error) error {
	var f failure
	switch {
	case errors.As(err, &f) && u.Step != stepBack && u.Step != stepCommit:
		a.log.Error().Str("rendered_version", u.Spec.RenderedVersion).Str("step", u.Step).Str("reason", f.reason).Str("error", f.message).Msg("update failed and is rolled back")
		u = u.failing(f, a.o.Now())
		return a.saveUpdate(u)
	case err != nil:
		return err
	case u.Step == stepCommit:
		err = a.save(func(s *state) {
			s.Applied, s.Unstarted, s.Update, s.Failed, s.FailedSpec, s.Hooks = u.Spec, u.Unstarted, nil, nil, "", hookProgress{}
			s.Downloaded = downloaded{}
		})
		if err == nil {
			a.applied()
			a.log.Info().Str("rendered_version", u.Spec.RenderedVersion).Msg("update applied")
		}
		a.progress("", "", err)
		return err
	case u.Step == stepBack:
		if u.Failed.At == "" {
			u.Failed.At = resource.Time(a.o.Now())
		}
		a.retryLater(u.Spec)
		err = a.save(func(s *state) {
			s.Unstarted, s.Update, s.Failed, s.FailedSpec, s.Hooks = u.Unstarted, nil, u.Failed, digestOf(u.Spec), hookProgress{}
			s.Downloaded = downloaded{}
		})
		if err == nil {
			a.log.Warn().Str("rendered_version", u.Spec.RenderedVersion).Str("applied", a.state.Applied.RenderedVersion).Msg("update rolled back")
		}
		a.progress("", "", err)
		return err
	}
	for {
		switchOS := u.Step == stepSwapped && a.wantsOS(u.Spec)
		u.Step = following(u.Step, switchOS)
		if !a.empty(u) {
			return a.saveUpdate(u)
		}
	}
}

// empty reports whether a step has nothing to do, so that it need not be on disk.
func (a *agent) empty(u update) bool {
	switch u.Step {
	case stepAfter:
		return len(a.due("afterUpdating", u)) == 0
	case stepBooted:
		return len(a.due("afterRebooting", u)) == 0
	case stepApps:
		return len(u.Spec.Applications) == 0 && len(a.state.Applied.Applications) == 0
	case stepHealth:
		return len(a.o.Config.Health.Checks) == 0 && len(u.Spec.Applications) == 0
	}
	return false
}

// switchOS makes the spec's OS image the one to boot next, unless it is booted: the host may have been booted since it was switched. What
// was booted before is on disk first, so that a roll-back returns to it from every point on.
func (a *agent) switchOS(ctx context.Context, u *update) error {
	booted, err := a.os.Booted(ctx)
	if err != nil || sameImage(booted, u.Spec.OS.Image) {
		return err
	}
	if u.OSBefore == nil {
		u.OSBefore = &booted
		if err := a.saveUpdate(*u); err != nil {
			return err
		}
	}
	return a.os.Switch(ctx, u.Spec.OS.Image, a.state.Downloaded.OS == u.Spec.OS.Image)
}

// reboot boots the host into the image that was made the next one, and says whether that succeeded once it has booted again.
func (a *agent) reboot(ctx context.Context, u *update) error {
	if u.Boot == "" {
		if booted, err := a.os.Booted(ctx); err == nil && sameImage(booted, u.Spec.OS.Image) {
			return nil // by a boot that the agent did not order
		}
		if err := a.hooks(ctx, "beforeRebooting", *u); err != nil {
			return err
		}
		u.Boot = a.state.Boot
		if err := a.saveUpdate(*u); err != nil {
			return err
		}
	}
	if u.Boot == a.state.Boot {
		if err := a.os.Reboot(ctx); err != nil {
			return failed(ctx, resource.FailedOS, fmt.Errorf("the host can't be rebooted: %w", err))
		}
		<-ctx.Done() // the host ends the agent
		return ctx.Err()
	}
	booted, err := a.os.Booted(ctx)
	switch {
	case err != nil:
		return err
	case !sameImage(booted, u.Spec.OS.Image):
		return failure{resource.FailedOS, fmt.Sprintf("the host was rebooted and has booted %s, not %s", booted.Image, u.Spec.OS.Image)}
	}
	return nil
}

// sameImage reports whether a reference, with a digest or without, is that of the booted image.
func sameImage(booted resource.OSStatus, image string) bool {
	if name, digest, ok := strings.Cut(image, "@"); ok && booted.ImageDigest != "" {
		bare, _, _ := strings.Cut(booted.Image, "@")
		return digest == booted.ImageDigest && (bare == name || strings.HasPrefix(bare, name+":") || strings.HasPrefix(name, bare+":"))
	}
	return booted.Image == image
}

// wantsOS reports whether a spec wants another OS image than the host has booted.
func (a *agent) wantsOS(spec resource.RenderedSpec) bool {
	if spec.OS == nil || spec.OS.Image == "" || a.os == nil {
		return false
	}
	booted, err := a.os.Booted(context.Background())
	return err != nil || !sameImage(booted, spec.OS.Image)
}

// rollBack puts back what was before an update. All of it may be done again.
func (a *agent) rollBack(ctx context.Context, u *update) error {
	changes := a.files.Changes()
	if err := a.endFiles(false); err != nil {
		return err
	}
	if u.OSBefore != nil {
		reboot, err := a.os.Rollback(ctx, *u.OSBefore)
		if err != nil {
			return fmt.Errorf("the OS image can't be switched back: %w", err)
		}
		if reboot && (u.BackBoots < maxBackBoots || u.BackBoot == a.state.Boot) {
			return a.rebootBack(ctx, u)
		}
		if reboot { // its boot loader has another opinion: a host that runs another image is better than one that reboots for ever
			u.Failed.Message += fmt.Sprintf("; and when it was rolled back: the host was rebooted %d times and does not boot %s", u.BackBoots, u.OSBefore.Image)
		}
	}
	// If what was there before can't be started again, the next update may do it, and the applications' status says it.
	if err := a.switchApplications(ctx, u, u.Spec, a.state.Applied, changes); err != nil {
		u.Failed.Message += fmt.Sprintf("; and when it was rolled back: %v", err)
	}
	return nil
}

// rebootBack boots the host into the image that it had before an update. Each boot that is ended for it is counted on disk first.
func (a *agent) rebootBack(ctx context.Context, u *update) error {
	if u.BackBoot != a.state.Boot {
		u.BackBoot, u.BackBoots = a.state.Boot, u.BackBoots+1
		if err := a.saveUpdate(*u); err != nil {
			return err
		}
	}
	return errors.Join(a.os.Reboot(ctx), errors.New("the host reboots into the OS image that it had before"))
}

// switchApplications stops and starts applications, and notes in u which are to be started after the update: optional ones.
func (a *agent) switchApplications(ctx context.Context, u *update, from, to resource.RenderedSpec, changes []files.Change) error {
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
	a.startAt, a.startWait = time.Time{}, 0
	return failed(ctx, resource.FailedApplication, err)
}

// health waits until all checks succeed and all applications that are not optional run, or have completed.
func (a *agent) health(ctx context.Context, spec resource.RenderedSpec) error {
	over := time.After(a.o.Config.Health.Timeout)
	for {
		err := a.unhealthy(ctx, spec)
		if err == nil {
			return nil
		}
		a.progress(spec.RenderedVersion, stepHealth, err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over:
			return failure{resource.FailedHealth, fmt.Sprintf("after %s: %v", a.o.Config.Health.Timeout, err)}
		case <-time.After(a.o.HealthPause):
		}
	}
}

func (a *agent) unhealthy(ctx context.Context, spec resource.RenderedSpec) error {
	for i, c := range a.o.Config.Health.Checks {
		limit, err := timeout(c.Timeout)
		if err != nil {
			return err
		}
		env := environment(a.o.Config.Root, "health", update{Spec: spec})
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
