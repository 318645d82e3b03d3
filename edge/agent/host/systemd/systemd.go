// SPDX-License-Identifier: Apache-2.0

// Package systemd talks to a host's systemd over D-Bus: units by pattern, jobs with their outcome, and a signal when something has
// changed. It never runs a program and never writes a unit; where there is no systemd each call says why.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	serviceName         = "org.freedesktop.systemd1"
	managerInterface    = serviceName + ".Manager"
	managerPath         = dbus.ObjectPath("/org/freedesktop/systemd1")
	propertiesInterface = "org.freedesktop.DBus.Properties"
	callTimeout         = 10 * time.Second
	loadNotFound        = "not-found"
)

// SystemBus is the socket of the system's D-Bus.
const SystemBus = "/run/dbus/system_bus_socket"

// Unit is a unit as systemd has it.
type Unit struct {
	Name        string
	LoadState   string // loaded, not-found, masked, …
	ActiveState string // active, activating, inactive, failed, …
	SubState    string // running, exited, dead, …
	// Restarts is how often a service was restarted by systemd, and Result how its last run ended: success, exit-code, …
	Restarts int
	Result   string
	// Ran says that a service has run since the host's boot.
	Ran bool
	// MainPID is the process of a service that runs; 0: none.
	MainPID int
}

// Found says that there is such a unit.
func (u Unit) Found() bool { return u.LoadState != loadNotFound && u.LoadState != "" }

// The verbs of Job.
const (
	JobStart   = "StartUnit"
	JobStop    = "StopUnit"
	JobRestart = "RestartUnit"
)

// Systemd is a host's service manager. It connects when it is needed, and again when the connection was lost.
type Systemd struct {
	address string
	changed func()

	mu   sync.Mutex
	conn *busConnection
}

// New makes a Systemd that is reached through the D-Bus at address. It calls changed when a unit may have changed; changed must not block.
func New(address string, changed func()) *Systemd {
	return &Systemd{address: address, changed: changed}
}

// busConnection is a connection to the bus. jobs are those whose end is awaited.
type busConnection struct {
	bus  *dbus.Conn
	mu   sync.Mutex // held while a job is queued, so that its end isn't seen before its number
	jobs map[dbus.ObjectPath]chan string
}

// connect is the connection to the bus, with the signals of units subscribed to.
func (s *Systemd) connect(ctx context.Context) (*busConnection, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil && s.conn.bus.Context().Err() == nil {
		return s.conn, nil
	}
	bus, err := dbus.Connect(s.address, dbus.WithSignalHandler(dbus.NewSequentialSignalHandler()))
	if err != nil {
		return nil, fmt.Errorf("no D-Bus at %s: %w", s.address, err)
	}
	c := &busConnection{bus: bus, jobs: map[dbus.ObjectPath]chan string{}}
	if err := c.subscribe(ctx); err != nil {
		_ = bus.Close()
		return nil, fmt.Errorf("no systemd at %s: %w", s.address, err)
	}
	signals := make(chan *dbus.Signal, 64)
	bus.Signal(signals)
	go c.listen(signals, s.changed)
	s.conn = c
	return c, nil
}

func (c *busConnection) subscribe(ctx context.Context) error {
	if err := c.call(ctx, managerInterface+".Subscribe").Err; err != nil {
		return err
	}
	for _, options := range [][]dbus.MatchOption{
		{dbus.WithMatchInterface(managerInterface), dbus.WithMatchObjectPath(managerPath)},
		{dbus.WithMatchInterface(propertiesInterface), dbus.WithMatchMember("PropertiesChanged"), dbus.WithMatchPathNamespace(managerPath + "/unit")},
	} {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		err := c.bus.AddMatchSignalContext(ctx, append(options, dbus.WithMatchSender(serviceName))...)
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// listen hands on signals until the connection is closed, which closes the channel.
func (c *busConnection) listen(signals <-chan *dbus.Signal, changed func()) {
	for s := range signals {
		if s.Name == managerInterface+".JobRemoved" {
			c.ended(s.Body)
		}
		changed()
	}
	c.mu.Lock()
	for job, done := range c.jobs {
		close(done)
		delete(c.jobs, job)
	}
	c.mu.Unlock()
	changed()
}

// ended tells who waits for a job how it ended.
func (c *busConnection) ended(body []any) {
	var id uint32
	var job dbus.ObjectPath
	var unit, result string
	if dbus.Store(body, &id, &job, &unit, &result) != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if done := c.jobs[job]; done != nil {
		done <- result // has room for one
		delete(c.jobs, job)
	}
}

// call calls a method of the manager, without D-Bus starting a systemd where there is none.
func (c *busConnection) call(ctx context.Context, method string, args ...any) *dbus.Call {
	return c.callAt(ctx, managerPath, method, args...)
}

func (c *busConnection) callAt(ctx context.Context, at dbus.ObjectPath, method string, args ...any) *dbus.Call {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.bus.Object(serviceName, at).CallWithContext(ctx, method, dbus.FlagNoAutoStart, args...)
}

// Close closes the connection.
func (s *Systemd) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return nil
	}
	return s.conn.bus.Close()
}

// Ping says why there is no systemd, nil if there is.
func (s *Systemd) Ping(ctx context.Context) error {
	_, err := s.connect(ctx)
	return err
}

// Reload has systemd read its units again, and run its generators.
func (s *Systemd) Reload(ctx context.Context) error {
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	// Generators may take their time.
	if err := c.bus.Object(serviceName, managerPath).CallWithContext(ctx, managerInterface+".Reload", dbus.FlagNoAutoStart).Err; err != nil {
		return fmt.Errorf("systemd: daemon-reload: %w", err)
	}
	return nil
}

// Job starts, stops or restarts a unit and waits until that is done, or ctx ends.
func (s *Systemd) Job(ctx context.Context, verb, unit string) error {
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	fail := func(err error) error { return fmt.Errorf("systemd: %s %s: %w", jobWords[verb], unit, err) }
	done := make(chan string, 1)
	c.mu.Lock()
	var job dbus.ObjectPath
	if err := c.call(ctx, managerInterface+"."+verb, unit, "replace").Store(&job); err != nil {
		c.mu.Unlock()
		return fail(err)
	}
	c.jobs[job] = done
	c.mu.Unlock()
	select {
	case result, ok := <-done:
		switch {
		case !ok:
			return fail(errors.New("the connection was closed before the job was done"))
		case result != "done":
			return fail(fmt.Errorf("the job ended with %q", result))
		}
		return nil
	case <-c.bus.Context().Done():
		return fail(errors.New("the connection was closed before the job was done"))
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.jobs, job)
		c.mu.Unlock()
		return fail(context.Cause(ctx))
	}
}

var jobWords = map[string]string{JobStart: "start", JobStop: "stop", JobRestart: "restart"}

// listedUnit is a unit as ListUnits has it.
type listedUnit struct {
	Name, Description, LoadState, ActiveState, SubState, Following string
	Path                                                           dbus.ObjectPath
	JobID                                                          uint32
	JobType                                                        string
	JobPath                                                        dbus.ObjectPath
}

// Match lists the units whose name matches one of the patterns, in which * stands for any text, in the order of their names. A
// pattern without * is reported even if systemd has no such unit.
func (s *Systemd) Match(ctx context.Context, patterns []string) ([]Unit, error) {
	var exact, open []string
	for _, p := range patterns {
		if strings.Contains(p, "*") {
			open = append(open, p)
		} else {
			exact = append(exact, p)
		}
	}
	units, err := s.named(ctx, exact)
	if err != nil || len(open) == 0 {
		return units, err
	}
	c, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	var rows []listedUnit
	// systemd's patterns have more special characters than ours: they match too much here, and are compared again below.
	globs := make([]string, len(open))
	for i, p := range open {
		globs[i] = strings.ReplaceAll(p, "[", "?")
	}
	if err := c.call(ctx, managerInterface+".ListUnitsByPatterns", []string{}, globs).Store(&rows); err != nil {
		return nil, fmt.Errorf("systemd: list units: %w", err)
	}
	for _, r := range rows {
		if slices.ContainsFunc(open, func(p string) bool { return MatchesPattern(p, r.Name) }) {
			units = append(units, r.unit())
		}
	}
	return sortUnits(units), nil
}

// MatchesPattern reports whether a name matches a pattern, in which * stands for any text.
func MatchesPattern(pattern, name string) bool {
	escaped := strings.NewReplacer(`\`, `\\`, `?`, `\?`, `[`, `\[`, "/", "\x00").Replace(pattern)
	ok, err := path.Match(escaped, strings.ReplaceAll(name, "/", "\x00"))
	return ok && err == nil
}

func sortUnits(units []Unit) []Unit {
	slices.SortFunc(units, func(a, b Unit) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(units, func(a, b Unit) bool { return a.Name == b.Name })
}

func (r listedUnit) unit() Unit {
	return Unit{Name: r.Name, LoadState: r.LoadState, ActiveState: r.ActiveState, SubState: r.SubState}
}

func (s *Systemd) named(ctx context.Context, names []string) ([]Unit, error) {
	rows, _, err := s.rows(ctx, names)
	units := make([]Unit, len(rows))
	for i, r := range rows {
		units[i] = r.unit()
	}
	return sortUnits(units), err
}

func (s *Systemd) rows(ctx context.Context, names []string) ([]listedUnit, *busConnection, error) {
	c, err := s.connect(ctx)
	if err != nil || len(names) == 0 {
		return nil, c, err
	}
	var rows []listedUnit
	if err := c.call(ctx, managerInterface+".ListUnitsByNames", names).Store(&rows); err != nil {
		return nil, nil, fmt.Errorf("systemd: list units: %w", err)
	}
	return rows, c, nil
}

// Services are units with how their services ran, in the order of names.
func (s *Systemd) Services(ctx context.Context, names []string) ([]Unit, error) {
	rows, c, err := s.rows(ctx, names)
	if err != nil {
		return nil, err
	}
	units := make([]Unit, len(names))
	for i, n := range names {
		units[i] = Unit{Name: n, LoadState: loadNotFound, ActiveState: "inactive"}
		at := slices.IndexFunc(rows, func(r listedUnit) bool { return r.Name == n })
		if at < 0 {
			continue
		}
		units[i] = rows[at].unit()
		var props map[string]dbus.Variant
		if !units[i].Found() || c.callAt(ctx, rows[at].Path, propertiesInterface+".GetAll", serviceName+".Service").Store(&props) != nil {
			continue // it isn't a service, or is gone
		}
		restarts, _ := props["NRestarts"].Value().(uint32)
		began, _ := props["ExecMainStartTimestampMonotonic"].Value().(uint64)
		pid, _ := props["MainPID"].Value().(uint32)
		units[i].Result, _ = props["Result"].Value().(string)
		units[i].Restarts, units[i].Ran, units[i].MainPID = int(restarts), began > 0, int(pid)
	}
	return units, nil
}
