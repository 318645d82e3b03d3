// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	writeBytes          = 64 << 10         // of one call of Write, about
	maxKeptBuffer       = 256 << 10        // a larger buffer is not kept for the next write
	maxKeptControl      = 4 << 10          // nor is a larger one for the answers of one connection
	maxUnwrittenControl = 256 << 10        // bytes of unwritten answers before the client is no longer read
	replayRounds        = 8                // of writing retained messages that are not reported
	slowWrite           = time.Millisecond // a longer write waits for the client
	closeGrace          = 2 * time.Second  // for the last packets when a connection is closed
)

// Conn is what a Writer needs of a connection.
type Conn interface {
	Write([]byte) (int, error)
	SetWriteDeadline(time.Time) error
	Close() error
}

// nonblockingConn is a Conn that can write as much as its socket takes without waiting.
type nonblockingConn interface {
	TryWrite([]byte) (int, error)
}

// Writer writes to one connection: answers first, then the session's messages, many packets with one call. It has a
// goroutine only while there is something to write, so that an idle connection costs none.
type Writer struct {
	conn    Conn
	try     nonblockingConn // nil: conn is none
	timeout time.Duration
	state   atomic.Uint32
	batch   atomic.Pointer[WriteBatch] // which will flush it
	done    chan struct{}
	report  func(took time.Duration, more bool) // nil: nothing is reported

	// Of the goroutine that is writing.
	replaying atomic.Bool // the session has retained messages to send
	rounds    int         // of writing since then

	mu      sync.Mutex
	room    sync.Cond
	control []byte
	session *Session
	closing bool
	stalled bool
	limit   time.Time // the connection's write deadline
}

// States of a Writer.
const (
	writerIdle uint32 = iota
	writerWriting
	writerWoken // writing, and there may be more to write
	writerEnded
)

// NewWriter makes a writer that closes the connection if a write takes longer than timeout. It has to be closed; its last
// goroutine ends when Done does.
func NewWriter(conn Conn, timeout time.Duration) *Writer {
	w := &Writer{conn: conn, timeout: timeout, done: make(chan struct{})}
	w.room.L = &w.mu
	w.try, _ = conn.(nonblockingConn)
	return w
}

// ReportReplay has the time reported that goes into retained messages, if they are more than a few. While more remain,
// report may wait. It is called before anything is written.
func (w *Writer) ReportReplay(report func(took time.Duration, more bool)) { w.report = report }

// writeAsync has the connection written to, by a goroutine. It never blocks.
func (w *Writer) writeAsync() {
	if w.begin() {
		go w.run()
	}
}

func (w *Writer) wake(batch *WriteBatch) {
	if batch == nil {
		w.writeAsync()
	} else {
		batch.add(w)
	}
}

// begin makes the caller the one that writes, unless a goroutine is writing, which then looks again.
func (w *Writer) begin() bool {
	for {
		switch w.state.Load() {
		case writerIdle:
			if w.state.CompareAndSwap(writerIdle, writerWriting) {
				return true
			}
		case writerWriting:
			if w.state.CompareAndSwap(writerWriting, writerWoken) {
				return false
			}
		default:
			return false
		}
	}
}

// pause ends writing, unless the writer was woken meanwhile.
func (w *Writer) pause() bool {
	if w.state.CompareAndSwap(writerWriting, writerIdle) {
		return true
	}
	w.state.Store(writerWriting)
	return false
}

var writeBuffers = sync.Pool{New: func() any { return new([]byte) }}

func releaseBuffer(buf *[]byte) {
	if cap(*buf) <= maxKeptBuffer {
		writeBuffers.Put(buf)
	}
}

// writeNow writes once, without waiting, for a caller that has called begin. It reports whether there is more to write,
// which is the caller's to do. What has to wait (for the socket, or for retained messages) a goroutine does.
func (w *Writer) writeNow() (more bool) {
	if w.try == nil {
		go w.run()
		return false
	}
	w.state.Store(writerWriting) // what was queued until here is part of this write
	buf := writeBuffers.Get().(*[]byte)
	began := time.Now()
	out, s, closing := w.collect(buf)
	var rest []byte
	if len(out) > 0 {
		n, err := w.try.TryWrite(out)
		if err != nil {
			w.fail(err)
			return false
		}
		rest = out[n:]
	}
	w.reportRound(time.Since(began), false)
	if closing || len(rest) > 0 || s != nil && s.replayDue(w) {
		go w.runWith(buf, rest)
		return false
	}
	more = len(out) >= writeBytes
	releaseBuffer(buf)
	return more || !w.pause()
}

// run writes until there is nothing left to write, or the writer is closed or the connection fails, which it then closes.
func (w *Writer) run() { w.runWith(writeBuffers.Get().(*[]byte), nil) }

// runWith is run after the rest of a write, which is in the buffer.
func (w *Writer) runWith(buf *[]byte, rest []byte) {
	if err := w.write(rest); err != nil {
		w.fail(err)
		return
	}
	for w.round(buf) {
	}
	releaseBuffer(buf)
}

// round writes once, and reports whether there may be more. Retained messages are fetched last: no answer waits for a
// store that is busy.
func (w *Writer) round(buf *[]byte) (more bool) {
	began := time.Now()
	out, s, closing := w.collect(buf)
	var waited time.Duration // for the client
	if len(out) > 0 {
		before := time.Now()
		if err := w.write(out); err != nil {
			w.fail(err)
			return false
		}
		waited = max(0, time.Since(before)-slowWrite)
	}
	if closing {
		w.end()
		return false
	}
	more = len(out) >= writeBytes || s != nil && s.fetchRetained(w)
	w.reportRound(time.Since(began)-waited, more)
	return more || !w.pause()
}

// collect fills the buffer with what there is to write.
func (w *Writer) collect(buf *[]byte) (out []byte, s *Session, closing bool) {
	if out, s, closing = w.takeControl((*buf)[:0]); s != nil {
		out = s.drain(w, out, writeBytes)
	}
	*buf = out
	return out, s, closing
}

// takeControl takes the waiting answers, and the session if that may be drained.
func (w *Writer) takeControl(b []byte) (out []byte, s *Session, closing bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out = append(b, w.control...)
	if w.control = w.control[:0]; cap(w.control) > maxKeptControl {
		w.control = nil
	}
	w.room.Broadcast()
	if w.closing {
		return out, nil, true
	}
	w.setDeadline(time.Now())
	return out, w.session, false
}

// writePiece is how much a client has to read within the timeout: one that reads slowly but steadily is not cut, however long a packet is.
const writePiece = 16 << 10

func (w *Writer) write(out []byte) error {
	for len(out) > 0 {
		piece := out[:min(len(out), writePiece)]
		if out = out[len(piece):]; len(out) > 0 {
			w.mu.Lock()
			if !w.closing { // which has set the last deadline
				w.setDeadline(time.Now())
			}
			w.mu.Unlock()
		}
		if _, err := w.conn.Write(piece); err != nil {
			return err
		}
	}
	return nil
}

// setDeadline gives the next write its time. It is set for several writes at once: a timer for each would cost more than
// most writes.
func (w *Writer) setDeadline(now time.Time) {
	if w.limit.Sub(now) < w.timeout {
		w.limit = now.Add(w.timeout + w.timeout/8)
		_ = w.conn.SetWriteDeadline(w.limit)
	}
}

func (w *Writer) reportRound(took time.Duration, more bool) {
	if !w.replaying.Load() {
		w.rounds = 0
		return
	}
	if w.rounds++; w.rounds > replayRounds && w.report != nil {
		w.report(took, more)
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
	w.state.Store(writerEnded)
	_ = w.conn.Close()
	close(w.done)
}

// Control queues an encoded packet that doesn't come from the session, to be written with the batch; nil: at once. It never
// blocks: the goroutine that reads from the client calls WaitForRoom, which bounds the unwritten answers.
func (w *Writer) Control(packet []byte, batch *WriteBatch) {
	w.mu.Lock()
	if !w.closing {
		w.control = append(w.control, packet...)
	}
	w.mu.Unlock()
	w.wake(batch)
}

// WaitForRoom blocks while too many answers are unwritten. It reports false once the writer is closed.
func (w *Writer) WaitForRoom() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.control) > maxUnwrittenControl && !w.closing {
		w.room.Wait()
	}
	return !w.closing
}

// Start has the writer drain the session, to which it has to be attached.
func (w *Writer) Start(s *Session) {
	w.mu.Lock()
	w.session = s
	w.mu.Unlock()
	w.writeAsync()
}

// started reports whether the session is being drained: its client has got the CONNACK.
func (w *Writer) started() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.session != nil
}

// Close has the waiting answers written, within a bounded time, and then the connection closed. It doesn't wait for that;
// Done does.
func (w *Writer) Close() {
	w.mu.Lock()
	if !w.closing {
		w.closing = true
		_ = w.conn.SetWriteDeadline(time.Now().Add(closeGrace))
		w.room.Broadcast()
	}
	w.mu.Unlock()
	w.writeAsync()
}

// Stalled reports whether the connection ended because its client read nothing.
func (w *Writer) Stalled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stalled
}

// Done is closed once the connection is.
func (w *Writer) Done() <-chan struct{} { return w.done }
