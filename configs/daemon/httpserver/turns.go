package httpserver

import (
	"runtime"
	"time"
)

// turnMost is how long a watcher keeps its turn. One that takes longer waits for its client, and lets the next one go.
const turnMost = time.Millisecond

// Turns lets as many watchers write at a time as there are processors. One change wakes all watchers, and hundreds of
// goroutines that run at once delay every other message of the process.
type Turns struct {
	taken chan struct{}
}

// NewTurns makes turns of which none is taken.
func NewTurns() *Turns { return &Turns{make(chan struct{}, runtime.GOMAXPROCS(0))} }

// Take waits for a turn, and has it until leave is called.
func (t *Turns) Take() (leave func()) {
	t.taken <- struct{}{}
	late := time.AfterFunc(turnMost, t.leave)
	return func() {
		if late.Stop() {
			t.leave()
		}
	}
}

func (t *Turns) leave() { <-t.taken }
