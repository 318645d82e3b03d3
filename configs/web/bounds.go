package web

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// patient gives every request a time in which it must have come, and its answer one in
// which it must have been read, so that nobody holds a connection by doing nothing.
func patient(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Where a deadline can't be set, as in tests, there is no connection to be held.
		rc, now := http.NewResponseController(w), time.Now()
		if r.ContentLength != 0 { // or it would end a watch
			_ = rc.SetReadDeadline(now.Add(bodyTimeout))
		}
		_ = rc.SetWriteDeadline(now.Add(answerTimeout))
		h.ServeHTTP(w, r)
	})
}

// room is that for connections.
type room struct {
	seats chan struct{} // holds a value for each that is taken, or kept for the next to come
	open  atomic.Int64  // connections
	full  atomic.Int64  // times that there was no seat
}

// enter waits for a seat.
func (r *room) enter(closed <-chan struct{}) error {
	select {
	case r.seats <- struct{}{}:
		return nil
	default:
	}
	r.full.Add(1)
	select {
	case r.seats <- struct{}{}:
		return nil
	case <-closed:
		return net.ErrClosed
	}
}

func (r *room) leave() { <-r.seats }

// bounded is a listener whose connections have to find room.
type bounded struct {
	net.Listener
	room   *room
	closed chan struct{}
	once   sync.Once
}

func (l *bounded) Accept() (net.Conn, error) {
	if err := l.room.enter(l.closed); err != nil {
		return nil, err
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		l.room.leave()
		return nil, err
	}
	l.room.open.Add(1)
	return &guest{Conn: conn, leave: sync.OnceFunc(func() {
		l.room.open.Add(-1)
		l.room.leave()
	})}, nil
}

func (l *bounded) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// guest gives its place back.
type guest struct {
	net.Conn
	leave func()
}

func (g *guest) Close() error {
	defer g.leave()
	return g.Conn.Close()
}
