// SPDX-License-Identifier: Apache-2.0

package backoff

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheWaitDoublesFromTheLeastToTheMost(t *testing.T) {
	b := Backoff{Min: time.Second, Max: 5 * time.Second}
	for n, want := range []time.Duration{1, 2, 4, 5, 5} {
		require.Equal(t, want*time.Second, b.Wait(n), n)
	}
	require.Equal(t, b.Max, b.Wait(math.MaxInt))
	require.Equal(t, time.Second, b.Wait(-1))
	require.Equal(t, time.Duration(math.MaxInt64), Backoff{time.Second, math.MaxInt64}.Wait(100), "it does not overflow")
	require.Equal(t, time.Second, Backoff{time.Minute, time.Second}.Wait(0), "the most holds")
	require.Zero(t, Backoff{}.Wait(3))
	require.Zero(t, Backoff{}.Spread(3))
}

func TestWaitsAreSpread(t *testing.T) {
	b := Backoff{Min: time.Second, Max: time.Minute}
	seen := map[time.Duration]bool{}
	for range 100 {
		d := b.Spread(2)
		require.GreaterOrEqual(t, d, 2*time.Second)
		require.LessOrEqual(t, d, 4*time.Second)
		seen[d] = true
	}
	require.Greater(t, len(seen), 50)
}

func TestARetryIsDueByAClock(t *testing.T) {
	b, now := Backoff{Min: time.Second, Max: 3 * time.Second}, time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	var r Retry
	require.Zero(t, r.Left(b, now), "the first attempt is due")
	for _, want := range []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 3 * time.Second} {
		require.Equal(t, want, r.Failed(b, now))
		require.Equal(t, want, r.Left(b, now))
		require.Equal(t, want, r.Left(b, now.Add(-time.Hour)), "the clock was set back")
		require.Equal(t, want-time.Second, r.Left(b, now.Add(time.Second)))
		require.Zero(t, r.Left(b, now.Add(want)))
		require.Zero(t, r.Left(b, now.Add(time.Hour)))
		require.Equal(t, now.Add(want), r.Due())
		now = now.Add(want)
	}
	require.Equal(t, 4, r.Failures())
	r.Succeeded()
	require.Zero(t, r.Failures())
	require.Zero(t, r.Left(b, now))
	require.Equal(t, time.Second, r.Failed(b, now))
}
