// SPDX-License-Identifier: Apache-2.0

package printer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/edgebus/edgebus/cloud/cli/terminal"
	"github.com/edgebus/edgebus/cloud/client"
)

// JSON prints anything as JSON.
func JSON(out io.Writer, v any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// documentOf is an object without the fields that the API keeps for itself.
func documentOf(o client.Object) (map[string]any, error) {
	tree, err := o.Tree()
	if err != nil {
		return nil, err
	}
	if meta, ok := tree["metadata"].(map[string]any); ok {
		delete(meta, "managedFields")
	}
	return tree, nil
}

// Document prints anything as yaml or json.
func Document(out io.Writer, form string, v any) error {
	if form == "json" {
		return JSON(out, v)
	}
	text, err := YAML(v)
	if err == nil {
		_, err = io.WriteString(out, text)
	}
	return err
}

// YAML is anything as YAML.
func YAML(v any) (string, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	text, err := yaml.JSONToYAML(raw)
	return string(text), err
}

// Objects prints objects: one as itself, several as a List.
func Objects(out io.Writer, form string, objects []client.Object, single bool) error {
	tree, err := TreeOf(objects, single)
	if err != nil {
		return err
	}
	return Document(out, form, tree)
}

// TreeOf is one object as itself, or several as a List.
func TreeOf(objects []client.Object, single bool) (any, error) {
	items := make([]any, 0, len(objects))
	for _, o := range objects {
		tree, err := documentOf(o)
		if err != nil {
			return nil, err
		}
		items = append(items, tree)
	}
	if single && len(items) == 1 {
		return items[0], nil
	}
	return map[string]any{"apiVersion": "v1", "kind": "List", "items": items}, nil
}

// Rows prints a table, or with -o json what it is of.
func Rows(out io.Writer, form string, of any, rows [][]string) error {
	if form == "json" {
		return JSON(out, of)
	}
	return new(AlignedRows).Write(out, rows)
}

// OutputFlag registers --output, which is one of these, the first by default. One such as jsonpath=TEMPLATE is taken with anything after the =.
func OutputFlag(cmd *cobra.Command, to *string, usage string, choices ...string) {
	*to = choices[0]
	last := len(choices) - 1
	usage = strings.TrimSuffix(strings.Join(choices[:last], ", ")+" or "+choices[last]+"; "+usage, "; ")
	cmd.Flags().VarP(choiceFlag{to, choices}, "output", "o", usage)
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp))
}

// choiceFlag is a flag's value, one of a few.
type choiceFlag struct {
	to *string
	of []string
}

func (c choiceFlag) String() string { return *c.to }

func (c choiceFlag) Type() string { return "string" }

func (c choiceFlag) Set(v string) error {
	form, _, given := strings.Cut(v, "=")
	known := func(choice string) bool { return choice == v || given && strings.HasPrefix(choice, form+"=") }
	if !slices.ContainsFunc(c.of, known) {
		return fmt.Errorf("it is one of %s", strings.Join(c.of, ", "))
	}
	*c.to = v
	return nil
}

// FirstNames are the first few of a list.
func FirstNames(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// Warn prints a warning of the hub as kubectl does.
func Warn(w io.Writer, text string) { fmt.Fprintln(w, "Warning:", terminal.Printable(text, 500)) }

// Label is an object's name in output: device/lamp.
func Label(k client.Kind, name string) string { return cmp.Or(k.Singular, k.Plural) + "/" + name }

// Plural is a number with its noun: 2 objects.
func Plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// WaitingText returns the finding that a node waits for approval, and what to do.
func WaitingText(node string, requests []string) string {
	if len(requests) == 1 {
		return fmt.Sprintf("%s waits for approval: edgebus approve %s", node, node)
	}
	return fmt.Sprintf("several nodes wait for approval as %s: edgebus approve one of %s", node, FirstNames(requests))
}

// Age is a time span in its largest unit: 5s, 3m.
func Age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}
