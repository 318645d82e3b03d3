// SPDX-License-Identifier: Apache-2.0

package api

import (
	"slices"
	"strings"
	"time"
)

// fieldTerms parses a field selector as flightctl's clients write it: with in, notin, contains, notcontains and comparisons of times beside
// = and !=, and a key alone for a value that is there.
func fieldTerms(text string) ([]fieldTerm, error) {
	var terms []fieldTerm
	for _, part := range splitTerms(text) {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		t, err := parseFieldTerm(part)
		if err != nil {
			return nil, err
		}
		terms = append(terms, t)
	}
	return terms, nil
}

// splitTerms splits at commas outside of parentheses.
func splitTerms(text string) (parts []string) {
	depth, from := 0, 0
	for i, c := range text {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth == 0:
			parts, from = append(parts, text[from:i]), i+1
		}
	}
	return append(parts, text[from:])
}

func parseFieldTerm(part string) (t fieldTerm, err error) {
	key, rest := part, ""
	if i := strings.IndexAny(part, " \t=!<>"); i > 0 {
		key, rest = part[:i], strings.TrimSpace(part[i:])
	}
	t = fieldTerm{field: key, equal: true}
	word, value, _ := strings.Cut(rest, " ")
	value = strings.TrimSpace(value)
	switch {
	case rest == "" && strings.HasPrefix(key, "!"):
		t.field, t.test = strings.TrimSpace(key[1:]), func(v string) bool { return v == "" }
		return t, nil
	case rest == "":
		t.test = func(v string) bool { return v != "" }
		return t, nil
	case word == "in" || word == "notin" || strings.HasPrefix(rest, "in(") || strings.HasPrefix(rest, "notin("):
		list := rest[strings.IndexAny(rest+"(", "("):]
		if !strings.HasPrefix(list, "(") || !strings.HasSuffix(list, ")") {
			return t, badRequest("", "fieldSelector %q: the values of in and notin stand in parentheses", part)
		}
		t.equal, t.values = !strings.HasPrefix(rest, "notin"), strings.Split(list[1:len(list)-1], ",")
		for i := range t.values {
			t.values[i] = strings.TrimSpace(t.values[i])
		}
		return t, nil
	case word == "contains":
		t.test = func(v string) bool { return strings.Contains(v, value) }
		return t, nil
	case word == "notcontains":
		t.test = func(v string) bool { return !strings.Contains(v, value) }
		return t, nil
	}
	for _, op := range []string{"==", "!=", ">=", "<=", "=", ">", "<"} {
		value, found := strings.CutPrefix(rest, op)
		if !found {
			continue
		}
		value = strings.TrimSpace(value)
		switch op {
		case "=", "==":
			t.values = []string{value}
		case "!=":
			t.equal, t.values = false, []string{value}
		default:
			t.test, err = timeTest(op, value)
		}
		return t, err
	}
	return t, badRequest("", "fieldSelector %q: must be a field with =, !=, in, notin, contains, notcontains, or with <, <=, > or >= and a time", part)
}

// timeTest compares times.
func timeTest(op, with string) (func(string) bool, error) {
	limit, err := time.Parse(time.RFC3339, with)
	if err != nil {
		return nil, badRequest("", "fieldSelector: %.40q is no time, such as 2026-11-21T10:00:00Z", with)
	}
	holds := map[string][]int{">": {1}, ">=": {0, 1}, "<": {-1}, "<=": {-1, 0}}[op]
	return func(v string) bool {
		at, err := time.Parse(time.RFC3339, v)
		return err == nil && slices.Contains(holds, at.Compare(limit))
	}, nil
}
