package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/resource"
)

// access is what a user may do here. The zero value may do nothing.
type access struct {
	id         broker.Identity
	user, role string
	account    string    // the name, if the user has one: nobody else is called so
	expires    time.Time // when the certificate does that the user signed in with, if it was one
	all        bool      // an operator of all nodes may do everything that is not a controller's
	controls   bool      // a controller writes status and owner, and makes what is made by controllers
	reads      bool      // what belongs to the user's nodes
	shared     bool      // reads also what belongs to no node, but for Secrets and the like
	writes     bool      // what belongs to the user's nodes
	nodes      []string  // globs
	given      func(node string) bool
	rule       string // why no more is allowed, and which setting says so
}

// accessOf derives it from the same roles and nodes that hold over MQTT.
func accessOf(id broker.Identity) access {
	a := access{id: id, user: id.User, account: id.User, nodes: id.Nodes, given: id.Given, expires: id.CertExpires}
	if a.user == "" {
		a.user = "anonymous"
	}
	nodes := strings.Join(id.Nodes, ", ")
	a.controls = id.Has(topics.RoleController)
	switch {
	case a.controls:
		a.role, a.reads, a.shared, a.writes, a.all = "controller", true, true, true, true
	case id.Has(topics.RoleOperator):
		a.role, a.reads, a.shared, a.writes = "operator", true, true, true
		a.all = id.AllNodes()
		a.rule = fmt.Sprintf(`%s is an operator of the nodes %s (auth.users); what belongs to others, or to all, needs nodes: ["*"]`, a.user, nodes)
		if a.account == "" {
			a.rule = "Secrets and Repositories are for operators who are signed in, as one of auth.users"
		}
	case id.Has(topics.RoleViewer):
		a.role, a.reads, a.shared = "viewer", true, true
		a.rule = fmt.Sprintf("%s is a viewer of the nodes %s (auth.users), who changes nothing and sees no Secrets or Repositories", a.user, nodes)
	case id.Has(topics.RoleNode):
		a.role, a.reads, a.nodes = "node", true, []string{id.Node}
		a.given = func(node string) bool { return node == id.Node }
		a.rule = fmt.Sprintf("%s is a node, which reads what is its own and writes its Node's status; people are listed in auth.users, with a role", id.Node)
	default:
		a.role, a.rule = "mapper", a.user+" is a mapper (auth.users), and has nothing to do here"
	}
	return a
}

// has says whether a node is one of the user's.
func (a access) has(node string) bool { return a.all || a.given != nil && a.given(node) }

var (
	readVerbs   = []string{"get", "list", "watch"}
	makingVerbs = []string{"create", "update", "patch"}
)

// may says whether the user may do that with objects of a kind at all; with which of them is asked
// of each: see sees.
func (a access) may(verb string, k *Kind) bool {
	switch {
	case k.Made != "" && !a.controls && slices.Contains(makingVerbs, verb):
		return false
	case k.Sealed || k.Credentials:
		return a.all && (a.account != "" || a.controls)
	case a.all:
		return true
	case slices.Contains(readVerbs, verb):
		return a.reads && k.Node != nil || a.shared
	case k.Name == resource.KindEvent:
		return false // they are the hub's
	}
	return a.writes && k.Node != nil
}

// mayOn is may of a whole object, or of its status.
func (a access) mayOn(verb string, k *Kind, subresource, name string) bool {
	if subresource == "status" && k.Reports != "" && !a.controls && slices.Contains(makingVerbs, verb) {
		return a.mayReport(verb, k, subresource, name)
	}
	return a.may(verb, k) || a.mayReport(verb, k, subresource, name)
}

// mayReport says whether the user is the node that an object is about, and writes no more than its status.
func (a access) mayReport(verb string, k *Kind, subresource, name string) bool {
	return a.role == "node" && k.record() == resource.KindNode && subresource == "status" && (verb == "update" || verb == "patch") && a.has(name)
}

// sees says whether an object concerns the user.
func (s *server) sees(ctx context.Context, a access, k *Kind, o *object) bool {
	if a.all || k.Node == nil {
		return true // may has decided
	}
	typed, err := k.before(o) // which a write needs as well
	return err == nil && s.ofTheirs(ctx, a, k, typed)
}

// seesStored is the same of an object as the store has it, which is decoded no further than it must.
func (s *server) seesStored(ctx context.Context, a access, k *Kind, o store.Object) bool {
	if a.all || k.Node == nil {
		return true
	}
	typed, err := s.look(k, o)
	return err == nil && s.ofTheirs(ctx, a, k, typed)
}

// ofTheirs says whether an object belongs to one of the user's nodes, or to none that the kind knows.
func (s *server) ofTheirs(ctx context.Context, a access, k *Kind, typed any) bool {
	if a.all || k.Node == nil {
		return true
	}
	node, one := k.Node(ctx, s.Reader, typed)
	return one && a.has(node) || !one && a.shared
}

type accessKey struct{}

func accessIn(ctx context.Context) access {
	a, _ := ctx.Value(accessKey{}).(access)
	return a
}

// public are the paths that tell nothing about anybody.
var public = []string{"/healthz", "/livez", "/readyz", "/version"}

// admit finds out who asks.
func (s *server) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(public, r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		id, err := s.Who(r)
		if err == nil && r.Header.Get("Impersonate-User") != "" {
			err = refuse(http.StatusForbidden, "Forbidden", "nobody acts for somebody else here (kubectl --as): sign in as who you want to be")
		}
		if err != nil {
			status := statusOf(err)
			if status.Code == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Basic realm="edgebus", charset="UTF-8"`)
				w.Header().Set("Connection", "close") // who isn't let in holds no connection
			}
			writeJSON(w, status.Code, status)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), accessKey{}, accessOf(id))))
	})
}

// mayRead says whether the user may get a path that is no object's: how the hub is, is for people, how a
// link is for the node as well, and what there is (discovery) for everybody who is signed in.
func (a access) mayRead(path string) bool {
	node, one := strings.CutPrefix(path, "/links/")
	switch {
	case one:
		return a.reads && a.has(node)
	case path == "/metrics" || path == "/links":
		return a.shared
	}
	return true
}

// overview lets those pass who may see how the hub is.
func overview(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a := accessIn(r.Context()); !a.mayRead(r.URL.Path) {
			st := statusOf(refuse(http.StatusForbidden, "Forbidden", "User %q cannot %s path %q: %s", a.user, strings.ToLower(r.Method), r.URL.Path, a.rule))
			writeJSON(w, st.Code, st)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// verb is what a request wants to do, in Kubernetes' words.
func (r *request) verb() string {
	collection := r.key.Name == ""
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		switch {
		case !collection:
			return "get"
		case isTrue(r.FormValue("watch")):
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

// allowed refuses what the user may do with no object of the kind.
func (r *request) allowed() error {
	a := accessIn(r.Context())
	if a.mayOn(r.verb(), r.kind, r.subresource, r.key.Name) {
		return nil
	}
	k, making := r.kind, slices.Contains(makingVerbs, r.verb())
	switch {
	case !making || !a.writes:
	case r.subresource == "status" && k.Reports != "":
		a.rule = fmt.Sprintf("the status of %s is written by %s", k.qualified(), k.Reports)
	case k.Made != "":
		a.rule = fmt.Sprintf("%s are made and changed by %s; users read and delete them", k.qualified(), k.Made)
	}
	return r.forbidden(a, r.key.Name)
}

// warnStranger is for a person whose certificate has a name that nobody listed: it is a node's then, and of a node
// that isn't there nothing is shown, which looks like an empty hub.
func (s *server) warnStranger(w http.ResponseWriter, r *request) {
	a := accessIn(r.Context())
	if a.role != "node" || a.expires.IsZero() {
		return
	}
	_, err := s.Reader.Get(r.Context(), store.Key{Kind: resource.KindNode, Name: a.nodes[0]})
	if errors.Is(err, resource.NotFound) {
		warn(w, "the certificate is for %q, and as auth.users of the hub has no user of that name it is taken for a node's; "+
			"there is no such Node, so nothing is shown. For a person, list the name in auth.users, with a role", a.nodes[0])
	}
}

// forbidden is worded as Kubernetes does it, and goes on with the rule.
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
	return &httpError{
		code: http.StatusForbidden, reason: "Forbidden", details: &StatusDetails{Name: name, Group: r.kind.Group, Kind: r.kind.Plural},
		message: fmt.Sprintf("%s is forbidden: User %q cannot %s resource %q in API group %q%s: %s", what, a.user, r.verb(), plural, r.kind.Group, where, a.rule),
	}
}

// ofDevice is Kind.Node of Devices: one that is bound to no node is for those who have all.
func ofDevice(_ context.Context, _ store.Reader, obj any) (string, bool) {
	return obj.(*resource.Device).Spec.NodeName, true
}

func ofNode(_ context.Context, _ store.Reader, obj any) (string, bool) {
	return obj.(*resource.Node).Metadata.Name, true
}

// ofEvent is the node of what an Event is about, if that has one.
func ofEvent(ctx context.Context, r store.Reader, obj any) (string, bool) {
	about := obj.(*resource.Event).InvolvedObject
	switch about.Kind {
	case resource.KindNode:
		return about.Name, true
	case resource.KindDevice:
		var d resource.Device // of one that is gone nobody knows whose it was
		stored, err := r.Get(ctx, store.Key{Kind: about.Kind, Namespace: about.Namespace, Name: about.Name})
		if err == nil {
			err = json.Unmarshal(stored.Data, &d)
		}
		if err != nil || about.UID != "" && about.UID != d.Metadata.UID { // another one of that name
			return "", true
		}
		return d.Spec.NodeName, true
	}
	return "", false
}

// The reviews tell clients what they may do, and who they are taken for: kubectl auth can-i,
// can-i --list and whoami. They are answered from the same rules as requests.
const (
	accessRoot = "/apis/authorization.k8s.io/v1"
	whoRoot    = "/apis/authentication.k8s.io/v1"
)

// maxReview bounds a review's body, in bytes.
const maxReview = 64 << 10

// accessSpec is what a SelfSubjectAccessReview asks.
type accessSpec struct {
	Resource *struct {
		Namespace   string `json:"namespace,omitempty"`
		Verb        string `json:"verb,omitempty"`
		Group       string `json:"group,omitempty"`
		Version     string `json:"version,omitempty"`
		Resource    string `json:"resource,omitempty"`
		Subresource string `json:"subresource,omitempty"`
		Name        string `json:"name,omitempty"`
	} `json:"resourceAttributes,omitempty"`
	Path *struct {
		Path string `json:"path,omitempty"`
		Verb string `json:"verb,omitempty"`
	} `json:"nonResourceAttributes,omitempty"`
}

func (s *server) accessReview(w http.ResponseWriter, r *http.Request) error {
	media := mediaType(r)
	r.Body = http.MaxBytesReader(w, r.Body, maxReview)
	raw, err := readBody(r, media, protobufType)
	if err != nil {
		return err
	}
	var review struct {
		Spec accessSpec `json:"spec"`
	}
	if media == protobufType {
		review.Spec, err = accessSpecOf(raw)
	} else {
		err = json.Unmarshal(raw, &review)
	}
	if err != nil {
		return badRequest("", "the body must be a SelfSubjectAccessReview")
	}
	allowed, err := s.answers(r, review.Spec)
	if err != nil {
		return err
	}
	status := dict{"allowed": allowed}
	if a := accessIn(r.Context()); !a.all || !allowed {
		status["reason"] = a.rule
	}
	writeReview(w, accessRoot, "SelfSubjectAccessReview", dict{"spec": review.Spec, "status": status})
	return nil
}

func writeReview(w http.ResponseWriter, root, kind string, review dict) {
	review["apiVersion"], review["kind"], review["metadata"] = strings.TrimPrefix(root, "/apis/"), kind, dict{"creationTimestamp": nil}
	writeJSON(w, http.StatusCreated, review)
}

func (s *server) answers(r *http.Request, spec accessSpec) (bool, error) {
	a := accessIn(r.Context())
	switch {
	case a.all && spec.Resource == nil:
		return true, nil
	case spec.Path != nil:
		return spec.Path.Verb == "get" && a.mayRead(spec.Path.Path), nil
	case spec.Resource == nil:
		return false, nil
	}
	q := spec.Resource
	i := slices.IndexFunc(s.Kinds, func(k Kind) bool { return k.Plural == q.Resource && k.Group == q.Group })
	if i < 0 {
		return a.all, nil
	}
	k := &s.Kinds[i]
	if a.all {
		return a.mayOn(q.Verb, k, q.Subresource, q.Name), nil
	}
	known := slices.Contains(verbs, q.Verb) || q.Verb == "*"
	if !known || !a.mayOn(q.Verb, k, q.Subresource, q.Name) || q.Subresource != "" && (q.Subresource != "status" || k.NoStatus) {
		return false, nil
	}
	if q.Name == "" || k.Node == nil {
		return true, nil // of some of them
	}
	key := store.Key{Kind: k.record(), Name: q.Name}
	if k.Namespaced {
		key.Namespace = q.Namespace
	}
	stored, err := s.Reader.Get(r.Context(), key)
	if errors.Is(err, resource.NotFound) {
		return k.Namespaced || a.has(q.Name), nil
	}
	return err == nil && s.seesStored(r.Context(), a, k, stored), err
}

// rulesReview lists what the user may do. That holds for the user's own nodes only, which the form
// can't say: so it is incomplete.
func (s *server) rulesReview(w http.ResponseWriter, r *http.Request) error {
	a := accessIn(r.Context())
	rules := []any{}
	for i := range s.Kinds {
		k := &s.Kinds[i]
		may := slices.DeleteFunc(slices.Clone(verbs), func(verb string) bool { return !a.may(verb, k) })
		if len(may) > 0 {
			plurals := []string{k.Plural}
			switch {
			case k.NoStatus:
			case k.Reports == "" || a.controls:
				plurals = append(plurals, k.Plural+"/status")
			case a.may("get", k):
				rules = append(rules, dict{"verbs": []string{"get"}, "apiGroups": []string{k.Group}, "resources": []string{k.Plural + "/status"}})
			}
			rules = append(rules, dict{"verbs": may, "apiGroups": []string{k.Group}, "resources": plurals})
		}
		own := slices.DeleteFunc(slices.Clone(a.nodes), func(node string) bool { return !a.mayReport("update", k, "status", node) })
		if len(own) > 0 {
			rules = append(rules, dict{
				"verbs": []string{"patch", "update"}, "apiGroups": []string{k.Group}, "resources": []string{k.Plural + "/status"}, "resourceNames": own,
			})
		}
	}
	paths := []string{"*"}
	if !a.shared {
		paths = slices.Concat(public, []string{"/", "/api", "/api/*", "/apis", "/apis/*", "/openapi/*"})
	}
	writeReview(w, accessRoot, "SelfSubjectRulesReview", dict{"spec": dict{}, "status": dict{
		"resourceRules": rules, "nonResourceRules": []any{dict{"verbs": []string{"get"}, "nonResourceURLs": paths}}, "incomplete": !a.all,
	}})
	return nil
}

// whoReview says who the user is taken for.
func (s *server) whoReview(w http.ResponseWriter, r *http.Request) error {
	a := accessIn(r.Context())
	user := dict{"username": a.user, "groups": []string{a.role}}
	if len(a.nodes) > 0 {
		user["extra"] = dict{"nodes": a.nodes}
	}
	writeReview(w, whoRoot, "SelfSubjectReview", dict{"status": dict{"userInfo": user}})
	return nil
}

// accessSpecOf reads a SelfSubjectAccessReview in protobuf: an envelope, whose field 2 is the object, whose field 2 is
// the spec.
func accessSpecOf(raw []byte) (spec accessSpec, err error) {
	raw, ok := bytes.CutPrefix(raw, protobufMagic)
	if !ok {
		return spec, errProtobuf
	}
	var fields map[protowire.Number][]byte
	for range 3 {
		if fields, err = protobufStrings(raw); err != nil {
			return spec, err
		}
		raw = fields[2]
	}
	attributes := map[string]dict{}
	for i, names := range [][]string{{"namespace", "verb", "group", "version", "resource", "subresource", "name"}, {"path", "verb"}} {
		asked, err := protobufStrings(fields[protowire.Number(i+1)])
		if err != nil {
			return spec, err
		}
		if len(asked) == 0 {
			continue
		}
		values := dict{}
		for n, name := range names {
			values[name] = string(asked[protowire.Number(n+1)])
		}
		attributes[[]string{"resourceAttributes", "nonResourceAttributes"}[i]] = values
	}
	text, err := json.Marshal(attributes)
	if err != nil {
		return spec, err
	}
	return spec, json.Unmarshal(text, &spec)
}
