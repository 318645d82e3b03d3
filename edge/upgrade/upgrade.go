// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

// What the hub is told of an order before there is an upgrade. After that it is told the report of a step.
const (
	stepHeld  = resource.StepHeld        // the node's owner has not released it
	stepWait  = resource.StepWaiting     // for the core to be well and linked, for a content, or for resources
	stepFetch = resource.StepDownloading // the bundle is fetched and verified
	stepPull  = resource.StepPulling     // images are pulled
)

// maxRevertAttempts is how often the roll-back is tried to what was before: a command of the node may be refused, or fail, each time. Then it ends, and says so.
const maxRevertAttempts = 10

// maxResumed is how often an upgrade goes on after the agent ended in the midst of it. After that it is rolled back: it may be what ends
// the agent, or the host.
const maxResumed = 3

// Failure is why an order can't be carried out. It is not tried again.
type Failure struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Log is the end of what the new version has printed.
	Log string `json:"log,omitempty"`
}

func (f *Failure) Error() string { return f.Message }

func failf(reason, format string, args ...any) error {
	return &Failure{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// toFailure makes a Failure of an error that is none, unless ctx ended: then the upgrade is not to blame.
func toFailure(ctx context.Context, reason string, err error) error {
	if err == nil || errors.As(err, new(*Failure)) {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, syscall.ENOSPC) {
		reason = resource.UpgradeFailedDisk
	}
	return failf(reason, "%v", err)
}

// errSuperseded ends the fetching for an order that is there no more.
var errSuperseded = errors.New("the order was replaced or withdrawn")

// Options are what an Upgrader needs.
type Options struct {
	Config configs.AgentUpgrade
	// Dir is the agent's data directory.
	Dir string
	// Version is the agent's.
	Version string
	// Boot tells the boots of the host apart.
	Boot string
	Log  zerolog.Logger
	Now  func() time.Time
	// Order is the newest order that the node's broker has; nil: none. A nil order with an error: that is not known now. Nothing follows from that.
	Order func() (*resource.UpgradeOrder, error)
	// Blob opens a content that the hub has. An error that is no Failure is temporary.
	Blob func(ctx context.Context, c resource.Content, progress func(received int64)) (io.ReadCloser, error)
	// Connected says why there is no connection to the node's broker.
	Connected func() error
	// Exceeded says which of the host's resources is used more than checks allow.
	Exceeded func(ctx context.Context, checks resource.UpgradeChecks) error
	// Pull fetches an image, or says what to do if there is nothing that could. nil: nothing can.
	Pull func(ctx context.Context, image string) error
	// Allows says why the node's settings don't allow a command.
	Allows func(argv []string) error
	// Run runs a command, if the node's settings allow it. An error that is no Failure is the command's.
	Run func(ctx context.Context, argv, env []string) error
	// Unit is the core's service; nil: there is no systemd.
	Unit Unit
	// Service is a service of a name; nil: there is no systemd.
	Service func(name string) Unit
	// Changed is called when Status says something else.
	Changed func()
	// BeforeStep is called before each step, and before and after the state is written. Tests end the agent in it.
	BeforeStep func(step string)
}

// Upgrader carries out the orders of a node. Its parts hold what the steps of an upgrade work on.
type Upgrader struct {
	*journal
	o         Options
	versions  *installation
	core      *coreControl
	services  services
	settings  *settingsOrders
	probation *probationWatch
	wake      chan struct{} // capacity 1
	proven    chan struct{} // closed when this agent has reported

	// The journal's mu guards them.
	staging string // the order that is being prepared, while there is a cancel
	cancel  context.CancelCauseFunc
}

// New opens what is on disk. The core is not touched before Run.
func New(o Options) (*Upgrader, error) {
	trusted, err := parseKeys(o.Config.Keys)
	if err != nil {
		return nil, err
	}
	j, err := openJournal(&o)
	if err != nil {
		return nil, err
	}
	dir := versionDir{o.Config.Dir}
	u := &Upgrader{
		journal: j, o: o, wake: make(chan struct{}, 1), proven: make(chan struct{}),
		versions: &installation{versionDir: dir, journal: j, keys: trusted, sources: o.Config.Sources, blob: o.Blob},
		services: services{names: o.Config.Services, unit: o.Service, versions: dir, log: o.Log},
	}
	u.core = &coreControl{newCore(&o, j.state.Upgrade), j, &u.o.Config, dir, o.Exceeded, o.Connected}
	u.settings = &settingsOrders{j, u.core}
	u.probation = &probationWatch{journal: j, config: o.Config.Probation, core: u.core, settings: u.settings, over: func(up upgradeRecord) { u.tidy(up, false) }}
	if u.core.core == nil || IsOnTrial() { // on trial the agent that has started this one carries out the order
		return u, nil
	}
	return u, u.resume()
}

// resume puts in order what an earlier run of the agent has left.
func (u *Upgrader) resume() error {
	s := u.state
	if up := s.Upgrade; up != nil {
		u.log.Warn().Str("version", up.Order.Version).Str("step", up.Step).Msg("an upgrade was interrupted and goes on")
		r, now, why := up.resumed(up.Step == stepTakeOver && u.versions.runsAgentOf(up.Order.Version), u.o.Boot)
		if change, ok := now.after(r, why); ok {
			u.keep(change)
		}
		return nil
	}
	present := u.versions.linked(linkCurrent)
	if present != s.Version && u.versions.has(present, programCore) { // it was installed by hand
		u.keep(func(s *upgradeState) { s.Version, s.Previous = present, s.Version })
		return nil
	}
	return u.verifyPresent()
}

// verifyPresent verifies the version that is to run again, and falls back to the one before if that is whole. One that was not installed by an
// upgrade has no signature.
func (u *Upgrader) verifyPresent() error {
	s := u.state
	if s.Version == "" {
		return nil
	}
	err := u.versions.verifyInstalled(s.Version)
	if err == nil {
		return u.versions.link(linkCurrent, s.Version)
	}
	u.live.versionDamage = fmt.Sprintf("version %s, which is installed: %v", s.Version, err)
	u.log.Error().Msg(u.live.versionDamage)
	if s.Previous == "" || u.versions.verifyInstalled(s.Previous) != nil {
		return nil // a node without a core would be worse
	}
	u.live.versionDamage += ": version " + s.Previous + " runs instead"
	u.keep(func(s *upgradeState) { s.RestartNeeded = true })
	if err := u.versions.link(linkCurrent, s.Previous); err != nil {
		return err
	}
	u.keep(func(s *upgradeState) { s.Version, s.Previous = s.Previous, "" })
	return nil
}

// Run carries out orders until ctx ends. It returns a *Replace when the agent is to be replaced by another version.
func (u *Upgrader) Run(ctx context.Context) error {
	var keeping sync.WaitGroup
	defer keeping.Wait()
	if c, ok := u.core.core.(*childCore); ok && u.versions.linked(linkCurrent) != "" {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		keeping.Go(func() { c.keep(ctx) })
	}
	if IsOnTrial() {
		<-ctx.Done()
		return nil
	}
	if u.state.RestartNeeded && u.state.Upgrade == nil { // a service may have started the other version before the agent
		if err := u.core.restart(ctx); err != nil {
			u.log.Error().Err(err).Msg("the version before could not be started")
		}
		u.keep(func(s *upgradeState) { s.RestartNeeded = false })
	}
	for ctx.Err() == nil {
		again, err := u.do(ctx)
		if err != nil {
			return err
		}
		if again <= 0 {
			continue
		}
		select {
		case <-ctx.Done():
		case <-u.wake:
		case <-time.After(again):
		}
	}
	return nil
}

// Stop ends a core that the agent runs itself. It is called when the agent is told to end, and not when another one takes its place.
func (u *Upgrader) Stop(ctx context.Context) error {
	if c, ok := u.core.core.(*childCore); ok {
		return c.stop(ctx)
	}
	return nil
}

// OrderChanged says that the order may be another one.
func (u *Upgrader) OrderChanged() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.cancel == nil {
		return
	}
	if u.superseded(u.staging) {
		u.cancel(errSuperseded)
	}
}

// superseded says whether an order was withdrawn, or another one is there.
func (u *Upgrader) superseded(id string) bool {
	o, err := u.o.Order()
	return o == nil && err == nil || o != nil && (o.ID != id || o.Wait)
}

// Times after which something is looked at again.
const (
	retryAfter = 10 * time.Second // what can't be done yet
	pollPause  = time.Second      // for the owner's release
)

// do does what there is to do. It returns after how long it is to be called again if nothing happens.
func (u *Upgrader) do(ctx context.Context) (again time.Duration, err error) {
	if u.state.Upgrade == nil {
		u.probation.probe(ctx)
	}
	if u.state.Upgrade == nil {
		if again := u.next(ctx); again > 0 && u.state.Probation != nil {
			return min(again, u.probation.interval()), nil
		} else if again > 0 {
			return again, nil
		}
	}
	return u.carryOut(ctx)
}

// next prepares the order that is wanted, if there is one.
func (u *Upgrader) next(ctx context.Context) (again time.Duration) {
	if u.unwritten {
		if err := u.save(func(*upgradeState) {}); err != nil {
			u.progress(stepWait, err)
			return retryAfter
		}
	}
	o, err := u.wantedOrder()
	switch {
	case o == nil && err != nil: // it is not known: what is told and what is begun stay as they are
		return time.Hour
	case o == nil:
		u.progress("", nil)
		return time.Hour
	case err != nil:
		return u.begin(ctx, *o, prepareResult{result: resultFailed}, failf(resource.UpgradeFailedRefused, "%v", err))
	}
	return u.prepare(ctx, *o)
}

// wantedOrder is the order that is to be carried out; nil: there is none, or it was carried out. One that can't be read comes with an error.
func (u *Upgrader) wantedOrder() (*resource.UpgradeOrder, error) {
	o, err := u.o.Order()
	if o == nil || o.ID == "" || u.state.LastOutcome != nil && u.state.LastOutcome.Order == o.ID {
		return nil, err
	}
	if i := slices.IndexFunc(u.state.PastOutcomes, func(e orderOutcome) bool { return e.Order == o.ID }); i >= 0 {
		u.log.Info().Str("version", o.Version).Str("order", o.ID).Msg("the order was carried out before: its outcome is reported again")
		u.mu.Lock()
		u.state.end(u.state.PastOutcomes[i]) // on disk it may stay as it is
		u.mu.Unlock()
		u.changed()
		return nil, nil
	}
	return o, err
}

// prepareResult is how the first step went, which changes nothing, and what there is to say of that.
type prepareResult struct {
	result  stepResult
	message string
}

// prepare takes the first step, and begins the upgrade.
func (u *Upgrader) prepare(ctx context.Context, o resource.UpgradeOrder) (again time.Duration) {
	u.noteOrder(o)
	switch held := u.held(o); {
	case held != "":
		u.progress(stepHeld, errors.New(held))
		return pollPause
	case o.Wait:
		u.progress(resource.StepReady, nil)
		return pollPause
	}
	if now := u.state.Preparing; now.Order != o.ID || now.Begun != o.Begun { // one that is given again has all its time
		if err := u.save(func(s *upgradeState) { s.Preparing = preparedOrder{o.ID, o.Begun, u.now()} }); err != nil {
			u.progress(stepWait, err)
			return retryAfter
		}
		u.noteWait("")
	}
	ctx, cancel := u.untilSuperseded(ctx, o)
	defer cancel()
	p, err := prepareResult{}, u.inTime(o, u.state.Preparing.At)
	if err == nil {
		p, err = u.kindOf(o).stage(ctx, o)
	}
	if err == nil { // an earlier full disk may have used it
		err = toFailure(ctx, resource.UpgradeFailedDisk, u.reserve())
	}
	if err != nil {
		p.result, err = resultOf(err)
	}
	switch {
	case p.result != resultAgain:
		return u.begin(ctx, o, p, err)
	case ctx.Err() != nil:
		return time.Millisecond // there is another order, it took too long, or the agent ends
	}
	u.noteWait(err.Error())
	u.progress(stepWait, err)
	u.log.Debug().Err(err).Str("version", o.Version).Msg("the upgrade waits")
	if errors.As(err, new(notReadyError)) {
		return pollPause
	}
	return retryAfter
}

// begin puts an upgrade on disk, with the step that comes after the first one. An order of which nothing is changed is over with that. If it is withdrawn
// or held until the upgrade is there, nothing has begun; later is too late.
func (u *Upgrader) begin(ctx context.Context, o resource.UpgradeOrder, p prepareResult, why error) (again time.Duration) {
	up := upgradeRecord{Order: o, From: u.from(o), Step: stepPrepare, Started: u.state.Preparing.At}
	change, ok := up.after(p.result, why)
	if !ok {
		panic("upgrade: an order can't be prepared with the result " + string(p.result))
	}
	if last := up.nextStep(p.result); last == stepSucceeded || last == stepUnchanged {
		var next upgradeState
		change(&next)
		end := next.Upgrade.outcome(p.message, u.now())
		if why != nil {
			u.log.Error().Str("version", o.Version).Str("reason", end.Reason).Str("error", end.Message).Msg("the upgrade failed before anything was changed")
			if err := u.versions.prune(u.keptVersions()...); err != nil {
				u.log.Warn().Err(err).Msg("what was fetched can't be removed")
			}
		}
		return u.finish(end)
	}
	gone := func() bool { return ctx.Err() != nil || u.superseded(o.ID) || u.held(o) != "" }
	if gone() {
		return time.Millisecond
	}
	probation := u.state.Probation
	err := u.save(func(s *upgradeState) {
		if change(s); p.result != resultAgentOnly { // the core is another one from now on
			s.Probation = nil
		}
	})
	if err != nil {
		u.progress(stepWait, err)
		return retryAfter
	}
	u.mu.Lock()
	late := gone()
	u.cancel = nil // what comes now is too late
	u.mu.Unlock()
	if late {
		u.keep(func(s *upgradeState) { s.Upgrade, s.Probation = nil, probation })
		return time.Millisecond
	}
	return 0
}

// finish notes how an order ended of which nothing was changed.
func (u *Upgrader) finish(o orderOutcome) (again time.Duration) {
	if err := u.save(func(s *upgradeState) { s.end(o) }); err != nil {
		u.progress(stepWait, err)
		return retryAfter
	}
	u.progress("", nil)
	return time.Millisecond
}

// keptVersions are the versions that are not removed.
func (u *Upgrader) keptVersions() []string {
	s := u.state
	list := []string{s.Version, s.Previous, u.versions.linked(linkCurrent), u.versions.linked(linkAgent)}
	if s.Upgrade != nil {
		list = append(list, s.Upgrade.From, s.Upgrade.Order.Version)
	}
	return list
}

// untilSuperseded ends when there is another order, or this one has taken too long.
func (u *Upgrader) untilSuperseded(ctx context.Context, o resource.UpgradeOrder) (context.Context, context.CancelFunc) {
	ctx, late := context.WithDeadline(ctx, u.state.Preparing.At.Add(time.Duration(o.Timeout)*time.Second))
	ctx, cancel := context.WithCancelCause(ctx)
	u.mu.Lock()
	u.cancel, u.staging = cancel, o.ID
	if u.superseded(o.ID) { // since it was read
		cancel(errSuperseded)
	}
	u.mu.Unlock()
	return ctx, func() {
		u.mu.Lock()
		u.cancel = nil
		u.mu.Unlock()
		cancel(nil)
		late()
	}
}

// tidy removes what no upgrade needs any more. backup says that the backup is needed.
func (u *Upgrader) tidy(up upgradeRecord, backup bool) {
	kept := u.keptVersions()
	if up.Step != stepSucceeded { // what was tried
		runs := []string{u.state.Version, u.state.Previous, u.versions.linked(linkCurrent), u.versions.linked(linkAgent)}
		kept = slices.DeleteFunc(kept, func(v string) bool { return v == up.Order.Version && !slices.Contains(runs, v) })
	}
	err := errors.Join(u.versions.prune(kept...), u.reserve())
	if !backup {
		if e := os.Remove(u.file(backupName)); e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		u.log.Warn().Err(err).Msg("what the upgrade has left can't be removed")
	}
}

func isRefused(err error) bool {
	var f *Failure
	return errors.As(err, &f) && f.Reason == resource.UpgradeFailedRefused
}
