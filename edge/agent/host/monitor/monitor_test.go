// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/edgebus/edgebus/topics/resource"
)

func putFile(t *testing.T, root, path, text string) {
	t.Helper()
	path = filepath.Join(root, path)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func putMeminfo(t *testing.T, root string, available int) {
	putFile(t, root, "/proc/meminfo", fmt.Sprintf("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: %d kB\n", available))
}

// A memory alert comes after the duration, not before; it stays within five points of the threshold, and goes below that.
func TestAnAlertHasDurationAndHysteresis(t *testing.T) {
	root, now := t.TempDir(), time.Now()
	m := New(root, func() time.Time { return now })
	m.Watch([]resource.ResourceMonitor{{MonitorType: "Memory", SamplingInterval: "10s", AlertRules: []resource.AlertRule{
		{Severity: "Warning", Percentage: 80, Duration: "1m", Description: "memory is short"},
		{Severity: "Critical", Percentage: 95, Duration: "30s"},
	}}})
	require.Equal(t, "Measuring", resource.ConditionOf(m.Conditions(), "MemoryHealthy").Reason)
	pass := func(d time.Duration, available int) string {
		putMeminfo(t, root, available)
		for end := now.Add(d); now.Before(end); now = now.Add(10 * time.Second) {
			require.LessOrEqual(t, m.Sample(), 10*time.Second)
		}
		m.Sample()
		return Status(m.Conditions()).Memory
	}
	require.Equal(t, Healthy, pass(50*time.Second, 100), "90 %, but not for a minute")
	require.Equal(t, Warning, pass(20*time.Second, 100))
	c := resource.ConditionOf(m.Conditions(), "MemoryHealthy")
	require.Equal(t, "False", c.Status)
	require.Equal(t, "the mean over 1m is above 80 %: it was 90.0 % when the alert began: memory is short", c.Message)
	require.Equal(t, Critical, pass(time.Minute, 10), "99 %")
	require.Equal(t, Warning, pass(2*time.Minute, 230), "77 %: no alert comes, and none goes")
	require.Equal(t, Healthy, pass(2*time.Minute, 260), "74 %")
	c = resource.ConditionOf(m.Conditions(), "MemoryHealthy")
	require.Equal(t, "True", c.Status)
	require.Regexp(t, `^the last alert ended when the mean over 1m was 7[45]\.\d %$`, c.Message)
	require.Equal(t, Healthy, pass(2*time.Minute, 230), "77 % again")
}

func TestTheProcessorsAreMeasuredBetweenTwoSamples(t *testing.T) {
	root, now := t.TempDir(), time.Now()
	m := New(root, func() time.Time { return now })
	m.Watch([]resource.ResourceMonitor{{MonitorType: "CPU", SamplingInterval: "1s", AlertRules: []resource.AlertRule{{Severity: "Critical", Percentage: 50, Duration: "2s"}}}})
	for i := range 5 {
		putFile(t, root, "/proc/stat", fmt.Sprintf("cpu  %d 0 0 %d 0 0 0 0 0 0\ncpu0 1 2\n", i*90, i*10))
		m.Sample()
		now = now.Add(time.Second)
	}
	require.Equal(t, Critical, Status(m.Conditions()).CPU)
	putFile(t, root, "/proc/stat", "nothing\n")
	m.Sample()
	c := resource.ConditionOf(m.Conditions(), "CPUHealthy")
	require.Equal(t, Unknown, c.Reason)
	require.Contains(t, c.Message, "/proc/stat")
}

// Of several file systems the worst is the host's state. What a directory's file system has comes from the kernel.
func TestDisks(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "data"), 0o700))
	now := time.Now()
	m := New(root, func() time.Time { return now })
	rule := []resource.AlertRule{{Severity: "Warning", Percentage: 0, Duration: "1s"}}
	m.Watch([]resource.ResourceMonitor{
		{MonitorType: "Disk", SamplingInterval: "1s", Path: "/data", AlertRules: rule},
		{MonitorType: "Disk", SamplingInterval: "1s", Path: "/", AlertRules: []resource.AlertRule{{Severity: "Info", Percentage: 100, Duration: "1s"}}},
	})
	m.Sample()
	now = now.Add(time.Second)
	m.Sample()
	require.Equal(t, Warning, Status(m.Conditions()).Disk)
	require.Regexp(t, `^/data: the mean over 1s is above 0 %: it was [\d.]+ % when the alert began$`, resource.ConditionOf(m.Conditions(), "DiskHealthy").Message)
	m.Watch([]resource.ResourceMonitor{{MonitorType: "Disk", SamplingInterval: "1s", Path: "/missing"}})
	m.Sample()
	require.Equal(t, Unknown, Status(m.Conditions()).Disk)
	m.Watch(nil)
	require.Nil(t, Status(m.Conditions()))
}

// Another spec keeps what was measured for the monitors that it has as well.
func TestWatchKeepsWhatIsTheSame(t *testing.T) {
	root, now := t.TempDir(), time.Now()
	putMeminfo(t, root, 1)
	m := New(root, func() time.Time { return now })
	spec := resource.ResourceMonitor{MonitorType: "Memory", SamplingInterval: "1s", AlertRules: []resource.AlertRule{{Severity: "Warning", Percentage: 50, Duration: "1s"}}}
	m.Watch([]resource.ResourceMonitor{spec})
	m.Sample()
	now = now.Add(time.Second)
	m.Sample()
	require.Equal(t, Warning, Status(m.Conditions()).Memory)
	m.Watch([]resource.ResourceMonitor{{MonitorType: "CPU", SamplingInterval: "1s"}, spec})
	require.Equal(t, Warning, Status(m.Conditions()).Memory)
}

func TestRunSaysWhenSomethingChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		putMeminfo(t, root, 1)
		m := New(root, time.Now)
		ctx := t.Context()
		changed := make(chan struct{}, 10)
		go m.Run(ctx, func() { changed <- struct{}{} })
		m.Watch([]resource.ResourceMonitor{{MonitorType: "Memory", SamplingInterval: "1s", AlertRules: []resource.AlertRule{{Severity: "Critical", Percentage: 50, Duration: "1m"}}}})
		start := time.Now()
		for Status(m.Conditions()) == nil || Status(m.Conditions()).Memory != Critical {
			<-changed
		}
		require.GreaterOrEqual(t, time.Since(start), time.Minute)
	})
}

// Whatever is measured: a rule that holds has been above its threshold, and what is kept is bounded.
func TestRulesOfAnySamples(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		percentage := float64(rapid.IntRange(0, 100).Draw(t, "percentage"))
		interval := time.Duration(rapid.IntRange(1, 100).Draw(t, "interval")) * time.Second
		r := newRule(resource.AlertRule{Percentage: percentage, Duration: "10m"}, interval)
		now, exceeded := time.Unix(0, 0), false
		for _, used := range rapid.SliceOfN(rapid.Float64Range(0, 100), 1, 300).Draw(t, "used") {
			r.add(now, used)
			now = now.Add(interval)
			exceeded = exceeded || used > percentage
			if r.holds && !exceeded {
				t.Fatalf("holds, though nothing was above %v", percentage)
			}
			if len(r.sums) > partsPerRule+1 {
				t.Fatalf("%d parts", len(r.sums))
			}
		}
	})
}

func FuzzProc(f *testing.F) {
	f.Add("cpu  1 2 3 4 5 6 7 8 9 10\n", "MemTotal: 10 kB\nMemAvailable: 5 kB\n")
	f.Add("cpu 18446744073709551615 1 1 1", "MemTotal: 1\nMemAvailable: 99999999999999999999")
	f.Fuzz(func(t *testing.T, stat, mem string) {
		if ticks, err := parseStat(stat); err == nil && ticks.idle > ticks.all {
			t.Fatalf("%+v", ticks)
		}
		if used, err := parseMeminfo(mem); err == nil && (used < 0 || used > 100) {
			t.Fatalf("%v %%", used)
		}
	})
}
