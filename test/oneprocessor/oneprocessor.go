// SPDX-License-Identifier: Apache-2.0

// Package oneprocessor is how tests see that work on a single of Go's processors gives way to others. It knows nothing of what the work is.
package oneprocessor

import (
	"runtime"
	"sync/atomic"
	"testing"
)

// Use gives Go a single processor until the test ends.
func Use(t testing.TB) {
	before := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// GivesWay reports whether others run between few pieces of work, of which done counts those that were done. It returns when enough was
// looked at; the work goes on.
func GivesWay(done *atomic.Int64) bool {
	for done.Load() < 100 {
		runtime.Gosched()
	}
	few := 0
	const looks = 100
	for range looks {
		before := done.Load()
		runtime.Gosched() // to the end of the queue in which whom the network has woken waits
		if done.Load()-before <= 8 {
			few++
		}
	}
	return few > looks*9/10
}
