// SPDX-License-Identifier: Apache-2.0

package tree

import (
	"sync"

	"github.com/edgebus/edgebus/topics/limits"
)

// queue holds steps, which change a state B, until they are run. Each sender has a part of it, and the parts take turns,
// so that a sender waits for its own steps and for one turn of each other sender. Its owner closes it first and then runs
// what waits, so that each step is run, or its sender told that it is not.
type queue[B any] struct {
	most  int // bytes that may wait
	ready chan struct{}

	mu    sync.Mutex
	room  sync.Cond
	parts map[string]*senderQueue[B] // of the senders with waiting steps
	turns []*senderQueue[B]          // the same, the next one first
	count int                        // of all steps
	held  int                        // bytes of all parts
	over  bool
}

// senderQueue is what one sender has in the queue.
type senderQueue[B any] struct {
	from  string
	steps []queuedStep[B] // those before first were taken
	first int
	held  int // bytes
	spent int // bytes that were taken in this turn
}

type queuedStep[B any] struct {
	run   func(B)
	bytes int
}

// OwnSender is the owner of a tree as the sender of steps. No user and no client has this name.
const OwnSender = "$own"

const (
	stepCost  = 256       // bytes of a step besides its message
	turnBytes = 256 << 10 // bytes that a sender's steps may have in one turn: the longest message of a link
)

func queueBytes() int { return int(limits.MemoryShare(1.0/32, 4<<20, 32<<20)) }

// init makes the queue ready for use; at most most bytes of steps wait in it.
func (q *queue[B]) init(most int) {
	q.most, q.ready = most, make(chan struct{}, 1)
	q.parts = make(map[string]*senderQueue[B])
	q.room.L = &q.mu
}

// Put hands over a step of a sender, which keeps so many bytes, and reports whether it will be run: not after Close. The
// owner itself is the sender Own. Put blocks while the sender's part is full: a sender gets no more room while its steps
// hold as much as is left for all others. A step must not put another: it could wait for itself.
func (q *queue[B]) Put(from string, bytes int, step func(B)) bool {
	bytes += stepCost
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.over && !q.fits(q.parts[from], bytes) {
		q.room.Wait()
	}
	if q.over {
		return false
	}
	p := q.parts[from]
	if p == nil {
		p = &senderQueue[B]{from: from}
		q.parts[from] = p
		q.turns = append(q.turns, p)
	}
	p.push(queuedStep[B]{step, bytes})
	q.count++
	q.held += bytes
	q.signal()
	return true
}

// fits reports whether a sender may add a step. A sender with none may take all that is left, and one step of any size
// fits into an empty queue.
func (q *queue[B]) fits(p *senderQueue[B], bytes int) bool {
	left := q.most - q.held
	return q.held == 0 || bytes <= left && (p == nil || p.held+bytes <= left)
}

func (p *senderQueue[B]) push(s queuedStep[B]) {
	if p.first > len(p.steps)/2 && len(p.steps) == cap(p.steps) {
		left := copy(p.steps, p.steps[p.first:])
		clear(p.steps[left:])
		p.steps, p.first = p.steps[:left], 0
	}
	p.steps = append(p.steps, s)
	p.held += s.bytes
}

// run takes the steps that wait, and those that come meanwhile, those of each sender in the order in which they were put,
// while more returns true for the number and the bytes taken so far. It returns that number.
func (q *queue[B]) run(state B, more func(ran, bytes int) bool) (ran int) {
	for bytes := 0; more(ran, bytes); ran++ {
		step, n := q.take()
		if step == nil {
			return ran
		}
		step(state)
		bytes += n
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.count > 0 {
		q.signal()
	}
	return ran
}

func (q *queue[B]) take() (step func(B), bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.turns) == 0 {
		return nil, 0
	}
	p := q.turns[0]
	s := p.steps[p.first]
	p.steps[p.first] = queuedStep[B]{}
	p.first++
	p.held -= s.bytes
	p.spent += s.bytes
	q.count--
	q.held -= s.bytes
	switch {
	case p.first == len(p.steps):
		delete(q.parts, p.from)
		q.next()
	case p.spent >= turnBytes:
		p.spent = 0
		q.next()
		q.turns = append(q.turns, p)
	}
	q.room.Broadcast()
	return s.run, s.bytes
}

// next ends the turn of the first part.
func (q *queue[B]) next() {
	q.turns[0] = nil
	q.turns = q.turns[1:]
}

// Len counts the steps that wait.
func (q *queue[B]) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.count
}

// Close takes no more steps. Those that wait can still be run.
func (q *queue[B]) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.over {
		q.over = true
		q.room.Broadcast()
	}
}

func (q *queue[B]) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}
