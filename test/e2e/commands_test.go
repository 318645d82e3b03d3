// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/test/faults"
	"github.com/edgebus/edgebus/test/stand"
)

const resetTopic = deviceTree + "lamp/commands/reset"

// commandAsker sends commands and keeps their answers.
type commandAsker struct {
	name string
	qos  byte
	c    *client.Client

	mu      sync.Mutex
	asked   []string
	answers map[string][]string // codes by command
}

// newCommandAsker connects to a broker. One that asks at QoS 1 or 2 has a session that goes
// on after a lost connection, and so sends again what was not acknowledged.
func newCommandAsker(s *stand.Stand, name, broker string, qos byte) *commandAsker {
	a := &commandAsker{name: name, qos: qos, answers: map[string][]string{}}
	a.c = s.Client(broker, func(o *client.Options) {
		o.ClientID = name
		if qos > 0 {
			o.CleanStart, o.SessionExpiry = false, time.Hour
		}
		o.KeepAlive = time.Second
		o.Subscriptions = []client.Subscription{{Filter: "reply/" + name, QoS: qos}}
		o.OnMessage = a.answered
	})
	return a
}

func (a *commandAsker) answered(m client.Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := string(m.Correlation)
	a.answers[id] = append(a.answers[id], m.Property("code"))
}

// ask sends one command, if the client takes it.
func (a *commandAsker) ask(n int) {
	id := fmt.Sprint(a.name, "-", n)
	a.mu.Lock()
	a.asked = append(a.asked, id)
	a.mu.Unlock()
	a.c.PublishAsync(client.Message{
		Topic: resetTopic, Payload: []byte(id), QoS: a.qos, ResponseTopic: "reply/" + a.name, Correlation: []byte(id), Expiry: time.Second,
	}, func(err error) {
		if errors.Is(err, client.ErrNotConnected) || errors.Is(err, client.ErrBusy) { // it was never asked
			a.mu.Lock()
			defer a.mu.Unlock()
			a.answers[id] = append(a.answers[id], "not asked")
		}
	})
}

// missing says whether an answer is still to come.
func (a *commandAsker) missing() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range a.asked {
		if len(a.answers[id]) == 0 {
			return fmt.Errorf("%s has no answer, of %d", id, len(a.asked))
		}
	}
	return nil
}

// has says whether an answer is missing, or another.
func (a *commandAsker) has(code string, n int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := fmt.Sprint(a.name, "-", n)
	if got := a.answers[id]; len(got) == 0 || got[0] != code {
		return fmt.Errorf("%s: %v", id, got)
	}
	return nil
}

// readExecutions are how often the driver was given each command.
func readExecutions(t *testing.T, driveLog string) map[string]int {
	t.Helper()
	file, err := os.Open(driveLog)
	require.NoError(t, err)
	defer file.Close()
	times := map[string]int{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var line struct{ Command, Value string }
		require.NoError(t, json.Unmarshal(lines.Bytes(), &line))
		if line.Command != "" {
			times[line.Value]++
		}
	}
	return times
}

// verdict compares what the asker was told with what was executed.
func (a *commandAsker) verdict(t *testing.T, executed map[string]int, codes map[string]int) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range a.asked {
		got := a.answers[id]
		require.LessOrEqual(t, executed[id], 1, "%s: executed twice", id)
		if a.qos == 1 { // MQTT itself may deliver the answer a second time
			for _, code := range got[1:] {
				require.Equal(t, got[0], code, id)
			}
		} else {
			require.Len(t, got, 1, id)
		}
		codes[got[0]]++
		checkExecution(t, id, got[0], executed[id])
	}
}

// checkExecution compares an answer with how often the command was executed.
func checkExecution(t *testing.T, id, code string, times int) {
	t.Helper()
	switch code {
	case "OK":
		require.Equal(t, 1, times, id)
	case "Lost", "Expired": // perhaps
	default:
		require.Zero(t, times, "%s: %s", id, code)
	}
}

// However the link, the askers' own connections, the core and the mapper fail, a
// command is executed at most once, and answered exactly once; and the answer is true.
func TestCommandsAreNeverExecutedTwice(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	chance := rand.New(rand.NewPCG(seed, 0))
	s, driveLog := withLamp(t, seed)
	door, err := faults.New(faults.Options{Target: s.Hub.MQTT, Seed: seed})
	require.NoError(t, err)
	t.Cleanup(door.Close)
	askers := []*commandAsker{
		newCommandAsker(s, "zero", s.Hub.MQTT, 0), newCommandAsker(s, "one", door.Addr(), 1), newCommandAsker(s, "two", door.Addr(), 2),
	}
	askDuring(askers, func() {
		for range 25 {
			breakAtRandom(t, s, chance, door)
		}
	})
	for _, a := range askers {
		s.Eventually(2*stand.WaitTimeout, a.missing)
	}
	executed, codes := readExecutions(t, driveLog), map[string]int{}
	for _, a := range askers {
		a.verdict(t, executed, codes)
	}
	t.Log(codes)
	require.Positive(t, codes["OK"])
	counted, err := s.Metrics(s.Hub.HTTP)
	require.NoError(t, err)
	require.Zero(t, counted["edgebus_commands_underway"])
	sum := 0.0
	for name, n := range counted {
		if strings.HasPrefix(name, "edgebus_commands_ended_total") {
			sum += n
		}
	}
	require.Equal(t, counted["edgebus_commands_total"], sum)
}

// withLamp is a hub, a core and a lamp, with the file that says what is done to it.
func withLamp(t *testing.T, seed uint64) (s *stand.Stand, driveLog string) {
	t.Helper()
	s = stand.New(t, seed)
	driveLog = filepath.Join(s.Dir, "drives.jsonl")
	s.Up("hub")
	s.Create(stand.ModelManifest("lamp", "{name: power, type: string, accessMode: ReadWrite}") + stand.DeviceManifests("lamp", "virtual", "lamp"))
	require.NoError(t, s.Start(t.Context(), "core", "--link-keepalive", "1s", "--link-retry-backoff-min", "10ms", "--link-retry-backoff-max", "50ms"))
	require.NoError(t, s.Start(t.Context(), "virtual", "--drive-log", driveLog))
	s.Watch(s.Hub.MQTT, deviceTree+"lamp/state", nil).Await(deviceTree+"lamp/state", "online")
	return s, driveLog
}

// askDuring has commands asked for while something happens.
func askDuring(askers []*commandAsker, happens func()) {
	ended := make(chan struct{})
	var asking sync.WaitGroup
	for _, a := range askers {
		asking.Go(func() {
			pace := time.NewTicker(5 * time.Millisecond)
			defer pace.Stop()
			for n := 0; ; n++ {
				a.ask(n)
				select {
				case <-pace.C:
				case <-ended:
					return
				}
			}
		})
	}
	happens()
	close(ended)
	asking.Wait()
}

// A hub that is killed forgets what was under way. What was not acknowledged is sent
// again to the next one, which executes nothing of it: it may have been.
func TestCommandsWhenTheHubIsKilled(t *testing.T) {
	t.Parallel()
	s, driveLog := withLamp(t, 1)
	askers := []*commandAsker{newCommandAsker(s, "one", s.Hub.MQTT, 1), newCommandAsker(s, "two", s.Hub.MQTT, 2)}
	askDuring(askers, func() {
		for range 5 {
			time.Sleep(300 * time.Millisecond) // so that much is under way, whatever it is
			require.NoError(t, s.Crash("hub"))
			s.Up("hub")
		}
		s.InStep()
	})
	for _, a := range askers {
		n := 1_000_000
		s.Eventually(stand.WaitTimeout, func() error { // everything goes on
			n++
			a.ask(n)
			return a.has("OK", n-1)
		})
	}
	answered := map[string][]string{}
	for _, a := range askers {
		a.mu.Lock()
		maps.Copy(answered, a.answers)
		a.mu.Unlock()
	}
	executed := readExecutions(t, driveLog) // after the answers: the last commands may still be under way
	for id, times := range executed {
		require.LessOrEqual(t, times, 1, "%s: executed twice", id)
	}
	for id, got := range answered {
		for _, code := range got {
			checkExecution(t, id, code, executed[id])
		}
	}
}

// breakAtRandom breaks one thing for a moment, and mends it.
func breakAtRandom(t *testing.T, s *stand.Stand, chance *rand.Rand, door *faults.Proxy) {
	t.Helper()
	link := s.Node("n1").Net
	cuts := []faults.Cut{faults.Reset, faults.Blackhole, faults.Up, faults.Down, faults.HalfOpen}
	switch chance.IntN(8) {
	case 0, 1:
		link.Drop()
	case 2, 3:
		link.Cut(cuts[chance.IntN(len(cuts))])
	case 4:
		door.Cut(cuts[chance.IntN(len(cuts))])
	case 5:
		door.Cut(faults.Down) // what is sent arrives, and what acknowledges it doesn't
	case 6:
		require.NoError(t, s.Crash("virtual"))
		require.NoError(t, s.Start(t.Context(), "virtual"))
	case 7:
		require.NoError(t, s.Crash("core"))
		require.NoError(t, s.Start(t.Context(), "core"))
	}
	time.Sleep(time.Duration(chance.IntN(400)) * time.Millisecond) // so long it is broken, and nobody knows what goes on meanwhile
	door.Drop()
	link.Heal()
	door.Heal()
}
