// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/broker/ordered"
	"github.com/edgebus/edgebus/broker/sealed"
	"github.com/edgebus/edgebus/test/orderedtest"
)

func TestAHubWhoseClockDiffersFromMostOthersTakesNoLog(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		ahead map[string]time.Duration
		says  string // empty: it may
	}{
		"alone":                     {nil, ""},
		"all agree":                 {map[string]time.Duration{"a": 2 * s, "b": -2 * s}, ""},
		"one of three is wrong":     {map[string]time.Duration{"a": time.Hour, "b": s}, ""},
		"this one is behind":        {map[string]time.Duration{"a": time.Hour + time.Millisecond, "b": time.Hour + s}, "a is 1h0m0s ahead, b is 1h0m1s ahead"},
		"this one is ahead":         {map[string]time.Duration{"a": -3 * s, "b": -3 * s, "c": 0}, "a is 3s behind"},
		"nobody else is there":      {map[string]time.Duration{"a": -2100 * time.Millisecond}, "a is 2.1s behind): set it"},
		"two servers say it is not": {map[string]time.Duration{"a": time.Minute, "n1": 0, "n2": s}, ""},
	} {
		err := CheckClock(c.ahead)
		if c.says == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.says, name)
			require.NotContains(t, err.Error(), "this host", "it is read at other hubs, too")
		}
	}
}

// times are those in the frames of a log, in order.
func times(t *testing.T, log ordered.Log, key sealed.Key) (all []int64) {
	t.Helper()
	_, end, err := log.Bounds(t.Context())
	require.NoError(t, err)
	for f, err := range sealed.New(log, key, sealed.Mark{}).Follow(t.Context(), sealed.Mark{}) {
		require.NoError(t, err)
		one, err := decodeFrame(f.Body)
		require.NoError(t, err)
		all = append(all, one.time)
		if f.At == end {
			break
		}
	}
	return all
}

// The clock of the hub that owned the log was ahead, by so little that the next one waits, and by so much that it doesn't.
func TestTimeDoesNotGoBackWhenTheLogGetsAnotherOwner(t *testing.T) {
	for name, c := range map[string]struct {
		ahead time.Duration
		waits bool
	}{"little": {1500 * time.Millisecond, true}, "much": {time.Hour, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log, key := orderedtest.NewMemory(), sealed.NewKey()
			first, next := newHub(t, log, key, "first"), newHub(t, log, key, "next")
			first.now = func() time.Time { return time.Now().Add(c.ahead) }
			cl := &testCluster{t: t, acked: make(map[uint64]string)}
			t.Cleanup(next.kill)
			t.Cleanup(first.kill)
			first.start()
			cl.awaitOwner(first)
			m, j := first.owner()
			require.NoError(t, j.Sync([]journal.RecordChange{{ID: 1, Value: []byte("x")}}))
			next.start()
			require.Eventually(t, func() bool {
				next.mu.Lock()
				defer next.mu.Unlock()
				return next.member.At() >= m.At()
			}, 30*time.Second, time.Millisecond)
			last := m.LogTime()
			m.Release(t.Context())
			cl.awaitOwner(next)
			if c.waits {
				require.False(t, time.Now().Before(last), "it owned the log before its clock had passed what is in it")
			} else {
				require.True(t, time.Now().Before(last))
			}
			next.kill()
			all := times(t, log, key)
			require.IsNonDecreasing(t, all)
			require.GreaterOrEqual(t, all[len(all)-1], last.UnixMilli())
		})
	}
}
