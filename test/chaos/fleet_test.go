// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/test/harness"
	"github.com/edgebus/edgebus/test/simnodes"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	fleetNodes   = 1000
	fleetBatches = 10
	fleetBatch   = fleetNodes / fleetBatches
	fleetLines   = 10 // groups of the disruption budget
	fleetBudget  = 5  // nodes of a group that are not available at a time
	fleetFailing = 30
	fleetTooMany = 6 // failures of a batch that halt the rollout: 95 % must succeed
)

// fleetPolicy is the policy as JSON, with the threshold that the test changes.
const fleetPolicy = `{"deviceSelection":{"strategy":"BatchSequence","sequence":[%s]},"successThreshold":%q,"defaultUpdateTimeout":"5m",
	"disruptionBudget":{"groupBy":["line"],"maxUnavailable":%d}}`

// fleetRun is a rollout to simulated nodes, as the nodes see it.
type fleetRun struct {
	*harness.World
	t       *testing.T
	indexOf map[string]int // by node's name
	fails   map[int]bool   // by node

	mu      sync.Mutex
	chance  *rand.Rand
	texts   []string          // by node: the last text that it was sent
	starts  []map[string]bool // by node: the versions that it was sent with the new text
	busy    [fleetLines]int   // by group: nodes that were sent the new text and have not answered
	busiest int
	broken  []string
}

// TestARolloutToAThousandNodes changes the template of a fleet of 1,000 simulated nodes, of which 3 % fail, and kills the hub in each of the
// ten batches. Six failures in one batch halt the rollout there, until the policy allows them. The nodes themselves see that no more of
// a group are at work than the disruption budget says, and that none is started twice.
func TestARolloutToAThousandNodes(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	w, err := harness.NewWorld(t.TempDir(), seed)
	require.NoError(t, err)
	t.Cleanup(w.Close)
	r := &fleetRun{
		World: w, t: t, indexOf: make(map[string]int), chance: rand.New(rand.NewPCG(seed, 1)),
		texts: make([]string, fleetNodes), starts: make([]map[string]bool, fleetNodes),
	}
	halts := 2 + r.chance.IntN(fleetBatches-2) // not in the first and not in the last
	r.draw(halts)
	t.Logf("halts in batch %d", halts)
	require.NoError(t, w.Start(t.Context(), "hub"))
	r.makeNodes()
	nodes, err := simnodes.Start(simnodes.Options{Hub: w.Hub.MQTT, Agent: r.agent}, r.names()...)
	require.NoError(t, err)
	t.Cleanup(nodes.Stop)
	r.do(http.MethodPost, "fleets", `{"metadata":{"name":"mill"},"spec":{"selector":{"matchLabels":{"site":"mill"}},"template":{"spec":`+fleetText("one")+`}}}`)
	r.await("all nodes have the first text", func(s *resource.RolloutStatus) bool { return s.Updated == fleetNodes })
	r.do(http.MethodPatch, "fleets/mill", `{"spec":{"rolloutPolicy":`+r.policy("95%")+`,"template":{"spec":`+fleetText("two")+`}}}`)

	for batch := 1; batch <= halts; batch++ {
		r.killIn(batch)
	}
	halted := func(s *resource.RolloutStatus) bool { return s.Reason == "Halted" && s.Updating == 0 }
	s := r.await("it is halted", halted)
	require.Equal(t, halts, s.Batch, "it halts in the batch with too many failures: %s", s.Message)
	require.GreaterOrEqual(t, s.FailedNodes, fleetTooMany)
	require.NoError(t, w.Crash("hub"))
	require.NoError(t, w.Start(t.Context(), "hub"))
	require.Eventually(t, func() bool { return nodes.Left() == 0 }, 2*time.Minute, 50*time.Millisecond, "all nodes are in step again")
	s = r.await("it is halted still", halted)
	require.Equal(t, halts, s.Batch)
	require.Zero(t, r.have("two", halts*fleetBatch, fleetNodes), "nodes of later batches have nothing of it")

	r.do(http.MethodPatch, "fleets/mill", `{"spec":{"rolloutPolicy":`+r.policy("90%")+`}}`)
	for batch := halts + 1; batch <= fleetBatches; batch++ {
		r.killIn(batch)
	}
	s = r.await("it has ended", func(s *resource.RolloutStatus) bool { return s.Updated+s.FailedNodes == fleetNodes })
	require.Equal(t, [4]int{fleetBatches, fleetNodes - fleetFailing, fleetFailing, 0}, [4]int{s.Batch, s.Updated, s.FailedNodes, s.Updating}, s.Message)
	require.Empty(t, s.Reason, s.Message)
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Empty(t, r.broken)
	require.Positive(t, r.busiest)
	for i, versions := range r.starts {
		require.Len(t, versions, 1, "%s was started once", fleetName(i))
	}
	r.generations()
	t.Logf("at most %d of a group were at work at a time, and %d may be", r.busiest, fleetBudget)
}

func fleetName(i int) string { return fmt.Sprintf("mill-%04d", i) }

func fleetText(text string) string {
	return `{"config":[{"name":"motd","configType":"FileListProviderSpec","files":[{"path":"/etc/motd","content":"` + text + `"}]}]}`
}

// draw chooses the nodes that fail: too many in one batch, and few enough in each of the others.
func (r *fleetRun) draw(halts int) {
	r.fails = make(map[int]bool)
	left := map[int]int{}
	for batch := 1; batch <= fleetBatches; batch++ {
		left[batch] = fleetTooMany - 2
	}
	left[halts] = fleetTooMany
	for left[halts] > 0 || len(r.fails) < fleetFailing {
		i := r.chance.IntN(fleetNodes)
		batch := i/fleetBatch + 1
		if r.fails[i] || left[batch] == 0 || batch != halts && len(r.fails)+left[halts] >= fleetFailing {
			continue
		}
		r.fails[i] = true
		left[batch]--
	}
}

func (r *fleetRun) names() (list []string) {
	for i := range fleetNodes {
		list = append(list, fleetName(i))
		r.indexOf[fleetName(i)] = i
	}
	return list
}

// policy selects the nodes in the order of their names, a tenth of them in each batch.
func (r *fleetRun) policy(threshold string) string {
	batches := strings.TrimSuffix(strings.Repeat(fmt.Sprintf(`{"limit":"%d"},`, fleetBatch), fleetBatches-1), ",")
	return fmt.Sprintf(fleetPolicy, batches, threshold, fleetBudget)
}

// agent is that of a node: it takes some time, and fails if it is meant to.
func (r *fleetRun) agent(n *simnodes.Node, spec resource.RenderedSpec) (*resource.AgentReport, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.indexOf[n.Name]
	text, before := "", r.texts[i]
	if len(spec.Files) == 1 {
		text = spec.Files[0].Text
	}
	r.texts[i] = text
	report := &resource.AgentReport{RenderedVersion: spec.RenderedVersion}
	if text != "two" {
		if before == "two" {
			r.broken = append(r.broken, n.Name+" was sent back to "+text)
		}
		return report, 0
	}
	if r.starts[i] == nil {
		r.starts[i] = make(map[string]bool)
	}
	r.starts[i][spec.RenderedVersion] = true
	group := i % fleetLines
	r.busy[group]++
	r.busiest = max(r.busiest, r.busy[group])
	if r.busy[group] > fleetBudget {
		r.broken = append(r.broken, fmt.Sprintf("%d nodes of line %d are at work", r.busy[group], group))
	}
	if r.fails[i] {
		report.RenderedVersion, report.Failed = "1", &resource.FailedVersion{RenderedVersion: spec.RenderedVersion, Reason: "HookFailed"}
	}
	time.AfterFunc(time.Duration(5+r.chance.IntN(100))*time.Millisecond, func() {
		r.mu.Lock()
		r.busy[group]--
		r.mu.Unlock()
		n.Report(*report)
	})
	return nil, 0
}

// have counts the nodes from one to another that were sent a text.
func (r *fleetRun) have(text string, from, to int) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.texts[from:to] {
		if t == text {
			n++
		}
	}
	return n
}

// killIn kills the hub when a random part of a batch was sent the new text, and starts it again.
func (r *fleetRun) killIn(batch int) {
	r.t.Helper()
	r.mu.Lock()
	part := 1 + r.chance.IntN(fleetBatch/2)
	r.mu.Unlock()
	require.Eventually(r.t, func() bool { return r.have("two", (batch-1)*fleetBatch, batch*fleetBatch) >= part }, 2*time.Minute, time.Millisecond,
		"%d nodes of batch %d get the new text", part, batch)
	require.NoError(r.t, r.Crash("hub"))
	require.NoError(r.t, r.Start(r.t.Context(), "hub"))
}

func (r *fleetRun) url(path string) string {
	return "http://" + r.Hub.HTTP + "/apis/edgebus.io/v1alpha1/" + path
}

func (r *fleetRun) do(method, path, body string) {
	r.t.Helper()
	_, err := harness.Call(r.t.Context(), method, r.url(path), []byte(body))
	require.NoError(r.t, err)
}

// makeNodes makes the Nodes with their labels.
func (r *fleetRun) makeNodes() {
	var all sync.WaitGroup
	failed := make([]error, 16)
	for n := range failed {
		all.Go(func() {
			for i := n; i < fleetNodes && failed[n] == nil; i += len(failed) {
				body := fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"site":"mill","line":"%d"}}}`, fleetName(i), i%fleetLines)
				_, failed[n] = harness.Call(r.t.Context(), http.MethodPost, r.url("nodes"), []byte(body))
			}
		})
	}
	all.Wait()
	require.NoError(r.t, errors.Join(failed...))
}

// await waits until the fleet's rollout is as wanted.
func (r *fleetRun) await(what string, is func(s *resource.RolloutStatus) bool) (s *resource.RolloutStatus) {
	r.t.Helper()
	err := harness.Eventually(r.t.Context(), 2*time.Minute, func(ctx context.Context) error {
		text, err := harness.Call(ctx, http.MethodGet, r.url("fleets/mill"), nil)
		if err != nil {
			return err
		}
		var f resource.Fleet
		if err := json.Unmarshal(text, &f); err != nil {
			return err
		}
		if s = f.Status.Rollout; s == nil || !is(s) {
			return fmt.Errorf("%s: %+v", what, s)
		}
		return nil
	})
	require.NoError(r.t, err)
	return s
}

// generations reads that each Node's spec was written twice: once with the first text, and once with the second.
func (r *fleetRun) generations() {
	text, err := harness.Call(r.t.Context(), http.MethodGet, r.url("nodes"), nil)
	require.NoError(r.t, err)
	var list struct{ Items []resource.Node }
	require.NoError(r.t, json.Unmarshal(text, &list))
	require.Len(r.t, list.Items, fleetNodes)
	for _, n := range list.Items {
		require.EqualValues(r.t, 3, n.Metadata.Generation, "%s: it was made, and written twice", n.Metadata.Name)
	}
}
