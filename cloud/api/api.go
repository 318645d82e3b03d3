// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/httpserver"
	"github.com/edgebus/edgebus/broker/daemon/tracing"
	"github.com/edgebus/edgebus/broker/history/requests"
	"github.com/edgebus/edgebus/cloud/api/index"
	"github.com/edgebus/edgebus/cloud/api/webhook"
	"github.com/edgebus/edgebus/cloud/objects"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/dialect/fit"
	"github.com/edgebus/edgebus/topics/resource"
)

// defaultLinks is how many links an answer has if the client doesn't say.
const defaultLinks = 100

// Options are what the API needs.
type Options struct {
	Reader  store.Reader
	Watcher store.Watcher
	Log     zerolog.Logger
	Now     func() time.Time
	// Authenticate authenticates the sender of a request. Without it every client may do everything.
	Authenticate func(*http.Request) (broker.Identity, error)
	// Objects reads and writes objects; nothing is written in another way.
	Objects *objects.Registry
	// Kinds are the kinds that are served. Default: Kinds() and their dialects.
	Kinds []Kind
	// OwnOnly leaves dialects out of discovery. They are served all the same.
	OwnOnly bool
	// Metrics serves /metrics, if not nil.
	Metrics http.Handler
	// Links serves /links, if not nil: the state of a node's link, or of at most so many nodes' links.
	Links func(node string, most int) resource.LinkReport
	// Sessions serves /sessions, if not nil: the sessions of the broker's clients.
	Sessions func(w http.ResponseWriter, r *http.Request, id broker.Identity) error
	// Tokens serves /tokens, if not nil: the bearer tokens that the hub has made.
	Tokens func(w http.ResponseWriter, r *http.Request, id broker.Identity) error
	// Blobs serves /blobs and what is below it, if not nil. The bodies of its requests are not bounded by MaxBody.
	Blobs func(w http.ResponseWriter, r *http.Request, id broker.Identity) error
	// Page is the web page, and what it needs beside the API.
	Page PageOptions
	// Devices is what else there is of Devices and nodes.
	Devices DeviceServices
	// Follow serves /log, if not nil: the hub's log, to users with the role follower.
	Follow FollowServer
	// Content reads a part of a blob, for what nodes are to apply in the form of flightctl.
	Content func(digest string, p []byte, offset int64) (int, error)
	// Presence is told of nodes' own requests, if not nil: they are present by them.
	Presence Presence
	// Index counts, searches and sorts Devices and Nodes; nil: nobody can.
	Index *index.Index
	// Enrollment is how nodes join and leave, and renew their certificates; nil: they don't.
	Enrollment Enrollment
	// Ready are the checks of /readyz, by name.
	Ready map[string]func(context.Context) error
	// MaxBody bounds the body of a request, in bytes. Default: 3 MiB.
	MaxBody int64
	WatchOptions
	// Version is the hub's version, for /version.
	Version string
}

// WatchOptions are how lists and watches are served.
type WatchOptions struct {
	// Watches bounds the watches at one time, of which one user may have half. 0: no bound.
	Watches int
	// Bookmarks is the interval of bookmarks in a watch. Default: a minute.
	Bookmarks time.Duration
	// Mirrors have hubs that stand by answer; zero: there are none.
	Mirrors MirrorOptions
}

// PageOptions are the web page.
type PageOptions struct {
	// Handler serves it, at /ui/; nil: there is none.
	Handler http.Handler
	// Browsers serves /session and /mqtt, for people with a browser; nil: neither is served.
	Browsers BrowserServer
	// Login is served without authentication at /auth/oidc; nil: there is no provider.
	Login *LoginProvider
	// Provider signs browsers in at an OpenID Connect provider, below /auth/oidc/; nil: there is none.
	Provider http.Handler
	// Alerts serves /alerts: the conditions that are worth a look; nil: nobody can say.
	Alerts http.Handler
	// Audit has the newest entries of the audit log, for operators of all nodes; nil: there is none.
	Audit func(most int, words []string) ([]json.RawMessage, error)
	// Cluster serves /cluster: how the hubs are that have a log in common; nil: there is one hub.
	Cluster http.Handler
	// FinishUpgrade serves /cluster/finish-upgrade; nil: there is one hub.
	FinishUpgrade func(w http.ResponseWriter, r *http.Request) error
	// Diagnose serves /doctor/{node}: what edgebus doctor says of a node, by what the hub knows; nil: nobody can say.
	Diagnose func(ctx context.Context, node string) (any, error)
}

// DeviceServices are what the hub does with Devices and nodes beside their objects.
type DeviceServices struct {
	// Rule finds the Rule that a request at any other path is for, if not nil: the node that it is about, whose operator the sender must be, and what serves it;
	// nil: there is none.
	Rule func(r *http.Request) (node string, serve func(http.ResponseWriter, *http.Request) error)
	// Call sends a command to a device on a user's behalf, and waits for its answer; nil: nobody can.
	Call func(ctx context.Context, id broker.Identity, topic string, payload []byte, timeout time.Duration) (CommandAnswer, error)
	// History has what the properties of a node's Devices were; nil: there is none.
	History func(node string) requests.Source
	// Traces records writes of Devices; nil: nobody does.
	Traces *tracing.Tracer
}

// BrowserServer serves what a browser needs beside the API. It authenticates by itself.
type BrowserServer interface {
	ServeSignIn(w http.ResponseWriter, r *http.Request) error
	ServeWebSocket(w http.ResponseWriter, r *http.Request) error
}

// FollowServer serves what is copied to another machine.
type FollowServer interface {
	ServeHTTP(w http.ResponseWriter, r *http.Request) error
	ServeBlob(w http.ResponseWriter, r *http.Request) error
	ServeApplied(r *http.Request, user string) error
}

// LoginProvider says at which OpenID Connect provider people sign in, and as which of its clients.
type LoginProvider struct {
	Issuer   string `json:"issuer"`
	ClientID string `json:"clientID"`
}

func (o *Options) setDefaults() {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Authenticate == nil {
		o.Authenticate = func(*http.Request) (broker.Identity, error) {
			return broker.Identity{Roles: []topics.Role{topics.RoleOperator, topics.RoleController}, Nodes: []string{"*"}}, nil
		}
	}
	if o.Kinds == nil {
		o.Kinds = addDialects(Kinds())
	}
	o.MaxBody = cmp.Or(o.MaxBody, 3<<20)
	o.Bookmarks = cmp.Or(o.Bookmarks, time.Minute)
	o.Version = cmp.Or(o.Version, "v0.0.0")
}

// server finds what a request is about, and who may ask for it; its parts do the rest.
type server struct {
	Options
	reads         *objects.Controller // what the API itself needs; it writes nothing by it
	secretLog     zerolog.Logger
	authorizer    *authorizer
	lister        *lister
	writer        *objectWriter
	openapi       *openapi
	renderedSpecs *renderedSpecs
	enrollment    *enrollmentServer
	flightctl     *flightctlServer
	webhooks      *webhook.Receiver
}

// New makes the handler of the API.
func New(o Options) http.Handler {
	o.setDefaults()
	s := newServer(o)
	// A page of another site must not write through the browser of a user.
	return http.NewCrossOriginProtection().Handler(s.authenticate(s.routes()))
}

func newServer(o Options) *server {
	s := &server{Options: o, reads: o.Objects.Controller("api"), secretLog: o.Log.Sample(&zerolog.BurstSampler{Burst: 20, Period: 10 * time.Second})}
	e := &encoder{objects: o.Objects, now: o.Now}
	s.authorizer = &authorizer{kinds: o.Kinds, reader: o.Reader, encoder: e}
	s.lister = &lister{
		kinds: o.Kinds, reader: o.Reader, watcher: o.Watcher, encoder: e, authorizer: s.authorizer, log: o.Log, now: o.Now, bookmarks: o.Bookmarks,
		index:   o.Index,
		watches: broker.NewWatchQuota(o.Watches), paced: httpserver.NewWatchTurns(), lists: newListTurns(),
		renderCache: httpserver.NewVersionCache[renderKey, renderVersion, renderedObject](renderCacheSize),
	}
	s.writer = &objectWriter{
		kinds: o.Kinds, reader: o.Reader, objects: o.Objects, encoder: e, authorizer: s.authorizer, lister: s.lister, enrollment: o.Enrollment, traces: o.Devices.Traces,
	}
	s.openapi = &openapi{kinds: o.Kinds, version: o.Version}
	s.renderedSpecs = &renderedSpecs{reader: o.Reader, reads: s.reads, presence: o.Presence, readBlob: o.Content, secretLog: s.secretLog}
	s.enrollment, s.flightctl = &enrollmentServer{s}, &flightctlServer{s}
	s.webhooks = &webhook.Receiver{Objects: o.Objects, Reads: s.reads, Log: o.Log, Now: o.Now}
	return s
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	alive := func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") }
	mux.HandleFunc("GET /{$}", s.index)
	if s.Page.Handler != nil {
		mux.Handle("GET "+pagePath, s.Page.Handler)
	}
	if s.Page.Browsers != nil {
		mux.Handle("/session", s.handle(s.Page.Browsers.ServeSignIn))
		mux.Handle("GET /mqtt", s.answerErrors(s.Page.Browsers.ServeWebSocket))
	}
	if s.Page.Provider != nil {
		mux.Handle("GET "+providerPath, s.Page.Provider)
	}
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /readyz", s.ready)
	if s.Metrics != nil {
		mux.Handle("GET /metrics", authorizePath(s.Metrics))
	}
	if s.Page.Alerts != nil {
		mux.Handle("GET /alerts", authorizePath(s.Page.Alerts))
	}
	mux.Handle("GET /audit", s.handle(s.auditLog))
	if s.Links != nil {
		mux.Handle("GET /links", authorizePath(s.handle(s.links)))
		mux.Handle("GET /links/{node}", authorizePath(s.handle(s.links)))
	}
	if s.Page.Cluster != nil {
		mux.Handle("GET /cluster", authorizePath(s.Page.Cluster))
	}
	if s.Page.FinishUpgrade != nil {
		mux.Handle("POST "+finishUpgradePath, authorizePath(s.handle(s.Page.FinishUpgrade)))
	}
	if s.Page.Diagnose != nil {
		mux.Handle("GET /doctor/{node}", authorizePath(s.handle(func(w http.ResponseWriter, r *http.Request) error {
			said, err := s.Page.Diagnose(r.Context(), r.PathValue("node"))
			if err == nil {
				writeJSON(w, http.StatusOK, said)
			}
			return err
		})))
	}
	identified := func(f func(http.ResponseWriter, *http.Request, broker.Identity) error) func(http.ResponseWriter, *http.Request) error {
		return func(w http.ResponseWriter, r *http.Request) error { return f(w, r, accessIn(r.Context()).id) }
	}
	if s.Sessions != nil {
		sessions := s.handle(identified(s.Sessions))
		mux.Handle("GET /sessions", sessions)
		mux.Handle("DELETE /sessions", sessions)
	}
	if s.Enrollment != nil {
		mux.Handle("/enroll/", s.handle(identified(s.Enrollment.ServeHTTP)))
		mux.Handle("POST /enroll/nodes/{name}/decommission", s.handle(s.enrollment.decommission))
		mux.Handle("PUT /api/v1/devices/{name}/decommission", s.handle(s.enrollment.unenroll))
	}
	if s.Tokens != nil {
		tokens := s.handle(identified(s.Tokens))
		mux.Handle("/tokens", tokens)
		mux.Handle("/tokens/", tokens)
	}
	if s.Blobs != nil {
		blobs := s.answerErrors(identified(s.Blobs))
		mux.Handle("/blobs", blobs)
		mux.Handle("/blobs/", blobs)
	}
	if s.Follow != nil {
		mux.Handle("GET "+followPath, authorizePath(s.answerErrors(s.Follow.ServeHTTP)))
		mux.Handle("GET "+followPath+"/applied", authorizePath(s.answerErrors(func(_ http.ResponseWriter, r *http.Request) error {
			return s.Follow.ServeApplied(r, accessIn(r.Context()).account)
		})))
		mux.Handle("GET "+followPath+"/blobs/{digest}", authorizePath(s.answerErrors(s.Follow.ServeBlob)))
	}
	mux.Handle("GET "+loginPath, s.handle(func(w http.ResponseWriter, _ *http.Request) error {
		if s.Page.Login == nil {
			return statusErrorf(http.StatusNotFound, "NotFound", "this hub has no OpenID Connect provider (auth.oidc)")
		}
		writeJSON(w, http.StatusOK, s.Page.Login)
		return nil
	}))
	s.discovery(mux)
	mux.Handle("GET /openapi/v2", s.handle(s.openapi.openapi2))
	mux.Handle("POST "+authorizationRoot+"/selfsubjectaccessreviews", s.handle(s.authorizer.accessReview))
	mux.Handle("POST "+authorizationRoot+"/selfsubjectrulesreviews", s.handle(s.authorizer.rulesReview))
	mux.Handle("POST "+authenticationRoot+"/selfsubjectreviews", s.handle(s.authorizer.subjectReview))
	for _, root := range []string{"/api/v1", "/apis/" + resource.APIVersion} {
		for _, method := range []string{http.MethodPut, http.MethodPost} {
			mux.Handle(method+" "+root+"/enrollmentrequests/{name}/approval", s.handle(s.enrollment.approve))
		}
	}
	for _, at := range webhook.Paths {
		mux.Handle("POST "+strings.Replace(at, "*", "{name}", 1), s.answerErrors(s.webhooks.ServeHTTP))
	}
	mux.Handle("GET "+deviceRoot+"/properties/{property}", s.handle(s.property))
	mux.Handle("POST "+deviceRoot+"/commands/{command}", s.handle(s.command))
	if s.Devices.History != nil {
		mux.Handle("GET "+deviceRoot+"/history", s.handle(s.history))
		mux.Handle("DELETE "+deviceRoot+"/history", s.handle(s.deleteHistory))
	}
	s.renderedRoutes(mux)
	s.flightctlRoutes(mux)
	mux.Handle("/api/v1/namespaces", s.handle(s.lister.serveNamespaces))
	mux.Handle("/api/v1/namespaces/{name}", s.handle(s.lister.serveNamespaces))
	mux.Handle("/apis/", s.handle(s.object))
	mux.Handle("/api/", s.handle(s.object))
	mux.Handle("/", s.handle(func(w http.ResponseWriter, r *http.Request) error {
		if s.Devices.Rule != nil {
			if node, serve := s.Devices.Rule(r); serve != nil {
				return authorizeRule(w, r, node, serve)
			}
			if strings.Count(strings.Trim(r.URL.Path, "/"), "/") >= 2 {
				return statusErrorf(http.StatusNotFound, "NotFound", "there is nothing at %s, and no Rule that is Ready has this path (edgebus get rules)", r.URL.Path)
			}
		}
		if allow := otherMethods(mux, r); allow != "" {
			return methodNotAllowed(allow, "%s is not for %s", r.Method, r.URL.Path)
		}
		return statusErrorf(http.StatusNotFound, "NotFound", "there is nothing at %s", r.URL.Path)
	}))
	return mux
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text)) // the client may be gone
}

// index serves the list of paths; to a browser it serves the page.
func (s *server) index(w http.ResponseWriter, r *http.Request) {
	if s.Page.Handler != nil && strings.Contains(r.Header.Get("Accept"), "text/html") {
		http.Redirect(w, r, pagePath, http.StatusFound)
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Edgebus hub %s\n\n", s.Version)
	for _, k := range s.Kinds {
		fmt.Fprintf(&b, "%s/%s\n", k.root(), k.Plural)
	}
	b.WriteString("/openapi/v3\n/healthz\n/readyz\n")
	if s.Metrics != nil {
		b.WriteString("/metrics\n")
	}
	if s.Links != nil {
		b.WriteString("/links\n")
	}
	if s.Sessions != nil {
		b.WriteString("/sessions\n")
	}
	b.WriteString("\nkubectl --server=http://this-address get devices\n")
	writeText(w, http.StatusOK, b.String())
}

// ready serves /readyz.
func (s *server) ready(w http.ResponseWriter, r *http.Request) {
	code, text := http.StatusOK, ""
	for _, name := range slices.Sorted(maps.Keys(s.Ready)) {
		if err := s.Ready[name](r.Context()); err != nil {
			code = http.StatusServiceUnavailable
			text += fmt.Sprintf("[-]%s: %v\n", name, err)
			continue
		}
		text += fmt.Sprintf("[+]%s ok\n", name)
	}
	if code == http.StatusOK {
		text += "ok\n"
	}
	writeText(w, code, text)
}

// handle bounds the request's body, and answers with a Status if f returns an error.
func (s *server) handle(f func(http.ResponseWriter, *http.Request) error) http.Handler {
	return s.answerErrors(func(w http.ResponseWriter, r *http.Request) error {
		r.Body = http.MaxBytesReader(w, r.Body, s.MaxBody)
		return f(w, r)
	})
}

// answerErrors answers with a Status if f returns an error.
func (s *server) answerErrors(f func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := f(w, r)
		if err == nil {
			return
		}
		status := statusOf(err)
		if status.Code >= http.StatusInternalServerError {
			s.Log.Error().Err(err).Str("method", r.Method).Str("path", r.URL.Path).Msg("request failed")
		}
		if status.Code == http.StatusTooManyRequests || status.Code == http.StatusServiceUnavailable {
			if w.Header().Get("Retry-After") == "" {
				w.Header().Set("Retry-After", "1") // clients repeat a request only if told when
			}
		}
		var refused *statusError
		if errors.As(err, &refused) && refused.allow != "" {
			w.Header().Set("Allow", refused.allow)
		}
		writeJSON(w, int(status.Code), status)
	})
}

// allowsReadOnly are the methods that change nothing.
const allowsReadOnly = "GET, HEAD"

// otherMethods lists the methods with which something else than the last resort of a multiplexer serves a path.
func otherMethods(mux *http.ServeMux, r *http.Request) string {
	var served []string
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		other := *r
		other.Method = method
		if _, pattern := mux.Handler(&other); pattern != "/" {
			served = append(served, method)
		}
	}
	return strings.Join(served, ", ")
}

// request is a request for objects of a kind.
type request struct {
	*http.Request
	kind            *Kind
	key             store.Key // without a name: the collection; without a namespace: all of them
	subresource     string
	format          answerFormat      // of the answer
	media           string            // media type of the body
	duplicates      []string          // fields that the body has more than once
	warnings        []string          // about what is written
	written         []byte            // the object in its dialect, once it is decoded
	dialectWarnings []string          // about what a dialect can't express
	selected        bool              // the path selects a part of the objects: see fleetVersions
	ownPath         bool              // the path is that of the dialect's own system
	annotations     map[string]string // see objects.Write
}

// object serves /apis/{group}/{version}/[namespaces/{namespace}/]{plural}[/{name}[/status]].
func (s *server) object(w http.ResponseWriter, r *http.Request) error {
	if r.Method == http.MethodHead { // it is answered as GET is, and what is written goes nowhere
		get := *r
		get.Method, r = http.MethodGet, &get
	}
	req, err := s.parse(r)
	if err != nil {
		return err
	}
	req.nameVersion(w)
	if req.ownPath && req.kind.WrittenBy != "" && slices.Contains(writeVerbs, req.verb()) {
		return methodNotAllowed(allowsReadOnly+", DELETE", "%s is not for %s: they are made and changed by %s", r.Method, req.kind.Plural, req.kind.WrittenBy)
	}
	if err := req.authorize(); err != nil {
		return err
	}
	if k := req.kind; k.dialect != nil && k.storeKind() == resource.KindNode && req.subresource == "status" && r.Method == http.MethodGet && accessIn(r.Context()).role == string(topics.RoleNode) {
		return methodNotAllowed("PUT, PATCH", "the status is write-only for the Device itself: it is part of the Device, at %s", strings.TrimSuffix(r.URL.Path, "/status"))
	}
	if req.kind.readOnly() && r.Method != http.MethodGet {
		return methodNotAllowed(allowsReadOnly, "%s are read-only: they show what is known of the %s of the same name", req.kind.Plural, req.kind.storeKind())
	}
	a := accessIn(r.Context())
	if a.mayReport(req.verb(), req.kind, req.subresource, req.key.Name) {
		defer s.renderedSpecs.present(w, a, req.key.Name)()
	}
	s.logSecretAccess(req)
	if err := checkFieldManager(req); err != nil {
		return err
	}
	if req.format, err = negotiateFormat(r); err != nil {
		return err
	}
	if req.subresource == "" && req.key.Name == "" {
		s.authorizer.warnUnlistedCertificate(w, req)
		return s.serveCollection(w, req)
	}
	if req.selected {
		if err := s.lister.checkSelected(req); err != nil {
			return err
		}
	}
	return s.lister.suggest(req, s.serveObject(w, req))
}

// suggest adds the name that may have been meant to the error of an object that doesn't exist. It looks at the first objects of the
// namespace, and at those that begin with the same letter: many clients ask for what isn't there yet.
func (l *lister) suggest(r *request, err error) error {
	const most = 200
	var missing *statusError
	if !errors.As(err, &missing) || missing.status.Reason != metav1.StatusReasonNotFound || missing.status.Details == nil || missing.status.Details.Name != r.key.Name ||
		r.kind.Namespaced && r.key.Namespace == "" {
		return err
	}
	a, found := accessIn(r.Context()), map[string]store.Object{}
	for _, after := range []string{"", r.key.Name[:1]} {
		opts := store.ListOptions{Namespace: r.key.Namespace, Limit: most, DataOnly: true}
		if after != "" {
			opts.After = store.Key{Kind: r.key.Kind, Namespace: r.key.Namespace, Name: after}
		}
		page, failed := l.reader.List(r.Context(), r.key.Kind, opts)
		if failed != nil {
			return err
		}
		for _, o := range page.Items {
			found[o.Name] = o
		}
		if page.More == 0 {
			break
		}
	}
	for range 3 { // those that are near, until the user may see one of them
		near := resource.NearestNames(r.key.Name, slices.Sorted(maps.Keys(found)))
		if near == "" {
			break
		}
		if l.authorizer.hasStored(r.Context(), a, r.kind, found[near]) {
			said := *missing
			said.status.Message += resource.DidYouMean(r.key.Name, []string{near})
			return &said
		}
		delete(found, near)
	}
	return err
}

// nameVersion says in the answer which version it is in, at a path that has none.
func (r *request) nameVersion(w http.ResponseWriter) {
	if r.ownPath && r.kind.dialect != nil {
		w.Header().Set(apiVersionHeader, r.kind.Version)
		w.Header().Set("Vary", apiVersionHeader)
	}
}

func (s *server) serveCollection(w http.ResponseWriter, r *request) error {
	if is, err := s.mirrored(w, r); is || err != nil {
		return err
	}
	switch {
	case r.Method == http.MethodGet && httpserver.IsQueryTrue(r.Form, "watch"):
		return s.lister.watch(w, r)
	case r.Method == http.MethodGet:
		return s.lister.list(w, r)
	case r.Method == http.MethodPost:
		return s.writer.create(w, r)
	case r.Method == http.MethodDelete:
		return s.writer.deleteCollection(w, r)
	}
	return methodNotAllowed(allowsReadOnly+", POST, DELETE", "%s is not for a collection: name an object", r.Method)
}

func (s *server) serveObject(w http.ResponseWriter, r *request) error {
	switch {
	case r.Method == http.MethodGet:
		return s.lister.get(w, r)
	case r.Method == http.MethodPut:
		return s.writer.put(w, r)
	case r.Method == http.MethodPatch:
		return s.writer.patch(w, r)
	case r.Method == http.MethodDelete && r.subresource == "":
		return s.writer.delete(w, r)
	}
	allow := allowsReadOnly + ", PUT, PATCH"
	if r.subresource == "" {
		allow += ", DELETE"
	}
	return methodNotAllowed(allow, "%s is not for an object", r.Method)
}

// logSecretAccess logs who asks for Secrets. Writes are answered with the content as well.
func (s *server) logSecretAccess(r *request) {
	if !r.kind.Sealed {
		return
	}
	s.secretLog.Info().Str("user", accessIn(r.Context()).user).Str("remote", r.RemoteAddr).Str("verb", r.verb()).
		Str("namespace", fit.ClipPath(r.key.Namespace)).Str("name", fit.ClipPath(r.key.Name)).Msg("Secrets asked for")
}

// parse finds the kind, the object and the subresource of a path.
func (s *server) parse(r *http.Request) (*request, error) {
	r.Form = r.URL.Query() // ParseForm would read the body
	unknown := statusErrorf(http.StatusNotFound, "NotFound", "the server could not find the requested resource: %s", r.URL.Path)
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if parts[0] == "api" {
		parts = slices.Insert(parts, 1, "") // the core group
	}
	if len(parts) < 4 {
		return nil, unknown
	}
	group, version := parts[1], parts[2]
	parts = parts[3:]
	if parts[0] == "watch" && len(parts) > 1 { // the older paths of watches
		if parts = httpserver.ParseOldWatchPath(r.Form, parts[1:]); r.Method != http.MethodGet {
			return nil, unknown
		}
	}
	req := &request{Request: r, media: mediaType(r)}
	if group == "" {
		parts, req.selected = fleetVersions(r, parts)
	}
	inNamespace := parts[0] == "namespaces" && len(parts) >= 3
	if inNamespace {
		req.key.Namespace, parts = parts[1], parts[2:]
	}
	at := func(k Kind) bool {
		return k.Plural == parts[0] && (k.Group == group && k.Version == version || k.dialect.servesAt("/api/"+version, group))
	}
	i, asked := slices.IndexFunc(s.Kinds, at), r.Header.Get(apiVersionHeader)
	if i < 0 || len(parts) > 3 {
		return nil, unknown
	}
	if s.Kinds[i].dialect != nil && group == "" && asked != "" {
		n := slices.IndexFunc(s.Kinds, func(k Kind) bool { return at(k) && k.Version == asked })
		switch {
		case n < 0:
			return nil, statusErrorf(http.StatusNotAcceptable, "NotAcceptable", "%s: %.40q is not served here", apiVersionHeader, asked)
		case r.Method != http.MethodDelete || !s.Kinds[n].readOnly(): // what is deleted has no version
			i = n
		}
	}
	req.kind = &s.Kinds[i]
	req.ownPath = group == "" && req.kind.Group != ""
	req.key.Kind = req.kind.storeKind()
	req.addOwnSelector()
	if len(parts) > 1 {
		req.key.Name = parts[1]
	}
	if len(parts) > 2 {
		req.subresource = parts[2]
	}
	switch {
	case req.subresource != "" && (req.subresource != "status" || req.kind.NoStatus), len(parts) > 1 && req.key.Name == "":
		return nil, unknown
	case inNamespace && !req.kind.Namespaced:
		return nil, unknown
	case !inNamespace && req.kind.Namespaced && (req.key.Name != "" || r.Method != http.MethodGet):
		return nil, unknown
	}
	return req, nil
}

// links serves /links and /links/{node}: the state of the links now. It is no resource: nothing is stored, and nothing can
// be watched.
func (s *server) links(w http.ResponseWriter, r *http.Request) error {
	most := defaultLinks
	if text := r.URL.Query().Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return badRequest("", "limit %.40q is no number above 0", text)
		}
		most = n
	}
	report := s.linksFor(accessIn(r.Context()), r.PathValue("node"), most)
	if report.Links == nil {
		report.Links = []resource.Link{}
	}
	writeJSON(w, http.StatusOK, report)
	return nil
}

// linksFor leaves out what a user of some nodes may not see: other nodes' links, and figures of all clients.
func (s *server) linksFor(a access, node string, most int) resource.LinkReport {
	if a.all {
		return s.Links(node, most)
	}
	report := s.Links(node, math.MaxInt)
	report.FullestQueue, report.FullestQueueClient, report.Missed, report.Refused = 0, "", 0, nil
	report.Links = slices.DeleteFunc(report.Links, func(l resource.Link) bool { return !a.hasNode(l.Node) })
	if more := len(report.Links) - most; more > 0 {
		report.Links, report.More = report.Links[:most], more
	}
	return report
}

// redirectRequest is a request of the same user for something else; body is a merge patch, or nil.
func redirectRequest(r *http.Request, method, at string, body []byte) *http.Request {
	as := r.Clone(r.Context())
	as.Method, as.Body, as.ContentLength = method, io.NopCloser(bytes.NewReader(body)), int64(len(body))
	as.Header.Set("Content-Type", mergePatch)
	as.URL.Path, as.URL.RawPath = at, ""
	return as
}
