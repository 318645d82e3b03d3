// Package api is the Device API at the edge: the node's Devices with their
// models and twins, and the Node itself, over HTTP, in the shapes of the hub's API
// and in those of KubeEdge's group. Stock kubectl is a client of it. It answers from
// the node's own store, so that it works with the hub away. It writes no values:
// values are wanted and reported on the node's broker.
package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/configs/daemon/httpserver"
	"github.com/edgebus/edgebus/topics/resource"
)

// Twins is where the Devices come from.
type Twins interface {
	Devices() (list []resource.Device, rev uint64)
	Device(name string) (resource.Bundle, bool)
	// Changes lists the devices that changed, or left, after a revision, in the order in which they last did. more is
	// closed when there is more.
	Changes(since uint64) (rev uint64, list []resource.Change, more <-chan struct{}, ok bool)
}

// Options are what the API needs.
type Options struct {
	// Who says who sends a request, if it is one who may read. Without it everybody may.
	Who     func(*http.Request) (broker.Identity, error)
	Watches int // at one time, half of them one user's; 0: any number
	Twins   Twins
	// Models are the models of the node's Devices, and Node is the node itself.
	Models  func() []resource.DeviceModel
	Node    func() resource.Node
	Ready   func() error // nil error: the core can do its work
	Metrics http.Handler
	Links   func() resource.LinkReport // how the link to the hub is, when asked
	// Sessions answers /sessions: the sessions of the broker's clients.
	Sessions func(w http.ResponseWriter, r *http.Request, id broker.Identity) error
}

const base = "/apis/" + resource.APIVersion

// listPiece is how much of a list is written at once.
const listPiece = 64 << 10

type server struct {
	Options
	watches *quota.Quota
	paced   *httpserver.Turns
	forms   *forms
	kinds   []kind
}

// New makes the API's handler.
func New(o Options) http.Handler {
	s := &server{
		Options: o, paced: httpserver.NewTurns(), watches: broker.Watches(o.Watches), forms: httpserver.NewShared[string, uint64, form](formsSize), kinds: kinds(),
	}
	mux := http.NewServeMux()
	for i := range s.kinds {
		k := &s.kinds[i]
		at := k.root() + "/"
		mux.HandleFunc("GET "+at+k.plural, s.collection(k))
		if k.namespaced {
			at += "namespaces/{namespace}/"
			mux.HandleFunc("GET "+at+k.plural, s.collection(k))
		}
		mux.HandleFunc("GET "+at+k.plural+"/{name}", s.single(k))
	}
	s.discover(mux)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.Handle("GET /metrics", o.Metrics)
	mux.HandleFunc("GET /links", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, s.Links()) })
	mux.HandleFunc("GET /sessions", s.sessions)
	mux.HandleFunc("DELETE /sessions", s.sessions)
	mux.HandleFunc("/", s.other)
	if o.Who == nil {
		return mux
	}
	// A page of another site must not end sessions through the browser of somebody who may.
	return http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" && r.URL.Path != "/readyz" {
			id, err := o.Who(r)
			if err != nil {
				refuse(w, err)
				return
			}
			ctx := context.WithValue(r.Context(), identityKey{}, id)
			if !id.CertExpires.IsZero() { // and with it what it was shown for, such as a watch
				var cancel context.CancelFunc
				ctx, cancel = context.WithDeadline(ctx, id.CertExpires)
				defer cancel()
			}
			r = r.WithContext(ctx)
		}
		mux.ServeHTTP(w, r)
	}))
}

func (s *server) sessions(w http.ResponseWriter, r *http.Request) {
	id, _ := r.Context().Value(identityKey{}).(broker.Identity)
	if err := s.Sessions(w, r, id); err != nil {
		refuse(w, err)
	}
}

type identityKey struct{}

// refuse tells somebody who may not read why.
func refuse(w http.ResponseWriter, err error) {
	switch kind := resource.KindOf(err); kind {
	case resource.Unauthorized:
		w.Header().Set("WWW-Authenticate", `Basic realm="edgebus", charset="UTF-8"`)
		w.Header().Set("Connection", "close") // who isn't let in holds no connection
		fail(w, http.StatusUnauthorized, string(kind), "%v", err)
	case resource.NotFound:
		fail(w, http.StatusNotFound, string(kind), "%v", err)
	case resource.Unavailable:
		fail(w, http.StatusServiceUnavailable, "ServiceUnavailable", "%v", err)
	case resource.Quota:
		fail(w, http.StatusTooManyRequests, "TooManyRequests", "%v", err)
	case resource.Invalid:
		fail(w, http.StatusUnprocessableEntity, "Invalid", "%v", err)
	default:
		fail(w, http.StatusForbidden, "Forbidden", "%v", err)
	}
}

func (s *server) ready(w http.ResponseWriter, _ *http.Request) {
	if err := s.Ready(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// collection answers lists, and watches of them.
func (s *server) collection(k *kind) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, err := s.query(r, k)
		follow, _ := strconv.ParseBool(r.URL.Query().Get("watch"))
		switch {
		case err != nil:
			refuse(w, err)
		case follow:
			s.watch(w, r, q)
		default:
			s.list(w, q)
		}
	}
}

// list writes a list object by object: as a whole, every byte of its items would be read again, and all be in memory at once.
func (s *server) list(w http.ResponseWriter, q query) {
	var rev string
	var each func(func([]byte))
	if q.of == resource.KindDevice {
		devices, at := s.Twins.Devices()
		rev = strconv.FormatUint(at, 10)
		each = func(yield func([]byte)) {
			for _, d := range devices {
				if q.matches(d.Metadata) {
					yield(s.form(q, d).sent)
				}
			}
		}
	} else {
		var objects []object
		objects, rev = s.few(q.kind)
		each = func(yield func([]byte)) {
			for _, o := range objects {
				if q.matches(o.meta) {
					yield(formOf(q, o, 0).sent)
				}
			}
		}
	}
	before, after := q.frame(rev)
	w.Header().Set("Content-Type", "application/json")
	out := bufio.NewWriterSize(w, listPiece)
	_, _ = out.WriteString(before)
	between := ""
	each(func(sent []byte) {
		_, _ = out.WriteString(between)
		_, _ = out.Write(sent)
		between = ","
	})
	_, _ = out.WriteString(after + "\n")
	_ = out.Flush() // or the client is gone
}

// single answers with one object.
func (s *server) single(k *kind) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q, err := s.query(r, k)
		if err != nil {
			refuse(w, err)
			return
		}
		var found *object
		if k.of == resource.KindDevice {
			if b, ok := s.Twins.Device(q.only); ok && q.matches(b.Device.Metadata) {
				found = &object{b.Device.Metadata, b.Device}
			}
		} else {
			objects, _ := s.few(k)
			if i := slices.IndexFunc(objects, func(o object) bool { return q.matches(o.meta) }); i >= 0 {
				found = &objects[i]
			}
		}
		if found == nil {
			fail(w, http.StatusNotFound, "NotFound", "%s.%s %q not found: this node has none of that name", k.plural, k.group, q.only)
			return
		}
		before, after := q.frame(found.meta.ResourceVersion)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(slices.Concat([]byte(before), formOf(q, *found, 0).sent, []byte(after+"\n"))) // or the client is gone
	}
}

func (s *server) other(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && strings.HasPrefix(r.URL.Path, "/apis/") {
		fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed",
			"the Device API at the edge is read-only: publish to desired/{property} on the node's broker, or write on the hub")
		return
	}
	fail(w, http.StatusNotFound, "NotFound", "nothing is at %s; try %s/devices", r.URL.Path, base)
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client is gone
}

func status(code int, reason, message string) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Status", "metadata": map[string]any{}, "status": "Failure",
		"message": message, "reason": reason, "code": code,
	}
}

func fail(w http.ResponseWriter, code int, reason, format string, args ...any) {
	reply(w, code, status(code, reason, fmt.Sprintf(format, args...)))
}
