// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/audit"
	"github.com/edgebus/edgebus/broker/daemon/httpserver"
	"github.com/edgebus/edgebus/cloud/api/webhook"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/objects/rawjson"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// access is what a user may do. The zero value may do nothing.
type access struct {
	id          broker.Identity
	user, role  string
	account     string    // the name of an authenticated user; empty for all others
	expires     time.Time // of the certificate or token that the user signed in with, if any
	all         bool      // has all nodes: may do everything that only controllers don't have to themselves
	controls    bool      // is a controller
	enrolls     bool      // makes EnrollmentRequests and reads those that it made, and nothing else
	follows     bool      // copies the hub's log, and does nothing else
	acts        bool      // as a controller, see actAs: sees no more than otherwise
	reads       bool      // may read what belongs to the user's nodes
	readsShared bool      // may read what belongs to no node, except Secrets and the like
	writes      bool      // may write what belongs to the user's nodes
	nodes       []string  // patterns of their names
	given       func(node string) bool
	rule        string // why nothing else is allowed, and the setting that says so
}

// accessOf is the access of an identity, by the roles and nodes that hold over MQTT as well.
func accessOf(id broker.Identity) access {
	a := access{id: id, user: id.User, account: id.User, nodes: id.Nodes, given: id.GivenNode, expires: id.Expires}
	if a.user == "" {
		a.user = "anonymous"
	}
	nodes, by := strings.Join(id.Nodes, ", "), grantedBy(id)
	a.controls = id.Has(topics.RoleController)
	switch {
	case a.controls:
		a.role, a.reads, a.readsShared, a.writes, a.all = "controller", true, true, true, true
	case id.Has(topics.RoleOperator):
		a.role, a.reads, a.readsShared, a.writes = "operator", true, true, true
		a.all = id.AllNodes()
		a.rule = fmt.Sprintf(`%s is an operator of the nodes %s (%s); what belongs to others, or to all, needs nodes: ["*"]`, a.user, nodes, by)
		if a.account == "" {
			a.rule = "Secrets and Repositories are for operators who are signed in, as one of auth.users"
		}
	case id.Has(topics.RoleViewer):
		a.role, a.reads, a.readsShared = "viewer", true, true
		a.rule = fmt.Sprintf("%s is a viewer of the nodes %s (%s), who changes nothing and sees no Secrets or Repositories", a.user, nodes, by)
	case id.Has(topics.RoleNode):
		a.role, a.reads, a.nodes = "node", true, []string{id.Node}
		a.given = func(node string) bool { return node == id.Node }
		a.rule = fmt.Sprintf("%s is a node, which reads what is its own and writes its Node's status; people are listed in auth.users, with a role", id.Node)
	case id.Has(topics.RoleEnroller):
		a.role, a.enrolls = "enroller", true
		a.rule = fmt.Sprintf("%s is an enroller (%s), which makes EnrollmentRequests, reads each that it made by its name, and may do nothing else", a.user, by)
	case id.Has(topics.RoleFollower):
		a.role, a.follows = "follower", true
		a.rule = fmt.Sprintf("%s is a follower (%s), which copies the hub's log, and may do nothing else", a.user, by)
	default:
		a.role, a.rule = "mapper", a.user+" is a mapper (auth.users), and has nothing to do here"
	}
	return a
}

// grantedBy says where it is written what a person may do.
func grantedBy(id broker.Identity) string {
	switch {
	case id.Token != "":
		return "the token"
	case !id.Expires.IsZero() && id.CertExpires.IsZero():
		return "auth.oidc.groups"
	}
	return "auth.users"
}

// turnName is the name by which the user waits for turns.
func (a access) turnName() string { return cmp.Or(a.account, a.role+"/"+a.id.Node) }

// hasNode reports whether a node is one of the user's.
func (a access) hasNode(node string) bool { return a.all || a.given != nil && a.given(node) }

// may reports whether the user may do that with any object of a kind; has, of the server, reports with which.
func (a access) may(verb string, k *Kind) bool {
	switch {
	case a.enrolls:
		return k.storeKind() == resource.KindEnrollmentRequest && (verb == "create" || verb == "get")
	case a.renews(k):
		return verb == "create" || verb == "get"
	case k.WrittenBy != "" && !a.controls && slices.Contains(writeVerbs, verb):
		return false
	case k.Sealed || k.HasCredentials:
		return a.readsCredentials()
	case a.all:
		return true
	case slices.Contains(readVerbs, verb):
		return a.reads && k.Node != nil || a.readsShared
	case k.Name == resource.KindEvent:
		return false // only the hub writes Events
	}
	return a.writes && k.Node != nil
}

// mayRefer refuses what the user may not refer to, since a node would get what the user may not read: Secrets, Repositories and ConfigMaps
// like the objects themselves, blobs like their contents. nil: everything may be referred to.
func (a access) mayRefer(kinds []Kind) func(objects.Reference) error {
	if a.readsCredentials() {
		return nil
	}
	return func(ref objects.Reference) error {
		i := slices.IndexFunc(kinds, func(k Kind) bool { return k.dialect == nil && k.Name == ref.Kind })
		switch {
		case i >= 0 && a.may("get", &kinds[i]), ref.Kind == objects.KindBlob && a.all && !ref.Fetched:
			return nil
		case ref.Fetched:
			return resource.Errorf(resource.Forbidden, ref.Field, "the %s is from a Repository, which %s may not read: %s", ref.What(), a.user, a.rule)
		}
		return resource.Errorf(resource.Forbidden, ref.Field, "a node would get the %s, which %s may not read: %s", ref.What(), a.user, a.rule)
	}
}

// MayReferAnonymously refuses what an operator who is not signed in may not refer to.
func MayReferAnonymously(ref objects.Reference) error {
	return accessOf(broker.Identity{Roles: []topics.Role{topics.RoleOperator}, Nodes: []string{"*"}}).mayRefer(Kinds())(ref)
}

// readsCredentials reports whether the user may read Secrets and the like.
func (a access) readsCredentials() bool { return a.all && (a.account != "" || a.controls && !a.acts) }

// mayOn is may for an object or its status.
func (a access) mayOn(verb string, k *Kind, subresource, name string) bool {
	if subresource == "status" && !a.controls && slices.Contains(writeVerbs, verb) {
		return a.mayReport(verb, k, subresource, name) || k.desiredInStatus() && a.may(verb, k)
	}
	return a.may(verb, k)
}

// mayReport reports whether the user is the node that an object is about, and writes only its status.
func (a access) mayReport(verb string, k *Kind, subresource, name string) bool {
	return a.role == "node" && k.storeKind() == resource.KindNode && subresource == "status" && (verb == "update" || verb == "patch") && a.hasNode(name)
}

// maySetOwner says which owners of objects the user sets and clears: a controller those that begin with its name, an operator who acts as
// one all of them; nil: none.
func (a access) maySetOwner() func(owner string) bool {
	if !a.controls {
		return nil
	}
	reserved := a.account == resource.KindFleet || a.account == resource.KindResourceSync // a user may have such a name
	return func(owner string) bool { return a.acts || !reserved && strings.HasPrefix(owner, a.account+"/") }
}

// hasEach reports whether every object of a kind belongs to the user, who may see some.
func (a access) hasEach(k *Kind) bool { return a.all || k.Node == nil && !a.enrolls && !a.renews(k) }

// authorizer decides what is a user's of the objects that there are, and tells users so in reviews.
type authorizer struct {
	kinds   []Kind
	reader  store.Reader
	encoder *encoder
}

// hasObject reports whether an object belongs to the user.
func (z *authorizer) hasObject(ctx context.Context, a access, k *Kind, o *objects.Object) bool {
	if a.hasEach(k) {
		return true // see may
	}
	typed, err := k.OldValue(o) // which a write needs as well
	return err == nil && z.has(ctx, a, k, typed)
}

// hasStored reports whether a stored object belongs to the user.
func (z *authorizer) hasStored(ctx context.Context, a access, k *Kind, o store.Object) bool {
	if a.hasEach(k) {
		return true
	}
	if node, ok := storedNode(k, o); ok && !a.enrolls && !a.renews(k) {
		return a.hasNode(node)
	}
	typed, err := z.encoder.decodeForTable(k, o)
	return err == nil && z.has(ctx, a, k, typed)
}

// storedNode is the node that a stored object belongs to, if that is found without decoding it: users with a few nodes list all Devices.
func storedNode(k *Kind, o store.Object) (node string, ok bool) {
	switch k.storeKind() {
	case resource.KindNode:
		return o.Name, true
	case resource.KindDevice:
		text := rawjson.Field(rawjson.Field(o.Data, "spec"), "nodeName")
		if len(text) < len(`""`) {
			return "", true // bound to none, as far as is known
		}
		return string(text[1 : len(text)-1]), bytes.IndexByte(text, '\\') < 0
	}
	return "", false
}

// has reports whether an object belongs to one of the user's nodes, or to no node.
func (z *authorizer) has(ctx context.Context, a access, k *Kind, typed any) bool {
	if a.hasEach(k) {
		return true
	}
	if a.enrolls {
		er, ok := typed.(*resource.EnrollmentRequest)
		return ok && er.Metadata.Annotations[objects.EnrollerAnnotation] == a.account
	}
	if a.renews(k) {
		er, ok := typed.(*resource.EnrollmentRequest)
		return ok && er.Spec.SignerName == resource.SignerRenewal && a.hasNode(er.Spec.NodeName)
	}
	node, ok := k.Node(ctx, z.reader, typed)
	return ok && a.hasNode(node) || !ok && a.readsShared
}

type accessKey struct{}

func accessIn(ctx context.Context) access {
	a, _ := ctx.Value(accessKey{}).(access)
	return a
}

// publicPaths are served without authentication: they contain no data of users, nodes or devices.
var publicPaths = []string{"/healthz", "/livez", "/readyz", "/version", "/version/", loginPath, flightctlConfigPath}

// pagePath is where the page is.
const pagePath = "/ui/"

// followPath is where the hub's log is, and what belongs to it.
const followPath = "/log"

// isPublic reports whether a request is served without authentication, or by what authenticates it itself.
func (s *server) isPublic(r *http.Request) bool {
	page := s.Page.Handler != nil && (strings.HasPrefix(r.URL.Path, pagePath) || r.URL.Path == "/" && strings.Contains(r.Header.Get("Accept"), "text/html"))
	browser := s.Page.Browsers != nil && (r.URL.Path == "/session" || r.URL.Path == "/mqtt")
	provider := s.Page.Provider != nil && strings.HasPrefix(r.URL.Path, providerPath)
	return page || browser || provider || slices.Contains(publicPaths, r.URL.Path) || webhook.IsRequest(r)
}

// loginPath says at which OpenID Connect provider people sign in.
const loginPath = "/auth/oidc"

// providerPath is where browsers sign in at it.
const providerPath = loginPath + "/"

// authenticate identifies the user of each request.
func (s *server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.isPublic(r) {
			next.ServeHTTP(w, r)
			return
		}
		if s.enrollment.tellDecommissioned(w, r) {
			return
		}
		id, err := s.Authenticate(r)
		var a access
		if err == nil {
			a, err = actAs(r, id)
		}
		if err != nil {
			status := statusOf(err)
			if status.Code == http.StatusUnauthorized {
				if r.Header.Get("X-Requested-With") == "" { // the page has a form of its own
					w.Header().Set("WWW-Authenticate", `Basic realm="edgebus", charset="UTF-8"`)
				}
				w.Header().Set("Connection", "close") // an unauthenticated client holds no connection
			}
			writeJSON(w, int(status.Code), status)
			return
		}
		ctx := context.WithValue(r.Context(), accessKey{}, a)
		if id.Revoked != nil { // the request, such as a watch, ends with the token
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(id.Revoked, cancel)()
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// actAs is what the sender of a request may do, with the headers of kubectl --as taken into account. An operator of all nodes may
// act as a controller, for instance to correct a status; the audit log says so, and who it was. Impersonating another user is
// refused.
func actAs(r *http.Request, id broker.Identity) (a access, err error) {
	as := ""
	for name, values := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			if as = strings.Join(values, ","); name != "Impersonate-User" || as != string(topics.RoleController) {
				return a, statusErrorf(http.StatusForbidden, "Forbidden",
					"impersonation (kubectl --as) is not supported: sign in as that user; only --as controller is, for operators of all nodes")
			}
		}
	}
	switch a = accessOf(id); {
	case as == "":
		return a, nil
	case a.role != string(topics.RoleOperator) || !a.all:
		return a, statusErrorf(http.StatusForbidden, "Forbidden", "--as controller is for operators of all nodes")
	}
	a.controls, a.acts = true, true
	audit.NoteUser(r, id.User, a.role+" as "+as)
	return a, nil
}

const finishUpgradePath = "/cluster/finish-upgrade"

// mayUse reports whether the user may use a path that is no object's: metrics and all links are for people, a link and its
// diagnosis are for its node as well, and discovery is for every authenticated user. What several hubs do is for who may do everything.
func (a access) mayUse(path string) bool {
	node, one := strings.CutPrefix(path, "/links/")
	if !one {
		node, one = strings.CutPrefix(path, "/doctor/")
	}
	switch {
	case path == followPath || strings.HasPrefix(path, followPath+"/"):
		return a.follows
	case one:
		return a.reads && a.hasNode(node)
	case path == finishUpgradePath:
		return a.all
	case path == "/metrics" || path == "/links" || path == "/alerts" || path == "/cluster":
		return a.readsShared
	}
	return true
}

// authorizePath serves a path to users who may use it.
func authorizePath(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a := accessIn(r.Context()); !a.mayUse(r.URL.Path) {
			st := statusOf(statusErrorf(http.StatusForbidden, "Forbidden", "User %q cannot %s path %q: %s", a.user, strings.ToLower(r.Method), r.URL.Path, a.rule))
			writeJSON(w, int(st.Code), st)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// authorizeRule serves a request that a Rule carries out on a node to the operators of that node.
func authorizeRule(w http.ResponseWriter, r *http.Request, node string, serve func(http.ResponseWriter, *http.Request) error) error {
	a := accessIn(r.Context())
	// A service may do something for a GET, too, which no other check keeps from other sites' pages.
	if from := r.Header.Get("Sec-Fetch-Site"); from != "" && from != "same-origin" && from != "none" {
		return statusErrorf(http.StatusForbidden, "Forbidden", "requests by a Rule are not for pages of other sites")
	}
	if !a.writes || !a.hasNode(node) {
		return statusErrorf(http.StatusForbidden, "Forbidden", "User %q cannot send requests to node %s by a Rule, which is for its operators: %s", a.user, node, a.rule)
	}
	return serve(w, r)
}

// verb is what a request does, in Kubernetes' words.
func (r *request) verb() string {
	collection := r.key.Name == ""
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		switch {
		case !collection:
			return "get"
		case httpserver.IsQueryTrue(r.Form, "watch"):
			return "watch"
		}
		return "list"
	case http.MethodPost:
		return "create"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		if collection {
			return "deletecollection"
		}
		return "delete"
	}
	return "update"
}

// authorize refuses what the user may do with no object of the kind.
func (r *request) authorize() error {
	a := accessIn(r.Context())
	if a.mayOn(r.verb(), r.kind, r.subresource, r.key.Name) {
		return nil
	}
	k, writes := r.kind, slices.Contains(writeVerbs, r.verb())
	switch {
	case !writes || !a.writes:
	case r.subresource == "status":
		a.rule = fmt.Sprintf("the status of %s is written by %s", k.qualified(), k.statusWriters())
	case k.WrittenBy != "":
		a.rule = fmt.Sprintf("%s are made and changed by %s; users read and delete them", k.qualified(), k.WrittenBy)
	}
	return r.forbidden(a, r.key.Name)
}

// forbidden is the answer of Kubernetes, followed by the rule.
func (r *request) forbidden(a access, name string) error {
	what := r.kind.qualified()
	if name != "" {
		what = fmt.Sprintf("%s %q", what, name)
	}
	plural := r.kind.Plural
	if r.subresource != "" {
		plural += "/" + r.subresource
	}
	where := ""
	if r.key.Namespace != "" {
		where = fmt.Sprintf(" in the namespace %q", r.key.Namespace)
	}
	rule := a.rule
	if a.account == "" && (r.kind.Sealed || r.kind.HasCredentials) && r.TLS == nil {
		rule += ". kubectl sends no password over plain HTTP: use the HTTPS address (http.tls.listen), with a kubeconfig as edgebus context set makes it"
	}
	e := statusErrorf(http.StatusForbidden, "Forbidden", "%s is forbidden: User %q cannot %s resource %q in API group %q%s: %s",
		what, a.user, r.verb(), plural, r.kind.Group, where, rule)
	e.status.Details = &metav1.StatusDetails{Name: name, Group: r.kind.Group, Kind: r.kind.Plural}
	return e
}

// warnUnlistedCertificate warns the holder of a certificate that is taken for a node's, if there is no such Node: nothing
// belongs to it, which looks like an empty hub.
func (z *authorizer) warnUnlistedCertificate(w http.ResponseWriter, r *request) {
	a := accessIn(r.Context())
	if a.role != "node" || a.expires.IsZero() {
		return
	}
	_, err := z.reader.Get(r.Context(), store.Key{Kind: resource.KindNode, Name: a.nodes[0]})
	if errors.Is(err, resource.NotFound) {
		addWarning(w, "the certificate is for %q, and as auth.users of the hub has no user of that name it is taken for a node's; "+
			"there is no such Node, so nothing is shown. For a person, list the name in auth.users, with a role", a.nodes[0])
	}
}
