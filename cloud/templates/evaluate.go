// SPDX-License-Identifier: Apache-2.0

package templates

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/template/parse"
)

// evaluator expands what text/template parses: values, if, with, variables and the functions of callableFunctions. It is here because a program
// with text/template's own evaluator, which calls methods by their names, keeps every method of every type: it makes the hub larger by 5 MB.
type evaluator struct {
	out       io.Writer
	functions map[string]templateFunction
	variables []templateVariable
}

type templateVariable struct {
	name  string
	value any
}

// templateFunction is called with values of a template.
type templateFunction func(args []any) (any, error)

// missingValue is the value of a pipe that has none.
type missingValue struct{}

func (e *evaluator) list(dot any, l *parse.ListNode) error {
	if l == nil {
		return nil
	}
	for _, n := range l.Nodes {
		if err := e.node(dot, n); err != nil {
			return err
		}
	}
	return nil
}

func (e *evaluator) node(dot any, n parse.Node) error {
	switch n := n.(type) {
	case *parse.TextNode:
		_, err := e.out.Write(n.Text)
		return err
	case *parse.ActionNode:
		v, err := e.pipe(dot, n.Pipe)
		if err != nil || len(n.Pipe.Decl) > 0 {
			return err
		}
		if v == nil {
			v = "<no value>"
		}
		_, err = fmt.Fprint(e.out, v)
		return err
	case *parse.IfNode:
		return e.branch(dot, n.BranchNode, false)
	case *parse.WithNode:
		return e.branch(dot, n.BranchNode, true)
	case *parse.CommentNode:
		return nil
	}
	return fmt.Errorf("%s is not supported", n)
}

func (e *evaluator) branch(dot any, b parse.BranchNode, with bool) error {
	defer func(n int) { e.variables = e.variables[:n] }(len(e.variables))
	v, err := e.pipe(dot, b.Pipe)
	switch {
	case err != nil:
		return err
	case !isTrue(v):
		return e.list(dot, b.ElseList)
	case with:
		dot = v
	}
	return e.list(dot, b.List)
}

// isTrue is what if asks: whether a value is neither nothing, nor empty.
func isTrue(v any) bool {
	switch v := v.(type) {
	case nil:
		return false
	case bool:
		return v
	case string:
		return v != ""
	case int:
		return v != 0
	case float64:
		return v != 0
	case complex128:
		return v != 0
	case map[string]string:
		return len(v) > 0
	case map[string]any:
		return len(v) > 0
	}
	return true
}

func (e *evaluator) pipe(dot any, p *parse.PipeNode) (v any, err error) {
	v = missingValue{}
	for _, c := range p.Cmds {
		if v, err = e.command(dot, c, v); err != nil {
			return nil, err
		}
	}
	for _, d := range p.Decl {
		if !p.IsAssign {
			e.variables = append(e.variables, templateVariable{d.Ident[0], v})
			continue
		}
		x := e.variable(d.Ident[0])
		if x == nil {
			return nil, fmt.Errorf("undefined variable: %s", d.Ident[0])
		}
		x.value = v
	}
	return v, nil
}

// variable finds the innermost of a name; nil: there is none.
func (e *evaluator) variable(name string) *templateVariable {
	for i := len(e.variables) - 1; i >= 0; i-- {
		if e.variables[i].name == name {
			return &e.variables[i]
		}
	}
	return nil
}

// command is a value, or a function with its arguments, of which the last is what the command before has given.
func (e *evaluator) command(dot any, c *parse.CommandNode, before any) (any, error) {
	_, first := before.(missingValue)
	if f, ok := c.Args[0].(*parse.IdentifierNode); ok {
		return e.call(dot, f.Ident, c.Args[1:], before)
	}
	if len(c.Args) > 1 || !first {
		return nil, fmt.Errorf("can't give argument to non-function %s", c.Args[0])
	}
	if _, ok := c.Args[0].(*parse.NilNode); ok {
		return nil, errors.New("nil is not a command")
	}
	return e.value(dot, c.Args[0])
}

func (e *evaluator) value(dot any, n parse.Node) (any, error) {
	switch n := n.(type) {
	case *parse.DotNode:
		return dot, nil
	case *parse.NilNode:
		return nil, nil
	case *parse.BoolNode:
		return n.True, nil
	case *parse.StringNode:
		return n.Text, nil
	case *parse.NumberNode:
		return numberOf(n)
	case *parse.FieldNode:
		return fieldsOf(dot, n.Ident)
	case *parse.ChainNode:
		v, err := e.value(dot, n.Node)
		if err != nil {
			return nil, err
		}
		return fieldsOf(v, n.Field)
	case *parse.PipeNode:
		return e.pipe(dot, n)
	case *parse.IdentifierNode:
		return e.call(dot, n.Ident, nil, missingValue{})
	case *parse.VariableNode:
		if x := e.variable(n.Ident[0]); x != nil {
			return fieldsOf(x.value, n.Ident[1:])
		}
	}
	return nil, fmt.Errorf("%s is not supported", n)
}

func numberOf(n *parse.NumberNode) (any, error) {
	isHex := len(n.Text) > 2 && n.Text[0] == '0' && (n.Text[1] == 'x' || n.Text[1] == 'X') && !strings.ContainsAny(n.Text, "pP")
	switch {
	case n.IsComplex:
		return n.Complex128, nil
	case n.IsFloat && !isHex && n.Text[0] != '\'' && strings.ContainsAny(n.Text, ".eEpP"):
		return n.Float64, nil
	case n.IsInt:
		return int(n.Int64), nil
	}
	return nil, fmt.Errorf("%s overflows int", n.Text)
}

// fieldsOf follows names from a value on.
func fieldsOf(v any, names []string) (any, error) {
	for _, name := range names {
		found := false
		switch m := v.(type) {
		case map[string]any:
			v, found = m[name]
		case map[string]string:
			v, found = m[name]
		case nil:
			return nil, fmt.Errorf("nil data; no entry for key %q", name)
		default:
			return nil, fmt.Errorf("can't evaluate field %s in type %T", name, v)
		}
		if !found {
			return nil, fmt.Errorf("map has no entry for key %q", name)
		}
	}
	return v, nil
}

func (e *evaluator) call(dot any, name string, nodes []parse.Node, before any) (any, error) {
	and := name == "and"
	if _, first := before.(missingValue); (and || name == "or") && len(nodes) > 0 {
		for i, n := range nodes { // what isn't needed isn't evaluated
			v, err := e.value(dot, n)
			if err != nil || isTrue(v) != and || first && i == len(nodes)-1 {
				return v, err
			}
		}
		return before, nil
	}
	args := make([]any, 0, len(nodes)+1)
	for _, n := range nodes {
		v, err := e.value(dot, n)
		if err != nil {
			return nil, err
		}
		args = append(args, v)
	}
	if _, first := before.(missingValue); !first {
		args = append(args, before)
	}
	return e.functions[name](args)
}

// textArguments are a function's arguments, which are texts but for the first, where that is a map.
func textArguments(args []any, count int, withMap bool) (m map[string]string, texts []string, err error) {
	if len(args) != count {
		return nil, nil, fmt.Errorf("wrong number of args: want %d got %d", count, len(args))
	}
	for i, a := range args {
		if i == 0 && withMap {
			var ok bool
			if m, ok = a.(map[string]string); !ok && a != nil {
				return nil, nil, fmt.Errorf("wrong type for value; expected map[string]string; got %T", a)
			}
			continue
		}
		text, ok := a.(string)
		if !ok {
			return nil, nil, fmt.Errorf("wrong type for value; expected string; got %T", a)
		}
		texts = append(texts, text)
	}
	return m, texts, nil
}

// isEqual compares the first value with each of the others.
func isEqual(args []any) (bool, error) {
	if len(args) < 2 {
		return false, errors.New("missing argument for comparison")
	}
	for _, other := range args[1:] {
		for _, v := range []any{args[0], other} {
			switch v.(type) {
			case map[string]any, map[string]string, missingValue:
				return false, errors.New("non-comparable type")
			}
		}
		if args[0] != nil && other != nil && fmt.Sprintf("%T", args[0]) != fmt.Sprintf("%T", other) {
			return false, errors.New("incompatible types for comparison")
		}
		if args[0] == other {
			return true, nil
		}
	}
	return false, nil
}
