// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/edgebus/edgebus/broker/daemon/httpserver"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	// writeTimeout is how long a client may take to read what it is sent.
	writeTimeout = 30 * time.Second
	// renderCacheSize bounds the cache of rendered objects, in bytes.
	renderCacheSize = 4 << 20
)

// An object is rendered once for all watchers that see it in the same form. renderKey is the form, and renderVersion
// the version of the object.
type renderKey struct {
	object  store.Key
	kind    *Kind
	format  answerFormat
	columns bool // of a Table
}

type renderVersion struct {
	rev    uint64
	second int64 // of the clock: a Table has ages
}

type renderedObject struct {
	json []byte
	err  error
}

type renderCache = httpserver.VersionCache[renderKey, renderVersion, renderedObject]

// watcher is the watch of one client.
type watcher struct {
	l         *lister
	r         *request
	lines     *httpserver.EventWriter
	sel       selector
	columns   bool // of a Table have been sent
	bookmarks bool // are wanted
}

// watch serves a watch: events as lines of JSON, until the client leaves, the time is up, or the store has forgotten what
// the client has not seen.
func (l *lister) watch(w http.ResponseWriter, r *request) error {
	user := accessIn(r.Context())
	if err := l.watches.Take(user.account, 1); err != nil {
		return err
	}
	defer l.watches.Add(user.account, -1)
	if r.format.yaml {
		return statusErrorf(http.StatusNotAcceptable, "NotAcceptable", "a watch is JSON lines")
	}
	sel, err := l.selector(r)
	if err != nil {
		return err
	}
	ctx, cancel, err := l.watchContext(r, user)
	if err != nil {
		return err
	}
	defer cancel()
	objects, from, err := l.initialObjects(r, sel)
	if err != nil {
		return err
	}
	stream, err := l.watcher.Watch(r.Context(), r.watchKey(sel), from)
	if err != nil {
		return r.about("", err)
	}
	defer stream.Close()
	v := &watcher{l: l, r: r, sel: sel, lines: httpserver.BeginWatch(w), bookmarks: httpserver.IsQueryTrue(r.Form, "allowWatchBookmarks")}
	v.lines.Allow(l.bookmarks + writeTimeout)
	if err := v.begin(objects, from); err == nil {
		v.follow(ctx, stream)
	}
	return nil // an error is an event of the watch
}

// initialObjects are the objects that are sent before changes, and the revision from which on changes are sent.
func (l *lister) initialObjects(r *request, sel selector) (objects []store.Object, from uint64, err error) {
	from, initial, err := watchFrom(r)
	if err != nil {
		return nil, 0, err
	}
	if initial {
		objects, meta, err := l.collect(r, store.ListOptions{Namespace: r.key.Namespace}, sel)
		if err == nil {
			err = r.checkNotOlder(meta)
		}
		from, _ = parseRevision(meta.ResourceVersion) // our own
		return objects, from, err
	}
	if from == 0 {
		page, err := l.reader.List(r.Context(), r.key.Kind, store.ListOptions{Limit: 1, DataOnly: true})
		return nil, page.Rev, r.about("", err)
	}
	return nil, from, nil
}

// watchFrom is the revision at which a watch begins, and whether all objects are sent first.
func watchFrom(r *request) (from uint64, initial bool, err error) {
	if from, err = parseRevision(r.FormValue("resourceVersion")); err != nil {
		return 0, false, err
	}
	asked, match := r.Form.Has("sendInitialEvents"), r.FormValue("resourceVersionMatch")
	switch {
	case !asked && match != "":
		return 0, false, resource.Errorf(resource.Invalid, "resourceVersionMatch", "is for a watch with sendInitialEvents only")
	case !asked:
		return from, from == 0, nil
	case match != "NotOlderThan":
		return 0, false, resource.Errorf(resource.Invalid, "resourceVersionMatch", "must be NotOlderThan with sendInitialEvents")
	}
	return from, httpserver.IsQueryTrue(r.Form, "sendInitialEvents"), nil
}

// watchContext ends when the watch has to: no later than the certificate that the user signed in with.
func (l *lister) watchContext(r *request, user access) (context.Context, context.CancelFunc, error) {
	limit, err := httpserver.WatchTimeout(r.Form)
	if err != nil {
		return nil, nil, badRequest("timeoutSeconds", "%v", err)
	}
	if !user.expires.IsZero() {
		limit = min(limit, user.expires.Sub(l.now()))
	}
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	return ctx, cancel, nil
}

// begin sends the initial objects. It flushes the header even if there are none.
func (v *watcher) begin(objects []store.Object, rev uint64) error {
	var raw []byte
	for _, o := range objects { // not cached: other watchers rarely ask for the same ones now
		var err error
		if raw, err = v.render(raw[:0], v.renderKey(o), o); err == nil {
			err = v.add(store.Added.String(), raw)
		}
		if err != nil {
			return err
		}
	}
	if httpserver.IsQueryTrue(v.r.Form, "sendInitialEvents") && v.bookmarks {
		if err := v.bookmark(rev, true); err != nil {
			return err
		}
	}
	return v.lines.Flush()
}

// follow sends changes, and bookmarks at intervals if the client wants them.
func (v *watcher) follow(ctx context.Context, stream store.Stream) {
	for {
		v.lines.Allow(v.l.bookmarks + writeTimeout)
		wait, cancel := context.WithTimeout(ctx, v.l.bookmarks)
		err := v.relay(wait, stream)
		cancel()
		if err == nil && v.bookmarks && ctx.Err() == nil {
			err = v.bookmark(stream.Rev(), false)
		}
		if err == nil {
			err = v.lines.Flush()
		}
		if err != nil || ctx.Err() != nil {
			return
		}
	}
}

// relay sends changes until ctx ends.
func (v *watcher) relay(ctx context.Context, stream store.Stream) error {
	for {
		events, err := stream.Next(ctx)
		switch {
		case err == nil:
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
			return nil
		default:
			return errors.Join(err, v.addOther("ERROR", statusOf(err)), v.lines.Flush())
		}
		if err := v.events(events); err != nil {
			return err
		}
	}
}

// events sends a batch of changes. Only as many watchers as there are processors do so at once.
func (v *watcher) events(batch []store.Event) error {
	defer v.l.paced.Take()()
	for _, e := range batch {
		if err := v.event(e); err != nil {
			return err
		}
	}
	return v.lines.Flush()
}

// event sends what a change means to a client that sees only selected objects: one that is no longer selected is DELETED.
func (v *watcher) event(e store.Event) error {
	namespace := v.r.key.Namespace
	if namespace != "" && e.Object.Namespace != namespace || !v.sel.matchesName(e.Object.Namespace, e.Object.Name) {
		return nil
	}
	if v.sel.namesOnly() {
		return v.send(e.Type, e.Object)
	}
	// The old object is not known to a stream that has caught up. A DELETED of an object that the client never had does no
	// harm, while a missing one does.
	before, now := e.Type != store.Added, false
	var err error
	if e.Old != nil {
		if before, err = v.l.encoder.matches(v.sel, *e.Old); err != nil {
			return err
		}
	}
	if e.Type != store.Deleted {
		if now, err = v.l.encoder.matches(v.sel, e.Object); err != nil {
			return err
		}
	}
	switch {
	case now && e.Old == nil:
		return v.send(e.Type, e.Object)
	case now && before:
		return v.send(store.Modified, e.Object)
	case now:
		return v.send(store.Added, e.Object)
	case before:
		return v.sendDeleted(e.Object)
	}
	return nil
}

// sendDeleted sends that an object is no longer selected. If the user may no longer see it only its name is sent.
func (v *watcher) sendDeleted(o store.Object) error {
	if v.sel.has == nil || v.sel.has(o) {
		return v.send(store.Deleted, o)
	}
	obj, err := v.l.encoder.objects.Decode(o)
	if err != nil {
		return err
	}
	bare, err := v.l.encoder.objects.Encode(o.Key, obj.Bare())
	if err != nil {
		return err
	}
	raw, err := v.render(nil, v.renderKey(bare), bare)
	if err != nil {
		return err
	}
	return v.add(store.Deleted.String(), raw)
}

// send sends an event about a stored object, which is rendered once for all watchers.
func (v *watcher) send(event store.EventType, o store.Object) error {
	key := v.renderKey(o)
	render := func() (out renderedObject, size int) {
		out.json, out.err = v.render(nil, key, o)
		out.json = bytes.Clone(out.json) // without spare capacity: it is kept
		return out, len(out.json)
	}
	var out renderedObject
	if v.r.kind.Sealed {
		out, _ = render() // what the store has encrypted is not kept in memory
	} else {
		out = v.l.renderCache.Get(key, v.renderVersion(o), render)
	}
	if out.err != nil {
		return out.err
	}
	return v.add(event.String(), out.json)
}

// add adds an event with a rendered object.
func (v *watcher) add(event string, raw []byte) error {
	v.columns = v.r.format.table
	return v.lines.Add(event, raw)
}

// renderKey is the form in which the client gets an object. Only the first Table has column definitions.
func (v *watcher) renderKey(o store.Object) renderKey {
	return renderKey{object: o.Key, kind: v.r.kind, format: v.r.format, columns: v.r.format.table && !v.columns}
}

func (v *watcher) renderVersion(o store.Object) renderVersion {
	version := renderVersion{rev: o.Rev}
	if v.r.format.table {
		version.second = v.l.now().Unix()
	}
	return version
}

func (v *watcher) render(out []byte, key renderKey, o store.Object) ([]byte, error) {
	if key.format.table {
		return v.l.encoder.appendTable(out, key.kind, key.format, key.columns, listMetaAt(o.Rev), o)
	}
	return v.l.encoder.appendObject(out, key.kind, key.format, o)
}

// addOther adds an event that is not about an object.
func (v *watcher) addOther(event string, about any) error {
	raw, err := json.Marshal(about)
	if err != nil {
		return err
	}
	return v.lines.Add(event, raw)
}

func (v *watcher) bookmark(rev uint64, initialEnd bool) error {
	k, f := v.r.kind, v.r.format
	if f.table {
		raw, err := v.l.encoder.appendTable(nil, k, f, !v.columns, listMetaAt(rev))
		if err != nil {
			return err
		}
		return v.add("BOOKMARK", raw)
	}
	meta := jsonObject{"resourceVersion": strconv.FormatUint(rev, 10), "creationTimestamp": nil}
	if initialEnd {
		meta["annotations"] = map[string]string{"k8s.io/initial-events-end": "true"}
	}
	kind, apiVersion := k.Name, k.APIVersion()
	if f.partial {
		kind, apiVersion = partialKind, "meta.k8s.io/"+f.version
	}
	return v.addOther("BOOKMARK", jsonObject{"kind": kind, "apiVersion": apiVersion, "metadata": meta})
}
