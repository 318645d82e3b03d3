// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/topics/resource"
)

// A timestamp of the far future would win every conflict in which the newest does.
func TestATimestampIsAtMostAMinuteAhead(t *testing.T) {
	now := time.Date(2026, 11, 22, 14, 0, 0, 0, time.UTC)
	with := func(at time.Time) error {
		m := broker.Message{Props: broker.Properties{User: []broker.UserProperty{{Key: "ts", Value: resource.FormatTime(at)}}}}
		s, err := ParseStored(m, now.UnixMilli())
		if err == nil {
			require.Equal(t, at.UnixMilli(), s.TS)
		}
		return err
	}
	require.NoError(t, with(now.Add(-24*time.Hour)))
	require.NoError(t, with(now.Add(time.Minute)))
	err := with(now.Add(time.Minute + time.Millisecond))
	require.Equal(t, resource.Invalid, resource.KindOf(err))
	require.ErrorContains(t, err, "2026-11-22T14:01:00.001Z is more than a minute ahead of the clock here, 2026-11-22T14:00:00.000Z")
	require.Error(t, with(now.AddDate(1000, 0, 0)))
}
