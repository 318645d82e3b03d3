// Package steps is how a tree's state is changed: many goroutines put steps into a
// queue, one takes all that wait as one batch and commits it. It knows nothing of
// what a step does. Whoever runs them closes the queue first and then runs what waits, so
// that each step that was put is run, or its sender told that it is not.
package steps

import "sync"

// Queue holds steps, which change a state B, until they are run.
type Queue[B any] struct {
	limit  int
	ready  chan struct{} // holds a value while steps wait
	closed chan struct{}

	mu    sync.Mutex
	room  sync.Cond
	steps []func(B) // those before first were taken
	first int
	over  bool
}

// New makes a queue in which at most limit steps wait. Beyond that who puts one waits.
func New[B any](limit int) *Queue[B] {
	q := &Queue[B]{limit: limit, ready: make(chan struct{}, 1), closed: make(chan struct{})}
	q.room.L = &q.mu
	return q
}

// Put hands a step over, and says whether it will be run: not after Close. A step
// must not put another, or it may wait for itself.
func (q *Queue[B]) Put(step func(B)) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.steps)-q.first >= q.limit && !q.over {
		q.room.Wait()
	}
	if q.over {
		return false
	}
	if q.first > len(q.steps)/2 && len(q.steps) == cap(q.steps) {
		left := copy(q.steps, q.steps[q.first:])
		clear(q.steps[left:])
		q.steps, q.first = q.steps[:left], 0
	}
	q.steps = append(q.steps, step)
	q.signal()
	return true
}

// Ready has a value while steps wait.
func (q *Queue[B]) Ready() <-chan struct{} { return q.ready }

// Run runs the steps that wait on a state, and those that come meanwhile, in the
// order in which they were put, as long as more, which is told how many it was, wants
// another. It says how many.
func (q *Queue[B]) Run(state B, more func(ran int) bool) (ran int) {
	for ; more(ran); ran++ {
		step := q.take()
		if step == nil {
			return ran
		}
		step(state)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.steps) > q.first {
		q.signal()
	}
	return ran
}

func (q *Queue[B]) take() (step func(B)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.steps) == q.first {
		return nil
	}
	step, q.steps[q.first] = q.steps[q.first], nil
	if q.first++; q.first == len(q.steps) {
		q.steps, q.first = q.steps[:0], 0
	}
	q.room.Signal()
	return step
}

// Len counts the steps that wait.
func (q *Queue[B]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.steps) - q.first
}

// Close takes no more steps. Those that wait can still be run.
func (q *Queue[B]) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.over {
		q.over = true
		close(q.closed)
		q.room.Broadcast()
	}
}

// Closed is closed by Close.
func (q *Queue[B]) Closed() <-chan struct{} { return q.closed }

func (q *Queue[B]) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}
