package session

import (
	"sync"
	"time"
)

const (
	batchBytes  = 64 << 10        // one write call carries about this much
	keepBuffer  = 256 << 10       // a larger buffer is not kept for the next one
	controlRoom = 256 << 10       // answers that may wait before the client is no longer read
	closeGrace  = 2 * time.Second // for the last packets, when a connection is closed
)

// Conn is what a Writer needs of a connection.
type Conn interface {
	Write([]byte) (int, error)
	SetWriteDeadline(time.Time) error
	Close() error
}

// Writer owns writing to one connection, in a goroutine of its own: answers
// first, then what a session has to send, many packets to a call.
type Writer struct {
	conn    Conn
	timeout time.Duration
	wake    chan struct{}
	done    chan struct{}

	mu      sync.Mutex
	room    sync.Cond
	control []byte
	session *Session
	closing bool
}

// NewWriter makes a writer that gives up on a write after timeout. Run has to be
// started by the caller, who owns the goroutine.
func NewWriter(conn Conn, timeout time.Duration) *Writer {
	w := &Writer{conn: conn, timeout: timeout, wake: make(chan struct{}, 1), done: make(chan struct{})}
	w.room.L = &w.mu
	return w
}

// Run writes until the writer is closed or the connection fails, and closes the
// connection.
func (w *Writer) Run() {
	defer close(w.done)
	defer func() { _ = w.conn.Close() }()
	defer w.Close()
	var buf []byte
	for {
		out, s, closing := w.take(buf[:0])
		if s != nil {
			out = s.drain(w, out, batchBytes)
		}
		if len(out) > 0 {
			if !w.write(out) {
				return
			}
			if buf = out; cap(buf) > keepBuffer {
				buf = nil
			}
			continue
		}
		if closing {
			return
		}
		if s != nil && s.pull(w) {
			continue
		}
		<-w.wake
	}
}

// take fetches the waiting answers, and says what else there is to do.
func (w *Writer) take(b []byte) (out []byte, s *Session, closing bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out = append(b, w.control...)
	if w.control = w.control[:0]; cap(w.control) > keepBuffer {
		w.control = nil
	}
	w.room.Broadcast()
	if w.closing {
		return out, nil, true
	}
	return out, w.session, false
}

func (w *Writer) write(b []byte) bool {
	w.mu.Lock()
	timeout := w.timeout
	if w.closing {
		timeout = closeGrace
	}
	_ = w.conn.SetWriteDeadline(time.Now().Add(timeout))
	w.mu.Unlock()
	_, err := w.conn.Write(b)
	return err == nil
}

// Wake tells the writer that there may be something to write. It never blocks.
func (w *Writer) Wake() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Control queues an encoded packet that doesn't come from the session. It never
// blocks: whoever reads from the client calls WaitRoom, and so limits how many
// answers there can be.
func (w *Writer) Control(packet []byte) {
	w.mu.Lock()
	if !w.closing {
		w.control = append(w.control, packet...)
	}
	w.mu.Unlock()
	w.Wake()
}

// WaitRoom blocks while the client leaves too many answers unread. It reports
// false when the writer was closed.
func (w *Writer) WaitRoom() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.control) > controlRoom && !w.closing {
		w.room.Wait()
	}
	return !w.closing
}

// Serve lets the writer drain the session, which it has to be attached to.
func (w *Writer) Serve(s *Session) {
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

// Done is closed once the connection is.
func (w *Writer) Done() <-chan struct{} { return w.done }
