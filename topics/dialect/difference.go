// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// jsonObject is an object's JSON, with json.Number for numbers.
type jsonObject = map[string]any

// formDifference is one place where a tree differs from the one that another form of the same object converts to.
type formDifference struct {
	// At is a JSON pointer in which ~2 stands for =. In a list whose elements have names, name=x is the one that is called x.
	At string `json:"at"`
	// Was is the value there after converting the other form; null: none.
	Was any `json:"was,omitempty"`
	// Is is the actual value there; null: none.
	Is any `json:"is,omitempty"`
}

// findDifferences returns the changes that turn was into is.
func findDifferences(at string, was, is any) []formDifference {
	if reflect.DeepEqual(was, is) {
		return nil
	}
	if b, ok := is.(jsonObject); ok {
		if a, ok := was.(jsonObject); ok || was == nil && len(b) > 0 {
			return inMap(at, a, b)
		}
	}
	if a, b, key := commonListKey(was, is); key != "" {
		if found, whole := inList(at, key, a, b); whole {
			return found
		}
	}
	return []formDifference{{at, was, is}}
}

func inMap(at string, was, is jsonObject) (found []formDifference) {
	keys := maps.Clone(is)
	if keys == nil {
		keys = jsonObject{}
	}
	maps.Copy(keys, was)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		found = append(found, findDifferences(at+"/"+pointerEscaper.Replace(key), was[key], is[key])...)
	}
	return found
}

// inList compares the elements that have the same name. whole says whether that is all that differs: there are no new
// ones, those that stay are in their order, and apply makes of each what it is. Each is looked at once: lists are long.
func inList(at, key string, was, is []any) (found []formDifference, whole bool) {
	before, after := byName(was, key), byName(is, key)
	last := -1
	for _, element := range is {
		name := nameOf(element, key)
		i, stays := before[name]
		if !stays || i < last {
			return nil, false
		}
		last = i
		there := at + "/" + key + "=" + pointerEscaper.Replace(name)
		its := findDifferences(there, was[i], element)
		if !reflect.DeepEqual(applyDifferences(there, was[i], its), element) {
			return nil, false
		}
		found = append(found, its...)
	}
	for _, element := range was {
		name := nameOf(element, key)
		if _, stays := after[name]; !stays {
			found = append(found, formDifference{At: at + "/" + key + "=" + pointerEscaper.Replace(name), Was: element})
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
	pointerEscaper   = strings.NewReplacer("~", "~0", "/", "~1", "=", "~2")
	pointerUnescaper = strings.NewReplacer("~1", "/", "~0", "~", "~2", "=")
)

// listKeys are the fields by which the elements of a list are told apart.
var listKeys = []string{"name", "propertyName", "protocol", "nodeName", "type", "unit"}

// commonListKey finds the field that tells the elements of both lists apart.
func commonListKey(was, is any) (a, b []any, key string) {
	a, okA := was.([]any)
	b, okB := is.([]any)
	if !okA || !okB {
		return nil, nil, ""
	}
	for _, key := range listKeys {
		if hasDistinctNames(a, key) && hasDistinctNames(b, key) {
			return a, b, key
		}
	}
	return nil, nil, ""
}

func hasDistinctNames(list []any, key string) bool {
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
	m, _ := element.(jsonObject)
	name, _ := m[key].(string)
	return name
}

// applyDifferences makes was into is, but for the places where was has changed meanwhile:
// there it is right. The differences are of a tree that stands at a pointer.
func applyDifferences(at string, v any, list []formDifference) any {
	v = cloneJSON(v)
	for _, d := range list {
		path := strings.Split(strings.TrimPrefix(strings.TrimPrefix(d.At, at), "/"), "/")
		if d.At == at {
			path = nil
		}
		v = applyDifference(v, path, d)
	}
	return v
}

func applyDifference(v any, path []string, d formDifference) any {
	if len(path) == 0 {
		if reflect.DeepEqual(v, d.Was) {
			return cloneJSON(d.Is)
		}
		return v
	}
	switch v := v.(type) {
	case nil:
		if d.Was == nil && !strings.Contains(path[0], "=") {
			return applyDifference(jsonObject{}, path, d)
		}
	case jsonObject:
		name := pointerUnescaper.Replace(path[0])
		if next := applyDifference(v[name], path[1:], d); next != nil {
			v[name] = next
		} else {
			delete(v, name)
		}
	case []any:
		return applyToList(v, path, d)
	}
	return v
}

func applyToList(list []any, path []string, d formDifference) any {
	key, name, _ := strings.Cut(path[0], "=")
	name = pointerUnescaper.Replace(name)
	for i, element := range list {
		if nameOf(element, key) != name {
			continue
		}
		if next := applyDifference(element, path[1:], d); next != nil {
			list[i] = next
			return list
		}
		return slices.Delete(list, i, i+1)
	}
	if len(path) == 1 && d.Was == nil && d.Is != nil {
		return append(list, cloneJSON(d.Is))
	}
	return list
}

// cloneJSON copies what apply may change.
func cloneJSON(v any) any {
	switch v := v.(type) {
	case jsonObject:
		out := make(jsonObject, len(v))
		for k, e := range v {
			out[k] = cloneJSON(e)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = cloneJSON(e)
		}
		return out
	}
	return v
}
