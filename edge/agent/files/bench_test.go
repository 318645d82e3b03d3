// SPDX-License-Identifier: Apache-2.0

package files

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/edgebus/edgebus/topics/resource"
)

// BenchmarkUpdate changes all files of a version, from Stage to Commit, beside what the disk takes for the smallest update there can
// be: the same number of new files synced one by one, and their directory.
func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("files=%d", n), func(b *testing.B) {
			r := newTestStore(b)
			raw := filepath.Join(r.base, "raw")
			require.NoError(b, os.Mkdir(raw, 0o755))
			var took, limit []time.Duration
			for round := 0; b.Loop(); round++ {
				var files []resource.RenderedFile
				for i := range n {
					files = append(files, regularFile(fmt.Sprintf("/etc/app/%d", i), fmt.Sprintf("%1000d", round)))
				}
				begin := time.Now()
				r.apply(strconv.Itoa(round), files...)
				took = append(took, time.Since(begin))
				begin = time.Now()
				rawFiles(b, raw, n)
				limit = append(limit, time.Since(begin))
			}
			for name, all := range map[string][]time.Duration{"update": took, "raw": limit} {
				slices.Sort(all)
				b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, name+"-p50-ms")
				b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, name+"-p99-ms")
			}
		})
	}
}

func rawFiles(b *testing.B, dir string, n int) {
	for i := range n {
		f, err := os.Create(filepath.Join(dir, "new"))
		require.NoError(b, err)
		_, err = f.Write(make([]byte, 1000))
		require.NoError(b, err)
		require.NoError(b, f.Sync())
		require.NoError(b, f.Close())
		require.NoError(b, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, strconv.Itoa(i))))
	}
	d, err := os.Open(dir)
	require.NoError(b, err)
	require.NoError(b, d.Sync())
	require.NoError(b, d.Close())
}
