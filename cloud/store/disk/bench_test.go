// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/edgebus/edgebus/broker/journal"
	"github.com/edgebus/edgebus/topics/resource"
)

const benchWriters = 64

var benchData = []byte(`{"metadata":{"name":"lamp","uid":"00000000-0000-0000-0000-000000000000"},"spec":{"deviceModelRef":{"name":"dimmable"},"nodeName":"n1","desired":{"power":"ON"}}}`)

// BenchmarkGroupCommit measures compare-and-swaps of 64 writers, each on its own
// object, against a loop that writes the same groups into bbolt with nothing
// around it. The ratio is what counts; the figures are the machine's.
func BenchmarkGroupCommit(b *testing.B) {
	s := openStore(b, Options{Path: filepath.Join(b.TempDir(), "log")})
	for w := range benchWriters {
		_, err := s.Create(ctx, device(fmt.Sprint("d", w), "0"))
		require.NoError(b, err)
	}
	var commits atomic.Int64
	commit := s.commit
	s.commit = func(changes []journal.RecordChange) error { commits.Add(1); return commit(changes) }
	b.ResetTimer()
	start := time.Now()
	swapAll(b, s, b.N)
	ours := float64(b.N) / time.Since(start).Seconds()
	b.StopTimer()
	group := max(1, int(int64(b.N)/max(1, commits.Load())))
	raw := rawGroups(b, b.N, group)
	b.ReportMetric(ours, "cas/s")
	b.ReportMetric(raw, "raw/s")
	b.ReportMetric(ours/raw, "ratio")
	b.ReportMetric(float64(group), "group")
}

func swapAll(b *testing.B, s *Store, n int) {
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for w := range benchWriters {
		wg.Go(func() {
			o := device(fmt.Sprint("d", w), "")
			got, err := s.Get(ctx, o.Key)
			for i := 0; err == nil && left.Add(-1) >= 0; i++ {
				o.Data = fmt.Appendf(nil, "%s %d", benchData, i)
				got, err = s.Update(ctx, o, got.Rev)
			}
			if err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
}

func rawGroups(b *testing.B, n, group int) float64 {
	db, err := bbolt.Open(filepath.Join(b.TempDir(), "raw.db"), 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType})
	require.NoError(b, err)
	defer func() { _ = db.Close() }()
	bucket := []byte("data")
	require.NoError(b, db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket(bucket)
		return err
	}))
	start := time.Now()
	for done := 0; done < n; done += group {
		require.NoError(b, db.Update(func(tx *bbolt.Tx) error {
			data := tx.Bucket(bucket)
			var errs []error
			for i := range group {
				errs = append(errs, data.Put(fmt.Append(nil, "default\x00d", i), fmt.Appendf(nil, "%s %d", benchData, done)))
			}
			return errors.Join(errs...)
		}))
	}
	return float64(n) / time.Since(start).Seconds()
}

// BenchmarkGet is a read beside a busy committer.
func BenchmarkGet(b *testing.B) {
	s := openStore(b, Options{Path: filepath.Join(b.TempDir(), "log")})
	for w := range 1000 {
		_, err := s.Create(ctx, device(fmt.Sprint("d", w), "0"))
		require.NoError(b, err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_, err := s.Update(ctx, device("d1", fmt.Sprint(i)), 0)
				if errors.Is(err, resource.Unavailable) {
					return
				}
			}
		}
	})
	key := device("d500", "").Key
	for b.Loop() {
		if _, err := s.Get(ctx, key); err != nil {
			b.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
}
