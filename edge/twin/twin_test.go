package twin

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
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

// Which protocol a device has is known to readers with the message that says so: what is before it goes to the
// mappers that had the device, also the word that it is gone.
func TestADeviceComesAndGoesWithItsProtocol(t *testing.T) {
	r := newJoinedRig(t)
	said := make(chan string, 100)
	r.mu.Lock()
	r.during = func(m broker.Message) {
		if m.Topic == "v1/nodes/n1/devices/hall" {
			protocol, _ := r.twin.Protocol("hall")
			said <- fmt.Sprintf("%s %v", protocol, len(m.Payload) > 0)
		}
	}
	r.mu.Unlock()
	d := resource.Device{Metadata: resource.Meta{Name: "hall", UID: "u1"}, Spec: resource.DeviceSpec{NodeName: "n1", Protocol: resource.Protocol{Type: "modbus"}}}
	r.bind(d, thermostat)
	require.Equal(t, "virtual false", <-said, "to who had it it is gone")
	require.Equal(t, "modbus true", <-said)
	d.Metadata.Labels = map[string]string{"another": "label"}
	r.bind(d, thermostat)
	require.Equal(t, "modbus true", <-said, "the same device is not gone")
	r.want("devices/hall", "", 0)
	require.Equal(t, "modbus false", <-said)
	require.Eventually(t, func() bool { _, known := r.twin.Protocol("hall"); return !known }, testTimeout, time.Millisecond)
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
	r.want("devices/hall/desired/setpoint", "20", 1)
	first := r.value("devices/hall/desired/setpoint", "20")
	r.want("devices/hall/desired/setpoint", "21", 2)
	second := r.value("devices/hall/desired/setpoint", "21")
	require.Equal(t, []string{"1", "2"}, []string{userProperty(first, "ver"), userProperty(second, "ver")})

	r.restart() // what is in force is known without the hub, and is not said anew
	require.Equal(t, "2", userProperty(r.value("devices/hall/desired/setpoint", "21"), "ver"))
}

func TestOverrideHoldsUntilTheCloudWantsSomethingElse(t *testing.T) {
	r := newJoinedRig(t)
	r.want("devices/hall/desired/setpoint", "20", 1)
	r.value("devices/hall/desired/setpoint", "20")
	require.NoError(t, r.send("devices/hall/desired/setpoint", "25"))
	require.Equal(t, "2", userProperty(r.value("devices/hall/desired/setpoint", "25"), "ver"))
	require.Equal(t, "1", userProperty(r.value("devices/hall/override/setpoint", "25"), "basedOn"))

	r.want("devices/hall/desired/setpoint", "18", 2)
	require.Equal(t, "3", userProperty(r.value("devices/hall/desired/setpoint", "18"), "ver"))
	require.NotContains(t, r.retained(), "devices/hall/override/setpoint")
	var c resource.OverrideConflict
	require.NoError(t, json.Unmarshal(r.retained()["devices/hall/conflict/setpoint"].Payload, &c))
	require.Equal(t, resource.OverrideConflict{Desired: "18", DesiredVer: 2, Override: "25", BasedOn: 1, Policy: "cloud", Winner: "desired"}, c)

	r.want("devices/hall/desired/setpoint", "19", 3) // nobody disputes this one
	r.value("devices/hall/desired/setpoint", "19")
	require.NotContains(t, r.retained(), "devices/hall/conflict/setpoint")
}

func TestOverrideOfAnEdgePropertyStaysUntilCleared(t *testing.T) {
	r := newJoinedRig(t)
	r.want("devices/hall/desired/mode", "heat", 1)
	r.value("devices/hall/desired/mode", "heat")
	require.NoError(t, r.send("devices/hall/desired/mode", "off"))
	r.want("devices/hall/desired/mode", "cool", 2)
	r.shows("devices/hall/conflict/mode", func(m broker.Message) bool { return strings.Contains(string(m.Payload), `"winner":"override"`) })
	r.value("devices/hall/desired/mode", "off")

	require.NoError(t, r.send("devices/hall/desired/mode", ""))
	r.value("devices/hall/desired/mode", "cool")
	require.NotContains(t, r.retained(), "devices/hall/override/mode")
	require.NotContains(t, r.retained(), "devices/hall/conflict/mode")
}

func TestOverrideEndsAtItsTime(t *testing.T) {
	r := newJoinedRig(t)
	r.want("devices/hall/desired/setpoint", "20", 1)
	r.value("devices/hall/desired/setpoint", "20")
	until := resource.FormatMillis(r.clock.Load() + 1000)
	require.NoError(t, r.send("devices/hall/desired/setpoint", "25", broker.UserProperty{Key: "until", Value: until}))
	r.value("devices/hall/desired/setpoint", "25")
	r.restart()
	r.value("devices/hall/desired/setpoint", "25")
	r.clock.Add(1001)
	r.value("devices/hall/desired/setpoint", "20")
}

func TestRefusalNamesTheCloudsVersionAndClears(t *testing.T) {
	r := newJoinedRig(t)
	r.want("devices/hall/desired/setpoint", "20", 41)
	r.value("devices/hall/desired/setpoint", "20")
	require.NoError(t, r.send("devices/hall/refused/setpoint", `{"for":1,"code":"Stuck","message":"valve"}`))
	require.JSONEq(t, `{"for":1,"ver":41,"code":"Stuck","message":"valve"}`, string(r.retained()["devices/hall/refused/setpoint"].Payload))

	require.NoError(t, r.send("devices/hall/reported/setpoint", "18", forVersion("1"))) // not newer than what was refused
	require.Contains(t, r.retained(), "devices/hall/refused/setpoint")
	r.want("devices/hall/desired/setpoint", "21", 42)
	r.value("devices/hall/desired/setpoint", "21")
	require.NoError(t, r.send("devices/hall/reported/setpoint", "21", forVersion("2")))
	require.NotContains(t, r.retained(), "devices/hall/refused/setpoint")
	require.NoError(t, r.send("devices/hall/refused/setpoint", `{"for":1,"code":"Stuck"}`)) // speaks of the past
	require.NotContains(t, r.retained(), "devices/hall/refused/setpoint")
}

// What was refused, or could not be read, before a restart is cleared by the next report as well.
func TestAReportClearsTheFaultsOfBeforeTheRestart(t *testing.T) {
	r := newJoinedRig(t)
	r.want("devices/hall/desired/setpoint", "20", 41)
	r.value("devices/hall/desired/setpoint", "20")
	require.NoError(t, r.send("devices/hall/refused/setpoint", `{"for":1,"code":"Stuck"}`))
	require.NoError(t, r.send("devices/hall/problem/temperature", `{"code":"Unplugged"}`))
	r.restart()
	require.NoError(t, r.send("devices/hall/reported/setpoint", "20", forVersion("1")))
	require.NoError(t, r.send("devices/hall/reported/temperature", "19"))
	require.NotContains(t, r.retained(), "devices/hall/refused/setpoint")
	require.NotContains(t, r.retained(), "devices/hall/problem/temperature")
}

func TestARemovedDeviceLeavesNoKeys(t *testing.T) {
	r := newJoinedRig(t)
	r.want("devices/hall/desired/setpoint", "20", 1)
	r.value("devices/hall/desired/setpoint", "20")
	require.NoError(t, r.send("devices/hall/reported/setpoint", "20", forVersion("1")))
	require.NoError(t, r.send("devices/hall/state", "online"))
	require.NoError(t, r.send("devices/hall/desired/mode", "off"))
	r.want("devices/hall", "", 0)
	r.want("devices/hall/desired/setpoint", "", 0)
	require.Eventually(t, func() bool {
		for key := range r.retained() {
			if strings.HasPrefix(key, "devices/") {
				return false
			}
		}
		return true
	}, testTimeout, 2*time.Millisecond)
	require.Equal(t, resource.NotFound, resource.KindOf(r.send("devices/hall/reported/setpoint", "21")))

	r.add("hall", "u2", thermostat) // another of the same name: versions go on rising
	r.want("devices/hall/desired/setpoint", "22", 1)
	m := r.value("devices/hall/desired/setpoint", "22")
	require.Equal(t, "3", userProperty(m, "ver"), "after 1 for 20, 2 for its end")
}

func TestADeviceOfTheSameNameIsAnother(t *testing.T) {
	r := newJoinedRig(t)
	require.NoError(t, r.send("devices/hall/reported/temperature", "20"))
	r.add("hall", "u2", thermostat)
	require.Eventually(t, func() bool {
		_, ok := r.retained()["devices/hall/reported/temperature"]
		return !ok
	}, testTimeout, 2*time.Millisecond)
}

func TestALargeModelArrivesWhole(t *testing.T) {
	r := newJoinedRig(t)
	m := thermostat
	for i := range 3000 {
		m.Spec.Properties = append(m.Spec.Properties, resource.Property{Name: fmt.Sprintf("p%d", i), Description: strings.Repeat("long ", 10)})
	}
	r.add("plant", "u9", m)
	got := r.shows("devices/plant", func(m broker.Message) bool { return len(m.Payload) > 2*topics.PartSize })
	var b resource.Bundle
	require.NoError(t, json.Unmarshal(got.Payload, &b))
	require.Len(t, b.Model.Spec.Properties, 3004)
	require.NoError(t, r.send("devices/plant/reported/p2999", "x"))
	for key := range r.retained() {
		require.NotContains(t, key, "/parts/")
	}
	r.restart()
	require.NoError(t, r.send("devices/plant/reported/p2998", "x"))
}

func TestAMapperThatGoesLeavesItsDevicesUnknown(t *testing.T) {
	r := newJoinedRig(t)
	require.NoError(t, r.send("mappers/modbus/state", "online"))
	require.NoError(t, r.send("devices/hall/state", "online"))
	require.NoError(t, r.send("mappers/modbus/state", "offline")) // its will
	r.value("devices/hall/state", "unknown")
}

func TestWritesAreRefusedWhileTheStoreFails(t *testing.T) {
	r := newJoinedRig(t)
	require.NoError(t, r.send("devices/hall/reported/temperature", "20"))
	r.inStep()
	r.store.broken.Store(true)
	err := r.send("devices/hall/reported/temperature", "21")
	require.Equal(t, resource.Unavailable, resource.KindOf(err))
	require.ErrorContains(t, err, "no space left")
	require.Equal(t, "20", string(r.retained()["devices/hall/reported/temperature"].Payload), "reads go on")
	require.NotContains(t, r.said("devices/hall/reported/temperature"), "21", "nobody heard of it")
	failed := r.twin.Stats().FailedCommits
	for range 1000 {
		require.ErrorContains(t, r.send("devices/hall/reported/temperature", "21"), "no space left")
	}
	require.Less(t, r.twin.Stats().FailedCommits-failed, uint64(100), "it is not tried for each: the state is read back every time")
	r.store.broken.Store(false)
	require.Eventually(t, func() bool { return r.send("devices/hall/reported/temperature", "22") == nil }, testTimeout, 10*time.Millisecond)
	r.inStep()
	require.Equal(t, "22", r.atHub("devices/hall/reported/temperature"))
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

func TestGetAnswersWithTheWholeTwin(t *testing.T) {
	r := newJoinedRig(t)
	r.want("devices/hall/desired/setpoint", "20.0", 5)
	r.value("devices/hall/desired/setpoint", "20.0")
	require.NoError(t, r.send("devices/hall/reported/setpoint", "20", forVersion("1")))
	done := make(chan error, 1)
	r.twin.Publish(broker.Message{
		Topic: "v1/nodes/n1/devices/hall/get",
		Props: broker.Properties{ResponseTopic: "reply/me", Correlation: []byte("c1")},
	}, func(err error) { done <- err })
	require.NoError(t, <-done)
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.out[len(r.out)-1]
	require.Equal(t, "reply/me", last.Topic)
	require.Equal(t, "c1", string(last.Props.Correlation))
	var twin map[string]resource.TwinProperty
	require.NoError(t, json.Unmarshal(last.Payload, &twin))
	require.True(t, twin["setpoint"].InSync, "20 is 20.0")
	require.Equal(t, uint64(5), twin["setpoint"].Desired.Ver)
}

func TestMalformedMessagesFromTheHubChangeNothing(t *testing.T) {
	r := newJoinedRig(t)
	before := r.retained()
	for i := range 200 {
		b := make([]byte, i)
		for j := range b {
			b[j] = byte(rand.IntN(256))
		}
		r.twin.Receive(b)
	}
	require.NoError(t, r.send("devices/hall/reported/temperature", "20"))
	after := r.retained()
	delete(after, "devices/hall/reported/temperature")
	require.Equal(t, before, after)
}
