// Package api is the Device API at the edge: the node's Devices with their
// models and twins, over HTTP, in the shapes of the hub's API. It answers from
// the node's own store, so that it works with the hub away. It is read-only:
// values are wanted and reported on the node's broker.
package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/broker/watch"
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
	Ready   func() error // nil error: the core can do its work
	Metrics http.Handler
	Links   func() resource.LinkReport // how the link to the hub is, when asked
}

const base = "/apis/" + resource.APIVersion

// listPiece is how much of a list is written at once.
const listPiece = 64 << 10

type server struct {
	Options
	watches *quota.Quota
	paced   *watch.Turns
	forms   *forms
}

// New makes the API's handler.
func New(o Options) http.Handler {
	s := &server{Options: o, paced: watch.NewTurns(), watches: broker.Watches(o.Watches), forms: watch.NewShared[string, uint64, form](formsSize)}
	mux := http.NewServeMux()
	for _, prefix := range []string{base, base + "/namespaces/{namespace}"} {
		mux.HandleFunc("GET "+prefix+"/devices", s.devices)
		mux.HandleFunc("GET "+prefix+"/devicemodels", s.models)
	}
	mux.HandleFunc("GET "+base+"/namespaces/{namespace}/devices/{name}", s.device)
	mux.HandleFunc("GET "+base+"/namespaces/{namespace}/devicemodels/{name}", s.model)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.Handle("GET /metrics", o.Metrics)
	mux.HandleFunc("GET /links", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, s.Links()) })
	mux.HandleFunc("/", s.other)
	if o.Who == nil {
		return mux
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" && r.URL.Path != "/readyz" {
			id, err := o.Who(r)
			if err != nil {
				refuse(w, err)
				return
			}
			r = r.WithContext(context.WithValue(r.Context(), identityKey{}, id))
		}
		mux.ServeHTTP(w, r)
	})
}

type identityKey struct{}

// refuse tells somebody who may not read why.
func refuse(w http.ResponseWriter, err error) {
	switch kind := resource.KindOf(err); kind {
	case resource.Unauthorized:
		w.Header().Set("WWW-Authenticate", `Basic realm="edgebus", charset="UTF-8"`)
		fail(w, http.StatusUnauthorized, string(kind), "%v", err)
	case resource.Quota:
		fail(w, http.StatusTooManyRequests, "TooManyRequests", "%v", err)
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

type list[T any] struct {
	resource.TypeMeta
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Items []T `json:"items"`
}

func newList[T any](kind string, items []T, rev uint64) list[T] {
	l := list[T]{TypeMeta: resource.TypeMeta{APIVersion: resource.APIVersion, Kind: kind + "List"}, Items: items}
	if l.Items == nil {
		l.Items = []T{}
	}
	l.Metadata.ResourceVersion = strconv.FormatUint(rev, 10)
	return l
}

func (s *server) devices(w http.ResponseWriter, r *http.Request) {
	if follow, _ := strconv.ParseBool(r.URL.Query().Get("watch")); follow {
		s.watch(w, r)
		return
	}
	devices, rev := s.Twins.Devices()
	// Encoded as a whole, every byte of its items would be read again, and all be in memory at once.
	around, _ := json.Marshal(newList(resource.KindDevice, []string{}, rev)) // strings
	w.Header().Set("Content-Type", "application/json")
	out := bufio.NewWriterSize(w, listPiece)
	_, _ = out.Write(bytes.TrimSuffix(around, []byte("]}")))
	between := ""
	for _, d := range devices {
		if inNamespace(r, d.Metadata) {
			_, _ = out.WriteString(between)
			_, _ = out.Write(s.form(d).json)
			between = ","
		}
	}
	_, _ = out.WriteString("]}\n")
	_ = out.Flush() // or the client is gone
}

func inNamespace(r *http.Request, m resource.Meta) bool {
	want := r.PathValue("namespace")
	have := m.Namespace
	if have == "" {
		have = resource.DefaultNamespace
	}
	return want == "" || want == have
}

func (s *server) device(w http.ResponseWriter, r *http.Request) {
	b, ok := s.Twins.Device(r.PathValue("name"))
	if !ok || !inNamespace(r, b.Device.Metadata) {
		fail(w, http.StatusNotFound, "NotFound", "device %q does not belong to this node", r.PathValue("name"))
		return
	}
	reply(w, http.StatusOK, b.Device)
}

// all are the models of the node's devices, in order of name.
func (s *server) all(r *http.Request) (models []resource.DeviceModel, rev uint64) {
	seen := make(map[string]bool)
	devices, rev := s.Twins.Devices()
	for _, d := range devices {
		b, ok := s.Twins.Device(d.Metadata.Name)
		key := b.Model.Metadata.Namespace + "/" + b.Model.Metadata.Name
		if ok && !seen[key] && inNamespace(r, b.Model.Metadata) {
			seen[key] = true
			models = append(models, b.Model)
		}
	}
	slices.SortFunc(models, func(a, b resource.DeviceModel) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	return models, rev
}

func (s *server) models(w http.ResponseWriter, r *http.Request) {
	models, rev := s.all(r)
	reply(w, http.StatusOK, newList(resource.KindDeviceModel, models, rev))
}

func (s *server) model(w http.ResponseWriter, r *http.Request) {
	models, _ := s.all(r)
	for _, m := range models {
		if m.Metadata.Name == r.PathValue("name") {
			reply(w, http.StatusOK, m)
			return
		}
	}
	fail(w, http.StatusNotFound, "NotFound", "no device of this node has the model %q", r.PathValue("name"))
}

func (s *server) other(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && strings.HasPrefix(r.URL.Path, base) {
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
