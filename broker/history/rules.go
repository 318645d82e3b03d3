// SPDX-License-Identifier: Apache-2.0

package history

import (
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"time"

	"github.com/edgebus/edgebus/broker/daemon/metrics"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	pruneEvery = time.Hour // since time alone lets values become too old
	// absentFor is how long the past of a Device is kept that there is no more: it may be a mistake.
	absentFor = 24 * time.Hour
)

// Rules say what is kept of which Device.
type Rules struct {
	devices func(context.Context) (map[string]resource.Bundle, error)
	every   time.Duration // looks whether they have changed
	now     func() time.Time
	all     map[string]resource.Bundle // as of the last look
	absent  map[string]time.Time       // since when a Device is not there
	seen    uint64                     // the rules that were followed last
	pruned  time.Time
	changed bool // they were others before, or a Device has been absent for long enough
}

// NewRules makes Rules. devices are all Devices, by their UIDs, of which is asked every so often.
func NewRules(devices func(context.Context) (map[string]resource.Bundle, error), every time.Duration, now func() time.Time) *Rules {
	return &Rules{devices: devices, every: every, now: now, absent: make(map[string]time.Time)}
}

// Run calls prune when the rules have changed, and each hour, until ctx ends.
func (r *Rules) Run(ctx context.Context, prune func(context.Context)) error {
	tick := time.NewTicker(r.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if r.Changed(ctx) {
			prune(ctx)
		}
	}
}

// Changed is whether there may be something to delete: the rules are others, or an hour has passed.
func (r *Rules) Changed(ctx context.Context) bool {
	all, err := r.devices(ctx)
	if err != nil {
		return false
	}
	sum := uint64(0)
	for uid, b := range all {
		h := fnv.New64a()
		fmt.Fprint(h, uid, b.Device.Spec.Local)
		if d := b.Device.Spec.History; d != nil {
			fmt.Fprint(h, *d)
		}
		for i := range b.Model.Spec.Properties {
			if p := &b.Model.Spec.Properties[i]; p.History != nil {
				fmt.Fprint(h, p.Name, *p.History)
			}
		}
		sum += h.Sum64()
	}
	now := r.now()
	r.all = all
	if sum == r.seen && now.Sub(r.pruned) < pruneEvery && !now.Before(r.pruned) {
		return false
	}
	r.changed = sum != r.seen || now.Before(r.pruned)
	for _, since := range r.absent {
		gone := since.Add(absentFor)
		r.changed = r.changed || !gone.After(now) && gone.After(r.pruned)
	}
	r.seen, r.pruned = sum, now
	return true
}

// Prune deletes what is not to be kept from a store, as of the last look.
func (r *Rules) Prune(s *Store) error {
	all, now := r.all, r.now()
	for uid := range r.absent {
		if _, there := all[uid]; there {
			delete(r.absent, uid)
		}
	}
	err := s.Prune(func(name SeriesKey) int64 {
		b, there := all[name.Device]
		if there {
			return b.HistoryRule(name.Property).Floor(now)
		}
		since, known := r.absent[name.Device]
		if !known {
			r.absent[name.Device] = now
		}
		if known && now.Sub(since) >= absentFor {
			return math.MaxInt64
		}
		return math.MinInt64
	}, r.changed)
	if err != nil {
		r.seen = 0 // the next look deletes what this one has not
	}
	return err
}

// AddMetrics adds the figures of a store to a group.
func AddMetrics(g *metrics.Group[Stats]) {
	type s = Stats
	g.Gauge("bytes", "Bytes on disk of what properties were.", func(s s) float64 { return float64(s.Bytes) })
	g.Gauge("limit_bytes", "limits.history.bytes.", func(s s) float64 { return float64(s.Limit) })
	g.Gauge("files", "Files with an hour each.", func(s s) float64 { return float64(s.Files) })
	g.Gauge("series", "Properties that are being recorded.", func(s s) float64 { return float64(s.Series) })
	g.Gauge("oldest_timestamp_seconds", "When what is kept begins.", func(s s) float64 { return metrics.TimeValue(s.Oldest) })
	g.Gauge("stopped", "1 while nothing is recorded, because it can't be written.", func(s s) float64 { return metrics.BoolValue(s.Stopped != "") })
	g.Counter("samples_total", "Values that were recorded.", func(s s) float64 { return float64(s.Samples) })
	g.Counter("written_bytes_total", "Bytes that were written for them.", func(s s) float64 { return float64(s.Written) })
	g.Counter("lost_samples_total", "Values that could not be written.", func(s s) float64 { return float64(s.Lost) })
	g.Counter("thinned_files_total", "Files that were thinned to make room.", func(s s) float64 { return float64(s.Thinned) })
	g.Counter("dropped_files_total", "Files that were dropped to make room.", func(s s) float64 { return float64(s.Dropped) })
	g.Counter("damaged_files_total", "Files that were found damaged, and are not served.", func(s s) float64 { return float64(s.Damaged) })
}
