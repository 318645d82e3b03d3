package watch

import (
	"runtime"
	"time"
)

// turnMost is how long a turn may take. Whoever takes longer waits for its client, and keeps nobody else.
const turnMost = time.Millisecond

// Turns has watchers tell what has changed one after the other. One change wakes all of them, and if they were
// hundreds at once, whoever waits for a message would wait for all of them. A nil Turns lets everybody go.
type Turns struct {
	places chan struct{} // taken ones
	pace   func(took time.Duration) (rest time.Duration)
}

// NewTurns makes one. pace is told how long each turn took, and says for how long nobody has one then; nil: there are
// no turns.
func NewTurns(pace func(took time.Duration) (rest time.Duration)) *Turns {
	if pace == nil {
		return nil
	}
	return &Turns{make(chan struct{}, runtime.GOMAXPROCS(0)), pace}
}

// Take waits for a turn, for no longer than those before take, and has it until leave is called.
func (t *Turns) Take() (leave func()) {
	if t == nil {
		return func() {}
	}
	t.places <- struct{}{}
	began := time.Now()
	late := time.AfterFunc(turnMost, t.leave)
	return func() {
		if late.Stop() {
			time.Sleep(t.pace(time.Since(began)))
			t.leave()
		}
	}
}

func (t *Turns) leave() { <-t.places }
