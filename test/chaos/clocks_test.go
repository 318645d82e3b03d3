// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
	"github.com/edgebus/edgebus/topics/resource"
)

// clockFiles are the files with the seconds by which programs' wall clocks are ahead, by program.
type clockFiles map[string]*os.File

// nodePrograms are the programs of n1, which have one clock.
var nodePrograms = []string{"core", "virtual"}

// set sets the clocks of programs to the right time and so much.
func (c clockFiles) set(ahead time.Duration, programs ...string) error {
	for _, name := range programs {
		seconds := binary.NativeEndian.AppendUint64(nil, uint64(int64(ahead/time.Second)))
		if _, err := c[name].WriteAt(seconds, 0); err != nil {
			return err
		}
	}
	return nil
}

// TestClocks is TestChaos with wall clocks that are set, of the hub and of the node, forth and back by seconds to a year, while
// everything else goes wrong. Nothing that was promised depends on them; what does (docs/running.md), does as it says.
func TestClocks(t *testing.T) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("programs have clocks of their own on linux/amd64 only")
	}
	s, seed := newStand(t)
	clocks := ownClocks(t, s)
	c := startChaos(t, s, seed, nil)
	c.clocks = clocks
	c.rounds(t, seed, *clocksFlag, (*chaosRun).planClocks)
	c.setRight(t)
	require.NoError(t, c.load.run(100*time.Millisecond, nil))
	require.NoError(t, c.rest(t), "with right clocks")
	for _, address := range []string{s.Hub.HTTP, s.Node("n1").HTTP} {
		_, err := harness.Call(t.Context(), http.MethodGet, "http://"+address+"/readyz", nil)
		require.NoError(t, err)
	}
	for name, rule := range map[string]func(*testing.T){
		"an override ends by the node's clock":            c.anOverrideEndsByTheNodesClock,
		"a value is applied until the node's clock says":  c.aValueIsAppliedUntilTheNodesClockSays,
		"a report comes when the clocks agree":            c.aReportComesWhenTheClocksAgree,
		"a session ends by the clock over a restart only": c.aSessionEndsByTheClockOverARestartOnly,
	} {
		c.setRight(t)
		require.True(t, t.Run(name, rule))
	}
	c.setRight(t)
	require.NoError(t, c.rest(t), "with right clocks, at the end")
}

// ownClocks builds hub, core and mapper with wall clocks of their own, and has the stand start these.
func ownClocks(t *testing.T, s *stand.Stand) clockFiles {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	bin := t.TempDir()
	replace := map[string]string{}
	packages := []string{"./cloud/cmd/cloudhub", "./edge/cmd/edgecore", "./mappers/cmd/mapper-virtual"}
	for _, pkg := range packages {
		for name, text := range map[string]string{"clock.go": "clock.go.txt", "clock_amd64.s": "clock_amd64.s"} {
			replace[filepath.Join(root, pkg, name)] = filepath.Join(root, "test", "chaos", "testdata", "clock", text)
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	overlay := filepath.Join(bin, "overlay.json")
	require.NoError(t, os.WriteFile(overlay, text, 0o600))
	build := exec.Command("go", append([]string{"build", "-trimpath", "-ldflags", "-s -w", "-overlay", overlay, "-o", bin + "/"}, packages...)...)
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	s.Bin = bin
	all := clockFiles{}
	for _, name := range faultPrograms {
		file := filepath.Join(s.Dir, name+".clock")
		require.NoError(t, os.WriteFile(file, make([]byte, 8), 0o600))
		all[name], err = os.OpenFile(file, os.O_WRONLY, 0)
		require.NoError(t, err)
		t.Cleanup(func() { _ = all[name].Close() })
		s.Wrap(name, "env", "STEPPED_CLOCK="+file)
	}
	return all
}

func (c *chaosRun) setRight(t *testing.T) {
	t.Helper()
	require.NoError(t, c.clocks.set(0, faultPrograms...))
}

// planClocks draws a round's events: those of any round, and what the clocks are set to meanwhile.
func (c *chaosRun) planClocks() faultPlan {
	p := c.plan()
	for _, whom := range [][]string{{"hub"}, nodePrograms} {
		for range c.chance.IntN(3) {
			most := []time.Duration{0, time.Minute, time.Hour, 48 * time.Hour, 366 * 24 * time.Hour}[c.chance.IntN(5)]
			ahead := time.Duration(c.chance.Int64N(2*int64(most)+1)) - most
			after := time.Duration(c.chance.IntN(700)) * time.Millisecond
			p = append(p, faultEvent{after: after, what: "clock", whom: whom, ahead: ahead.Truncate(time.Second)})
		}
	}
	return p
}

// show waits until hub and node are in step, and one of them shows a value on a topic of the bell; "": none.
func (c *chaosRun) show(t *testing.T, r *recorder, topic, want string, within time.Duration) {
	t.Helper()
	require.NoError(t, harness.Eventually(t.Context(), within, func(context.Context) error {
		if err := c.CheckWhole(c.cloud.Watcher, c.node.Watcher); err != nil {
			return err
		}
		m, _ := r.Get(devicesPrefix + "bell/" + topic)
		if got := string(m.Payload); (got == "") != (want == "") || !strings.Contains(got, want) {
			return fmt.Errorf("%s: %s is %q, not %q", r.broker, topic, got, want)
		}
		return nil
	}))
}

// ring publishes a value of the bell, which nobody else does.
func (c *chaosRun) ring(t *testing.T, broker, topic, value string, user ...client.UserProperty) {
	t.Helper()
	require.NoError(t, c.Publish(c.Client(broker, nil), devicesPrefix+"bell/"+topic, value, user...))
}

// inAnHour is a property with the right time in an hour.
func inAnHour(name string) client.UserProperty {
	return client.UserProperty{Key: name, Value: resource.FormatTime(time.Now().Add(time.Hour))}
}

func (c *chaosRun) anOverrideEndsByTheNodesClock(t *testing.T) {
	c.ring(t, c.Core(), "desired/e", "held", inAnHour("until"))
	c.show(t, c.cloud, "override/e", "held", settleTime)

	require.NoError(t, c.clocks.set(366*24*time.Hour, "hub"))
	require.NoError(t, c.clocks.set(-24*time.Hour, nodePrograms...))
	for _, name := range brokerSides { // which look at everything again when they start
		require.NoError(t, errors.Join(c.Crash(name), c.Start(t.Context(), name)))
	}
	c.show(t, c.cloud, "override/e", "held", settleTime)
	c.show(t, c.node, "desired/e", "held", settleTime)

	require.NoError(t, c.clocks.set(2*time.Hour, nodePrograms...))
	c.show(t, c.node, "desired/e", "", 20*time.Second) // 15 are promised
	c.show(t, c.cloud, "override/e", "", settleTime)
}

func (c *chaosRun) aValueIsAppliedUntilTheNodesClockSays(t *testing.T) {
	require.NoError(t, c.clocks.set(2*time.Hour, nodePrograms...))
	c.ring(t, c.Hub.MQTT, "desired/b", "late", inAnHour("validUntil"))
	c.show(t, c.cloud, "refused/b", "Expired", settleTime)

	c.setRight(t)
	require.NoError(t, c.clocks.set(2*time.Hour, "hub"))
	c.ring(t, c.Hub.MQTT, "desired/b", "in time", inAnHour("validUntil"))
	c.show(t, c.cloud, "reported/b", "in time", settleTime)
}

func (c *chaosRun) aReportComesWhenTheClocksAgree(t *testing.T) {
	require.NoError(t, c.clocks.set(-time.Hour, "core"))
	c.ring(t, c.Hub.MQTT, "desired/a", "early")
	c.show(t, c.cloud, "problem/a", "ClockAhead", settleTime)
	c.setRight(t)
	c.show(t, c.cloud, "reported/a", "early", settleTime) // 30 s are promised
	c.show(t, c.cloud, "problem/a", "", settleTime)
}

func (c *chaosRun) aSessionEndsByTheClockOverARestartOnly(t *testing.T) {
	const year = 366 * 24 * time.Hour
	require.False(t, c.sessionPresent(t), "it is new")
	require.NoError(t, c.clocks.set(year, "hub"))
	require.True(t, c.sessionPresent(t), "the hub has run all the time")
	require.NoError(t, c.Crash("hub"))
	c.setRight(t)
	require.NoError(t, c.Start(t.Context(), "hub"))
	require.True(t, c.sessionPresent(t), "a clock that was set back takes no time from it")
	require.NoError(t, c.clocks.set(-72*time.Hour, "hub"))
	require.True(t, c.sessionPresent(t), "the hub has run all the time")
	require.NoError(t, c.Term("hub"))
	c.setRight(t)
	require.NoError(t, c.Start(t.Context(), "hub"))
	require.True(t, c.sessionPresent(t), "it was left a moment ago, whatever the clock said then")
	require.NoError(t, c.Term("hub"))
	require.NoError(t, c.clocks.set(2*time.Hour, "hub"))
	require.NoError(t, c.Start(t.Context(), "hub"))
	require.False(t, c.sessionPresent(t), "by its clock the hub was away for two hours")
}

// sessionPresent connects to the hub with a session that is kept for an hour, and disconnects.
func (c *chaosRun) sessionPresent(t *testing.T) bool {
	t.Helper()
	found := make(chan bool, 1)
	o := client.Options{
		Servers: []string{"mqtt://" + c.Hub.MQTT}, ClientID: "an-hour", SessionExpiry: time.Hour,
		OnConnect: func(_ context.Context, present bool) error {
			found <- present
			return nil
		},
	}
	session, err := client.New(o)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- session.Run(ctx) }()
	defer func() {
		stop()
		require.NoError(t, <-ended)
	}()
	select {
	case present := <-found:
		return present
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(stand.WaitTimeout):
		require.Fail(t, "no connection")
	}
	return false
}
