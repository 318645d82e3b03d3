// SPDX-License-Identifier: Apache-2.0

// Package chaos breaks a running bus under load, round after round, at random places
// and moments, and mends it. At rest it looks at what everybody was promised:
//
//   - what was acknowledged is there, on both sides;
//   - both brokers show the same tree;
//   - on no topic of either broker did a version ever go back;
//   - no device was driven with an older value after a newer one, nor twice with the
//     same, except once more for each kill of its mapper;
//   - nothing is left in an outbox;
//   - what was published at QoS 1 and 2 for durable sessions, online or not, has
//     arrived, in order, and at QoS 2 once;
//   - telemetry that the node's broker acknowledged has arrived at durable sessions of the
//     hub, what is new of it in order;
//   - retained messages of users' own topics are as they were left;
//   - no command was executed twice, or although its answer says that it wasn't; each had
//     one answer, unless the connection of who asked was lost.
//
// The end prints its seed: -seed (or SEED) repeats the plan of what is broken when;
// what the programs are doing at those moments is theirs. -rounds (or ROUNDS) says
// for how long, -clock-rounds (or CLOCK_ROUNDS) for TestClocks.
package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/disk"
	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
)

var (
	seedFlag   = flag.Uint64("seed", envNumber("SEED", 0), "repeats a plan; 0: a new one")
	roundsFlag = flag.Uint64("rounds", envNumber("ROUNDS", 20), "how often to break and mend")
	clocksFlag = flag.Uint64("clock-rounds", envNumber("CLOCK_ROUNDS", 10), "the same with clocks that are set")
)

func envNumber(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == syncsSkipped {
		fmt.Fprintln(os.Stderr, withoutSync(os.Args[2:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// settleTime is how long it may take until everything is at rest again.
const settleTime = 40 * time.Second

// chaosRun is a bus that is to be broken.
type chaosRun struct {
	*stand.Stand
	chance      *rand.Rand
	load        *writeLoad
	cloud, node *recorder
	driveLog    string
	mapperEnds  int
	disks       map[string]*disk.Disk // of hub and core; none: they share the test's
	clocks      clockFiles            // of programs that have their own; none: they have the machine's
	broken      map[string]int        // how often what was done
}

func TestChaos(t *testing.T) {
	s, seed := newStand(t)
	startChaos(t, s, seed, nil).rounds(t, seed, *roundsFlag, (*chaosRun).plan)
}

func newStand(t *testing.T) (*stand.Stand, uint64) {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	return stand.New(t, seed), seed
}

// rounds breaks and mends as often as is wanted, and sums up.
func (c *chaosRun) rounds(t *testing.T, seed, rounds uint64, draw func(*chaosRun) faultPlan) {
	t.Helper()
	began, done := time.Now(), uint64(0)
	defer func() {
		verdict := "clean"
		if t.Failed() {
			verdict = "FAILED"
		}
		summary := fmt.Sprintf("%s: %s: seed %d, %d of %d rounds in %s; %s; %s", t.Name(), verdict, seed, done, rounds,
			time.Since(began).Round(time.Second), c.load, formatCounts(c.broken))
		t.Log(summary)
		appendSummary(t, summary)
	}()
	for ; done < rounds; done++ {
		p := draw(c)
		start := time.Now()
		if err := c.round(t, p); err != nil {
			t.Fatalf("round %d: %v\nwhat was done:\n%s\nrepeat the plan with -seed %d and %d rounds", done, err, p, seed, done+1)
		}
		t.Logf("round %d: %.1f s, %s: %s", done, time.Since(start).Seconds(), c.load, strings.Join(strings.Split(p.String(), "\n"), "; "))
		for _, e := range p {
			c.broken[e.what+" "+strings.TrimSpace(strings.Join(slices.Sorted(slices.Values(e.whom)), "+")+e.cut)]++
		}
	}
}

func formatCounts(of map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		parts = append(parts, fmt.Sprintf("%d × %s", of[name], strings.TrimSpace(name)))
	}
	return strings.Join(parts, ", ")
}

// appendSummary adds a line to the file that CHAOS_SUMMARY names, which make shows at the end.
func appendSummary(t *testing.T, line string) {
	t.Helper()
	name := os.Getenv("CHAOS_SUMMARY")
	if name == "" {
		return
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	require.NoError(t, err)
	_, err = fmt.Fprintln(f, line)
	require.NoError(t, errors.Join(err, f.Close()))
}

// startChaos starts everything and lets the load run for a first time.
func startChaos(t *testing.T, s *stand.Stand, seed uint64, disks map[string]*disk.Disk) *chaosRun {
	t.Helper()
	c := &chaosRun{
		Stand: s, chance: rand.New(rand.NewPCG(seed, 0)), driveLog: filepath.Join(s.Dir, "drives.jsonl"),
		disks: disks, broken: map[string]int{},
	}
	require.NoError(t, s.Start(t.Context(), "hub", c.on("hub")...))
	s.Create(deviceObjects)
	require.NoError(t, s.Start(t.Context(), "core", append(c.on("core"), "--link-keepalive", "1s")...))
	require.NoError(t, s.Start(t.Context(), "virtual", "--log-level", "info", "--drive-log", c.driveLog))
	c.cloud, c.node = startRecorder(s, s.Hub.MQTT), startRecorder(s, s.Core())
	c.load = newLoad(s)
	require.NoError(t, c.rest(t), "before there was a load")
	require.NoError(t, c.load.run(100*time.Millisecond, nil))
	require.NoError(t, c.rest(t), "before anything was broken")
	return c
}

// longestExpiry is how long sessions and telemetry are kept: longer than any clock is set by, for a time in which
// a program was stopped counts by the clock.
const longestExpiry = 10 * 366 * 24 * time.Hour

// on gives a program its arguments: where its disk is, if it has one of its own.
func (c *chaosRun) on(name string) []string {
	// A quick machine posts more in an outage than a session may hold by default, and beyond that it goes without.
	args := []string{"--log-level", "info", "--limits-session-bytes", "1GiB", "--limits-session-all", "8GiB", "--limits-session-expiry", longestExpiry.String()}
	if name == "core" {
		args = append(args, "--limits-streams-age", longestExpiry.String())
	}
	if d := c.disks[name]; d != nil {
		args = append(args, "--data-dir", filepath.Join(d.Dir, "data"))
	}
	return args
}

// round lets the load run while the plan is carried out, and looks at what is left.
func (c *chaosRun) round(t *testing.T, p faultPlan) error {
	if err := c.load.run(0, func() error { return c.carryOut(t, p) }); err != nil {
		return err
	}
	return c.rest(t)
}

// rest waits until everything is as it must be when nothing happens any more, and
// then looks at what must have held all along.
func (c *chaosRun) rest(t *testing.T) error { return c.judge(t, settleTime) }

func (c *chaosRun) judge(t *testing.T, within time.Duration) error {
	for _, check := range []func(context.Context) error{c.atRest, c.boards} {
		if err := harness.Eventually(t.Context(), within, check); err != nil {
			return err
		}
	}
	for _, p := range c.load.posts {
		if err := p.check(t.Context(), within); err != nil {
			return err
		}
	}
	return c.always()
}
