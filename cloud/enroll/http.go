// SPDX-License-Identifier: Apache-2.0

package enroll

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/broker/daemon/httpserver"
	"github.com/edgebus/edgebus/topics/resource"
)

const maxRotationOverlap = 2 * 365 * 24 * time.Hour

// RotateRequest asks for a new authority.
type RotateRequest struct {
	// Overlap is how long the old one is trusted beside it, such as 2160h; empty: as long as a node's certificate lives.
	Overlap string `json:"overlap,omitempty"`
}

// ServeHTTP serves /enroll/: invitations, the authority, and revocation. It is for operators of all nodes; the authority's
// certificates are also for everyone who may read anything.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request, id broker.Identity) error {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")[1:]
	is := func(method string, path ...string) bool {
		return r.Method == method && slices.EqualFunc(path, parts, func(want, have string) bool { return want == "*" || want == have })
	}
	if is(http.MethodGet, "authority") {
		return httpserver.SendJSON(w, s.o.Authority.Status())
	}
	if !id.AllNodes() {
		return resource.Errorf(resource.Forbidden, "", "this is for operators of all nodes")
	}
	by := id.User
	switch {
	case is(http.MethodPost, "invitations"):
		var in InviteRequest
		if err := httpserver.ReadBody(r, &in); err != nil {
			return err
		}
		audit.NoteName(r, in.Node)
		out, err := s.invitations.invite(r.Context(), in, by)
		return httpserver.SendJSONOr(w, out, err)
	case is(http.MethodGet, "invitations"):
		list, err := s.invitations.list(r.Context())
		slices.SortFunc(list, func(a, b Invitation) int { return a.Created.Compare(b.Created) })
		for i := range list {
			list[i].ID = list[i].ID[:shortID]
		}
		return httpserver.SendJSONOr(w, list, err)
	case is(http.MethodDelete, "invitations", "*"):
		return httpserver.SendJSONOr(w, struct{}{}, s.invitations.uninvite(r.Context(), parts[1], by))
	case is(http.MethodPost, "authority", "rotate"):
		var in RotateRequest
		if err := httpserver.ReadBody(r, &in); err != nil {
			return err
		}
		overlap := s.o.Authority.o.NodeValidity
		if in.Overlap != "" {
			var err error
			if overlap, err = time.ParseDuration(in.Overlap); err != nil || overlap <= 0 || overlap > maxRotationOverlap {
				return resource.Errorf(resource.Invalid, "overlap", "%.40q is not a duration from 1s to 17520h, such as 2160h", in.Overlap)
			}
		}
		if err := s.o.Authority.Rotate(overlap); err != nil {
			return err
		}
		return httpserver.SendJSON(w, s.o.Authority.Status())
	case is(http.MethodPost, "nodes", "*", "revoke"):
		return httpserver.SendJSONOr(w, struct{}{}, s.revoke(parts[1], by, false))
	}
	return resource.Errorf(resource.NotFound, "", "there is nothing at %s %s", r.Method, r.URL.Path)
}
