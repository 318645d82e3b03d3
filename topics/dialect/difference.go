package dialect

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// tree is an object's JSON, with json.Number for numbers.
type tree = map[string]any

// difference is one place where a tree differs from the one that another form of the same object converts to.
type difference struct {
	// At is a JSON pointer in which ~2 stands for =. In a list whose elements have names, name=x is the one that is called x.
	At string `json:"at"`
	// Was is the value there after converting the other form; null: none.
	Was any `json:"was,omitempty"`
	// Is is the actual value there; null: none.
	Is any `json:"is,omitempty"`
}

// differences returns the changes that turn was into is.
func differences(at string, was, is any) []difference {
	if reflect.DeepEqual(was, is) {
		return nil
	}
	if b, ok := is.(tree); ok {
		if a, ok := was.(tree); ok || was == nil && len(b) > 0 {
			return inMap(at, a, b)
		}
	}
	if a, b, key := named(was, is); key != "" {
		if found, whole := inList(at, key, a, b); whole {
			return found
		}
	}
	return []difference{{at, was, is}}
}

func inMap(at string, was, is tree) (found []difference) {
	keys := maps.Clone(is)
	if keys == nil {
		keys = tree{}
	}
	maps.Copy(keys, was)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		found = append(found, differences(at+"/"+escaper.Replace(key), was[key], is[key])...)
	}
	return found
}

// inList compares the elements that have the same name. whole says whether that is all that differs: there are no new
// ones, those that stay are in their order, and apply makes of each what it is. Each is looked at once: lists are long.
func inList(at, key string, was, is []any) (found []difference, whole bool) {
	before, after := byName(was, key), byName(is, key)
	last := -1
	for _, element := range is {
		name := nameOf(element, key)
		i, stays := before[name]
		if !stays || i < last {
			return nil, false
		}
		last = i
		there := at + "/" + key + "=" + escaper.Replace(name)
		its := differences(there, was[i], element)
		if !reflect.DeepEqual(applyAll(there, was[i], its), element) {
			return nil, false
		}
		found = append(found, its...)
	}
	for _, element := range was {
		name := nameOf(element, key)
		if _, stays := after[name]; !stays {
			found = append(found, difference{At: at + "/" + key + "=" + escaper.Replace(name), Was: element})
		}
	}
	return found, true
}

// byName returns the positions of a list's elements by their names, which must differ.
func byName(list []any, key string) map[string]int {
	places := make(map[string]int, len(list))
	for i, element := range list {
		places[nameOf(element, key)] = i
	}
	return places
}

var (
	escaper   = strings.NewReplacer("~", "~0", "/", "~1", "=", "~2")
	unescaper = strings.NewReplacer("~1", "/", "~0", "~", "~2", "=")
)

// listKeys are the fields by which the elements of a list are told apart.
var listKeys = []string{"name", "propertyName", "protocol", "nodeName", "type"}

// named finds the field that tells the elements of both lists apart.
func named(was, is any) (a, b []any, key string) {
	a, okA := was.([]any)
	b, okB := is.([]any)
	if !okA || !okB {
		return nil, nil, ""
	}
	for _, key := range listKeys {
		if distinct(a, key) && distinct(b, key) {
			return a, b, key
		}
	}
	return nil, nil, ""
}

func distinct(list []any, key string) bool {
	seen := make(map[string]bool, len(list))
	for _, element := range list {
		name := nameOf(element, key)
		if name == "" || seen[name] {
			return false
		}
		seen[name] = true
	}
	return true
}

func nameOf(element any, key string) string {
	m, _ := element.(tree)
	name, _ := m[key].(string)
	return name
}

// applyAll makes was into is, but for the places where was has changed meanwhile:
// there it is right. The differences are of a tree that stands at a pointer.
func applyAll(at string, v any, list []difference) any {
	v = clone(v)
	for _, d := range list {
		path := strings.Split(strings.TrimPrefix(strings.TrimPrefix(d.At, at), "/"), "/")
		if d.At == at {
			path = nil
		}
		v = apply(v, path, d)
	}
	return v
}

func apply(v any, path []string, d difference) any {
	if len(path) == 0 {
		if reflect.DeepEqual(v, d.Was) {
			return clone(d.Is)
		}
		return v
	}
	switch v := v.(type) {
	case nil:
		if d.Was == nil && !strings.Contains(path[0], "=") {
			return apply(tree{}, path, d)
		}
	case tree:
		name := unescaper.Replace(path[0])
		if next := apply(v[name], path[1:], d); next != nil {
			v[name] = next
		} else {
			delete(v, name)
		}
	case []any:
		return applyToList(v, path, d)
	}
	return v
}

func applyToList(list []any, path []string, d difference) any {
	key, name, _ := strings.Cut(path[0], "=")
	name = unescaper.Replace(name)
	for i, element := range list {
		if nameOf(element, key) != name {
			continue
		}
		if next := apply(element, path[1:], d); next != nil {
			list[i] = next
			return list
		}
		return slices.Delete(list, i, i+1)
	}
	if len(path) == 1 && d.Was == nil && d.Is != nil {
		return append(list, clone(d.Is))
	}
	return list
}

// clone copies what apply may change.
func clone(v any) any {
	switch v := v.(type) {
	case tree:
		out := make(tree, len(v))
		for k, e := range v {
			out[k] = clone(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = clone(e)
		}
		return out
	}
	return v
}
