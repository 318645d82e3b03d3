// SPDX-License-Identifier: Apache-2.0

package discovery_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/discovery"
	"github.com/edgebus/edgebus/topics/resource"
)

// Who has the only slot of a shared device that n1 had, as time goes by after n1 went offline at 0.
func TestFailover(t *testing.T) {
	const grace = 5 * time.Minute
	epoch := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct {
		name    string
		policy  string
		local   bool
		offline map[string]time.Duration // since when, by node
		since   time.Duration            // when the hub was started
		now     time.Duration
		want    string
		again   time.Duration
	}{
		{name: "within the grace period", policy: "AfterGrace", offline: map[string]time.Duration{"n1": 0}, now: grace - time.Second, want: "n1", again: time.Second},
		{name: "after it", policy: "AfterGrace", offline: map[string]time.Duration{"n1": 0}, now: grace, want: "n2"},
		{name: "long after it", policy: "AfterGrace", offline: map[string]time.Duration{"n1": 0}, now: 9 * grace, want: "n2"},
		{name: "never", policy: "Never", offline: map[string]time.Duration{"n1": 0}, now: 9 * grace, want: "n1"},
		{name: "the default", policy: "", offline: map[string]time.Duration{"n1": 0}, now: 9 * grace, want: "n1"},
		{name: "nobody is offline", policy: "AfterGrace", now: 9 * grace, want: "n1"},
		{name: "the other one is offline, too", policy: "AfterGrace", offline: map[string]time.Duration{"n1": 0, "n2": grace}, now: 9 * grace, want: "n1"},
		{name: "the hub was away meanwhile", policy: "AfterGrace", offline: map[string]time.Duration{"n1": 0}, since: 9 * grace, now: 10*grace - time.Minute, want: "n1", again: time.Minute},
		{name: "the hub was away, and the grace period is over", policy: "AfterGrace", offline: map[string]time.Duration{"n1": 0}, since: 9 * grace, now: 10 * grace, want: "n2"},
		{name: "only one node has a local device", policy: "AfterGrace", local: true, offline: map[string]time.Duration{"n1": 0}, now: 9 * grace, want: "n1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &resource.Configuration{Metadata: resource.Meta{Name: "cams", Namespace: "default", UID: "u"}}
			c.Spec.Failover, c.Spec.DeviceTemplate = test.policy, &resource.DeviceTemplate{}
			s := discovery.InstanceState{
				Name: "cams-1", Configuration: c, Hosts: map[string]discovery.HostState{}, HubStarted: epoch.Add(test.since - time.Hour), Now: epoch,
				Sightings: []discovery.Sighting{{Node: "n1", Device: resource.DiscoveredDevice{ID: "1", Shared: !test.local}}},
			}
			if test.since > 0 {
				s.HubStarted = epoch.Add(test.since)
			}
			i := discovery.PlanInstance(s).Instance
			require.Equal(t, "n1", discovery.DeviceNode(i))
			if !test.local {
				s.Sightings = append(s.Sightings, discovery.Sighting{Node: "n2", Device: resource.DiscoveredDevice{ID: "1", Shared: true}})
			}
			for node, at := range test.offline {
				s.Hosts[node] = discovery.HostState{Offline: epoch.Add(at)}
			}
			s.Instance, s.Now = i, epoch.Add(test.now)
			p := discovery.PlanInstance(s)
			require.Equal(t, test.want, discovery.DeviceNode(p.Instance))
			require.Equal(t, test.again, p.Again)
			s.Instance = p.Instance
			require.Equal(t, p.Instance.Spec, discovery.PlanInstance(s).Instance.Spec, "it is stable")
			s.Hosts = nil // all are back
			require.Equal(t, test.want, discovery.DeviceNode(discovery.PlanInstance(s).Instance), "it doesn't go back")
		})
	}
}

// Whatever nodes come, go and are offline: no node has two slots, each that has one sees the device, none that is online and sees it loses its
// slot, none that is offline gets one, and no slot is free while a node that is online waits.
func TestSlotsProperties(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	slots := map[string]string{}
	for range 5000 {
		var nodes []discovery.SlotCandidate
		for i := range 6 {
			if r.IntN(3) > 0 {
				c := discovery.SlotCandidate{Node: fmt.Sprint("n", i), Offline: r.IntN(3) == 0}
				c.Yields = c.Offline && r.IntN(2) == 0
				if c.Yields {
					c.YieldsIn = time.Duration(r.IntN(3))
				}
				nodes = append(nodes, c)
			}
		}
		capacity := 1 + r.IntN(4)
		before := slots
		var again time.Duration
		slots, again = discovery.AssignSlots("x", capacity, before, nodes)
		require.Len(t, slots, capacity)
		had, has := map[string]bool{}, map[string]bool{}
		for i := range capacity {
			had[before[fmt.Sprintf("x-%d", i)]] = true
		}
		free := false
		for _, node := range slots {
			require.False(t, node != "" && has[node], "two slots: %v", slots)
			has[node], free = true, free || node == ""
		}
		delete(has, "")
		waits, over, soonest := false, false, time.Duration(0)
		for _, c := range nodes {
			switch {
			case had[c.Node] && !c.Yields:
				require.True(t, has[c.Node], "%v lost its slot: %v, then %v", c, before, slots)
			case !had[c.Node] && c.Offline:
				require.False(t, has[c.Node], "%v got a slot", c)
			}
			waits = waits || !c.Offline && !has[c.Node]
			over = over || c.Yields && c.YieldsIn == 0 && has[c.Node]
			if c.Yields && has[c.Node] && (soonest == 0 || c.YieldsIn < soonest) {
				soonest = c.YieldsIn
			}
			delete(has, c.Node)
		}
		require.Empty(t, has, "nodes that don't see it")
		require.False(t, waits && (free || over), "a node waits for nothing: %v of %v", slots, nodes)
		if waits {
			require.Equal(t, soonest, again)
		} else {
			require.Zero(t, again)
		}
	}
}

// A handler that has not answered yet is no news each time that it is looked for.
func TestNoAnswerYetIsSaidOnce(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var list []resource.Condition
	for i := range 2 {
		list = discovery.HandlerConditions(list, resource.Meta{}, discovery.Order{}, discovery.HandlerReports{}, began.Add(time.Duration(i)*time.Hour))
	}
	require.Len(t, list, 2)
	require.Equal(t, resource.Condition{
		Type: resource.ConditionDetailsAccepted, Status: "Unknown", Reason: "NoAnswer", Message: "no handler has answered yet", LastTransitionTime: began,
	}, list[1])
}

// Without a selector only nodes that run edgediscovery are expected to have a handler, and one that fails is told before those that have none.
func TestHandlerReadySpeaksOfNodesThatRunEdgediscovery(t *testing.T) {
	order := discovery.Order{Nodes: []string{"n1", "n2", "n3"}, Request: resource.DiscoveryRequest{Handler: "onvif"}}
	accepted, failing := resource.HandlerReport{State: resource.HandlerAccepted}, resource.HandlerReport{State: resource.HandlerFailing, Message: "it has stalled"}
	partly := resource.HandlerReport{State: resource.HandlerAccepted, Message: "something is left out"}
	for name, c := range map[string]struct {
		state discovery.HandlerReports
		want  string
	}{
		"nobody":        {discovery.HandlerReports{}, "NoHandler: no node has a handler onvif: none of 3 runs edgediscovery"},
		"one does":      {discovery.HandlerReports{Reports: map[string]resource.HandlerReport{"n1": accepted}, Discovers: map[string]bool{"n1": true}}, "Ready: all 1 nodes have the handler onvif"},
		"for others":    {discovery.HandlerReports{Reports: map[string]resource.HandlerReport{"n1": accepted}, Discovers: map[string]bool{"n1": true, "n2": true}}, "NoHandler: 1 of 2 nodes have no handler onvif: n2"},
		"selected":      {discovery.HandlerReports{Reports: map[string]resource.HandlerReport{"n1": accepted}, Selected: true}, "NoHandler: 2 of 3 nodes have no handler onvif: n2, n3"},
		"only devices":  {discovery.HandlerReports{DeviceCounts: map[string]int{"n3": 1}}, "Ready: all 1 nodes have the handler onvif"},
		"left out":      {discovery.HandlerReports{Reports: map[string]resource.HandlerReport{"n1": partly}, Discovers: map[string]bool{"n1": true}}, "Ready: all 1 nodes have the handler onvif; n1: something is left out"},
		"failing first": {discovery.HandlerReports{Reports: map[string]resource.HandlerReport{"n1": failing}, Selected: true}, "Failing: the handler onvif fails on n1: it has stalled; 2 of 3 nodes have none: n2, n3"},
	} {
		list := discovery.HandlerConditions(nil, resource.Meta{}, order, c.state, time.Now())
		require.Equal(t, c.want, list[0].Reason+": "+list[0].Message, name)
	}
}

// A handler that found one device that breaks a rule has answered: the condition of the details names that device, too.
func TestAFailingHandlerHasAnswered(t *testing.T) {
	order := discovery.Order{Nodes: []string{"n1"}, Request: resource.DiscoveryRequest{Handler: "onvif"}}
	bad := resource.HandlerReport{State: resource.HandlerFailing, Message: `the device "x": properties: "a b" is no name`}
	list := discovery.HandlerConditions(nil, resource.Meta{}, order, discovery.HandlerReports{Reports: map[string]resource.HandlerReport{"n1": bad}}, time.Now())
	details := resource.ConditionOf(list, resource.ConditionDetailsAccepted)
	require.Equal(t, []string{"Unknown", "Failing", `the handler fails on n1: the device "x": properties: "a b" is no name`}, []string{details.Status, details.Reason, details.Message})
}
