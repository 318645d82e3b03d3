package broker

import (
	"net"
	"net/netip"

	"github.com/edgebus/edgebus/broker/quota"
)

// quotas bound what one user, node or address may use up of what all share.
type quotas struct {
	users, hosts *quota.Quota // connections, and HTTP requests under way
	requests     *quota.Quota // of these, the HTTP requests
	kept         *quota.Quota // sessions that outlive their connections
	queued       *quota.Quota // bytes of messages that wait or aren't acknowledged
	state        *quota.Quota // bytes of what sessions hold besides: filters, wills, topic aliases
	retained     *quota.Quota // bytes of retained messages
}

func newQuotas(l Limits) quotas {
	limit := func(n int, setting string) quota.Limit { return quota.Limit{Most: int64(n), Setting: setting} }
	perUser := limit(l.PerUser, "limits.perUser")
	return quotas{
		users:    quota.New("connections", "user", perUser, quota.Limit{}),
		hosts:    quota.New("connections", "address", limit(l.PerAddress, "limits.perAddress"), quota.Limit{}),
		requests: halfEach("HTTP requests under way", l.Requests, "limits.requests"),
		kept:     quota.New("sessions that outlive their connections", "user", perUser, limit(l.Sessions, "limits.sessions")),
		queued:   quota.NewShared("bytes of messages", "user", limit(int(l.Session.All), "limits.session.all")),
		state:    quota.NewShared("bytes of filters, wills and topic aliases", "user", limit(int(l.Session.State), "limits.session.state")),
		retained: quota.NewShared("bytes of retained messages", "user or node", limit(int(l.Retained.Bytes), "limits.retained.bytes")),
	}
}

// Watches counts the watches of an HTTP API that are open, by user. One user has half of them at
// most, so that others can watch, too.
func Watches(most int) *quota.Quota { return halfEach("watches", most, "limits.watches") }

func halfEach(what string, most int, setting string) *quota.Quota {
	return quota.New(what, "user", quota.Limit{Most: int64(most+1) / 2, Setting: "half of " + setting}, quota.Limit{Most: int64(most), Setting: setting})
}

// seat is what a connection counts for: its user, if it has one, and the host it comes from,
// but for this one: behind it may be a proxy, with everybody.
type seat struct{ user, host string }

func seatOf(id Identity, remote net.Addr) seat {
	s := seat{user: id.User}
	if tcp, ok := remote.(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
		s.host = hostOf(tcp.AddrPort().Addr())
	}
	return s
}

func hostOf(a netip.Addr) string { return a.Unmap().WithZone("").String() }

// sit counts a connection or request, or says why there is no room. The one that it takes over,
// if any, makes room.
func (q *quotas) sit(at, over seat) error {
	if err := take(q.users, at.user, over.user); err != nil {
		return err
	}
	err := take(q.hosts, at.host, over.host)
	if err != nil {
		q.users.Add(at.user, -1)
	}
	return err
}

func take(q *quota.Quota, key, over string) error {
	if key == over {
		q.Add(key, 1)
		return nil
	}
	return q.Take(key, 1)
}

// stand gives back what sit counted.
func (q *quotas) stand(at seat) {
	q.users.Add(at.user, -1)
	q.hosts.Add(at.host, -1)
}
