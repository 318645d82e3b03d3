// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWhatADeviceThatIsNotOnlineHadIsNotKnown: what was True is Unknown, since when, and what was False stays.
func TestWhatADeviceThatIsNotOnlineHadIsNotKnown(t *testing.T) {
	const since = "2026-11-21T10:00:00.123Z"
	gone := Mapper{"modbus", false, []string{"modbus"}}
	for name, c := range map[string]struct {
		reach Reachability
		says  string // empty: the conditions are those of the twin
	}{
		"online":             {Reachability{Node: "n1", Registered: true, State: Online, Heard: true, Since: since}, ""},
		"offline":            {Reachability{Node: "n1", Registered: true, State: Offline, Heard: true, Since: since}, "not known since " + since + ": the device is not online (Offline)"},
		"unreachable":        {Reachability{Node: "n1", Registered: true, State: Offline, Problem: &Problem{Code: Unreachable}}, "not known: the device is not online (Unreachable)"},
		"its mapper is gone": {Reachability{Node: "n1", Registered: true, State: Unknown, Heard: true, Since: since, Protocol: "modbus", Mappers: []Mapper{gone}}, "not known since " + since + ": the device is not online (NoMapper)"},
		"of no mapper":       {Reachability{Node: "n1", Registered: true, State: Unknown}, ""},
		"node away":          {Reachability{Node: "n1", Registered: true, Away: true, State: Online, Heard: true, Since: since}, "not known since " + since + ": the device is not online (NodeOffline)"},
		"no such node":       {Reachability{Node: "n7"}, "not known: the device is not online (NoSuchNode)"},
		"no node":            {Reachability{}, "not known: the device is not online (NoNode)"},
		"state on the node":  {Reachability{Node: "n1", Registered: true, Local: true, State: Unknown, Heard: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			value := &TwinValue{Value: "1", Ver: 1}
			twin := map[string]TwinProperty{"level": {Desired: value, Reported: value, InSync: true}}
			now := time.Unix(1_700_000_000, 0)
			list := c.reach.TwinConditions(nil, twin, now)
			later := twinConditions(list, twin, outdatedReason(list), now.Add(time.Hour)) // as a write of the spec does
			for _, list := range [][]Condition{list, later} {
				for _, kind := range []string{ConditionInSync, ConditionReadable} {
					got := findCondition(list, kind)
					if require.Equal(t, c.says, got.Message); c.says == "" {
						require.Equal(t, "True", got.Status)
					} else {
						require.Equal(t, "Unknown NotOnline", got.Status+" "+got.Reason)
					}
					require.Equal(t, now.UTC(), got.LastTransitionTime)
				}
			}
			twin["level"] = TwinProperty{Desired: value, Problem: &Problem{Code: ReadFailed}}
			list = c.reach.TwinConditions(list, twin, now)
			require.Equal(t, "False", findCondition(list, ConditionInSync).Status)
			require.Equal(t, "False", findCondition(list, ConditionReadable).Status)
			back := Reachability{Node: "n1", Registered: true, State: Online, Heard: true}
			twin["level"] = TwinProperty{Desired: value, Reported: value, InSync: true}
			require.Equal(t, "True", findCondition(back.TwinConditions(list, twin, now), ConditionInSync).Status)
		})
	}
}
