// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/link"
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

func TestWaitingWritesShareACommit(t *testing.T) {
	r := newJoinedRig(t)
	r.inStep()
	r.cut() // what the hub says is committed, too
	before := r.twin.Stats().Commits
	release := r.holdSteps()
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
	release()
	for range clients * each {
		require.NoError(t, <-stored)
	}
	require.Equal(t, before+1, r.twin.Stats().Commits)
}

func TestAnEmptyMemberClears(t *testing.T) {
	r := newJoinedRig(t)
	require.NoError(t, r.send("devices/hall/desired/mode", "heat"))
	require.NoError(t, r.send("devices/hall/desired", `{"mode":""}`))
	require.NotContains(t, r.retained(), "devices/hall/override/mode")
	require.NotContains(t, r.retained(), "devices/hall/desired/mode")
}

func TestReportedValuesAreStoredAndReachTheHub(t *testing.T) {
	r := newJoinedRig(t)
	require.NoError(t, r.send("devices/hall/reported/temperature", "20.5"))
	require.NoError(t, r.send("devices/hall/reported", `{"temperature":21,"mode":"heat"}`))
	r.inStep()
	require.Equal(t, "21", r.atHub("devices/hall/reported/temperature"))
	require.Equal(t, []string{"20.5", "21"}, r.said("devices/hall/reported/temperature"))

	r.restart()
	m := r.value("devices/hall/reported/temperature", "21")
	require.Equal(t, "2", userProperty(m, "ver"))
	require.Equal(t, "tester", userProperty(m, "origin"))
}

func TestWhatIsRefusedChangesNothing(t *testing.T) {
	r := newJoinedRig(t)
	before := r.retained()
	for _, tt := range []struct {
		key, payload string
		kind         resource.ErrorKind
		says         string
	}{
		{"devices/hall/reported/temperature", "warm", resource.Invalid, "temperature"},
		{"devices/hall/reported/humidity", "40", resource.NotFound, "humidity"},
		{"devices/attic/reported/temperature", "20", resource.NotFound, "attic"},
		{"devices/hall/reported", `{"temperature":20,"mode":7,"nothing":1}`, resource.NotFound, "nothing"},
		{"devices/hall/reported", `not json`, resource.Invalid, "JSON object"},
		{"devices/hall/desired/setpoint", "99", resource.Invalid, "maximum of 35"},
		{"devices/hall/desired/temperature", "20", resource.Forbidden, "read-only"},
		{"devices/hall/desired/temperature", "", resource.Forbidden, "read-only"},
		{"devices/hall/desired", `{"a/b#":null}`, resource.NotFound, "no such property"},
		{"devices/hall/reported/humidity", "", resource.NotFound, "no such property"},
		{"devices/hall/refused/humidity", `{"for":1,"code":"Stuck"}`, resource.NotFound, "no such property"},
		{"devices/hall/override/setpoint", "20", resource.Forbidden, "edge"},
		{"devices/hall", "{}", resource.Forbidden, "cloud"},
		{"membership", "{}", resource.Forbidden, "cloud"},
		{"devices/hall/state", "busy", resource.Invalid, "online, offline, unknown"},
		{"devices/hall/refused/setpoint", "no", resource.Invalid, "JSON"},
		{"devices/hall/nonsense", "1", resource.BadTopic, "no such topic"},
		{"devices/hall/reported/profile", `{"a":"` + strings.Repeat("x", link.MaxValue) + `"}`, resource.TooLarge, "131072"},
	} {
		err := r.send(tt.key, tt.payload)
		require.Equal(t, tt.kind, resource.KindOf(err), "%s: %v", tt.key, err)
		require.ErrorContains(t, err, tt.says, tt.key)
	}
	require.Equal(t, before, r.retained())
}

func TestValuesMayBeLargeJSON(t *testing.T) {
	r := newJoinedRig(t)
	big := `{"points":["` + strings.Repeat("äöü€", 12_000) + `"]}`
	require.Greater(t, len(big), 100_000)
	require.NoError(t, r.send("devices/hall/reported/profile", big))
	r.inStep()
	require.Equal(t, big, r.atHub("devices/hall/reported/profile"))
}

func TestDesiredReachesTheNodeWithARisingVersion(t *testing.T) {
	r := newJoinedRig(t)
	first := r.wantShown("devices/hall/desired/setpoint", "20", 1)
	second := r.wantShown("devices/hall/desired/setpoint", "21", 2)
	require.Equal(t, []string{"1", "2"}, []string{userProperty(first, "ver"), userProperty(second, "ver")})

	r.restart() // what is in force is known without the hub, and is not said anew
	require.Equal(t, "2", userProperty(r.value("devices/hall/desired/setpoint", "21"), "ver"))
}

func TestOutboxHoldsOneEntryAKey(t *testing.T) {
	r := newRig(t)
	r.add("hall", "u1", thermostat)
	r.connect()
	r.inStep()
	r.restart() // without a hub now
	sent := r.entries.Load()
	for i := range 200 {
		require.NoError(t, r.send("devices/hall/reported/temperature", fmt.Sprint(i)))
		require.NoError(t, r.send("devices/hall/reported/setpoint", fmt.Sprint(i)))
	}
	require.LessOrEqual(t, r.twin.Stats().Behind, 3, "the two, and the status, whose receipt was forgotten with the restart")
	r.connect()
	r.inStep()
	require.Equal(t, "199", r.atHub("devices/hall/reported/setpoint"))
	require.LessOrEqual(t, r.entries.Load()-sent, int64(2))
}

func TestUnchangedValuesAreNoWork(t *testing.T) {
	r := newJoinedRig(t)
	require.NoError(t, r.send("devices/hall/reported/temperature", "20"))
	r.inStep()
	commits, sent, said := r.twin.Stats().Commits, r.entries.Load(), len(r.said("devices/hall/reported/temperature"))
	for range 50 {
		require.NoError(t, r.send("devices/hall/reported/temperature", "20"))
	}
	require.Equal(t, commits, r.twin.Stats().Commits)
	require.Equal(t, sent, r.entries.Load())
	require.Len(t, r.said("devices/hall/reported/temperature"), said)
}

func TestOrderOfAPublishersUpdates(t *testing.T) {
	r := newJoinedRig(t)
	var wg sync.WaitGroup
	var want []string
	for i := range 1000 {
		wg.Add(1)
		want = append(want, fmt.Sprint(i))
		r.twin.Publish(broker.Message{Topic: topics.TopicOf("n1", "devices/hall/reported/temperature"), Payload: []byte(want[i])},
			func(err error) { require.NoError(t, err); wg.Done() })
	}
	wg.Wait()
	require.Eventually(t, func() bool { return len(r.said("devices/hall/reported/temperature")) == 1000 }, testTimeout, time.Millisecond)
	require.Equal(t, want, r.said("devices/hall/reported/temperature"))
	r.inStep()
	require.Equal(t, "999", r.atHub("devices/hall/reported/temperature"))
}
