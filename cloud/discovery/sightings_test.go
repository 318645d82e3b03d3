// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// What nodes no longer report leaves nothing behind.
func TestTheIndexForgets(t *testing.T) {
	x := newSightingIndex()
	at := func(kind topics.Kind, name string) topics.Address {
		return topics.Address{Node: "n1", Kind: kind, Device: "cams", Name: name}
	}
	for range 2 {
		x.setHandler(at(topics.KindDiscoveryHandler, ""), resource.HandlerReport{State: resource.HandlerAccepted}, true)
		for _, name := range []string{"a", "b", "again"} {
			id := map[string]string{"a": "a", "b": "b", "again": "a"}[name]
			_, turned := x.setDevice(at(topics.KindInstance, name), &resource.DiscoveredDevice{ID: id, Shared: true})
			require.Equal(t, name == "a", turned, "the first device")
		}
		require.Equal(t, map[string]int{"n1": 3}, x.handlers("cams").DeviceCounts)
		require.Len(t, x.sharedBy("n1"), 2)
		for _, name := range []string{"a", "b", "again", "never"} {
			_, turned := x.setDevice(at(topics.KindInstance, name), nil)
			require.Equal(t, name == "again", turned, "the last device")
		}
		x.setHandler(at(topics.KindDiscoveryHandler, ""), resource.HandlerReport{}, false)
		require.Empty(t, x.deviceCounts)
		require.Empty(t, x.handlerReports)
		require.Empty(t, x.instanceAt)
		require.Empty(t, x.sightings)
		require.Empty(t, x.instances)
		require.Empty(t, x.sharedCounts)
	}
}

// Of what a node reports for a Configuration a bounded number counts, whatever it reports; when one goes another takes its place.
func TestWhatANodeReportsIsBounded(t *testing.T) {
	x := newSightingIndex()
	at := func(node, name string) topics.Address {
		return topics.Address{Node: node, Kind: topics.KindInstance, Device: "cams", Name: name}
	}
	told := 0
	for i := range maxSightings + 3 {
		id := fmt.Sprint(i)
		if _, turned := x.setDevice(at("n1", id), &resource.DiscoveredDevice{ID: id}); turned {
			told++
		}
	}
	require.Equal(t, 2, told, "the first one, and the first that is left out")
	require.Len(t, x.instancesOf("cams"), maxSightings)
	state := x.handlers("cams")
	require.Equal(t, map[string]int{"n1": 3}, state.ExcessCounts)
	list := HandlerConditions(nil, resource.Meta{}, Order{Nodes: []string{"n1"}, Request: resource.DiscoveryRequest{Handler: "onvif"}}, state, time.Now())
	require.Equal(t, "TooManyDevices", resource.ConditionOf(list, resource.ConditionHandlerReady).Reason)
	require.Equal(t, "more than 10000 devices are reported by n1: the others are left out, 3 by n1", resource.ConditionOf(list, resource.ConditionHandlerReady).Message)

	names, turned := x.setDevice(at("n2", "x"), &resource.DiscoveredDevice{ID: "x"})
	require.Len(t, names, 1, "another node has its own bound")
	require.True(t, turned)
	names, _ = x.setDevice(at("n1", "5"), &resource.DiscoveredDevice{ID: "5", Properties: map[string]string{"a": "b"}})
	require.Len(t, names, 1, "a change of one that counts")
	require.Len(t, x.handlers("cams").ExcessCounts, 1)
	for i, left := range []int{2, 1, 0} {
		names, turned = x.setDevice(at("n1", fmt.Sprint(i)), nil)
		require.Len(t, names, 2, "the one that goes, and the one that takes its place")
		require.Equal(t, left, x.handlers("cams").ExcessCounts["n1"])
		require.Equal(t, left == 0, turned)
	}
	for i := range maxSightings + 3 {
		x.setDevice(at("n1", fmt.Sprint(i)), nil)
	}
	x.setDevice(at("n2", "x"), nil)
	require.Empty(t, x.excess)
	require.Empty(t, x.deviceCounts)
	require.Empty(t, x.instances)
}
