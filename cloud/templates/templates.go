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
	"text/template"
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
		if err = t.Execute(&out, e.data); err == nil {
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

// plainError is an error of text/template without the place in a template that has no name.
func plainError(err error) string {
	var exec template.ExecError
	if errors.As(err, &exec) {
		if inner := errors.Unwrap(exec.Err); inner != nil {
			return inner.Error()
		}
	}
	text := err.Error()
	if i := strings.LastIndex(text, ">: "); i >= 0 {
		return text[i+len(">: "):]
	}
	return strings.TrimPrefix(text, "template: ")
}

// functions are those of flightctl, with index, which fails where there is nothing.
func (e *expander) functions() template.FuncMap {
	return template.FuncMap{
		"upper": func(text string) (string, error) { return strings.ToUpper(text), e.grow(len(text)) },
		"lower": func(text string) (string, error) { return strings.ToLower(text), e.grow(len(text)) },
		"replace": func(old, by, text string) (string, error) {
			if err := e.grow(len(text) + strings.Count(text, old)*(len(by)-len(old))); err != nil {
				return "", err
			}
			return strings.ReplaceAll(text, old, by), nil
		},
		"getOrDefault": func(m map[string]string, key, otherwise string) string {
			if v, ok := m[key]; ok {
				return v
			}
			return otherwise
		},
		"index": func(m map[string]string, key string) (string, error) {
			v, ok := m[key]
			if !ok {
				return "", fmt.Errorf("there is no %q, and no getOrDefault says what else", key)
			}
			return v, nil
		},
	}
}

// callableFunctions are the functions that a template may use: ours, and some of text/template's.
var callableFunctions = []string{"upper", "lower", "replace", "getOrDefault", "index", "and", "or", "not", "eq", "ne"}

func (e *expander) parse(text string) (*template.Template, error) {
	switch e.texts++; {
	case e.texts > maxTexts:
		return nil, fmt.Errorf("more than %d texts have templates", maxTexts)
	case len(text) > maxTextLength:
		return nil, fmt.Errorf("a text with templates has %d bytes; at most %d are expanded", len(text), maxTextLength)
	}
	t, err := template.New("").Option("missingkey=error").Funcs(e.functions()).Parse(text)
	if err != nil {
		return nil, err
	}
	if len(t.Templates()) > 1 {
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
