package twin

import (
	"runtime"
	"slices"
)

// piece is how many items are prepared at once; so few are prepared as they are used.
const piece = 128

// ahead uses all items, one after the other. With many of them all processors prepare what comes next: prepare
// must look at nothing that use changes.
func ahead[T, R any](items []T, prepare func(T) R, use func(T, R)) {
	if len(items) <= piece {
		for _, item := range items {
			use(item, prepare(item))
		}
		return
	}
	pieces := make(chan chan []R, runtime.GOMAXPROCS(0)) // bounds what is prepared and not used
	go func() {
		defer close(pieces)
		for some := range slices.Chunk(items, piece) {
			ready := make(chan []R, 1)
			pieces <- ready
			go func() {
				made := make([]R, 0, len(some))
				for _, item := range some {
					made = append(made, prepare(item))
				}
				ready <- made
			}()
		}
	}()
	for ready := range pieces {
		for _, made := range <-ready {
			use(items[0], made)
			items = items[1:]
		}
	}
}
