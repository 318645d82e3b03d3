// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
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
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/broker/daemon/datadir"
	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/edge/agent/files"
	"github.com/edgebus/edgebus/edge/agent/host"
	"github.com/edgebus/edgebus/edge/agent/host/monitor"
	"github.com/edgebus/edgebus/edge/agent/host/osimage"
	"github.com/edgebus/edgebus/edge/upgrade"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// Applications runs containers.
type Applications interface {
	// Files are where an application's files go: they are part of the same transaction as all others.
	Files(app resource.RenderedApplication) ([]resource.RenderedFile, error)
	// Switch stops what is in from only, starts what is in to only, and applies what has changed in both. Files are in place;
	// changed are the paths of those that changed. Optional applications are left for Start: their names are returned, also with an error.
	Switch(ctx context.Context, from, to []resource.RenderedApplication, changed []string) (unstarted []string, err error)
	// Start starts an application whose files are in place.
	Start(ctx context.Context, app resource.RenderedApplication) error
	// Status is how each application is.
	Status(ctx context.Context, apps []resource.RenderedApplication) []resource.ApplicationStatus
}

// OS is an operating system that is an image.
type OS interface {
	// Booted is the image that the host has booted.
	Booted(ctx context.Context) (resource.OSStatus, error)
	// Download downloads an image, and reports whether it could be done before the Switch. Discard deletes what it has left.
	Download(ctx context.Context, image string) (done bool, err error)
	Discard(ctx context.Context, image string) error
	// Switch makes an image the one that is booted next. downloaded says that Download was done.
	Switch(ctx context.Context, image string, downloaded bool) error
	// Rollback makes the image that was booted before a Switch the one that the host runs, whether the Switch was done or not, and says
	// whether the host must be rebooted for it.
	Rollback(ctx context.Context, before resource.OSStatus) (reboot bool, err error)
	// Reboot reboots the host. The agent is ended by it.
	Reboot(ctx context.Context) error
}

// Monitor observes the host.
type Monitor interface {
	// Watch says what to observe.
	Watch(spec resource.RenderedSpec)
	// Report adds what is seen to a report.
	Report(report *resource.AgentReport)
	// Run observes until ctx ends, and calls changed when Report would say something else.
	Run(ctx context.Context, changed func()) error
}

// Options are what an agent needs.
type Options struct {
	Config  configs.Agent
	Version string
	Log     zerolog.Logger
	Now     func() time.Time // default time.Now
	// Ready is called once the agent runs. It may be nil.
	Ready func()
	// HealthPause is the pause between two checks of an update's health; default 1s.
	HealthPause time.Duration
	// Protected are directories that no spec may change; default /etc/edgebus, /var/lib/edgebus, /usr/local/lib/edgebus, the data directory and that of the programs.
	Protected []string
	// BootID is the host's boot; default that of the kernel.
	BootID func() string
	// BeforeStep is called before each step of an update, and before and after the state is written. Tests end the agent in it.
	BeforeStep func(step string)

	applications Applications
	os           OS
	monitor      Monitor
	service      upgrade.Unit // of the core; nil: the agent runs the core itself
	services     func(name string) upgrade.Unit
	pull         func(ctx context.Context, image string) error
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.HealthPause == 0 {
		o.HealthPause = time.Second
	}
	if o.Protected == nil {
		o.Protected = []string{configs.SystemDir, "/var/lib/edgebus", configs.ProgramsDir}
		for _, own := range []string{o.Config.Data.Dir, o.Config.Upgrade.Dir} {
			dir, err := filepath.Abs(own)
			if below, ok := strings.CutPrefix(dir, strings.TrimSuffix(o.Config.Root, "/")+"/"); ok && err == nil && own != "" {
				o.Protected = append(o.Protected, "/"+below)
			}
		}
	}
	if o.BootID == nil {
		o.BootID = func() string {
			id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // not every system has it
			return strings.TrimSpace(string(id))
		}
	}
	return o
}

// onHost has the agent run applications, switch the OS and observe the host. Below another root than / there is no OS to switch, and no service
// of the core to upgrade.
func (o *Options) onHost() {
	c := o.Config.Host
	options := host.Options{Root: o.Config.Root, OS: osimage.Commands(o.Config.OS), Now: o.Now, Log: o.Log}
	if c.Systemd != configs.Auto && c.Systemd != "" {
		options.SystemBus = "unix:path=" + c.Systemd
	}
	if c.Podman != configs.Auto {
		options.Podman = c.Podman
	}
	if c.Docker != configs.Auto {
		options.Docker = c.Docker
	}
	if len(c.Compose) > 0 {
		options.Compose = c.Compose
	}
	h := host.New(options)
	o.applications, o.monitor, o.pull = h.Applications, h, h.Pull
	if len(o.Config.Upgrade.Core.Run) == 0 && o.Config.Root == "/" {
		o.service = h.Service(o.Config.Upgrade.Core.Unit)
	}
	if o.Config.Root == "/" {
		o.services = func(name string) upgrade.Unit { return h.Service(name) }
	}
	if h.OS != nil && o.Config.Root == "/" {
		o.os = h.OS
	}
}

// agent is a running agent. The goroutine of work alone changes the host.
type agent struct {
	*journal
	o        Options
	commands allowedCommands
	bus      *busClient
	wake     chan struct{} // capacity 1

	files        *files.Store
	applications Applications
	monitor      Monitor
	service      upgrade.Unit
	hooks        *hookRunner
	image        *osSwitch
	retry        *specRetry

	osDownload     failedDownload // that failed last
	checked        time.Time      // when files were last compared with the spec
	starts         backoff.Retry  // of optional applications
	upgrades       *upgrade.Upgrader
	upgradeReports chan struct{} // capacity 1: as journal.reports, of upgrades

	// The journal's mu guards them.
	stagedSpec resource.RenderedSpec // that is being prepared, while there is a cancel
	cancel     context.CancelCauseFunc
}

// Run runs an agent until ctx ends.
func Run(ctx context.Context, o Options) (err error) {
	o = o.withDefaults()
	dir, err := datadir.Open(o.Config.Data.Dir, "edgeagent")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(dir.ExplainFull(err), dir.Close()) }()
	store, err := openFiles(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	o.onHost()
	a, err := newAgent(o, store)
	if err != nil {
		return err
	}
	if o.Ready != nil {
		o.Ready()
	}
	if err := a.openUpgrades(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.closeUpgrades(err)) }()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.bus.presence.Run(ctx) })
	g.Go(func() error { return a.upgrades.Run(ctx) })
	g.Go(func() error { return a.reportUpgrade(ctx) })
	g.Go(func() error { return a.work(ctx) })
	g.Go(func() error { return a.report(ctx) })
	if a.monitor != nil {
		g.Go(func() error { return a.monitor.Run(ctx, a.changed) })
	}
	return g.Wait()
}

// openUpgrades makes the part of the agent that upgrades the core and the agent.
func (a *agent) openUpgrades() (err error) {
	o := upgrade.Options{
		Config: a.o.Config.Upgrade, Dir: a.o.Config.Data.Dir, Version: a.o.Version, Boot: a.o.BootID(), Log: a.log, Now: a.o.Now,
		Order: a.bus.order, Connected: a.bus.connectedNow, Changed: func() { signalChange(a.upgradeReports) }, BeforeStep: a.o.BeforeStep,
		Blob: func(ctx context.Context, c resource.Content, progress func(int64)) (io.ReadCloser, error) {
			content, err := a.bus.blob(ctx, c, progress)
			var f specFailure
			if errors.As(err, &f) {
				err = &upgrade.Failure{Reason: resource.UpgradeFailedArtifact, Message: f.message}
			}
			return content, err
		},
		Exceeded: func(ctx context.Context, checks resource.UpgradeChecks) error {
			return monitor.CheckUsage(ctx, checks, a.o.Config.Upgrade.Core.Data)
		},
		Pull: a.o.pull, Run: func(ctx context.Context, argv, env []string) error {
			return a.commands.runUpgrade(ctx, a.o.Config.Root, argv, env)
		}, Service: a.o.services,
		Allows: func(argv []string) error { _, err := a.commands.allows(argv); return err },
	}
	if a.service != nil {
		o.Unit = a.service
	}
	a.upgrades, err = upgrade.New(o)
	return err
}

// closeUpgrades ends a core that the agent runs itself, unless another agent takes its place.
func (a *agent) closeUpgrades(err error) error {
	if errors.As(err, new(*upgrade.AgentReplacement)) || upgrade.IsOnTrial() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.o.Config.Upgrade.Core.Stop+time.Minute)
	defer cancel()
	return a.upgrades.Stop(ctx)
}

func openFiles(o Options) (*files.Store, error) {
	return files.Open(files.Options{
		Dir: filepath.Join(o.Config.Data.Dir, "files"), Root: o.Config.Root, Allowed: o.Config.Files.Roots, Forbidden: o.Protected,
	})
}

func newAllowedCommands(list []configs.Command) allowedCommands {
	c := allowedCommands{}
	for _, command := range list {
		c[command.Name] = command.Run
	}
	return c
}

func newAgent(o Options, store *files.Store) (*agent, error) {
	a := assemble(o, store)
	var err error
	a.state, err = loadState(o.Config.Data.Dir)
	if errors.As(err, new(stateDamagedError)) {
		err = a.startAnew(err)
	}
	if err != nil {
		return nil, err
	}
	if err := a.recover(); err != nil {
		return nil, err
	}
	a.bus, err = newBus(clientID, o.Config.MQTT.Sockets(), o.Log, a.brokerChanged)
	return a, err
}

// startAnew goes on without a state that is damaged, which is kept beside its place. Files of an update that was not committed are rolled
// back, and the node's spec is applied again.
func (a *agent) startAnew(damage error) error {
	path := filepath.Join(a.o.Config.Data.Dir, stateName)
	a.live.stateDamage = fmt.Sprintf("%v: it is kept as %s.damaged, and the spec is applied again", damage, path)
	a.log.Error().Msg(a.live.stateDamage)
	if err := a.endFiles(false); err != nil {
		return err
	}
	return os.Rename(path, path+".damaged")
}

// recover ends what an earlier run of the agent left unfinished on disk, and notes the host's boot. An update that had begun to
// change the host goes on.
func (a *agent) recover() error {
	found, version, err := a.files.Recover()
	if err != nil {
		return fmt.Errorf("files of an interrupted update can't be put back: %w", err)
	}
	if found == files.RecoverySwapped && a.state.Update == nil { // files that were put back after a drift
		if err := a.endFiles(true); err != nil {
			return err
		}
	} else if found != files.RecoveryClean {
		a.log.Warn().Str("files", string(found)).Str("rendered_version", version).Msg("an update was interrupted")
	}
	note := func(s *agentState) {
		if boot := a.o.BootID(); boot != s.Boot {
			s.Rebooted, s.Boot, s.BootSeen = s.Boot != "", boot, a.now()
		}
		if s.Update != nil {
			s.Update = s.Update.resumed(found == files.RecoverySwapped)
		}
	}
	if err = a.save(note); datadir.IsFull(err) { // an agent starts on a full disk, too, and the next state that is written has it
		a.log.Error().Err(err).Msg("what the start has found is not stored")
		a.mu.Lock()
		note(&a.state)
		a.mu.Unlock()
		err = nil
	}
	return err
}

// work makes one update after another, and looks for drift in between.
func (a *agent) work(ctx context.Context) error {
	if a.monitor != nil {
		a.monitor.Watch(a.state.Applied)
	}
	for ctx.Err() == nil {
		again := a.runOnce(ctx)
		if again <= 0 {
			continue
		}
		select {
		case <-ctx.Done():
		case <-a.wake:
		case <-time.After(again):
		}
	}
	return nil
}

// brokerChanged is called when the broker says something new. A version that is only prepared gives way to a newer one.
func (a *agent) brokerChanged() {
	signalChange(a.wake)
	a.changed()
	signalChange(a.upgradeReports)
	if a.upgrades != nil {
		a.upgrades.OrderChanged()
	}
	a.supersede()
}

// supersede cancels the version that is prepared if there is a newer one.
func (a *agent) supersede() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cancel == nil {
		return
	}
	if spec, err := a.bus.spec(); err == nil && spec != nil && !reflect.DeepEqual(*spec, a.stagedSpec) {
		a.cancel(errSuperseded)
	}
}

func signalChange(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// untilSuperseded ends when there is a newer version than the one that is prepared.
func (a *agent) untilSuperseded(ctx context.Context, spec resource.RenderedSpec) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	a.mu.Lock()
	a.cancel, a.stagedSpec = cancel, spec
	a.mu.Unlock()
	a.supersede() // by one that came since spec was read
	return ctx, func() {
		a.mu.Lock()
		a.cancel = nil
		a.mu.Unlock()
		cancel(nil)
	}
}

// applied is called when a version is applied: files are as it has them, and the monitor is told what to observe.
func (a *agent) applied() {
	a.mu.Lock()
	a.live.drifted, a.live.driftLeft, a.live.blocked, a.live.driftError, a.live.failingApps = nil, false, nil, "", nil
	a.mu.Unlock()
	a.checked = a.now()
	if a.monitor != nil {
		a.monitor.Watch(a.state.Applied)
	}
}

// idle is what an agent does without an update: it starts optional applications, and restores files that were changed on the host.
func (a *agent) idle(ctx context.Context) (again time.Duration) {
	again = a.startOptional(ctx)
	return min(again, a.keepFiles(ctx))
}

// startRetry is the wait before optional applications that did not start are started again.
var startRetry = backoff.Backoff{Min: 10 * time.Second, Max: 5 * time.Minute}

// startOptional starts the optional applications that updates have left to it, until there is another spec. Those that don't start are
// reported, and started again later.
func (a *agent) startOptional(ctx context.Context) (again time.Duration) {
	if len(a.state.Unstarted) == 0 {
		return time.Hour
	}
	if wait := a.starts.Left(startRetry, a.now()); wait > 0 {
		return wait
	}
	var newest resource.RenderedSpec
	if spec, err := a.bus.spec(); err == nil && spec != nil {
		newest = *spec
	}
	current, cancel := a.untilSuperseded(ctx, newest)
	defer cancel()
	var left []string
	failing := map[string]string{}
	for _, app := range a.state.Applied.Applications {
		if !slices.Contains(a.state.Unstarted, app.Name) {
			continue
		}
		err := current.Err()
		if err == nil {
			err = a.applications.Start(current, app)
		}
		if err != nil {
			left = append(left, app.Name)
		}
		if err != nil && current.Err() == nil {
			failing[app.Name] = err.Error()
			a.log.Warn().Err(err).Str("application", app.Name).Msg("an optional application doesn't start, and is started again later")
		}
	}
	if ctx.Err() != nil {
		return 0
	}
	a.mu.Lock()
	a.live.failingApps = failing
	a.mu.Unlock()
	again = a.starts.Failed(startRetry, a.now())
	if err := a.save(func(s *agentState) { s.Unstarted = left }); err != nil {
		a.log.Error().Err(err).Msg("the agent's state can't be written")
	}
	return again
}

// keepFiles restores files that were changed on the host.
func (a *agent) keepFiles(ctx context.Context) (again time.Duration) {
	every, now := a.o.Config.Files.Check, a.now()
	if every == 0 {
		return time.Hour
	}
	if wait := a.checked.Add(every).Sub(now); wait > 0 && wait <= every {
		return wait
	}
	a.checked = now
	drifted, blocked, left, err := a.checkDrift(ctx)
	if ctx.Err() != nil {
		return 0
	}
	a.mu.Lock()
	if !slices.Equal(a.live.blocked, blocked) {
		for _, b := range blocked {
			a.log.Error().Str("file", b.path).Str("error", b.why).Msg("a file that was changed by another program can't be put back")
		}
	}
	a.live.driftLeft, a.live.blocked, a.live.driftError = left, blocked, ""
	if err != nil {
		a.live.driftError = err.Error()
		a.log.Error().Err(err).Msg("files can't be compared with the spec, or not be put back")
	}
	if len(drifted) > 0 || left { // what was put back is reported until the next update
		a.live.drifted = drifted
	}
	a.mu.Unlock()
	a.changed()
	return every
}

// checkDrift compares the files with the spec and puts them back, or leaves them.
func (a *agent) checkDrift(ctx context.Context) (paths []string, blocked []blockedFile, left bool, err error) {
	if a.state.Applied.RenderedVersion != a.files.Version() { // somebody moved the journal away
		a.log.Warn().Str("rendered_version", a.state.Applied.RenderedVersion).Msg("nothing is known of the files of the applied version: they are written again")
		if err = a.stage(ctx, a.state.Applied, false); err == nil {
			err = a.files.Swap()
		}
		return nil, nil, false, errors.Join(err, a.endFiles(err == nil))
	}
	list, err := a.files.Drift(ctx)
	for _, d := range list {
		paths = append(paths, d.Path)
	}
	left = a.state.Applied.Drift == resource.DriftReport
	if err != nil || left {
		return paths, nil, left, err
	}
	for len(paths) > 0 { // without those that can't be put back, until all others are
		err := a.restore(ctx, paths)
		var of *files.Error
		switch i := -1; {
		case err == nil:
			a.log.Warn().Strs("files", paths).Msg("files that were changed by another program are restored")
			return paths, blocked, false, nil
		case ctx.Err() != nil:
			return nil, nil, false, ctx.Err()
		case errors.As(err, &of):
			i = slices.Index(paths, of.Path)
			fallthrough
		default:
			if i < 0 {
				return nil, blocked, false, err
			}
			blocked, paths = append(blocked, blockedFile{of.Path, of.Err.Error()}), slices.Delete(paths, i, i+1)
		}
	}
	return nil, blocked, false, nil
}

// restore puts files back, all of them or none.
func (a *agent) restore(ctx context.Context, paths []string) error {
	err := a.files.Restore(ctx, paths, func(c resource.Content) (io.ReadCloser, error) { return a.content(ctx, c) })
	if err == nil {
		err = a.files.Swap()
	}
	if end := a.endFiles(err == nil); end != nil {
		return errors.Join(end, err)
	}
	return err
}

// content opens the content of a file.
func (a *agent) content(ctx context.Context, c resource.Content) (io.ReadCloser, error) {
	switch {
	case c.Secret != nil:
		value, err := a.bus.secret(*c.Secret)
		if err != nil {
			return nil, err
		}
		return io.NopCloser(bytes.NewReader(value)), nil
	case c.Digest != "":
		return a.bus.blob(ctx, c, func(received int64) {
			a.downloading(fmt.Errorf("%d of %d bytes of %s are downloaded", received, c.Size, c.Digest))
		})
	}
	return nil, errors.New("a content that is in the spec itself is not fetched")
}

// report publishes what there is to say of the host, and of upgrades.
func (a *agent) report(ctx context.Context) error {
	var conditions []resource.Condition
	return a.publishing(ctx, topics.KindAgent, a.reports, func() any {
		r := a.reportNow(conditions)
		conditions = r.Conditions
		return r
	}, sync.OnceFunc(a.upgrades.Proven))
}

func (a *agent) reportUpgrade(ctx context.Context) error {
	return a.publishing(ctx, topics.KindUpgradeStatus, a.upgradeReports, func() any {
		r := a.upgrades.Report()
		a.upgrades.Note(r)
		return r
	}, func() {})
}

// publishing publishes what there is to say after each signal, at most once a second, and again after each connection. stored is called when the
// core has stored it.
func (a *agent) publishing(ctx context.Context, kind topics.Kind, signals chan struct{}, now func() any, stored func()) error {
	var last []byte
	number := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-signals:
		}
		text, err := json.Marshal(now())
		if err != nil {
			return fmt.Errorf("the report: %w", err)
		}
		node, conn := a.bus.connection()
		if node == "" || conn == number && bytes.Equal(text, last) {
			continue
		}
		if err := a.bus.publish(ctx, node, kind, text); err != nil {
			a.log.Warn().Err(err).Msg("the report was not stored by the core")
			signalChange(signals)
		} else {
			number, last = conn, text
			stored()
		}
		if !backoff.Sleep(ctx, reportInterval) {
			return nil
		}
	}
}

// reportInterval is the time between two reports.
const reportInterval = time.Second

// assemble makes an agent's parts, without a connection to the broker.
func assemble(o Options, store *files.Store) *agent {
	j := &journal{dir: o.Config.Data.Dir, log: o.Log, now: o.Now, before: o.BeforeStep, reports: make(chan struct{}, 1)}
	commands := newAllowedCommands(o.Config.Commands)
	hooks := &hookRunner{journal: j, config: o.Config, commands: commands, files: store}
	return &agent{
		journal: j, o: o, commands: commands, wake: make(chan struct{}, 1), upgradeReports: make(chan struct{}, 1), files: store, applications: o.applications,
		monitor: o.monitor, service: o.service, hooks: hooks, image: &osSwitch{journal: j, os: o.os, hooks: hooks}, retry: &specRetry{journal: j},
	}
}
