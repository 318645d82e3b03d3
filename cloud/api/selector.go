package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/edgebus/edgebus/cloud/store"
)

// A requirement is one term of a label selector.
type requirement struct {
	key    string
	op     string // = != in notin exists !exists
	values []string
	quoted []byte // of a field that has one value, that as it stands in JSON
}

func (r requirement) matches(labels map[string]string) bool {
	v, ok := labels[r.key]
	switch r.op {
	case "=", "in":
		return ok && slices.Contains(r.values, v)
	case "!=", "notin":
		return !ok || !slices.Contains(r.values, v)
	case "exists":
		return ok
	}
	return !ok
}

// parseLabels reads a label selector: a=b,c!=d,e in (f,g),h,!i.
func parseLabels(text string) ([]requirement, error) {
	var out []requirement
	for _, term := range splitTerms(text) {
		r, err := parseTerm(strings.TrimSpace(term))
		if err != nil {
			return nil, badRequest("", "labelSelector %q: %v", text, err)
		}
		out = append(out, r)
	}
	return out, nil
}

// splitTerms splits at commas that are not in parentheses.
func splitTerms(text string) (terms []string) {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	depth, start := 0, 0
	for i, c := range text {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				terms = append(terms, text[start:i])
				start = i + 1
			}
		}
	}
	return append(terms, text[start:])
}

func parseTerm(term string) (requirement, error) {
	if key, ok := strings.CutPrefix(term, "!"); ok {
		return checked(requirement{key: strings.TrimSpace(key), op: "!exists"})
	}
	if open := strings.IndexByte(term, '('); open >= 0 {
		return parseSet(term, open)
	}
	for _, op := range []string{"!=", "==", "="} {
		if key, value, ok := strings.Cut(term, op); ok {
			if op == "==" {
				op = "="
			}
			return checked(requirement{key: strings.TrimSpace(key), op: op, values: []string{strings.TrimSpace(value)}})
		}
	}
	return checked(requirement{key: term, op: "exists"})
}

func parseSet(term string, open int) (requirement, error) {
	words := strings.Fields(term[:open])
	list, ok := strings.CutSuffix(term[open+1:], ")")
	if len(words) != 2 || !ok || words[1] != "in" && words[1] != "notin" {
		return requirement{}, fmt.Errorf("%q is not of the form: key in (a,b)", term)
	}
	r := requirement{key: words[0], op: words[1]}
	for v := range strings.SplitSeq(list, ",") {
		r.values = append(r.values, strings.TrimSpace(v))
	}
	return checked(r)
}

func checked(r requirement) (requirement, error) {
	if r.key == "" || strings.ContainsAny(r.key, " ()=!,<>") {
		return r, fmt.Errorf("%q is not a label's name", r.key)
	}
	for _, v := range r.values {
		if strings.ContainsAny(v, " ()=!,<>") {
			return r, fmt.Errorf("%q is not a label's value", v)
		}
	}
	return r, nil
}

// selector is what a list or watch asks for beyond kind and namespace.
type selector struct {
	kind   *Kind
	labels []requirement
	fields []requirement // = and != only
	// sees leaves out what doesn't concern the user; nil: all does.
	sees func(store.Object) bool
}

func (s *server) selector(r *request) (selector, error) {
	sel := selector{kind: r.kind}
	if a := accessIn(r.Context()); !a.all && r.kind.Node != nil {
		sel.sees = func(o store.Object) bool { return s.seesStored(r.Context(), a, r.kind, o) }
	}
	var err error
	if sel.labels, err = parseLabels(r.FormValue("labelSelector")); err != nil {
		return sel, err
	}
	for _, term := range splitTerms(r.FormValue("fieldSelector")) {
		f, err := parseTerm(strings.TrimSpace(term))
		if err != nil || f.op != "=" && f.op != "!=" {
			return sel, badRequest("", "fieldSelector %q: only = and != are known", term)
		}
		_, known := r.kind.Fields[f.key]
		if !known && f.key != "metadata.name" && f.key != "metadata.namespace" {
			return sel, badRequest("", "fieldSelector %q: %s has no such field to select by", term, r.kind.Plural)
		}
		if f.quoted, err = json.Marshal(f.values[0]); err != nil {
			return sel, err
		}
		sel.fields = append(sel.fields, f)
	}
	s.calledOtherwise(sel.fields)
	return sel, nil
}

// calledOtherwise lets the kind of an object whose uid is said be what another group calls it: Events name kinds as
// they are called here, and kubectl describe asks by kind, name and uid for those of the object that it was told.
func (s *server) calledOtherwise(fields []requirement) {
	for i := range fields {
		f := &fields[i]
		of, isKind := strings.CutSuffix(f.key, ".kind")
		if !isKind || f.op != "=" || !slices.ContainsFunc(fields, func(r requirement) bool {
			return r.key == of+".uid" && r.op == "=" && r.values[0] != ""
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

func (s selector) empty() bool { return len(s.labels) == 0 && len(s.fields) == 0 && s.sees == nil }

// byName says whether a selection looks at nothing but names.
func (s selector) byName() bool {
	return s.sees == nil && len(s.labels) == 0 && all(s.fields, func(r requirement) bool { return s.kind.Fields[r.key] == nil })
}

// matches looks into an object no further than it must.
func (s *server) matches(sel selector, o store.Object) (bool, error) {
	if !sel.mentions(o.Namespace, o.Name) {
		return false, nil
	}
	if len(sel.labels) > 0 {
		labels, ok := labelsOf(o.Data)
		if !ok {
			return false, unreadable(o.Key)
		}
		if !all(sel.labels, func(r requirement) bool { return r.matches(labels) }) {
			return false, nil
		}
	}
	var typed any
	for _, r := range sel.fields {
		value := sel.kind.Fields[r.key]
		if value == nil {
			continue // name or namespace
		}
		if !sel.kind.Sealed && !r.stands(o) {
			return false, nil
		}
		if typed == nil {
			var err error
			if typed, err = s.look(sel.kind, o); err != nil {
				return false, nil //nolint:nilerr // what isn't of the kind's form has no such field
			}
		}
		if !r.of(value(typed)) {
			return false, nil
		}
	}
	return sel.sees == nil || sel.sees(o), nil
}

func all(list []requirement, holds func(requirement) bool) bool {
	return !slices.ContainsFunc(list, func(r requirement) bool { return !holds(r) })
}

// of says whether a value is as it is required.
func (r requirement) of(value string) bool { return slices.Contains(r.values, value) == (r.op == "=") }

// stands says whether an object can have the value of a field at all: it stands in its text then.
func (r requirement) stands(o store.Object) bool {
	return r.op != "=" || len(r.quoted) <= len(`""`) || bytes.Contains(o.Data, r.quoted) || bytes.Contains(o.Status, r.quoted)
}

// only is the object that a selection is about if it can be but one; otherwise its kind.
func (r *request) only(sel selector) store.Key {
	if r.kind.Namespaced && r.key.Namespace == "" {
		return store.Key{Kind: r.key.Kind}
	}
	for _, f := range sel.fields {
		if f.key == "metadata.name" && f.op == "=" {
			return store.Key{Kind: r.key.Kind, Namespace: r.key.Namespace, Name: f.values[0]}
		}
	}
	return store.Key{Kind: r.key.Kind}
}

// mentions says whether a key can match at all: names never change.
func (s selector) mentions(namespace, name string) bool {
	for _, r := range s.fields {
		if r.key == "metadata.name" && !r.of(name) || r.key == "metadata.namespace" && !r.of(namespace) {
			return false
		}
	}
	return true
}
