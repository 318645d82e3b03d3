package twin

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

const unpluggedProblem = `{"code":"Unreachable","message":"no power"}`

// online is the device's condition Online as the node's own API shows it.
func (r *rig) online() resource.Condition {
	d, _ := r.twin.Device("hall")
	for _, c := range d.Device.Status.Conditions {
		if c.Type == resource.ConditionOnline {
			return c
		}
	}
	return resource.Condition{}
}

func TestWhyADeviceIsOfflineIsKeptUntilItIsOnline(t *testing.T) {
	r := newJoinedRig(t)
	require.NoError(t, r.send("mappers/m1/state", "online"))
	require.NoError(t, r.send("mappers/m1/protocols", `["virtual"]`))
	require.Equal(t, "NotHeard", r.online().Reason)
	require.NoError(t, r.send("devices/hall/problem", unpluggedProblem))
	require.NoError(t, r.send("devices/hall/state", "offline"))
	r.inStep()
	require.Equal(t, unpluggedProblem, r.atHub("devices/hall/problem"))
	require.Equal(t, resource.Condition{Type: "Online", Status: "False", Reason: "Unreachable", Message: "no power"}, r.online())
	r.restart()
	r.value("devices/hall/problem", unpluggedProblem)

	require.NoError(t, r.send("devices/hall/state", "online"))
	require.NotContains(t, r.retained(), "devices/hall/problem")
	require.Equal(t, "True", r.online().Status)

	require.ErrorIs(t, r.send("devices/hall/problem", "it is broken"), resource.Invalid)
	require.ErrorIs(t, r.send("devices/attic/problem", unpluggedProblem), resource.NotFound)
	require.ErrorIs(t, r.send("mappers/m1/protocols", "modbus"), resource.Invalid)
}

func TestADeviceWithoutAMapperIsUnknown(t *testing.T) {
	r := newJoinedRig(t)
	require.Equal(t, "no mapper is connected to node n1", r.online().Message)
	require.NoError(t, r.send("mappers/m1/state", "online"))
	require.NoError(t, r.send("mappers/m1/protocols", `["virtual"]`))
	require.NoError(t, r.send("devices/hall/problem", unpluggedProblem))
	require.NoError(t, r.send("devices/hall/state", "offline"))

	// Another protocol: what the mapper of the last one said is no longer so.
	d := resource.Device{Metadata: resource.Meta{Name: "hall", UID: "u1"}, Spec: resource.DeviceSpec{NodeName: "n1", Protocol: resource.Protocol{Type: "opcua"}}}
	r.bind(d, thermostat)
	r.value("devices/hall/state", "unknown")
	require.NotContains(t, r.retained(), "devices/hall/problem")
	require.Equal(t, `no mapper on n1 speaks "opcua"; connected mappers: m1 (virtual)`, r.online().Message)

	// The mapper goes, and is forgotten.
	require.NoError(t, r.send("devices/hall/problem", unpluggedProblem))
	require.NoError(t, r.send("devices/hall/state", "offline"))
	require.NoError(t, r.send("mappers/m1/state", "offline"))
	r.value("devices/hall/state", "unknown")
	require.NotContains(t, r.retained(), "devices/hall/problem")
	require.NoError(t, r.send("mappers/m1/state", ""))
	require.NotContains(t, r.retained(), "mappers/m1/protocols")
}

func TestUsersCannotSetProtocolsOfOthersMappers(t *testing.T) {
	r := newJoinedRig(t)
	require.NoError(t, r.send("mappers/m1/state", "online"))
	done := make(chan error, 1)
	r.twin.Publish(broker.Message{
		Topic: "v1/nodes/n1/mappers/m1/protocols", Payload: []byte(`["opcua"]`), Publisher: &broker.Identity{User: "another"},
	}, func(err error) { done <- err })
	require.ErrorIs(t, <-done, resource.Forbidden)
}

// What a mapper said is cleared by nobody else while it is online, where identities tell them apart; and who asked for
// a change isn't told of it, if that is what the subscription says.
func TestAnotherUserClearsNothing(t *testing.T) {
	r := newJoinedRig(t)
	as := func(user, id, key, payload string) error {
		done := make(chan error, 1)
		r.twin.Publish(broker.Message{
			Topic: "v1/nodes/n1/" + key, Payload: []byte(payload), QoS: 1, Publisher: &broker.Identity{User: user, ClientID: id},
		}, func(err error) { done <- err })
		return <-done
	}
	said := map[string]string{
		"devices/hall/reported/temperature": "20", "devices/hall/problem/temperature": unpluggedProblem, "devices/hall/state": "online",
	}
	require.NoError(t, as("modbus", "c1", "mappers/m1/state", "online"))
	for _, key := range []string{"devices/hall/reported/temperature", "devices/hall/problem/temperature", "devices/hall/state"} {
		require.NoError(t, as("modbus", "c1", key, said[key]), key)
	}
	for key := range said {
		require.ErrorIs(t, as("panel", "c2", key, ""), resource.Forbidden, key)
		require.ErrorContains(t, as("", "c3", key, ""), "mapper m1, which is online as another user")
		require.Contains(t, r.retained(), key)
	}
	require.ErrorIs(t, as("panel", "c2", "devices/hall/reported", `{"temperature":null}`), resource.Forbidden)
	require.NoError(t, as("panel", "c2", "devices/hall/reported/temperature", "21"), "another value is no clear")
	require.NoError(t, as("modbus", "c1", "devices/hall/problem/temperature", ""))
	require.NoError(t, as("modbus", "c1", "mappers/m1/state", "offline"))
	require.NoError(t, as("panel", "c2", "devices/hall/state", ""), "it is gone")
}

// A bad report is refused on the node, with the rule that it breaks, and leaves the one before as it is.
func TestAnAgentsReportIsCheckedOnTheNode(t *testing.T) {
	r := newJoinedRig(t)
	good := `{"version":"v1","renderedVersion":"7","conditions":[{"type":"SpecApplied","status":"True"}]}`
	require.NoError(t, r.send("agent", good))
	for payload, kind := range map[string]resource.ErrorKind{
		"online": resource.Invalid, `{"conditions":[{"type":"Ready","status":"True"}]}`: resource.Invalid,
		`{"version":"` + strings.Repeat("v", resource.MaxAgentReport) + `"}`: resource.TooLarge,
	} {
		require.Equal(t, kind, resource.KindOf(r.send("agent", payload)), "%.50s", payload)
	}
	r.inStep()
	require.Equal(t, good, r.atHub("agent"))
	require.NoError(t, r.send("upgrade/status", `{"phase":"Checking"}`))
	require.Equal(t, resource.Invalid, resource.KindOf(r.send("upgrade/status", "done")))
	require.NoError(t, r.send("agent", ""))
	r.inStep()
	require.Equal(t, `{"phase":"Checking"}`, r.atHub("upgrade/status"))
	require.Empty(t, r.atHub("agent"))
}
