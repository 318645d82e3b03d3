package twin

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
