// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

const unpluggedProblem = `{"code":"Unreachable","message":"no power"}`

// online is the device's condition Online as the node's own API shows it.
func (r *rig) online() resource.Condition {
	d, _ := r.twin.Device("hall")
	return resource.ConditionOf(d.Device.Status.Conditions, resource.ConditionOnline)
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
	require.ErrorIs(t, r.sendAs("another", "", "mappers/m1/protocols", `["opcua"]`), resource.Forbidden)
}

// What a mapper said is cleared by nobody else while it is online, where identities tell them apart; and who asked for
// a change isn't told of it, if that is what the subscription says.
func TestAnotherUserClearsNothing(t *testing.T) {
	r := newJoinedRig(t)
	said := map[string]string{
		"devices/hall/reported/temperature": "20", "devices/hall/problem/temperature": unpluggedProblem, "devices/hall/state": "online",
	}
	require.NoError(t, r.sendAs("modbus", "c1", "mappers/m1/state", "online"))
	for _, key := range []string{"devices/hall/reported/temperature", "devices/hall/problem/temperature", "devices/hall/state"} {
		require.NoError(t, r.sendAs("modbus", "c1", key, said[key]), key)
	}
	for key := range said {
		require.ErrorIs(t, r.sendAs("panel", "c2", key, ""), resource.Forbidden, key)
		require.ErrorContains(t, r.sendAs("", "c3", key, ""), "mapper m1, which is online as another user")
		require.Contains(t, r.retained(), key)
	}
	require.ErrorIs(t, r.sendAs("panel", "c2", "devices/hall/reported", `{"temperature":null}`), resource.Forbidden)
	require.NoError(t, r.sendAs("panel", "c2", "devices/hall/reported/temperature", "21"), "another value is no clear")
	require.NoError(t, r.sendAs("modbus", "c1", "devices/hall/problem/temperature", ""))
	require.NoError(t, r.sendAs("modbus", "c1", "mappers/m1/state", "offline"))
	require.NoError(t, r.sendAs("panel", "c2", "devices/hall/state", ""), "it is gone")
}

// One user fills the node's keys with no names of mappers, and leaves room for others', also after a restart.
func TestMappersOfOneUserLeaveRoom(t *testing.T) {
	r := newJoinedRig(t)
	limited := func() {
		done := make(chan struct{})
		r.twin.host.Put("", 0, func(*batch) { r.twin.opts.Mappers = 20; close(done) })
		<-done
	}
	limited()
	fill := func(user string) (n int) {
		for ; ; n++ {
			kind, payload := "state", "online"
			if n%2 == 1 {
				kind, payload = "protocols", `["virtual"]`
			}
			err := r.sendAs(user, user, fmt.Sprintf("mappers/%s%d/%s", user, n, kind), payload)
			if err != nil {
				require.ErrorIs(t, err, resource.Quota)
				require.Contains(t, err.Error(), "limits.mappers")
				return n
			}
		}
	}
	first := fill("a")
	require.Greater(t, first, 5)
	require.Less(t, first, 20)
	require.NoError(t, r.sendAs("b", "b", "mappers/b/state", "online"), "another user's mapper is let in")
	require.NoError(t, r.sendAs("a", "a", "mappers/a0/state", "online"), "those that are known go on")
	require.NoError(t, r.sendAs("a", "a", "mappers/a0/protocols", `["virtual"]`))

	r.restart()
	limited()
	before := r.twin.Stats().UpKeys
	require.Less(t, fill("a"), 20)
	require.NoError(t, r.sendAs("c", "c", "mappers/c/state", "online"))
	require.Less(t, r.twin.Stats().UpKeys, before+40)
	require.NoError(t, r.sendAs("c", "c", "mappers/c/state", ""), "what is cleared makes room")
	require.NoError(t, r.sendAs("c", "c", "mappers/c2/state", "online"))
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

func TestAMapperThatGoesLeavesItsDevicesUnknown(t *testing.T) {
	r := newJoinedRig(t)
	require.NoError(t, r.send("mappers/modbus/state", "online"))
	require.NoError(t, r.send("devices/hall/state", "online"))
	require.NoError(t, r.send("mappers/modbus/state", "offline")) // its will
	r.value("devices/hall/state", "unknown")
}

func TestAMapperSaysWhichSettingsItTakes(t *testing.T) {
	r := newJoinedRig(t)
	const settings = `{"protocols":["virtual"],"property":[{"name":"min","type":"number","help":"the least value"}]}`
	require.NoError(t, r.sendAs("m1", "mapper-m1", "mappers/m1/state", "online"))
	require.NoError(t, r.sendAs("m1", "mapper-m1", "mappers/m1/settings", settings))
	r.inStep()
	require.Equal(t, settings, r.atHub("mappers/m1/settings"))
	require.ErrorIs(t, r.sendAs("m2", "mapper-m2", "mappers/m1/settings", settings), resource.Forbidden)
	require.ErrorContains(t, r.sendAs("m1", "mapper-m1", "mappers/m1/settings", `{"protocols":["x"],"device":[{}]}`), "settings.device[0]")
	require.NoError(t, r.sendAs("m1", "mapper-m1", "mappers/m1/state", ""))
	require.NotContains(t, r.retained(), "mappers/m1/settings")
}
