// SPDX-License-Identifier: Apache-2.0

// Package templates expands Go templates in objects: the texts of a Fleet's template over a node's metadata, those of a
// Configuration's deviceTemplate over a found device. A template can neither run nor grow without bound, on the way to its result either, nor call
// anything but the functions that are listed here. It never reads an object.
package templates

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/template/parse"

	"github.com/edgebus/edgebus/topics/resource"
)

const (
	// maxTextLength bounds one text with templates, what it becomes, and what each function returns on the way there, in bytes. Parsing needs a stack
	// that grows with the text.
	maxTextLength = 256 << 10
	// maxTexts bounds the texts with templates in one object.
	maxTexts = 10_000
	// maxExpanded bounds what the templates of one object become, and what their functions return, together, and the object in JSON, in bytes:
	// that of a request to the API, for a fleet has such an object for each of its nodes.
	maxExpanded = 3 << 20
)

// Expand is a copy of an object in which each text that contains {{ is expanded as a Go template over data. An error names the field,
// below at, and what the templates are expanded for.
func Expand[T any](object T, data map[string]any, at, expandedFor string) (T, error) {
	return expandText(object, at, &expander{of: expandedFor, data: data})
}

// Check says what is wrong with the templates of an object, whatever they are expanded over.
func Check[T any](object T, at string) error {
	_, err := expandText(object, at, &expander{parseOnly: true})
	return err
}

func expandText[T any](object T, at string, e *expander) (out T, err error) {
	text, err := json.Marshal(object)
	if err != nil || !strings.Contains(string(text), "{{") {
		return object, err
	}
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		return object, err
	}
	tree = e.walk(tree, at)
	if e.err != nil {
		return object, e.err
	}
	if text, err = json.Marshal(tree); err != nil {
		return object, err
	}
	if len(text) > maxExpanded {
		why := fmt.Sprintf("the templates make it %d bytes long, and it may have %d", len(text), maxExpanded)
		if e.of != "" {
			why = e.of + ": " + why
		}
		return object, resource.Errorf(resource.Invalid, at, "%s", why)
	}
	if err := json.Unmarshal(text, &out); err != nil {
		return object, err
	}
	return out, nil
}

type expander struct {
	of        string
	data      any
	parseOnly bool
	texts     int
	made      int   // bytes
	err       error // the first one
}

// grow counts a text that is about to be made.
func (e *expander) grow(bytes int) error {
	if bytes > maxTextLength {
		return fmt.Errorf("it becomes longer than %d bytes", maxTextLength)
	}
	if e.made += bytes; e.made > maxExpanded {
		return fmt.Errorf("the templates make more than %d bytes together", maxExpanded)
	}
	return nil
}

// walk expands all texts of a tree. Keys of maps are left as they are.
func (e *expander) walk(v any, at string) any {
	switch v := v.(type) {
	case map[string]any:
		for key, below := range v {
			v[key] = e.walk(below, at+"."+key)
		}
	case []any:
		for i, below := range v {
			v[i] = e.walk(below, fmt.Sprintf("%s[%d]", at, i))
		}
	case string:
		if e.err == nil && strings.Contains(v, "{{") {
			return e.expand(v, at)
		}
	}
	return v
}

func (e *expander) expand(text, at string) string {
	t, err := e.parse(text)
	if err == nil && !e.parseOnly {
		out := limitedWriter{grow: e.grow}
		run := evaluator{out: &out, functions: e.functions(), variables: []templateVariable{{"$", e.data}}}
		if err = run.list(e.data, t.Root); err == nil {
			return out.String()
		}
	}
	if err != nil {
		why := plainError(err)
		if e.of != "" {
			why = e.of + ": " + why
		}
		e.err = resource.Errorf(resource.Invalid, at, "%s", why)
	}
	return text
}

// plainError is an error of a template without the place in a template that has no name.
func plainError(err error) string { return strings.TrimPrefix(err.Error(), "template: ") }

// functions are those of flightctl, with index, which fails where there is nothing, and those of text/template that need no bound.
func (e *expander) functions() map[string]templateFunction {
	text := func(f func(string) string) templateFunction {
		return func(args []any) (any, error) {
			_, texts, err := textArguments(args, 1, false)
			if err != nil {
				return nil, err
			}
			return f(texts[0]), e.grow(len(texts[0]))
		}
	}
	return map[string]templateFunction{
		"upper": text(strings.ToUpper), "lower": text(strings.ToLower),
		"replace": func(args []any) (any, error) {
			_, texts, err := textArguments(args, 3, false)
			if err != nil {
				return nil, err
			}
			old, by, in := texts[0], texts[1], texts[2]
			if err := e.grow(len(in) + strings.Count(in, old)*(len(by)-len(old))); err != nil {
				return nil, err
			}
			return strings.ReplaceAll(in, old, by), nil
		},
		"getOrDefault": func(args []any) (any, error) {
			m, texts, err := textArguments(args, 3, true)
			if err != nil {
				return nil, err
			}
			if v, ok := m[texts[0]]; ok {
				return v, nil
			}
			return texts[1], nil
		},
		"index": func(args []any) (any, error) {
			m, texts, err := textArguments(args, 2, true)
			if err != nil {
				return nil, err
			}
			v, ok := m[texts[0]]
			if !ok {
				return nil, fmt.Errorf("there is no %q, and no getOrDefault says what else", texts[0])
			}
			return v, nil
		},
		"not": func(args []any) (any, error) {
			if len(args) != 1 {
				return nil, fmt.Errorf("wrong number of args: want 1 got %d", len(args))
			}
			return !isTrue(args[0]), nil
		},
		"eq": func(args []any) (any, error) { return isEqual(args) },
		"ne": func(args []any) (any, error) {
			if len(args) != 2 {
				return nil, fmt.Errorf("wrong number of args: want 2 got %d", len(args))
			}
			same, err := isEqual(args)
			return !same, err
		},
		"and": wantsArguments, "or": wantsArguments, // with arguments they are evaluated one by one
	}
}

func wantsArguments(args []any) (any, error) {
	if len(args) == 1 {
		return args[0], nil
	}
	return nil, errors.New("wrong number of args: want at least 1 got 0")
}

// callableFunctions are the functions that a template may use: ours, and some of text/template's.
var callableFunctions = []string{"upper", "lower", "replace", "getOrDefault", "index", "and", "or", "not", "eq", "ne"}

// parsedFunctions are those that the parser lets pass: checkNode says which of them are not supported.
var parsedFunctions = func() map[string]any {
	m := map[string]any{}
	for _, name := range append([]string{"call", "html", "js", "len", "print", "printf", "println", "slice", "urlquery", "ge", "gt", "le", "lt"}, callableFunctions...) {
		m[name] = true
	}
	return m
}()

func (e *expander) parse(text string) (*parse.Tree, error) {
	switch e.texts++; {
	case e.texts > maxTexts:
		return nil, fmt.Errorf("more than %d texts have templates", maxTexts)
	case len(text) > maxTextLength:
		return nil, fmt.Errorf("a text with templates has %d bytes; at most %d are expanded", len(text), maxTextLength)
	}
	trees, err := parse.Parse("", text, "{{", "}}", parsedFunctions)
	if err != nil {
		return nil, err
	}
	t := trees[""]
	if len(trees) > 1 || t == nil {
		return nil, errors.New("define and block are not supported")
	}
	return t, checkNode(t.Root)
}

// checkNode refuses what could run without bound, and functions that are not listed.
func checkNode(n parse.Node) error {
	switch n := n.(type) {
	case *parse.ListNode:
		if n == nil {
			return nil
		}
		return checkNodes(n.Nodes)
	case *parse.ActionNode:
		return checkNode(n.Pipe)
	case *parse.IfNode:
		return checkBranch(n.BranchNode)
	case *parse.WithNode:
		return checkBranch(n.BranchNode)
	case *parse.PipeNode:
		if n == nil {
			return nil
		}
		for _, c := range n.Cmds {
			if err := checkNodes(c.Args); err != nil {
				return err
			}
		}
	case *parse.ChainNode:
		return checkNode(n.Node)
	case *parse.IdentifierNode:
		if !slices.Contains(callableFunctions, n.Ident) {
			return fmt.Errorf("the function %s is not supported", n.Ident)
		}
	case *parse.RangeNode, *parse.TemplateNode, *parse.BreakNode, *parse.ContinueNode:
		return errors.New("range and template are not supported")
	}
	return nil
}

func checkBranch(b parse.BranchNode) error {
	return errors.Join(checkNode(b.Pipe), checkNode(b.List), checkNode(b.ElseList))
}

func checkNodes(nodes []parse.Node) error {
	for _, n := range nodes {
		if err := checkNode(n); err != nil {
			return err
		}
	}
	return nil
}

// limitedWriter is a text that doesn't grow without bound.
type limitedWriter struct {
	strings.Builder
	grow func(bytes int) error
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if l.Len()+len(p) > maxTextLength {
		return 0, fmt.Errorf("it becomes longer than %d bytes", maxTextLength)
	}
	if err := l.grow(len(p)); err != nil {
		return 0, err
	}
	return l.Builder.Write(p)
}
