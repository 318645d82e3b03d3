// SPDX-License-Identifier: Apache-2.0

// Package fit compares JSON with the Go type that it is to be decoded into, and names the paths of unknown fields and of values
// of the wrong type. It is used where decoding has failed, or to find fields that decoding ignores. It never decodes.
package fit

import (
	"encoding"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// fieldCache remembers Fields by type: a body may have a hundred thousand items of one.
var fieldCache sync.Map

// FieldsOf returns the fields of a struct by their names in JSON, with those of embedded structs. Callers must not change the map.
func FieldsOf(t reflect.Type) map[string]reflect.Type {
	if known, ok := fieldCache.Load(t); ok {
		return known.(map[string]reflect.Type)
	}
	known, _ := fieldCache.LoadOrStore(t, readFields(t))
	return known.(map[string]reflect.Type)
}

func readFields(t reflect.Type) map[string]reflect.Type {
	out := make(map[string]reflect.Type)
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			maps.Copy(out, FieldsOf(f.Type))
		case name != "" && name != "-":
			out[name] = f.Type // an embedded field of this name came before, and gives way
		}
	}
	return out
}

// IsOpaque reports whether a type has its own JSON or text decoding, so that its fields are unknown.
func IsOpaque(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// KeptField is implemented by types of fields that are kept as they are: Kept returns the type that the value must have.
type KeptField interface{ Kept() reflect.Type }

// IsKept reports whether a type is one of fields that are kept as they are.
func IsKept(t reflect.Type) bool { return t.Implements(reflect.TypeFor[KeptField]()) }

// Deref returns the type that a pointer type points to, or the type itself.
func Deref(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// maxUnknown is how many unknown fields are named. Those beyond it are pruned, and not named.
const maxUnknown = 1000

// UnknownFields returns the paths of fields that the type doesn't have, in order.
func UnknownFields(t reflect.Type, v any) []string { return findUnknown(t, v, false) }

// PruneUnknown removes fields that the type doesn't have, and returns their paths.
func PruneUnknown(t reflect.Type, v any) []string { return findUnknown(t, v, true) }

// KeptFields returns the paths of fields that are only kept, in order.
func KeptFields(t reflect.Type, v any) []string {
	f := fieldFinder{kept: true}
	f.walk(t, v, nil)
	return f.out
}

func findUnknown(t reflect.Type, v any, prune bool) []string {
	f := fieldFinder{prune: prune}
	f.walk(t, v, nil)
	return f.out
}

type fieldFinder struct {
	out   []string
	prune bool
	kept  bool // fields that are kept are looked for, and not those that the type doesn't have
}

// pathStep is a place in a value. It is written out only where something is wrong.
type pathStep struct {
	up   *pathStep
	name string // of a field
	nth  int    // of an item; of a field it is -1
}

func (s *pathStep) String() string {
	if s == nil {
		return ""
	}
	if s.nth >= 0 {
		return itemPath(s.up.String(), s.nth)
	}
	return fieldPath(s.up.String(), ClipPath(s.name))
}

// ClipPath bounds a name or a path from a request for use in an answer.
func ClipPath(path string) string {
	const most = 256
	if len(path) <= most {
		return path
	}
	return strings.ToValidUTF8(path[:most], "") + "…"
}

func (f *fieldFinder) walk(t reflect.Type, v any, at *pathStep) {
	if t = Deref(t); IsOpaque(t) {
		if f.kept && IsKept(t) && len(f.out) < maxUnknown {
			f.out = append(f.out, at.String())
		}
		return
	}
	switch v := v.(type) {
	case []any:
		if t.Kind() == reflect.Slice {
			for i := range v {
				f.walk(t.Elem(), v[i], &pathStep{up: at, nth: i})
			}
		}
	case map[string]any:
		fields := map[string]reflect.Type{}
		if t.Kind() == reflect.Struct {
			fields = FieldsOf(t)
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			below, known := fields[name]
			switch {
			case known:
				f.walk(below, v[name], &pathStep{up: at, name: name, nth: -1})
			case t.Kind() == reflect.Map:
				f.walk(t.Elem(), v[name], &pathStep{up: at, name: name, nth: -1})
			case t.Kind() == reflect.Struct:
				if len(f.out) < maxUnknown && !f.kept {
					f.out = append(f.out, (&pathStep{up: at, name: name, nth: -1}).String())
				}
				if f.prune {
					delete(v, name)
				}
			}
		}
	}
}

func fieldPath(at, name string) string { return strings.TrimPrefix(at+"."+name, ".") }

func itemPath(at string, i int) string { return fmt.Sprintf("%s[%d]", at, i) }

// FindMismatch finds the first place where a value is not of the type that belongs there, and says what does. Fields
// that the type doesn't have are passed over. why is empty when all is well.
func FindMismatch(t reflect.Type, v any) (at, why string) { return mismatchAt(t, v, "") }

func mismatchAt(t reflect.Type, v any, at string) (string, string) {
	t = Deref(t)
	if v == nil {
		return "", "" // nothing
	}
	switch {
	case IsKept(t):
		return mismatchAt(reflect.Zero(t).Interface().(KeptField).Kept(), v, at)
	case t.Kind() == reflect.Interface:
		return "", ""
	case IsOpaque(t):
		return leafMismatch(t, v, at)
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		fields, ok := v.(map[string]any)
		if !ok {
			return at, mustBe("an object", v)
		}
		return mismatchIn(t, fields, at)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return leafMismatch(t, v, at)
		}
		list, ok := v.([]any)
		if !ok {
			return at, mustBe("a list", v)
		}
		for i := range list {
			if at, why := mismatchAt(t.Elem(), list[i], itemPath(at, i)); why != "" {
				return at, why
			}
		}
		return "", ""
	}
	return leafMismatch(t, v, at)
}

func mismatchIn(t reflect.Type, fields map[string]any, at string) (string, string) {
	known := map[string]reflect.Type{}
	if t.Kind() == reflect.Struct {
		known = FieldsOf(t)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		below, place := known[name], fieldPath(at, name)
		if t.Kind() == reflect.Map {
			below, place = t.Elem(), at+"["+name+"]"
		}
		if below == nil {
			continue
		}
		if at, why := mismatchAt(below, fields[name], place); why != "" {
			return at, why
		}
	}
	return "", ""
}

// leafMismatch tries whether a value can be read as it is.
func leafMismatch(t reflect.Type, v any, at string) (string, string) {
	raw, err := json.Marshal(v)
	if err != nil {
		return at, err.Error()
	}
	if err = json.Unmarshal(raw, reflect.New(t).Interface()); err == nil {
		return "", ""
	}
	if text, ok := v.(string); ok && t.Kind() == reflect.Slice {
		_, err := base64.StdEncoding.DecodeString(text)
		return at, fmt.Sprintf("must be base64: %v", err)
	}
	if want := typeInWords(t); want != "" {
		return at, mustBe(want, v)
	}
	return at, err.Error()
}

func typeInWords(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "a time, such as 2026-11-21T10:00:00Z"
	case IsOpaque(t):
		return ""
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a string in base64"
	}
	return "a whole number"
}

func mustBe(be string, v any) string {
	is := "this number"
	switch v.(type) {
	case string:
		is = "a string"
	case bool:
		is = "a boolean"
	case []any:
		is = "a list"
	case map[string]any:
		is = "an object"
	}
	why := "must be " + be + ", not " + is
	if be == "a string" && (is == "this number" || is == "a boolean") {
		why += ": write it in quotes"
	}
	return why
}
