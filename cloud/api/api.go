// Package api is the hub's HTTP API, in the style of Kubernetes: stock kubectl is
// a client of it. It knows verbs, paths and forms; what a kind means is said in
// its Kind, and pure rules about objects are in topics/resource.
//
// It never keeps an object, but for models read already: every answer is what the store holds. It never
// writes a status of its own accord, but for a deletion that has to wait.
package api

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/configs/daemon/httpserver"
	"github.com/edgebus/edgebus/topics"
	"github.com/edgebus/edgebus/topics/dialect/fit"
	"github.com/edgebus/edgebus/topics/resource"
)

// Options are what the API needs.
type Options struct {
	Reader  store.Reader
	Writer  store.Writer
	Watcher store.Watcher
	Log     zerolog.Logger
	Now     func() time.Time
	// Who says who sends a request. Without it everybody may do everything.
	Who func(*http.Request) (broker.Identity, error)
	// Seal encrypts Secrets for the store. Without it there are none.
	Seal Sealer
	// Kinds are what is served; nil: Kinds() and their dialects.
	Kinds []Kind
	// Metrics answers /metrics, if it is there.
	Metrics http.Handler
	// Links answers /links, if it is there: how a node's link is, or all nodes' at most so many.
	Links func(node string, most int) resource.LinkReport
	// Sessions answers /sessions, if it is there: the sessions of the broker's clients.
	Sessions func(w http.ResponseWriter, r *http.Request, id broker.Identity) error
	// Ready says for each name whether that part can work; /readyz asks all of them.
	Ready map[string]func(context.Context) error
	// Suffix ends a name that is made of a generateName; another one is tried if that is taken. Random without it.
	Suffix func() string
	// MaxBody bounds a request's body, in bytes.
	MaxBody int64
	// Watches is how many there may be at one time, half of them one user's; 0: any number.
	Watches int
	// Bookmarks is how often a watcher that asked for bookmarks gets one.
	Bookmarks time.Duration
	// Version is what /version says.
	Version string
}

func (o *Options) setDefaults() {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Who == nil {
		o.Who = func(*http.Request) (broker.Identity, error) {
			return broker.Identity{Roles: []topics.Role{topics.RoleOperator, topics.RoleController}, Nodes: []string{"*"}}, nil
		}
	}
	if o.Kinds == nil {
		o.Kinds = withDialects(Kinds())
	}
	if o.Suffix == nil {
		o.Suffix = suffix
	}
	if o.MaxBody == 0 {
		o.MaxBody = 3 << 20
	}
	if o.Bookmarks == 0 {
		o.Bookmarks = time.Minute
	}
	if o.Version == "" {
		o.Version = "v0.0.0"
	}
}

// Sealer encrypts what nobody may read in the store. A text opens only with what it was said to be about.
type Sealer interface {
	Seal(plain []byte, about string) ([]byte, error)
	Open(sealed []byte, about string) ([]byte, error)
}

type server struct {
	Options
	turns    [64]sync.Mutex // see turn
	managers managers
	watches  *quota.Quota
	paced    *httpserver.Turns
	secrets  zerolog.Logger // for who reads Secrets: of a flood not each
	views    *views
}

// New makes the handler. It looks first for deletions that waited for others when
// the hub stopped.
func New(o Options) http.Handler {
	o.setDefaults()
	s := &server{Options: o, paced: httpserver.NewTurns(), watches: broker.Watches(o.Watches), managers: managers{forms: o.Kinds}, views: httpserver.NewShared[view, moment, showing](viewsSize)}
	s.secrets = o.Log.Sample(&zerolog.BurstSampler{Burst: 20, Period: 10 * time.Second})
	s.releaseAll(context.Background())
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.index)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", s.ready)
	if o.Metrics != nil {
		mux.Handle("GET /metrics", overview(o.Metrics))
	}
	if o.Links != nil {
		mux.Handle("GET /links", overview(s.handle(s.links)))
		mux.Handle("GET /links/{node}", overview(s.handle(s.links)))
	}
	if o.Sessions != nil {
		for _, method := range []string{http.MethodGet, http.MethodDelete} {
			mux.Handle(method+" /sessions", s.handle(func(w http.ResponseWriter, r *http.Request) error {
				return s.Sessions(w, r, accessIn(r.Context()).id)
			}))
		}
	}
	s.discovery(mux)
	mux.Handle("GET /openapi/v2", s.handle(s.openapi2))
	mux.Handle("POST "+accessRoot+"/selfsubjectaccessreviews", s.handle(s.accessReview))
	mux.Handle("POST "+accessRoot+"/selfsubjectrulesreviews", s.handle(s.rulesReview))
	mux.Handle("POST "+whoRoot+"/selfsubjectreviews", s.handle(s.whoReview))
	mux.Handle("GET /api/v1/namespaces", s.handle(s.showNamespaces))
	mux.Handle("GET /api/v1/namespaces/{name}", s.handle(s.showNamespaces))
	mux.Handle("/apis/", s.handle(s.object))
	mux.Handle("/api/", s.handle(s.object))
	mux.Handle("/", s.handle(func(_ http.ResponseWriter, r *http.Request) error {
		return refuse(http.StatusNotFound, "NotFound", "there is nothing at %s", r.URL.Path)
	}))
	// A page of another site must not write through the browser of somebody who may.
	return http.NewCrossOriginProtection().Handler(s.admit(mux))
}

func plain(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text)) // a client that went away needs no answer
}

func (s *server) index(w http.ResponseWriter, _ *http.Request) {
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
	plain(w, http.StatusOK, b.String())
}

func (s *server) ready(w http.ResponseWriter, r *http.Request) {
	names := make([]string, 0, len(s.Ready))
	for name := range s.Ready {
		names = append(names, name)
	}
	slices.Sort(names)
	code, text := http.StatusOK, ""
	for _, name := range names {
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
	plain(w, code, text)
}

// handle turns what a handler returns into a Status object, in one place.
func (s *server) handle(f func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, s.MaxBody)
		err := f(w, r)
		if err == nil {
			return
		}
		status := statusOf(err)
		if status.Code >= http.StatusInternalServerError {
			s.Log.Error().Err(err).Str("method", r.Method).Str("path", r.URL.Path).Msg("request failed")
		}
		if status.Code == http.StatusTooManyRequests || status.Code == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "1") // clients try again where they are told when
		}
		writeJSON(w, status.Code, status)
	})
}

// request is a request that was understood.
type request struct {
	*http.Request
	kind        *Kind
	key         store.Key // Name is empty for a collection, Namespace for all of them
	subresource string
	media       string   // of the body
	duplicates  []string // fields that the body has more than once
	doubts      []string // about what is written, for its writer
	readings    []string // doubts about how another group's form was read
	part        bool     // of another object: not all objects of the kind are below the path
	own         bool     // below the path at which the kind's own system serves it
}

// object serves /apis/{group}/{version}/[namespaces/{namespace}/]{plural}[/{name}[/status]].
func (s *server) object(w http.ResponseWriter, r *http.Request) error {
	req, err := s.parse(r)
	if err != nil {
		return err
	}
	if req.own && req.kind.Made != "" && slices.Contains(makingVerbs, req.verb()) {
		return refuse(http.StatusMethodNotAllowed, "MethodNotAllowed", "%s is not for %s: they are made and changed by %s", r.Method, req.kind.Plural, req.kind.Made)
	}
	if err := req.allowed(); err != nil {
		return err
	}
	if req.kind.readOnly() && r.Method != http.MethodGet {
		return refuse(http.StatusMethodNotAllowed, "MethodNotAllowed", "%s are read-only: they show what is known of the %s of the same name", req.kind.Plural, req.kind.record())
	}
	s.noteSecret(req)
	if err := checkManager(req); err != nil {
		return err
	}
	if req.subresource == "" && req.key.Name == "" {
		s.warnStranger(w, req)
		switch {
		case r.Method == http.MethodGet && isTrue(r.FormValue("watch")):
			return s.watch(w, req)
		case r.Method == http.MethodGet:
			return s.list(w, req)
		case r.Method == http.MethodPost:
			return s.create(w, req)
		case r.Method == http.MethodDelete:
			return s.deleteCollection(w, req)
		}
		return refuse(http.StatusMethodNotAllowed, "MethodNotAllowed", "%s is not for a collection: name an object", r.Method)
	}
	if req.part {
		if err := s.among(req); err != nil {
			return err
		}
	}
	switch {
	case r.Method == http.MethodGet:
		return s.get(w, req)
	case r.Method == http.MethodPut:
		return s.put(w, req)
	case r.Method == http.MethodPatch:
		return s.patch(w, req)
	case r.Method == http.MethodDelete && req.subresource == "":
		return s.delete(w, req)
	}
	return refuse(http.StatusMethodNotAllowed, "MethodNotAllowed", "%s is not for an object", r.Method)
}

// noteSecret logs who is given Secrets: the answer of a write has them as well.
func (s *server) noteSecret(r *request) {
	if !r.kind.Sealed {
		return
	}
	s.secrets.Info().Str("user", accessIn(r.Context()).user).Str("remote", r.RemoteAddr).Str("verb", r.verb()).
		Str("namespace", fit.Clip(r.key.Namespace)).Str("name", fit.Clip(r.key.Name)).Msg("Secrets asked for")
}

func isTrue(s string) bool { return s == "true" || s == "1" }

// parse finds out what a path means. It is where other groups' forms of a kind come in.
func (s *server) parse(r *http.Request) (*request, error) {
	// ParseForm would read a body that says it is a form; only the query counts.
	r.Form = r.URL.Query()
	unknown := refuse(http.StatusNotFound, "NotFound", "the server could not find the requested resource: %s", r.URL.Path)
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if parts[0] == "api" { // the core group, whose name is empty
		parts = slices.Insert(parts, 1, "")
	}
	if len(parts) < 4 {
		return nil, unknown
	}
	group, version := parts[1], parts[2]
	parts = parts[3:]
	req := &request{Request: r, media: mediaType(r)}
	if group == "" {
		parts, req.part = fleetsVersions(r, parts)
	}
	inNamespace := parts[0] == "namespaces" && len(parts) >= 3
	if inNamespace {
		req.key.Namespace, parts = parts[1], parts[2:]
	}
	i := slices.IndexFunc(s.Kinds, func(k Kind) bool {
		return k.Plural == parts[0] && (k.Group == group && k.Version == version || k.foreign.isAt("/api/"+version, group))
	})
	if i < 0 || len(parts) > 3 {
		return nil, unknown
	}
	req.kind = &s.Kinds[i]
	req.own = group == "" && req.kind.Group != ""
	req.key.Kind = req.kind.record()
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

const usualLinks = 100 // in an answer

// links serves /links and /links/{node}: how the links are at this moment. It is no
// resource: nothing of it is stored, or can be watched.
func (s *server) links(w http.ResponseWriter, r *http.Request) error {
	most := usualLinks
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

// linksFor leaves out the links of nodes that are none of the user's, and how the hub's clients fare, of whom one is named.
func (s *server) linksFor(a access, node string, most int) resource.LinkReport {
	if a.all {
		return s.Links(node, most)
	}
	report := s.Links(node, math.MaxInt)
	report.FullestQueue, report.FullestOf, report.Missed, report.Refused = 0, "", 0, nil
	report.Links = slices.DeleteFunc(report.Links, func(l resource.Link) bool { return !a.has(l.Node) })
	if more := len(report.Links) - most; more > 0 {
		report.Links, report.More = report.Links[:most], more
	}
	return report
}
