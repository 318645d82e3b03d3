package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/edgebus/edgebus/broker"
	"github.com/edgebus/edgebus/configs/daemon/httpserver"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	// patience is how long a watcher that doesn't read what has changed may take at least.
	patience = 30 * time.Second
	// formsSize bounds what is remembered of what watchers were sent, in bytes.
	formsSize = 4 << 20
)

// forms are the devices as they are sent, by name and revision.
type forms = httpserver.Shared[string, uint64, form]

// form is an object as it is sent. All who list and watch Devices share it: it is read and encoded once for many watchers.
type form struct {
	meta resource.Meta
	rev  uint64 // of what it is: it may have been read later than it was asked for
	sent []byte // nil: it is gone again
}

func formOf(q query, o object, rev uint64) form {
	f := form{meta: o.meta, rev: rev}
	f.sent, _ = q.render(o) // what the core holds can be shown in every form: a property of package dialect
	return f
}

func deviceForm(q query, d resource.Device) (form, int) {
	f := formOf(q, object{d.Metadata, d}, revision(d))
	return f, len(f.sent)
}

// revision is that of a device that the twin gave.
func revision(d resource.Device) uint64 {
	rev, _ := strconv.ParseUint(d.Metadata.ResourceVersion, 10, 64)
	return rev
}

// form is that of a device which was read.
func (s *server) form(q query, d resource.Device) form {
	f := s.forms.Get(q.as()+d.Metadata.Name, revision(d), func() (form, int) { return deviceForm(q, d) })
	if f.rev != revision(d) { // latest has something newer: a list is of one revision
		f, _ = deviceForm(q, d)
	}
	return f
}

// latest is a device as of a revision, or as it is now if that is later.
func (s *server) latest(q query, name string, rev uint64) form {
	return s.forms.Get(q.as()+name, rev, func() (form, int) {
		b, ok := s.Twins.Device(name)
		if !ok {
			return form{}, 0
		}
		return deviceForm(q, b.Device)
	})
}

// watcher is one client's watch.
type watcher struct {
	*server
	query
	lines *httpserver.Lines
	known map[string]bool // names of devices that it has heard of, or had in its list
}

// watch sends the objects that change, after the resourceVersion of a list. Who watches
// without one gets all that there are first.
func (s *server) watch(w http.ResponseWriter, r *http.Request, q query) {
	if r.URL.Query().Get("sendInitialEvents") != "" {
		refuse(w, resource.Errorf(resource.Invalid, "sendInitialEvents", "is not known here: list, and watch from there on"))
		return
	}
	id, _ := r.Context().Value(identityKey{}).(broker.Identity)
	if err := s.watches.Take(id.User, 1); err != nil {
		refuse(w, err)
		return
	}
	defer s.watches.Add(id.User, -1)
	ctx, cancel := untilExpired(r.Context(), id)
	defer cancel()
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
	v.lines.Allow(2 * patience)
	if rev, err := v.begin(fresh); err != nil {
		return
	} else if fresh {
		since = rev
	}
	v.follow(ctx, since)
}

// untilExpired ends with the certificate that somebody signed in with.
func untilExpired(ctx context.Context, id broker.Identity) (context.Context, context.CancelFunc) {
	if id.CertExpires.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, id.CertExpires)
}

func (s *server) since(w http.ResponseWriter, r *http.Request) (since uint64, fresh, ok bool) {
	text := r.URL.Query().Get("resourceVersion")
	if text == "" || text == "0" {
		return 0, true, true
	}
	since, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		fail(w, http.StatusBadRequest, "BadRequest", "resourceVersion %.40q is not one that this API gave", text)
		return 0, false, false
	}
	if _, _, _, known := s.Twins.Changes(since); !known {
		fail(w, http.StatusGone, "Expired", "resourceVersion %s is too old: list again", text)
		return 0, false, false
	}
	return since, false, true
}

// begin finds out which devices there are, and tells of them all if the watcher knows of none.
func (v *watcher) begin(fresh bool) (rev uint64, err error) {
	devices, rev := v.Twins.Devices()
	for _, d := range devices {
		if !v.matches(d.Metadata) {
			continue
		}
		v.known[d.Metadata.Name] = true
		if !fresh {
			continue
		}
		if err := v.lines.Add("ADDED", v.event(v.form(v.query, d).sent)); err != nil {
			return rev, err
		}
	}
	return rev, v.lines.Flush()
}

// follow tells of what changes until the client is gone, its time is up, or more has changed than is known.
func (v *watcher) follow(ctx context.Context, since uint64) {
	now := time.NewTicker(patience)
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
			v.lines.Allow(2 * patience)
		case <-ctx.Done():
			return
		}
	}
}

// round tells of what has changed since a revision, in a turn of its own, and says up to which that was, what tells
// of more, and whether the watch goes on.
func (v *watcher) round(since uint64) (rev uint64, more <-chan struct{}, ok bool) {
	defer v.paced.Take()()
	rev, changes, more, ok := v.Twins.Changes(since)
	if !ok {
		v.expired()
		return rev, more, false
	}
	return rev, more, v.tell(rev, changes) == nil // or nobody reads any more
}

func (v *watcher) expired() {
	raw, _ := json.Marshal(status(http.StatusGone, "Expired", "too much has changed: list again")) // strings and a number
	if v.lines.Add("ERROR", raw) == nil {
		_ = v.lines.Flush() // the watch is over either way
	}
}

// tell sends what changed up to a revision.
func (v *watcher) tell(rev uint64, changes []resource.Change) error {
	for _, c := range changes {
		var err error
		if c.Gone {
			err = v.left(c)
		} else {
			err = v.changed(c, rev)
		}
		if err != nil {
			return err
		}
	}
	return v.lines.Flush()
}

// left tells that a device is gone. Of one that came and left between list and watch the watcher never knew: that does no harm.
func (v *watcher) left(c resource.Change) error {
	meta := resource.Meta{Name: c.Name, Namespace: c.Namespace, ResourceVersion: strconv.FormatUint(c.Rev, 10)}
	labels := v.labels
	v.labels = nil // of one that is gone nobody knows them: who had it is told
	mine := v.matches(meta) && (labels == nil || v.known[c.Name])
	v.labels = labels
	if !mine {
		return nil
	}
	delete(v.known, c.Name)
	gone := resource.Device{TypeMeta: resource.TypeMeta{APIVersion: resource.APIVersion, Kind: resource.KindDevice}, Metadata: meta}
	return v.lines.Add("DELETED", v.event(formOf(v.query, object{meta, gone}, c.Rev).sent))
}

// changed sends a device. One that has changed again since comes with the changes after rev, in its place: were its
// revision sent now, who resumes from there would miss what is between.
func (v *watcher) changed(c resource.Change, rev uint64) error {
	if v.only != "" && v.only != c.Name {
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

// comparing is how often who watches models or the node is told what has changed.
const comparing = time.Second

// compare follows objects of which there are few by comparing them with what was told. since is the revision of a list.
func (v *watcher) compare(ctx context.Context, since string) {
	now := time.NewTicker(comparing)
	defer now.Stop()
	told := map[string]object{}
	if list, rev := v.few(v.kind); since == rev {
		for _, o := range list {
			told[o.meta.Namespace+"/"+o.meta.Name] = o
		}
	} else if since != "" && since != "0" && v.of != resource.KindNode { // there is one Node, and it never goes
		v.expired()
		return
	}
	for v.lines.Allow(2 * patience); v.differences(told) == nil; v.lines.Allow(2 * patience) {
		select {
		case <-now.C:
		case <-ctx.Done():
			return
		}
	}
}

// differences tells what is not as it was told.
func (v *watcher) differences(told map[string]object) error {
	defer v.paced.Take()()
	list, _ := v.few(v.kind)
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
		if err := v.lines.Add(kind, v.event(formOf(v.query, o, 0).sent)); err != nil {
			return err
		}
	}
	for key, o := range told {
		if there[key] {
			continue
		}
		delete(told, key)
		if !v.matches(o.meta) {
			continue // it was in the list, and not asked for
		}
		if err := v.lines.Add("DELETED", v.event(formOf(v.query, o, 0).sent)); err != nil {
			return err
		}
	}
	return v.lines.Flush()
}
