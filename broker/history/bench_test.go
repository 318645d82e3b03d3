package history

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"
)

// BenchmarkAnHour records an hour of properties that change each second, by a tenth or two, and makes its file.
func BenchmarkAnHour(b *testing.B) {
	for _, n := range []int{900, 10_000} {
		b.Run(fmt.Sprintf("%d-properties", n), func(b *testing.B) {
			c := openClocked(b, b.TempDir(), 1<<40)
			c.now = noonTime.Truncate(time.Hour)
			names, values := make([]SeriesKey, n), make([]int, n)
			for i := range names {
				names[i] = SeriesKey{"d" + strconv.Itoa(i/30), "p" + strconv.Itoa(i%30)}
			}
			for b.Loop() {
				for second := range 3600 {
					for i, name := range names {
						values[i] += 1 - 2*rand.IntN(2) + rand.IntN(2)
						c.Record(name, temperatureProperty, strconv.FormatFloat(float64(200+values[i])/10, 'f', -1, 64), c.now.UnixMilli()+int64(rand.IntN(20)), 0)
					}
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
