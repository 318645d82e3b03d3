package session

import (
	"runtime"
	"sync"
)

// DirectWrites is how many connections one batch writes to itself. More go through the fan-out queue.
const DirectWrites = 32

// Fanout is the queue of connections that one batch gave something to, when they are too many
// for the publisher's own goroutine to write to. As many workers as there are processors take
// them in the order in which they came; no worker waits for a client's socket. A connection
// stands in the queue once: what it is given until its turn comes leaves with the same write.
type Fanout struct {
	mu      sync.Mutex
	queue   []*Writer
	next    int // in the queue
	workers int
	queued  uint64 // connections that ever entered the queue
	written uint64 // and that left it
	drained sync.Cond
}

// NewFanout makes an empty queue. It has goroutines only while it isn't empty.
func NewFanout() *Fanout {
	f := new(Fanout)
	f.drained.L = &f.mu
	return f
}

// Waiting is how many connections stand in the queue.
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

// await blocks until every connection up to last has been written to.
func (f *Fanout) await(last uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.written < last {
		f.drained.Wait()
	}
}

// work writes to one connection after the other until the queue is empty. Other goroutines may
// run after each: without that the runtime looks at the network only when all are written.
func (f *Fanout) work() {
	for w := f.pop(); w != nil; w = f.pop() {
		again := w.writeOnce()
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

// writeOnce writes what there is, and reports whether there is more by now. A connection that
// doesn't take it all at once, or can't tell (TLS, WebSocket), gets a goroutine of its own.
func (w *Writer) writeOnce() (again bool) {
	if w.try == nil {
		go w.run()
		return false
	}
	w.state.Store(writing) // what was queued until here is part of this write
	buf := buffers.Get().(*[]byte)
	rest, more, ok := w.once(buf)
	if ok && more {
		go w.runWith(buf, rest)
		return false
	}
	full := len(*buf) >= batchBytes
	release(buf)
	return ok && (full || !w.pause())
}

// WriteBatch are the writers that are to be flushed once a reader has dealt with all that
// arrived together. A nil WriteBatch wakes them at once.
type WriteBatch struct {
	Fanout  *Fanout
	writers []*Writer
	queued  uint64 // the last of them in the fan-out queue
}

// Add has the writer flushed with the batch.
func (b *WriteBatch) Add(w *Writer) {
	switch {
	case b == nil:
		w.Wake()
	case w.batch.Load() != b:
		w.batch.Store(b)
		b.writers = append(b.writers, w)
	}
}

func (w *Writer) wakeWith(b *WriteBatch) { b.Add(w) }

// Flush writes to a few writers itself, and has the fan-out queue write to many.
func (b *WriteBatch) Flush() { b.flush((*Writer).flush) }

// FlushAsync is Flush for a goroutine that has no time to write.
func (b *WriteBatch) FlushAsync() { b.flush((*Writer).Wake) }

func (b *WriteBatch) flush(one func(*Writer)) {
	for _, w := range b.writers {
		w.batch.CompareAndSwap(b, nil) // from now on what it is given is somebody else's to flush
	}
	if len(b.writers) <= DirectWrites {
		for _, w := range b.writers {
			one(w)
		}
	} else {
		idle := b.writers[:0]
		for _, w := range b.writers {
			if w.begin() { // else whoever writes to it looks again
				idle = append(idle, w)
			}
		}
		b.queued = b.Fanout.add(idle...)
	}
	clear(b.writers)
	if b.writers = b.writers[:0]; cap(b.writers) > DirectWrites {
		b.writers = nil
	}
}

// Await blocks until the fan-out queue has written to all that the batch put there.
func (b *WriteBatch) Await() {
	if b.queued > 0 {
		b.Fanout.await(b.queued)
		b.queued = 0
	}
}
