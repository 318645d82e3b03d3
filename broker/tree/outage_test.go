// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAnOutageEndsWithTheFirstProbeThatSucceeds(t *testing.T) {
	o := StoreOutage{Every: time.Nanosecond}
	well := errors.New("no space left on device")
	probes := 0
	probe := func() error { probes++; return well }
	over, refused := o.Probe(probe)
	require.NoError(t, refused)
	require.False(t, over)
	require.Zero(t, probes, "there is no outage")

	o.Begin(errors.New("full"))
	require.True(t, o.Active())
	for n := 1; n < 5; n++ {
		over, refused = o.Probe(probe)
		require.EqualError(t, refused, "full")
		require.False(t, over)
		require.Equal(t, n, probes)
	}
	well = nil
	over, refused = o.Probe(probe)
	require.NoError(t, refused)
	require.True(t, over)
	require.False(t, o.Active())
}

func TestAnOutageIsNotProbedBeforeItIsTime(t *testing.T) {
	var o StoreOutage
	o.Begin(errors.New("full"))
	for range 1000 {
		_, refused := o.Probe(func() error { t.Error("probed at once"); return nil })
		require.EqualError(t, refused, "full")
		require.EqualError(t, o.Err(), "full")
	}
	require.Positive(t, o.UntilProbe())
}

// Each batch that fails costs reading everything back: a store that takes probes and no batches is tried less and less often.
func TestAStoreThatTakesProbesOnlyIsTriedLessAndLessOften(t *testing.T) {
	o := StoreOutage{Every: time.Millisecond}
	for _, want := range []time.Duration{1, 2, 4, 8} {
		o.Begin(errors.New("full"))
		require.Equal(t, want*time.Millisecond, o.pause)
	}
	for range 30 {
		o.Begin(errors.New("full"))
	}
	require.Equal(t, maxProbeInterval, o.pause)
	o.Stored()
	o.Begin(errors.New("full"))
	require.Equal(t, time.Millisecond, o.pause)
}
