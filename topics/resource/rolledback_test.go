// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRolledBackIsTrueForADay(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	state := func(list []Condition) string {
		if len(list) == 0 {
			return ""
		}
		return list[0].Status + " " + list[0].Message
	}
	require.Empty(t, RolledBackCondition(nil, nil, now))
	require.Empty(t, RolledBackCondition(nil, &Anomaly{Time: FormatTime(now), Reason: LineageLeap, Message: "leap"}, now))
	list := RolledBackCondition(nil, &Anomaly{Time: FormatTime(now), Reason: RolledBack, Message: "older"}, now)
	require.Equal(t, "True older", state(list))
	list = RolledBackCondition(list, nil, now.Add(23*time.Hour)) // the hub was started again
	require.Equal(t, "True older", state(list))
	list = RolledBackCondition(list, &Anomaly{Time: FormatTime(now.Add(23 * time.Hour)), Reason: RolledBack, Message: "again"}, now.Add(25*time.Hour))
	require.Equal(t, "True again", state(list), "it happened again")
	list = RolledBackCondition(list, &Anomaly{Time: FormatTime(now.Add(23 * time.Hour)), Reason: RolledBack, Message: "again"}, now.Add(48*time.Hour))
	require.Equal(t, "False ", state(list))
}
