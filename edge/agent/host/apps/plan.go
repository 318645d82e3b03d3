// SPDX-License-Identifier: Apache-2.0

// Package apps runs a node's applications: quadlet units through systemd, compose projects through a compose program. plan.go is pure:
// where files go, what units are called, what is to be done and how an application is; apps.go does it. It writes no files itself:
// those of applications are put in place with all others of a spec.
package apps

import (
	"fmt"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/edge/agent/host/engine"
	"github.com/edgebus/edgebus/edge/agent/host/systemd"
	"github.com/edgebus/edgebus/topics/resource"
)

// Where the files of applications go: each has a directory of its own below these.
const (
	quadletDir = "/etc/containers/systemd"
	composeDir = "/etc/compose"
)

const (
	envName    = ".env"         // of compose, which reads it by itself
	quadletEnv = ".edgebus.env" // of quadlet
	dropInName = "90-edgebus-env.conf"
)

// ApplicationDir is an application's directory.
func ApplicationDir(app resource.RenderedApplication) string {
	if app.AppType == resource.AppCompose {
		return path.Join(composeDir, app.Name)
	}
	return path.Join(quadletDir, app.Name)
}

// Files are an application's files with absolute paths, with its directory and those of its environment. They are in the order of
// their paths.
func Files(app resource.RenderedApplication) ([]resource.RenderedFile, error) {
	if app.AppType != resource.AppCompose && app.AppType != resource.AppQuadlet {
		return nil, fmt.Errorf("applications[%s].appType: %q is not known to this agent", app.Name, app.AppType)
	}
	dir := ApplicationDir(app)
	files := []resource.RenderedFile{{Path: dir, Type: resource.FileDirectory, Mode: "0755"}}
	for _, f := range app.Files {
		f.Path = path.Join(dir, f.Path)
		if !strings.HasPrefix(f.Path, dir+"/") {
			return nil, fmt.Errorf("applications[%s].files: %s is outside the application's directory", app.Name, f.Path)
		}
		files = append(files, f)
	}
	if len(app.EnvVars) > 0 {
		env, err := environmentFiles(app)
		if err != nil {
			return nil, fmt.Errorf("applications[%s].envVars: %w", app.Name, err)
		}
		files = append(files, env...)
	}
	slices.SortFunc(files, func(a, b resource.RenderedFile) int { return strings.Compare(a.Path, b.Path) })
	for i := 1; i < len(files); i++ {
		if files[i].Path == files[i-1].Path {
			return nil, fmt.Errorf("applications[%s].files: %s is there twice, perhaps since envVars makes it as well", app.Name, files[i].Path)
		}
	}
	return files, nil
}

// environmentFiles are the files that give an application its variables: .env for compose, and for quadlet a file to which a drop-in
// of each container refers.
func environmentFiles(app resource.RenderedApplication) ([]resource.RenderedFile, error) {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(app.EnvVars)) {
		value := app.EnvVars[name]
		if strings.ContainsAny(value, "\n\r\x00") {
			return nil, fmt.Errorf("%s: a value has one line", name)
		}
		if app.AppType == resource.AppCompose {
			value = quoteValue(value)
		}
		fmt.Fprintf(&text, "%s=%s\n", name, value)
	}
	dir := ApplicationDir(app)
	file := func(at, text, mode string) resource.RenderedFile {
		return resource.RenderedFile{Path: path.Join(dir, at), Type: resource.FileRegular, Mode: mode, Content: resource.Content{Text: text}}
	}
	if app.AppType == resource.AppCompose {
		return []resource.RenderedFile{file(envName, text.String(), "0600")}, nil
	}
	files := []resource.RenderedFile{file(quadletEnv, text.String(), "0600")}
	for _, u := range Units(app) {
		if strings.HasSuffix(u.File, ".container") {
			files = append(files, file(path.Join(u.File+".d", dropInName), "[Container]\nEnvironmentFile="+path.Join(dir, quadletEnv)+"\n", "0644"))
		}
	}
	return files, nil
}

var plainValue = regexp.MustCompile(`^[A-Za-z0-9_./:@%+,=-]*$`)

// quoteValue is a value as .env has it: nothing in it is replaced by a variable.
func quoteValue(v string) string {
	switch {
	case plainValue.MatchString(v):
		return v
	case !strings.ContainsAny(v, `'\`):
		return "'" + v + "'"
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`).Replace(v) + `"`
}

// Unit is what quadlet makes of one of its files.
type Unit struct {
	File    string // relative to the application's directory
	Service string // empty for a template, which is not started by itself
	// Work says that it runs containers; others make what these need.
	Work bool
	rank int // what is needed by others comes first
}

// unitKinds are quadlet's file types: what it adds to the name of the service.
var unitKinds = map[string]struct {
	suffix string
	work   bool
	rank   int
}{
	".network": {"-network", false, 0}, ".volume": {"-volume", false, 1}, ".image": {"-image", false, 2}, ".build": {"-build", false, 3},
	".pod": {"-pod", true, 4}, ".kube": {"", true, 5}, ".container": {"", true, 6},
}

// Units are the quadlet units of an application, in the order in which they are started. A file's ServiceName= is only seen in
// content that is part of the spec, not in a blob or a Secret.
func Units(app resource.RenderedApplication) []Unit {
	if app.AppType != resource.AppQuadlet {
		return nil
	}
	var units []Unit
	for _, f := range app.Files {
		if kind, ok := unitKinds[path.Ext(f.Path)]; ok && f.Type != resource.FileDirectory {
			text := f.Text + string(f.Base64)
			units = append(units, Unit{File: f.Path, Service: ServiceName(path.Base(f.Path), text), Work: kind.work, rank: kind.rank})
		}
	}
	slices.SortStableFunc(units, func(a, b Unit) int {
		if a.rank != b.rank {
			return a.rank - b.rank
		}
		return strings.Compare(a.Service, b.Service)
	})
	return units
}

// ServiceName is the name of the service that quadlet makes of a file: foo.container is foo.service, foo.pod is foo-pod.service. A
// template foo@.container is started as the instance that its DefaultInstance= names; without one the name is empty.
func ServiceName(file, text string) string {
	ext := path.Ext(file)
	kind, ok := unitKinds[ext]
	if !ok {
		return ""
	}
	base, instance, template := strings.Cut(strings.TrimSuffix(file, ext), "@")
	base += kind.suffix
	keys := unitKeys(text)
	if own := keys["ServiceName"]; own != "" && !strings.ContainsAny(own, "/ \t") {
		base = strings.TrimSuffix(own, ".service")
	}
	switch {
	case base == "":
		return ""
	case !template:
		return base + ".service"
	case instance == "":
		instance = keys["DefaultInstance"]
	}
	if instance == "" {
		return ""
	}
	return base + "@" + instance + ".service"
}

// unitKeys are ServiceName of a quadlet's own section and DefaultInstance of [Install].
func unitKeys(text string) map[string]string {
	keys, section := map[string]string{}, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = strings.Trim(line, "[]")
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		_, own := unitKinds["."+strings.ToLower(section)]
		if ok && (key == "ServiceName" && own || key == "DefaultInstance" && section == "Install") {
			keys[key] = value
		}
	}
	return keys
}

// Action is something to do for an application: with a unit, or with the project of compose.
type Action struct {
	Do   string
	App  string
	Unit string
}

// What Action.Do may be.
const (
	DoStop     = "stop"     // a unit that is not wanted any more, while systemd still knows how
	DoDown     = "down"     // a project
	DoReload   = "reload"   // systemd, which runs quadlet's generator
	DoRestart  = "restart"  // a unit that has changed
	DoStart    = "start"    // a unit
	DoUp       = "up"       // a project
	DoRecreate = "recreate" // a project of which more than the compose file has changed
)

func (a Action) starts() bool { return a.Do != DoStop && a.Do != DoDown && a.Do != DoReload }

// Plan says what is to be done, in order, when applications are to be as in to and have been as in from; the files of to are in place.
// changed are files that were written since, for another reason than a difference of the two. What is the same in both is left
// alone.
func Plan(from, to []resource.RenderedApplication, changed []string) []Action {
	var stop, down, restart, start, up []Action
	reload := false
	for _, old := range from {
		switch now := findApplication(to, old); {
		case old.AppType == resource.AppCompose && now == nil:
			down = append(down, Action{Do: DoDown, App: old.Name})
		case old.AppType == resource.AppQuadlet:
			var wanted []Unit
			reload = reload || now == nil
			if now != nil {
				wanted = Units(*now)
			}
			units := Units(old)
			slices.Reverse(units)
			for _, u := range units {
				if u.Service != "" && !hasService(wanted, u.Service) {
					stop = append(stop, Action{DoStop, old.Name, u.Service})
				}
			}
		}
	}
	for _, app := range to {
		old := findApplication(from, app)
		diff := changedFiles(old, app, changed)
		if app.AppType == resource.AppCompose {
			if old == nil || len(diff) > 0 {
				up = append(up, Action{Do: upOrRecreate(old, diff), App: app.Name})
			}
			continue
		}
		reload = reload || old == nil || len(diff) > 0
		for _, u := range Units(app) {
			switch {
			case u.Service == "":
			case old == nil || !hasService(Units(*old), u.Service):
				start = append(start, Action{DoStart, app.Name, u.Service})
			case concernsUnit(diff, u.File):
				restart = append(restart, Action{DoRestart, app.Name, u.Service})
			}
		}
	}
	plan := slices.Concat(stop, down)
	if reload {
		plan = append(plan, Action{Do: DoReload})
	}
	return slices.Concat(plan, restart, start, up)
}

func findApplication(apps []resource.RenderedApplication, like resource.RenderedApplication) *resource.RenderedApplication {
	i := slices.IndexFunc(apps, func(a resource.RenderedApplication) bool { return a.Name == like.Name && a.AppType == like.AppType })
	if i < 0 {
		return nil
	}
	return &apps[i]
}

func hasService(units []Unit, service string) bool {
	return slices.ContainsFunc(units, func(u Unit) bool { return u.Service == service })
}

// changedFiles are the files of an application, relative to its directory, that are not as they were.
func changedFiles(old *resource.RenderedApplication, app resource.RenderedApplication, changed []string) []string {
	if old == nil {
		return nil
	}
	was, is := map[string]resource.RenderedFile{}, map[string]resource.RenderedFile{}
	for _, f := range old.Files {
		was[f.Path] = f
	}
	for _, f := range app.Files {
		is[f.Path] = f
	}
	var diff []string
	for p, f := range is {
		if before, ok := was[p]; !ok || !reflect.DeepEqual(before, f) || slices.Contains(changed, path.Join(ApplicationDir(app), p)) {
			diff = append(diff, p)
		}
	}
	for p := range was {
		if _, ok := is[p]; !ok {
			diff = append(diff, p)
		}
	}
	if !maps.Equal(old.EnvVars, app.EnvVars) {
		diff = append(diff, envName)
	}
	return diff
}

// concernsUnit reports whether one of the files that differ is about a unit: its own, one of its drop-ins, or one that is no unit's, which
// any container may use.
func concernsUnit(diff []string, file string) bool {
	return slices.ContainsFunc(diff, func(p string) bool {
		if owner, ok := strings.CutSuffix(path.Dir(p), ".d"); ok {
			if _, unit := unitKinds[path.Ext(owner)]; unit {
				return owner == file
			}
		}
		_, unit := unitKinds[path.Ext(p)]
		return p == file || !unit
	})
}

var composeFile = regexp.MustCompile(`^(docker-|podman-|container-)?compose(\.override)?\.ya?ml$`)

func upOrRecreate(old *resource.RenderedApplication, diff []string) string {
	if old != nil && slices.ContainsFunc(diff, func(p string) bool { return !composeFile.MatchString(p) }) {
		return DoRecreate
	}
	return DoUp
}

// The statuses of applications.
const (
	StatusPreparing = "Preparing"
	StatusStarting  = "Starting"
	StatusRunning   = "Running"
	StatusCompleted = "Completed"
	StatusFailed    = "Error"
	StatusUnknown   = "Unknown"
)

// partStatus is a unit or container of an application: what it is called, its status in the words above, and what is wrong.
type partStatus struct{ name, status, message string }

// summarizeParts is an application's status: the worst of its parts'.
func summarizeParts(app string, parts []partStatus, restarts int) resource.ApplicationStatus {
	s := resource.ApplicationStatus{Name: app, Status: StatusUnknown, Restarts: restarts}
	ready := 0
	for i, p := range parts {
		if i == 0 || statusSeverity(p.status) > statusSeverity(s.Status) {
			s.Status = p.status
		}
		if p.status == StatusRunning || p.status == StatusCompleted {
			ready++
		}
		if p.message != "" && s.Message == "" {
			s.Message = p.name + ": " + p.message
		}
	}
	if len(parts) > 0 {
		s.Ready = fmt.Sprintf("%d/%d", ready, len(parts))
	}
	return s
}

func statusSeverity(status string) int {
	return slices.Index([]string{StatusCompleted, StatusRunning, StatusStarting, StatusPreparing, StatusUnknown, StatusFailed}, status)
}

// unitPart is how a unit is.
func unitPart(u systemd.Unit) partStatus {
	p := partStatus{name: u.Name}
	switch {
	case !u.Found():
		p.status, p.message = StatusFailed, "quadlet has made no such unit: it needs podman 4.4 or later, and says in the journal what it can't read"
	case u.LoadState != "loaded":
		p.status, p.message = StatusFailed, "systemd says "+u.LoadState
	case u.ActiveState == "failed":
		p.status, p.message = StatusFailed, "systemd says failed, "+u.Result
	case u.ActiveState == "active", u.ActiveState == "reloading":
		p.status = StatusRunning
	case u.ActiveState == "activating" && u.SubState == "auto-restart":
		p.status, p.message = StatusStarting, "it ended and is started again: "+u.Result
	case u.ActiveState == "activating":
		p.status = StatusStarting
	case u.Ran && (u.Result == "success" || u.Result == ""):
		p.status = StatusCompleted
	case u.Ran:
		p.status, p.message = StatusFailed, "it ended with "+u.Result
	default:
		p.status = StatusPreparing
	}
	return p
}

// containerPart is how a container is.
func containerPart(c engine.Container) partStatus {
	p := partStatus{name: c.Name()}
	switch c.State {
	case "running", "paused":
		p.status = StatusRunning
		if strings.Contains(c.Status, "(unhealthy)") {
			p.status, p.message = StatusFailed, "its health check fails"
		} else if strings.Contains(c.Status, "(starting)") || strings.Contains(c.Status, "(health: starting)") {
			p.status = StatusStarting
		}
	case "restarting":
		p.status, p.message = StatusStarting, "it is restarted again and again"
	case "created", "configured", "initialized":
		p.status = StatusPreparing
	case "exited", "stopped":
		p.status = StatusCompleted
		if c.ExitCode != 0 {
			p.status, p.message = StatusFailed, fmt.Sprintf("it exited with %d", c.ExitCode)
		}
	case "dead":
		p.status, p.message = StatusFailed, "the engine could not remove it"
	default:
		p.status = StatusUnknown
	}
	return p
}
