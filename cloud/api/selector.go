package api

import (
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
			return checked(requirement{strings.TrimSpace(key), op, []string{strings.TrimSpace(value)}})
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
}

func (r *request) selector() (selector, error) {
	s := selector{kind: r.kind}
	var err error
	if s.labels, err = parseLabels(r.FormValue("labelSelector")); err != nil {
		return s, err
	}
	for _, term := range splitTerms(r.FormValue("fieldSelector")) {
		f, err := parseTerm(strings.TrimSpace(term))
		if err != nil || f.op != "=" && f.op != "!=" {
			return s, badRequest("", "fieldSelector %q: only = and != are known", term)
		}
		_, known := r.kind.Fields[f.key]
		if !known && f.key != "metadata.name" && f.key != "metadata.namespace" {
			return s, badRequest("", "fieldSelector %q: %s has no such field to select by", term, r.kind.Plural)
		}
		s.fields = append(s.fields, f)
	}
	return s, nil
}

func (s selector) empty() bool { return len(s.labels) == 0 && len(s.fields) == 0 }

func (s selector) matches(o *object) bool {
	for _, r := range s.labels {
		if !r.matches(o.Metadata.Labels) {
			return false
		}
	}
	var typed any
	for _, r := range s.fields {
		var value string
		switch r.key {
		case "metadata.name":
			value = o.Metadata.Name
		case "metadata.namespace":
			value = o.Metadata.Namespace
		default:
			if typed == nil {
				var err error
				if typed, err = s.kind.typed(o); err != nil {
					return false
				}
			}
			value = s.kind.Fields[r.key](typed)
		}
		if !r.matches(map[string]string{r.key: value}) {
			return false
		}
	}
	return true
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
		if r.key == "metadata.name" && !r.matches(map[string]string{r.key: name}) ||
			r.key == "metadata.namespace" && !r.matches(map[string]string{r.key: namespace}) {
			return false
		}
	}
	return true
}
