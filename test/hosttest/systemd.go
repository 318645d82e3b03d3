// SPDX-License-Identifier: Apache-2.0

// Package hosttest has stand-ins for what a host has: a systemd behind a private D-Bus, and a container engine at a Unix socket. They keep
// state as the real ones do; they are for tests, and start no process but a dbus-daemon of their own.
package hosttest

import (
	"bufio"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/stretchr/testify/require"
)

// Systemd is a stand-in for systemd. Reload makes units of the quadlet files below its root, as quadlet's generator does.
type Systemd struct {
	Address string

	root string
	conn *dbus.Conn

	mu    sync.Mutex
	units map[string]*systemdUnit
	jobs  uint32
	log   []string
	fails map[string]bool
}

type systemdUnit struct {
	load, active, sub, result string
	restarts                  uint32
	began                     uint64
	quadlet                   bool
	oneshot                   bool
}

const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path=%s</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`

// StartSystemd starts a D-Bus and the stand-in on it.
func StartSystemd(t testing.TB, root string) *Systemd {
	t.Helper()
	if _, err := exec.LookPath("dbus-daemon"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("dbus-daemon is missing: apt-get install dbus-daemon")
		}
		t.Skip("dbus-daemon is missing: apt-get install dbus-daemon")
	}
	dir, err := os.MkdirTemp("", "bus") //nolint:usetesting // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := filepath.Join(dir, "bus.conf")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, busConfig, filepath.Join(dir, "bus")), 0o600))
	cmd := exec.Command("dbus-daemon", "--config-file="+config, "--nofork", "--nopidfile", "--print-address")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	address, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)

	s := &Systemd{Address: strings.TrimSpace(address), root: root, units: map[string]*systemdUnit{}, fails: map[string]bool{}}
	s.Serve(t)
	return s
}

// Serve connects the stand-in to its D-Bus.
func (s *Systemd) Serve(t testing.TB) {
	conn, err := dbus.Connect(s.Address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	s.conn = conn
	require.NoError(t, conn.Export(systemdManager{s}, "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"))
	require.NoError(t, conn.ExportSubtree(quadletService{s}, "/org/freedesktop/systemd1/unit", "org.freedesktop.DBus.Properties"))
	reply, err := conn.RequestName("org.freedesktop.systemd1", dbus.NameFlagDoNotQueue)
	require.NoError(t, err)
	require.Equal(t, dbus.RequestNameReplyPrimaryOwner, reply)
}

// Add adds a unit, or changes its state as if it had done so by itself.
func (s *Systemd) Add(name, active, sub string) {
	s.mu.Lock()
	u := s.units[name]
	if u == nil {
		u = &systemdUnit{load: "loaded"}
		s.units[name] = u
	}
	u.active, u.sub, u.began, u.result = active, sub, 1, "success"
	if active == "failed" {
		u.result = "exit-code"
	}
	s.mu.Unlock()
	_ = s.conn.Emit(objectPath(name), "org.freedesktop.DBus.Properties.PropertiesChanged", "org.freedesktop.systemd1.Unit",
		map[string]dbus.Variant{"ActiveState": dbus.MakeVariant(active)}, []string{})
}

// Fail makes a unit fail to start, or no more.
func (s *Systemd) Fail(name string, fails bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails[name] = fails
}

// Active is a unit's state; empty if there is none.
func (s *Systemd) Active(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.units[name]; u != nil {
		return u.active
	}
	return ""
}

// Log is what was called since the last Log.
func (s *Systemd) Log() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	log := s.log
	s.log = nil
	return log
}

func objectPath(name string) dbus.ObjectPath {
	return dbus.ObjectPath("/org/freedesktop/systemd1/unit/" + fmt.Sprintf("u%x", name))
}

// systemdManager are the methods of systemd's manager that are used.
type systemdManager struct{ s *Systemd }

func (m systemdManager) Subscribe() *dbus.Error { return nil }

func (m systemdManager) Reload() *dbus.Error {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.s.log = append(m.s.log, "reload")
	made := map[string]bool{}
	_ = filepath.WalkDir(filepath.Join(m.s.root, "etc/containers/systemd"), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		name := generatedService(filepath.Base(p))
		if name == "" {
			return nil
		}
		made[name] = true
		if m.s.units[name] == nil {
			ext := filepath.Ext(p)
			m.s.units[name] = &systemdUnit{load: "loaded", active: "inactive", sub: "dead", quadlet: true, oneshot: ext == ".network" || ext == ".volume"}
		}
		return nil
	})
	for name, u := range m.s.units {
		if u.quadlet && !made[name] {
			if u.active == "active" {
				u.load = "not-found" // it runs on, and systemd has forgotten how to stop it well
			} else {
				delete(m.s.units, name)
			}
		}
	}
	return nil
}

// generatedService is what the generator names the service of a file, for the kinds that tests use.
func generatedService(file string) string {
	base, ext, _ := strings.Cut(file, ".")
	switch ext {
	case "container", "kube":
		return base + ".service"
	case "network", "volume", "pod", "image", "build":
		return base + "-" + ext + ".service"
	}
	return ""
}

func (m systemdManager) StartUnit(name, _ string) (dbus.ObjectPath, *dbus.Error) {
	return m.job("start", name)
}

func (m systemdManager) StopUnit(name, _ string) (dbus.ObjectPath, *dbus.Error) {
	return m.job("stop", name)
}

func (m systemdManager) RestartUnit(name, _ string) (dbus.ObjectPath, *dbus.Error) {
	return m.job("restart", name)
}

// job does a job at once: that it is done may be said before its number is returned, as by systemd.
func (m systemdManager) job(verb, name string) (dbus.ObjectPath, *dbus.Error) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.s.log = append(m.s.log, verb+" "+name)
	u := m.s.units[name]
	if u == nil {
		return "", dbus.NewError("org.freedesktop.systemd1.NoSuchUnit", []any{"Unit " + name + " not found."})
	}
	result := "done"
	switch {
	case verb == "stop":
		u.active, u.sub = "inactive", "dead"
		if u.load == "not-found" {
			delete(m.s.units, name)
		}
	case m.s.fails[name]:
		result = "failed"
		u.active, u.sub, u.result, u.began = "failed", "failed", "exit-code", 1
	default:
		u.active, u.sub, u.result, u.began = "active", "running", "success", 1
		if u.oneshot {
			u.sub = "exited"
		}
	}
	m.s.jobs++
	job := dbus.ObjectPath(fmt.Sprintf("/org/freedesktop/systemd1/job/%d", m.s.jobs))
	_ = m.s.conn.Emit("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager.JobRemoved", m.s.jobs, job, name, result)
	return job, nil
}

type unitRow struct {
	Name, Description, Load, Active, Sub, Following string
	Path                                            dbus.ObjectPath
	JobID                                           uint32
	JobType                                         string
	JobPath                                         dbus.ObjectPath
}

func (m systemdManager) rows(names []string) []unitRow {
	var rows []unitRow
	for _, n := range names {
		r := unitRow{Name: n, Load: "not-found", Active: "inactive", Sub: "dead", Path: objectPath(n), JobPath: "/"}
		if u := m.s.units[n]; u != nil {
			r.Load, r.Active, r.Sub = u.load, u.active, u.sub
		}
		rows = append(rows, r)
	}
	return rows
}

func (m systemdManager) ListUnitsByNames(names []string) ([]unitRow, *dbus.Error) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	return m.rows(names), nil
}

func (m systemdManager) ListUnitsByPatterns(_, patterns []string) ([]unitRow, *dbus.Error) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	names := slices.Sorted(maps.Keys(m.s.units))
	return m.rows(slices.DeleteFunc(names, func(n string) bool {
		return !slices.ContainsFunc(patterns, func(p string) bool { ok, _ := path.Match(p, n); return ok })
	})), nil
}

// pid is the number of a unit's process, which is none.
func (u *systemdUnit) pid() uint32 {
	if u.active != "active" {
		return 0
	}
	return 4711
}

// quadletService has the properties of services.
type quadletService struct{ s *Systemd }

func (v quadletService) GetAll(msg dbus.Message, _ string) (map[string]dbus.Variant, *dbus.Error) {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	at, _ := msg.Headers[dbus.FieldPath].Value().(dbus.ObjectPath)
	for name, u := range v.s.units {
		if objectPath(name) == at {
			return map[string]dbus.Variant{
				"NRestarts": dbus.MakeVariant(u.restarts), "Result": dbus.MakeVariant(u.result),
				"ExecMainStartTimestampMonotonic": dbus.MakeVariant(u.began), "MainPID": dbus.MakeVariant(u.pid()),
			}, nil
		}
	}
	return nil, dbus.NewError("org.freedesktop.DBus.Error.UnknownObject", nil)
}
