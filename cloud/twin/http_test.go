// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// nodeIs waits until the status of the Node n1 is as wanted.
func (r *rig) nodeIs(is func(resource.NodeStatus) bool) (s resource.NodeStatus) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		n, err := r.node()
		s = n.Status
		return err == nil && is(s)
	}, testTimeout, testTimeout/10000)
	return s
}

func (r *rig) makeNode() {
	r.t.Helper()
	n := resource.Node{TypeMeta: resource.TypeMeta{APIVersion: resource.APIVersion, Kind: resource.KindNode}, Metadata: resource.Meta{Name: "n1", UID: "u", Generation: 1}}
	data, err := json.Marshal(n)
	require.NoError(r.t, err)
	_, err = r.store.Create(r.t.Context(), store.Object{Key: nodeObjectKey, Data: data})
	require.NoError(r.t, err)
}

func readyReason(s resource.NodeStatus) string {
	c := resource.ConditionOf(s.Conditions, resource.ConditionReady)
	return c.Status + ": " + c.Message
}

// A node that speaks HTTP is present while it waits for an answer, and for a time after it.
func TestANodeIsPresentByItsRequestsOverHTTP(t *testing.T) {
	r := newRig(t)
	r.httpPresence = 100 * time.Millisecond
	r.restart()
	r.makeNode()
	r.nodeIs(func(s resource.NodeStatus) bool { return s.State == resource.Offline })
	waits := r.twins.AskedOverHTTP("n1")
	r.twins.AskedOverHTTP("n1")() // another one, which is answered at once
	s := r.nodeIs(func(s resource.NodeStatus) bool { return s.State == resource.Online })
	require.True(t, s.OverHTTP)
	require.Regexp(t, "^True: .*HTTP", readyReason(s))
	require.Never(t, func() bool {
		return r.nodeIs(func(resource.NodeStatus) bool { return true }).State != resource.Online
	}, 3*r.httpPresence, r.httpPresence/10, "it waits")
	links, _ := r.twins.Links("", 10)
	require.Empty(t, links, "it has no link")

	waits()
	s = r.nodeIs(func(s resource.NodeStatus) bool { return s.State == resource.Offline })
	require.False(t, s.OverHTTP)
	require.Equal(t, "False: it has sent no request over HTTP for 100ms", readyReason(s))
	r.twins.AskedOverHTTP("n1")()
	r.nodeIs(func(s resource.NodeStatus) bool { return s.State == resource.Online })
}

// A hub that is started again has the nodes that were present over HTTP be present as long as after an answer: it can't know more.
func TestPresenceOverHTTPOutlivesARestart(t *testing.T) {
	r := newRig(t)
	r.httpPresence = time.Hour
	r.restart()
	r.makeNode()
	r.twins.AskedOverHTTP("n1")()
	s := r.nodeIs(func(s resource.NodeStatus) bool { return s.State == resource.Online })
	r.restart()
	for range 10 {
		require.Equal(t, s.LastSeen, r.nodeIs(func(resource.NodeStatus) bool { return true }).LastSeen)
		time.Sleep(10 * time.Millisecond) // nothing must happen meanwhile
	}
	r.httpPresence = 10 * time.Millisecond
	r.restart()
	r.nodeIs(func(s resource.NodeStatus) bool { return s.State == resource.Offline })
}

// What has a link is not said to speak HTTP only, and is as its link is once it stops asking.
func TestALinkSaysMoreThanRequestsOverHTTP(t *testing.T) {
	r, c := newJoinedRig(t)
	r.httpPresence = 50 * time.Millisecond
	r.restart()
	r.twins.AskedOverHTTP("n1")()
	r.connect(c)
	s := r.nodeIs(func(s resource.NodeStatus) bool { return s.State == resource.Online && !s.OverHTTP })
	require.Equal(t, "True: its link to the hub is up", readyReason(s))
	r.disconnect(c)
	s = r.nodeIs(func(s resource.NodeStatus) bool { return s.State == resource.Offline })
	require.Contains(t, readyReason(s), "False: ")
}
