package broker

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/topics/resource"
)

// errEnded is why a connection ended whose session an operator has ended.
var errEnded = errors.New("an operator has ended the session")

// Administers says whether the identity is an operator of everything here: on the hub of all nodes, on a
// node's own broker of that node.
func (b *Broker) Administers(id Identity) bool { return b.acl.administers(id) }

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
		if id.own() {
			continue
		}
		s := resource.Session{Client: c.id, User: id.User, Connected: c.conn != nil, Remote: id.Remote}
		if !s.Connected {
			s.Since, s.Expires = resource.Time(c.left), resource.Time(c.left.Add(c.lasting))
		}
		all = append(all, found{c, s})
	}
	b.clients.mu.Unlock()
	list := make([]resource.Session, len(all))
	for i, f := range all {
		waiting, unacked, bytes := f.sess.Load()
		f.s.Messages, f.s.Bytes, f.s.Subscriptions = waiting+unacked, bytes, len(f.filters())
		list[i] = f.s
	}
	slices.SortFunc(list, func(a, b resource.Session) int { return strings.Compare(a.Client, b.Client) })
	return list
}

// EndSession ends a client's session, its connection, if it has one, and what waits for it. It returns once
// that is on disk.
func (b *Broker) EndSession(clientID string) error {
	cs := &b.clients
	cs.mu.Lock()
	cl := cs.byID[clientID]
	if cl == nil || cl.rights().own() || cs.closed {
		cs.mu.Unlock()
		return resource.Errorf(resource.NotFound, "client", "there is no session of a client %.200q", clientID)
	}
	conn, lost := cl.conn, cl.will
	cl.conn, cl.will = nil, nil
	cl.stopTimers()
	cs.remove(cl)
	cs.mu.Unlock()
	if conn != nil {
		conn.disconnect(codeAdministrative, errEnded)
		if w := conn.takeWill(); w != nil {
			lost = w
		}
		<-conn.stopped // or what it sent could still be applied
		b.tellDisconnected(conn, errEnded)
	}
	b.end(cl)
	if lost != nil {
		b.publishWill(lost)
	}
	if cl.record == 0 {
		return nil
	}
	return b.store.now(nil)
}

// ServeSessions answers GET with the list of sessions, and DELETE by ending that of the parameter client. It is for
// those whom Administers names.
func (b *Broker) ServeSessions(w http.ResponseWriter, r *http.Request, id Identity) error {
	if !b.Administers(id) {
		return resource.Errorf(resource.Forbidden, "", "sessions are for operators of all nodes, on a node's own broker of that node (auth.users)")
	}
	w.Header().Set("Content-Type", "application/json")
	if r.Method != http.MethodDelete {
		_ = json.NewEncoder(w).Encode(resource.SessionList{Sessions: b.Sessions()}) // or the client is gone
		return nil
	}
	clientID := r.URL.Query().Get("client")
	if clientID == "" {
		return resource.Errorf(resource.Invalid, "client", "is missing: DELETE /sessions?client=ID")
	}
	if err := b.EndSession(clientID); err != nil {
		return err
	}
	b.log.Info().Str("client", clientID).Str("by", who(id)).Str("remote", id.Remote).Msg("session ended by an operator")
	_, _ = w.Write([]byte("{}\n"))
	return nil
}
