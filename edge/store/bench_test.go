// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/link"
)

// BenchmarkCommit is how long commits of 256 keys out of 100,000 take, with
// checkpoints behind them and without.
func BenchmarkCommit(b *testing.B) {
	const keys, together = 100_000, 256
	var none sizes
	none.segment, none.slack, none.chunk = 4<<20, 1<<40, 1000
	for name, sizes := range map[string]sizes{"checkpoints": {}, "none": none} {
		b.Run(name, func(b *testing.B) {
			written := 0
			o := Options{Dir: b.TempDir(), Rand: rand.Uint64, sizes: sizes}
			o.Checkpointed = func(_ time.Duration, records int, err error) { written += records }
			s, err := Open(o)
			require.NoError(b, err)
			up := link.NewOwner(link.Up, rand.Uint64)
			n := 0
			commit := func() {
				for range together {
					n++
					putValue(b, up, fmt.Sprintf("devices/d%d/reported/p%d", n*7919%keys/10, n*7919%10), strconv.Itoa(n))
				}
				require.NoError(b, s.Commit(Batch{Up: up.TakeChanges()}))
			}
			for n < keys {
				commit()
			}
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				commit()
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
			b.ReportMetric(float64(took[len(took)-1].Microseconds()), "max-µs")
			require.NoError(b, s.Close())
			b.ReportMetric(float64(written)/float64(n), "checkpointed/update")
		})
	}
}
