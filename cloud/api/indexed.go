// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/edgebus/edgebus/cloud/api/index"
	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

const (
	defaultFound = 50  // objects of a list that the index answers, without a limit
	maxFound     = 500 // the same with one
	maxCounted   = 10  // fields of a summary
	maxSearch    = 200 // bytes
)

// indexParams are the parameters of lists that only the index answers.
var indexParams = []string{"search", "order", "offset"}

// asksIndex reports whether a list is one that the index answers.
func (r *request) asksIndex() bool { return slices.ContainsFunc(indexParams, r.Form.Has) }

// findEvents is collect for Events in the order of when they happened last, as flightctl's clients ask for them: desc has the latest one first.
// They are a bounded number, and need no index.
func (l *lister) findEvents(r *request, opts store.ListOptions, sel selector) ([]store.Object, listMeta, error) {
	order, limit := r.FormValue("order"), opts.Limit
	switch {
	case r.Form.Has("search") || r.Form.Has("offset") || r.Form.Has("continue"):
		return nil, listMeta{}, badRequest("", "events in an order are not searched, and have no offset or continue")
	case order != "asc" && order != "desc":
		return nil, listMeta{}, badRequest("order", "order %.20q: must be asc or desc for events", order)
	}
	opts.Limit, opts.Buffer = 0, nil
	objects, meta, err := l.collect(r, opts, sel)
	if err != nil {
		return nil, meta, err
	}
	last := make(map[store.Key]time.Time, len(objects))
	for _, o := range objects {
		typed, err := l.encoder.decodeForTable(r.kind, o)
		if err != nil {
			return nil, meta, err
		}
		if _, at, _ := typed.(*resource.Event).Times(); at != nil {
			last[o.Key] = *at
		}
	}
	slices.SortStableFunc(objects, func(a, b store.Object) int {
		if order == "desc" {
			a, b = b, a
		}
		return last[a.Key].Compare(last[b.Key])
	})
	if limit > 0 && limit < len(objects) {
		remaining := len(objects) - limit
		objects, meta.Remaining = objects[:limit], &remaining
	}
	return objects, meta, nil
}

// containsTerms takes the terms field~text out of a field selector: the field contains the text, in capitals or not.
func containsTerms(selector string) (rest string, terms []fieldTerm) {
	if !strings.Contains(selector, "~") {
		return selector, nil
	}
	var others []string
	for term := range strings.SplitSeq(selector, ",") {
		field, text, ok := strings.Cut(term, "~")
		if !ok || strings.ContainsAny(field, "=!") {
			others = append(others, term)
			continue
		}
		text = strings.ToLower(text)
		terms = append(terms, fieldTerm{field: field, equal: true, test: func(value string) bool { return strings.Contains(strings.ToLower(value), text) }})
	}
	return strings.Join(others, ","), terms
}

// indexQuery is what the index is asked for.
func (l *lister) indexQuery(r *request, sel selector) (q index.Query, err error) {
	if l.index == nil || !l.index.Has(r.key.Kind) {
		return q, badRequest("", "%s are not counted, searched or sorted here: devices and nodes are; list these, and choose of the list", r.kind.Plural)
	}
	if r.FormValue("continue") != "" || r.FormValue("resourceVersionMatch") == "Exact" {
		return q, badRequest("", "summary, search, order and offset are of now: they are not for a list that goes on or that was (continue, resourceVersionMatch)")
	}
	q = index.Query{Namespace: r.key.Namespace, Search: r.FormValue("search"), Labels: sel.labels, Order: r.FormValue("order")}
	if len(q.Search) > maxSearch {
		return q, badRequest("search", "search has %d bytes; at most %d are read", len(q.Search), maxSearch)
	}
	if a := accessIn(r.Context()); !a.hasEach(r.kind) {
		q.Has = func(e *index.Entry) bool { return a.hasNode(e.Node) }
	}
	for _, t := range sel.fields {
		q.Fields = append(q.Fields, index.FieldTest{Field: t.field, Test: t.matches})
	}
	q.Limit = defaultFound
	for name, at := range map[string]*int{"limit": &q.Limit, "offset": &q.Offset} {
		text := r.FormValue(name)
		if text == "" {
			continue
		}
		if *at, err = strconv.Atoi(text); err != nil || *at < 0 {
			return q, badRequest(name, "%s %.20q is not a number", name, text)
		}
	}
	if q.Limit < 1 || q.Limit > maxFound {
		return q, badRequest("limit", "limit %d: with search, order or offset it must be from 1 to %d", q.Limit, maxFound)
	}
	return q, nil
}

// find is collect for a list that the index answers. The objects are as they are now.
func (l *lister) find(r *request, _ store.ListOptions, sel selector) ([]store.Object, listMeta, error) {
	q, err := l.indexQuery(r, sel)
	if err != nil {
		return nil, listMeta{}, err
	}
	leave, err := l.lists.take(r.Context(), accessIn(r.Context()).turnName())
	if err != nil {
		return nil, listMeta{}, err
	}
	defer leave()
	found, err := l.index.Find(r.Context(), r.key.Kind, q)
	if err != nil {
		return nil, listMeta{}, err
	}
	var objects []store.Object
	for _, key := range found.Keys {
		stored, err := l.reader.Get(r.Context(), key)
		switch {
		case errors.Is(err, resource.NotFound): // deleted since
		case err != nil:
			return nil, listMeta{}, r.about(key.Name, err)
		default:
			objects = append(objects, stored)
		}
	}
	meta := listMetaAt(found.Rev)
	remaining := max(0, found.Total-q.Offset-len(found.Keys))
	meta.Remaining = &remaining
	return objects, meta, nil
}

// counts serves a list without its items: how many objects there are of each value of some fields.
func (l *lister) counts(w http.ResponseWriter, r *request) error {
	sel, err := l.selector(r)
	if err != nil {
		return err
	}
	q, err := l.indexQuery(r, sel)
	if err != nil {
		return err
	}
	var by []string
	for name := range strings.SplitSeq(r.FormValue("summary"), ",") {
		if name = strings.TrimSpace(name); name != "" && !slices.Contains(by, name) {
			by = append(by, name)
		}
	}
	if len(by) > maxCounted {
		return badRequest("summary", "summary has %d fields; at most %d are counted at a time", len(by), maxCounted)
	}
	leave, err := l.lists.take(r.Context(), accessIn(r.Context()).turnName())
	if err != nil {
		return err
	}
	defer leave()
	counts, rev, err := l.index.Count(r.Context(), r.key.Kind, q, by)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, struct {
		listHead
		Items   []any             `json:"items"`
		Summary index.ValueCounts `json:"summary"`
	}{r.kind.listHead(listMetaAt(rev)), []any{}, counts})
	return nil
}
