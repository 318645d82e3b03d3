package tree

import "sync"

// queue holds steps, which change a state B, until they are run. Its owner closes it first and then runs what waits, so
// that each step is run, or its sender told that it is not.
type queue[B any] struct {
	limit  int
	ready  chan struct{} // holds a value while steps wait
	closed chan struct{}

	mu    sync.Mutex
	room  sync.Cond
	steps []func(B) // those before first were taken
	first int
	over  bool
}

// init makes the queue ready for use; at most limit steps wait in it.
func (q *queue[B]) init(limit int) {
	q.limit, q.ready, q.closed = limit, make(chan struct{}, 1), make(chan struct{})
	q.room.L = &q.mu
}

// Put hands a step over, and reports whether it will be run: not after Close. It blocks while the queue is full. A step
// must not put another: it could wait for itself.
func (q *queue[B]) Put(step func(B)) bool {
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

// run takes the steps that wait, and those that come meanwhile, in the order in which they were put, while more
// returns true for the number taken so far. It returns that number.
func (q *queue[B]) run(state B, more func(ran int) bool) (ran int) {
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

func (q *queue[B]) take() (step func(B)) {
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
func (q *queue[B]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.steps) - q.first
}

// Close takes no more steps. Those that wait can still be run.
func (q *queue[B]) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.over {
		q.over = true
		close(q.closed)
		q.room.Broadcast()
	}
}

// Closed is closed by Close.
func (q *queue[B]) Closed() <-chan struct{} { return q.closed }

func (q *queue[B]) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}
