package twin

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/link"
	"github.com/edgebus/edgebus/topics/resource"
)

func (r *rig) anomaly() string {
	links, _ := r.twins.Links("n1", 1)
	if len(links) == 0 || links[0].Anomaly == nil {
		return ""
	}
	return links[0].Anomaly.Reason
}

func (r *rig) reports(value string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		for _, m := range r.retained("v1/nodes/n1/devices/lamp/reported/power") {
			if string(m.Payload) == value {
				return true
			}
		}
		return false
	}, testTimeout, pollInterval)
}

// repeats has the core say again what was not answered, as its timer does, until stop is called.
func (c *core) repeats(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ticks := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				ticks.Stop()
				return
			case <-ticks.C:
				c.mu.Lock()
				c.up.Resend()
				c.mu.Unlock()
				c.talk()
			}
		}
	}()
	return func() { cancel(); <-ended }
}

// TestALeapOfALineageIsTold: what a program with the node's identity says of a lineage far ahead doesn't silence the core,
// and people hear of it.
func TestALeapOfALineageIsTold(t *testing.T) {
	for _, n := range []uint64{1 << 48, 1<<64 - 2} {
		r, c := newJoinedRig(t)
		c.report("devices/lamp/reported/power", "ON")
		r.reports("ON")
		r.disconnect(c)

		forged := newCore("n1")
		var err error
		forged.up, err = link.RestoreOwner(link.Up, link.MapState{Lineage: link.Lineage{N: n, Nonce: 1}}, func(func(link.Entry) bool) {}, rand.Uint64)
		require.NoError(t, err)
		r.connect(forged)
		forged.report("devices/lamp/reported/power", "FORGED")
		if n < 1<<63 {
			r.reports("FORGED")
			require.Equal(t, resource.LineageLeap, r.anomaly())
			forged.mu.Lock()
			forged.up, err = link.RestoreOwner(link.Up, link.MapState{Lineage: link.Lineage{N: n + 1<<40, Nonce: 2}}, func(func(link.Entry) bool) {}, rand.Uint64)
			forged.up.Connect(rand.Uint64())
			forged.mu.Unlock()
			require.NoError(t, err)
			forged.report("devices/lamp/reported/power", "AGAIN")
			stop := forged.repeats(t) // a FULL that follows another waits, and what came meanwhile is not kept
			r.reports("AGAIN")
			stop()
			require.Len(t, r.eventsOf(resource.LineageLeap), 1, "told once a connection")
		}
		r.disconnect(forged)

		r.connect(c)
		c.report("devices/lamp/reported/power", "OFF")
		stop := c.repeats(t)
		r.reports("OFF")
		r.inStep()
		stop()
	}
}

// olderCopy is a core with the state that c has now.
func (c *core) olderCopy(t *testing.T) *core {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	j := c.up.TakeJournal()
	var copied []link.Entry
	c.up.Range("", func(e link.Entry) bool { copied = append(copied, e); return true })
	older := newCore("n1")
	var err error
	older.up, err = link.RestoreOwner(link.Up, j.State, slices.Values(copied), rand.Uint64)
	require.NoError(t, err)
	return older
}

// A core whose data was replaced by an older copy takes the hub back to it, and that is told: in an Event, and in a condition of the Node for a
// day, over a restart of the hub too. It is found also if the older core has written since, under numbers that the hub had acknowledged.
func TestOlderDataOfACoreIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		writes int
		says   string
	}{
		"as it was":            {0, "its last 1 changes are gone"},
		"as many writes since": {1, "is another than what it had reported under the same numbers"},
		"more writes since":    {5, "is another than what it had reported under the same numbers"},
	} {
		t.Run(name, func(t *testing.T) {
			r, now := newJoinedRig(t)
			now.report("devices/lamp/reported/power", "ON")
			r.reports("ON")
			older := now.olderCopy(t)
			now.report("devices/lamp/reported/power", "OFF")
			r.reports("OFF")
			r.disconnect(now)
			for i := range c.writes {
				_, _, err := older.up.Put(link.Entry{Key: "devices/lamp/reported/level", Value: []byte(fmt.Sprint(i))})
				require.NoError(t, err)
			}
			r.connect(older)
			stop := older.repeats(t)
			r.reports("ON")
			require.Eventually(t, func() bool { return r.anomaly() == resource.RolledBack }, testTimeout, pollInterval)
			require.Contains(t, r.eventsOf(resource.RolledBack)[0], c.says)
			older.mu.Lock()
			require.NotEmpty(t, older.up.Lost())
			older.mu.Unlock()
			rolledBack := func(status string) func(resource.NodeStatus) bool {
				return func(s resource.NodeStatus) bool {
					return slices.ContainsFunc(s.Conditions, func(has resource.Condition) bool {
						return has.Type == resource.RolledBack && has.Status == status && strings.Contains(has.Message, c.says)
					})
				}
			}
			r.nodeIs(rolledBack("True"))
			stop()
			r.disconnect(older)
			r.connect(older)
			r.inStep()
			require.Len(t, r.eventsOf(resource.RolledBack), 1, "told once")
			r.nodeIs(rolledBack("True"))
		})
	}
}
