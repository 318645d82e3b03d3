// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

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

// What a discoverer publishes is stored in one form, goes to the hub, and is removed with its Configuration.
func TestWhatIsDiscovered(t *testing.T) {
	r := newRig(t)
	r.connect()
	const cameras, found, handler = "discovery/cameras", "discovery/cameras/instances/c1", "discovery/cameras/handler"
	require.ErrorContains(t, r.send(found, `{"id":"c1"}`), "no Configuration cameras")
	r.want(cameras, `{"version":"1","handler":"onvif"}`, 0)
	r.retains(cameras, `{"version":"1","handler":"onvif"}`)
	for payload, why := range map[string]string{
		`x`: "must be JSON", `{"properties":{"a=b":"c"}}`: "without =", `{"mounts":[{"containerPath":"/a","hostPath":"../etc"}]}`: "mounts[0].hostPath",
		`{"deviceSpecs":[{"containerPath":"/a","hostPath":"/b","permissions":"x"}]}`: "letters r, w and m", `{"id":"` + strings.Repeat("x", 40<<10) + `"}`: "at most 32768",
	} {
		require.ErrorContains(t, r.send(found, payload), why)
	}
	require.ErrorContains(t, r.send(handler, `{"state":"Perhaps"}`), "NoHandler, Accepted, Refused, Failing")
	require.NoError(t, r.send(found, ` {"properties": {"B":"2", "A":"1"}, "unknown": true}`))
	require.NoError(t, r.send(handler, `{"state":"Accepted"}`))
	const stored = `{"id":"c1","properties":{"A":"1","B":"2"}}`
	r.value(found, stored)
	require.Eventually(t, func() bool { return r.atHub(found) == stored && r.atHub(handler) == `{"state":"Accepted"}` }, testTimeout, 5*time.Millisecond)

	sent := r.entries.Load()
	require.NoError(t, r.send(found, stored))
	r.inStep()
	require.Equal(t, sent, r.entries.Load(), "what is unchanged is not sent")

	require.NoError(t, r.send("discovery/cameras/instances/c2", `{"id":"c2"}`))
	require.NoError(t, r.send(found, ""))
	require.Eventually(t, func() bool { return r.atHub(found) == "" }, testTimeout, 5*time.Millisecond)
	r.want(cameras, "", 0)
	require.Eventually(t, func() bool { return r.atHub("discovery/cameras/instances/c2") == "" && r.atHub(handler) == "" }, testTimeout, 5*time.Millisecond)
}

func TestTheNodesStatusSaysHowLittleOfItsDiskIsFree(t *testing.T) {
	r := newJoinedRig(t)
	says := func(want bool) func(broker.Message) bool {
		return func(m broker.Message) bool {
			return len(m.Payload) > 0 && strings.Contains(string(m.Payload), `"lowSpace":"2 % of the disk with /data is free"`) == want
		}
	}
	r.shows("status", says(false))
	r.twin.SetLowSpace("2 % of the disk with /data is free")
	r.shows("status", says(true))
	r.twin.SetLowSpace("")
	r.shows("status", says(false))
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
