// Package upgrade is the part of edgeagent that replaces the node's core, and the agent itself, by another version, gives the core other settings,
// and returns to what was before if the core does not work with it. It fetches and verifies what is ordered, switches to it, observes the core on
// trial, and commits or rolls back. It also has images pulled.
//
// It never changes the core's data, except that it puts a backup back where the old core can't open it; it never runs a program that isn't
// signed by a key of the node's own settings, or that these don't list; it never changes a setting of the core that these don't list; and it never
// tries an order again that has failed.
//
// Start with the steps below. kinds.go has what differs between orders of a version, of settings and of images, versions.go has the directory of versions and the checks of programs, minisign.go signatures, stage.go what
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
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/configs/daemon/datadir"
	"github.com/edgebus/edgebus/topics/resource"
)

// An upgrade goes through these steps. Until stepInstall nothing is changed and nothing is on disk: after a crash it begins again. From then
// on each step is on disk before it is taken, and taking it again has the same outcome, but for stepInstall: an installer is run once.
const (
	stepHeld    = resource.StepHeld        // the node's owner has not released it
	stepWait    = resource.StepWaiting     // for the core to be well and linked, for a content, or for resources
	stepFetch   = resource.StepDownloading // the bundle is fetched and verified
	stepInstall = resource.StepInstalling  // the order's own installer is run, which the order of most upgrades has not
	stepBackUp  = resource.StepBackingUp   // a backup of the core's data is made
	stepPull    = resource.StepPulling     // images are pulled
	stepSwitch  = resource.StepSwitching   // current leads to the new version, or the core's file has the new settings
	stepTrial   = resource.StepTrial       // the new core, or that with the new settings, runs and is observed
	stepAgent   = resource.StepAgent       // the new core is committed, the new agent is tried
	stepBack    = resource.StepRollingBack // what was before is put back, and the core is started with it
)

// maxReverts is how often the roll-back is tried to what was before: a command of the node may be refused, or fail, each time. Then it ends, and says so.
const maxReverts = 10

// maxResumed is how often an upgrade goes on after the agent ended in the midst of it. After that it is rolled back: it may be what ends
// the agent, or the host.
const maxResumed = 3

// state is what is kept on disk.
type state struct {
	// Version is the version of the core that is committed.
	Version string `json:"version,omitempty"`
	// Previous is the one before, which is kept.
	Previous string `json:"previous,omitempty"`
	// Done is how the last order ended, and Earlier are those before it, without their logs: a hub that was restored from a backup orders
	// what it no longer knows, and gets the outcome.
	Done    *outcome  `json:"done,omitempty"`
	Earlier []outcome `json:"earlier,omitempty"`
	// Upgrade is the one that is being made.
	Upgrade *upgrade `json:"upgrade,omitempty"`
}

// upgrade is one that is being made.
type upgrade struct {
	Order resource.UpgradeOrder `json:"order"`
	From  string                `json:"from"` // the version before, in an order of a version
	Step  string                `json:"step"`
	// Started is when it was begun.
	Started time.Time `json:"started"`
	// Installing says that the order's installer was started.
	Installing bool `json:"installing,omitempty"`
	// Tried says that the new core may have been started.
	Tried bool `json:"tried,omitempty"`
	// Reverts is how often what was before could not be put back.
	Reverts int `json:"reverts,omitempty"`
	// Resumed is how often the agent was started in the midst of it.
	Resumed int `json:"resumed,omitempty"`
	// Failed is why it is rolled back, AgentFailed why the agent is not replaced.
	Failed      *Failure `json:"failed,omitempty"`
	AgentFailed *Failure `json:"agentFailed,omitempty"`
	// Unfollowed is why services don't run the version that is committed.
	Unfollowed string `json:"unfollowed,omitempty"`
	// TookOver says that the new agent has taken the place of the old one, in this Boot of the host, and has yet to report.
	TookOver bool   `json:"tookOver,omitempty"`
	Boot     string `json:"boot,omitempty"`
}

// outcome is how an order ended.
type outcome struct {
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
	maxEarlier        = 20
	maxEarlierMessage = 1 << 10
)

// end makes an outcome the last one.
func (s *state) end(o outcome) {
	s.Earlier = slices.DeleteFunc(slices.Clone(s.Earlier), func(e outcome) bool { return e.Order == o.Order })
	if s.Done != nil && s.Done.Order != o.Order {
		before := *s.Done
		before.Message, before.Log = cut(before.Message, maxEarlierMessage), ""
		s.Earlier = append(s.Earlier, before)
	}
	s.Earlier = s.Earlier[max(0, len(s.Earlier)-maxEarlier):]
	s.Done, s.Upgrade = &o, nil
}

// Failure is why an order can't be carried out. It is not tried again.
type Failure struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Log is the end of what the new version has printed.
	Log string `json:"log,omitempty"`
}

func (f *Failure) Error() string { return f.Message }

func fail(reason, format string, args ...any) error {
	return &Failure{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// failed makes a Failure of an error that is none, unless ctx ended: then the upgrade is not to blame.
func failed(ctx context.Context, reason string, err error) error {
	if err == nil || errors.As(err, new(*Failure)) {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, syscall.ENOSPC) {
		reason = resource.UpgradeFailedDisk
	}
	return fail(reason, "%v", err)
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
	versions versions
	keys     keys
	core     core
	wake     chan struct{} // capacity 1
	proven   chan struct{} // closed when this agent has reported
	taken    *taken        // the last step, while its outcome is not on disk
	started  string        // the order for whose trial this agent has started the core
	fellBack bool          // the present version was damaged, and current leads to the one before now
	begun    struct {      // the order that is prepared, since when it is to be, and why it did not go on last
		order   string
		at      time.Time
		problem string
	}

	mu      sync.Mutex
	state   state // written with mu held
	seen    seen
	staging string // the order that is being prepared, while there is a cancel
	cancel  context.CancelCauseFunc
}

// taken is a step that was taken, and how that went.
type taken struct {
	up  upgrade
	err error
}

// seen is what is told besides the state.
type seen struct {
	order   string // that is prepared or waits
	from    string
	to      string
	wait    bool
	step    string
	at      time.Time // since when
	problem string    // why it does not go on
	damage  string    // of the present version

	received, size int64 // of what is downloaded
}

// New opens what is on disk. The core is not touched before Run.
func New(o Options) (*Upgrader, error) {
	dir := filepath.Join(o.Dir, "upgrade")
	if err := datadir.Make(dir); err != nil {
		return nil, err
	}
	trusted, err := parseKeys(o.Config.Keys)
	if err != nil {
		return nil, err
	}
	u := &Upgrader{o: o, log: o.Log, versions: versions{o.Config.Dir}, keys: trusted, wake: make(chan struct{}, 1), proven: make(chan struct{})}
	if u.state, err = u.load(); err != nil {
		return nil, err
	}
	if err := u.reserve(); err != nil {
		u.log.Warn().Err(err).Msg("no space could be set aside for the state of upgrades")
	}
	switch {
	case len(o.Config.Core.Run) > 0:
		run := o.Config.Core.Run
		c := newChild(filepath.Join(o.Config.Dir, linkCurrent, programCore), run, o.Config.Core.Data, filepath.Join(dir, "core.log"), o.Config.Core.Stop, o.Log)
		if up := u.state.Upgrade; up != nil { // the step starts what is to run
			c.trial = up.Step == stepSwitch || up.Step == stepTrial || up.Step == stepBack
		}
		u.core = c
	case o.Unit != nil:
		u.core = &unit{Unit: o.Unit, name: o.Config.Core.Unit, began: time.Now()}
	}
	if u.core == nil || OnTrial() { // on trial the agent that has started this one carries out the order
		return u, nil
	}
	return u, u.resume()
}

func (u *Upgrader) file(name string) string { return filepath.Join(u.o.Dir, "upgrade", name) }

func (u *Upgrader) load() (s state, err error) {
	s, damage, err := readState(u.o.Dir)
	if err = errors.Join(err, damage); err != nil {
		return s, fmt.Errorf("%w: move it away, and the version to which %s leads is kept", err, filepath.Join(u.o.Config.Dir, linkCurrent))
	}
	return s, nil
}

// Check says what is damaged of the state of upgrades in an agent's data directory. It returns an error if that can't be read.
func Check(dataDir string) (damage, err error) {
	_, damage, err = readState(dataDir)
	return damage, err
}

func readState(dataDir string) (s state, damage, err error) {
	path := filepath.Join(dataDir, "upgrade", "state.json")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return s, nil, nil
	}
	if err != nil {
		return s, nil, fmt.Errorf("the state of upgrades can't be read: %w", err)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return state{}, fmt.Errorf("the state of upgrades %s is damaged: %w", path, err), nil
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
func (u *Upgrader) save(change func(*state)) error {
	next := u.state
	change(&next)
	text, err := json.Marshal(next)
	if err != nil {
		return err
	}
	u.hook("before the state is written")
	err = datadir.WriteFile(u.file("state.json"), text)
	if errors.Is(err, syscall.ENOSPC) && os.Remove(u.file("reserve")) == nil && datadir.Sync(u.file("")) == nil { // ext4 gives room back when it has synced
		err = datadir.WriteFile(u.file("state.json"), text)
	}
	if err != nil {
		return fmt.Errorf("the state of the upgrade can't be written: %w", err)
	}
	u.hook("after the state is written")
	u.mu.Lock()
	u.state = next
	u.mu.Unlock()
	u.o.Changed()
	return nil
}

// keep changes the state also if that can't be written: then until the agent ends, or until something is written again. It is for what may be
// done again after that.
func (u *Upgrader) keep(change func(*state)) {
	err := u.save(change)
	if err == nil {
		return
	}
	u.log.Error().Err(err).Msg("it goes on without that")
	u.mu.Lock()
	change(&u.state)
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
		u.keep(func(s *state) {
			next := *up
			if next.Step == stepAgent {
				next = next.resumeAgent(u.runsAgentOf(next.Order.Version), u.o.Boot)
			}
			if next.Installing && next.Step == stepInstall {
				next = next.failing(&Failure{Reason: resource.UpgradeFailedInterrupted, Message: "the agent ended while upgradeInstaller was run, which is not run twice"})
			}
			if next.Resumed++; next.Resumed > maxResumed && next.Step != stepBack {
				f := &Failure{
					Reason:  resource.UpgradeFailedInterrupted,
					Message: fmt.Sprintf("the agent ended %d times in the midst of it, at last in the step %s", next.Resumed, next.Step),
				}
				if next.Step == stepAgent {
					next.AgentFailed = f
				} else {
					next = next.failing(f)
				}
			}
			s.Upgrade = &next
		})
		return nil
	}
	present := u.versions.linked(linkCurrent)
	if present != s.Version && u.versions.has(present, programCore) { // it was installed by hand
		u.keep(func(s *state) { s.Version, s.Previous = present, s.Version })
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
	u.seen.damage = fmt.Sprintf("version %s, which is installed: %v", s.Version, err)
	u.log.Error().Msg(u.seen.damage)
	if s.Previous == "" || u.verifyInstalled(s.Previous) != nil {
		return nil // a node without a core would be worse
	}
	u.seen.damage += ": version " + s.Previous + " runs instead"
	if err := u.versions.link(linkCurrent, s.Previous); err != nil {
		return err
	}
	u.fellBack = true
	u.keep(func(s *state) { s.Version, s.Previous = s.Previous, "" })
	return nil
}

func (up upgrade) failing(f *Failure) upgrade {
	up.Failed, up.Step = f, stepBack
	return up
}

// Run carries out orders until ctx ends. It returns a *Replace when the agent is to be replaced by another version.
func (u *Upgrader) Run(ctx context.Context) error {
	var keeping sync.WaitGroup
	defer keeping.Wait()
	if c, ok := u.core.(*child); ok && u.versions.linked(linkCurrent) != "" {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		keeping.Go(func() { c.keep(ctx) })
	}
	if OnTrial() {
		<-ctx.Done()
		return nil
	}
	if u.fellBack { // a service may have started the other version before the agent
		if err := u.restart(ctx); err != nil {
			u.log.Error().Err(err).Msg("the version before could not be started")
		}
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
	if c, ok := u.core.(*child); ok {
		return c.stop(ctx)
	}
	return nil
}

// Heard says that the order may be another one.
func (u *Upgrader) Heard() {
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
	lookAfter  = time.Second      // for the owner's release
)

// do does what there is to do. It returns after how long it is to be called again if nothing happens.
func (u *Upgrader) do(ctx context.Context) (again time.Duration, err error) {
	if u.state.Upgrade == nil {
		o, err := u.wanted()
		switch {
		case o == nil && err != nil: // it is not known: what is told and what is begun stay as they are
			return time.Hour, nil
		case o == nil:
			u.progress("", nil)
			return time.Hour, nil
		case err != nil:
			return u.refuse(*o, &Failure{Reason: resource.UpgradeFailedRefused, Message: err.Error()}), nil
		}
		if again, err := u.prepare(ctx, *o); again > 0 || err != nil {
			return again, err
		}
	}
	for u.state.Upgrade != nil && ctx.Err() == nil {
		up, err := u.take(ctx)
		if ctx.Err() != nil {
			return 0, nil
		}
		if errors.As(err, new(*Replace)) {
			return 0, err
		}
		if e := u.stepped(up, err); e != nil {
			u.retry(up, err, e)
			return lookAfter, nil
		}
		u.taken = nil
	}
	return 0, nil
}

// take takes the step of the upgrade that is due. One that was taken, and of which only the outcome could not be written, is not taken again.
func (u *Upgrader) take(ctx context.Context) (up upgrade, err error) {
	if u.taken != nil {
		return u.taken.up, u.taken.err
	}
	up = *u.state.Upgrade
	u.about(up.Order)
	u.progress(up.Step, nil)
	u.hook(up.Step)
	err = u.step(ctx, &up)
	return up, err
}

// retry says why an upgrade does not go on. err is how its step went. A trial that succeeded goes on, for the core may fail meanwhile.
func (u *Upgrader) retry(up upgrade, err, why error) {
	if err == nil && up.Step != stepTrial || errors.As(err, new(*Failure)) && up.Step != stepBack {
		u.taken = &taken{up, err}
	}
	if err == nil && up.Step == stepBack {
		why = fmt.Errorf("%s runs again; %w", up.before(), why)
	}
	u.progress(u.state.Upgrade.Step, why)
	u.log.Error().Err(why).Str("step", up.Step).Msg("the upgrade can't go on")
}

// wanted is the order that is to be carried out; nil: there is none, or it was carried out. One that can't be read comes with an error.
func (u *Upgrader) wanted() (*resource.UpgradeOrder, error) {
	o, err := u.o.Order()
	if o == nil || o.ID == "" || u.state.Done != nil && u.state.Done.Order == o.ID {
		return nil, err
	}
	if i := slices.IndexFunc(u.state.Earlier, func(e outcome) bool { return e.Order == o.ID }); i >= 0 {
		u.log.Info().Str("version", o.Version).Str("order", o.ID).Msg("the order was carried out before: its outcome is reported again")
		u.mu.Lock()
		u.state.end(u.state.Earlier[i]) // on disk it may stay as it is
		u.mu.Unlock()
		u.o.Changed()
		return nil, nil
	}
	return o, err
}

// prepare does all that changes nothing, and begins the upgrade.
func (u *Upgrader) prepare(ctx context.Context, o resource.UpgradeOrder) (again time.Duration, err error) {
	u.about(o)
	switch held := u.held(o); {
	case held != "":
		u.progress(stepHeld, errors.New(held))
		return lookAfter, nil
	case o.Wait:
		u.progress(resource.StepReady, nil)
		return lookAfter, nil
	}
	if begun := o.ID + " " + o.Begun; u.begun.order != begun { // one that is given again has all its time
		u.begun.order, u.begun.at, u.begun.problem = begun, u.o.Now(), ""
	}
	ctx, cancel := u.untilSuperseded(ctx, o)
	defer cancel()
	err = u.inTime(o, u.begun.at)
	if err == nil {
		err = u.kindOf(o).stage(ctx, o)
	}
	if err == nil { // an earlier full disk may have used it
		err = failed(ctx, resource.UpgradeFailedDisk, u.reserve())
	}
	var f *Failure
	var done doneError
	switch {
	case err == nil && len(o.Installer) > 0:
		return u.begin(ctx, o, stepInstall), nil
	case err == nil:
		return u.begin(ctx, o, stepBackUp), nil
	case errors.Is(err, errAgentOnly):
		return u.begin(ctx, o, stepAgent), nil
	case errors.As(err, &done):
		return u.finish(outcome{Order: o.ID, From: u.from(o), To: o.Version, Result: resource.UpgradeSuccess, Message: string(done)}), nil
	case errors.As(err, &f):
		u.log.Error().Str("version", o.Version).Str("reason", f.Reason).Str("error", f.Message).Msg("the upgrade failed before anything was changed")
		if err := u.versions.prune(u.kept()...); err != nil {
			u.log.Warn().Err(err).Msg("what was fetched can't be removed")
		}
		return u.refuse(o, f), nil
	case ctx.Err() != nil:
		return time.Millisecond, nil // there is another order, it took too long, or the agent ends
	}
	u.begun.problem = err.Error()
	u.progress(stepWait, err)
	if errors.As(err, new(notReady)) {
		return lookAfter, nil
	}
	u.log.Info().Err(err).Str("version", o.Version).Msg("the upgrade waits")
	return retryAfter, nil
}

// begin puts an upgrade on disk, with the step that comes first. If the order is withdrawn or held until it is there, nothing has begun; later is too late.
func (u *Upgrader) begin(ctx context.Context, o resource.UpgradeOrder, first string) (again time.Duration) {
	gone := func() bool { return ctx.Err() != nil || u.superseded(o.ID) || u.held(o) != "" }
	if gone() {
		return time.Millisecond
	}
	if err := u.saveUpgrade(upgrade{Order: o, From: u.from(o), Step: first, Started: u.begun.at}); err != nil {
		u.progress(stepWait, err)
		return retryAfter
	}
	u.mu.Lock()
	late := gone()
	u.cancel = nil // what comes now is too late
	u.mu.Unlock()
	if late {
		u.keep(func(s *state) { s.Upgrade = nil })
		return time.Millisecond
	}
	return 0
}

// refuse ends an order of which nothing was begun.
func (u *Upgrader) refuse(o resource.UpgradeOrder, f *Failure) (again time.Duration) {
	return u.finish(outcome{Order: o.ID, From: u.from(o), To: o.Version, Result: resource.UpgradeRolledBack, Reason: f.Reason, Message: f.Message, Log: f.Log})
}

// finish notes how an order ended.
func (u *Upgrader) finish(o outcome) (again time.Duration) {
	o.At = u.o.Now()
	if err := u.save(func(s *state) { s.end(o) }); err != nil {
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
	ctx, late := context.WithDeadline(ctx, u.begun.at.Add(time.Duration(o.Timeout)*time.Second))
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

// step takes the step of an upgrade.
func (u *Upgrader) step(ctx context.Context, up *upgrade) error {
	if up.Step == stepInstall || up.Step == stepBackUp || up.Step == stepSwitch || up.Step == stepTrial {
		if err := u.inTime(up.Order, up.Started); err != nil {
			return err
		}
	}
	kind := u.kindOf(up.Order)
	switch up.Step {
	case stepInstall:
		return u.runInstaller(ctx, up)
	case stepBackUp:
		return failed(ctx, resource.UpgradeFailedBackup, kind.backUp(ctx))
	case stepSwitch:
		if before, err := time.Parse(time.RFC3339, up.Order.SwitchBefore); err == nil && u.o.Now().After(before) {
			return fail(resource.UpgradeFailedWindow, "the window closed at %s, before anything was switched", up.Order.SwitchBefore)
		}
		if !up.Tried { // from the switch on, whatever starts the core starts the new one
			up.Tried = true
			if err := u.saveUpgrade(*up); err != nil {
				return err
			}
		}
		return failed(ctx, resource.UpgradeFailedSwitch, kind.apply(ctx, *up))
	case stepTrial:
		return u.trial(ctx, *up)
	case stepAgent:
		if err := u.follow(ctx); err != nil { // the new agent is to report it: a service that failed it does not find
			up.Unfollowed = strings.ReplaceAll(err.Error(), "\n", "; ")
			next := *up
			u.keep(func(s *state) { s.Upgrade = &next })
		}
		return u.replaceAgent(ctx, up.Order)
	case stepBack:
		return u.rollBack(ctx, up)
	}
	return fail(resource.UpgradeFailedInterrupted, "the state has a step %q, which this version does not know", up.Step)
}

// stepped puts the outcome of a step on disk. It returns an error if the step is to be taken again.
func (u *Upgrader) stepped(up upgrade, err error) error {
	var f *Failure
	switch {
	case errors.As(err, &f) && up.Step == stepAgent:
		return u.committed(up, f)
	case errors.As(err, &f) && up.Step != stepBack:
		u.log.Error().Str("version", up.Order.Version).Str("step", up.Step).Str("reason", f.Reason).Str("error", f.Message).Msg("the upgrade failed and is rolled back")
		back := up.failing(f)
		u.keep(func(s *state) { s.Upgrade = &back }) // a bad core is not left running because of a disk
		return nil
	case err != nil:
		return err
	}
	switch up.Step {
	case stepInstall:
		up.Step = stepBackUp
	case stepBackUp:
		up.Step = stepSwitch
	case stepSwitch:
		up.Step = stepTrial
	case stepTrial:
		return u.commit(up)
	case stepAgent:
		return u.committed(up, nil)
	case stepBack, stepFailed:
		return u.rolledBack(up)
	}
	return u.saveUpgrade(up)
}

func (u *Upgrader) saveUpgrade(up upgrade) error {
	return u.save(func(s *state) { s.Upgrade = &up })
}

// trial starts the core with what is new, and observes it.
func (u *Upgrader) trial(ctx context.Context, up upgrade) error {
	if !u.onTrial(ctx, up) { // else it goes on after the agent was started again
		u.log.Info().Str("order", up.Order.ID).Msg(up.after() + " is started on trial")
		if err := u.restart(ctx); err != nil {
			return u.withOutput(ctx, failed(ctx, resource.UpgradeFailedStart, fmt.Errorf("%s can't be started: %w", up.after(), err)))
		}
		u.started = up.Order.ID
	}
	left := up.Started.Add(time.Duration(up.Order.Timeout) * time.Second).Sub(u.o.Now())
	return u.withOutput(ctx, u.try(ctx, up, min(u.o.Config.Trial.Timeout, left.Round(time.Millisecond))))
}

// onTrial says whether the core that runs was started for a trial. Whether it has the new settings only this agent knows.
func (u *Upgrader) onTrial(ctx context.Context, up upgrade) bool {
	if pid, _ := u.core.process(ctx); pid == 0 {
		return false
	}
	if up.Order.Version == "" {
		return u.started == up.Order.ID
	}
	r, err := ask(ctx, u.o.Config.Core.Data)
	return err == nil && r.Version == up.Order.Version
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

// commit makes what is on trial what runs.
func (u *Upgrader) commit(up upgrade) error {
	if up.Order.Version == "" { // there is no agent to replace
		if err := u.committed(up, nil); err != nil {
			return err
		}
		u.core.committed()
		return nil
	}
	next := up
	next.Step = stepAgent
	err := u.save(func(s *state) { s.Previous, s.Version, s.Upgrade = up.From, up.Order.Version, &next })
	if err != nil {
		return err
	}
	u.core.committed()
	u.mu.Lock()
	u.seen.damage = "" // it was of the version before
	u.mu.Unlock()
	u.log.Info().Str("version", up.Order.Version).Str("before", up.From).Msg("the new core is committed")
	return nil
}

// committed ends an upgrade whose core is committed. f is why the agent was not replaced.
func (u *Upgrader) committed(up upgrade, f *Failure) error {
	o := outcome{Order: up.Order.ID, From: up.From, To: up.Order.Version, Result: resource.UpgradeSuccess, Message: u.kindOf(up.Order).done, At: u.o.Now()}
	if f != nil {
		o.Reason, o.Log, o.Message = f.Reason, f.Log, "the core is upgraded, and the agent is not: "+f.Message
		u.log.Error().Str("reason", f.Reason).Msg(o.Message)
	}
	if up.Unfollowed != "" {
		o.Message = strings.TrimPrefix(o.Message+"; ", "; ") + "with the new version " + up.Unfollowed
	}
	if err := u.save(func(s *state) { s.end(o) }); err != nil {
		return err
	}
	u.progress("", nil)
	u.tidy()
	return nil
}

// tidy removes what no upgrade needs any more.
func (u *Upgrader) tidy() {
	err := errors.Join(u.versions.prune(u.kept()...), u.reserve())
	if e := os.Remove(u.file(backupName)); e != nil && !errors.Is(e, os.ErrNotExist) {
		err = errors.Join(err, e)
	}
	if err != nil {
		u.log.Warn().Err(err).Msg("what the upgrade has left can't be removed")
	}
}

// rollBack returns to what was before. All of it may be done again.
func (u *Upgrader) rollBack(ctx context.Context, up *upgrade) error {
	if !up.Tried {
		u.core.committed()
		return nil
	}
	kind := u.kindOf(up.Order)
	reverted := u.revert(ctx, kind, up)
	if reverted != nil && up.Reverts < maxReverts {
		return reverted
	}
	err := u.restart(ctx)
	if err == nil {
		err = u.revived(ctx)
	}
	if err != nil && reverted == nil && ctx.Err() == nil && kind.restore != nil {
		err = kind.restore(ctx, up, err)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	u.core.committed()
	_ = u.follow(ctx) // one that was started again meanwhile; it is logged
	switch {
	case reverted != nil:
		up.Failed = &Failure{up.Failed.Reason, fmt.Sprintf("%s; and then %s could not be put back: %v", up.Failed.Message, up.before(), errors.Join(reverted, err)), up.Failed.Log}
		up.Step = stepFailed
	case err != nil:
		up.Failed = &Failure{up.Failed.Reason, fmt.Sprintf("%s; and then %s did not run again: %v", up.Failed.Message, up.before(), err), up.Failed.Log}
		up.Step = stepFailed
	}
	return nil
}

// revert puts back what was before. It counts how often that failed: a command that the node's settings refuse would be refused for ever. A disk that is
// full isn't counted, because it goes on when there is room.
func (u *Upgrader) revert(ctx context.Context, kind kind, up *upgrade) error {
	if up.Reverts >= maxReverts { // by an agent that ended before it could note that
		return fmt.Errorf("it was tried %d times", up.Reverts)
	}
	err := kind.revert(ctx, *up)
	if err == nil || ctx.Err() != nil || isFull(err) {
		return err
	}
	if up.Reverts++; isRefused(err) {
		up.Reverts = maxReverts
	}
	next := *up
	u.keep(func(s *state) { s.Upgrade = &next })
	return err
}

func isRefused(err error) bool {
	var f *Failure
	return errors.As(err, &f) && f.Reason == resource.UpgradeFailedRefused
}

// stepFailed is that of a roll-back that came to nothing.
const stepFailed = "RollbackFailed"

// rolledBack notes that what was before runs again, or does not.
func (u *Upgrader) rolledBack(up upgrade) error {
	o := outcome{Order: up.Order.ID, From: up.From, To: up.Order.Version, Result: resource.UpgradeRolledBack, Reason: up.Failed.Reason, Message: up.Failed.Message, Log: up.Failed.Log, At: u.o.Now()}
	if up.Step == stepFailed {
		o.Result = resource.UpgradeRollbackFailed
	}
	if err := u.save(func(s *state) { s.end(o) }); err != nil {
		return err
	}
	u.log.Warn().Str("version", up.Order.Version).Str("present", up.From).Msg("the upgrade is rolled back")
	u.progress("", nil)
	if o.Result == resource.UpgradeRolledBack { // else a person needs the backup and both versions
		u.tidy()
	}
	return nil
}

// about says which order is dealt with.
func (u *Upgrader) about(o resource.UpgradeOrder) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.seen.order, u.seen.from, u.seen.to, u.seen.wait = o.ID, u.from(o), o.Version, o.Wait
}

// progress says where the upgrade is, and why it does not go on.
func (u *Upgrader) progress(step string, err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	u.mu.Lock()
	same := u.seen.step == step && u.seen.problem == problem
	if u.seen.step != step {
		u.seen.at, u.seen.received, u.seen.size = u.o.Now(), 0, 0
	}
	u.seen.step, u.seen.problem = step, problem
	u.mu.Unlock()
	if !same {
		u.o.Changed()
	}
}
