// SPDX-License-Identifier: Apache-2.0

package session

import (
	"runtime"
	"sync"
)

// DirectWrites is how many connections a WriteBatch writes to itself. If there are more, the fan-out queue writes to all.
const DirectWrites = 32

// Fanout is a first-in-first-out queue of connections that have something to write, for batches of many. As many workers
// as there are processors write to them; no worker waits for a client's socket. A connection is in the queue once: all
// that it is given while it waits leaves with one write (docs/adr/0028).
type Fanout struct {
	mu      sync.Mutex
	queue   []*Writer
	next    int // in the queue
	workers int
	queued  uint64 // connections that ever entered the queue
	written uint64 // and that were written to
	drained sync.Cond
}

// NewFanout makes an empty queue. It has goroutines only while it isn't empty.
func NewFanout() *Fanout {
	f := new(Fanout)
	f.drained.L = &f.mu
	return f
}

// Waiting counts the connections in the queue.
func (f *Fanout) Waiting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queue) - f.next
}

// add queues connections, and returns what await takes to wait until they have been written to.
func (f *Fanout) add(writers ...*Writer) (last uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next > len(f.queue)/2 {
		n := copy(f.queue, f.queue[f.next:])
		clear(f.queue[n:])
		f.queue, f.next = f.queue[:n], 0
	}
	f.queue = append(f.queue, writers...)
	f.queued += uint64(len(writers))
	for f.workers < min(runtime.GOMAXPROCS(0), len(f.queue)-f.next) {
		f.workers++
		go f.work()
	}
	return f.queued
}

// await blocks until as many connections have been written to as had entered the queue with the last one.
func (f *Fanout) await(last uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.written < last {
		f.drained.Wait()
	}
}

// work writes to one connection after the other until the queue is empty. It lets other goroutines run after each:
// otherwise the runtime would look at the network only when all are written.
func (f *Fanout) work() {
	for w := f.pop(); w != nil; w = f.pop() {
		again := w.writeNow()
		f.mu.Lock()
		f.written++
		f.drained.Broadcast()
		f.mu.Unlock()
		if again {
			f.add(w)
		}
		runtime.Gosched()
	}
}

// pop takes the first connection out of the queue. nil ends the worker.
func (f *Fanout) pop() *Writer {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == len(f.queue) {
		f.queue, f.next = nil, 0
		f.workers--
		return nil
	}
	w := f.queue[f.next]
	f.queue[f.next] = nil
	f.next++
	return w
}

// WriteBatch collects the connections that have something to write, until all packets that arrived together were handled.
type WriteBatch struct {
	Fanout  *Fanout
	writers []*Writer
	queued  uint64 // the last of them in the fan-out queue
}

// add has the writer flushed with the batch.
func (b *WriteBatch) add(w *Writer) {
	if w.batch.Load() != b {
		w.batch.Store(b)
		b.writers = append(b.writers, w)
	}
}

// Flush writes to a few connections itself, as far as that needs no waiting, and has the fan-out queue write to many.
func (b *WriteBatch) Flush() {
	b.flush(func(w *Writer) {
		if w.begin() && w.writeNow() {
			go w.run()
		}
	})
}

// FlushAsync is Flush for a caller that must not spend the time to write.
func (b *WriteBatch) FlushAsync() { b.flush((*Writer).writeAsync) }

func (b *WriteBatch) flush(one func(*Writer)) {
	for _, w := range b.writers {
		w.batch.CompareAndSwap(b, nil) // what it is given from now on is flushed with another batch
	}
	if len(b.writers) <= DirectWrites {
		for _, w := range b.writers {
			one(w)
		}
	} else {
		begun := b.writers[:0]
		for _, w := range b.writers {
			if w.begin() { // otherwise a goroutine is writing to it and looks again
				begun = append(begun, w)
			}
		}
		b.queued = b.Fanout.add(begun...)
	}
	clear(b.writers)
	if b.writers = b.writers[:0]; cap(b.writers) > DirectWrites {
		b.writers = nil
	}
}

// Await blocks until the fan-out queue has written to all connections of the batch.
func (b *WriteBatch) Await() {
	if b.queued > 0 {
		b.Fanout.await(b.queued)
		b.queued = 0
	}
}
