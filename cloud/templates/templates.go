// Package templates expands Go templates in objects: the texts of a Fleet's template over a node's metadata, those of a
// Configuration's deviceTemplate over a found device. A template can neither run without bound nor call anything but the functions
// that are listed here. It never reads an object.
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

// maxExpanded bounds what one text of a template may become, in bytes.
const maxExpanded = 256 << 10

// Expand is a copy of an object in which each text that contains {{ is expanded as a Go template over data. An error names the field,
// below at, and what the templates are expanded for.
func Expand[T any](object T, data map[string]any, at, expandedFor string) (T, error) {
	return expand(object, at, &expander{of: expandedFor, data: data})
}

// Check says what is wrong with the templates of an object, whatever they are expanded over.
func Check[T any](object T, at string) error {
	_, err := expand(object, at, &expander{parseOnly: true})
	return err
}

func expand[T any](object T, at string, e *expander) (out T, err error) {
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
	if err := json.Unmarshal(text, &out); err != nil {
		return object, err
	}
	return out, nil
}

type expander struct {
	of        string
	data      any
	parseOnly bool
	err       error // the first one
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
	t, err := parseTemplate(text)
	if err == nil && !e.parseOnly {
		out := limited{most: maxExpanded}
		if err = t.Execute(&out, e.data); err == nil {
			return out.String()
		}
	}
	if err != nil {
		why := plain(err)
		if e.of != "" {
			why = e.of + ": " + why
		}
		e.err = resource.Errorf(resource.Invalid, at, "%s", why)
	}
	return text
}

// plain is an error of text/template without the place in a template that has no name.
func plain(err error) string {
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
var functions = template.FuncMap{
	"upper":   strings.ToUpper,
	"lower":   strings.ToLower,
	"replace": func(old, by, text string) string { return strings.ReplaceAll(text, old, by) },
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

// builtin are the functions of text/template that a template may use as well.
var builtin = []string{"and", "or", "not", "eq", "ne"}

func parseTemplate(text string) (*template.Template, error) {
	t, err := template.New("").Option("missingkey=error").Funcs(functions).Parse(text)
	if err != nil {
		return nil, err
	}
	if len(t.Templates()) > 1 {
		return nil, errors.New("define and block are not supported")
	}
	return t, allowed(t.Root)
}

// allowed refuses what could run without bound, and functions that are not listed.
func allowed(n parse.Node) error {
	switch n := n.(type) {
	case *parse.ListNode:
		if n == nil {
			return nil
		}
		return allowedAll(n.Nodes)
	case *parse.ActionNode:
		return allowed(n.Pipe)
	case *parse.IfNode:
		return allowedBranch(n.BranchNode)
	case *parse.WithNode:
		return allowedBranch(n.BranchNode)
	case *parse.PipeNode:
		if n == nil {
			return nil
		}
		for _, c := range n.Cmds {
			if err := allowedAll(c.Args); err != nil {
				return err
			}
		}
	case *parse.ChainNode:
		return allowed(n.Node)
	case *parse.IdentifierNode:
		if functions[n.Ident] == nil && !slices.Contains(builtin, n.Ident) {
			return fmt.Errorf("the function %s is not supported", n.Ident)
		}
	case *parse.RangeNode, *parse.TemplateNode, *parse.BreakNode, *parse.ContinueNode:
		return errors.New("range and template are not supported")
	}
	return nil
}

func allowedBranch(b parse.BranchNode) error {
	return errors.Join(allowed(b.Pipe), allowed(b.List), allowed(b.ElseList))
}

func allowedAll(nodes []parse.Node) error {
	for _, n := range nodes {
		if err := allowed(n); err != nil {
			return err
		}
	}
	return nil
}

// limited is a text that doesn't grow without bound.
type limited struct {
	strings.Builder
	most int
}

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > l.most {
		return 0, fmt.Errorf("it becomes longer than %d bytes", l.most)
	}
	return l.Builder.Write(p)
}
