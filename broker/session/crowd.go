package session

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Few is how many connections may be given something without being a crowd, and ahead
// how many of a crowd don't have to stand in the line.
const (
	Few   = 32
	ahead = 2
)

// Crowd writes to the connections that are given what many others are given, too. One
// message for hundreds is hundreds of writes: whoever waited for a message of his own
// would wait for all of them. So all but those that are one of a crowd least often stand in a
// line, from which they are served one after the other, and who still stands there when the next
// message comes gets both with one write. Nobody's socket is waited for.
type Crowd struct {
	pace func(took time.Duration) (rest time.Duration)

	mu      sync.Mutex
	line    []*Writer
	next    int // in the line
	servers int
	joined  uint64 // that ever stood in the line
	passed  uint64 // that had their turn
	turns   sync.Cond
	awaited int // by how many
}

// NewCrowd makes one. pace is told how long each turn took, and says for how long the line
// rests then.
func NewCrowd(pace func(took time.Duration) (rest time.Duration)) *Crowd {
	c := &Crowd{pace: pace}
	c.turns.L = &c.mu
	return c
}

// await waits until so many of all that ever stood in the line had their turn.
func (c *Crowd) await(last uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.awaited++
	for c.passed < last {
		c.turns.Wait()
	}
	c.awaited--
}

// quiet makes the caller the one who writes to those that nobody writes to now, and finds
// the few of them that were one of a crowd least often lately.
func quiet(all []*Writer, now time.Time) (first, others []*Writer) {
	mine := all[:0]
	second := uint32(now.Unix())
	for _, w := range all {
		busy := w.crowded(second)
		if w.begin() {
			w.busy = busy
			mine = append(mine, w)
		}
	}
	n := min(len(mine), ahead)
	if n < len(mine) {
		slices.SortFunc(mine, func(a, b *Writer) int { return cmp.Compare(a.busy, b.busy) })
	}
	return mine[:n], mine[n:]
}

// crowded counts that the writer is one of a crowd, and says how often it was lately. Two at
// the same time may count as one.
func (w *Writer) crowded(second uint32) (times uint32) {
	was := w.crowds.Load()
	times = uint32(was)>>min(second-uint32(was>>32), 31) + 1<<8 // in parts, of which to take the half
	w.crowds.Store(uint64(second)<<32 | uint64(times))
	return times
}

// join says after how many turns of all they had theirs.
func (c *Crowd) join(list []*Writer) (last uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next > len(c.line)/2 {
		c.line = slices.Delete(c.line, 0, c.next)
		c.next = 0
	}
	c.line = append(c.line, list...)
	c.joined += uint64(len(list))
	for c.servers < min(runtime.GOMAXPROCS(0), len(c.line)-c.next) {
		c.servers++
		go c.serve()
	}
	return c.joined
}

// Waiting is how many stand in the line.
func (c *Crowd) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.line) - c.next
}

// serve goes along the line until nobody stands there.
func (c *Crowd) serve() {
	for w := c.pop(0); w != nil; w = c.pop(1) {
		again, took := w.turn()
		if again {
			c.join([]*Writer{w})
		}
		time.Sleep(c.pace(took))
	}
}

// pop takes the first one out of the line, after so many; nil: there is none, and the server is gone.
func (c *Crowd) pop(after uint64) *Writer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.passed += after; c.awaited > 0 {
		c.turns.Broadcast()
	}
	if c.next == len(c.line) {
		c.line, c.next = c.line[:0], 0
		if cap(c.line) > 16*Few {
			c.line = nil
		}
		c.servers--
		return nil
	}
	w := c.line[c.next]
	c.line[c.next] = nil
	c.next++
	return w
}

// blindTurn is about what it takes to write to a connection that can't be tried. Its own goroutine
// does, and nobody waits for that.
const blindTurn = 40 * time.Microsecond

// turn writes what there is, and says whether there is more by now, and how long that took. A
// connection that doesn't take it all gets a goroutine that waits for it.
func (w *Writer) turn() (again bool, took time.Duration) {
	if w.try == nil {
		go w.run()
		return false, blindTurn
	}
	began := time.Now()
	w.state.Store(writing) // whoever called until now is heard now
	buf := buffers.Get().(*[]byte)
	rest, more, ok := w.once(buf)
	if ok && more {
		go w.runWith(buf, rest)
		return false, time.Since(began)
	}
	full := len(*buf) >= batchBytes
	release(buf)
	return ok && (full || !w.pause()), time.Since(began)
}
