// SPDX-License-Identifier: Apache-2.0

package apps

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker/daemon/subprocess"
	"github.com/edgebus/edgebus/edge/agent/host/engine"
	"github.com/edgebus/edgebus/edge/agent/host/systemd"
	"github.com/edgebus/edgebus/topics/resource"
)

// Systemd is what is needed of the service manager.
type Systemd interface {
	Reload(ctx context.Context) error
	Job(ctx context.Context, verb, unit string) error
	Services(ctx context.Context, names []string) ([]systemd.Unit, error)
}

// Engine is what is needed of a container engine.
type Engine interface {
	Project(ctx context.Context, project string) ([]engine.Container, error)
	Inspect(ctx context.Context, c engine.Container) (engine.Container, error)
	Down(ctx context.Context, project string) error
}

// Options are what applications are run with.
type Options struct {
	// Root stands for / in the paths of files.
	Root    string
	Systemd Systemd
	// Engines are podman and docker, as far as they are used.
	Engines []Engine
	// Compose are programs, with arguments, of which the first that works is used; default podman-compose, docker compose, podman compose.
	Compose [][]string
	// StartTimeout bounds a job of systemd or compose, in which images may be pulled; default 10m.
	StartTimeout time.Duration
	// VersionTimeout is how long a compose program may take to say its version; default 10s. One that hangs is not used.
	VersionTimeout time.Duration
	Log            zerolog.Logger
}

// Applications are those of a node.
type Applications struct{ o Options }

// New makes Applications.
func New(o Options) *Applications {
	if o.Compose == nil {
		o.Compose = [][]string{{"podman-compose"}, {"docker", "compose"}, {"podman", "compose"}}
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = 10 * time.Minute
	}
	if o.VersionTimeout == 0 {
		o.VersionTimeout = 10 * time.Second
	}
	return &Applications{o}
}

// Files are where an application's files go.
func (a *Applications) Files(app resource.RenderedApplication) ([]resource.RenderedFile, error) {
	return Files(app)
}

// Switch does what Plan says, and ends with the first action that fails. A unit or project that is not wanted any more and that can't be
// stopped, since systemd or the engine isn't there, keeps nothing from going on. Optional applications are not started, and units of theirs
// that have changed are stopped: their names are returned, and Start starts them.
func (a *Applications) Switch(ctx context.Context, from, to []resource.RenderedApplication, changed []string) (unstarted []string, err error) {
	if err := checkConflicts(to); err != nil {
		return nil, err
	}
	units := slices.ContainsFunc(to, func(app resource.RenderedApplication) bool {
		return app.AppType == resource.AppQuadlet && !app.Optional
	})
	plan := Plan(from, to, changed)
	unstarted = optionalStarts(plan, to)
	for _, action := range plan {
		if action.starts() && slices.Contains(unstarted, action.App) {
			if action.Do != DoRestart {
				continue
			}
			action.Do = DoStop
		}
		err := a.do(ctx, action)
		switch {
		case err == nil:
		case action.Do == DoStop || action.Do == DoDown || action.Do == DoReload && !units:
			a.o.Log.Warn().Err(err).Str("application", action.App).Msg("an application that is not wanted any more can't be stopped")
		case action.App == "":
			return unstarted, err
		default:
			return unstarted, fmt.Errorf("application %s: %w", action.App, err)
		}
	}
	return unstarted, nil
}

// optionalStarts are the names of the optional applications that a plan starts.
func optionalStarts(plan []Action, apps []resource.RenderedApplication) (names []string) {
	for _, app := range apps {
		if app.Optional && slices.ContainsFunc(plan, func(a Action) bool { return a.App == app.Name && a.starts() }) {
			names = append(names, app.Name)
		}
	}
	return names
}

// Start starts an application whose files are in place. Units and containers of it that run already are left alone.
func (a *Applications) Start(ctx context.Context, app resource.RenderedApplication) error {
	for _, action := range Plan(nil, []resource.RenderedApplication{app}, nil) {
		if err := a.do(ctx, action); err != nil {
			return err
		}
	}
	return nil
}

// checkConflicts says which two applications have a service of the same name.
func checkConflicts(apps []resource.RenderedApplication) error {
	owner := map[string]string{}
	for _, app := range apps {
		for _, u := range Units(app) {
			if other, ok := owner[u.Service]; ok && u.Service != "" {
				return fmt.Errorf("applications %s and %s both have the service %s", other, app.Name, u.Service)
			}
			owner[u.Service] = app.Name
		}
	}
	return nil
}

func (a *Applications) do(ctx context.Context, action Action) error {
	ctx, cancel := context.WithTimeout(ctx, a.o.StartTimeout)
	defer cancel()
	switch action.Do {
	case DoReload:
		return a.o.Systemd.Reload(ctx)
	case DoStop:
		return a.o.Systemd.Job(ctx, systemd.JobStop, action.Unit)
	case DoStart:
		return a.o.Systemd.Job(ctx, systemd.JobStart, action.Unit)
	case DoRestart:
		return a.o.Systemd.Job(ctx, systemd.JobRestart, action.Unit)
	case DoDown:
		return a.down(ctx, action.App)
	case DoRecreate:
		return a.compose(ctx, action.App, "up", "--detach", "--remove-orphans", "--force-recreate")
	}
	return a.compose(ctx, action.App, "up", "--detach", "--remove-orphans")
}

// down removes a project from each engine that has it.
func (a *Applications) down(ctx context.Context, project string) error {
	var failed error
	for _, e := range a.o.Engines {
		list, err := e.Project(ctx, project)
		if err == nil && len(list) > 0 {
			err = e.Down(ctx, project)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// compose runs a compose program in an application's directory.
func (a *Applications) compose(ctx context.Context, project string, args ...string) error {
	program, err := a.program(ctx)
	if err != nil {
		return err
	}
	command := subprocess.Command{
		Argv: slices.Concat(program, []string{"--project-name", project}, args), Dir: filepath.Join(a.o.Root, composeDir, project),
	}
	if _, err := command.Run(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", strings.Join(program, " "), args[0], err)
	}
	return nil
}

// program is the compose program that is installed.
func (a *Applications) program(ctx context.Context) ([]string, error) {
	for _, argv := range a.o.Compose {
		if _, err := exec.LookPath(argv[0]); err != nil {
			continue
		}
		version := subprocess.Command{Argv: append(slices.Clone(argv), "version"), Time: a.o.VersionTimeout}
		if _, err := version.Run(ctx); err == nil {
			return argv, nil
		}
	}
	return nil, errors.New("no compose program works on this host: install podman-compose, or docker with its compose plugin")
}

// Status is how each application is, in their order.
func (a *Applications) Status(ctx context.Context, apps []resource.RenderedApplication) []resource.ApplicationStatus {
	var list []resource.ApplicationStatus
	for _, app := range apps {
		if app.AppType == resource.AppCompose {
			list = append(list, a.project(ctx, app.Name))
		} else {
			list = append(list, a.quadlet(ctx, app))
		}
	}
	return list
}

func (a *Applications) quadlet(ctx context.Context, app resource.RenderedApplication) resource.ApplicationStatus {
	var names, others []string
	for _, u := range Units(app) {
		if u.Service != "" && u.Work {
			names = append(names, u.Service)
		} else if u.Service != "" {
			others = append(others, u.Service)
		}
	}
	if len(names) == 0 {
		names, others = others, nil
	}
	if len(names) == 0 {
		return resource.ApplicationStatus{Name: app.Name, Status: StatusFailed, Message: "none of its files is a quadlet unit that can be started"}
	}
	units, err := a.o.Systemd.Services(ctx, append(names, others...))
	if err != nil {
		return resource.ApplicationStatus{Name: app.Name, Status: StatusFailed, Message: err.Error()}
	}
	var parts []partStatus
	restarts := 0
	for i, u := range units {
		p := unitPart(u)
		restarts += u.Restarts
		if i < len(names) || p.status == StatusFailed { // what containers need is only counted when it is missing
			parts = append(parts, p)
		}
	}
	return summarizeParts(app.Name, parts, restarts)
}

func (a *Applications) project(ctx context.Context, name string) resource.ApplicationStatus {
	var parts []partStatus
	var failed error
	restarts := 0
	for _, e := range a.o.Engines {
		list, err := e.Project(ctx, name)
		failed = errors.Join(failed, err)
		for _, c := range list {
			if full, err := e.Inspect(ctx, c); err == nil {
				c = full
			}
			restarts += c.Restarts
			parts = append(parts, containerPart(c))
		}
	}
	if len(parts) > 0 {
		return summarizeParts(name, parts, restarts)
	}
	s := resource.ApplicationStatus{Name: name, Status: StatusPreparing, Message: "it has no containers yet"}
	if _, err := a.program(ctx); err != nil {
		s.Status, s.Message = StatusFailed, err.Error()
	} else if failed != nil {
		s.Status, s.Message = StatusUnknown, "its containers can't be seen: "+failed.Error()
	}
	return s
}
