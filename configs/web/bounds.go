package web

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/edgebus/edgebus/configs"
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
	seats chan struct{} // holds a value for each that is taken
	each  int           // how many of them one host may have; 0: all
	open  atomic.Int64  // connections
	full  atomic.Int64  // times that there was no seat

	mu    sync.Mutex
	hosts map[netip.Addr]int
}

// newRoom leaves half of the seats to others, whoever comes: nobody has signed in yet.
func newRoom(l configs.Limits) *room {
	r := &room{seats: make(chan struct{}, l.Requests), hosts: make(map[netip.Addr]int)}
	if l.PerAddress > 0 {
		r.each = min(l.PerAddress, max(1, l.Requests/2))
	}
	return r
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

// come counts a host's connection, unless it has as many as it may have.
func (r *room) come(host netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.each > 0 && host.IsValid() && r.hosts[host] >= r.each {
		r.full.Add(1)
		return false
	}
	r.hosts[host]++
	return true
}

func (r *room) gone(host netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hosts[host]--; r.hosts[host] == 0 {
		delete(r.hosts, host)
	}
}

// hostOf is whom a connection counts for. Behind this host may be a proxy, with everybody; a host with IPv6 has as many
// addresses as it likes, all of one network.
func hostOf(remote net.Addr) (host netip.Addr) {
	tcp, ok := remote.(*net.TCPAddr)
	if !ok || tcp.IP.IsLoopback() {
		return host
	}
	host = tcp.AddrPort().Addr().Unmap().WithZone("")
	if host.Is6() {
		host = netip.PrefixFrom(host, 64).Masked().Addr()
	}
	return host
}

// bounded is a listener whose connections have to find room. One that waits for it was accepted, so that
// a listener for which nobody asks takes no room from another.
type bounded struct {
	net.Listener
	room   *room
	closed chan struct{}
	once   sync.Once
}

func (l *bounded) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		host := hostOf(conn.RemoteAddr())
		if !l.room.come(host) {
			_ = conn.Close() // which tells nobody anything: there was no word yet
			continue
		}
		if err := l.room.enter(l.closed); err != nil {
			l.room.gone(host)
			return nil, errors.Join(err, conn.Close())
		}
		l.room.open.Add(1)
		return &guest{Conn: conn, leave: sync.OnceFunc(func() {
			l.room.open.Add(-1)
			l.room.gone(host)
			<-l.room.seats
		})}, nil
	}
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
