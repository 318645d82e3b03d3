package broker

import (
	"sync"

	"github.com/edgebus/edgebus/configs/memory"
)

// backlogBytes is how much may have been handed over and have no outcome yet before those who would
// add to it are read no further.
func backlogBytes() int { return int(memory.Share(1.0/16, 4<<20, 64<<20)) }

// backlog counts the bytes of what was handed over and has no outcome yet.
type backlog struct {
	mu    sync.Mutex
	room  sync.Cond
	bytes int
	most  int // backlogBytes(), but for tests
}

func (l *backlog) init() { l.room.L, l.most = &l.mu, backlogBytes() }

func (l *backlog) add(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes += n
}

func (l *backlog) settle(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes -= n
	l.room.Broadcast()
}

// waiting is how many bytes have no outcome yet.
func (l *backlog) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes
}

// behind says whether so much waits that nobody should add to it.
func (l *backlog) behind() bool { return l.waiting() > l.most }

// wait makes a publisher wait while that is so. before is done first. It says whether there is room:
// a publisher that is over by then has none, and is woken to hear it.
func (l *backlog) wait(before func(), over func() bool) bool {
	if !l.behind() {
		return true
	}
	before()
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.bytes > l.most && !over() {
		l.room.Wait()
	}
	return !over()
}

// wake has those who wait look whether they are over.
func (l *backlog) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.room.Broadcast()
}

// large is from where on a publish into the tree is counted: thousands of smaller ones may wait for a commit.
const large = 4 << 10

// counted counts a message until done is called.
func (l *backlog) counted(m Message, done func(error)) func(error) {
	n := m.weight()
	if n < large {
		return done
	}
	l.add(n)
	return func(err error) {
		l.settle(n)
		done(err)
	}
}
