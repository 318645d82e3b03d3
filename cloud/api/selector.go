package api

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/edgebus/edgebus/cloud/store"
)

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
