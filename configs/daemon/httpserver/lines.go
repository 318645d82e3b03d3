package httpserver

import (
	"net/http"
	"slices"
	"time"
)

// piece is about how much is put together before it is written. What there is to tell at one time is mostly less.
const piece = 64 << 10

// Lines are the events of one watcher, as JSON lines. All that are added before a Flush are one write.
type Lines struct {
	w     http.ResponseWriter
	c     *http.ResponseController
	buf   []byte
	begun bool // something was written since the last flush

	allowed time.Duration // see Allow
	read    int           // bytes that were written since the client was given time
}

// BeginWatch answers that the watch has begun, which the client is told by the first Flush.
func BeginWatch(w http.ResponseWriter) *Lines {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	return &Lines{w: w, c: http.NewResponseController(w), begun: true}
}

// Add adds an event about an object, which is JSON.
func (l *Lines) Add(kind string, object []byte) error {
	l.buf = slices.Grow(l.buf, len(object)+len(kind)+len(`{"type":"","object":}`)+1)
	l.buf = append(append(append(l.buf, `{"type":"`...), kind...), `","object":`...)
	l.buf = append(append(l.buf, object...), "}\n"...)
	if len(l.buf) < piece {
		return nil
	}
	return l.write()
}

func (l *Lines) write() error {
	if l.read += len(l.buf); l.read >= piece && l.allowed > 0 {
		l.Allow(l.allowed)
	}
	_, err := l.w.Write(l.buf)
	l.buf, l.begun = l.buf[:0], true
	return err
}

// Flush sends what was added, if anything was.
func (l *Lines) Flush() error {
	if len(l.buf) > 0 {
		if err := l.write(); err != nil {
			return err
		}
	}
	l.buf = nil // watchers mostly wait
	if !l.begun {
		return nil
	}
	l.begun = false
	return l.c.Flush()
}

// Allow gives the client so long to read what is written until the next Allow, and as long again for every piece of
// what is much: who reads slowly gets it all, who reads nothing doesn't. It costs more than it looks, and a deadline
// that is over ends some connections also when nothing is written: call it now and then, not for each event, and allow
// for longer than until the next call.
func (l *Lines) Allow(d time.Duration) {
	l.allowed, l.read = d, 0
	_ = l.c.SetWriteDeadline(time.Now().Add(d)) // where it can't be set, the server's own holds
}
