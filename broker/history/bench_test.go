// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// walk is properties that change by a tenth or two each time.
type walk struct {
	names  []SeriesKey
	values []int
}

func newWalk(n int) *walk {
	w := &walk{make([]SeriesKey, n), make([]int, n)}
	for i := range w.names {
		w.names[i] = SeriesKey{"d" + strconv.Itoa(i/30), "p" + strconv.Itoa(i%30)}
	}
	return w
}

func (w *walk) record(c *clockedStore) {
	for i, name := range w.names {
		w.values[i] += 1 - 2*rand.IntN(2) + rand.IntN(2)
		c.Record(name, temperatureProperty, strconv.FormatFloat(float64(200+w.values[i])/10, 'f', -1, 64), c.now.UnixMilli()+int64(rand.IntN(20)), 0)
	}
}

// BenchmarkTheHubsCopy is what the hub does for nodes with 10,000 properties together that change each second, for ten minutes and the end of
// the hour.
func BenchmarkTheHubsCopy(b *testing.B) {
	const nodes, properties, seconds = 11, 909, 600
	var took time.Duration
	samples, received := uint64(0), 0
	for b.Loop() {
		for range nodes {
			r := openCopyRig(b, b.TempDir())
			w := newWalk(properties)
			r.now = noonTime.Truncate(time.Hour).Add(time.Hour - seconds*time.Second)
			for second := range seconds + 61 {
				w.record(r.clockedStore)
				if r.now = r.now.Add(time.Second); second%60 == 59 {
					r.Flush()
					began := time.Now()
					if !r.exchange(1000, 64<<10, neverLost) {
						b.Fatal("the copy has not everything")
					}
					took += time.Since(began)
				}
			}
			samples += r.Stats().Samples
			received += r.sent
			r.copy.Flush()
		}
	}
	b.ReportMetric(float64(took.Nanoseconds())/float64(samples), "ns-of-both/sample")
	b.ReportMetric(float64(received)/float64(samples), "sent-B/sample")
}

// BenchmarkAWeek is a node of 90 properties that change every ten seconds, whose room is a fifth of what they would take, and whose link is away
// half of the time. What its files take is looked at each minute, and at the end the copy is compared with it.
func BenchmarkAWeek(b *testing.B) {
	const room = 4 << 20
	for b.Loop() {
		dir := b.TempDir()
		r := &copyRig{clockedStore: openClocked(b, filepath.Join(dir, "node"), room), dir: dir}
		copied, err := OpenCopy(Options{Dir: filepath.Join(dir, "hub"), Bytes: room, Log: zerolog.Nop(), Now: r.o.Now})
		if err != nil {
			b.Fatal(err)
		}
		r.copy = copied
		w := newWalk(90)
		most, mostCopied := int64(0), int64(0)
		for second := 0; second < 7*24*3600; second += 10 {
			w.record(r.clockedStore)
			if r.now = r.now.Add(10 * time.Second); second%60 != 50 {
				continue
			}
			r.Flush()
			most, mostCopied = max(most, r.Stats().Bytes), max(mostCopied, copied.Stats().Bytes)
			if second/1800%2 == 0 {
				r.exchange(1000, 64<<10, neverLost)
			}
		}
		r.Flush()
		r.exchange(1000, 64<<10, neverLost)
		equal := 0
		for _, name := range w.names {
			q := Query{SeriesKey: name, From: r.now.Add(-24 * time.Hour).UnixMilli(), To: r.now.UnixMilli()}
			want, err := r.Read(b.Context(), q)
			if err != nil {
				b.Fatal(err)
			}
			got, err := copied.Read(b.Context(), q)
			if err != nil {
				b.Fatal(err)
			}
			if slices.Equal(want.Times, got.Times) && slices.Equal(want.Values, got.Values) {
				equal++
			}
		}
		s := r.Stats()
		b.ReportMetric(float64(most)/room, "of-the-room")
		b.ReportMetric(float64(mostCopied)/room, "of-the-copys-room")
		b.ReportMetric(r.now.Sub(s.Oldest).Hours(), "hours-kept")
		b.ReportMetric(float64(s.Thinned), "thinned")
		b.ReportMetric(float64(s.Dropped), "dropped")
		b.ReportMetric(float64(s.Written)/7/1e6, "MB/day")
		b.ReportMetric(float64(equal), "equal-of-90")
	}
}

// BenchmarkAnHour records an hour of properties that change each second, by a tenth or two, and makes its file.
func BenchmarkAnHour(b *testing.B) {
	for _, n := range []int{900, 10_000} {
		b.Run(fmt.Sprintf("%d-properties", n), func(b *testing.B) {
			c := openClocked(b, b.TempDir(), 1<<40)
			c.now = noonTime.Truncate(time.Hour)
			w := newWalk(n)
			for b.Loop() {
				for second := range 3600 {
					w.record(c)
					c.now = c.now.Add(time.Second)
					if second%60 == 59 {
						c.Flush()
					}
				}
			}
			s := c.Stats()
			b.ReportMetric(float64(s.Written)/float64(s.Samples), "written-B/sample")
			b.ReportMetric(float64(c.closed[0].size)/float64(s.Samples)*float64(b.N), "file-B/sample")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(s.Samples), "ns/sample")
		})
	}
}
