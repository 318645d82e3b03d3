// Package chaos breaks a running bus at random, round after round, and wants three
// things every time: nothing acknowledged is lost, nothing goes back to an older
// value, and at rest both sides are the same.
//
// CHAOS_ROUNDS sets how many rounds, CHAOS_SEED repeats those of a failure.
package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/faults"
	"github.com/edgebus/edgebus/test/harness"
)

const (
	shortRounds = 3 // without CHAOS_ROUNDS
	settle      = 45 * time.Second
)

// devices: one that the virtual mapper drives, and one whose mapper is the test.
const devices = `
apiVersion: edgebus.io/v1alpha1
kind: DeviceModel
metadata: {name: counter}
spec:
  properties:
    - {name: level, type: int, accessMode: ReadWrite}
    - {name: count, type: int, accessMode: ReadOnly}
  propertyVisitors:
    - protocol: virtual
      visitors: [{propertyName: level, config: {initial: "0"}}]
---
apiVersion: edgebus.io/v1alpha1
kind: Device
metadata: {name: driven}
spec: {deviceModelRef: {name: counter}, nodeName: n1, protocol: {type: virtual}}
---
apiVersion: edgebus.io/v1alpha1
kind: Device
metadata: {name: meter}
spec: {deviceModelRef: {name: counter}, nodeName: n1, protocol: {type: by-hand}}
`

func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, name)
	return n
}

func TestChaos(t *testing.T) {
	if missing := harness.Missing("mosquitto_sub"); len(missing) > 0 {
		require.Empty(t, os.Getenv("CI"), "missing: %v", missing)
		t.Skip("mosquitto_sub is missing; `make needs` installs it")
	}
	seed := number(t, "CHAOS_SEED", uint64(time.Now().UnixNano()))
	rounds := number(t, "CHAOS_ROUNDS", shortRounds)
	t.Logf("CHAOS_SEED=%d", seed)
	w, err := harness.NewWorld(t.TempDir(), seed)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.Logs(60))
		}
		w.Close()
	})
	ctx := t.Context()
	require.NoError(t, w.Start(ctx, "hub"))
	require.NoError(t, w.Apply(ctx, []byte(devices)))
	require.NoError(t, w.Start(ctx, "core"))
	drives := filepath.Join(w.Dir, "drives.jsonl")
	require.NoError(t, w.Start(ctx, "virtual", "--drive-log", drives))
	require.NoError(t, harness.Await(ctx, w.Hub.MQTT, "v1/nodes/n1/devices/driven/state", "online", settle))

	c := &chaos{World: w, drives: drives, chance: rand.New(rand.NewPCG(seed, 1))}
	c.level = &writer{broker: w.Hub.MQTT, topic: "v1/nodes/n1/devices/driven/desired/level"}
	c.count = &writer{broker: w.Node("n1").MQTT, topic: "v1/nodes/n1/devices/meter/reported/count"}
	for round := range rounds {
		name := fmt.Sprintf("%03d", round)
		if !t.Run(name, c.round) {
			t.Fatalf("round %s failed; CHAOS_SEED=%d CHAOS_ROUNDS=%d repeats its faults", name, seed, round+1)
		}
	}
}

type chaos struct {
	*harness.World
	chance       *rand.Rand
	level, count *writer
	drives       string // the mapper's log of what it wrote to the device
	kills        int    // of the mapper
}

// round writes on both sides while things break, mends them, and looks.
func (c *chaos) round(t *testing.T) {
	writing, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	writers.Go(func() { c.level.run(writing) })
	writers.Go(func() { c.count.run(writing) })
	for range 1 + c.chance.IntN(3) {
		t.Log(c.disturb(t))
		pause(t.Context(), time.Duration(c.chance.IntN(1500))*time.Millisecond)
	}
	stop()
	writers.Wait()
	c.mend(t)
	t.Logf("level %s, count %s", c.level, c.count)
	require.NoError(t, harness.Eventually(t.Context(), settle, func(ctx context.Context) error { return c.look(ctx) }))
	require.Empty(t, c.Died(), "ended by themselves")
	c.checkDrives(t)
}

// checkDrives wants the device to have been driven forwards only, and once for each
// version, but for one that was under way when the mapper was killed.
func (c *chaos) checkDrives(t *testing.T) {
	t.Helper()
	file, err := os.Open(c.drives)
	require.NoError(t, err)
	defer file.Close()
	var lastVer, again uint64
	lastValue := -1
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var drive struct {
			Value string
			Ver   uint64
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &drive), lines.Text())
		value, err := strconv.Atoi(drive.Value)
		require.NoError(t, err)
		require.GreaterOrEqual(t, drive.Ver, lastVer, "driven with an older version")
		require.GreaterOrEqual(t, value, lastValue, "driven with an older value")
		if drive.Ver == lastVer {
			again++
		}
		lastVer, lastValue = drive.Ver, value
	}
	require.LessOrEqual(t, again, uint64(c.kills), "driven again without a kill of the mapper")
}

// crash kills a program.
func (c *chaos) crash(t *testing.T, name string) {
	t.Helper()
	if name == "virtual" && c.Running(name) {
		c.kills++
	}
	require.NoError(t, c.Crash(name))
}

// pause lets a disturbance last; there is nothing to wait for but time.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// disturb breaks something, and says what.
func (c *chaos) disturb(t *testing.T) string {
	t.Helper()
	programs := []string{"hub", "core", "virtual"}
	name := programs[c.chance.IntN(len(programs))]
	network := c.Node("n1").Net
	switch c.chance.IntN(5) {
	case 0:
		c.crash(t, name)
		return "crash " + name
	case 1:
		c.crash(t, name)
		pause(t.Context(), time.Duration(c.chance.IntN(300))*time.Millisecond)
		require.NoError(t, c.Start(t.Context(), name))
		return "crash and start " + name
	case 2:
		cut := []faults.Cut{faults.Reset, faults.Blackhole, faults.Up, faults.Down, faults.HalfOpen}[c.chance.IntN(5)]
		network.Cut(cut)
		return "cut " + cut.String()
	case 3:
		network.Drop()
		return "drop"
	default:
		delay := time.Duration(c.chance.IntN(200)) * time.Millisecond
		network.Set(faults.Conditions{Delay: delay, Jitter: delay / 2, Split: true})
		return "delay " + delay.String()
	}
}

func (c *chaos) mend(t *testing.T) {
	t.Helper()
	network := c.Node("n1").Net
	network.Set(faults.Conditions{})
	network.Heal()
	for _, name := range []string{"hub", "core", "virtual"} {
		if !c.Running(name) {
			require.NoError(t, c.Start(t.Context(), name))
		}
	}
}

// look is whether everything is as it must be at rest.
func (c *chaos) look(ctx context.Context) error {
	hub, err := c.tree(ctx, c.Hub.MQTT)
	if err != nil {
		return err
	}
	core, err := c.tree(ctx, c.Node("n1").MQTT)
	if err != nil {
		return err
	}
	if hub["state"] != "online" {
		return fmt.Errorf("the node is %q", hub["state"])
	}
	delete(hub, "state")
	if !maps.Equal(hub, core) {
		return fmt.Errorf("the trees differ:\nhub  %v\ncore %v", hub, core)
	}
	if err := c.level.check(hub["devices/driven/desired/level"]); err != nil {
		return fmt.Errorf("desired level: %w", err)
	}
	if hub["devices/driven/reported/level"] != hub["devices/driven/desired/level"] {
		return fmt.Errorf("level %s is wanted, %s reported", hub["devices/driven/desired/level"], hub["devices/driven/reported/level"])
	}
	if err := c.count.check(hub["devices/meter/reported/count"]); err != nil {
		return fmt.Errorf("reported count: %w", err)
	}
	return nil
}

// tree is a broker's copy of the node's tree.
func (c *chaos) tree(ctx context.Context, broker string) (map[string]string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(c.Bin, "edgebus"), "tree", "n1", "--once", "-o", "json", "--server", "mqtt://"+broker).Output()
	if err != nil {
		return nil, err
	}
	var document struct {
		Topics map[string]struct{ Value string }
	}
	if err := json.Unmarshal(out, &document); err != nil {
		return nil, err
	}
	values := map[string]string{}
	for key, v := range document.Topics {
		values[key] = v.Value
	}
	return values, nil
}

// writer publishes 1, 2, 3, … to a topic, and remembers what was acknowledged.
type writer struct {
	broker, topic string
	tried, acked  uint64
}

func (w *writer) String() string { return fmt.Sprintf("%d of %d acknowledged", w.acked, w.tried) }

func (w *writer) run(ctx context.Context) {
	for ctx.Err() == nil {
		w.tried++
		// Not ctx: a publish that is under way is seen to its end.
		once, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		m := client.Message{Topic: w.topic, Payload: strconv.AppendUint(nil, w.tried, 10), QoS: 1}
		err := harness.Publish(once, w.broker, m, nil)
		cancel()
		if err == nil {
			w.acked = w.tried
		}
		pause(ctx, 5*time.Millisecond)
	}
}

// check is whether a value can be: one that was acknowledged, or one after it whose
// fate nobody was told.
func (w *writer) check(value string) error {
	if value == "" && w.acked == 0 {
		return nil
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return err
	}
	if n < w.acked || n > w.tried {
		return fmt.Errorf("%d, but %d was acknowledged and %d the last that was tried", n, w.acked, w.tried)
	}
	return nil
}
