// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"net"
	"sync"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/edgebus/edgebus/broker/quota"
)

// quotas bound how much of what all clients share one user, node or address may hold.
type quotas struct {
	users, hosts *quota.Quota // connections, and HTTP requests under way
	requests     *quota.Quota // of these, the HTTP requests
	persistent   *quota.Quota // sessions that outlive their connections
	queued       *quota.Quota // bytes of messages that wait or are not acknowledged
	state        *quota.Quota // bytes of filters, wills, topic aliases and QoS 2 states
	retained     *quota.Quota // bytes of retained messages
	unfinished   *quota.Quota // bytes of memory for packets that have not arrived whole
	unsigned     *quota.Quota // the same, of clients that haven't signed in
}

// maxUnsigned is how many bytes of unfinished packets clients hold at most that haven't signed in. A CONNECT that comes at once,
// or is small, isn't counted.
const maxUnsigned = 16 << 20

// unfinishedPackets is how many of the largest packets limits.unfinished has room for at least, since one user has no more than
// is free.
const unfinishedPackets = 4

func newQuotas(l Limits) quotas {
	limit := func(n int, setting string) quota.Limit { return quota.Limit{Most: int64(n), Setting: setting} }
	perUser := limit(l.PerUser, "limits.perUser")
	unfinished, unsigned := limit(0, ""), limit(maxUnsigned, "limits.unfinished")
	if l.Unfinished > 0 {
		unfinished = limit(int(max(l.Unfinished, unfinishedPackets*l.Packet)), "limits.unfinished")
		unsigned.Most = min(unsigned.Most, unfinished.Most)
	}
	return quotas{
		users:      quota.New("connections", "user", perUser, quota.Limit{}),
		hosts:      quota.New("connections", "address", limit(l.PerAddress, "limits.perAddress"), quota.Limit{}),
		requests:   halfQuota("HTTP requests under way", l.Requests, "limits.requests"),
		persistent: quota.New("sessions that outlive their connections", "user", perUser, limit(l.Sessions, "limits.sessions")),
		queued:     quota.NewShared("bytes of messages", "user", limit(int(l.Session.All), "limits.session.all")),
		state:      quota.NewShared("bytes of filters, wills, topic aliases and QoS 2 states", "user", limit(int(l.Session.State), "limits.session.state")),
		retained:   quota.NewShared("bytes of retained messages", "user or node", limit(int(l.Retained.Bytes), "limits.retained.bytes")),

		unfinished: quota.NewShared("bytes of unfinished packets", "user", unfinished),
		unsigned:   quota.NewShared("bytes of unfinished CONNECTs", "address", unsigned),
	}
}

// NewWatchQuota makes the quota of open watches of an HTTP API. One user has half of them at most.
func NewWatchQuota(most int) *quota.Quota { return halfQuota("watches", most, "limits.watches") }

func halfQuota(what string, most int, setting string) *quota.Quota {
	return quota.New(what, "user", quota.Limit{Most: int64(most+1) / 2, Setting: "half of " + setting}, quota.Limit{Most: int64(most), Setting: setting})
}

// quotaHolder is whom a connection counts for: its user, if it has one, and the host it comes from. The loopback
// address doesn't count, since a proxy on this host may connect for many clients.
type quotaHolder struct{ user, host string }

func quotaHolderOf(id *Identity, remote net.Addr) quotaHolder {
	s := quotaHolder{user: id.User}
	if tcp, ok := remote.(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
		s.host = peerNetwork(tcp)
	}
	return s
}

// takeConnection counts a connection or request for its owner, or returns the limit that it exceeds. If the connection
// takes over another one of the owner over, that is not counted against it.
func (q *quotas) takeConnection(at, over quotaHolder) error {
	if err := takeQuota(q.users, at.user, over.user); err != nil {
		return err
	}
	err := takeQuota(q.hosts, at.host, over.host)
	if err != nil {
		q.users.Add(at.user, -1)
	}
	return err
}

func takeQuota(q *quota.Quota, key, over string) error {
	if key == over {
		q.Add(key, 1)
		return nil
	}
	return q.Take(key, 1)
}

// releaseConnection ends what takeConnection counted.
func (q *quotas) releaseConnection(at quotaHolder) {
	q.users.Add(at.user, -1)
	q.hosts.Add(at.host, -1)
}

// connQuotas is what a connection holds of the quotas, for its user, or for its host until the client has signed in.
type connQuotas struct {
	c          *conn
	host       string       // at the other end, as limits for each address count it
	holder     *quotaHolder // of its place among the connections; nil: it has none
	signedIn   bool         // its user is known, and answers for it; the reading goroutine's
	aliasBytes int          // what its topic aliases count for

	releasing sync.Mutex // release: the connection's own goroutine and who takes its session over may come at once
}

// release ends counting the connection for its user and host. Whoever ends the connection calls it, once no packet of
// it is handled any more.
func (q *connQuotas) release() {
	c := q.c
	q.releasing.Lock()
	defer q.releasing.Unlock()
	c.in.release()
	c.b.quotas.state.Add(c.ident.User, -int64(q.aliasBytes))
	q.aliasBytes = 0
	q.releaseConnection()
}

func (q *connQuotas) releaseConnection() {
	if q.holder != nil {
		q.c.b.quotas.releaseConnection(*q.holder)
		q.holder = nil
	}
}

// countUnfinished counts n more bytes of memory for a packet that has not arrived whole: for the user, or for the address of
// a client that hasn't signed in.
func (q *connQuotas) countUnfinished(n int) error {
	c := q.c
	unfinished, key := c.b.quotas.unfinished, c.ident.User
	if !q.signedIn {
		unfinished, key = c.b.quotas.unsigned, q.host
	}
	if n <= 0 {
		unfinished.Add(key, int64(n))
		return nil
	}
	if err := unfinished.Take(key, int64(n)); err != nil {
		return packets.Code{Code: codeQuota, Reason: reasonOf(err)}
	}
	return nil
}

// takeConnection counts the connection for its user and its host, or refuses it. The caller holds the identifier's lock.
func (q *connQuotas) takeConnection() error {
	c := q.c
	at, over := quotaHolderOf(c.ident, c.RemoteAddr()), quotaHolder{}
	if old := c.b.clients.connected(c.ident.ClientID); old != nil && old.quotas.holder != nil && old.quotas.holder.user == at.user {
		over = *old.quotas.holder
	}
	if err := c.b.quotas.takeConnection(at, over); err != nil {
		return &tooManyConnectionsOf{err}
	}
	q.holder = &at
	return nil
}

// tooManyConnectionsOf is the error for a connection that is one too many of its user's or host's.
type tooManyConnectionsOf struct{ error }

func (e *tooManyConnectionsOf) Unwrap() error { return e.error }
