// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/edgebus/edgebus/broker/daemon/httpserver"
	"github.com/edgebus/edgebus/broker/quota"
	"github.com/edgebus/edgebus/cloud/api/index"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	// maxSelector bounds a selector, in bytes: each object is compared with all of its terms.
	maxSelector = 8 << 10
	// listPiece is about how many bytes of a list are in memory at once.
	listPiece = 64 << 10
	// selectPage is how many objects are read at once if a selector may leave out most of them.
	selectPage = 500
)

type listMeta struct {
	ResourceVersion string `json:"resourceVersion,omitempty"`
	Continue        string `json:"continue,omitempty"`
	Remaining       *int   `json:"remainingItemCount,omitempty"`
}

type listHead struct {
	resource.TypeMeta
	Metadata listMeta `json:"metadata"`
}

func (k *Kind) listHead(meta listMeta) listHead {
	return listHead{resource.TypeMeta{APIVersion: k.APIVersion(), Kind: k.Name + "List"}, meta}
}

// lister serves what is read: objects, lists and watches.
type lister struct {
	kinds       []Kind
	reader      store.Reader
	watcher     store.Watcher
	encoder     *encoder
	authorizer  *authorizer
	log         zerolog.Logger
	now         func() time.Time
	bookmarks   time.Duration
	watches     *quota.Quota
	lists       *listTurns
	index       *index.Index // of Devices and Nodes; nil: there is none
	paced       *httpserver.WatchTurns
	renderCache *renderCache
}

// get serves GET of an object.
func (l *lister) get(w http.ResponseWriter, r *request) error {
	stored, err := l.reader.Get(r.Context(), r.key)
	if err != nil {
		return r.about(r.key.Name, err)
	}
	if a := accessIn(r.Context()); !l.authorizer.hasStored(r.Context(), a, r.kind, stored) {
		return r.forbidden(a, r.key.Name)
	}
	return l.encoder.answer(w, r, http.StatusOK, stored)
}

// parseRevision parses a resourceVersion; "" and "0" ask for none.
func parseRevision(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	rev, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, badRequest("resourceVersion", "resourceVersion %.40q is not one of ours", text)
	}
	return rev, nil
}

// continueToken is where a list continues. All pages of a list are of one revision.
type continueToken struct {
	Rev       uint64 `json:"r"`
	Namespace string `json:"ns,omitempty"`
	Name      string `json:"n"`
}

func (t continueToken) String() string {
	raw, _ := json.Marshal(t) // strings and a number
	return base64.RawURLEncoding.EncodeToString(raw)
}

func parseContinue(text string) (t continueToken, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(raw, &t)
	}
	if err != nil || t.Rev == 0 || t.Name == "" {
		return t, badRequest("", "continue is not a token of this server")
	}
	return t, nil
}

// listOptions reads the parameters of a list.
func (r *request) listOptions() (opts store.ListOptions, err error) {
	opts.Namespace = r.key.Namespace
	if text := r.FormValue("limit"); text != "" {
		if opts.Limit, err = strconv.Atoi(text); err != nil || opts.Limit < 0 {
			return opts, badRequest("limit", "limit %.20q is not a number", text)
		}
	}
	rev, err := parseRevision(r.FormValue("resourceVersion"))
	if err != nil {
		return opts, err
	}
	if err := r.checkVersionMatch(rev); err != nil {
		return opts, err
	}
	if text := r.FormValue("continue"); text != "" {
		t, err := parseContinue(text)
		opts.Rev, opts.After = t.Rev, store.Key{Kind: r.key.Kind, Namespace: t.Namespace, Name: t.Name}
		return opts, err
	}
	if r.FormValue("resourceVersionMatch") == "Exact" {
		opts.Rev = rev
	}
	return opts, nil
}

// checkVersionMatch refuses a resourceVersionMatch that has no meaning for a list.
func (r *request) checkVersionMatch(rev uint64) error {
	match := r.FormValue("resourceVersionMatch")
	wrong := func(why string) error { return resource.Errorf(resource.Invalid, "resourceVersionMatch", "%s", why) }
	switch {
	case match == "":
		return nil
	case match != "Exact" && match != "NotOlderThan":
		return wrong("must be Exact or NotOlderThan")
	case r.FormValue("continue") != "":
		return wrong("is not for a list that goes on")
	case r.FormValue("resourceVersion") == "":
		return wrong("needs a resourceVersion")
	case match == "Exact" && rev == 0:
		return wrong("Exact needs a resourceVersion other than 0")
	}
	return nil
}

// statusBuffers are what the statuses of a page are read into.
var statusBuffers = sync.Pool{New: func() any { return new([]byte) }}

// list serves GET of a collection.
func (l *lister) list(w http.ResponseWriter, r *request) error {
	if r.wantsSummary() {
		return l.summary(w, r)
	}
	if r.Form.Has("summary") {
		return l.counts(w, r)
	}
	sel, err := l.selector(r)
	if err != nil {
		return err
	}
	opts, err := r.listOptions()
	if err != nil {
		return err
	}
	if opts.Limit > 0 && opts.Limit <= selectPage && sel.empty() { // a page: its statuses are garbage once they are written
		opts.Buffer = statusBuffers.Get().(*[]byte)
		defer func() {
			*opts.Buffer = (*opts.Buffer)[:0]
			statusBuffers.Put(opts.Buffer)
		}()
	}
	collect := l.collect
	switch {
	case r.key.Kind == resource.KindEvent && r.Form.Has("order"):
		collect = l.findEvents
	case r.asksIndex():
		collect = l.find
	}
	objects, meta, err := collect(r, opts, sel)
	if err != nil {
		return err
	}
	if err := r.checkNotOlder(meta); err != nil {
		return err
	}
	turn := func() (func(), error) { return l.lists.take(r.Context(), accessIn(r.Context()).turnName()) }
	var head any = l.encoder.listHead(r.kind, r.format, meta)
	items := itemWriter{"items", turn, func(out []byte, o store.Object) ([]byte, error) {
		return l.encoder.appendObject(out, r.kind, r.format, o)
	}}
	if r.format.table {
		head, items = l.encoder.table(r.kind, r.format, meta)
		items.turn = turn
	}
	if !r.format.yaml {
		return l.stream(w, head, items, objects)
	}
	var all bytes.Buffer
	if err := items.write(&all, head, objects); err != nil {
		return err
	}
	return sendFormatted(w, r.format, http.StatusOK, all.Bytes())
}

// checkNotOlder fails if a list is older than the client asked for, such as after the restore of an old backup.
func (r *request) checkNotOlder(meta listMeta) error {
	asked, err := parseRevision(r.FormValue("resourceVersion"))
	if err != nil || r.FormValue("continue") != "" {
		return err
	}
	newest, _ := parseRevision(meta.ResourceVersion) // our own
	if newest >= asked {
		return nil
	}
	e := statusErrorf(http.StatusGatewayTimeout, "Timeout", "Too large resource version: %d, current: %d", asked, newest).
		withCauses(metav1.StatusCause{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"})
	e.status.Details.RetryAfterSeconds = 1
	return e
}

func (e *encoder) listHead(k *Kind, f answerFormat, meta listMeta) listHead {
	head := k.listHead(meta)
	if f.partial {
		head.APIVersion, head.Kind = "meta.k8s.io/"+f.version, partialKind+"List"
	}
	return head
}

// itemWriter writes the items of a list or the rows of a Table.
type itemWriter struct {
	field  string                           // that has them
	turn   func() (leave func(), err error) // to make a piece of the list; nil: the caller has it
	append func(out []byte, o store.Object) ([]byte, error)
}

// write writes a list: head, with the objects as one more field.
func (i itemWriter) write(w io.Writer, head any, objects []store.Object) error {
	raw, err := json.Marshal(head)
	if err != nil {
		return err
	}
	out := append(append(append(raw[:len(raw)-1], `,"`...), i.field...), `":[`...)
	for n := 0; n < len(objects); {
		if out, n, err = i.piece(out, objects, n); err != nil {
			return err
		}
		if n == len(objects) {
			break
		}
		if _, err := w.Write(out); err != nil { // without the turn: the client may be slow
			return nil //nolint:nilerr // the client is gone
		}
		out = out[:0]
	}
	_, _ = w.Write(append(out, "]}\n"...))
	return nil
}

// piece appends objects from the n-th on until there is enough for a write. It returns the number of the next one.
func (i itemWriter) piece(out []byte, objects []store.Object, n int) ([]byte, int, error) {
	if i.turn != nil {
		leave, err := i.turn()
		if err != nil {
			return out, n, err
		}
		defer leave()
	}
	var err error
	for n < len(objects) && len(out) < listPiece {
		if n > 0 {
			out = append(out, ',')
		}
		if out, err = i.append(out, objects[n]); err != nil {
			return out, n, err
		}
		n++
	}
	return out, n, nil
}

// stream answers with a list, piece by piece.
func (l *lister) stream(w http.ResponseWriter, head any, items itemWriter, objects []store.Object) error {
	out := &startedWriter{ResponseWriter: w}
	err := items.write(out, head, objects)
	if err != nil && out.started {
		l.log.Error().Err(err).Msg("a list can't be written on")
		panic(http.ErrAbortHandler) // too late for a Status: the connection is closed
	}
	return err
}

// startedWriter remembers whether an answer has begun.
type startedWriter struct {
	http.ResponseWriter
	started bool
}

func (s *startedWriter) Write(p []byte) (int, error) {
	if !s.started {
		s.Header().Set("Content-Type", "application/json")
		s.started = true
	}
	return s.ResponseWriter.Write(p)
}

// collect reads pages from the store until it has as many selected objects as were asked for.
func (l *lister) collect(r *request, opts store.ListOptions, sel selector) ([]store.Object, listMeta, error) {
	leave, err := l.lists.take(r.Context(), accessIn(r.Context()).turnName())
	if err != nil {
		return nil, listMeta{}, err
	}
	defer leave()
	limit := opts.Limit
	opts.Reader = accessIn(r.Context()).turnName()
	opts.Name = r.watchKey(sel).Name
	if !sel.empty() && limit > 0 {
		opts.Limit = max(limit, selectPage)
	}
	var objects []store.Object
	var mayMatch []bool // the objects of a page, by all but their statuses
	if !sel.empty() {
		opts.StatusOf = func(o store.Object) bool {
			mayMatch = append(mayMatch, sel.mayMatch(o))
			return mayMatch[len(mayMatch)-1]
		}
	}
	for {
		mayMatch = mayMatch[:0]
		page, err := l.reader.List(r.Context(), r.key.Kind, opts)
		if err != nil {
			return nil, listMeta{}, r.about("", err)
		}
		meta := listMetaAt(page.Rev)
		if objects == nil && sel.empty() {
			objects = make([]store.Object, 0, len(page.Items))
		}
		for i, stored := range page.Items {
			if i < len(mayMatch) && !mayMatch[i] {
				continue
			}
			if matches, err := l.encoder.matches(sel, stored); err != nil {
				return nil, meta, err
			} else if !matches {
				continue
			}
			objects = append(objects, stored)
			remaining := len(page.Items) - i - 1 + page.More
			if limit > 0 && len(objects) == limit && remaining > 0 {
				meta.Continue = continueToken{page.Rev, stored.Namespace, stored.Name}.String()
				if sel.empty() {
					meta.Remaining = &remaining // not known of a selection
				}
				return objects, meta, nil
			}
		}
		if page.More == 0 {
			return objects, meta, nil
		}
		opts.Rev, opts.After = page.Rev, page.Items[len(page.Items)-1].Key
	}
}

// listMetaAt is the metadata of a list of a revision.
func listMetaAt(rev uint64) (meta listMeta) {
	if rev > 0 {
		meta.ResourceVersion = strconv.FormatUint(rev, 10)
	}
	return meta
}

// selector is what a list or watch asks for besides kind and namespace.
type selector struct {
	kind   *Kind
	labels labels.Selector
	terms  int // of labels
	fields []fieldTerm
	// has leaves out objects that the user may not see; nil: the user sees all.
	has func(store.Object) bool
}

// fieldTerm is a term of a field selector.
type fieldTerm struct {
	field  string
	equal  bool                    // or not equal
	values []string                // any of them; mostly there is one
	quoted []byte                  // a single value as it is in JSON; nil: the text of the object says nothing of it
	test   func(value string) bool // instead of values
}

func (l *lister) selector(r *request) (selector, error) {
	for _, name := range []string{"labelSelector", "fieldSelector"} {
		if n := len(r.FormValue(name)); n > maxSelector {
			return selector{}, badRequest(name, "%s has %d bytes; at most %d are read", name, n, maxSelector)
		}
	}
	sel := selector{kind: r.kind}
	if a := accessIn(r.Context()); !a.all && r.kind.Node != nil {
		sel.has = func(o store.Object) bool { return l.authorizer.hasStored(r.Context(), a, r.kind, o) }
	}
	var err error
	if sel.labels, err = labels.Parse(r.FormValue("labelSelector")); err != nil {
		return sel, badRequest("", "labelSelector: %v", err)
	}
	terms, _ := sel.labels.Requirements()
	sel.terms = len(terms)
	if sel.fields, err = r.fieldTerms(); err != nil {
		return sel, err
	}
	for i := range sel.fields {
		f := &sel.fields[i]
		_, known := r.kind.Fields[f.field]
		if !known && f.field != "metadata.name" && f.field != "metadata.namespace" {
			return sel, badRequest("", "fieldSelector %q: %s has no such field to select by", f.field, r.kind.Plural)
		}
		if len(f.values) == 1 && !r.kind.Computed[f.field] {
			if f.quoted, err = json.Marshal(f.values[0]); err != nil {
				return sel, err
			}
		}
	}
	l.addDialectKinds(sel.fields)
	return sel, nil
}

// fieldTerms are those of a request's field selector, as Kubernetes has them; at flightctl's own paths, as flightctl does.
func (r *request) fieldTerms() (terms []fieldTerm, err error) {
	if r.ownPath {
		return fieldTerms(r.FormValue("fieldSelector"))
	}
	rest, terms := containsTerms(r.FormValue("fieldSelector"))
	parsed, err := fields.ParseSelector(rest)
	if err != nil {
		return nil, badRequest("", "fieldSelector: %v", err)
	}
	for _, term := range parsed.Requirements() {
		terms = append(terms, fieldTerm{field: term.Field, equal: term.Operator != selection.NotEquals, values: []string{term.Value}})
	}
	return terms, nil
}

// addDialectKinds lets a selector of Events by a dialect's kind find those of the canonical kind: kubectl describe asks for the Events of an
// object by its kind and uid, and kubectl events by its kind, version and name.
func (l *lister) addDialectKinds(terms []fieldTerm) {
	for i := range terms {
		f := &terms[i]
		of, isKind := strings.CutSuffix(f.field, ".kind")
		if !isKind || !f.equal || len(f.values) == 0 {
			continue
		}
		kind := f.values[0]
		term := func(name string) *fieldTerm {
			i := slices.IndexFunc(terms, func(t fieldTerm) bool { return t.field == of+name && t.equal && len(t.values) > 0 && t.values[0] != "" })
			if i < 0 {
				return nil
			}
			return &terms[i]
		}
		uid, version := term(".uid"), term(".apiVersion")
		for _, k := range l.kinds {
			switch {
			case k.dialect == nil || k.Name != kind:
			case version != nil && version.values[0] == k.APIVersion():
				f.values, f.quoted = []string{k.dialect.of.Name}, nil
				version.values, version.quoted = append(version.values, k.dialect.of.APIVersion()), nil
			case uid != nil && version == nil:
				f.values, f.quoted = append(f.values, k.dialect.of.Name), nil
			}
		}
	}
}

func (s selector) empty() bool { return s.labels.Empty() && len(s.fields) == 0 && s.has == nil }

// namesOnly reports whether the selector looks at names and namespaces only, which never change.
func (s selector) namesOnly() bool {
	return s.has == nil && s.labels.Empty() && !slices.ContainsFunc(s.fields, func(t fieldTerm) bool { return s.kind.Fields[t.field] != nil })
}

// mayMatch reports whether an object without its status may be chosen: to read all statuses is most of the work of a list. What can't be read
// may, so that it is told.
func (s selector) mayMatch(o store.Object) bool {
	if !s.labels.Empty() {
		if matches, ok := selectedBy(s.labels, s.terms, o.Data); ok && !matches {
			return false
		}
	}
	for _, t := range s.fields {
		if strings.HasPrefix(t.field, "spec.") && !s.kind.Sealed && !t.mayMatch(o) {
			return false
		}
	}
	return s.has == nil || s.has(o)
}

// matches reports whether an object is selected. It decodes no more of it than it must.
func (e *encoder) matches(sel selector, o store.Object) (bool, error) {
	if !sel.matchesName(o.Namespace, o.Name) {
		return false, nil
	}
	if !sel.labels.Empty() {
		matches, ok := selectedBy(sel.labels, sel.terms, o.Data)
		if !ok {
			return false, errUnreadable(o.Key)
		}
		if !matches {
			return false, nil
		}
	}
	var typed any
	for _, t := range sel.fields {
		value := sel.kind.Fields[t.field]
		if value == nil {
			continue // name or namespace
		}
		if stored := sel.kind.StoredFields[t.field]; stored != nil {
			if !t.matches(stored(o)) {
				return false, nil
			}
			continue
		}
		if !sel.kind.Sealed && !t.mayMatch(o) {
			return false, nil
		}
		if typed == nil {
			var err error
			if typed, err = e.decodeForTable(sel.kind, o); err != nil {
				return false, nil //nolint:nilerr // an object that is not of the kind's form has no such field
			}
		}
		if !t.matches(value(typed)) {
			return false, nil
		}
	}
	return sel.has == nil || sel.has(o), nil
}

// matchesName reports whether an object of that name can be selected.
func (s selector) matchesName(namespace, name string) bool {
	for _, t := range s.fields {
		if t.field == "metadata.name" && !t.matches(name) || t.field == "metadata.namespace" && !t.matches(namespace) {
			return false
		}
	}
	return true
}

func (t fieldTerm) matches(value string) bool {
	if t.test != nil {
		return t.test(value)
	}
	return slices.Contains(t.values, value) == t.equal
}

// mayMatch reports whether an object can have the value: the value is somewhere in its text.
func (t fieldTerm) mayMatch(o store.Object) bool {
	return !t.equal || len(t.quoted) <= len(`""`) || bytes.Contains(o.Data, t.quoted) || bytes.Contains(o.Status, t.quoted)
}

// watchKey is the key of the only object that a selector can match; without a name it is all objects of the kind.
func (r *request) watchKey(sel selector) store.Key {
	if r.kind.Namespaced && r.key.Namespace == "" {
		return store.Key{Kind: r.key.Kind}
	}
	for _, f := range sel.fields {
		if f.field == "metadata.name" && f.equal && len(f.values) == 1 {
			return store.Key{Kind: r.key.Kind, Namespace: r.key.Namespace, Name: f.values[0]}
		}
	}
	return store.Key{Kind: r.key.Kind}
}
