// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/topics/resource"
)

// errEndedByOperator is the reason for disconnecting the client of a session that an operator ends.
var errEndedByOperator = errors.New("an operator has ended the session")

// MayRead reports whether the identity may receive what is published to a topic.
func (b *Broker) MayRead(id Identity, topic string) bool { return b.acl.read(&id, topic) }

// MayPublish returns an error if an identity may not publish to a topic.
func (b *Broker) MayPublish(id Identity, topic string) error { return b.acl.publish(&id, topic) }

// Heard returns when a connected client last sent anything, a PINGREQ included, and its keep-alive; ok is false if the client is not
// connected. at is zero if it has sent nothing since its CONNECT.
func (b *Broker) Heard(clientID string) (at time.Time, keepAlive time.Duration, ok bool) {
	c := b.clients.connected(clientID)
	if c == nil {
		return at, 0, false
	}
	if ms := c.keepAlive.lastHeard.Load(); ms != 0 {
		at = time.UnixMilli(ms)
	}
	return at, c.keepAlive.interval, true
}

// Sessions lists the clients' sessions, in order of their client identifiers.
func (b *Broker) Sessions() []resource.Session {
	type found struct {
		*client
		s resource.Session
	}
	var all []found
	b.clients.mu.Lock()
	for _, c := range b.clients.byID {
		id := c.rights()
		if id.isBroker() {
			continue
		}
		s := resource.Session{Client: c.id, User: id.User, Connected: c.conn != nil, Remote: id.Remote}
		if !s.Connected {
			s.Since, s.Expires = resource.FormatTime(c.disconnectedAt), resource.FormatTime(c.disconnectedAt.Add(c.expiryInterval))
		}
		all = append(all, found{c, s})
	}
	b.clients.mu.Unlock()
	list := make([]resource.Session, len(all))
	for i, f := range all {
		waiting, unacked, bytes := f.sess.Backlog()
		f.s.Messages, f.s.Bytes, f.s.Subscriptions = waiting+unacked, bytes, len(f.filters())
		f.s.Missed, _ = f.sess.Missed()
		list[i] = f.s
	}
	slices.SortFunc(list, func(a, b resource.Session) int { return strings.Compare(a.Client, b.Client) })
	return list
}

// EndSession ends a client's session with its connection and its queue. It returns once that is on disk.
func (b *Broker) EndSession(clientID string) error {
	done := b.clients.locks.lock(clientID)
	cl := b.clients.session(clientID)
	if cl == nil || cl.rights().isBroker() {
		done()
		return resource.Errorf(resource.NotFound, "client", "there is no session of a client %.200q", clientID)
	}
	if c := b.clients.connected(clientID); c != nil {
		c.expel(codeAdministrative, errEndedByOperator)
		<-c.end.stopped // no packet of it is handled any more
		b.clients.endConnection(c, errEndedByOperator, true)
	}
	cl.end(true)
	done()
	if cl.record == 0 {
		return nil
	}
	return b.store.commitNow(nil)
}

// EndIdentity ends what identities hold that have lost their rights: connections, sessions with their subscriptions and
// queues, wills, which are not published, and HTTP requests, such as watches. A connection's DISCONNECT has the reason. Nothing that they sent and that was
// not handled yet is. It reports whether any was connected.
func (b *Broker) EndIdentity(ended func(*Identity) bool, reason string) (connected bool) {
	for _, cl := range b.clients.chosen(ended) {
		if cl.rights().isBroker() {
			continue
		}
		if c := b.clients.connected(cl.id); c != nil && ended(c.ident) {
			connected = true
			c.revoke(codeAdministrative, errors.New(reason)) // its session ends with it
		}
		cl.endDisconnected()
	}
	b.requests.end(ended)
	return connected
}

// ServeSessions answers GET with the list of sessions, and DELETE by ending the session of the client in the parameter
// client. Only operators of all nodes are permitted, on a node's own broker of that node.
func (b *Broker) ServeSessions(w http.ResponseWriter, r *http.Request, id Identity) error {
	if !b.acl.administers(&id) {
		return resource.Errorf(resource.Forbidden, "", "sessions are for operators of all nodes, on a node's own broker of that node (auth.users)")
	}
	w.Header().Set("Content-Type", "application/json")
	if r.Method != http.MethodDelete {
		_ = json.NewEncoder(w).Encode(resource.SessionList{Sessions: b.Sessions()}) // an error means that the client is gone
		return nil
	}
	clientID := r.URL.Query().Get("client")
	if clientID == "" {
		return resource.Errorf(resource.Invalid, "client", "is missing: DELETE /sessions?client=ID")
	}
	audit.NoteName(r, clientID)
	if err := b.EndSession(clientID); err != nil {
		return err
	}
	b.log.Info().Str("client", clientID).Str("by", roleAndUser(&id)).Str("remote", id.Remote).Msg("session ended by an operator")
	_, _ = w.Write([]byte("{}\n"))
	return nil
}
