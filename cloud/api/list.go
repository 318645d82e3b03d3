package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
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

// load reads one object, which must concern the user.
func (s *server) load(r *request) (*object, error) {
	stored, err := s.Reader.Get(r.Context(), r.key)
	if err != nil {
		return nil, r.about(r.key.Name, err)
	}
	o, err := s.fromStore(stored)
	if err != nil {
		return nil, err
	}
	if a := accessIn(r.Context()); !s.sees(r.Context(), a, r.kind, o) {
		return nil, r.forbidden(a, r.key.Name)
	}
	return o, nil
}

func (s *server) get(w http.ResponseWriter, r *request) error {
	stored, err := s.Reader.Get(r.Context(), r.key)
	if err != nil {
		return r.about(r.key.Name, err)
	}
	if a := accessIn(r.Context()); !s.seesStored(r.Context(), a, r.kind, stored) {
		return r.forbidden(a, r.key.Name)
	}
	return s.answerStored(w, r, http.StatusOK, stored)
}

// revision reads a resourceVersion; "" and "0" ask for none.
func revision(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	rev, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, badRequest("resourceVersion", "resourceVersion %.40q is not one of ours", text)
	}
	return rev, nil
}

// token is where a list goes on. It names a revision: pages of one list belong together.
type token struct {
	Rev       uint64 `json:"r"`
	Namespace string `json:"ns,omitempty"`
	Name      string `json:"n"`
}

func (t token) String() string {
	raw, _ := json.Marshal(t) // strings and a number
	return base64.RawURLEncoding.EncodeToString(raw)
}

func parseToken(text string) (t token, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(raw, &t)
	}
	if err != nil || t.Rev == 0 || t.Name == "" {
		return t, badRequest("", "continue is not a token of this server")
	}
	return t, nil
}

// checkMatch refuses what resourceVersionMatch can't mean for a list.
func checkMatch(r *request, rev uint64) error {
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

// listOptions reads what a list asks for.
func (s *server) listOptions(r *request) (opts store.ListOptions, err error) {
	opts.Namespace = r.key.Namespace
	if text := r.FormValue("limit"); text != "" {
		if opts.Limit, err = strconv.Atoi(text); err != nil || opts.Limit < 0 {
			return opts, badRequest("limit", "limit %.20q is not a number", text)
		}
	}
	rev, err := revision(r.FormValue("resourceVersion"))
	if err != nil {
		return opts, err
	}
	if err := checkMatch(r, rev); err != nil {
		return opts, err
	}
	if text := r.FormValue("continue"); text != "" {
		t, err := parseToken(text)
		if err != nil {
			return opts, err
		}
		opts.Rev, opts.After = t.Rev, store.Key{Kind: r.key.Kind, Namespace: t.Namespace, Name: t.Name}
		return opts, nil
	}
	if r.FormValue("resourceVersionMatch") == "Exact" {
		opts.Rev = rev
	}
	return opts, nil
}

func (s *server) list(w http.ResponseWriter, r *request) error {
	f, err := accepts(r.Request)
	if err != nil {
		return err
	}
	sel, err := s.selector(r)
	if err != nil {
		return err
	}
	opts, err := s.listOptions(r)
	if err != nil {
		return err
	}
	objects, meta, err := s.collect(r, opts, sel)
	if err != nil {
		return err
	}
	if err := reached(r, meta); err != nil {
		return err
	}
	begin, item := s.listed(r.kind, f, meta)
	if f.table {
		begin, item = s.tabled(r.kind, f, meta)
	}
	if !f.yaml {
		return s.stream(w, begin, item, objects)
	}
	var all bytes.Buffer
	if err := writeItems(&all, begin, item, objects); err != nil {
		return err
	}
	return write(w, f, http.StatusOK, all.Bytes())
}

// reached refuses to answer with what is older than what was asked for, such as after a restore of an old backup.
func reached(r *request, meta listMeta) error {
	asked, err := revision(r.FormValue("resourceVersion"))
	if err != nil || r.FormValue("continue") != "" {
		return err
	}
	newest, _ := revision(meta.ResourceVersion) // our own
	if newest >= asked {
		return nil
	}
	return &httpError{
		code: http.StatusGatewayTimeout, reason: "Timeout",
		message: fmt.Sprintf("Too large resource version: %d, current: %d", asked, newest),
		details: &StatusDetails{Causes: []StatusCause{{Reason: "ResourceVersionTooLarge", Message: "Too large resource version"}}, RetryAfterSeconds: 1},
	}
}

// listed says how a list begins, and how its items are written.
func (s *server) listed(k *Kind, f format, meta listMeta) (begin any, item appender) {
	head := listHead{resource.TypeMeta{APIVersion: k.apiVersion(), Kind: k.Name + "List"}, meta}
	if f.partial {
		head.APIVersion, head.Kind = "meta.k8s.io/"+f.version, partial+"List"
	}
	return head, appender{"items", func(out []byte, o store.Object) ([]byte, error) { return s.appendAs(out, k, f, o) }}
}

// appender writes an item of a list, which has this name in it.
type appender struct {
	in   string
	item func(out []byte, o store.Object) ([]byte, error)
}

// writeItems writes head with a list of objects in it.
func writeItems(w io.Writer, head any, a appender, objects []store.Object) error {
	raw, err := json.Marshal(head)
	if err != nil {
		return err
	}
	out := append(append(append(raw[:len(raw)-1], `,"`...), a.in...), `":[`...)
	for i, o := range objects {
		if i > 0 {
			out = append(out, ',')
		}
		if out, err = a.item(out, o); err != nil {
			return err
		}
		if len(out) < listPiece {
			continue
		}
		if _, err := w.Write(out); err != nil {
			return nil //nolint:nilerr // a client that went away needs no answer
		}
		out = out[:0]
	}
	_, _ = w.Write(append(out, "]}\n"...))
	return nil
}

// listPiece is about how much of a list is in memory at once.
const listPiece = 64 << 10

// stream writes a list piece by piece.
func (s *server) stream(w http.ResponseWriter, head any, a appender, objects []store.Object) error {
	out := &started{ResponseWriter: w}
	err := writeItems(out, head, a, objects)
	if err != nil && out.yes {
		s.Log.Error().Err(err).Msg("a list can't be written on")
		panic(http.ErrAbortHandler) // too late for a Status: the client sees that it is cut off
	}
	return err
}

// started remembers whether an answer has begun.
type started struct {
	http.ResponseWriter
	yes bool
}

func (s *started) Write(p []byte) (int, error) {
	if !s.yes {
		s.Header().Set("Content-Type", "application/json")
		s.yes = true
	}
	return s.ResponseWriter.Write(p)
}

// collect reads pages of the store until it has as many objects that match as were asked for.
func (s *server) collect(r *request, opts store.ListOptions, sel selector) ([]store.Object, listMeta, error) {
	limit := opts.Limit
	opts.Name = r.only(sel).Name
	if !sel.empty() && limit > 0 {
		opts.Limit = max(limit, 500)
	}
	var objects []store.Object
	for {
		page, err := s.Reader.List(r.Context(), r.key.Kind, opts)
		if err != nil {
			return nil, listMeta{}, r.about("", err)
		}
		meta := listMeta{ResourceVersion: strconv.FormatUint(page.Rev, 10)}
		if objects == nil && sel.empty() {
			objects = make([]store.Object, 0, len(page.Items))
		}
		for i, stored := range page.Items {
			if matches, err := s.matches(sel, stored); err != nil {
				return nil, meta, err
			} else if !matches {
				continue
			}
			objects = append(objects, stored)
			remaining := len(page.Items) - i - 1 + page.More
			if limit > 0 && len(objects) == limit && remaining > 0 {
				meta.Continue = token{page.Rev, stored.Namespace, stored.Name}.String()
				if sel.empty() {
					meta.Remaining = &remaining // of a selection nobody knows
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

// selector is what a list or watch asks for beyond kind and namespace.
type selector struct {
	kind   *Kind
	labels labels.Selector
	fields []fieldTerm
	// sees leaves out what doesn't concern the user; nil: all does.
	sees func(store.Object) bool
}

// fieldTerm is one term of a field selector, which knows = and != alone.
type fieldTerm struct {
	field  string
	equal  bool
	values []string // one of them; mostly there is one
	quoted []byte   // of a field that has one value, that as it stands in JSON
}

// maxSelector bounds a selector, in bytes: each object is compared with all that is in it.
const maxSelector = 8 << 10

func (s *server) selector(r *request) (selector, error) {
	for _, name := range []string{"labelSelector", "fieldSelector"} {
		if n := len(r.FormValue(name)); n > maxSelector {
			return selector{}, badRequest(name, "%s has %d bytes; at most %d are read", name, n, maxSelector)
		}
	}
	sel := selector{kind: r.kind}
	if a := accessIn(r.Context()); !a.all && r.kind.Node != nil {
		sel.sees = func(o store.Object) bool { return s.seesStored(r.Context(), a, r.kind, o) }
	}
	var err error
	if sel.labels, err = labels.Parse(r.FormValue("labelSelector")); err != nil {
		return sel, badRequest("", "labelSelector: %v", err)
	}
	parsed, err := fields.ParseSelector(r.FormValue("fieldSelector"))
	if err != nil {
		return sel, badRequest("", "fieldSelector: %v", err)
	}
	for _, term := range parsed.Requirements() {
		_, known := r.kind.Fields[term.Field]
		if !known && term.Field != "metadata.name" && term.Field != "metadata.namespace" {
			return sel, badRequest("", "fieldSelector %q: %s has no such field to select by", term.Field, r.kind.Plural)
		}
		f := fieldTerm{field: term.Field, equal: term.Operator != selection.NotEquals, values: []string{term.Value}}
		if f.quoted, err = json.Marshal(term.Value); err != nil {
			return sel, err
		}
		sel.fields = append(sel.fields, f)
	}
	s.calledOtherwise(sel.fields)
	return sel, nil
}

// calledOtherwise lets the kind of an object whose uid is said be what another group calls it: Events name kinds as
// they are called here, and kubectl describe asks by kind, name and uid for those of the object that it was told.
func (s *server) calledOtherwise(terms []fieldTerm) {
	for i := range terms {
		f := &terms[i]
		of, isKind := strings.CutSuffix(f.field, ".kind")
		if !isKind || !f.equal || !slices.ContainsFunc(terms, func(t fieldTerm) bool {
			return t.field == of+".uid" && t.equal && t.values[0] != ""
		}) {
			continue
		}
		for _, k := range s.Kinds {
			if k.foreign != nil && k.Name == f.values[0] {
				f.values, f.quoted = append(f.values, k.foreign.of.Name), nil
			}
		}
	}
}

func (s selector) empty() bool { return s.labels.Empty() && len(s.fields) == 0 && s.sees == nil }

// byName says whether a selection looks at nothing but names.
func (s selector) byName() bool {
	return s.sees == nil && s.labels.Empty() && !slices.ContainsFunc(s.fields, func(t fieldTerm) bool { return s.kind.Fields[t.field] != nil })
}

// matches looks into an object no further than it must.
func (s *server) matches(sel selector, o store.Object) (bool, error) {
	if !sel.mentions(o.Namespace, o.Name) {
		return false, nil
	}
	if !sel.labels.Empty() {
		set, ok := labelsOf(o.Data)
		if !ok {
			return false, unreadable(o.Key)
		}
		if !sel.labels.Matches(labels.Set(set)) {
			return false, nil
		}
	}
	var typed any
	for _, t := range sel.fields {
		value := sel.kind.Fields[t.field]
		if value == nil {
			continue // name or namespace
		}
		if !sel.kind.Sealed && !t.stands(o) {
			return false, nil
		}
		if typed == nil {
			var err error
			if typed, err = s.look(sel.kind, o); err != nil {
				return false, nil //nolint:nilerr // what isn't of the kind's form has no such field
			}
		}
		if !t.matches(value(typed)) {
			return false, nil
		}
	}
	return sel.sees == nil || sel.sees(o), nil
}

func (t fieldTerm) matches(value string) bool { return slices.Contains(t.values, value) == t.equal }

// stands reports whether an object can have the value of a field at all: the value is in its text then.
func (t fieldTerm) stands(o store.Object) bool {
	return !t.equal || len(t.quoted) <= len(`""`) || bytes.Contains(o.Data, t.quoted) || bytes.Contains(o.Status, t.quoted)
}

// only is the object that a selection is about if it can be but one; otherwise its kind.
func (r *request) only(sel selector) store.Key {
	if r.kind.Namespaced && r.key.Namespace == "" {
		return store.Key{Kind: r.key.Kind}
	}
	for _, f := range sel.fields {
		if f.field == "metadata.name" && f.equal {
			return store.Key{Kind: r.key.Kind, Namespace: r.key.Namespace, Name: f.values[0]}
		}
	}
	return store.Key{Kind: r.key.Kind}
}

// mentions says whether a key can match at all: names never change.
func (s selector) mentions(namespace, name string) bool {
	for _, t := range s.fields {
		if t.field == "metadata.name" && !t.matches(name) || t.field == "metadata.namespace" && !t.matches(namespace) {
			return false
		}
	}
	return true
}
