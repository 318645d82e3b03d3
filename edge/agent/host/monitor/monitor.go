// SPDX-License-Identifier: Apache-2.0

// Package monitor measures a host's processors, memory, file systems and clock, and says when alert rules hold. It only reads /proc,
// statfs and the kernel's clock state; it never changes anything and never runs a program.
//
// A rule holds once the mean over its duration is above its percentage. It stops holding when that mean is five points below the
// percentage, or at half of it if that is nearer: so a usage that stays around the threshold makes one alert, not many.
package monitor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// The states of resources.
const (
	Healthy  = "Healthy"
	Warning  = "Warning"
	Critical = "Critical"
	Unknown  = "Unknown"
)

// Monitor watches the resources that a spec names.
type Monitor struct {
	root string
	now  func() time.Time
	wake chan struct{} // capacity 1: there are other resources to watch

	mu      sync.Mutex
	watched []*watchedResource
	clock   resource.Condition
}

// New makes a Monitor of the host whose root directory is root, / for the own one.
func New(root string, now func() time.Time) *Monitor {
	m := &Monitor{root: root, now: now, wake: make(chan struct{}, 1)}
	m.clock = Clock()
	return m
}

// watchedResource is a resource with what was measured of it.
type watchedResource struct {
	spec     resource.ResourceMonitor
	interval time.Duration
	due      time.Time
	rules    []*alertRule
	busy     cpuTicks // of the processors, at the last measurement
	err      error    // of the last measurement
	measured bool
}

// Watch sets the resources to watch. Measurements are kept for those that stay the same.
func (m *Monitor) Watch(specs []resource.ResourceMonitor) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var next []*watchedResource
	for _, spec := range specs {
		same := func(w *watchedResource) bool { return sameMonitor(w.spec, spec) }
		if i := slices.IndexFunc(m.watched, same); i >= 0 {
			next = append(next, m.watched[i])
			continue
		}
		next = append(next, newWatched(spec, m.now()))
	}
	m.watched = next
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func sameMonitor(a, b resource.ResourceMonitor) bool {
	return a.MonitorType == b.MonitorType && a.SamplingInterval == b.SamplingInterval && a.Path == b.Path && slices.Equal(a.AlertRules, b.AlertRules)
}

func newWatched(spec resource.ResourceMonitor, now time.Time) *watchedResource {
	w := &watchedResource{spec: spec, interval: parseDuration(spec.SamplingInterval), due: now}
	for _, r := range spec.AlertRules {
		w.rules = append(w.rules, newRule(r, w.interval))
	}
	return w
}

// parseDuration parses a duration of a spec. An invalid one is the least that is allowed: the hub has checked it.
func parseDuration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		return time.Second
	}
	return max(d, time.Second)
}

// clockInterval is how often the clock's state is read.
const clockInterval = 30 * time.Second

// Run measures until ctx ends. It calls changed when States or Conditions have something else to say.
func (m *Monitor) Run(ctx context.Context, changed func()) {
	before := m.Conditions()
	for {
		wait := m.Sample()
		if after := m.Conditions(); !slices.Equal(before, after) {
			before = after
			changed()
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-m.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// Sample measures what is due, and says in how long something is due again.
func (m *Monitor) Sample() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clock = Clock()
	now, wait := m.now(), clockInterval
	for _, w := range m.watched {
		if !now.Before(w.due) {
			w.sample(m.root, now)
			w.due = now.Add(w.interval)
		}
		wait = min(wait, w.due.Sub(now))
	}
	return wait
}

func (w *watchedResource) sample(root string, now time.Time) {
	var used float64
	switch w.spec.MonitorType {
	case resource.MonitorCPU:
		var t cpuTicks
		if t, w.err = readCPU(root); w.err != nil {
			break
		}
		before := w.busy
		w.busy = t
		if before.all == 0 || t.all <= before.all { // the first time there is nothing to compare with
			return
		}
		used = t.since(before)
	case resource.MonitorMemory:
		used, w.err = readMemory(root)
	case resource.MonitorDisk:
		used, w.err = diskUsed(filepath.Join(root, w.spec.Path))
	default:
		w.err = fmt.Errorf("monitorType %q is not known to this agent", w.spec.MonitorType)
	}
	if w.err != nil {
		return
	}
	w.measured = true
	for _, r := range w.rules {
		r.add(now, used)
	}
}

// severities are what a rule may have, the worst first.
var severities = []string{resource.SeverityCritical, resource.SeverityWarning, resource.SeverityInfo}

// firing is the worst rule that holds; nil if none does.
func (w *watchedResource) firing() *alertRule {
	var worst *alertRule
	for _, r := range w.rules {
		if r.holds && (worst == nil || slices.Index(severities, r.Severity) < slices.Index(severities, worst.Severity)) {
			worst = r
		}
	}
	return worst
}

// lastEnded is the rule whose alert ended last; nil if none has.
func (w *watchedResource) lastEnded() *alertRule {
	var last *alertRule
	for _, r := range w.rules {
		if !r.ended.IsZero() && (last == nil || r.ended.After(last.ended)) {
			last = r
		}
	}
	return last
}

// condition is how a resource is. Its message has the mean at which the alert began, or the last one ended: the present one would be a
// report with each measurement.
func (w *watchedResource) condition() resource.Condition {
	c := resource.Condition{Type: resource.HealthCondition(w.spec.MonitorType), Status: "True", Reason: Healthy}
	switch r, ended := w.firing(), w.lastEnded(); {
	case w.err != nil:
		c.Status, c.Reason, c.Message = "Unknown", Unknown, w.err.Error()
	case !w.measured:
		c.Status, c.Reason, c.Message = "Unknown", "Measuring", "it was not measured yet"
	case r != nil:
		c.Reason = r.Severity
		if r.Severity != resource.SeverityInfo {
			c.Status = "False"
		}
		c.Message = fmt.Sprintf("the mean over %s is above %v %%: it was %.1f %% when the alert began", r.Duration, r.Percentage, r.mean)
		if r.Description != "" {
			c.Message += ": " + r.Description
		}
	case ended != nil:
		c.Message = fmt.Sprintf("the last alert ended when the mean over %s was %.1f %%", ended.Duration, ended.mean)
	}
	if w.spec.Path != "" && c.Message != "" && w.err == nil {
		c.Message = w.spec.Path + ": " + c.Message
	}
	return c
}

// resourceState is a condition's word for ResourceStatus.
func resourceState(c resource.Condition) string {
	switch c.Reason {
	case Warning, Critical:
		return c.Reason
	case Unknown, "Measuring":
		return Unknown
	}
	return Healthy
}

// conditionRank orders conditions by how bad they are.
func conditionRank(c resource.Condition) int {
	return slices.Index([]string{Healthy, resource.SeverityInfo, "Measuring", Unknown, Warning, Critical}, c.Reason)
}

// Conditions are CPUHealthy, MemoryHealthy and DiskHealthy, as far as they are watched, and ClockSynchronized. Of several monitors of
// one resource the worst counts.
func (m *Monitor) Conditions() []resource.Condition {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := []resource.Condition{m.clock}
	for _, w := range m.watched {
		c := w.condition()
		i := slices.IndexFunc(list, func(o resource.Condition) bool { return o.Type == c.Type })
		if i < 0 {
			list = append(list, c)
		} else if was := conditionRank(list[i]); conditionRank(c) > was || conditionRank(c) == was && list[i].Message == "" {
			list[i] = c
		}
	}
	slices.SortFunc(list, func(a, b resource.Condition) int { return cmp.Compare(a.Type, b.Type) })
	return list
}

// Status says the same in the words of ResourceStatus; nil if nothing is watched.
func Status(conditions []resource.Condition) *resource.ResourceStatus {
	var s resource.ResourceStatus
	for _, c := range conditions {
		switch c.Type {
		case resource.HealthCondition(resource.MonitorCPU):
			s.CPU = resourceState(c)
		case resource.HealthCondition(resource.MonitorMemory):
			s.Memory = resourceState(c)
		case resource.HealthCondition(resource.MonitorDisk):
			s.Disk = resourceState(c)
		}
	}
	if s == (resource.ResourceStatus{}) {
		return nil
	}
	return &s
}

// partsPerRule is into how many parts a rule's duration is divided: the mean is over whole parts, so that what is kept doesn't grow
// with the duration.
const partsPerRule = 60

// alertRule is an alert rule with the measurements of its duration.
type alertRule struct {
	resource.AlertRule
	over  time.Duration
	width time.Duration // of a part
	first time.Time     // of the measurements
	sums  []rulePart    // the oldest first, at most parts
	holds bool
	mean  float64   // when holds last changed
	ended time.Time // when it last ceased to hold
}

type rulePart struct {
	from time.Time
	sum  float64
	n    int
}

func newRule(r resource.AlertRule, interval time.Duration) *alertRule {
	over := parseDuration(r.Duration)
	return &alertRule{AlertRule: r, over: over, width: max(over/partsPerRule, interval)}
}

// add takes a measurement in percent.
func (r *alertRule) add(now time.Time, used float64) {
	if r.first.IsZero() {
		r.first = now
	}
	if n := len(r.sums); n == 0 || now.Sub(r.sums[n-1].from) >= r.width {
		r.sums = append(r.sums, rulePart{from: now})
	}
	last := &r.sums[len(r.sums)-1]
	last.sum, last.n = last.sum+used, last.n+1
	r.sums = slices.DeleteFunc(r.sums, func(p rulePart) bool { return now.Sub(p.from) > r.over })
	var sum float64
	var n int
	for _, p := range r.sums {
		sum, n = sum+p.sum, n+p.n
	}
	mean := sum / float64(max(n, 1))
	switch {
	case r.holds && mean <= max(r.Percentage-5, r.Percentage/2):
		r.holds, r.mean, r.ended = false, mean, now
	case !r.holds && now.Sub(r.first) >= r.over && mean > r.Percentage:
		r.holds, r.mean = true, mean
	}
}

// cpuTime is for how long Exceeded measures the processors.
const cpuTime = 500 * time.Millisecond

// CheckUsage says which of the host's resources is used more now than checks allow. disk is a path on the file system that is meant.
func CheckUsage(ctx context.Context, checks resource.UpgradeChecks, disk string) error {
	for _, c := range []struct {
		name    string
		most    int
		measure func() (float64, error)
	}{
		{"the memory", checks.Memory, func() (float64, error) { return readMemory("/") }},
		{"the disk of " + disk, checks.Disk, func() (float64, error) { return diskUsed(disk) }},
		{"the processors", checks.CPU, func() (float64, error) {
			before, err := readCPU("/")
			if err != nil {
				return 0, err
			}
			if !backoff.Sleep(ctx, cpuTime) {
				return 0, ctx.Err()
			}
			now, err := readCPU("/")
			return now.since(before), err
		}},
	} {
		if c.most == 0 {
			continue
		}
		used, err := c.measure()
		switch {
		case err != nil:
			return fmt.Errorf("how much of %s is used can't be measured: %w", c.name, err)
		case used > float64(c.most):
			return fmt.Errorf("%.0f %% of %s is used, and %d %% are allowed", used, c.name, c.most)
		}
	}
	return nil
}

// cpuTicks are what /proc/stat counts of all processors.
type cpuTicks struct{ idle, all uint64 }

// since is how much of the time since before the processors were busy, in percent.
func (t cpuTicks) since(before cpuTicks) float64 {
	all, idle := t.all-before.all, t.idle-min(t.idle, before.idle) // idle may count back a little
	return 100 * (1 - float64(min(idle, all))/float64(all))
}

var errFormat = errors.New("is in a format that is not known to this agent")

func readCPU(root string) (cpuTicks, error) {
	text, err := os.ReadFile(filepath.Join(root, "/proc/stat"))
	if err != nil {
		return cpuTicks{}, err
	}
	t, err := parseStat(string(text))
	if err != nil {
		return cpuTicks{}, fmt.Errorf("/proc/stat: %w", err)
	}
	return t, nil
}

// parseStat reads the first line of /proc/stat: cpu user nice system idle iowait irq softirq steal guest guest_nice. The last two
// are counted in the first two already.
func parseStat(text string) (cpuTicks, error) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 5 || fields[0] != "cpu" {
		return cpuTicks{}, errFormat
	}
	var t cpuTicks
	for i, f := range fields[1:min(len(fields), 9)] {
		n, err := strconv.ParseUint(f, 10, 60)
		if err != nil {
			return cpuTicks{}, errFormat
		}
		t.all += n
		if i == 3 || i == 4 {
			t.idle += n
		}
	}
	return t, nil
}

func readMemory(root string) (float64, error) {
	text, err := os.ReadFile(filepath.Join(root, "/proc/meminfo"))
	if err != nil {
		return 0, err
	}
	used, err := parseMeminfo(string(text))
	if err != nil {
		return 0, fmt.Errorf("/proc/meminfo: %w", err)
	}
	return used, nil
}

// parseMeminfo is how much of the memory is not available, in percent.
func parseMeminfo(text string) (float64, error) {
	sizes := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, ":")
		if fields := strings.Fields(rest); len(fields) > 0 {
			if n, err := strconv.ParseUint(fields[0], 10, 60); err == nil {
				sizes[name] = n
			}
		}
	}
	total, ok := sizes["MemTotal"]
	available, ok2 := sizes["MemAvailable"]
	if !ok || !ok2 || total == 0 {
		return 0, errFormat
	}
	return 100 * (1 - float64(min(available, total))/float64(total)), nil
}
