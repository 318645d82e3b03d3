// Package chaos breaks a running bus under load, round after round, at random places
// and moments, and mends it. At rest it looks at what everybody was promised:
//
//   - what was acknowledged is there, on both sides;
//   - both brokers show the same tree;
//   - on no topic of either broker did a version ever go back;
//   - no device was driven with an older value after a newer one, nor twice with the
//     same, except once more for each kill of its mapper;
//   - nothing is left in an outbox.
//
// A failure prints its seed: -seed (or CHAOS_SEED) repeats the plan of what is broken
// when; what the programs are doing at those moments is theirs. -rounds (or
// CHAOS_ROUNDS) says for how long.
package chaos

import (
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/stand"
)

var (
	seedFlag   = flag.Uint64("seed", number("CHAOS_SEED", 0), "repeats a plan; 0: a new one")
	roundsFlag = flag.Uint64("rounds", number("CHAOS_ROUNDS", 20), "how often to break and mend")
)

func number(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// settleTime is how long it may take until everything is at rest again.
const settleTime = 40 * time.Second

// chaos is a bus that is to be broken.
type chaos struct {
	*stand.Stand
	chance      *rand.Rand
	load        *load
	cloud, node *recorder
	driveLog    string
	mapperEnds  int
}

func TestChaos(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d, %d rounds", seed, *roundsFlag)
	c := begin(t, seed)
	for round := range int(*roundsFlag) {
		plan := c.plan()
		start := time.Now()
		if err := c.round(t, plan); err != nil {
			t.Fatalf("round %d: %v\nwhat was done:\n%s\nrepeat the plan with -seed %d -rounds %d", round, err, plan, seed, round+1)
		}
		t.Logf("round %d: %.1f s, %s: %s", round, time.Since(start).Seconds(), c.load, strings.Join(strings.Split(plan.String(), "\n"), "; "))
	}
}

// begin starts everything and lets the load run for a first time.
func begin(t *testing.T, seed uint64) *chaos {
	t.Helper()
	s := stand.New(t, seed)
	c := &chaos{Stand: s, chance: rand.New(rand.NewPCG(seed, 0)), driveLog: filepath.Join(s.Dir, "drives.jsonl")}
	require.NoError(t, s.Start(t.Context(), "hub", "--log-level", "info"))
	s.Create(things)
	require.NoError(t, s.Start(t.Context(), "core", "--log-level", "info", "--link-keepalive", "1s"))
	require.NoError(t, s.Start(t.Context(), "virtual", "--log-level", "info", "--drive-log", c.driveLog))
	c.cloud, c.node = record(s, s.Hub.MQTT), record(s, s.Core())
	c.load = newLoad(s)
	require.NoError(t, c.load.run(100*time.Millisecond, nil))
	require.NoError(t, c.rest(t), "before anything was broken")
	return c
}

// round lets the load run while the plan is carried out, and looks at what is left.
func (c *chaos) round(t *testing.T, p plan) error {
	if err := c.load.run(0, func() error { return c.carryOut(t, p) }); err != nil {
		return err
	}
	return c.rest(t)
}

// rest waits until everything is as it must be when nothing happens any more, and
// then looks at what must have held all along.
func (c *chaos) rest(t *testing.T) error {
	if err := harness.Eventually(t.Context(), settleTime, c.atRest); err != nil {
		return err
	}
	return c.always()
}
