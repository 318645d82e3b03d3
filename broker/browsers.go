// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	browserTime    = 12 * time.Hour // a sign-in with a browser lasts so long
	maxBrowsers    = 10_000         // sign-ins at a time
	maxBrowsersOf  = 50             // of one user: a new one ends the oldest
	cookiePrefix   = "edgebus-"     // of the names of cookies, which the server's port follows: cookies are sent to all ports of a host
	maxSignInBytes = 16 << 10
)

// browserSignIns are the sign-ins of people with browsers: each is a cookie, of which only the hash is kept. They end with the process.
type browserSignIns struct {
	now func() time.Time

	mu       sync.Mutex
	byCookie map[[sha256.Size]byte]*browserSignIn
}

// browserSignIn is one of them.
type browserSignIn struct {
	id      Identity
	expires time.Time
	end     context.CancelFunc // ends what was begun with it: requests, MQTT connections
}

// add makes a sign-in of an identity, and returns the cookie's value.
func (s *browserSignIns) add(id Identity) (cookie string, expires time.Time) {
	cookie = rand.Text()
	parent := id.Revoked
	if parent == nil {
		parent = context.Background()
	}
	one := &browserSignIn{expires: s.now().Add(browserTime)}
	if !id.Expires.IsZero() && id.Expires.Before(one.expires) {
		one.expires = id.Expires
	}
	id.Revoked, one.end = context.WithDeadline(parent, time.Now().Add(one.expires.Sub(s.now())))
	one.id = id
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byCookie == nil {
		s.byCookie = make(map[[sha256.Size]byte]*browserSignIn)
	}
	s.makeRoom(id.User)
	s.byCookie[sha256.Sum256([]byte(cookie))] = one
	return cookie, one.expires
}

// makeRoom ends the sign-ins that have expired, and the oldest of a user who has too many, or of all. The caller holds the lock.
func (s *browserSignIns) makeRoom(user string) {
	var oldest, oldestOf [sha256.Size]byte
	n := 0
	for key, one := range s.byCookie {
		if one.id.Revoked.Err() != nil {
			delete(s.byCookie, key)
			continue
		}
		if o := s.byCookie[oldest]; o == nil || one.expires.Before(o.expires) {
			oldest = key
		}
		if one.id.User != user {
			continue
		}
		n++
		if o := s.byCookie[oldestOf]; o == nil || one.expires.Before(o.expires) {
			oldestOf = key
		}
	}
	if n >= maxBrowsersOf {
		s.remove(oldestOf)
	}
	if len(s.byCookie) >= maxBrowsers {
		s.remove(oldest)
	}
}

func (s *browserSignIns) remove(key [sha256.Size]byte) {
	if one := s.byCookie[key]; one != nil {
		one.end()
		delete(s.byCookie, key)
	}
}

// find returns who has signed in with a cookie; nil: nobody, or not any more.
func (s *browserSignIns) find(cookie string) *Identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.byCookie[sha256.Sum256([]byte(cookie))]
	if one == nil || one.id.Revoked.Err() != nil {
		return nil
	}
	id := one.id
	return &id
}

// signOut ends the sign-in of a cookie.
func (s *browserSignIns) signOut(cookie string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(sha256.Sum256([]byte(cookie)))
}

// cookieName is the name of the cookie at the server that a request came to.
func cookieName(r *http.Request) string {
	_, port, _ := net.SplitHostPort(localAddr(r).String())
	return cookiePrefix + port
}

// browserIdentity is who has signed in with the cookie of a request; ok is false if it has none, or has shown something else.
func (b *Broker) browserIdentity(r *http.Request) (id Identity, ok bool, err error) {
	if r.Header.Get("Authorization") != "" || localAddr(r) == nil {
		return id, false, nil
	}
	cookie, err := r.Cookie(cookieName(r))
	if err != nil {
		return id, false, nil //nolint:nilerr // it has none
	}
	if found := b.requests.browsers.find(cookie.Value); found != nil {
		if now := b.auth.current(found); now != nil {
			return *now, true, nil
		}
	}
	return id, true, resource.Errorf(resource.Unauthorized, "", "this browser's sign-in has ended: sign in again")
}

// setCookie gives a browser its cookie; an empty value takes it away.
func setCookie(w http.ResponseWriter, r *http.Request, value string, expires time.Time) {
	c := &http.Cookie{
		Name: cookieName(r), Value: value, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: r.TLS != nil, Expires: expires,
	}
	if value == "" {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}

// BrowserUser is what a browser is told of its user.
type BrowserUser struct {
	User  string        `json:"user"` // empty: who has not signed in
	Roles []topics.Role `json:"roles"`
	Nodes []string      `json:"nodes"`
	// Node is the node whose own broker this is; empty on the hub.
	Node string `json:"node,omitempty"`
	// Browser says that the user has signed in with this browser, and can sign out.
	Browser bool   `json:"browser,omitempty"`
	Expires string `json:"expires,omitempty"`
}

// ServeSignIn serves /session: GET says who one is, POST signs in with {"user","password"} or {"token"} and gives the browser a cookie, DELETE
// signs out. It authenticates by itself.
func (b *Broker) ServeSignIn(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Cache-Control", "no-store")
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		id, err := b.SignIn(r)
		if err != nil {
			return err
		}
		return writeUser(w, r, id, b.opts.Node)
	case http.MethodPost:
		return b.signInBrowser(w, r)
	case http.MethodDelete:
		if cookie, err := r.Cookie(cookieName(r)); err == nil {
			if id := b.requests.browsers.find(cookie.Value); id != nil {
				audit.NoteUser(r, id.User, roleNames(id))
			}
			b.requests.browsers.signOut(cookie.Value)
		}
		setCookie(w, r, "", time.Unix(1, 0))
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return resource.Errorf(resource.Invalid, "", "%s is not for /session: GET says who one is, POST signs in, DELETE signs out", r.Method)
}

func writeUser(w http.ResponseWriter, r *http.Request, id Identity, node string) error {
	_, err := r.Cookie(cookieName(r))
	who := BrowserUser{User: id.User, Roles: id.Roles, Nodes: slices.Concat([]string{}, id.Nodes), Node: node, Browser: err == nil}
	if !id.Expires.IsZero() {
		who.Expires = resource.FormatTime(id.Expires)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(who) // an error means that the client is gone
	return nil
}

// signInBrowser checks a password or token as a CONNECT's is.
func (b *Broker) signInBrowser(w http.ResponseWriter, r *http.Request) error {
	var form struct{ User, Password, Token string }
	r.Body = http.MaxBytesReader(w, r.Body, maxSignInBytes)
	if err := json.NewDecoder(r.Body).Decode(&form); err != nil {
		return resource.Errorf(resource.Invalid, "", `the body must be JSON: {"user":"…","password":"…"} or {"token":"…"}`)
	}
	as := r.Clone(context.WithoutCancel(r.Context()))
	as.Header.Del("Cookie")
	if form.Token != "" {
		as.Header.Set("Authorization", "Bearer "+form.Token)
	} else {
		if form.User == "" || form.Password == "" {
			return resource.Errorf(resource.Invalid, "", "a user name and a password are needed, or a token")
		}
		as.SetBasicAuth(form.User, form.Password)
	}
	id, err := b.identify(as)
	if err != nil {
		audit.NoteRefusal(r, clipText(form.User), err.Error())
		return err
	}
	if id.User == "" { // where nobody needs to sign in, no password is looked at
		return writeUser(w, r, id, b.opts.Node)
	}
	b.requests.browsers.give(w, r, id)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(BrowserUser{User: id.User, Roles: id.Roles, Nodes: slices.Concat([]string{}, id.Nodes), Node: b.opts.Node, Browser: true})
	return nil
}

// SignInBrowser gives a browser its cookie for a token, as ServeSignIn does for one that is typed in.
func (b *Broker) SignInBrowser(w http.ResponseWriter, r *http.Request, token string) error {
	as := r.Clone(context.WithoutCancel(r.Context()))
	as.Header.Del("Cookie")
	as.Header.Set("Authorization", "Bearer "+token)
	id, err := b.identify(as)
	if err != nil {
		audit.NoteRefusal(r, "", err.Error())
		return err
	}
	b.requests.browsers.give(w, r, id)
	return nil
}

// give signs a browser in, and gives it the cookie.
func (s *browserSignIns) give(w http.ResponseWriter, r *http.Request, id Identity) {
	audit.NoteUser(r, id.User, roleNames(&id))
	if before, err := r.Cookie(cookieName(r)); err == nil { // the browser forgets it, and nobody could sign out with it
		s.signOut(before.Value)
	}
	cookie, expires := s.add(id)
	setCookie(w, r, cookie, expires)
}
