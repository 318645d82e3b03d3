// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"

	"k8s.io/client-go/util/jsonpath"

	"github.com/edgebus/edgebus/cloud/cli/exitcode"
	"github.com/edgebus/edgebus/cloud/cli/printer"
	"github.com/edgebus/edgebus/cloud/client"
)

const jsonPathPrefix = "jsonpath=" // of --output

// parsePath reads a template as kubectl has it, or a path without braces.
func parsePath(text string) (*jsonpath.JSONPath, error) {
	if text == "" {
		return nil, errors.New("it is empty")
	}
	if !strings.Contains(text, "{") {
		text = "{." + strings.TrimPrefix(text, ".") + "}"
	}
	p := jsonpath.New("output").AllowMissingKeys(true)
	return p, p.Parse(text)
}

// valueAt is what a template makes of a tree of JSON; a value that is missing is nothing.
func valueAt(tree any, path string) (string, error) {
	p, err := parsePath(path)
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	err = p.Execute(&text, plainNumbers(tree))
	return text.String(), err
}

// plainNumbers has Go's numbers for those of JSON, which templates compare.
func plainNumbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, e := range v {
			out[name] = plainNumbers(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = plainNumbers(e)
		}
		return out
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		n, _ := v.Float64()
		return n
	}
	return v
}

// print prints objects that aren't shown as a table.
func (o *getOptions) print(objects []client.Object, single bool) error {
	path, ok := strings.CutPrefix(o.output, jsonPathPrefix)
	if !ok {
		return printer.Objects(o.out, o.output, objects, single)
	}
	tree, err := printer.TreeOf(objects, single)
	if err != nil {
		return err
	}
	text, err := valueAt(tree, path)
	if err == nil {
		_, err = io.WriteString(o.out, text)
	}
	return err
}

// sortRows sorts rows by what their objects have at a path: numbers as such, anything else as text, and what is missing first.
func sortRows(rows []client.Row, path string) error {
	type keyed struct {
		row    client.Row
		number float64
		text   string
	}
	all := make([]keyed, len(rows))
	numbers := true
	for i, r := range rows {
		tree, err := r.Object.Tree()
		if err != nil {
			return err
		}
		if all[i].text, err = valueAt(tree, path); err != nil {
			return exitcode.Errorf(exitcode.Misused, "--sort-by %q: it looks like .status.lastSeen (%w)", path, err)
		}
		all[i].row = r
		if all[i].text != "" {
			all[i].number, err = strconv.ParseFloat(all[i].text, 64)
			numbers = numbers && err == nil
		}
	}
	slices.SortStableFunc(all, func(a, b keyed) int {
		if numbers && a.text != "" && b.text != "" {
			return cmp.Compare(a.number, b.number)
		}
		return strings.Compare(a.text, b.text)
	})
	for i := range all {
		rows[i] = all[i].row
	}
	return nil
}
