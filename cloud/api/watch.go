package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/configs/daemon/httpserver"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	// defaultWatch is how long a watch lasts when the client doesn't say.
	defaultWatch = 30 * time.Minute
	// patience is how long a client may take at least to read what it is told.
	patience = 30 * time.Second
	// viewsSize bounds what is remembered of what watchers were sent, in bytes.
	viewsSize = 4 << 20
)

// view says how an object is to be seen: all who watch it in the same view are sent the same.
type view struct {
	object  store.Key
	kind    *Kind
	format  format
	columns bool // of a Table
}

// moment is what a view is of.
type moment struct {
	rev    uint64
	second int64 // in which a Table was asked for: it says how old things are
}

// showing is the object in a view.
type showing struct {
	json []byte
	err  error
}

type views = httpserver.Shared[view, moment, showing]

// watcher is one client's watch.
type watcher struct {
	s      *server
	r      *request
	lines  *httpserver.Lines
	format format
	sel    selector
	headed bool // the columns of a Table were sent
	marks  bool
}

// watch streams events as JSON lines until the client goes, its time is up, or
// the store no longer knows what it missed.
func (s *server) watch(w http.ResponseWriter, r *request) error {
	who := accessIn(r.Context())
	if err := s.watches.Take(who.account, 1); err != nil {
		return err
	}
	defer s.watches.Add(who.account, -1)
	f, err := accepts(r.Request)
	if err != nil {
		return err
	}
	if f.yaml {
		return refuse(http.StatusNotAcceptable, "NotAcceptable", "a watch is JSON lines")
	}
	sel, err := s.selector(r)
	if err != nil {
		return err
	}
	from, initial, err := watchFrom(r)
	if err != nil {
		return err
	}
	ctx, cancel, err := s.watchTime(r, who)
	if err != nil {
		return err
	}
	defer cancel()
	v := &watcher{s: s, r: r, format: f, sel: sel, marks: isTrue(r.FormValue("allowWatchBookmarks"))}
	var objects []store.Object
	if initial {
		var meta listMeta
		if objects, meta, err = s.collect(r, store.ListOptions{Namespace: r.key.Namespace}, sel); err != nil {
			return err
		}
		if err := reached(r, meta); err != nil {
			return err
		}
		from, _ = revision(meta.ResourceVersion) // our own
	}
	if from == 0 { // what there is was not asked for
		page, err := s.Reader.List(r.Context(), r.key.Kind, store.ListOptions{Limit: 1})
		if err != nil {
			return r.about("", err)
		}
		from = page.Rev
	}
	stream, err := s.Watcher.Watch(r.Context(), r.only(sel), from)
	if err != nil {
		return r.about("", err)
	}
	defer stream.Close()
	v.lines = httpserver.BeginWatch(w)
	v.lines.Allow(s.Bookmarks + patience)
	if err := v.begin(objects, from); err == nil {
		v.follow(ctx, stream)
	}
	return nil // the answer has begun: what happens now is said in it
}

// watchFrom is the revision to begin at, and whether all there is comes first.
func watchFrom(r *request) (from uint64, initial bool, err error) {
	if from, err = revision(r.FormValue("resourceVersion")); err != nil {
		return 0, false, err
	}
	asked, match := r.FormValue("sendInitialEvents"), r.FormValue("resourceVersionMatch")
	if asked == "" {
		if match != "" {
			return 0, false, resource.Errorf(resource.Invalid, "resourceVersionMatch", "is for a watch with sendInitialEvents only")
		}
		return from, from == 0, nil
	}
	if match != "NotOlderThan" {
		return 0, false, resource.Errorf(resource.Invalid, "resourceVersionMatch", "must be NotOlderThan with sendInitialEvents")
	}
	return from, isTrue(asked), nil
}

// watchTime is how long a watch lasts: no longer than the certificate that it was opened with.
func (s *server) watchTime(r *request, who access) (context.Context, context.CancelFunc, error) {
	limit := defaultWatch
	if text := r.FormValue("timeoutSeconds"); text != "" {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return nil, nil, badRequest("timeoutSeconds", "timeoutSeconds %.20q is not a number", text)
		}
		if n > 0 {
			limit = min(time.Duration(n)*time.Second, 24*time.Hour)
		}
	}
	if !who.expires.IsZero() {
		limit = min(limit, who.expires.Sub(s.Now()))
	}
	ctx, cancel := context.WithTimeout(r.Context(), limit)
	return ctx, cancel, nil
}

// begin sends what there is, and flushes the header also when that is nothing.
func (v *watcher) begin(objects []store.Object, rev uint64) error {
	var raw []byte
	for _, o := range objects { // hardly anybody asks for the same ones just now
		var err error
		if raw, err = v.show(raw[:0], v.view(o), o); err == nil {
			err = v.tell(store.Added.String(), raw)
		}
		if err != nil {
			return err
		}
	}
	if isTrue(v.r.FormValue("sendInitialEvents")) && v.marks {
		if err := v.bookmark(rev, true); err != nil {
			return err
		}
	}
	return v.lines.Flush()
}

// follow gives the client a bookmark every so often, if it wants any, and time to read on.
func (v *watcher) follow(ctx context.Context, stream store.Stream) {
	for {
		v.lines.Allow(v.s.Bookmarks + patience)
		wait, cancel := context.WithTimeout(ctx, v.s.Bookmarks)
		err := v.relay(wait, stream)
		cancel()
		if err == nil && v.marks && ctx.Err() == nil {
			err = v.bookmark(stream.Rev(), false)
		}
		if err == nil {
			err = v.lines.Flush()
		}
		if err != nil || ctx.Err() != nil {
			return // nobody reads any more, or the client's time is up
		}
	}
}

// relay tells of what changes until ctx ends.
func (v *watcher) relay(ctx context.Context, stream store.Stream) error {
	for {
		events, err := stream.Next(ctx)
		switch {
		case err == nil:
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
			return nil
		default:
			return errors.Join(err, v.failed(err))
		}
		if err := v.events(events); err != nil {
			return err
		}
	}
}

// events sends what several changes mean, in a turn of its own.
func (v *watcher) events(all []store.Event) error {
	defer v.s.paced.Take()()
	for _, e := range all {
		if err := v.event(e); err != nil {
			return err
		}
	}
	return v.lines.Flush()
}

// failed tells why the watch is over.
func (v *watcher) failed(why error) error {
	if err := v.sendOther("ERROR", statusOf(why)); err != nil {
		return err
	}
	return v.lines.Flush()
}

// event sends what a change means to a client that sees only what its selector matches.
func (v *watcher) event(e store.Event) error {
	ns := v.r.key.Namespace
	if ns != "" && e.Object.Namespace != ns || !v.sel.mentions(e.Object.Namespace, e.Object.Name) {
		return nil
	}
	if v.sel.byName() {
		return v.send(e.Type, e.Object) // names never change
	}
	// A stream that caught up doesn't know what was before. A DELETED of what the
	// client never had does no harm; one that is missing does.
	before := e.Type != store.Added
	if e.Old != nil {
		var err error
		if before, err = v.s.matches(v.sel, *e.Old); err != nil {
			return err
		}
	}
	now := false
	if e.Type != store.Deleted {
		var err error
		if now, err = v.s.matches(v.sel, e.Object); err != nil {
			return err
		}
	}
	switch {
	case now && before && e.Old != nil:
		return v.send(store.Modified, e.Object)
	case now && e.Old == nil:
		return v.send(e.Type, e.Object)
	case now:
		return v.send(store.Added, e.Object)
	case before:
		return v.leave(e.Object)
	}
	return nil
}

// leave tells of an object that the client sees no longer, if it ever did. Whom it doesn't concern any more is told
// which it is, not what has become of it.
func (v *watcher) leave(o store.Object) error {
	if v.sel.sees == nil || v.sel.sees(o) {
		return v.send(store.Deleted, o)
	}
	obj, err := v.s.fromStore(o)
	if err != nil {
		return err
	}
	m := obj.Metadata
	o.Data, err = v.s.data(&object{TypeMeta: obj.TypeMeta, Metadata: resource.Meta{Name: m.Name, Namespace: m.Namespace, UID: m.UID}, flat: obj.flat})
	if err != nil {
		return err
	}
	o.Status = nil
	raw, err := v.show(nil, v.view(o), o) // for this client alone
	if err != nil {
		return err
	}
	return v.tell(store.Deleted.String(), raw)
}

// send writes an event about an object as the store has it, which is put into the client's form once for all who
// watch it in that form, for there may be thousands. Whose object it is has been decided before.
func (v *watcher) send(kind store.EventType, o store.Object) error {
	as := v.view(o)
	show := func() (s showing, size int) {
		s.json, s.err = v.show(nil, as, o)
		s.json = bytes.Clone(s.json) // it is kept: without the room that it grew in
		return s, len(s.json)
	}
	var it showing
	if v.r.kind.Sealed {
		it, _ = show() // what is encrypted in the store isn't kept in the clear
	} else {
		it = v.s.views.Get(as, v.moment(o), show)
	}
	if it.err != nil {
		return it.err
	}
	return v.tell(kind.String(), it.json)
}

// tell writes an event that has the columns of a Table in it, if it is the first.
func (v *watcher) tell(kind string, raw []byte) error {
	v.headed = v.format.table
	return v.lines.Add(kind, raw)
}

// view is how the client is to see an object. The columns of a Table are in the first one only.
func (v *watcher) view(o store.Object) view {
	return view{object: o.Key, kind: v.r.kind, format: v.format, columns: v.format.table && !v.headed}
}

func (v *watcher) moment(o store.Object) moment {
	m := moment{rev: o.Rev}
	if v.format.table {
		m.second = v.s.Now().Unix()
	}
	return m
}

// show writes an object in a view.
func (v *watcher) show(out []byte, as view, o store.Object) ([]byte, error) {
	if as.format.table {
		return v.table(out, as.columns, atRevision(o.Rev), o)
	}
	return v.s.appendAs(out, as.kind, as.format, o)
}

func (v *watcher) table(out []byte, columns bool, meta listMeta, objects ...store.Object) ([]byte, error) {
	head, row := v.s.tabled(v.r.kind, v.format, meta)
	if !columns {
		head.Columns = nil
	}
	var t bytes.Buffer
	err := writeItems(&t, head, row, objects)
	return append(out, bytes.TrimSpace(t.Bytes())...), err
}

// sendOther writes an event about something else than an object.
func (v *watcher) sendOther(kind string, about any) error {
	raw, err := json.Marshal(about)
	if err != nil {
		return err
	}
	return v.lines.Add(kind, raw)
}

func (v *watcher) bookmark(rev uint64, initialEnd bool) error {
	text := strconv.FormatUint(rev, 10)
	if v.format.table {
		raw, err := v.table(nil, !v.headed, listMeta{ResourceVersion: text})
		if err != nil {
			return err
		}
		return v.tell("BOOKMARK", raw)
	}
	meta := map[string]any{"resourceVersion": text, "creationTimestamp": nil}
	if initialEnd {
		meta["annotations"] = map[string]string{"k8s.io/initial-events-end": "true"}
	}
	head := resource.TypeMeta{APIVersion: v.r.kind.apiVersion(), Kind: v.r.kind.Name}
	if v.format.partial {
		head = resource.TypeMeta{APIVersion: "meta.k8s.io/" + v.format.version, Kind: partial}
	}
	return v.sendOther("BOOKMARK", map[string]any{"kind": head.Kind, "apiVersion": head.APIVersion, "metadata": meta})
}
