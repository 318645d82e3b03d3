// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

func (r *rig) link(node string) resource.Link {
	r.t.Helper()
	links, _ := r.twins.Links(node, 10)
	require.Len(r.t, links, 1)
	return links[0]
}

func TestLinkReport(t *testing.T) {
	r, c := newJoinedRig(t)
	r.inStep()
	l := r.link("n1")
	require.Equal(t, resource.Online, l.State)
	require.True(t, l.InStep)
	require.Equal(t, &resource.LinkLag{}, l.Behind)
	require.Equal(t, 1, l.Connections)
	require.NotEmpty(t, l.Since)

	r.disconnect(c)
	require.Eventually(t, func() bool { return r.link("n1").State == resource.Offline }, testTimeout, time.Millisecond)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	require.Eventually(t, func() bool { return r.link("n1").Behind.Keys == 1 }, testTimeout, time.Millisecond)
	l = r.link("n1")
	require.NotEmpty(t, l.LastError)
	require.Less(t, l.Behind.Seconds, testTimeout.Seconds())
	require.GreaterOrEqual(t, l.Behind.Seconds, 0.0)

	r.restart()
	require.Nil(t, r.link("n1").Behind, "what an absent node has is not known after a restart")
}

func TestHowLateALinkIs(t *testing.T) {
	r, c := newJoinedRig(t)
	r.inStep()
	r.ahead.Store(int64(time.Hour))
	require.Zero(t, r.twins.Stats().Oldest, "it lacks nothing, however old")
	r.setDeaf(true)
	require.NoError(t, r.send(lampDesired+"/power", "ON"))
	require.Eventually(t, func() bool { return r.link("n1").Behind.Keys == 1 }, testTimeout, time.Millisecond)
	const lag = lateAfter + testTimeout
	r.ahead.Add(int64(lag))
	s, seconds := r.twins.Stats(), r.link("n1").Behind.Seconds
	require.Equal(t, 1, s.Late)
	require.InDelta(t, lag+testTimeout/2, s.Oldest, float64(testTimeout), "as old as the key, and not as the connection")
	require.InDelta(t, (lag + testTimeout/2).Seconds(), seconds, testTimeout.Seconds())

	r.setDeaf(false)
	c.gets("devices/lamp/desired/power", "ON")
	r.inStep()
	s = r.twins.Stats()
	require.Zero(t, s.Late)
	require.Zero(t, s.Oldest)
	require.Equal(t, &resource.LinkLag{}, r.link("n1").Behind)
}

func TestTheWorstLinksComeFirst(t *testing.T) {
	r, _ := newJoinedRig(t)
	away := r.connect(newCore("n0"))
	r.connect(newCore("n2"))
	r.inStep()
	r.disconnect(away)
	require.Eventually(t, func() bool { return r.link("n0").State == resource.Offline }, testTimeout, time.Millisecond)
	links, more := r.twins.Links("", 2)
	require.Equal(t, 1, more)
	require.Equal(t, "n0", links[0].Node)
	require.Equal(t, "n1", links[1].Node)
	none, _ := r.twins.Links("n9", 2)
	require.Empty(t, none)
}

// Either clock may be set while the link is up: they are compared now.
func TestTheClocksAreComparedNow(t *testing.T) {
	r, _ := newJoinedRig(t)
	r.inStep()
	is := func(seconds float64) {
		t.Helper()
		require.Eventually(t, func() bool { l := r.link("n1"); return l.ClockAhead != nil && math.Abs(*l.ClockAhead-seconds) < 10 }, testTimeout, time.Millisecond)
	}
	r.twins.SetTime("n1", time.Now().Add(-time.Hour))
	is(-3600)
	r.twins.SetTime("n1", time.Now())
	is(0)
	// The hub's own clock is set back by an hour: a reading of time.Now has the measured time beside it, as after a step.
	c := connectionRecord{clock: time.Now().Round(0), clockRead: time.Now().Round(0).Add(-time.Hour)}
	ahead, known := c.clockAhead(c.clockRead)
	require.True(t, known)
	require.InDelta(t, 3600, ahead.Seconds(), 10)
}

func TestRejectionsAreKeptByName(t *testing.T) {
	r := newRig(t)
	reject := func(client, user string) {
		r.twins.Rejected(broker.RejectedConnect{ClientID: client, User: user, Remote: "192.0.2.1:5", Reason: "bad user name or password"})
	}
	reject("node/n1", "x")
	reject("tool", "node/n1")
	reject("tool", "ann")
	l := r.link("n1")
	require.Equal(t, resource.Unknown, l.State, "nobody has heard of it but for that")
	require.Equal(t, 2, l.Rejected.Count)
	require.Equal(t, "192.0.2.1:5", l.Rejected.Remote)
	for i := range 2 * maxRejects {
		reject(fmt.Sprintf("node/x%d", i), "")
	}
	require.Len(t, r.twins.rejections.byNode, maxRejects)
}
