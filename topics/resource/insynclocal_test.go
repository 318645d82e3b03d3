// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The hub says plainly that it can't know whether a property is as wanted whose value stays on the node.
func TestInSyncOfLocalProperties(t *testing.T) {
	m := DeviceModel{Spec: DeviceModelSpec{Properties: []Property{{Name: "a", AccessMode: ReadWrite}, {Name: "b", AccessMode: ReadWrite}}}}
	d := Device{Spec: DeviceSpec{Local: []string{"a"}, Desired: map[string]Value{"a": "1"}}}
	is := func() Condition {
		d.FollowSpec(&m, time.Now())
		for _, c := range d.Status.Conditions {
			if c.Type == ConditionInSync {
				return c
			}
		}
		return Condition{}
	}
	c := is()
	require.Equal(t, "Unknown Local", c.Status+" "+c.Reason)
	require.Equal(t, "a is reported on the node only", c.Message)
	require.True(t, d.Status.Twin["a"].Local)
	require.False(t, d.Status.Twin["a"].InSync)
	d.Spec.Desired["b"] = "2"
	c = is()
	require.Equal(t, "False Waiting", c.Status+" "+c.Reason)
	d.Spec.Local, d.Spec.Desired = nil, nil
	require.Equal(t, "True", is().Status)
	require.Equal(t, ReasonLocal, Reachability{Node: "n1", Registered: true, Local: true, State: Unknown}.Condition().Reason)
}
