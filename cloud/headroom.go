package cloud

import (
	"context"
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// The collector lets as much garbage gather as there is memory in use. That is nothing while a
// hub is small, and hundreds of megabytes when it knows a hundred thousand Devices.
const (
	freeGarbage  = 32 << 20 // may gather in any case
	leastPercent = 50       // of what is in use may, however much that is: less costs too much processor time
	lookEvery    = time.Second
)

// headroom is how much garbage may gather, in percent of what is in use. It has few values,
// for changing it stops everything for a moment.
func headroom(inUse uint64) int {
	percent := 100.0
	if inUse > freeGarbage {
		percent = math.Round(10*freeGarbage/float64(inUse)) * 10
	}
	return max(int(percent), leastPercent)
}

// bound keeps the program's garbage in bounds until the function that it returns is called. Whoever set GOGC knows better.
func bound() (stop func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		follow(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

func follow(ctx context.Context) {
	now := 100
	before := debug.SetGCPercent(now)
	defer func() { debug.SetGCPercent(before) }()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if want := headroom(inUse()); want != now {
			debug.SetGCPercent(want)
			now = want
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// inUse is what the last collection left.
func inUse() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}
