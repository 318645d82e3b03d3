// Package upgrade is the part of edgeagent that replaces the node's core, and the agent itself, by another version, gives the core other settings,
// and returns to what was before if the core does not work with it. It fetches and verifies what is ordered, switches to it, observes the core on
// trial, and commits or rolls back. It also has images pulled.
//
// It never changes the core's data, except that it puts a backup back where the old core can't open it; it never runs a program that isn't
// signed by a key of the node's own settings, or that these don't list; it never changes a setting of the core that these don't list; and it never
// tries an order again that has failed.
//
// Start with steps.go: the table of the steps, in which each has its effect, and what comes after each of its results. The record of the upgrade on disk is all
// that a new process of the agent needs to go on. kinds.go has what differs between orders of a version, of settings and of images, versions.go has the directory of versions and the checks of programs, minisign.go signatures, stage.go what
// is done before anything is changed, core.go how the core is run, trial.go when it is well, replace.go how the agent replaces itself.
package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
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

// upgradeState is what is kept on disk.
type upgradeState struct {
	// Version is the version of the core that is committed.
	Version string `json:"version,omitempty"`
	// Previous is the one before, which is kept.
	Previous string `json:"previous,omitempty"`
	// LastOutcome is how the last order ended, and Earlier are those before it, without their logs: a hub that was restored from a backup orders
	// what it no longer knows, and gets the outcome.
	LastOutcome  *orderOutcome  `json:"done,omitempty"`
	PastOutcomes []orderOutcome `json:"earlier,omitempty"`
	// Upgrade is the one that is being made, and Preparing the order of which nothing is changed yet, since when it is prepared.
	Upgrade   *upgradeRecord `json:"upgrade,omitempty"`
	Preparing preparedOrder  `json:"preparing,omitzero"`
	// Probation is that of the last upgrade that has succeeded.
	Probation *probationRecord `json:"probation,omitempty"`
	// RestartNeeded says that the version before took the place of a damaged one, and that the core may have to be started again with it.
	RestartNeeded bool `json:"fellBack,omitempty"`
}

// preparedOrder is an order that is prepared.
type preparedOrder struct {
	Order string    `json:"order"`
	Begun string    `json:"begun"`
	At    time.Time `json:"at"`
}

// upgradeRecord is the record of one that is being made.
type upgradeRecord struct {
	Order resource.UpgradeOrder `json:"order"`
	From  string                `json:"from"` // the version before, in an order of a version
	Step  string                `json:"step"`
	// Started is when it was begun.
	Started time.Time `json:"started"`
	// Resumed is how often the agent was started in the midst of it.
	Resumed int `json:"resumed,omitempty"`
	// Failed is why it is rolled back, AgentFailed why the agent is not replaced.
	Failed      *Failure `json:"failed,omitempty"`
	AgentFailed *Failure `json:"agentFailed,omitempty"`
	// RevertAttempts is how often what was before could not be put back, Unreverted why it could not, and Unwell why the core did not run with it.
	RevertAttempts int    `json:"reverts,omitempty"`
	RevertError    string `json:"unreverted,omitempty"`
	RestartError   string `json:"unwell,omitempty"`
	// ServicesError is why services don't run the version that is committed.
	ServicesError string `json:"unfollowed,omitempty"`
	// AgentBoot is the boot of the host in which the new agent has taken the place of the old one.
	AgentBoot string `json:"boot,omitempty"`
}

// orderOutcome is how an order ended.
type orderOutcome struct {
	Order   string    `json:"order"`
	From    string    `json:"from,omitempty"`
	To      string    `json:"to,omitempty"`
	Result  string    `json:"result"`
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	Log     string    `json:"log,omitempty"`
	At      time.Time `json:"at"`
}

// Bounds of Earlier: how many there are, and the bytes of a message.
const (
	maxPastOutcomes = 20
	maxPastMessage  = 1 << 10
)

// end makes an outcome the last one.
func (s *upgradeState) end(o orderOutcome) {
	s.PastOutcomes = slices.DeleteFunc(slices.Clone(s.PastOutcomes), func(e orderOutcome) bool { return e.Order == o.Order })
	if s.LastOutcome != nil && s.LastOutcome.Order != o.Order {
		before := *s.LastOutcome
		before.Message, before.Log = truncateText(before.Message, maxPastMessage), ""
		s.PastOutcomes = append(s.PastOutcomes, before)
	}
	s.PastOutcomes = s.PastOutcomes[max(0, len(s.PastOutcomes)-maxPastOutcomes):]
	s.LastOutcome, s.Upgrade = &o, nil
}

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

// Upgrader carries out the orders of a node. state belongs to the goroutine of Run.
type Upgrader struct {
	o        Options
	log      zerolog.Logger
	versions versionDir
	keys     trustedKeys
	core     core
	wake     chan struct{} // capacity 1
	proven   chan struct{} // closed when this agent has reported
	probed   time.Time     // when the core on probation was looked at last
	// unwritten says that the state is newer than that on disk, which could not be written.
	unwritten bool

	mu      sync.Mutex
	state   upgradeState // written with mu held
	live    liveStatus
	staging string // the order that is being prepared, while there is a cancel
	cancel  context.CancelCauseFunc
}

// liveStatus is what is told besides the state.
type liveStatus struct {
	order          string // that is prepared or waits
	from           string
	to             string
	held           bool
	step           string
	at             time.Time // since when
	waitReason     string    // why it does not go on
	versionDamage  string    // of the present version
	lastWaitReason string    // why the order that is prepared did not go on last

	received, size int64 // of what is downloaded
}

// New opens what is on disk. The core is not touched before Run.
func New(o Options) (*Upgrader, error) {
	dir := filepath.Join(o.Dir, "upgrade")
	if err := datadir.MakeDir(dir); err != nil {
		return nil, err
	}
	trusted, err := parseKeys(o.Config.Keys)
	if err != nil {
		return nil, err
	}
	u := &Upgrader{o: o, log: o.Log, versions: versionDir{o.Config.Dir}, keys: trusted, wake: make(chan struct{}, 1), proven: make(chan struct{})}
	if u.state, err = u.load(); err != nil {
		return nil, err
	}
	if err := u.reserve(); err != nil {
		u.log.Warn().Err(err).Msg("no space could be set aside for the state of upgrades")
	}
	switch {
	case len(o.Config.Core.Run) > 0:
		run := o.Config.Core.Run
		c := newChildCore(filepath.Join(o.Config.Dir, linkCurrent, programCore), run, o.Config.Core.Data, filepath.Join(dir, "core.log"), o.Config.Core.Stop, o.Log)
		if up := u.state.Upgrade; up != nil { // the step starts what is to run
			c.trial = stepTable[up.Step].holds
		}
		u.core = c
	case o.Unit != nil:
		u.core = &unitCore{Unit: o.Unit, name: o.Config.Core.Unit, began: time.Now()}
	}
	if u.core == nil || IsOnTrial() { // on trial the agent that has started this one carries out the order
		return u, nil
	}
	return u, u.resume()
}

func (u *Upgrader) file(name string) string { return filepath.Join(u.o.Dir, "upgrade", name) }

func (u *Upgrader) load() (s upgradeState, err error) {
	s, damage, err := readState(u.o.Dir)
	if err = errors.Join(err, damage); err != nil {
		return s, fmt.Errorf("%w: move it away, and the version to which %s leads is kept", err, filepath.Join(u.o.Config.Dir, linkCurrent))
	}
	return s, nil
}

// CheckState says what is damaged of the state of upgrades in an agent's data directory. It returns an error if that can't be read.
func CheckState(dataDir string) (damage, err error) {
	_, damage, err = readState(dataDir)
	return damage, err
}

func readState(dataDir string) (s upgradeState, damage, err error) {
	path := filepath.Join(dataDir, "upgrade", "state.json")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return s, nil, nil
	}
	if err != nil {
		return s, nil, fmt.Errorf("the state of upgrades can't be read: %w", err)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return upgradeState{}, fmt.Errorf("the state of upgrades %s is damaged: %w", path, err), nil
	}
	return s, nil, nil
}

// reserveSize is set aside so that the state can be written on a full disk.
const reserveSize = 64 << 10

func (u *Upgrader) reserve() error {
	if info, err := os.Stat(u.file("reserve")); err == nil && info.Size() == reserveSize {
		return nil
	}
	return datadir.WriteFile(u.file("reserve"), make([]byte, reserveSize))
}

// save changes the state, on disk first.
func (u *Upgrader) save(change func(*upgradeState)) error {
	next := u.state
	change(&next)
	text, err := json.Marshal(next)
	if err != nil {
		return err
	}
	u.hook("before the state is written")
	err = datadir.WriteFile(u.file("state.json"), text)
	if errors.Is(err, syscall.ENOSPC) && os.Remove(u.file("reserve")) == nil && datadir.SyncDir(u.file("")) == nil { // ext4 gives room back when it has synced
		err = datadir.WriteFile(u.file("state.json"), text)
	}
	if err != nil {
		return fmt.Errorf("the state of the upgrade can't be written: %w", err)
	}
	u.hook("after the state is written")
	u.mu.Lock()
	u.state, u.unwritten = next, false
	u.mu.Unlock()
	u.o.Changed()
	return nil
}

// keep changes the state also if that can't be written: then until the agent ends, or until something is written again. It is for what may be
// done again after that.
func (u *Upgrader) keep(change func(*upgradeState)) {
	if err := u.save(change); err != nil {
		u.assume(change, err)
	}
}

// assume changes the state although that could not be written.
func (u *Upgrader) assume(change func(*upgradeState), why error) {
	u.log.Error().Err(why).Msg("it goes on without that")
	u.mu.Lock()
	change(&u.state)
	u.unwritten = true
	u.mu.Unlock()
	u.o.Changed()
}

func (u *Upgrader) hook(step string) {
	if u.o.BeforeStep != nil {
		u.o.BeforeStep(step)
	}
}

// resume puts in order what an earlier run of the agent has left.
func (u *Upgrader) resume() error {
	s := u.state
	if up := s.Upgrade; up != nil {
		u.log.Warn().Str("version", up.Order.Version).Str("step", up.Step).Msg("an upgrade was interrupted and goes on")
		r, now, why := up.resumed(up.Step == stepTakeOver && u.runsAgentOf(up.Order.Version), u.o.Boot)
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
	err := u.verifyInstalled(s.Version)
	if err == nil {
		return u.versions.link(linkCurrent, s.Version)
	}
	u.live.versionDamage = fmt.Sprintf("version %s, which is installed: %v", s.Version, err)
	u.log.Error().Msg(u.live.versionDamage)
	if s.Previous == "" || u.verifyInstalled(s.Previous) != nil {
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
	if c, ok := u.core.(*childCore); ok && u.versions.linked(linkCurrent) != "" {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		keeping.Go(func() { c.keep(ctx) })
	}
	if IsOnTrial() {
		<-ctx.Done()
		return nil
	}
	if u.state.RestartNeeded && u.state.Upgrade == nil { // a service may have started the other version before the agent
		if err := u.restart(ctx); err != nil {
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
	if c, ok := u.core.(*childCore); ok {
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
		u.probe(ctx)
	}
	if u.state.Upgrade == nil {
		if again := u.next(ctx); again > 0 && u.state.Probation != nil {
			return min(again, u.probeAfter()), nil
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
	o, err := u.wanted()
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

// wanted is the order that is to be carried out; nil: there is none, or it was carried out. One that can't be read comes with an error.
func (u *Upgrader) wanted() (*resource.UpgradeOrder, error) {
	o, err := u.o.Order()
	if o == nil || o.ID == "" || u.state.LastOutcome != nil && u.state.LastOutcome.Order == o.ID {
		return nil, err
	}
	if i := slices.IndexFunc(u.state.PastOutcomes, func(e orderOutcome) bool { return e.Order == o.ID }); i >= 0 {
		u.log.Info().Str("version", o.Version).Str("order", o.ID).Msg("the order was carried out before: its outcome is reported again")
		u.mu.Lock()
		u.state.end(u.state.PastOutcomes[i]) // on disk it may stay as it is
		u.mu.Unlock()
		u.o.Changed()
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
	u.about(o)
	switch held := u.held(o); {
	case held != "":
		u.progress(stepHeld, errors.New(held))
		return pollPause
	case o.Wait:
		u.progress(resource.StepReady, nil)
		return pollPause
	}
	if now := u.state.Preparing; now.Order != o.ID || now.Begun != o.Begun { // one that is given again has all its time
		if err := u.save(func(s *upgradeState) { s.Preparing = preparedOrder{o.ID, o.Begun, u.o.Now()} }); err != nil {
			u.progress(stepWait, err)
			return retryAfter
		}
		u.waits("")
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
	u.waits(err.Error())
	u.progress(stepWait, err)
	u.log.Debug().Err(err).Str("version", o.Version).Msg("the upgrade waits")
	if errors.As(err, new(notReadyError)) {
		return pollPause
	}
	return retryAfter
}

func (u *Upgrader) waits(why string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.live.lastWaitReason = why
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
		end := next.Upgrade.outcome(p.message, u.o.Now())
		if why != nil {
			u.log.Error().Str("version", o.Version).Str("reason", end.Reason).Str("error", end.Message).Msg("the upgrade failed before anything was changed")
			if err := u.versions.prune(u.kept()...); err != nil {
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

// kept are the versions that are not removed.
func (u *Upgrader) kept() []string {
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

// restart starts the core that current leads to, with the settings in its file. One that does not get ready is an error, and the upgrade's: ctx goes on.
func (u *Upgrader) restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, u.o.Config.Trial.Timeout+u.o.Config.Core.Stop)
	defer cancel()
	return u.core.restart(ctx, true)
}

// withOutput adds the end of the core's output to a Failure.
func (u *Upgrader) withOutput(ctx context.Context, err error) error {
	var f *Failure
	if !errors.As(err, &f) {
		return err
	}
	if out := u.core.output(ctx); out != "" {
		return &Failure{f.Reason, f.Message, out}
	}
	return f
}

// tidy removes what no upgrade needs any more. backup says that the backup is needed.
func (u *Upgrader) tidy(up upgradeRecord, backup bool) {
	kept := u.kept()
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

// about says which order is dealt with.
func (u *Upgrader) about(o resource.UpgradeOrder) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.live.order, u.live.from, u.live.to, u.live.held = o.ID, u.from(o), o.Version, o.Wait
}

// progress says where the upgrade is, and why it does not go on.
func (u *Upgrader) progress(step string, err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	u.mu.Lock()
	same := u.live.step == step && u.live.waitReason == problem
	if u.live.step != step {
		u.live.at, u.live.received, u.live.size = u.o.Now(), 0, 0
	}
	u.live.step, u.live.waitReason = step, problem
	u.mu.Unlock()
	if !same {
		u.o.Changed()
	}
}
