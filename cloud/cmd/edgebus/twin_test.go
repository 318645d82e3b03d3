package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// TestWhatIsNotWantedIsNotInSync: neither a property without a desired value, nor one that can't have any.
func TestWhatIsNotWantedIsNotInSync(t *testing.T) {
	value := &resource.TwinValue{Value: "20"}
	rows := twinRows(map[string]resource.TwinProperty{
		"free": {Reported: value, InSync: true}, "level": {Desired: value, Reported: value, InSync: true},
		"late": {Desired: value}, "local": {Desired: value, Local: true},
	}, nil, time.Now())
	var got []string
	for _, row := range rows[1:] {
		got = append(got, row[0]+" "+row[3])
	}
	require.Equal(t, []string{"free –", "late no", "level yes", "local on node"}, got)
}

// TestATwinOfADeviceThatIsNotOnlineSaysSo: with the reason, and since when.
func TestATwinOfADeviceThatIsNotOnlineSaysSo(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	online := func(state, status, reason, message string) resource.Device {
		return resource.Device{Metadata: resource.Meta{Name: "lamp"}, Status: resource.DeviceStatus{State: state, Conditions: []resource.Condition{{
			Type: resource.ConditionOnline, Status: status, Reason: reason, Message: message, LastTransitionTime: now.Add(-3 * time.Minute),
		}}}}
	}
	require.Equal(t, "lamp is offline, since 3m ago: Unreachable: connection refused",
		offlineReason(online(resource.Offline, "False", "Unreachable", "connection refused"), now))
	require.Equal(t, "lamp is unknown, since 3m ago: NodeOffline: node n1 is offline", offlineReason(online("", "Unknown", "NodeOffline", "node n1 is offline"), now))
	require.Empty(t, offlineReason(online(resource.Online, "True", "Online", ""), now))
	require.Empty(t, offlineReason(online(resource.Unknown, "Unknown", resource.ReasonLocal, "its state stays on node n1"), now))
	require.Empty(t, offlineReason(resource.Device{}, now))
}
