package web

import (
	"net"
	"net/http"
	"sync"
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

// bounded is a listener whose connections have to find room.
type bounded struct {
	net.Listener
	room   chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (l *bounded) Accept() (net.Conn, error) {
	select {
	case l.room <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.room
		return nil, err
	}
	return &guest{Conn: conn, leave: sync.OnceFunc(func() { <-l.room })}, nil
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
