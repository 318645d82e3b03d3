// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
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
	j := c.up.TakeChanges()
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

// fullMessages are the messages of a FULL of so many keys, under a lineage that follows any other.
func fullMessages(t *testing.T, keys int, lineage uint64, value string) (msgs [][]byte) {
	t.Helper()
	owner := link.NewOwner(link.Up, rand.Uint64)
	for i := range keys {
		_, _, err := owner.Put(link.Entry{
			Key:   topics.DeviceKey(fmt.Sprintf("press-%05d", i/10), topics.KindReported, fmt.Sprintf("property-%d", i%10)),
			Value: []byte(value), TS: 1, Origin: "mapper",
		})
		require.NoError(t, err)
	}
	owner.Connect(lineage)
	replica := link.NewReplica(link.Up)
	for !owner.InStep() {
		for _, m := range owner.Messages() {
			replica.Step(m)
			if m.Type == link.TypeFull {
				m.Lineage = link.Lineage{N: lineage, Nonce: lineage}
				b, err := link.Encode(m)
				require.NoError(t, err)
				msgs = append(msgs, b)
			}
		}
		for _, m := range replica.Messages() {
			require.NoError(t, owner.Step(m))
		}
	}
	return msgs
}

// flood publishes a node's messages in turn, as a client with so many unacknowledged ones does, until it is ended.
func (r *rig) flood(node string, unacknowledged int, msgs ...[]byte) (end func()) {
	up, down := topics.SyncTopics(node)
	r.twins.Subscribed(nodeIdentity(node), down)
	stop, window := make(chan struct{}), make(chan struct{}, unacknowledged)
	var sending sync.WaitGroup
	sending.Go(func() {
		for i := 0; ; i++ {
			select {
			case window <- struct{}{}:
				r.twins.Publish(broker.Message{Topic: up, Payload: msgs[i%len(msgs)], Publisher: nodeIdentity(node)}, func(error) { <-window })
			case <-stop:
				return
			}
		}
	})
	return func() {
		close(stop)
		sending.Wait()
	}
}

// What a node's link sends waits in the node's own part of the queue. The desired values and the reports of others don't wait for it,
// and nor does who writes a desired value wait for the tree at all.
func TestANodesFloodHoldsUpNobodyElse(t *testing.T) {
	r, c := newJoinedRig(t)
	held, gate := make(chan struct{}), make(chan struct{})
	r.twins.host.Put("", 0, func(*batch) { close(held); <-gate })
	<-held // nothing is taken now
	end := r.flood("n3", math.MaxInt16, fullMessages(t, 20_000, 1000, "one")...)
	steady := func() bool { // its part of the queue is full
		n := r.twins.host.Len()
		time.Sleep(50 * time.Millisecond) // for a step that still finds room, which nothing tells
		return n > 1 && r.twins.host.Len() == n
	}
	require.Eventually(t, steady, testTimeout, time.Millisecond)
	require.NoError(t, r.send(lampDesired+"/brightness", "42"))
	reported := make(chan struct{})
	go func() {
		c.report(topics.DeviceKey("lamp", topics.KindReported, "brightness"), "41")
		close(reported)
	}()
	<-reported
	close(gate)
	c.gets(topics.DeviceKey("lamp", topics.KindDesired, "brightness"), "42")
	require.Eventually(t, func() bool { return slices.Contains(r.said("v1/nodes/n1/devices/lamp/reported/brightness"), "41") }, testTimeout, time.Millisecond)
	end()
}

// A node needs to send all that it reports once, and seldom twice. One that does it again and again waits, longer the more it sends.
func TestAFullThatRepeatsWaits(t *testing.T) {
	r, _ := newJoinedRig(t)
	one, two := fullMessages(t, 20_000, 1000, "one"), fullMessages(t, 20_000, 1000, "two")
	end := r.flood("n3", 64, slices.Concat(one, two)...)
	require.Eventually(t, func() bool { return r.twins.Stats().UpKeys == 20_000 }, testTimeout, time.Millisecond)
	value := func() string {
		r.twins.host.RLock()
		defer r.twins.host.RUnlock()
		e, _ := r.twins.nodes.byName["n3"].up.Get(topics.DeviceKey("press-00000", topics.KindReported, "property-0"))
		return string(e.Value)
	}
	require.Equal(t, "one", value())
	steps := r.twins.Stats().Steps
	require.Eventually(t, func() bool { return r.twins.Stats().Steps > steps+200 }, testTimeout, time.Millisecond)
	require.Equal(t, "one", value())
	end()
	r.ahead.Store(int64(2 * time.Minute)) // it is time
	end = r.flood("n3", 64, two...)
	require.Eventually(t, func() bool { return value() == "two" }, testTimeout, time.Millisecond)
	end()
}

// A node that sends nonsense fills no log.
func TestMalformedMessagesAreLoggedNowAndThen(t *testing.T) {
	var log bytes.Buffer
	twins := &Twins{sampledLog: (&tree.Options{Log: zerolog.New(&log)}).SampledLog()}
	for range 1000 {
		twins.receiveFromNode("n1", broker.Message{Payload: []byte("nonsense")}, func(error) {})
	}
	n := bytes.Count(log.Bytes(), []byte("malformed message from the node"))
	require.Positive(t, n)
	require.LessOrEqual(t, n, 40)
}

func TestReportsDoNotDelayResends(t *testing.T) {
	r, c := newJoinedRig(t)
	r.inStep()
	r.setDeaf(true) // one message is lost
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	require.Eventually(t, func() bool { return len(r.said(lampDesired+"/power")) > 0 }, testTimeout, time.Millisecond)
	r.setDeaf(false)
	deadline := time.Now().Add(testTimeout)
	for i := 0; ; i++ {
		if got, _ := c.has("devices/lamp/desired/power"); got == "ON" {
			return
		}
		c.report("devices/lamp/reported/temperature", []string{"1", "2"}[i%2])
		require.True(t, time.Now().Before(deadline), "it was not sent again while the node was reporting")
	}
}

func TestAReconnectAfterARestartIsCheap(t *testing.T) {
	r, c := newJoinedRig(t)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	c.gets("devices/lamp/desired/power", "ON")
	c.report("devices/lamp/reported/power", "ON")
	r.inStep()
	before := c.down.Digest()
	r.restart()
	require.Equal(t, 1, r.twins.Stats().Devices, "all is known before anybody can connect: else a node would be told that its devices are gone")
	r.connect(c)
	r.inStep()
	require.Equal(t, before, c.down.Digest(), "the projection came out the same, so that nothing had to be sent")
}

func TestPresenceFollowsTheBroker(t *testing.T) {
	r, c := newJoinedRig(t)
	state := func() string { return string(r.retained("v1/nodes/n1/state")["v1/nodes/n1/state"].Payload) }
	require.Eventually(t, func() bool { return state() == "online" }, testTimeout, time.Millisecond)
	require.Eventually(t, func() bool {
		o, err := r.store.Get(context.Background(), store.Key{Kind: resource.KindNode, Name: "n1"})
		return err == nil && strings.Contains(string(o.Status), "online")
	}, testTimeout, 2*time.Millisecond, "a node that was let in has an object, and its status follows")

	other := nodeIdentity("n1") // somebody else with the node's certificate
	other.ClientID = "tool"
	r.twins.Connected(other)
	r.twins.Disconnected(other, nil)
	stranger := nodeIdentity("n7") // whose core never came
	r.twins.Connected(stranger)
	r.twins.Disconnected(stranger, nil)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	c.gets("devices/lamp/desired/power", "ON")
	require.Equal(t, "online", state())
	require.Equal(t, []string{"n1"}, r.twins.Nodes())
	r.disconnect(c)
	require.Eventually(t, func() bool { return state() == "offline" }, testTimeout, time.Millisecond)
}

func TestMalformedLinkMessagesHarmNobody(t *testing.T) {
	r, c := newJoinedRig(t)
	for i := range 300 {
		b := make([]byte, i)
		for j := range b {
			b[j] = byte(rand.IntN(256))
		}
		require.NoError(t, r.send("v1/nodes/n1/sync/up", string(b)))
	}
	c.report("devices/lamp/reported/power", "ON")
	r.status(func(s resource.DeviceStatus) bool { return s.Twin["power"].Reported != nil })
}
