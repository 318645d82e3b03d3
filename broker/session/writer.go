package session

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	batchBytes  = 64 << 10         // one write call carries about this much
	keepBuffer  = 256 << 10        // a larger buffer is not kept for the next one
	keepControl = 4 << 10          // nor is a larger one for the answers of one connection
	controlRoom = 256 << 10        // answers that may wait before the client is no longer read
	fewRounds   = 8                // of writing retained messages, of which nobody minds
	writeMost   = time.Millisecond // that a write takes; longer, and it waits for the client
	closeGrace  = 2 * time.Second  // for the last packets, when a connection is closed
)

// Conn is what a Writer needs of a connection.
type Conn interface {
	Write([]byte) (int, error)
	SetWriteDeadline(time.Time) error
	Close() error
}

// trier is a connection that can write as much as fits, and not wait for the rest.
type trier interface {
	TryWrite([]byte) (int, error)
}

// Writer owns writing to one connection: answers first, then what a session has to
// send, many packets to a call. It has a goroutine only while there is something to
// write, so that a connection that says nothing costs none.
type Writer struct {
	conn    Conn
	try     trier // nil: the connection can't
	timeout time.Duration
	state   atomic.Uint32
	batch   atomic.Pointer[WriteBatch] // which will flush it
	done    chan struct{}
	served  func(took time.Duration, more bool) // nil: nobody is told

	// Whoever is writing has these.
	owing  atomic.Bool // retained messages are still to be fetched
	rounds int         // of writing, since they are

	mu      sync.Mutex
	room    sync.Cond
	control []byte
	session *Session
	closing bool
	stalled bool
	limit   time.Time // set on the connection for writes
}

// What a Writer is at.
const (
	resting uint32 = iota
	writing
	called // writing, and asked to look again
	ended
)

// NewWriter makes a writer that gives up on a write that makes no progress within
// timeout. It has to be closed; its last goroutine ends when Done does.
func NewWriter(conn Conn, timeout time.Duration) *Writer {
	w := &Writer{conn: conn, timeout: timeout, done: make(chan struct{})}
	w.room.L = &w.mu
	w.try, _ = conn.(trier)
	return w
}

// ReportReplay has served told of the time that goes into retained messages: a client that is
// given many of them takes as much as one that publishes without a break. When there are more, served may
// wait. It is to be called before anything is written.
func (w *Writer) ReportReplay(served func(took time.Duration, more bool)) { w.served = served }

// Wake tells the writer that there may be something to write. It never blocks.
func (w *Writer) Wake() {
	if w.begin() {
		go w.run()
	}
}

// begin makes the caller the one who writes, unless somebody is, who then looks again.
func (w *Writer) begin() bool {
	for {
		switch w.state.Load() {
		case resting:
			if w.state.CompareAndSwap(resting, writing) {
				return true
			}
		case writing:
			if w.state.CompareAndSwap(writing, called) {
				return false
			}
		default:
			return false
		}
	}
}

// flush is Wake for a goroutine with time to write: what can be written without waiting is
// written before it returns, and no other goroutine is needed.
func (w *Writer) flush() {
	if !w.begin() {
		return
	}
	if w.try == nil {
		go w.run()
		return
	}
	buf := buffers.Get().(*[]byte)
	rest, more, ok := w.once(buf)
	if ok && (more || len(*buf) >= batchBytes || !w.pause()) {
		go w.runWith(buf, rest)
		return
	}
	release(buf)
}

// once writes what there is and can be written without waiting. It says what of it is left,
// whether that or something else has to wait, and whether the connection still stands.
func (w *Writer) once(buf *[]byte) (rest []byte, more, ok bool) {
	began := time.Now()
	out, s, closing := w.take((*buf)[:0])
	if s != nil {
		out = s.drain(w, out, batchBytes)
	}
	*buf = out
	if len(out) > 0 {
		n, err := w.try.TryWrite(out)
		if err != nil {
			w.fail(err)
			return nil, false, false
		}
		rest = out[n:]
	}
	w.tell(time.Since(began), false)
	return rest, closing || len(rest) > 0 || s != nil && s.owes(w), true
}

// pause ends writing, unless there was a call for more.
func (w *Writer) pause() bool {
	if w.state.CompareAndSwap(writing, resting) {
		return true
	}
	w.state.Store(writing)
	return false
}

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// run writes until there is nothing left to write, or the writer is closed or the
// connection fails, which it then closes.
func (w *Writer) run() { w.runWith(buffers.Get().(*[]byte), nil) }

// runWith is run after a rest that is in the buffer.
func (w *Writer) runWith(buf *[]byte, rest []byte) {
	if len(rest) > 0 {
		if _, err := w.conn.Write(rest); err != nil {
			w.fail(err)
			return
		}
	}
	for w.round(buf) {
	}
	release(buf)
}

func release(buf *[]byte) {
	if cap(*buf) <= keepBuffer {
		buffers.Put(buf)
	}
}

// round writes what there is, and says whether there may be more. Retained messages are
// fetched last: no answer waits for a store that is busy.
func (w *Writer) round(buf *[]byte) bool {
	began := time.Now()
	out, s, closing := w.take((*buf)[:0])
	if s != nil {
		out = s.drain(w, out, batchBytes)
	}
	*buf = out
	var waited time.Duration // for the client
	if len(out) > 0 {
		before := time.Now()
		if _, err := w.conn.Write(out); err != nil {
			w.fail(err)
			return false
		}
		waited = max(0, time.Since(before)-writeMost)
	}
	if closing {
		w.end()
		return false
	}
	more := len(out) >= batchBytes || s != nil && s.pull(w)
	w.tell(time.Since(began)-waited, more)
	return more || !w.pause()
}

// tell tells of the time that went into retained messages, when they are more than a few.
func (w *Writer) tell(took time.Duration, more bool) {
	if !w.owing.Load() {
		w.rounds = 0
		return
	}
	if w.rounds++; w.rounds > fewRounds && w.served != nil {
		w.served(took, more)
	}
}

// fail ends writing after an error.
func (w *Writer) fail(err error) {
	w.mu.Lock()
	w.stalled = !w.closing && errors.Is(err, os.ErrDeadlineExceeded)
	w.mu.Unlock()
	w.end()
}

func (w *Writer) end() {
	w.Close()
	w.state.Store(ended)
	_ = w.conn.Close()
	close(w.done)
}

// take fetches the waiting answers, and says what else there is to do.
func (w *Writer) take(b []byte) (out []byte, s *Session, closing bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out = append(b, w.control...)
	if w.control = w.control[:0]; cap(w.control) > keepControl {
		w.control = nil
	}
	w.room.Broadcast()
	if w.closing {
		return out, nil, true
	}
	w.allow(time.Now())
	return out, w.session, false
}

// allow gives the next write its time. Setting a timer for each would cost more than
// most writes: one that runs out a little later will do for many.
func (w *Writer) allow(now time.Time) {
	if w.limit.Sub(now) < w.timeout {
		w.limit = now.Add(w.timeout + w.timeout/8)
		_ = w.conn.SetWriteDeadline(w.limit)
	}
}

// Control queues an encoded packet that doesn't come from the session. It never
// blocks: whoever reads from the client calls WaitRoom, and so limits how many
// answers there can be.
func (w *Writer) Control(packet []byte) { w.Answer(packet, nil) }

// Answer is Control in a batch.
func (w *Writer) Answer(packet []byte, b *WriteBatch) {
	w.mu.Lock()
	if !w.closing {
		w.control = append(w.control, packet...)
	}
	w.mu.Unlock()
	b.Add(w)
}

// WaitForRoom blocks while the client leaves too many answers unread. It reports
// false when the writer was closed.
func (w *Writer) WaitForRoom() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.control) > controlRoom && !w.closing {
		w.room.Wait()
	}
	return !w.closing
}

// Start lets the writer drain the session, which it has to be attached to.
func (w *Writer) Start(s *Session) {
	w.mu.Lock()
	w.session = s
	w.mu.Unlock()
	w.Wake()
}

// serves says whether the session is being drained: the client has its CONNACK.
func (w *Writer) serves() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.session != nil
}

// Close has the waiting answers written, within a bounded time, and then the
// connection closed. It doesn't wait for that; Done does.
func (w *Writer) Close() {
	w.mu.Lock()
	if !w.closing {
		w.closing = true
		_ = w.conn.SetWriteDeadline(time.Now().Add(closeGrace))
		w.room.Broadcast()
	}
	w.mu.Unlock()
	w.Wake()
}

// Stalled says whether the connection ended because its client read nothing.
func (w *Writer) Stalled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stalled
}

// Done is closed once the connection is.
func (w *Writer) Done() <-chan struct{} { return w.done }
