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
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	// defaultWatch is how long a watch lasts when the client doesn't say.
	defaultWatch = 30 * time.Minute
	// writeTimeout is how long a client may take to read a batch of events.
	writeTimeout = 30 * time.Second
)

// watcher is one client's watch.
type watcher struct {
	s      *server
	r      *request
	w      http.ResponseWriter
	line   []byte // the last one; what it stands in serves the next, but not for long: watchers mostly wait
	format format
	sel    selector
	headed bool // the columns of a Table were sent
	marks  bool
}

// watch streams events as JSON lines until the client goes, its time is up, or
// the store no longer knows what it missed.
func (s *server) watch(w http.ResponseWriter, r *request) error {
	who := accessIn(r.Context())
	if err := s.watches.Take(who.account, s.Watches); err != nil {
		return err
	}
	defer s.watches.Leave(who.account)
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
	v := &watcher{s: s, r: r, w: w, format: f, sel: sel, marks: isTrue(r.FormValue("allowWatchBookmarks"))}
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
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
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
	for _, o := range objects {
		if err := v.send(store.Added, o); err != nil {
			return err
		}
	}
	if isTrue(v.r.FormValue("sendInitialEvents")) && v.marks {
		if err := v.bookmark(rev, true); err != nil {
			return err
		}
	}
	return v.flush()
}

func (v *watcher) follow(ctx context.Context, stream store.Stream) {
	for {
		wait, cancel := context.WithTimeout(ctx, v.s.Bookmarks)
		events, err := stream.Next(wait)
		cancel()
		switch {
		case ctx.Err() != nil:
			return // the client's time is up, or it went
		case errors.Is(err, context.DeadlineExceeded):
			err = nil
			if v.marks {
				err = v.bookmark(stream.Rev(), false)
			}
		case err != nil:
			_ = v.sendOther("ERROR", statusOf(err))
			_ = v.flush()
			return
		default:
			err = v.sendAll(events)
		}
		if err == nil {
			err = v.flush()
		}
		if err != nil {
			return // nobody reads any more
		}
	}
}

// flush gives the client a while to read what was written.
func (v *watcher) flush() error {
	v.line = nil
	rc := http.NewResponseController(v.w)
	err := rc.Flush()
	_ = rc.SetWriteDeadline(time.Now().Add(v.s.Bookmarks + writeTimeout)) // where it can't be set, the server's own holds
	return err
}

func (v *watcher) sendAll(events []store.Event) error {
	for _, e := range events {
		if err := v.event(e); err != nil {
			return err
		}
	}
	return nil
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
		left, err := v.left(e.Object)
		if err != nil {
			return err
		}
		return v.send(store.Deleted, left)
	}
	return nil
}

// left is an object that the client sees no longer, if it ever did. Whom it doesn't concern any more is told which
// it is, not what has become of it.
func (v *watcher) left(o store.Object) (store.Object, error) {
	if v.sel.sees == nil || v.sel.sees(o) {
		return o, nil
	}
	obj, err := v.s.fromStore(o)
	if err != nil {
		return o, err
	}
	m := obj.Metadata
	o.Data, err = v.s.data(&object{TypeMeta: obj.TypeMeta, Metadata: resource.Meta{Name: m.Name, Namespace: m.Namespace, UID: m.UID}, flat: obj.flat})
	o.Status = nil
	return o, err
}

// send writes an event. What the store has goes out as it is, for there may be thousands who watch.
func (v *watcher) send(kind store.EventType, o store.Object) (err error) {
	if v.format.table {
		return v.sendTable(kind.String(), atRevision(o.Rev), o)
	}
	v.beginLine(kind.String())
	if v.line, err = v.s.appendAs(v.line, v.r.kind, v.format, o); err != nil {
		return err
	}
	return v.sendLine()
}

func (v *watcher) beginLine(kind string) {
	v.line = append(append(append(v.line[:0], `{"type":"`...), kind...), `","object":`...)
}

func (v *watcher) sendLine() error {
	v.line = append(v.line, "}\n"...)
	_, err := v.w.Write(v.line)
	return err
}

// sendTable writes an event that holds a Table: the columns are in the first one only.
func (v *watcher) sendTable(kind string, meta listMeta, objects ...store.Object) error {
	head, row := v.s.tabled(v.r.kind, v.format, meta)
	if v.headed {
		head.Columns = nil
	}
	v.headed = true
	var t bytes.Buffer
	if err := writeItems(&t, head, row, objects); err != nil {
		return err
	}
	v.beginLine(kind)
	v.line = append(v.line, bytes.TrimSpace(t.Bytes())...)
	return v.sendLine()
}

// sendOther writes an event about something else than an object.
func (v *watcher) sendOther(kind string, about any) error {
	raw, err := json.Marshal(about)
	if err != nil {
		return err
	}
	v.beginLine(kind)
	v.line = append(v.line, raw...)
	return v.sendLine()
}

func (v *watcher) bookmark(rev uint64, initialEnd bool) error {
	text := strconv.FormatUint(rev, 10)
	if v.format.table {
		return v.sendTable("BOOKMARK", listMeta{ResourceVersion: text})
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
