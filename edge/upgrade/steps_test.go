// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/configs"
	"github.com/edgebus/edgebus/topics/resource"
)

// Each step and each result of it: the effect, and the step that comes next. What is not in it can't be.
const wantTable = `
Preparing      none       done→BackingUp installer→Installing agent only→Following nothing→Succeeded failed→Unchanged killed→Preparing
Installing     once       done→BackingUp failed→Unchanged killed→Unchanged
BackingUp      repeatable done→Switching command→RunningCommand failed→Unchanged killed→BackingUp
Switching      repeatable done→Starting failed→Reverting killed→Switching
RunningCommand once       done→Starting failed→Reverting killed→Reverting
Starting       repeatable done→Trial failed→Reverting killed→Starting
Trial          none       done→Committing failed→Reverting killed→Starting
Committing     repeatable done→Following killed→Committing
Following      repeatable done→ReplacingAgent failed→Succeeded killed→Following
ReplacingAgent repeatable done→Succeeded replaced→TakingOver failed→Succeeded killed→ReplacingAgent
TakingOver     repeatable done→Succeeded taken over→TakingOver failed→Succeeded killed→ReplacingAgent
Reverting      repeatable done→Restarting failed→Restarting killed→Reverting
Restarting     repeatable done→RolledBack damaged→Restoring failed→RollbackFailed killed→Restarting
Restoring      repeatable done→RolledBack failed→RollbackFailed killed→Restoring
Probation      none       failed→Reverting killed→Probation
Succeeded      repeatable killed→Succeeded
Unchanged      repeatable killed→Unchanged
RolledBack     repeatable killed→RolledBack
RollbackFailed repeatable killed→RollbackFailed
`

var allResults = []stepResult{
	resultDone, resultFailed, resultKilled, resultNothing, resultInstaller, resultCommand, resultAgentOnly, resultReplaced, resultTakenOver,
	resultDamaged, resultEnded, resultAgain, resultReplace,
}

func TestEachResultOfEachStepHasItsNextStep(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(wantTable), "\n")
	require.Len(t, stepTable, len(lines))
	for _, line := range lines {
		fields := strings.Fields(line)
		name, rest := fields[0], strings.Join(fields[2:], " ")
		row, ok := stepTable[name]
		require.True(t, ok, name)
		require.Equal(t, stepEffect(fields[1]), row.effect, name)
		require.NotEmpty(t, row.report, name)
		for _, r := range allResults {
			t.Run(name+" "+string(r), func(t *testing.T) {
				why := failf(resource.UpgradeFailedExited, "it ended")
				change, ok := upgradeRecord{Order: resource.UpgradeOrder{ID: "1", Version: "v2"}, From: "v1", Step: name}.after(r, why)
				_, next, found := strings.Cut(" "+rest, " "+string(r)+"→")
				require.Equal(t, found, ok)
				if !ok {
					return
				}
				next, _, _ = strings.Cut(next, " ")
				s := upgradeState{Version: "v1"}
				change(&s)
				require.Equal(t, next, s.Upgrade.Step)
				require.Contains(t, stepTable, next)
				require.Equal(t, next == stepCommit, s.Version == "v2", "only the commit makes it the node's version")
				require.Equal(t, next == stepSucceeded, s.Upgrade.AgentFailed != nil)
				require.Equal(t, next != stepSucceeded, s.Upgrade.Failed != nil)
			})
		}
	}
}

// What the table says of all steps: a step that is taken once is not taken again, each way ends, and a roll-back can't be stopped by a full disk or by the
// order's time.
func TestTheTableKeepsItsPromises(t *testing.T) {
	back := []string{stepRevert, stepRestart, stepRestore}
	for name, row := range stepTable {
		if row.effect == effectOnce {
			for _, next := range row.next {
				require.NotEqual(t, name, next)
			}
		}
		require.Contains(t, row.next, resultKilled, name)
		require.Equal(t, slices.Contains(back, name), row.urgent, name)
		require.False(t, row.urgent && row.timed, name)
		reached, before := map[string]bool{name: true}, 0
		for len(reached) != before {
			before = len(reached)
			for at := range reached {
				for _, next := range stepTable[at].next {
					reached[next] = true
				}
			}
		}
		require.True(t, reached[stepSucceeded] || reached[stepUnchanged] || reached[stepRolledBack] || name == stepRollbackFailed, name)
		for at := range reached { // nobody comes back to a program that isn't ours
			for r, next := range stepTable[at].next {
				require.False(t, stepTable[next].effect == effectOnce && r == resultKilled, "%s: %s", at, next)
			}
		}
		for r, next := range row.next {
			require.False(t, slices.Contains(back, name) && !slices.Contains(back, next) && next != stepRolledBack && next != stepRollbackFailed, "%s: %s", name, r)
		}
	}
}

// An agent that ends in a step of which nobody knows how far it came: what it goes on with.
func TestWhatAnInterruptedUpgradeGoesOnWith(t *testing.T) {
	for _, c := range []struct {
		step    string
		resumed int
		runsNew bool
		boot    string
		result  stepResult
		reason  string
	}{
		{step: stepInstall, result: resultKilled, reason: resource.UpgradeFailedInterrupted},
		{step: stepCommand, result: resultKilled, reason: resource.UpgradeFailedInterrupted},
		{step: stepTrial, result: resultKilled},
		{step: stepTrial, resumed: maxResumed, result: resultFailed, reason: resource.UpgradeFailedInterrupted},
		{step: stepAgent, resumed: maxResumed, result: resultFailed, reason: resource.UpgradeFailedInterrupted},
		{step: stepRevert, resumed: maxResumed, result: resultKilled},
		{step: stepCommit, resumed: maxResumed, result: resultKilled},
		{step: stepTakeOver, resumed: maxResumed, runsNew: true, result: resultTakenOver},
		{step: stepTakeOver, boot: "1", result: resultFailed, reason: resource.UpgradeFailedAgent},
		{step: stepTakeOver, boot: "2", result: resultKilled},
		{step: "of another version", result: resultFailed, reason: resource.UpgradeFailedInterrupted},
		{step: stepPrepare, result: resultFailed, reason: resource.UpgradeFailedInterrupted}, // written by no agent
		{step: stepProbation, result: resultFailed, reason: resource.UpgradeFailedInterrupted},
	} {
		r, now, why := upgradeRecord{Step: c.step, Resumed: c.resumed, AgentBoot: "1"}.resumed(c.runsNew, c.boot)
		require.Equal(t, c.result, r, "%+v", c)
		_, ok := now.after(r, why)
		require.True(t, ok, "%+v", c)
		var f *Failure
		require.Equal(t, c.reason != "", errors.As(why, &f), "%+v", c)
		if f != nil {
			require.Equal(t, c.reason, f.Reason)
		}
	}
}

// killedHost is a host whose agent is killed at some of the moments that it tells: before each step, before and after each write of its state, and in the
// midst of each command of the node.
type killedHost struct {
	*settingsHost
	kills   []int // at how many moments since the start of the agent; each of them once
	moments int
	ran     map[string]int // how often commands were run for each version
	runs    atomic.Value   // the version that the core was started with
	hub     *fakeHub       // of the core
	last    string         // the result after which it is over
}

func (k *killedHost) moment(string) {
	k.moments++
	if len(k.kills) > 0 && k.moments == k.kills[0] {
		k.kills = k.kills[1:]
		runtime.Goexit() // nothing after this is done
	}
}

// ends has agents carry out an order, one after another while they are killed, and returns whether one was.
func (k *killedHost) ends() (r resource.UpgradeReport, killed bool) {
	for {
		k.moments = 0
		var u *Upgrader
		over := make(chan error, 1)
		go func() {
			defer close(over)
			var err error
			if u, err = New(k.o); err != nil {
				over <- err
				return
			}
			for u.state.Upgrade != nil || u.state.LastOutcome == nil || k.last != "" && u.state.LastOutcome.Result != k.last {
				again, err := u.do(k.t.Context())
				if err != nil {
					over <- err
					return
				}
				if k.last != "" && u.state.LastOutcome != nil {
					k.hub.lost.Store(true)
					<-time.After(again)
				}
			}
			over <- nil
		}()
		if err, ended := <-over; ended {
			require.NoError(k.t, err)
			return u.Report(), killed
		}
		killed = true
	}
}

func newKilledHost(t *testing.T, scenario string, kills ...int) *killedHost {
	t.Helper()
	k := &killedHost{kills: kills, ran: map[string]int{}, hub: newFakeHub(t)}
	h := newTestHostWith(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"version":%q,"links":[%s]}`, k.runs.Load(), k.hub.link())
	}))
	k.settingsHost = &settingsHost{testHost: h, file: filepath.Join(filepath.Dir(h.o.Dir), "core.yaml")}
	require.NoError(t, os.WriteFile(k.file, []byte(coreSettings), 0o600))
	program := versionDir{h.o.Config.Dir}
	require.NoError(t, os.WriteFile(filepath.Join(program.path("v1.0.0"), programCore), []byte("#!/bin/sh\n"), 0o755))
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	core, err := os.ReadFile(sleep)
	require.NoError(t, err)
	order := newOrderAuthor(h).order("v1.1.0", core)
	what, how, _ := strings.Cut(scenario, " ")
	switch what {
	case "settings":
		order = resource.UpgradeOrder{ID: "1", Settings: map[string]string{"log.level": "debug"}, Timeout: 3600}
	case "installer":
		order.Installer = []string{"installer"}
	case "command":
		h.install("v1.1.0")
		order.Command = []string{"command"}
	}
	if how == "loses the hub" {
		h.o.Config.Probation = configs.AgentProbation{Time: time.Hour, Away: 50 * time.Millisecond}
		k.last = resource.UpgradeRolledBack
	}
	h.o.Config.Trial.Timeout = time.Minute
	h.o.Config.Core.Config, h.o.Config.Settings = k.file, []string{"log.*"}
	h.o.Order = func() (*resource.UpgradeOrder, error) { return &order, nil }
	h.o.Allows = func([]string) error { return nil }
	h.o.Blob = func(context.Context, resource.Content, func(int64)) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(core)), nil
	}
	h.o.Run = func(_ context.Context, argv, env []string) error {
		version := strings.TrimPrefix(env[2], "EDGEBUS_UPGRADE_VERSION=")
		k.moment("before a command")
		k.ran[argv[0]+" "+version]++
		var err error
		if argv[0] == "command" {
			err = program.link(linkCurrent, version)
		}
		k.moment("after a command")
		if how == "fails" && version == "v1.1.0" {
			return errors.New("exit status 1")
		}
		return err
	}
	h.s.onStart = func() error {
		version := program.linked(linkCurrent)
		k.runs.Store(version)
		if how == "is bad" && (version == "v1.1.0" || strings.Contains(k.text(), "debug")) {
			return os.ErrInvalid
		}
		return nil
	}
	require.NoError(t, h.s.Restart(t.Context()))
	k.o.BeforeStep = k.moment
	return k
}

// check is what holds of a host when an order is over, whatever happened meanwhile.
func (k *killedHost) check(scenario string, r resource.UpgradeReport, killed bool) {
	t := k.t
	t.Helper()
	about := fmt.Sprintf("%+v; commands: %v", r, k.ran)
	what, how, _ := strings.Cut(scenario, " ")
	good := r.Result == resource.UpgradeSuccess
	switch {
	case how == "works" && !killed:
		require.True(t, good, about)
	case how == "works" && (what == "version" || what == "settings") && len(k.kills) == 0:
		require.True(t, good || r.Reason == resource.UpgradeFailedInterrupted, about)
	case how != "works":
		require.False(t, good, about)
	}
	require.Contains(t, []string{resource.UpgradeSuccess, resource.UpgradeRolledBack}, r.Result, about)
	require.LessOrEqual(t, k.ran["installer v1.1.0"], 1, about)
	require.LessOrEqual(t, k.ran["command v1.1.0"], 1, about)
	version := "v1.0.0"
	if good && what != "settings" {
		version = "v1.1.0"
	}
	require.Equal(t, version, r.Version, about)
	require.Equal(t, version, versionDir{k.o.Config.Dir}.linked(linkCurrent), about)
	require.Equal(t, version, k.runs.Load(), about)
	require.Equal(t, good && what == "settings", strings.Contains(k.text(), "debug"), about)
	require.NotNil(t, k.s.cmd, "the core runs")
}

var killScenarios = []string{
	"version works", "version is bad", "settings works", "settings is bad", "installer works", "installer fails", "command works", "command fails", "command is bad",
	"version loses the hub", "settings loses the hub",
}

// The agent is killed at each moment, and goes on from its record: the order ends, the core that runs is the one that the outcome says, and a program that is to
// be run once is not run twice.
func TestAKilledAgentGoesOnFromItsRecord(t *testing.T) {
	for _, scenario := range killScenarios {
		t.Run(scenario, func(t *testing.T) {
			t.Parallel()
			for at := 1; ; at++ {
				k := newKilledHost(t, scenario, at)
				r, killed := k.ends()
				k.check(scenario, r, killed)
				if !killed {
					require.Greater(t, at, 10)
					return
				}
			}
		})
	}
}

// The same, killed again soon after it has gone on.
func TestAnAgentThatIsKilledAgainAndAgainGoesOnFromItsRecord(t *testing.T) {
	for _, scenario := range killScenarios {
		t.Run(scenario, func(t *testing.T) {
			t.Parallel()
			for at := 4; ; at += 9 {
				k := newKilledHost(t, scenario, at, 2, 5, 3, 1+at%4)
				r, killed := k.ends()
				k.check(scenario, r, killed)
				if !killed {
					return
				}
			}
		})
	}
}
