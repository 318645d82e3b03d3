// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/client"
	"github.com/edgebus/edgebus/edge/store"
	"github.com/edgebus/edgebus/test/stand"
	"github.com/edgebus/edgebus/topics/backoff"
	"github.com/edgebus/edgebus/topics/resource"
)

// A node of the release before takes the present version of core and agent, and with a flag goes back, by the commands that people use.
// Meanwhile clients write on both sides, and what either side has acknowledged both have in the end.
func TestThereAndBackUnderLoad(t *testing.T) {
	t.Parallel()
	const before = "v0.9.0"
	formatBefore, err := storeFormatOf(readProgram(t, "before"))
	require.NoError(t, err)
	n := newTestNode(t, 2*time.Minute, func(n *testNode) {
		n.chain, n.from = true, before
		n.installAgent(before)
		n.Create(stand.ModelManifest("valve", "{name: set, type: int, accessMode: ReadWrite}", "{name: goal, type: int, accessMode: ReadWrite}", "{name: seen, type: int}") +
			stand.DeviceManifests("valve", "virtual", "valve"))
	})
	n.known()
	w := n.load()
	p, stop := n.exchange()
	n.pushes(before, formatBefore)
	n.pushes("v1.1.0", store.Format)

	w.goesOn()
	out, err := n.edgebus("upgrade", "start", "v1.1.0", "--node", "n1", "--wait")
	require.NoError(t, err, out)
	require.Equal(t, before+" v1.1.0 ", n.went("v1.1.0"))
	n.runs("v1.1.0")
	require.Equal(t, "versions/v1.1.0 v1.1.0", n.link()+" "+n.agentLink())
	w.goesOn()

	out, err = n.edgebus("upgrade", "start", before, "--node", "n1", "--allow-downgrade", "--wait")
	if formatBefore != store.Format {
		require.Error(t, err, "a core can't read a newer format of the store")
		n.runs("v1.1.0")
		stop()
		p.complete()
		w.complete()
		return
	}
	require.NoError(t, err, out)
	require.Equal(t, "v1.1.0 "+before+" ", n.went(before))
	n.runs(before)
	require.Equal(t, "versions/"+before+" "+before, n.link()+" "+n.agentLink())
	w.goesOn()

	stop()
	p.complete()
	p.mu.Lock()
	require.Zero(t, p.fresh, "a session was lost")
	t.Logf("clients of the node's broker were away for %s; %d messages and %s were acknowledged", p.away, len(p.acked), w.counts())
	p.mu.Unlock()
	w.complete()
	n.whole(before)
}

// went is from which version to which the Upgrade has led the node, and, if only that of the agent failed, why.
func (n *testNode) went(name string) string {
	n.t.Helper()
	a := n.attempt(name)
	require.Equal(n.t, resource.UpgradeSuccess, a.OperationStatus, "%+v", a)
	return a.FromVersion + " " + a.ToVersion + " " + a.Reason
}

// edgebus runs a command at the hub. One that waits for what does not come gives up.
func (n *testNode) edgebus(args ...string) (string, error) {
	out, err := exec.CommandContext(n.t.Context(), filepath.Join(n.Bin, "edgebus"), append(args, "--server", "http://"+n.Hub.HTTP, "--timeout", "4m")...).CombinedOutput()
	return string(out), err
}

// pushes makes an Artifact of the core and the agent of a version.
func (n *testNode) pushes(version string, format int) {
	n.t.Helper()
	key := filepath.Join(n.Dir, "minisign.key")
	raw := slices.Concat([]byte("Ed\x00\x00B2"), make([]byte, 48), n.signer.id[:], n.signer.key, make([]byte, 32)) // not encrypted
	n.write(key, []byte("untrusted comment: a key\n"+base64.StdEncoding.EncodeToString(raw)+"\n"))
	args := []string{"artifact", "push", "--version", version, "--store-format", strconv.Itoa(format), "--secret-key", key}
	dir := filepath.Join(n.Dir, "push", version)
	require.NoError(n.t, os.MkdirAll(dir, 0o755))
	for _, name := range []string{"core", "agent"} {
		file := filepath.Join(dir, "edge"+name)
		require.NoError(n.t, os.Symlink(readProgram(n.t, name+"-"+strings.TrimPrefix(version, "v")), file))
		args = append(args, file)
	}
	out, err := n.edgebus(args...)
	require.NoError(n.t, err, out)
}

// testLoad are clients that write all the time: rising numbers, as state and as a stream.
type testLoad struct {
	n       *testNode
	stop    func() // the writers, and waits until they have ended
	mu      sync.Mutex
	writers []*loadWriter
	counted map[int]bool // numbers of the stream that the hub has
}

type loadWriter struct {
	broker, topic string
	shown         map[string]string // by broker, the topics that have the last value in the end
	acked         []int
	sent          int
}

func (n *testNode) load() *testLoad {
	n.t.Helper()
	const valve = "v1/nodes/n1/devices/valve/"
	node, hub := n.Core(), n.Hub.MQTT
	w := &testLoad{n: n, counted: map[int]bool{}, writers: []*loadWriter{
		{broker: node, topic: valve + "desired/set", shown: map[string]string{node: valve + "desired/set", hub: valve + "override/set"}},
		{broker: node, topic: valve + "reported/seen", shown: map[string]string{node: valve + "reported/seen", hub: valve + "reported/seen"}},
		{broker: hub, topic: valve + "desired/goal", shown: map[string]string{node: valve + "desired/goal", hub: valve + "desired/goal"}},
		{broker: node, topic: valve + "telemetry/count"},
	}}
	n.Client(hub, func(o *client.Options) {
		o.CleanStart, o.SessionExpiry, o.Subscriptions = false, time.Hour, []client.Subscription{{Filter: valve + "telemetry/count", QoS: 1}}
		o.OnMessage = func(m client.Message) {
			number, _ := strconv.Atoi(string(bytes.TrimSpace(m.Payload)))
			w.mu.Lock()
			w.counted[number] = true
			w.mu.Unlock()
		}
	})
	ctx, cancel := context.WithCancel(n.t.Context())
	var all sync.WaitGroup
	for _, one := range w.writers {
		c := n.Client(one.broker, nil)
		all.Go(func() { w.write(ctx, c, one) })
	}
	w.stop = func() { cancel(); all.Wait() }
	n.t.Cleanup(w.stop)
	return w
}

func (w *testLoad) write(ctx context.Context, c *client.Client, one *loadWriter) {
	for i := 1; ctx.Err() == nil; i++ {
		w.mu.Lock()
		one.sent = i
		w.mu.Unlock()
		if w.n.Publish(c, one.topic, strconv.Itoa(i)) == nil {
			w.mu.Lock()
			one.acked = append(one.acked, i)
			w.mu.Unlock()
		}
		backoff.Sleep(ctx, 5*time.Millisecond)
	}
}

// goesOn waits until more writes are acknowledged to each client.
func (w *testLoad) goesOn() {
	w.n.t.Helper()
	before := w.counts()
	w.n.Eventually(2*stand.WaitTimeout, func() error {
		now := w.counts()
		for i := range now {
			if now[i] < before[i]+10 {
				return fmt.Errorf("%d writes to %s were acknowledged, and %d before", now[i], w.writers[i].topic, before[i])
			}
		}
		return nil
	})
}

type messageCounts []int

func (c messageCounts) String() string { return fmt.Sprint([]int(c)) + " writes" }

// counts is how many writes of each client were acknowledged.
func (w *testLoad) counts() (c messageCounts) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.writers {
		c = append(c, len(one.acked))
	}
	return c
}

// complete ends the writers, and waits until both sides have what was acknowledged: of state the last write or, as the acknowledgement may have
// been lost, a later one; of the stream each.
func (w *testLoad) complete() {
	n := w.n
	n.t.Helper()
	w.stop()
	for _, one := range w.writers {
		for broker, topic := range one.shown {
			last := n.Watch(broker, topic, nil)
			n.Eventually(2*stand.WaitTimeout, func() error {
				m, _ := last.Get(topic)
				if got, err := strconv.Atoi(string(m.Payload)); err != nil || got < one.acked[len(one.acked)-1] || got > one.sent {
					return fmt.Errorf("%s has %s %q; %d was acknowledged, %d was sent", broker, topic, m.Payload, one.acked[len(one.acked)-1], one.sent)
				}
				return nil
			})
		}
	}
	stream := w.writers[len(w.writers)-1]
	n.Eventually(2*stand.WaitTimeout, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if i := slices.IndexFunc(stream.acked, func(number int) bool { return !w.counted[number] }); i >= 0 {
			return fmt.Errorf("of %d messages of %s that were acknowledged the hub lacks %d", len(stream.acked), stream.topic, stream.acked[i])
		}
		return nil
	})
}
