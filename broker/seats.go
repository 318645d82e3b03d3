package broker

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
)

// seat is what a connection counts for: its user, if it has one, and the host it comes from,
// but for this one: behind it may be a proxy, with everybody.
type seat struct {
	user string
	host netip.Addr
}

func seatOf(id Identity, remote net.Addr) seat {
	s := seat{user: id.User}
	if tcp, ok := remote.(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
		s.host = tcp.AddrPort().Addr().Unmap().WithZone("")
	}
	return s
}

// seats count connections, and HTTP requests under way, by user and by host.
type seats struct {
	mu    sync.Mutex
	users map[string]int
	hosts map[netip.Addr]int
}

// take counts one more, or says why there is no room. The one that it takes over, if any, makes room.
func (s *seats) take(at, over seat, l Limits) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	users, hosts := s.users[at.user], s.hosts[at.host]
	if at.user == over.user {
		users--
	}
	if at.host == over.host {
		hosts--
	}
	switch {
	case at.user != "" && l.PerUser > 0 && users >= l.PerUser:
		return fmt.Sprintf("%s has as many connections as one user may have: %d (limits.perUser)", validText(at.user), l.PerUser)
	case at.host.IsValid() && l.PerAddress > 0 && hosts >= l.PerAddress:
		return fmt.Sprintf("there are as many connections from %s as there may be from one address: %d (limits.perAddress)", at.host, l.PerAddress)
	}
	if s.users == nil {
		s.users, s.hosts = make(map[string]int), make(map[netip.Addr]int)
	}
	s.users[at.user]++
	s.hosts[at.host]++
	return ""
}

func (s *seats) leave(at seat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users[at.user]--; s.users[at.user] == 0 {
		delete(s.users, at.user)
	}
	if s.hosts[at.host]--; s.hosts[at.host] == 0 {
		delete(s.hosts, at.host)
	}
}
