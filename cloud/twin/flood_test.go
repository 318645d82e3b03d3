package twin

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
)

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
	require.Eventually(t, func() bool {
		return slices.Contains(r.said("v1/nodes/n1/devices/lamp/reported/brightness"), "41")
	}, testTimeout, time.Millisecond)
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
