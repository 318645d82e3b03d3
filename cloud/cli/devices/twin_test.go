// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/topics/resource"
)

func TestADesiredWriteIsAppliedRefusedOrAwaited(t *testing.T) {
	desired := &resource.TwinValue{Value: "ON", Ver: 7}
	w := desiredWrite{device: "lamp", property: "power", value: "ON", afterVersion: 6}
	override := &resource.TwinValue{Value: "OFF", BasedOn: 7, Origin: "switch"}
	for name, c := range map[string]struct {
		twin resource.TwinProperty
		done bool
		err  string
	}{
		"not seen yet":     {resource.TwinProperty{InSync: true}, false, ""},
		"another's":        {resource.TwinProperty{Desired: &resource.TwinValue{Value: "OFF", Ver: 8}, InSync: true}, false, ""},
		"an older one":     {resource.TwinProperty{Desired: &resource.TwinValue{Value: "ON", Ver: 6}, InSync: true}, false, ""},
		"waiting":          {resource.TwinProperty{Desired: desired}, false, ""},
		"applied":          {resource.TwinProperty{Desired: desired, InSync: true}, true, ""},
		"refused":          {resource.TwinProperty{Desired: desired, Refused: &resource.Refusal{Ver: 7, Code: "Busy", Message: "later"}}, false, "refused by the device: Busy: later"},
		"refused before":   {resource.TwinProperty{Desired: desired, Refused: &resource.Refusal{Ver: 6, Code: "Busy"}}, false, ""},
		"overridden":       {resource.TwinProperty{Desired: desired, Conflict: &resource.OverrideConflict{DesiredVer: 7, Override: "OFF", Policy: "edge", Winner: "override"}}, false, "overridden with OFF"},
		"held back":        {resource.TwinProperty{Desired: desired, Refused: &resource.Refusal{Ver: 7, Code: "Held"}}, false, "is held back: Held. To set it again, clear the desired value first: edgebus twin set lamp power="},
		"safe instead":     {resource.TwinProperty{Desired: desired, Refused: &resource.Refusal{Ver: 7, Code: "SafeValue"}}, false, "is held back: SafeValue. To set"},
		"overridden since": {resource.TwinProperty{Desired: desired, Override: override}, false, "overridden with OFF, by switch. To set it again"},
		"not any more":     {resource.TwinProperty{Desired: &resource.TwinValue{Value: "ON", Ver: 8}, Override: override}, false, ""},
		"won the conflict": {resource.TwinProperty{Desired: desired, InSync: true, Conflict: &resource.OverrideConflict{DesiredVer: 7, Winner: "desired"}}, true, ""},
	} {
		done, err := w.outcome(c.twin)
		require.Equal(t, c.done, done, name)
		if c.err == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.err, name)
		require.Equal(t, exitcode.Refused, exitcode.Of(err), name)
	}
	done, err := desiredWrite{property: "power"}.outcome(resource.TwinProperty{})
	require.NoError(t, err)
	require.True(t, done, "taken back")
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
