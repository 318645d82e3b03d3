package fleet

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

// Expand is a template's spec as one node gets it: each text that contains {{ is a Go template over the node's metadata.name,
// metadata.labels and metadata.annotations. An error names the node and the field.
func Expand(spec resource.NodeSpec, node resource.Meta) (resource.NodeSpec, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return spec, err
	}
	if !strings.Contains(string(text), "{{") {
		return spec, nil
	}
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		return spec, err
	}
	e := expander{node: node.Name, data: map[string]any{"metadata": map[string]any{
		"name": node.Name, "labels": orEmpty(node.Labels), "annotations": orEmpty(node.Annotations),
	}}}
	tree = e.walk(tree, "spec")
	if e.err != nil {
		return spec, e.err
	}
	if text, err = json.Marshal(tree); err != nil {
		return spec, err
	}
	var out resource.NodeSpec
	if err := json.Unmarshal(text, &out); err != nil {
		return spec, err
	}
	return out, nil
}

// CheckTemplates says what is wrong with the templates of a spec, whatever the node.
func CheckTemplates(spec resource.NodeSpec) error {
	text, err := json.Marshal(spec)
	if err != nil || !strings.Contains(string(text), "{{") {
		return err
	}
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		return err
	}
	e := expander{parseOnly: true}
	e.walk(tree, "spec")
	return e.err
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

type expander struct {
	node      string
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
		e.err = resource.Errorf(resource.Invalid, at, "%s%s", e.of(), plain(err))
	}
	return text
}

func (e *expander) of() string {
	if e.node == "" {
		return ""
	}
	return "node " + e.node + ": "
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
			return "", fmt.Errorf("there is no label or annotation %q, and no getOrDefault says what else", key)
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
