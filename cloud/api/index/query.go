// SPDX-License-Identifier: Apache-2.0

package index

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/edgebus/edgebus/cloud/store"
	"github.com/edgebus/edgebus/topics/resource"
)

// Query says which objects are asked for. Its zero value is all of them.
type Query struct {
	Namespace string
	Search    string // words, of which each stands in the title, the name, the node's name or a label
	Labels    labels.Selector
	// Field returns whether the value of a field is selected; it is called with the fields of Fields only, and with metadata.name.
	Fields []FieldTest
	// Has leaves out what the user may not see; nil: the user sees all.
	Has func(e *Entry) bool
	// Order is a field, label:NAME or metadata.name, with a - before it for the other direction. Empty: by name.
	Order         string
	Offset, Limit int // Limit 0: all
}

// FieldTest is a test of a field.
type FieldTest struct {
	Field string
	Test  func(value string) bool
}

// FindResult are the objects found.
type FindResult struct {
	Keys  []store.Key
	Total int // without Offset and Limit
	Rev   uint64
}

// Find finds objects, in order.
func (x *Index) Find(ctx context.Context, kind string, q Query) (f FindResult, err error) {
	k := x.kinds[kind]
	by, descending := strings.CutPrefix(q.Order, "-")
	value, err := k.valueOf(cmp.Or(by, "metadata.name"))
	if err != nil {
		return f, err
	}
	list, rev, err := x.matching(ctx, k, q)
	if err != nil {
		return f, err
	}
	if by != "" {
		list = sortedBy(list, value, descending)
	}
	f.Total, f.Rev = len(list), rev
	list = list[min(q.Offset, len(list)):]
	if q.Limit > 0 {
		list = list[:min(q.Limit, len(list))]
	}
	for _, e := range list {
		f.Keys = append(f.Keys, e.Key)
	}
	return f, nil
}

// sortedBy sorts entries by a value, of which most share theirs with others. Those of one value stay as they are.
func sortedBy(list []*Entry, value func(*Entry) string, descending bool) []*Entry {
	groups := make(map[string][]*Entry)
	for _, e := range list {
		v := value(e)
		groups[v] = append(groups[v], e)
	}
	values := slices.Sorted(maps.Keys(groups))
	if descending {
		slices.Reverse(values)
	}
	list = list[:0]
	for _, v := range values {
		list = append(list, groups[v]...)
	}
	return list
}

// maxValues is how many values of a field are counted one by one.
const maxValues = 1000

// ValueCounts are how many objects there are, on the whole and of each value of some fields.
type ValueCounts struct {
	Total int                       `json:"total"`
	By    map[string]map[string]int `json:"counts"`
	// Others are how many objects have none of the values that are counted, by field.
	Others map[string]int `json:"others,omitempty"`
}

// Count counts objects by fields: names of fields, or label:NAME, whose value is empty where there is no such label.
func (x *Index) Count(ctx context.Context, kind string, q Query, by []string) (ValueCounts, uint64, error) {
	k := x.kinds[kind]
	c := ValueCounts{By: make(map[string]map[string]int)}
	values := make([]func(*Entry) string, len(by))
	for i, name := range by {
		var err error
		if values[i], err = k.valueOf(name); err != nil {
			return c, 0, err
		}
		c.By[name] = make(map[string]int)
	}
	list, rev, err := x.matching(ctx, k, q)
	if err != nil {
		return c, 0, err
	}
	c.Total = len(list)
	for i, name := range by {
		counts := c.By[name]
		for _, e := range list {
			v := values[i](e)
			if _, known := counts[v]; !known && len(counts) == maxValues {
				if c.Others == nil {
					c.Others = make(map[string]int)
				}
				c.Others[name]++
				continue
			}
			counts[v]++
		}
	}
	return c, rev, nil
}

// matching are the entries that a query selects, by namespace and name.
func (x *Index) matching(ctx context.Context, k *kindIndex, q Query) ([]*Entry, uint64, error) {
	if err := x.catchUp(ctx, k); err != nil {
		return nil, 0, err
	}
	words := strings.Fields(strings.ToLower(q.Search))
	values := make([]func(*Entry) string, len(q.Fields))
	for i, f := range q.Fields {
		var err error
		if values[i], err = k.valueOf(f.Field); err != nil {
			return nil, 0, err
		}
	}
	list, rev := k.ordered()
	return slices.DeleteFunc(list, func(e *Entry) bool {
		if q.Namespace != "" && e.Key.Namespace != q.Namespace || q.Has != nil && !q.Has(e) {
			return true
		}
		for _, w := range words {
			if !strings.Contains(e.text, w) {
				return true
			}
		}
		for i, f := range q.Fields {
			if !f.Test(values[i](e)) {
				return true
			}
		}
		return q.Labels != nil && !q.Labels.Empty() && !q.Labels.Matches(labelList(e.labels))
	}), rev, nil
}

// valueOf finds a field, or a label.
func (k *kindIndex) valueOf(name string) (func(*Entry) string, error) {
	switch name {
	case "metadata.name":
		return func(e *Entry) string { return e.Key.Name }, nil
	case "metadata.namespace":
		return func(e *Entry) string { return e.Key.Namespace }, nil
	case "inSync", "state":
		name = "status." + name
	}
	if label, ok := strings.CutPrefix(name, "label:"); ok {
		return func(e *Entry) string { return labelList(e.labels).Get(label) }, nil
	}
	for i, f := range k.fields {
		if f.name == name {
			return func(e *Entry) string { return e.values[i] }, nil
		}
	}
	return nil, resource.Errorf(resource.Invalid, "", "%.100q is no field that a %s is counted or sorted by: there are metadata.name, label:NAME, %s",
		name, k.kind, strings.Join(FieldNames(k.kind), ", "))
}

// labelList are names and values of labels in turn. It is labels.Labels.
type labelList []string

// Lookup is of labels.Labels.
func (l labelList) Lookup(name string) (value string, ok bool) {
	for i := 0; i < len(l); i += 2 {
		if l[i] == name {
			return l[i+1], true
		}
	}
	return "", false
}

// Has is of labels.Labels.
func (l labelList) Has(name string) bool { _, ok := l.Lookup(name); return ok }

// Get is of labels.Labels.
func (l labelList) Get(name string) string { v, _ := l.Lookup(name); return v }
