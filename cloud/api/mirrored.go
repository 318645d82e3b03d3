// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/httpserver"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// A hub that stands by has mirrors of objects, and sends lists and watches of them to the owner with the offer to answer them itself. The owner authenticates
// and authorizes them as all others. If it takes the offer it doesn't answer with objects, but says whose request it is and how far it is itself: the other hub
// waits until its mirror is as far, and answers with the same code.

// mirroredHeader is in the owner's answer if it takes an offer, or would have taken it if there were a mirror.
const (
	mirroredHeader = "Edgebus-Mirrored"
	offerTaken     = "taken"
	offerWanted    = "wanted"
)

// mirrorOffer is what a hub that stands by offers with a request.
type mirrorOffer struct {
	Owner uint64 `json:"owner,omitempty"` // of which it has a mirror; 0: it has none
	Since uint64 `json:"since,omitempty"` // watches go on from this revision at the earliest
}

// mirroredAnswer is what the owner says if it takes the offer. What the other hub answers lasts no longer than it.
type mirroredAnswer struct {
	Identity broker.Identity
	Position MirrorPosition
}

// MirrorPosition is how far the owner is with a kind.
type MirrorPosition struct {
	Owner        uint64 // its process
	Rev, Changed uint64 // the newest revision, and that of the newest change of the kind
	Objects      int
}

// MirrorOptions are how the owner has other hubs answer.
type MirrorOptions struct {
	// Offered is what the hub that has sent a request offers; nil: nothing.
	Offered func(*http.Request) json.RawMessage
	// Position is how far this hub is with a kind.
	Position func(kind string) MirrorPosition
}

// mirrored has the hub that has sent a list or watch answer it, which has been authorized. It returns false if this hub is to answer.
func (s *server) mirrored(w http.ResponseWriter, r *request) (bool, error) {
	if s.Mirrors.Offered == nil || r.Method != http.MethodGet {
		return false, nil
	}
	raw := s.Mirrors.Offered(r.Request)
	if raw == nil || !r.mayBeMirrored() {
		return false, nil
	}
	var o mirrorOffer
	rev, err := parseRevision(r.Form.Get("resourceVersion"))
	if err != nil || json.Unmarshal(raw, &o) != nil {
		return false, nil //nolint:nilerr // this hub says what is wrong
	}
	at, watches := s.Mirrors.Position(r.key.Kind), httpserver.IsQueryTrue(r.Form, "watch")
	switch {
	case !watches && !r.isWhole(at.Objects):
		return false, nil
	case o.Owner != at.Owner:
		if sel, err := s.lister.selector(r); err == nil && r.watchKey(sel).Name == "" {
			w.Header().Set(mirroredHeader, offerWanted)
		}
		return false, nil
	case watches && rev > 0 && rev < o.Since:
		return false, nil
	}
	return true, s.takeOffer(w, r, at, watches)
}

// mayBeMirrored reports whether other hubs may answer a list or watch. Not of what few may read, of Events, whose nodes are those of other objects, or what needs an
// index; nor lists of one revision, which go on at any hub; nor what nodes ask for, who are noticed by that, and told more than their objects.
func (r *request) mayBeMirrored() bool {
	a, f := accessIn(r.Context()), r.Form
	return !r.kind.Sealed && !r.kind.HasCredentials && r.key.Kind != resource.KindEvent && !r.wantsSummary() && !r.asksIndex() && !f.Has("summary") &&
		f.Get("continue") == "" && f.Get("resourceVersionMatch") != "Exact" && a.role != string(topics.RoleNode) && !a.enrolls
}

// isWhole reports whether a list of so many objects has one page.
func (r *request) isWhole(objects int) bool {
	limit, err := strconv.Atoi(r.Form.Get("limit"))
	return !r.Form.Has("limit") || ignoresLimit(r.Request) || err == nil && (limit == 0 || limit >= objects)
}

// ignoresLimit reports whether a list is of whatever is there. As in Kubernetes a mirror answers it with all objects, whatever the limit.
func ignoresLimit(r *http.Request) bool {
	q := r.URL.Query()
	return q.Get("resourceVersion") == "0" && q.Get("resourceVersionMatch") == "" && q.Get("continue") == ""
}

// takeOffer says whose a request is, and how far this hub is. The answer lasts until the other hub has answered, or the user has lost the right to it.
func (s *server) takeOffer(w http.ResponseWriter, r *request, at MirrorPosition, watches bool) error {
	user := accessIn(r.Context())
	id := user.id
	id.Revoked, id.Certificate = nil, nil
	raw, err := json.Marshal(mirroredAnswer{id, at})
	if err != nil {
		return err
	}
	if watches {
		if err := s.lister.watches.Take(user.account, 1); err != nil {
			return err
		}
		defer s.lister.watches.Add(user.account, -1)
	}
	w.Header().Set(mirroredHeader, offerTaken)
	_, _ = w.Write(append(raw, '\n')) // the other hub may be gone
	c := http.NewResponseController(w)
	_ = c.Flush()
	_ = c.SetWriteDeadline(time.Time{}) // in tests there is none
	<-r.Context().Done()
	return nil
}

// Mirrors are a hub's that stands by.
type Mirrors interface {
	// Begin has a kind mirrored.
	Begin(kind string)
	// Of is of which owner a kind is mirrored, and from which revision on there are watches; 0: of none, yet.
	Of(kind string) (owner, since uint64)
	// Await waits until a mirror has what its owner had at a revision, since which no object of the kind had changed up to rev.
	Await(ctx context.Context, kind string, owner, changed, rev uint64) error
}

// MirrorServer answers at a hub that stands by.
type MirrorServer struct {
	s        *server
	mirrors  Mirrors
	answered func()
}

// NewMirrorServer makes one with the options of the API that are about lists and watches. It calls answered with each that it answers.
func NewMirrorServer(o Options, m Mirrors, answered func()) *MirrorServer {
	o.setDefaults()
	return &MirrorServer{newServer(o), m, answered}
}

// Offer is what this hub offers with a request to the owner; nil: nothing.
func (m *MirrorServer) Offer(r *http.Request) json.RawMessage {
	if r.Method != http.MethodGet {
		return nil
	}
	req, err := m.s.parse(r)
	if err != nil || req.key.Name != "" {
		return nil
	}
	var o mirrorOffer
	o.Owner, o.Since = m.mirrors.Of(req.key.Kind)
	raw, _ := json.Marshal(o) // numbers
	return raw
}

// Told takes what the owner's answer says of an offer, and reports whether this hub is to answer.
func (m *MirrorServer) Told(r *http.Request, owner http.Header) bool {
	said := owner.Get(mirroredHeader)
	owner.Del(mirroredHeader)
	if req, err := m.s.parse(r); err == nil && said == offerWanted {
		m.mirrors.Begin(req.key.Kind)
	}
	return said == offerTaken
}

// awaitTime is how long a mirror may need until it is where the owner is.
const awaitTime = 5 * time.Second

// Answer answers a request for which the owner has said that. It returns false if it can't, and nothing is answered.
func (m *MirrorServer) Answer(w http.ResponseWriter, r *http.Request, owner io.Reader) bool {
	var said mirroredAnswer
	in := json.NewDecoder(owner)
	in.DisallowUnknownFields() // an owner of a later version may say more of what the user may not
	if in.Decode(&said) != nil {
		return false
	}
	req, err := m.s.parse(r)
	if err != nil {
		return false
	}
	a, err := actAs(r, said.Identity)
	if err != nil {
		return false
	}
	ctx, stop := context.WithCancel(context.WithValue(r.Context(), accessKey{}, a))
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, owner)
		stop()
	}()
	if req.Form.Get("resourceVersion") != "0" {
		until, stop := context.WithTimeout(ctx, awaitTime)
		defer stop()
		if p := said.Position; m.mirrors.Await(until, req.key.Kind, p.Owner, p.Changed, p.Rev) != nil || ctx.Err() != nil {
			return false
		}
	}
	r = r.WithContext(ctx)
	if ignoresLimit(r) {
		q := r.URL.Query()
		q.Del("limit")
		at := *r.URL
		at.RawQuery, r.URL = q.Encode(), &at
	}
	m.answered()
	m.s.handle(func(w http.ResponseWriter, r *http.Request) error {
		err := m.s.object(w, r)
		if err != nil && ctx.Err() != nil {
			err = resource.Errorf(resource.Unavailable, "", "the hub that serves has ended; try again")
		}
		return err
	}).ServeHTTP(w, r)
	return true
}
