// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/fleet"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestAVersionIsNotedOfANodeWhoseStatusSaysThatItHasIt(t *testing.T) {
	const (
		before = `{"apiVersion":"v1","metadata":{"name":"n1","generation":3,"annotations":{"mine":"x","fleet-controller/assignedTemplateVersion":"a-2","fleet-controller/templateVersion":"a-1"}},"spec":{"os":{"image":"i"}}}`
	)
	note := func(data string, change func(*resource.NodeStatus)) []byte {
		s := resource.NodeStatus{
			State: resource.Online, SpecVersion: "7", RenderedVersion: "7",
			Conditions: []resource.Condition{{Type: resource.ConditionSpecRendered, Status: "True", ObservedGeneration: 3}},
		}
		change(&s)
		return fleet.NoteVersion(store.Object{Data: []byte(data)}, s)
	}
	noted := note(before, func(*resource.NodeStatus) {})
	var n resource.Node
	require.NoError(t, json.Unmarshal(noted, &n))
	require.Equal(t, map[string]string{"mine": "x", resource.AssignedVersionAnnotation: "a-2", resource.VersionAnnotation: "a-2"}, n.Metadata.Annotations)
	require.Equal(t, int64(3), n.Metadata.Generation)
	require.Equal(t, "i", n.Spec.OS.Image)

	first := note(`{"metadata":{"name":"n1","generation":3,"annotations":{"fleet-controller/assignedTemplateVersion":"a-2"}}}`, func(*resource.NodeStatus) {})
	require.JSONEq(t, `{"metadata":{"name":"n1","generation":3,"annotations":{"fleet-controller/assignedTemplateVersion":"a-2","fleet-controller/templateVersion":"a-2"}}}`, string(first))
	require.Nil(t, note(string(noted), func(*resource.NodeStatus) {}), "it is noted")
	require.Nil(t, note(`{"metadata":{"name":"n1","generation":3},"spec":{"os":{"image":"i"}}}`, func(*resource.NodeStatus) {}), "no fleet has given it a version")
	require.Nil(t, note(before, func(s *resource.NodeStatus) { s.RenderedVersion = "6" }))
	require.Nil(t, note(before, func(s *resource.NodeStatus) { s.Conditions[0].ObservedGeneration = 2 }), "it is being rendered")
	require.Nil(t, note(before, func(s *resource.NodeStatus) { s.Conditions[0].Status = "False" }))
	require.Nil(t, note(before, func(s *resource.NodeStatus) { s.Conditions = nil }))
}
