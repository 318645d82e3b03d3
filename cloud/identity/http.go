// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/broker/daemon/httpserver"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// ServeHTTP answers /tokens, and /tokens/ID for DELETE. It is for operators of all nodes.
func (t *Tokens) ServeHTTP(w http.ResponseWriter, r *http.Request, id broker.Identity) error {
	if !id.AllNodes() {
		return resource.Errorf(resource.Forbidden, "", "tokens are for operators of all nodes")
	}
	name, one := strings.CutPrefix(r.URL.Path, "/tokens/")
	switch {
	case r.Method == http.MethodGet && !one:
		list := t.List()
		for i := range list {
			list[i].ID = list[i].ID[:shownID]
		}
		return httpserver.SendJSON(w, list)
	case r.Method == http.MethodPost && !one:
		var in TokenRequest
		if err := httpserver.ReadBody(r, &in); err != nil {
			return err
		}
		if err := checkMaker(id, in); err != nil {
			return err
		}
		if err := in.limitTTL(id, t.o.Now()); err != nil {
			return err
		}
		audit.NoteName(r, in.User)
		out, err := t.Create(r.Context(), in, makerOf(id))
		return httpserver.SendJSONOr(w, out, err)
	case r.Method == http.MethodDelete && one:
		return httpserver.SendJSONOr(w, struct{}{}, t.Revoke(r.Context(), name, id.User))
	}
	return resource.Errorf(resource.NotFound, "", "there is nothing at %s %s", r.Method, r.URL.Path)
}

// limitTTL bounds a token by the sign-in of its maker, if that ends: who has taken that for five minutes has nothing for five years.
func (r *TokenRequest) limitTTL(id broker.Identity, now time.Time) error {
	if id.Expires.IsZero() {
		return nil
	}
	left := id.Expires.Sub(now).Truncate(time.Second)
	ttl, err := resource.ParseTTL(r.TTL, min(defaultTTL, left), maxTTL)
	switch {
	case err != nil:
		return err
	case ttl > left:
		return resource.Errorf(resource.Forbidden, "ttl", "%s is longer than %s is signed in for, until %s (by a certificate or a provider's token), and no token outlives the sign-in that made it: "+
			"give a shorter time or none, or sign in as one of auth.users with a password", r.TTL, id.User, resource.FormatTime(id.Expires))
	}
	r.TTL = ttl.String()
	return nil
}

// checkMaker returns an error if a token would have more rights than its maker.
func checkMaker(id broker.Identity, r TokenRequest) error {
	administers := r.Role == topics.RoleController || r.Role == topics.RoleOperator && slices.Contains(r.Nodes, "*")
	switch {
	case id.Token != "":
		return resource.Errorf(resource.Forbidden, "", "the holder of a token makes no tokens: they would outlive its revocation. Sign in with a password, a certificate or edgebus login")
	case id.User == "" && administers:
		return resource.Errorf(resource.Forbidden, "role", "an anonymous user may not read Secrets, and makes no token that may: sign in as one of auth.users, "+
			"or make a token for some nodes or of a viewer")
	}
	return nil
}
