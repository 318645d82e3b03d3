package twin

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/tree"
	"github.com/edgebus/edgebus/edge/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// busy reports without a pause until the test's condition holds.
func (r *rig) busy(until func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(testTimeout)
	for i := 0; !until(); i++ {
		require.NoError(r.t, r.send("devices/hall/reported/temperature", []string{"1", "2"}[i%2]))
		require.True(r.t, time.Now().Before(deadline), "it did not happen while the node was busy")
	}
}

func TestTrafficDoesNotDelayTheEndOfOverrides(t *testing.T) {
	r := newJoinedRig(t)
	r.want("devices/hall/desired/setpoint", "20", 1)
	r.value("devices/hall/desired/setpoint", "20")
	until := resource.FormatMillis(r.clock.Load() + 100)
	require.NoError(t, r.send("devices/hall/desired/setpoint", "25", broker.UserProperty{Key: "until", Value: until}))
	r.clock.Add(101)
	r.busy(func() bool { return string(r.retained()["devices/hall/desired/setpoint"].Payload) == "20" })
}

func TestTrafficDoesNotDelayResends(t *testing.T) {
	r := newJoinedRig(t)
	r.inStep()
	var said atomic.Int64
	r.twin.Connected(rand.Uint64(), func([]byte) { said.Add(1) }, func() {}) // a hub that hears nothing
	r.busy(func() bool { return said.Load() > 3 })
}

func TestAConflictEndsWithItsOverride(t *testing.T) {
	r := newJoinedRig(t)
	r.want("devices/hall/desired/mode", "heat", 1)
	r.value("devices/hall/desired/mode", "heat")
	until := resource.FormatMillis(r.clock.Load() + 1000)
	require.NoError(t, r.send("devices/hall/desired/mode", "off", broker.UserProperty{Key: "until", Value: until}))
	r.want("devices/hall/desired/mode", "cool", 2)
	r.shows("devices/hall/conflict/mode", func(m broker.Message) bool { return len(m.Payload) > 0 })
	r.clock.Add(1001)
	r.value("devices/hall/desired/mode", "cool")
	require.NotContains(t, r.retained(), "devices/hall/conflict/mode")
}

func TestARefusedOverrideBlamesNoDesiredValue(t *testing.T) {
	r := newJoinedRig(t)
	r.want("devices/hall/desired/setpoint", "20", 41)
	r.value("devices/hall/desired/setpoint", "20")
	require.NoError(t, r.send("devices/hall/desired/setpoint", "25"))
	require.NoError(t, r.send("devices/hall/refused/setpoint", `{"for":2,"code":"Stuck"}`))
	require.JSONEq(t, `{"for":2,"code":"Stuck"}`, string(r.retained()["devices/hall/refused/setpoint"].Payload))
}

func TestNothingWantedNothingRefused(t *testing.T) {
	r := newJoinedRig(t)
	r.want("devices/hall/desired/setpoint", "20", 41)
	r.value("devices/hall/desired/setpoint", "20")
	require.NoError(t, r.send("devices/hall/refused/setpoint", `{"for":1,"code":"Stuck"}`))
	r.want("devices/hall/desired/setpoint", "", 0)
	r.value("devices/hall/desired/setpoint", "")
	require.NotContains(t, r.retained(), "devices/hall/refused/setpoint")
}

func TestARefusalOfAnOlderDesiredValue(t *testing.T) {
	r := newJoinedRig(t)
	r.want("devices/hall/desired/setpoint", "20", 41)
	r.value("devices/hall/desired/setpoint", "20")
	r.inStep()
	held, gate := make(chan struct{}), make(chan struct{})
	r.twin.host.Put("", 0, func(*batch) { close(held); <-gate })
	<-held
	waiting := r.twin.host.Len()
	r.want("devices/hall/desired/setpoint", "21", 42)
	require.Eventually(t, func() bool { return r.twin.host.Len() > waiting }, testTimeout, time.Millisecond, "its DELTA waits")
	done := make(chan error, 1)
	r.twin.Publish(broker.Message{
		Topic: topics.TopicOf("n1", "devices/hall/refused/setpoint"), Payload: []byte(`{"for":1,"code":"Stuck"}`),
	}, func(err error) { done <- err })
	close(gate)
	require.NoError(t, <-done)
	require.NotContains(t, r.retained(), "devices/hall/refused/setpoint")
}

func TestDeviceLookupWaitsForNoCommit(t *testing.T) {
	r := newJoinedRig(t)
	held, gate := make(chan struct{}), make(chan struct{})
	r.twin.host.Put("", 0, func(*batch) { close(held); <-gate })
	<-held
	asked := make(chan error, 2)
	go func() {
		asked <- r.twin.Has("n1", "hall")
		asked <- r.twin.Has("n1", "cellar")
	}()
	select {
	case err := <-asked:
		require.NoError(t, err)
		require.Equal(t, resource.NotFound, resource.KindOf(<-asked))
	case <-time.After(testTimeout):
		t.Error("it waits")
	}
	close(gate)
}

func TestWaitingWritesShareACommit(t *testing.T) {
	r := newJoinedRig(t)
	r.inStep()
	r.cut() // what the hub says is committed, too
	before := r.twin.Stats().Commits
	held, gate := make(chan struct{}), make(chan struct{})
	letGo := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(letGo)
	r.twin.host.Put("", 0, func(*batch) { close(held); <-gate })
	<-held
	const clients, each = 4, 25
	stored := make(chan error, clients*each)
	for c := range clients {
		go func() {
			for i := range each {
				r.twin.Publish(broker.Message{
					Topic: topics.TopicOf("n1", "devices/hall/reported/temperature"), Payload: []byte(fmt.Sprint(c*each + i)), QoS: 1,
					Publisher: &broker.Identity{ClientID: fmt.Sprint("client-", c)},
				}, func(err error) { stored <- err })
			}
		}()
	}
	require.Eventually(t, func() bool { return r.twin.host.Len() == clients*each }, testTimeout, time.Millisecond)
	require.Empty(t, stored)
	letGo()
	for range clients * each {
		require.NoError(t, <-stored)
	}
	require.Equal(t, before+1, r.twin.Stats().Commits)
}

// sendAs publishes as a user of the node's broker, over a connection of its own.
func (r *rig) sendAs(user, client, key, payload string) error {
	done := make(chan error, 1)
	r.twin.Publish(broker.Message{
		Topic: topics.TopicOf("n1", key), Payload: []byte(payload), Publisher: &broker.Identity{ClientID: client, User: user},
	}, func(err error) { done <- err })
	return <-done
}

func TestUsersCannotEndMappersOfOthers(t *testing.T) {
	r := newJoinedRig(t)
	require.NoError(t, r.sendAs("alice", "a", "mappers/a/state", "online"))
	require.NoError(t, r.sendAs("alice", "a", "devices/hall/state", "online"))
	require.Equal(t, resource.Forbidden, resource.KindOf(r.sendAs("mallory", "m", "mappers/a/state", "offline")))
	require.Equal(t, "online", string(r.retained()["devices/hall/state"].Payload))
}

func TestMappersThatShareAUser(t *testing.T) {
	r := newJoinedRig(t)
	require.NoError(t, r.sendAs("mapper", "a", "mappers/a/state", "online"))
	require.NoError(t, r.sendAs("mapper", "b", "mappers/b/state", "online"))
	require.NoError(t, r.sendAs("mapper", "a", "devices/hall/state", "online"))
	require.NoError(t, r.sendAs("mapper", "b", "mappers/b/state", "offline"))
	require.Equal(t, "online", string(r.retained()["devices/hall/state"].Payload))
	require.NoError(t, r.sendAs("mapper", "a", "mappers/a/state", "offline"))
	require.Equal(t, "unknown", string(r.retained()["devices/hall/state"].Payload))
}

func TestAnEmptyMemberClears(t *testing.T) {
	r := newJoinedRig(t)
	require.NoError(t, r.send("devices/hall/desired/mode", "heat"))
	require.NoError(t, r.send("devices/hall/desired", `{"mode":""}`))
	require.NotContains(t, r.retained(), "devices/hall/override/mode")
	require.NotContains(t, r.retained(), "devices/hall/desired/mode")
}

func TestAnotherDeviceOfTheSameNameIsDrivenAnew(t *testing.T) {
	r := newJoinedRig(t)
	r.want("devices/hall/desired/setpoint", "20", 1)
	first := userProperty(r.value("devices/hall/desired/setpoint", "20"), "ver")
	r.add("hall", "u2", thermostat) // deleted and created again while nobody looked: the same wish, of another device
	r.shows("devices/hall/desired/setpoint", func(m broker.Message) bool { return userProperty(m, "ver") > first && string(m.Payload) == "20" })
}

func TestASuccessorInheritsNoDesiredValues(t *testing.T) {
	r := newJoinedRig(t)
	require.NoError(t, r.send("devices/hall/desired/setpoint", "20")) // a local wish, of the first one
	r.add("hall", "u2", thermostat)
	require.Eventually(t, func() bool {
		said := r.said("devices/hall/desired/setpoint")
		return len(said) == 2 && said[1] == ""
	}, testTimeout, time.Millisecond, "who subscribed is told that it is gone")
	require.NotContains(t, r.retained(), "devices/hall/desired/setpoint")
}

func TestAMapperThatDiedWithTheCoreIsMissed(t *testing.T) {
	r := newJoinedRig(t)
	require.NoError(t, r.send("mappers/a/state", "online"))
	require.NoError(t, r.send("devices/hall/state", "online"))
	r.restart()
	require.Equal(t, "online", string(r.retained()["mappers/a/state"].Payload))
	r.twin.host.Put("", 0, r.twin.setMissingOffline)
	r.value("mappers/a/state", "offline")
	r.value("devices/hall/state", "unknown")
}

func TestAnAgentThatDiedWithTheCoreIsMissed(t *testing.T) {
	r := newJoinedRig(t)
	for _, program := range []string{"agent", "discoverer"} {
		require.Equal(t, resource.Invalid, resource.KindOf(r.send(program+"/state", "dancing")))
		require.NoError(t, r.send(program+"/state", "online"))
	}
	r.restart()
	require.NoError(t, r.send("discoverer/state", "online"))
	r.twin.host.Put("", 0, r.twin.setMissingOffline)
	r.value("agent/state", "offline")
	r.value("discoverer/state", "online")
}

// unreadableStore is a store that neither stores nor can be read.
type unreadableStore struct{ *flaky }

func (unreadableStore) Load() (store.Snapshot, error) {
	return store.Snapshot{}, errors.New("input/output error")
}

func TestRunFailsWhenTheStateCannotBeReadBack(t *testing.T) {
	s, err := store.Open(store.Options{Dir: t.TempDir(), Rand: rand.Uint64})
	require.NoError(t, err)
	defer s.Close()
	f := &flaky{Store: s}
	tw, err := New(Options{Node: "n1", Store: f, Options: tree.Options{Publish: func(broker.Message) {}}})
	require.NoError(t, err)
	tw.opts.Store = unreadableStore{f}
	f.broken.Store(true)
	require.ErrorContains(t, tw.Run(t.Context()), "input/output error") // its own status is its first write
	refused := make(chan error, 1)
	tw.Publish(broker.Message{Topic: "v1/nodes/n1/mappers/a/state", Payload: []byte("online")}, func(err error) { refused <- err })
	require.Equal(t, resource.Unavailable, resource.KindOf(<-refused))
}

func TestRetainedMessagesMatchFilters(t *testing.T) {
	r := newJoinedRig(t)
	r.want("devices/hall/desired/setpoint", "20", 1)
	r.value("devices/hall/desired/setpoint", "20")
	require.NoError(t, r.send("devices/hall/desired/mode", "off")) // in force, and the cloud wants nothing
	require.NoError(t, r.send("devices/hall/reported/temperature", "21"))
	r.value("devices/hall/desired/mode", "off")
	all := r.retained()
	require.Contains(t, all, "devices/hall/override/mode")
	for _, filter := range []string{
		"devices/+/desired/+", "devices/hall/desired/#", "devices/hall/override/+", "devices/+/override/mode", "devices/hall/#",
		"devices/hall", "devices/hall/desired/mode", "devices/+", "+/+/+/mode", "status", "devices/hall/reported/#",
	} {
		want, got := []string{}, []string{}
		for key := range all {
			if topics.Match(filter, key) {
				want = append(want, topics.TopicOf("n1", key))
			}
		}
		pull := r.twin.Retained(topics.TopicOf("n1", filter))
		for chunk := pull(1); len(chunk) > 0; chunk = pull(1) {
			for _, m := range chunk {
				got = append(got, m.Topic)
			}
		}
		require.ElementsMatch(t, want, got, filter)
	}
}

// On a node that reports all the time the hub is never in step, and streams go all the same.
func TestStreamsGoOnceTheHubHasCaughtUp(t *testing.T) {
	r := newJoinedRig(t)
	r.inStep()
	r.restart() // without a hub now
	toHub, ready := make(chan []byte, 1000), make(chan struct{})
	r.twin.Connected(rand.Uint64(), func(b []byte) { toHub <- b }, func() { close(ready) })
	for i := 0; ; i++ {
		require.Less(t, i, 100)
		select {
		case <-ready:
			require.False(t, r.twin.Stats().InStep)
			return
		case b := <-toHub:
			r.hear(b)
			require.NoError(t, r.send("devices/hall/reported/temperature", fmt.Sprint(i))) // before the answer
			r.say(r.twin)
		}
	}
}
