// SPDX-License-Identifier: Apache-2.0

package resource_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// A node whose certificate was always renewed has no condition about it; once a renewal has failed it has one.
func TestRenewalCondition(t *testing.T) {
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	require.Empty(t, resource.RenewalCondition(nil, "", now))
	failed := resource.RenewalCondition(nil, "the hub did not answer", now)
	require.Len(t, failed, 1)
	require.Equal(t, "False", failed[0].Status)
	require.Equal(t, "the hub did not answer", failed[0].Message)
	renewed := resource.RenewalCondition(failed, "", now)
	require.Len(t, renewed, 1)
	require.Equal(t, "True", renewed[0].Status)
	require.Empty(t, renewed[0].Message)
	require.True(t, resource.OfHub(resource.ConditionRenewal))
}

// A node whose disk was never nearly full has no condition about it.
func TestDiskCondition(t *testing.T) {
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	require.Empty(t, resource.DiskCondition(nil, "", now))
	low := resource.DiskCondition(nil, "4 % of the disk with /data is free", now)
	require.Equal(t, []resource.Condition{{
		Type: "DiskPressure", Status: "True", Reason: "LowSpace", Message: "4 % of the disk with /data is free", LastTransitionTime: now,
	}}, low)
	lower := resource.DiskCondition(low, "3 % of the disk with /data is free", now.Add(time.Minute))
	require.Equal(t, now, lower[0].LastTransitionTime, "it is the same state")
	enough := resource.DiskCondition(lower, "", now.Add(time.Hour))
	require.Equal(t, "False", enough[0].Status)
	require.Equal(t, now.Add(time.Hour), enough[0].LastTransitionTime)
	require.True(t, resource.OfHub(resource.ConditionDiskPressure))
}
