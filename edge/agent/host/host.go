// SPDX-License-Identifier: Apache-2.0

// Package host is what the agent has of its host apart from files: applications, the OS image, and what is observed. It puts together
// its sub-packages, each of which is one of these; it uses local sockets and programs only, and what a host doesn't have is a
// condition, not an error.
package host

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/edgebus/edgebus/broker/daemon/sysinfo"
	"github.com/edgebus/edgebus/edge/agent/host/apps"
	"github.com/edgebus/edgebus/edge/agent/host/engine"
	"github.com/edgebus/edgebus/edge/agent/host/monitor"
	"github.com/edgebus/edgebus/edge/agent/host/osimage"
	"github.com/edgebus/edgebus/edge/agent/host/systemd"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options say where things are on the host. Without them they are where they usually are, below Root: so a scratch root without
// sockets in it can't change the host, nor has it an OS image or a compose program.
type Options struct {
	// Root stands for / in the paths of files and sockets; resources, clock and system information are the host's own.
	Root string
	// SystemBus is the address of the system's D-Bus.
	SystemBus string
	// Podman and Docker are the sockets of container engines.
	Podman, Docker string
	// Compose are the programs that run compose files, the first that works; nil: those of apps.Options.
	Compose [][]string
	// OS are the commands of the OS image; default those of bootc.
	OS osimage.Commands
	// Now is the clock; default time.Now.
	Now func() time.Time
	// Interval is how often everything is looked at, whatever signals say; default 30s. Pause is the least time between two looks; default 1s.
	Interval, Pause time.Duration
	Log             zerolog.Logger
}

func (o Options) withDefaults() Options {
	o.Root = cmp.Or(o.Root, "/")
	o.SystemBus = cmp.Or(o.SystemBus, "unix:path="+filepath.Join(o.Root, systemd.SystemBus))
	o.Podman = cmp.Or(o.Podman, filepath.Join(o.Root, "/run/podman/podman.sock"))
	o.Docker = cmp.Or(o.Docker, filepath.Join(o.Root, "/run/docker.sock"))
	if o.Root != "/" && o.Compose == nil {
		o.Compose = [][]string{} // those of the host would change the host
	}
	if len(o.OS.Status) == 0 && o.Root == "/" {
		o.OS = osimage.BootcCommands()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Interval == 0 {
		o.Interval = 30 * time.Second
	}
	if o.Pause == 0 {
		o.Pause = time.Second
	}
	return o
}

// Host is a node's host.
type Host struct {
	// Applications runs those of a spec.
	Applications *apps.Applications
	// OS is nil if the host's operating system is no image.
	OS *osimage.OS

	o       Options
	systemd *systemd.Systemd
	engines []*engine.Engine
	monitor *monitor.Monitor
	wake    chan struct{} // capacity 1: something may have changed

	mu     sync.Mutex
	spec   resource.RenderedSpec
	report resource.AgentReport
}

// New makes a Host. It connects to nothing yet.
func New(o Options) *Host {
	h := &Host{o: o.withDefaults(), wake: make(chan struct{}, 1)}
	h.systemd = systemd.New(h.o.SystemBus, h.wakeUp)
	h.engines = []*engine.Engine{engine.New("podman", h.o.Podman), engine.New("docker", h.o.Docker)}
	h.monitor = monitor.New("/", h.o.Now)
	var engines []apps.Engine
	for _, e := range h.engines {
		engines = append(engines, e)
	}
	h.Applications = apps.New(apps.Options{Root: h.o.Root, Systemd: h.systemd, Engines: engines, Compose: h.o.Compose, Log: h.o.Log})
	if image := osimage.New(h.o.OS); image.Available() {
		h.OS = image
	}
	h.report.SystemInfo = sysinfo.Read("/")
	return h
}

// Service is a service of the host's systemd.
type Service struct {
	Name string
	host *Host
}

// Service returns the service of a name. Whether there is one shows when it is used.
func (h *Host) Service(name string) Service { return Service{name, h} }

// Restart starts the service again, and waits until it runs.
func (s Service) Restart(ctx context.Context) error {
	return s.host.systemd.Job(ctx, systemd.JobRestart, s.Name)
}

// Stop ends the service, and waits until it has ended.
func (s Service) Stop(ctx context.Context) error {
	return s.host.systemd.Job(ctx, systemd.JobStop, s.Name)
}

// MainPID is the service's process; 0: it does not run.
func (s Service) MainPID(ctx context.Context) (int, error) {
	units, err := s.host.systemd.Services(ctx, []string{s.Name})
	switch {
	case err != nil:
		return 0, err
	case !units[0].Found():
		return 0, fmt.Errorf("systemd has no unit %s", s.Name)
	}
	return units[0].MainPID, nil
}

// Pull has podman fetch an image from its registry, with the credentials that the host has.
func (h *Host) Pull(ctx context.Context, image string) error {
	podman := h.engines[0]
	if err := podman.Ping(ctx); err != nil {
		return fmt.Errorf("images are pulled by podman, which is not there: %w: install it, and run systemctl enable --now podman.socket, or say in host.podman of agent.yaml where its socket is", err)
	}
	return podman.Pull(ctx, image)
}

func (h *Host) wakeUp() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Watch says what to observe.
func (h *Host) Watch(spec resource.RenderedSpec) {
	h.mu.Lock()
	h.spec = spec
	h.mu.Unlock()
	h.monitor.Watch(spec.Resources)
	h.wakeUp()
}

// Report adds what was seen last to a report.
func (h *Host) Report(r *resource.AgentReport) {
	h.mu.Lock()
	seen := h.report
	h.mu.Unlock()
	r.SystemInfo, r.OS = seen.SystemInfo, seen.OS
	r.Containers, r.SystemdUnits, r.Applications = slices.Clone(seen.Containers), slices.Clone(seen.SystemdUnits), slices.Clone(seen.Applications)
	measured := h.monitor.Conditions()
	r.Resources = monitor.Status(measured)
	r.Conditions = slices.Concat(r.Conditions, seen.Conditions, measured)
}

// Run observes the host until ctx ends. It calls changed when Report has something else to say.
func (h *Host) Run(ctx context.Context, changed func()) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { h.monitor.Run(ctx, changed); return nil })
	for _, e := range h.engines {
		g.Go(func() error { h.followEngine(ctx, e); return nil })
	}
	g.Go(func() error {
		defer h.systemd.Close()
		for ctx.Err() == nil {
			if h.observe(ctx) {
				changed()
			}
			h.wait(ctx)
		}
		return nil
	})
	return g.Wait()
}

// wait waits for a signal, or the interval, and in any case for the pause.
func (h *Host) wait(ctx context.Context) {
	if !backoff.Sleep(ctx, h.o.Pause) {
		return
	}
	select {
	case <-ctx.Done():
	case <-h.wake:
	case <-time.After(h.o.Interval):
	}
}

// followEngine looks at the host again after each event of an engine. An engine that isn't there is tried again.
func (h *Host) followEngine(ctx context.Context, e *engine.Engine) {
	for ctx.Err() == nil {
		if e.Ping(ctx) == nil {
			h.wakeUp()
			_ = e.Events(ctx, h.wakeUp) // why it ended shows in the condition, if it is not there any more
			h.wakeUp()
		}
		backoff.Sleep(ctx, h.o.Interval/3)
	}
}

// observe observes everything once, and says whether something is different.
func (h *Host) observe(ctx context.Context) bool {
	h.mu.Lock()
	spec := h.spec
	h.mu.Unlock()
	r := resource.AgentReport{SystemInfo: sysinfo.Read("/"), Applications: h.Applications.Status(ctx, spec.Applications)}
	var patterns resource.Monitoring
	if spec.Monitoring != nil {
		patterns = *spec.Monitoring
	}
	r.SystemdUnits = h.units(ctx, patterns.Systemd, &r.Conditions)
	r.Containers = h.containers(ctx, patterns.Containers, &r.Conditions)
	if h.OS != nil {
		booted, err := h.OS.Booted(ctx)
		if err == nil {
			r.OS = &booted
		}
		r.Conditions = append(r.Conditions, availability("OSImageAvailable", err))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil || reflect.DeepEqual(h.report, r) {
		return false
	}
	h.report = r
	return true
}

// availability is a condition of something that a host may have.
func availability(of string, err error) resource.Condition {
	if err != nil {
		return resource.Condition{Type: of, Status: "False", Reason: "NotAvailable", Message: err.Error()}
	}
	return resource.Condition{Type: of, Status: "True", Reason: "Available"}
}

func (h *Host) units(ctx context.Context, p *resource.Patterns, conditions *[]resource.Condition) (units []resource.SystemdUnit) {
	err := h.systemd.Ping(ctx)
	if err == nil && p != nil {
		var found []systemd.Unit
		found, err = h.systemd.Match(ctx, p.MatchPatterns)
		for _, u := range found {
			units = append(units, resource.SystemdUnit{Name: u.Name, LoadState: u.LoadState, ActiveState: u.ActiveState})
		}
	}
	*conditions = append(*conditions, availability("SystemdAvailable", err))
	return units
}

func (h *Host) containers(ctx context.Context, p *resource.Patterns, conditions *[]resource.Condition) (containers []resource.ContainerStatus) {
	var missing []string
	for _, e := range h.engines {
		list, err := e.List(ctx, "")
		if err != nil {
			missing = append(missing, err.Error())
			continue
		}
		for _, c := range list {
			if p != nil && slices.ContainsFunc(p.MatchPatterns, func(pattern string) bool { return systemd.MatchesPattern(pattern, c.Name()) }) {
				containers = append(containers, resource.ContainerStatus{ID: c.ID, Name: c.Name(), Status: c.State, Image: c.Image, Engine: e.Name})
			}
		}
	}
	var err error
	if len(missing) == len(h.engines) {
		err = fmt.Errorf("no container engine answers: %s", strings.Join(missing, "; "))
	}
	*conditions = append(*conditions, availability("ContainerEngineAvailable", err))
	return containers
}
