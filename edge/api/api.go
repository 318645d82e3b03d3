// SPDX-License-Identifier: Apache-2.0

// Package api is the Device API at the edge: the node's Devices with their models and twins, and the Node itself, over
// HTTP, in the hub's API group and in KubeEdge's, for kubectl and other clients. It answers from the node's own store, so
// that it works without the hub.
//
// It never writes: desired and reported values are published on the node's broker.
package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/broker/daemon/httpserver"
	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/topics/resource"
)

// Twins gives the Devices.
type Twins interface {
	Devices() (list []resource.Device, rev uint64)
	Device(name string) (resource.Bundle, bool)
	// Changes lists the devices that changed or were removed after a revision, in the order of their last changes. more is
	// closed at the next change. ok is false if the revision is too old.
	Changes(since uint64) (rev uint64, list []resource.DeviceChange, more <-chan struct{}, ok bool)
}

// Options are what the API needs.
type Options struct {
	// Authenticate authenticates a request, and fails if its sender may not read. Without it every client may.
	Authenticate func(*http.Request) (broker.Identity, error)
	// MayRead says which Devices an identity may read; nil, or a nil result: all of them.
	MayRead func(broker.Identity) func(device string) bool
	Watches int // at one time, at most half of them of one user; 0: any number
	Twins   Twins
	// Models are the models of the node's Devices, and Node is the node itself.
	Models  func() []resource.DeviceModel
	Node    func() resource.Node
	Ready   func() error // nil error: the core can do its work
	Metrics http.Handler
	// Alerts answers /alerts: the conditions that are worth a look; nil: nobody can say.
	Alerts http.Handler
	// History answers …/devices/{device}/history of a Device that the client may read; nil: there is none.
	History func(w http.ResponseWriter, r *http.Request, device string) error
	Links   func() resource.LinkReport // answers /links
	OwnOnly bool                       // leaves other projects' groups out of discovery; they are served all the same
	// Browsers serves /session and /mqtt, for people with a browser; it authenticates by itself. nil: neither is served.
	Browsers BrowserServer
	// Page serves the web page, at /ui/; nil: there is none.
	Page http.Handler
	// Sessions answers /sessions: the sessions of the broker's clients.
	Sessions func(w http.ResponseWriter, r *http.Request, id broker.Identity) error
}

// BrowserServer serves what a browser needs beside the API.
type BrowserServer interface {
	ServeSignIn(w http.ResponseWriter, r *http.Request) error
	ServeWebSocket(w http.ResponseWriter, r *http.Request) error
}

// pagePath is where the page is.
const pagePath = "/ui/"

const canonicalRoot = "/apis/" + resource.APIVersion

// listPiece is how much of a list is written at once.
const listPiece = 64 << 10

type server struct {
	Options
	watches *quota.Quota
	paced   *httpserver.WatchTurns
	forms   *encodedCache
	kinds   []kind
}

// New makes the API's handler.
func New(o Options) http.Handler {
	s := &server{
		Options: o, paced: httpserver.NewWatchTurns(), watches: broker.NewWatchQuota(o.Watches), forms: httpserver.NewVersionCache[string, uint64, encodedObject](encodedCacheSize), kinds: kinds(),
	}
	mux := http.NewServeMux()
	for i := range s.kinds {
		k := &s.kinds[i]
		at := "GET " + k.root() + k.Plural
		mux.HandleFunc(at, s.collection(k))
		mux.HandleFunc(at+"/{name}", s.single(k))
		if k.of == resource.KindDevice && s.History != nil {
			mux.HandleFunc(at+"/{name}/history", s.pastOf(k))
		}
		if k.Namespaced {
			mux.HandleFunc("GET /apis/"+k.Group+"/"+k.Version+"/"+k.Plural, s.collection(k)) // of all namespaces
		}
	}
	s.discover(mux)
	mux.HandleFunc("GET /apis/{group}/{version}/watch/", func(w http.ResponseWriter, r *http.Request) { // the older paths of watches
		at, q := strings.Split(strings.Trim(r.URL.Path, "/"), "/"), r.URL.Query()
		if len(at) < 5 { // nothing stands behind /watch/
			s.other(w, r)
			return
		}
		as := r.Clone(r.Context())
		as.URL.Path = "/" + strings.Join(append(at[:3:3], httpserver.ParseOldWatchPath(q, at[4:])...), "/")
		as.URL.RawPath, as.URL.RawQuery = "", q.Encode()
		mux.ServeHTTP(w, as)
	})
	alive := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /readyz", s.ready)
	mux.Handle("GET /metrics", o.Metrics)
	if o.Alerts != nil {
		mux.Handle("GET /alerts", o.Alerts)
	}
	mux.HandleFunc("GET /links", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, s.Links()) })
	mux.HandleFunc("GET /sessions", s.sessions)
	mux.HandleFunc("DELETE /sessions", s.sessions)
	if o.Page != nil {
		mux.Handle("GET "+pagePath, o.Page)
		mux.Handle("GET /{$}", http.RedirectHandler(pagePath, http.StatusFound))
	}
	if o.Browsers != nil {
		mux.HandleFunc("/session", answerErrors(o.Browsers.ServeSignIn))
		mux.HandleFunc("GET /mqtt", answerErrors(o.Browsers.ServeWebSocket))
	}
	mux.HandleFunc("/", s.other)
	if o.Authenticate == nil {
		return mux
	}
	// A page of another site must not end sessions through the browser of a user.
	return http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.isPublic(r.URL.Path) {
			id, err := o.Authenticate(r)
			if err != nil {
				if r.Header.Get("X-Requested-With") != "" { // the page has a form of its own
					w = withoutChallenge{w}
				}
				writeError(w, err)
				return
			}
			ctx := context.WithValue(r.Context(), identityKey{}, id)
			if id.Revoked != nil { // a watch ends with the browser's sign-in, and with the user's rights
				var cancel context.CancelFunc
				ctx, cancel = context.WithCancel(ctx)
				defer cancel()
				defer context.AfterFunc(id.Revoked, cancel)()
			}
			if !id.Expires.IsZero() { // a watch ends with the certificate
				var cancel context.CancelFunc
				ctx, cancel = context.WithDeadline(ctx, id.Expires)
				defer cancel()
			}
			r = r.WithContext(ctx)
		}
		mux.ServeHTTP(w, r)
	}))
}

// isPublic reports whether a path is served without authentication, or by what authenticates requests itself.
func (s *server) isPublic(path string) bool {
	switch path {
	case "/healthz", "/livez", "/readyz":
		return true
	case "/session", "/mqtt":
		return s.Browsers != nil
	case "/":
		return s.Page != nil
	}
	return s.Page != nil && strings.HasPrefix(path, pagePath)
}

// answerErrors answers with a Status if f returns an error.
func answerErrors(f func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := f(w, r); err != nil {
			writeError(w, err)
		}
	}
}

func (s *server) sessions(w http.ResponseWriter, r *http.Request) {
	id, _ := r.Context().Value(identityKey{}).(broker.Identity)
	if err := s.Sessions(w, r, id); err != nil {
		writeError(w, err)
	}
}

type identityKey struct{}

// withoutChallenge leaves out the header for which a browser opens its own dialogue.
type withoutChallenge struct{ http.ResponseWriter }

// WriteHeader is of http.ResponseWriter.
func (w withoutChallenge) WriteHeader(code int) {
	w.Header().Del("WWW-Authenticate")
	w.ResponseWriter.WriteHeader(code)
}

// writeError answers with an error, by its kind.
func writeError(w http.ResponseWriter, err error) {
	switch kind := resource.KindOf(err); kind {
	case resource.Unauthorized:
		w.Header().Set("WWW-Authenticate", `Basic realm="edgebus", charset="UTF-8"`)
		w.Header().Set("Connection", "close") // unauthenticated clients hold no connections
		writeStatus(w, http.StatusUnauthorized, string(kind), "%v", err)
	case resource.NotFound:
		writeStatus(w, http.StatusNotFound, string(kind), "%v", err)
	case resource.Unavailable:
		writeStatus(w, http.StatusServiceUnavailable, "ServiceUnavailable", "%v", err)
	case resource.Quota:
		writeStatus(w, http.StatusTooManyRequests, "TooManyRequests", "%v", err)
	case resource.Invalid:
		writeStatus(w, http.StatusUnprocessableEntity, "Invalid", "%v", err)
	case resource.TooLarge:
		writeStatus(w, http.StatusRequestEntityTooLarge, "RequestEntityTooLarge", "%v", err)
	case resource.Forbidden:
		writeStatus(w, http.StatusForbidden, "Forbidden", "%v", err)
	default:
		writeStatus(w, http.StatusInternalServerError, "InternalError", "%v", err)
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
		follow := httpserver.IsQueryTrue(r.URL.Query(), "watch")
		switch {
		case err != nil:
			writeError(w, err)
		case follow:
			s.watch(w, r, q)
		default:
			s.list(w, q)
		}
	}
}

// list writes a list object by object: encoded as a whole, all items would be in memory at once, and be scanned again.
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
		objects, rev = s.smallKind(q.kind)
		each = func(yield func([]byte)) {
			for _, o := range objects {
				if q.matches(o.meta) {
					yield(encodeObject(q, o, 0).sent)
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
			writeError(w, err)
			return
		}
		var found *object
		if k.of == resource.KindDevice {
			if b, ok := s.Twins.Device(q.name); ok && q.matches(b.Device.Metadata) {
				found = &object{b.Device.Metadata, b.Device}
			}
		} else {
			objects, _ := s.smallKind(k)
			if i := slices.IndexFunc(objects, func(o object) bool { return q.matches(o.meta) }); i >= 0 {
				found = &objects[i]
			}
		}
		if found == nil {
			writeStatus(w, http.StatusNotFound, "NotFound", "%s.%s %q not found: this node has none of that name%s", k.Plural, k.Group, q.name, s.suggestion(q))
			return
		}
		before, after := q.frame(found.meta.ResourceVersion)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(slices.Concat([]byte(before), encodeObject(q, *found, 0).sent, []byte(after+"\n"))) // or the client is gone
	}
}

// pastOf answers with what a property of a Device was, to who may read the Device.
func (s *server) pastOf(k *kind) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		asked := r.Clone(r.Context()) // its query is not that of an object
		asked.URL.RawQuery = ""
		q, err := s.query(asked, k)
		if b, ok := s.Twins.Device(r.PathValue("name")); err == nil && (!ok || !q.matches(b.Device.Metadata)) {
			err = resource.Errorf(resource.NotFound, "", "%s.%s %q not found: this node has none of that name%s", k.Plural, k.Group, q.name, s.suggestion(q))
		}
		if err == nil {
			err = s.History(w, r, q.name)
		}
		if err != nil {
			writeError(w, err)
		}
	}
}

// suggestion names the object that may have been meant instead of one that doesn't exist, among the first that the user may read.
func (s *server) suggestion(q query) string {
	const most = 500
	name := q.name
	q.name, q.labels = "", nil
	var names []string
	add := func(m resource.Meta) {
		if len(names) < most && q.matches(m) {
			names = append(names, m.Name)
		}
	}
	if q.of == resource.KindDevice {
		devices, _ := s.Twins.Devices()
		for _, d := range devices {
			add(d.Metadata)
		}
	} else {
		objects, _ := s.smallKind(q.kind)
		for _, o := range objects {
			add(o.meta)
		}
	}
	return resource.DidYouMean(name, names)
}

func (s *server) other(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && strings.HasPrefix(r.URL.Path, "/apis/") {
		w.Header().Set("Allow", "GET, HEAD")
		writeStatus(w, http.StatusMethodNotAllowed, "MethodNotAllowed",
			"the Device API at the edge is read-only: publish to desired/{property} on the node's broker, or write on the hub")
		return
	}
	writeStatus(w, http.StatusNotFound, "NotFound", "nothing is at %s; try %s/devices", r.URL.Path, canonicalRoot)
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client is gone
}

func newStatus(code int, reason, message string) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Status", "metadata": map[string]any{}, "status": "Failure",
		"message": message, "reason": reason, "code": code,
	}
}

func writeStatus(w http.ResponseWriter, code int, reason, format string, args ...any) {
	writeJSON(w, code, newStatus(code, reason, fmt.Sprintf(format, args...)))
}

const (
	// writeTimeout is the least time that a client has to read what was written.
	writeTimeout = 30 * time.Second
	// encodedCacheSize bounds the cache of encoded devices, in bytes.
	encodedCacheSize = 4 << 20
)

// encodedCache caches encoded devices, by name and revision.
type encodedCache = httpserver.VersionCache[string, uint64, encodedObject]

// encodedObject is an encoded object. All lists and watches of Devices share it.
type encodedObject struct {
	meta resource.Meta
	rev  uint64 // of the object, which may be newer than the one asked for
	sent []byte // nil: the object was removed
}

func encodeObject(q query, o object, rev uint64) encodedObject {
	f := encodedObject{meta: o.meta, rev: rev}
	f.sent, _ = q.render(o) // it can't fail for what the core stores: a property of package dialect
	return f
}

func encodeDevice(q query, d resource.Device) (encodedObject, int) {
	f := encodeObject(q, object{d.Metadata, d}, revisionOf(d))
	return f, len(f.sent)
}

// revisionOf is that of a device that the twin gave.
func revisionOf(d resource.Device) uint64 {
	rev, _ := strconv.ParseUint(d.Metadata.ResourceVersion, 10, 64)
	return rev
}

// form is that of a device which was read.
func (s *server) form(q query, d resource.Device) encodedObject {
	f := s.forms.Get(q.formKey()+d.Metadata.Name, revisionOf(d), func() (encodedObject, int) { return encodeDevice(q, d) })
	if f.rev != revisionOf(d) { // latest has cached a newer one: a list is of one revision
		f, _ = encodeDevice(q, d)
	}
	return f
}

// latest is a device as of a revision, or as it is now if that is later.
func (s *server) latest(q query, name string, rev uint64) encodedObject {
	return s.forms.Get(q.formKey()+name, rev, func() (encodedObject, int) {
		b, ok := s.Twins.Device(name)
		if !ok {
			return encodedObject{}, 0
		}
		return encodeDevice(q, b.Device)
	})
}

// watcher is one client's watch.
type watcher struct {
	*server
	query
	lines *httpserver.EventWriter
	known map[string]bool // names of the devices that the client knows
}

// watch sends the objects that change after a resourceVersion. Without one it sends all existing objects first.
func (s *server) watch(w http.ResponseWriter, r *http.Request, q query) {
	if r.URL.Query().Has("sendInitialEvents") {
		writeError(w, resource.Errorf(resource.Invalid, "sendInitialEvents", "is not known here: list, and watch from there on"))
		return
	}
	limit, err := httpserver.WatchTimeout(r.URL.Query())
	if err != nil {
		writeError(w, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	defer cancel()
	id, _ := r.Context().Value(identityKey{}).(broker.Identity)
	if err := s.watches.Take(id.User, 1); err != nil {
		writeError(w, err)
		return
	}
	defer s.watches.Add(id.User, -1)
	if q.of != resource.KindDevice {
		v := &watcher{server: s, query: q, lines: httpserver.BeginWatch(w)}
		v.compare(ctx, r.URL.Query().Get("resourceVersion"))
		return
	}
	since, fresh, ok := s.since(w, r)
	if !ok {
		return
	}
	v := &watcher{server: s, query: q, lines: httpserver.BeginWatch(w), known: make(map[string]bool)}
	v.lines.Allow(2 * writeTimeout)
	if fresh {
		since, err = v.begin()
	} else {
		err = v.resume(since)
	}
	if err == nil {
		v.follow(ctx, since)
	} // or the client is gone, or has to list again
}

func (s *server) since(w http.ResponseWriter, r *http.Request) (since uint64, fresh, ok bool) {
	text := r.URL.Query().Get("resourceVersion")
	if text == "" || text == "0" {
		return 0, true, true
	}
	since, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		writeStatus(w, http.StatusBadRequest, "BadRequest", "resourceVersion %.40q is not one that this API gave", text)
		return 0, false, false
	}
	if _, _, _, known := s.Twins.Changes(since); !known {
		writeStatus(w, http.StatusGone, "Expired", "resourceVersion %s is too old: list again", text)
		return 0, false, false
	}
	return since, false, true
}

// begin sends all devices to a client that knows none.
func (v *watcher) begin() (rev uint64, err error) {
	devices, rev := v.Twins.Devices()
	for _, d := range devices {
		if !v.matches(d.Metadata) {
			continue
		}
		v.known[d.Metadata.Name] = true
		if err := v.lines.Add("ADDED", v.event(v.form(v.query, d).sent)); err != nil {
			return rev, err
		}
	}
	return rev, v.lines.Flush()
}

// resume notes which devices a client knows that goes on from a revision: those that match now, and of those that changed or
// left since then all that may have matched before. A DELETED of one that it never had does no harm, while a missing one does.
func (v *watcher) resume(since uint64) error {
	devices, _ := v.Twins.Devices()
	for _, d := range devices {
		if v.matches(d.Metadata) {
			v.known[d.Metadata.Name] = true
		}
	}
	_, changes, _, ok := v.Twins.Changes(since)
	for _, c := range slices.Backward(changes) {
		switch {
		case !v.named(c.Name, c.Namespace):
		case c.Removed && v.reads != nil: // it may be one that the user must not know of
			ok = false
		case c.Added > since && !c.Removed:
			delete(v.known, c.Name)
		case v.reads == nil || v.reads(c.Name):
			v.known[c.Name] = true
		}
	}
	if !ok {
		return v.expired()
	}
	return v.lines.Flush()
}

// follow sends changes until the client disconnects, its time is up, or changes were missed.
func (v *watcher) follow(ctx context.Context, since uint64) {
	now := time.NewTicker(writeTimeout)
	defer now.Stop()
	for {
		rev, more, ok := v.round(since)
		if !ok {
			return
		}
		since = rev
		select {
		case <-more:
		case <-now.C:
			v.lines.Allow(2 * writeTimeout)
		case <-ctx.Done():
			return
		}
	}
}

// round sends what has changed since a revision, in one turn. It returns the revision that was reached, the channel that is
// closed at the next change, and whether the watch goes on.
func (v *watcher) round(since uint64) (rev uint64, more <-chan struct{}, ok bool) {
	defer v.paced.Take()()
	rev, changes, more, ok := v.Twins.Changes(since)
	if !ok {
		_ = v.expired() // the watch is over either way
		return rev, more, false
	}
	return rev, more, v.sendChanges(rev, changes) == nil // or the client is gone
}

// expired tells the client to list again.
func (v *watcher) expired() error {
	raw, _ := json.Marshal(newStatus(http.StatusGone, "Expired", errExpired.Error())) // strings and a number
	return errors.Join(errExpired, v.lines.Add("ERROR", raw), v.lines.Flush())
}

var errExpired = errors.New("too much has changed: list again")

// sendChanges sends changes up to a revision.
func (v *watcher) sendChanges(rev uint64, changes []resource.DeviceChange) error {
	for _, c := range changes {
		var err error
		if c.Removed {
			err = v.sendDeleted(c)
		} else {
			err = v.sendChanged(c, rev)
		}
		if err != nil {
			return err
		}
	}
	return v.lines.Flush()
}

// sendDeleted sends DELETED. It may be for a device that was created and removed between list and watch, which does no harm.
func (v *watcher) sendDeleted(c resource.DeviceChange) error {
	meta := resource.Meta{Name: c.Name, Namespace: c.Namespace, UID: c.UID, ResourceVersion: strconv.FormatUint(c.Rev, 10)}
	// Labels and protocol of a removed device are unknown: clients that knew it are told.
	if !v.named(c.Name, c.Namespace) || (v.labels != nil || v.reads != nil) && !v.known[c.Name] {
		return nil
	}
	delete(v.known, c.Name)
	gone := resource.Device{TypeMeta: resource.TypeMeta{APIVersion: resource.APIVersion, Kind: resource.KindDevice}, Metadata: meta}
	return v.lines.Add("DELETED", v.event(encodeObject(v.query, object{meta, gone}, c.Rev).sent))
}

// sendChanged sends a device. If it has changed again after rev, it is left for the next round: a client that resumed from
// that revision would miss the changes in between.
func (v *watcher) sendChanged(c resource.DeviceChange, rev uint64) error {
	if v.name != "" && v.name != c.Name {
		return nil
	}
	f := v.latest(v.query, c.Name, c.Rev)
	if f.sent == nil || f.rev > rev {
		return nil
	}
	kind := "ADDED"
	switch matches := v.matches(f.meta); {
	case matches && v.known[c.Name]:
		kind = "MODIFIED"
	case !matches && v.known[c.Name]:
		kind = "DELETED" // it has other labels now
	case !matches:
		return nil
	}
	v.known[c.Name] = kind != "DELETED"
	return v.lines.Add(kind, v.event(f.sent))
}

// compareInterval is how often watches of models and of the node look for changes.
const compareInterval = time.Second

// compare watches kinds with few objects by comparing them with what was sent. since is the revision of a list.
func (v *watcher) compare(ctx context.Context, since string) {
	now := time.NewTicker(compareInterval)
	defer now.Stop()
	told := map[string]object{}
	if list, rev := v.smallKind(v.kind); since == rev {
		for _, o := range list {
			told[o.meta.Namespace+"/"+o.meta.Name] = o
		}
	} else if since != "" && since != "0" && (v.of != resource.KindNode || len(v.labels) > 0) { // there is one Node, and it never goes
		_ = v.expired() // the watch is over either way
		return
	}
	for v.lines.Allow(2 * writeTimeout); v.differences(told) == nil; v.lines.Allow(2 * writeTimeout) {
		select {
		case <-now.C:
		case <-ctx.Done():
			return
		}
	}
}

// differences sends what differs from what was sent.
func (v *watcher) differences(told map[string]object) error {
	defer v.paced.Take()()
	list, _ := v.smallKind(v.kind)
	there := make(map[string]bool, len(list))
	for _, o := range list {
		key := o.meta.Namespace + "/" + o.meta.Name
		was, known := told[key]
		if !v.matches(o.meta) || known && was.meta.ResourceVersion == o.meta.ResourceVersion {
			there[key] = v.matches(o.meta)
			continue
		}
		kind := "ADDED"
		if known {
			kind = "MODIFIED"
		}
		there[key], told[key] = true, o
		if err := v.lines.Add(kind, v.event(encodeObject(v.query, o, 0).sent)); err != nil {
			return err
		}
	}
	for key, o := range told {
		if there[key] {
			continue
		}
		delete(told, key)
		if !v.matches(o.meta) {
			continue // it does not match the selectors
		}
		if err := v.lines.Add("DELETED", v.event(encodeObject(v.query, o, 0).sent)); err != nil {
			return err
		}
	}
	return v.lines.Flush()
}
